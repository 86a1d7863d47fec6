"""Growing text: complete lines become rows, a bad line is named and passed over."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from fedspan.data.lines import LineParser
from fedspan.data.tail.base import Tail
from fedspan.encoding import Array
from fedspan.errors import DataError, FileError

CHUNK_BYTES = 512 << 10
"""How much text is taken at a time: a number has at least one byte of it, and eight in a block of rows."""

LINE_BYTES = 64 << 20
"""No line, and no record of several lines, is longer than this."""


class Ready(NamedTuple):
    """What some lines came to, and how many lines and bytes they are."""

    what: Array | DataError | None
    lines: int
    size: int


class TextTail(Tail):
    """Lines that become rows; where they come from is the sub-class's part."""

    _parser: LineParser

    def __init__(self, where: str) -> None:
        self.where = where
        self._ready: deque[Ready] = deque()
        self._lines = 0
        self._rows = 0
        self._left = 0

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns' names, once the head was read."""
        return None if self._parser.form is None else self._parser.form.columns

    @property
    def waiting(self) -> str | None:
        """What of the last line is there."""
        if not self._left:
            return None
        return f"{self.where}, line {self._lines + 1} is not complete: {self._left} bytes wait for the end of the line"

    def read(self) -> Iterator[Array]:
        """Yield blocks of rows from the complete lines that came since the last call."""
        while self._ready or self._fetch():
            ready = self._ready.popleft()
            self._lines += ready.lines
            self._pass(ready.size)
            if isinstance(ready.what, DataError):
                raise ready.what
            if ready.what is not None:
                self._rows += len(ready.what)
                yield ready.what

    @abstractmethod
    def _fetch(self) -> bool:
        """Make the next lines ready, and say whether there are any."""

    @abstractmethod
    def _pass(self, size: int) -> None:
        """Go on by this many bytes: what they came to is given out."""

    def _check_length(self, size: int) -> None:
        """Refuse to wait for the end of a line that is longer than any line of numbers."""
        if size >= LINE_BYTES:
            raise FileError(
                f"{self.where}, line {self._lines + 1} does not end within {LINE_BYTES >> 20} MB; is this text?"
            )

    def _parse(self, data: bytes, *, last: bool = False) -> int:
        """Make whole lines ready; return how many of their bytes that took."""
        try:
            text, undecoded = data.decode(), False
        except UnicodeDecodeError:
            text, undecoded = data.decode(errors="surrogateescape"), True
        if self._lines == 0:
            text = text.removeprefix("\ufeff")  # spreadsheets write a mark in front
        lines = text.replace("\r\n", "\n").split("\n")
        if not lines[-1]:
            lines.pop()
        items = self._parser.items(lines, self._lines + 1, last=last, undecoded=undecoded)
        if len(items) == 1 and items[0].lines == len(lines):
            self._ready.append(Ready(*items[0], len(data)))
            return len(data)
        ends = [0, *accumulate(len(line) + 1 for line in data.split(b"\n"))]
        at = 0
        for item in items:
            size = min(ends[at + item.lines], len(data)) - ends[at]  # the very last line may have no end
            self._ready.append(Ready(*item, size))
            at += item.lines
        return min(ends[at], len(data))
