"""A site's rows as the study prepared them: columns aligned, gaps filled, centred, scaled, weighted. All implicit.

With B a block of raw rows, mu the federated mean, S = diag(scale) and W = diag(row weights), the rows that enter the
algebra are ``sqrt(W) (B - 1 mu') S^-1``. They are never formed for a product: ``A'W(A z)`` is computed as
``S^-1 (B' V - mu (1'V))`` with ``V = W (B S^-1 z - 1 mu' S^-1 z)``, which keeps sparse rows sparse.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse

from fedspan.data.source import Block, Source, like, to_host
from fedspan.encoding import Array, Plain
from fedspan.errors import DataError

_READ = 8.0  # reading an entry of an array costs about as much as eight multiplications
_GRAM_BYTES = 256 << 20


class Prepared(Source):
    """A source seen through a preparation: plain data, as it came in the ``data.prepare`` round."""

    def __init__(self, source: Source, preparation: dict[str, Plain]) -> None:
        self._source = source
        names = preparation.get("columns")
        self._aligned = Aligned(source, names, preparation.get("fill"), preparation.get("weight_column"))
        self._mean = _or_none(preparation.get("mean"))
        self._scale = _or_none(preparation.get("scale"))
        self._by_degree = bool(preparation.get("degree"))
        self.columns = None if names is None else tuple(names)
        self.shape = (source.shape[0], self._aligned.width)
        self.dtype, self.pass_cost, self.symmetric = source.dtype, source.pass_cost, source.symmetric
        self._gram: Array | None = None
        self._spent = 0.0
        plain = source.weights is None and source.site_weight == 1 and not preparation.get("weight_column")
        self._mass = float(source.shape[0]) if plain else None

    def rows(self) -> Iterator[tuple[Block, Array | None]]:
        """Yield raw blocks, aligned and filled, with their row weights (None: all one)."""
        for block, weights in self._aligned.rows():
            if self._by_degree:
                degree = np.asarray(block.sum(axis=1), dtype=float).ravel()
                degree = np.divide(1.0, degree, out=np.zeros_like(degree), where=degree != 0)
                weights = degree if weights is None else weights * degree
            yield block, weights

    def blocks(self) -> Iterator[Block]:
        """Yield the prepared rows themselves: dense where the data is centred."""
        for block, weights in self.rows():
            rows = self._explicit(block)
            yield rows if weights is None else _scale_rows(rows, np.sqrt(weights))

    def gram_times(self, z: Array) -> Array:
        """Return A'(A z) of the prepared rows, in one pass, or from the cached Gram where that pays."""
        if self.symmetric:
            return self._source.gram_times(z)
        if self._gram is not None or self._gram_pays(z.shape[1]):
            return self.gram() @ z
        if self._scale is not None:
            z = z / self._scale[:, None]
        shift = None if self._mean is None else self._mean @ z
        total: Array | None = None
        for block, weights in self.rows():
            part = self._block_product(block, weights, z, shift)
            total = part if total is None else np.add(total, part, dtype=np.float64)
        if total is None:
            return np.zeros((self.shape[1], z.shape[1]))
        if self._scale is not None:
            total = total / self._scale[:, None]
        return total if total.dtype == np.float64 else total.astype(np.float64)

    def _block_product(self, block: Block, weights: Array | None, z: Array, shift: Array | None) -> Array:
        inner = block @ like(block, z)
        if shift is not None:
            inner -= like(block, shift)
        if weights is not None:
            inner *= like(block, weights[:, None])
        product = to_host(block.T @ inner)
        if shift is None:
            return product
        return product - np.multiply.outer(self._mean, to_host(inner).sum(axis=0, dtype=np.float64))

    def times(self, v: Array, *, weighted: bool = False) -> Array:
        """Return the rows' scores A v; with ``weighted``, each times the root of its row's weight."""
        v = v if self._scale is None else v / self._scale[:, None]
        shift = 0.0 if self._mean is None else self._mean @ v
        parts = [np.zeros((0, v.shape[1]))]
        for block, weights in self.rows():
            scores = to_host(block @ like(block, v)) - shift
            parts.append(scores if weights is None or not weighted else scores * np.sqrt(weights)[:, None])
        return np.concatenate(parts)

    @property
    def mass(self) -> float:
        """The sum of the row weights: the number of rows where there are none."""
        if self._mass is None:
            self._mass = sum(float(b.shape[0] if w is None else w.sum()) for b, w in self._aligned.rows())
        return self._mass

    def gram(self) -> Array:
        """Return the d x d Gram matrix, computed once."""
        if self.symmetric:
            return self._source.gram()
        if self._gram is None:
            gram = np.zeros((self.shape[1], self.shape[1]))
            for block in self.blocks():
                gram += to_host(block.T @ block)
            self._gram = gram
        return self._gram

    def total(self) -> float:
        """Return the prepared rows' sum of squares, the trace of their Gram matrix."""
        if self.symmetric:
            return self._source.trace()  # type: ignore[attr-defined,no-any-return]
        total = 0.0
        for block, weights in self.rows():
            squares = self._centred_squares(block, weights)
            total += float(np.sum(squares if self._scale is None else squares / self._scale**2))
        return total

    def column_squares(self) -> Array:
        """Return each column's weighted sum of squares about the mean, before scaling."""
        return sum(  # type: ignore[return-value]
            (self._centred_squares(b, w) for b, w in self.rows()), start=np.zeros(self.shape[1])
        )

    def _centred_squares(self, block: Block, weights: Array | None) -> Array:
        if scipy.sparse.issparse(block):
            raw = block if weights is None else _scale_rows(block, np.sqrt(weights))
            squares = np.asarray(raw.multiply(raw).sum(axis=0), dtype=float).ravel()
            if self._mean is None:
                return squares
            mass = block.shape[0] if weights is None else weights.sum()
            sums = block.T @ (np.ones(block.shape[0]) if weights is None else weights)
            return np.maximum(squares - 2 * self._mean * sums + mass * self._mean**2, 0.0)
        rows = block if self._mean is None else block - like(block, self._mean)
        if weights is not None:
            rows = _scale_rows(rows, np.sqrt(weights))
        rows = to_host(rows)
        return np.einsum("ij,ij->j", rows, rows).astype(np.float64)

    def _explicit(self, block: Block) -> Block:
        if self._mean is not None:
            dense = block.toarray() if scipy.sparse.issparse(block) else block
            block = dense - like(dense, self._mean)
        if self._scale is not None:
            inverse = like(block, 1 / self._scale)
            block = block.multiply(inverse).tocsr() if scipy.sparse.issparse(block) else block * inverse
        return block

    def _gram_pays(self, rank: int) -> bool:
        """The cost model: buy the Gram once twice its price was spent on renting (passes over the rows)."""
        n, d = self.shape
        direct = n * d * (4 * rank + _READ * self.pass_cost)
        if 2 * d * d * (2 * rank + _READ) > direct or 8 * d * d > _GRAM_BYTES or self._aligned.sparse:
            return False
        self._spent += direct
        return self._spent > 2 * n * d * (d + _READ * self.pass_cost)


class Aligned:
    """Raw blocks with the study's columns in the study's order, gaps filled, the weight column taken out."""

    def __init__(
        self, source: Source, names: list[str] | None, fill: Array | None, weight_column: str | None
    ) -> None:
        self._source, self._fill = source, fill
        have = source.columns
        if weight_column is not None and (have is None or weight_column not in have):
            raise DataError(f"there is no column {weight_column!r} to take row weights from; columns are {have}")
        self._weight_at = None if weight_column is None or have is None else have.index(weight_column)
        self._take: Array | None = None
        if names is not None and have is not None and tuple(names) != have:
            where = {name: i for i, name in enumerate(have)}
            self._take = np.array([where.get(name, -1) for name in names])
        self.width = source.shape[1] if names is None else len(names)
        self.sparse = scipy.sparse.issparse(next(iter(source.blocks()), None)) if source.pass_cost == 1 else False
        changed = self._take is not None or fill is not None
        self._kept = list(self._transformed()) if changed and self.sparse else None
        self._plain = not changed and source.weights is None and source.site_weight == 1 and weight_column is None

    def rows(self) -> Iterator[tuple[Block, Array | None]]:
        """Yield blocks and row weights."""
        if self._kept is not None:
            return iter(self._kept)
        if self._plain:
            return ((block, None) for block in self._source.blocks())
        return self._transformed()

    def _transformed(self) -> Iterator[tuple[Block, Array | None]]:
        start = 0
        for block in self._source.blocks():
            stop = start + block.shape[0]
            weights = None if self._source.weights is None else self._source.weights[start:stop]
            if self._weight_at is not None:
                column = block[:, [self._weight_at]]
                weights = np.asarray(to_host(column), dtype=float).ravel()
                if not np.all(np.isfinite(weights)) or np.any(weights < 0):
                    raise DataError("row weights must be finite and not negative")
            if self._source.site_weight != 1:
                weights = self._source.site_weight * (np.ones(stop - start) if weights is None else weights)
            yield self._fill_gaps(self._select(block)), weights
            start = stop

    def _select(self, block: Block) -> Block:
        if self._take is None:
            return block
        if scipy.sparse.issparse(block):
            present = self._take >= 0
            rows, at = np.flatnonzero(present), self._take[present]
            chooser = scipy.sparse.csr_matrix(
                (np.ones(len(at), dtype=block.dtype), (at, rows)), shape=(block.shape[1], len(self._take))
            )
            return (block @ chooser).tocsr()
        host = to_host(block)
        return np.where(self._take >= 0, host[:, self._take], np.zeros((), dtype=host.dtype))

    def _fill_gaps(self, block: Block) -> Block:
        if self._fill is None:
            return block
        if scipy.sparse.issparse(block):
            gaps = np.isnan(block.data)
            if gaps.any():
                block = block.copy()
                block.data[gaps] = self._fill[block.indices[gaps]]
            return block
        host = to_host(block)
        gaps = np.isnan(host)
        return np.where(gaps, self._fill.astype(host.dtype), host) if gaps.any() else block


def _or_none(value: Any) -> Array | None:
    return None if value is None else np.asarray(value, dtype=float)


def _scale_rows(rows: Block, by: Array) -> Block:
    if scipy.sparse.issparse(rows):
        return scipy.sparse.diags_array(by.astype(rows.dtype)) @ rows
    return rows * like(rows, by[:, None])
