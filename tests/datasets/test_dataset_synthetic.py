"""The papers' generators have the spectra, norms and sums that the papers give them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from fedspan.datasets import (
    geometric_spectrum,
    low_rank_sites,
    power_law,
    random_symmetric_shares,
    shared_representation,
    user_item,
)
from fedspan.errors import ConfigurationError
from fedspan.metrics import local_approximation, projection_distance

GENERATORS = {
    "power_law": lambda seed: [power_law(20, 5, seed=seed)],
    "geometric_spectrum": lambda seed: [geometric_spectrum(20, 5, seed=seed)],
    "user_item": lambda seed: [user_item(20, 30, mean_interactions=4, seed=seed).toarray()],
    "random_symmetric_shares": lambda seed: random_symmetric_shares(5, 3, seed=seed).shares,
    "shared_representation": lambda seed: shared_representation(3, 10, 5, seed=seed).y,
    "low_rank_sites": lambda seed: low_rank_sites(3, 10, 6, k=2, seed=seed).sites,
}


@pytest.mark.parametrize("make", GENERATORS.values(), ids=GENERATORS)
def test_a_seed_fixes_the_draw(make):
    for first, second in zip(make(4), make(4), strict=True):
        np.testing.assert_array_equal(first, second)
    assert not np.array_equal(make(4)[0], make(5)[0])
    np.testing.assert_array_equal(make(np.random.default_rng(4))[0], make(4)[0])


@pytest.mark.parametrize("alpha", [0.001, 1.0, 3.0])
def test_power_law_has_its_eigenvalues(alpha):
    X = power_law(200_000, 6, alpha=alpha)
    values = np.linalg.eigvalsh(X.T @ X / len(X))[::-1]
    np.testing.assert_allclose(values, np.arange(1, 7) ** -float(alpha), rtol=0.03)


@given(st.floats(1.001, 3.0), st.integers(1, 8), st.integers(0, 100))
def test_geometric_spectrum_has_exactly_its_singular_values(xi, d, seed):
    X = geometric_spectrum(20, d, xi=xi, seed=seed)
    np.testing.assert_allclose(np.linalg.svd(X, compute_uv=False), xi ** -np.arange(d), atol=1e-12)


def test_user_item_is_long_tailed_zero_one_and_sparse():
    R = user_item(3000, 500, mean_interactions=20, popularity=1.0)
    assert scipy.sparse.issparse(R)
    assert R.format == "csr"
    assert set(R.data) == {1.0}
    assert R.sum(axis=1).min() >= 1
    per_item = np.sort(R.sum(axis=0))[::-1]
    assert per_item[:50].sum() > 0.4 * per_item.sum()
    flat = np.sort(user_item(3000, 500, mean_interactions=20, popularity=0.0).sum(axis=0))[::-1]
    assert flat[:50].sum() < 0.2 * flat.sum()


@given(st.integers(1, 8), st.integers(1, 5), st.integers(0, 100))
def test_shares_are_symmetric_and_sum_to_the_matrix(d, sites, seed):
    total, shares = random_symmetric_shares(d, sites, seed=seed)
    assert len(shares) == sites
    np.testing.assert_allclose(sum(shares), total, atol=1e-12)
    for share in (total, *shares):
        np.testing.assert_allclose(share, share.T, atol=1e-14)
    np.testing.assert_allclose(np.linalg.eigvalsh(total)[::-1], 0.9 ** np.arange(d), atol=1e-10)


def test_a_given_matrix_is_shared_out():
    matrix = np.array([[2.0, -1.0], [-1.0, 0.0]])
    total, shares = random_symmetric_shares(n_sites=4, matrix=matrix, spread=10.0)
    np.testing.assert_array_equal(total, matrix)
    np.testing.assert_allclose(sum(shares), matrix)
    assert min(np.linalg.norm(share - matrix / 4) for share in shares) > 0


def test_shared_representation_is_the_model_of_the_paper():
    sizes = [30, 40, 50, 60]
    X, y, B, heads = shared_representation(4, sizes, 8, k=3, noise=0.0)
    np.testing.assert_allclose(B.T @ B, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(heads, axis=1), np.sqrt(3))
    assert [len(x) for x in X] == [len(t) for t in y] == sizes
    for x, t, w in zip(X, y, heads, strict=True):
        np.testing.assert_allclose(t, x @ B @ w)


def test_shared_representation_noise_has_its_deviation():
    X, y, B, heads = shared_representation(1, 100_000, 5, noise=0.7)
    assert np.std(y[0] - X[0] @ B @ heads[0]) == pytest.approx(0.7, rel=0.02)


def test_low_rank_sites_span_their_basis():
    sites, basis = low_rank_sites(5, 2000, 12, k=3, noise=0.1)
    pooled = np.vstack(sites)
    leading = np.linalg.svd(pooled, full_matrices=False)[2][:3].T
    assert projection_distance(leading, basis) < 0.02


def test_heterogeneity_tunes_eta_and_more_rows_shrink_it():
    etas = [local_approximation(sites=low_rank_sites(4, 4000, heterogeneity=h).sites) for h in (0, 0.3, 0.6, 1)]
    assert etas == sorted(etas)
    assert etas[0] < 0.15 < 0.5 < etas[-1]
    few, many = (local_approximation(sites=low_rank_sites(4, n).sites) for n in (200, 20_000))
    assert many < few / 5


def test_spikes_are_the_variances():
    sites, basis = low_rank_sites(1, 100_000, 6, k=2, spikes=[9.0, 4.0], noise=0.0)
    values = np.linalg.eigvalsh(sites[0].T @ sites[0] / 100_000)[::-1]
    np.testing.assert_allclose(values[:2], [9, 4], rtol=0.05)
    assert values[2] < 1e-10
    assert basis.shape == (6, 2)


@pytest.mark.parametrize(
    "call",
    [
        lambda: power_law(10, 5, alpha=-1.0),
        lambda: power_law(0, 5),
        lambda: geometric_spectrum(4, 5),
        lambda: geometric_spectrum(5, 4, xi=1.0),
        lambda: user_item(10, 10, mean_interactions=0.5),
        lambda: user_item(10, 10, popularity=-1.0),
        lambda: random_symmetric_shares(matrix=np.array([[0.0, 1.0], [0.0, 0.0]])),
        lambda: random_symmetric_shares(matrix=np.ones((2, 3))),
        lambda: random_symmetric_shares(4, 0),
        lambda: shared_representation(3, [1, 2], 5),
        lambda: shared_representation(3, 10, 5, k=6),
        lambda: shared_representation(3, 10, 5, noise=-1.0),
        lambda: low_rank_sites(2, 10, heterogeneity=1.5),
        lambda: low_rank_sites(2, 10, k=2, spikes=[1.0]),
        lambda: low_rank_sites(2, [3, 0]),
    ],
)
def test_impossible_settings_are_refused(call):
    with pytest.raises(ConfigurationError, match=r"expected"):
        call()
