"""Doubling's formulas against Lemma B.1 and Theorem 4.9 as printed, and against simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspan.errors import ConfigurationError
from fedspan.metrics import doubling_bounds, doubling_points, order_statistic_mean, stage_rounds, stage_sizes


def harmonic(n):
    return sum(1 / i for i in range(1, n + 1))


# ---- order statistics --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "sites"), [(0, 5), (1, 5), (3, 5), (5, 5), (64, 256)])
def test_the_nth_fastest_takes_the_difference_of_harmonic_numbers(n, sites):
    assert order_statistic_mean(n, sites) == pytest.approx(harmonic(sites) - harmonic(sites - n), rel=1e-12)


def test_the_nth_fastest_of_drawn_times_takes_that_long_on_average():
    times = np.sort(np.random.default_rng(0).exponential(size=(20_000, 6)), axis=1)
    error = times.std(axis=0) / np.sqrt(len(times))
    expected = [order_statistic_mean(n, 6) for n in range(1, 7)]
    assert np.all(np.abs(times.mean(axis=0) - expected) < 4 * error)


@pytest.mark.parametrize("n", [-1, 6])
def test_there_is_no_such_fastest(n):
    with pytest.raises(ConfigurationError, match=f"from 0 to 5; got {n}"):
        order_statistic_mean(n, 5)


# ---- stages ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n0", "sites", "sizes"), [(8, 64, [8, 16, 32, 64]), (8, 50, [8, 16, 32, 50]), (5, 5, [5]), (1, 2, [1, 2])]
)
def test_stages_double_until_all_take_part(n0, sites, sizes):
    assert stage_sizes(n0, sites) == sizes


@pytest.mark.parametrize("n0", [0, 9])
def test_a_first_stage_has_some_of_the_sites(n0):
    with pytest.raises(ConfigurationError, match=f"n0 = {n0} sites .* take n0 from 1 to 8"):
        stage_sizes(n0, 8)


@settings(max_examples=50, deadline=None)
@given(a=st.floats(0.01, 0.25), c=st.floats(0, 20), power=st.integers(2, 8))
def test_a_doubling_point_is_where_both_stages_gain_as_much_per_time(a, c, power):
    """(204), solved for the distance."""
    n0, sites = 4, 4 * 2**power
    points = doubling_points(n0, sites, a, c)
    assert points[0] == math.inf
    for r, point in enumerate(points[1:]):
        gain = [point * (1 - math.sqrt(1 - a)) - a / math.sqrt(2**s * (1 - a)) for s in (r, r + 1)]
        time = [order_statistic_mean(n0 * 2**s, sites) + c for s in (r, r + 1)]
        assert gain[0] / time[0] == pytest.approx(gain[1] / time[1], rel=1e-8, abs=1e-12)


@settings(max_examples=50, deadline=None)
@given(a=st.floats(0.01, 0.25), c=st.floats(0, 20), power=st.integers(2, 8))
def test_that_many_rounds_lead_from_one_doubling_point_to_the_next(a, c, power):
    """(207), with the rounds of (203): what the lemma is for. Stage 0 begins at no finite distance."""
    n0, sites = 4, 4 * 2**power
    points, rounds = doubling_points(n0, sites, a, c), stage_rounds(n0, sites, a)
    for r in range(1, len(rounds)):
        distance = points[r]
        for _ in range(rounds[r]):
            distance = distance * math.sqrt(1 - a) + a / math.sqrt(2**r * (1 - a))
        assert distance <= points[r + 1] * (1 + 1e-12)


def test_rounds_are_those_of_203():
    a, times = 0.2, [order_statistic_mean(n, 64) for n in (4, 8, 16, 32, 64)]
    steps = np.diff(times)
    expected = 2 * np.log(np.sqrt(2) * steps[1:] / steps[:-1]) / np.log(1 / (1 - a))
    assert stage_rounds(8, 64, a) == np.ceil(expected).astype(int).tolist()


# ---- the theorem -------------------------------------------------------------------------------------------------


def test_bounds_are_those_of_the_theorem():
    a, c, target, sites = 0.2, 2.0, 1.2, 512
    accuracy, rate, log_n = math.log(1 / (target - 1)), math.log(1 / (1 - a)), math.log(sites)
    bounds = doubling_bounds(8, sites, a, c, target)
    assert bounds.doubling == pytest.approx(log_n * (6 * (c + 1) + 4 * accuracy) / rate)
    assert bounds.full == pytest.approx(log_n * (log_n + 2 * accuracy) / rate)
    assert bounds.ratio == pytest.approx((6 * (c + 1) + 4 * accuracy) / (log_n + 2 * accuracy))
    assert bounds.rounds_full == pytest.approx((log_n + 2 * accuracy) / rate)
    assert bounds.rounds_last == pytest.approx(2 * accuracy / rate)
    assert bounds.applies


def test_expected_times_add_up_the_stages():
    a, c = 0.2, 1.0
    bounds = doubling_bounds(16, 64, a, c)
    rounds = [*stage_rounds(16, 64, a), math.ceil(bounds.rounds_last)]
    times = [order_statistic_mean(n, 64) + c for n in (16, 32, 64)]
    assert bounds.expected_doubling == pytest.approx(np.dot(rounds, times))
    assert bounds.expected_full == pytest.approx(math.ceil(bounds.rounds_full) * times[-1])


def test_the_predicted_ratio_falls_with_the_number_of_sites():
    ratios = [doubling_bounds(n // 8, n, 0.2, 1.0) for n in (64, 256, 1024)]
    assert ratios[0].ratio > ratios[1].ratio > ratios[2].ratio
    expected = [r.expected_doubling / r.expected_full for r in ratios]
    assert expected[0] > expected[1] > expected[2]


def test_a_larger_rate_than_the_theorem_has_is_said():
    bounds = doubling_bounds(8, 64, 0.3)
    assert not bounds.applies
    assert "at most 1/4, got 0.3" in bounds.why_not


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"a": 0.0}, "between 0 and 1; got 0"), ({"a": 1.0}, "between 0 and 1; got 1"),
        ({"c": -1.0}, "in units of the mean compute time; got -1"), ({"c": math.inf}, "got inf"),
        ({"target": 1.0}, "between 1 and the root of 2; got 1"), ({"target": 1.5}, "got 1.5"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        doubling_bounds(8, 64, **{"a": 0.2, **options})
