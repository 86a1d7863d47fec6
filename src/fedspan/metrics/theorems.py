"""FedPower's Theorems 1, 5, 6, 8 and 9 as formulas; `fedspan.metrics.bounds` lists the choices made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedspan.errors import ConfigurationError
from fedspan.metrics.subspace import Array, principal_angles


@dataclass(frozen=True)
class PowerBound:
    """Theorem 1: how many iterations the distributed power method needs for ``target``."""

    target: float
    iterations: float  # sigma_k / (sigma_k - sigma_{k+1}) log(d / target), as Lemma 18
    iterations_published: float  # sigma_k / sigma_{k+1} log(d / target), as printed
    applies: bool
    why_not: str


@dataclass(frozen=True)
class ResidualBound:
    """Theorem 6: the largest residual error rho_t between two communications."""

    with_alignment: float  # (3.6), orthogonal Procrustes
    without_alignment: float  # (3.7)
    delta_k: float
    gamma_k: float
    c_t: float
    applies: bool
    why_not: str


@dataclass(frozen=True)
class ErrorBound:
    """Theorem 5, 8 or 9: a bound on sin theta_k between the output and the leading k eigenvectors."""

    theorem: int
    noise: float  # I_1, from the Gaussian noise
    local: float  # I_2, from the local steps
    sampling: float  # I_3, from asking K of m sites; 0 in Theorem 5
    imbalance: float  # I_4, from uneven sites; Theorem 9 only
    error: float  # their sum
    noise_scale: float  # sigma of the theorem; 0 without privacy
    iterations: float
    iterations_published: float
    applies: bool
    why_not: str


@dataclass(frozen=True)
class Problem:
    """The spectrum and the settings that all theorems share."""

    sigma: Array
    k: int
    r: int
    local_steps: int
    iterations: int
    sizes: Array
    eta: float
    epsilon: float | None
    delta: float | None

    @property
    def d(self) -> int:
        return len(self.sigma)

    @property
    def shares(self) -> Array:
        return np.asarray(self.sizes / self.sizes.sum())

    @property
    def rounds(self) -> int:
        return self.iterations // self.local_steps

    @property
    def gap(self) -> float:
        return float(self.sigma[self.k - 1] - self.sigma[self.k])

    @property
    def kappa(self) -> float:
        nonzero = self.sigma[self.sigma > self.d * np.finfo(np.float64).eps * self.sigma[0]]
        return float(nonzero[0] / nonzero[-1])

    def noise_scale(self, chance: float = 1.0) -> float:
        """Noise sigma of Algorithms 2 and 3; ``chance`` is the largest probability q_i of being asked."""
        if self.epsilon is None or self.delta is None:
            return 0.0
        ratio = 1.25 * self.rounds * chance / self.delta
        if ratio <= 1:
            raise ConfigurationError(
                f"delta is {self.delta:g}; the noise of Algorithm 3 needs a delta below {1.25 * self.rounds * chance:g}"
            )
        return self.rounds / (self.epsilon * float(self.sizes.min())) * math.sqrt(2 * math.log(ratio))

    def spread(self) -> float:
        """Norm of a Gaussian matrix, sqrt(r) (sqrt(d) + sqrt(log floor(T/p))), as (3.4) bounds it."""
        return math.sqrt(self.r) * (math.sqrt(self.d) + math.sqrt(math.log(self.rounds)))

    def drift(self, rho: float) -> float:
        """sigma_1 (eta + (2 + eta) rho) of (3.5), (3.9) and (3.12)."""
        return float(self.sigma[0]) * (self.eta + (2 + self.eta) * rho)

    def needed(self, error: float) -> tuple[float, float]:
        """Iterations for ``error``: by Lemma 12, and as the theorems print them."""
        top, below = float(self.sigma[self.k - 1]), float(self.sigma[self.k])
        if not 0 < error < math.inf:
            return math.inf, math.inf
        logarithm = max(0.0, math.log(self.d / error))
        by_gap = top / self.gap * logarithm if self.gap > 0 else math.inf
        return by_gap, top / below * logarithm if below > 0 else math.inf


def theorem_1(problem: Problem, target: float) -> PowerBound:
    """Iterations of the distributed power method for the error ``target``."""
    doubts = []
    if problem.gap <= 0:
        doubts.append("there is no gap: sigma_k equals sigma_{k+1}")
    if problem.sigma[problem.k] <= 0:
        doubts.append("sigma_{k+1} is 0: the theorem asks for more, though one iteration then suffices")
    return PowerBound(target, *problem.needed(target), applies=not doubts, why_not="; ".join(doubts))


def theorem_5(problem: Problem, rho: float, doubts: Sequence[str]) -> ErrorBound:
    """Full participation: (3.4) and (3.5)."""
    shares, scale = problem.shares, problem.noise_scale()
    margin = 1 - (1 - float(shares.max())) * rho
    noise = scale * math.sqrt(float(np.sum(shares**2))) * problem.spread()
    return _error_bound(5, problem, margin, scale, (noise, problem.drift(rho), 0.0, 0.0), doubts)


def lemma_14(
    sigma: Array, leading: Array, spectra: Sequence[tuple[Array, Array]], k: int
) -> tuple[float, float, float]:
    """delta_k, gamma_k and the limit of C_t, from the spectra of M and of all M_i."""
    delta_k = min(float(np.abs(values[k:] - sigma[k - 1]).min()) for values, _ in spectra)
    # A site without k directions of its own never contracts: ratio 1.
    ratios = [values[k] / values[k - 1] if values[k - 1] > 0 else 1.0 for values in (sigma, *(v for v, _ in spectra))]
    largest = [principal_angles(leading[:, :k], vectors[:, :k])[-1] for _, vectors in spectra]
    return delta_k, float(max(ratios)), float(np.tan(max(largest)))


def theorem_6(problem: Problem, delta_k: float, gamma_k: float, c_t: float, steps: int) -> tuple[float, float]:
    """The bounds (3.6), with Procrustes alignment, and (3.7), without, ``steps`` after a communication."""
    with np.errstate(over="ignore"):  # kappa^p may overflow: an infinite bound is still true
        power = float(np.float64(problem.kappa) ** steps)
    growth = power * steps * problem.eta if problem.eta > 0 else 0.0
    apart = problem.eta * float(problem.sigma[0]) / delta_k if delta_k > 0 else math.inf
    with_alignment = min(2 * math.e**2 * growth, apart + 2 * gamma_k ** (steps / 4) * c_t)
    return with_alignment, 4 * math.e * math.sqrt(problem.k) * growth


def eta_doubts(problem: Problem) -> list[str]:
    """The conditions of Theorem 6 on eta that fail, in words."""
    doubts = []
    if problem.eta > 1 / problem.local_steps:
        doubts.append(f"eta = {problem.eta:.3g} is above 1/p = {1 / problem.local_steps:.3g} (Theorem 6)")
    if problem.eta * problem.kappa > 1 / 3:
        doubts.append(f"eta kappa = {problem.eta * problem.kappa:.3g} is above 1/3 (Theorem 6)")
    return doubts


def theorem_8(problem: Problem, rho: float, participants: int, doubts: Sequence[str]) -> ErrorBound:
    """Scheme 1, sites drawn by size with replacement: (3.8) to (3.10)."""
    shares = problem.shares
    scale = problem.noise_scale(float(shares.max()))
    noise = scale / math.sqrt(participants) * problem.spread()
    sampling = float(problem.sigma[0]) * phi(shares, participants) * _sampling_logs(problem)
    return _error_bound(8, problem, 1 - rho, scale, (noise, problem.drift(rho), sampling, 0.0), doubts)


def theorem_9(problem: Problem, rho: float, participants: int, doubts: Sequence[str]) -> ErrorBound:
    """Scheme 2, sites drawn evenly without replacement: (3.11) to (3.14)."""
    ordered, ratio = np.sort(problem.shares), len(problem.shares) / participants
    # The extremes over all cohorts of K sites are reached by the K smallest and the K largest.
    lightest = float(ordered[:participants].sum())
    heaviest = float(ordered[-participants:].sum())
    squares = float(np.sum(ordered[-participants:] ** 2))
    scale = problem.noise_scale(1 / len(ordered))
    common = max(ratio * heaviest, 1.0)
    terms = (
        common * math.sqrt(squares) * ratio * scale * problem.spread(),
        common * ratio * heaviest * problem.drift(rho),
        common * float(problem.sigma[0]) * psi(ordered, participants) * _sampling_logs(problem),
        heaviest * float(problem.sigma[0]) * ratio * abs(ratio * heaviest - 1),
    )
    return _error_bound(9, problem, ratio * (lightest - heaviest * rho), scale, terms, doubts)


def phi(shares: Array, participants: int) -> float:
    """phi(K) under (3.10); the sum over pairs i != j of p_i p_j is 1 - sum p_i^2."""
    squares = float(np.sum(shares**2))
    return (1 - squares) / participants + squares + 1 / participants


def psi(shares: Array, participants: int) -> float:
    """psi(K) under (3.14)."""
    squares = float(np.sum(shares**2))
    return (1 - squares) / participants + squares + len(shares) / participants * squares


def _sampling_logs(problem: Problem) -> float:
    return math.log(problem.d + problem.r) + math.log(problem.rounds)


def _error_bound(
    theorem: int,
    problem: Problem,
    margin: float,
    noise_scale: float,
    perturbations: tuple[float, float, float, float],
    inherited: Sequence[str],
) -> ErrorBound:
    """Divide the perturbations by the gap and by the least singular value of the mean basis, and judge."""
    doubts = list(inherited)
    terms = (math.inf,) * 4
    if problem.gap <= 0:
        doubts.append("there is no gap: sigma_k equals sigma_{k+1}")
    elif margin <= 0:
        doubts.append("the residual error is too large: the mean of the sites' bases may lose rank")
    else:
        noise, local, sampling, imbalance = (value / (problem.gap * margin) for value in perturbations)
        terms = (noise, local, sampling, imbalance)
    error = sum(terms)
    limit = min(0.5, (math.sqrt(problem.r) - math.sqrt(problem.k - 1)) / math.sqrt(problem.d))
    if error > limit:
        doubts.append(f"its error {error:.3g} is above min(1/2, (sqrt r - sqrt(k-1))/sqrt d) = {limit:.3g}")
    needed, published = problem.needed(error)
    if 0 < error <= limit and problem.iterations < needed:
        doubts.append(f"T = {problem.iterations} iterations are fewer than the {needed:.0f} it needs")
    return ErrorBound(
        theorem,
        *terms,
        error=error,
        noise_scale=noise_scale,
        iterations=needed,
        iterations_published=published,
        applies=not doubts,
        why_not="; ".join(doubts),
    )
