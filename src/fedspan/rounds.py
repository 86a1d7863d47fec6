"""The vocabulary of fedspan: read this first.

A **solver** is a generator: the coordinator's half of a paper, written straight down. Each ``yield Round(...)``
asks the federation one question and receives one aggregate. The **site's half** is a named module-level function,
a *step*. An **engine** is one callable that executes a round. Privacy, secure sums, recording and observing
are **layers**: generators that pass on, and may rewrite, the stream of rounds. A site's own privacy is not a
layer but its **policy**: every number a step lets go of passes through `Site.noised`.

::

    solver  --Round-->  numbered  --Round-->  layers ...  --Round-->  engine  --step, message-->  answer(site, ...)
            <--value--            <-Outcome-              <-Outcome-          <-----Reply------

A solver never sees an engine, a socket or another site's data, so the same file runs in one process, over a wire
and on a deployed federation. Only step *names* and plain data (see `fedspan.encoding`) cross the line.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from fedspan.cohort import Cohort
from fedspan.encoding import Array, Plain, digest
from fedspan.errors import PolicyError, StateLost
from fedspan.reduce import Gather, Mean, Merge, Reduce, Sum
from fedspan.site import STEPS, Bound, Memory, Policy, Reply, Sensitivity, Site, Step, site_step

__all__ = [
    "STEPS", "Array", "Bound", "Cohort", "Gather", "Late", "Masked", "Mean", "Memory", "Merge", "Outcome", "Plain",
    "Policy", "Reduce", "Reply", "Round", "Sensitivity", "Site", "Solve", "Step", "Sum", "answer", "drive", "numbered",
    "site_step",
]  # fmt: skip

T = TypeVar("T")


# ---- the coordinator's side ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Round:
    """One question to the sites. ``number`` and what stands below it, but for ``terms``, is filled in by `numbered`."""

    step: Step
    message: Plain = None
    reduce: Reduce = field(default_factory=Sum)
    cohort: Cohort = field(default_factory=Cohort)
    estimate: Array | None = None
    """The orthonormal d x r basis as it stands when the question is asked, for observers."""
    number: int = -1
    parents: Mapping[str, int] = field(default_factory=dict)
    """For each site, the last round it answered: the state its step must go on from."""
    carried: tuple[Late, ...] = ()
    """Late replies of the step's round before, which count in this one."""
    clock: float = 0.0
    """The engine's own time when the question is asked, where it keeps one (seconds since the run began)."""
    busy: Mapping[str, float] = field(default_factory=dict)
    """Until when sites are at work on replies that are carried over, of any step, by the engine's own time."""
    terms: dict[str, Plain] | None = None
    """The state every site has from set-up (the preparation), for one that lost its own and may restart."""
    total: float | None = None
    """The trace of all prepared rows' Gram matrix, where the study knows it exactly: secure sums are scaled by it."""
    weight: float | None = None
    """The number of those rows (or the sum of their weights), likewise."""
    letters: Mapping[str, Plain] = field(default_factory=dict)
    """What single sites are told beside the message, and nobody else."""

    @cached_property
    def digest(self) -> str:
        """The question's fingerprint: the same round may only ever be asked with the same one."""
        return digest([self.number, self.step.name, self.message])

    def told(self, site: str) -> Plain:
        """Return the message as one site gets it: with its own letter, if there is one."""
        return {**self.message, "letter": self.letters[site]} if site in self.letters else self.message


class Late(NamedTuple):
    """A reply that came too late for its round and is carried over to the next of its step."""

    site: str
    value: Plain
    weight: float
    times: int
    due: float = 0.0
    """When it will be here, by the engine's own time."""


class Outcome(NamedTuple):
    """What came of a round: the aggregate, and what it cost."""

    value: Plain
    sites: list[str]
    bytes_up: int
    bytes_down: int
    carried: tuple[Late, ...] = ()
    """Replies that came too late and join the next round of this step."""
    dropped: tuple[Late, ...] = ()
    """Replies that came too late and count nowhere: they left their sites all the same."""
    clock: float = 0.0
    """The engine's own time when the round was over, where it keeps one."""
    times: Mapping[str, int] = MappingProxyType({})
    """How often a reply counts, for the sites where that is not once."""
    masked: Masked | None = None
    """How the sum was made, where the coordinator saw nothing else."""


class Masked(NamedTuple):
    """A secure sum, as the run's history tells it."""

    asked: int
    """Sites that gave their keys."""
    neighbours: int
    """With how many others each site shared masks."""
    quorum: int
    """How many of those asked it took."""
    dropped: tuple[str, ...] = ()
    """Sites that fell silent after that, and are not in the sum."""
    refused: Mapping[str, str] = MappingProxyType({})
    """Why sites took no further part, in their own words."""
    rounding: float = 0.0
    """The most that fixed-point rounding moved any number of the sum."""
    attempts: int = 1
    """How often it took, each time with fresh keys."""


Solve = Generator[Round, Any, T]
"""A solver in flight: yields rounds, is sent their aggregates (layers: their outcomes), returns its result."""


def numbered(solve: Solve[T]) -> Solve[T]:
    """Number a solver's rounds, note who answered which, and hand the solver the bare aggregate."""
    parents: dict[str, int] = {}
    waiting: dict[str, tuple[Late, ...]] = {}
    held: dict[str, tuple[str, ...]] = {}
    number, value, clock = 0, None, 0.0
    while True:
        try:
            question = solve.send(value)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        step, cohort, carried = question.step.name, question.cohort, waiting.pop(question.step.name, ())
        if cohort.hold in held:
            cohort = Cohort(only=held[cohort.hold], deadline=cohort.deadline, late=cohort.late)
        outcome: Outcome = yield replace(
            question, number=number, parents=dict(parents), carried=carried, cohort=cohort, clock=clock,
            busy=_busy([*carried, *(late for others in waiting.values() for late in others)], clock),
        )  # fmt: skip
        if question.cohort.hold is not None:
            held.setdefault(question.cohort.hold, tuple(sorted(set(outcome.sites))))
        parents.update(dict.fromkeys([*outcome.sites, *(late.site for late in outcome.carried)], number))
        waiting[step] = outcome.carried
        number, value, clock = number + 1, outcome.value, outcome.clock


def descent(lineage: str, question: Round) -> str:
    """Return the lineage of a state that a question leaves behind: of all questions that it came by."""
    return digest([lineage, question.digest])


def _busy(carried: Iterable[Late], clock: float) -> dict[str, float]:
    """Return until when each site is at work on what is carried over, where that is not done yet."""
    until: dict[str, float] = {}
    for late in carried:
        if late.due > clock:
            until[late.site] = max(late.due, until.get(late.site, 0.0))
    return until


def drive(solve: Solve[T], execute: Callable[[Round], Outcome]) -> T:
    """The coordinator's half of every engine: pull rounds out of a solver and execute them."""
    outcome = None
    while True:
        try:
            question = solve.send(outcome)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        outcome = execute(question)


# ---- the site's side: what it is, is in `fedspan.site` ----------------------------------------------------------


def answer(site: Site, question: Round, *, masked: bool = False) -> Reply:
    """The site's half of every engine: go on from the right state, run the step, commit before replying.

    ``masked``: the reply goes no further than the mask that hides it.
    """
    if question.step.protocol:
        site.asked = question
        return question.step.run(site, question.told(site.id))
    if site.masks is not None:
        site.masks.check_open()
    if site.masks is not None and not masked and not question.step.public:
        raise PolicyError(
            f"site {site.id!r} answers {question.step.name} in masked rounds only; it was asked without masks"
        )
    memory, parent = site.memory, question.parents.get(site.id)
    known = memory.recall(question)
    if known is not None:
        return known
    state = memory.version(parent)
    if state is None:
        if question.step.lost == "leave" or (question.terms is None and not question.step.setup):
            raise StateLost(
                f"site {site.id!r} lost its state: round {question.number} ({question.step.name}) goes on from round "
                f"{parent}, which this site does not have; restore the site's folder, or start the study anew"
            )
        state = {} if question.step.setup else question.terms or {}  # set-up starts from the rows as they are
    if site.reopen is not None:
        with _discreet(site, question):
            site.reopen(site, state)
    site.state, site.round, site.asked, site._rng = state, question.number, question, None
    try:
        reply = _run(site, question)
    except Exception as error:
        if site.masks is not None and not isinstance(error, PolicyError):  # it tells a bit of the rows: once
            site.masks.end()
        raise
    if masked and question.step.goes_on:
        state = {**state, "lineage": descent(state.get("lineage", ""), question)}
    state = state if reply.state is None else {**state, **reply.state}
    if masked and site.policy is not None:
        state = {**state, "grid": dict(site.policy.steps() or {})}  # a reply that is given again is read as it was
    memory.commit(question, parent, reply, state)
    return reply


def _run(site: Site, question: Round) -> Reply:
    """Run the step; under a policy only if it admits the question, and with nothing beside what it noised."""
    if site.policy is None:
        return question.step.run(site, question.message)
    site.policy.admit(site, question)
    with _discreet(site, question):
        reply = question.step.run(site, question.message)
    if reply.weight != 1.0:
        raise PolicyError(f"step {question.step.name} would send a weight, which no noise covers; ask for a sum")
    return reply


@contextmanager
def _discreet(site: Site, question: Round) -> Iterator[None]:
    """Under a policy an error says outside no more than a code: its text may hold values."""
    try:
        yield
    except Exception as error:
        if site.policy is None:
            raise
        raise site.policy.refusal(site, question, error) from error
