"""Block Krylov with thick restart: one d x r block a round, everything else at the coordinator.

After Musco and Musco (2015) for the block Krylov space, and Wu and Simon (2000) for the thick restart.

Each round sends a block X, orthonormal to the basis Q so far, and gets G X. Rayleigh-Ritz over the whole basis
needs T = Q'G Q, of which only the newest columns are new. What G X adds to Q is both the next block and, by the
Krylov recurrence, all there is of the residual: (I - QQ') G Q vanishes but for the last block's columns. When the
basis is full it is cut to its leading Ritz vectors: T becomes the diagonal of their values, no product is asked
again, and the block that goes on was made orthogonal to the FULL basis before the cut (afterwards it would no
longer be a Krylov direction).

A round costs 8 d r bytes to and from each site, less where blocks were deflated. The coordinator keeps
d r ``max_basis`` numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedspan.errors import ConfigurationError
from fedspan.linalg import Estimate, orth_against
from fedspan.rounds import Solve
from fedspan.solvers.problem import Problem, Solution, gram_round
from fedspan.solvers.settings import Iterative, settle, whole


@dataclass(frozen=True, kw_only=True)
class BlockKrylov(Iterative):
    """Block Krylov. Stops on the scaled KKT violation ``tol``, or after ``rounds``.

    ``max_basis`` bounds the basis, in blocks of r = n_components + ``oversampling`` columns.
    """

    rounds: int = 50
    tol: float = 1e-9
    oversampling: int = 10
    max_basis: int = 12

    def __post_init__(self) -> None:
        super().__post_init__()
        settle(self, max_basis=whole("max_basis", self.max_basis))
        if self.max_basis < 3:
            raise ConfigurationError(f"max_basis is at least 3 blocks, got {self.max_basis}")

    @property
    def partial(self) -> bool:
        """The basis mixes products of all rounds, so each must be of the same G."""
        return False

    def solve(self, problem: Problem) -> Solve[Solution]:
        """Expand, project, test, restart."""
        block, k = problem.start, problem.k
        (d, rank), tol = block.shape, self.attainable(problem)
        store = np.empty((d, min(self.max_basis * rank, d)))
        t, width = np.zeros((store.shape[1], store.shape[1])), 0
        estimate = block[:, :k]
        for _ in range(self.rounds):
            product = yield from gram_round(block, problem, estimate)
            new = slice(width, width + block.shape[1])
            store[:, new], width = block, new.stop
            basis = store[:, :width]
            t[:width, new] = basis.T @ product
            t[new, :width] = t[:width, new].T
            values, vectors = np.linalg.eigh(t[:width, :width])
            values, vectors = values[::-1], vectors[:, ::-1]
            estimate = basis @ vectors[:, :k]
            block, rest = orth_against(product, basis)
            exhausted = block.shape[1] == 0  # span(Q) is invariant: nothing more to ask
            met = tol > 0 and float(np.linalg.norm(rest / problem.total @ vectors[new, :k])) <= tol
            if exhausted or met:
                break
            if width + block.shape[1] > store.shape[1]:
                width = max(k + rank, 2 * rank)
                store[:, :width] = basis @ vectors[:, :width]
                t[:width, :width] = np.diag(values[:width])
        converged = (met or exhausted) if tol > 0 else None
        return Solution(Estimate(estimate, values[:k]), converged, wider=basis @ vectors[:, :rank])
