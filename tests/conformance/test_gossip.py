"""Every solver that needs no more than sums runs without a coordinator; every other one is refused."""

from __future__ import annotations

import numpy as np
import pytest

from fedspan.engines import Gossip
from fedspan.errors import ConfigurationError
from fedspan.metrics import projection_distance
from tests.conformance.solvers import CASES, PRIVATE, ROWS, bits, rows_of, solve

NODES = ROWS | {"essen": 25, "faro": 35}
RING = Gossip(graph="ring", accuracy=1e-12)


def sums_only(case):
    """Whether a run in one process had nothing but sums of all sites' replies, its headers aside."""
    if not case.cohort.is_full or case.doubles:
        return False
    return all(record.aggregate == "sum" for record in solve(case).history if record.step != "data.describe")


SUMS = [case for case in CASES if sums_only(case)]


def test_half_of_the_cases_need_no_more_than_sums():
    assert {case.name for case in SUMS} == {"power", "krylov", "faps", "covariance", "fedpower"}


@pytest.mark.parametrize("case", SUMS, ids=str)
@pytest.mark.parametrize("agree", [True, False])
def test_gossip_equals_in_process(case, agree):
    sites = rows_of(sizes=NODES)
    here, there = solve(case, sites), solve(case, sites, engine=Gossip(graph="ring", accuracy=1e-12, agree=agree))
    tolerance = 1e-6 if case.exact else 1e-5  # stopped by a tolerance, which is raised to the accuracy
    for found in there.nodes.estimates.values():
        assert projection_distance(found.basis, here.estimate.basis) <= tolerance
        np.testing.assert_allclose(found.values, here.estimate.values, atol=tolerance * here.estimate.values.max())


@pytest.mark.parametrize("case", [case for case in CASES if case not in SUMS], ids=str)
def test_what_needs_more_is_refused(case):
    with pytest.raises(ConfigurationError, match="gossip"):
        solve(case, engine=RING)


@pytest.mark.parametrize("case", SUMS, ids=str)
def test_the_order_of_sites_does_not_change_a_bit(case):
    sites = rows_of(sizes=NODES)
    backwards = dict(reversed(sites.items()))
    assert bits(solve(case, sites, engine=RING)) == bits(solve(case, backwards, engine=RING))


LOCAL = [case for case in PRIVATE if case.privacy.trust == "local"]
TAKEN = ("private-power-local", "covariance-local", "krylov-local", "fedpower-local", "fedpower-clipped")


@pytest.mark.parametrize("case", [case for case in LOCAL if case.id in TAKEN], ids=str)
def test_local_trust_is_what_it_is_in_one_process(case):
    sites = rows_of(sizes=NODES)
    here, there = solve(case, sites), solve(case, sites, engine=RING)
    assert projection_distance(here.estimate.basis, there.estimate.basis) <= 1e-6
    assert there.privacy.spent_epsilon == pytest.approx(here.privacy.spent_epsilon, rel=1e-9)
    assert there.privacy.words == here.privacy.words


@pytest.mark.parametrize("case", [case for case in LOCAL if case.id not in TAKEN], ids=str)
def test_other_private_studies_are_refused(case):
    with pytest.raises(ConfigurationError, match="gossip"):
        solve(case, engine=RING)
