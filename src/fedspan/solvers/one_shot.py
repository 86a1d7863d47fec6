"""One-shot rivals (FedPower, App. F): UDA (Alg. 4), WDA (Alg. 5) and distributed randomised SVD (Alg. 6).

UDA is Fan et al. (2019), WDA Bhaskara and Wijewardena (2019). Both send one d x k basis from each site (8 d k bytes,
WDA 8 k more) for a question of 16 bytes, and take a last Ritz round for the values. The average of projectors is
never formed: its leading eigenvectors are left singular vectors of the sites' bases side by side.

DR-SVD as printed ships n x r rows to the server. Here A_i W stays at the site: a Gather of r x r factors (TSQR)
gives the same orthonormal Q implicitly, as Q = A W T, and B' = A'Q = G (W T) is one more sum. Three rounds of
8 d r bytes to each site; back come 8 d r, 8 r^2 (a site of fewer than r rows sends as many) and 8 d r.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedspan.encoding import Array, Plain
from fedspan.errors import ConfigurationError
from fedspan.linalg import Estimate, left_svd, orth, top_eigenvectors, top_of_factors, top_of_product
from fedspan.rounds import Gather, Reply, Round, Site, Solve, Sum, site_step
from fedspan.solvers.problem import Problem, Solution, multiply, ritz_round
from fedspan.solvers.settings import settle, whole

_DENSE = 1024  # up to so many features a site solves its own Gram matrix, beyond it by products only


@site_step("one_shot.local_basis")
def local_basis(site: Site, message: dict[str, Plain]) -> Reply:
    """Alg. 4 and 5, line 2: the leading eigenvectors of M_i, fewer where the site's rank is less than k.

    The eigenvalues leave the site only where the method weighs by them.
    """
    d, k = site.data.shape[1], message["k"]
    if d <= _DENSE or k >= d - 1:
        basis, values = top_eigenvectors(site.data.gram(), min(k, d))
    else:
        basis, values = top_of_product(site.data.gram_times, d, k, site.rng)
    held = values > 1e-12 * values.max(initial=0.0)
    if not message["values"]:
        return Reply(site.noised(basis=basis[:, held]))
    return Reply(site.noised(basis=basis[:, held], values=values[held] / site.data.mass))


@dataclass(frozen=True, kw_only=True)
class UDA:
    """Unweighted distributed averaging of the sites' projectors: one round, and one for the values."""

    partial = True
    sums_only = False
    releases = None  # a local basis can turn by a right angle for one row: there is no sensitivity to declare
    weighs = False

    def rank(self, k: int, d: int) -> int:
        """Return k: there is no iteration."""
        return k

    def solve(self, problem: Problem) -> Solve[Solution]:
        """Alg. 4."""
        message = {"k": problem.k, "values": self.weighs}
        local: dict[str, Plain] = yield Round(local_basis, message, Gather(), problem.cohort, estimate=problem.start)
        factors = np.hstack([self.factor(part) for part in local.values()])
        average = top_of_factors(factors / np.sqrt(len(local)), problem.k)  # line 3
        return Solution((yield from ritz_round(average.basis, problem)))

    def factor(self, basis: Plain) -> Array:
        """Return a factor of V_i V_i'."""
        return basis  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class WDA(UDA):
    """Weighted distributed averaging: each projector's directions weigh by their local variance."""

    weighs = True

    def factor(self, pairs: Plain) -> Array:
        """Return a factor of V_i Sigma_i V_i' (Alg. 5, line 3)."""
        return pairs["basis"] * np.sqrt(np.maximum(pairs["values"], 0.0))  # type: ignore[no-any-return]


@site_step("one_shot.r_factor")
def r_factor(site: Site, w: Array) -> Reply:
    """The triangular factor of A_i W; A_i W itself stays here."""
    scores = site.data.times(w, weighted=True)
    return Reply(site.noised(factor=np.asarray(np.linalg.qr(scores, mode="r"))))


@dataclass(frozen=True, kw_only=True)
class RandomizedSVD:
    """DR-SVD: three rounds with a wide random block, by default of rank k + (d - k) // 4 as the paper sets it."""

    iteration_rank: int | None = None
    partial = False
    sums_only = False
    releases = None  # the factor of A_i W has no bound of its own

    def __post_init__(self) -> None:
        if self.iteration_rank is None:
            return
        settle(self, iteration_rank=whole("iteration_rank", self.iteration_rank, "an integer or None"))
        if self.iteration_rank < 1:
            raise ConfigurationError(f"iteration_rank is at least 1, got {self.iteration_rank}")

    def rank(self, k: int, d: int) -> int:
        """Return r (Alg. 6, line 1)."""
        return min(max(self.iteration_rank, k), d) if self.iteration_rank else k + (d - k) // 4

    def solve(self, problem: Problem) -> Solve[Solution]:
        """Alg. 6."""
        omega = problem.start  # line 2; orthonormal, which spans the same
        product: Array = yield Round(multiply, omega, Sum(), estimate=omega)
        w = orth(product)  # line 3: Y = A W
        factors: dict[str, Array] = yield Round(r_factor, w, Gather(), estimate=w)
        _, s, vt = np.linalg.svd(np.vstack(list(factors.values())), full_matrices=False)
        held = s > 1e-12 * s[0]
        turn = w @ (vt[held].T / s[held])  # Q = A W V S^-1 has orthonormal columns (lines 3-4)
        b_transposed: Array = yield Round(multiply, turn, Sum(), estimate=w)  # line 5: B_i = Q_i' A_i, summed
        basis, sigma = left_svd(b_transposed)  # line 6
        return Solution(Estimate(basis[:, : problem.k], sigma[: problem.k] ** 2))
