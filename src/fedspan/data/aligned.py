"""A site's raw rows with the study's columns: reordered, gaps filled, row weights found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse
from array_api_compat import array_namespace

from fedspan.data.arrays import nearest_column
from fedspan.data.source import Block, Source, like, to_host
from fedspan.encoding import Array
from fedspan.errors import DataError


class Aligned:
    """Raw blocks with the study's columns in the study's order, gaps filled, the weight column taken out."""

    def __init__(
        self,
        source: Source,
        names: list[str] | None,
        fill: Array | None,
        weight_column: str | None,
        *,
        check_weights: bool = True,
    ) -> None:
        self._check_weights = check_weights
        self._source, self._fill = source, None if fill is None else np.asarray(fill, dtype=float)
        have = source.columns
        if weight_column is not None and (have is None or weight_column not in have):
            hint = "the columns have no names" if have is None else nearest_column(weight_column, have)
            raise DataError(f"there is no column {weight_column!r} to take row weights from; {hint}")
        if weight_column is not None and source.weights is not None:
            raise DataError(f"row weights were given twice: as an array and as weight_column = {weight_column!r}")
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
                column = block[:, self._weight_at : self._weight_at + 1]
                weights = np.asarray(to_host(column), dtype=float).ravel()
                if self._check_weights and (not np.all(np.isfinite(weights)) or np.any(weights < 0)):
                    raise DataError("row weights must be finite and not negative")
            if self._source.site_weight != 1:
                weights = self._source.site_weight * (np.ones(stop - start) if weights is None else weights)
            yield self._fill_gaps(self._select(block)), weights
            start = stop

    def _select(self, block: Block) -> Block:
        if self._take is None:
            return block
        if scipy.sparse.issparse(block):
            chosen = (block @ chooser_matrix(self._take, block.shape[1], block.dtype)).tocsr()
            chosen.sort_indices()
            return chosen
        xp = array_namespace(block)
        where = {} if isinstance(block, np.ndarray) else {"device": block.device}
        chosen = xp.take(block, xp.asarray(np.maximum(self._take, 0), **where), axis=1)
        if (self._take >= 0).all():
            return chosen
        absent = xp.asarray(self._take < 0, **where)
        return xp.where(absent[None, :], xp.zeros_like(chosen), chosen)  # where, not times zero: a gap is NaN

    def _fill_gaps(self, block: Block) -> Block:
        if self._fill is None:
            return block
        if scipy.sparse.issparse(block):
            gaps = np.isnan(block.data)
            if gaps.any():
                block = block.copy()
                block.data[gaps] = self._fill[block.indices[gaps]]
            return block
        xp = array_namespace(block)
        gaps = xp.isnan(block)
        return xp.where(gaps, like(block, self._fill)[None, :], block) if xp.any(gaps) else block


def chooser_matrix(take: Array, width: int, dtype: Any) -> Any:
    """Return the sparse matrix that, from the right, takes columns by number and a zero column for -1."""
    to = np.flatnonzero(take >= 0)
    return scipy.sparse.csr_matrix((np.ones(len(to), dtype=dtype), (take[to], to)), shape=(width, len(take)))
