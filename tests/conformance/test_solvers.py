"""What every registered solver must do, whatever it computes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from fedspan.data import Preparation, open_source
from fedspan.engines import InProcess, VirtualTime
from fedspan.errors import CohortError, ConfigurationError
from fedspan.metrics import projection_distance
from fedspan.rounds import Cohort
from fedspan.run import Study, run
from fedspan.solvers import SOLVERS, make
from tests.conformance.faults import dies_in, silent_in_turn
from tests.conformance.solvers import (
    CASES,
    EXACT,
    FIRST,
    PRIVATE,
    WHOLE,
    D,
    K,
    bits,
    fedpower,
    integer_weights,
    pooled,
    rows_of,
    solve,
    sparse_rows_of,
    traffic,
)
from tests.wire import CoordinatorDown, Log, Wire

every = pytest.mark.parametrize("case", CASES, ids=str)
exact = pytest.mark.parametrize("case", EXACT, ids=str)
whole = pytest.mark.parametrize("case", WHOLE, ids=str)
PARTIAL = [case for case in CASES if case.solver.partial and not case.forgets]
UNCUT = [case for case in CASES if not case.cuts]


def same(one, other, tolerance):
    """Two results agree in subspace and, relative to the largest, in values."""
    assert projection_distance(one.estimate.basis, other.estimate.basis) <= tolerance
    np.testing.assert_allclose(one.estimate.values, other.estimate.values, atol=tolerance * one.estimate.values.max())


def test_every_registered_solver_is_listed():
    assert {case.name for case in [*CASES, *PRIVATE]} == set(SOLVERS)


# ---- engines and order -----------------------------------------------------------------------------------------


@every
def test_in_process_equals_the_wire(case):
    here, there = solve(case), solve(case, engine=Wire)
    same(here, there, 1e-10)
    assert [r.sites for r in here.history] == [r.sites for r in there.history]
    assert here.bytes_down == there.bytes_down
    if case.cohort.first is None and not case.doubles:  # in one process a reply that is late is never computed
        assert here.bytes_up == there.bytes_up


@every
def test_every_solver_runs_in_virtual_time(case):
    here, there = solve(case), solve(case, engine=VirtualTime(communication=0.5))
    clocks = [record.clock for record in there.history]
    assert clocks == sorted(clocks)
    assert clocks[-1] > 0.5 * there.rounds
    if case.cohort.first is None and not case.doubles:  # else who is first is drawn in another way
        assert bits(here) == bits(there)
        assert traffic(here) == traffic(there)
    else:
        assert projection_distance(there.estimate.basis, pooled(rows_of())[0]) < (1e-8 if case.exact else 0.35)


@every
def test_the_order_of_arrival_does_not_change_a_bit(case):
    runs = [solve(case, engine=partial(Wire, shuffle=s)) for s in (None, 1, 2)]
    assert bits(runs[0]) == bits(runs[1]) == bits(runs[2])
    assert traffic(runs[0]) == traffic(runs[1]) == traffic(runs[2])


@every
@pytest.mark.parametrize("engine", [None, Wire], ids=["in-process", "wire"])
def test_the_order_of_sites_does_not_change_a_bit(case, engine):
    sites = rows_of()
    backwards = dict(reversed(sites.items()))
    assert bits(solve(case, sites, engine=engine)) == bits(solve(case, backwards, engine=engine))


@pytest.mark.parametrize(
    "case", [case for case in WHOLE if not case.cuts and (case.exact or not case.doubles)], ids=str
)
def test_names_of_sites_do_not_matter(case):
    sites = rows_of()
    renamed = dict(zip(["w", "z", "x", "y"], sites.values(), strict=True))
    same(solve(case, sites), solve(case, renamed), 1e-9)


@every
def test_the_wire_costs_little_more_than_the_numbers(case):
    log = Log()
    result = solve(case, engine=partial(Wire, log=log))
    letters = sum(log.executed.values())
    assert result.bytes_up <= log.bytes_received <= result.bytes_up + 400 * letters
    assert log.bytes_sent <= result.bytes_down + 600 * letters


# ---- answers ---------------------------------------------------------------------------------------------------


@exact
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_exact_solvers_equal_the_pooled_svd(case, center, kind):
    sites = rows_of() if kind == "dense" else sparse_rows_of()
    result = solve(case, sites, center=center)
    basis, values = pooled(sites, center=center)
    assert projection_distance(result.estimate.basis, basis) < 1e-8
    np.testing.assert_allclose(result.estimate.values, values, rtol=1e-8)
    np.testing.assert_allclose(np.abs(np.sum(result.estimate.basis * basis, axis=0)), 1, atol=1e-8)


@every
def test_every_solver_comes_near_the_pooled_svd(case):
    sites = rows_of()
    basis, values = pooled(sites)
    result = solve(case, sites)
    assert projection_distance(result.estimate.basis, basis) < 0.35
    np.testing.assert_allclose(result.estimate.values, values, rtol=0.35)


@every
def test_the_estimate_is_orthonormal_in_every_round(case):
    seen = []
    result = solve(case, watchers=[lambda record, estimate: seen.append((record, estimate))])
    asked = [estimate for record, estimate in seen if not record.setup]
    assert len(asked) == result.rounds >= 1
    for estimate in [*asked, result.estimate.basis]:
        assert estimate.shape[0] == D
        assert estimate.shape[1] >= K
        np.testing.assert_allclose(estimate.T @ estimate, np.eye(estimate.shape[1]), atol=1e-10)
    assert result.estimate.basis.shape == (D, K)
    assert np.all(np.diff(result.estimate.values) <= 1e-9 * result.estimate.values[0])


@every
def test_the_seed_determines_the_run(case):
    assert bits(solve(case, seed=5)) == bits(solve(case, seed=5))
    assert traffic(solve(case, seed=5)) == traffic(solve(case, seed=5))
    if case.name in ("power", "fedpower") and not case.exact:
        assert bits(solve(case, seed=5)) != bits(solve(case, seed=6))


@exact
def test_exact_solvers_do_not_depend_on_the_seed(case):
    same(solve(case, seed=5), solve(case, seed=6), 1e-8)


# ---- data ------------------------------------------------------------------------------------------------------


@every
def test_sparse_rows_give_what_dense_ones_give(case):
    sites = sparse_rows_of()
    dense = {name: x.toarray() for name, x in sites.items()}
    same(solve(case, sites), solve(case, dense), 1e-9)


@pytest.mark.parametrize("case", UNCUT, ids=str)
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_weight_is_a_repeated_row(case, kind):
    sites = rows_of() if kind == "dense" else sparse_rows_of()
    weights = integer_weights(sites)
    times = {name: np.repeat(np.arange(len(w)), w.astype(int)) for name, w in weights.items()}
    repeated = {name: x[times[name]] for name, x in sites.items()}
    weighted = solve(case, sites, weights=weights)
    same(weighted, solve(case, repeated), 1e-9)
    assert weighted.facts.weight == sum(len(t) for t in times.values())


@every
def test_float32_rows_give_the_same_to_their_precision(case):
    sites = rows_of()
    single = {name: x.astype(np.float32) for name, x in sites.items()}
    same(solve(case, single), solve(case, sites), 5e-4)


@every
def test_rank_deficient_rows_still_give_k_orthonormal_columns(case):
    rng = np.random.default_rng(3)
    low = rng.standard_normal((2, D))
    sites = {name: rng.standard_normal((n, 2)) @ low for name, n in [("a", 9), ("b", 7), ("c", 8), ("d", 11)]}
    result = solve(case, sites, center=False)
    basis, values = pooled(sites, center=False, k=2)
    assert result.estimate.basis.shape == (D, K)
    np.testing.assert_allclose(result.estimate.basis.T @ result.estimate.basis, np.eye(K), atol=1e-9)
    assert result.estimate.values[2] <= 1e-9 * values[0]
    if case.cohort.is_full and case.name != "fedpower":  # few local steps align only roughly
        assert projection_distance(result.estimate.basis[:, :2], basis) < 1e-5


@every
def test_rows_without_any_variance_have_no_values_but_a_basis(case):
    sites = {name: np.ones((n, D)) for name, n in [("a", 9), ("b", 7), ("c", 8), ("d", 11)]}
    result = solve(case, sites)
    np.testing.assert_allclose(result.estimate.basis.T @ result.estimate.basis, np.eye(K), atol=1e-9)
    np.testing.assert_allclose(result.estimate.values, 0, atol=1e-20)


@every
def test_sites_with_fewer_rows_than_components_take_part(case):
    sites = rows_of(sizes={"a": 2, "b": 1, "c": 40, "d": 3})
    result = solve(case, sites)
    assert result.estimate.basis.shape == (D, K)
    np.testing.assert_allclose(result.estimate.basis.T @ result.estimate.basis, np.eye(K), atol=1e-9)
    if case.exact:
        assert projection_distance(result.estimate.basis, pooled(sites)[0]) < 1e-8


@every
def test_one_site_is_a_federation(case):
    sites = {"only": np.vstack(list(rows_of().values()))}
    cohort = replace(case.cohort, first=None)
    result = solve(replace(case, cohort=cohort), sites)
    # two local steps in five rounds are ten power steps: near, not exact
    assert projection_distance(result.estimate.basis, pooled(sites)[0]) < (1e-8 if case.exact else 0.1)


# ---- stopping and coming back ----------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("wired", [False, True], ids=["in-process", "wire"])
def test_a_resumed_run_equals_an_uninterrupted_one(case, wired, tmp_path):
    engine = Wire if wired else InProcess
    whole_run = solve(case, engine=engine)
    total = len(whole_run.history)
    stops = range(total) if total <= 12 else [0, 2, 3, 4, total // 2, total - 1]
    for number in stops:
        folder = tmp_path / str(number)
        with pytest.raises(CoordinatorDown):
            solve(case, engine=dies_in(number, engine), folder=folder)
        resumed = solve(case, engine=engine, folder=folder, resume=True)
        assert bits(resumed) == bits(whole_run), number
        assert traffic(resumed) == traffic(whole_run), number


@pytest.mark.parametrize("name", ["power", "fedpower", "krylov", "uda", "dr-svd"])
def test_a_resumed_run_is_the_same_to_the_bit_where_sites_begin_to_cache(name, tmp_path):
    """Rows so tall that a site buys its Gram matrix after a few rounds: one that was restarted buys it then too."""
    sites = rows_of(sizes={"a": 150, "b": 200}, d=30)
    budget = {"rounds": 8, "tol": 0.0} if name in ("power", "fedpower") else {}
    case = replace(CASES[0], solver=make(name, **budget))
    whole_run = solve(case, sites, k=2)
    for number in range(3, len(whole_run.history)):
        folder = tmp_path / str(number)
        with pytest.raises(CoordinatorDown):
            solve(case, sites, k=2, engine=dies_in(number, InProcess), folder=folder)
        assert bits(solve(case, sites, k=2, folder=folder, resume=True)) == bits(whole_run), number


# ---- silent sites ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [case for case in PARTIAL if not case.holds], ids=str)
@pytest.mark.parametrize("fate", ["question", "reply"])
def test_dropped_replies_are_survived_where_the_cohort_allows(case, fate):
    by_size = case.cohort.sample != "uniform"  # draws three of four, some of them twice
    case = replace(case, cohort=replace(case.cohort, deadline=60.0) if by_size else FIRST)
    result = solve(case, engine=partial(Wire, drop=silent_in_turn(fate, rows_of())))
    assert {r.sites for r in result.history if not r.setup} <= ({1, 2, 3} if by_size or case.doubles else {3})
    np.testing.assert_allclose(result.estimate.basis.T @ result.estimate.basis, np.eye(K), atol=1e-10)
    basis, values = pooled(rows_of())
    assert projection_distance(result.estimate.basis, basis) < 0.35
    np.testing.assert_allclose(result.estimate.values, values, rtol=0.35)


@every
def test_a_silent_site_is_an_error_where_all_are_needed(case):
    case = replace(case, cohort=Cohort())
    with pytest.raises(CohortError, match="[01] of [12] sites answered" if case.holds else "3 of 4 sites answered"):
        solve(case, engine=partial(Wire, drop=silent_in_turn("question", rows_of())))


@pytest.mark.parametrize("case", [c for c in CASES if not c.solver.partial], ids=str)
@pytest.mark.parametrize(
    "cohort", [FIRST, Cohort(fraction=0.5), Cohort(only=("accra",)), Cohort(deadline=1.0)], ids=str
)
def test_a_partial_cohort_is_refused_by_solvers_that_mix_rounds(case, cohort):
    with pytest.raises(ConfigurationError, match=f"{case.name} needs every site in every round"):
        solve(replace(case, cohort=cohort))


@pytest.mark.parametrize("name", sorted(set(SOLVERS) - {"fedpower", "private-power"}))
@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_only_fedpower_takes_its_scheme_1(name, fraction):
    cohort = Cohort(fraction=fraction, sample="by-size-with-replacement")
    case = replace(next(c for c in CASES if c.name == name), cohort=cohort)
    with pytest.raises(ConfigurationError, match=r"scheme 1|needs every site"):
        solve(case)


def test_partial_values_are_scaled_up_to_all_rows():
    """A quarter of the rows has a quarter of the Gram matrix; the values reported are those of all of them."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 6)) * [8, 4, 2, 1, 0.5, 0.25]
    sites = {f"{i}": x for i in range(8)}  # equal sites: any of them knows the answer
    exact_values = pooled(sites, k=2)[1]
    for name, settings in [("power", {"tol": 0.0, "rounds": 60}), ("fedpower", {}), ("uda", {}), ("wda", {})]:
        case = replace(CASES[0], solver=make(name, **settings), cohort=Cohort(fraction=0.25))
        np.testing.assert_allclose(solve(case, sites, k=2).estimate.values, exact_values, rtol=1e-8, err_msg=name)


# ---- what it costs ---------------------------------------------------------------------------------------------


def spent(result):
    """Bytes up and down of the solver's own rounds."""
    own = [r for r in result.history if not r.setup]
    return sum(r.bytes_up for r in own), sum(r.bytes_down for r in own)


@pytest.mark.parametrize("settings", [{}, {"oversampling": 2}], ids=str)
def test_bytes_of_power(settings):
    case = replace(CASES[0], solver=make("power", rounds=9, tol=0.0, **settings))
    r = K + settings.get("oversampling", 0)
    result = solve(case)
    assert result.rounds == 9
    assert spent(result) == (9 * 4 * 8 * D * r, 9 * 4 * 8 * D * r)


def test_bytes_of_power_with_some_sites():
    result = solve(replace(CASES[0], solver=make("power", rounds=9, tol=0.0), cohort=Cohort(fraction=0.5)))
    assert spent(result) == (9 * 2 * (8 * D * K + 8), 9 * 2 * 8 * D * K)


@pytest.mark.parametrize("align", ["procrustes", "sign", None])
@pytest.mark.parametrize("reference", ["global", "baseline"])
def test_bytes_of_fedpower(align, reference):
    result = solve(replace(CASES[0], solver=fedpower(align=align, reference=reference, rounds=5)))
    block, settings = 8 * D * K, 32 + len(align or "")
    up = 2 * block + 8 if reference == "baseline" and align else block
    assert result.rounds == 5
    assert spent(result) == (4 * (4 * up + block), 4 * (4 * (block + settings) + block))


def test_bytes_of_fedpower_with_some_sites():
    result = solve(replace(CASES[0], solver=fedpower(rounds=5), cohort=Cohort(fraction=0.5)))
    block, settings = 8 * D * K, 32 + len("procrustes")
    assert spent(result) == (2 * (4 * block + block + 8), 2 * (4 * (block + settings) + block))


def test_bytes_of_krylov():
    result = solve(replace(CASES[0], solver=make("krylov", rounds=2, tol=0.0, oversampling=2)))
    assert result.rounds == 2
    assert spent(result) == (2 * 4 * 8 * D * 5, 2 * 4 * 8 * D * 5)
    whole_space = solve(replace(CASES[0], solver=make("krylov", rounds=9, tol=0.0, oversampling=2)))
    assert whole_space.rounds == 3  # 5 + 5 + 2 columns: the whole space, the last block deflated
    assert spent(whole_space) == (4 * 8 * D * D, 4 * 8 * D * D)


def test_bytes_of_covariance():
    result = solve(replace(CASES[0], solver=make("covariance")))
    assert result.rounds == 1
    assert spent(result) == (4 * 4 * D * (D + 1), 0)


@pytest.mark.parametrize(("name", "values"), [("uda", 0), ("wda", 8 * K)])
def test_bytes_of_averaging(name, values):
    result = solve(replace(CASES[0], solver=make(name)))
    assert result.rounds == 2
    assert spent(result)[0] == 4 * (8 * D * K + values) + 4 * 8 * D * K
    assert spent(result)[1] == 4 * 16 + 4 * 8 * D * K


def test_bytes_of_randomized_svd():
    r = K + (D - K) // 4
    result = solve(replace(CASES[0], solver=make("dr-svd")))
    assert result.rounds == 3
    assert spent(result) == (4 * (8 * D * r + 8 * r * r + 8 * D * r), 3 * 4 * 8 * D * r)


@every
def test_set_up_takes_three_rounds_and_is_counted_apart(case):
    result = solve(case)
    assert result.setup_rounds == 3
    assert result.rounds + 3 == len(result.history)
    assert result.bytes_up == sum(r.bytes_up for r in result.history)


def test_scaling_takes_a_fourth_set_up_round():
    sources = {name: open_source(x) for name, x in rows_of().items()}
    result = run(Study(n_components=2, preparation=Preparation(scale=True)), sources)
    assert result.setup_rounds == 4
