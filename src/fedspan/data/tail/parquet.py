"""Parquet as a growing input: a file of it cannot grow, so files are added to a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import numpy as np

from fedspan.data.lines import Reading
from fedspan.data.open import PARQUETS
from fedspan.data.optional import parquet_module
from fedspan.data.source import BLOCK_BYTES, Source, row_slices
from fedspan.data.tail.base import Tail, check_position
from fedspan.encoding import Array, Plain
from fedspan.errors import DataError, FileError

Stamp = list[int]
"""A file's size and time, which tell whether it changed."""


class ParquetTail(Tail):
    """A folder to which Parquet files are added, taken in the order of their names; or one such file.

    A file that cannot be read yet is being written, and waits while others are read. One that comes late is taken
    although its name is not the last. Files with other suffixes, and names that begin with a dot or an underscore,
    are not looked at.
    """

    def __init__(self, path: Path, reading: Reading, position: dict[str, Plain] | None, *, single: bool) -> None:
        self.path = path
        self._reading = reading
        self._single = single
        self._read: dict[str, Stamp] = {}
        self._now: dict[str, Plain] | None = None
        """The file that is being read: its name, its stamp, and how many of its rows were given out."""
        self._columns: tuple[str, ...] | None = reading.columns
        self._unreadable: dict[str, str] = {}
        self._open = parquet_module().ParquetSource  # without pyarrow this says what to install
        if position is not None:
            kinds = {"read": dict, "now": (dict, type(None)), "columns": (list, type(None))}
            check_position(position, "parquet", str(path), kinds)
            self._read = dict(position["read"])
            self._now = position["now"] and dict(position["now"])
            self._columns = position["columns"] and tuple(position["columns"])

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns' names: those that are wanted, or those of the first file."""
        return self._columns

    @property
    def position(self) -> dict[str, Plain]:
        """The files that were read, and how far the one is that is being read."""
        return {
            "kind": "parquet", "read": dict(self._read), "now": self._now and dict(self._now),
            "columns": self._columns and list(self._columns),
        }  # fmt: skip

    @property
    def exhausted(self) -> bool:
        """Whether this is one file, and it was read."""
        return self._single and self.path.name in self._read

    @property
    def waiting(self) -> str | None:
        """The files that cannot be read yet."""
        if not self.path.exists():
            return f"{self.path} is not there yet"
        return "; ".join(self._unreadable.values()) or None

    def read(self) -> Iterator[Array]:
        """Yield the rows of files that have come since the last call."""
        found = self._listed()
        self._check_read(found)
        self._unreadable = {}
        for name in sorted(found.keys() - self._read.keys(), key=lambda name: (not self._is_now(name), name)):
            try:
                source = self._open(self._file(name), drop=self._reading.drop, strict_drop=self._reading.strict_drop)
            except FileError as error:
                self._unreadable[name] = str(error)
                continue
            except DataError:
                self._done(name, found[name])
                raise
            yield from self._rows(source, name, found[name])

    def _rows(self, source: Source, name: str, stamp: Stamp) -> Iterator[Array]:
        """Yield the rows of a file that were not given out yet."""
        given = self._now["rows"] if self._now is not None and self._is_now(name) else 0
        now: dict[str, Plain] = {"name": name, "stamp": stamp, "rows": given}
        self._now = now
        at = 0
        try:
            picks = self._picks(source, name)
            for block in source.blocks():
                for rows in row_slices(block.shape[0], 8 * len(picks), BLOCK_BYTES):
                    at += len(block[rows])
                    if at > now["rows"]:
                        part = block[rows][now["rows"] - at :, picks]
                        now["rows"] = at
                        yield np.ascontiguousarray(part, dtype=np.float64)
        except DataError:
            self._done(name, stamp)
            raise
        except FileError as error:
            self._done(name, stamp)
            raise DataError(f"{error} It is left out from row {now['rows'] + 1:,} on") from None
        self._done(name, stamp)

    def _picks(self, source: Source, name: str) -> list[int]:
        """Return the places of the columns in a file; the first file says which they are, unless they were given."""
        names = source.columns or ()
        if self._columns is None:
            self._columns = names
        if names == self._columns:
            return list(range(len(names)))
        try:
            if self._reading.columns is None and set(names) != set(self._columns):
                lacks, adds = (sorted(a - b) for a, b in permutations((set(self._columns), set(names))))
                raise DataError(
                    f"it has other columns than the files before it: lacks {lacks[:5]}, adds {adds[:5]}; mend it, and "
                    "add it under another name"
                )
            return Reading(columns=self._columns).picked(names, len(names))
        except DataError as error:
            raise DataError(f"{self._file(name)}: {error}") from None

    def _check_read(self, found: dict[str, Stamp]) -> None:
        """Say it, once, where a file that was read is another one now, or is gone before its last row was read."""
        if self._now is not None and found.get(self._now["name"]) != self._now["stamp"]:
            name, rows = self._now["name"], self._now["rows"]
            what = "changed" if name in found else "is gone"
            self._done(name, found[name] if name in found else self._now["stamp"])
            raise DataError(f"{self._file(name)} {what} after {rows:,} of its rows were read; the others are left out")
        for name, stamp in found.items():
            if self._read.get(name, stamp) != stamp:
                self._read[name] = stamp
                raise DataError(
                    f"{self._file(name)} changed after it was read, and is not read again: a Parquet file cannot grow; "
                    "write new rows to a new file in a folder, and name the folder as the path"
                )

    def _listed(self) -> dict[str, Stamp]:
        """Return the files that are there."""
        try:
            if self._single:
                return {self.path.name: _stamp(self.path.stat())}
            with os.scandir(self.path) as entries:
                return {
                    entry.name: _stamp(entry.stat())
                    for entry in entries
                    if not entry.name.startswith((".", "_")) and entry.name.lower().endswith(PARQUETS)
                }
        except FileNotFoundError:
            return {}
        except OSError as cause:
            raise FileError(f"{self.path}: cannot be read ({cause.strerror})") from cause

    def _file(self, name: str) -> Path:
        return self.path if self._single else self.path / name

    def _is_now(self, name: str) -> bool:
        return self._now is not None and self._now["name"] == name

    def _done(self, name: str, stamp: Stamp) -> None:
        self._read[name], self._now = stamp, None


def _stamp(found: os.stat_result) -> Stamp:
    return [found.st_size, found.st_mtime_ns]
