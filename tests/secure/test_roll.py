"""What both sides work out of a roll: nothing of one sum is of any use in another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedspan.encoding import digest
from fedspan.secure import SecureSums
from fedspan.secure.roll import ADVERT, Advert, Roll, Subject, fingerprint, pair_sign, reading
from tests.secure.by_hand import REGULAR, RULES, names_of

SUBJECT = Subject("run", 3, "value", "ab" * 32, "cd" * 16, RULES, 5)
NAMES = tuple(names_of(5))
DIGESTS = tuple(bytes([i]) * 32 for i in range(5))
ROLL = Roll(SUBJECT, NAMES, DIGESTS)
CHANGES = {
    "run": "other", "number": 4, "kind": "bound", "question": "00" * 32, "nonce": "00" * 16,
    "rules": SecureSums(security=79), "expected": 6,
}  # fmt: skip


@pytest.mark.parametrize("field", CHANGES)
def test_everything_a_sum_is_about_is_in_its_session_and_in_what_is_signed(field):
    other = replace(SUBJECT, **{field: CHANGES[field]})
    assert Roll(other, NAMES, DIGESTS).session != ROLL.session
    assert other.advert_text("a", bytes(32), bytes(32)) != SUBJECT.advert_text("a", bytes(32), bytes(32))


def test_names_and_keys_are_in_the_session():
    sessions = {
        ROLL.session,
        Roll(SUBJECT, (*NAMES[:-1], "zz"), DIGESTS).session,
        Roll(SUBJECT, NAMES, (*DIGESTS[:-1], bytes(32))).session,
        Roll(SUBJECT, NAMES, (DIGESTS[1], DIGESTS[0], *DIGESTS[2:])).session,
        Roll(SUBJECT, NAMES[:-1], DIGESTS[:-1]).session,
    }
    assert len(sessions) == 5


def test_the_texts_of_one_sum_are_all_different():
    texts = [
        SUBJECT.advert_text("a", b"1" * 32, b"2" * 32),
        SUBJECT.advert_text("b", b"1" * 32, b"2" * 32),
        SUBJECT.advert_text("a", b"2" * 32, b"1" * 32),
        ROLL.seal_info("a", "b"),
        ROLL.seal_info("b", "a"),
        ROLL.mask_info("a", "b", "x"),
        ROLL.mask_info("a", "c", "x"),
        ROLL.mask_info("a", "b", "y"),
        ROLL.survivors_text(["a"], ["b"], "x"),
        ROLL.survivors_text(["b"], ["a"], "x"),
        ROLL.survivors_text(["a", "b"], [], "x"),
        ROLL.survivors_text(["a"], ["b"], "y"),
    ]
    assert len(set(texts)) == len(texts)
    assert ROLL.mask_info("a", "b", "x") == ROLL.mask_info("b", "a", "x")


@pytest.mark.parametrize(
    "change",
    [
        ({"v": 4}, {}, False, None),
        ({"w": 3}, {}, False, None),
        ({"v": 3}, {"a": 2}, False, None),
        ({"v": 3}, {}, True, None),
        ({"v": 3}, {}, False, {"preparation": {"mean": 1.0}}),
    ],
)
def test_a_reading_is_all_that_numbers_depend_on_beside_the_question(change):
    assert reading(*change) != reading({"v": 3}, {}, False, None)


def test_of_a_sites_state_a_reading_has_the_preparation_only():
    bare = reading({"v": 3}, {}, False, None)
    assert bare == reading({"v": 3}, {}, False, {}) == reading({"v": 3}, {}, False, {"grid": {"v": 0.5}, "faps": 7})
    prepared = {"preparation": {"mean": 1.0}}
    assert reading({"v": 3}, {}, False, prepared) == reading({"v": 3}, {}, False, {**prepared, "local": 1}) != bare


def test_an_advert_travels_as_it_is():
    octets = bytes(range(ADVERT))
    advert = Advert.of(octets)
    assert (advert.octets, len(advert.signature)) == (octets, 64)
    assert (advert.mask, advert.seal) == (octets[:32], octets[32:64])
    assert fingerprint(octets) != fingerprint(octets[::-1])


def test_what_one_of_a_pair_adds_the_other_takes_off():
    assert pair_sign("a", "b") == -pair_sign("b", "a") == 1


def test_holders_are_the_neighbours_and_the_site_itself():
    names = tuple(names_of(40))
    roll = Roll(replace(SUBJECT, rules=REGULAR, expected=40), names, tuple(name.encode() * 8 for name in names))
    assert roll.degree == REGULAR.neighbours(40) < 39
    for name in names:
        assert roll.holders(name) == sorted([name, *roll.neighbours(name)])
        assert len(roll.holders(name)) == roll.degree + 1
    assert roll.needed == REGULAR.holders_needed(roll.degree) > (roll.degree + 1) / 2


@pytest.mark.parametrize(("expected", "n", "quorum"), [(5, 5, 4), (9, 5, 7), (3, 5, 4), (0, 5, 4)])
def test_the_quorum_is_of_those_expected_or_of_those_who_came_if_these_are_more(expected, n, quorum):
    assert Roll(replace(SUBJECT, expected=expected), NAMES[:n], DIGESTS[:n]).quorum == quorum


def test_a_short_roll_has_more_neighbours_for_those_who_collude_are_all_on_it():
    names = tuple(names_of(120))
    digests = tuple(bytes([i]) * 32 for i in range(120))
    degrees = [Roll(replace(SUBJECT, expected=of), names, digests).degree for of in (120, 150, 170)]
    assert degrees == sorted(set(degrees))


def test_where_all_share_masks_none_can_be_cut_off():
    assert ROLL.most_missing(["s000"]) == (0, 5)


def test_a_regular_roll_allows_few_in_a_row_to_be_missing():
    names = tuple(names_of(40))
    roll = Roll(replace(SUBJECT, rules=REGULAR, expected=40), names, tuple(name.encode() * 8 for name in names))
    order = roll._circle._order
    missing, allowed = roll.most_missing(sorted(order[5:]))
    assert missing == 5
    assert allowed == REGULAR.gap(40) < roll.degree // 2


def test_another_session_is_another_graph():
    names = tuple(names_of(40))
    digests = [name.encode() * 8 for name in names]
    graphs = set()
    for key in range(5):
        roll = Roll(replace(SUBJECT, rules=REGULAR, expected=40), names, (bytes([key]) * 32, *digests[1:]))
        graphs.add(digest([roll.neighbours(name) for name in names]))
    assert len(graphs) == 5
