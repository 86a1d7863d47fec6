"""One site of a stream: its input is read once, folded to a summary, kept in a state file and published."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedspan.cli.output import counted
from fedspan.cli.stream_rows import Columns, Fault, Gaps
from fedspan.data import follow
from fedspan.encoding import Array, Plain, decode, encode, write_atomically
from fedspan.errors import DataError, FedspanError, FileError, ResumeError
from fedspan.published import Published
from fedspan.stream import Stream
from fedspan.stream_file import StreamFile

FORMAT, VERSION = "fedspan-stream-state", 1
NAMED = 20
"""How many complaints of a site are printed; all are counted."""
STDIN = Path("-")


class _Known(NamedTuple):
    """What is known of the rows so far."""

    stream: Stream
    gaps: Gaps


class SiteStream:
    """A site's input, and what is known of the rows that it gave.

    All of it is in one state file, written before the summary that it stands for: a stream that is killed goes on from
    its last state, and takes the rows after it as if nothing had been.
    """

    def __init__(
        self, name: str, study: StreamFile, columns: Columns, folder: Path, say: Callable[[str], None], *, resume: bool
    ) -> None:
        self.name, self._study, self._columns, self._say = name, study, columns, say
        self.entry = study.sites[name]
        self._state = folder / "sites" / f"{name}.state"
        self._summary = folder / "summaries" / f"{name}.summary"
        self.seq = 0
        """How often it published."""
        self.read, self.left_out, self.refused = 0, 0, 0
        """Rows that were read, lines or files that are none, rows that cannot be used."""
        self.problem: str | None = None
        """Why its input cannot be read as it is now."""
        self.ended = False
        """Whether it cannot go on in this run."""
        self.unsaved = False
        """Whether there is more than what the state file has."""
        self._known: _Known | None = None
        self._places: list[int] | None = None  # where in its rows the study's columns are
        self._is_aligned = False
        self._named = 0
        position = self._restored() if resume and self._state.exists() else None
        self.seq = max(self.seq, self._published())
        self.tail = follow(
            self.entry.path, position=position, drop=(*study.drop, *self.entry.drop), strict_drop=False,
            delimiter=self.entry.delimiter, decimal=self.entry.decimal, header=self.entry.header, columns=study.columns,
        )  # fmt: skip
        self._reader: Iterator[Array] | None = None

    # ---- rows in ---------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Take the next block, or name the next complaint; say whether there was any."""
        self._reader = self._reader or self.tail.read()
        try:
            block = next(self._reader, None)
        except DataError as error:  # it is passed over, and the next call goes on behind it
            self._reader, self.unsaved = None, True
            self.left_out += 1
            self._complain(str(error))
            return True
        except FileError as error:  # it stays so until somebody mends it
            self._reader = None
            self._hold(str(error))
            return False
        if block is None:
            self._reader = None
            return False
        self.problem = None
        try:
            self._take(block)
        except DataError as error:
            self.ended = True
            self._hold(f"{error}. This site is not followed any more")
        return not self.ended

    @property
    def done(self) -> bool:
        """Whether all that was there was read, where `step` found nothing."""
        return self.problem is not None or self.entry.path != STDIN or self.tail.exhausted

    def _take(self, block: Array) -> None:
        known = self._known if self._known and self._is_aligned else self._begin(block.shape[1])
        block = block if self._places is None else np.ascontiguousarray(block[:, self._places])  # sums go by the layout
        rows, faults = known.gaps.met(block)
        for fault in faults:
            self._refuse(fault)
        weight = self.entry.weight
        known.stream.push(rows, None if weight == 1 else np.full(len(rows), weight))
        self.read += len(block)
        self.unsaved = True

    def _begin(self, width: int) -> _Known:
        """Find the study's columns in the first rows, of a stream that goes on too."""
        self._places = self._columns.places(self.tail.columns, width)
        wanted, d = self._study.settings.n_components, width if self._places is None else len(self._places)
        if isinstance(wanted, int) and wanted > d:
            raise DataError(f"n_components = {wanted} is more than its {counted(d, 'column')}; ask for fewer")
        if self._known is None:
            self._known = _Known(Stream(d, self._study.settings), Gaps(d, self._policy, self.entry.weight))
        self._is_aligned = True
        return self._known

    @property
    def _policy(self) -> str:
        return self.entry.missing or self._study.missing

    # ---- complaints ------------------------------------------------------------------------------------

    def _refuse(self, fault: Fault) -> None:
        self.refused += len(fault.rows)
        names = self._columns.names
        columns = [str(i + 1) if names is None else repr(names[i]) for i in fault.columns]
        more = f" and {len(fault.rows) - 1:,} after it have" if len(fault.rows) > 1 else " has"
        where = "standard input" if self.entry.path == STDIN else self.entry.path
        self._complain(
            f"{where}: row {self.read + fault.rows[0] + 1:,}{more} {fault.why}, in column {', '.join(columns[:5])}"
            f"{' ...' if len(columns) > 5 else ''}; left out; {fault.way_out}"
        )

    def _complain(self, text: str) -> None:
        self._named += 1
        if self._named <= NAMED:
            self._say(f"site {self.name!r}: {text}")
        if self._named == NAMED:
            self._say(f"site {self.name!r}: what else is left out is counted, and not named")

    def _hold(self, text: str) -> None:
        if text != self.problem:
            self._say(f"site {self.name!r}: {text}")
        self.problem = text

    # ---- what is known ---------------------------------------------------------------------------------

    @property
    def skipped(self) -> int:
        """Rows with gaps that were left out because they should be."""
        return 0 if self._known is None else self._known.gaps.skipped

    @property
    def stream(self) -> Stream | None:
        """The rows that were folded, and those that wait for their block."""
        return None if self._known is None else self._known.stream

    def publish(self) -> None:
        """Keep the state, and publish the summary of all rows so far, if there are any."""
        self.seq += 1
        self._save()
        if self._known is not None:
            columns = None if self._columns.names is None else list(self._columns.names)
            summary = self._known.stream.now()
            Published(self.name, self.seq, self._study.fingerprint, columns, summary).write(self._summary)

    def _published(self) -> int:
        """Return the number of the summary that is there: what replaces it must not look older to whoever has it."""
        try:
            return Published.read(self._summary).seq
        except FileError:  # none, or a damaged one
            return 0

    def _terms(self) -> dict[str, Plain]:
        """What must be the same for the stream to go on."""
        entry = self.entry
        return {
            "study": self._study.fingerprint, "missing": self._policy, "weight": entry.weight, "header": entry.header,
            "drop": [*self._study.drop, *entry.drop], "delimiter": entry.delimiter, "decimal": entry.decimal,
        }  # fmt: skip

    def _save(self) -> None:
        known = self._known
        body = encode({
            "terms": self._terms(), "seq": self.seq, "position": self.tail.position,
            "counts": [self.read, self.left_out, self.refused],
            "columns": None if self._columns.names is None else list(self._columns.names),
            "stream": None if known is None else known.stream.as_plain(),
            "gaps": None if known is None else known.gaps.as_plain(),
        })  # fmt: skip
        seal = {"format": FORMAT, "version": VERSION, "digest": hashlib.sha256(body).hexdigest()}
        write_atomically(self._state, encode({**seal, "body": np.frombuffer(body, dtype=np.uint8)}))
        self.unsaved = False

    def _restored(self) -> dict[str, Plain]:
        """Take what the state file holds; return the position to go on from."""
        way_out = "restore it from a copy, or delete it: the site then begins anew, with the first row of its input"
        try:
            outer: Any = decode(self._state.read_bytes())
            found = outer["format"], outer["version"]
            if found != (FORMAT, VERSION):
                way_out = f"this fedspan reads {FORMAT!r} version {VERSION}: take the one that wrote it, or {way_out}"
                raise ValueError(f"it has format {found[0]!r:.40} version {found[1]!r:.40}")
            if hashlib.sha256(outer["body"].tobytes()).hexdigest() != outer["digest"]:
                raise ValueError("its bytes are not those that were written")
            inner: Any = decode(outer["body"].tobytes())
            terms, columns = inner["terms"], inner["columns"]
            self.seq, position = inner["seq"], inner["position"]
            self.read, self.left_out, self.refused = inner["counts"]
            if inner["stream"] is not None:
                self._known = _Known(Stream.from_plain(inner["stream"]), Gaps.from_plain(inner["gaps"]))
                self._columns.settle(None if columns is None else tuple(columns), self._known.stream.d)
                self.unsaved = True  # the summary that goes with the state may not have been written
        except (FedspanError, OSError, KeyError, TypeError, ValueError, AttributeError) as cause:
            raise FileError(f"{self._state} is damaged or of another version ({cause}); {way_out}") from cause
        changed = [key for key, value in self._terms().items() if terms.get(key) != value]
        if changed:
            raise ResumeError(
                f"site {self.name!r}: the study changed since this stream began: {', '.join(changed)}; restore it, or "
                f"start anew with another --folder"
            )
        return position  # type: ignore[no-any-return]
