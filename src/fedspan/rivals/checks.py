"""What every rival refuses."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedspan.encoding import Array
from fedspan.errors import ConfigurationError, DataError


def rank_fits(n_features: int, n_components: int) -> None:
    """Refuse a rank outside 1 .. d.

    >>> rank_fits(3, 4)
    Traceback (most recent call last):
    fedspan.errors.ConfigurationError: n_components is 4 of 3 features; expected 1 <= n_components <= n_features
    """
    if not 1 <= n_components <= n_features:
        raise ConfigurationError(
            f"n_components is {n_components} of {n_features} features; expected 1 <= n_components <= n_features"
        )


def as_rows(rows: Any, n_features: int) -> Array:
    """Return rows as finite floats with ``n_features`` columns."""
    array = np.asarray(rows, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != n_features:
        raise DataError(
            f"rows have shape {array.shape}; expected m x {n_features}, samples in rows (one sample: reshape(1, -1))"
        )
    if not np.isfinite(array).all():
        raise DataError("rows hold nan or infinite entries; remove or impute them first")
    return array
