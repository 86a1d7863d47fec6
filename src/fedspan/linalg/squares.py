"""Sums of squares about a mean, without the cancellation of squares of sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

from fedspan.encoding import Array


def centred_squares(block: Any, weights: Array | None, mean: Array | None) -> Array:
    """Return each column's weighted sum of squares about ``mean`` (None: about zero), of a dense or CSR block.

    >>> centred_squares(np.array([[1.0, 5.0], [3.0, 5.0]]), None, np.array([2.0, 5.0]))
    array([2., 0.])
    """
    if scipy.sparse.issparse(block):
        return _sparse_squares(block, weights, mean)
    rows = block if mean is None else block - mean
    if weights is not None:
        rows = rows * np.sqrt(weights)[:, None]
    return np.einsum("ij,ij->j", rows, rows, dtype=np.float64)  # type: ignore[no-any-return]


def _sparse_squares(block: Any, weights: Array | None, mean: Array | None) -> Array:
    rows, width = block.shape
    entries = block.data.astype(np.float64)
    heavy = np.ones(len(entries)) if weights is None else np.repeat(weights, np.diff(block.indptr))
    if mean is None:
        return np.bincount(block.indices, heavy * entries**2, width)
    stored = np.bincount(block.indices, heavy * (entries - mean[block.indices]) ** 2, width)
    mass = rows if weights is None else weights.sum()
    full = np.bincount(block.indices, minlength=width) == rows  # exactly nothing is left out there
    absent = np.where(full, 0.0, mass - np.bincount(block.indices, heavy, width))
    return stored + np.maximum(absent, 0.0) * mean**2  # type: ignore[no-any-return]
