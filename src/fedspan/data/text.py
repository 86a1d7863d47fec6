"""Text files: read in blocks of whole records, their numbers kept where they fit memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedspan.data.source import Block, Source
from fedspan.encoding import Array
from fedspan.errors import FileError

CACHE_BYTES = 1 << 30
"""A file whose numbers need no more than this is parsed once and kept, a larger one anew at each pass."""

TEXT_BYTES = 4 << 20
"""How much text is taken at a time."""


class TextSource(Source):
    """A text file: its rows are parsed once and kept (`CACHE_BYTES`), or anew at each pass."""

    dtype = np.dtype(np.float64)
    path: Path

    @abstractmethod
    def parsed(self) -> Iterator[Array]:
        """Yield the rows in blocks, from the file."""

    def read_through(self) -> int:
        """Read the file once, keep its rows where they fit, and return how many there are."""
        self._stamp = _stamp(self.path)
        self._blocks: list[Array] = []
        rows, size = 0, 0
        for block in self.parsed():
            rows, size = rows + block.shape[0], size + block.nbytes
            if size <= CACHE_BYTES:
                self._blocks.append(block)
            else:
                self._blocks.clear()
        self._is_kept = size <= CACHE_BYTES
        self.pass_cost = 1.0 if self._is_kept else 500.0
        return rows

    def blocks(self) -> Iterator[Block]:
        """Yield blocks of rows, kept or parsed anew."""
        if self._is_kept:
            return iter(self._blocks)
        if _stamp(self.path) != self._stamp:
            raise FileError(f"{self.path}: the file changed since it was opened; open it again")
        return self.parsed()


def _stamp(path: Path) -> tuple[int, int]:
    """Return the size and time of a file, which tell whether it changed."""
    try:
        found = path.stat()
    except OSError as cause:
        raise FileError(f"{path}: cannot be read ({cause.strerror})") from cause
    return found.st_size, found.st_mtime_ns


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield a file in blocks of whole records, each with the number of its first line."""
    line = 1
    try:
        with path.open("rb") as file:
            while lines := file.readlines(TEXT_BYTES):
                quotes = sum(entry.count(b'"') for entry in lines)
                end = len(lines) + 10_000  # a quote that never closes must not swallow the file
                while quotes % 2 and len(lines) < end and (more := file.readline()):
                    lines.append(more)
                    quotes += more.count(b'"')
                yield line, _decoded(path, b"".join(lines), line)
                line += len(lines)
    except OSError as cause:
        raise FileError(f"{path}: cannot be read ({cause.strerror})") from cause


def _decoded(path: Path, block: bytes, line: int) -> str:
    try:
        text = block.decode("utf-8-sig" if line == 1 else "utf-8")  # spreadsheets write a mark in front
    except UnicodeDecodeError as cause:
        at = line + block.count(b"\n", 0, cause.start)
        raise FileError(f"{path}, line {at}: this is not UTF-8 text ({cause.reason}); save the file as UTF-8") from None
    return text.replace("\r\n", "\n")
