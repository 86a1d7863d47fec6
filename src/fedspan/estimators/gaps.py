"""Gaps in a stream's rows: refused, filled with the mean so far, or their rows left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

from fedspan.data.columns import any_in_columns, column_sums, gap_weights
from fedspan.encoding import Array, Plain
from fedspan.errors import ConfigurationError, DataError
from fedspan.linalg import Summary

POLICIES = ("error", "mean", "skip")


class Gaps:
    """Meets gaps as ``missing`` says, and remembers the sums that a mean so far needs."""

    def __init__(self, d: int, missing: str, seen: Summary | None = None) -> None:
        if missing not in POLICIES:
            raise ConfigurationError(f"missing is one of {', '.join(map(repr, POLICIES))}; got {missing!r}")
        self.missing, self.skipped = missing, 0
        self._sums, self._present = np.zeros(d), np.zeros(d)
        if seen is not None:
            self._sums, self._present = seen.mass * seen.mean, np.full(d, seen.mass)

    @property
    def fill(self) -> Array | None:
        """The mean of the values so far; NaN where there are none."""
        if self.missing != "mean":
            return None
        nothing = np.full(len(self._sums), np.nan)
        return np.asarray(np.divide(self._sums, self._present, out=nothing, where=self._present > 0))

    def add(self, other: Gaps, seen: Summary | None = None) -> None:
        """Count what another stream met; of one that fills nothing in, what its centred rows came to."""
        self.skipped += other.skipped
        if other.missing != "mean":
            other = Gaps(len(self._sums), other.missing, seen)
        self._sums, self._present = self._sums + other._sums, self._present + other._present

    def met(self, X: Any, weights: Array | None) -> tuple[Any, Array | None]:
        """Return the rows and weights without gaps."""
        if self.missing == "mean":
            return self._filled(X, weights), weights
        bad = any_in_columns(X, "isnan")
        if not bad.any():
            return X, weights
        if self.missing == "error":
            raise DataError(
                f"the rows have NaN (missing values) in columns {np.flatnonzero(bad)[:5].tolist()}; mend them, or set "
                f'missing = "mean" or "skip"'
            )
        whole = ~_rows_with_gaps(X)
        self.skipped += int(np.sum(~whole))
        return X[whole], None if weights is None else weights[whole]

    def _filled(self, X: Any, weights: Array | None) -> Any:
        sums = self._sums + column_sums(X, weights, True)
        present = self._present + _present_weights(X, weights)
        empty = (present <= 0) & any_in_columns(X, "isnan")
        if empty.any():
            raise DataError(
                f"column {np.flatnonzero(empty)[:5].tolist()} has no value yet, so there is no mean to fill its gaps "
                f'with; begin with rows that have one, or set missing = "skip"'
            )
        self._sums, self._present = sums, present
        fill = sums / np.maximum(present, 1e-300)
        if not scipy.sparse.issparse(X):
            return np.where(np.isnan(X), fill.astype(X.dtype), X)
        X = X.copy()
        gaps = np.isnan(X.data)
        X.data[gaps] = fill[X.indices[gaps]]
        return X

    def as_plain(self) -> dict[str, Plain]:
        """Return all of it as plain data."""
        return {"missing": self.missing, "skipped": self.skipped, "sums": self._sums, "present": self._present}

    @classmethod
    def from_plain(cls, plain: Any) -> Gaps:
        """Return what `as_plain` gave."""
        gaps = cls(len(plain["sums"]), plain["missing"])
        gaps.skipped, gaps._sums, gaps._present = plain["skipped"], plain["sums"], plain["present"]
        return gaps


def _present_weights(X: Any, weights: Array | None) -> Array:
    """Return the weight of the values in each column: exactly 0 where there are none, which a difference may miss."""
    if weights is None:
        return np.asarray(X.shape[0] - gap_weights(X, None, True))
    some = (weights > 0).astype(float)
    none = gap_weights(X, some, True) == some.sum()
    return np.where(none, 0.0, weights.sum() - gap_weights(X, weights, True))


def _rows_with_gaps(X: Any) -> Array:
    if not scipy.sparse.issparse(X):
        return np.isnan(X).any(axis=1)  # type: ignore[no-any-return]
    bad = np.zeros(X.shape[0], dtype=bool)
    bad[np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))[np.isnan(X.data)]] = True
    return bad
