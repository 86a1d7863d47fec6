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
from fedspan.data.source import Block, Source
from fedspan.encoding import Array
from fedspan.errors import ConfigurationError, DataError, FileError

CACHE_BYTES = 1 << 30
"""A file whose numbers need no more than this is parsed once and kept, a larger one anew at each pass."""

MISSING = ("", "na", "n/a", "#n/a", "nan", "-nan", "null", "none", "<na>")
"""What stands for a missing value, in upper or lower case."""

_DELIMITERS = ("\t", ";", "|", ",")  # the comma last: it is also a decimal mark, and common in texts
_TEXT_BYTES = 4 << 20  # text taken at a time
_SWAP = str.maketrans(",.", ".,")  # a decimal comma becomes a point, and a point something that is no number


class CsvSource(Source):
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
        self.dtype = np.dtype(np.float64)
        self._kept = list(range(self._table.width)) if names is None else kept
        self._stamp = self._table.stamp()
        self._blocks: list[Array] = []
        rows, size = 0, 0
        for block in self._parsed():
            rows, size = rows + block.shape[0], size + block.nbytes
            if size <= CACHE_BYTES:
                self._blocks.append(block)
            else:
                self._blocks.clear()
        self._is_kept = size <= CACHE_BYTES
        self.shape = (rows, len(self._kept))
        self.pass_cost = 1.0 if self._is_kept else 500.0

    def blocks(self) -> Iterator[Block]:
        """Yield blocks of rows, kept or parsed anew."""
        if self._is_kept:
            return iter(self._blocks)
        if self._table.stamp() != self._stamp:
            raise FileError(f"{self._table.path}: the file changed since it was opened; open it again")
        return self._parsed()

    def _parsed(self) -> Iterator[Array]:
        for number, (line, text) in enumerate(self._table.texts()):
            block = self._table.numbers(text, line, self._kept, scout=number == 0)
            if block.shape[0]:
                yield block


class CsvTable:
    """The layout of a CSV file (delimiter, decimal mark, column names) and its records, in blocks of text."""

    def __init__(self, path: Path, *, delimiter: str | None, decimal: str, header: bool | None = None) -> None:
        if decimal not in (".", ","):
            raise ConfigurationError(f"decimal is '.' or ',', got {decimal!r}")
        if delimiter is not None and (len(delimiter) != 1 or delimiter in (decimal, '"', "\n", "\r")):
            raise ConfigurationError(
                f"a delimiter is one character, not the decimal mark {decimal!r}; got {delimiter!r}"
            )
        self.path = path
        self._comma = decimal == ","
        head = next(_texts(path), (1, ""))[1]
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
                    f"{path}: the first row counts the columns ({shown}), so it looks like a header, but it may be "
                    "data too; say header = true (it names the columns) or header = false (it is a row of data)"
                )
        self.names = [name.strip() for name in first] if header else None
        self._skip = lines if header else 0

    def _first_row(self, head: str) -> tuple[list[str], int]:
        """Return the first row that is not blank, and the lines of the file that end with it."""
        reader = csv.reader(head.split("\n"), delimiter=self.delimiter)
        try:
            for row in reader:
                if not _blank(row):
                    return row, reader.line_num
        except csv.Error as cause:
            raise FileError(f"{self.path}, line {reader.line_num}: not readable as CSV ({cause})") from cause
        raise FileError(f"{self.path}: the file is empty; expected a header row and rows of numbers")

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
            f"{self.path}: {at} of {self.width} has no name in the header row, as where pandas wrote an index or lines "
            'end with a delimiter; write the file with index=False, name the column, or leave it out with drop = [""]'
            + ("; where the first row is data, say header = false" if data else "")
        )

    def stamp(self) -> tuple[int, int]:
        """Return the size and time of the file, which tell whether it changed."""
        found = self.path.stat()
        return found.st_size, found.st_mtime_ns

    def texts(self) -> Iterator[tuple[int, str]]:
        """Yield the records below the header, in blocks of text, each with the number of its first line."""
        for line, text in _texts(self.path):
            if line == 1 and self._skip:
                yield 1 + self._skip, "".join(text.split("\n", self._skip)[self._skip :])
            else:
                yield line, text

    def records(self, text: str, line: int) -> Iterator[tuple[int, list[str]]]:
        """Yield the records of a block with their line numbers; each has as many fields as the first row."""
        reader = csv.reader(text.split("\n"), delimiter=self.delimiter)
        at = line
        try:
            for record in reader:
                if not _blank(record) and len(record) != self.width:
                    raise FileError(
                        f"{self.path}, line {at}: {len(record)} fields where the first row has {self.width}; "
                        f"was the file cut short, or is {self.delimiter!r} not its delimiter?"
                    )
                if not _blank(record):
                    yield at, record
                at = line + reader.line_num
        except csv.Error as cause:
            raise FileError(f"{self.path}, line {at}: not readable as CSV ({cause})") from cause

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
            text = str(not_numeric([self.names[i] for i in columns], f"{self.path}: ", values))
        else:
            line, value = wrong[columns[0]]
            name = columns[0] + 1 if self.names is None else repr(self.names[columns[0]])
            text = f"{self.path}, line {line}: column {name} has {value!r}, which is not a number"
        if not self._comma and all(re.fullmatch(r"\s*-?\d+,\d+\s*", value) for _, value in wrong.values()):
            text += '; where the comma is the decimal mark, set decimal = ","'
        return DataError(text)


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield a file in blocks of whole records, each with the number of its first line."""
    line = 1
    try:
        with path.open("rb") as file:
            while lines := file.readlines(_TEXT_BYTES):
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


def _sniffed(head: str, decimal: str) -> str:
    """Return the delimiter: one that cuts all of the first rows into as many fields, at least two."""
    for delimiter in _DELIMITERS:
        if delimiter == decimal:
            continue
        with suppress(csv.Error):
            rows = islice((r for r in csv.reader(head.split("\n"), delimiter=delimiter) if not _blank(r)), 20)
            widths = {len(row) for row in rows}
            if len(widths) == 1 and widths != {1}:
                return delimiter
    present = [d for d in _DELIMITERS if d != decimal and d in head.lstrip().partition("\n")[0]]
    return present[0] if present else ";" if decimal == "," else ","


def _counts(row: list[str]) -> bool:
    """Whether a row reads 0, 1, 2, ... or 1, 2, 3, ...: pandas writes the first where columns have no names."""
    words = [field.strip() for field in row]
    return words[0] in ("0", "1") and words == [str(i) for i in range(int(words[0]), int(words[0]) + len(words))]


def _blank(row: list[str]) -> bool:
    return not row or (len(row) == 1 and not row[0].strip())
