"""All sites in this process, visited in name order: the default, and cheap for thousands of simulated sites."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from fedspan.encoding import Plain, payload_bytes
from fedspan.errors import CohortError, ConfigurationError, FedspanError, SiteError
from fedspan.rounds import Cohort, Late, Outcome, Reply, Round, Site, answer


class InProcess:
    """Executes rounds on sites in memory.

    Sites run one after another but are timed as if side by side: a reply is late if its own site took longer than
    the deadline. "First K" replies come in a random order, drawn anew each round from the run's seed.
    """

    def __init__(self, sites: Sequence[Site], seed: int = 0) -> None:
        self._sites = {site.id: site for site in sorted(sites, key=lambda s: s.id)}
        if len(self._sites) < len(sites):
            raise ConfigurationError("two sites have the same name; names tell sites apart")
        self._seed = seed

    def __call__(self, question: Round) -> Outcome:
        """Ask the cohort, in name order, and add up the replies that count."""
        asked = self._draw(question)
        late = self._choose_late(question, asked)
        collector = question.reduce.collector(False)
        answered: list[str] = []
        bytes_up = 0
        carried: list[Late] = []
        dropped: list[Late] = []
        for before in question.carried:
            collector.add(*before)
        for name, times in asked.items():
            if name in late and question.cohort.late == "drop":
                continue
            started = time.perf_counter() if question.cohort.deadline is not None else 0.0
            reply = self._ask(self._sites[name], question)
            bytes_up += reply.value.nbytes if type(reply.value) is np.ndarray else payload_bytes(reply.value)
            if name in late or _overdue(question.cohort, started):
                late_replies = carried if question.cohort.late == "carry" else dropped
                late_replies.append(Late(name, reply.value, reply.weight, times))
                continue
            collector.add(name, reply.value, reply.weight, times)
            answered.append(name)
        _enough(question, len(answered) + len(question.carried), asked)
        bytes_down = payload_bytes(question.message) * len(asked)
        return Outcome(collector.result(), answered, bytes_up, bytes_down, tuple(carried), tuple(dropped))

    def _draw(self, question: Round) -> dict[str, int]:
        if question.cohort.is_full:
            return dict.fromkeys(self._sites, 1)
        rng = np.random.default_rng([self._seed, question.number])
        return question.cohort.draw(
            list(self._sites), rng, lambda: {name: s.data.mass for name, s in self._sites.items()}
        )

    def _choose_late(self, question: Round, asked: dict[str, int]) -> set[str]:
        """With "first K", all but the first K to arrive are late."""
        if question.cohort.first is None or question.cohort.first >= len(asked):
            return set()
        rng = np.random.default_rng([self._seed, question.number, 1])
        return set(rng.permutation(list(asked))[question.cohort.first :].tolist())

    def _ask(self, site: Site, question: Round) -> Reply:
        try:
            return answer(site, question)
        except FedspanError as error:
            if repr(site.id) in str(error):
                raise
            raise type(error)(f"site {site.id!r}: {error}") from error.__cause__
        except Exception as cause:
            raise SiteError(f"site {site.id!r} failed in step {question.step.name}: {cause}") from cause


def _overdue(cohort: Cohort, started: float) -> bool:
    return cohort.deadline is not None and time.perf_counter() - started > cohort.deadline


def _enough(question: Round, answered: int, asked: dict[str, Plain]) -> None:
    """A round without a single reply has no aggregate."""
    if not answered:
        raise CohortError(
            f"round {question.number} ({question.step.name}): none of {len(asked)} sites answered in time; "
            f"give the cohort a longer deadline"
        )
