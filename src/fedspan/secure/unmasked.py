"""What a site helped to unmask: kept on disk before any share leaves, so that no round is unmasked in two ways.

Two sums of nearly the same sites would tell what sets them apart. So a round is one question, and of each kind of sum
one list of sites whose numbers are read in one way; asked for that again, with fresh keys, a site helps again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedspan.encoding import Plain, decode, encode, write_atomically
from fedspan.errors import FileError, ProtocolError
from fedspan.secure import messages
from fedspan.secure.roll import KINDS, Subject


class Unmasked:
    """The last round of a run that a site gave shares for; with a file it survives the process."""

    def __init__(self, run: str, file: Path | None = None) -> None:
        self._run, self._file = run, file
        self._round, self._question = -1, ""
        self._sums: dict[str, dict[str, Plain]] = {}
        if file is not None and file.exists():
            self._load(file)

    def sites(self, number: int, kind: str) -> list[str]:
        """Return whose sum of this kind was unmasked in a round; none: it was not."""
        return list(self._sums[kind]["sites"]) if number == self._round and kind in self._sums else []

    def check_question(self, number: int, question: str) -> None:
        """Refuse a round before the last, and the last one with another question."""
        if number < self._round:
            raise ProtocolError(f"round {number} is over: this site released for round {self._round}")
        if number == self._round and question != self._question:
            raise ProtocolError(f"round {number} was another question when this site released for it")

    def check(self, subject: Subject, alive: list[str], about: str) -> None:
        """Refuse a second sum of a round that is not the first one over again."""
        known = self._sums.get(subject.kind) if subject.number == self._round else None
        if known is not None and known != {"sites": alive, "about": about}:
            raise ProtocolError(
                f"round {subject.number} was unmasked for other sites, or read in another way; of two such sums one "
                f"would see what sets them apart"
            )

    def note(self, subject: Subject, alive: list[str], about: str) -> None:
        """Note a sum that shares are given up for, if it may be; on disk before this returns."""
        self.check(subject, alive, about)
        if subject.number != self._round:
            self._round, self._question, self._sums = subject.number, subject.question, {}
        self._sums[subject.kind] = {"sites": alive, "about": about}
        if self._file is not None:
            kept = {"run": self._run, "round": self._round, "question": self._question, "sums": self._sums}
            write_atomically(self._file, encode(kept))

    def _load(self, file: Path) -> None:
        try:
            run, number, question, sums = messages.fields(decode(file.read_bytes()), "run", "round", "question", "sums")
            number, question = messages.whole(number, "a round"), messages.hexadecimal(question, "a question", 32)
            kept = {kind: _sum(found) for kind, found in messages.table(sums, "the sums", KINDS).items()}
        except (FileError, OSError, ProtocolError) as cause:
            raise FileError(f"{file}: what this site released is unreadable ({cause}); start anew") from cause
        if run == self._run:
            self._round, self._question, self._sums = number, question, kept


def _sum(kept: Any) -> dict[str, Plain]:
    sites, about = messages.fields(kept, "sites", "about")
    return {"sites": messages.names(sites, "the sites"), "about": messages.hexadecimal(about, "how it is read", 32)}
