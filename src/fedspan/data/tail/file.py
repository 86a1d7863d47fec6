"""A growing text file: read behind what was read before, after a look whether that is still there."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import BinaryIO

from fedspan.data.lines import LineParser, Lines, Reading
from fedspan.data.tail.base import check_position
from fedspan.data.tail.text import CHUNK_BYTES, TextTail
from fedspan.encoding import Plain
from fedspan.errors import FileError

LOOK_BACK = 4096
"""How many bytes before the position are compared."""

_WAY_OUT = (
    "put the file back as it was, or start anew with this one under another name. Where files are rotated, let the "
    'writer begin new ones under new names, or pipe the lines in: tail -n +1 -F FILE | fedspan stream STUDY, with "-" '
    "as the site's path"
)


class FileTail(TextTail):
    """A text file to which lines are added. One that is not there yet is waited for."""

    def __init__(
        self, path: Path, kind: type[Lines], name: str, reading: Reading, position: dict[str, Plain] | None
    ) -> None:
        super().__init__(str(path))
        self.path = path
        self._name = name
        self._at = 0
        self._before = _digest(b"")
        self._inode: int | None = None
        self._chunk, self._chunk_at = b"", 0
        head = None
        if position is not None:
            numbers = {"at": int, "lines": int, "rows": int, "before": str, "head": (str, type(None))}
            check_position(position, name, self.where, numbers)
            self._at, self._lines, self._rows = position["at"], position["lines"], position["rows"]
            self._before, head = position["before"], position["head"]
        self._parser = LineParser(self.where, kind, reading, head=head, surveyed=self._rows > 0)

    @property
    def position(self) -> dict[str, Plain]:
        """The bytes, lines and rows that were given out, a digest of the last of these bytes, and the file's head."""
        return {
            "kind": self._name, "at": self._at, "lines": self._lines, "rows": self._rows, "before": self._before,
            "head": self._parser.head if self._at else None,
        }  # fmt: skip

    @property
    def waiting(self) -> str | None:
        """What of the last line is there, or that the file is not."""
        return super().waiting if self.path.exists() else f"{self.path} is not there yet"

    def _fetch(self) -> bool:
        size = CHUNK_BYTES
        while True:
            fresh = self._bytes(size)
            end = fresh.rfind(b"\n") + 1
            if end and self._parse(fresh[:end]):
                return True
            self._left = len(fresh)
            if len(fresh) < size:
                return False
            self._check_length(size)
            size *= 2

    def _pass(self, size: int) -> None:
        self._at += size
        end = self._at - self._chunk_at
        self._before = _digest(self._chunk[max(0, end - LOOK_BACK) : end])

    def _bytes(self, size: int) -> bytes:
        """Return what comes behind the position."""
        try:
            if not stat.S_ISREG(self.path.stat().st_mode):  # opening a pipe would wait for its other end
                raise FileError(f'{self.path} is no file that can grow; a pipe is read as standard input, the path "-"')
            with self.path.open("rb") as file:
                return self._checked(file, size)
        except FileNotFoundError:
            if self._at:
                raise FileError(f"{self.path} is gone after {self._at:,} bytes of it were read; {_WAY_OUT}") from None
            return b""
        except OSError as cause:
            raise FileError(f"{self.path}: cannot be read ({cause.strerror})") from cause

    def _checked(self, file: BinaryIO, size: int) -> bytes:
        """Read on, unless what was read is no longer there."""
        found = os.fstat(file.fileno())
        if self._at and self._inode not in (None, found.st_ino):
            raise FileError(f"{self.path} was replaced after {self._at:,} bytes of it were read; {_WAY_OUT}")
        if found.st_size < self._at:
            raise FileError(f"{self.path} shrank: {self._at:,} bytes were read, it has {found.st_size:,}; {_WAY_OUT}")
        back = min(self._at, LOOK_BACK)
        file.seek(self._at - back)
        chunk = file.read(back + size)
        if _digest(chunk[:back]) != self._before:
            raise FileError(f"{self.path} changed within the {self._at:,} bytes that were read; {_WAY_OUT}")
        self._inode = found.st_ino
        self._chunk, self._chunk_at = chunk, self._at - back
        return chunk[back:]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
