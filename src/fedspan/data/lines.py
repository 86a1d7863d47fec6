"""Rows from lines of text, whatever their format: what is a row, what is not, and on which line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedspan.data.arrays import kept_columns, nearest_column
from fedspan.data.source import BLOCK_BYTES
from fedspan.encoding import Array
from fedspan.errors import DataError, FileError


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a file is read, and which of its columns are taken."""

    drop: tuple[str, ...] = ()
    strict_drop: bool = True
    columns: tuple[str, ...] | None = None
    """The names to take, in this order; None takes all but those to drop."""
    delimiter: str | None = None
    decimal: str = "."
    header: bool | None = None

    def picked(self, names: Sequence[str] | None, width: int) -> list[int]:
        """Return the positions of the columns that are taken, in their order."""
        kept = kept_columns(names, self.drop, strict=self.strict_drop)
        if self.columns is None:
            return list(range(width)) if names is None else kept
        if names is None:
            raise DataError(
                f"the columns have no names here, but are wanted by name ({', '.join(self.columns[:3])}); name them"
            )
        have = [names[i] for i in kept]
        where, times = dict(zip(have, kept, strict=True)), Counter(have)
        for name in self.columns:
            if name not in where:
                raise DataError(f"there is no column {name!r}; {nearest_column(name, have)}")
            if times[name] > 1:
                raise DataError(f"{times[name]} columns are called {name!r}; rename them")
        return [where[name] for name in self.columns]


class Lines(Protocol):
    """A format of text: how its head is found, where a record ends, and what numbers it holds."""

    columns: tuple[str, ...] | None
    taken: int
    """How many numbers a row has."""
    skip: int
    """How many of the first lines are no rows."""

    def __init__(self, where: str, head: str, reading: Reading) -> None: ...

    @staticmethod
    def head(lines: list[str], reading: Reading, *, last: bool) -> int | None:
        """Return how many lines the head takes (what is blank, then the first record), None if it is not all there."""

    def quick(self, lines: list[str]) -> Array | None:
        """Return the rows of lines that hold no surprise, None where they may."""

    def split(self, lines: list[str], *, last: bool) -> Iterator[tuple[int, int, Any]]:
        """Yield each record (or the `DataError` in its place) between its first line and the one behind it."""

    def row(self, record: Any) -> list[float | None] | None:
        """Return a record's numbers, None for what is none; None for a blank line. A malformed one is refused."""

    def refused(self, wrong: dict[int, tuple[int, Any]], *, whole: bool) -> DataError:
        """Return the error for values that are no numbers: for each place in a row the line and the record."""


class Item(NamedTuple):
    """What some lines came to: rows, a complaint, or nothing."""

    what: Array | DataError | None
    lines: int


class LineParser:
    """Turns lines into rows: the head is found first; a bad line is a complaint, and the next one a row again."""

    def __init__(
        self, where: str, kind: type[Lines], reading: Reading, *, head: str | None = None, surveyed: bool = False
    ) -> None:
        self.head = head
        """The head, once it was read; who has it can go on from any record behind it."""
        self.form = None if head is None else kind(where, head, reading)
        self._where, self._kind, self._reading = where, kind, reading
        self._surveyed = surveyed

    def items(self, lines: list[str], line: int, *, last: bool = False, undecoded: bool = False) -> list[Item]:
        """Return what lines come to; those behind the items are not complete yet, and wait for more.

        ``line`` is the number of the first; ``last`` says that nothing comes behind them, ``undecoded`` that some
        are not UTF-8 and hold surrogates for what they are.
        """
        found: list[Item] = []
        form, head, at = self.form, self.head, 0
        while form is None:
            size = self._kind.head(lines[at:], self._reading, last=last)
            if size is None:
                return found
            head = "\n".join(lines[at : at + size])
            try:
                form = self._kind(self._where, head, self._reading)
            except DataError as error:  # of a format that can begin on a later line
                found.append(Item(self._at(line + at + size - 1, error), size))
                at += size
            else:
                found += [Item(None, form.skip)] if form.skip else []
                at += form.skip
        rows = None if undecoded else form.quick(lines[at:])
        if rows is None:
            found += self._one_by_one(form, lines[at:], line + at, last)
        else:
            found.append(Item(rows if len(rows) else None, len(lines) - at))
        self._surveyed = self._surveyed or any(isinstance(item.what, np.ndarray) for item in found)
        self.form, self.head = form, head  # not before: where the first rows show that it cannot be, it is read again
        return found

    def _one_by_one(self, form: Lines, lines: list[str], line: int, last: bool) -> list[Item]:
        found: list[Item] = []
        rows: list[list[float | None]] = []
        survey = None if self._surveyed or form.columns is None else _Survey(form)
        limit = max(1, BLOCK_BYTES // (8 * form.taken))
        done = end = 0
        for start, end, record in form.split(lines, last=last):
            made = self._row(form, record, lines[start:end], line + start, survey)
            if rows and (isinstance(made, DataError) or len(rows) == limit):
                found.append(Item(np.array(rows, dtype=float), start - done))
                rows, done = [], start
            if isinstance(made, DataError):
                found.append(Item(made, end - done))
                done = end
            elif made is not None:
                rows.append(made)
        if end > done:
            found.append(Item(np.array(rows, dtype=float) if rows else None, end - done))
        if survey is not None:
            survey.check()
        return found

    def _row(
        self, form: Lines, record: Any, lines: list[str], line: int, survey: _Survey | None
    ) -> list[float | None] | DataError | None:
        """Return a record's row, what is wrong with it, or None for a blank one."""
        try:
            check_text("".join(lines))
            row = form.row(record)
        except DataError as error:
            return self._at(line, error)
        if row is None:
            return None
        if survey is not None:
            survey.see(row, line, record)
        if None in row:
            return form.refused({i: (line, record) for i, value in enumerate(row) if value is None}, whole=False)
        return row

    def _at(self, line: int, error: DataError) -> DataError:
        return DataError(f"{self._where}, line {line}: {error}")


class _Survey:
    """A look at the first rows: a column that has texts in all of them is no column of numbers."""

    def __init__(self, form: Lines) -> None:
        self._form = form
        self._texts: dict[int, tuple[int, Any]] = {}
        self._numbers: set[int] = set()

    def see(self, row: list[float | None], line: int, record: Any) -> None:
        for i, value in enumerate(row):
            if value is None:
                self._texts.setdefault(i, (line, record))
            elif value == value:  # a gap tells nothing
                self._numbers.add(i)

    def check(self) -> None:
        wrong = {i: first for i, first in self._texts.items() if i not in self._numbers}
        if wrong:
            raise FileError(str(self._form.refused(wrong, whole=True)))


def check_text(text: str) -> None:
    """Refuse text that was no UTF-8, and was decoded with surrogates in place of what is not."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise DataError("this is not UTF-8 text; save the file as UTF-8") from None
