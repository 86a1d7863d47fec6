"""Block Krylov with thick restart: one d x r block a round, everything else at the coordinator.

After Musco and Musco (2015) for the block Krylov space, and Wu and Simon (2000) for the thick restart.

Each round sends a block X orthonormal to the basis Q so far and gets G X. Rayleigh-Ritz over the whole basis uses
the products already paid for. The next block is what G X adds to Q. When the basis is full it is cut to its leading
Ritz vectors; their products are combined from known ones, never asked again, and the block that goes on is made
orthogonal to the FULL basis before the cut (afterwards it would no longer be a Krylov direction).

A round costs 8 d r bytes to and from each site, the last rounds less where blocks were deflated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedspan.encoding import Array
from fedspan.errors import ConfigurationError
from fedspan.linalg import Estimate, orth_against
from fedspan.rounds import Round, Solve, Sum
from fedspan.solvers.problem import Problem, Solution, multiply
from fedspan.solvers.settings import Iterative


@dataclass(frozen=True, kw_only=True)
class BlockKrylov(Iterative):
    """Block Krylov. Stops on the scaled KKT violation ``tol``, or after ``rounds``.

    ``max_basis`` bounds the basis, in blocks: memory at the coordinator is 2 d r ``max_basis`` numbers.
    """

    rounds: int = 50
    tol: float = 1e-9
    oversampling: int = 10
    max_basis: int = 12

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_basis < 3:
            raise ConfigurationError(f"max_basis is at least 3 blocks, got {self.max_basis}")

    @property
    def partial(self) -> bool:
        """The basis mixes products of all rounds, so each must be of the same G."""
        return False

    def solve(self, problem: Problem) -> Solve[Solution]:
        """Expand, project, test, restart."""
        block, k = problem.start, problem.k
        rank, tol = block.shape[1], self.attainable(problem)
        basis = products = block[:, :0]
        estimate = block[:, :k]
        for _ in range(self.rounds):
            product: Array = yield Round(multiply, block, Sum(), estimate=estimate)
            basis, products = np.hstack([basis, block]), np.hstack([products, product])
            projected = basis.T @ products
            values, vectors = np.linalg.eigh((projected + projected.T) / 2)
            values, vectors = values[::-1], vectors[:, ::-1]
            estimate = basis @ vectors[:, :k]
            residual = products @ vectors[:, :k] - estimate * values[:k]
            block = orth_against(product, basis)
            exhausted = block.shape[1] == 0  # span(Q) is invariant: nothing more to ask
            met = tol > 0 and float(np.linalg.norm(residual)) <= tol * problem.total
            if exhausted or met:
                break
            if basis.shape[1] + block.shape[1] > min(self.max_basis * rank, basis.shape[0]):
                kept = vectors[:, : max(k + rank, 2 * rank)]
                basis, products = basis @ kept, products @ kept
        return Solution(Estimate(estimate, values[:k]), (met or exhausted) if tol > 0 else None)


