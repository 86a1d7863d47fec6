"""The exact answer in one round: sum the sites' Gram matrices and solve at the coordinator.

Costs 4 d (d + 1) bytes from each site (the upper triangle), nothing to it. The coordinator learns every A_i'A_i.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedspan.encoding import Array
from fedspan.linalg import top_eigenvectors
from fedspan.rounds import Reply, Round, Site, Solve, Sum, site_step
from fedspan.solvers.problem import Problem, Solution


@site_step("covariance.gram")
def gram(site: Site, message: None) -> Reply:
    """The upper triangle of A_i'A_i."""
    full = site.data.gram()
    return Reply(site.noised(gram=full[np.triu_indices(len(full))]))


@dataclass(frozen=True, kw_only=True)
class Covariance:
    """Sum the Gram matrices: exact, one round, for few features."""

    partial = False

    def rank(self, k: int, d: int) -> int:
        """Return k: there is no iteration."""
        return k

    def solve(self, problem: Problem) -> Solve[Solution]:
        """One round, one eigenproblem."""
        triangle: Array = yield Round(gram, None, Sum(), estimate=problem.start)
        d = problem.start.shape[0]
        full = np.zeros((d, d))
        full[np.triu_indices(d)] = triangle
        full += np.triu(full, 1).T
        return Solution(top_eigenvectors(full, problem.k), True)
