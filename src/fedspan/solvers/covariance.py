"""The exact answer in one round: sum the sites' Gram matrices and solve at the coordinator.

Costs 4 d (d + 1) bytes from each site (the upper triangle), nothing to it. Without privacy the coordinator learns every
A_i'A_i.

The triangle travels as (diagonal, sqrt(2) x the rest), a map that keeps the Frobenius norm: sum_ij G_ij^2 =
sum_i G_ii^2 + sum_{i<j} (sqrt(2) G_ij)^2. So a row of norm C moves the vector by C^2, exactly as it moves the whole
matrix; noise of sigma = C^2 / mu on every coordinate is the Gaussian mechanism, and turned back it is N(0, sigma^2) on
the diagonal and N(0, sigma^2 / 2) off it: half the variance there of Analyze Gauss as printed (Dwork et al. 2014), and
still invariant under rotations (a Gaussian orthogonal ensemble).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedspan.encoding import Array
from fedspan.linalg import top_eigenvectors
from fedspan.rounds import Reply, Round, Site, Solve, Sum, site_step
from fedspan.solvers.problem import Problem, Solution

_ROOT = math.sqrt(2.0)


def gram_sensitivity(message: None, neighbours: Any, shapes: dict[str, tuple[int, ...]]) -> dict[str, float]:
    """What a neighbour changes of G_i."""
    return {"gram": neighbours.gram()}


def gram_bound(message: None, total: float, weight: float) -> dict[str, float]:
    """|G_ij| <= (||a_i||^2 + ||a_j||^2) / 2, at most half the trace off the diagonal; and sqrt(2) / 2 < 1."""
    return {"value": total}


@site_step("covariance.gram", sensitivity=gram_sensitivity, bound=gram_bound)
def gram(site: Site, message: None) -> Reply:
    """The upper triangle of A_i'A_i, off-diagonal entries times sqrt(2)."""
    return Reply(site.noised(gram=to_triangle(site.data.gram())))


def to_triangle(full: Array) -> Array:
    """Return a symmetric matrix as a vector of the same norm."""
    i, j = np.triu_indices(len(full))
    triangle: Array = full[i, j] * np.where(i == j, 1.0, _ROOT)
    return triangle


def from_triangle(triangle: Array, d: int) -> Array:
    """Return the symmetric matrix of a `to_triangle` vector.

    >>> from_triangle(to_triangle(np.array([[2.0, 1.0], [1.0, 5.0]])), 2)
    array([[2., 1.],
           [1., 5.]])
    """
    full = np.zeros((d, d))
    full[np.triu_indices(d)] = triangle / _ROOT
    np.fill_diagonal(full, np.diag(full) / _ROOT)  # twice the half: G + G' below has each diagonal entry twice
    return full + full.T


@dataclass(frozen=True, kw_only=True)
class Covariance:
    """Sum the Gram matrices: exact, one round, for few features."""

    partial = False
    releases = 1

    def rank(self, k: int, d: int) -> int:
        """Return k: there is no iteration."""
        return k

    def solve(self, problem: Problem) -> Solve[Solution]:
        """One round, one eigenproblem."""
        triangle: Array = yield Round(gram, None, Sum(), estimate=problem.start)
        full = from_triangle(triangle, len(problem.start))
        return Solution(top_eigenvectors(full, problem.k), True, float(np.trace(full)))
