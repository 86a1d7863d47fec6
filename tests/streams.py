"""What the tests of streams share: rows, what pooled PCA says of them, and how near a summary comes to that."""

from __future__ import annotations

import itertools

import numpy as np

from fedspan.linalg import Summary, fold, orth


def rows_of(rng, n, d, rank=None, offset=1.0, decay=0.7):
    """Rows about a common mean, with falling variances along random directions; of exactly this rank about the mean."""
    rank = d if rank is None else rank
    turn = orth(rng.standard_normal((d, rank))) * decay ** np.arange(rank)
    return rng.standard_normal((n, rank)) @ turn.T + offset * rng.standard_normal(d)


def pooled(x, weights=None, center=True):
    """The mean, right singular vectors and singular values of the weighted, centred rows, and their sum of squares."""
    weights = np.ones(len(x)) if weights is None else weights
    mean = weights @ x / weights.sum() if center else np.zeros(x.shape[1])
    _, values, vt = np.linalg.svd(np.sqrt(weights)[:, None] * (x - mean), full_matrices=False)
    return mean, vt.T, values, float(values @ values)


def folded(blocks, rank, *, weights=None, seed=0, **settings):
    """Fold blocks one after the other."""
    summary = Summary.empty(blocks[0].shape[1])
    for i, block in enumerate(blocks):
        own = None if weights is None else weights[i]
        summary = fold(summary, block, rank, weights=own, rng=np.random.default_rng([seed, i]), **settings)
    return summary


def is_orthonormal(basis, tolerance=1e-12):
    np.testing.assert_allclose(basis.T @ basis, np.eye(basis.shape[1]), rtol=0, atol=tolerance)


def is_pooled(summary, x, weights=None, center=True, tolerance=1e-9):
    """The summary is that of these rows, whose rank fits: mean, mass, total and every direction."""
    mean, basis, values, total = pooled(x, weights, center)
    size = values.max(initial=0.0)
    np.testing.assert_allclose(summary.mean, mean, atol=1e-12 * (1 + np.abs(x).max()))
    np.testing.assert_allclose(summary.mass, len(x) if weights is None else weights.sum(), rtol=1e-12)
    np.testing.assert_allclose(summary.total, total, rtol=1e-10, atol=1e-20)
    scatter, found = (basis * values**2) @ basis.T, (summary.basis * summary.values**2) @ summary.basis.T
    np.testing.assert_allclose(found, scatter, atol=tolerance * size**2 + 1e-20)
    is_orthonormal(summary.basis)


def cuts(n, places):
    """The index slices that places in 0..n cut n rows into."""
    edges = [0, *sorted(places), n]
    return [slice(a, b) for a, b in itertools.pairwise(edges) if b > a]
