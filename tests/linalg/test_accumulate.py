"""The order-free sum: identical bits in any order, and as accurate as a sum can be."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import fedspan.linalg.accumulate as accumulate
from fedspan.linalg import OrderFreeSum

finite = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300)
moderate = st.floats(-1e6, 1e6)


def total(terms):
    """The order-free sum of numbers or arrays."""
    arrays = [np.asarray(t, dtype=float) for t in terms]
    accumulator = OrderFreeSum(arrays[0].shape)
    for array in arrays:
        accumulator.add(array)
    return accumulator.result()


def exact(terms):
    """The sum without rounding, then rounded; `math.fsum` is the same but for its intermediate overflow."""
    return float(sum(map(Fraction, terms)))


def error_bound(terms):
    """One rounding of the result, and what lies more than 95 bits below the largest term."""
    return np.spacing(abs(exact(terms))) + len(terms) * max(map(abs, terms)) * 2.0**-95


@given(st.lists(finite, min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_any_order_gives_identical_bits(terms, random):
    shuffled = terms.copy()
    random.shuffle(shuffled)
    assert total(terms).tobytes() == total(shuffled).tobytes() == total(terms[::-1]).tobytes()


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 40))
def test_any_order_of_arrays_gives_identical_bits(seed, count, spread):
    rng = np.random.default_rng(seed)
    terms = rng.standard_normal((count, 3, 2)) * 2.0 ** rng.integers(-spread, spread + 1, size=(count, 3, 2))
    orders = [rng.permutation(count) for _ in range(4)]
    assert len({total(terms[order]).tobytes() for order in orders}) == 1


@given(st.lists(finite, min_size=1, max_size=30))
@example([1e16, 1.0, -1e16 - 2])  # a small negative rest of large terms
@example([1e16, -1.0, -1e16])
@example([-1e-3])
@example([-(2.0**1023), -(2.0**1022)])  # a carry above the largest float
@example([1.7e308, 1.7e308, -1.7e308])
@example([5e-324, -1e-320, 1e-310])
@example([2.0**31, -(2.0**-40)])
def test_the_sum_is_as_accurate_as_one_rounding(terms):
    assert abs(float(total(terms)) - exact(terms)) <= error_bound(terms)


@given(st.lists(moderate, min_size=1, max_size=20), moderate.filter(bool))
def test_terms_that_cancel_leave_the_rest(terms, rest):
    summed = float(total([*terms, rest, *(-t for t in terms)]))
    assert summed == rest or abs(summed - rest) <= 42 * max(map(abs, [*terms, rest])) * 2.0**-95


def test_small_entries_beside_large_ones_keep_their_digits():
    """The grid is one for the whole array; entries twenty orders below its top are still rounded once."""
    terms = np.array([[3e9, 1e-9, -1e-9, -1.2345678901234567e-10, 7.7e-11]] * 3) / 3
    np.testing.assert_allclose(total(terms), [math.fsum(column) for column in terms.T], rtol=3e-16)


@pytest.mark.parametrize("count", [1, 2, 3, 1000])
def test_equal_terms_multiply(count):
    np.testing.assert_array_equal(total([0.1] * count), math.fsum([0.1] * count))


def test_a_thousand_sites_of_ordinary_products():
    rng = np.random.default_rng(0)
    terms = rng.standard_normal((1000, 40)) * 1e3
    sums = np.array([math.fsum(column) for column in terms.T])
    assert np.all(np.abs(total(terms) - sums) <= np.spacing(np.abs(sums)))


def test_the_largest_counts_do_not_overflow(monkeypatch):
    """After 2^30 terms of the largest digit the integers still hold; one more is refused."""
    accumulator = OrderFreeSum((2,))
    term = np.array([1 - 2.0**-53, -(1 - 2.0**-53)])  # every digit at its largest
    accumulator.add(term)
    accumulator._digits *= 2**30
    accumulator._terms = 2**30
    np.testing.assert_allclose(accumulator.result(), 2.0**30 * term, rtol=1e-15)
    with pytest.raises(OverflowError, match="at most 1073741824 terms"):
        accumulator.add(term)
    monkeypatch.setattr(accumulate, "_MOST_TERMS", 2)
    short = OrderFreeSum(())
    short.add(np.array(1.0))
    short.add(np.array(1.0))
    with pytest.raises(OverflowError):
        short.add(np.array(1.0))


@given(
    st.lists(st.sampled_from([np.inf, -np.inf, np.nan, 1.0, -2.0, 1e308]), min_size=1, max_size=8),
    st.randoms(use_true_random=False),
)
def test_infinities_and_nan_are_as_in_any_sum(terms, random):
    with np.errstate(invalid="ignore", over="ignore"):
        plain = np.sum(np.array([t for t in terms if not np.isfinite(t)] or [0.0]))
    result = total(terms)
    if not np.isfinite(plain):
        np.testing.assert_array_equal(result, plain)
    shuffled = terms.copy()
    random.shuffle(shuffled)
    assert total(shuffled).tobytes() == result.tobytes()


def test_a_special_entry_leaves_its_neighbours_alone():
    result = total([[1.0, np.inf, np.nan, 2.0], [0.5, 1.0, 1.0, -2.0]])
    np.testing.assert_array_equal(result, [1.5, np.inf, np.nan, 0.0])


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3, 4)])
def test_shapes_are_kept(shape):
    result = total([np.ones(shape), np.ones(shape)])
    assert result.shape == shape
    np.testing.assert_array_equal(result, np.full(shape, 2.0))


def test_nothing_added_is_zero():
    np.testing.assert_array_equal(OrderFreeSum((2, 2)).result(), np.zeros((2, 2)))


def test_terms_are_not_changed():
    term = np.array([1.5, np.inf, -3.0])
    kept = term.copy()
    accumulator = OrderFreeSum((3,))
    accumulator.add(term)
    accumulator.add(term)
    np.testing.assert_array_equal(term, kept)


@given(st.lists(st.floats(0.0, 1.7e308), min_size=2, max_size=6))
def test_a_sum_beyond_the_largest_float_is_infinite(terms):
    try:
        expected = exact(terms)
    except OverflowError:
        expected = math.inf
    result = float(total(terms))
    assert result == expected or abs(result - expected) <= error_bound(terms)
