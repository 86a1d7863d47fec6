"""The cost of one secure sum, measured on the protocol itself."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from fedspan.cli.reproduce_ppm_cost import cipher_seconds, measure, secure_sum
from fedspan.cli.reproduce_ppm_growth import ORDERS, measure_growth
from fedspan.errors import CohortError
from fedspan.secure import SecureSums
from fedspan.secure.aggregation import Aggregation
from fedspan.secure.roll import ADVERT
from fedspan.secure.session import BOX
from fedspan.secure.shamir import SHARE_BYTES


@pytest.mark.parametrize(("sites", "dropped"), [(3, 0), (7, 2), (12, 3)])
def test_the_sum_is_exact_and_bytes_are_those_of_the_messages(sites: int, dropped: int) -> None:
    found = secure_sum(sites, 50, dropped)
    assert found.exact
    assert (found.sites, found.alive, found.neighbours) == (sites, sites - dropped, sites - 1)
    assert found.holders_needed == 2 * sites // 3 + 1
    keys, masked, signature = ADVERT + found.neighbours * BOX + 32, 8 * 50, 64
    assert found.up == keys + masked + signature + sites * SHARE_BYTES
    assert found.server_bytes >= found.alive * (found.up + found.down)
    assert found.down > found.neighbours * (ADVERT + BOX)


def test_times_are_of_all_phases_and_of_both_sides() -> None:
    found = secure_sum(8, 20_000)
    assert set(found.phases) == {"keys", "shares", "masks", "consent", "release"}
    assert min(found.phases.values()) > 0
    assert found.slowest_seconds >= found.site_seconds > 0.5 * sum(found.phases.values())
    assert found.server_seconds > 0
    assert 0 < found.cipher_seconds < found.site_seconds


def test_a_sum_that_is_off_by_one_is_not_called_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Aggregation.unmask

    def wrong(self: Aggregation, total: np.ndarray, about: str) -> None:
        true(self, total, about)
        total[0] += np.uint64(1)

    monkeypatch.setattr(Aggregation, "unmask", wrong)
    assert not secure_sum(3, 5).exact


def test_the_rules_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert secure_sum(60, 10, rules=SecureSums(complete_up_to=3)).neighbours < 60
    with pytest.raises(CohortError, match="it takes 3 of 4"):
        secure_sum(4, 10, dropped=2)
    assert gc.isenabled()


def test_the_cipher_takes_longer_for_more() -> None:
    few, many = (min(cipher_seconds(masks, 100_000) for _ in range(5)) for masks in (2, 20))
    assert many > 4 * few > 0


def test_it_is_a_measure_that_growth_takes() -> None:
    assert set(measure(3, 10)) == set(ORDERS)
    found = measure_growth(measure, [3, 6], [10, 1000])
    grown = found["fits"]["server_bytes"]["growth"]
    assert (grown["from"], grown["to"]) == (3, 6)
    assert grown["measured"] > 2
