"""A run as the coordinator saw it: every question it asked, and every single release that reached it.

`fedspan.layers.transcript` writes one where a study asks for ``record = "transcript"``; `fedspan.privacy.audit` reads
it. It holds what the sites released, each by name, so it is as sensitive as the releases themselves: off by default.

A round's file is written before its line in the index, and both before the round counts as answered. A run that is
killed in between asks the round again, overwrites the file and adds another line; the last line of a round holds.

A secure sum is a round of several exchanges, each with a file of its own: `NNNN-EEEE.plain`, keys, shares, masked
replies, consents and releases, of every attempt. The round's own file then has the sum, and no site's reply. An
exchange that is asked again has other keys and was seen besides, so nothing is overwritten. The letters that single
sites were sent are made of others' replies and are not kept twice.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedspan.encoding import Plain, decode, encode, write_atomically
from fedspan.errors import FileError

FOLDER = "transcript"
"""Where a run folder keeps it: a file for each round and exchange, and ``index.jsonl`` with their digests."""
INDEX = "index.jsonl"
_JOURNAL = "rounds.jsonl"  # where a run folder notes each round as answered: `fedspan.layers.record`
WARNING = "the transcript keeps each site's releases by name; protect the run folder as you would protect them"
"""What whoever asks for a transcript is told."""
_RESTORE = "restore the transcript's folder, or run the study again in another run folder"
_RESUME = f"resume the run if it was stopped here; else {_RESTORE}"

Place = tuple[int, int | None]
"""A round, or one of its exchanges."""


@dataclass(frozen=True)
class Seen:
    """One round as the coordinator saw it."""

    round: int
    step: str
    setup: bool
    message: Plain
    """The question, the same for every site."""
    aggregate: str
    """What the solver asked for: "sum", "mean" or "gather"; of a secure sum's exchanges "gather" or "maskedsum"."""
    replies: dict[str, Plain] = field(default_factory=dict)
    """Each site's release, by name, as it reached the coordinator.

    One that came with a weight other than 1 is a dict of ``value`` and ``weight``: both left the site.
    """
    exchange: int | None = None
    """Which exchange of a secure sum this was, from 0; None: a round."""
    total: Plain = None
    """What a secure sum came to: all that was seen of the replies of ``summed`` in the clear."""
    summed: list[str] | None = None
    """The sites in it; None: this round was no secure sum."""


@dataclass(frozen=True)
class Transcript:
    """The rounds of one run, in order."""

    rounds: tuple[Seen, ...]
    exchanges: tuple[Seen, ...] = ()
    """Those of the secure sums, in order."""

    @property
    def sites(self) -> list[str]:
        """Every site that released anything, in name order."""
        return sorted({name for seen in (*self.rounds, *self.exchanges) for name in seen.replies})

    @property
    def sums(self) -> tuple[Seen, ...]:
        """The rounds of which the coordinator saw a secure sum only."""
        return tuple(seen for seen in self.rounds if seen.summed is not None)

    def releases(self, site: str) -> Iterator[tuple[Seen, Plain]]:
        """Yield the rounds that a site answered, with what it released."""
        for seen in self.rounds:
            if site in seen.replies:
                yield seen, seen.replies[site]

    @classmethod
    def read(cls, run_folder: Path) -> Transcript:
        """Read the transcript that a run folder keeps."""
        folder = run_folder / FOLDER
        if not folder.is_dir():
            raise FileError(f'{run_folder} keeps no transcript; run the study with [run] record = "transcript"')
        digests = _whole_index(folder)
        for number in sorted(_answered(run_folder / _JOURNAL) - _rounds(digests)):
            raise FileError(f"{folder}: round {number} was answered and is not in the transcript; {_RESTORE}")
        files = {place: _file(folder, *place) for place in sorted(digests, key=_in_order)}
        unknown = set(folder.glob("*.plain")) - set(files.values())
        if unknown:
            raise FileError(f"{min(unknown)}: the index does not know this round; {_RESUME}")
        seen = [_read_round(path, digests[place]) for place, path in files.items()]
        return cls(
            tuple(one for one in seen if one.exchange is None), tuple(one for one in seen if one.exchange is not None)
        )


class TranscriptWriter:
    """Writes a run's transcript, round by round; of a resumed run, goes on with the one that is there."""

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder / FOLDER
        self._index = self._folder / INDEX
        self._kept: set[Place] = set()
        if self._index.exists():
            digests, whole = _read_index(self._index)
            self._kept.update(digests)
            os.truncate(self._index, whole)  # a last line cut short by a kill: its round is asked again

    def check_rounds_before(self, number: int) -> None:
        """Refuse to go on with a round where one before it was not kept."""
        for before in range(number):
            if (before, None) not in self._kept:
                raise FileError(
                    f"{self._folder}: round {before} is not in the transcript, so it cannot be made whole; {_RESTORE}"
                )

    def append_exchange(self, seen: Seen) -> None:
        """Keep one exchange of a round, beside those before it."""
        count = sum(number == seen.round and exchange is not None for number, exchange in self._kept)
        self.append(replace(seen, exchange=count))

    def append(self, seen: Seen) -> None:
        """Keep a round, in place of an earlier asking of it."""
        data = encode(vars(seen))
        if not self._folder.exists():
            self._folder.parent.mkdir(parents=True, exist_ok=True)
            self._folder.mkdir(mode=0o700)  # for its owner alone
        write_atomically(_file(self._folder, seen.round, seen.exchange), data)
        line = {"round": seen.round, "step": seen.step, "digest": hashlib.sha256(data).hexdigest()}
        if seen.exchange is not None:
            line["exchange"] = seen.exchange
        with self._index.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self._kept.add((seen.round, seen.exchange))


def has_transcript(run_folder: Path) -> bool:
    """Whether a run folder keeps a transcript."""
    return (run_folder / FOLDER / INDEX).exists()


def _file(folder: Path, number: int, exchange: int | None) -> Path:
    return folder / (f"{number:04d}.plain" if exchange is None else f"{number:04d}-{exchange:04d}.plain")


def _rounds(digests: Iterable[Place]) -> set[int]:
    return {number for number, exchange in digests if exchange is None}


def _in_order(place: Place) -> tuple[int, bool, int]:
    """A round's exchanges come before what it came to."""
    return place[0], place[1] is None, place[1] or 0


def _whole_index(folder: Path) -> dict[Place, str]:
    """Return each round's and exchange's digest; every one is there, and the last line is whole."""
    index = folder / INDEX
    try:
        digests, whole = _read_index(index)
        if whole < index.stat().st_size:
            raise FileError(f"{index}: the last line is cut short; {_RESUME}")
    except OSError as cause:
        raise FileError(f"{index}: the transcript's index cannot be read ({cause.strerror}); {_RESTORE}") from cause
    rounds = _rounds(digests)
    last = max((number for number, exchange in digests if exchange is not None), default=0)
    for number in range(max(len(rounds), last)):  # the last round may have come no further than an exchange
        if number not in rounds:
            raise FileError(f"{index}: there is no line for round {number}; {_RESTORE}")
    for number, exchange in digests:
        if exchange and (number, exchange - 1) not in digests:
            raise FileError(f"{index}: there is no line for exchange {exchange - 1} of round {number}; {_RESTORE}")
    return digests


def _answered(journal: Path) -> set[int]:
    """Return the rounds that a run's journal calls answered; none where there is no journal."""
    rounds: set[int] = set()
    if not journal.exists():
        return rounds
    for number, raw in enumerate(journal.read_bytes().splitlines(keepends=True), start=1):
        if not raw.endswith(b"\n"):
            break  # cut short by a kill: not answered
        try:
            line = json.loads(raw)
            if "answer" in line:
                rounds.add(int(line["round"]))
        except (ValueError, TypeError, LookupError) as cause:
            raise FileError(f"{journal}: line {number} is damaged ({cause}); {_RESTORE}") from cause
    return rounds


def _read_index(index: Path) -> tuple[dict[Place, str], int]:
    """Return each round's and exchange's digest, and how many bytes the whole lines take."""
    digests: dict[Place, str] = {}
    whole = 0
    for number, raw in enumerate(index.read_bytes().splitlines(keepends=True), start=1):
        if not raw.endswith(b"\n"):
            break
        try:
            line = json.loads(raw)
            exchange = line.get("exchange")
            place = int(line["round"]), None if exchange is None else int(exchange)
            digests[place] = str(line["digest"])
        except (AttributeError, ValueError, TypeError, LookupError) as cause:
            raise FileError(f"{index}: line {number} is damaged ({cause}); {_RESTORE}") from cause
        whole += len(raw)
    return digests, whole


def _read_round(path: Path, digest: str) -> Seen:
    try:
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise ValueError("its bytes are not those that were kept")
        return Seen(**decode(data))
    except (OSError, ValueError, TypeError) as cause:
        raise FileError(f"{path}: a round of the transcript cannot be read ({cause}); {_RESTORE}") from cause
