"""Faults that an attack on the streaming code found, mended."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
from sklearn.decomposition import PCA

from fedspan import StreamingPCA
from fedspan.data.cursor import Cursor
from fedspan.data.source import Source
from fedspan.errors import ConfigurationError, DataError
from fedspan.linalg import Summary, merge_summaries


def rows(n, d=4, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


@pytest.mark.parametrize(("size", "weight"), [(1e149, 1.0), (1.0, 1e300), (1e100, 1e100), (0.0, 1e308)])
@pytest.mark.parametrize("center", [True, False])
def test_rows_that_wait_can_always_be_folded(size, weight, center):
    pca = StreamingPCA(2, center=center).fit(rows(60))
    before = pca.components_
    with pytest.raises(DataError, match="rescale"):
        pca.partial_fit(size * rows(3, seed=1), sample_weight=[weight] * 3)
    np.testing.assert_array_equal(pca.components_, before)  # every question was an error from then on
    assert pca.partial_fit(rows(600)).n_samples_seen_ == 660


def test_a_summary_of_too_much_mass_is_refused():
    summary = StreamingPCA(2).fit(rows(60)).summary()
    heavy = replace(summary, mass=1e308, mean=np.zeros(4))
    with pytest.raises(DataError, match="too large to merge"):
        Summary.from_plain(heavy.as_plain())  # two of them have infinite mass
    light = Summary.from_plain(replace(heavy, mass=1e289).as_plain())
    assert np.isfinite(merge_summaries(light, light, 2).mass)


def test_rows_are_counted_in_whole_numbers():
    summary = StreamingPCA(2).fit(rows(60)).summary()
    with pytest.raises(DataError, match="do not fit together"):
        Summary.from_plain(summary.as_plain() | {"rows": True})


@pytest.mark.parametrize("part", ["basis", "values", "mean", "mass", "total"])
@pytest.mark.parametrize("kind", [complex, np.float32, int])
def test_numbers_of_a_summary_are_floats(part, kind):
    """They came through the checks: complex ones lost their other part in each merge, narrow ones half their digits."""
    good = StreamingPCA(2).fit(rows(60)).summary().as_plain()
    with pytest.raises(DataError, match="floats of 64 bits"):
        Summary.from_plain(good | {part: np.asarray(good[part]).astype(kind)[()]})


@pytest.mark.parametrize("missing", ["error", "mean"])
def test_an_entry_in_two_parts_counts_as_their_sum(missing):
    """The total was that of the parts' squares, and each share of the variance a fifth of what it is."""
    data = rows(40)
    places = np.tile(np.r_[np.arange(4), np.arange(4)], 40)
    parts = scipy.sparse.csr_array((np.hstack([2 * data, -data]).ravel(), places, np.arange(0, 321, 8)), shape=(40, 4))
    before = parts.copy()
    model = StreamingPCA(2, missing=missing).fit(parts)
    np.testing.assert_allclose(model.explained_variance_ratio_, PCA(2).fit(data).explained_variance_ratio_)
    np.testing.assert_array_equal(parts.data, before.data)  # the caller's own are left as they were


def test_a_cursor_whose_reading_failed_begins_again():
    data, failures = rows(20), [OSError("disk")]

    def blocks():
        yield data[:8], None
        if failures:
            raise failures.pop()
        yield data[8:], None

    cursor = Cursor(blocks)
    assert sum(len(block) for block, _ in cursor.read(0, 8)) == 8
    with pytest.raises(OSError, match="disk"):
        list(cursor.read(8, 20))
    np.testing.assert_array_equal(np.vstack([block for block, _ in cursor.read(8, 20)]), data[8:])  # it read nothing


@pytest.mark.parametrize("block_size", [20, 150, 500])
@pytest.mark.parametrize("fraction", [0.5, 0.9, 0.99])
def test_a_fraction_of_the_variance_is_reached_within_one_block(block_size, fraction):
    data = rows(400, 120)
    pca = StreamingPCA(fraction, block_size=block_size).fit(data)
    assert pca.explained_variance_ratio_.sum() >= fraction  # 0.25 at thirty components, where 0.9 was asked for
    assert pca.n_components_ <= PCA(fraction).fit(data).n_components_ + 6


CHANGED = {
    "n_components": 3, "block_size": 30, "forgetting": 0.9, "energy": (0.02, 0.2), "center": False, "oversampling": 1,
    "window": 2, "missing": "skip", "random_state": 1,
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGED)
def test_parameters_that_were_changed_under_way_are_refused_by_name(name, tmp_path):
    """They were as good as not given: the stream went on by those that it began with."""
    StreamingPCA(2).fit(rows(60)).save(tmp_path / "stream.fedspan")
    for pca in (StreamingPCA(2).fit(rows(60)), StreamingPCA.load(tmp_path / "stream.fedspan")):
        before = pca.get_params()[name]
        pca.set_params(**{name: CHANGED[name]})
        with pytest.raises(ConfigurationError, match=rf"began with {name} = .* now; set it back, or call fit"):
            pca.partial_fit(rows(9))
        assert pca.set_params(**{name: before}).partial_fit(rows(9)).n_samples_seen_ == 69
        assert pca.set_params(**{name: CHANGED[name]}).fit(rows(9)).n_samples_seen_ == 9


def test_a_stream_that_fills_gaps_counts_the_rows_of_one_that_does_not():
    """Gaps were filled with the mean of its own rows alone."""
    mine, theirs = rows(60), rows(40, seed=1) + 100
    for missing in ("error", "skip"):
        pca = StreamingPCA(2, missing="mean").fit(mine).merge(StreamingPCA(2, missing=missing).fit(theirs))
        np.testing.assert_allclose(pca.fill_, np.vstack([mine, theirs]).mean(axis=0))
        np.testing.assert_allclose(pca.fill_, pca.mean_)
    uncentred = StreamingPCA(2, missing="mean", center=False).fit(mine)
    kept = uncentred.fill_
    np.testing.assert_array_equal(uncentred.merge(StreamingPCA(2, center=False).fit(theirs)).fill_, kept)  # not known


def test_means_that_gaps_are_filled_with_forget_refused_rows():
    late = rows(9)
    late[3, 2] = np.inf
    pca = StreamingPCA(2, missing="mean").fit(rows(60))
    before = pca.fill_.copy()
    with pytest.raises(DataError, match="rescale"):
        pca.partial_fit(Halves(rows(9, seed=1), late))
    np.testing.assert_array_equal(pca.fill_, before)


class Halves(Source):
    """A source of two blocks."""

    def __init__(self, *blocks):
        self._blocks, self.columns, self.dtype = blocks, None, np.dtype(np.float64)
        self.shape = (sum(len(block) for block in blocks), blocks[0].shape[1])

    def blocks(self):
        yield from self._blocks
