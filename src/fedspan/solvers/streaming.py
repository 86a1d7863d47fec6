"""Federated-PCA (Grammenos et al. 2020): sites stream their rows once, subspaces are merged in any order up a tree.

==================  ======================================================================
paper               here
==================  ======================================================================
Y_t^i, b            a site's rows, ``block_size`` at a time
U, Sigma; r         ``factor`` = U S; k + ``oversampling`` of them (None: k + 10 more than k)
lambda_1            ``forgetting``: what a site's earlier blocks are multiplied by (Alg. 4)
Merge_r (Alg. 6)    `combine`, at the coordinator or at each node of a tree
t                   a time slice: one round, in which a site folds its next rows
q, fan-out          ``depth`` and ``fan_out`` of the tree (neither: all sites under one root)
==================  ======================================================================

What a site sends is CUMULATIVE and numbered, 8 (d r + 3) bytes a slice for a question of about 50. So a slice whose
answers are lost, late or repeated delays them and does no more: ask the site again, whenever, and it has caught up.
The answer is one merge away from that of pooled rows where the joint rank fits r, else within Theorem 3's bound
(`fedspan.metrics.fpca_bounds`); for the exact subspace take an iterative solver.

Left out: the adaptive rank (15), which is `fedspan.StreamingPCA`'s, as is the running mean: here rows come prepared
(centring reads them once before). Perturbation masks: `fedspan.solvers.StreamingModSulq`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from fedspan.data.cursor import Cursor
from fedspan.encoding import Array, Plain
from fedspan.errors import ConfigurationError, DataError
from fedspan.linalg import Estimate, merge, nonzero
from fedspan.rounds import Merge, Reply, Round, Site, Solve, site_step
from fedspan.solvers.problem import Problem, Solution
from fedspan.solvers.settings import finite, settle, whole
from fedspan.stream import Stream, StreamSettings


@site_step("streaming.advance", lost="restart")
def advance(site: Site, message: dict[str, Plain]) -> Reply:
    """Fold the rows of the time slices up to this one that were not folded yet; reply the summary of all so far."""
    if site.data.symmetric:
        raise DataError(f"site {site.id!r} holds a share of a symmetric matrix, which has no rows to stream")
    n, d = site.data.shape
    known = site.state.get("stream")
    stream = Stream(d, _settings(message)) if known is None else Stream.from_plain(known)
    stop = n * (message["slice"] + 1) // message["slices"]
    cursor: Cursor = site.data.cursor
    for rows, weights in cursor.read(stream.now().rows, stop):
        stream.push(rows, weights, offset=cursor.offset)
    seen = stream.now()
    parts = {"factor": seen.basis * seen.values, "total": np.array(seen.total), "rows": np.array(float(seen.rows))}
    return Reply({"seq": message["slice"], **site.noised(**parts)}, state={"stream": stream.as_plain()})


def _settings(message: dict[str, Plain]) -> StreamSettings:
    return StreamSettings(
        n_components=message["rank"], oversampling=0, block_size=message["block_size"],
        forgetting=message["forgetting"], center=False,
    )  # fmt: skip


def combine(rank: int, values: list[Plain]) -> Plain:
    """Merge factors two by two, so that none is cut more often than it must."""
    factors = [value["factor"] for value in values]
    while len(factors) > 1:
        pairs = [factors[i : i + 2] for i in range(0, len(factors), 2)]
        factors = [merged(pair[0], pair[1], rank) if len(pair) == 2 else pair[0] for pair in pairs]
    figures = [name for name in values[0] if name not in ("seq", "factor")]
    sums = {name: sum(value[name] for value in values) for name in figures}
    return {"seq": max(value["seq"] for value in values), "factor": factors[0], **sums}


def merged(first: Array, second: Array, rank: int) -> Array:
    """Merge_r of two factors U S (Alg. 6)."""
    basis, values = nonzero(merge(*split(first), *split(second), rank))
    return basis * values


def split(factor: Array) -> Estimate:
    """Return U and S of U S."""
    lengths = np.linalg.norm(factor, axis=0)
    held = lengths > 0
    return Estimate(factor[:, held] / lengths[held], lengths[held])


@dataclass(frozen=True, kw_only=True)
class Streaming:
    """One pass over the rows in ``slices`` rounds, each of which merges whatever has arrived."""

    slices: int = 10
    block_size: int = 500
    oversampling: int | None = None
    forgetting: float = 1.0
    fan_out: int | None = None
    depth: int | None = None
    partial = True
    sums_only = False
    releases = None

    def __post_init__(self) -> None:
        for name in ("slices", "block_size", "oversampling", "fan_out", "depth"):
            if getattr(self, name) is not None:
                settle(self, **{name: whole(name, getattr(self, name))})
        settle(self, forgetting=finite("forgetting", self.forgetting))
        for name, least in (("slices", 1), ("block_size", 1), ("oversampling", 0), ("fan_out", 2), ("depth", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigurationError(f"{name} is at least {least}, got {value}")
        if not 0 < self.forgetting <= 1:
            raise ConfigurationError(f"forgetting lies in (0, 1], 1 forgets nothing; got {self.forgetting}")

    def rank(self, k: int, d: int) -> int:
        """Return r = k + oversampling, at most d."""
        return min(k + (k + 10 if self.oversampling is None else self.oversampling), d)

    def solve(self, problem: Problem) -> Solve[Solution]:
        """Ask for each slice, merge what came."""
        rank = problem.start.shape[1]
        message = {
            "slices": self.slices, "rank": rank, "block_size": self.block_size, "forgetting": self.forgetting,
        }  # fmt: skip
        reduce, estimate = Merge(partial(combine, rank), self.fan_out, self.depth), problem.start
        for t in range(self.slices):
            root = yield Round(advance, {**message, "slice": t}, reduce, problem.cohort, estimate=estimate)
            basis, values = split(root["factor"])
            estimate = basis
        return Solution(
            Estimate(basis[:, : problem.k], values[: problem.k] ** 2), note=_missing(problem.rows, float(root["rows"]))
        )


def _missing(rows: int | None, merged_rows: float) -> str | None:
    if rows is None or merged_rows >= rows:
        return None
    return (
        f"sites had not sent {rows - merged_rows:,.0f} of {rows:,} rows when the last slice was over, and the values "
        f"are too small by as much; ask all sites, or give it more slices"
    )
