"""Parquet files, streamed: a batch of rows at a time, however large the row groups. Needs pyarrow."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedspan.data.arrays import kept_columns, nearest_column, not_numeric
from fedspan.data.source import Block, Source
from fedspan.encoding import Array
from fedspan.errors import DataError, FileError

BATCH_BYTES = 8 << 20
"""The numbers decoded at a time; a reader takes some eight times this in all. Twice this was slower."""

Coded = tuple[list[str], Array]
"""Distinct labels, and for each row the position of its label."""

_INDEX = re.compile(r"__index_level_\d+__")  # pandas' row labels, which are not data


class ParquetSource(Source):
    """A Parquet file, read a batch of rows at a time and never loaded whole.

    Memory is bounded by a batch (`BATCH_BYTES`) and a page of each column, whatever the size of the row
    groups. float32 is kept where every column is; other numbers and booleans become float64, nulls NaN. A
    column that is not numeric is refused by name. Row labels that pandas stored are left out.

    Parameters
    ----------
    path
        The file.
    drop
        Names of columns to leave out; they are not even decoded.
    strict_drop
        Whether each name in ``drop`` must be a column.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "site.parquet")
    ...     pq.write_table(pa.table({"id": ["ann", "bob"], "age": [41, 38], "mass": [70.5, None]}), path)
    ...     source = ParquetSource(path, drop=["id"])
    ...     rows = next(source.blocks())
    >>> source.columns, source.shape
    (('age', 'mass'), (2, 2))
    >>> rows
    array([[41. , 70.5],
           [38. ,  nan]])
    """

    pass_cost = 30.0

    def __init__(self, path: str | Path, *, drop: Iterable[str] = (), strict_drop: bool = True) -> None:
        self.path = Path(path)
        with _reading(self.path), _opened(self.path, 1) as file:
            schema, rows = file.schema_arrow, int(file.metadata.num_rows)
        fields = [field for field in schema if not _INDEX.fullmatch(field.name)]
        names = [field.name for field in fields]
        try:
            kept = kept_columns(names, drop, strict=strict_drop)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
        wrong = [fields[i] for i in kept if not _is_number(fields[i].type)]
        if wrong:
            raise not_numeric([field.name for field in wrong], f"{path}: ", [str(field.type) for field in wrong])
        single = all(pa.types.is_float32(fields[i].type) for i in kept)
        self.columns = tuple(names[i] for i in kept)
        self.dtype = np.dtype(np.float32 if single else np.float64)
        self.shape = (rows, len(kept))

    def blocks(self) -> Iterator[Block]:
        """Yield batches of rows, decoded as they are asked for."""
        rows, width = self.shape
        size = max(1, BATCH_BYTES // max(self.dtype.itemsize * width, 1))
        found = 0
        for batch in batches(self.path, self.columns or (), size):
            found += batch.num_rows
            yield self._dense(batch)
        if found != rows:
            raise FileError(f"{self.path}: holds {found} rows where its footer said {rows}; did it change?")

    def _dense(self, batch: Any) -> Array:
        target = pa.float32() if self.dtype == np.float32 else pa.float64()
        values = np.empty((self.shape[1], batch.num_rows), dtype=self.dtype)  # the file's own order: by column
        for at, column in enumerate(batch.columns):
            values[at] = column.cast(target, safe=False).to_numpy(zero_copy_only=False)
        return values.T


def batches(path: Path, columns: Sequence[str], rows: int) -> Iterator[Any]:
    """Yield record batches of at most ``rows`` rows with just these columns."""
    wanted = list(dict.fromkeys(columns))
    with _reading(path), _opened(path, len(columns)) as file:
        for batch in file.iter_batches(batch_size=rows, columns=wanted, use_threads=False):
            yield batch.select(_places(path, batch.schema.names, columns))


def _places(path: Path, have: Sequence[str], columns: Sequence[str]) -> list[int]:
    """Find columns in a batch: asked for "a", pyarrow brings "a.b" too, and all columns called "a" together."""
    places: dict[str, list[int]] = {}
    for place, name in enumerate(have):
        places.setdefault(name, []).append(place)
    if any(name not in places for name in columns):
        raise FileError(f"{path}: the file changed since it was opened; open it again")
    return [places[name].pop(0) for name in columns]


def coded_columns(path: Path, labels: Sequence[str], value: str | None) -> Iterator[tuple[list[Coded], Array | None]]:
    """Yield columns of labels, each as its distinct texts and their place in each row, and one of numbers."""
    names = [*labels, *([] if value is None else [value])]
    with _reading(path), _opened(path, len(names)) as file:
        schema = file.schema_arrow
    for name in names:
        if name not in schema.names:
            raise DataError(f"{path}: there is no column {name!r}; {nearest_column(name, schema.names)}")
    if value is not None and not _is_number(schema.field(value).type):
        raise not_numeric([value], f"{path}: ", [str(schema.field(value).type)])
    for batch in batches(path, names, BATCH_BYTES // 64):
        numbers = None if value is None else batch.column(value).cast(pa.float64(), safe=False)
        yield (
            [_coded(path, name, batch.column(name)) for name in labels],
            None if numbers is None else numbers.to_numpy(zero_copy_only=False),
        )


def _coded(path: Path, name: str, column: Any) -> Coded:
    if column.null_count:
        raise DataError(f"{path}: column {name!r} has {column.null_count} rows without a label; remove them")
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    return [str(label) for label in column.dictionary.to_pylist()], column.indices.to_numpy()


def _is_number(kind: Any) -> bool:
    tests = (
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_boolean,
        pa.types.is_decimal,
        pa.types.is_null,
    )
    return any(test(kind) for test in tests)


def _opened(path: Path, columns: int) -> Any:
    """Open a file so that column chunks are read through a buffer, not whole: one may be the whole file."""
    buffer = min(1 << 18, max(1 << 12, BATCH_BYTES // max(columns, 1)))
    return pq.ParquetFile(path, pre_buffer=False, buffer_size=buffer, page_checksum_verification=True)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as cause:  # a memory limit is no fault of the file
        if isinstance(cause, MemoryError):
            raise
        raise FileError(f"{path}: not a readable Parquet file ({cause}); was it cut short?") from cause
