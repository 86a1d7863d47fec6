"""StreamingPCA: scikit-learn's numbers from rows seen once, however they come, and a stream that survives bad rows."""

from __future__ import annotations

import copy
import tracemalloc

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.decomposition import PCA, IncrementalPCA, TruncatedSVD
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedspan import FederatedPCA, StreamingPCA
from fedspan.data import SymmetricSource, open_source
from fedspan.data.source import Source
from fedspan.encoding import encode
from fedspan.errors import ConfigurationError, DataError, FileError
from fedspan.linalg import merge_summaries, orth
from fedspan.metrics import projection_distance
from tests.streams import cuts, is_orthonormal, is_pooled, pooled, rows_of

seeds = st.integers(0, 2**32 - 1)
FIGURES = (
    "explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_", "noise_variance_",
)  # fmt: skip


def rows(n=120, d=8, seed=0, rank=None, offset=1.5):
    return rows_of(np.random.default_rng(seed), n, d, rank, offset)


def sparse_rows(n=120, d=8, seed=0):
    rng = np.random.default_rng(seed)
    return scipy.sparse.csr_array(np.where(rng.random((n, d)) < 0.4, rows(n, d, seed), 0.0))


def state(model):
    """All that a stream goes on from, to the bit."""
    before = None if model._axes_before is None else list(model._axes_before)
    return encode({"stream": model._stream.as_plain(), "gaps": model._gaps_filled.as_plain(), "before": before})


def same_rows(ours, theirs, tolerance=1e-9):
    """Components or scores agree, up to the sign that scikit-learn chooses by its own rule."""
    signs = np.sign(np.sum(ours * theirs, axis=1, keepdims=True))
    np.testing.assert_allclose(ours, theirs * signs, atol=tolerance)


def fed(model, x, size=30, **more):
    for start in range(0, x.shape[0], size):
        model.partial_fit(x[start : start + size], **more)
    return model


# ---- scikit-learn's numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("block_size", [7, 500])
def test_it_is_scikit_learns_pca_where_all_directions_are_kept(kind, whiten, block_size):
    x = rows() if kind == "dense" else sparse_rows()
    dense = x if kind == "dense" else x.toarray()
    theirs = PCA(n_components=3, whiten=whiten, svd_solver="full").fit(dense)
    ours = fed(StreamingPCA(n_components=3, whiten=whiten, block_size=block_size), x)
    same_rows(ours.components_, theirs.components_)
    for name in FIGURES:
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-9, atol=1e-12, err_msg=name)
    assert (ours.n_components_, ours.n_features_in_, ours.n_samples_seen_) == (3, 8, 120)
    assert ours.mass_ == 120.0
    assert ours.n_blocks_ == 120 // block_size
    same_rows(ours.transform(x).T, theirs.transform(dense).T)
    np.testing.assert_allclose(
        ours.inverse_transform(ours.transform(x)), theirs.inverse_transform(theirs.transform(dense)), atol=1e-9
    )


def test_shares_and_noise_are_of_all_variance_though_some_of_it_was_cut_off():
    x = rows(200, 40, rank=40)
    model = fed(StreamingPCA(3, block_size=25, oversampling=2), x)
    total, held = pooled(x)[3], np.sum(model.singular_values_**2)
    assert np.sum(model.summary().values ** 2) < 0.98 * total
    np.testing.assert_allclose(model.explained_variance_ratio_, model.singular_values_**2 / total, rtol=1e-12)
    assert model.noise_variance_ == pytest.approx((total - held) / 199 / 37, rel=1e-10)


def test_uncentred_it_is_a_truncated_svd():
    x = rows()
    theirs = TruncatedSVD(3, algorithm="arpack", random_state=0).fit(x)
    ours = fed(StreamingPCA(n_components=3, center=False, block_size=50), x)
    same_rows(ours.components_, theirs.components_)
    np.testing.assert_allclose(ours.singular_values_, theirs.singular_values_, rtol=1e-10)
    np.testing.assert_array_equal(ours.mean_, np.zeros(8))
    same_rows(ours.transform(x).T, theirs.transform(x).T)


def test_a_scikit_learn_pca_of_it_gives_the_same():
    frame = pd.DataFrame(rows(), columns=list("abcdefgh"))
    ours = StreamingPCA(n_components=3, whiten=True).fit(frame)
    theirs = ours.to_sklearn()
    assert isinstance(theirs, PCA)
    np.testing.assert_allclose(ours.transform(frame), theirs.transform(frame), atol=1e-12)
    np.testing.assert_allclose(ours.inverse_transform(ours.transform(frame)), theirs.inverse_transform(
        theirs.transform(frame)), atol=1e-12)  # fmt: skip
    for name in ("components_", *FIGURES, "n_components_", "n_features_in_"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    assert theirs.n_samples_ == 120
    assert list(theirs.feature_names_in_) == list("abcdefgh")


def test_whitened_scores_have_unit_variance():
    x = rows()
    scores = StreamingPCA(n_components=4, whiten=True).fit_transform(x)
    np.testing.assert_allclose(np.cov(scores.T), np.eye(4), atol=1e-10)
    flat = StreamingPCA(n_components=4, whiten=True).fit(rows(rank=2))  # the last two directions have no variance
    assert np.all(np.isfinite(flat.transform(x)))


def test_float32_rows_are_scored_in_float32():
    x = rows().astype(np.float32)
    model = fed(StreamingPCA(n_components=3, block_size=25), x)
    assert model.transform(x).dtype == np.float32
    np.testing.assert_allclose(model.singular_values_, pooled(x.astype(float))[2][:3], rtol=1e-10)


def test_it_works_in_a_pipeline_and_clones():
    x = rows()
    piped = make_pipeline(StandardScaler(), StreamingPCA(n_components=2)).fit(x)
    assert piped.transform(x).shape == (120, 2)
    model = StreamingPCA("auto", energy=(0.02, 0.2), missing="mean")
    assert clone(model).get_params() == model.get_params()
    assert list(StreamingPCA(n_components=2).fit(x).get_feature_names_out()) == ["streamingpca0", "streamingpca1"]


def test_before_the_first_rows_there_is_nothing_to_ask():
    model = StreamingPCA(n_components=2)
    for ask in (
        lambda: model.components_, lambda: model.drift_, lambda: model.n_skipped_, lambda: model.fill_, model.flush,
        model.summary, lambda: model.transform(rows()), lambda: model.carry(np.ones((1, 2))), model.to_sklearn,
        lambda: model.merge(model), lambda: model.save("nowhere"), lambda: model.n_blocks_,
    ):  # fmt: skip
        with pytest.raises(NotFittedError):
            ask()


def test_fit_forgets_what_was_before():
    x = rows()
    model = StreamingPCA(n_components=2, block_size=50).fit(pd.DataFrame(rows(seed=1), columns=list("abcdefgh")))
    model.fit(x)
    assert state(model) == state(StreamingPCA(n_components=2, block_size=50).fit(x))
    assert not hasattr(model, "feature_names_in_")
    model.fit(rows(d=5))
    assert model.n_features_in_ == 5


# ---- however the rows come -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dense", "float32", "frame", "sparse"])
@given(seeds, st.lists(st.integers(0, 61), max_size=6), st.booleans(), st.sampled_from([3, "auto", 0.9]))
def test_the_answer_does_not_depend_on_how_rows_are_handed_over_to_the_bit(kind, seed, places, weighted, wanted):
    rng = np.random.default_rng(seed)
    x, weights = rows(61, 6, seed), rng.random(61) if weighted else None
    x = {"dense": x, "float32": x.astype(np.float32), "frame": x, "sparse": scipy.sparse.csr_array(x)}[kind]
    settings = {"n_components": wanted, "block_size": 9, "forgetting": 0.9, "window": 2, "random_state": 3}
    at_once, piecemeal = StreamingPCA(**settings).partial_fit(x, sample_weight=weights), StreamingPCA(**settings)
    for part in cuts(61, places):
        given_rows = pd.DataFrame(x[part]) if kind == "frame" else x[part]
        piecemeal.partial_fit(given_rows, sample_weight=None if weights is None else weights[part])
    assert encode(at_once._stream.as_plain()) == encode(piecemeal._stream.as_plain())
    assert at_once.components_.tobytes() == piecemeal.components_.tobytes()
    assert at_once.explained_variance_ratio_.tobytes() == piecemeal.explained_variance_ratio_.tobytes()


@pytest.mark.parametrize("weighted", [False, True])
def test_a_source_or_a_path_is_read_in_blocks(weighted, tmp_path):
    frame = pd.DataFrame(rows(), columns=list("abcdefgh"))
    weights = np.linspace(0.5, 2.0, 120) if weighted else None
    plain = StreamingPCA(n_components=3, block_size=25).partial_fit(frame, sample_weight=weights)
    sourced = StreamingPCA(n_components=3, block_size=25).fit(open_source(frame, weights=weights))
    assert state(sourced) == state(plain)
    assert list(sourced.feature_names_in_) == list(plain.feature_names_in_) == list("abcdefgh")
    if not weighted:
        frame.to_csv(tmp_path / "rows.csv", index=False, float_format="%.17g")
        for path in (tmp_path / "rows.csv", str(tmp_path / "rows.csv")):
            assert state(StreamingPCA(n_components=3, block_size=25).fit(path)) == state(plain)
    np.testing.assert_allclose(sourced.transform(open_source(frame)), plain.transform(frame), atol=1e-12)
    sourced.partial_fit(open_source(frame, weights=weights))
    assert sourced.n_samples_seen_ == 240


def test_a_sources_site_weight_counts():
    source, x = open_source(rows(), weights=np.full(120, 2.0)), rows()
    source.site_weight = 1.5
    model = StreamingPCA(n_components=3).fit(source)
    assert model.mass_ == pytest.approx(360.0)
    bare = open_source(x)
    bare.site_weight = 0.5
    assert StreamingPCA(n_components=3).fit(bare).mass_ == pytest.approx(60.0)


class Blocks(Source):
    """A source of these blocks."""

    def __init__(self, *blocks, columns=None):
        self._blocks = blocks
        self.shape, self.columns = (sum(b.shape[0] for b in blocks), blocks[0].shape[1]), columns
        self.dtype = np.dtype(np.float64)

    def blocks(self):
        yield from self._blocks


def test_sparse_rows_of_a_source_stay_sparse(monkeypatch):
    blocks = [sparse_rows(50, seed=i).tocsr() for i in range(3)]
    stacked = scipy.sparse.vstack(blocks).tocsr()
    expected = StreamingPCA(n_components=3, block_size=20).fit(stacked)
    monkeypatch.setattr(scipy.sparse.csr_array, "toarray", None)
    assert state(StreamingPCA(n_components=3, block_size=20).fit(Blocks(*blocks))) == state(expected)


@pytest.mark.parametrize("missing", ["error", "mean", "skip"])
def test_sparse_rows_are_never_made_dense_whatever_becomes_of_gaps(missing):
    """Rows that wait, are joined, filled, left out, folded and scored: dense, they would take 24 MB a time."""
    d, rng = 10_000, np.random.default_rng(0)
    x = scipy.sparse.random_array((300, d), density=1e-3, format="csr", rng=rng)
    if missing != "error":
        x.data[7] = np.nan
    model = StreamingPCA(2, block_size=250, oversampling=2, missing=missing).partial_fit(x[10:20])
    tracemalloc.start()
    try:
        for part in cuts(300, [100, 200]):
            model.partial_fit(x[part])
        model.transform(x)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert model.n_blocks_ == 1
    assert peak < 100 * d * 8 / 2  # half of the least of the three parts


# ---- rows that wait, and too few of them -----------------------------------------------------------------------


def test_rows_that_wait_for_their_block_count():
    x = rows()
    model = StreamingPCA(n_components=3, block_size=50).partial_fit(x[:20])
    assert (model.n_blocks_, model.n_samples_seen_, model.mass_) == (0, 20, 20.0)
    is_pooled(model.summary(), x[:20])
    model.partial_fit(x[20:70])
    assert (model.n_blocks_, model.n_samples_seen_) == (1, 70)
    np.testing.assert_allclose(model.mean_, x[:70].mean(axis=0))
    same_rows(model.components_, PCA(3).fit(x[:70]).components_)
    assert model.flush() is model
    assert (model.n_blocks_, model.n_samples_seen_) == (2, 70)


def test_a_rank_above_the_rows_is_refused_when_it_is_asked_and_the_stream_goes_on():
    x = rows()
    model = StreamingPCA(n_components=4).partial_fit(x[:3])
    for ask in (lambda: model.components_, lambda: model.transform(x), lambda: model.singular_values_):
        with pytest.raises(DataError, match=r"n_components = 4 is more than the 3 rows .* kept; give more rows, or"):
            ask()
    with pytest.raises(DataError, match="more than the 3 rows"):
        StreamingPCA(n_components=4).fit_transform(x[:3])
    assert model.n_samples_seen_ == 3
    model.partial_fit(x[3:4])
    assert model.components_.shape == (4, 8)
    model.partial_fit(x[4:])
    same_rows(model.components_, PCA(4).fit(x).components_)
    with pytest.raises(DataError, match="n_components = 9 must lie between 1 and 8"):
        StreamingPCA(n_components=9).fit(x)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_where_rows_have_fewer_directions_any_others_fill_up_the_basis(rank):
    x = rows(rank=rank) if rank else np.ones((40, 8))
    model = StreamingPCA(n_components=4, block_size=10).fit(x)
    is_orthonormal(model.components_.T)
    assert model.components_.shape == (4, 8)
    assert np.all(model.singular_values_[rank:] < 1e-9)
    assert np.all(model.explained_variance_ratio_[rank:] < 1e-12)
    again = StreamingPCA(n_components=4, block_size=10).fit(x)
    np.testing.assert_array_equal(model.components_, again.components_)
    full = StreamingPCA(n_components=8, block_size=10).fit(x)
    is_orthonormal(full.components_.T)
    assert full.components_.shape == (8, 8)
    assert model.noise_variance_ == pytest.approx(0.0, abs=1e-12)


# ---- refused rows ----------------------------------------------------------------------------------------------


def frame_of(names):
    return pd.DataFrame(rows(9), columns=list(names))


def with_entry(value, at=(8, 3), n=9):
    x = rows(n)
    x[at] = value
    return x


def sparse_with(value):
    x = sparse_rows(9).tolil()
    x[8, 3] = value
    return x.tocsr()


REFUSED = {
    "other columns": (rows(9, 7), {}, "8 features"),
    "other names": (frame_of("abcdefgx"), {}, "feature names should match"),
    "names in another order": (frame_of("bacdefgh"), {}, "[Ff]eature names must be in the same order"),
    "NaN": (with_entry(np.nan), {}, "NaN"),
    "infinity": (with_entry(np.inf), {}, "infinity"),
    "huge": (with_entry(1e151), {}, "as large as 1e\\+151 .*, whose squares overflow; rescale"),
    "huge and negative": (with_entry(-1e151), {}, "as large as 1e\\+151"),
    "too large to be folded later": (with_entry(1e141), {}, "squares overflow"),
    "sparse NaN": (sparse_with(np.nan), {}, "NaN"),
    "sparse infinity": (sparse_with(-np.inf), {}, "infinity"),
    "sparse and huge": (sparse_with(-1e160), {}, "as large as 1e\\+160"),
    "no rows": (np.zeros((0, 8)), {}, "0 sample"),
    "one dimension": (np.ones(8), {}, "1D array"),
    "texts": (np.array([["a"] * 8]), {}, "could not convert"),
    "complex": (1j * rows(9), {}, "Complex data not supported"),
    "too few weights": (rows(9), {"sample_weight": np.ones(8)}, "for each of 9 rows"),
    "weights in two dimensions": (rows(9), {"sample_weight": np.ones((9, 1))}, "for each of 9 rows"),
    "a negative weight": (rows(9), {"sample_weight": -np.eye(9)[0]}, "0 or more"),
    "a weight that is NaN": (rows(9), {"sample_weight": np.full(9, np.nan)}, "finite number"),
    "an endless weight": (rows(9), {"sample_weight": np.full(9, np.inf)}, "finite number"),
    "heavy rows that overflow": (
        1e100 * rows(9),
        {"sample_weight": np.full(9, 1e120)},
        "up to 1e\\+120, whose squares",
    ),
    "weights that overflow": (rows(9), {"sample_weight": np.full(9, 1e281)}, "up to 1e\\+281"),
    "weights of a source": (open_source(rows(9)), {"sample_weight": np.ones(9)}, "give open_source the weights"),
    "a source of other columns": (open_source(rows(9, 7)), {}, "has 7 columns, and the stream 8"),
    "a source of other names": (open_source(frame_of("abcdefgx")), {}, "columns are .*'e'.* put them in order"),
    "shares of a matrix": (SymmetricSource(np.eye(8)), {}, "no rows to stream; give the rows"),
    "a source with a late gap": (Blocks(rows(9), with_entry(np.nan, n=30)), {}, "NaN .* columns \\[3\\]; mend them"),
    "a source with infinity": (Blocks(rows(9), with_entry(np.inf, n=30)), {}, "as large as inf"),
    "no file": ("there/is/no/such/file.csv", {}, "there is no folder"),
}


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_refused_rows_leave_the_stream_as_it_was_to_the_bit(name, asked):
    data, more, text = REFUSED[name]
    named = isinstance(data, pd.DataFrame | Source)

    def good(n, seed):
        return pd.DataFrame(rows(n, seed=seed), columns=list("abcdefgh")) if named else rows(n, seed=seed)

    model = StreamingPCA(n_components=3, block_size=10, window=2).partial_fit(good(47, 0))
    if asked:
        assert model.components_.shape == (3, 8)
    before, kept = state(model), copy.deepcopy(model)
    with pytest.raises(ValueError, match=text):
        model.partial_fit(data, **more)
    assert state(model) == before
    assert model.n_features_in_ == 8
    assert list(getattr(model, "feature_names_in_", [])) == list("abcdefgh" if named else "")
    assert state(model.partial_fit(good(30, 2))) == state(kept.partial_fit(good(30, 2)))


def test_refused_first_rows_leave_no_stream():
    model = StreamingPCA(n_components=3)
    for bad in (with_entry(np.nan), with_entry(1e200), Blocks(rows(9), with_entry(np.nan)), 1e141 * rows(2000)):
        with pytest.raises(ValueError, match=r"NaN|overflow"):
            model.partial_fit(bad)
        with pytest.raises(NotFittedError):
            model.n_samples_seen_  # noqa: B018
    assert model.partial_fit(rows(30, 5)).n_features_in_ == 5


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"n_components": 0}, "at least 1"),
        ({"n_components": 1.5}, r"lies in \(0, 1\)"),
        ({"n_components": "some"}, "'auto'"),
        ({"n_components": None}, "n_components is a finite number"),
        ({"n_components": True}, "n_components is an integer"),
        ({"block_size": 2.5}, "block_size is an integer"),
        ({"block_size": 0}, "block_size = 0"),
        ({"window": "x"}, "window is an integer"),
        ({"oversampling": -1}, "oversampling"),
        ({"oversampling": 1.5}, "oversampling is an integer"),
        ({"forgetting": 0}, "forgetting"),
        ({"forgetting": "no"}, "forgetting is a finite number"),
        ({"energy": 0.1}, r"a band \(alpha, beta\) of two numbers, got 0.1"),
        ({"energy": (0.1,)}, "of two numbers"),
        ({"energy": (0.1, "x")}, "energy is a finite number"),
        ({"energy": (0.2, 0.1)}, "alpha < beta"),
        ({"missing": "guess"}, "'error', 'mean', 'skip'; got 'guess'"),
        ({"random_state": None}, "random_state is an integer"),
    ],
)
def test_wrong_settings_are_refused(wrong, text):
    with pytest.raises(ConfigurationError, match=text):
        StreamingPCA(**{"n_components": 3, **wrong}).fit(rows())


def test_numpys_numbers_are_fine():
    model = StreamingPCA(
        np.int64(3), block_size=np.int32(20), forgetting=np.float32(0.5), energy=[np.float64(0.1), 1], window=np.int8(2)
    ).fit(rows())
    plain = StreamingPCA(3, block_size=20, forgetting=0.5, energy=(0.1, 1.0), window=2).fit(rows())
    assert state(model) == state(plain)


# ---- weights ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_row_of_weight_two_counts_as_two_and_one_of_zero_not_at_all(kind):
    x, weights = (rows() if kind == "dense" else sparse_rows()), np.tile([0.0, 1.0, 2.0], 40)
    again = (x if kind == "dense" else x.toarray())[np.repeat(np.arange(120), weights.astype(int))]
    model = StreamingPCA(n_components=3, block_size=25).fit(x, sample_weight=weights)
    assert (model.n_samples_seen_, model.mass_) == (120, 120.0)
    np.testing.assert_allclose(model.mean_, again.mean(axis=0), atol=1e-14)
    same_rows(model.components_, PCA(3).fit(again).components_)
    np.testing.assert_allclose(model.explained_variance_, PCA(3).fit(again).explained_variance_, rtol=1e-9)
    two = StreamingPCA(n_components=3).fit(x, sample_weight=2.0)
    np.testing.assert_allclose(two.mass_, 240.0)
    with pytest.raises(DataError, match="all of sample_weight is zero"):
        StreamingPCA().fit(x, sample_weight=np.zeros(120))


# ---- the rank --------------------------------------------------------------------------------------------------


def test_the_adaptive_rank_keeps_the_band_after_each_block_both_ways():
    """Few directions, then many, then few again: the rank follows, and (15) holds unless no rank could."""
    rng, model = np.random.default_rng(0), StreamingPCA("auto", energy=(0.02, 0.1), block_size=25, forgetting=0.8)
    ranks = []
    for wide in (2, 20, 2):
        for _ in range(30):
            model.partial_fit(rng.standard_normal((25, 20)) * np.r_[np.full(wide, 3.0), np.full(20 - wide, 0.05)])
            values, rank = model.summary().values, model.n_components_
            ratio = values / np.cumsum(values)
            inside = 0.02 <= ratio[rank - 1] <= 0.1
            assert inside or rank == len(values) or (ratio[rank - 1] > 0.1 and ratio[rank] < 0.02)
            assert model.components_.shape == (rank, 20)
        ranks.append(model.n_components_)
    assert ranks[0] == ranks[2] == 2
    assert ranks[1] >= 9


def test_a_fraction_asks_for_the_variance_it_names():
    x = rows(400, 30, rank=30)
    for fraction in (0.3, 0.8, 0.99):
        theirs = PCA(fraction, svd_solver="full").fit(x)
        model = fed(StreamingPCA(fraction, block_size=50), x)
        assert model.n_components_ == theirs.n_components_
        assert model.explained_variance_ratio_.sum() >= fraction


# ---- merging ---------------------------------------------------------------------------------------------------


def test_a_merge_is_both_streams_rows():
    x = rows(rank=3)
    one, other = (fed(StreamingPCA(3, block_size=25), part) for part in (x[:70], x[70:]))
    kept = state(other)
    assert one.merge(other) is one
    is_pooled(one.summary(), x)
    assert (one.n_samples_seen_, one.n_blocks_) == (120, 4)
    assert state(other) == kept
    one.partial_fit(x)
    assert one.n_samples_seen_ == 240
    is_pooled(one.summary(), np.vstack([x, x]))


def test_what_cannot_be_merged_is_refused_and_nothing_changes():
    named = StreamingPCA(3).fit(frame_of("abcdefgh"))
    refused = [
        (StreamingPCA(3).fit(rows(9, 7)), DataError, "has 7 columns, this one 8; merge streams of the same columns"),
        (StreamingPCA(3).fit(frame_of("abcdefgx")), DataError, "columns are .* this one's"),
        (StreamingPCA(3, center=False).fit(rows(9)), ConfigurationError, "center=False, this one True"),
        (FederatedPCA(3).fit({"a": rows()}), ConfigurationError, "only a StreamingPCA can be merged, got FederatedPCA"),
    ]
    before = state(named)
    for other, kind, text in refused:
        with pytest.raises(kind, match=text):
            named.merge(other)
        assert state(named) == before
    with pytest.raises(NotFittedError):
        named.merge(StreamingPCA(3))
    assert named.merge(StreamingPCA(2).fit(rows(9))).n_samples_seen_ == 18  # names are compared where both have them


def test_a_summary_is_where_another_stream_goes_on():
    x = rows()
    settings = {"n_components": 3, "block_size": 20, "forgetting": 0.9, "random_state": 1}
    whole, first = (StreamingPCA(**settings).fit(part) for part in (x, x[:60]))
    later = StreamingPCA.from_summary(first.summary(), columns=list("abcdefgh"), **settings)
    assert list(later.feature_names_in_) == list("abcdefgh")
    np.testing.assert_allclose(later.components_, first.components_, atol=1e-12)
    later.partial_fit(pd.DataFrame(x[60:], columns=list("abcdefgh")))
    np.testing.assert_allclose(later.mass_, whole.mass_)
    same_rows(later.components_, whole.components_)
    assert later.n_samples_seen_ == 120
    with pytest.raises(DataError, match="7 names were given for the 8 columns"):
        StreamingPCA.from_summary(first.summary(), columns=list("abcdefg"))
    with pytest.raises(DataError, match="n_components = 10 must lie between 1 and 8"):
        StreamingPCA.from_summary(first.summary())
    adaptive = StreamingPCA.from_summary(first.summary(), n_components=0.9)
    assert adaptive.n_components_ == StreamingPCA(0.9).fit(x[:60]).n_components_


def test_summaries_merge_as_streams_do():
    x = rows(rank=3)
    one, other = (StreamingPCA(3, block_size=25).fit(part) for part in (x[:70], x[70:]))
    both = StreamingPCA.from_summary(merge_summaries(one.summary(), other.summary(), 3), n_components=3)
    same_rows(both.components_, PCA(3).fit(x).components_)
    np.testing.assert_allclose(both.explained_variance_, PCA(3).fit(x).explained_variance_, rtol=1e-9)


# ---- scores that are carried along -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dense", "sparse", "source"])
def test_scores_carried_along_are_those_at_the_end_where_the_rank_is_exact(kind):
    x = rows(rank=3)
    model, kept = StreamingPCA(3, block_size=20), np.zeros((0, 3))
    for part in cuts(120, [7, 30, 31, 80]):
        block = scipy.sparse.csr_array(x[part]) if kind == "sparse" else x[part]
        if kind == "source":
            middle = (part.start + part.stop + 1) // 2 - part.start
            model.partial_fit(Blocks(*(b for b in (block[:middle], block[middle:]) if len(b))))
            scores = model.transform(block)
        else:
            scores = model.partial_fit_transform(block)
        kept = np.vstack([model.carry(kept) if len(kept) else kept, scores])
        assert kept.shape == (part.stop, 3)
    np.testing.assert_allclose(kept, model.transform(x), atol=1e-9)
    np.testing.assert_allclose(model.inverse_transform(kept), x, atol=1e-9)


def test_scores_are_carried_to_another_rank():
    x = rows(200, 8, rank=4, offset=0.0)
    model = StreamingPCA(0.9, block_size=50, center=False)
    first = model.partial_fit_transform(x[:50] * [1, 0, 0, 0, 0, 0, 0, 0])
    assert first.shape == (50, 1)
    model.partial_fit(x[50:])
    assert model.carry(first).shape == (50, model.n_components_)
    assert model.n_components_ > 1


def test_scores_that_cannot_be_carried_are_refused():
    x = rows()
    model = StreamingPCA(3, block_size=20).partial_fit(x[:50])
    with pytest.raises(DataError, match="no subspace before"):
        model.carry(np.ones((2, 3)))
    model.partial_fit(x[50:80])  # nobody asked for the subspace, so there can be no scores
    with pytest.raises(DataError, match="no subspace before"):
        model.carry(np.ones((2, 3)))
    model.transform(x)
    model.partial_fit(x[80:100])
    for wrong in (np.ones((2, 4)), np.ones(3)):
        with pytest.raises(DataError, match="have 3 columns, got shape"):
            model.carry(wrong)
    assert model.carry(np.ones((2, 3))).shape == (2, 3)
    model.merge(StreamingPCA(3).fit(x))
    with pytest.raises(DataError, match="no subspace before"):
        model.carry(np.ones((2, 3)))
    whitened = StreamingPCA(3, whiten=True, block_size=20)
    scores = whitened.partial_fit_transform(x[:50])
    whitened.partial_fit(x[50:])
    with pytest.raises(ConfigurationError, match="whitened scores are not carried"):
        whitened.carry(scores)
    few = StreamingPCA(3, block_size=20).partial_fit(x[:2])
    assert few.n_samples_seen_ == 2
    few.partial_fit(x[2:20])  # no scores could be given of two rows
    with pytest.raises(DataError, match="no subspace before"):
        few.carry(np.ones((2, 3)))


def test_scores_are_carried_over_a_flush():
    x = rows(rank=3)
    model = StreamingPCA(3, block_size=20)
    scores = model.partial_fit_transform(x[:30])
    model.flush()
    model.partial_fit(x[30:])
    np.testing.assert_allclose(model.carry(scores), model.transform(x[:30]), atol=1e-9)


# ---- gaps ------------------------------------------------------------------------------------------------------


def test_rows_with_gaps_are_left_out_or_filled():
    x = rows()
    gappy = x.copy()
    gappy[5, 2] = gappy[77, 0] = gappy[77, 1] = np.nan
    skipping = fed(StreamingPCA(3, block_size=20, missing="skip"), gappy)
    whole = np.delete(x, [5, 77], axis=0)
    assert (skipping.n_skipped_, skipping.n_samples_seen_) == (2, 118)
    assert encode(skipping._stream.as_plain()) == encode(StreamingPCA(3, block_size=20).fit(whole)._stream.as_plain())
    filling = StreamingPCA(3, block_size=20, missing="mean").fit(gappy)
    filled = np.where(np.isnan(gappy), np.nanmean(gappy, axis=0), gappy)
    np.testing.assert_allclose(filling.fill_, np.nanmean(gappy, axis=0))
    same_rows(filling.components_, PCA(3).fit(filled).components_)
    np.testing.assert_allclose(filling.transform(gappy), filling.transform(filled), atol=1e-12)
    assert (filling.n_skipped_, StreamingPCA(3).fit(x).fill_) == (0, None)
    scores = skipping.transform(gappy)
    np.testing.assert_array_equal(np.isnan(scores).any(axis=1), np.isin(np.arange(120), [5, 77]))


def test_rows_that_are_all_left_out_are_none():
    model = StreamingPCA(2, missing="skip").partial_fit(np.full((4, 3), np.nan))
    assert (model.n_samples_seen_, model.n_skipped_) == (0, 4)
    assert model.partial_fit(rows(20, 3)).n_samples_seen_ == 20


def test_gaps_refused_later_are_not_counted():
    model = StreamingPCA(2, missing="skip", block_size=10).fit(rows())
    bad = with_entry(np.nan)
    bad[0, 0] = 1e200
    with pytest.raises(DataError, match="as large as 1e"):
        model.partial_fit(bad)
    assert model.n_skipped_ == 0


def test_a_merge_adds_up_what_was_skipped_and_filled():
    gappy = with_entry(np.nan, n=40)
    for missing in ("skip", "mean"):
        one, other = (StreamingPCA(2, missing=missing).fit(part) for part in (gappy, gappy + 1))
        one.merge(other)
        assert one.n_skipped_ == (2 if missing == "skip" else 0)
    np.testing.assert_allclose(one.fill_, np.nanmean(gappy, axis=0) + 0.5)


def test_a_stream_that_goes_on_from_a_summary_fills_with_its_mean():
    x = rows()
    model = StreamingPCA.from_summary(StreamingPCA(3).fit(x).summary(), n_components=3, missing="mean")
    np.testing.assert_allclose(model.fill_, x.mean(axis=0))
    np.testing.assert_allclose(
        model.transform(with_entry(np.nan))[8], model.transform(with_entry(x.mean(axis=0)[3]))[8]
    )
    model.partial_fit(x)
    np.testing.assert_allclose(model.fill_, x.mean(axis=0))
    uncentred = StreamingPCA.from_summary(
        StreamingPCA(3, center=False).fit(x).summary(), n_components=3, center=False, missing="mean"
    )
    assert np.isnan(uncentred.fill_).all()  # a summary of rows that are not centred does not know their mean


# ---- drift -----------------------------------------------------------------------------------------------------


def populations(rng, d, k):
    """Two populations, of k strong directions each."""
    spread = np.r_[np.linspace(9, 5, k), np.full(d - k, 0.5)]
    return [orth(rng.standard_normal((d, d))) * spread for _ in range(2)]


@pytest.mark.parametrize("seed", range(3))
def test_an_abrupt_change_shows_and_forgetting_recovers_from_it(seed):
    """Must show: with forgetting 0.9, within 5 % of the new optimum inside 20 blocks; without, it is not."""
    rng = np.random.default_rng(seed)
    before, after = populations(rng, 40, 5)
    quick, slow = (StreamingPCA(5, forgetting=f, block_size=50, window=5) for f in (0.9, 1.0))
    losses = []
    for i in range(60):
        block = rng.standard_normal((50, 40)) @ (before if i < 40 else after).T
        losses.append(quick.partial_fit(block).drift_loss_)
        slow.partial_fit(block)
    optimum = np.sum(np.linspace(9, 5, 5) ** 2)
    captured = [np.linalg.norm(model.components_ @ after) ** 2 / optimum for model in (quick, slow)]
    assert captured[0] >= 0.95
    assert captured[1] < 0.95
    known = [loss for loss in losses[:44] if loss is not None]  # windows of five blocks: the next ends after the 45th
    assert len(known) == 35
    assert max(known) < 0.01
    assert losses[44] > 0.5
    assert losses[-1] < 0.01
    assert quick.drift_ < 0.2


def test_the_angle_turns_where_variances_are_equal_and_the_loss_does_not():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2000, 6)) * np.array([5.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    model = StreamingPCA(2, block_size=100, window=5).fit(x)
    assert model.drift_ > 0.3
    assert model.drift_loss_ < 0.03


# ---- accuracy --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_blocks_of_500_come_near_pooled_pca_where_incremental_pca_does_not(seed):
    """Slowly falling variances, as of MNIST: what a direction has in one block alone would have it cut off."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((6000, 100)) * np.arange(1, 101) ** -0.5 @ orth(rng.standard_normal((100, 100)))
    exact = PCA(10, svd_solver="full").fit(x)
    ours = StreamingPCA(10, block_size=500).fit(x)
    theirs = IncrementalPCA(10, batch_size=500).fit(x)
    assert projection_distance(ours.components_.T, exact.components_.T) < 0.05
    assert projection_distance(theirs.components_.T, exact.components_.T) > 0.15
    np.testing.assert_allclose(ours.explained_variance_, exact.explained_variance_, rtol=0.02)


# ---- saved and loaded ------------------------------------------------------------------------------------------

SAVED = {
    "dense": (lambda: StreamingPCA(3, block_size=20, forgetting=0.9, window=2), lambda: rows()),
    "sparse": (lambda: StreamingPCA(3, block_size=20, oversampling=2), lambda: sparse_rows()),
    "adaptive": (lambda: StreamingPCA("auto", energy=(0.05, 0.2), block_size=20, window=1), lambda: rows()),
    "fraction": (lambda: StreamingPCA(0.9, center=False, block_size=20, random_state=7), lambda: rows()),
    "filled": (lambda: StreamingPCA(3, missing="mean", block_size=20), lambda: with_entry(np.nan, n=120)),
    "skipped": (lambda: StreamingPCA(3, missing="skip", block_size=20), lambda: with_entry(np.nan, n=120)),
    "whitened": (lambda: StreamingPCA(3, whiten=True, block_size=20), lambda: rows().astype(np.float32)),
}


@pytest.mark.parametrize("name", SAVED)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("stop", [2, 60, 73])
def test_a_stream_saved_and_loaded_goes_on_to_the_bit(name, weighted, stop, tmp_path):
    make, data = SAVED[name]
    x = data()
    weights = np.linspace(0.5, 2, 120) if weighted else None

    def part(where):
        return {"X": x[where], "sample_weight": None if weights is None else weights[where]}

    model = make().partial_fit(**part(slice(0, stop)))
    model.save(tmp_path / "stream.fedspan")
    back = StreamingPCA.load(tmp_path / "stream.fedspan")
    assert state(back) == state(model)
    assert (back.n_skipped_, back.n_features_in_) == (model.n_skipped_, 8)
    for one in (model, back):
        one.partial_fit(**part(slice(stop, 120)))
    assert state(back) == state(model)
    for figure in ("components_", *FIGURES):
        assert getattr(back, figure).tobytes() == getattr(model, figure).tobytes() if figure != "noise_variance_" else (
            back.noise_variance_ == model.noise_variance_)  # fmt: skip
    assert (back.drift_, back.drift_loss_) == (model.drift_, model.drift_loss_)
    np.testing.assert_array_equal(back.transform(x), model.transform(x))
    if name not in ("whitened",) and stop > 3:
        np.testing.assert_array_equal(
            back.carry(np.ones((2, len(model._axes_before[0])))), model.carry(np.ones((2, len(model._axes_before[0]))))
        )


def test_names_are_saved_too(tmp_path):
    model = StreamingPCA(2).fit(frame_of("abcdefgh"))
    model.save(tmp_path / "stream.fedspan")
    back = StreamingPCA.load(tmp_path / "stream.fedspan")
    assert list(back.feature_names_in_) == list("abcdefgh")
    with pytest.raises(ValueError, match="feature names should match"):
        back.partial_fit(frame_of("abcdefgx"))
    assert back.get_params() == {**model.get_params(), "energy": [0.01, 0.1]}


def test_figures_lie_beside_the_state_for_whoever_reads_the_file(tmp_path):
    model = StreamingPCA(2).fit(rows())
    model.save(tmp_path / "stream.fedspan")
    with np.load(tmp_path / "stream.fedspan") as parts:
        np.testing.assert_array_equal(parts["components_"], model.components_)
        np.testing.assert_array_equal(parts["explained_variance_ratio_"], model.explained_variance_ratio_)


def test_a_corrupted_file_is_refused_by_name(tmp_path):
    model = StreamingPCA(2, block_size=20).fit(rows(30))
    path = tmp_path / "stream.fedspan"
    model.save(path)
    data, rng = path.read_bytes(), np.random.default_rng(0)
    damages = [data[:stop] for stop in (0, 10, len(data) // 2, len(data) - 1)]
    places = rng.integers(0, len(data), 60)
    damages += [data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :] for place in places]
    refused = 0
    for damaged in damages:
        path.write_bytes(damaged)
        try:
            back = StreamingPCA.load(path)
        except FileError as error:
            refused += str(path) in str(error)
        else:  # a time stamp or the like in the archive
            assert state(back) == state(model)
    assert refused > 0.8 * len(damages)


@pytest.mark.parametrize("inner", [b"", b"x", encode(None), encode({}), encode(np.zeros(3)), encode({"stream": 3})])
def test_a_file_with_another_state_inside_is_refused(inner, tmp_path):
    path = tmp_path / "stream.fedspan"
    model = StreamingPCA(2).fit(rows())
    kept = model._kept()
    model._kept = lambda: {**kept, "stream_": np.frombuffer(inner, dtype=np.uint8)}
    model.save(path)
    with pytest.raises(FileError, match=r"stream\.fedspan"):
        StreamingPCA.load(path)
