"""Sources over what is in memory (or mapped into it): arrays, CSR, frames, ``.npy``, ``.npz``."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from array_api_compat import array_namespace, device, is_array_api_obj

from fedspan.data.source import BLOCK_BYTES, Block, Source, row_slices
from fedspan.encoding import Array
from fedspan.errors import DataError, FileError, nearest

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
_NUMBERS = "biuf"
_DEVICE_BLOCK_BYTES = 256 << 20  # an accelerator gains from size, and each block costs a trip to it and back


class ArraySource(Source):
    """A two-dimensional array: numpy (memory-mapped too), or torch, cupy and the like on any device.

    float32 and float64 are kept as they are; integers and booleans are read as float64, half precision as
    float32, block by block, so a mapped file is never copied whole.

    >>> ArraySource(np.array([[1, 2], [3, 4]]), ("a", "b")).gram_times(np.eye(2))
    array([[10., 14.],
           [14., 20.]])
    """

    def __init__(self, array: Any, columns: tuple[str, ...] | None = None) -> None:
        if array.ndim != 2:
            raise DataError(f"data has rows and columns: expected 2 dimensions, got {array.ndim}")
        self.shape = (int(array.shape[0]), int(array.shape[1]))
        self.columns = columns
        self._array = array
        self.dtype, self._cast = _numpy_types(array) if isinstance(array, np.ndarray) else _other_types(array)
        row_bytes = self.dtype.itemsize * self.shape[1]
        on_host = isinstance(array, np.ndarray) or "cpu" in str(device(array)).lower()
        self._slices = list(row_slices(self.shape[0], row_bytes, BLOCK_BYTES if on_host else _DEVICE_BLOCK_BYTES))
        self._whole = (array,) if len(self._slices) == 1 and self._cast is None else None

    def blocks(self) -> Iterator[Block]:
        """Yield row blocks, views of the array where its type allows."""
        if self._whole is not None:
            return iter(self._whole)
        return self._pieces()

    def _pieces(self) -> Iterator[Block]:
        for rows in self._slices:
            block = self._array[rows, :]
            if self._cast is not None:
                block = block.astype(self._cast) if isinstance(block, np.ndarray) else (
                    array_namespace(block).astype(block, self._cast)
                )  # fmt: skip
            yield block


def _numpy_types(array: Array) -> tuple[np.dtype[Any], Any]:
    """Return the type of the blocks, and the one to cast to (None: no cast)."""
    if array.dtype.kind not in _NUMBERS:
        raise DataError(f"data must be numbers, got an array of {array.dtype}")
    dtype = array.dtype if array.dtype in FLOATS else np.dtype(np.float64)
    return dtype, None if array.dtype == dtype else dtype


def _other_types(array: Any) -> tuple[np.dtype[Any], Any]:
    xp = array_namespace(array)
    if not xp.isdtype(array.dtype, ("bool", "integral", "real floating")):
        raise DataError(f"data must be real numbers, got an array of {array.dtype}")
    if not xp.isdtype(array.dtype, "real floating"):
        return np.dtype(np.float64), xp.float64
    rounding = float(xp.finfo(array.dtype).eps)
    if rounding < 1e-10:
        return np.dtype(np.float64), None
    half = rounding > 2e-7  # products in half precision would lose what the data has
    return np.dtype(np.float32), xp.float32 if half else None


class SparseSource(Source):
    """A scipy sparse matrix, kept as CSR and never made dense.

    >>> SparseSource(scipy.sparse.eye_array(3, dtype=np.float32)).gram_times(np.ones((3, 1))).ravel()
    array([1., 1., 1.])
    """

    def __init__(self, matrix: Any, columns: tuple[str, ...] | None = None) -> None:
        if matrix.ndim != 2:
            raise DataError(f"data has rows and columns: expected 2 dimensions, got {matrix.ndim}")
        if matrix.dtype.kind not in _NUMBERS:
            raise DataError(f"data must be numbers, got a sparse matrix of {matrix.dtype}")
        csr = matrix.tocsr()
        if csr.dtype not in FLOATS:
            csr = csr.astype(np.float64)
        self._csr = csr = whole_entries(csr)
        self.shape, self.dtype, self.columns = csr.shape, csr.dtype, columns

    def blocks(self) -> Iterator[Block]:
        """Yield the whole matrix: it is in memory, and its products are small."""
        if self.shape[0]:
            yield self._csr


def whole_entries(csr: Any) -> Any:
    """Return a CSR matrix whose entries are stored once each: one in two parts has no value to square or to fill."""
    if csr.has_canonical_format:
        return csr
    csr = csr.copy()
    csr.sum_duplicates()
    return csr


class ColumnSubset(Source):
    """Some columns of another source, taken block by block.

    >>> ColumnSubset(ArraySource(np.eye(3), ("a", "b", "c")), [0, 2]).columns
    ('a', 'c')
    """

    def __init__(self, source: Source, kept: Sequence[int]) -> None:
        self._source, self._kept = source, np.asarray(kept)
        self.shape, self.dtype, self.pass_cost = (source.shape[0], len(kept)), source.dtype, source.pass_cost
        self.columns = None if source.columns is None else tuple(source.columns[i] for i in kept)
        self.weights, self.site_weight = source.weights, source.site_weight

    def blocks(self) -> Iterator[Block]:
        """Yield the other source's blocks, with these columns only."""
        for block in self._source.blocks():
            if isinstance(block, np.ndarray) or scipy.sparse.issparse(block):
                yield block[:, self._kept]
            else:
                xp = array_namespace(block)
                yield xp.take(block, xp.asarray(self._kept, device=block.device), axis=1)


# ---- frames ------------------------------------------------------------------------------------------------


def from_frame(frame: Any, drop: Iterable[str] = (), *, strict_drop: bool = True) -> Source:
    """Wrap a pandas or polars frame, less the columns to drop; one that is not numeric is refused by name."""
    names = tuple(str(name) for name in frame.columns)
    kept = kept_columns(names, drop, strict=strict_drop)
    is_polars = hasattr(frame, "get_columns")
    types = list(frame.dtypes)
    numeric = _is_polars_number if is_polars else _is_pandas_number
    wrong = [names[i] for i in kept if not numeric(types[i])]
    if wrong:
        raise not_numeric(wrong)
    values = _polars_values(frame, kept) if is_polars else _pandas_values(frame, kept)
    return ArraySource(values, tuple(names[i] for i in kept))


def kept_columns(names: Sequence[str] | None, drop: Iterable[str], *, strict: bool = True) -> list[int]:
    """Return the positions of the columns that stay; with ``strict``, each name to drop must be one of them.

    >>> kept_columns(["id", "age", "mass"], ["id"])
    [1, 2]
    """
    unwanted = [drop] if isinstance(drop, str) else list(drop)
    if names is None:
        if unwanted:
            raise DataError(f"drop = {unwanted} needs column names, and this data has none; take the columns out first")
        return []
    known = set(names)
    for name in unwanted:
        if strict and name not in known:
            raise DataError(f"there is no column {name!r} to drop; {nearest_column(name, names)}")
    kept = [i for i, name in enumerate(names) if name not in unwanted]
    if names and not kept:
        raise DataError(f"drop = {unwanted} leaves no column of {list(names)[:5]}")
    return kept


def nearest_column(name: str, names: Iterable[str]) -> str:
    """Return a hint naming the nearest column; there may be very many."""
    return textwrap.shorten(nearest(name, names), 200)


def not_numeric(names: Sequence[str], where: str = "", examples: Sequence[str] = ()) -> DataError:
    """Return the error that refuses columns by name, with the ``drop`` that mends it."""
    listed = ", ".join(f'"{n}"' for n in names)
    for_example = f" (for example {', '.join(map(repr, examples[:3]))})" if examples else ""
    return DataError(
        f"{where}columns {listed} are not numeric{for_example}; leave them out with drop = [{listed}], or encode them"
    )


def _is_polars_number(dtype: Any) -> bool:
    return bool(dtype.is_numeric()) or str(dtype) in ("Boolean", "Null")


def _is_pandas_number(dtype: Any) -> bool:
    return getattr(dtype, "kind", "O") in _NUMBERS


def _polars_values(frame: Any, kept: list[int]) -> Array:
    """Return the values column by column: polars' own common type of float32 and integers is float32."""
    single = all(str(frame.dtypes[i]) == "Float32" for i in kept)
    values = np.empty((frame.height, len(kept)), dtype=np.float32 if single else np.float64, order="F")
    for at, i in enumerate(kept):
        values[:, at] = frame.to_series(i).to_numpy()  # a null is NaN; in an array of objects None, which becomes NaN
    return values


def _pandas_values(frame: Any, kept: list[int]) -> Array:
    if len(kept) < frame.shape[1]:
        frame = frame.iloc[:, kept]
    kinds = {np.dtype(getattr(t, "numpy_dtype", getattr(t, "subtype", t))) for t in frame.dtypes}
    single = kinds == {np.dtype(np.float32)}
    return frame.to_numpy(dtype=np.float32 if single else np.float64, na_value=np.nan)  # type: ignore[no-any-return]


# ---- numpy's files -----------------------------------------------------------------------------------------


def from_npy(path: Path) -> Source:
    """Map a ``.npy`` file: blocks are read as they are needed."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as cause:  # a damaged header raises whatever its parser stumbles over
        raise FileError(f"{path}: not a readable .npy file ({cause}); was it cut short?") from cause
    if not isinstance(array, np.ndarray):
        raise FileError(f"{path}: not a .npy file; an archive of arrays should be called .npz")
    return _in_file(path, ArraySource, array)


def from_npz(path: Path) -> Source:
    """Read a ``.npz`` file: an array ``X`` (or the only matrix), or what ``scipy.sparse.save_npz`` writes.

    CSR parts ``data``, ``indices``, ``indptr``, ``shape`` without a ``format`` are read too, and column names
    from an array ``columns``.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as parts:
            names = tuple(str(name) for name in parts["columns"]) if "columns" in parts.files else None
            matrix = _matrix_of(path, parts)
    except FileError:
        raise
    except Exception as cause:  # a damaged archive raises whatever its reader stumbles over
        raise FileError(f"{path}: not a readable .npz file ({cause}); was it cut short?") from cause
    return _in_file(path, SparseSource if scipy.sparse.issparse(matrix) else ArraySource, matrix, names)


def _matrix_of(path: Path, parts: Any) -> Any:
    """Return the matrix in an archive."""
    if "format" in parts.files:
        return _checked(scipy.sparse.load_npz(path))
    if {"data", "indices", "indptr", "shape"} <= set(parts.files):
        indices, indptr = (parts[name].astype(np.int64) for name in ("indices", "indptr"))
        return _checked(scipy.sparse.csr_matrix((parts["data"], indices, indptr), shape=tuple(parts["shape"])))
    if "X" in parts.files:
        return parts["X"]
    arrays = {name: parts[name] for name in parts.files}
    matrices = [array for array in arrays.values() if array.ndim == 2]
    if len(matrices) != 1:
        raise FileError(f"{path}: expected an array 'X' or one matrix, found {sorted(arrays)}")
    return matrices[0]


def _checked(matrix: Any) -> Any:
    """Return a sparse matrix as CSR; its indices are checked, for a product trusts them."""
    csr = matrix.tocsr()
    csr.check_format(full_check=True)
    return csr


def _in_file(path: Path, kind: type[Any], array: Any, names: tuple[str, ...] | None = None) -> Source:
    if names is not None and len(names) != array.shape[-1]:
        raise FileError(f"{path}: {len(names)} column names for {array.shape[-1]} columns")
    try:
        return kind(array, names)  # type: ignore[no-any-return]
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def is_array(value: Any) -> bool:
    """Whether a value is an array of some array-API library."""
    return bool(is_array_api_obj(value))
