"""Shamir's shares: any t give the secret back, and t - 1 are shares of every secret there is."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspan.errors import ConfigurationError, ProtocolError
from fedspan.secure.shamir import PRIME, SHARE_BYTES, combine, split

SECRET = bytes(range(100, 132))
secret_bytes = st.binary(min_size=32, max_size=32)


def through(known: dict[int, int], x: int) -> int:
    """Return the value at x of the polynomial through known points, by Lagrange's formula as it is written."""
    total = 0
    for a, value in known.items():
        for b in known:
            if a != b:
                value = value * (x - b) * pow(a - b, -1, PRIME)
        total += value
    return total % PRIME


@given(st.data(), secret_bytes, st.lists(st.integers(1, 2**32), unique=True, min_size=1, max_size=12))
def test_any_threshold_of_shares_give_the_secret_back(data, secret, points):
    t = data.draw(st.integers(1, len(points)))
    shares = dict(zip(points, split(secret, points, t), strict=True))
    assert {len(share) for share in shares.values()} == {SHARE_BYTES}
    some = data.draw(st.permutations(points))[: data.draw(st.integers(t, len(points)))]
    assert combine({point: shares[point] for point in some}, t) == secret


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32, bytes(31) + b"\x01"])
def test_every_32_bytes_are_a_secret(secret):
    shares = split(secret, range(1, 6), 3)
    for some in itertools.combinations(range(5), 3):
        assert combine({i + 1: shares[i] for i in some}, 3) == secret


@given(secret_bytes, secret_bytes)
def test_one_share_fewer_is_consistent_with_every_secret(secret, other):
    t, points = 4, [2, 3, 5, 7, 11]
    shares = dict(zip(points, split(secret, points, t), strict=True))
    seen = {point: int.from_bytes(shares[point], "big") for point in points[: t - 1]}
    last = through({0: int.from_bytes(other, "big"), **seen}, 13).to_bytes(SHARE_BYTES, "big")
    assert combine({**{point: shares[point] for point in seen}, 13: last}, t) == other


def test_shares_are_of_a_polynomial_of_that_degree_with_new_coefficients_each_time():
    points = list(range(1, 9))
    shares = [int.from_bytes(s, "big") for s in split(SECRET, points, 5)]
    known = dict(zip(points[:5], shares, strict=False))
    assert [through(known, x) for x in points[5:]] == shares[5:]
    assert through(known, 0) == int.from_bytes(SECRET, "big")
    assert through(dict(zip(points[:4], shares, strict=False)), 0) != int.from_bytes(SECRET, "big")
    assert not set(split(SECRET, points, 5)) & set(split(SECRET, points, 5))


def test_a_wrong_share_gives_another_secret_and_one_not_needed_changes_nothing():
    shares = dict(zip(range(1, 6), split(SECRET, range(1, 6), 3), strict=True))
    wrong = (int.from_bytes(shares[2], "big") ^ 1).to_bytes(SHARE_BYTES, "big")
    assert combine({**shares, 2: wrong}, 3) != SECRET
    assert combine({**shares, 5: wrong}, 3) == SECRET  # the smallest points are used


def test_a_result_of_more_than_32_bytes_is_refused():
    too_large = (2**256 + 5).to_bytes(SHARE_BYTES, "big")
    with pytest.raises(ProtocolError, match="not of one secret"):
        combine({1: too_large, 2: too_large}, 2)  # a constant polynomial


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ({1: bytes(33)}, "needs at least 1 share, and here 2"),
        ({}, "needs at least"),
        ({1: bytes(33), 2: bytes(32)}, "share at 2"),
        ({1: bytes(34), 2: bytes(33)}, "share at 1"),
        ({1: PRIME.to_bytes(33, "big"), 2: bytes(33)}, "share at 1"),
        ({1: "x" * 33, 2: bytes(33)}, "share at 1"),
        ({0: bytes(33), 2: bytes(33)}, "point"),
        ({-1: bytes(33), 2: bytes(33)}, "point"),
        ({PRIME + 2: bytes(33), 2: bytes(33)}, "point"),
        ({"1": bytes(33), 2: bytes(33)}, "point"),
        ({True: bytes(33), 2: bytes(33)}, "point"),
    ],
)
def test_malformed_shares_are_refused(shares, words):
    with pytest.raises(ProtocolError, match=words):
        combine(shares, 2)


def test_no_threshold_below_one():
    with pytest.raises(ProtocolError, match="at least 1"):
        combine({1: bytes(33)}, 0)


@pytest.mark.parametrize(
    ("secret", "points", "threshold", "words"),
    [
        (bytes(31), [1, 2], 1, "32 bytes"),
        (SECRET, [0, 1], 1, "points"),
        (SECRET, [1, 1], 1, "points"),
        (SECRET, [1, 2**32 + 1], 1, "points"),
        (SECRET, [1, 2], 3, "threshold"),
        (SECRET, [1, 2], 0, "threshold"),
    ],
)
def test_shares_that_could_not_be_combined_are_not_made(secret, points, threshold, words):
    with pytest.raises(ConfigurationError, match=words):
        split(secret, points, threshold)


def test_it_is_fast_enough_for_a_thousand_sites():
    points, began = list(range(1, 101)), time.process_time()
    shares = dict(zip(points, split(SECRET, points, 68), strict=True))
    for first in range(30):  # other holders each time: nothing is cached
        assert combine({point: shares[point] for point in points[first:]}, 68) == SECRET
    assert time.process_time() - began < 1.0  # 0.02 s where it was written
