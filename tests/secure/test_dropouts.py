"""Drop-outs in every phase, through the layer: an exact sum of those who are left, or a clean end and another try."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspan.errors import CohortError
from fedspan.layers import secure_sums
from fedspan.rounds import Cohort, Memory, Outcome, Reply, Round, Site, Sum, drive, numbered, site_step
from fedspan.secure import SecureSums, SumTerms
from tests.secure.by_hand import PHASES, REGULAR, RULES, names_of
from tests.secure.silence import Silence

PATIENT = Cohort(deadline=60.0)
"""A question that may be answered by some."""


@site_step("tests.vector", bound=lambda message, total, weight: {"value": 2.0**20})
def vector(site: Site, message: Any) -> Reply:
    """Whole numbers of the site's own: their sum is exact."""
    return Reply(np.random.default_rng([int(site.id[1:]), message]).integers(-1000, 1000, 3).astype(float))


class Rows:
    """As much of data as a bound asks for."""

    symmetric = False
    mass = 1.0

    def total(self) -> float:
        """Nothing is bounded by it."""
        return 1.0


@dataclass
class Federation:
    """Sites with parties; asks them for sums."""

    n: int
    rules: SecureSums = RULES
    least: int = 0
    repeats: int = 2
    cohort: Cohort = PATIENT
    engine: Any = None
    outcomes: list[Outcome] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.terms = SumTerms(self.rules, "a run", self.n, self.least)
        parties = self.terms.parties(names_of(self.n))
        self.sites = [Site(name, None, memory=Memory()) for name in parties]
        for site in self.sites:
            site.data, site.masks = Rows(), parties[site.id]

    def ask(self, silent: Any, rounds: int = 1) -> list[Any]:
        """Ask for sums while sites are silent; return them."""
        return self.through(Silence(silent), rounds)

    def through(self, engine: Any, rounds: int = 1) -> list[Any]:
        """Ask for sums through an engine."""
        self.engine = engine
        return drive(secure_sums(self._watched(numbered(self._asked(rounds))), self.terms), engine(self.sites, 0))

    def _asked(self, rounds: int) -> Any:
        sums = []
        for number in range(rounds):
            total = yield Round(vector, number, Sum(), self.cohort, total=1.0, weight=1.0)
            sums.append(total)
        return sums

    def _watched(self, solve: Any) -> Any:
        outcome = None
        while True:
            try:
                outcome = yield solve.send(outcome)
            except StopIteration as stop:
                return stop.value
            self.outcomes.append(outcome)


def expected(names: Collection[str], number: int = 0) -> np.ndarray:
    """The plain sum over some sites."""
    return sum(vector(Site(name, None), number).value for name in names)


def spare(n: int, rules: SecureSums) -> int:
    return n - rules.fewest(n)


def lost(phase: str, names: Collection[str]) -> Any:
    return lambda number, asked, attempt: set(names) if asked == phase else ()


def from_then_on(phase: str, names: Collection[str]) -> Any:
    """A site that is gone stays gone, for this attempt and those after it."""
    return lambda number, asked, attempt: set(names) if PHASES.index(asked) >= PHASES.index(phase) else ()


# ---- up to the threshold ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("n", [4, 7, 10])
def test_as_many_as_the_threshold_allows_may_drop_out_in_any_phase(n, phase):
    for count in range(spare(n, RULES) + 1):
        gone = names_of(n)[1 : 1 + count]
        federation = Federation(n)
        (total,) = federation.ask(from_then_on(phase, gone))
        (outcome,) = federation.outcomes
        left = names_of(n) if phase in ("consent", "release") else [name for name in names_of(n) if name not in gone]
        assert outcome.sites == left
        assert np.allclose(total, expected(left))
        assert outcome.masked.attempts == 1
        assert outcome.masked.asked == n - (count if phase == "keys" else 0)
        assert outcome.masked.dropped == (tuple(gone) if phase == "masked" else ())


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("n", [4, 7, 10])
def test_one_more_and_the_round_fails_cleanly_and_tells_nothing(n, phase):
    gone = names_of(n)[1 : 2 + spare(n, RULES)]
    federation = Federation(n)
    with pytest.raises(CohortError, match=r"round 0: no secure sum: .*it takes|shares are missing"):
        federation.ask(from_then_on(phase, gone))
    attempts = federation.rules.repeats + 1
    assert federation.engine.asked[0, "keys"] == attempts
    if phase != "release":
        assert federation.engine.asked[0, "release"] == 0  # not a share of any secret was asked for
    else:
        assert federation.engine.asked[0, "release"] == attempts * attempts
    assert not federation.outcomes


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("repeats", [0, 1, 2])
def test_asked_again_with_fresh_keys_it_succeeds_when_the_sites_are_back(phase, repeats):
    n = 7
    gone = set(names_of(n)[: spare(n, RULES) + 1])
    rules = SecureSums(repeats=repeats)
    federation = Federation(n, rules)

    def silent(number, asked, attempt):
        return gone if asked == phase and attempt <= 2 else ()

    if repeats < 2:
        with pytest.raises(CohortError):
            federation.ask(silent)
        assert federation.engine.asked[0, "keys"] == repeats + 1
        return
    (total,) = federation.ask(silent)
    assert np.allclose(total, expected(names_of(n)))
    assert federation.outcomes[0].masked.attempts == 3
    sessions = {value["s006"]["advert"].tobytes() for _, asked, value in federation.engine.told if asked == "keys"}
    assert len(sessions) == 3


@settings(deadline=None, max_examples=30)
@given(st.integers(3, 9), st.data())
def test_any_drop_outs_end_in_the_exact_sum_or_in_a_clean_error(n, data):
    gone = {phase: data.draw(st.sets(st.sampled_from(names_of(n)), max_size=3)) for phase in PHASES}
    federation = Federation(n)
    try:
        totals = federation.ask(lambda number, phase, attempt: gone[phase] if number == 0 else (), rounds=2)
    except CohortError:
        left = n - len(gone["keys"] | gone["shares"] | gone["masked"])
        few = [n - len(gone[phase]) for phase in PHASES]
        assert min(left, *few) < RULES.quorum(n) or n - len(set().union(*gone.values())) < RULES.quorum(n)
        return
    for number, (total, outcome) in enumerate(zip(totals, federation.outcomes, strict=True)):
        assert np.allclose(total, expected(outcome.sites, number))
        assert len(outcome.sites) >= RULES.fewest(n)
    assert federation.outcomes[1].sites == names_of(n)


# ---- a graph of neighbours -------------------------------------------------------------------------------------

MANY = 40


@pytest.mark.parametrize("phase", PHASES)
def test_with_some_neighbours_only_drop_outs_are_survived_too(phase):
    assert REGULAR.neighbours(MANY) < MANY - 1
    rng = np.random.default_rng(PHASES.index(phase))
    gone = rng.choice(names_of(MANY), size=4, replace=False).tolist()
    federation = Federation(MANY, REGULAR)
    (total,) = federation.ask(from_then_on(phase, gone))
    left = names_of(MANY) if phase in ("consent", "release") else [n for n in names_of(MANY) if n not in gone]
    assert np.allclose(total, expected(left))
    asked = MANY - len(gone) if phase == "keys" else MANY
    assert federation.outcomes[0].masked.neighbours == REGULAR.neighbours(asked, MANY)


@pytest.mark.parametrize("phase", PHASES)
def test_with_some_neighbours_only_too_many_drop_outs_fail_cleanly(phase):
    gone = names_of(MANY)[: spare(MANY, REGULAR) + 1]
    federation = Federation(MANY, SecureSums(complete_up_to=2, security=8, correctness=8, repeats=0))
    with pytest.raises(CohortError, match="round 0: no secure sum"):
        federation.ask(from_then_on(phase, gone))
    assert federation.engine.asked[0, "release"] <= 1


def test_drop_outs_in_every_phase_at_once():
    gone = {"keys": {"s003"}, "shares": {"s011"}, "masked": {"s020", "s021"}, "consent": {"s030"}, "release": {"s039"}}
    federation = Federation(MANY, REGULAR)
    (total,) = federation.ask(lambda number, phase, attempt: gone[phase])
    left = [name for name in names_of(MANY) if name not in ("s003", "s011", "s020", "s021")]
    assert federation.outcomes[0].sites == left
    assert np.allclose(total, expected(left))
    assert federation.outcomes[0].masked.dropped == ("s020", "s021")


# ---- who is waited for -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["keys", "shares", "masked"])
@pytest.mark.parametrize(
    ("cohort", "needed"),
    [(Cohort(), 7), (Cohort(first=6), 6), (Cohort(first=99), 7), (Cohort(deadline=9.0), 5)],
    ids=str,
)
def test_a_sum_is_of_as_many_as_the_question_waits_for(phase, cohort, needed):
    """Who is not asked for at all in the keys' phase is for the engine to tell: here it says that they were few."""
    n = 7
    for count in range(4):
        federation = Federation(n, SecureSums(repeats=0), cohort=cohort)
        gone = set(names_of(n)[:count])
        left = n - count
        waited = needed if phase != "keys" or needed == 5 else min(needed, left)
        if left < max(waited, RULES.fewest(n)):
            with pytest.raises(CohortError):
                federation.ask(lost(phase, gone))
        else:
            (total,) = federation.ask(lost(phase, gone))
            found = federation.outcomes[0].sites
            assert np.allclose(total, expected(found))
            assert len(found) <= left


def test_a_question_to_all_is_asked_again_until_all_are_there():
    federation = Federation(7, cohort=Cohort())
    (total,) = federation.ask(lambda number, phase, attempt: {"s002"} if phase == "masked" and attempt < 3 else ())
    assert np.allclose(total, expected(names_of(7)))
    assert federation.outcomes[0].masked.attempts == 3


class Losing(Silence):
    """Loses all shares that are released in the first attempt."""

    def __call__(self, sites: Any, seed: int) -> Any:
        execute = super().__call__(sites, seed)

        def run(question: Round) -> Outcome:
            outcome = execute(question)
            lost = question.step.name == "secure.release" and self.asked[question.number, "keys"] == 1
            return outcome._replace(value={}, sites=[]) if lost else outcome

        return run


def test_a_sum_that_was_begun_to_be_unmasked_is_finished_with_those_it_was_of():
    """One drops out, the rest release, but their shares are lost; in the next attempt all are back."""
    federation = Federation(7)
    (total,) = federation.through(Losing(lambda number, phase, n: {"s001"} if (phase, n) == ("masked", 1) else ()))
    left = [name for name in names_of(7) if name != "s001"]
    assert federation.outcomes[0].sites == left
    assert federation.outcomes[0].masked.attempts == 2
    assert federation.outcomes[0].masked.dropped == ("s001",)
    assert np.allclose(total, expected(left))


def test_of_those_silent_at_the_release_shares_are_asked_again():
    federation = Federation(7)

    def silent(number, phase, attempt):
        return names_of(7)[:3] if phase == "release" and federation.engine.asked[0, "release"] == 1 else ()

    (total,) = federation.ask(silent)
    assert np.allclose(total, expected(names_of(7)))
    assert federation.engine.asked[0, "release"] == 2
    assert federation.outcomes[0].masked.attempts == 1
    first, again = [value for _, phase, value in federation.engine.told if phase == "release"]
    assert (sorted(first), sorted(again)) == (names_of(7)[3:], names_of(7)[:3])


def test_a_sum_that_was_begun_is_finished_with_all_of_them_though_the_question_waits_for_a_part():
    federation = Federation(7, cohort=Cohort(share=0.7))
    (total,) = federation.through(Losing(lambda number, phase, attempt: ()))
    assert len(federation.outcomes[0].sites) == 5
    assert federation.outcomes[0].masked.attempts == 2
    assert np.allclose(total, expected(federation.outcomes[0].sites))
