"""The transcript: each site's release as the coordinator saw it, for whoever measures what it reveals.

It sits directly above the engine. What is seen is on disk before `fedspan.layers.record`, above it, notes the round as
answered, so a journalled round is always in the transcript; and rounds that `record` answers from its journal do not
come by again.

A reply that came too late belongs to the round that asked for it, whether it counts in the next one or nowhere.

Of a secure sum what passes by here are its exchanges. What they came to is noted above `fedspan.layers.secure_sums`,
where the coordinator learns it, by `noting_sums`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from fedspan.encoding import Plain
from fedspan.privacy.transcript import Seen, TranscriptWriter
from fedspan.rounds import Outcome, Round, Solve

T = TypeVar("T")


def transcript(solve: Solve[T], writer: TranscriptWriter) -> Solve[T]:
    """Keep every release of every round, before anyone makes use of the outcome."""
    outcome: Outcome | None = None
    while True:
        try:
            question: Round = solve.send(outcome)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        writer.check_rounds_before(question.number)
        noting = _Noting(question)
        outcome = yield replace(question, reduce=noting)  # type: ignore[arg-type]  # engines use its collector only
        seen = _seen(question, noting.replies, outcome)
        if question.step.protocol:
            writer.append_exchange(seen)
        else:
            writer.append(seen)


def noting_sums(solve: Solve[T], writer: TranscriptWriter) -> Solve[T]:
    """Keep what each secure sum came to, and of whom it is, before anyone makes use of it."""
    outcome: Outcome | None = None
    while True:
        try:
            question: Round = solve.send(outcome)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        outcome = yield question
        if outcome.masked is not None:
            seen = _seen(question, {}, outcome)
            writer.append(replace(seen, total=outcome.value, summed=sorted(outcome.sites)))


class _Noting:
    """A round's reduction, noting each reply on its way into the aggregate."""

    def __init__(self, question: Round) -> None:
        self.replies: dict[str, Plain] = {}
        self._reduce = question.reduce
        self._carried = [(late.site, id(late.value)) for late in question.carried]

    def collector(self, order_free: bool) -> _NotingCollector:
        """Return an empty collector."""
        return _NotingCollector(self, self._reduce.collector(order_free))

    def note(self, name: str, value: Plain, weight: float) -> None:
        """Note a reply to this round; one carried over from a round before was noted there."""
        if (name, id(value)) in self._carried:
            self._carried.remove((name, id(value)))
        else:
            self.replies[name] = _release(value, weight)


class _NotingCollector:
    def __init__(self, noting: _Noting, collector: Any) -> None:
        self._noting, self._collector = noting, collector

    def add(self, name: str, value: Plain, weight: float, times: int) -> None:
        self._noting.note(name, value, weight)
        self._collector.add(name, value, weight, times)

    def result(self) -> Plain:
        return self._collector.result()


def _seen(question: Round, replies: dict[str, Plain], outcome: Outcome) -> Seen:
    late = {
        reply.site: _release(reply.value, reply.weight)
        for reply in (*outcome.carried, *outcome.dropped)
        if not any(reply is before for before in question.carried)  # still under way, and noted when it was asked for
    }
    return Seen(
        round=question.number,
        step=question.step.name,
        setup=question.step.setup,
        message=question.message,
        aggregate=type(question.reduce).__name__.lower(),
        replies={**replies, **late},
    )


def _release(value: Plain, weight: float) -> Plain:
    """Return what left the site: the value, and its weight where that says anything."""
    return value if weight == 1.0 else {"value": value, "weight": float(weight)}
