"""Gaps in a stream's rows: the mean so far by weight, rows left out, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from fedspan.encoding import decode, encode
from fedspan.errors import ConfigurationError, DataError
from fedspan.estimators.gaps import POLICIES, Gaps
from fedspan.linalg import Summary

seeds = st.integers(0, 2**32 - 1)
KINDS = {"dense": np.asarray, "sparse": scipy.sparse.csr_array}


def gappy(rng, n=30, d=4, share=0.3):
    x = np.where(rng.random((n, d)) < 0.6, rng.standard_normal((n, d)) + 2, 0.0)
    x[rng.random((n, d)) < share] = np.nan
    x[0] = 1.0
    return x


def dense(x):
    return x.toarray() if scipy.sparse.issparse(x) else x


@pytest.mark.parametrize("kind", list(KINDS))
@given(seeds, st.booleans(), st.integers(1, 4))
def test_gaps_are_filled_with_the_mean_of_the_values_so_far(kind, seed, weighted, count):
    rng, gaps = np.random.default_rng(seed), Gaps(4, "mean")
    seen, masses = [], []
    for _ in range(count):
        x, weights = gappy(rng), rng.random(30) + 0.1 if weighted else None
        before = x.copy()
        seen.append(x)
        masses.append(np.ones(30) if weights is None else weights)
        filled, same = gaps.met(KINDS[kind](x), weights)
        everything, heavy = np.vstack(seen), np.concatenate(masses)[:, None] * np.ones(4)
        mean = np.ma.average(np.ma.masked_invalid(everything), axis=0, weights=heavy)
        np.testing.assert_allclose(gaps.fill, mean, rtol=1e-12)
        np.testing.assert_allclose(dense(filled), np.where(np.isnan(x), mean, x), rtol=1e-12)
        assert same is weights
        np.testing.assert_array_equal(x, before)
        assert scipy.sparse.issparse(filled) == (kind == "sparse")
    assert gaps.skipped == 0


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("weighted", [False, True])
def test_rows_with_gaps_are_left_out(kind, weighted):
    rng, gaps = np.random.default_rng(0), Gaps(4, "skip")
    x, weights = gappy(rng), rng.random(30) if weighted else None
    whole = ~np.isnan(x).any(axis=1)
    rows, heavy = gaps.met(KINDS[kind](x), weights)
    np.testing.assert_array_equal(dense(rows), x[whole])
    if weighted:
        np.testing.assert_array_equal(heavy, weights[whole])
    assert (gaps.skipped, gaps.fill) == (30 - whole.sum(), None)
    gaps.met(KINDS[kind](x), weights)
    assert gaps.skipped == 2 * (30 - whole.sum())


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", list(KINDS))
def test_rows_without_gaps_pass(policy, kind):
    x = KINDS[kind](np.arange(6.0).reshape(3, 2))
    rows, weights = Gaps(2, policy).met(x, None)
    np.testing.assert_array_equal(dense(rows), dense(x))
    assert weights is None


@pytest.mark.parametrize("kind", list(KINDS))
def test_gaps_are_refused_by_column(kind):
    x = np.zeros((3, 4))
    x[1, 1] = x[2, 3] = np.nan
    with pytest.raises(DataError, match=r"NaN \(missing values\) in columns \[1, 3\]; mend them, or set missing"):
        Gaps(4, "error").met(KINDS[kind](x), None)


@pytest.mark.parametrize("kind", list(KINDS))
@given(seeds, st.booleans())
def test_a_column_without_any_value_has_no_mean_whatever_rounding_makes_of_its_weight(kind, seed, weighted):
    rng, gaps = np.random.default_rng(seed), Gaps(3, "mean")
    x = rng.standard_normal((20, 3))
    x[:, 1] = np.nan
    weights = rng.random(20) if weighted else None
    before = encode(gaps.as_plain())
    with pytest.raises(DataError, match=r"column \[1\] has no value yet"):
        gaps.met(KINDS[kind](x), weights)
    assert encode(gaps.as_plain()) == before
    assert np.isnan(gaps.fill).all()
    gaps.met(KINDS[kind](np.ones((1, 3))), None)
    filled, _ = gaps.met(KINDS[kind](x), weights)
    np.testing.assert_allclose(dense(filled)[:, 1], 1.0)


def test_values_of_no_weight_are_no_values():
    x = np.array([[1.0, 5.0], [2.0, np.nan]])
    with pytest.raises(DataError, match=r"column \[1\] has no value yet"):
        Gaps(2, "mean").met(x, np.array([0.0, 1.0]))


def test_float32_rows_stay_float32():
    x = gappy(np.random.default_rng(1)).astype(np.float32)
    for kind in KINDS.values():
        assert Gaps(4, "mean").met(kind(x), None)[0].dtype == np.float32


def test_what_was_met_is_saved_added_and_begun_from_a_summary():
    rng = np.random.default_rng(2)
    one, other, both = Gaps(4, "mean"), Gaps(4, "mean"), Gaps(4, "mean")
    for gaps, x in ((one, gappy(rng)), (other, gappy(rng))):
        gaps.met(x, None)
        both.met(x, None)
    back = Gaps.from_plain(decode(encode(one.as_plain())))
    assert encode(back.as_plain()) == encode(one.as_plain())
    back.add(other)
    np.testing.assert_allclose(back.fill, both.fill)
    begun = Gaps(4, "mean", Summary(np.zeros((4, 0)), np.zeros(0), np.arange(4.0), 5.0, 0.0, 9))
    np.testing.assert_array_equal(begun.fill, np.arange(4.0))
    begun.met(np.full((5, 4), 4.0), None)
    np.testing.assert_allclose(begun.fill, (np.arange(4.0) + 4) / 2)
    skipping = Gaps.from_plain({**Gaps(4, "skip").as_plain(), "skipped": 3})
    skipping.add(skipping)
    assert skipping.skipped == 6


def test_another_policy_is_refused():
    with pytest.raises(ConfigurationError, match="missing is one of 'error', 'mean', 'skip'; got 'guess'"):
        Gaps(2, "guess")
