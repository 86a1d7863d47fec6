"""Distributed power method: FedPower (Guo et al. 2021), Alg. 1; also called simple subspace iteration (SSI).

========  =========================================================
paper     here
========  =========================================================
A_i, M_i  ``site.data``; G_i = A_i'A_i = s_i M_i is what a site multiplies with
Z_t, Y_t  ``z``, ``y`` (d x r)
k, r, T   ``problem.k``, ``k + oversampling``, ``rounds``
========  =========================================================

A round costs 8 d r bytes to and from each site (8 more from each where only some answer: the rows they stand for).
Left out: nothing. Sites send A_i'A_i Z, not p_i M_i Z: the sum is n times the paper's Y_t, its span the same, and
where all answer no site's size is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedspan.linalg import left_svd, orth, ritz_turn
from fedspan.metrics import kkt_violation
from fedspan.rounds import Solve
from fedspan.solvers.problem import Problem, Solution, gram_round
from fedspan.solvers.settings import Iterative


@dataclass(frozen=True, kw_only=True)
class Power(Iterative):
    """Distributed power iteration. Stops on the scaled KKT violation ``tol`` of k Ritz vectors, or after ``rounds``.

    >>> Power(rounds=20, oversampling=2)
    Power(rounds=20, tol=1e-09, oversampling=2)
    """

    rounds: int = 100
    tol: float = 1e-9
    oversampling: int = 0

    def solve(self, problem: Problem) -> Solve[Solution]:
        """Alg. 1."""
        z, tol = problem.start, self.attainable(problem)
        for _ in range(self.rounds):
            y = yield from gram_round(z, problem)  # lines 4-5
            turn = ritz_turn(z, y, problem.k)  # oversampled columns need not have settled
            converged = tol > 0 and kkt_violation(z @ turn, y @ turn, problem.total) <= tol
            if converged:
                break
            z = orth(y)  # line 6
        # Line 8: Z_T = orth(Y_T), its columns turned to singular vectors; the values of G Z come with them.
        return Solution(left_svd(y), converged if tol > 0 else None)


@dataclass(frozen=True, kw_only=True)
class PrivatePower(Power):
    """The private power method (Nicolas et al. 2024, Alg. 1 and 2): `Power` with few rounds and a required policy.

    Alg. 1 is ``trust="central"`` or one site, Alg. 2 ``trust="distributed"``. Its noise, Delta_l sigma (13), is the
    policy's; Delta_l is computed from X as received. ``rounds=None`` lets the plan choose from public figures.
    """

    rounds: int | None = None  # type: ignore[assignment]
    tol: float = 0.0
    oversampling: int = 5

    def __post_init__(self) -> None:
        if self.rounds is not None:
            super().__post_init__()

    @property
    def releases(self) -> int | None:
        """One a round, however many the plan will choose."""
        return 1 if self.rounds is None else self.rounds
