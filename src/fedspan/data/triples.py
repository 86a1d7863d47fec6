"""User-item-value triples as a sparse matrix: a row for each user, a column for each item."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from fedspan.data.arrays import FLOATS, SparseSource, nearest_column
from fedspan.data.csv import CsvTable
from fedspan.data.optional import parquet_module
from fedspan.encoding import Array
from fedspan.errors import ConfigurationError, DataError

Triples = tuple[Array, Array, Array | None]
"""User numbers, item numbers and values of some rows."""


def from_triples(
    users: Any,
    items: Any,
    values: Any = None,
    *,
    vocabulary: Sequence[str] | None = None,
    unknown: str = "error",
) -> SparseSource:
    """Return triples as a sparse source whose columns are named after the items.

    Sites with different items are aligned by these names (``columns="union-zero"`` or ``"intersect"``).

    Parameters
    ----------
    users, items
        A label for each triple: texts or integers. Rows follow the users in the order they first appear.
    values
        A number for each triple (default: one); those of equal user and item are added up.
    vocabulary
        The items, in the order of the columns. Default: those that occur, sorted.
    unknown
        What to do with an item that is not in the vocabulary: ``"error"`` or ``"drop"``.

    Examples
    --------
    >>> source = from_triples(["ann", "bob", "ann"], ["tea", "tea", "rye"], [1.0, 2.0, 4.0])
    >>> source.columns
    ('rye', 'tea')
    >>> next(source.blocks()).toarray()
    array([[4., 1.],
           [0., 2.]])
    """
    who, what = _Codes(), _Codes()
    rows, columns = (codes.of_array(labels) for codes, labels in ((who, users), (what, items)))
    numbers = None if values is None else np.asarray(values)
    if len(rows) != len(columns) or (numbers is not None and numbers.shape != rows.shape):
        given = len(rows) if numbers is None else numbers.shape
        raise DataError(f"triples come in equal numbers: got {len(rows)} users, {len(columns)} items, values {given}")
    if numbers is not None and (numbers.dtype.kind not in "biuf" or not np.all(np.isfinite(numbers))):
        raise DataError("values of triples are finite numbers; leave out the triples without one")
    return _assembled([(rows, columns, numbers)], who, what, vocabulary, unknown)


def read_triples(
    path: str | Path,
    *,
    user: str = "user",
    item: str = "item",
    value: str | None = "value",
    vocabulary: Sequence[str] | None = None,
    unknown: str = "error",
    delimiter: str | None = None,
    decimal: str = ".",
) -> SparseSource:
    """Read triples from three named columns of a CSV or Parquet file; see `from_triples`.

    With ``value=None`` two columns are enough, and each row counts one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "visits.csv")
    ...     _ = path.write_text("user,place\\n7,inn\\n7,inn\\n8,zoo\\n")
    ...     source = read_triples(path, item="place", value=None)
    >>> source.columns, source.shape
    (('inn', 'zoo'), (2, 2))
    """
    path = Path(path)
    who, what = _Codes(), _Codes()
    if path.suffix.lower() in (".parquet", ".pq"):
        blocks = _from_parquet(path, (user, item), value, who, what)
    else:
        table = CsvTable(path, delimiter=delimiter, decimal=decimal, header=True)
        blocks = _from_csv(table, (user, item), value, who, what)
    found = list(blocks)
    try:
        return _assembled(found, who, what, vocabulary, unknown)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


class _Codes:
    """Numbers labels in the order they first appear."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def of(self, labels: Iterable[str]) -> Array:
        known = self.known
        return np.fromiter((known.setdefault(label, len(known)) for label in labels), dtype=np.int64)

    def of_array(self, labels: Any) -> Array:
        array = np.asarray(labels)
        if array.ndim != 1:
            raise DataError(f"the labels of triples are one-dimensional, got shape {array.shape}")
        if array.dtype.kind == "O":
            if any(label is None or label != label for label in array):  # NaN is not equal to itself
                raise DataError("a triple without a user or an item: leave it out")
            return self.of(map(str, array))
        if array.dtype.kind not in "iuUS":
            raise DataError(f"the labels of triples are texts or integers, got {array.dtype}")
        distinct, first, inverse = np.unique(array, return_index=True, return_inverse=True)
        order = np.argsort(first)
        texts = distinct[order].astype(str).tolist()
        codes = np.empty(len(order), dtype=np.int64)
        codes[order] = self.of(texts)
        return codes[inverse]


def _from_csv(
    table: CsvTable, labels: tuple[str, str], value: str | None, who: _Codes, what: _Codes
) -> Iterator[Triples]:
    names = table.names or []
    for name in (*labels, value):
        if name is not None and name not in names:
            raise DataError(f"{table.path}: there is no column {name!r}; {nearest_column(name, names)}")
    at_user, at_item = (names.index(name) for name in labels)
    for line, text in table.texts():
        users, items, numbers = [], [], []
        for at, record in table.records(text, line):
            if not record[at_user].strip() or not record[at_item].strip():
                raise DataError(f"{table.path}, line {at}: a triple without a user or an item; leave it out")
            users.append(record[at_user].strip())
            items.append(record[at_item].strip())
            if value is not None:
                number = table.number(record[names.index(value)])
                if number is None or not np.isfinite(number):
                    shown = record[names.index(value)]
                    raise DataError(f"{table.path}, line {at}: column {value!r} has {shown!r}, not a finite number")
                numbers.append(number)
        yield who.of(users), what.of(items), None if value is None else np.array(numbers)


def _from_parquet(
    path: Path, labels: tuple[str, str], value: str | None, who: _Codes, what: _Codes
) -> Iterator[Triples]:
    for ((users, row), (items, column)), numbers in parquet_module().coded_columns(path, labels, value):
        if numbers is not None and not np.all(np.isfinite(numbers)):
            raise DataError(f"{path}: column {value!r} has values that are missing or not finite; leave those rows out")
        yield who.of(users)[row], what.of(items)[column], numbers


def _assembled(
    blocks: list[Triples], who: _Codes, what: _Codes, vocabulary: Sequence[str] | None, unknown: str
) -> SparseSource:
    """Return the triples as CSR, with a column for each word of the vocabulary."""
    if unknown not in ("error", "drop"):
        raise ConfigurationError(f"unknown is 'error' or 'drop', got {unknown!r}")
    words = sorted(what.known, key=_by_number) if vocabulary is None else [str(word) for word in vocabulary]
    where = {word: i for i, word in enumerate(words)}
    if len(where) < len(words):
        raise DataError("the vocabulary names an item twice")
    strangers = [label for label in what.known if label not in where]
    if strangers and unknown == "error":
        raise DataError(
            f"{len(strangers)} items are not in the vocabulary, {strangers[0]!r} first "
            f'({nearest_column(strangers[0], words)}); add them, or leave them out with unknown = "drop"'
        )
    position = np.array([where.get(label, -1) for label in what.known], dtype=np.int64)
    rows, columns, values = _joined(blocks)
    columns = position[columns] if len(position) else columns
    known = columns >= 0
    entries = values[known], (rows[known], columns[known])
    return SparseSource(scipy.sparse.csr_array(entries, shape=(len(who.known), len(words))), tuple(words))


def _joined(blocks: list[Triples]) -> tuple[Array, Array, Array]:
    if not blocks:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)
    rows, columns = (np.concatenate([block[part] for block in blocks]) for part in (0, 1))
    values = np.concatenate([np.ones(len(b[0])) if b[2] is None else b[2] for b in blocks])
    return rows, columns, values if values.dtype in FLOATS else values.astype(np.float64)


def _by_number(label: str) -> tuple[int, int, str]:
    """Sort 9 before 10, and numbers before words."""
    return (0, int(label), label) if label.isascii() and label.isdigit() else (1, 0, label)
