"""What a run looks like from outside: one record a round, and a call for whoever watches."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from fedspan.encoding import Array
from fedspan.rounds import Masked, Outcome, Round, Solve

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
    clock: float = 0.0
    """The engine's own time when the round was over, where it keeps one: virtual seconds."""
    masked: Masked | None = None
    """How the sum was made, where the coordinator saw nothing else."""


OnRound = Callable[[RoundRecord, Array | None], None]
"""Called after each round with its record and the estimate its question was asked with (d x r, orthonormal; of a
network, its shared parameters)."""


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
            setup=question.step.setup or question.step.free,
            seconds=seconds,
            bytes_up=outcome.bytes_up,
            bytes_down=outcome.bytes_down,
            sites=len(outcome.sites),
            aggregate=type(question.reduce).__name__.lower(),
            change=_change(before, question.estimate),
            clock=outcome.clock,
            masked=outcome.masked,
        )
        for watcher in watchers:
            watcher(record, question.estimate)
        before = question.estimate if question.estimate is not None else before


def _change(before: Array | None, now: Array | None) -> float | None:
    if before is None or now is None or now.ndim != 2 or now.shape[0] != before.shape[0]:
        return None  # nothing yet, or parameters that are no basis
    rest = now - before @ (before.T @ now)
    return float(np.sqrt(np.linalg.eigvalsh(rest.T @ rest).max(initial=0.0)))
