"""Secure sums: each `Sum` becomes a few exchanges after which the coordinator knows the sum, and no single reply.

::

    Round(step, Sum())  ->  keys -> shares -> masked -> consent -> release  ->  Outcome(sum)

Every exchange is a round to the engine, of the same number; the solver sees one. The phases are `fedspan.secure`'s:
this file is their order, and what becomes of a round that came to nothing (it is asked again, with fresh keys).

The scale of the fixed-point numbers is public. Where noise is added at the sites it is the noise's own grid. Else it
follows from a bound on the sum: the step's own (`Step.bound`) with the study's total, or one that is summed up first.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import replace
from itertools import count
from typing import Any, TypeVar

from fedspan.encoding import Array, Plain
from fedspan.errors import CohortError, ConfigurationError
from fedspan.reduce import Gather, MaskedSum, Mean, Sum
from fedspan.rounds import Cohort, Masked, Outcome, Round, Solve, Step
from fedspan.secure import SumTerms, fixed_point, steps
from fedspan.secure.aggregation import Aggregation, new_nonce
from fedspan.secure.roll import Subject

T = TypeVar("T")


def secure_sums(solve: Solve[T], terms: SumTerms) -> Solve[T]:
    """Make every sum a secure one; let pass what tells nothing of the rows; refuse the rest."""
    outcome: Outcome | None = None
    while True:
        try:
            question: Round = solve.send(outcome)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        if question.step.public:
            outcome = yield question
            continue
        if not isinstance(question.reduce, Sum | Mean) or question.cohort.late == "carry":
            raise ConfigurationError(
                f"secure sums add replies up, and step {question.step.name} shows the coordinator each one, or carries "
                f"late ones over; take a solver of sums (krylov, power, covariance, faps, private-power, fedpower "
                f'with reference="global") and late = "drop"'
            )
        outcome = yield from _Exchange(question, terms).outcome()


class _Exchange:
    """All that is asked for one sum, and what it cost."""

    def __init__(self, question: Round, terms: SumTerms) -> None:
        self._question, self._terms = question, terms
        self._up = self._down = self._attempts = 0
        self._clock = question.clock
        self._made: Aggregation

    def outcome(self) -> Generator[Round, Outcome, Outcome]:
        """Find a scale, sum, and say what came of it."""
        exponents: dict[str, int] | None = None
        if not self._terms.noised:
            bounds = declared_bounds(self._question)
            if bounds is None:
                wide, _ = yield from self._repeated("bound", None)
                bounds = {name: fixed_point.from_wide(part) for name, part in wide.items()}
            exponents = {name: fixed_point.exponent_for(bound * steps.SLACK) for name, bound in bounds.items()}
        total, used = yield from self._repeated("value", exponents)
        parts: dict[str, Any] = {name: fixed_point.decode(part, used[name]) for name, part in total.items()}
        rounding = max(fixed_point.rounding_error(e, len(self._made.alive)) for e in used.values())
        return Outcome(
            self._value(parts), self._made.alive, self._up, self._down, clock=self._clock,
            masked=self._masked(0.0 if self._terms.exact else rounding),
        )  # fmt: skip

    def _value(self, parts: dict[str, Any]) -> Plain:
        if isinstance(self._question.reduce, Mean):
            weight = float(parts.pop("weight of the mean"))
            parts = {name: part / weight for name, part in parts.items()}
        parts = {name: part if part.ndim else part[()] for name, part in parts.items()}
        return parts["value"] if set(parts) == {"value"} else parts

    def _masked(self, rounding: float) -> Masked:
        made = self._made
        return Masked(
            len(made.asked), made.roll.degree, made.roll.quorum, tuple(made.dropped), dict(made.refused), rounding,
            self._attempts,
        )  # fmt: skip

    # ---- one sum -------------------------------------------------------------------------------------------------

    def _repeated(
        self, kind: str, exponents: dict[str, int] | None
    ) -> Generator[Round, Outcome, tuple[dict[str, Array], dict[str, int]]]:
        """Sum; where too few sites are left, once more with fresh keys, as often as agreed."""
        for attempt in count(1):
            self._attempts = max(self._attempts, attempt)
            try:
                return (yield from self._attempt(kind, exponents))
            except CohortError:
                if attempt > self._terms.rules.repeats:
                    raise
        raise AssertionError("counting does not end")

    def _attempt(
        self, kind: str, exponents: dict[str, int] | None
    ) -> Generator[Round, Outcome, tuple[dict[str, Array], dict[str, int]]]:
        question, terms = self._question, self._terms
        subject = Subject(terms.run, question.number, kind, question.digest, new_nonce(), terms.rules, terms.expected)
        made = self._made = Aggregation(subject, terms.least)
        everyone = replace(question.cohort, first=None, share=None, hold=None, late="drop")
        asked = yield from self._ask(steps.keys, made.keys(), everyone)
        made.take_keys(asked.value, _waited(question.cohort, len(asked.sites)))
        shared = yield from self._ask(steps.shares, made.shares(), self._of(made.asked), made.share_letters())
        made.take_shares(shared.value)
        cohort = self._of(made.wanted)
        if not made.before:
            cohort = replace(cohort, first=question.cohort.first, share=question.cohort.share)
        message = {
            "session": made.session, "step": question.step.name, "message": question.message, "exponents": exponents,
            "times": dict(asked.times), "mean": isinstance(question.reduce, Mean),
        }  # fmt: skip
        replies = yield from self._ask(steps.masked, message, cohort, made.mask_letters(), MaskedSum())
        made.take_masked(replies.value["sites"], replies.value["refused"])
        consents = yield from self._ask(steps.consent, made.consent(), self._of(made.alive))
        made.take_consents(consents.value)
        yield from self._released(made)
        return _unmasked(made, replies.value["total"], replies.value["about"]), replies.value["exponents"]

    def _released(self, made: Aggregation) -> Generator[Round, Outcome, None]:
        """Ask for shares; of those who did not answer, again: the sum is signed for, and cannot be made otherwise."""
        silent, message = made.signers, made.release()
        for _ in range(self._terms.rules.repeats + 1):
            released = yield from self._ask(steps.release, message, self._of(silent))
            made.take_released(released.value)
            silent = sorted(set(silent) - set(released.value))
            if made.complete or not silent:
                return

    def _of(self, names: list[str]) -> Cohort:
        return Cohort(only=tuple(names), deadline=self._question.cohort.deadline)

    def _ask(
        self,
        step: Step,
        message: Plain,
        cohort: Cohort,
        letters: Mapping[str, Plain] | None = None,
        reduce: Any = Gather(),  # noqa: B008 - frozen, and without fields
    ) -> Generator[Round, Outcome, Outcome]:
        """Ask one exchange, and count what it cost."""
        outcome = yield replace(
            self._question, step=step, message=message, reduce=reduce, cohort=cohort, letters=letters or {},
            carried=(), clock=self._clock,
        )  # fmt: skip
        self._up, self._down = self._up + outcome.bytes_up, self._down + outcome.bytes_down
        self._clock = outcome.clock
        if isinstance(reduce, Gather):  # which tells a reply as often as it was drawn
            outcome = outcome._replace(value={name: outcome.value[name] for name in outcome.sites})
        return outcome


def declared_bounds(question: Round) -> dict[str, float] | None:
    """Return what a step says its sum is bounded by, where the study knows what that takes."""
    bound = question.step.bound
    if bound is None or question.total is None or question.weight is None or isinstance(question.reduce, Mean):
        return None
    if question.cohort.sample != "uniform":  # drawn with replacement, one may count often
        return None
    return bound(question.message, question.total, question.weight)


def _waited(cohort: Cohort, asked: int) -> int:
    """Return how many of those asked must be in the sum: a drop-out is one that the question waits for, or it is not.

    A solver that asks everyone mixes rounds, or takes the sum for that of all rows: without a site it would be wrong,
    unseen. So the sum is made anew, and with all.
    """
    if cohort.deadline is not None or cohort.share is not None:
        return 0
    return asked if cohort.first is None else min(cohort.first, asked)


def _unmasked(made: Aggregation, total: dict[str, Array], about: str) -> dict[str, Array]:
    """Take the masks off the parts as one vector, and part them again."""
    vector = steps.flat(total)
    made.unmask(vector, about)
    return steps.shaped(vector, total)
