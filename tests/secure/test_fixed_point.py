"""Fixed point modulo 2^64: sums are exact integers, and nothing wraps around."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedspan.errors import ConfigurationError, DataError, ProtocolError
from fedspan.secure.fixed_point import (
    WIDE,
    decode,
    encode,
    exponent_for,
    from_wide,
    is_on_grid,
    rounding_error,
    to_wide,
)

finite = st.floats(allow_nan=False, allow_infinity=False)
wide = st.floats(0.0, 2.0**512) | st.floats(0.0, 1.0) | st.floats(0.0, 2.0**-500)


@given(st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=30), st.integers(-900, 900))
def test_a_sum_of_encodes_decodes_to_the_sum_within_the_rounding_error(parts, power):
    values = [math.ldexp(part, power) for part in parts]
    bound = math.ldexp(len(parts), power)
    exponent = exponent_for(bound)
    total = sum((encode([value], exponent, limit=bound) for value in values), np.zeros(1, np.uint64))
    exact = sum(map(Fraction, values))
    found = decode(total, exponent)[0]
    allowed = Fraction(rounding_error(exponent, len(values))) + Fraction(math.ulp(found)) / 2
    assert abs(Fraction(float(found)) - exact) <= allowed


@given(st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=30), st.integers(-200, 200))
def test_sums_of_values_on_the_grid_are_exact(steps, exponent):
    values = [math.ldexp(float(step), -exponent) for step in steps]
    assert is_on_grid(values, exponent)
    total = sum((encode([value], exponent, limit=1e300) for value in values), np.zeros(1, np.uint64))
    assert decode(total, exponent)[0] == math.ldexp(float(sum(steps)), -exponent)


@given(st.lists(finite, max_size=5), st.integers(-1000, 1000))
def test_the_grid_is_told_as_fractions_tell_it(values, exponent):
    steps = [Fraction(value) * Fraction(2) ** exponent for value in values]
    assert is_on_grid(values, exponent) == all(s.denominator == 1 and abs(s) < 2**62 for s in steps)


@pytest.mark.parametrize(
    ("value", "exponent"), [(5e-324, -1), (5e-324, -1000), (2.0**62, 0), (math.nan, 0), (math.inf, 0), (1.0, 62)]
)
def test_what_is_not_on_the_grid(value, exponent):
    assert not is_on_grid([0.0, value], exponent)


def test_what_is_on_the_grid():
    assert is_on_grid([], 0)
    assert is_on_grid([0.75, -3.0], 2)
    assert not is_on_grid([0.75, -3.0], 1)
    assert is_on_grid([5e-324 * 2**60, 0.0], 1000 - 0) is False  # 2^-14 steps
    assert is_on_grid(np.full((2, 2), 2.0**1000), -1000)


@given(st.floats(min_value=0.0, exclude_min=True, allow_infinity=False))
@example(2.0**-1000)
@example(8.0)
def test_the_exponent_is_the_finest_whose_sums_stay_within_2_to_the_62(bound):
    e = exponent_for(bound)
    assert -1000 <= e <= 1000
    assert Fraction(bound) * Fraction(2) ** e <= 2**62
    assert e == 1000 or Fraction(bound) * Fraction(2) ** (e + 1) > 2**62


@pytest.mark.parametrize("bound", [-1.0, math.nan, math.inf])
def test_no_exponent_without_a_bound(bound):
    with pytest.raises(ConfigurationError, match="bound"):
        exponent_for(bound)


def test_known_words():
    encoded = encode([0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -0.5, -1.5], 0, limit=4.0)
    assert encoded.dtype == np.uint64
    assert encoded.view(np.int64).tolist() == [0, 1, -1, 0, 2, 2, 0, -2]  # ties to even
    assert encode([2.0**62, -(2.0**62)], 0, limit=2.0**62).view(np.int64).tolist() == [2**62, -(2**62)]
    assert exponent_for(0.0) == 0
    assert rounding_error(10, 3) == 3 * 16.5 * 2.0**-10
    assert encode([], 0, limit=1.0).shape == (0,)
    assert encode(np.ones((2, 3), np.float32), 1, limit=1.0).shape == (2, 3)


@pytest.mark.parametrize(
    ("values", "exponent", "limit", "words"),
    [
        ([1.0, -2.5], 0, 2.0, "size 2.5 is beyond the limit 2"),
        ([math.nan, 0.0], 0, 2.0, "size nan"),
        ([math.inf], 0, math.inf, "size inf"),
        ([-math.inf], 0, 1.0, "size inf"),
        ([1.0], 63, 2.0, "choose an exponent below 63"),
        ([1e300], 1000, 1e301, "more than 2\\^62 steps"),
        ([1.0], 0, math.nan, "limit nan"),
    ],
)
def test_what_could_wrap_around_is_an_error_at_the_site(values, exponent, limit, words):
    with pytest.raises(DataError, match=words):
        encode(values, exponent, limit)


@pytest.mark.parametrize("exponent", [-1001, 1001])
def test_exponents_are_bounded(exponent):
    for call in (lambda: encode([1.0], exponent, 1.0), lambda: decode(np.zeros(1, np.uint64), exponent)):
        with pytest.raises(ConfigurationError, match="exponent"):
            call()


def test_a_sum_beyond_the_largest_float_is_refused():
    with pytest.raises(ProtocolError, match="largest float"):
        decode(np.array([2**62], np.uint64), -1000)


@given(st.lists(wide, min_size=1, max_size=20))
def test_wide_sums_are_exact_but_for_one_rounding(values):
    on_grid = [Fraction(math.ceil(Fraction(value) * 2**576), 2**576) for value in values]
    total = sum((to_wide(value) for value in values), np.zeros(WIDE, np.uint64))
    assert from_wide(total) == float(sum(on_grid))


@given(st.floats(2.0**-523, 2.0**512))
def test_wide_numbers_from_2_to_the_minus_523_are_exact(value):
    assert from_wide(to_wide(value)) == value
    assert max(to_wide(value)) < 2**32


@given(st.floats(0.0, 2.0**-524))
def test_smaller_wide_numbers_are_rounded_up_by_less_than_a_unit(value):
    found = Fraction(from_wide(to_wide(value)))
    assert 0 <= found - Fraction(value) < Fraction(1, 2**576)


def test_wide_numbers_at_their_ends():
    assert from_wide(to_wide(0.0)) == 0.0
    assert from_wide(to_wide(5e-324)) == 2.0**-576
    assert from_wide(to_wide(2.0**512)) == 2.0**512
    assert to_wide(1.0).tolist() == [int(place == 18) for place in range(WIDE)]
    assert from_wide(to_wide(2.0**512) * np.uint64(2**31)) == 2.0**543
    most = math.nextafter(2.0**512, 0.0)
    assert from_wide(to_wide(most) * np.uint64(2**31)) == most * 2.0**31


def test_as_many_terms_as_may_be_add_without_a_carry():
    full = np.full(WIDE, 2**32 - 1, np.uint64) * np.uint64(2**31)
    assert from_wide(full) == 2.0**607  # 2^31 (2^1152 - 1) units, rounded


@pytest.mark.parametrize("value", [-1.0, -5e-324, math.nan, math.inf, 2.0**513, math.nextafter(2.0**512, math.inf)])
def test_what_is_no_wide_number_is_an_error_at_the_site(value):
    with pytest.raises(DataError, match="wide number"):
        to_wide(value)


@pytest.mark.parametrize(
    "total",
    [
        np.zeros(WIDE - 1, np.uint64),
        np.zeros((WIDE, 1), np.uint64),
        np.zeros(WIDE),
        np.full(WIDE, 2**63 - 2**31 + 1, np.uint64),
    ],
)
def test_what_is_no_wide_sum_is_refused(total):
    with pytest.raises(ProtocolError, match="wide sum"):
        from_wide(total)
