"""What a site's data must be able to do, however it is stored.

A `Source` is rows that can be read in blocks, again and again. A reader says its shape and how to yield blocks;
the algebra is written here once. Blocks are numpy arrays, scipy CSR matrices, or arrays of any array-API library
(torch on a GPU, say): products run where the block lives and come back as host float64 arrays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse
from array_api_compat import array_namespace, device, to_device

from fedspan.encoding import Array, Plain
from fedspan.errors import DataError

Block = Any
"""Rows of data: a numpy array, a CSR matrix or another library's array; two dimensions, floating."""

BLOCK_BYTES = 4 << 20
"""How much of an in-memory array is taken at a time: `gram_times` touches a block twice, the second time in cache."""


class Source(ABC):
    """Rows of data at one site, read in blocks."""

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    columns: tuple[str, ...] | None = None
    symmetric = False
    """True for a share of a symmetric matrix (`SymmetricSource`): its product is A z, not A'A z."""
    weights: Array | None = None
    """A weight for each row (None: all one): a row of weight 2 counts as two equal rows."""
    site_weight = 1.0
    """A factor on all rows of this site."""
    pass_cost = 1.0
    """What reading all rows once costs, against multiplying rows that lie in memory; high for files."""

    @abstractmethod
    def blocks(self) -> Iterator[Block]:
        """Yield the rows in order, a block at a time."""

    def gram_times(self, z: Array) -> Array:
        """Return A'(A z) in one pass over the rows."""
        total = np.zeros((self.shape[1], z.shape[1]))
        for block in self.blocks():
            right = like(block, z)
            total += to_host(block.T @ (block @ right))
        return total

    def times(self, v: Array, *, weighted: bool = False) -> Array:
        """Return A v, a row for each row of the data (times the root of its weight): it stays at the site."""
        parts = [to_host(block @ like(block, v)) for block in self.blocks()]
        scores = np.concatenate(parts) if parts else np.zeros((0, v.shape[1]))
        return scores * np.sqrt(self.weights)[:, None] if weighted and self.weights is not None else scores

    def attached(self) -> Plain:
        """Return what belongs to the rows and is in no block, such as labels (None: nothing)."""
        return None

    @property
    def mass(self) -> float:
        """The sum of the row weights: the number of rows where there are none."""
        return self.site_weight * float(self.shape[0] if self.weights is None else self.weights.sum())

    def gram(self) -> Array:
        """Return A'A."""
        return self.gram_times(np.eye(self.shape[1]))


class SymmetricSource(Source):
    """A site's share A_i of a symmetric matrix A = sum of A_i (the private power method's setting).

    Solvers ask for ``gram_times``; here that is A_i z, so they find the leading eigenvectors of A itself.

    >>> SymmetricSource(np.diag([2.0, 1.0])).gram_times(np.eye(2))
    array([[2., 0.],
           [0., 1.]])
    """

    symmetric = True

    def __init__(self, share: Any, columns: tuple[str, ...] | None = None, *, check: bool = True) -> None:
        self._share = share.tocsr() if scipy.sparse.issparse(share) else np.asarray(share)
        self.dtype = np.dtype(np.float32 if self._share.dtype == np.float32 else np.float64)
        self._share = self._share.astype(self.dtype)  # integers too: `like` would round z to them
        if self._share.ndim != 2 or self._share.shape[0] != self._share.shape[1]:
            raise DataError(f"a share of a symmetric matrix is square, got shape {self._share.shape}")
        if check and abs(self._share - self._share.T).max() > 1e-8 * max(abs(self._share).max(), 1e-300):
            raise DataError("a share of a symmetric matrix must equal its transpose; this one does not")
        self.shape = self._share.shape
        self.columns = columns

    def blocks(self) -> Iterator[Block]:
        """Yield the whole share: it is one block."""
        yield self._share

    def gram_times(self, z: Array) -> Array:
        """Return A_i z."""
        return to_host(self._share @ like(self._share, z)).astype(np.float64)

    def gram(self) -> Array:
        """Return A_i."""
        return self.gram_times(np.eye(self.shape[1]))

    def trace(self) -> float:
        """Return the trace of A_i."""
        return float(self._share.diagonal().sum())


def like(block: Block, host: Array) -> Any:
    """Return a host array as the block's library, device and precision want it."""
    if isinstance(block, np.ndarray) or scipy.sparse.issparse(block):
        return host if host.dtype == block.dtype else host.astype(block.dtype)
    xp = array_namespace(block)
    return xp.asarray(np.ascontiguousarray(host), dtype=block.dtype, device=block.device)


def to_host(array: Any) -> Array:
    """Return an array of any library as numpy."""
    if isinstance(array, np.ndarray):
        return array
    if scipy.sparse.issparse(array):
        return array.toarray()  # type: ignore[no-any-return]
    on_host = "cpu" in str(device(array)).lower()  # libraries spell it cpu, CPU_DEVICE, TFRT_CPU_0
    return np.asarray(array if on_host else to_device(array, "cpu"))


def row_slices(rows: int, row_bytes: int, block_bytes: int = BLOCK_BYTES) -> Iterator[slice]:
    """Cut rows into slices of about ``block_bytes``; the last one takes what is left.

    >>> [(s.start, s.stop) for s in row_slices(5, 8, 16)]
    [(0, 2), (2, 4), (4, 5)]
    """
    step = max(1, block_bytes // max(row_bytes, 1))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))
