"""Measures of subspaces: identities against scipy and the definitions, at tiny and at right angles."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from fedspan.errors import ConfigurationError, DataError
from fedspan.metrics import (
    captured_variance,
    kkt_violation,
    local_approximation,
    principal_angles,
    projection_distance,
    residual_error,
)

seeds = st.integers(0, 2**32 - 1)


@st.composite
def pairs(draw, equal=True):
    """Two random bases of one space, with the generator that made them."""
    rng = np.random.default_rng(draw(seeds))
    d = draw(st.integers(2, 12))
    k = draw(st.integers(1, d))
    width = k if equal else draw(st.integers(1, d))
    return rng.standard_normal((d, k)), rng.standard_normal((d, width)), rng


def orthonormal(rng, d, k):
    return np.linalg.qr(rng.standard_normal((d, k)))[0]


# ------------------------------------------------------------------------------------- subspaces


@given(pairs())
def test_projection_distance_is_symmetric_and_between_zero_and_one(pair):
    U, V, _ = pair
    assert 0 <= projection_distance(U, V) <= 1
    assert projection_distance(U, V) == pytest.approx(projection_distance(V, U), abs=1e-9)
    assert projection_distance(U, U) < 1e-9


@given(pairs())
def test_projection_distance_ignores_the_choice_of_basis(pair):
    U, V, rng = pair
    mix = orthonormal(rng, U.shape[1], U.shape[1]) @ np.diag(rng.uniform(0.5, 2, U.shape[1]))
    turn = orthonormal(rng, len(U), len(U))
    expected = projection_distance(U, V)
    assert projection_distance(U @ mix, V) == pytest.approx(expected, abs=1e-8)
    assert projection_distance(turn @ U, turn @ V) == pytest.approx(expected, abs=1e-8)


@given(pairs())
def test_projection_distance_is_the_norm_of_the_difference_of_projections(pair):
    U, V, _ = pair
    Q, R = (np.linalg.qr(x)[0] for x in (U, V))
    assert projection_distance(U, V) == pytest.approx(np.linalg.norm(Q @ Q.T - R @ R.T, 2), abs=1e-9)


@given(pairs(equal=False))
def test_angles_agree_with_scipy_and_with_the_distance_for_any_widths(pair):
    U, V, _ = pair
    angles = principal_angles(U, V)
    assert angles.shape == (min(U.shape[1], V.shape[1]),)
    assert (angles >= 0).all()
    assert (np.diff(angles) >= 0).all()
    np.testing.assert_allclose(angles[::-1], scipy.linalg.subspace_angles(U, V), atol=1e-6)
    assert projection_distance(U, V) == pytest.approx(np.sin(angles[-1]), abs=1e-7)


@pytest.mark.parametrize("angle", [1e-12, 1e-10, 1e-4, 0.3, np.pi / 2 - 1e-9, np.pi / 2])
def test_angles_keep_their_digits(angle):
    U = np.eye(5)[:, :2]
    V = U.copy()
    V[:, 1] = np.cos(angle) * np.eye(5)[1] + np.sin(angle) * np.eye(5)[4]
    assert projection_distance(U, V) == pytest.approx(np.sin(angle), rel=1e-12)
    assert principal_angles(U, V)[-1] == pytest.approx(angle, rel=1e-9)


def test_a_subspace_of_the_wider_one_is_at_distance_zero():
    assert projection_distance(np.eye(4)[:, :3], np.eye(4)[:, 1:2]) == 0
    assert projection_distance(np.eye(4)[:, 1:2], np.eye(4)[:, :3]) == 0


def test_shared_directions_have_angle_zero_beside_large_ones():
    rng = np.random.default_rng(1)
    shared = rng.standard_normal((8, 2))
    U, V = (np.hstack([shared, rng.standard_normal((8, 2))]) for _ in range(2))
    assert (principal_angles(U, V)[:2] < 1e-14).all()


def test_columns_of_very_different_length_are_still_a_basis():
    U = np.eye(3)[:, :2]
    assert projection_distance(U, U * [1.0, 1e-200]) == 0


@pytest.mark.parametrize(
    ("U", "V", "text"),
    [
        (np.ones(3), np.eye(3), "reshape"),
        (np.ones((3, 2)), np.eye(3), "linearly dependent"),
        (np.zeros((3, 1)), np.eye(3), "linearly dependent"),
        (np.ones((2, 3)), np.eye(3), "linearly dependent"),
        (np.eye(3), np.eye(4), "components_.T"),
        (np.full((3, 1), np.nan), np.eye(3), "nan"),
    ],
)
def test_what_is_not_a_basis_is_refused(U, V, text):
    with pytest.raises(DataError, match=text):
        projection_distance(U, V)


# ------------------------------------------------------------------------------- variance and KKT


@given(seeds, st.integers(1, 6))
def test_captured_variance_agrees_between_gram_rows_and_sparse_rows(seed, k):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((20, 6)) * (rng.random((20, 6)) < 0.5)
    X[0] = 1.0
    basis = rng.standard_normal((6, k))
    from_gram = captured_variance(basis, gram=X.T @ X)
    assert 0 <= from_gram <= 1
    assert captured_variance(basis, X=X) == pytest.approx(from_gram, abs=1e-10)
    for form in (scipy.sparse.csr_array, scipy.sparse.coo_matrix, scipy.sparse.lil_array):
        assert captured_variance(basis, X=form(X)) == pytest.approx(from_gram, abs=1e-10)


@given(seeds)
def test_captured_variance_with_a_mean_is_that_of_the_centred_rows(seed):
    rng = np.random.default_rng(seed)
    X, basis = rng.standard_normal((15, 5)) + 3, rng.standard_normal((5, 2))
    expected = captured_variance(basis, X=X - X.mean(axis=0))
    assert captured_variance(basis, X=X, mean=X.mean(axis=0)) == pytest.approx(expected, abs=1e-10)
    sparse = scipy.sparse.csr_array(X)
    assert captured_variance(basis, X=sparse, mean=X.mean(axis=0)) == pytest.approx(expected, abs=1e-10)


def test_leading_eigenvectors_capture_their_share_and_everything_captures_all():
    gram = np.diag([5.0, 3.0, 2.0])
    assert captured_variance(np.eye(3)[:, :2], gram=gram) == pytest.approx(0.8)
    assert captured_variance(np.eye(3), gram=gram) == pytest.approx(1.0)


def test_integer_rows_do_not_overflow():
    X = np.full((4, 2), 200, dtype=np.uint8)
    assert captured_variance(np.ones((2, 1)), X=X) == pytest.approx(1.0)
    assert captured_variance(np.ones((2, 1)), X=scipy.sparse.csr_array(X)) == pytest.approx(1.0)


def test_captured_variance_refuses_what_it_cannot_answer():
    with pytest.raises(ConfigurationError, match="neither"):
        captured_variance(np.eye(2))
    with pytest.raises(ConfigurationError, match="both"):
        captured_variance(np.eye(2), gram=np.eye(2), X=np.eye(2))
    with pytest.raises(ConfigurationError, match="centred"):
        captured_variance(np.eye(2), gram=np.eye(2), mean=np.zeros(2))
    with pytest.raises(DataError, match="positive total"):
        captured_variance(np.eye(2), gram=np.zeros((2, 2)))
    with pytest.raises(DataError, match="agree on d"):
        captured_variance(np.eye(2), X=np.ones((4, 3)))
    with pytest.raises(DataError, match="symmetric"):
        captured_variance(np.eye(2), gram=np.array([[1.0, 2.0], [0.0, 1.0]]))


@given(seeds, st.integers(1, 5))
def test_kkt_vanishes_exactly_on_invariant_subspaces(seed, k):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((10, 5))
    gram = A.T @ A
    vectors = np.linalg.eigh(gram)[1][:, rng.permutation(5)[:k]]
    assert kkt_violation(vectors, gram @ vectors, np.trace(gram)) < 1e-12
    z = orthonormal(rng, 5, k)
    expected = np.linalg.norm((np.eye(5) - z @ z.T) @ gram @ z) / np.trace(gram)
    assert kkt_violation(z, gram @ z, np.trace(gram)) == pytest.approx(expected, abs=1e-12)
    assert kkt_violation(z, 7 * gram @ z, 7 * np.trace(gram)) == pytest.approx(expected, abs=1e-12)


def test_kkt_refuses_a_mismatch():
    with pytest.raises(DataError, match="the same"):
        kkt_violation(np.eye(3)[:, :1], np.eye(3), 1.0)
    with pytest.raises(DataError, match="positive trace"):
        kkt_violation(np.eye(3), np.eye(3), 0.0)


# ------------------------------------------------------------------------------- sites' differences


@given(seeds, st.integers(1, 4), st.integers(1, 5))
def test_residual_error_with_procrustes_is_half_angle_chord_of_lemma_25(seed, r, m):
    rng = np.random.default_rng(seed)
    bases = [orthonormal(rng, 7, r) for _ in range(m)]
    widest = max(principal_angles(z, bases[0])[-1] for z in bases)
    assert residual_error(bases) == pytest.approx(2 * np.sin(widest / 2), abs=1e-7)


@given(seeds)
def test_residual_error_ignores_rotations_signs_or_nothing_as_asked(seed):
    rng = np.random.default_rng(seed)
    z = orthonormal(rng, 6, 3)
    turned, flipped = z @ orthonormal(rng, 3, 3), z * rng.choice([-1.0, 1.0], 3)
    assert residual_error([z, turned]) < 1e-9
    assert residual_error([z, flipped], align="sign") < 1e-12
    assert residual_error([z, z], align=None) == 0
    assert residual_error([z, flipped], align=None) in (0.0, pytest.approx(2.0))


def test_residual_error_takes_the_baseline_asked_for():
    e = np.eye(3)
    near = np.array([[np.cos(0.1)], [np.sin(0.1)], [0.0]])
    bases = [e[:, :1], near, e[:, 1:2]]
    assert residual_error(bases, baseline=0) == pytest.approx(2 * np.sin(np.pi / 4))
    assert residual_error(bases, baseline=1) == pytest.approx(2 * np.sin((np.pi / 2 - 0.1) / 2))


def test_residual_error_refuses_unknown_alignment_and_shapes():
    with pytest.raises(ConfigurationError, match="procrustes"):
        residual_error([np.eye(2)], align="procrustus")
    with pytest.raises(ConfigurationError, match="baseline is 2"):
        residual_error([np.eye(2)], baseline=2)
    with pytest.raises(DataError, match="one shape"):
        residual_error([np.eye(2), np.eye(3)])


@given(seeds)
def test_local_approximation_is_the_same_from_rows_sparse_rows_and_grams(seed):
    rng = np.random.default_rng(seed)
    sites = [rng.standard_normal((n, 4)) for n in (5, 9, 3)]
    grams = [a.T @ a / len(a) for a in sites]
    pooled = np.vstack(sites)
    whole = pooled.T @ pooled / len(pooled)
    expected = max(np.linalg.norm(m - whole, 2) for m in grams) / np.linalg.norm(whole, 2)
    assert local_approximation(grams, [5, 9, 3]) == pytest.approx(expected)
    assert local_approximation(grams, [10, 18, 6]) == pytest.approx(expected)
    assert local_approximation(sites=sites) == pytest.approx(expected)
    assert local_approximation(sites=[scipy.sparse.csr_array(a) for a in sites]) == pytest.approx(expected)


def test_identical_sites_have_eta_zero():
    assert local_approximation([np.eye(2)] * 3, [1, 2, 3]) < 1e-15


def test_local_approximation_refuses_what_it_cannot_weigh():
    with pytest.raises(ConfigurationError, match="row counts"):
        local_approximation([np.eye(2)])
    with pytest.raises(ConfigurationError, match="positive count"):
        local_approximation([np.eye(2)], [0])
    with pytest.raises(ConfigurationError, match="neither"):
        local_approximation()
    with pytest.raises(DataError, match="same columns"):
        local_approximation([np.eye(2), np.eye(3)], [1, 1])
    with pytest.raises(DataError, match="zeros only"):
        local_approximation([np.zeros((2, 2))], [1])
