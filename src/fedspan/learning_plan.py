"""What a study of labelled rows will ask of its sites, before it touches their data.

The study is driven as it would be, but by one site that stands in for all: its few rows are zero, and the loss it tells
keeps falling, so that no test of progress ends a stage and the whole budget shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from fedspan.data.arrays import ArraySource
from fedspan.data.labelled import Labelled
from fedspan.encoding import payload_bytes
from fedspan.engines.simulated import Simulated
from fedspan.errors import ConfigurationError
from fedspan.learning import Learning, moments_study, solve_learning
from fedspan.plan import Plan, PlannedRound, PlannedRounds, make_plan
from fedspan.privacy.gaussian import GaussianPrivacy
from fedspan.reduce import Gather
from fedspan.rounds import Outcome, Round, Site, drive, numbered


@dataclass(frozen=True)
class LearningPlan(PlannedRounds):
    """The plan of a study of labelled rows; rounds of the start by the method of moments come first, as set-up."""

    features: int
    classes: int | None
    parameters: int
    """How many numbers all sites share."""
    start: Plan | None = None


@dataclass(frozen=True, kw_only=True)
class Outline:
    """What of the data a plan must know."""

    sites: tuple[str, ...]
    features: int
    columns: tuple[str, ...] | None = None
    classes: int | None = None
    """How many there are; None where y is numbers."""
    rows: int | None = None
    """About how many at all sites together; only a private start asks."""


def plan_learning(study: Learning, outline: Outline, privacy: GaussianPrivacy | None = None) -> LearningPlan:
    """List the rounds that a study will ask of sites like these.

    >>> from fedspan.learners import FedRep
    >>> plan = plan_learning(Learning(learner=FedRep(rounds=3)), Outline(sites=("a", "b"), features=9))
    >>> [(r.step, r.up, r.down) for r in plan.rounds if not r.setup][0]  # 9 x 2 numbers, and three; settings too
    ('fedrep.update', 168, 224)
    """
    begun, shared, planned = None, None, list[PlannedRound]()
    if isinstance(study.start, str) and study.start == "moments":
        begun = _plan_start(study, outline, privacy)
        planned = [_as_setup(r) for r in begun.rounds]
        shared = np.eye(outline.features, int(study.model["components"]))
    elif not isinstance(study.start, str):
        shared = study.start
    engine = _StandIn(outline, study.seed)
    learned, _, _ = drive(numbered(solve_learning(study, shared, [])), engine)
    return LearningPlan([*planned, *engine.planned], outline.features, outline.classes, int(learned.shared.size), begun)


def _plan_start(study: Learning, outline: Outline, privacy: GaussianPrivacy | None) -> Plan:
    if outline.classes is not None:
        raise ConfigurationError("the method of moments needs y to be numbers, not classes")
    if privacy is not None and outline.rows is None:
        raise ConfigurationError(
            "the rounds of a private start depend on how many rows there are, which is not looked up: state about how "
            "many at all sites together, as in --rows 10000"
        )
    each = max(outline.features if outline.rows is None else outline.rows // len(outline.sites), 1)
    rows = np.broadcast_to(np.zeros(1), (each, outline.features))  # only its shape is looked at
    return make_plan(moments_study(study, privacy), {name: ArraySource(rows) for name in outline.sites})


def _as_setup(planned: PlannedRound) -> PlannedRound:
    return PlannedRound(**{**vars(planned), "setup": True})


class _StandIn(Simulated):
    """Executes rounds by one site that answers for all, noting what each sends."""

    def __init__(self, outline: Outline, seed: int) -> None:
        super().__init__([Site(name, _Sized()) for name in outline.sites], seed)
        labels: Any = [0.5] if outline.classes is None else list(range(outline.classes))
        self._site = Site("", Labelled(np.zeros((len(labels), outline.features)), labels, columns=outline.columns))
        self._told = 0
        self.planned: list[PlannedRound] = []

    def __call__(self, question: Round) -> Outcome:
        asked = self.draw(question)
        replies = sorted(asked)[: _waited_for(question, len(asked))]
        self._site.asked, self._site.round, self._site._rng = question, question.number, None
        reply = question.step.run(self._site, question.message)
        self._site.state = {**self._site.state, **(reply.state or {})}
        up, down, gathered = payload_bytes(reply.value), payload_bytes(question.message), False
        value = reply.value
        if isinstance(question.reduce, Gather):
            value, gathered = dict.fromkeys(replies, value), True
        elif isinstance(value, Mapping) and "loss" in value:
            self._told += 1
            value = {**value, "loss": -float(self._told) * value["weight"]}
        step = question.step
        self.planned.append(
            PlannedRound(
                step.name, step.setup or step.free, len(replies), gathered, up, down, up * len(replies),
                down * len(asked),
            )
        )  # fmt: skip
        return Outcome(value, replies, up * len(replies), down * len(asked))


class _Sized:
    """Rows of a site that all count as much as another's."""

    mass = 1.0


def _waited_for(question: Round, asked: int) -> int:
    cohort = question.cohort
    if cohort.waits_for_all(asked):
        return asked
    few = [] if cohort.first is None else [cohort.first]
    return min([*few, *([] if cohort.share is None else [max(1, ceil(cohort.share * asked - 1e-9))])])
