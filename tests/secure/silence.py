"""An engine in which sites fall silent: in a phase of a secure sum, in one attempt or more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedspan.engines import InProcess
from fedspan.rounds import Outcome, Round, Site

Silent = Callable[[int, str, int], Collection[str]]
"""From the round, the phase ("keys", ... or "plain") and the attempt (from 1), who does not answer."""


@dataclass
class Silence:
    """``Silence(silent)`` is an engine; ``inner`` executes rounds of those who do answer."""

    silent: Silent
    inner: Callable[[Sequence[Site], int], Callable[[Round], Outcome]] = InProcess
    asked: Counter[tuple[int, str]] = field(default_factory=Counter)
    """How often each phase of a round was asked."""
    told: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    """Round, phase and value of each exchange."""

    def __call__(self, sites: Sequence[Site], seed: int) -> Callable[[Round], Outcome]:
        """Return what executes rounds."""
        execute, names = self.inner(sites, seed), sorted(site.id for site in sites)

        def run(question: Round) -> Outcome:
            phase = question.step.name.removeprefix("secure.") if question.step.protocol else "plain"
            self.asked[question.number, phase] += 1
            attempt = max(1, self.asked[question.number, "keys"])
            gone = set(self.silent(question.number, phase, attempt))
            asked = names if question.cohort.only is None else question.cohort.only
            left = tuple(name for name in asked if name not in gone)
            if not left:
                return Outcome({}, [], 0, 0)
            if gone:
                question = replace(question, cohort=replace(question.cohort, only=left))
            outcome = execute(question)
            self.told.append((question.number, phase, outcome.value))
            return outcome

        return run
