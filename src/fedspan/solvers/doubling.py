"""Doubling: begin with the fastest few sites, go on with twice as many, until all take part (Tziotis et al., Alg. 1).

=================  ======================================================================================
paper              here
=================  ======================================================================================
A, the subroutine  ``stage``: any solver with ``rounds``, or a learner; a stage begins where the one before ended
n_0, n             ``n0`` (None: an eighth of N), then twice as many; "fastest n": the first n replies (Remark 3.1)
tau_r              ``rounds`` of each stage but the last, which runs to ``stage``'s own budget or tolerance
a                  ``contraction``, for ``rounds="formula"``: Lemma B.1, (203)
N of M             the study's cohort: its ``fraction`` of the sites is asked, anew each round (Remark 3.2)
=================  ======================================================================================

Rounds and bytes are those of the stages; log2(N / n0) stages, rounded up, come before the last. Everyone is asked in
every round, and 8 bytes more come from each site that answers an early one: the rows it stands for.

A method that needs the same sites throughout (its `partial` is False: krylov, faps) holds on to those that were first
in the stage's first round. In the last stage every method is what it is without doubling, and as exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Protocol

import numpy as np

from fedspan.encoding import Array
from fedspan.errors import ConfigurationError, nearest
from fedspan.linalg import orth
from fedspan.metrics.srpfl import stage_rounds
from fedspan.rounds import Cohort, Solve
from fedspan.solvers.power import Power, PrivatePower
from fedspan.solvers.settings import finite, settle, whole


class Staged(Protocol):
    """What a stage is given: a `Problem`, or a learner's task."""

    start: Array
    cohort: Cohort
    sites: int
    rng: np.random.Generator


@dataclass(frozen=True, kw_only=True)
class Doubling:
    """Stages of ``stage`` on the first n replies, n doubling from ``n0``; in ``growth="samples"`` their rows double.

    ``n0``: how many replies the first stage waits for; None takes an eighth of the sites, and one at least.

    ``rounds`` of a stage: a number; ``"formula"`` for the paper's, from the ``contraction`` a (a round with all sites
    shrinks the distance by sqrt(1 - a)) and exponential times; or ``"stall"``: until the stage's own test of progress
    (a learner's ``stall``, a solver's ``tol``) is met at ``stall``, and at most ``most`` rounds.

    ``resample`` says how long a stage keeps the sites that were first: for the ``"round"``, or the whole ``"stage"``.

    >>> Doubling(n0=16).stage
    Power(rounds=100, tol=1e-09, oversampling=10)
    """

    stage: Any = field(default_factory=lambda: Power(oversampling=10))
    n0: int | None = None
    rounds: int | str = 2
    contraction: float | None = None
    stall: float = 1e-3
    most: int = 10
    growth: str = "sites"
    resample: str = "round"
    releases = None
    sums_only = False  # its early stages wait for few sites, fewer than a sum can hide

    def __post_init__(self) -> None:
        _check_stage(self.stage)
        settle(self, most=whole("most", self.most), stall=finite("stall", self.stall))
        if self.n0 is not None:
            settle(self, n0=whole("n0", self.n0, "a number of sites, or None for an eighth of them"))
        self._check_rounds()
        if (self.n0 is not None and self.n0 < 1) or self.most < 1:
            raise ConfigurationError(f"n0 sites and most rounds are at least 1, got {self.n0} and {self.most}")
        if self.stall < 0:
            raise ConfigurationError(f"stall is not negative (0: no test), got {self.stall}")
        if self.rounds == "stall":
            self._early(self.rounds)  # refuses a stall that the stage does not take
        for name, known in (("growth", ("sites", "samples")), ("resample", ("round", "stage"))):
            given = getattr(self, name)
            if given not in known:
                raise ConfigurationError(f"{name} is {given!r}; {nearest(str(given), known)}")

    def _check_rounds(self) -> None:
        if not isinstance(self.rounds, str):
            expected = 'a number of rounds for each stage, "formula" or "stall"'
            settle(self, rounds=whole("rounds", self.rounds, expected))
            if self.rounds < 1:
                raise ConfigurationError(f"a stage has at least 1 round, got {self.rounds}")
        elif self.rounds not in ("formula", "stall"):
            raise ConfigurationError(f"rounds is {self.rounds!r}; {nearest(self.rounds, ('formula', 'stall'))}")
        if self.contraction is not None:
            settle(self, contraction=finite("contraction", self.contraction))
            if not 0 < self.contraction < 1:
                raise ConfigurationError(f"contraction is between 0 and 1, got {self.contraction}")
        elif self.rounds == "formula":
            raise ConfigurationError(
                'rounds="formula" needs a contraction: a, where a round with all sites shrinks the distance by '
                "sqrt(1 - a) (for power, sqrt(1 - a) is about the value after the last kept over the last wanted); or "
                'take a number of rounds, or "stall"'
            )

    @property
    def partial(self) -> bool:
        """As the stages' method: in the last one all that are asked are waited for."""
        return bool(getattr(self.stage, "partial", True))

    def rank(self, k: int, d: int) -> int:
        """Return the stages' rank."""
        return int(self.stage.rank(k, d))

    def solve(self, problem: Any) -> Solve[Any]:
        """Alg. 1, lines 3-18."""
        for cohort, early in self.stages(problem):
            solution = yield from early.solve(replace(problem, cohort=cohort))  # lines 5-15
            problem = replace(problem, start=_completed(solution.onward, problem))  # line 17
        return (yield from self.stage.solve(problem))

    def stages(self, problem: Staged) -> Iterator[tuple[Cohort, Any]]:
        """Yield whom each stage but the last waits for, and its method."""
        last = _waited_for(problem)
        n0, stage = self.n0 or max(1, last // 8), 0
        if n0 > last:
            raise ConfigurationError(
                f"doubling begins with n0 = {n0} sites, but a round waits for {last} at most; "
                f"take n0 of at most {last}, or more sites"
            )
        budgets: list[Any] = []
        if self.rounds == "formula" and self.contraction is not None:
            budgets = stage_rounds(n0, last, self.contraction)
        n = n0
        while n < last:
            yield self._cohort(problem, n, stage), self._early(budgets[stage] if budgets else self.rounds)
            n, stage = 2 * n, stage + 1

    def _cohort(self, problem: Staged, n: int, stage: int) -> Cohort:
        share = n / _asked(problem) * (problem.cohort.share or 1.0)
        some: dict[str, Any] = {"first": n} if self.growth == "sites" else {"share": share}
        if not self.partial:
            some["late"] = "drop"  # a late reply would be of another round's question
        if self.resample == "stage" or not self.partial:
            some["hold"] = f"stage {stage} of {'x'.join(map(str, problem.start.shape))}"
        return replace(problem.cohort, **some)

    def _early(self, rounds: int | str) -> Any:
        """Return the method of a stage but the last: its budget, and its test of progress where that ends the stage."""
        least = 1 if _takes(self.stage, "rounds", 1) else 2  # some keep their last round for the values
        if rounds == "stall":
            test = "stall" if hasattr(self.stage, "stall") else "tol"
            none: Any = None if test == "stall" else 0.0
            return replace(self.stage, rounds=max(self.most, least), **{test: self.stall or none})
        return replace(self.stage, rounds=max(int(rounds), least))


def _check_stage(stage: Any) -> None:
    kind = type(stage).__name__
    known = {f.name for f in fields(stage)} if is_dataclass(stage) else set()
    if isinstance(stage, type) or not hasattr(stage, "solve") or "rounds" not in known:
        raise ConfigurationError(
            f"stage is a solver that has rounds, such as Power(oversampling=10) or BlockKrylov(), or a learner; got "
            f"{stage!r}"
        )
    if isinstance(stage, PrivatePower | Doubling):
        raise ConfigurationError(f"stage cannot be {kind}: take Power(oversampling=10), or another method with rounds")


def _takes(stage: Any, setting: str, value: int) -> bool:
    """Whether the method allows this setting."""
    try:
        replace(stage, **{setting: value})
    except ConfigurationError:
        return False
    return True


def _waited_for(problem: Staged) -> int:
    """Return how many replies a round waits for in the last stage."""
    first, asked = problem.cohort.first, _asked(problem)
    return asked if first is None else min(asked, first)


def _asked(problem: Staged) -> int:
    """Return how many sites a round asks."""
    cohort = problem.cohort
    return max(1, round(cohort.fraction * (problem.sites if cohort.only is None else len(cohort.only))))


def _completed(found: Array, problem: Staged) -> Array:
    """Return what a stage found as the next one's start: a basis that came back with fewer columns is filled up."""
    missing = problem.start.shape[1] - found.shape[1] if found.ndim == 2 else 0
    if missing <= 0:
        return found
    return orth(np.hstack([found, problem.rng.standard_normal((found.shape[0], missing))]))
