"""The vocabulary: cohorts, numbering, the two halves of every engine, a site's memory."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspan.errors import ConfigurationError, StateLost
from fedspan.rounds import STEPS, Cohort, Late, Memory, Outcome, Reply, Round, Site, Step, Sum, answer, drive, numbered
from fedspan.rounds import site_step as register

NAMES = ["a", "b", "c", "d", "e"]
SIZES = {"a": 10, "b": 20, "c": 30, "d": 15, "e": 25}
by_size = "by-size-with-replacement"


def draw(cohort, seed=0, names=NAMES):
    return cohort.draw(names, np.random.default_rng(seed), lambda: SIZES)


# ---- cohorts ---------------------------------------------------------------------------------------------------


def test_the_default_cohort_is_everyone():
    assert Cohort().is_full
    assert draw(Cohort()) == dict.fromkeys(NAMES, 1)


@pytest.mark.parametrize(
    "cohort",
    [Cohort(only=("a",)), Cohort(fraction=0.9), Cohort(first=2), Cohort(deadline=1.0), Cohort(sample=by_size)],
    ids=str,
)
def test_anything_less_is_not_full(cohort):
    assert not cohort.is_full


@given(st.floats(0.01, 1.0), st.integers(0, 10**6))
def test_uniform_draws_are_without_replacement(fraction, seed):
    drawn = draw(Cohort(fraction=fraction), seed)
    assert set(drawn) <= set(NAMES)
    assert set(drawn.values()) == {1}
    assert len(drawn) == max(1, round(fraction * len(NAMES)))
    assert list(drawn) == sorted(drawn)


def test_uniform_draws_take_every_site_alike():
    counts = dict.fromkeys(NAMES, 0)
    for seed in range(4000):
        for name in draw(Cohort(fraction=0.4), seed):
            counts[name] += 1
    np.testing.assert_allclose([counts[n] / 4000 for n in NAMES], 0.4, atol=0.03)


@given(st.floats(0.01, 1.0), st.integers(0, 10**6))
def test_draws_by_size_are_with_replacement(fraction, seed):
    drawn = draw(Cohort(fraction=fraction, sample=by_size), seed)
    assert sum(drawn.values()) == max(1, round(fraction * len(NAMES)))
    assert all(times >= 1 for times in drawn.values())


def test_draws_by_size_follow_the_sizes():
    counts = dict.fromkeys(NAMES, 0)
    for seed in range(4000):
        for name, times in draw(Cohort(sample=by_size), seed).items():
            counts[name] += times
    np.testing.assert_allclose([counts[n] / 20000 for n in NAMES], [SIZES[n] / 100 for n in NAMES], atol=0.01)
    assert any(max(draw(Cohort(sample=by_size), seed).values()) > 1 for seed in range(10))


@pytest.mark.parametrize("sample", ["uniform", by_size])
def test_a_draw_repeats_with_its_seed(sample):
    cohort = Cohort(fraction=0.6, sample=sample)
    assert draw(cohort, 7) == draw(cohort, 7)
    assert len({str(draw(cohort, seed)) for seed in range(20)}) > 3


@pytest.mark.parametrize("sample", ["uniform", by_size])
def test_aggregates_of_drawn_cohorts_are_right_on_average(sample):
    """Both schemes of FedPower: the mean of many draws approaches what all sites give (Section 3.2)."""
    rng = np.random.default_rng(1)
    values = {name: rng.standard_normal(3) for name in NAMES}
    everyone = sum(SIZES[n] / 100 * values[n] for n in NAMES)
    cohort, total = Cohort(fraction=0.4, sample=sample), np.zeros(3)
    for seed in range(6000):
        drawn = draw(cohort, seed)
        count = sum(drawn.values())
        if sample == by_size:
            total += sum(times * values[n] for n, times in drawn.items()) / count
        else:
            total += len(NAMES) / count * sum(SIZES[n] / 100 * values[n] for n in drawn)
    np.testing.assert_allclose(total / 6000, everyone, atol=0.03)


def test_only_some_sites_are_a_pool_to_draw_from():
    assert draw(Cohort(only=("d", "b"))) == {"b": 1, "d": 1}
    assert set(draw(Cohort(only=("d", "b"), fraction=0.5))) < {"b", "d"}
    assert sum(draw(Cohort(only=("d", "b"), sample=by_size), 3).values()) == 2


def test_a_cohort_of_strangers_is_refused():
    with pytest.raises(ConfigurationError, match=r"names \['x'\], but the sites are \['a', 'b', 'c', 'd', 'e'\]"):
        draw(Cohort(only=("a", "x")))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"fraction": 0.0}, "fraction"),
        ({"fraction": 1.5}, "fraction"),
        ({"fraction": float("nan")}, "fraction"),
        ({"sample": "by-size"}, "sample"),
        ({"first": 0}, "at least 1 reply"),
        ({"fraction": "half"}, "fraction is a number"),
        ({"fraction": None}, "fraction is a number"),
        ({"first": 2.5}, "first is how many replies"),
        ({"only": ()}, "only is a list of names of sites, or None for all"),
        ({"only": "berlin"}, "only is a list of names of sites"),
        ({"only": (1, 2)}, "only is a list of names of sites"),
        ({"only": 3}, "only is a list of names of sites"),
        ({"deadline": 0.0}, "deadline"),
        ({"deadline": float("nan")}, "deadline"),
        ({"deadline": float("inf")}, "None to wait for all"),
        ({"deadline": "soon"}, "deadline"),
        ({"late": "keep"}, "late"),
    ],
)
def test_impossible_cohorts_are_refused(settings, text):
    with pytest.raises(ConfigurationError, match=text):
        Cohort(**settings)


def test_a_cohort_is_plain_data():
    cohort = Cohort(only=["a", "b"], fraction=np.float64(0.5), first=np.int64(1), deadline=np.int32(3))
    assert cohort == Cohort(only=("a", "b"), fraction=0.5, first=1, deadline=3.0)
    assert json.loads(json.dumps(vars(cohort)))["first"] == 1
    assert hash(cohort) == hash(Cohort(only=("a", "b"), fraction=0.5, first=1, deadline=3.0))


# ---- questions -------------------------------------------------------------------------------------------------


@register("tests.echo")
def echo(site, message):
    """Reply the message, with the round and the state it went on from."""
    return Reply({"message": message, "from": site.state.get("round", -1)}, state={"round": site.round})


@register("tests.stateless")
def stateless(site, message):
    """Reply noise."""
    return Reply(site.noised(noise=site.rng.standard_normal(3)))


def asking(count, message=None):
    """A solver that asks the same so many times, and returns what it was told."""
    told = []
    for _ in range(count):
        aggregate = yield Round(echo, message, Sum())
        told += [aggregate]
    return told


def test_a_question_is_frozen_and_known_by_its_digest():
    question = Round(echo, {"z": np.eye(2)}, number=3)
    with pytest.raises(FrozenInstanceError):
        question.number = 4
    same = Round(echo, {"z": np.eye(2)}, number=3, estimate=np.eye(2), parents={"a": 1})
    assert question.digest == same.digest  # what an observer sees, and who answered before, is no part of the question
    for other in (replace(same, number=4), replace(same, message={"z": 2 * np.eye(2)}), replace(same, step=stateless)):
        assert other.digest != question.digest


def test_two_steps_cannot_have_one_name():
    with pytest.raises(ValueError, match=r"two steps are called 'tests\.echo'"):
        register("tests.echo")(lambda site, message: Reply(None))
    assert STEPS["tests.echo"] is echo
    assert isinstance(echo, Step)


def test_rounds_are_numbered_and_name_their_parents():
    seen = []

    def execute(question):
        seen.append((question.number, dict(question.parents)))
        answered = [["a", "b"], ["a"], ["b", "c"], ["a"]][question.number]
        return Outcome(f"aggregate {question.number}", answered, 1, 2)

    told = drive(numbered(asking(4)), execute)
    assert told == [f"aggregate {i}" for i in range(4)]
    assert seen == [(0, {}), (1, {"a": 0, "b": 0}), (2, {"a": 1, "b": 0}), (3, {"a": 1, "b": 2, "c": 2})]


def test_a_round_keeps_the_parents_it_was_asked_with():
    """A question that is kept, say for a late reply, must not change with the rounds after it."""
    kept = []

    def execute(question):
        kept.append(question)
        return Outcome(None, ["a"], 0, 0)

    drive(numbered(asking(3)), execute)
    assert [dict(q.parents) for q in kept] == [{}, {"a": 0}, {"a": 1}]


def test_a_carried_reply_is_a_parent_though_it_is_not_counted_yet():
    seen = []

    def execute(question):
        seen.append(dict(question.parents))
        return Outcome(None, ["a"], 0, 0, (Late("b", 1.0, 1.0, 1),) if question.number == 1 else ())

    drive(numbered(asking(4)), execute)
    assert seen[2] == {"a": 1, "b": 1}
    assert seen[3] == {"a": 2, "b": 1}


# ---- answering -------------------------------------------------------------------------------------------------


def ask(site, number, parent=None, step=echo, message="m", terms=None):
    parents = {} if parent is None else {site.id: parent}
    return answer(site, Round(step, message, number=number, parents=parents, terms=terms))


def test_a_step_goes_on_from_the_state_of_its_parent():
    site = Site("a", None)
    assert ask(site, 0).value["from"] == -1
    assert ask(site, 1, parent=0).value["from"] == 0
    assert ask(site, 2, parent=1).value["from"] == 1
    assert ask(site, 3, parent=1).value["from"] == 1  # round 2's reply was not counted
    assert ask(site, 4, parent=3).value["from"] == 3


def test_no_more_than_two_versions_are_kept():
    site = Site("a", None)
    for number in range(6):
        ask(site, number, parent=number - 1 if number else None)
        assert len(site.memory.versions) <= 2
    with pytest.raises(StateLost, match=r"site 'a' lost its state: round 9 \(tests.echo\) goes on from round 2"):
        ask(site, 9, parent=2)


def test_lost_state_is_an_error_or_a_new_start_as_the_step_declares():
    restarting = replace(echo, lost="restart")
    assert ask(Site("a", None), 5, parent=4, step=restarting, terms={}).value["from"] == -1
    assert ask(Site("a", None), 5, parent=4, step=replace(restarting, setup=True)).value["from"] == -1
    with pytest.raises(StateLost):
        ask(Site("a", None), 5, parent=4, terms={})
    with pytest.raises(StateLost):  # without the study's terms it could not know how its rows were prepared
        ask(Site("a", None), 5, parent=4, step=restarting)


def test_a_step_without_state_keeps_the_state_there_is():
    site = Site("a", None)
    ask(site, 0)
    ask(site, 1, parent=0, step=stateless)
    assert ask(site, 2, parent=1).value["from"] == 0


def test_a_step_that_fails_changes_nothing():
    site = Site("a", None)
    ask(site, 0)
    before = site.memory.versions

    def fail(site, message):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        ask(site, 1, parent=0, step=replace(echo, run=fail))
    assert site.memory.versions == before


def test_a_sites_noise_depends_on_seed_name_and_round_only():
    def noise(seed, name, number):
        return ask(Site(name, None, seed=seed), number, step=stateless).value.tobytes()

    assert noise(1, "a", 0) == noise(1, "a", 0)
    others = [(1, "a", 1), (1, "b", 0), (2, "a", 0), (1, "ab", 0), (1, "", 0), (1, "ä", 0)]
    assert len({noise(*case) for case in [(1, "a", 0), *others]}) == 7


def test_a_round_asked_twice_draws_the_same_noise_in_memory_too():
    site = Site("a", None, seed=3)
    first = ask(site, 2, step=stateless).value
    ask(site, 3, parent=2, step=stateless)
    np.testing.assert_array_equal(ask(Site("a", None, seed=3), 2, step=stateless).value, first)


class Doubling:
    """A policy that doubles."""

    def noised(self, site, parts, about=None):
        return {name: 2 * part for name, part in parts.items()}


def test_one_part_comes_back_bare_and_several_as_a_dict():
    free, bound = Site("a", None), Site("a", None, policy=Doubling())
    assert free.noised(x=np.array(1.0)) == 1.0
    assert bound.noised(x=np.array(1.0)) == 2.0
    assert bound.noised(x=np.array(1.0), y=np.array(2.0)) == {"x": 2.0, "y": 4.0}


def test_an_ordinary_memory_recalls_no_reply():
    assert Memory().recall(Round(echo)) is None
    assert Memory().version(None) == {}
    assert Memory().version(0) is None
