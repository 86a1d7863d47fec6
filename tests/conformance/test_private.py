"""What every solver must do under a privacy policy, whoever is trusted with the noise."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from fedspan.errors import ConfigurationError
from fedspan.metrics import projection_distance
from fedspan.solvers import SOLVERS, make
from tests.conformance.solvers import PRIVATE, D, K, bits, pooled, promise, rows_of, solve, traffic
from tests.wire import CoordinatorDown, Log, Wire

every = pytest.mark.parametrize("case", PRIVATE, ids=str)


@every
def test_in_process_equals_the_wire(case):
    here, there = solve(case), solve(case, engine=Wire)
    assert projection_distance(here.estimate.basis, there.estimate.basis) < 1e-9
    if case.cohort.is_full:  # in one process a reply that would be late is never computed
        assert here.bytes_up == there.bytes_up
    assert [r.share for r in here.privacy.releases] == [r.share for r in there.privacy.releases]


@every
def test_neither_the_order_of_arrival_nor_of_sites_changes_a_bit(case):
    sites = rows_of()
    runs = [solve(case, sites, engine=partial(Wire, shuffle=s)) for s in (None, 1)]
    runs.append(solve(case, dict(reversed(sites.items())), engine=Wire))
    assert bits(runs[0]) == bits(runs[1]) == bits(runs[2])
    assert traffic(runs[0]) == traffic(runs[1])


@every
def test_with_little_noise_it_comes_near_the_pooled_svd(case):
    basis, values = pooled(rows_of(), center=case.center)
    result = solve(case)
    assert projection_distance(result.estimate.basis, basis) < 0.35
    np.testing.assert_allclose(result.estimate.values, values, rtol=0.35)


@every
def test_noise_is_there_and_its_seed_decides_it(case):
    quiet = solve(replace(case, privacy=None, solver=_open(case.solver)))
    noisy, again = solve(case), solve(case)
    other = solve(replace(case, privacy=replace(case.privacy, testing_seed=8)))
    assert bits(noisy) == bits(again)
    assert bits(noisy) != bits(other)
    assert not np.allclose(noisy.estimate.values, quiet.estimate.values, rtol=1e-12, atol=0)


def _open(solver):
    return make("power", rounds=5, tol=0.0, oversampling=5) if type(solver).__name__ == "PrivatePower" else solver


@every
def test_the_estimate_is_orthonormal_in_every_round(case):
    seen = []
    result = solve(case, watchers=[lambda record, estimate: seen.append(estimate)])
    for estimate in [*(e for e in seen if e is not None), result.estimate.basis]:
        assert estimate.shape[0] == D
        np.testing.assert_allclose(estimate.T @ estimate, np.eye(estimate.shape[1]), atol=1e-10)
    assert result.estimate.basis.shape == (D, K)


@every
def test_the_whole_budget_is_planned_and_none_beyond_it_is_spent(case):
    promised = solve(case).privacy
    assert sum(r.share for r in promised.releases) <= 1 + 1e-9
    if "fedpower-published" in case.id:
        assert promised.spent_epsilon is None  # no guarantee is established, so nothing is said to be spent
    else:
        assert promised.spent_epsilon <= promised.epsilon
    if case.name != "krylov":  # it may exhaust the space before its rounds
        assert sum(r.share for r in promised.releases) == pytest.approx(1)


@every
def test_a_resumed_run_equals_an_uninterrupted_one_and_is_charged_once(case, tmp_path):
    whole = solve(case, engine=Wire, folder=tmp_path / "whole")

    def stop(event, number, site):
        if event == "collected" and number == len(whole.history) - 1:
            raise CoordinatorDown(event)

    with pytest.raises(CoordinatorDown):
        solve(case, engine=partial(Wire, on_event=stop), folder=tmp_path / "killed")
    resumed = solve(case, engine=Wire, folder=tmp_path / "killed", resume=True)
    assert bits(resumed) == bits(whole)
    assert resumed.privacy.releases == whole.privacy.releases


@every
def test_no_rows_are_described_unless_their_number_is_public(case):
    log = Log()
    solve(case, engine=partial(Wire, log=log))
    from fedspan.encoding import decode

    for name in rows_of():
        described = decode(log.left[name, 0][0])["value"]
        assert (described["rows"] is None) == (not case.privacy.n_public)
        assert described["missing"] == 0.0


@pytest.mark.parametrize("name", [name for name, kind in SOLVERS.items() if kind().releases is None])
def test_a_solver_that_declares_no_sensitivity_is_refused_and_others_are_named(name):
    case = replace(PRIVATE[0], solver=make(name))
    with pytest.raises(ConfigurationError, match=rf"{name} declares no sensitivity.*power.*private-power.*covariance"):
        solve(case)


@pytest.mark.parametrize("trust", ["distributed", "central"])
def test_a_solver_that_gathers_is_refused_where_single_replies_have_too_little_noise(trust):
    case = replace(PRIVATE[0], solver=make("mod-sulq"), privacy=promise(trust))
    with pytest.raises(ConfigurationError, match="mod-sulq adds its noise at the sites"):
        solve(case)
