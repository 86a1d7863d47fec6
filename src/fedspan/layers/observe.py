"""What a run looks like from outside: one record a round, and a call for whoever watches."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from fedspan.encoding import Array
from fedspan.rounds import Outcome, Round, Solve

T = TypeVar("T")


@dataclass(frozen=True)
class RoundRecord:
    """One round as an observer sees it."""

    round: int
    step: str
    setup: bool
    seconds: float
    bytes_up: int
    bytes_down: int
    sites: int
    aggregate: str
    """What the coordinator may see of the replies: "sum", "mean" or "gather"."""
    change: float | None = None
    """The sine of the largest angle between this round's estimate and the one before (None: no estimate yet)."""


OnRound = Callable[[RoundRecord, Array | None], None]
"""Called after each round with its record and the estimate (d x r, orthonormal) its question was asked with."""


def observe(solve: Solve[T], *watchers: OnRound) -> Solve[T]:
    """Tell watchers of each round."""
    outcome: Outcome | None = None
    before: Array | None = None
    while True:
        try:
            question: Round = solve.send(outcome)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        started = time.perf_counter()
        outcome = yield question
        seconds = time.perf_counter() - started
        record = RoundRecord(
            round=question.number,
            step=question.step.name,
            setup=question.step.setup,
            seconds=seconds,
            bytes_up=outcome.bytes_up,
            bytes_down=outcome.bytes_down,
            sites=len(outcome.sites),
            aggregate=type(question.reduce).__name__.lower(),
            change=_change(before, question.estimate),
        )
        for watcher in watchers:
            watcher(record, question.estimate)
        before = question.estimate if question.estimate is not None else before


def _change(before: Array | None, now: Array | None) -> float | None:
    if before is None or now is None:
        return None
    rest = now - before @ (before.T @ now)
    return float(np.sqrt(np.linalg.eigvalsh(rest.T @ rest).max(initial=0.0)))
