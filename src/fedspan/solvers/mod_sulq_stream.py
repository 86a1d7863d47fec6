"""Streaming MOD-SuLQ over time slices (Federated-PCA, Grammenos et al. 2020): the private variant of `Streaming`.

==================  ======================================================================
paper               here
==================  ======================================================================
Y_b, b = 1, 2 ..    block t of a site's rows: rows n t / T to n (t + 1) / T, T = ``blocks``
(1/b) Y Y[slice]'   a d x c slice of the block's Gram matrix, c = ``slice_width``
omega (17)          the site's policy, on each slice as it is made (`Site.noising`)
U, Sigma            ``factor``, folded from all slices of all blocks so far
==================  ======================================================================

Each block is one release of its own Gram matrix, charged when its slice of time comes. Blocks hold different rows, so
with neighbours that replace rows at most one of them changes (m rows of a person change at most m, and by no more
together than in one block): they compose in parallel, and the ledger takes the largest of a site's blocks, not the sum.
A row more or less would move all blocks that are cut by counting after it, so such neighbours are refused.

``merge="published"`` folds slices of all blocks into one pair, as printed: that finds eigenvectors of sum_b C_b C_b',
and its singular values are variances. ``"tight"`` folds each block by itself and adds U sqrt(S), whose squares sum to
the C_b themselves; of noise to its absolute value, which many blocks do not average away. Costs 8 (d r + 1) bytes a
site and block.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from fedspan.encoding import Plain
from fedspan.errors import ConfigurationError, PolicyError
from fedspan.linalg import Estimate
from fedspan.rounds import Merge, Reply, Round, Site, Solve, site_step
from fedspan.solvers.mod_sulq import ModSulq, fold_slices, slices_sensitivity
from fedspan.solvers.problem import Problem, Solution
from fedspan.solvers.settings import settle, whole
from fedspan.solvers.streaming import combine, merged, split


@site_step("mod_sulq.block", sensitivity=slices_sensitivity)
def fold_block(site: Site, message: dict[str, Plain]) -> Reply:
    """Noise the slices of one block's Gram matrix, fold them to what the blocks before came to."""
    n, d = site.data.shape
    t, count = _block(message)
    block = site.data.part(n * t // count, n * (t + 1) // count)
    noised = site.noising("gram", (d, d), block, (f"blocks of {count}", t))
    kept = site.state.get("kept", np.zeros((d, 0)))
    width, rank = message["slice"], min(message["rank"], d)
    if message["merge"] == "published":
        kept = fold_slices(block, noised, width, rank, kept)
    else:
        basis, variances = split(fold_slices(block, noised, width, rank))
        kept = merged(kept, basis * np.sqrt(variances), rank)
        kept = np.pad(kept, ((0, 0), (0, rank - kept.shape[1])))  # how many directions rows have is their own
    return Reply({"seq": t, "factor": kept}, state={"kept": kept})


def _block(message: dict[str, Plain]) -> tuple[int, int]:
    """Return which block of how many; nothing else may overlap with another block."""
    t, count = message["block"], message["blocks"]
    if type(t) is not int or type(count) is not int or not 0 <= t < count:
        raise PolicyError(f"block {t!r} of {count!r} is none; blocks are numbered from 0")
    return t, count


@dataclass(frozen=True, kw_only=True)
class StreamingModSulq(ModSulq):
    """One block a round, each a private release; trust is local, and the number of rows public."""

    blocks: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        settle(self, blocks=whole("blocks", self.blocks))
        if self.blocks < 1:
            raise ConfigurationError(f"blocks is at least 1, got {self.blocks}")

    def solve(self, problem: Problem) -> Solve[Solution]:
        """Ask for each block, merge what the sites have come to."""
        rank = problem.start.shape[1]
        message = {"slice": self.slice_width, "rank": rank, "merge": self.merge, "blocks": self.blocks}
        estimate, reduce = problem.start, Merge(partial(combine, rank))
        for t in range(self.blocks):
            root = yield Round(fold_block, {**message, "block": t}, reduce, estimate=estimate)
            estimate, values = split(root["factor"])
        values = values**2 if self.merge == "tight" else values
        return Solution(Estimate(estimate[:, : problem.k], values[: problem.k]))
