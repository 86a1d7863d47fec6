"""What every solver is given, and the last round most of them share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from fedspan.encoding import Array
from fedspan.linalg import Estimate, ritz
from fedspan.rounds import Cohort, Reply, Round, Site, Solve, Sum, site_step


@dataclass(frozen=True)
class Problem:
    """The k leading eigenvectors of G = sum of G_i, where site i answers ``gram_times(z) = G_i z``."""

    start: Array
    """An orthonormal d x r basis, r >= k: the paper's Z_0."""
    k: int
    total: float = 1.0
    """The trace of G, which residuals are measured against."""
    weight: float = 1.0
    """The number of rows behind G (or the sum of their weights)."""
    rows: int | None = None
    """How many rows all sites have, where they said it."""
    sites: int = 1
    """How many sites there are."""
    precision: float = float(np.finfo(np.float64).eps)
    """The rounding unit of the sites' products; a tolerance below it would never be met."""
    cohort: Cohort = field(default_factory=Cohort)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))


class Solver(Protocol):
    """The settings of a method: a frozen dataclass whose `solve` is the coordinator's half."""

    def solve(self, problem: Problem) -> Solve[Solution]:
        """Yield rounds, return the solution."""
        ...

    def rank(self, k: int, d: int) -> int:
        """Return the iteration rank r for k components of d features."""
        ...

    @property
    def partial(self) -> bool:
        """Whether the method stays right when only some sites answer a round."""
        ...

    @property
    def releases(self) -> int | None:
        """How often each site releases something to the method, at most; None where noise cannot cover it."""
        ...


@dataclass(frozen=True)
class Solution:
    """What a solver returns: the estimate, and whether its tolerance was met (None: it has none)."""

    estimate: Estimate
    converged: bool | None = None
    total: float | None = None
    """The trace of G, where the method's own rounds told it."""
    note: str | None = None
    """What is missing in the answer, if anything is."""
    wider: Array | None = None
    """A basis of more columns than the estimate has, where the method kept one."""

    @property
    def onward(self) -> Array:
        """What a later stage can go on from: a basis of as many columns as the method kept."""
        return self.estimate.basis if self.wider is None else self.wider


def product_sensitivity(z: Array, neighbours: Any, shapes: dict[str, tuple[int, ...]]) -> dict[str, float]:
    """What a neighbour changes of G_i Z, and of the rows behind it."""
    return {"product": neighbours.product(z)} | ({"rows": neighbours.count()} if "rows" in shapes else {})


def product_bound(z: Array, total: float, weight: float) -> dict[str, float]:
    """No entry of A_i'A_i Z is above ||A_i||_F^2 times the longest column of Z."""
    return {"value": total * longest_column(z)}


def counted_bound(z: Array, total: float, weight: float) -> dict[str, float]:
    """The same, and the rows."""
    return {"product": total * longest_column(z), "rows": weight}


def longest_column(z: Array) -> float:
    """Return the largest norm of a column."""
    return float(np.sqrt(np.einsum("ij,ij->j", z, z).max(initial=0.0)))


@site_step("gram.multiply", sensitivity=product_sensitivity, bound=product_bound)
def multiply(site: Site, z: Array) -> Reply:
    """A_i' A_i Z (FedPower, Alg. 1 line 4), plus this site's own noise if its policy asks for any."""
    return Reply(site.noised(product=site.data.gram_times(z)))


@site_step("gram.multiply_counted", sensitivity=product_sensitivity, bound=counted_bound)
def multiply_counted(site: Site, z: Array) -> Reply:
    """The same with the number of rows behind it, for rounds that only some sites answer."""
    rows = np.array(float(site.data.mass))
    return Reply(site.noised(product=site.data.gram_times(z), rows=rows))


def gram_round(z: Array, problem: Problem, estimate: Array | None = None) -> Solve[Array]:
    """One product G z, scaled up to all rows where only some sites answer (8 bytes more from each: its rows)."""
    estimate = z if estimate is None else estimate
    if problem.cohort.is_full:
        product: Array = yield Round(multiply, z, Sum(), estimate=estimate)
        return product
    cohort = replace(problem.cohort, sample="uniform")
    answers = yield Round(multiply_counted, z, Sum(), cohort, estimate=estimate)
    return answers["product"] * (problem.weight / float(answers["rows"]))  # type: ignore[no-any-return]


def ritz_round(z: Array, problem: Problem) -> Solve[Estimate]:
    """One more product turns a basis into Ritz vectors with their values."""
    return ritz(z, (yield from gram_round(z, problem)))
