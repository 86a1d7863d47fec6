"""CSV files: parsed in blocks of lines, by numpy's parser where it can and field by field where it cannot."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from fedspan.data.arrays import kept_columns, not_numeric
from fedspan.data.text import TextSource, texts
from fedspan.encoding import Array
from fedspan.errors import ConfigurationError, DataError, FileError

MISSING = ("", "na", "n/a", "#n/a", "nan", "-nan", "null", "none", "<na>")
"""What stands for a missing value, in upper or lower case."""

DELIMITERS = ("\t", ";", "|", ",")  # the comma last: it is also a decimal mark, and common in texts
"""What may separate fields where nothing is said."""

_SWAP = str.maketrans(",.", ".,")  # a decimal comma becomes a point, and a point something that is no number


class CsvSource(TextSource):
    """A CSV file in UTF-8, with a header row that names the columns.

    A file whose first row is all numbers has no header: its ``columns`` is None (``header`` says otherwise).
    A first row that counts 0, 1, 2, ... or 1, 2, 3, ... may be either, and is refused until ``header`` says which.
    Empty fields and the words in `MISSING` are missing values (NaN). A column that is not numeric is refused
    by name, one without a name by its position.

    Parameters
    ----------
    path
        The file.
    delimiter
        What separates fields; found among comma, semicolon, tab and bar where it is not given.
    decimal
        The decimal mark, a point or a comma.
    drop
        Names of columns to leave out; the empty text is the name of those that have none.
    strict_drop
        Whether each name in ``drop`` must be a column.
    header
        Whether the first row is a header; None looks at it, and refuses to guess.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "site.csv")
    ...     _ = path.write_text("id;age;mass\\nann;41;70,5\\nbob;38;\\n")
    ...     source = CsvSource(path, decimal=",", drop=["id"])
    >>> source.columns
    ('age', 'mass')
    >>> next(source.blocks())
    array([[41. , 70.5],
           [38. ,  nan]])
    """

    def __init__(
        self,
        path: str | Path,
        *,
        delimiter: str | None = None,
        decimal: str = ".",
        drop: Iterable[str] = (),
        strict_drop: bool = True,
        header: bool | None = None,
    ) -> None:
        self._table = CsvTable(Path(path), delimiter=delimiter, decimal=decimal, header=header)
        names = self._table.names
        try:
            kept = kept_columns(names, drop, strict=strict_drop)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
        if names is not None:
            self._table.check_named(kept)
        self.columns = None if names is None else tuple(names[i] for i in kept)
        self.path = self._table.path
        self._kept = list(range(self._table.width)) if names is None else kept
        self.shape = (self.read_through(), len(self._kept))

    def parsed(self) -> Iterator[Array]:
        """Yield the rows in blocks, from the file."""
        for number, (line, text) in enumerate(self._table.texts()):
            block = self._table.numbers(text, line, self._kept, scout=number == 0)
            if block.shape[0]:
                yield block


class CsvLayout:
    """How CSV text is written (delimiter, decimal mark, column names), told by its first lines, and its records."""

    def __init__(
        self, where: str | Path, head: str, *, delimiter: str | None, decimal: str, header: bool | None = None
    ) -> None:
        check_marks(delimiter, decimal)
        self.where = where
        self._comma = decimal == ","
        self.delimiter = _sniffed(head, decimal) if delimiter is None else delimiter
        edge = re.escape(self.delimiter)
        words = "|".join(map(re.escape, MISSING))
        self._gap = re.compile(rf"(^|{edge}) *(?:{words}) *(?={edge}|$)", re.MULTILINE | re.IGNORECASE)
        first, lines = self._first_row(head)
        self.width = len(first)
        if header is None:
            header = not all(field.strip() and self.number(field) is not None for field in first)
            if not header and _counts(first):
                shown = self.delimiter.join(first[:4]) + (f"{self.delimiter}..." if self.width > 4 else "")
                raise DataError(
                    f"{where}: the first row counts the columns ({shown}), so it looks like a header, but it may be "
                    "data too; say header = true (it names the columns) or header = false (it is a row of data)"
                )
        self.names = [name.strip() for name in first] if header else None
        self.skip = lines if header else 0

    def _first_row(self, head: str) -> tuple[list[str], int]:
        """Return the first row that is not blank, and the lines of the file that end with it."""
        reader = csv.reader(head.split("\n"), delimiter=self.delimiter)
        try:
            for row in reader:
                if not blank(row):
                    return row, reader.line_num
        except csv.Error as cause:
            raise FileError(f"{self.where}, line {reader.line_num}: not readable as CSV ({cause})") from cause
        raise FileError(f"{self.where}: the file is empty; expected a header row and rows of numbers")

    def check_named(self, kept: list[int]) -> None:
        """Refuse columns without a name among those that are kept."""
        names = self.names or []
        unnamed = [i for i in kept if not names[i]]
        if not unnamed:
            return
        at = f"column {unnamed[0] + 1}" + (f" (and {len(unnamed) - 1} more)" if len(unnamed) > 1 else "")
        given = [name for name in names if name]
        data = all(self.number(name) is not None for name in given)
        raise DataError(
            f"{self.where}: {at} of {self.width} has no name in the header row, as where pandas wrote an index or "
            "lines end with a delimiter; write the file with index=False, name the column, or leave it out with "
            'drop = [""]' + ("; where the first row is data, say header = false" if data else "")
        )

    def records(self, text: str, line: int) -> Iterator[tuple[int, list[str]]]:
        """Yield the records of a block with their line numbers; each has as many fields as the first row."""
        reader = csv.reader(text.split("\n"), delimiter=self.delimiter)
        at = line
        try:
            for record in reader:
                if not blank(record) and len(record) != self.width:
                    raise FileError(
                        f"{self.where}, line {at}: {len(record)} fields where the first row has {self.width}; "
                        f"was the file cut short, or is {self.delimiter!r} not its delimiter?"
                    )
                if not blank(record):
                    yield at, record
                at = line + reader.line_num
        except csv.Error as cause:
            raise FileError(f"{self.where}, line {at}: not readable as CSV ({cause})") from cause

    def number(self, field: str) -> float | None:
        """Return a field's number: NaN where it is missing, None where it is neither."""
        word = field.strip()
        if word.lower() in MISSING:
            return np.nan
        if "_" in word:  # Python would read 1_000
            return None
        with suppress(ValueError):
            return float(word.translate(_SWAP) if self._comma else word)
        return None

    def numbers(self, text: str, line: int, kept: list[int], *, scout: bool) -> Array:
        """Parse a block. A ``scout`` (the first one) looks for all columns that are not numeric."""
        if '"' not in text:
            parsed = self._fast([entry for entry in text.split("\n") if entry.strip(" ")], kept)
            if parsed is not None:
                return parsed
        rows: list[list[float | None]] = []
        wrong: dict[int, tuple[int, str]] = {}
        plain = not self._comma and "_" not in text
        for at, record in self.records(text, line):
            rows.append(self._row([record[i] for i in kept], plain))
            if None in rows[-1]:
                for i, value in zip(kept, rows[-1], strict=True):
                    if value is None:
                        wrong.setdefault(i, (at, record[i]))
                if not scout:
                    break
        if wrong:
            raise self._refused(wrong, scout)
        return np.array(rows, dtype=np.float64).reshape(len(rows), len(kept))

    def _row(self, fields: list[str], plain: bool) -> list[float | None]:
        if plain:
            try:
                return list(map(float, fields))  # most rows have no gap, and this is the quicker way
            except ValueError:
                pass
        return [self.number(field) for field in fields]

    def _fast(self, lines: list[str], kept: list[int]) -> Array | None:
        """Parse lines without quotes by numpy's parser, or return None where it cannot."""
        if not lines:
            return np.empty((0, len(kept)))
        if any(entry.count(self.delimiter) != self.width - 1 for entry in lines):
            return None  # the parser takes a line of another length where it needs only some columns
        text = "\n".join(lines)
        if self._comma:
            text = text.translate(_SWAP)
        options: dict[str, Any] = {"delimiter": self.delimiter, "comments": None, "usecols": kept, "ndmin": 2}
        for with_gaps in (False, True):
            with suppress(ValueError):
                rows = np.loadtxt((self._gap.sub(r"\1nan", text) if with_gaps else text).split("\n"), **options)
                return rows if len(rows) == len(lines) else None
        return None

    def _refused(self, wrong: dict[int, tuple[int, str]], scout: bool) -> DataError:
        """Return the error for values that are no numbers: by column, the line and the value first found."""
        columns = sorted(wrong)
        if scout and self.names is not None:
            values = [wrong[i][1] for i in columns]
            text = str(not_numeric([self.names[i] for i in columns], f"{self.where}: ", values))
        else:
            line, value = wrong[columns[0]]
            name = columns[0] + 1 if self.names is None else repr(self.names[columns[0]])
            text = f"{self.where}, line {line}: column {name} has {value!r}, which is not a number"
        if not self._comma and all(re.fullmatch(r"\s*-?\d+,\d+\s*", value) for _, value in wrong.values()):
            text += '; where the comma is the decimal mark, set decimal = ","'
        return DataError(text)


class CsvTable(CsvLayout):
    """A CSV file: its layout, and its records in blocks of text."""

    def __init__(self, path: Path, *, delimiter: str | None, decimal: str, header: bool | None = None) -> None:
        head = next(texts(path), (1, ""))[1]
        super().__init__(path, head, delimiter=delimiter, decimal=decimal, header=header)
        self.path = path

    def texts(self) -> Iterator[tuple[int, str]]:
        """Yield the records below the header, in blocks of text, each with the number of its first line."""
        for line, text in texts(self.path):
            if line == 1 and self.skip:
                yield 1 + self.skip, "".join(text.split("\n", self.skip)[self.skip :])
            else:
                yield line, text


def check_marks(delimiter: str | None, decimal: str) -> None:
    """Check how fields and decimals are said to be written."""
    if decimal not in (".", ","):
        raise ConfigurationError(f"decimal is '.' or ',', got {decimal!r}")
    if delimiter is not None and (len(delimiter) != 1 or delimiter in (decimal, '"', "\n", "\r")):
        raise ConfigurationError(f"a delimiter is one character, not the decimal mark {decimal!r}; got {delimiter!r}")


def _sniffed(head: str, decimal: str) -> str:
    """Return the delimiter: one that cuts all of the first rows into as many fields, at least two."""
    for delimiter in DELIMITERS:
        if delimiter == decimal:
            continue
        with suppress(csv.Error):
            rows = islice((r for r in csv.reader(head.split("\n"), delimiter=delimiter) if not blank(r)), 20)
            widths = {len(row) for row in rows}
            if len(widths) == 1 and widths != {1}:
                return delimiter
    present = [d for d in DELIMITERS if d != decimal and d in head.lstrip().partition("\n")[0]]
    return present[0] if present else ";" if decimal == "," else ","


def _counts(row: list[str]) -> bool:
    """Whether a row reads 0, 1, 2, ... or 1, 2, 3, ...: pandas writes the first where columns have no names."""
    words = [field.strip() for field in row]
    return words[0] in ("0", "1") and words == [str(i) for i in range(int(words[0]), int(words[0]) + len(words))]


def blank(row: list[str]) -> bool:
    """Whether a record is that of an empty line."""
    return not row or (len(row) == 1 and not row[0].strip())
