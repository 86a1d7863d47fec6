"""FPCA's theorems and lemmas as formulas; `fedspan.metrics.fpca` has the symbols and the choices made."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from fedspan.errors import ConfigurationError
from fedspan.metrics.subspace import Array

_LARGEST = 700.0  # exp of it is near the largest float
_NOISELESS = "noise was added to the summaries, and it has no place for that: see Theorem 2"


@dataclass(frozen=True)
class StreamBound:
    """Theorem 1: what one site's stream of blocks loses, for independent Gaussian rows of mean zero."""

    eta: float  # (11)
    exponent: float  # p eta^2 - 1: the bound grows with that power of the number of blocks
    empirical: float  # G, on ||Y - Y^||_F^2 / tau
    population: float  # G + alpha (d - r) lambda_1 sqrt(log(tau) / tau), on E ||y - P_U y||^2
    asymptotic: float  # (12), on ||Y - P_U Y||_F^2: (tau / b)^exponent rho_r^2(Y)
    failure: float  # tau^(-c alpha^2) + e^(-c alpha r), the probability that it does NOT hold
    block_needed: float  # the least b
    rows_needed: float  # the least tau, p eta^2 b; below it G is taken as infinite
    vacuous: bool  # G is not below the total variance, or failure not below 1
    applies: bool
    why_not: str


@dataclass(frozen=True)
class MergeBound:
    """Lemma 11, Theorem 2 or 3: a bound on ||U S - Y B||_F, the best unitary B taken."""

    statement: str
    factor: float  # of rho_r(Y)
    error: float  # the bound as printed
    sharper: float  # holds as well; ours, see `fedspan.metrics.fpca`
    vacuous: bool  # error is not below ||Y||_F, which U S = 0 has
    applies: bool
    why_not: str


@dataclass(frozen=True)
class RankBracket:
    """Inequality (16): the error of a run whose rank stayed between r_min and r_max."""

    r_min: int
    r_max: int
    low: float  # rho_{r_max}: holds for whatever pair of that rank
    high: float  # rho_{r_min}: proven for the best pair of that rank
    certain: float  # sqrt(truncations) rho_{r_min}: proven for the streamed pair
    applies: bool
    why_not: str


@dataclass(frozen=True)
class CorrelationBound:
    """Lemma 8: for some data set, E |<v_1, v^_1>| is at most ``correlation``."""

    correlation: float  # never below 3/4, whatever the noise
    phi: float  # where the minimum is
    vacuous: bool  # correlation rounds to 1
    applies: bool
    why_not: str


@dataclass(frozen=True)
class SampleBound:
    """Lemma 9: rows that streaming MOD-SuLQ needs for a correlation, with the noise (17) and for some data set."""

    rows: float
    vacuous: bool  # the lemma asks for no rows: the correlation is at most 1 - 1/C2
    applies: bool
    why_not: str


@dataclass(frozen=True)
class Problem:
    """The spectrum of the pooled rows, and how the summaries travelled."""

    values: Array  # singular values of X, largest first
    d: int
    r: int
    depth: int
    blocks: int
    noise: float

    @property
    def total(self) -> float:
        return float(np.linalg.norm(self.values))

    @property
    def truncations(self) -> int:
        """Cuts to rank r between a row and the root: one for each block of a site, one for each merge."""
        return self.blocks + self.depth

    def residual(self, r: int) -> float:
        """rho_r(Y): the root of the sum of sigma_i^2 over i > r."""
        return float(np.linalg.norm(self.values[r:]))


# ---- Theorem 1 -------------------------------------------------------------------------------------------------


def theorem_1(problem: Problem, rows: int, block_rows: int, p: float, alpha: float, c: float) -> StreamBound:
    """(11), G, the population's bound and (12), with lambda_i = sigma_i^2 / tau."""
    r, lambdas = problem.r, problem.values**2 / rows
    top, rest = float(lambdas[0]), float(lambdas[r:].sum())
    least = float(lambdas[r - 1])
    eta = top / least + math.sqrt(2 * alpha * rest / (math.cbrt(p) * least)) if least > 0 else math.inf
    exponent = p * eta * eta - 1
    rows_needed = (exponent + 1) * block_rows
    smaller = min(top / least * rest, r * top + rest) if rest > 0 else 0.0
    log_g = math.log(alpha) + math.log(p) / 3 - 2 * math.log(math.expm1(math.log(p) / 3))
    log_g += (exponent + 1) * math.log(4) + _log_power(rows / rows_needed, exponent)
    empirical = _scaled(smaller, log_g if rows >= rows_needed else math.inf)
    failure = rows ** (-c * alpha * alpha) + math.exp(-c * alpha * r)
    block_needed = alpha * r * max(math.cbrt(p) / math.expm1(math.log(p) / 6) ** 2, c)
    doubts = [] if least > 0 else [f"lambda_{r} is 0, so eta is infinite: the stream is exact, and needs no bound"]
    if alpha > math.sqrt(rows / math.log(rows)):
        doubts.append(f"alpha is {alpha:g}, above sqrt(tau / log tau) = {math.sqrt(rows / math.log(rows)):.3g}")
    if block_rows < block_needed:
        doubts.append(f"blocks of {block_rows} rows are below the {math.ceil(block_needed)} that it asks for")
    if rows < rows_needed:
        doubts.append(f"tau = {rows} is below p eta^2 b = {rows_needed:.3g}, and there G is no bound")
    return StreamBound(
        eta=eta,
        exponent=exponent,
        empirical=empirical,
        population=empirical + alpha * (problem.d - r) * top * math.sqrt(math.log(rows) / rows),
        asymptotic=_scaled(rest * rows, _log_power(rows / block_rows, exponent)),
        failure=failure,
        block_needed=block_needed,
        rows_needed=rows_needed,
        vacuous=empirical >= float(lambdas.sum()) or failure >= 1,
        applies=not doubts,
        why_not="; ".join(doubts),
    )


def _log_power(base: float, exponent: float) -> float:
    """Return log(base^exponent); an infinite exponent counts as such for every base."""
    return exponent * math.log(base) if math.isfinite(exponent) else math.inf


def _scaled(value: float, log_factor: float) -> float:
    if value == 0:
        return 0.0
    return math.inf if log_factor > _LARGEST else value * math.exp(log_factor)


# ---- merges ----------------------------------------------------------------------------------------------------


def lemma_11(problem: Problem) -> MergeBound:
    """Bound one merge: ||(Z)_r - Y||_F <= 3 rho_r(Y)."""
    rho, doubts = problem.residual(problem.r), _one_merge(problem)
    if problem.noise:
        doubts.append(_NOISELESS)
    return _merge_bound("Lemma 11", problem, 3.0, 3 * rho, math.sqrt(2) * rho, doubts)


def theorem_2(problem: Problem) -> MergeBound:
    """Bound one merge of summaries to which Psi was added."""
    rho, noise = problem.residual(problem.r), (1 + math.sqrt(2)) * problem.noise
    factor, sharper = 3 * math.sqrt(2), math.sqrt(2) * rho + noise
    return _merge_bound("Theorem 2", problem, factor, factor * rho + noise, sharper, _one_merge(problem))


def theorem_3(problem: Problem) -> MergeBound:
    """Bound a tree of q levels of merges: ((1 + sqrt 2)^(q+1) - 1) rho_r(Y)."""
    rho, exponent = problem.residual(problem.r), (problem.depth + 1) * math.asinh(1.0)  # log(1 + sqrt 2)
    factor = math.expm1(exponent) if exponent < _LARGEST else math.inf
    doubts = [_NOISELESS] if problem.noise else []
    if problem.depth == 0:
        doubts.append("it asks for q >= 1, and nothing is merged")
    if problem.blocks > 1:
        doubts.append(
            f"a site folds {problem.blocks} blocks, and the theorem takes its pair for the SVD of all its rows; "
            f"counted as levels of the tree they make depth {problem.truncations - 1}"
        )
    error = factor * rho if rho > 0 else 0.0
    return _merge_bound("Theorem 3", problem, factor, error, math.sqrt(problem.truncations) * rho, doubts)


def inequality_16(problem: Problem, r_min: int, r_max: int) -> RankBracket:
    """Bracket the error of a run of adaptive rank."""
    high, doubts = problem.residual(r_min), []
    if problem.truncations > 1:
        doubts.append(
            f"high is proven for the best pair of rank r_min; this one was cut {problem.truncations} times on its way"
        )
    return RankBracket(
        r_min,
        r_max,
        low=problem.residual(r_max),
        high=high,
        certain=math.sqrt(problem.truncations) * high,
        applies=not doubts,
        why_not="; ".join(doubts),
    )


def _one_merge(problem: Problem) -> list[str]:
    doubts = []
    if problem.depth != 1:
        doubts.append(f"it is about one level of merges, and depth is {problem.depth}: see Theorem 3")
    if problem.blocks > 1:
        doubts.append(f"it takes a site's pair for the SVD of all its rows, and a site folds {problem.blocks} blocks")
    return doubts


def _merge_bound(
    statement: str, problem: Problem, factor: float, error: float, sharper: float, doubts: list[str]
) -> MergeBound:
    vacuous = error >= problem.total
    return MergeBound(statement, factor, error, sharper, vacuous, applies=not doubts, why_not="; ".join(doubts))


# ---- privacy ---------------------------------------------------------------------------------------------------


def fpca_correlation(d: int, omega: float) -> CorrelationBound:
    """Return Lemma 8's bound on E |<v_1, v^_1>| of streaming MOD-SuLQ, for a worst data set: (37), minimised over (38).

    ``omega`` is the deviation of the noise on the covariance of rows of norm 1;
    `fedspan.privacy.published.streaming_mod_sulq_omega` is the paper's.

    >>> fpca_correlation(784, 0.3786).correlation  # (17) for MNIST at epsilon 1, delta 1e-6
    0.8826
    >>> fpca_correlation(784, 1e6).correlation  # nothing but noise
    0.8194
    """
    if d < 2 or not 0 < omega < math.inf:
        raise ConfigurationError(f"d is {d}, omega {omega}; Lemma 8 needs d >= 2 and a finite omega above 0")
    # With phi = sqrt(1 - e^(-2u)) and w = (d-1) u - log 8 it is 1 - (1-phi)/4 (1 - a/w)^2. In v = w - a its derivative
    # has the sign of (1 + 1/phi) v (v + a) - 2 (d-1) a, which changes once, from below to above 0. (38) is v >= 0 and
    # two lower bounds, (2 pi d)^(-1/2) and (39), that the minimum satisfies by itself.
    a = 1 / omega / omega + math.log(2)

    def u(v: float) -> float:
        return (v + a + math.log(8)) / (d - 1)

    def slope(v: float) -> float:
        return (1 + 1 / _phi(u(v))) * v * (v + a) - 2 * (d - 1) * a

    if 2 * u(0) > _LARGEST:  # 1 - phi underflows
        return CorrelationBound(1.0, 1.0, vacuous=True, applies=True, why_not="")
    v = brentq(slope, 0, 4 * (d - 1) / (1 + math.sqrt(1 + 4 * (d - 1) / a)))  # twice the v with v (v + a) = (d-1) a
    phi = _phi(u(v))
    gain = math.exp(-2 * u(v)) / (1 + phi) / 4 * (v / (v + a)) ** 2  # 1 - phi without cancellation
    return CorrelationBound(1 - gain, phi, vacuous=1 - gain == 1, applies=True, why_not="")


def _phi(u: float) -> float:
    return math.sqrt(-math.expm1(-2 * u))


def fpca_rows(
    d: int, *, epsilon: float, delta: float, correlation: float, c1: float = 1.0, c2: float = 16.0
) -> SampleBound:
    """Return Lemma 9's rows: streaming MOD-SuLQ, noise (17), needs so many for E |<v_1, v^_1>| = ``correlation``.

    C1 d^(3/2) sqrt(log(d/delta)) / epsilon (1 - C2 (1 - correlation)) (51). Necessary, not enough.

    >>> fpca_rows(784, epsilon=1.0, delta=1e-6, correlation=0.99).rows
    83448.3
    """
    if not (d >= 1 and 0 < epsilon < math.inf and 0 < delta < 1 and 0 <= correlation <= 1 and c1 > 0 and c2 > 0):
        raise ConfigurationError(
            f"d is {d}, epsilon {epsilon}, delta {delta}, correlation {correlation}, c1 {c1}, c2 {c2}; expected "
            "d >= 1, epsilon, c1 and c2 above 0, 0 < delta < 1 and 0 <= correlation <= 1"
        )
    share = 1 - c2 * (1 - correlation)
    rows = c1 * d**1.5 * math.sqrt(math.log(d / delta)) / epsilon * max(0.0, share)
    return SampleBound(rows, vacuous=share <= 0, applies=True, why_not="")
