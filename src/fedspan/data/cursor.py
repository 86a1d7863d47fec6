"""A place in a site's rows: read on from it, not from the start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import scipy.sparse

from fedspan.data.source import Block, to_host
from fedspan.encoding import Array

Rows = Iterator[tuple[Block, Array | None]]


class Cursor:
    """Reads rows in pieces. Where a piece begins at the end of the last, its file is not read again from the start."""

    def __init__(self, rows: Callable[[], Rows], offset: Array | None = None) -> None:
        self._rows = rows
        self.offset = offset
        """What is still to be subtracted from each row: rows that are sparse stay so."""
        self._at = 0
        self._blocks: Rows | None = None
        self._rest: tuple[Any, Array | None] | None = None

    def read(self, start: int, stop: int) -> Rows:
        """Yield rows ``start`` to ``stop`` with their weights, in blocks on the host."""
        if self._blocks is None or start < self._at:
            self._blocks, self._at, self._rest = self._rows(), 0, None
        while self._at < stop:
            block, weights = self._rest or self._next(self._blocks)
            if block is None:
                return
            first, last = max(start - self._at, 0), min(stop - self._at, block.shape[0])
            self._rest = _part(block, weights, last, block.shape[0])
            self._at += last
            if first < last:
                part, heavy = _part(block, weights, first, last) or (block, weights)
                yield part if scipy.sparse.issparse(part) else to_host(part), heavy

    def _next(self, blocks: Rows) -> tuple[Any, Array | None]:
        try:
            return next(blocks, (None, None))
        except BaseException:
            self._blocks = None  # reading that failed is over: asked on, it would seem to have no rows left
            raise


def _part(block: Any, weights: Array | None, first: int, last: int) -> tuple[Any, Array | None] | None:
    if first == last:
        return None
    return block[first:last, :], None if weights is None else weights[first:last]
