"""A run as the coordinator saw it: every question it asked, and every single release that reached it.

`fedspan.layers.transcript` writes one where a study asks for ``record = "transcript"``; `fedspan.privacy.audit` reads
it. It holds what the sites released, each by name, so it is as sensitive as the releases themselves: off by default.

A round's file is written before its line in the index, and both before the round counts as answered. A run that is
killed in between asks the round again, overwrites the file and adds another line; the last line of a round holds.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fedspan.encoding import Plain, decode, encode, write_atomically
from fedspan.errors import FileError

FOLDER = "transcript"
"""Where a run folder keeps it: one file a round, ``NNNN.plain``, and ``index.jsonl`` with their digests."""
INDEX = "index.jsonl"
_JOURNAL = "rounds.jsonl"  # where a run folder notes each round as answered: `fedspan.layers.record`
WARNING = "the transcript keeps each site's releases by name; protect the run folder as you would protect them"
"""What whoever asks for a transcript is told."""
_RESTORE = "restore the transcript's folder, or run the study again in another run folder"
_RESUME = f"resume the run if it was stopped here; else {_RESTORE}"


@dataclass(frozen=True)
class Seen:
    """One round as the coordinator saw it."""

    round: int
    step: str
    setup: bool
    message: Plain
    """The question, the same for every site."""
    aggregate: str
    """What the solver asked for: "sum", "mean" or "gather"."""
    replies: dict[str, Plain] = field(default_factory=dict)
    """Each site's release, by name, as it reached the coordinator.

    One that came with a weight other than 1 is a dict of ``value`` and ``weight``: both left the site.
    """


@dataclass(frozen=True)
class Transcript:
    """The rounds of one run, in order."""

    rounds: tuple[Seen, ...]

    @property
    def sites(self) -> list[str]:
        """Every site that released anything, in name order."""
        return sorted({name for seen in self.rounds for name in seen.replies})

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
        for number in sorted(_answered(run_folder / _JOURNAL) - set(digests)):
            raise FileError(f"{folder}: round {number} was answered and is not in the transcript; {_RESTORE}")
        files = {number: _file(folder, number) for number in sorted(digests)}
        unknown = set(folder.glob("*.plain")) - set(files.values())
        if unknown:
            raise FileError(f"{min(unknown)}: the index does not know this round; {_RESUME}")
        return cls(tuple(_read_round(path, digests[number]) for number, path in files.items()))


class TranscriptWriter:
    """Writes a run's transcript, round by round; of a resumed run, goes on with the one that is there."""

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder / FOLDER
        self._index = self._folder / INDEX
        self._kept: set[int] = set()
        if self._index.exists():
            digests, whole = _read_index(self._index)
            self._kept.update(digests)
            os.truncate(self._index, whole)  # a last line cut short by a kill: its round is asked again

    def check_rounds_before(self, number: int) -> None:
        """Refuse to go on with a round where one before it was not kept."""
        for before in range(number):
            if before not in self._kept:
                raise FileError(
                    f"{self._folder}: round {before} is not in the transcript, so it cannot be made whole; {_RESTORE}"
                )

    def append(self, seen: Seen) -> None:
        """Keep a round, in place of an earlier asking of it."""
        data = encode(vars(seen))
        if not self._folder.exists():
            self._folder.parent.mkdir(parents=True, exist_ok=True)
            self._folder.mkdir(mode=0o700)  # for its owner alone
        write_atomically(_file(self._folder, seen.round), data)
        line = {"round": seen.round, "step": seen.step, "digest": hashlib.sha256(data).hexdigest()}
        with self._index.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self._kept.add(seen.round)


def has_transcript(run_folder: Path) -> bool:
    """Whether a run folder keeps a transcript."""
    return (run_folder / FOLDER / INDEX).exists()


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number:04d}.plain"


def _whole_index(folder: Path) -> dict[int, str]:
    """Return each round's digest; every round is there, and the last line is whole."""
    index = folder / INDEX
    try:
        digests, whole = _read_index(index)
        if whole < index.stat().st_size:
            raise FileError(f"{index}: the last line is cut short; {_RESUME}")
    except OSError as cause:
        raise FileError(f"{index}: the transcript's index cannot be read ({cause.strerror}); {_RESTORE}") from cause
    for number in range(len(digests)):
        if number not in digests:
            raise FileError(f"{index}: there is no line for round {number}; {_RESTORE}")
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


def _read_index(index: Path) -> tuple[dict[int, str], int]:
    """Return each round's digest, and how many bytes the whole lines take."""
    digests: dict[int, str] = {}
    whole = 0
    for number, raw in enumerate(index.read_bytes().splitlines(keepends=True), start=1):
        if not raw.endswith(b"\n"):
            break
        try:
            line = json.loads(raw)
            digests[int(line["round"])] = str(line["digest"])
        except (ValueError, TypeError, LookupError) as cause:
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
