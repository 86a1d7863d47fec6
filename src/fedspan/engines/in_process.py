"""All sites in this process, visited in name order: the default, and cheap for thousands of simulated sites."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from fedspan.encoding import payload_bytes
from fedspan.engines.simulated import Simulated, enough, repeated
from fedspan.rounds import Cohort, Late, Outcome, Round


class InProcess(Simulated):
    """Executes rounds on sites in memory.

    Sites run one after another but are timed as if side by side: a reply is late if its own site took longer than
    the deadline. "First K" replies come in a random order, drawn anew each round from the run's seed.
    """

    def __call__(self, question: Round) -> Outcome:
        """Ask the cohort, in name order, and add up the replies that count."""
        asked = self.draw(question)
        late = self._choose_late(question, asked)
        collector = question.reduce.collector(False)
        answered: list[str] = []
        bytes_up = 0
        carried: list[Late] = []
        dropped: list[Late] = []
        for before in question.carried:
            collector.add(before.site, before.value, before.weight, before.times)
        for name, times in asked.items():
            if name in late and question.cohort.late == "drop":
                continue
            started = time.perf_counter() if question.cohort.deadline is not None else 0.0
            reply = self.ask(name, question)
            bytes_up += reply.value.nbytes if type(reply.value) is np.ndarray else payload_bytes(reply.value)
            if name in late or _overdue(question.cohort, started):
                late_replies = carried if question.cohort.late == "carry" else dropped
                late_replies.append(Late(name, reply.value, reply.weight, times))
                continue
            collector.add(name, reply.value, reply.weight, times)
            answered.append(name)
        enough(question, len(answered) + len(question.carried), asked)
        return Outcome(
            collector.result(), answered, bytes_up, self.sent(question, asked), tuple(carried), tuple(dropped),
            times=repeated(asked),
        )  # fmt: skip

    def _choose_late(self, question: Round, asked: Mapping[str, int]) -> set[str]:
        """All but those that the cohort waits for are late; who arrives first is drawn."""
        if question.cohort.waits_for_all(len(asked)):
            return set()
        arrivals = np.random.default_rng([self._seed, question.number, 1]).permutation(list(asked)).tolist()
        return set(asked) - set(self.punctual(question, asked, arrivals))


def _overdue(cohort: Cohort, started: float) -> bool:
    return cohort.deadline is not None and time.perf_counter() - started > cohort.deadline
