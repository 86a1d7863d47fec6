"""What coordinator and sites agree on, and what a site keeps of it in its folder."""

from __future__ import annotations

import pytest

from fedspan.errors import FileError, ProtocolError
from fedspan.secure import SecureSums, SumTerms
from fedspan.secure.terms import IDENTITY, ROSTER
from tests.secure.by_hand import ByHand, plain_sum

NAMES = ["ash", "elm", "oak", "yew"]
TERMS = SumTerms(SecureSums(), "run", 4)


@pytest.mark.parametrize(
    ("settings", "fewest"),
    [({}, 3), ({"least": 4}, 4), ({"expected": 30}, 21), ({"expected": 3}, 3), ({"rules": SecureSums(minimum=4)}, 4)],
)
def test_the_fewest_in_a_sum_are_what_the_rules_and_the_noise_ask_for(settings, fewest):
    terms = SumTerms(**{"rules": SecureSums(), "run": "run", "expected": 4} | settings)
    assert terms.fewest == fewest
    parties = terms.parties([f"s{i}" for i in range(terms.expected)])
    assert {party.least for party in parties.values()} == {fewest}


def test_parties_know_each_other_and_their_sum_is_right():
    sum_ = ByHand(TERMS.parties(NAMES))
    assert (sum_.run() == plain_sum(sum_.vectors, NAMES)).all()


def test_parties_take_all_terms_over(tmp_path):
    terms = SumTerms(SecureSums(security=64), "run", 4, 4, 9)
    for name, party in terms.parties(NAMES, tmp_path).items():
        assert (party.name, party.run, party.expected, party.least) == (name, "run", 4, 4)
        assert (party.rules, party._most_times) == (terms.rules, 9)


def test_without_a_folder_identities_are_of_this_run():
    one, other = TERMS.parties(NAMES), TERMS.parties(NAMES)
    assert all(one[name]._identity.public != other[name]._identity.public for name in NAMES)


def test_with_a_folder_identity_and_roster_stay(tmp_path):
    first = TERMS.parties(NAMES, tmp_path)
    again = TERMS.parties(NAMES, tmp_path)
    for name in NAMES:
        assert first[name]._identity.public == again[name]._identity.public
        assert first[name]._roster == again[name]._roster
        assert (tmp_path / name / IDENTITY).stat().st_mode & 0o077 == 0
        assert (tmp_path / name / ROSTER).exists()


def test_a_site_that_comes_back_with_another_key_is_refused_by_the_others(tmp_path):
    TERMS.parties(NAMES, tmp_path)
    (tmp_path / "elm" / IDENTITY).unlink()
    with pytest.raises(ProtocolError, match=r"not the roster pinned in .*ash.*: another key for elm"):
        TERMS.parties(NAMES, tmp_path)


def test_a_site_more_is_another_roster(tmp_path):
    TERMS.parties(NAMES, tmp_path)
    with pytest.raises(ProtocolError, match="new fir"):
        TERMS.parties([*NAMES, "fir"], tmp_path)


def test_a_damaged_identity_is_an_error_that_names_it(tmp_path):
    TERMS.parties(NAMES, tmp_path)
    (tmp_path / "oak" / IDENTITY).write_bytes(b"short")
    with pytest.raises(FileError, match="oak"):
        TERMS.parties(NAMES, tmp_path)
