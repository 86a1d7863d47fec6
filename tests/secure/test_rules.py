"""What secure sums are asked for: settings, quorums, and the number of neighbours by its tails."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from fedspan.errors import ConfigurationError
from fedspan.secure import SecureSums


def chance(n_all: int, marked: int, drawn: int, counts: range) -> Fraction:
    """Return the exact chance that so many of the drawn are marked: by counting."""
    ways = sum(math.comb(marked, c) * math.comb(n_all - marked, drawn - c) for c in counts if 0 <= c <= drawn)
    return Fraction(ways, math.comb(n_all, drawn))


def tails(n: int, k: int, rules: SecureSums, of: int = 0) -> bool:
    """Return whether all three tails are small enough, by exact enumeration at whole numbers of sites."""
    wrong = min(n, math.ceil(max(n, of) * Fraction(str(rules.colluding))))
    gone = math.ceil(n * Fraction(str(rules.dropouts)))
    m, t = k + 1, 2 * (k + 1) // 3 + 1
    security, correctness = Fraction(1, 2**rules.security), Fraction(1, 2**rules.correctness)
    leaks = n * chance(n - 1, wrong, k, range(2 * t - m, k + 1))
    fails = n * chance(n - 1, n - 1 - gone, k, range(t))
    cut = n * n * chance(n, wrong, *cutting(n, k, t, gone, correctness)) ** 2 / 2
    return leaks <= security and cut <= security and fails <= correctness


def cutting(n: int, k: int, t: int, gone: int, correctness: Fraction) -> tuple[int, range]:
    """Return how many sites in a row cut the circle with the fewest who collude, and how many of them must."""
    half, spare = k // 2, k + 1 - t
    gap = next((g for g in range(half) if n * chance(n, gone, half, range(g + 1, half + 1)) <= correctness), half)
    row = min(half, half - spare + min(spare, gap))
    return row, range(half - spare, row + 1)


def test_the_quorum_is_that_of_two_thirds_exactly():
    rules = SecureSums()
    assert all(rules.quorum(n) == 2 * n // 3 + 1 for n in range(3, 2001))
    assert [rules.quorum(3 * n) for n in (10**5, 333_333)] == [2 * 10**5 + 1, 2 * 333_333 + 1]
    assert all(rules.holders_needed(k) == 2 * (k + 1) // 3 + 1 <= k + 1 for k in range(2, 1000))


@pytest.mark.parametrize(("threshold", "n", "quorum"), [(0.6, 10, 7), (0.9, 10, 10), (0.75, 8, 7), (0.999, 50, 50)])
def test_any_quorum_is_more_than_the_part_and_no_more_than_all(threshold, n, quorum):
    assert SecureSums(threshold=threshold, colluding=0.0).quorum(n) == quorum


def test_the_fewest_in_a_sum_are_the_quorum_but_never_below_three_or_the_minimum():
    assert [SecureSums().fewest(n) for n in (3, 4, 30)] == [3, 3, 21]
    assert SecureSums(threshold=0.51, colluding=0.0).fewest(3) == 3
    assert [SecureSums(minimum=6).fewest(n) for n in (6, 30)] == [6, 21]


def test_few_sites_share_masks_with_all_others():
    assert all(SecureSums().neighbours(n) == n - 1 for n in range(3, 51))
    assert SecureSums(complete_up_to=400).neighbours(400) == 399


@pytest.mark.parametrize(
    ("n", "settings"),
    [
        (51, {}),
        (100, {}),
        (333, {}),
        (100, {"security": 10, "correctness": 10}),
        (200, {"security": 20, "colluding": 0.05}),
        (200, {"security": 40, "dropouts": 0.2}),
        (150, {"security": 25, "colluding": 0.2, "dropouts": 0.0}),
        (90, {"security": 1, "correctness": 1, "colluding": 0.25, "dropouts": 0.0}),  # the tail, not its largest mass
        (
            150,
            {"security": 15, "correctness": 5, "colluding": 0.05, "dropouts": 0.2},
        ),  # as here, for those who are left
        (100, {"security": 30, "correctness": 1, "colluding": 0.0, "dropouts": 0.3}),
    ],
)
def test_neighbours_are_the_fewest_for_which_exact_tails_are_small_enough(n, settings):
    rules = SecureSums(**settings)
    enough = [k for k in range(2, n - 1, 2) if tails(n, k, rules)]
    assert rules.neighbours(n) == min(enough, default=n - 1)


@pytest.mark.parametrize(("n", "of"), [(68, 100), (80, 100), (100, 100), (100, 50)])
def test_all_who_collude_may_be_among_the_few_that_are_left(n, of):
    rules = SecureSums(security=20, correctness=20)
    enough = [k for k in range(2, n - 1, 2) if tails(n, k, rules, of)]
    assert rules.neighbours(n, of) == min(enough, default=n - 1)
    assert (rules.neighbours(n, of) > rules.neighbours(n)) == (of > n)


def test_a_gap_is_one_that_dropouts_hardly_make():
    rules = SecureSums()
    for n in (100, 300, 1000):
        half, gone = rules.neighbours(n) // 2, math.ceil(n / 10)
        gap = rules.gap(n)
        assert n * chance(n, gone, half, range(gap + 1, half + 1)) <= Fraction(1, 2**30)
        assert n * chance(n, gone, half, range(gap, half + 1)) > Fraction(1, 2**30)
    assert rules.gap(50) == 50  # where all share masks with all, nobody can be cut off
    assert rules.gap(1000) < rules.neighbours(1000) // 2


def test_neighbours_hardly_grow_with_the_number_of_sites():
    found = [SecureSums().neighbours(n) for n in (51, 100, 1000, 10_000, 100_000, 10**6)]
    assert found == sorted(found)
    assert found[-1] < 2 * found[2]
    assert found[-1] / 10**6 < 0.001


def test_simulated_rounds_fail_and_leak_no_oftener_than_they_may():
    n, rules = 120, SecureSums(security=4, correctness=4, colluding=0.15, dropouts=0.15)
    k, rng = rules.neighbours(n), np.random.default_rng(0)
    t = rules.holders_needed(k)
    assert k < n - 1
    rounds, leaks, fails = 4000, 0, 0
    for _ in range(rounds):
        who = rng.permutation(n)
        colluding, gone = np.zeros(n, int), np.zeros(n, int)
        colluding[who[:18]] = gone[who[-18:]] = 1  # places on the circle
        caught, left = around(colluding, k), around(1 - gone, k)
        leaks += bool(np.any(caught[colluding == 0] + k + 1 >= 2 * t))
        fails += bool(np.any(left[gone == 1] < t))
    assert leaks / rounds < 2**-4
    assert fails / rounds < 2**-4
    assert leaks + fails > 0  # so the events that are counted do happen


def around(marks: np.ndarray, k: int) -> np.ndarray:
    return sum(np.roll(marks, step) for step in range(-k // 2, k // 2 + 1) if step)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"threshold": 0.5}, "between 1/2 and 1"),
        ({"threshold": 1.0}, "threshold"),
        ({"threshold": 0.99999}, "between 1/2 and 1"),
        ({"threshold": True}, "threshold"),
        ({"threshold": "2/3"}, "threshold"),
        ({"threshold": math.nan}, "threshold"),
        ({"threshold": 0.55, "colluding": 0.1}, "raise the threshold"),
        ({"colluding": 0.5}, "colluding"),
        ({"colluding": -0.1}, "colluding"),
        ({"dropouts": 0.5}, "dropouts"),
        ({"minimum": 2}, "minimum"),
        ({"minimum": 3.0}, "minimum"),
        ({"security": 0}, "security"),
        ({"security": True}, "security"),
        ({"correctness": 0}, "correctness"),
        ({"complete_up_to": -1}, "complete_up_to"),
        ({"repeats": -1}, "repeats"),
    ],
)
def test_what_makes_no_sense_is_refused(settings, words):
    with pytest.raises(ConfigurationError, match=words):
        SecureSums(**settings)


def test_too_few_sites_are_refused():
    SecureSums(minimum=5).check(5)
    SecureSums().check(3)
    with pytest.raises(ConfigurationError, match="at least 3 sites"):
        SecureSums().check(2)
    with pytest.raises(ConfigurationError, match="minimum=5"):
        SecureSums(minimum=5).check(4)


def test_settings_travel_as_plain_data():
    rules = SecureSums(threshold=np.float64(0.75), minimum=np.int64(4), security=np.int32(64), repeats=0)
    plain = rules.as_plain()
    assert {type(value) for value in plain.values()} == {float, int}
    assert SecureSums.from_plain(plain) == rules
    assert SecureSums.from_plain(SecureSums().as_plain()) == SecureSums()
    with pytest.raises(ConfigurationError, match="did you mean 'threshold'"):
        SecureSums.from_plain({"treshold": 0.7})
