"""What the generators share: random bases and checks of their settings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedspan.errors import ConfigurationError

Array = NDArray[np.float64]
Seed = int | np.random.Generator


def orthonormal(rng: np.random.Generator, d: int, k: int) -> Array:
    """Basis of a uniformly random subspace: QR of a Gaussian matrix, signs made unique."""
    q, r = np.linalg.qr(rng.standard_normal((d, k)))
    return np.asarray(q * np.where(np.diag(r) < 0, -1.0, 1.0))


def counts_of(n_samples: int | Sequence[int], n_sites: int) -> list[int]:
    """Rows of each site, from one number or one for each."""
    positive(n_sites=n_sites)
    counts = [n_samples] * n_sites if isinstance(n_samples, int) else [int(n) for n in n_samples]
    if len(counts) != n_sites or min(counts) < 1:
        raise ConfigurationError(
            f"n_samples is {n_samples!r} for {n_sites} sites; expected a positive number, or one a site"
        )
    return counts


def positive(**values: float) -> None:
    """Refuse, by name, what is not above 0."""
    for name, value in values.items():
        if not value > 0:
            raise ConfigurationError(f"{name} is {value}; expected a positive number")


def not_negative(**values: float) -> None:
    """Refuse, by name, what is below 0."""
    for name, value in values.items():
        if not value >= 0:
            raise ConfigurationError(f"{name} is {value}; expected 0 or more")


def rank_fits(k: int, d: int) -> None:
    """Refuse a rank outside 1 .. d."""
    if not 1 <= k <= d:
        raise ConfigurationError(f"k is {k}, n_features {d}; expected 1 <= k <= n_features")
