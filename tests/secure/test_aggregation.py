"""The coordinator's half: what it makes of replies that are no honest site's, and of those that do not come."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedspan.errors import CohortError
from fedspan.secure import SecureSums
from fedspan.secure.aggregation import new_nonce
from fedspan.secure.shamir import SHARE_BYTES
from tests.secure.by_hand import REGULAR, RULES, ByHand, names_of, parties_of, plain_sum
from tests.secure.test_keys import LOW_ORDER

N, LIAR = 7, "s002"
RUBBISH = [
    None,
    0,
    1.5,
    "x",
    [],
    {},
    [1],
    {"advert": 1},
    np.zeros(3),
    {"refused": 7},
    {"refused": "no", "more": 1},
    True,
]


def lying(phase: str, lie: Any) -> Any:
    """One site answers this instead in a phase."""
    return lambda asked, name, reply: (
        (lie(reply) if callable(lie) else lie) if (asked, name) == (phase, LIAR) else reply
    )


def exact(sum_: ByHand) -> bool:
    """Whether it is the sum of those who are said to be in it."""
    return np.array_equal(sum_.run(), plain_sum(sum_.vectors, sum_.made.alive))


# ---- replies that cannot be read -------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["keys", "shares", "consent", "release"])
@pytest.mark.parametrize("rubbish", RUBBISH, ids=repr)
def test_a_reply_that_cannot_be_read_costs_its_sender_the_sum_and_nobody_else(phase, rubbish):
    sum_ = ByHand(parties_of(N), lie=lying(phase, rubbish))
    assert exact(sum_)
    assert set(sum_.made.refused) == {LIAR}
    assert (LIAR in sum_.made.alive) == (phase in ("consent", "release"))


def replaced(**parts: Any) -> Any:
    return lambda reply: {**reply, **parts}


@pytest.mark.parametrize(
    ("phase", "lie", "words"),
    [
        ("keys", replaced(advert=np.zeros(127, np.uint8)), "an advert is an array of bytes"),
        ("keys", replaced(before="s000"), "the sites of an earlier sum is a list"),
        ("keys", replaced(before=["b", "a"]), "names each site once, in order"),
        ("shares", replaced(boxes=np.zeros((5, 82), np.uint8)), r"the boxes is an array of bytes of shape \(6, 82\)"),
        ("shares", replaced(boxes=np.zeros((6, 82))), "got float64"),
        ("shares", replaced(commitment=np.zeros(31, np.uint8)), "a commitment is an array"),
        ("consent", replaced(signature=np.zeros(63, np.uint8)), "a signature is an array"),
        ("release", replaced(own=np.zeros((6, SHARE_BYTES), np.uint8)), r"the shares is .* \(7, 33\), got"),
        ("release", replaced(pairs=np.zeros((1, SHARE_BYTES), np.uint8)), r"\(0, 33\), got"),
    ],
)
def test_the_reason_is_noted(phase, lie, words):
    sum_ = ByHand(parties_of(N), lie=lying(phase, lie))
    assert exact(sum_)
    assert list(sum_.made.refused) == [LIAR]
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(sum_.made.refused[LIAR])


def test_a_reason_is_given_in_the_sites_own_words_and_cut_short():
    sum_ = ByHand(parties_of(N), lie=lying("consent", {"refused": "not today" + "!" * 10_000}))
    assert exact(sum_)
    assert sum_.made.refused[LIAR].startswith("not today!")
    assert len(sum_.made.refused[LIAR]) == 400


@pytest.mark.parametrize("key", LOW_ORDER, ids=lambda key: key.hex()[:8])
@pytest.mark.parametrize("place", [0, 32])
def test_keys_that_all_could_share_cost_their_sender_the_sum_and_nobody_else(key, place):
    """A site can sign what it likes, and would drive off each neighbour that shares a key with it."""

    def lie(reply):
        advert = reply["advert"].copy()
        advert[place : place + 32] = np.frombuffer(key, np.uint8)
        return {**reply, "advert": advert}

    sum_ = ByHand(parties_of(N), lie=lying("keys", lie))
    assert exact(sum_)
    assert "a public key is 32 bytes that a private key was drawn for" in sum_.made.refused[LIAR]


def test_a_site_of_false_shares_in_every_box_costs_itself_at_most_those_who_see_it():
    """One box that does not open costs its receiver the sum, who says whose it was."""

    def lie(reply):
        boxes = reply["boxes"].copy()
        boxes[0, 5] ^= 1
        return {**reply, "boxes": boxes}

    sum_ = ByHand(parties_of(N), lie=lying("shares", lie))
    assert exact(sum_)
    assert sum_.made.dropped == ["s000"]
    assert "the shares from 's002' were tampered with" in sum_.made.refused["s000"]


# ---- too few ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        ("keys", "round 0: no secure sum: 4 sites gave their keys, and it takes 5 of 7"),
        ("shares", "4 sites shared their secrets, and it takes 5 of 7"),
        ("masked", "4 sites sent their masked replies, and it takes 5 of 7"),
        ("consent", "4 sites signed the list of the sum's sites, and it takes 5 of 7"),
        (
            "release",
            "shares are missing of the secrets of s000, s001, s002, s003, s004 and 2 more; 5 holders of each are",
        ),
    ],
)
def test_too_few_sites_are_an_error_that_says_how_many(phase, words):
    sum_ = ByHand(parties_of(N), silent={phase: set(names_of(3))})
    with pytest.raises(CohortError, match=words):
        sum_.run()


def test_reasons_of_refusals_are_told_with_it():
    sum_ = ByHand(parties_of(N), lie=lambda phase, name, reply: {"refused": f"busy {name}"})
    with pytest.raises(CohortError) as error:
        sum_.run()
    assert (
        "0 sites gave their keys, and it takes 5 of 7 ('s000': busy s000; 's001': busy s001; 's002': busy s002 ...); "
        "give a longer deadline"
    ) in str(error.value)


@pytest.mark.parametrize(
    ("rules", "settings", "way"),
    [
        ({}, {}, "let a sum be of fewer (a lower threshold), or leave the silent sites out of the study"),
        ({"minimum": 6}, {}, "let a sum be of fewer (a lower minimum), or leave"),
        ({}, {"least": 6}, "let a sum be of fewer (a lower honest), or leave"),
        ({}, {"waited": 7}, "all that the round waits for must be in it: give a deadline, or wait for fewer (first,"),
    ],
)
@pytest.mark.parametrize("phase", ["keys", "shares", "masked"])
def test_the_way_out_is_told_with_it(phase, rules, settings, way):
    rules = SecureSums(**rules)
    with pytest.raises(CohortError) as error:
        ByHand(parties_of(N, rules), rules, silent={phase: set(names_of(3))}, **settings).run()
    assert way in str(error.value)


def test_no_sum_is_offered_of_fewer_than_any_sum_takes():
    sum_ = ByHand(parties_of(4), silent={"masked": set(names_of(2))})
    with pytest.raises(CohortError, match=r"it takes 3 of 4; .*for more sites \(first, share\), or leave the silent"):
        sum_.run()


def test_missing_shares_and_an_attempt_before_have_ways_out():
    sum_ = ByHand(parties_of(N), silent={"release": set(names_of(3))})
    with pytest.raises(CohortError, match="5 holders of each are needed; give a longer deadline"):
        sum_.run()
    sum_.made.before = names_of(5)
    with pytest.raises(CohortError, match="begun to be unmasked: wait for them"):
        sum_.made.take_masked(names_of(4), {})


def test_more_may_be_asked_for_than_the_quorum():
    assert exact(ByHand(parties_of(N), least=7))
    for settings in ({"least": 7}, {"waited": 7}):
        with pytest.raises(CohortError, match="6 sites gave their keys, and it takes 7 of 7"):
            ByHand(parties_of(N), silent={"keys": {LIAR}}, **settings).run()
        with pytest.raises(CohortError, match="6 sites sent their masked replies, and it takes 7 of 7"):
            ByHand(parties_of(N), silent={"masked": {LIAR}}, **settings).run()


def test_those_who_were_not_expected_raise_the_quorum():
    sum_ = ByHand(parties_of(9, expected=3), silent={"masked": {"s000", "s001"}})
    assert sum_.made.subject.expected == 3
    assert exact(sum_)
    assert sum_.made.roll.quorum == 7
    with pytest.raises(CohortError, match="6 sites sent their masked replies, and it takes 7 of 9"):
        ByHand(parties_of(9, expected=3), silent={"masked": {"s000", "s001", "s002"}}).run()


def test_a_minimum_is_kept():
    rules = SecureSums(minimum=6)
    assert exact(ByHand(parties_of(N, rules), rules, silent={"masked": {LIAR}}))
    with pytest.raises(CohortError, match="5 sites sent their masked replies, and it takes 6 of 7"):
        ByHand(parties_of(N, rules), rules, silent={"masked": {LIAR, "s000"}}).run()


# ---- shares ----------------------------------------------------------------------------------------------------


def shifted(reply: Any) -> Any:
    """A site that lies about its index: each share in the place of another."""
    return {key: rows[::-1].copy() for key, rows in reply.items()}


def noise(reply: Any) -> Any:
    """Shares of nothing, which cannot be told by their form."""
    found = {}
    for key, rows in reply.items():
        found[key] = np.random.default_rng(1).integers(0, 256, rows.shape, dtype=np.uint8)
        found[key][:, 0] = 0
    return found


@pytest.mark.parametrize("lie", [shifted, noise, replaced(own=np.full((7, 33), 255, np.uint8))])
def test_false_shares_of_one_holder_are_left_out_and_told(lie):
    sum_ = ByHand(parties_of(N), lie=lying("release", lie))
    assert exact(sum_)
    assert list(sum_.made.refused) == [LIAR]
    assert "share of" in sum_.made.refused[LIAR]
    assert "is false" in sum_.made.refused[LIAR]


@pytest.mark.parametrize("silent", [set(), {"s020", "s001"}])
def test_as_many_may_be_false_as_half_of_those_to_spare(silent):
    n = 24
    spare = n - RULES.holders_needed(n - 1)

    def run(false):
        liars = names_of(n)[4 : 4 + false]
        sum_ = ByHand(
            parties_of(n), silent={"masked": silent},
            lie=lambda phase, name, reply: noise(reply) if phase == "release" and name in liars else reply,
        )  # fmt: skip
        return exact(sum_), set(sum_.made.refused), set(liars)

    good, refused, liars = run((spare - len(silent)) // 2)
    assert good
    assert refused == liars
    with pytest.raises(CohortError, match="some shares of the secret of 's000' are false, and the rest do not give"):
        run((spare - len(silent)) // 2 + 1)


def test_shares_that_come_later_complete_a_sum():
    sum_ = ByHand(parties_of(N), silent={"release": {"s000", "s001", "s002"}})
    sum_.run("release")
    assert not sum_.made.complete
    sum_.silent = {}
    sum_.release()
    assert sum_.made.complete
    sum_.made.unmask(sum_.total, sum_.about)
    assert np.array_equal(sum_.total, plain_sum(sum_.vectors, names_of(N)))


@pytest.mark.parametrize(("n", "rules"), [(6, RULES), (30, REGULAR)])
def test_with_another_reading_masks_of_those_who_dropped_out_do_not_come_off(n, rules):
    sum_ = ByHand(parties_of(n, rules), rules, silent={"masked": {"s003"}})
    sum_.run("release")
    sum_.made.unmask(sum_.total, "00" * 32)
    assert not np.array_equal(sum_.total, plain_sum(sum_.vectors, sum_.made.alive))


def test_a_nonce_is_never_the_same():
    assert len({new_nonce() for _ in range(100)}) == 100
    assert len(new_nonce()) == 32
