"""No round is unmasked in two ways: what a site released it remembers, on disk before a share leaves."""

from __future__ import annotations

import numpy as np
import pytest

import fedspan.secure.unmasked
from fedspan.encoding import decode, encode
from fedspan.errors import CohortError, FileError, ProtocolError
from fedspan.secure import Party
from fedspan.secure.roll import Subject, reading
from fedspan.secure.unmasked import Unmasked
from tests.secure.by_hand import ABOUT, QUESTION, RULES, ByHand, names_of, parties_of, plain_sum

N = 6
SUBJECT = Subject("a run", 4, "value", QUESTION, "00" * 16, RULES)
OTHERWISE = reading({"value": 4}, {}, False, None)


def of(number, kind="value", question=QUESTION):
    return Subject("a run", number, kind, question, "00" * 16, RULES)


def reopened(parties, folder, run="a run"):
    """The same sites, each from what it left on disk."""
    return {
        name: Party(name, party._identity, party._roster, RULES, run=run, folder=folder / name)
        for name, party in parties.items()
    }


def refused_for(parties, words, **settings):
    """A second sum comes to nothing, for a reason that sites give."""
    again = ByHand(parties, **settings)
    with pytest.raises(CohortError):
        again.run()
    assert any(words in why for why in again.said.values()), again.said


# ---- the record ------------------------------------------------------------------------------------------------


def test_a_sum_may_be_unmasked_again_and_no_other_one_of_its_round():
    kept = Unmasked("a run")
    kept.check(SUBJECT, ["a", "b"], ABOUT)
    kept.note(SUBJECT, ["a", "b"], ABOUT)
    kept.check(SUBJECT, ["a", "b"], ABOUT)
    for sites, about in ((["a"], ABOUT), (["a", "b", "c"], ABOUT), (["a", "b"], OTHERWISE)):
        for refuse in (kept.check, kept.note):
            with pytest.raises(ProtocolError, match="round 4 was unmasked for other sites, or read in another way"):
                refuse(SUBJECT, sites, about)
    kept.check(of(4, "bound"), ["a"], OTHERWISE)  # another sum of the round
    kept.check(of(5), ["a"], OTHERWISE)


def test_a_round_is_one_question_and_those_before_are_over():
    kept = Unmasked("a run")
    kept.note(SUBJECT, ["a"], ABOUT)
    kept.check_question(4, QUESTION)
    kept.check_question(5, "00" * 32)
    with pytest.raises(ProtocolError, match="round 4 was another question when this site released for it"):
        kept.check_question(4, "00" * 32)
    with pytest.raises(ProtocolError, match="round 3 is over: this site released for round 4"):
        kept.check_question(3, QUESTION)


def test_both_kinds_of_a_round_are_kept_and_forgotten_with_it():
    kept = Unmasked("a run")
    kept.note(of(4, "bound"), ["a"], OTHERWISE)
    kept.note(SUBJECT, ["a", "b"], ABOUT)
    assert (kept.sites(4, "bound"), kept.sites(4, "value"), kept.sites(5, "value")) == (["a"], ["a", "b"], [])
    kept.note(of(5), ["c"], ABOUT)
    assert (kept.sites(5, "bound"), kept.sites(5, "value")) == ([], ["c"])


def test_it_survives_the_process_and_is_of_one_run(tmp_path):
    file = tmp_path / "released"
    Unmasked("a run", file).note(SUBJECT, ["a", "b"], ABOUT)
    assert Unmasked("a run", file).sites(4, "value") == ["a", "b"]
    with pytest.raises(ProtocolError, match="unmasked for other sites"):
        Unmasked("a run", file).check(SUBJECT, ["a"], ABOUT)
    other = Unmasked("another run", file)
    other.check_question(0, QUESTION)
    assert other.sites(4, "value") == []


GOOD = {"run": "a run", "round": 4, "question": QUESTION, "sums": {"value": {"sites": ["a"], "about": ABOUT}}}


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: b"",
        lambda data: data[:20],
        lambda data: b"rubbish",
        lambda data: encode([]),
        lambda data: encode({**GOOD, "round": "4"}),
        lambda data: encode({**GOOD, "round": -1}),
        lambda data: encode({**GOOD, "question": 7}),
        lambda data: encode({**GOOD, "sums": None}),
        lambda data: encode({**GOOD, "sums": ["value"]}),
        lambda data: encode({**GOOD, "sums": "value"}),
        lambda data: encode({**GOOD, "sums": np.zeros(3)}),
        lambda data: encode({**GOOD, "sums": {"value": ["a"]}}),
        lambda data: encode({**GOOD, "sums": {"value": {"sites": ["b", "a"], "about": ABOUT}}}),
        lambda data: encode({**GOOD, "sums": {"value": {"sites": ["a"], "about": 3}}}),
    ],
)
def test_a_damaged_record_is_an_error_that_names_it(tmp_path, damage):
    file = tmp_path / "released"
    file.write_bytes(encode(GOOD))
    assert Unmasked("a run", file).sites(4, "value") == ["a"]
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(FileError, match=r"released: what this site released is unreadable .*; start anew"):
        Unmasked("a run", file)


# ---- parties ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
def test_a_second_unmasking_of_other_sites_is_refused(tmp_path, restarted):
    parties = parties_of(N, folder=tmp_path)
    ByHand(parties).run()
    if restarted:
        parties = reopened(parties, tmp_path)
    words = "round 0 was unmasked for other sites, or read in another way; of two such sums one would see what sets"
    one_less = ByHand(parties, silent={"keys": {"s005"}})
    one_less.keys()
    one_less.made.before = []  # the coordinator does not care for what it is told
    for phase in ("shares", "masked"):
        getattr(one_less, phase)()
    with pytest.raises(CohortError):
        one_less.consent()
    assert all(words in why for why in one_less.said.values())
    assert len(one_less.said) == N - 1


def test_a_second_unmasking_that_is_read_otherwise_is_refused(tmp_path):
    parties = parties_of(N, folder=tmp_path)
    ByHand(parties).run()
    refused_for(reopened(parties, tmp_path), "read in another way", about=OTHERWISE)


def test_the_same_sum_is_unmasked_again_with_fresh_keys(tmp_path):
    parties = parties_of(N, folder=tmp_path)
    first = ByHand(parties)
    total = first.run().copy()
    again = ByHand(reopened(parties, tmp_path))
    assert np.array_equal(again.run(), total)
    assert again.made.before == names_of(N)
    assert again.made.session != first.made.session


@pytest.mark.parametrize("restarted", [False, True])
def test_another_question_of_the_round_is_refused(tmp_path, restarted):
    parties = parties_of(N, folder=tmp_path)
    ByHand(parties).run()
    if restarted:
        parties = reopened(parties, tmp_path)
    refused_for(parties, "round 0 was another question when this site released for it", question="11" * 32)


def test_an_earlier_round_is_refused():
    parties = parties_of(N)
    ByHand(parties, number=3).run()
    refused_for(parties, "round 2 is over: this site released for round 3", number=2)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_run_that_ended_with_an_error_says_no_more(tmp_path, restarted):
    parties = parties_of(N, folder=tmp_path)
    for party in parties.values():
        party.end()
    if restarted:
        parties = parties_of(N, folder=tmp_path)
    refused_for(parties, "ended this run with an error, and says no more in it", number=2)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_sum_that_was_begun_to_be_unmasked_is_finished_and_no_other(tmp_path, restarted):
    """A site fell silent, the others released, and the coordinator died with their shares: now all are back."""
    parties = parties_of(N, folder=tmp_path)
    first = ByHand(parties, silent={"masked": {"s003"}})
    first.run("release")
    if restarted:
        parties = reopened(parties, tmp_path)
    again = ByHand(parties)
    total = again.run()
    alive = [name for name in names_of(N) if name != "s003"]
    assert again.made.alive == again.made.before == alive
    assert again.made.dropped == ["s003"]
    assert np.array_equal(total, plain_sum(again.vectors, alive))


def test_without_one_of_its_sites_a_sum_that_was_begun_cannot_be_finished():
    parties = parties_of(9)
    ByHand(parties, silent={"masked": {"s003"}}).run("release")
    with pytest.raises(CohortError, match="7 sites sent their masked replies, and it takes 8 of 9"):
        ByHand(parties, silent={"masked": {"s001"}}).run()


def test_what_is_finished_is_no_smaller_than_what_is_asked_for():
    parties = parties_of(9)
    ByHand(parties, silent={"masked": {"s003"}}).run("release")
    with pytest.raises(CohortError, match="8 sites sent their masked replies, and it takes 9 of 9"):
        ByHand(parties, waited=9).run()


def test_few_sites_cannot_say_whose_sum_it_shall_be():
    """What one of six claims to have released for is left aside: the others are enough for another list."""

    def lie(phase, name, reply):
        return {**reply, "before": names_of(3)} if phase == "keys" and name == "s000" else reply

    whole = ByHand(parties_of(N), lie=lie)
    assert np.array_equal(whole.run(), plain_sum(whole.vectors, names_of(N)))


def test_one_that_released_alone_does_not_stop_the_others():
    parties = parties_of(N)
    ByHand(parties, silent={"masked": {"s003"}, "release": set(names_of(N)[1:])}).run("release")
    again = ByHand(parties)
    assert np.array_equal(again.run(), plain_sum(again.vectors, names_of(N)))
    assert set(again.said) == {"s000"}  # it signs for no other list, and need not


def test_the_record_is_on_disk_before_a_share_leaves(tmp_path, monkeypatch):
    parties = parties_of(N, folder=tmp_path)
    sum_ = ByHand(parties)
    sum_.run("consent")

    def full(path, data):
        raise OSError("no space left on device")

    monkeypatch.setattr(fedspan.secure.unmasked, "write_atomically", full)
    with pytest.raises(OSError, match="no space"):
        sum_.answer("release", "s000", sum_.made.release())
    monkeypatch.undo()
    sum_.release()
    for name in names_of(N):
        kept = decode((tmp_path / name / "released").read_bytes())
        assert kept["sums"]["value"] == {"sites": names_of(N), "about": ABOUT}
