"""Orthonormal bases: the identities that define them, at ordinary and at degenerate arguments."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st

from fedspan.linalg import canonical_signs, orth, orth_against, procrustes, sign_fix

seeds = st.integers(0, 2**32 - 1)


@st.composite
def tall(draw):
    """A generator and the shape of a matrix with at least as many rows as columns."""
    d = draw(st.integers(1, 12))
    return np.random.default_rng(draw(seeds)), d, draw(st.integers(1, d))


def is_orthonormal(q, tolerance=1e-12):
    np.testing.assert_allclose(q.T @ q, np.eye(q.shape[1]), atol=tolerance)


# ---- orth ------------------------------------------------------------------------------------------------------


@given(tall())
def test_orth_is_the_qr_factor_with_a_positive_diagonal(case):
    rng, d, r = case
    y = rng.standard_normal((d, r))
    q = orth(y)
    is_orthonormal(q)
    triangle = q.T @ y
    np.testing.assert_allclose(np.tril(triangle, -1), 0, atol=1e-10)
    assert np.all(np.diagonal(triangle) > 0)
    np.testing.assert_allclose(q @ triangle, y, atol=1e-10)


@given(tall())
def test_orth_keeps_a_basis_as_it_is(case):
    rng, d, r = case
    q = orth(rng.standard_normal((d, r)))
    np.testing.assert_allclose(orth(q), q, atol=1e-12)
    np.testing.assert_allclose(orth(q * rng.uniform(0.1, 9, r)), q, atol=1e-10)


@given(tall())
def test_orth_is_continuous(case):
    """Sites that hold nearly the same Y get nearly the same basis: no column flips its sign."""
    rng, d, r = case
    y = orth(rng.standard_normal((d, r))) * 2.0 ** -np.arange(r)
    nudged = y + 1e-9 * rng.standard_normal((d, r)) * 2.0**-r
    assert np.abs(orth(y) - orth(nudged)).max() < 1e-7


def test_orth_of_negative_columns_is_negative():
    np.testing.assert_array_equal(orth(np.diag([-2.0, 3.0])), np.diag([-1.0, 1.0]))


def test_orth_of_a_rank_deficient_matrix_is_still_orthonormal():
    is_orthonormal(orth(np.ones((5, 3))))
    is_orthonormal(orth(np.zeros((5, 3))))


# ---- orth_against ----------------------------------------------------------------------------------------------


@given(tall(), st.integers(1, 6), st.floats(1e-6, 1e6))
def test_orth_against_spans_what_the_block_adds(case, width, scale):
    rng, d, b = case
    basis, block = orth(rng.standard_normal((d, b))), scale * rng.standard_normal((d, min(width, d)))
    added, rest = orth_against(block, basis)
    is_orthonormal(added)
    np.testing.assert_allclose(basis.T @ added, 0, atol=1e-12)
    both = np.hstack([basis, added])
    np.testing.assert_allclose(both @ (both.T @ block), block, atol=1e-9 * scale)
    np.testing.assert_allclose(rest, block - basis @ (basis.T @ block), atol=1e-10 * scale)
    assert added.shape[1] == min(d - b, block.shape[1])


@pytest.mark.parametrize("rank", [0, 1, 2, 4])
def test_a_rank_deficient_block_comes_back_narrower(rank):
    rng = np.random.default_rng(rank)
    basis = orth(rng.standard_normal((10, 3)))
    block = rng.standard_normal((10, rank)) @ rng.standard_normal((rank, 5))
    added, _ = orth_against(block, basis)
    assert added.shape == (10, rank)
    is_orthonormal(np.hstack([basis, added]))


def test_a_block_inside_the_basis_comes_back_empty():
    rng = np.random.default_rng(0)
    basis = orth(rng.standard_normal((10, 4)))
    added, rest = orth_against(basis @ rng.standard_normal((4, 3)) * 1e5, basis)
    assert added.shape == (10, 0)
    assert np.abs(rest).max() < 1e-9


def test_a_basis_of_the_whole_space_leaves_nothing():
    rng = np.random.default_rng(0)
    added, _ = orth_against(rng.standard_normal((6, 2)), orth(rng.standard_normal((6, 6))))
    assert added.shape == (6, 0)


def test_an_empty_basis_and_an_empty_block():
    rng = np.random.default_rng(0)
    block = rng.standard_normal((6, 2))
    added, rest = orth_against(block, np.zeros((6, 0)))
    is_orthonormal(added)
    np.testing.assert_allclose(rest, block)
    added, rest = orth_against(np.zeros((6, 0)), orth(block))
    assert added.shape == rest.shape == (6, 0)


def test_a_zero_column_is_dropped_and_a_small_one_is_kept():
    block = np.zeros((6, 3))
    block[0, 0], block[1, 1] = 1.0, 1e-9
    added, _ = orth_against(block, np.zeros((6, 0)))
    assert added.shape == (6, 2)
    np.testing.assert_allclose(np.abs(added[:2]).sum(axis=0), 1, atol=1e-12)


def test_directions_just_above_the_threshold_are_orthogonal_to_the_basis():
    """Where little of the block is new, its rounding is not: it must not leak into the basis."""
    rng = np.random.default_rng(1)
    basis = orth(rng.standard_normal((40, 8)))
    block = basis @ rng.standard_normal((8, 4)) + 1e-11 * rng.standard_normal((40, 4))
    added, _ = orth_against(block, basis)
    assert added.shape[1] == 4
    is_orthonormal(np.hstack([basis, added]))


def test_nearly_dependent_columns_are_orthogonal_to_the_basis_too():
    """What tells them apart is small, and so is what rounding left of the basis in them."""
    rng = np.random.default_rng(2)
    basis = orth(rng.standard_normal((40, 8)))
    u, v, w = orth_against(rng.standard_normal((40, 3)), basis)[0].T
    block = 1e3 * basis @ rng.standard_normal((8, 3)) + np.column_stack([v, v + 1e-9 * w, v - 1e-10 * u])
    added, rest = orth_against(block, basis)
    assert added.shape[1] == 3
    is_orthonormal(np.hstack([basis, added]))
    np.testing.assert_allclose(basis.T @ rest, 0, atol=1e-15)


# ---- alignment -------------------------------------------------------------------------------------------------


@given(tall())
def test_procrustes_is_orthogonal_and_optimal(case):
    rng, d, r = case
    z, reference = orth(rng.standard_normal((d, r))), orth(rng.standard_normal((d, r)))
    best = procrustes(z, reference)
    is_orthonormal(best)
    reached = np.linalg.norm(z @ best - reference)
    for _ in range(20):
        other = orth(rng.standard_normal((r, r))) * rng.choice([-1.0, 1.0], r)
        assert reached <= np.linalg.norm(z @ other - reference) + 1e-12
    expected, _ = scipy.linalg.orthogonal_procrustes(z, reference)
    np.testing.assert_allclose(reached, np.linalg.norm(z @ expected - reference), atol=1e-12)


@given(tall())
def test_procrustes_undoes_a_turn(case):
    rng, d, r = case
    z, turn = orth(rng.standard_normal((d, r))), orth(rng.standard_normal((r, r)))
    np.testing.assert_allclose(z @ turn @ procrustes(z @ turn, z), z, atol=1e-10)


@given(seeds, st.integers(1, 5))
def test_sign_fix_is_the_best_of_all_signs(seed, r):
    rng = np.random.default_rng(seed)
    z, reference = orth(rng.standard_normal((7, r))), orth(rng.standard_normal((7, r)))
    chosen = sign_fix(z, reference)
    np.testing.assert_array_equal(np.abs(chosen), np.eye(r))
    distances = [np.linalg.norm(z * signs - reference) for signs in product([-1.0, 1.0], repeat=r)]
    np.testing.assert_allclose(np.linalg.norm(z @ chosen - reference), min(distances), atol=1e-12)


def test_sign_fix_leaves_a_right_angle_alone():
    np.testing.assert_array_equal(sign_fix(np.eye(4)[:, :2], np.eye(4)[:, 2:]), np.eye(2))


# ---- signs -----------------------------------------------------------------------------------------------------


@given(tall(), st.integers(0, 2**12 - 1))
def test_canonical_signs_are_the_same_for_every_sign(case, pattern):
    rng, d, r = case
    basis = orth(rng.standard_normal((d, r)))
    signs = np.array([-1.0 if pattern >> i & 1 else 1.0 for i in range(r)])
    fixed = canonical_signs(basis)
    np.testing.assert_array_equal(canonical_signs(basis * signs), fixed)
    np.testing.assert_array_equal(np.abs(fixed), np.abs(basis))
    assert np.all(np.take_along_axis(fixed, np.abs(fixed).argmax(axis=0)[None], axis=0) > 0)


def test_canonical_signs_of_nothing():
    assert canonical_signs(np.zeros((3, 0))).shape == (3, 0)
