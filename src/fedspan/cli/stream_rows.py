"""A stream's rows before they are folded: columns in the study's order, gaps met row by row.

What becomes of a row depends on it and on the rows before it, never on how they were cut into blocks: a stream that was
killed and goes on is the one that was not.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fedspan.data.arrays import nearest_column
from fedspan.encoding import Array, Plain
from fedspan.errors import DataError

LARGEST = 1e140
"""The largest value that can be squared, and the squares summed, with room to spare."""


class Columns:
    """The study's columns: those it lists, else those of the site that is read first."""

    def __init__(self, names: tuple[str, ...] | None = None) -> None:
        self.names = names
        self._width: int | None = None if names is None else len(names)

    def settle(self, names: tuple[str, ...] | None, width: int) -> None:
        """Say what the columns are, unless that is known."""
        if self._width is None:
            self.names, self._width = names, width

    def places(self, names: tuple[str, ...] | None, width: int) -> list[int] | None:
        """Return where a site has the study's columns; None where they are in order. Others are refused."""
        if names is not None and len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise DataError(f"columns {twice[:5]} are there more than once; rename them")
        self.settle(names, width)
        if (names is None) != (self.names is None):
            way_out = "name the columns at every site, or at none"
            raise DataError(
                f"its columns have {'no names' if names is None else 'names'}, unlike the study's; {way_out}"
            )
        if names is None or self.names is None:
            if width != self._width:
                raise DataError(f"it has {width} columns, the study {self._width}; leave out or add what differs")
            return None
        lacks, adds = (sorted(set(a) - set(b)) for a, b in ((self.names, names), (names, self.names)))
        if lacks or adds:
            hint = f"; {nearest_column(lacks[0], adds)}" if lacks and adds else ""
            raise DataError(
                f"its columns are not the study's: lacks {lacks[:5]}, adds {adds[:5]}{hint}; mend the names, or list "
                "the columns to take as columns = [...] in [data]"
            )
        if names == self.names:
            return None
        where = {name: i for i, name in enumerate(names)}
        return [where[name] for name in self.names]


class Fault(NamedTuple):
    """Rows that were refused: which of a block, for what columns, and why."""

    rows: Array
    columns: Array
    why: str
    way_out: str


class Gaps:
    """Meets gaps by the site's policy: ``error`` and ``skip`` leave rows out, ``mean`` fills in the mean so far."""

    def __init__(self, d: int, policy: str, weight: float = 1.0) -> None:
        self._policy, self._weight = policy, weight
        self._largest = LARGEST / math.sqrt(max(weight, 1.0))
        self.skipped = 0
        """Rows left out by ``skip``."""
        self._sums, self._present = np.zeros(d), np.zeros(d)

    def met(self, block: Array) -> tuple[Array, list[Fault]]:
        """Return the rows that can be used, and which ones cannot."""
        sizes = np.abs(block)
        if self._policy != "mean" and bool((sizes <= self._largest).all()):
            return block, []
        faults: list[Fault] = []
        kept = np.ones(len(block), dtype=bool)
        way_out = "mend them at the source"
        self._leave_out(kept, sizes > self._largest, faults, "infinite values, or ones whose squares are", way_out)
        gaps = np.isnan(block) & kept[:, None]
        if self._policy == "mean":
            block, gaps = self._filled(block, gaps, kept)
            way_out = 'begin with rows that have one, or set missing = "skip"'
            self._leave_out(kept, gaps, faults, "missing values before any value came", way_out)
        elif self._policy == "skip":
            self.skipped += int(gaps.any(axis=1).sum())
            kept &= ~gaps.any(axis=1)
        else:
            self._leave_out(kept, gaps, faults, "missing values", 'mend them, or set missing = "mean" or "skip"')
        return block[kept], faults

    def _filled(self, block: Array, gaps: Array, kept: Array) -> tuple[Array, Array]:
        """Fill each gap with the mean of its column down to its row; return also the gaps for which there is none."""
        values = np.where(kept[:, None] & ~gaps, block, 0.0)
        sums = np.add.accumulate(np.vstack([self._sums, values]))[1:]  # one by one: blocks do not matter to the bit
        present = self._present + np.cumsum(kept[:, None] & ~gaps, axis=0)
        if len(block):
            self._sums, self._present = sums[-1], present[-1]
        return np.where(gaps, sums / np.maximum(present, 1.0), block), gaps & (present == 0)

    @staticmethod
    def _leave_out(kept: Array, bad: Array, faults: list[Fault], why: str, way_out: str) -> None:
        rows = np.flatnonzero(bad.any(axis=1))
        if len(rows):
            faults.append(Fault(rows, np.flatnonzero(bad.any(axis=0)), why, way_out))
            kept[rows] = False

    def as_plain(self) -> dict[str, Plain]:
        """Return all of it as plain data."""
        return {
            "policy": self._policy, "weight": self._weight, "skipped": self.skipped, "sums": self._sums,
            "present": self._present,
        }  # fmt: skip

    @classmethod
    def from_plain(cls, plain: Any) -> Gaps:
        """Return what `as_plain` gave."""
        gaps = cls(len(plain["sums"]), plain["policy"], plain["weight"])
        gaps.skipped, gaps._sums, gaps._present = plain["skipped"], plain["sums"], plain["present"]
        return gaps
