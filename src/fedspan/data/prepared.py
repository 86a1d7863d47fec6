"""A site's rows as the study prepared them: aligned, gaps filled, centred, scaled, weighted. All implicit.

With B a block of raw rows, mu the federated mean, S = diag(scale) and W = diag(row weights), the rows that
enter the algebra are ``sqrt(W) (B - 1 mu') S^-1``. They are not formed for a product: ``A'W(A z)`` is
computed as ``S^-1 (B' V - mu (1'V))`` with ``V = W (B S^-1 z - 1 mu' S^-1 z)``, which keeps rows sparse.
Under a privacy policy the rows are clipped last (`fedspan.data.clip`), which only changes W.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse
from array_api_compat import array_namespace

from fedspan.data.aligned import Aligned, chooser_matrix
from fedspan.data.clip import LARGEST_ENTRY, Clipping, RowBounds, bounded_weights, clamp, clip_factors, row_squares
from fedspan.data.cursor import Cursor
from fedspan.data.source import Block, Source, SymmetricSource, like, row_slices, to_host
from fedspan.encoding import Array, Plain
from fedspan.errors import DataError, PolicyError
from fedspan.linalg import centred_squares

_READ = 8.0  # reading an entry of an array costs about as much as eight multiplications
_GRAM_BYTES = 256 << 20
# rows this small are kept prepared: the call overhead of the implicit form would be the larger
_SMALL_BYTES = 64 << 10


class Prepared(Source):
    """A source seen through a preparation: plain data, as it came in the ``data.prepare`` round."""

    _cursor: Cursor | None = None
    _reading: Cursor | None = None
    _held: list[tuple[Block, Array | None]] | None = None
    """Of a `part`: its rows, as `rows` yields them."""

    def __init__(
        self,
        source: Source,
        preparation: dict[str, Plain],
        rounds: Callable[[], int] = lambda: 0,
        bounds: RowBounds | None = None,
    ) -> None:
        names = preparation.get("columns")
        if source.symmetric:
            source = _symmetric_part(source, names, exact=bounds is not None)
        self._source = source
        self._aligned = Aligned(
            source, names, preparation.get("fill"), preparation.get("weight_column"), check_weights=bounds is None
        )
        self._mean = _or_none(preparation.get("mean"))
        self._scale = _or_none(preparation.get("scale"))
        self._by_degree = bool(preparation.get("degree"))
        self.columns = None if names is None else tuple(names)
        self.shape = (source.shape[0], self._aligned.width)
        self.dtype, self.pass_cost, self.symmetric = source.dtype, source.pass_cost, source.symmetric
        self._gram: Array | None = None
        self._total: float | None = None
        self.bounds = bounds
        self._clips = self._clip_rows()
        self._small = self._prepared_if_small()
        self._rounds = rounds
        self._mass = None if bounds is not None or preparation.get("weight_column") else source.mass

    def rows(self) -> Iterator[tuple[Block, Array | None]]:
        """Yield raw blocks, aligned and filled, with their row weights (None: all one), clipped where they must be."""
        if self._held is not None:
            yield from self._held
            return
        if self._clips is None:
            yield from self._unclipped()
            return
        for (block, weights), clip in zip(self._unclipped(), self._clips, strict=True):
            yield block, clip if weights is None else weights * clip

    def _unclipped(self, clipping: Clipping | None = None) -> Iterator[tuple[Block, Array | None]]:
        """Yield blocks within the box, with weights; ``clipping`` counts the rows that this changed."""
        for raw, given in self._aligned.rows():
            block, weights = clamp(raw, self.bounds), self._bounded(given)
            if clipping is not None:
                clipping.note(raw, block, given)
            if self._by_degree:
                degree = inverse_degrees(block, 0.0 if self.bounds is None else 1 / LARGEST_ENTRY)
                weights = degree if weights is None else weights * degree
            yield block, weights

    def _bounded(self, weights: Array | None) -> Array | None:
        """Under a policy a row counts for one at most: the number of rows is bounded too."""
        return weights if weights is None or self.bounds is None else bounded_weights(weights)

    def _clip_rows(self) -> list[Array] | None:
        """Return each row's clip, squared, block by block: of the row as it enters the Gram matrix."""
        bounds = self.bounds
        self.clipping = Clipping(None if bounds is None else bounds.norm)
        if bounds is None or (bounds.norm is None and bounds.site_total is None):
            return None
        if self.symmetric:
            raise PolicyError("shares of a symmetric matrix have no rows to clip; take neighbours 'entry' or 'ppm-12'")
        clips, total = [], 0.0
        for block, weights in self._unclipped(self.clipping):
            squares = row_squares(block, self._mean, self._scale)
            clip = np.ones(len(squares)) if bounds.norm is None else clip_factors(squares, weights, bounds.norm)
            clips.append(clip)
            self.clipping.shortened += int(np.sum(clip < 1.0))
            total += float(np.sum(clip * squares if weights is None else clip * squares * weights))
        if bounds.site_total is not None and total > bounds.site_total:
            self.clipping.whole = bounds.site_total / total
            clips = [clip * self.clipping.whole for clip in clips]
        return clips

    def blocks(self) -> Iterator[Block]:
        """Yield the prepared rows themselves: dense where the data is centred."""
        for block, weights in self.rows():
            pieces = [slice(None)]
            if scipy.sparse.issparse(block) and self._mean is not None:  # dense, so a few rows at a time
                pieces = list(row_slices(block.shape[0], block.dtype.itemsize * block.shape[1]))
            for piece in pieces:
                rows = self._explicit(block[piece] if len(pieces) > 1 else block)
                yield rows if weights is None else _scale_rows(rows, np.sqrt(weights[piece]))

    @property
    def cursor(self) -> Cursor:
        """A place in the rows, scaled but not centred, so that sparse ones stay so: its ``offset`` is the mean's."""
        if self._cursor is None:
            scale = 1.0 if self._scale is None else self._scale
            self._cursor = Cursor(self._scaled, None if self._mean is None else self._mean / scale)
        return self._cursor

    def part(self, start: int, stop: int) -> Prepared:
        """Return some of the rows by themselves, clipped and centred as among all; they are read, and kept, once."""
        if self.symmetric:
            raise DataError("a share of a symmetric matrix has no rows to take some of; take a solver of whole shares")
        if self._reading is None:
            self._reading = Cursor(self.rows)
        some = copy.copy(self)
        some._held = list(self._reading.read(start, stop))
        some.shape = (max(stop - start, 0), self.shape[1])
        some._mass = self.mass * some.shape[0] / max(self.shape[0], 1)
        some._gram = some._small = some._cursor = some._reading = some._total = None
        return some

    def _scaled(self) -> Iterator[tuple[Block, Array | None]]:
        for block, weights in self.rows():
            yield self._explicit(block, centred=False), weights

    def gram_times(self, z: Array) -> Array:
        """Return A'(A z) of the prepared rows, in one pass, or from the cached Gram where that pays."""
        if self._small is not None:
            product: Array = self._small.T @ (self._small @ like(self._small, z))
            return product if product.dtype == np.float64 else product.astype(np.float64)
        if self.symmetric:
            return self._source.gram_times(z)
        if self._gram_pays(z.shape[1]):
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
        block, inner, shift = self._scores(block, z, shift)
        if weights is not None:
            inner *= like(block, weights[:, None])
        product = to_host(block.T @ inner)
        if shift is None or self._mean is None:
            return product
        sums = to_host(inner).sum(axis=0, dtype=np.float64)
        return product - np.multiply.outer(self._mean, sums)  # type: ignore[no-any-return]

    def _scores(self, block: Block, z: Array, shift: Array | None) -> tuple[Block, Any, Array | None]:
        """Return B z - shift, with the block and shift it was made of.

        In float32 a mean far larger than the deviations (1000 times, say) would cancel to four digits; there, and
        under a policy, whose bounds are to hold to the last digits, the block is centred first and no shift is left.
        """
        sparse = scipy.sparse.issparse(block)
        if shift is None or self._mean is None:
            return block, block @ like(block, z), None
        if sparse or self.bounds is None:
            inner = block @ like(block, z)
            inner -= like(block, shift)
            if sparse or self.dtype.itemsize == 8:
                return block, inner, shift
            if isinstance(inner, np.ndarray) and np.abs(shift).max() <= 16 * np.sqrt(np.mean(inner * inner)):
                return block, inner, shift
        block = block - like(block, self._mean)
        return block, block @ like(block, z), None

    def times(self, v: Array, *, weighted: bool = False) -> Array:
        """Return the rows' scores A v; with ``weighted``, each times the root of its row's weight."""
        v = v if self._scale is None else v / self._scale[:, None]
        shift = None if self._mean is None else self._mean @ v
        parts = [np.zeros((0, v.shape[1]))]
        for block, weights in self.rows():
            _, inner, left = self._scores(block, v, shift)
            scores = to_host(inner).astype(np.float64)
            if self._mean is not None and left is None:  # what rounding the mean to float32 left over
                scores -= (self._mean - self._mean.astype(self.dtype)) @ v
            if not weighted:  # the degrees belong to the rows themselves, the other weights only to their sums
                weights = inverse_degrees(block) if self._by_degree else None
            parts.append(scores if weights is None else scores * np.sqrt(weights)[:, None])
        return np.concatenate(parts)

    @property
    def mass(self) -> float:
        """The sum of the row weights: the number of rows where there are none."""
        if self._mass is None:
            rows = ((b, self._bounded(w)) for b, w in self._aligned.rows())
            self._mass = sum(float(b.shape[0] if w is None else w.sum()) for b, w in rows)
        return self._mass

    def gram(self) -> Array:
        """Return the d x d Gram matrix, computed once."""
        if self.symmetric:
            return self._source.gram()
        if self._gram is None:
            gram = np.zeros((self.shape[1], self.shape[1]))
            for block, weights in self.rows():
                product = self._sparse_gram if scipy.sparse.issparse(block) else self._dense_gram
                gram += product(block, weights)
            self._gram = gram
        return self._gram

    def _dense_gram(self, block: Block, weights: Array | None) -> Array:
        rows = self._explicit(block)
        if weights is not None:
            rows = _scale_rows(rows, np.sqrt(weights))
        return to_host(rows.T @ rows)

    def _sparse_gram(self, block: Block, weights: Array | None) -> Array:
        """Centred and scaled after the product: the rows stay sparse."""
        block = block.astype(np.float64)
        weighted = block if weights is None else _scale_rows(block, weights)
        gram = to_host(block.T @ weighted)
        if self._mean is not None:
            mass = block.shape[0] if weights is None else weights.sum()
            sums = weighted.T @ np.ones(block.shape[0])
            cross = np.multiply.outer(self._mean, sums)
            gram = gram - cross - cross.T + mass * np.multiply.outer(self._mean, self._mean)
        return gram if self._scale is None else gram / np.multiply.outer(self._scale, self._scale)

    def total(self) -> float:
        """Return the prepared rows' sum of squares, the trace of their Gram matrix; worked out once."""
        if self._total is None:
            self._total = self._source.trace() if self.symmetric else self._squares()  # type: ignore[attr-defined]
        return self._total

    def _squares(self) -> float:
        total = 0.0
        for block, weights in self.rows():
            squares = self._centred_squares(block, weights)
            total += float(np.sum(squares if self._scale is None else squares / self._scale**2))
        return total

    def column_squares(self) -> Array:
        """Return each column's weighted sum of squares about the mean, before scaling."""
        return sum((self._centred_squares(b, w) for b, w in self.rows()), start=np.zeros(self.shape[1]))

    def _centred_squares(self, block: Block, weights: Array | None) -> Array:
        if scipy.sparse.issparse(block):
            return centred_squares(block, weights, self._mean)
        rows = block if self._mean is None else block - like(block, self._mean)
        if weights is not None:
            rows = _scale_rows(rows, np.sqrt(weights))
        if not isinstance(rows, np.ndarray):
            xp = array_namespace(rows)
            return to_host(xp.sum(rows * rows, axis=0, dtype=xp.float64))
        squares: Array = np.einsum("ij,ij->j", rows, rows, dtype=np.float64)  # float32 would lose count of rows
        return squares

    def _explicit(self, block: Block, *, centred: bool = True) -> Block:
        if centred and self._mean is not None:
            dense = block.toarray() if scipy.sparse.issparse(block) else block
            block = dense - like(dense, self._mean)
        if self._scale is not None:
            inverse = like(block, 1 / self._scale)
            block = block.multiply(inverse).tocsr() if scipy.sparse.issparse(block) else block * inverse
        return block

    def _prepared_if_small(self) -> Array | None:
        n, d = self.shape
        tall = n > 4 * d  # there the d x d Gram is the smaller
        if self.symmetric or self.pass_cost > 1 or tall or self._aligned.sparse:
            return None
        if n * d * self.dtype.itemsize > _SMALL_BYTES:
            return None
        rows = next(iter(self.blocks()), None)
        return rows if isinstance(rows, np.ndarray) and len(rows) == n else None

    def _gram_pays(self, rank: int) -> bool:
        """The cost model: buy the Gram once twice its price was spent on renting (passes over the rows).

        What was spent is told from the round's number, not from a count of passes: a site that was restarted in
        between must choose as one that was not, or a resumed run would differ in its last bits.
        """
        n, d = self.shape
        direct = n * d * (4 * rank + _READ * self.pass_cost)
        if self._aligned.sparse or d > n or 8 * d * d > _GRAM_BYTES:
            return False
        if 2 * d * d * (2 * rank + _READ) > direct:
            return False
        return self._rounds() * direct > 2 * n * d * (d + _READ * self.pass_cost)


def inverse_degrees(block: Block, least: float = 0.0) -> Array:
    """Return one over each row's sum, and zero for an empty row; a sum below ``least`` counts as that.

    Under a policy nothing may overflow, or whether one row is there would show in the whole release.
    """
    degree = to_host(block @ like(block, np.ones(block.shape[1]))).astype(float)
    if np.any(degree < 0):
        raise DataError('rows with a negative sum have no degree; normalise = "degree" is for counts')
    inverse: Array = np.divide(1.0, np.maximum(degree, least), out=np.zeros_like(degree), where=degree != 0)
    return inverse


def _symmetric_part(source: Source, names: list[str] | None, *, exact: bool) -> Source:
    """Return a share of a symmetric matrix with the study's rows and columns, times the site's weight.

    ``exact``: in float64, so that rounding is far below what a policy hides. A column named twice would show a change
    of an entry twice.
    """
    share = next(source.blocks())
    if names is not None and len(set(names)) < len(names):
        raise DataError("a study names each column of a symmetric matrix once")
    weight = source.site_weight
    if exact:  # under a policy: no entry that arithmetic could fail on, and no site counts for more than one
        share, weight = clamp(share, RowBounds()), min(weight, 1.0)
    if names is not None and source.columns is not None and tuple(names) != source.columns:
        where = {name: i for i, name in enumerate(source.columns)}
        take = np.array([where.get(name, -1) for name in names])
        chooser = chooser_matrix(take, share.shape[0], share.dtype)
        share = chooser.T @ share @ chooser
    elif weight == 1 and not exact:
        return source
    return SymmetricSource(weight * share, None if names is None else tuple(names), check=not exact)


def _or_none(value: Any) -> Array | None:
    return None if value is None else np.asarray(value, dtype=float)


def _scale_rows(rows: Block, by: Array) -> Block:
    if scipy.sparse.issparse(rows):
        return scipy.sparse.diags_array(by.astype(rows.dtype)) @ rows
    return rows * like(rows, by[:, None])
