"""`open_source`: whatever holds a site's rows, as a `Source`."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from fedspan.data.arrays import (
    ArraySource,
    ColumnSubset,
    SparseSource,
    from_frame,
    from_npy,
    from_npz,
    is_array,
    kept_columns,
)
from fedspan.data.csv import CsvSource
from fedspan.data.jsonl import JsonlSource
from fedspan.data.optional import parquet_module
from fedspan.data.source import Source
from fedspan.data.triples import from_triples, read_triples
from fedspan.encoding import Array
from fedspan.errors import ConfigurationError, DataError, FileError, nearest

TEXTS = (".csv", ".tsv", ".txt")
PARQUETS = (".parquet", ".pq")
JSONLS = (".jsonl", ".ndjson")
SUFFIXES = (".npy", ".npz", *TEXTS, *PARQUETS, *JSONLS)
"""The files that can be opened."""
TRIPLES = ("user", "item", "value", "vocabulary", "unknown")
"""The options of triples."""


def open_source(
    data: Any,
    *,
    drop: Iterable[str] = (),
    strict_drop: bool = True,
    weights: Any = None,
    site_weight: float = 1.0,
    delimiter: str | None = None,
    decimal: str = ".",
    header: bool | None = None,
    triples: Mapping[str, Any] | bool | None = None,
) -> Source:
    """Open a site's rows.

    Parameters
    ----------
    data
        A `Source`, an array of any array-API library (numpy, torch, cupy), a scipy sparse matrix, a pandas or
        polars frame, or the path of a file: ``.npy`` (memory-mapped), ``.npz``, ``.csv``, ``.tsv``, ``.txt``,
        ``.parquet``, ``.pq``, ``.jsonl`` or ``.ndjson``.
    drop
        Names of columns to leave out.
    strict_drop
        Whether each of them must be a column; False where sites with different columns share one list.
    weights
        A weight for each row, finite and not negative.
    site_weight
        A factor on all rows, positive.
    delimiter, decimal, header
        How a text file is written; see `CsvSource`.
    triples
        True, or the arguments of `read_triples`, where a file or frame holds user-item-value triples.

    Returns
    -------
    Source
        The data with its weights. A `Source` that was passed in is not changed.

    Examples
    --------
    >>> source = open_source(np.eye(3), weights=[1, 1, 2])
    >>> source.shape, source.mass
    ((3, 3), 4.0)
    """
    drop = (drop,) if isinstance(drop, str) else tuple(drop)
    if header not in (None, True, False):
        raise ConfigurationError(f"header is True, False or None (look at the first row), got {header!r}")
    if triples is not None and triples is not False:
        if header is False:
            raise ConfigurationError("triples are found by the names of their columns: header = false has none")
        source = _triples_of(data, {} if triples is True else triples, delimiter, decimal)
        source = _without(source, drop, strict_drop)
    elif isinstance(data, str | Path):
        source = _from_path(Path(data), drop, strict_drop, delimiter=delimiter, decimal=decimal, header=header)
    else:
        source = _from_memory(data, drop, strict_drop)
    if weights is None and site_weight == 1:
        return source
    weighted = copy.copy(source)
    if weights is not None:
        weighted.weights = _row_weights(weights, source)
    if site_weight != 1:
        weighted.site_weight = _factor(site_weight)
    return weighted


def _from_memory(data: Any, drop: tuple[str, ...], strict_drop: bool) -> Source:
    if isinstance(data, Source):
        return _without(data, drop, strict_drop)
    if is_frame(data):
        return from_frame(data, drop, strict_drop=strict_drop)
    if scipy.sparse.issparse(data):
        return _without(SparseSource(data), drop, strict_drop)
    if isinstance(data, np.ma.MaskedArray):
        data = np.ma.filled(data.astype(np.float64 if data.dtype.kind in "biu" else data.dtype), np.nan)
    if isinstance(data, np.matrix):
        data = np.asarray(data)  # its products and sums have other shapes
    if is_array(data):
        return _without(ArraySource(data), drop, strict_drop)
    lazy = "; collect() it first" if hasattr(data, "collect") else ""
    raise DataError(
        f"cannot read rows from a {type(data).__name__}{lazy}: pass an array, a scipy sparse matrix, a "
        f"pandas or polars frame, a Source, or the path of a file ({', '.join(SUFFIXES)})"
    )


def _from_path(path: Path, drop: tuple[str, ...], strict_drop: bool, **layout: Any) -> Source:
    kind = _check_file(path)
    if kind in PARQUETS:
        return parquet_module().ParquetSource(path, drop=drop, strict_drop=strict_drop)  # type: ignore[no-any-return]
    if kind in TEXTS:
        if kind == ".tsv" and layout["delimiter"] is None:
            layout["delimiter"] = "\t"
        return CsvSource(path, drop=drop, strict_drop=strict_drop, **layout)
    if kind in JSONLS:
        return JsonlSource(path, drop=drop, strict_drop=strict_drop)
    try:
        return _without(from_npy(path) if kind == ".npy" else from_npz(path), drop, strict_drop)
    except DataError as error:
        raise error if str(path) in str(error) else DataError(f"{path}: {error}") from None


def _check_file(path: Path) -> str:
    """Return a file's suffix; it must exist and be of a known kind."""
    kind = path.suffix.lower()
    if path.is_dir():
        raise FileError(f"{path} is a folder; a site's data is one file ({', '.join(SUFFIXES)})")
    if not path.exists():
        beside = [p.name for p in path.parent.iterdir() if p.is_file()] if path.parent.is_dir() else None
        if beside is None:
            raise FileError(f"{path}: there is no folder {path.parent}")
        hint = nearest(path.name, beside)
        raise FileError(f"{path}: there is no such file{f'; {hint}' if hint.startswith('did') else ''}")
    if kind not in SUFFIXES:
        raise FileError(f"{path}: cannot tell what kind of file it is; known suffixes: {', '.join(SUFFIXES)}")
    return kind


def _triples_of(data: Any, options: Mapping[str, Any], delimiter: str | None, decimal: str) -> Source:
    if not isinstance(options, Mapping):
        raise ConfigurationError(f"triples is True or a table of {', '.join(TRIPLES)}; got {options!r}")
    for name in options:
        if name not in TRIPLES:
            raise ConfigurationError(f"triples have no option {name!r}; {nearest(name, TRIPLES)}")
    if isinstance(data, str | Path):
        if _check_file(Path(data)) not in (*TEXTS, *PARQUETS):
            raise FileError(f"{data}: triples are read from {', '.join((*TEXTS, *PARQUETS))}")
        return read_triples(data, delimiter=delimiter, decimal=decimal, **options)
    if not is_frame(data):
        raise DataError(f"triples are read from a file or a frame, not from a {type(data).__name__}")
    chosen = {"user": "user", "item": "item", "value": "value", **options}
    names = [str(name) for name in data.columns]
    columns = []
    for part in ("user", "item", "value"):
        name = chosen.pop(part)
        if name is not None and name not in names:
            raise DataError(f"there is no column {name!r} for the {part} of triples; {nearest(name, names)}")
        columns.append(None if name is None else data[name].to_numpy())
    return from_triples(*columns, **chosen)


def is_frame(data: Any) -> bool:
    """Whether data is a pandas or polars frame."""
    return hasattr(data, "to_numpy") and hasattr(data, "columns") and hasattr(data, "dtypes")


def _without(source: Source, drop: tuple[str, ...], strict_drop: bool) -> Source:
    """Return a source without some of its columns."""
    if not drop:
        return source
    kept = kept_columns(source.columns, drop, strict=strict_drop)
    if len(kept) == source.shape[1]:
        return source
    if source.symmetric:
        raise DataError("a share of a symmetric matrix has no columns to drop: drop rows and columns before")
    subset = ColumnSubset(source, kept)
    if isinstance(source, SparseSource):  # once, not at each pass
        taken = SparseSource(next(subset.blocks()), subset.columns)
        taken.weights, taken.site_weight = source.weights, source.site_weight
        return taken
    return subset


def _row_weights(weights: Any, source: Source) -> Array:
    rows = source.shape[0]
    values = np.asarray(weights, dtype=float)
    if source.symmetric:
        raise DataError("a share of a symmetric matrix has no rows to weigh; use site_weight")
    if values.shape != (rows,):
        raise DataError(f"row weights are one number for each of {rows} rows, got shape {values.shape}")
    if not np.all(np.isfinite(values)) or np.any(values < 0):
        raise DataError("row weights must be finite and not negative")
    return values


def _factor(site_weight: float) -> float:
    if not np.isfinite(site_weight) or site_weight <= 0:
        raise DataError(f"a site's weight is positive and finite, got {site_weight}; leave the site out instead")
    return float(site_weight)
