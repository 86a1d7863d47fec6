"""The adversary outside (FedPower, Example 2): knows the published result V_k and a few entries of the pooled M.

It takes M for V_k diag(lambda) V_k', fits the k values to the P entries it knows by non-negative least squares, and
reads the entries it does not know off the fit. With P >= k generic entries the fit is determined.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from fedspan.encoding import Array
from fedspan.errors import ConfigurationError

_PER_COMPONENT = 4  # entries known for each component, unless it is said how many


@dataclass(frozen=True)
class External:
    """What an outsider makes of the result."""

    components: int
    known: int
    """Entries of the pooled M it knows, of those on and above the diagonal."""
    entries: int
    """All of those."""
    error: float
    """The relative error of the entries it does not know, in Frobenius norm."""
    seed: int

    @property
    def verdict(self) -> str:
        """One line."""
        return (
            f"outside: from the {self.components} published components and {self.known:,} known entries of the pooled "
            f"A'A, the other {self.entries - self.known:,} follow with a relative error of {self.error:.2g}"
        )


def attack_from_outside(basis: Array, pooled: Array, known: int | None, seed: int) -> External:
    """Draw the known entries, fit, and compare what was not known. The fit itself sees the known entries only."""
    d, k = basis.shape
    rows, columns = np.triu_indices(d)
    if known is None:
        known = min(_PER_COMPONENT * k, len(rows) - 1)
    if not 1 <= known < len(rows):
        raise ConfigurationError(
            f"known is the number of entries of the pooled Gram matrix that an outsider has: between 1 and "
            f"{len(rows) - 1:,} for {d:,} features; got {known}"
        )
    drawn = np.zeros(len(rows), dtype=bool)
    drawn[np.random.default_rng([seed, d, known]).choice(len(rows), known, replace=False)] = True
    values = fit_values(basis, rows[drawn], columns[drawn], pooled[rows[drawn], columns[drawn]])
    guess = (basis * values) @ basis.T
    twice = np.where(rows == columns, 1.0, 2.0)[~drawn]
    truth = pooled[rows, columns][~drawn]
    wrong = guess[rows, columns][~drawn] - truth
    size = float(np.sum(twice * truth**2))
    error = float(np.sqrt(np.sum(twice * wrong**2) / size)) if size > 0 else 0.0
    return External(k, known, len(rows), error, seed)


def fit_values(basis: Array, rows: Array, columns: Array, entries: Array) -> Array:
    """Return non-negative values with V diag(values) V' nearest to the entries at (rows, columns)."""
    return np.asarray(nnls(basis[rows] * basis[columns], entries)[0])
