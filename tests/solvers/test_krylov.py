"""Block Krylov: few rounds, a bounded basis, and the same answer through restarts and deflation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedspan.solvers.krylov as krylov
from fedspan.errors import ConfigurationError
from fedspan.linalg import orth
from fedspan.metrics import projection_distance
from fedspan.solvers import BlockKrylov, Power
from tests.solvers.helpers import arrays, pooled, solve


def slow_spectrum(d=60, seed=0):
    """Variances that fall so slowly that a restart is needed."""
    rng = np.random.default_rng(seed)
    turn = orth(rng.standard_normal((d, d)))
    scale = 1.0 / np.sqrt(1 + np.arange(d))
    return {name: rng.standard_normal((n, d)) * scale @ turn for name, n in [("a", 150), ("b", 90)]}


def test_it_finds_the_pooled_answer_in_a_few_rounds():
    data = arrays(d=40, rows={"a": 100, "b": 80}, spread=0.9)
    solution, questions = solve(BlockKrylov(), data)
    basis, values = pooled(data)
    assert len(questions) <= 6
    assert solution.converged is True
    assert projection_distance(solution.estimate.basis, basis) < 1e-8
    np.testing.assert_allclose(solution.estimate.values, values, rtol=1e-8)


def test_it_takes_far_fewer_rounds_than_power():
    data = slow_spectrum()
    krylov = solve(BlockKrylov(oversampling=0, tol=1e-8), data)
    power = solve(Power(rounds=1000, tol=1e-8), data)
    assert krylov[0].converged
    assert power[0].converged
    assert len(krylov[1]) < len(power[1]) / 3


@pytest.mark.parametrize("max_basis", [3, 4, 6, 12])
def test_a_small_basis_restarts_and_finds_the_same(max_basis):
    data = slow_spectrum()
    solution, questions = solve(BlockKrylov(oversampling=0, tol=1e-11, rounds=300, max_basis=max_basis), data)
    assert solution.converged is True
    assert projection_distance(solution.estimate.basis, pooled(data)[0]) < 1e-8
    if max_basis == 3:
        assert len(questions) > 3 * 2  # it did restart


@pytest.mark.parametrize("max_basis", [3, 5])
def test_the_basis_never_exceeds_its_bound(max_basis, monkeypatch):
    widths, kept = [], krylov.orth_against

    def spy(block, basis, *settings):
        widths.append(basis.shape[1])
        np.testing.assert_allclose(basis.T @ basis, np.eye(basis.shape[1]), atol=1e-9)
        return kept(block, basis, *settings)

    monkeypatch.setattr(krylov, "orth_against", spy)
    solve(BlockKrylov(oversampling=1, tol=0.0, rounds=25, max_basis=max_basis), slow_spectrum())
    assert max(widths) <= max_basis * 4
    assert len(widths) == 25


def test_every_block_asked_is_new():
    """Each question is orthonormal, and orthogonal to all that were asked since the last restart."""
    _, questions = solve(BlockKrylov(oversampling=0, tol=0.0, rounds=8), slow_spectrum())
    asked = np.hstack([q.message for q in questions])
    np.testing.assert_allclose(asked.T @ asked, np.eye(asked.shape[1]), atol=1e-9)


def test_the_residual_never_exceeds_the_tolerance_at_the_end():
    data = slow_spectrum()
    x = np.vstack(list(data.values()))
    solution, _ = solve(BlockKrylov(oversampling=0, tol=1e-7), data)
    basis, values = solution.estimate
    residual = np.linalg.norm(x.T @ (x @ basis) - basis * values)
    assert residual <= 1.001e-7 * np.sum(x**2)


@pytest.mark.parametrize("rank", [1, 2, 3, 5])
def test_rank_deficient_rows_exhaust_the_space_early(rank):
    rng = np.random.default_rng(rank)
    low = rng.standard_normal((rank, 20)) * 3.0 ** -np.arange(rank)[:, None]
    data = {name: rng.standard_normal((n, rank)) @ low for name, n in [("a", 30), ("b", 25)]}
    solution, questions = solve(BlockKrylov(oversampling=4, tol=0.0), data)
    assert len(questions) <= 3
    basis, values = pooled(data, min(rank, 3))
    assert projection_distance(solution.estimate.basis[:, : min(rank, 3)], basis) < 1e-7
    np.testing.assert_allclose(solution.estimate.values[: len(values)], values, rtol=1e-9)
    np.testing.assert_allclose(solution.estimate.basis.T @ solution.estimate.basis, np.eye(3), atol=1e-9)


@pytest.mark.parametrize("k", [1, 8, 9])
def test_all_directions_can_be_asked_for(k):
    data = arrays()
    solution, questions = solve(BlockKrylov(), data, k=k)
    basis, values = pooled(data, k)
    assert projection_distance(solution.estimate.basis, basis) < 1e-8
    np.testing.assert_allclose(solution.estimate.values, values, rtol=1e-8)
    assert len(questions) <= 2


@given(st.integers(0, 10**6), st.integers(2, 14), st.integers(1, 5), st.integers(0, 5), st.integers(3, 5))
def test_any_shape_converges_to_the_pooled_values(seed, d, k, oversampling, max_basis):
    k = min(k, d)
    data = arrays(seed, d=d, rows={"a": 9, "b": 12}, spread=0.6)
    solver = BlockKrylov(oversampling=oversampling, max_basis=max_basis, rounds=200, tol=1e-10)
    solution, _ = solve(solver, data, k=k)
    _, values = pooled(data, k)
    assert solution.converged
    np.testing.assert_allclose(solution.estimate.values, values, atol=1e-8 * values[0])
    np.testing.assert_allclose(solution.estimate.basis.T @ solution.estimate.basis, np.eye(k), atol=1e-9)


def test_a_warm_start_cuts_rounds():
    data = slow_spectrum()
    cold, questions = solve(BlockKrylov(oversampling=0, tol=1e-9), data)
    nudged = orth(cold.estimate.basis + 1e-6 * np.random.default_rng(0).standard_normal(cold.estimate.basis.shape))
    _, again = solve(BlockKrylov(oversampling=0, tol=1e-9), data, z0=nudged)
    _, exact = solve(BlockKrylov(oversampling=0, tol=1e-9), data, z0=pooled(data)[0])
    assert len(exact) == 1
    assert len(again) <= len(questions) / 2


def test_single_precision_stops_at_what_it_can_reach():
    data = {name: x.astype(np.float32) for name, x in slow_spectrum().items()}
    eps = float(np.finfo(np.float32).eps)
    solution, questions = solve(BlockKrylov(oversampling=2, tol=1e-15), data, precision=eps)
    assert solution.converged is True
    assert len(questions) < 20
    assert projection_distance(solution.estimate.basis, pooled(data)[0]) < 1e-3


def test_without_a_tolerance_the_budget_is_used():
    solution, questions = solve(BlockKrylov(oversampling=0, tol=0.0, rounds=9), slow_spectrum())
    assert solution.converged is None
    assert len(questions) == 9


def test_a_budget_too_small_is_said():
    solution, questions = solve(BlockKrylov(oversampling=0, tol=1e-12, rounds=2), slow_spectrum())
    assert solution.converged is False
    assert len(questions) == 2


def test_settings():
    with pytest.raises(ConfigurationError, match="max_basis is at least 3"):
        BlockKrylov(max_basis=2)
    with pytest.raises(ConfigurationError, match=r"max_basis is an integer, got 4\.0"):
        BlockKrylov(max_basis=4.0)
    with pytest.raises(ConfigurationError, match="budget of communications"):
        BlockKrylov(rounds=0)
    assert not BlockKrylov().partial
    assert BlockKrylov().rank(5, 100) == 15
    assert BlockKrylov().rank(5, 12) == 12
