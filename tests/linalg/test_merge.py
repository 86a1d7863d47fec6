"""Merges of two subspaces: Alg. 4, 5 and 6 agree, and are the SVD of the concatenation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspan.linalg import Estimate, absorb, basic_merge, faster_merge, merge, nonzero, orth
from tests.streams import is_orthonormal

ALGORITHMS = {"Alg. 4": basic_merge, "Alg. 5": faster_merge, "Alg. 6": merge}
RELATIONS = ("independent", "overlapping", "equal", "nested", "nearly dependent", "empty first", "empty second", "full")
seeds = st.integers(0, 2**32 - 1)
factors = st.sampled_from([1.0, 1.0, 0.9, 0.3, 2.0])


def bases(rng, d, r1, r2, relation):
    """Two orthonormal bases that lie to each other as the relation says."""
    u1, u2 = orth(rng.standard_normal((d, r1))), orth(rng.standard_normal((d, r2)))
    match relation:
        case "overlapping":
            u2 = orth(np.hstack([u1[:, : max(min(r1, r2) // 2, 1)], rng.standard_normal((d, r2))])[:, :r2])
        case "equal":
            u2 = u1 @ orth(rng.standard_normal((r1, r1)))
        case "nested":
            u2 = orth(u1 @ rng.standard_normal((r1, min(r1, r2))))
        case "nearly dependent":  # what u2 adds to u1 is almost one direction
            added = np.outer(rng.standard_normal(d), np.ones(r2))
            u2 = orth(u1 @ rng.standard_normal((r1, r2)) + added + 10 ** rng.uniform(-12, -1) * u2)
        case "empty first":
            u1 = u1[:, :0]
        case "empty second":
            u2 = u2[:, :0]
        case "full":
            u1 = orth(rng.standard_normal((d, d)))
    return u1, u2


def falling(rng, r, spread=1.0):
    return np.sort(10 ** rng.uniform(-spread, spread, r))[::-1]


@st.composite
def problems(draw):
    """Two pairs, a rank and both factors."""
    rng, d = np.random.default_rng(draw(seeds)), draw(st.integers(2, 14))
    r1, r2 = draw(st.integers(1, d)), draw(st.integers(1, d))
    u1, u2 = bases(rng, d, r1, r2, draw(st.sampled_from(RELATIONS)))
    spread = draw(st.sampled_from([0.3, 1.0, 4.0]))
    s1, s2 = falling(rng, u1.shape[1], spread), falling(rng, u2.shape[1], spread)
    return u1, s1, u2, s2, draw(st.integers(1, d)), draw(factors), draw(factors)


def both(u1, s1, u2, s2, f=1.0, e=1.0):
    """The concatenation itself."""
    return np.hstack([f * u1 * s1, e * u2 * s2])


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
@given(problems())
def test_a_merge_is_the_svd_of_the_concatenation(algorithm, problem):
    u1, s1, u2, s2, r, f, e = problem
    found = algorithm(u1, s1, u2, s2, r, forgetting=f, enhancing=e)
    columns = both(u1, s1, u2, s2, f, e)
    values = np.linalg.svd(columns, compute_uv=False)
    kept = min(r, len(found.values))
    assert found.basis.shape == (len(u1), kept)
    assert len(found.values) == kept >= min(r, np.sum(values > 1e-10 * values[0]))
    is_orthonormal(found.basis)
    size = values[0]
    np.testing.assert_allclose(found.values, values[:kept], atol=1e-12 * size)
    # the best subspace of its dimension, pair by pair: that needs no gap between the values
    np.testing.assert_allclose(np.linalg.norm(columns.T @ found.basis, axis=0), found.values, atol=1e-12 * size)
    gram = found.basis.T @ columns @ columns.T @ found.basis
    np.testing.assert_allclose(gram, np.diag(found.values**2), atol=1e-12 * size**2)


@given(problems())
def test_all_three_find_the_same_subspace(problem):
    u1, s1, u2, s2, r, f, e = problem
    values = np.linalg.svd(both(u1, s1, u2, s2, f, e), compute_uv=False)
    found = [algorithm(u1, s1, u2, s2, r, forgetting=f, enhancing=e) for algorithm in ALGORITHMS.values()]
    gap = values[r - 1] - (values[r] if len(values) > r else 0.0) if len(values) >= r else values[-1]
    for other in found[1:]:
        k = min(len(found[0].values), len(other.values))
        np.testing.assert_allclose(other.values[:k], found[0].values[:k], atol=1e-12 * values[0])
        if gap > 1e-2 * values[0]:
            np.testing.assert_allclose(
                other.basis @ other.basis.T, found[0].basis @ found[0].basis.T, atol=1e-12 * values[0] / gap
            )


@pytest.mark.parametrize("small", [10.0**-p for p in range(1, 14)])
def test_what_is_added_stays_orthogonal_where_its_columns_depend_on_each_other(small):
    """Once, rounding that was left inside U1 came out as large as rounding over the dependence."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        turn = orth(rng.standard_normal((12, 12)))
        u1, u2 = turn[:, :4], np.zeros((12, 2))
        u2[:4], u2[4], u2[5, 1], u2[6, 0] = rng.standard_normal((4, 2)), 1.0, small, small
        found = merge(u1, np.arange(4.0, 0.0, -1.0), orth(turn @ u2), np.array([3.0, 2.0]), 6)
        is_orthonormal(found.basis, 1e-12)


@pytest.mark.parametrize("spread", [0.1, 1.0, 1.9, 2.1, 5.0, 9.0])
def test_values_near_and_far_from_each_other_come_out_alike(spread, monkeypatch):
    """Alg. 6 takes the small eigenproblem where the values are near, an SVD where that would lose digits."""
    rng, svd, calls = np.random.default_rng(1), np.linalg.svd, []
    for _ in range(20):
        u1, u2 = bases(rng, 12, 4, 4, "independent")
        s1, s2 = 7 * np.r_[1.0, np.full(3, 10.0**-spread)], 7e-3 * np.r_[1.0, np.full(3, 1e-9)]
        with monkeypatch.context() as patch:
            patch.setattr(np.linalg, "svd", lambda *args, **more: calls.append(1) or svd(*args, **more))
            one, other = merge(u1, s1, u2, s2, 4), merge(u2, s2, u1, s1, 4)
        values = np.linalg.svd(both(u1, s1, u2, s2), compute_uv=False)
        for found in (one, other):
            np.testing.assert_allclose(found.values, values[:4], atol=1e-13 * values[0])
            np.testing.assert_allclose(np.linalg.norm(both(u1, s1, u2, s2).T @ found.basis, axis=0), found.values,
                                       atol=1e-13 * values[0])  # fmt: skip
    assert bool(calls) == (spread > 2)  # of columns that do not depend on each other, none is needed otherwise


def test_forgetting_weighs_the_first_and_enhancing_the_second():
    e = np.eye(3)
    found = merge(e[:, :1], np.array([10.0]), e[:, 1:2], np.array([4.0]), 2, forgetting=0.1, enhancing=3.0)
    np.testing.assert_allclose(found.values, [12.0, 1.0])
    np.testing.assert_allclose(np.abs(found.basis), e[:, [1, 0]], atol=1e-15)


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_nothing_merged_with_nothing_is_nothing(algorithm):
    found = algorithm(np.zeros((3, 0)), np.zeros(0), np.zeros((3, 0)), np.zeros(0), 2)
    assert found.basis.shape == (3, 0)
    assert found.values.shape == (0,)


def test_alg_6_decomposes_small_matrices_only(monkeypatch):
    rng = np.random.default_rng(2)
    u1, u2 = bases(rng, 300, 4, 5, "independent")
    seen, svd = [], np.linalg.svd
    monkeypatch.setattr(np.linalg, "svd", lambda a, *args, **more: seen.append(a.shape) or svd(a, *args, **more))
    for spread in (0.1, 3.0):
        merge(u1, falling(rng, 4, spread), u2, falling(rng, 5, spread), 4)
    assert all(max(shape) <= 9 for shape in seen)


# ---- orders ----------------------------------------------------------------------------------------------------


@st.composite
def three_pairs(draw):
    """Three pairs of rank r each, and whether all of them together have no more."""
    rng, d = np.random.default_rng(draw(seeds)), draw(st.integers(3, 12))
    r, fits = draw(st.integers(1, d - 1)), draw(st.booleans())
    room = orth(rng.standard_normal((d, r if fits else d)))
    pairs = [
        Estimate(room @ orth(rng.standard_normal((room.shape[1], w))), falling(rng, w))
        for w in (draw(st.integers(1, r)), draw(st.integers(1, r)), r)
    ]
    return pairs, r, fits


@given(three_pairs())
def test_merges_are_associative_within_what_they_discard(case):
    """Exactly where the joint rank fits r; else each cut drops at most rho_r^2, and two cuts in a row twice that."""
    (one, two, three), r, fits = case
    left = merge(*merge(*one, *two, r), *three, r)
    right = merge(*one, *merge(*two, *three, r), r)
    values = np.linalg.svd(np.hstack([u * s for u, s in (one, two, three)]), compute_uv=False)
    discarded = float(np.sum(values[r:] ** 2))
    for found in (left, right):
        assert np.all(found.values <= values[: len(found.values)] + 1e-12 * values[0])  # a cut adds nothing
        lost = float(np.sum(values**2) - np.sum(found.values**2))
        assert -1e-12 * values[0] ** 2 <= lost <= 2 * discarded + 1e-12 * values[0] ** 2
    apart = abs(np.sum(left.values**2) - np.sum(right.values**2))
    assert apart <= discarded + 1e-12 * values[0] ** 2
    if fits:
        same = [(u * s**2) @ u.T for u, s in (left, right)]
        np.testing.assert_allclose(same[0], same[1], atol=1e-11 * values[0] ** 2)


# ---- columns of any length -------------------------------------------------------------------------------------


@given(seeds, st.integers(1, 8), st.integers(0, 6), st.integers(1, 8))
def test_absorbing_columns_is_the_svd_of_all(seed, d, wide, r):
    rng = np.random.default_rng(seed)
    k = int(rng.integers(0, d + 1))
    u, s = orth(rng.standard_normal((d, k))), falling(rng, k)
    columns = rng.standard_normal((d, wide)) * 10 ** rng.uniform(-3, 3, wide)
    columns[:, rng.random(wide) < 0.3] = 0.0
    found = absorb(u, s, columns, r)
    values = np.linalg.svd(np.hstack([u * s, columns]), compute_uv=False)
    size = values.max(initial=0.0)
    is_orthonormal(found.basis)
    k = len(found.values)
    assert k <= r
    np.testing.assert_allclose(found.values, values[:k], atol=1e-12 * size)
    assert np.all(values[k:r] <= 1e-12 * size)  # what is not there is nothing


def test_pairs_without_a_value_are_dropped():
    basis, values = nonzero(Estimate(np.eye(4), np.array([2.0, 1e-12, 1e-15, 0.0])))
    assert values.tolist() == [2.0, 1e-12]
    assert basis.shape == (4, 2)
    assert nonzero(Estimate(np.eye(2), np.zeros(2))).values.shape == (0,)
    assert absorb(np.eye(3)[:, :1], np.array([2.0]), np.zeros((3, 2)), 3).values.tolist() == [2.0]
