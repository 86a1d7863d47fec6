"""Sites in this process, on a clock of their own: what a run would take where sites differ in speed.

Nothing sleeps. Each round is a heap of events: a site has computed, its reply has arrived. A reply is on its way for
the time that its site computes (a speed model) and the time of communication, and with a ``bandwidth`` for as long as
its bytes take; the round is over when the cohort has what it waits for. Replies are added in name order, so that the
answer of a round is, to the bit, that of the in-process engine with the same sites.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import numpy as np

from fedspan.encoding import Plain, payload_bytes
from fedspan.engines.simulated import Simulated, enough, repeated
from fedspan.engines.speeds import FixedSpeeds, Speeds, check_number
from fedspan.errors import CohortError, ConfigurationError
from fedspan.rounds import Late, Outcome, Reply, Round, Site

_COMPUTED, _ARRIVED = 0, 1


@dataclass(frozen=True, kw_only=True)
class VirtualTime:
    """An engine in virtual time: hand it to ``engine=``.

    ``speeds`` says how long sites compute, ``communication`` what a round costs beside (seconds), ``bandwidth`` how
    many bytes a second each site's link carries, either way (None: any number). `RoundRecord.clock` is the time when
    a round was over.

    A site that is asked while it still works on a round that was dropped leaves that and takes the new one; with
    ``late="carry"`` it finishes the old one first, and its reply joins the first round of its step that ends after it
    arrived. Of two replies that arrive at one time the one first in name order is first.

    >>> VirtualTime(speeds=FixedSpeeds(mean=2.0), communication=1.0)
    VirtualTime(speeds=FixedSpeeds(mean=2.0), communication=1.0, bandwidth=None, seed=None)
    """

    speeds: Speeds = field(default_factory=FixedSpeeds)
    communication: float = 0.0
    bandwidth: float | None = None
    seed: int | None = None
    """What speeds are drawn with (None: the run's own seed): another one is another draw of the same run."""

    def __post_init__(self) -> None:
        if not callable(getattr(self.speeds, "seconds", None)) or isinstance(self.speeds, type):
            raise ConfigurationError(
                f"speeds is a speed model such as FixedSpeeds(mean=1.0), whose `seconds` gives each site's time; "
                f"got {self.speeds!r}"
            )
        check_number("communication", self.communication, zero=True)
        if self.bandwidth is not None:
            check_number("bandwidth", self.bandwidth, unit="bytes a second, or None for any number")
        seed: Any = self.seed
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0):
            raise ConfigurationError(f"seed is a whole number, 0 or more, or None for the run's; got {self.seed!r}")

    def __call__(self, sites: Sequence[Site], seed: int = 0) -> _Clockwork:
        """Return what executes rounds on these sites."""
        return _Clockwork(self, sites, seed)


class _Clockwork(Simulated):
    def __init__(self, law: VirtualTime, sites: Sequence[Site], seed: int) -> None:
        super().__init__(sites, seed)
        self._law = law

    def __call__(self, question: Round) -> Outcome:
        """Let replies arrive until the cohort has what it waits for."""
        asked, cohort = self.draw(question), question.cohort
        race, shares, rows = _Race(self, question, asked), self.shares(question, asked), 0.0
        counted: list[str] = []
        while not (counted and cohort.satisfied(len(counted), len(asked), rows)) and (name := race.next_arrival()):
            counted.append(name)
            rows += shares[name]
        over = race.now
        if cohort.deadline is None and not cohort.satisfied(len(counted), len(asked), rows):
            _never(question, sorted(set(asked) - set(counted)))
        ready = [late for late in question.carried if late.due <= over]
        enough(question, len(counted) + len(ready), asked)
        collector = question.reduce.collector(False)
        for late in ready:
            collector.add(late.site, late.value, late.weight, late.times)
        for name in sorted(counted):
            collector.add(name, race.replies[name].value, race.replies[name].weight, asked[name])
        carried, dropped = [late for late in question.carried if late.due > over], race.under_way()
        if cohort.late == "carry":
            carried, dropped = [*carried, *race.afterwards()], []
        up = sum(payload_bytes(reply.value) for reply in race.replies.values())
        down = self.sent(question, asked)
        return Outcome(
            collector.result(), sorted(counted), up, down, tuple(carried), tuple(dropped), over, times=repeated(asked)
        )

    def computes(self, question: Round) -> dict[str, float]:
        """Return how long each site computes in this round."""
        names, seed = list(self._sites), self._seed if self._law.seed is None else self._law.seed
        seconds = np.asarray(self._law.speeds.seconds(names, seed, question.number), dtype=float)
        if seconds.shape != (len(names),) or not np.all(seconds >= 0):
            raise ConfigurationError(
                f"a speed model gives a time, 0 or more, for each of {len(names)} sites; {self._law.speeds!r} gave "
                f"{seconds!r}"
            )
        return dict(zip(names, seconds.tolist(), strict=True))

    def travels(self, payload: Plain) -> float:
        """Return how long numbers are on a site's link."""
        return 0.0 if self._law.bandwidth is None else payload_bytes(payload) / self._law.bandwidth

    @property
    def communication(self) -> float:
        """What a round costs beside computing and bytes."""
        return self._law.communication

    @property
    def bytes_count(self) -> bool:
        """Whether a reply is the longer under way the larger it is."""
        return self._law.bandwidth is not None


class _Race:
    """The events of one round, in the order of their times."""

    def __init__(self, clockwork: _Clockwork, question: Round, asked: Mapping[str, int]) -> None:
        self._clockwork, self._question, self._asked = clockwork, question, asked
        self.now = question.clock
        deadline = question.cohort.deadline
        self._deadline = math.inf if deadline is None else self.now + deadline
        self.replies: dict[str, Reply] = {}
        self._arrived: set[str] = set()
        begin = self.now + clockwork.communication + clockwork.travels(question.message)
        seconds, busy = clockwork.computes(question), question.busy
        if question.step.quick:  # nothing but messages
            seconds = dict.fromkeys(seconds, 0.0)
        self._events = [(max(begin, busy.get(name, begin)) + seconds[name], _COMPUTED, name) for name in asked]
        if question.step.free:
            self._events = [(self.now, _COMPUTED, name) for name in asked]
        heapq.heapify(self._events)

    def next_arrival(self) -> str | None:
        """Return the site whose reply is here next, or None where none comes before the deadline."""
        while self._events and self._events[0][0] <= self._deadline and self._events[0][0] < math.inf:
            self.now, event, name = heapq.heappop(self._events)
            if event == _COMPUTED:
                self.replies[name] = self._clockwork.ask(name, self._question)
                if self._clockwork.bytes_count and not self._question.step.free:
                    arrival = self.now + self._clockwork.travels(self.replies[name].value)
                    heapq.heappush(self._events, (arrival, _ARRIVED, name))
                    continue
            self._arrived.add(name)
            return name
        if self._deadline < math.inf:
            self.now = self._deadline
        return None

    def under_way(self) -> list[Late]:
        """Return the replies that were made and did not arrive before the round was over."""
        return [self._late(name, math.inf) for name in sorted(set(self.replies) - self._arrived)]

    def afterwards(self) -> list[Late]:
        """Return all replies that come after the round was over, each with its time."""
        self._deadline, late = math.inf, []
        while (name := self.next_arrival()) is not None:
            late.append(self._late(name, self.now))
        return late

    def _late(self, name: str, due: float) -> Late:
        reply = self.replies[name]
        return Late(name, reply.value, reply.weight, self._asked[name], due)


def _never(question: Round, silent: Sequence[str]) -> None:
    names = ", ".join(map(repr, silent[:10])) + (f" and {len(silent) - 10} more" if len(silent) > 10 else "")
    way_out = (
        "set-up needs every site once: leave them out of the study"
        if question.step.setup
        else "the cohort waits for them: give it a deadline, or the number of replies to wait for (first)"
    )
    raise CohortError(f"round {question.number} ({question.step.name}): of {names} there will be no reply; {way_out}")
