"""UDA, WDA and DR-SVD against the literal Algorithms 4, 5 and 6 of Guo et al. (2021), App. F."""

from __future__ import annotations

import numpy as np
import pytest

import fedspan.solvers.one_shot as one_shot
from fedspan.errors import ConfigurationError
from fedspan.metrics import projection_distance
from fedspan.rounds import Cohort
from fedspan.solvers import UDA, WDA, RandomizedSVD
from tests.solvers.helpers import D, K, arrays, pooled, solve, start


def top(matrix, k):
    values, vectors = np.linalg.eigh(matrix)
    return vectors[:, ::-1][:, :k], values[::-1][:k]


def averaged(data, k, weighted):
    """Algorithms 4 and 5: the d x d average itself."""
    total = 0
    for x in data.values():
        basis, values = top(x.T @ x / len(x), k)  # line 2
        total = total + basis @ (np.diag(values) if weighted else np.eye(k)) @ basis.T
    return top(total / len(data), k)[0]  # line 3


@pytest.mark.parametrize(("solver", "weighted"), [(UDA(), False), (WDA(), True)], ids=["uda", "wda"])
@pytest.mark.parametrize("k", [1, 3, 9])
@pytest.mark.parametrize("seed", [0, 1])
def test_averaging_is_the_leading_space_of_the_average(solver, weighted, k, seed):
    data = arrays(seed)
    solution, questions = solve(solver, data, k=k)
    expected = averaged(data, k, weighted)
    assert projection_distance(solution.estimate.basis, expected) < 1e-10
    assert len(questions) == 2
    gram = sum(x.T @ x for x in data.values())
    projected = expected.T @ gram @ expected
    np.testing.assert_allclose(solution.estimate.values, np.linalg.eigvalsh(projected)[::-1], rtol=1e-9)


def test_unequal_sites_tell_the_two_apart():
    """A site of little variance counts as much as any in UDA, and little in WDA."""
    rng = np.random.default_rng(0)
    loud = rng.standard_normal((50, 4)) * [9.0, 1.0, 0.1, 0.1]
    faint = rng.standard_normal((50, 4)) * [0.01, 0.01, 0.9, 0.02]
    data = {"a": loud, "b": faint, "c": faint[::-1]}
    uda, wda = (solve(solver, data, k=1)[0].estimate.basis[:, 0] for solver in (UDA(), WDA()))
    assert abs(uda[2]) > 0.99
    assert abs(wda[0]) > 0.99


def test_the_values_of_sites_leave_them_only_for_wda():
    for solver, keys in [(UDA(), None), (WDA(), {"basis", "values"})]:
        got = []
        solve(solver, arrays(), watch=lambda q, o, got=got: got.append(o.value))
        for reply in got[0].values():
            assert (reply.shape == (D, K)) if keys is None else set(reply) == keys


@pytest.mark.parametrize("solver", [UDA(), WDA()], ids=["uda", "wda"])
def test_wide_data_is_solved_by_products_alone(solver, monkeypatch):
    data = arrays(d=12, spread=0.6)
    dense = solve(solver, data)[0].estimate
    monkeypatch.setattr(one_shot, "_DENSE", 5)
    products = solve(solver, data)[0].estimate
    assert projection_distance(dense.basis, products.basis) < 1e-7
    np.testing.assert_allclose(dense.values, products.values, rtol=1e-9)


@pytest.mark.parametrize("solver", [UDA(), WDA()], ids=["uda", "wda"])
@pytest.mark.parametrize("empty", [("b",), ("a", "b", "c", "d")], ids=["one", "all"])
def test_a_wide_site_of_zeros_has_no_direction_to_send(solver, empty, monkeypatch):
    data = arrays(d=12, spread=0.6)
    data.update({name: np.zeros_like(data[name]) for name in empty})
    dense = solve(solver, data)[0].estimate
    monkeypatch.setattr(one_shot, "_DENSE", 5)
    got = []
    products = solve(solver, data, watch=lambda q, o: got.append(o.value))[0].estimate
    for name, reply in got[0].items():
        basis = reply if isinstance(reply, np.ndarray) else reply["basis"]
        assert basis.shape == (12, 0 if name in empty else K)
    np.testing.assert_allclose(dense.values, products.values, rtol=1e-9)


@pytest.mark.parametrize("solver", [UDA(), WDA()], ids=["uda", "wda"])
def test_a_site_of_lower_rank_sends_what_it_has(solver):
    data = arrays(rows={"a": 1, "b": 2, "c": 40})
    got = []
    solution, _ = solve(solver, data, watch=lambda q, o: got.append(o.value))
    widths = [(reply if isinstance(reply, np.ndarray) else reply["basis"]).shape[1] for reply in got[0].values()]
    assert widths == [1, 2, 3]
    assert solution.estimate.basis.shape == (D, K)


@pytest.mark.parametrize("solver", [UDA(), WDA()], ids=["uda", "wda"])
def test_some_sites_will_do(solver):
    data = arrays()
    _, questions = solve(solver, data, cohort=Cohort(only=("b", "c")))
    expected = averaged({name: data[name] for name in ("b", "c")}, K, isinstance(solver, WDA))
    assert projection_distance(questions[-1].estimate, expected) < 1e-10


# ---- DR-SVD ----------------------------------------------------------------------------------------------------


def randomized(data, omega, k):
    """Algorithm 6 with the random matrix given, its n x r matrix and all."""
    A = np.vstack(list(data.values()))
    Q, _ = np.linalg.qr(A @ (A.T @ (A @ omega)))  # line 3
    _, sigma, vt = np.linalg.svd(Q.T @ A, full_matrices=False)  # lines 5-6
    return vt[:k].T, sigma[:k] ** 2


@pytest.mark.parametrize("rank", [3, 4, 6, 9])
@pytest.mark.parametrize("seed", [0, 1])
def test_randomized_svd_is_algorithm_6(rank, seed):
    data = arrays(seed, spread=0.8)
    omega = start(seed + 7, r=rank)
    solution, questions = solve(RandomizedSVD(iteration_rank=rank), data, z0=omega)
    basis, values = randomized(data, omega, K)
    assert len(questions) == 3
    np.testing.assert_allclose(solution.estimate.values, values, rtol=1e-9)
    assert projection_distance(solution.estimate.basis, basis) < 1e-8
    np.testing.assert_allclose(np.abs(np.sum(solution.estimate.basis * basis, axis=0)), 1, atol=1e-8)


def test_no_rows_leave_a_site():
    """As printed, line 3 ships n x r rows; here a site sends r x r, or fewer where it has fewer rows."""
    data = arrays(rows={"a": 2, "b": 30, "c": 25})
    got = []
    solve(RandomizedSVD(iteration_rank=5), data, watch=lambda q, o: got.append(o.value))
    assert [factor.shape for factor in got[1].values()] == [(2, 5), (5, 5), (5, 5)]


def test_the_papers_iteration_rank():
    assert RandomizedSVD().rank(10, 784) == 10 + 774 // 4
    assert RandomizedSVD(iteration_rank=20).rank(10, 784) == 20
    assert RandomizedSVD(iteration_rank=5).rank(10, 784) == 10
    assert RandomizedSVD(iteration_rank=5000).rank(10, 784) == 784
    with pytest.raises(ConfigurationError, match="at least 1"):
        RandomizedSVD(iteration_rank=0)
    with pytest.raises(ConfigurationError, match="iteration_rank is an integer or None, got '20'"):
        RandomizedSVD(iteration_rank="20")


def test_full_rank_is_exact():
    data = arrays()
    solution, _ = solve(RandomizedSVD(iteration_rank=D), data)
    basis, values = pooled(data)
    assert projection_distance(solution.estimate.basis, basis) < 1e-9
    np.testing.assert_allclose(solution.estimate.values, values, rtol=1e-10)
