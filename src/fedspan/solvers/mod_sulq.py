"""Streaming MOD-SuLQ (Federated-PCA, Grammenos et al. 2020): a private basis of each site, without a d x d matrix.

==================  ======================================================================
paper               here
==================  ======================================================================
(1/b) Y Y[slice]'   ``site.data.gram_times`` of unit columns: a d x c slice of A_i'A_i
omega (17)          the site's policy, on each slice as it is made (`Site.noising`)
r, c                k + ``oversampling``, ``slice_width``
==================  ======================================================================

A site walks over slices of c columns of its Gram matrix, adds fresh noise to each, folds them into a rank-r pair
(U, S) and sends U S: 8 d r bytes for a question of 24. All slices together are one release of A_i'A_i: one row moves
them by C^2 in all. The noise is not symmetric, as no slice knows the others.

Several blocks a site: `fedspan.solvers.mod_sulq_stream`. As printed, merging U S weighs sites by squared variances;
``merge="published"`` does that, ``"tight"`` merges U sqrt(S), whose sum of squares is the sum of the C_i themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedspan.encoding import Array, Plain
from fedspan.errors import ConfigurationError
from fedspan.linalg import left_svd, top_of_factors
from fedspan.rounds import Gather, Reply, Round, Site, Solve, site_step
from fedspan.solvers.problem import Problem, Solution
from fedspan.solvers.settings import settle, whole


def slices_sensitivity(message: Any, neighbours: Any, shapes: dict[str, tuple[int, ...]]) -> dict[str, float]:
    """All slices together are the Gram matrix."""
    return {"gram": neighbours.gram()}


@site_step("mod_sulq.factor", sensitivity=slices_sensitivity)
def factor(site: Site, message: dict[str, Plain]) -> Reply:
    """Noise slice after slice, fold them; only the folded pair leaves, which is post-processing."""
    d = site.data.shape[1]
    return Reply(fold_slices(site.data, site.noising("gram", (d, d)), message["slice"], message["rank"]))


def fold_slices(data: Any, noised: Callable[[Array], Array], width: int, rank: int, kept: Array | None = None) -> Array:
    """Return U S of the noised slices of A'A (and of what is ``kept`` already), without a d x d matrix."""
    d = data.shape[1]
    kept = np.zeros((d, 0)) if kept is None else kept
    for start in range(0, d, width):
        columns = np.eye(d, min(width, d - start), -start)
        slice_ = noised(data.gram_times(columns))
        basis, values = left_svd(np.hstack([kept, slice_]))  # the block SVD update
        kept = basis[:, :rank] * values[:rank]
    return kept


@dataclass(frozen=True, kw_only=True)
class ModSulq:
    """One round of private local bases. Noise is added at the sites, so trust is local."""

    oversampling: int = 10
    slice_width: int = 64
    merge: str = "tight"
    partial = False
    sums_only = False
    releases = 1

    def __post_init__(self) -> None:
        for name in ("oversampling", "slice_width"):
            settle(self, **{name: whole(name, getattr(self, name))})
        if self.oversampling < 0 or self.slice_width < 1:
            raise ConfigurationError(
                f"oversampling is not negative and slice_width at least 1; got {self.oversampling}, {self.slice_width}"
            )
        if self.merge not in ("tight", "published"):
            raise ConfigurationError(f"merge is 'tight' or 'published', got {self.merge!r}")

    def rank(self, k: int, d: int) -> int:
        """Return r = k + oversampling, at most d."""
        return min(k + self.oversampling, d)

    def solve(self, problem: Problem) -> Solve[Solution]:
        """Gather U S of each site, merge."""
        message = {"slice": self.slice_width, "rank": problem.start.shape[1]}
        pairs: dict[str, Array] = yield Round(factor, message, Gather(), estimate=problem.start)
        factors = []
        for pair in pairs.values():
            lengths = np.linalg.norm(pair, axis=0)  # U has orthonormal columns, so these are S
            if self.merge == "tight":
                pair = pair / np.sqrt(np.maximum(lengths, 1e-300))
            factors.append(pair)
        estimate = top_of_factors(np.hstack(factors), problem.k)
        values = estimate.values if self.merge == "tight" else np.sqrt(estimate.values)
        return Solution(type(estimate)(estimate.basis, values))
