"""Standard input as a growing input: a thread takes what arrives, so that reading never waits."""

from __future__ import annotations

import hashlib
import os
import sys
from contextlib import suppress
from queue import Empty, Queue
from threading import Thread

from fedspan.data.csv_lines import CsvLines
from fedspan.data.jsonl import JsonLines
from fedspan.data.lines import LineParser, Lines, Reading
from fedspan.data.tail.base import check_position
from fedspan.data.tail.text import CHUNK_BYTES, TextTail
from fedspan.encoding import Plain
from fedspan.errors import FileError

FIRST_BYTES = 4096
"""How many of the first bytes are compared when the same input is sent again."""

_PIECE_BYTES = 64 << 10
_PIECES = 8  # when so many are on their way, whoever writes to the pipe waits
_MARK = b"\xef\xbb\xbf"  # spreadsheets write it in front


class PipeTail(TextTail):
    """CSV or JSON lines from standard input, told apart by the first character.

    A pipe cannot be read twice: to go on from a position the same lines are sent again from the first one, and
    those that were given out before are passed over.
    """

    def __init__(self, reading: Reading, position: dict[str, Plain] | None) -> None:
        super().__init__("standard input")
        self._reading = reading
        self._start = bytearray()  # the first bytes
        self._known: tuple[int, str] | None = None  # of the input before: how many of its first bytes, their digest
        self._again = 0  # lines that are still to be passed over
        self._is_open = False  # whether part of one was passed over
        self._passed = 0
        head = None
        if position is not None:
            kinds = {"lines": int, "rows": int, "start": int, "digest": str, "head": (str, type(None))}
            check_position(position, "standard input", self.where, kinds)
            self._lines, self._rows, head = position["lines"], position["rows"], position["head"]
            self._again, self._known = self._lines, (position["start"], position["digest"])
        kind = _kind((head or "").encode())
        self._parser = LineParser(self.where, kind, reading, head=head, surveyed=self._rows > 0)
        self._buffer = bytearray()
        self._ended = False
        self._pieces: Queue[bytes] | None = None

    @property
    def position(self) -> dict[str, Plain]:
        """The lines and rows that were given out, a digest of their first bytes, and the head."""
        start = min(self._passed, FIRST_BYTES)
        size, digest = self._known or (start, _digest(self._start[:start]))
        return {
            "kind": "standard input", "lines": self._lines, "rows": self._rows, "start": size, "digest": digest,
            "head": self._parser.head if self._lines else None,
        }  # fmt: skip

    @property
    def exhausted(self) -> bool:
        """Whether the other end was closed and all that came was given out."""
        return self._ended and not self._buffer and not self._ready

    def _pass(self, size: int) -> None:
        self._passed += size

    def _fetch(self) -> bool:
        if self._known is not None and not self._passed_over(*self._known):
            return False
        size = CHUNK_BYTES
        while True:
            self._receive(size)
            last = self._ended and len(self._buffer) <= size
            data = bytes(self._buffer[:size])
            data = data if last else data[: data.rfind(b"\n") + 1]
            if data and self._take(data, last):
                return True
            self._left = len(self._buffer)
            if len(self._buffer) < size:
                return False
            self._check_length(size)
            size *= 2

    def _take(self, data: bytes, last: bool) -> bool:
        if self._parser.form is None:
            self._parser = LineParser(self.where, _kind(data), self._reading)
        taken = self._parse(data, last=last)
        del self._buffer[: len(data) if last else taken]  # at the end blank lines may be left, without a head
        return taken > 0

    def _passed_over(self, start: int, digest: str) -> bool:
        """Pass over the lines that were given out before, and say whether all of them have come again."""
        self._receive(CHUNK_BYTES)
        if len(self._start) < start and not self._ended:
            return False
        if _digest(self._start[:start]) != digest:
            raise FileError(
                f"{self.where} does not begin with the {self._lines:,} lines that were read before; send them again "
                "from the first one, or start anew; what sends only new lines goes on through a file (tee -a FILE)"
            )
        while self._again and self._buffer:
            *whole, rest = bytes(self._buffer).split(b"\n", self._again)
            self._again -= len(whole)
            self._is_open = bool(rest) or (self._is_open and not whole)
            passed = len(self._buffer) - (0 if self._again else len(rest))
            self._passed += passed
            del self._buffer[:passed]
            self._receive(CHUNK_BYTES)
        if self._again == 1 and self._is_open and self._ended:
            self._again = 0  # a last line without an end
        if self._again and self._ended:
            raise FileError(
                f"{self.where} ended {self._again:,} lines short of the {self._lines:,} that were read before"
            )
        if not self._again:
            self._known = None
        return not self._again

    def _receive(self, size: int) -> None:
        """Take what has arrived, until so much is in the buffer."""
        if self._pieces is None:
            if sys.stdin is None:
                raise FileError(
                    "standard input is closed; pipe rows into the command, or name a file as the site's path"
                )
            self._pieces = Queue(_PIECES)
            Thread(target=_pump, args=(sys.stdin.fileno(), self._pieces), daemon=True).start()
        with suppress(Empty):
            while not self._ended and len(self._buffer) < size:
                piece = self._pieces.get_nowait()
                self._ended = not piece
                self._buffer += piece
                self._start += piece[: max(0, FIRST_BYTES - len(self._start))]


def _pump(file: int, pieces: Queue[bytes]) -> None:
    """Hand over what arrives, and an empty piece when the other end is closed or broken."""
    with suppress(OSError):
        while piece := os.read(file, _PIECE_BYTES):
            pieces.put(piece)
    pieces.put(b"")


def _kind(data: bytes) -> type[Lines]:
    return JsonLines if data.removeprefix(_MARK).lstrip()[:1] in (b"{", b"[") else CsvLines


def _digest(data: bytes | bytearray) -> str:
    return hashlib.sha256(data).hexdigest()
