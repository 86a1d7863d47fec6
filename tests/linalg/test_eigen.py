"""Small eigenproblems against scipy's dense ones."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st

from fedspan.linalg import left_svd, orth, ritz, spectral_norm, top_eigenvectors, top_of_factors, top_of_product

seeds = st.integers(0, 2**32 - 1)


def gram(rng, d, rank=None):
    factor = rng.standard_normal((d, d if rank is None else rank))
    return factor @ factor.T


def agrees(estimate, matrix, k, tolerance=1e-8):
    """The k leading eigenpairs of a matrix, by residual and by value."""
    values = scipy.linalg.eigvalsh(matrix)[::-1][:k]
    scale = abs(values).max() + 1e-300
    assert estimate.basis.shape == (len(matrix), k)
    np.testing.assert_allclose(estimate.values, values, atol=tolerance * scale)
    residual = matrix @ estimate.basis - estimate.basis * estimate.values
    np.testing.assert_allclose(residual, 0, atol=tolerance * scale)
    np.testing.assert_allclose(estimate.basis.T @ estimate.basis, np.eye(k), atol=1e-9)


@given(seeds, st.integers(1, 10), st.integers(1, 10))
def test_top_eigenvectors(seed, d, k):
    matrix = gram(np.random.default_rng(seed), d)
    agrees(top_eigenvectors(matrix, min(k, d)), matrix, min(k, d))


def test_top_eigenvectors_of_an_indefinite_matrix_are_the_largest_not_the_longest():
    np.testing.assert_array_equal(top_eigenvectors(np.diag([-9.0, 1.0, 2.0]), 2).values, [2.0, 1.0])


@given(seeds, st.integers(1, 8), st.integers(1, 12), st.integers(1, 8))
def test_top_of_factors_is_that_of_their_product(seed, d, width, k):
    factors = np.random.default_rng(seed).standard_normal((d, width))
    k = min(k, d, width)
    agrees(top_of_factors(factors, k), factors @ factors.T, k)


@given(seeds, st.integers(4, 30), st.integers(1, 3))
def test_top_of_product_by_products_alone(seed, d, k):
    rng = np.random.default_rng(seed)
    matrix = gram(rng, d)
    agrees(top_of_product(lambda z: matrix @ z, d, k, rng), matrix, k)


def test_top_of_product_repeats_for_the_same_generator():
    matrix = gram(np.random.default_rng(1), 12)
    runs = [top_of_product(lambda z: matrix @ z, 12, 3, np.random.default_rng(5)) for _ in range(2)]
    assert runs[0].basis.tobytes() == runs[1].basis.tobytes()


def test_a_matrix_of_zeros_has_no_leading_eigenvectors():
    basis, values = top_of_product(np.zeros_like, 12, 3, np.random.default_rng(5))
    assert (basis.shape, values.shape) == ((12, 0), (0,))


@given(seeds, st.integers(1, 8), st.integers(1, 8))
def test_left_svd_are_the_singular_pairs(seed, d, r):
    matrix = np.random.default_rng(seed).standard_normal((d, r))
    basis, values = left_svd(matrix)
    np.testing.assert_allclose(values, scipy.linalg.svdvals(matrix), atol=1e-12)
    np.testing.assert_allclose(basis @ (basis.T @ matrix), matrix, atol=1e-10)
    np.testing.assert_allclose(np.linalg.norm(basis.T @ matrix, axis=1), values, atol=1e-10)


@given(seeds, st.integers(2, 9), st.integers(1, 9))
def test_ritz_is_the_best_inside_the_span(seed, d, r):
    rng = np.random.default_rng(seed)
    matrix, z = gram(rng, d), orth(rng.standard_normal((d, min(r, d))))
    basis, values = ritz(z, matrix @ z)
    np.testing.assert_allclose(basis.T @ matrix @ basis, np.diag(values), atol=1e-9 * np.trace(matrix))
    np.testing.assert_allclose(z @ (z.T @ basis), basis, atol=1e-10)
    assert np.all(np.diff(values) <= 1e-12 * np.trace(matrix))
    np.testing.assert_allclose(np.sum(values), np.trace(z.T @ matrix @ z), rtol=1e-10)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_ritz_keeps_the_leading_k(k):
    rng = np.random.default_rng(0)
    matrix, z = gram(rng, 9), orth(rng.standard_normal((9, 4)))
    whole, cut = ritz(z, matrix @ z), ritz(z, matrix @ z, k)
    np.testing.assert_array_equal(cut.values, whole.values[:k])
    np.testing.assert_allclose(cut.basis, whole.basis[:, :k], atol=1e-14)


def test_ritz_of_an_invariant_space_is_exact():
    rng = np.random.default_rng(0)
    matrix = gram(rng, 9)
    exact = top_eigenvectors(matrix, 3)
    turned = exact.basis @ orth(rng.standard_normal((3, 3)))
    np.testing.assert_allclose(ritz(turned, matrix @ turned).values, exact.values, rtol=1e-12)


@given(seeds, st.integers(1, 12))
def test_a_spectral_norm_is_exact_once_the_steps_span_the_space(seed, d):
    rng = np.random.default_rng(seed)
    matrix = gram(rng, d)
    found = spectral_norm(lambda v: matrix @ v, rng.standard_normal((d, 1)), steps=d)
    np.testing.assert_allclose(found, np.linalg.norm(matrix, 2), rtol=1e-8)


def test_a_few_steps_come_near_from_below():
    rng = np.random.default_rng(0)
    matrix = gram(rng, 300)
    exact = np.linalg.norm(matrix, 2)
    found = spectral_norm(lambda v: matrix @ v, rng.standard_normal((300, 1)))
    assert 0.9 * exact < found <= exact * (1 + 1e-12)


def test_a_negative_matrix_has_a_spectral_norm_too():
    assert spectral_norm(lambda v: -2.0 * v, np.ones((3, 1))) == pytest.approx(2.0)
    assert spectral_norm(np.zeros_like, np.ones((3, 1))) == 0
