"""What rounds take in virtual time, on average over draws of the sites' speeds.

What a method learns depends on who is fast, not on how long a round takes. So a run is trained once, and its clock is
taken from its cohorts: the same rounds, with nothing to do in them, asked of the same sites on the same engine with
one draw of speeds after another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedspan.data.labelled import Labelled
from fedspan.encoding import Array, Plain
from fedspan.engines import VirtualTime
from fedspan.engines.speeds import Speeds
from fedspan.rounds import Cohort, Outcome, Reply, Round, Site, Solve, Step, drive, numbered

_NOTHING = Step("reproduce.nothing", lambda site, message: Reply(0.0))


class Clock:
    """Mean seconds of rounds at these sites, over so many ``draws``; every method meets the same draws."""

    def __init__(self, sites: Mapping[str, Labelled], draws: int) -> None:
        self._sites, self._draws = sites, draws
        self._known: dict[tuple[tuple[Cohort, ...], Speeds], Array] = {}

    def __call__(self, cohorts: Sequence[Cohort], speeds: Speeds, communication: float) -> Array:
        """Return the virtual time after 0, 1, 2, ... rounds."""
        key = tuple(cohorts), speeds
        if key not in self._known:
            self._known[key] = np.mean([self._draw(cohorts, speeds, seed) for seed in range(self._draws)], axis=0)
        return np.concatenate([[0.0], np.cumsum(self._known[key] + communication)])

    def _draw(self, cohorts: Sequence[Cohort], speeds: Speeds, seed: int) -> Array:
        execute, over = (
            VirtualTime(speeds=speeds)([Site(name, rows) for name, rows in self._sites.items()], seed),
            [0.0],
        )

        def watched(question: Round) -> Outcome:
            outcome = execute(question)
            over.append(outcome.clock)
            return outcome

        drive(numbered(_rounds(cohorts)), watched)
        return np.diff(over)


def _rounds(cohorts: Sequence[Cohort]) -> Solve[Plain]:
    for cohort in cohorts:
        yield Round(_NOTHING, cohort=cohort)
    return None
