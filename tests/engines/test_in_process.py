"""All sites in one process: who is asked, who is late, and what failures say."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from fedspan.data import open_source
from fedspan.engines import ENGINES, InProcess, get_engine
from fedspan.errors import CohortError, ConfigurationError, DataError, SiteError
from fedspan.rounds import STEPS, Cohort, Gather, Mean, Reply, Round, Site, Sum, drive, numbered, site_step

NAMES = ["a", "b", "c", "d"]
MULTIPLY = STEPS["gram.multiply"]
Z = np.eye(3)[:, :2]


def sites(names=NAMES, memory=None):
    rng = np.random.default_rng(0)
    return [Site(name, open_source(rng.standard_normal((5 + i, 3))), seed=1) for i, name in enumerate(names)]


@site_step("tests.count")
def count(site, message):
    """Reply who and how often: the state counts the rounds this site's replies were used."""
    used = site.state.get("used", 0)
    return Reply({"one": 1.0, "used": float(used)}, state={"used": used + 1})


@site_step("tests.slow")
def slow(site, message):
    """Take a while at one site."""
    if site.id == message:
        time.sleep(0.6)
    return Reply(1.0)


@site_step("tests.fail")
def fail(site, message):
    """Fail at one site."""
    if site.id == message:
        raise ZeroDivisionError("a secret value")
    return Reply(1.0)


@site_step("tests.refuse")
def refuse(site, message):
    """Refuse as a data step does, without saying who."""
    raise DataError("too few rows")


def test_the_sum_is_that_of_all_sites():
    here = sites()
    outcome = InProcess(here)(Round(MULTIPLY, Z, number=0))
    np.testing.assert_allclose(outcome.value, sum(s.source.gram_times(Z) for s in here))
    assert outcome.sites == NAMES
    assert outcome.bytes_up == outcome.bytes_down == 4 * Z.nbytes
    assert outcome.carried == ()


def test_sites_are_visited_in_name_order_whatever_they_came_in():
    question = Round(MULTIPLY, Z, number=0)
    forth, back = InProcess(sites())(question), InProcess(sites()[::-1])(question)
    assert forth.value.tobytes() == back.value.tobytes()
    assert forth.sites == back.sites


def test_two_sites_of_one_name_are_refused():
    with pytest.raises(ConfigurationError, match="two sites have the same name"):
        InProcess([*sites(), *sites(["a"])])


def test_gather_and_mean():
    here = sites()
    gathered = InProcess(here)(Round(MULTIPLY, Z, Gather(), number=0)).value
    assert list(gathered) == NAMES
    mean = InProcess(here)(Round(MULTIPLY, Z, Mean(), number=0)).value
    np.testing.assert_allclose(mean, sum(gathered.values()) / 4)


def test_first_replies_end_a_round_and_the_rest_is_not_even_computed():
    engine, cohort = InProcess(sites(), seed=3), Cohort(first=2)
    answered = [engine(Round(count, number=n, cohort=cohort)).sites for n in range(20)]
    assert {len(names) for names in answered} == {2}
    assert {name for names in answered for name in names} == set(NAMES)
    again = InProcess(sites(), seed=3)
    assert answered == [again(Round(count, number=n, cohort=cohort)).sites for n in range(20)]
    other = InProcess(sites(), seed=4)
    assert answered != [other(Round(count, number=n, cohort=cohort)).sites for n in range(20)]


def test_first_as_many_as_there_are_is_all():
    assert InProcess(sites())(Round(count, number=0, cohort=Cohort(first=9))).sites == NAMES


def test_bytes_down_count_everyone_asked_and_bytes_up_everyone_who_answered():
    outcome = InProcess(sites())(Round(MULTIPLY, Z, number=0, cohort=Cohort(first=2)))
    assert (outcome.bytes_down, outcome.bytes_up) == (4 * Z.nbytes, 2 * Z.nbytes)


def test_a_reply_after_the_deadline_is_dropped():
    engine = InProcess(sites())
    outcome = engine(Round(slow, "b", number=0, cohort=Cohort(deadline=0.5)))
    assert outcome.sites == ["a", "c", "d"]
    assert outcome.value == 3.0
    assert [late.site for late in outcome.dropped] == ["b"]  # which left its site all the same


def test_a_round_nobody_answers_in_time_is_an_error():
    with pytest.raises(CohortError, match=r"round 0 \(tests.slow\): none of 1 sites answered in time"):
        InProcess(sites(["b"]))(Round(slow, "b", number=0, cohort=Cohort(deadline=0.5)))


def test_draws_by_size_count_a_site_as_often_as_it_was_drawn():
    engine = InProcess(sites(), seed=5)
    cohort = Cohort(sample="by-size-with-replacement")
    totals = [engine(Round(count, number=n, cohort=cohort)) for n in range(10)]
    assert {float(outcome.value["one"]) for outcome in totals} == {4.0}
    assert min(len(outcome.sites) for outcome in totals) < 4


def test_draws_by_size_follow_row_weights():
    """A weight is a repeated row, in a draw too."""
    rows = np.random.default_rng(0).standard_normal((4, 3))
    heavy = [Site("a", open_source(rows, weights=np.full(4, 9.0))), Site("b", open_source(rows))]
    engine = InProcess(heavy, seed=1)
    cohort = Cohort(fraction=0.5, sample="by-size-with-replacement")
    drawn = [engine(Round(count, number=n, cohort=cohort)).sites[0] for n in range(300)]
    assert 0.84 < drawn.count("a") / 300 < 0.96


# ---- late replies that are carried over ------------------------------------------------------------------------


def carrying(cohort, rounds=12, seed=2):
    """Drive a study that asks the same step again and again; returns each round's outcome."""
    outcomes = []

    def solve():
        for _ in range(rounds):
            yield Round(count, None, Sum(), cohort)

    engine = InProcess(sites(), seed=seed)

    def execute(question):
        outcome = engine(question)
        outcomes.append(outcome)
        return outcome

    drive(numbered(solve()), execute)
    return outcomes


def test_a_late_reply_joins_the_next_round_of_its_step():
    outcomes = carrying(Cohort(first=3, late="carry"))
    assert float(outcomes[0].value["one"]) == 3.0
    for before, outcome in pairwise(outcomes):
        assert len(before.carried) == 1
        assert len(outcome.sites) == 3
        assert float(outcome.value["one"]) == 4.0  # three in time, and the late one of the round before


@pytest.mark.parametrize("seed", range(5))
def test_a_carried_reply_does_not_confuse_the_sites_that_are_not_asked(seed):
    """The late site may not be drawn in the round its reply joins; its own state is still that of its last reply."""
    outcomes = carrying(Cohort(fraction=0.5, first=1, late="carry"), rounds=20, seed=seed)
    used = sum(float(outcome.value["one"]) for outcome in outcomes)
    assert used == 20 + 19  # one in time each round, one late carried into each but the first
    assert all(len(outcome.carried) == 1 for outcome in outcomes)


def test_a_dropped_reply_is_not_heard_of_again():
    outcomes = carrying(Cohort(first=3, late="drop"))
    assert {float(outcome.value["one"]) for outcome in outcomes} == {3.0}
    assert all(outcome.carried == () for outcome in outcomes)


def test_carried_replies_wait_for_their_own_step():
    values = []

    def solve():
        values.append((yield Round(count, cohort=Cohort(first=3, late="carry"))))
        values.append((yield Round(slow, "")))
        values.append((yield Round(count)))

    drive(numbered(solve()), InProcess(sites(), seed=2))
    assert [float(values[0]["one"]), values[1], float(values[2]["one"])] == [3.0, 4.0, 5.0]


# ---- failures --------------------------------------------------------------------------------------------------


def test_a_failure_names_the_site_and_the_step():
    with pytest.raises(SiteError, match=r"site 'c' failed in step tests\.fail") as caught:
        InProcess(sites())(Round(fail, "c", number=0))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_error_of_ours_keeps_its_kind_and_names_the_site():
    with pytest.raises(DataError, match=r"site 'a': too few rows"):
        InProcess(sites())(Round(refuse, number=0))


def test_an_interrupt_is_not_an_error_of_the_site():
    def interrupt(site, message):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        InProcess(sites())(Round(replace(fail, run=interrupt), number=0))


# ---- by name ---------------------------------------------------------------------------------------------------


def test_engines_by_name():
    assert get_engine(None) is InProcess
    assert get_engine("in-process") is ENGINES["in-process"] is InProcess
    assert get_engine(InProcess) is InProcess
    with pytest.raises(ConfigurationError, match="did you mean 'in-process'"):
        get_engine("in_process")
