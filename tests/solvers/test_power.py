"""The distributed power method against Algorithm 1, and what all solvers' settings share."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest

from fedspan.errors import ConfigurationError
from fedspan.metrics import kkt_violation, projection_distance
from fedspan.rounds import Cohort
from fedspan.solvers import NAMES, SOLVERS, BlockKrylov, Covariance, FedPower, Power, check_solver, choose, make
from fedspan.solvers.covariance import from_triangle
from tests.solvers.helpers import ROWS, D, K, arrays, pooled, solve, start


def algorithm_1(data, z, rounds):
    """Z after each iteration, as printed: with M_i and p_i."""
    n = sum(len(x) for x in data.values())
    iterates = []
    for _ in range(rounds):
        y = sum(len(x) / n * (x.T @ x / len(x)) @ z for x in data.values())  # lines 4-5
        q, r = np.linalg.qr(y)  # line 6
        z = q * np.sign(np.diag(r))
        iterates.append(z)
    return iterates


def test_it_is_algorithm_1():
    data, z0 = arrays(), start()
    solution, questions = solve(Power(rounds=8, tol=0.0), data, z0=z0)
    expected = algorithm_1(data, z0, 8)
    np.testing.assert_allclose(questions[0].estimate, z0)
    for question, iterate in zip(questions[1:], expected, strict=False):
        np.testing.assert_allclose(question.estimate, iterate, atol=1e-11)
    assert projection_distance(solution.estimate.basis, expected[-1]) < 1e-11
    assert len(questions) == 8


def test_it_stops_on_the_scaled_violation():
    data = arrays()
    x = np.vstack(list(data.values()))
    solution, questions = solve(Power(tol=1e-6, rounds=500), data)
    violations = [kkt_violation(q.estimate, x.T @ (x @ q.estimate), np.sum(x**2)) for q in questions]
    assert solution.converged is True
    assert violations[-1] <= 1e-6
    assert min(violations[:-1]) > 1e-6


def test_its_values_are_those_of_the_gram_matrix():
    data = arrays()
    solution, _ = solve(Power(tol=1e-13, rounds=500), data)
    np.testing.assert_allclose(solution.estimate.values, pooled(data)[1], rtol=1e-10)


def test_oversampling_takes_fewer_rounds():
    data = arrays(d=20, spread=0.85)
    rounds = [len(solve(Power(tol=1e-9, rounds=500, oversampling=p), data)[1]) for p in (0, 4)]
    assert rounds[1] < rounds[0]


def test_a_warm_start_takes_one_round():
    data = arrays()
    solution, questions = solve(Power(), data, z0=pooled(data)[0])
    assert len(questions) == 1
    assert solution.converged


def test_single_precision_stops_at_what_it_can_reach():
    data = {name: x.astype(np.float32) for name, x in arrays().items()}
    solution, questions = solve(Power(tol=1e-15, rounds=400), data, precision=float(np.finfo(np.float32).eps))
    assert solution.converged is True
    assert len(questions) < 100


def test_some_sites_are_scaled_up_to_all_rows():
    data, z0 = arrays(), start()
    got = []
    solution, _ = solve(
        Power(rounds=1, tol=0.0), data, z0=z0, cohort=Cohort(only=("b",)), watch=lambda q, o: got.append(o)
    )
    scale = sum(ROWS.values()) / ROWS["b"]
    expected = np.linalg.svd(scale * data["b"].T @ (data["b"] @ z0), compute_uv=False)
    np.testing.assert_allclose(solution.estimate.values, expected, rtol=1e-10)
    assert got[0].sites == ["b"]


def test_the_covariance_solver_is_one_eigenproblem():
    data = arrays()
    got = []
    solution, questions = solve(Covariance(), data, watch=lambda q, o: got.append(o.value))
    x = np.vstack(list(data.values()))
    np.testing.assert_allclose(np.linalg.norm(got[0]), np.linalg.norm(x.T @ x), rtol=1e-12)  # an isometry
    np.testing.assert_allclose(from_triangle(got[0], D), x.T @ x, atol=1e-10)
    assert projection_distance(solution.estimate.basis, pooled(data)[0]) < 1e-10
    assert len(questions) == 1
    assert solution.converged is True


# ---- settings, names, choice -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOLVERS)
def test_settings_are_frozen_and_by_keyword(name):
    solver = make(name)
    assert type(solver) is SOLVERS[name]
    assert NAMES[type(solver)] == name
    assert solver == make(name)
    assert hash(solver) == hash(make(name))
    for setting in fields(solver):
        with pytest.raises(FrozenInstanceError):
            setattr(solver, setting.name, None)
    with pytest.raises(TypeError):
        type(solver)(3)
    assert solver.rank(K, D) >= K


@pytest.mark.parametrize("name", ["power", "fedpower", "krylov"])
def test_iterative_solvers_share_their_settings(name):
    solver = make(name, rounds=7, tol=0.5, oversampling=3)
    assert (solver.rounds, solver.tol, solver.oversampling) == (7, 0.5, 3)
    assert solver.rank(2, 100) == 5
    for settings in ({"rounds": 0}, {"tol": -1.0}, {"oversampling": -1}):
        with pytest.raises(ConfigurationError):
            make(name, **settings)
    for wrong in (2.5, "7", None, True, np.nan):
        with pytest.raises(ConfigurationError, match="rounds is an integer, got"):
            make(name, rounds=wrong)
        with pytest.raises(ConfigurationError, match="oversampling is an integer, got"):
            make(name, oversampling=wrong)
    for wrong in ("1e-6", None, True, np.nan, np.inf):
        with pytest.raises(ConfigurationError, match="tol is a finite number, got"):
            make(name, tol=wrong)
    plain = vars(make(name, rounds=np.int64(7), tol=np.float64(0.5), oversampling=np.int32(3)))
    assert json.loads(json.dumps(plain)) == {**plain, "rounds": 7, "tol": 0.5, "oversampling": 3}


def test_defaults_are_those_of_the_design():
    assert (Power().tol, Power().oversampling) == (1e-9, 0)
    assert (BlockKrylov().tol, BlockKrylov().oversampling) == (1e-9, 10)
    assert (FedPower().local_steps, FedPower().align, FedPower().reference) == (4, "procrustes", "global")
    assert FedPower().oversampling == 0


def test_unknown_names_and_settings_are_refused_with_the_nearest():
    with pytest.raises(ConfigurationError, match="there is no solver 'krilov'; did you mean 'krylov'"):
        make("krilov")
    with pytest.raises(ConfigurationError, match="has no setting 'round'; did you mean 'rounds'"):
        make("power", round=3)


def test_what_is_no_solver_is_refused():
    with pytest.raises(ConfigurationError, match=r'the class FedPower, not a solver: write FedPower\(\) or "fedpower"'):
        check_solver(FedPower)
    for wrong in (None, 3, dict, object(), ["power"]):
        with pytest.raises(ConfigurationError, match=r'solver is a name \("auto", "power".*BlockKrylov\(\), got'):
            check_solver(wrong)
    for right in ("auto", "power", *map(make, SOLVERS)):
        check_solver(right)


def test_the_choice_fits_the_cohort_and_the_width():
    assert isinstance(choose(50, 5, full=True), Covariance)
    assert isinstance(choose(5000, 5, full=True), BlockKrylov)
    assert isinstance(choose(50, 5, full=False), FedPower)
