"""Writing a matrix to a file block by block: ``.npy``, ``.csv`` or ``.parquet``, whole or not at all."""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap

from fedspan.data.optional import parquet_module
from fedspan.encoding import Array
from fedspan.errors import ConfigurationError

SUFFIXES = (".npy", ".csv", ".parquet")


def check_suffix(path: Path) -> None:
    """Refuse a file that cannot be written, before anything is computed."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigurationError(f"cannot write {path}: its name must end in {', '.join(SUFFIXES)}")
    if path.suffix.lower() == ".parquet":
        parquet_module()


def write_blocks(path: Path, blocks: Iterable[Array], names: Sequence[str], rows: int, dtype: np.dtype[Any]) -> None:
    """Write blocks of rows one after another; the file appears when all of them are in it."""
    write = {".npy": _write_npy, ".csv": _write_csv, ".parquet": _write_parquet}[path.suffix.lower()]
    with _replacing(path) as temporary:
        write(temporary, blocks, names, rows, dtype)


def _write_npy(path: Path, blocks: Iterable[Array], names: Sequence[str], rows: int, dtype: np.dtype[Any]) -> None:
    mapped = open_memmap(path, mode="w+", dtype=dtype, shape=(rows, len(names)))
    start = 0
    for block in blocks:
        mapped[start : start + len(block)] = block
        start += len(block)
    mapped.flush()


def _write_csv(path: Path, blocks: Iterable[Array], names: Sequence[str], rows: int, dtype: np.dtype[Any]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        for block in blocks:
            writer.writerows(block.tolist())


def _write_parquet(path: Path, blocks: Iterable[Array], names: Sequence[str], rows: int, dtype: np.dtype[Any]) -> None:
    pa, pq = parquet_module().pa, parquet_module().pq
    schema = pa.schema([(name, pa.from_numpy_dtype(dtype)) for name in names])
    with pq.ParquetWriter(path, schema) as writer:
        for block in blocks:
            columns = [pa.array(column) for column in np.ascontiguousarray(block.T.astype(dtype, copy=False))]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside ``path`` that takes its name at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=path.name, suffix=".part", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
