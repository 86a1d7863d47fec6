"""A coordinator against real sites: it cannot make the others' numbers vanish, average noise, or try out sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedspan.errors import CohortError, DataError, PolicyError, RoundConflict
from fedspan.reduce import MaskedSum
from fedspan.rounds import STEPS, Round
from fedspan.secure import SecureSums, SumTerms, fixed_point
from fedspan.secure.party import Party
from fedspan.secure.roll import Roll
from fedspan.secure.session import Session
from tests.conformance.solvers import promise
from tests.secure.sites_by_hand import NAMES, PREPARE, Exchange, Z, prepared, rows_of, sites_of

VICTIM = "oak"
GRAM = STEPS["gram.multiply"]
FINE, NONE = {"value": 40}, {"value": -1000}


def question(number: int = 1, parents: Any = None) -> Round:
    return Round(GRAM, Z, number=number, parents=parents or dict.fromkeys(NAMES, number - 1))


def of_the_victim() -> np.ndarray:
    x = rows_of()[VICTIM]
    return x.T @ x @ Z


def blind(monkeypatch: Any) -> None:
    """Sites sign whatever list there is, and so does the coordinator not have to tell all the same."""
    monkeypatch.setattr(Session, "survivors_text", property(lambda self: b"one list"))


def unbound(monkeypatch: Any) -> None:
    """Masks hang on the session alone, not on how numbers are read."""
    plain = Roll.mask_info
    monkeypatch.setattr(Roll, "mask_info", lambda self, one, other, about: plain(self, one, other, ""))


def learnt(exchange: Exchange, messages: dict[str, Any]) -> np.ndarray:
    """What a coordinator that adds up all masked replies makes of them."""
    replies = {name: exchange.masked(name, message) for name, message in messages.items()}
    refused = {name: reply["refused"] for name, reply in replies.items() if "refused" in reply}
    exchange.refused = refused
    masked = {name: reply["masked"]["value"] for name, reply in replies.items() if name not in refused}
    exchange.made.take_masked(masked, refused)
    exchange.made.take_consents(exchange.ask("consent", exchange.made.consent(), None, exchange.made.alive))
    exchange.made.take_released(exchange.ask("release", exchange.made.release(), None, exchange.made.signers))
    total = sum(part.ravel() for part in masked.values())
    exchange.made.unmask(total, replies[NAMES[0]]["about"])
    return fixed_point.decode(total, messages[VICTIM]["exponents"]["value"]).reshape(Z.shape)


# ---- the others' numbers made to vanish ------------------------------------------------------------------------


def test_a_scale_so_coarse_that_the_others_numbers_vanish_leaves_their_masks(monkeypatch):
    blind(monkeypatch)

    def attack():
        exchange = Exchange(prepared(sites_of()), question())
        whole = exchange.message()
        messages = {name: {**whole, "exponents": FINE if name == VICTIM else NONE} for name in NAMES}
        return learnt(exchange, messages)

    assert not np.allclose(attack(), of_the_victim(), atol=1.0)
    unbound(monkeypatch)
    np.testing.assert_allclose(attack(), of_the_victim(), atol=1e-9)


def test_the_same_coarse_scale_for_all_tells_nothing_of_anybody():
    exchange = Exchange(prepared(sites_of()), question())
    found = exchange.finish(dict.fromkeys(NAMES, exchange.message(NONE)))
    assert np.abs(found["value"]).max() <= fixed_point.rounding_error(NONE["value"], len(NAMES))
    assert not np.allclose(found["value"], sum(x.T @ x @ Z for x in rows_of().values()), rtol=1.0)


def test_rounding_tells_nothing_of_single_numbers():
    """Rounded to 0 or 1 step, a sum would count the numbers above a half, and scale after scale find each of them.

    With the dither a sum is off by noise that no number shows in: as often above as below, however near to an edge.
    """
    sites, far = prepared(sites_of()), []
    true = sum(x.T @ x @ Z for x in rows_of().values())
    step = float(np.abs(true).max())
    for number in range(1, 121):
        asked = replace(question(), number=number, message=Z * (1 + number / 1000))
        found = Exchange(sites, asked).run(exponents={"value": -round(np.log2(step))})["value"]
        far.append((found - true * (1 + number / 1000)) / 2.0 ** round(np.log2(step)))
    errors = np.ravel(far)
    assert abs(errors.mean()) < 5 * errors.std() / np.sqrt(errors.size)
    assert 0.8 < errors.std() / np.sqrt(len(NAMES) * (fixed_point.DITHER**2 + 1 / 12)) < 1.25


def test_replies_that_do_not_count_are_refused(monkeypatch):
    times = {name: 0 for name in NAMES if name != VICTIM}

    def attack():
        exchange = Exchange(prepared(sites_of()), question())
        return exchange.finish(dict.fromkeys(NAMES, exchange.message(times=times)))["value"]

    with pytest.raises(CohortError, match=r"0 sites sent their masked replies.*would not count at all"):
        attack()
    monkeypatch.setattr(Party, "times", lambda self, session, times: times.get(self.name, 1))
    np.testing.assert_allclose(attack(), of_the_victim(), atol=1e-9)


@pytest.mark.parametrize("most", [1, 7])
def test_a_reply_that_counts_so_often_that_it_stands_above_the_rest_is_refused(most):
    terms = SumTerms(SecureSums(), "a run", 3, most_times=most)
    exchange = Exchange(prepared(sites_of(terms=terms), terms), question(), terms=terms)
    message = exchange.message(times={VICTIM: 5})
    assert (
        f"replies would count 8 times in all; this site's policy is {most}"
        in exchange.masked(VICTIM, message)["refused"]
    )


def test_a_mean_for_some_and_a_sum_for_others_leaves_their_masks():
    exchange = Exchange(prepared(sites_of()), question())
    whole = exchange.message()
    mean = {**whole, "mean": True, "exponents": {**FINE, "weight of the mean": 40}}
    collector = MaskedSum().collector(False)
    for name in NAMES:
        collector.add(name, exchange.masked(name, mean if name == VICTIM else whole), 1.0, 1)
    assert collector.result()["refused"] == {
        VICTIM: "its masked reply is not like the others': of another form, scale or state"
    }


VANISHING = {**PREPARE, "scale": np.full(4, 1e150)}


def diverged(sites: dict[str, Any]) -> dict[str, Any]:
    """Have all but one site see their rows through a preparation that leaves nothing of them, and that one not."""
    first = Exchange(sites, Round(STEPS["data.prepare"], VANISHING, number=0))
    first.run()
    second = Exchange(sites, Round(STEPS["data.prepare"], PREPARE, number=1, parents=dict.fromkeys(NAMES, 0)))
    second.masked(VICTIM, second.message())  # the others are taken to have dropped out, and never know of it
    return dict.fromkeys(NAMES, 0) | {VICTIM: 1}


def test_rows_seen_through_different_preparations_share_no_masks(monkeypatch):
    blind(monkeypatch)

    def attack():
        sites = sites_of()
        exchange = Exchange(sites, question(2, diverged(sites)))
        return learnt(exchange, dict.fromkeys(NAMES, exchange.message()))

    assert not np.allclose(attack(), of_the_victim(), atol=1.0)
    unbound(monkeypatch)
    np.testing.assert_allclose(attack(), of_the_victim(), atol=1e-9)


def test_a_site_told_to_go_on_from_its_raw_rows_shares_no_masks(monkeypatch):
    blind(monkeypatch)
    mean = {**PREPARE, "mean": np.full(4, 5.0)}
    sites = sites_of()
    Exchange(sites, Round(STEPS["data.prepare"], mean, number=0)).run()
    site = sites[VICTIM]
    site.memory.versions = ((0, {}),)  # as one that was not prepared
    exchange = Exchange(sites, Round(STEPS["covariance.gram"], None, number=1, parents=dict.fromkeys(NAMES, 0)))
    message = exchange.message()
    with pytest.raises(AttributeError):  # raw rows answer no solver's question
        exchange.masked(VICTIM, message)


# ---- sizes tried out -------------------------------------------------------------------------------------------


def test_the_size_of_a_reply_cannot_be_tried_out_scale_by_scale():
    """A scale that is too fine is an error at the site: trying scale after scale would tell its largest number."""
    sites, answers = prepared(sites_of()), []
    for exponent in range(40, 63):
        exchange = Exchange(sites, question())
        answers.append(exchange.masked(VICTIM, exchange.message({"value": exponent})))
    assert "masked" in answers[0]
    assert all("told before to read the numbers in another way" in answer["refused"] for answer in answers[1:])
    sites = prepared(sites_of())
    exchange = Exchange(sites, question())
    message = exchange.message({"value": 60})
    with pytest.raises(DataError, match="is beyond the limit"):
        exchange.masked(VICTIM, message)
    again = Exchange(sites, question())
    again.to_masked()
    assert "ended this run with an error" in again.made.refused[VICTIM]


# ---- noise that is to be averaged away -------------------------------------------------------------------------

SHARED = SumTerms(SecureSums(), "a run", 4, least=4, noised=True)
PRIVACY = promise("distributed", testing_seed=None, epsilon=1.0)


def noised(sites: dict[str, Any], number: int = 1, message: Any = Z) -> np.ndarray:
    asked = Round(GRAM, message, number=number, parents=dict.fromkeys(NAMES, number - 1))
    return Exchange(sites, asked, terms=SHARED).run()["value"]


def private(folder: Any = None) -> dict[str, Any]:
    return sites_of(terms=SHARED, privacy=PRIVACY, folder=folder)


@pytest.mark.parametrize("where", ["memory", "disk", "restarted"])
def test_a_round_that_is_repeated_has_the_same_noise_to_the_bit(tmp_path, where):
    sites = prepared(private(None if where == "memory" else tmp_path), SHARED)
    first = noised(sites)
    x = np.vstack(list(rows_of().values()))
    assert np.abs(first - x.T @ x @ Z).max() > 1.0
    for _ in range(4):
        if where == "restarted":
            sites = private(tmp_path)
        assert np.array_equal(noised(sites), first)
    for name in NAMES:
        charged = [c for c in sites[name].policy.releases.ledger.charges() if c.step == "gram.multiply"]
        assert len(charged) == 1


@pytest.mark.parametrize("where", ["memory", "disk", "restarted"])
def test_another_question_in_its_place_gets_no_answer(tmp_path, where):
    """The reply to a round is given; a question that differs in the last bit would be noised anew."""
    sites = prepared(private(None if where == "memory" else tmp_path), SHARED)
    noised(sites)
    if where == "restarted":
        sites = private(tmp_path)
    other = Z.copy()
    other[0, 0] = np.nextafter(other[0, 0], 2.0)
    with pytest.raises((CohortError, PolicyError, RoundConflict), match=r"another question|comes after|asked again"):
        noised(sites, message=other)


def test_a_round_that_came_to_nothing_is_made_again_with_the_noise_it_had(tmp_path):
    """The first attempt ends before anything is released; a site that was noised then is not noised again."""
    sites = prepared(private(tmp_path), SHARED)
    stopped = Exchange(sites, question(), terms=SHARED)
    message = stopped.message()
    for name in NAMES[:2]:
        stopped.masked(name, message)
    kept = {name: sites[name].memory._last["value"].tobytes() for name in NAMES[:2]}
    total = noised(private(tmp_path))
    assert np.array_equal(noised(private(tmp_path)), total)
    sites = private(tmp_path)
    assert {name: sites[name].memory._last["value"].tobytes() for name in NAMES[:2]} == kept


def test_fewer_sites_than_the_noise_was_sized_for_are_not_unmasked():
    sites = prepared(private(), SHARED)
    exchange = Exchange(sites, question(), terms=SHARED)
    message = exchange.message()
    masked = {name: exchange.masked(name, message) for name in NAMES[:3]}
    exchange.made._least = 0  # the coordinator would: three of four are a quorum
    exchange.made.take_masked(masked, {})
    replies = exchange.ask("consent", exchange.made.consent(), None, NAMES[:3])
    assert all("the sum would be of 3 sites; this site's policy is 4" in reply["refused"] for reply in replies.values())
