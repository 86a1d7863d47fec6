"""Doubling: begin with the fastest few sites, go on with twice as many, until all take part (Tziotis et al., Alg. 1).

=================  ======================================================================
paper              here
=================  ======================================================================
A, the subroutine  ``stage``: any solver, or any learner; a stage begins where the one before ended
n_0, n             ``n0``, then twice as many; "fastest n" are the first n replies (Remark 3.1)
tau_r              ``rounds`` of each stage but the last, which runs to ``stage``'s own budget or tolerance
N of M             the study's cohort: its ``fraction`` of the sites is asked, anew each stage or round (Remark 3.2)
=================  ======================================================================

Rounds and bytes are those of the stages. A method that needs the same sites throughout (`partial` is False: block
Krylov) holds on to those that were first in the stage's first round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from fedspan.encoding import Array
from fedspan.errors import ConfigurationError
from fedspan.linalg import orth
from fedspan.rounds import Cohort, Solve
from fedspan.solvers.power import Power
from fedspan.solvers.settings import settle, whole


class Staged(Protocol):
    """What a stage is given: a `Problem`, or a learner's task."""

    start: Array
    cohort: Cohort
    sites: int
    rng: np.random.Generator


@dataclass(frozen=True, kw_only=True)
class Doubling:
    """Stages of ``stage`` on the first n replies, n doubling from ``n0``; in ``growth="samples"`` their rows double.

    ``resample`` says how long a stage keeps the sites that were first: for the ``"round"``, or the whole ``"stage"``.
    """

    stage: Any = field(default_factory=lambda: Power(oversampling=10))
    n0: int = 4
    rounds: int = 2
    growth: str = "sites"
    resample: str = "round"
    releases = None

    def __post_init__(self) -> None:
        settle(self, n0=whole("n0", self.n0), rounds=whole("rounds", self.rounds))
        if self.n0 < 1 or self.rounds < 1:
            raise ConfigurationError(f"n0 and rounds are at least 1, got {self.n0} and {self.rounds}")
        if self.growth not in ("sites", "samples") or self.resample not in ("round", "stage"):
            raise ConfigurationError(
                f'growth is "sites" or "samples", resample "round" or "stage"; got {self.growth!r}, {self.resample!r}'
            )

    @property
    def partial(self) -> bool:
        """As the stages' method: in the last one all that are asked are waited for."""
        return bool(self.stage.partial)

    def rank(self, k: int, d: int) -> int:
        """Return the stages' rank."""
        return int(self.stage.rank(k, d))

    def solve(self, problem: Any) -> Solve[Any]:
        """Alg. 1, lines 3-18."""
        early = replace(self.stage, rounds=self.rounds)
        for cohort in self.cohorts(problem):
            solution = yield from early.solve(replace(problem, cohort=cohort))  # lines 5-15
            problem = replace(problem, start=_completed(solution.onward, problem))  # line 17
        return (yield from self.stage.solve(problem))

    def cohorts(self, problem: Staged) -> Iterator[Cohort]:
        """Yield whom each stage but the last waits for."""
        asked = max(1, round(problem.cohort.fraction * problem.sites))
        if self.n0 > asked:
            raise ConfigurationError(
                f"n0 = {self.n0} sites to begin with, but only {asked} are asked; take a smaller n0"
            )
        n, stage = self.n0, 0
        while n < asked:
            some = {"first": n} if self.growth == "sites" else {"share": n / asked}
            hold = f"stage {stage}" if self.resample == "stage" or not getattr(self.stage, "partial", True) else None
            yield replace(problem.cohort, **some, hold=hold)
            n, stage = 2 * n, stage + 1


def _completed(found: Array, problem: Staged) -> Array:
    """Return what a stage found as the next one's start: a basis that came back with fewer columns is filled up."""
    missing = problem.start.shape[1] - found.shape[1] if found.ndim == 2 else 0
    if missing <= 0:
        return found
    return orth(np.hstack([found, problem.rng.standard_normal((found.shape[0], missing))]))
