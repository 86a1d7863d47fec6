"""Summaries of rows seen once: equal to weighted PCA of all rows as far as the rank fits, and honest beyond that."""

from __future__ import annotations

import itertools
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from fedspan.encoding import decode, encode
from fedspan.errors import DataError
from fedspan.linalg import Summary, fold, merge_summaries, orth
from tests.streams import cuts, folded, is_orthonormal, is_pooled, pooled, rows_of

seeds = st.integers(0, 2**32 - 1)
SPARSE = [scipy.sparse.csr_array, scipy.sparse.csr_matrix]


@st.composite
def streams(draw, full=False):
    """Rows, weights (or None), a cut of both, a rank that fits, and whether to centre."""
    rng = np.random.default_rng(draw(seeds))
    n, d = draw(st.integers(1, 40)), draw(st.integers(1, 10))
    rank = d if full else draw(st.integers(1, min(d, 4)))
    center = draw(st.booleans())
    x = rows_of(rng, n, d, rank, offset=draw(st.sampled_from([0.0, 1.0, 100.0])) if center else 0.0)
    weights = None
    if draw(st.booleans()):
        weights = rng.choice([0.0, 0.3, 1.0, 2.0], n)
        weights[0] = 1.0
    return x, weights, cuts(n, draw(st.lists(st.integers(1, n), max_size=6))), rank, center


def as_kind(kind, x):
    return x if kind == "dense" else scipy.sparse.csr_array(x)


def parts(values, where):
    return None if values is None else [values[part] for part in where]


# ---- what is kept ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@given(streams())
def test_any_cut_into_blocks_gives_pooled_pca_where_the_rank_fits(kind, stream):
    x, weights, where, rank, center = stream
    blocks = [as_kind(kind, block) for block in parts(x, where)]
    summary = folded(blocks, rank, weights=parts(weights, where), center=center)
    is_pooled(summary, x, weights, center)
    assert summary.rows == len(x)
    assert len(summary.values) <= rank


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@given(streams(full=True), st.integers(1, 3), st.sampled_from([1.0, 0.9, 0.5]))
def test_mean_mass_and_total_are_exact_whatever_the_rank(kind, stream, rank, forgetting):
    """Weighted PCA with the weights forgetting^(2 age)."""
    x, weights, where, _, center = stream
    blocks = [as_kind(kind, block) for block in parts(x, where)]
    summary = folded(blocks, rank, weights=parts(weights, where), center=center, forgetting=forgetting)
    age = np.concatenate([np.full(part.stop - part.start, len(where) - 1 - i) for i, part in enumerate(where)])
    now = forgetting ** (2.0 * age) * (1.0 if weights is None else weights)
    mean, _, _, total = pooled(x, now, center)
    size = 1 + np.abs(x).max()
    np.testing.assert_allclose(summary.mean, mean, atol=1e-12 * size)
    np.testing.assert_allclose(summary.mass, now.sum(), rtol=1e-12)
    np.testing.assert_allclose(summary.total, total, rtol=1e-10, atol=1e-13 * size**2 * now.sum())
    assert np.sum(summary.values**2) <= summary.total  # not each of them: a pair that is only near does not lie below
    assert summary.rows == len(x)


def test_forgetting_is_weighted_pca_to_the_last_direction():
    rng = np.random.default_rng(0)
    x = rows_of(rng, 60, 9, 4)
    summary = folded(np.split(x, 6), 4, forgetting=0.9)
    is_pooled(summary, x, np.repeat(0.81 ** np.arange(5.0, -1.0, -1.0), 10))


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("rows", [1, 3, 4])
def test_a_block_of_no_more_rows_than_the_rank_enters_as_it_is(rows, kind):
    """With the step between the means it has one row more, and what is kept is the best of both exactly."""
    rng = np.random.default_rng(16)
    first, then = rng.standard_normal((20, 9)), rng.standard_normal((rows, 9)) + 3
    summary = folded([first], 4)
    both = fold(summary, as_kind(kind, then), 4, rng=rng)
    step = np.sqrt(20 * rows / (20 + rows)) * (then.mean(axis=0) - first.mean(axis=0))
    known = np.vstack([(summary.basis * summary.values).T, then - then.mean(axis=0), step])
    np.testing.assert_allclose(both.values, np.linalg.svd(known, compute_uv=False)[:4], rtol=1e-10)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_weight_is_a_repeated_row_and_no_weight_no_row(kind):
    rng = np.random.default_rng(1)
    x, weights = rows_of(rng, 30, 6, 3), rng.integers(0, 4, 30).astype(float)
    again = np.repeat(x, weights.astype(int), axis=0)
    weighted = folded([as_kind(kind, b) for b in np.split(x, 3)], 3, weights=np.split(weights, 3))
    plain = folded([as_kind(kind, again[:17]), as_kind(kind, again[17:])], 3)
    is_pooled(weighted, again)
    is_pooled(plain, again)
    assert weighted.mass == plain.mass == len(again)


def test_a_block_of_weight_zero_counts_its_rows_and_makes_the_others_older():
    rng = np.random.default_rng(2)
    summary = folded([rows_of(rng, 10, 4)], 4)
    after = fold(summary, rng.standard_normal((5, 4)), 4, weights=np.zeros(5), forgetting=0.5, rng=rng)
    np.testing.assert_array_equal(after.values, 0.5 * summary.values)
    np.testing.assert_array_equal(after.mean, summary.mean)
    assert (after.rows, after.mass, after.total) == (15, 0.25 * summary.mass, 0.25 * summary.total)


def test_weights_may_be_of_any_size():
    """Only their ratios count; products of masses must not overflow, nor come to nothing."""
    x = rows_of(np.random.default_rng(3), 30, 5)
    plain = folded(np.split(x, 3), 5)
    for size in (1e-170, 1e-40, 1e40, 1e160):
        found = folded(np.split(x, 3), 5, weights=np.split(np.full(30, size), 3))
        np.testing.assert_allclose(found.values / np.sqrt(size), plain.values, rtol=1e-10)
        half = [folded([part], 5, weights=[np.full(len(part), size)]) for part in np.split(x, 2)]
        np.testing.assert_allclose(merge_summaries(*half, 5).values / np.sqrt(size), plain.values, rtol=1e-10)


def test_an_offset_stands_for_a_mean_that_is_known_before():
    rng = np.random.default_rng(4)
    x, offset = rows_of(rng, 40, 6, 3, offset=0.0), 5.0 * rng.standard_normal(6)
    for kind in ("dense", "sparse"):
        blocks = [as_kind(kind, block + offset) for block in np.split(x, 4)]
        weights = [rng.random(10) for _ in range(4)]
        summary = folded(blocks, 3, weights=weights, center=False, offset=offset)
        is_pooled(summary, x, np.concatenate(weights), center=False)
        assert not summary.mean.any()


@pytest.mark.parametrize("kind", SPARSE, ids=lambda kind: kind.__name__)
@given(seeds, st.booleans(), st.integers(1, 5))
def test_sparse_rows_give_what_dense_ones_give(kind, seed, weighted, count):
    """Those of a rank that does not fit too: blocks larger than the rank are looked at along the same directions."""
    rng = np.random.default_rng(seed)
    blocks = [np.where(rng.random((12, 7)) < 0.4, rng.standard_normal((12, 7)), 0.0) for _ in range(count)]
    weights = [rng.random(12) for _ in blocks] if weighted else None
    dense = folded(blocks, 7, weights=weights)
    sparse = folded([kind(block) for block in blocks], 7, weights=weights)
    is_pooled(sparse, np.vstack(blocks), None if weights is None else np.concatenate(weights))
    np.testing.assert_allclose(sparse.values, dense.values, atol=1e-11 * dense.values[0])
    low = [folded(part, 3, weights=weights) for part in (blocks, [kind(block) for block in blocks])]
    np.testing.assert_allclose(low[1].values, low[0].values, atol=1e-9 * dense.values[0])


def test_float32_rows_are_folded_in_float64():
    x = rows_of(np.random.default_rng(5), 40, 6, 3).astype(np.float32)
    for kind in ("dense", "sparse"):
        summary = folded([as_kind(kind, block) for block in np.split(x, 4)], 6)
        is_pooled(summary, x.astype(float))
        assert summary.basis.dtype == summary.values.dtype == summary.mean.dtype == np.float64


# ---- sparse stays sparse ---------------------------------------------------------------------------------------


def test_a_sparse_block_is_never_made_dense(monkeypatch):
    def refused(*_, **__):
        raise AssertionError("made dense")

    kinds = [getattr(scipy.sparse, f"{way}_{kind}") for way in ("csr", "csc", "coo") for kind in ("array", "matrix")]
    for kind, name in itertools.product(kinds, ("toarray", "todense")):
        monkeypatch.setattr(kind, name, refused)
    rng, d = np.random.default_rng(6), 100_000
    blocks = [scipy.sparse.random_array((300, d), density=1e-4, format="csr", rng=rng) for _ in range(3)]
    summary, weights = Summary.empty(d), rng.random(300)
    tracemalloc.start()
    try:
        for block in blocks:
            summary = fold(summary, block, 5, weights=weights, rng=rng)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 300 * d * 8 / 4  # a block made dense is 240 MB, a basis 4 MB
    is_orthonormal(summary.basis)
    assert 0 < np.sum(summary.values**2) < summary.total


# ---- shares of the variance ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@given(seeds, st.integers(1, 6), st.sampled_from([0.0, 1.0, 1e4, 1e8]), st.sampled_from([1.0, 0.9]), st.integers(1, 9))
def test_the_share_of_the_variance_lies_in_0_to_1(kind, seed, d, offset, forgetting, rank):
    """However far the rows are from zero: nothing that cancels may make a share of more than all, or of less."""
    rng = np.random.default_rng(seed)
    spread = 10.0 ** rng.uniform(-9, 2)
    blocks = [offset + spread * rng.standard_normal((int(n), d)) for n in rng.integers(1, 8, 5)]
    summary = folded([as_kind(kind, block) for block in blocks], min(rank, d), forgetting=forgetting)
    assert summary.total >= 0
    shares = summary.values**2 / summary.total if summary.total > 0 else np.zeros(1)
    assert np.all((shares >= 0) & (shares <= 1))
    assert shares.sum() <= 1 + 1e-14
    assert np.all(np.diff(summary.values) <= 0)


# ---- directions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [3, 8])
def test_the_basis_is_orthonormal_after_very_many_updates(rows):
    """Blocks no larger than the rank enter as they are, larger ones through a probe: both take back what rounds off."""
    rng = np.random.default_rng(7)
    summary, scale = Summary.empty(12), 0.8 ** np.arange(12)
    for _ in range(5000):
        summary = fold(summary, rng.standard_normal((rows, 12)) * scale, 4, rng=rng)
    is_orthonormal(summary.basis, 1.5e-13)  # what rounds off adds up to several times that


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("center", [True, False])
def test_new_directions_are_found_at_once_though_they_are_orthogonal_to_all_so_far(aligned, kind, center):
    """A warm start alone would not see them: the scores of such rows are exactly nothing, or rounding."""
    rng = np.random.default_rng(8)
    turn = np.eye(20) if aligned else orth(rng.standard_normal((20, 20)))
    before, after = (rng.standard_normal((60, 4)) @ turn[:, part].T for part in (slice(4), slice(4, 8)))
    summary = folded([before], 4, center=center)
    changed = fold(summary, as_kind(kind, 3 * after), 4, center=center, rng=rng)
    best = pooled(np.vstack([before, 3 * after]), center=center)[2][:4]
    assert np.sum(changed.values**2) >= 0.97 * np.sum(best**2)
    assert np.linalg.norm(turn[:, 4:8].T @ changed.basis) ** 2 > 0.9 * 4


def test_a_weak_new_direction_beside_old_ones_is_found_too():
    rng = np.random.default_rng(9)
    scale = np.array([9.0, 8.0, 7.0, 0, 0, 0, 0, 0])
    summary = folded([rng.standard_normal((50, 8)) * scale], 4, center=False)
    scale[5] = 2.0
    changed = fold(summary, rng.standard_normal((50, 8)) * scale, 4, center=False, rng=rng)
    assert np.linalg.norm(changed.basis[5]) > 0.95


def test_a_first_block_is_found_well_though_there_is_nothing_to_start_from():
    for seed in range(5):
        x = rows_of(np.random.default_rng(seed), 200, 40, decay=0.8)
        assert np.sum(folded([x], 8).values ** 2) >= 0.98 * np.sum(pooled(x)[2][:8] ** 2)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_rows_without_variance_have_a_mean_and_no_direction(kind):
    block = as_kind(kind, np.full((30, 4), 3.0))
    summary = folded([block, block], 2)
    assert summary.values.size == 0 or summary.values[0] < 1e-12
    np.testing.assert_allclose(summary.mean, 3.0)
    assert summary.total == pytest.approx(0.0, abs=1e-20)
    moved = fold(summary, as_kind(kind, np.full((30, 4), 5.0)), 2, rng=np.random.default_rng(0))
    np.testing.assert_allclose(moved.values, [np.sqrt(60 * 30 / 90 * 16)])  # the step between the means is all


def test_rows_too_large_to_square_are_refused():
    for block, weights in [(np.full((2, 2), 1e150), None), (np.eye(2), np.full(2, 1e300)), (np.eye(2) * 1e160, None)]:
        for kind in ("dense", "sparse"):
            with pytest.raises(DataError, match="squares overflow; rescale"):
                folded([as_kind(kind, block)], 2, weights=None if weights is None else [weights])


# ---- merging ---------------------------------------------------------------------------------------------------


@given(streams(), st.randoms(use_true_random=False), st.sampled_from([1.0, 0.9]), st.sampled_from([1.0, 1.5]))
def test_summaries_merge_to_that_of_all_rows(stream, order, forgetting, enhancing):
    x, weights, where, rank, center = stream
    summaries = [
        folded([x[part]], rank, weights=None if weights is None else [weights[part]], center=center) for part in where
    ]
    places = list(range(len(where)))
    order.shuffle(places)
    merged, now = Summary.empty(x.shape[1]), np.ones(len(x)) if weights is None else weights.copy()
    for done, i in enumerate(places):
        merged = merge_summaries(merged, summaries[i], rank, forgetting=forgetting, enhancing=enhancing)
        now[where[i]] *= enhancing**2
        for j in places[:done]:
            now[where[j]] *= forgetting**2
    is_pooled(merged, x, now, center)
    assert merged.rows == len(x)


def test_a_merge_beyond_the_rank_keeps_mean_mass_and_total():
    rng = np.random.default_rng(11)
    x = rows_of(rng, 60, 9)
    merged = merge_summaries(folded([x[:25]], 3), folded([x[25:]], 3), 3)
    mean, _, values, total = pooled(x)
    np.testing.assert_allclose(merged.mean, mean, atol=1e-13)
    assert merged.mass == 60
    assert merged.total == pytest.approx(total, rel=1e-12)
    assert len(merged.values) == 3
    assert np.all(merged.values <= values[:3] + 1e-12)


def test_merging_with_nothing_changes_nothing():
    summary, nothing = folded([rows_of(np.random.default_rng(12), 20, 4)], 4), Summary.empty(4)
    for merged in (merge_summaries(summary, nothing, 4), merge_summaries(nothing, summary, 4)):
        np.testing.assert_allclose(merged.values, summary.values)
        np.testing.assert_array_equal(merged.mean, summary.mean)
        assert (merged.mass, merged.rows) == (summary.mass, summary.rows)
    both = merge_summaries(nothing, nothing, 4)
    assert (both.mass, both.rows, both.total, both.values.size) == (0, 0, 0, 0)


def test_a_cut_keeps_the_total_and_leaves_a_narrow_one_alone():
    summary = folded([rows_of(np.random.default_rng(13), 20, 4)], 4)
    cut = summary.cut(2)
    assert cut.basis.shape == (4, 2)
    np.testing.assert_array_equal(cut.values, summary.values[:2])
    assert (cut.total, cut.mass) == (summary.total, summary.mass)
    assert summary.cut(4) is summary


# ---- as it travels ---------------------------------------------------------------------------------------------


def test_a_summary_travels_to_the_bit():
    summary = folded([rows_of(np.random.default_rng(14), 20, 4)], 3)
    back = Summary.from_plain(decode(encode(summary.as_plain())))
    for name, value in summary.as_plain().items():
        np.testing.assert_array_equal(getattr(back, name), value)
    assert Summary.from_plain(Summary.empty(3).as_plain()).mass == 0


def damaged():
    """What is no summary, by what is wrong with it."""
    good = folded([rows_of(np.random.default_rng(15), 20, 4)], 2)
    u, s = good.basis, good.values
    changes = {
        "too many values": {"values": np.append(s, 0.1)},
        "too few values": {"values": s[:1]},
        "values that rise": {"values": s[::-1]},
        "negative values": {"values": -s[::-1]},
        "a value that is NaN": {"values": np.array([s[0], np.nan])},
        "values above the total": {"values": 2 * s},
        "a long mean": {"mean": np.zeros(5)},
        "a mean that is NaN": {"mean": np.full(4, np.nan)},
        "a huge mean": {"mean": np.full(4, 1e200)},
        "a basis of infinity": {"basis": np.full((4, 2), np.inf)},
        "a basis of NaN": {"basis": np.full((4, 2), np.nan)},
        "a basis that is turned over": {"basis": u.T},
        "a basis in one dimension": {"basis": u[:, 0]},
        "a basis that is not orthonormal": {"basis": 1.01 * u},
        "equal columns": {"basis": u[:, [0, 0]]},
        "negative mass": {"mass": -1.0},
        "endless mass": {"mass": np.inf},
        "negative total": {"total": -1.0},
        "a total that is NaN": {"total": np.nan},
        "a huge total": {"total": 1e300},
        "rows that are no count": {"rows": 2.5},
        "negative rows": {"rows": -1},
        "a text for mass": {"mass": "1"},
        "a list for a basis": {"basis": [[1.0]]},
        "nothing for a mean": {"mean": None},
    }
    for name, change in changes.items():
        yield pytest.param({**good.as_plain(), **change}, id=name)
    for name in good.as_plain():
        yield pytest.param({k: v for k, v in good.as_plain().items() if k != name}, id=f"no {name}")
    for whole in (None, 3, "summary", [], np.zeros(3), {}):
        yield pytest.param(whole, id=f"{type(whole).__name__} for all")


@pytest.mark.parametrize("plain", list(damaged()))
def test_what_is_no_summary_is_refused(plain):
    with pytest.raises(DataError, match=r"no summary of rows: .*; send it again"):
        Summary.from_plain(plain)


def test_more_fields_than_needed_do_no_harm():
    good = Summary.empty(2)
    assert Summary.from_plain({**good.as_plain(), "since": 3}).mass == 0
    assert replace(good, mass=1.0).faded(1.0).mass == 1.0
