"""The convergence bounds of FedPower (Guo et al.), evaluated on a given problem.

==========  ==================  ==========================================================================
symbol      name here           meaning
==========  ==================  ==========================================================================
M, M_i      (Gram matrices)     A'A/n and A_i'A_i/s_i
eta         ``eta``             max_i ||M_i - M|| / ||M||, Assumption 1
kappa       ``kappa``           ||M|| ||M^+||, the ratio of the extreme non-zero eigenvalues
sigma_k     ``sigma[k - 1]``    eigenvalues of M, largest first
p           ``local_steps``     power steps between two communications
T, K, m     ``iterations``, ``participants``, number of sites
rho_t       ``rho``             residual error (3.3); its largest value over t
I_1 .. I_4  ``noise``, ``local``, ``sampling``, ``imbalance`` of an `ErrorBound`
==========  ==================  ==========================================================================

Choices made where the paper leaves room:

- Every constant hidden by O(), asymp or lesssim is 1. The values order problems; they are not certificates.
- Theorem 6 defines its p as t - tau(t), the steps since the last communication. Between communications that
  is 1 .. local_steps - 1, so the largest rho_t is the largest of the bound over these; with local_steps = 1
  the sites never part and rho is 0.
- delta_k and gamma_k are those of the proof (Lemma 14): delta_k is the least |sigma_j(M_i) - sigma_k(M)| over
  sites i and j > k, gamma_k the largest sigma_{k+1}/sigma_k over M and all M_i. The proof's C_t, which is
  max_i tan theta_k(Z_tau(t), V_k^(i)), depends on the run; we take the limit that the proof gives it for
  large t, max_i tan theta_k(V_k, V_k^(i)).
- Lemma 14 has a factor sqrt(2) on (3.6), and Lemma 15 on (3.7), that Theorem 6 does not print; its second
  branch is proven for iteration rank r = k. We evaluate the theorem as printed.
- Theorems 1, 5, 8 and 9 print T = O(sigma_k/sigma_{k+1} log(d/eps)), which grows with the gap; Lemmas 12 and
  18, from which they follow, have sigma_k/(sigma_k - sigma_{k+1}). Both are reported, `iterations_published`
  and `iterations`; the ``applies`` flags use the latter.
- With local_steps = 1 the paper needs no Assumption 1 (section 3.3), yet (3.5) keeps its term sigma_1 eta.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedspan.errors import ConfigurationError
from fedspan.metrics.local import Align, approximation_level, check_align, mean_covariance, site_covariances
from fedspan.metrics.subspace import Array
from fedspan.metrics.theorems import (
    ErrorBound,
    PowerBound,
    Problem,
    ResidualBound,
    eta_doubts,
    lemma_14,
    theorem_1,
    theorem_5,
    theorem_6,
    theorem_8,
    theorem_9,
)

CONSTANTS = "every constant hidden by O() is taken as 1: compare these values, do not certify with them"


@dataclass(frozen=True)
class Bounds:
    """What FedPower's theorems say about one problem; see `bounds`."""

    eta: float
    kappa: float
    gap: float  # sigma_k - sigma_{k+1}
    sigma_1: float
    rho: float  # the residual error used in Theorems 5, 8 and 9
    theorem_1: PowerBound
    theorem_5: ErrorBound
    theorem_6: ResidualBound
    theorem_8: ErrorBound | None  # None without participants
    theorem_9: ErrorBound | None
    constants: str = CONSTANTS


def bounds(
    *,
    k: int,
    local_steps: int,
    iterations: int,
    sites: Sequence[Any] | None = None,
    grams: Sequence[ArrayLike] | None = None,
    sizes: ArrayLike | None = None,
    rank: int | None = None,
    participants: int | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    align: Align = "procrustes",
    rho: float | None = None,
    target: float = 1e-2,
) -> Bounds:
    """Evaluate Theorems 1, 5, 6, 8 and 9 of FedPower, **with every hidden constant set to 1**.

    Parameters
    ----------
    k : int
        Target rank, below the dimension d.
    local_steps, iterations : int
        p and T: a communication every p of T power steps.
    sites : sequence of arrays of shape (s_i, d), optional
        The sites' rows; or ``grams``, their M_i = A_i'A_i/s_i, with ``sizes``, their row counts s_i.
    grams, sizes : sequences, optional
        See ``sites``.
    rank : int, optional
        Iteration rank r; k where not given.
    participants : int, optional
        K sites asked in a round, for Theorems 8 (drawn by size, with replacement) and 9 (drawn evenly).
    epsilon, delta : float, optional
        Privacy budget of Algorithms 2 and 3; neither means no noise.
    align : {"procrustes", "sign", None}
        Which bound on rho_t to use: (3.6) for Procrustes, (3.7) otherwise. The paper proves nothing for sign
        fixing; its signs include the identity, so (3.7) is the nearest statement.
    rho : float, optional
        The largest residual error measured in a run, in place of Theorem 6.
    target : float
        The error asked of Theorem 1.

    Returns
    -------
    Bounds
        Each theorem carries ``applies`` and, in words, ``why_not``.

    Examples
    --------
    >>> import numpy as np
    >>> grams = [np.diag([4.01, 1.0]), np.diag([3.99, 1.0])]
    >>> found = bounds(grams=grams, sizes=[100, 100], k=1, local_steps=1, iterations=20)
    >>> found.eta, found.kappa, found.gap
    (0.0025, 4.0, 3.0)
    >>> found.theorem_5.error, found.theorem_5.applies
    (0.00333, True)
    """
    check_align(align)
    covariances, counts = site_covariances(grams, sizes, sites)
    sigma, leading = _eigen(mean_covariance(covariances, counts / counts.sum()))
    r = k if rank is None else rank
    _check_ranks(k, r, len(sigma))
    _check_schedule(local_steps, iterations, participants, len(counts))
    _check_privacy(epsilon, delta)
    _check_levels(rho, target)
    eta = approximation_level(covariances, counts / counts.sum())
    problem = Problem(sigma, k, r, local_steps, iterations, counts, eta, epsilon, delta)
    spectra = [_eigen(m) for m in covariances]
    constants = lemma_14(sigma, leading, spectra, k)
    residual = [theorem_6(problem, *constants, steps) for steps in range(1, local_steps)]
    aligned = max((a for a, _ in residual), default=0.0)
    plain = max((b for _, b in residual), default=0.0)
    used = rho if rho is not None else aligned if align == "procrustes" else plain
    doubts = eta_doubts(problem)
    inherited = [] if rho is not None or local_steps == 1 else doubts
    full = theorem_5(problem, used, inherited)
    if not full.applies:
        doubts = [*doubts, "Theorem 5 does not apply, so its error is not known to be small"]
    asked = participants is not None
    return Bounds(
        eta=eta,
        kappa=problem.kappa,
        gap=problem.gap,
        sigma_1=float(sigma[0]),
        rho=used,
        theorem_1=theorem_1(problem, target),
        theorem_5=full,
        theorem_6=ResidualBound(aligned, plain, *constants, applies=not doubts, why_not="; ".join(doubts)),
        theorem_8=theorem_8(problem, used, participants or 0, inherited) if asked else None,
        theorem_9=theorem_9(problem, used, participants or 0, inherited) if asked else None,
    )


def _eigen(covariance: Array) -> tuple[Array, Array]:
    """Eigenvalues, largest first and never below 0, with their vectors."""
    values, vectors = np.linalg.eigh(covariance)
    return np.maximum(values[::-1], 0.0), vectors[:, ::-1]


def _check_ranks(k: int, r: int, d: int) -> None:
    if not 1 <= k < d:
        raise ConfigurationError(
            f"k is {k} in dimension {d}; the theorems compare sigma_k with sigma_(k+1): 1 <= k < d"
        )
    if not k <= r <= d:
        raise ConfigurationError(f"rank is {r}, k is {k}, d is {d}; expected k <= rank <= d")


def _check_schedule(local_steps: int, iterations: int, participants: int | None, n_sites: int) -> None:
    if not 1 <= local_steps <= iterations:
        raise ConfigurationError(
            f"local_steps is {local_steps}, iterations {iterations}; expected "
            "1 <= local_steps <= iterations, so that the sites communicate at least once"
        )
    if participants is not None and not 1 <= participants <= n_sites:
        raise ConfigurationError(f"participants is {participants}; expected 1 to {n_sites}, the number of sites")


def _check_privacy(epsilon: float | None, delta: float | None) -> None:
    if (epsilon is None) != (delta is None):
        raise ConfigurationError(f"epsilon is {epsilon}, delta {delta}; give both, or neither for no noise")
    if epsilon is not None and delta is not None and not (epsilon > 0 and 0 < delta < 1):
        raise ConfigurationError(f"epsilon is {epsilon}, delta {delta}; expected epsilon > 0 and 0 < delta < 1")


def _check_levels(rho: float | None, target: float) -> None:
    if not target > 0 or (rho is not None and rho < 0):
        raise ConfigurationError(f"target is {target}, rho {rho}; expected target > 0 and rho >= 0 or None")
