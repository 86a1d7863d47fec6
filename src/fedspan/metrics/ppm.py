"""What PPM (Nicolas et al. 2024) measures and bounds: coherences, convergence, and how tight its sensitivity is.

==================  =====================  ======================================================================
symbol              name here              meaning
==================  =====================  ======================================================================
k, q, p             ``k``, ``q``, ``p``    target, intermediate and iteration rank; k <= q and 2 q <= p <= d
L                   ``rounds``             iterations, `ppm_rounds` by default
mu_0, mu_1          `coherence_max`, `coherence_row_sum`, of all eigenvectors of A
Delta^a, Delta^b    sqrt(p) ||X||_max and max_i ||X_i||: the sensitivity before PPM, and its own (13)
r(k, n)             `sensitivity_ratio`    E Delta^a / E Delta^b at a random start of k columns (18)
==================  =====================  ======================================================================

Where the paper needs care:

- mu_1 >= 1 for every matrix: a row of all eigenvectors has Euclidean norm 1, and its absolute sum is not below that. So
  the min(1, mu_1) of (17) is 1, and the second bound of Theorem 4.1 never helps. (Its proof sums over p terms where
  X = U B has d.)
- At L = 1 the bounds print log(L) = 0. The logarithm stands for a maximum over the rounds: it is taken as at least 1.
- Approximation 5.1 takes a chi-squared variable for a normal one. The maximum of k n of them is then too small, so r is
  conservative, as the paper says itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedspan.errors import ConfigurationError
from fedspan.metrics.subspace import Array

CONSTANTS = "every constant hidden by O() is taken as 1: compare these values, do not certify with them"
_CHUNK = 64  # columns at a time: no second array of the size of Q


# ---- coherence -------------------------------------------------------------------------------------------------


def coherence_max(U: ArrayLike) -> float:
    """Return mu_0 = max_ij |U_ij| (section 2.1); of some of the eigenvectors it is a lower bound.

    >>> coherence_max([[0.6, 0.8], [-0.8, 0.6]])
    0.8
    """
    return float(np.max(np.abs(_vectors(U))))


def coherence_row_sum(U: ArrayLike) -> float:
    """Return mu_1 = max_i sum_j |U_ij| (section 2.1); of some of the eigenvectors it is a lower bound.

    Not defined where eigenvalues repeat, in the null space above all: it depends on the basis taken there.

    >>> coherence_row_sum([[0.6, 0.8], [-0.8, 0.6]])
    1.4
    """
    return float(np.max(np.sum(np.abs(_vectors(U)), axis=1)))


# ---- convergence -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PpmBounds:
    """The errors eta that PPM's theorems give for one problem; see `ppm_bounds`. None where a run was not given."""

    rounds: int
    gap: float  # sigma_k - sigma_{q+1}
    limit: float  # (8): the largest eta the theorems speak of, with tau = 1
    old: float | None  # Theorem 2.4, by ||X_l||_max of the run
    old_independent: float | None  # Theorem 2.4, by mu_0
    new: float | None  # (15), by max_i ||X_i|| of the run
    new_independent: float  # (17)
    why_not: str  # conditions that do not hold
    constants: str = CONSTANTS


def ppm_rounds(values: ArrayLike, *, k: int, q: int, d: int | None = None) -> int:
    """Return L = sigma_k / (sigma_k - sigma_{q+1}) log(d), rounded up; the theorems ask for L of this order.

    >>> ppm_rounds([4.0, 2.0, 1.0, 0.0], k=1, q=1)
    3
    """
    sigma, size = _spectrum(values, d)
    _check_ranks(k, q, len(sigma))
    gap = _gap(sigma, k, q)
    return max(1, math.ceil(float(sigma[k - 1]) / gap * math.log(size)))


def ppm_bounds(
    values: ArrayLike,
    *,
    k: int,
    q: int,
    p: int,
    epsilon: float,
    delta: float,
    rounds: int | None = None,
    d: int | None = None,
    mu_0: float | None = None,
    mu_1: float = 1.0,
    largest_entry: float | None = None,
    largest_row: float | None = None,
) -> PpmBounds:
    """Evaluate Theorem 2.4 (both bounds), (15) and (17) of PPM, **with every hidden constant set to 1**.

    Parameters
    ----------
    values : array
        Eigenvalues of A, largest first: all, or the leading ones (q + 1 at least) with the dimension ``d``.
    k, q, p : int
        Target, intermediate and iteration rank, k <= q and 2 q <= p <= d.
    epsilon, delta : float
        The privacy budget of the whole run.
    rounds : int, optional
        L; `ppm_rounds` where not given.
    mu_0, mu_1 : float
        Coherences of A. mu_1 is never below 1, so 1 serves (17).
    largest_entry, largest_row : float, optional
        max_l ||X_l||_max and max_l max_i ||X_l,i|| of a run, for the two bounds that depend on it.

    Examples
    --------
    >>> found = ppm_bounds([9.0, 8.0, 1.0, 0.5], d=10_000, k=1, q=2, p=4, epsilon=1.0, delta=1e-6, mu_0=0.3)
    >>> found.rounds, round(found.old_independent / found.new_independent, 3)  # mu_0 sqrt(p log d)
    (11, 1.821)
    """
    sigma, size = _spectrum(values, d)
    _check_ranks(k, q, len(sigma))
    if not 2 * q <= p <= size:
        raise ConfigurationError(f"p is {p}, q {q}, d {size}; expected 2 q <= p <= d: raise p, or lower q")
    if not (0 < epsilon < math.inf and 0 < delta < 1):
        raise ConfigurationError(f"epsilon is {epsilon}, delta {delta}; expected epsilon > 0 and 0 < delta < 1")
    taken = ppm_rounds(sigma, k=k, q=q, d=size) if rounds is None else rounds
    if taken < 1:
        raise ConfigurationError(f"rounds is {rounds}; expected at least 1, or None for the theorem's own number")
    gap = _gap(sigma, k, q)
    scale = math.sqrt(taken * size * -math.log(delta) * max(1.0, math.log(taken))) / (epsilon * gap)
    old = math.sqrt(p) * scale
    return PpmBounds(
        rounds=taken,
        gap=gap,
        limit=_limit(sigma, k, q, size),
        old=None if largest_entry is None else largest_entry * old,
        old_independent=None if mu_0 is None else mu_0 * old * math.sqrt(math.log(size)),
        new=None if largest_row is None else largest_row * scale,
        new_independent=min(1.0, mu_1) * scale,
        why_not="; ".join(_doubts(epsilon, delta)),
    )


def _doubts(epsilon: float, delta: float) -> list[str]:
    doubts = []
    if epsilon >= 1:
        doubts.append(f"epsilon is {epsilon:g}, and Theorem 2.4 is stated for epsilon < 1")
    if -math.log(delta) < (2 + math.sqrt(2)) / 8 * epsilon:
        doubts.append(f"delta is {delta:g}, and PPM's noise is proven for delta <= exp(-0.42678 epsilon)")
    return doubts


def _limit(sigma: Array, k: int, q: int, d: int) -> float:
    """(8), with tau = 1: sigma_q / sigma_k times the lesser of 1/log(sigma_k/sigma_q) and 1/log(d)."""
    if sigma[q - 1] <= 0:
        return 0.0
    ratio = float(sigma[k - 1] / sigma[q - 1])
    return 1 / (ratio * max(math.log(ratio), math.log(d)))


# ---- how tight -------------------------------------------------------------------------------------------------


def sensitivity_ratio(k: int, n: int) -> float:
    """Return r(k, n) by Approximation 5.1, (19) and (20): the old sensitivity of a random start over PPM's.

    >>> sensitivity_ratio(64, 8000)
    2.172
    """
    _check_start(k, n, 5)
    mean = n / (n - 2)
    variance = 2 * n**2 * (n - 1) / ((n - 2) ** 2 * (n - 4))
    old = math.sqrt(2 * variance * math.log(k * n) * k**2 / n**2) + k * mean / n
    new = math.sqrt(2 * variance * math.log(n) * k / n**2) + k * mean / n
    return math.sqrt(old / new)


def sensitivity_ratio_measured(k: int, n: int, runs: int, rng: np.random.Generator) -> float:
    """Return r(k, n) over random starts: the mean of Delta^a over the mean of Delta^b (18).

    >>> import numpy as np
    >>> 2 < sensitivity_ratio_measured(16, 500, 5, np.random.default_rng(0)) < 3
    True
    """
    old, new = start_sensitivities([k], n, runs, rng)
    return float(old.mean() / new.mean())


def start_sensitivities(ks: Sequence[int], n: int, runs: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return Delta^a and Delta^b of random starts of n rows and k columns, for every run (rows) and k (columns).

    Each run draws one start of the largest k. Its leading k columns are the start of k columns: the Q of the leading
    columns is Q's leading columns.
    """
    for k in ks:
        _check_start(k, n, 1)
    if runs < 1 or not ks:
        raise ConfigurationError(f"runs is {runs}, for {len(ks)} values of k; expected at least one of each")
    old, new = np.empty((runs, len(ks))), np.empty((runs, len(ks)))
    for run in range(runs):
        start = np.linalg.qr(rng.standard_normal((n, max(ks))))[0]
        for at, (entry, row) in _leading_maxima(start, ks).items():
            old[run, at], new[run, at] = math.sqrt(ks[at]) * entry, row
    return old, new


def _leading_maxima(start: Array, ks: Sequence[int]) -> dict[int, tuple[float, float]]:
    """Return ||X||_max and max_i ||X_i|| of the leading k columns, by k's place in ``ks``."""
    squares, entry, done, found = np.zeros(len(start)), 0.0, 0, {}
    for at in np.argsort(ks):
        while done < ks[at]:
            part = start[:, done : min(done + _CHUNK, ks[at])] ** 2
            squares += part.sum(axis=1)
            entry = max(entry, float(part.max()))
            done += part.shape[1]
        found[int(at)] = math.sqrt(entry), math.sqrt(float(squares.max()))
    return found


# ---- checks ----------------------------------------------------------------------------------------------------


def _vectors(U: ArrayLike) -> Array:
    array = np.asarray(U, dtype=np.float64)
    if array.ndim != 2 or array.size == 0:
        raise ConfigurationError(f"U has shape {array.shape}; expected a matrix with an eigenvector in each column")
    return array


def _spectrum(values: ArrayLike, d: int | None) -> tuple[Array, int]:
    sigma = np.asarray(values, dtype=np.float64)
    if sigma.ndim != 1 or not np.all(np.isfinite(sigma)) or np.any(np.diff(sigma) > 0) or np.any(sigma < 0):
        raise ConfigurationError("values holds the eigenvalues of A, largest first, none below 0; sort or clip them")
    size = len(sigma) if d is None else d
    if size < max(2, len(sigma)):
        raise ConfigurationError(f"d is {size} with {len(sigma)} eigenvalues; expected d >= their number, and >= 2")
    return sigma, size


def _gap(sigma: Array, k: int, q: int) -> float:
    gap = float(sigma[k - 1] - sigma[q])
    if gap <= 0:
        raise ConfigurationError(
            f"sigma_{k} equals sigma_{q + 1}; the theorems need a gap: choose another k, or a larger q"
        )
    return gap


def _check_ranks(k: int, q: int, known: int) -> None:
    if not 1 <= k <= q < known:
        raise ConfigurationError(
            f"k is {k}, q {q}, with {known} eigenvalues; expected 1 <= k <= q, and sigma_(q+1) among them"
        )


def _check_start(k: int, n: int, least: int) -> None:
    if not (1 <= k <= n and n >= least):
        raise ConfigurationError(f"k is {k}, n {n}; expected 1 <= k <= n, and n at least {least}")
