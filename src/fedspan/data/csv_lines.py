"""CSV line by line: the first record alone tells the layout, for what follows it may not have been written yet."""

from __future__ import annotations

import csv
from collections.abc import Iterator

from fedspan.data.csv import DELIMITERS, CsvLayout, blank
from fedspan.data.lines import Reading, check_text
from fedspan.encoding import Array
from fedspan.errors import DataError, FileError

Record = list[str] | DataError
"""The fields of a record, or why it is none."""


class CsvLines(CsvLayout):
    """CSV as a format of lines (`fedspan.data.lines.Lines`)."""

    def __init__(self, where: str, head: str, reading: Reading) -> None:
        try:
            check_text(head)
            delimiter = _only_delimiter(head, reading.decimal) if reading.delimiter is None else reading.delimiter
            super().__init__(where, head, delimiter=delimiter, decimal=reading.decimal, header=reading.header)
            self._picks = reading.picked(self.names, self.width)
            if self.names is not None:
                self.check_named(self._picks)
        except DataError as error:  # nothing below a head that cannot be used can be
            raise FileError(str(error) if str(error).startswith(where) else f"{where}: {error}") from None
        self.columns = None if self.names is None else tuple(self.names[i] for i in self._picks)
        self.taken = len(self._picks)

    @staticmethod
    def head(lines: list[str], reading: Reading, *, last: bool) -> int | None:
        """Return how many lines there are to the end of the first record; None if it is not all there."""
        first = _first(lines)
        if first is None:
            return None
        present = [d for d in DELIMITERS if d != reading.decimal and d in lines[first]]
        delimiter = reading.delimiter or (present[0] if present else ",")
        end = next((end for _, end, _ in _records(lines[first:], delimiter, last=last)), None)
        return None if end is None else first + end

    def quick(self, lines: list[str]) -> Array | None:
        """Return the rows by numpy's parser; None where there are quotes, or where it stumbles."""
        if any('"' in entry for entry in lines):
            return None
        return self._fast([entry for entry in lines if entry.strip(" ")], self._picks)

    def split(self, lines: list[str], *, last: bool) -> Iterator[tuple[int, int, Record]]:
        """Yield the records, each with its first line and the one behind it."""
        return _records(lines, self.delimiter, last=last)

    def row(self, record: Record) -> list[float | None] | None:
        """Return a record's numbers; one of another length is refused."""
        if isinstance(record, DataError):
            raise record
        if blank(record):
            return None
        if len(record) != self.width:
            raise DataError(
                f"{len(record)} fields where the first row has {self.width}; mend the line, or say which delimiter it "
                f"is if not {self.delimiter!r}"
            )
        fields = [record[i] for i in self._picks]
        return self._row(fields, plain=not self._comma and not any("_" in field for field in fields))

    def refused(self, wrong: dict[int, tuple[int, list[str]]], *, whole: bool) -> DataError:
        """Return the error for values that are no numbers."""
        at = {self._picks[i]: (line, record[self._picks[i]]) for i, (line, record) in wrong.items()}
        return self._refused(at, whole)


def _first(lines: list[str]) -> int | None:
    """Return the first line that is not blank."""
    return next((i for i, entry in enumerate(lines) if entry.strip(' \t"')), None)


def _only_delimiter(head: str, decimal: str) -> str | None:
    """Refuse a head with two candidates: a whole file would tell by its rows, and one that grows has none yet."""
    lines = head.split("\n")
    record = "\n".join(lines[_first(lines) :])
    present = [d for d in DELIMITERS if d != decimal and d in record]
    if len(present) > 1:
        shown = " and ".join(map(repr, present))
        raise DataError(
            f"the first row has {shown}, and each may separate its fields; say which with delimiter = {present[0]!r}"
        )
    return present[0] if present else None


def _records(lines: list[str], delimiter: str, *, last: bool) -> Iterator[tuple[int, int, Record]]:
    """Yield records with their first line and the one behind it; one that is still open is left for later.

    Where it cannot be read, or nothing comes ``last`` that would close it, only its first line is given up.
    """
    start = 0
    while start < len(lines):
        open_at_the_end = False
        feed = _Feed(lines, start)
        try:
            for record in csv.reader(feed, delimiter=delimiter):
                if feed.ran_out:  # the reader wanted another line to close a quoted field
                    open_at_the_end = True
                    break
                yield start, feed.at, record
                start = feed.at
        except csv.Error as cause:
            yield start, start + 1, DataError(f"not readable as CSV ({cause}); mend the line")
            start += 1
            continue
        if not open_at_the_end or not last:
            return
        yield start, start + 1, DataError("a quoted field begins here and never ends; mend the line")
        start += 1


class _Feed:
    """Lines for the reader of the csv module, which takes as many as a record needs."""

    def __init__(self, lines: list[str], at: int) -> None:
        self._lines, self.at, self.ran_out = lines, at, False

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> str:
        if self.at == len(self._lines):
            self.ran_out = True
            raise StopIteration
        self.at += 1
        return self._lines[self.at - 1]
