"""A site's half: what it answers, once and for all, and every message that it refuses, each with its reason."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from fedspan.errors import CohortError, ProtocolError
from fedspan.secure import Identity, Party, Roster, SecureSums
from fedspan.secure.roll import reading
from tests.secure.by_hand import ABOUT, PHASES, REGULAR, RULES, ByHand, names_of, parties_of, plain_sum

N = 5
ONE, OTHER = "s000", "s001"
HEX = "00" * 32


@pytest.fixture
def sum_():
    return ByHand(parties_of(N))


def at(sum_: ByHand, phase: str) -> Any:
    """Come to a phase, and return the message that site ONE would get in it."""
    for name in PHASES[: PHASES.index(phase)]:
        getattr(sum_, name)()
    sum_.silent[phase] = set(sum_.parties)
    made = sum_.made
    whole = {
        "keys": lambda: made.keys(),
        "shares": lambda: {**made.shares(), "letter": made.share_letters()[ONE]},
        "masked": lambda: {"session": made.session, "letter": made.mask_letters()[ONE]},
        "consent": made.consent,
        "release": made.release,
    }
    return whole[phase]()


def refuses(sum_: ByHand, phase: str, message: Any, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        sum_.answer(phase, ONE, message)


# ---- what it answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "rules"), [(3, RULES), (5, RULES), (24, REGULAR)])
def test_a_sum_is_that_of_all_vectors(n, rules):
    whole = ByHand(parties_of(n, rules), rules)
    assert np.array_equal(whole.run(), plain_sum(whole.vectors, names_of(n)))
    assert not whole.made.refused
    assert whole.made.roll.degree == rules.neighbours(n)


@pytest.mark.parametrize("phase", PHASES)
def test_the_same_message_gets_the_same_bytes_and_another_one_none(sum_, phase):
    message = at(sum_, phase)
    first = sum_.answer(phase, ONE, message)
    again = sum_.answer(phase, ONE, message)
    assert first.keys() == again.keys()
    assert all(np.array_equal(first[key], again[key]) for key in first)
    if phase == "keys":  # another nonce is another sum
        return
    changed = {**message, "more": 1} if "letter" not in message else {**message, "letter": {**message["letter"]}}
    if "letter" in message:
        key = "adverts" if phase == "shares" else "boxes"
        changed["letter"][key] = message["letter"][key][::-1].copy()
    with pytest.raises(ProtocolError):
        sum_.answer(phase, ONE, changed)
    assert all(np.array_equal(first[key], sum_.answer(phase, ONE, message)[key]) for key in first)


def test_each_sum_has_keys_and_masks_of_its_own():
    parties = parties_of(N)
    one, other = ByHand(parties), ByHand(parties, number=1)
    one.run()
    other.run()
    for phase, part in [("keys", "advert"), ("shares", "boxes"), ("shares", "commitment"), ("masked", "masked")]:
        for name in parties:
            assert not np.array_equal(one.replies[phase][name][part], other.replies[phase][name][part])


def test_a_site_with_another_key_than_the_rosters_is_refused():
    roster = Roster({name: Identity.generate().public for name in names_of(3)})
    with pytest.raises(ProtocolError, match="with another key than its own; correct the roster"):
        Party(ONE, Identity.generate(), roster, RULES, run="r")
    with pytest.raises(ProtocolError, match="with another key"):
        Party("nobody", Identity.generate(), roster, RULES, run="r")


# ---- keys ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "both"}, r"of kind bound or value, got 'both'"),
        ({"kind": np.zeros(2)}, "the kind of a secure sum is a text, got ndarray"),
        ({"kind": None}, "is a text, got NoneType"),
        ({"question": "00" * 31}, "the question's digest is 32 bytes in hexadecimal"),
        ({"question": "G0" * 32}, "in hexadecimal"),
        ({"nonce": b"x"}, "the nonce is 16 bytes in hexadecimal"),
        ({"more": 1}, "a message has the fields"),
    ],
)
def test_keys_are_asked_for_in_one_way(sum_, change, words):
    refuses(sum_, "keys", {**at(sum_, "keys"), **change}, words)


@pytest.mark.parametrize("message", [None, 7, "keys", [], {}, np.zeros(3), {"kind": "value"}])
def test_what_is_no_message_is_refused(sum_, message):
    refuses(sum_, "keys", message, "a message has the fields")


@pytest.mark.parametrize("number", [-1, 2**31, True, 1.0, "1", None])
def test_a_rounds_number_is_a_whole_number(sum_, number):
    with pytest.raises(ProtocolError, match="a round's number is a whole number from 0"):
        sum_.parties[ONE].advertise(number, sum_.made.keys())


# ---- shares ----------------------------------------------------------------------------------------------------


def without(message: Any, place: int) -> Any:
    """A roll without one of its names."""
    keep = [i for i in range(len(message["names"])) if i != place]
    return {**message, "names": [message["names"][i] for i in keep], "digests": message["digests"][keep]}


def test_a_roll_of_unknown_sites_is_refused(sum_):
    message = at(sum_, "shares")
    names, digests = [*message["names"], "zz"], np.vstack([message["digests"], message["digests"][:1]])
    refuses(sum_, "shares", {**message, "names": names, "digests": digests}, "not on this site's roster: zz")


def test_a_roll_without_the_site_is_refused(sum_):
    refuses(sum_, "shares", without(at(sum_, "shares"), 0), "leaves out site 's000', which it was sent to")


def test_a_roll_too_short_to_hide_in_is_refused(sum_):
    short = without(without(at(sum_, "shares"), 4), 3)
    refuses(sum_, "shares", short, "a sum of 3 sites is too few to hide in; this site's policy is 4")


def test_other_keys_for_the_site_itself_are_refused(sum_):
    message = at(sum_, "shares")
    digests = message["digests"].copy()
    digests[0] = digests[1]
    refuses(sum_, "shares", {**message, "digests": digests}, "the roll has other keys for site 's000' than it gave")


def test_keys_that_are_not_those_on_the_roll_are_refused(sum_):
    message = at(sum_, "shares")
    adverts = message["letter"]["adverts"].copy()
    adverts[[0, 1]] = adverts[[1, 0]]
    refuses(sum_, "shares", {**message, "letter": {"adverts": adverts}}, "the keys sent for 's001' are not those on")


@pytest.mark.parametrize("place", [0, 40, 64, 127])
def test_keys_that_their_owner_did_not_sign_are_refused(sum_, place):
    def swap(phase, name, reply):
        if phase == "keys" and name == OTHER:
            advert = reply["advert"].copy()
            advert[place] ^= 1
            return {**reply, "advert": advert}
        return reply

    sum_.lie = swap
    refuses(sum_, "shares", at(sum_, "shares"), "'s001' are not signed by the identity on this site's roster")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"names": ["s000", "s000", "s001", "s002", "s003"]}, "the roll names each site once, in order"),
        ({"names": list(reversed(names_of(N)))}, "in order"),
        ({"names": "s000"}, "the roll is a list of sites' names"),
        ({"names": [1, 2]}, "the roll is a list of sites' names"),
        ({"digests": np.zeros((4, 32), np.uint8)}, r"the keys' digests is an array of bytes of shape \(5, 32\)"),
        ({"digests": np.zeros((5, 32))}, "got float64 of shape"),
        ({"digests": None}, "got NoneType"),
        ({"letter": None}, "a message has the fields"),
        ({"letter": {"adverts": np.zeros((3, 128), np.uint8)}}, r"the neighbours' keys .* \(4, 128\)"),
        ({"letter": {"adverts": np.zeros((4, 128), np.uint8)}}, "are not those on the roll"),
    ],
)
def test_a_roll_of_another_form_is_refused(sum_, change, words):
    refuses(sum_, "shares", {**at(sum_, "shares"), **change}, words)


def test_a_refused_roll_leaves_the_right_one_open(sum_):
    message = at(sum_, "shares")
    refuses(sum_, "shares", without(message, 0), "leaves out")
    assert set(sum_.answer("shares", ONE, message)) == {"boxes", "commitment"}


# ---- masks -----------------------------------------------------------------------------------------------------


def test_boxes_of_another_sum_are_refused(sum_):
    refuses(sum_, "masked", {**at(sum_, "masked"), "session": HEX}, "belongs to another secure sum")
    refuses(sum_, "masked", {**at(ByHand(parties_of(N)), "masked")}, "belongs to another secure sum")


@pytest.mark.parametrize("place", [0, 33, 81])
def test_a_box_that_was_tampered_with_is_refused(sum_, place):
    message = at(sum_, "masked")
    boxes = message["letter"]["boxes"].copy()
    boxes[2, place] ^= 1
    changed = {**message, "letter": {**message["letter"], "boxes": boxes}}
    refuses(sum_, "masked", changed, "the shares from 's003' were tampered with")


def test_a_box_meant_for_another_site_is_refused(sum_):
    message = at(sum_, "masked")
    boxes = message["letter"]["boxes"].copy()
    boxes[0] = sum_.made.mask_letters()["s002"]["boxes"][1]  # from s001, but to s002
    changed = {**message, "letter": {**message["letter"], "boxes": boxes}}
    refuses(sum_, "masked", changed, "the shares from 's001' were tampered with")


def test_boxes_of_strangers_are_refused():
    regular = ByHand(parties_of(24, REGULAR), REGULAR)
    message = at(regular, "masked")
    assert len(message["letter"]["from"]) < 23
    stranger = next(n for n in regular.parties if n != ONE and n not in message["letter"]["from"])
    senders = sorted([*message["letter"]["from"][:-1], stranger])
    changed = {**message, "letter": {"from": senders, "boxes": message["letter"]["boxes"]}}
    refuses(regular, "masked", changed, f"boxes from {stranger}, no neighbours of site 's000' in this sum")


def test_fewer_neighbours_than_the_policy_are_refused(sum_):
    message = at(sum_, "masked")
    letter = {"from": message["letter"]["from"][:2], "boxes": message["letter"]["boxes"][:2]}
    refuses(sum_, "masked", {**message, "letter": letter}, "2 of 4 neighbours take part; this site's policy is 3")


def test_other_boxes_after_the_masks_are_refused(sum_):
    message = at(sum_, "masked")
    sum_.answer("masked", ONE, message)
    letter = {"from": message["letter"]["from"][:3], "boxes": message["letter"]["boxes"][:3]}
    refuses(sum_, "masked", {**message, "letter": letter}, "other boxes than those the reply was masked for")


def test_a_sum_hides_one_vector(sum_):
    message = at(sum_, "masked")
    sum_.answer("masked", ONE, message)
    session = sum_.parties[ONE].admit(0, message)
    with pytest.raises(ProtocolError, match="a sum hides one vector of each site"):
        session.hide(np.zeros(4, dtype=np.uint64), ABOUT)


@pytest.mark.parametrize(
    ("letter", "words"),
    [
        (None, "a message has the fields"),
        ({"from": ["s001"]}, "a message has the fields"),
        ({"from": ["s002", "s001"], "boxes": np.zeros((2, 82), np.uint8)}, "the senders names each site once"),
        ({"from": ["s001", "s002"], "boxes": np.zeros((2, 81), np.uint8)}, r"the boxes is an array .* \(2, 82\)"),
        ({"from": ["s001", "s002"], "boxes": np.zeros((1, 82), np.uint8)}, r"\(2, 82\)"),
    ],
)
def test_boxes_of_another_form_are_refused(sum_, letter, words):
    refuses(sum_, "masked", {**at(sum_, "masked"), "letter": letter}, words)


# ---- how the numbers are read ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ({"s001": 0}, "would not count at all"),
        ({"s001": -1}, "a whole number from 0"),
        ({"s001": 1.5}, "a whole number from 0"),
        ({"s001": True}, "a whole number from 0"),
        ({"s001": 2}, "replies would count 6 times in all; this site's policy is 1"),
        ([], "a dict by site"),
        (None, "a dict by site"),
    ],
)
def test_how_often_replies_count_is_for_the_study_to_say(sum_, times, words):
    party, message = sum_.parties[ONE], at(sum_, "masked")
    with pytest.raises(ProtocolError, match=words):
        party.times(party.admit(0, message), times)


def test_where_sites_are_drawn_with_replacement_they_count_as_often_as_there_are_draws():
    several = ByHand(parties_of(N, most_times=8, expected=3))
    message = at(several, "masked")
    party = several.parties[ONE]
    session = party.admit(0, message)
    assert party.times(session, {}) == party.times(session, {"s001": 4}) == 1
    assert party.times(session, {ONE: 3, "s001": 2}) == 3
    assert party.times(session, {"nobody": 9}) == 1  # drawn, but not on the roll
    with pytest.raises(ProtocolError, match="9 times in all; this site's policy is 8"):
        party.times(session, {ONE: 3, "s001": 3})


def test_a_round_is_read_in_one_way(sum_):
    party = sum_.parties[ONE]
    party.agree(party.admit(0, at(sum_, "masked")), ABOUT)
    again = ByHand(sum_.parties)
    session = party.admit(0, at(again, "masked"))
    party.agree(session, ABOUT)
    with pytest.raises(ProtocolError, match="round 0: this site was told before to read the numbers in another way"):
        party.agree(session, reading({"value": 4}, {}, False, None))
    bound, later = ByHand(sum_.parties, kind="bound"), ByHand(sum_.parties, number=1)
    for other in (bound, later):
        party.agree(party.admit(other.number, at(other, "masked")), HEX)
    assert list(party._readings) == [(1, "value")]  # of rounds that are over nothing is kept


# ---- the list --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alive", "dropped", "words"),
    [
        ([0, 1, 2, 3, 4], [4], "s004 would be both in the sum and dropped: both secrets would be told"),
        ([0, 1, 2, 3], [], "not of those who share masks with this site: see s004"),
        ([0, 1, 2], [3, 4], "the sum would be of 3 sites; this site's policy is 4 at least"),
        ([1, 2, 3, 4], [0], "site 's000' is asked about a sum that it is not in"),
        ([1, 2, 3, 4], [], "is asked about a sum that it is not in"),
    ],
)
def test_a_list_that_no_honest_coordinator_makes_is_not_signed(sum_, alive, dropped, words):
    message, names = at(sum_, "consent"), names_of(N)
    listed = {"alive": [names[i] for i in alive], "dropped": [names[i] for i in dropped]}
    refuses(sum_, "consent", {**message, **listed}, words)


def test_a_list_with_strangers_is_not_signed(sum_):
    message = at(sum_, "consent")
    refuses(sum_, "consent", {**message, "dropped": ["zz"]}, "has sites that are not on the roll: zz")
    refuses(sum_, "consent", {**message, "alive": [*message["alive"], "zz"]}, "not on the roll: zz")


@pytest.mark.parametrize("key", ["alive", "dropped"])
@pytest.mark.parametrize("value", [None, "s000", [1], ["b", "a"], ["a", "a"], np.zeros(2), {"s000": 1}])
def test_a_list_of_another_form_is_not_signed(sum_, key, value):
    refuses(sum_, "consent", {**at(sum_, "consent"), key: value}, f"the {key} ")


def test_a_site_that_masked_nothing_signs_nothing(sum_):
    sum_.silent["masked"] = {ONE}
    message = at(sum_, "consent")
    for listed in (message, {**message, "alive": names_of(N), "dropped": []}):
        refuses(sum_, "consent", listed, "is asked about a sum that it is not in")


def test_a_neighbour_whose_box_came_must_be_on_the_list_and_one_whose_box_did_not_may_not(sum_):
    sum_.silent["shares"] = {"s004"}
    message = at(sum_, "consent")
    assert message["alive"] == names_of(4)
    wrong = "not of those who share masks with this site: see s004"
    refuses(sum_, "consent", {**message, "dropped": ["s004"]}, wrong)
    refuses(sum_, "consent", {**message, "alive": names_of(5)}, wrong)
    assert set(sum_.answer("consent", ONE, message)) == {"signature"}


def test_a_list_that_leaves_out_neighbours_in_a_row_is_not_signed():
    regular = ByHand(parties_of(40, REGULAR), REGULAR)
    at(regular, "consent")
    roll = regular.made.roll
    (_, allowed), half = roll.most_missing(names_of(40)), roll.degree // 2
    assert 0 < allowed < half < 20
    order = roll._circle._order
    after = order.index(ONE) + 1
    for gone in (allowed + 1, allowed):
        dropped = sorted((order + order)[after : after + gone])
        alive = [name for name in names_of(40) if name not in dropped]
        message = {"session": regular.made.session, "alive": alive, "dropped": dropped}
        if gone > allowed:
            words = f"{gone} of {half} neighbours in a row are missing.*as if to cut it in two.*policy is {allowed} at"
            refuses(regular, "consent", message, words)
        else:
            assert set(regular.answer("consent", ONE, message)) == {"signature"}


# ---- release ---------------------------------------------------------------------------------------------------


def test_too_few_signatures_on_the_list_are_refused(sum_):
    message = at(sum_, "release")
    few = {**message, "signers": message["signers"][:3], "signatures": message["signatures"][:3]}
    refuses(sum_, "release", few, "3 of the sites in the sum signed the list that this site did; it takes 4")


def test_a_signature_counts_once_and_only_on_this_list_by_a_site_in_the_sum(sum_):
    message = at(sum_, "release")
    twice = {**message, "signers": ["s000", "s000", "s001", "s002"], "signatures": message["signatures"][:4]}
    refuses(sum_, "release", twice, "the signers names each site once")
    forged = message["signatures"].copy()
    forged[[1, 2]] = forged[[2, 1]]  # each by another than it says
    refuses(sum_, "release", {**message, "signatures": forged}, "3 of the sites in the sum signed the list")


def test_a_dropped_sites_signature_does_not_count():
    sum_ = ByHand(parties_of(6), silent={"masked": {"s005"}})
    message = at(sum_, "release")
    gone = sum_.parties["s005"]._identity.sign(sum_.parties[ONE]._session.survivors_text)
    signers, signatures = [*message["signers"][:4], "s005"], message["signatures"][:4]
    signatures = np.vstack([signatures, np.frombuffer(gone, np.uint8)])
    refuses(sum_, "release", {**message, "signers": signers, "signatures": signatures}, "4 of the sites in the sum")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"session": HEX}, "belongs to another secure sum"),
        ({"session": None}, "the session is 32 bytes in hexadecimal"),
        ({"signers": None}, "the signers is a list of sites' names"),
        ({"signatures": np.zeros((5, 63), np.uint8)}, r"\(5, 64\)"),
        ({"signatures": np.zeros((5, 64), np.int8)}, "got int8"),
        ({"more": 1}, "a message has the fields"),
    ],
)
def test_a_release_of_another_form_is_refused(sum_, change, words):
    refuses(sum_, "release", {**at(sum_, "release"), **change}, words)


def test_of_those_in_the_sum_seeds_are_told_and_of_those_who_dropped_out_masking_keys():
    sum_ = ByHand(parties_of(6), silent={"masked": {"s003"}})
    sum_.run("release")
    session = sum_.parties[ONE]._session
    reply = sum_.replies["release"][ONE]
    alive = [name for name in names_of(6) if name != "s003"]
    assert reply["own"].tobytes() == b"".join(session.held[name][0] for name in alive)
    assert reply["pairs"].tobytes() == session.held["s003"][1]


# ---- their order -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", PHASES[1:])
@pytest.mark.parametrize("where", ["nothing", "another round"])
def test_a_phase_comes_after_those_before_it(sum_, phase, where):
    message = at(sum_, phase)
    if where == "nothing":
        fresh = ByHand(parties_of(N))
        refuses(fresh, phase, message, "round 0: this site has no secure sum under way that has come so far")
    else:
        sum_.number = 1
        refuses(sum_, phase, message, "round 1: this site has no secure sum under way")


def test_a_phase_is_not_skipped(sum_):
    sum_.keys()
    for phase in ("masked", "consent", "release"):
        refuses(sum_, phase, {}, "no secure sum under way that has come so far")


def test_a_new_sum_ends_the_one_before(sum_):
    message = at(sum_, "release")
    ByHand(sum_.parties).keys()
    refuses(sum_, "release", message, "no secure sum under way")


@pytest.mark.parametrize("phase", PHASES[1:])
def test_a_site_that_was_restarted_has_lost_its_sum(tmp_path, phase):
    sum_ = ByHand(parties_of(N, folder=tmp_path))
    message = at(sum_, phase)
    party = sum_.parties[ONE]
    sum_.parties[ONE] = Party(ONE, party._identity, party._roster, RULES, run="a run", folder=tmp_path / ONE)
    refuses(sum_, phase, message, "no secure sum under way")


# ---- plain data ------------------------------------------------------------------------------------------------


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("value", [nested(5000), 10**5000, {1, 2}, object(), {"": 1}], ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("phase", PHASES)
def test_what_is_no_plain_data_is_refused(sum_, phase, value):
    message = at(sum_, phase)
    for rubbish in (value, *({**message, key: value} for key in message)):
        refuses(sum_, phase, rubbish, ".")


def test_an_error_text_is_short(sum_):
    long = {f"{i:0100}": 1 for i in range(1000)}
    with pytest.raises(ProtocolError) as error:
        sum_.answer("keys", ONE, long)
    assert len(str(error.value)) < 500
    assert re.search("a message has the fields", str(error.value))


def test_rules_are_part_of_what_is_signed():
    mine, theirs = parties_of(N), SecureSums(security=79)
    sum_ = ByHand(mine, theirs)
    for party in list(mine.values())[1:]:
        party.rules = theirs
    with pytest.raises(CohortError, match="'s000': the keys sent for 's001' are not signed by the identity"):
        sum_.run()
