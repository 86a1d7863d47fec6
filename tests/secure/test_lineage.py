"""Steps that go on from a state of their own: a sum is of sites that came to it by the same questions, or of none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fedspan.rounds
from fedspan.errors import DataError, ProtocolError
from fedspan.rounds import STEPS, Reply, Round, answer, site_step
from tests.secure.sites_by_hand import NAMES, STATE, Exchange, Z, prepared, rows_of, sites_of
from tests.secure.test_adversarial_sites import learnt

VICTIM, OTHERS = "oak", [name for name in NAMES if name != "oak"]


@pytest.fixture(autouse=True)
def keeping() -> Iterator[None]:
    """A step that multiplies by what the question before told it to keep."""

    @site_step("tests.keeping", lost="restart")
    def step(site: Any, message: Any) -> Reply:
        kept = float(site.state.get("kept", 1.0))
        return Reply(kept * site.data.gram_times(Z), state={"kept": message["keep"]})

    yield
    del STEPS["tests.keeping"]


def asked(keep: float, number: int, terms: Any = None) -> Round:
    return Round(
        STEPS["tests.keeping"], {"keep": keep}, number=number, parents=dict.fromkeys(NAMES, number - 1), terms=terms
    )


def reply_of(name: str) -> np.ndarray:
    x = rows_of()[name]
    return x.T @ x @ Z


def test_who_came_by_the_same_questions_adds_up():
    sites = prepared(sites_of())
    whole = sum(reply_of(name) for name in NAMES)
    np.testing.assert_allclose(Exchange(sites, asked(2.0, 1)).run()["value"], whole, atol=1e-9)
    np.testing.assert_allclose(Exchange(sites, asked(1.0, 2)).run()["value"], 2.0 * whole, atol=1e-9)


def parted() -> Exchange:
    """The victim keeps 1, the others 0, in a round that is never unmasked; the next one is asked of all alike."""
    sites = prepared(sites_of())
    for keep, names in ((1.0, [VICTIM]), (0.0, OTHERS)):
        exchange = Exchange(sites, asked(keep, 1))
        message = exchange.message()
        for name in names:
            assert "masked" in exchange.masked(name, message)
    return Exchange(sites, asked(1.0, 2))


def test_states_that_were_parted_leave_masks(monkeypatch):
    def attack():
        exchange = parted()
        return learnt(exchange, dict.fromkeys(NAMES, exchange.message()))

    assert not np.allclose(attack(), reply_of(VICTIM), atol=1.0)
    monkeypatch.setattr(fedspan.rounds, "descent", lambda lineage, question: "")
    np.testing.assert_allclose(attack(), reply_of(VICTIM), atol=1e-9)  # else it is the victim's alone


def test_an_honest_coordinator_leaves_out_who_came_by_other_questions():
    exchange = parted()
    found = exchange.finish(dict.fromkeys(NAMES, exchange.message()))["value"]
    assert np.abs(found).max() < 1e-9  # of the three others, who keep nothing
    assert exchange.made.alive == OTHERS
    assert "of another form, scale or state" in exchange.made.refused[VICTIM]


def test_a_site_begins_again_from_its_preparation_and_nothing_else():
    sites = prepared(sites_of())
    question = asked(1.0, 1, terms={**STATE, "kept": 0.0})
    exchange = Exchange(sites, question)
    reply = exchange.masked(VICTIM, exchange.message())
    assert "what a site begins again from are a dict by preparation" in reply["refused"]


def test_an_error_at_a_step_ends_the_run_at_its_site():
    sites = prepared(sites_of())
    sites[VICTIM].data.gram_times = lambda z: 1 / 0
    exchange = Exchange(sites, asked(1.0, 1))
    message = exchange.message()
    with pytest.raises(ZeroDivisionError):
        exchange.masked(VICTIM, message)
    again = Exchange(sites, asked(1.0, 2))
    again.message()
    assert "ended this run with an error" in again.made.refused[VICTIM]


def test_a_refusal_to_describe_rows_is_said_once():
    """Else one would find the number of a site's rows by asking for more and more."""
    site = sites_of()[VICTIM]
    message = {"min_rows": 10**6, "missing": "error", "max_missing_fraction": 1.0}
    with pytest.raises(DataError, match="has fewer than min_rows = 1000000"):
        answer(site, Round(STEPS["data.describe"], message, number=0))
    with pytest.raises(ProtocolError, match="ended this run with an error"):
        answer(site, Round(STEPS["data.describe"], {**message, "min_rows": 1}, number=0))
