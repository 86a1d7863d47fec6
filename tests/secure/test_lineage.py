"""Steps that go on from a state of their own: a sum is of sites that came to it by the same questions, or of none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fedspan.rounds
from fedspan.errors import DataError, ProtocolError
from fedspan.rounds import STEPS, Reply, Round, answer, descent, site_step
from fedspan.secure.roll import reading
from tests.secure.sites_by_hand import NAMES, STATE, Exchange, Z, prepared, rows_of, sites_of

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


def sum_of(sites: Any, question: Round, lineage: str, monkeypatch: Any) -> np.ndarray:
    monkeypatch.setattr("tests.secure.sites_by_hand.reading", lambda *how: reading(*how, lineage))
    return Exchange(sites, question).run(state=STATE)["value"]


def test_who_came_by_the_same_questions_adds_up(monkeypatch):
    sites, first = prepared(sites_of()), asked(2.0, 1)
    whole = sum(reply_of(name) for name in NAMES)
    np.testing.assert_allclose(sum_of(sites, first, "", monkeypatch), whole, atol=1e-9)
    second = sum_of(sites, asked(1.0, 2), descent("", first), monkeypatch)
    np.testing.assert_allclose(second, 2.0 * whole, atol=1e-9)


def parted(monkeypatch: Any) -> np.ndarray:
    """The victim keeps 1, the others 0, in a round that is never unmasked; the next one is asked of all alike."""
    sites = prepared(sites_of())
    for keep, names in ((1.0, [VICTIM]), (0.0, OTHERS)):
        exchange = Exchange(sites, asked(keep, 1))
        message = exchange.message()
        for name in names:
            assert "masked" in exchange.masked(name, message)
    return sum_of(sites, asked(1.0, 2), descent("", asked(1.0, 1)), monkeypatch)


def test_states_that_were_parted_leave_masks(monkeypatch):
    assert not np.allclose(parted(monkeypatch), reply_of(VICTIM), atol=1.0)
    monkeypatch.setattr(fedspan.rounds, "descent", lambda lineage, question: "")
    monkeypatch.setattr("tests.secure.test_lineage.descent", lambda lineage, question: "")
    np.testing.assert_allclose(parted(monkeypatch), reply_of(VICTIM), atol=1e-9)  # else it is the victim's alone


def test_a_site_begins_again_from_its_preparation_and_nothing_else():
    sites = prepared(sites_of())
    question = asked(1.0, 1, terms={**STATE, "kept": 0.0})
    exchange = Exchange(sites, question)
    reply = exchange.masked(VICTIM, exchange.message())
    assert "begins again from its preparation, not from ['kept', 'preparation']" in reply["refused"]


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
