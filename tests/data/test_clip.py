"""No row that enters the Gram matrix is longer than the bound a guarantee rests on, however the data is prepared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from fedspan.data import open_source
from fedspan.data.arrays import ArraySource, SparseSource
from fedspan.data.clip import LARGEST_ENTRY, RowBounds, bounded_sums, clamp, clip_factors, row_squares
from fedspan.data.prepared import Prepared
from fedspan.data.source import SymmetricSource
from fedspan.errors import DataError, PolicyError

NAMES = ("a", "b", "c", "d", "e")
D = len(NAMES)


def explicit(prepared):
    """The prepared rows themselves, dense."""
    blocks = [b.toarray() if scipy.sparse.issparse(b) else np.asarray(b, dtype=float) for b in prepared.blocks()]
    return np.vstack([np.zeros((0, prepared.shape[1])), *blocks])


def lengths(prepared):
    return np.linalg.norm(explicit(prepared), axis=1)


def meant(raw, bound, *, mean=None, scale=None, weights=None, fill=None, low=None, high=None):
    """The clipped rows, written down as the words say it: fill, clamp, centre, scale, weigh, clip."""
    rows = np.where(np.isnan(raw), 0.0 if fill is None else fill, raw)
    rows = rows if low is None else np.clip(rows, low, high)
    rows = rows if mean is None else rows - mean
    rows = rows if scale is None else rows / scale
    rows = rows * np.sqrt(np.minimum(np.ones(len(raw)) if weights is None else weights, 1.0))[:, None]
    return rows * np.minimum(1.0, bound / np.maximum(np.linalg.norm(rows, axis=1), 1e-200))[:, None]


@st.composite
def cases(draw, sparse=None, dtype=np.float64):
    """A source, a preparation, bounds, and the matrix they mean."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    raw = rng.standard_normal((draw(st.integers(1, 60)), D)) * draw(st.sampled_from([0.1, 1.0, 100.0]))
    sparse = draw(st.booleans()) if sparse is None else sparse
    if sparse:
        raw *= rng.random(raw.shape) < 0.4
    else:
        raw += draw(st.sampled_from([0.0, 0.0, 1e6]))  # centring far from zero
    preparation: dict[str, Any] = {"columns": list(NAMES), "weight_column": None}
    if draw(st.booleans()):
        preparation["mean"] = raw.mean(axis=0) + draw(st.sampled_from([0.0, 30.0])) * rng.standard_normal(D)
    if draw(st.booleans()):
        preparation["scale"] = rng.uniform(0.01, 3.0, D)
    weights = rng.uniform(0, 3, len(raw)) if draw(st.booleans()) else None
    if draw(st.booleans()):
        raw[(rng.random(raw.shape) < 0.2) & (raw != 0)] = np.nan
        preparation["fill"] = rng.standard_normal(D)
    raw = raw.astype(dtype)
    bound = draw(st.sampled_from([1e-3, 0.5, 1.0, 25.0, 1e4]))
    box = {"low": np.array([-1.0]), "high": np.linspace(0.5, 2.0, D)} if draw(st.booleans()) else {}
    source = SparseSource(scipy.sparse.csr_array(raw), NAMES) if sparse else ArraySource(raw, NAMES)
    source.weights = weights
    words = {k: v for k, v in preparation.items() if k in ("mean", "scale", "fill")}
    want = meant(raw.astype(float), bound, weights=weights, **words, **box)
    return source, preparation, RowBounds(norm=bound, **box), want


@given(cases())
def test_no_prepared_row_is_longer_than_its_bound(case):
    source, preparation, bounds, want = case
    prepared = Prepared(source, preparation, bounds=bounds)
    assert lengths(prepared).max(initial=0.0) <= bounds.norm
    np.testing.assert_allclose(explicit(prepared), want, rtol=1e-9, atol=1e-9 * min(bounds.norm, abs(want).max() + 1))


@given(cases(dtype=np.float32))
def test_no_prepared_row_of_coarse_numbers_is_longer_than_its_bound(case):
    source, preparation, bounds, want = case
    prepared = Prepared(source, preparation, bounds=bounds)
    assert lengths(prepared).max(initial=0.0) <= bounds.norm
    np.testing.assert_allclose(explicit(prepared), want, rtol=1e-6, atol=1e-6 * min(bounds.norm, abs(want).max() + 1))


@given(cases())
def test_products_sums_and_gram_are_those_of_the_clipped_rows(case):
    source, preparation, bounds, want = case
    prepared = Prepared(source, preparation, bounds=bounds)
    z = np.random.default_rng(0).standard_normal((D, 2))
    size = np.sum(want**2) + 1e-300
    np.testing.assert_allclose(prepared.gram_times(z), want.T @ (want @ z), atol=1e-8 * size)
    np.testing.assert_allclose(prepared.gram(), want.T @ want, atol=1e-8 * size)
    assert prepared.total() == pytest.approx(np.sum(want**2), rel=1e-8)


@given(cases(sparse=True))
def test_sparse_rows_are_clipped_as_the_same_rows_dense(case):
    source, preparation, bounds, _ = case
    dense = ArraySource(next(iter(source.blocks())).toarray(), NAMES)
    dense.weights = source.weights
    one, other = Prepared(source, preparation, bounds=bounds), Prepared(dense, preparation, bounds=bounds)
    size = other.total() + 1e-300
    np.testing.assert_allclose(one.gram(), other.gram(), atol=1e-9 * size)
    assert one.total() == pytest.approx(other.total(), rel=1e-9)
    assert lengths(one).max(initial=0.0) <= bounds.norm


@pytest.mark.parametrize("n", [20, 30_000])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_many_rows_are_clipped_block_by_block(n, kind):
    rng = np.random.default_rng(0)
    raw = rng.standard_normal((n, D)) * 3
    source = open_source(raw if kind == "dense" else scipy.sparse.csr_array(raw * (rng.random(raw.shape) < 0.3)))
    prepared = Prepared(source, {"mean": np.full(D, 0.3)}, bounds=RowBounds(norm=1.0))
    assert lengths(prepared).max() <= 1.0
    rows = explicit(prepared)
    z = rng.standard_normal((D, 3))
    np.testing.assert_allclose(prepared.gram_times(z), rows.T @ (rows @ z), rtol=1e-10, atol=1e-9)
    assert 0.5 < prepared.clipping.shortened / prepared.clipping.rows <= 1.0


def clip_then_centre(raw, mean, bound):
    """The mistake: rows are brought within the bound before the mean is subtracted."""
    return meant(raw, bound) - mean


def test_clipping_before_centring_would_break_the_bound_and_ours_does_not():
    raw = np.vstack([np.tile([10.0, 0, 0, 0, 0], (99, 1)), [[-10.0, 0, 0, 0, 0]]])
    mean = meant(raw, 1.0).mean(axis=0)  # about (1, 0, ...): a released mean within the bound
    wrong = clip_then_centre(raw, mean, 1.0)
    assert np.linalg.norm(wrong, axis=1).max() > 1.9
    ours = Prepared(open_source(raw), {"mean": mean}, bounds=RowBounds(norm=1.0))
    assert lengths(ours).max() <= 1.0
    without = Prepared(open_source(raw[:-1]), {"mean": mean}, bounds=RowBounds(norm=1.0))
    assert np.linalg.norm(ours.gram() - without.gram()) <= 1.0
    assert np.linalg.norm(wrong.T @ wrong - wrong[:-1].T @ wrong[:-1]) > 3.8


def test_clipping_before_scaling_or_before_imputation_would_break_the_bound_and_ours_does_not():
    raw = np.array([[np.nan, 0.1, 0, 0, 0], [0.5, 0.5, 0, 0, 0]])
    preparation = {"fill": np.full(D, 50.0), "scale": np.full(D, 1e-3)}
    assert np.linalg.norm(meant(raw, 1.0) / 1e-3, axis=1).max() > 100
    assert lengths(Prepared(open_source(raw), preparation, bounds=RowBounds(norm=1.0))).max() <= 1.0


@pytest.mark.parametrize("far", [1e3, 1e6, 1e8])
def test_rows_far_from_zero_are_clipped_about_the_mean_and_not_about_zero(far):
    rng = np.random.default_rng(1)
    raw = far + rng.uniform(-1, 1, (4000, D)) / 10
    prepared = Prepared(open_source(raw), {"mean": np.full(D, far)}, bounds=RowBounds(norm=1.0))
    assert prepared.clipping.shortened == 0
    np.testing.assert_allclose(prepared.gram(), (raw - far).T @ (raw - far), rtol=1e-6)


# Was a fault once: FLOAT_SLACK (2^-10) does not cover the implicit product B'V - mu (1'V) of dense rows whose public
# box is narrow and far from zero (1e12 about a width of 1): its rounding moves the release by 0.1 of the sensitivity.
def test_rounding_far_from_zero_stays_within_the_slack_that_every_sensitivity_has():
    rng, far, n = np.random.default_rng(2), 1e12, 30_000
    raw, bound = far + rng.random((n, D)), np.sqrt(D) / 2
    z = np.eye(D)[:, :1]
    preparation, bounds = {"mean": np.full(D, far + 0.5)}, RowBounds(norm=bound)
    errors = []
    for rows in (raw, raw[1:]):
        prepared = Prepared(open_source(rows), preparation, bounds=bounds)
        exact = explicit(prepared)
        errors.append(prepared.gram_times(z) - exact.T @ (exact @ z))
    assert np.linalg.norm(errors[0] - errors[1]) <= 2**-10 * bound**2


COUNTS = {"low": np.zeros(1), "high": np.full(1, LARGEST_ENTRY), "about_zero": True}


@given(st.integers(0, 2**32), st.sampled_from([1e-3, 0.05, 0.5, 1e4]), st.booleans(), st.booleans())
def test_rows_over_the_roots_of_both_degrees_are_clipped_as_they_enter(seed, bound, sparse, weighted):
    rng = np.random.default_rng(seed)
    raw = rng.poisson(0.6, (40, D)) * rng.choice([0.1, 1.0, 50.0], (40, 1))
    raw[3], raw[4, 0] = 0.0, -7.0  # a user without items, and a count that is none
    scale, weights = rng.uniform(1.0, 30.0, D), rng.uniform(0, 2, 40) if weighted else None
    source = open_source(scipy.sparse.csr_array(raw) if sparse else raw, weights=weights)
    prepared = Prepared(source, {"degree": True, "scale": scale}, bounds=RowBounds(norm=bound, **COUNTS))
    counts = np.maximum(raw, 0.0)
    degrees = counts.sum(axis=1)
    over_roots = counts / np.sqrt(np.where(degrees > 0, degrees, 1.0))[:, None]
    want = meant(over_roots, bound, scale=scale, weights=weights)
    assert lengths(prepared).max() <= bound
    np.testing.assert_allclose(explicit(prepared), want, rtol=1e-9, atol=1e-12 * bound)
    np.testing.assert_allclose(prepared.gram(), want.T @ want, rtol=1e-8, atol=1e-12 * bound**2)


@pytest.mark.parametrize("entry", [5e-324, 1e-310, 1e-200, 1e-60, 1e59, 1e300, -1e300, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_no_count_makes_a_row_by_degree_anything_but_a_row_within_its_bound(entry, kind):
    # One over a degree of 5e-324 is infinite: of a release with such a row in it nothing would be left.
    raw = np.array([[1.0, 1.0, 0, 0, 0], [entry, 0, 0, 0, 0], [0, entry, 0, 0, 2.0], [entry] * 5])
    source = open_source(scipy.sparse.csr_array(raw) if kind == "sparse" else raw)
    prepared = Prepared(source, {"degree": True, "scale": np.full(D, 1.0)}, bounds=RowBounds(norm=0.5, **COUNTS))
    assert lengths(prepared).max() <= 0.5
    z = np.eye(D)[:, :2]
    for release in (prepared.gram(), prepared.gram_times(z), prepared.total(), prepared.gram_times(1e59 * z)):
        assert np.all(np.isfinite(release))
    np.testing.assert_allclose(explicit(prepared)[0, :2], [0.5 / np.sqrt(2)] * 2)


def test_sums_of_counts_are_about_zero_and_of_rows_within_the_raw_bound():
    raw = np.array([[3.0, 4.0], [0.3, 0.4], [-9.0, 2.0]])
    bounds = RowBounds(norm=0.1, raw_norm=1.0, **COUNTS)
    for block in (raw, scipy.sparse.csr_array(raw)):
        np.testing.assert_allclose(bounded_sums(block, None, False, bounds), [0.9, 2.2])
        np.testing.assert_allclose(bounded_sums(block, np.array([1.0, 0.5, 0.0]), False, bounds), [0.75, 1.0])
    with pytest.raises(PolicyError, match="a raw_norm"):
        bounded_sums(raw, None, False, RowBounds(norm=0.1, **COUNTS))


def test_a_weight_above_one_counts_as_one():
    raw = np.eye(D)
    source = open_source(raw, weights=np.array([0.25, 1.0, 2.0, 100.0, 0.0]))
    prepared = Prepared(source, {}, bounds=RowBounds(norm=10.0))
    np.testing.assert_allclose(np.diag(prepared.gram()), [0.25, 1, 1, 1, 0])
    assert prepared.mass == 3.25
    heavy = Prepared(open_source(raw, site_weight=7.0), {}, bounds=RowBounds(norm=10.0))
    np.testing.assert_allclose(heavy.gram(), np.eye(D))
    assert heavy.mass == 5.0
    plain = Prepared(open_source(raw, site_weight=7.0), {})
    assert plain.mass == 35.0  # without a policy, weights are the user's


def test_a_weight_column_above_one_counts_as_one():
    raw = np.column_stack([np.eye(D - 1), np.full(D - 1, 9.0)])
    source = ArraySource(raw, NAMES)
    prepared = Prepared(source, {"columns": list("abcd"), "weight_column": "e"}, bounds=RowBounds(norm=10.0))
    np.testing.assert_allclose(prepared.gram(), np.eye(4))
    assert prepared.mass == 4.0


@given(st.integers(0, 2**32), st.sampled_from([1e-3, 1.0, 50.0, 1e6]), st.booleans())
def test_a_sites_squares_sum_to_no_more_than_its_total(seed, total, centred):
    rng = np.random.default_rng(seed)
    raw = rng.standard_normal((rng.integers(1, 40), D)) * 3
    preparation = {"mean": np.ones(D)} if centred else {}
    rows = explicit(Prepared(open_source(raw), preparation, bounds=RowBounds(site_total=total)))
    assert np.sum(rows**2) <= total * (1 + 1e-12)
    plain = raw - 1 if centred else raw
    if np.sum(plain**2) <= total:
        np.testing.assert_allclose(rows, plain)
    else:
        np.testing.assert_allclose(rows, plain * np.sqrt(total / np.sum(plain**2)), rtol=1e-9)


def test_rows_are_clipped_before_a_site_is_scaled_down():
    raw = np.array([[3.0, 0, 0, 0, 0], [0, 0.5, 0, 0, 0]])
    rows = explicit(Prepared(open_source(raw), {}, bounds=RowBounds(norm=1.0, site_total=0.625)))
    np.testing.assert_allclose(rows[0], [np.sqrt(0.5), 0, 0, 0, 0])
    assert np.sum(rows**2) == pytest.approx(0.625)


def test_no_bound_clips_nothing_and_shares_of_a_symmetric_matrix_have_no_rows():
    raw = np.random.default_rng(0).standard_normal((30, D)) * 9
    np.testing.assert_allclose(Prepared(open_source(raw), {}, bounds=RowBounds()).gram(), raw.T @ raw)
    share = raw.T @ raw
    source = SymmetricSource(share, NAMES)
    np.testing.assert_allclose(Prepared(source, {"columns": list(NAMES)}, bounds=RowBounds()).gram(), share)


def test_norms_are_rounded_up_and_factors_down():
    rng = np.random.default_rng(0)
    raw = rng.standard_normal((500, D)) * np.logspace(-6, 6, 500)[:, None]
    dense, sparse = row_squares(raw, None, None), row_squares(scipy.sparse.csr_array(raw), None, None)
    exact = np.array([float(np.sum(np.longdouble(row) ** 2)) for row in raw])
    assert np.all(dense >= exact)
    assert np.all(sparse >= exact)
    np.testing.assert_allclose(dense, exact, rtol=1e-11)
    far = row_squares(scipy.sparse.csr_array(raw), np.full(D, 1e4), np.full(D, 7.0))
    assert np.all(far >= np.sum(((raw - 1e4) / 7) ** 2, axis=1) * (1 - 1e-15))
    clip = clip_factors(dense, None, 1.0)
    assert np.all(np.sqrt(clip) * np.sqrt(exact) <= 1.0)
    assert clip_factors(np.zeros(1), None, 1.0) == 1.0
    np.testing.assert_allclose(clip_factors(np.array([4.0, 4.0]), np.array([1.0, 0.25]), 1.0), [0.25, 1.0])


# Was a fault once: C^2 / 1e-300 overflows for a zero row where C > 1.3e4: a RuntimeWarning at the site
def test_a_zero_row_is_kept_under_any_bound():
    assert clip_factors(np.zeros(1), None, 1e6) == 1.0


# ---- sums of raw rows ------------------------------------------------------------------------------------------


def meant_sums(raw, radius, weights=None, low=None, high=None):
    """Sums about the middle of the box, each row clipped there; gaps count as the middle."""
    middle = np.zeros(raw.shape[1]) if low is None else np.broadcast_to((low + high) / 2, raw.shape[1:])
    rows = raw if low is None else np.clip(raw, low, high)
    rows = np.nan_to_num(rows - middle)
    rows = rows * np.minimum(1.0, radius / np.maximum(np.linalg.norm(rows, axis=1), 1e-300))[:, None]
    return rows if weights is None else rows * weights[:, None]


@given(st.integers(0, 2**32), st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_sums_are_those_of_rows_clipped_to_their_raw_bound(seed, sparse, gaps, boxed, weighed):
    rng = np.random.default_rng(seed)
    raw = rng.standard_normal((rng.integers(1, 40), D)) * 5
    if sparse:
        raw *= rng.random(raw.shape) < 0.4
    if gaps:
        raw[(rng.random(raw.shape) < 0.3) & (raw != 0)] = np.nan
    weights = rng.random(len(raw)) if weighed else None
    box = {"low": np.array([-1.0]), "high": np.linspace(1.0, 9.0, D)} if boxed else {}
    bounds = RowBounds(norm=77.0, raw_norm=2.0, **box)
    block = scipy.sparse.csr_array(raw) if sparse else raw
    rows = meant_sums(raw, 2.0, weights, **box)
    got = bounded_sums(block, weights, gaps, bounds)
    if not (sparse and gaps and boxed):  # there a gap counts as zero, not as the middle: clipped a little more
        np.testing.assert_allclose(got, rows.sum(axis=0), atol=1e-8)
    one = len(raw) // 2  # leaving any row out moves the sum by no more than R
    rest = np.delete(raw, one, axis=0)
    block = scipy.sparse.csr_array(rest) if sparse else rest
    without = bounded_sums(block, None if weights is None else np.delete(weights, one), gaps, bounds)
    assert np.linalg.norm(got - without) <= 2.0 * (1 + 1e-9)


def test_sums_without_a_raw_bound_are_refused():
    with pytest.raises(PolicyError, match="raw rows"):
        bounded_sums(np.eye(3), None, False, RowBounds(norm=1.0))


def test_a_gap_where_none_was_expected_counts_as_nothing():
    raw = np.array([[np.nan, 1.0], [1.0, 1.0], [np.inf, 0.0]])
    np.testing.assert_allclose(bounded_sums(raw, None, False, RowBounds(raw_norm=5.0)), [1.0, 2.0])


def test_entries_are_clamped_to_the_box_and_gaps_stay():
    bounds = RowBounds(low=np.array([0.0, -1.0]), high=np.array([1.0, 2.0]))
    raw = np.array([[5.0, -9.0], [np.nan, 0.5], [-1.0, 9.0]])
    want = np.array([[1.0, -1.0], [np.nan, 0.5], [0.0, 2.0]])
    np.testing.assert_array_equal(clamp(raw, bounds, keep_gaps=True), want)
    np.testing.assert_array_equal(clamp(scipy.sparse.csr_array(raw), bounds, keep_gaps=True).toarray(), want)
    np.testing.assert_array_equal(clamp(raw, bounds), np.nan_to_num(want))
    assert clamp(raw.astype(np.float32), bounds).dtype == np.float64
    assert clamp(raw, None) is raw
    np.testing.assert_array_equal(bounds.middle(2), [0.5, 0.5])
    np.testing.assert_array_equal(RowBounds().middle(2), [0, 0])


@pytest.mark.parametrize(("low", "high"), [(0.5, 1.0), (-1.0, -0.5)])
def test_a_box_that_shuts_zero_out_is_refused_for_sparse_rows(low, high):
    bounds = RowBounds(norm=1.0, low=np.array([low]), high=np.array([high]))
    with pytest.raises(DataError, match="low <= 0 <= high"):
        clamp(scipy.sparse.csr_array(np.eye(3)), bounds)
    with pytest.raises(DataError, match="low <= 0 <= high"):
        Prepared(open_source(scipy.sparse.csr_array(np.eye(3))), {}, bounds=bounds)


def test_norms_of_sparse_rows_near_the_mean_are_rounded_up():
    rng = np.random.default_rng(0)
    mean = 1e4 * rng.random(300)
    raw = mean + 1e-6 * rng.standard_normal((50, 300))
    exact = np.sum((raw.astype(np.longdouble) - mean) ** 2, axis=1)
    assert np.all(row_squares(scipy.sparse.csr_array(raw), mean, None) >= exact)


def test_a_weight_column_that_is_no_weight_counts_as_nothing():
    raw = np.column_stack([np.eye(4), [-100.0, np.nan, 0.5, 2.0]])
    preparation = {"columns": list("abcd"), "weight_column": "e"}
    prepared = Prepared(ArraySource(raw, NAMES), preparation, bounds=RowBounds(norm=10.0))
    np.testing.assert_allclose(prepared.gram(), np.diag([0.0, 0.0, 0.5, 1.0]))
    assert prepared.mass == 1.5


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_entries_that_arithmetic_could_fail_on_are_cut_without_a_box_too(kind):
    raw = np.array([[1e300, -1e300, 0, 0, 1.0], [np.inf, 0, np.nan, 1.0, 0]])
    block = raw if kind == "dense" else scipy.sparse.csr_array(raw)
    tame = clamp(block, RowBounds(norm=1.0))
    tame = tame if kind == "dense" else tame.toarray()
    np.testing.assert_array_equal(tame, [[LARGEST_ENTRY, -LARGEST_ENTRY, 0, 0, 1.0], [0, 0, 0, 1.0, 0]])
    source = ArraySource(raw, NAMES) if kind == "dense" else SparseSource(scipy.sparse.csr_array(raw), NAMES)
    with np.errstate(all="raise", under="ignore"):
        prepared = Prepared(source, {}, bounds=RowBounds(norm=1.0))
        assert prepared.total() == pytest.approx(2.0)
        assert np.all(np.isfinite(prepared.gram_times(np.eye(D))))


def test_a_share_of_a_symmetric_matrix_counts_once_in_full_precision_and_without_what_is_no_number():
    share = np.random.default_rng(0).random((D, D)) + np.array([1.0])
    share = (share + share.T).astype(np.float32)
    source = SymmetricSource(share, NAMES)
    source.site_weight = 7.0
    prepared, z = Prepared(source, {}, bounds=RowBounds()), np.random.default_rng(1).standard_normal((D, 2))
    exact = share.astype(float)
    np.testing.assert_allclose(prepared.gram(), exact, rtol=1e-12)  # once, not seven times
    np.testing.assert_allclose(prepared.gram_times(z), exact @ z, rtol=1e-12)
    wild = np.diag([1e300, np.nan, np.inf, -1e300, 1.0])
    source = SymmetricSource(wild, NAMES, check=False)
    np.testing.assert_array_equal(
        np.diag(Prepared(source, {}, bounds=RowBounds()).gram()), [LARGEST_ENTRY, 0, 0, -LARGEST_ENTRY, 1.0]
    )


def test_a_column_of_a_symmetric_matrix_is_named_once():
    with pytest.raises(DataError, match="names each column of a symmetric matrix once"):
        Prepared(SymmetricSource(np.eye(D), NAMES), {"columns": ["a", "a"]}, bounds=RowBounds())
