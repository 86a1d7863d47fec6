"""How many components to keep: by a share of the variance, or by a threshold on the values."""

from __future__ import annotations

import math

import numpy as np

from fedspan.encoding import Array


def rank_by_fraction(values: Array, total: float, fraction: float) -> int | None:
    """Return the least rank whose values reach a fraction of the total, or None if these do not reach it.

    >>> rank_by_fraction(np.array([6.0, 3.0, 1.0]), 10.0, 0.8)
    2
    """
    reached = np.flatnonzero(np.cumsum(values) >= fraction * total * (1 - 1e-12))
    return int(reached[0]) + 1 if len(reached) else None


def rank_by_threshold(values: Array, total: float, rows: int, features: int, noise_edge: float = 0.0) -> int | None:
    """Return the rank by the optimal hard threshold of Gavish and Donoho (2014), or None if none falls below it.

    Their rule for a known noise level keeps singular values above ``lambda(beta) sqrt(n) sigma``. The noise level
    is taken from what the leading values leave of the total variance, which is known without the rest of the
    spectrum; as it depends on the rank kept, the rank is the first for which the next value is noise. Values that
    were released with noise count only above ``noise_edge``, what that noise alone would show.

    >>> rng = np.random.default_rng(0)
    >>> signal = rng.standard_normal((500, 3)) @ rng.standard_normal((3, 40)) * 3
    >>> s = np.linalg.svd(signal + rng.standard_normal((500, 40)), compute_uv=False)
    >>> rank_by_threshold(s[:16] ** 2, float(np.sum(s**2)), 500, 40)
    3
    """
    n, d = max(rows, features), min(rows, features)
    beta = d / n
    factor = 2 * (beta + 1) + 8 * beta / (beta + 1 + math.sqrt(beta**2 + 14 * beta + 1))  # lambda(beta)^2
    left = total - np.concatenate([[0.0], np.cumsum(values)])
    for rank, value in enumerate(values):
        if rank == d:
            break
        noise = max(float(left[rank]), 0.0) / (n * (d - rank))
        if value <= max(factor * n * noise, noise_edge):
            return max(rank, 1)
    return None if len(values) < d else len(values)
