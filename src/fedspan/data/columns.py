"""Figures of a block's columns, for blocks of every kind: dense, sparse, or on an accelerator."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
from array_api_compat import array_namespace

from fedspan.data.source import like, to_host
from fedspan.encoding import Array


def lowest_entry(block: Any) -> float:
    """Return the least entry, at most 0 where the block is sparse or empty."""
    if scipy.sparse.issparse(block):
        return float(block.data.min(initial=0.0))
    return float(array_namespace(block).min(block)) if block.shape[0] else 0.0


def count_gaps(block: Any) -> int:
    """Return the number of missing entries."""
    if scipy.sparse.issparse(block):
        return int(np.isnan(block.data).sum())
    xp = array_namespace(block)
    return int(xp.sum(xp.astype(xp.isnan(block), xp.int64)))


def any_in_columns(block: Any, test: str) -> Array:
    """Whether a column has an entry that is infinite, or NaN."""
    if scipy.sparse.issparse(block):
        found = np.zeros(block.shape[1], dtype=bool)
        found[block.indices[getattr(np, test)(block.data)]] = True
        return found
    xp = array_namespace(block)
    return to_host(xp.any(getattr(xp, test)(block), axis=0))


def gap_weights(block: Any, weights: Array | None, with_gaps: bool) -> Array | float:
    """Return the weight of missing entries in each column."""
    if not with_gaps:
        return 0.0
    if scipy.sparse.issparse(block):
        gaps = block.copy()
        gaps.data = np.isnan(block.data).astype(float)
        ones = np.ones(block.shape[0]) if weights is None else weights
        return np.asarray(gaps.T @ ones)
    xp = array_namespace(block)
    gaps = xp.astype(xp.isnan(block), block.dtype)
    if weights is not None:
        gaps = gaps * like(block, weights[:, None])
    return to_host(xp.sum(gaps, axis=0, dtype=xp.float64))


def column_sums(block: Any, weights: Array | None, with_gaps: bool) -> Array:
    """Return the weighted sum of each column, over present entries where there may be gaps."""
    if scipy.sparse.issparse(block):
        if with_gaps:
            block = block.copy()
            block.data = np.nan_to_num(block.data, nan=0.0, posinf=np.inf, neginf=-np.inf)
        ones = np.ones(block.shape[0]) if weights is None else weights
        return np.asarray(block.T @ ones, dtype=float)
    xp = array_namespace(block)
    if with_gaps:
        block = xp.where(xp.isnan(block), xp.zeros_like(block), block)
    if weights is not None:
        block = block * like(block, weights[:, None])
    return to_host(xp.sum(block, axis=0, dtype=xp.float64))
