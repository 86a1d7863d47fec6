"""Sources over what is already in memory (or mapped into it): arrays of any library, CSR, frames, ``.npy``, ``.npz``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from array_api_compat import array_namespace, is_array_api_obj

from fedspan.data.source import Block, Source, row_slices
from fedspan.encoding import Array
from fedspan.errors import DataError, FileError

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


class ArraySource(Source):
    """A two-dimensional array: numpy (memory-mapped too), or torch, cupy and the like on any device.

    float32 and float64 are kept as they are; integers and booleans are read as float64, block by block, so a mapped
    file is never copied whole.
    """

    def __init__(self, array: Any, columns: tuple[str, ...] | None = None) -> None:
        if array.ndim != 2:
            raise DataError(f"data has rows and columns: expected 2 dimensions, got {array.ndim}")
        self.shape = (int(array.shape[0]), int(array.shape[1]))
        self.columns = columns
        self._array = array
        self._cast: Any = None
        if isinstance(array, np.ndarray):
            if array.dtype.kind not in "biuf":
                raise DataError(f"data must be numbers, got an array of {array.dtype}")
            self.dtype = array.dtype if array.dtype in FLOATS else np.dtype(np.float64)
            self._cast = None if array.dtype == self.dtype else self.dtype
        else:
            xp = array_namespace(array)
            single = xp.isdtype(array.dtype, "real floating") and xp.finfo(array.dtype).eps > 1e-10
            if not xp.isdtype(array.dtype, "real floating"):
                self._cast = xp.float64
            self.dtype = np.dtype(np.float32 if single else np.float64)
        row_bytes = self.dtype.itemsize * self.shape[1]
        self._slices = list(row_slices(self.shape[0], row_bytes))
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


class SparseSource(Source):
    """A scipy sparse matrix, kept as CSR and never made dense."""

    def __init__(self, matrix: Any, columns: tuple[str, ...] | None = None) -> None:
        csr = matrix.tocsr()
        if csr.dtype not in FLOATS:
            csr = csr.astype(np.float64)
        self._csr = csr
        self.shape, self.dtype, self.columns = csr.shape, csr.dtype, columns

    def blocks(self) -> Iterator[Block]:
        """Yield the whole matrix: it is in memory, and its products are small."""
        yield self._csr


def from_frame(frame: Any) -> Source:
    """Wrap a pandas or polars frame; a column that is not numeric is refused by name."""
    names = tuple(str(name) for name in frame.columns)
    if hasattr(frame, "to_numpy") and hasattr(frame, "get_columns"):  # polars
        wrong = [n for n, t in zip(frame.columns, frame.dtypes, strict=True) if not (t.is_numeric() or t == bool)]
    else:
        wrong = [str(n) for n, t in frame.dtypes.items() if getattr(t, "kind", "O") not in "biuf"]
    if wrong:
        raise not_numeric(wrong)
    return ArraySource(_frame_values(frame), names)


def not_numeric(names: list[str]) -> DataError:
    """Return the error that refuses columns by name, with the ``drop`` that mends it."""
    listed = ", ".join(f'"{n}"' for n in names)
    return DataError(f"columns {listed} are not numeric; leave them out with drop = [{listed}], or encode them")


def _frame_values(frame: Any) -> Array:
    """Return a frame's values, float32 where every column is, missing entries as NaN."""
    if hasattr(frame, "get_columns"):
        values = frame.to_numpy()
    else:
        kinds = {np.dtype(getattr(t, "numpy_dtype", t)) for t in frame.dtypes}
        values = frame.to_numpy(dtype=np.float32 if kinds == {np.dtype(np.float32)} else np.float64, na_value=np.nan)
    return values if values.dtype in FLOATS else values.astype(np.float64)


def from_npy(path: Path) -> Source:
    """Map a ``.npy`` file: blocks are read as they are needed."""
    try:
        return ArraySource(np.load(path, mmap_mode="r", allow_pickle=False))
    except (ValueError, OSError, EOFError) as cause:
        raise FileError(f"{path}: not a readable .npy file ({cause}); was it cut short?") from cause


def from_npz(path: Path) -> Source:
    """Read a ``.npz`` file: an array ``X`` (or the only one), or CSR parts ``data``, ``indices``, ``indptr``, ``shape``."""
    try:
        with np.load(path, allow_pickle=False) as parts:
            names = tuple(str(n) for n in parts["columns"]) if "columns" in parts else None
            if {"data", "indices", "indptr", "shape"} <= set(parts.files):
                data = parts["data"] if parts["data"].dtype in FLOATS else parts["data"].astype(np.float64)
                index = parts["indices"].astype(np.int32), parts["indptr"].astype(np.int32)
                return SparseSource(scipy.sparse.csr_matrix((data, *index), shape=tuple(parts["shape"])), names)
            arrays = [n for n in parts.files if parts[n].ndim == 2]
            if "X" not in parts.files and len(arrays) != 1:
                raise FileError(f"{path}: expected an array 'X' or one matrix, found {sorted(parts.files)}")
            return ArraySource(parts["X" if "X" in parts.files else arrays[0]], names)
    except FileError:
        raise
    except Exception as cause:
        raise FileError(f"{path}: not a readable .npz file ({cause}); was it cut short?") from cause


def is_array(value: Any) -> bool:
    """Whether a value is an array of some array-API library."""
    return bool(is_array_api_obj(value))
