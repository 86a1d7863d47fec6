"""Speed models: the laws of the paper, the same for a seed, and errors that say the way out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedspan.engines import CorrelatedSpeeds, DynamicSpeeds, FixedSpeeds, GivenSpeeds, TwoSpeeds
from fedspan.engines.speeds import SPEEDS, make_speeds
from fedspan.engines.speeds_table import virtual_time_of
from fedspan.engines.virtual_time import VirtualTime
from fedspan.errors import ConfigurationError
from fedspan.metrics import order_statistic_mean

MANY = [f"site{i:04d}" for i in range(4000)]
LAWS = [FixedSpeeds(), DynamicSpeeds(), TwoSpeeds(), GivenSpeeds(default=2.0)]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: type(law).__name__)
def test_a_seed_determines_the_times(law):
    one, other = law.seconds(MANY, 3, 5), law.seconds(MANY, 3, 5)
    assert one.tobytes() == other.tobytes()
    assert one.shape == (len(MANY),)
    assert np.all(one >= 0)
    if not isinstance(law, GivenSpeeds):
        assert not np.any(one == law.seconds(MANY, 4, 5))


def test_fixed_times_are_exponential_and_the_same_in_every_round():
    times = FixedSpeeds(mean=3.0).seconds(MANY, 0, 0)
    assert times.tobytes() == FixedSpeeds(mean=3.0).seconds(MANY, 0, 9).tobytes()
    assert times.mean() == pytest.approx(3.0, rel=0.05)
    assert np.mean(times > 3.0) == pytest.approx(math.exp(-1), abs=0.02)


def test_the_fastest_n_take_what_order_statistics_say():
    """Mean over draws of the n-th smallest of N exponential times: H_N - H_(N-n)."""
    names = MANY[:64]
    times = np.array([np.sort(FixedSpeeds().seconds(names, seed, 0)) for seed in range(2000)])
    for n in (1, 8, 32, 64):
        assert times[:, n - 1].mean() == pytest.approx(order_statistic_mean(n, 64), rel=0.06)


def test_dynamic_times_have_a_rate_for_each_site_and_change_every_round():
    names = MANY[:20]
    rounds = np.array([DynamicSpeeds().seconds(names, 1, number) for number in range(4000)])
    assert len(np.unique(rounds[:, 0])) == 4000
    means = rounds.mean(axis=0)
    assert np.all(means > 0.9)
    assert np.all(means < 1.2 * 20)  # rates in [1/20, 1]
    assert np.std(np.log(means)) > 0.2  # and not one rate for all
    normalised = rounds / means
    assert np.mean(normalised > 1) == pytest.approx(math.exp(-1), abs=0.01)


def test_two_classes_of_sites():
    law = TwoSpeeds(stragglers=0.25, fast=0.1, slow=10.0)
    times = law.seconds(MANY, 0, 0)
    assert np.mean(times > 1.0) == pytest.approx(0.25 * math.exp(-0.1), abs=0.02)
    assert TwoSpeeds(stragglers=0.0).seconds(MANY, 0, 0).max() < 2.0
    assert times.tobytes() == law.seconds(MANY, 0, 7).tobytes()


def test_given_times():
    law = GivenSpeeds(times={"b": 3, "c": math.inf}, default=0.5)
    assert law.seconds(["a", "b", "c"], 0, 0).tolist() == [0.5, 3.0, math.inf]
    with pytest.raises(ConfigurationError, match="a time is given for 'bb', which is no site; did you mean 'b'"):
        GivenSpeeds(times={"bb": 1.0}).seconds(["a", "b"], 0, 0)


def test_correlated_times_are_those_of_the_law_in_the_order_given():
    names = MANY[:30]
    order = tuple(names[10:] + names[:10])
    for of in (FixedSpeeds(), DynamicSpeeds()):
        law = CorrelatedSpeeds(order=order, of=of)
        for number in range(3):
            times = dict(zip(names, law.seconds(names, 2, number), strict=True))
            assert sorted(names, key=times.__getitem__) == list(order)
            assert sorted(times.values()) == sorted(of.seconds(names, 2, number))


@pytest.mark.parametrize("order", [("a",), ("a", "a"), ("a", "c")])
def test_an_order_names_every_site_once(order):
    with pytest.raises(ConfigurationError, match=r"order names every site once, the fastest first; got \d names for 2"):
        CorrelatedSpeeds(order=order).seconds(["a", "b"], 0, 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FixedSpeeds(mean=0.0), "mean is a positive number of seconds; got 0.0"),
        (lambda: FixedSpeeds(mean=math.nan), "mean is a positive number"),
        (lambda: FixedSpeeds(mean=True), "mean is a positive number of seconds; got True"),
        (lambda: DynamicSpeeds(slowest=2.0), "slowest is a rate up to fastest = 1.0, got 2.0"),
        (lambda: DynamicSpeeds(fastest=-1), "fastest is a positive number of rounds a second; got -1"),
        (
            lambda: TwoSpeeds(stragglers=1.5),
            "stragglers is a number, 0 or more, of sites over all sites, at most 1; got",
        ),
        (lambda: TwoSpeeds(slow="slow"), "slow is a positive number of seconds; got 'slow'"),
        (lambda: GivenSpeeds(times={"a": -1.0}), "the time of a is a number, 0 or more, of seconds; got -1.0"),
        (lambda: GivenSpeeds(default=math.nan), r"the time of sites not named \(default\) is a number"),
        (lambda: make_speeds("fxed"), "there is no speed model 'fxed'; did you mean 'fixed'"),
        (lambda: make_speeds("fixed", men=1), "speed model 'fixed' has no setting 'men'; did you mean 'mean'"),
    ],
)
def test_what_is_wrong_is_refused(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


# ---- as a study file says it -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "speeds"),
    [
        ({}, FixedSpeeds()),
        ({"mean": 2}, FixedSpeeds(mean=2)),
        ({"model": "dynamic", "slowest": 0.5}, DynamicSpeeds(slowest=0.5)),
        ({"model": "two", "stragglers": 0.1, "slow": 7.5}, TwoSpeeds(stragglers=0.1, slow=7.5)),
        ({"model": "given", "times": {"a": 4, "b": math.inf}}, GivenSpeeds(times={"a": 4, "b": math.inf})),
        ({"order": ["b", "a"]}, CorrelatedSpeeds(order=("b", "a"))),
        ({"model": "two", "order": ["b", "a"]}, CorrelatedSpeeds(order=("b", "a"), of=TwoSpeeds())),
    ],
)
def test_every_model_can_be_written_in_a_table(table, speeds):
    assert virtual_time_of(table, ["a", "b"]) == VirtualTime(speeds=speeds)


def test_the_table_has_the_engines_own_settings():
    found = virtual_time_of({"communication": 2, "bandwidth": 1e6, "seed": 4}, ["a"])
    assert found == VirtualTime(communication=2, bandwidth=1e6, seed=4)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"model": "fix"}, "there is no speed model 'fix'; did you mean 'fixed'"),
        ({"model": 3}, "model = 3: expected a text in quotes, got a whole number"),
        ({"men": 3}, "has no key 'men'; did you mean 'mean'"),
        ({"model": "two", "mean": 3}, "has no key 'mean'; known: bandwidth, communication, fast"),
        ({"mean": "fast"}, 'mean = "fast": expected a number, got a text in quotes'),
        ({"mean": -1}, "mean is a positive number of seconds; got -1"),
        ({"bandwidth": 0}, "bandwidth is a positive number of bytes a second, or None for any number; got 0"),
        ({"communication": -1.0}, "communication is a number, 0 or more, of seconds; got -1.0"),
        ({"model": "given", "times": {"aa": 1}}, "times: there is no site 'aa'; did you mean 'a'"),
        ({"model": "given", "times": {"a": "x"}}, 'times.a = "x": expected a number'),
        ({"seed": -1}, "seed is a whole number, 0 or more, or None for the run's; got -1"),
        ({"order": ["a", "c"]}, "order: there is no site 'c'"),
        ({"order": ["a"]}, "order names every site once"),
        ({"order": "ab"}, 'order = "ab": expected a list of texts'),
    ],
)
def test_a_table_that_is_wrong_says_where(table, message):
    with pytest.raises(ConfigurationError, match=r"^\[run.speeds\]") as caught:
        virtual_time_of(table, ["a", "b"])
    assert message in str(caught.value)


def test_every_model_has_a_name():
    assert {type(law) for law in LAWS} == set(SPEEDS.values())
