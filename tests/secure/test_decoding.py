"""False shares: as many as half of those to spare are found, whoever holds them."""

from __future__ import annotations

import secrets
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspan.errors import ProtocolError
from fedspan.secure.decoding import correct
from fedspan.secure.shamir import PRIME, SHARE_BYTES, combine, split

SECRET = bytes(range(50, 82))


def shared(points, threshold, secret=SECRET):
    return dict(zip(points, split(secret, points, threshold), strict=True))


def any_share():
    return secrets.randbelow(PRIME).to_bytes(SHARE_BYTES, "big")


@given(st.data(), st.lists(st.integers(1, 2**32), unique=True, min_size=1, max_size=25))
def test_false_shares_are_found_up_to_half_of_those_to_spare(data, points):
    threshold = data.draw(st.integers(1, len(points)))
    shares = shared(points, threshold)
    false = data.draw(st.permutations(points))[: data.draw(st.integers(0, (len(points) - threshold) // 2))]
    told = {point: any_share() if point in false else share for point, share in shares.items()}
    assert correct(told, threshold) == (SECRET, sorted(false))


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32])
def test_every_secret_is_found(secret):
    shares = shared(range(1, 10), 5, secret)
    assert correct({**shares, 2: any_share(), 9: any_share()}, 5) == (secret, [2, 9])


def test_shares_in_each_others_place_are_false():
    """A holder that lies about its index gives the share of another point."""
    shares = shared(range(1, 12), 7)
    assert correct({**shares, 3: shares[4], 4: shares[3]}, 7) == (SECRET, [3, 4])


def test_what_is_no_share_is_false_too():
    shares = shared(range(1, 10), 5)
    assert correct({**shares, 1: b"", 3: PRIME.to_bytes(SHARE_BYTES, "big")}, 5) == (SECRET, [1, 3])


@pytest.mark.parametrize("false", [3, 5, 9])
def test_more_false_shares_give_an_error_or_another_secret_but_not_this_one(false):
    shares = shared(range(1, 11), 5)
    told = {**shares, **{point: any_share() for point in range(1, false + 1)}}
    with pytest.raises(ProtocolError, match="10 shares, of which 5 would do, are not of one secret but for 2 false"):
        correct(told, 5)


def test_whoever_agrees_on_another_secret_in_greater_number_is_believed():
    """So what is found must be checked against what its owner committed to."""
    ours, theirs = shared(range(1, 11), 5), shared(range(1, 11), 5, bytes(32))
    told = {**ours, **{point: theirs[point] for point in range(3, 11)}}
    assert correct(told, 5) == (bytes(32), [1, 2])


@given(st.lists(st.none() | st.integers(0, PRIME - 1), min_size=1, max_size=9), st.data())
def test_a_secret_is_never_found_against_more_than_half_of_those_to_spare(values, data):
    """Of any values whatever: a polynomial of that degree that all but so few are of, or an error."""
    threshold = data.draw(st.integers(1, len(values)))
    told = {i: (5 if v is None else v).to_bytes(SHARE_BYTES, "big") for i, v in enumerate(values, start=1)}
    try:
        secret, false = correct(told, threshold)
    except ProtocolError:
        return
    assert len(false) <= (len(values) - threshold) // 2
    assert combine({point: share for point, share in told.items() if point not in false}, threshold) == secret


def test_shares_of_a_higher_degree_are_of_no_secret():
    """A dealer that shares its secret with another threshold: no two thirds of the shares agree."""
    with pytest.raises(ProtocolError, match="not of one secret"):
        correct(shared(range(1, 6), 3), 2)


@pytest.mark.parametrize("shares", [{}, {1: bytes(33)}, {1: b"", 2: b""}])
def test_too_few_shares_are_refused(shares):
    with pytest.raises(ProtocolError, match="would do"):
        correct(shares, 2)


def test_a_secret_of_more_than_32_bytes_is_refused():
    too_large = (2**256 + 5).to_bytes(SHARE_BYTES, "big")
    with pytest.raises(ProtocolError, match="not of one secret"):
        correct(dict.fromkeys([1, 2, 3], too_large), 1)


def test_it_is_fast_enough_for_a_thousand_sites():
    shares, began = shared(range(1, 196), 131), time.process_time()
    false = list(range(4, 196, 6))
    assert len(false) == (195 - 131) // 2
    assert correct({**shares, **{point: any_share() for point in false}}, 131) == (SECRET, false)
    assert time.process_time() - began < 3.0  # 0.2 s where it was written
