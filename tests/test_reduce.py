"""What the coordinator may see of replies: sums, means and gathers, plain and order-free."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspan.reduce import Gather, MaskedSum, Mean, Sum

seeds = st.integers(0, 2**32 - 1)
both = pytest.mark.parametrize("order_free", [False, True])


def collect(reduce, replies, order_free):
    """Fold (name, value, weight, times) into a collector."""
    collector = reduce.collector(order_free)
    for reply in replies:
        collector.add(*reply)
    return collector.result()


def replies_of(rng, count, wrap=lambda x: x):
    return [
        (f"s{i}", wrap(rng.standard_normal((3, 2))), float(rng.uniform(0.5, 2)), int(rng.integers(1, 4)))
        for i in range(count)
    ]


@both
@given(seeds, st.integers(1, 6))
def test_a_sum_counts_each_reply_as_often_as_it_was_drawn(order_free, seed, count):
    replies = replies_of(np.random.default_rng(seed), count)
    expected = sum(times * value for _, value, _, times in replies)
    np.testing.assert_allclose(collect(Sum(), replies, order_free), expected, atol=1e-12)


@both
@given(seeds, st.integers(1, 6))
def test_a_mean_weighs_by_weight_and_times(order_free, seed, count):
    replies = replies_of(np.random.default_rng(seed), count)
    weights = [weight * times for _, _, weight, times in replies]
    expected = np.average([value for _, value, _, _ in replies], axis=0, weights=weights)
    np.testing.assert_allclose(collect(Mean(), replies, order_free), expected, atol=1e-12)


@both
@pytest.mark.parametrize("reduce", [Sum(), Mean()], ids=["sum", "mean"])
def test_parts_are_reduced_apart(order_free, reduce):
    rng = np.random.default_rng(0)
    plain = replies_of(rng, 4)
    parts = [(name, {"z": value, "n": np.array(value[0, 0])}, weight, times) for name, value, weight, times in plain]
    result = collect(reduce, parts, order_free)
    np.testing.assert_allclose(result["z"], collect(reduce, plain, order_free), atol=1e-12)
    np.testing.assert_allclose(result["n"], result["z"][0, 0], atol=1e-12)


@both
def test_nested_parts_and_bare_numbers(order_free):
    replies = [("a", {"x": {"y": 1.5}, "n": 2}, 1.0, 1), ("b", {"x": {"y": 2.0}, "n": 3}, 1.0, 2)]
    assert collect(Sum(), replies, order_free) == {"x": {"y": 5.5}, "n": 8}


@both
@given(seeds, st.integers(2, 6))
def test_collectors_leave_replies_as_they_are(order_free, seed, count):
    replies = replies_of(np.random.default_rng(seed), count, wrap=lambda x: {"z": x})
    copies = [value["z"].copy() for _, value, _, _ in replies]
    for reduce in (Sum(), Mean(), Gather()):
        collect(reduce, replies, order_free)
    for (_, value, _, _), copy in zip(replies, copies, strict=True):
        np.testing.assert_array_equal(value["z"], copy)


@given(seeds, st.integers(2, 9), st.randoms(use_true_random=False))
def test_order_free_collectors_give_identical_bits(seed, count, random):
    rng = np.random.default_rng(seed)
    replies = replies_of(rng, count, wrap=lambda x: {"z": x * 10.0 ** rng.integers(-9, 9), "n": np.array(x[0, 0])})
    shuffled = replies.copy()
    random.shuffle(shuffled)
    for reduce in (Sum(), Mean()):
        one, other = collect(reduce, replies, True), collect(reduce, shuffled, True)
        assert one["z"].tobytes() == other["z"].tobytes()
        assert one["n"] == other["n"]


def test_a_plain_sum_does_depend_on_the_order():
    """Why there are two collectors."""
    replies = [("a", np.array([1e16]), 1.0, 1), ("b", np.array([1.0]), 1.0, 1), ("c", np.array([-1e16]), 1.0, 1)]
    assert collect(Sum(), replies, False) != collect(Sum(), [replies[0], replies[2], replies[1]], False)
    assert collect(Sum(), replies, True) == 1.0


@both
def test_one_reply_is_its_own_sum(order_free):
    value = np.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(collect(Sum(), [("a", value, 1.0, 1)], order_free), value)


@both
def test_a_gather_is_in_name_order_whatever_the_arrival(order_free):
    replies = [("b", {"z": 1}, 1.0, 1), ("a", {"z": 2}, 1.0, 1), ("c", {"z": 3}, 1.0, 1)]
    gathered = collect(Gather(), replies, order_free)
    assert list(gathered) == ["a", "b", "c"]
    assert gathered == {"a": {"z": 2}, "b": {"z": 1}, "c": {"z": 3}}


@both
def test_a_gather_holds_a_site_as_often_as_it_was_drawn(order_free):
    gathered = collect(Gather(), [("b", 5.0, 1.0, 3), ("a", 1.0, 1.0, 1)], order_free)
    assert sorted(gathered.values()) == [1.0, 5.0, 5.0, 5.0]
    assert {"a", "b"} < set(gathered)


@both
def test_integers_and_zero_dimensions_survive(order_free):
    replies = [("a", np.array(3.0), 1.0, 1), ("b", np.array(4.0), 1.0, 1)]
    assert float(collect(Sum(), replies, order_free)) == 7.0


# ---- masked replies --------------------------------------------------------------------------------------------


def masked(value, exponents=None, **parts):
    words = {"v": np.asarray(value, dtype=np.uint64), **parts}
    return {"masked": words, "exponents": exponents or dict.fromkeys(words, 3)}


def masked_sum(*replies):
    return collect(MaskedSum(), [(f"s{i}", reply, 1.0, 1) for i, reply in enumerate(replies)], False)


def test_masked_replies_are_added_modulo_two_to_the_64():
    found = masked_sum(masked([2**64 - 1, 5]), masked([3, 2**63]), masked([0, 2**63]))
    assert found["total"]["v"].tolist() == [2, 5]
    assert (found["sites"], found["exponents"], found["refused"]) == (["s0", "s1", "s2"], {"v": 3}, {})


def test_a_scalar_part_stays_one():
    found = masked_sum(masked(5, w=np.zeros(2, np.uint64)), masked(6, w=np.ones(2, np.uint64)))
    assert found["total"]["v"].shape == ()
    assert found["total"]["v"] == 11


@pytest.mark.parametrize(
    "odd",
    [
        masked([1, 2, 3]), masked([1]), masked([[1, 2]]), masked([1, 2], {"v": 4}),
        masked([1, 2], w=np.zeros(1, np.uint64)),
    ],
    ids=["longer", "shorter", "another shape", "another scale", "a part more"],
)  # fmt: skip
@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_reply_unlike_most_costs_its_sender_the_sum_whenever_it_comes(odd, place):
    replies = [masked([10, 20]) for _ in range(3)]
    replies.insert(place, odd)
    found = masked_sum(*replies)
    assert found["total"]["v"].tolist() == [30, 60]
    assert found["refused"] == {f"s{place}": "its masked reply is not like the others'"}
    assert found["sites"] == [f"s{i}" for i in range(4) if i != place]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ({"refused": "not now"}, "not now"),
        ({"refused": 7}, "its reply is not masked"),
        (None, "its reply is not masked"),
        ([1, 2], "its reply is not masked"),
        ({"masked": {}, "exponents": {}}, "its reply is not masked"),
        ({"masked": {"v": np.zeros(2)}, "exponents": {"v": 3}}, "its reply is not masked"),
        ({"masked": {"v": np.zeros(2, np.uint64)}, "exponents": {"w": 3}}, "its reply is not masked"),
        ({"masked": {"v": np.zeros(2, np.uint64)}, "exponents": {"v": 1001}}, "its reply is not masked"),
        ({"masked": {"v": np.zeros(2, np.uint64)}, "exponents": {"v": True}}, "its reply is not masked"),
        ({"masked": {"v": np.zeros(2, np.uint64)}, "exponents": {"v": 3}, "more": 1}, "its reply is not masked"),
    ],
)
def test_what_is_not_masked_is_left_out_with_its_reason(reply, reason):
    found = masked_sum(masked([1, 2]), reply)
    assert found["total"]["v"].tolist() == [1, 2]
    assert found["refused"] == {"s1": reason}


def test_of_no_masked_reply_there_is_no_sum():
    assert masked_sum({"refused": "no"}) == {"total": {}, "exponents": {}, "sites": [], "refused": {"s0": "no"}}
