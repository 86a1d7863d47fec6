"""What the convergence proof of FAPS (Wang, Liu, Zhang 2022) asks for, evaluated on a given problem.

======================  =======================  ====================================================================
symbol                  name here                meaning
======================  =======================  ====================================================================
beta_i                  ``penalties``            the sites' penalties
delta_i                 ``reduction``            (14), how far an inner solve must go
c_1, c_1'               ``decrease``, ``curvature``  (13)
d, p                    sites, ``n_components``  the paper counts sites with d and components with p
rho, sigma              ``rho``, ``sigma``       max beta_i / beta_j, and sqrt(1 - 1/(2 rho d))
omega_i                 ``omegas``               Appendix B: beta_i >= omega_i ||A||_F^2
======================  =======================  ====================================================================

The text asks delta_i < sigma / (2 sqrt(rho d)), Appendix B sigma / (4 rho d); both are reported. The conditions are
sufficient, and far from necessary: omega_i is never below 16, so the paper's own beta_i = 0.15 ||A_i||_2^2 cannot meet
Assumption 6 (ii) on any data, and it converges in all of its experiments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse.linalg
from numpy.typing import ArrayLike

from fedspan.errors import ConfigurationError
from fedspan.metrics.subspace import Array, as_rows


@dataclass(frozen=True)
class FapsAssumptions:
    """Assumption 6 and (22) of FAPS for one problem; ``print`` it. See `faps_assumptions`."""

    rho: float
    sigma: float
    reduction: float
    reduction_limit: float
    """(i): sigma / (2 sqrt(rho d))."""
    reduction_limit_in_proof: float
    """(i) as Appendix B uses it: sigma / (4 rho d)."""
    penalties: Array
    omegas: Array
    """Infinite where (i) fails, since the proof divides by sigma - 2 sqrt(rho d) delta."""
    total: float
    """||A||_F^2."""
    distances: Array
    """d_i^(0), the sites' projection distances to Z at the start (21)."""
    distance_limit: float
    """(22): 1 / sqrt(rho d)."""

    @property
    def reduction_holds(self) -> bool:
        """Assumption 6 (i), as the text has it."""
        return self.reduction < self.reduction_limit

    @property
    def penalties_hold(self) -> bool:
        """Assumption 6 (ii)."""
        return bool(np.all(self.penalties >= self.omegas * self.total))

    @property
    def start_holds(self) -> bool:
        """(22)."""
        return bool(np.all(self.distances <= self.distance_limit))

    def __str__(self) -> str:
        short = float(np.max(self.omegas * self.total / self.penalties))
        in_proof = "holds" if self.reduction < self.reduction_limit_in_proof else "fails"
        lines = (
            (
                f"Assumption 6 (i)   {_holds(self.reduction_holds)}  delta = {self.reduction:g} < "
                f"sigma/(2 sqrt(rho d)) = {self.reduction_limit:.3g}; "
                f"Appendix B's sigma/(4 rho d) = {self.reduction_limit_in_proof:.3g} {in_proof}"
            ),
            (
                f"Assumption 6 (ii)  {_holds(self.penalties_hold)}  beta_i >= omega_i ||A||_F^2; "
                f"the largest shortfall is a factor of {short:.3g}"
            ),
            (
                f"(22)               {_holds(self.start_holds)}  d_i <= 1/sqrt(rho d) = {self.distance_limit:.3g}; "
                f"the largest is {float(np.max(self.distances)):.3g}"
            ),
            f"with d = {len(self.penalties)} sites, rho = {self.rho:.3g}, sigma = {self.sigma:.6g}",
        )
        return "\n".join(lines)


def faps_assumptions(
    sites: Sequence[Any],
    *,
    n_components: int,
    penalty: float = 0.15,
    penalties: ArrayLike | None = None,
    reduction: float = 0.1,
    decrease: float = 1e-4,
    curvature: float = 1.0,
    distances: ArrayLike | None = None,
) -> FapsAssumptions:
    """Evaluate Assumption 6 and condition (22) of FAPS on the sites of a run.

    Parameters
    ----------
    sites : sequence of arrays or scipy.sparse matrices of shape (m_i, features)
        The sites' rows as they entered the run: centred, where it centred.
    n_components : int
        The iteration rank, n_components + oversampling.
    penalty : float
        beta_i / ||A_i||_2^2, as `FAPS` begins with it.
    penalties : array of shape (sites,), optional
        The beta_i themselves, where they are known.
    reduction, decrease, curvature : float
        delta, c_1 and c_1' of `FAPS`.
    distances : array of shape (sites,), optional
        d_i^(0); zero where not given, since `FAPS` begins with X_i = Z.

    Examples
    --------
    >>> import numpy as np
    >>> print(faps_assumptions([np.eye(4), np.eye(4)], n_components=2))
    Assumption 6 (i)   holds  delta = 0.1 < sigma/(2 sqrt(rho d)) = 0.306; Appendix B's sigma/(4 rho d) = 0.108 holds
    Assumption 6 (ii)  FAILS  beta_i >= omega_i ||A||_F^2; the largest shortfall is a factor of 2.41e+07
    (22)               holds  d_i <= 1/sqrt(rho d) = 0.707; the largest is 0
    with d = 2 sites, rho = 1, sigma = 0.866025
    """
    rows = [as_rows(site, f"sites[{i}]") for i, site in enumerate(sites)]
    if not rows:
        raise ConfigurationError("FAPS's assumptions are about sites; got none")
    if n_components < 1 or decrease <= 0 or not 0 <= reduction < 1:
        raise ConfigurationError(
            f"n_components is at least 1, decrease more than 0 and reduction in [0, 1); "
            f"got {n_components}, {decrease} and {reduction}"
        )
    betas = _positive(
        "penalties", [penalty * _norm(a) ** 2 for a in rows] if penalties is None else penalties, len(rows)
    )
    start = np.zeros(len(rows)) if distances is None else np.asarray(distances, dtype=np.float64)
    if start.shape != betas.shape or np.any(start < 0):
        raise ConfigurationError(f"distances has one number >= 0 for each of {len(rows)} sites; got {distances!r}")
    rho = float(betas.max() / betas.min())
    spread = rho * len(rows)
    sigma = float(np.sqrt(1 - 1 / (2 * spread)))
    omega = _omega(spread, sigma, n_components, reduction, decrease, curvature)
    return FapsAssumptions(
        rho=rho,
        sigma=sigma,
        reduction=reduction,
        reduction_limit=sigma / (2 * np.sqrt(spread)),
        reduction_limit_in_proof=sigma / (4 * spread),
        penalties=betas,
        omegas=np.full(len(rows), omega),
        total=float(sum(_squares(a) for a in rows)),
        distances=start,
        distance_limit=1 / np.sqrt(spread),
    )


def _omega(spread: float, sigma: float, p: int, delta: float, c1: float, c1_prime: float) -> float:
    """Appendix B's omega_i, with ``spread`` for rho d."""
    left = sigma - 2 * np.sqrt(spread) * delta
    if left <= 0:
        return np.inf
    root = 1 + np.sqrt(2 * spread)
    return float(
        max(
            c1_prime,
            12 * spread * np.sqrt(p) / (c1 * sigma**2),
            4 * np.sqrt(2) * root / left,
            16 * spread * np.sqrt(p),
            4 * root / (c1 * sigma**2 * spread),
        )
    )


def _positive(name: str, values: ArrayLike, count: int) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if array.shape != (count,) or not np.all(array > 0):
        raise ConfigurationError(f"{name} has one number > 0 for each of {count} sites; got {array}")
    return array


def _norm(rows: Any) -> float:
    """||A_i||_2."""
    if min(rows.shape) <= 64 or not scipy.sparse.issparse(rows):
        dense = rows.toarray() if scipy.sparse.issparse(rows) else rows
        return float(np.linalg.norm(dense, 2))
    return float(scipy.sparse.linalg.svds(rows.astype(np.float64), k=1, return_singular_vectors=False)[0])


def _squares(rows: Any) -> float:
    return float(scipy.sparse.linalg.norm(rows) if scipy.sparse.issparse(rows) else np.linalg.norm(rows)) ** 2


def _holds(condition: bool) -> str:
    return "holds" if condition else "FAILS"
