"""A stream at one place: blocks cut from rows, the rank that follows them, drift of windows, and its saved state."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from fedspan.encoding import decode, encode
from fedspan.errors import ConfigurationError, FileError
from fedspan.linalg import Summary, orth
from fedspan.stream import (
    FIRST_RANK,
    Stream,
    StreamSettings,
    check_settings,
    largest_sine,
    rank_for_fraction,
    rank_in_band,
)
from tests.streams import cuts, folded, pooled, rows_of

seeds = st.integers(0, 2**32 - 1)
KINDS = {"dense": np.asarray, "columns": np.asfortranarray, "sparse": scipy.sparse.csr_array}


def pushed(x, where, settings, weights=None, kind="dense", offset=None):
    """A stream that these slices of rows were pushed to."""
    stream = Stream(x.shape[1], settings)
    for part in where:
        stream.push(KINDS[kind](x[part]), None if weights is None else weights[part], offset)
    return stream


def bits(stream):
    return encode(stream.as_plain())


# ---- blocks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(KINDS))
@given(seeds, st.lists(st.integers(0, 57), max_size=8), st.booleans(), st.sampled_from([3, "auto", 0.9]))
def test_the_answer_does_not_depend_on_how_rows_come_to_the_bit(kind, seed, places, weighted, wanted):
    rng = np.random.default_rng(seed)
    x, weights = rows_of(rng, 57, 7), rng.random(57) if weighted else None
    x = np.where(rng.random(x.shape) < 0.7, x, 0.0)
    settings = StreamSettings(n_components=wanted, block_size=10, forgetting=0.95, window=2)
    at_once = pushed(x, [slice(0, 57)], settings, weights)
    piecemeal = pushed(x, cuts(57, places), settings, weights, kind)
    if kind == "sparse":
        at_once = pushed(x, [slice(0, 57)], settings, weights, kind)
    assert bits(at_once) == bits(piecemeal)
    assert at_once.now().as_plain().keys() == piecemeal.now().as_plain().keys()
    assert encode(at_once.now().as_plain()) == encode(piecemeal.now().as_plain())
    assert (piecemeal.blocks, piecemeal.now().rows, piecemeal.folded.rows) == (5, 57, 50)


def test_blocks_are_folded_one_by_one_each_with_its_own_directions():
    """What a stream does is `fold` on blocks of its size, by a seed of their own, the first k + 10 + k pairs kept."""
    x = rows_of(np.random.default_rng(0), 300, 60, decay=0.97)
    settings = StreamSettings(n_components=3, block_size=50, forgetting=0.9, seed=4)
    stream = pushed(x, [slice(0, 300)], settings)
    summary = folded(np.split(x, 6), 16, seed=4, forgetting=0.9)
    assert encode(stream.folded.as_plain()) == encode(summary.as_plain())
    other = pushed(x, [slice(0, 300)], StreamSettings(n_components=3, block_size=50, forgetting=0.9, seed=5))
    assert bits(other) != bits(stream)


def test_asking_in_between_changes_nothing():
    x = rows_of(np.random.default_rng(1), 45, 6)
    settings = StreamSettings(n_components="auto", block_size=10, window=2)
    asked, quiet = Stream(6, settings), Stream(6, settings)
    for start in range(0, 45, 7):
        for stream in (asked, quiet):
            stream.push(x[start : start + 7])
        assert not asked.asked
        asked.now()
        assert asked.asked
        asked.rank_now()
    assert bits(asked) == bits(quiet)


def test_rows_held_back_count_in_what_is_asked():
    x = rows_of(np.random.default_rng(2), 23, 5)
    stream = pushed(x, [slice(0, 8), slice(8, 23)], StreamSettings(n_components=5, block_size=10))
    assert (stream.blocks, stream.folded.rows, stream.now().rows) == (2, 20, 23)
    np.testing.assert_allclose(stream.now().mean, x.mean(axis=0), atol=1e-14)
    np.testing.assert_allclose(stream.now().values, pooled(x)[2], rtol=1e-12)


def test_a_flush_folds_what_is_held_back_and_says_the_same():
    x = rows_of(np.random.default_rng(3), 23, 5)
    stream = pushed(x, [slice(0, 23)], StreamSettings(n_components=2, block_size=10, forgetting=0.9))
    before = encode(stream.now().as_plain())
    stream.flush()
    assert (stream.blocks, stream.folded.rows) == (3, 23)
    assert encode(stream.folded.as_plain()) == encode(stream.now().as_plain()) == before
    stream.flush()
    assert stream.blocks == 3


def test_rows_may_be_written_over_once_they_were_taken():
    x = rows_of(np.random.default_rng(4), 25, 4)
    settings = StreamSettings(n_components=2, block_size=10)
    plain, buffer = pushed(x, cuts(25, range(0, 25, 5)), settings), np.empty((5, 4))
    weights, ones = np.empty(5), np.ones(25)
    stream, weighted = Stream(4, settings), pushed(x, [slice(0, 25)], settings, ones)
    again = Stream(4, settings)
    for start in range(0, 25, 5):
        buffer[:], weights[:] = x[start : start + 5], 1.0
        stream.push(buffer)
        again.push(buffer, weights)
        buffer[:], weights[:] = np.nan, np.nan
    assert bits(stream) == bits(plain)
    assert bits(again) == bits(weighted)


def test_rows_without_weights_beside_weighted_ones_weigh_one():
    x = rows_of(np.random.default_rng(5), 20, 4)
    stream, weights = Stream(4, StreamSettings(n_components=4, block_size=20)), np.linspace(0.5, 2, 8)
    stream.push(x[:8], weights)
    stream.push(x[8:])
    now = np.concatenate([weights, np.ones(12)])
    assert stream.blocks == 1
    np.testing.assert_allclose(stream.now().values, pooled(x, now)[2], rtol=1e-12)


def test_sparse_rows_after_dense_ones_begin_a_block_of_their_own():
    x = rows_of(np.random.default_rng(6), 30, 5)
    stream = Stream(5, StreamSettings(n_components=5, block_size=20))
    stream.push(x[:12])
    stream.push(scipy.sparse.csr_array(x[12:16]))
    stream.push(scipy.sparse.csr_matrix(x[16:20]))
    assert (stream.blocks, stream.folded.rows) == (1, 12)
    stream.push(x[20:])
    assert (stream.blocks, stream.folded.rows) == (2, 20)
    np.testing.assert_allclose(stream.now().values, pooled(x)[2], rtol=1e-10)


def test_more_rows_than_a_block_are_not_kept():
    stream = Stream(4, StreamSettings(n_components=2, block_size=10))
    for _ in range(30):
        stream.push(np.ones((7, 4)))
        held = stream.as_plain()["held"]
        assert held is None or held["rows"].shape[0] < 10
    assert stream.now().rows == 210


def test_a_stream_of_nothing_knows_nothing():
    stream = Stream(4, StreamSettings(n_components=2, block_size=10))
    stream.push(np.ones((0, 4)))
    assert (stream.blocks, stream.now().rows, stream.now().mass) == (0, 0, 0.0)
    assert stream.now().values.size == 0


def test_a_copy_goes_on_by_itself():
    x = rows_of(np.random.default_rng(7), 50, 4)
    stream = pushed(x, [slice(0, 13)], StreamSettings(n_components=2, block_size=10))
    before, copy = bits(stream), stream.copy()
    copy.push(x[13:])
    assert bits(stream) == before
    assert copy.now().rows == 50
    stream.push(x[13:])
    assert bits(stream) == bits(copy)


# ---- merging ---------------------------------------------------------------------------------------------------


def test_a_merge_takes_the_other_streams_rows_those_held_back_too():
    x = rows_of(np.random.default_rng(8), 60, 8, 3)
    settings = StreamSettings(n_components=3, block_size=10, oversampling=0)
    one, other = pushed(x, [slice(0, 27)], settings), pushed(x, [slice(27, 60)], settings)
    before = bits(other)
    one.merge(other)
    assert (one.blocks, one.now().rows, one.folded.rows) == (5, 60, 53)
    np.testing.assert_allclose(one.now().values, pooled(x)[2][:3], rtol=1e-9)
    assert bits(other) == before
    other.merge(other)
    assert other.now().rows == 66


def test_a_merge_keeps_as_many_pairs_as_the_one_that_keeps_more():
    x = rows_of(np.random.default_rng(9), 80, 20, decay=0.9)
    few, many = (StreamSettings(n_components=k, block_size=10, oversampling=1) for k in (2, 6))
    one, other = pushed(x, [slice(0, 40)], few), pushed(x, [slice(40, 80)], many)
    one.merge(other)
    assert len(one.folded.values) == 7
    other.merge(pushed(x, [slice(0, 40)], few))
    assert len(other.folded.values) == 7


def test_an_adaptive_rank_follows_a_merge():
    rng = np.random.default_rng(10)
    settings = StreamSettings(n_components=0.95, block_size=20)
    one, other = (
        pushed(rng.standard_normal((40, 10)) * ((np.arange(10) // 5) == i), [slice(0, 40)], settings) for i in (0, 1)
    )
    assert one.rank == 5
    one.merge(other)
    assert one.rank >= 9


def test_a_stream_goes_on_from_a_summary_as_from_its_rows():
    x = rows_of(np.random.default_rng(11), 60, 8, 3)
    settings = StreamSettings(n_components=3, block_size=10, forgetting=0.9)
    whole = pushed(x, [slice(0, 60)], settings)
    later = Stream(8, settings)
    later.start_from(pushed(x, [slice(0, 40)], settings).now())
    later.push(x[40:])
    np.testing.assert_allclose(later.now().values, whole.now().values, rtol=1e-9)
    np.testing.assert_allclose(later.now().mass, whole.now().mass, rtol=1e-12)


# ---- the rank --------------------------------------------------------------------------------------------------


@given(
    st.lists(st.floats(0, 1e3), min_size=0, max_size=12),
    st.integers(1, 15),
    st.floats(0, 0.5),
    st.floats(0.01, 0.5),
)
def test_the_rank_ends_in_the_band_or_where_there_is_none(values, rank, alpha, width):
    values, band = np.sort(values)[::-1], (alpha, alpha + width)
    found = rank_in_band(values, rank, band)
    assert 1 <= found <= max(len(values), 1)
    if not len(values) or not values[0] > 0:
        return
    ratios = values / np.maximum(np.cumsum(values), 1e-300)
    if ratios[found - 1] > band[1]:  # at the limit, or the next one lies below the band already
        assert found == len(values) or ratios[found] < band[0]
    elif ratios[found - 1] < band[0]:
        assert found == 1
    if rank <= len(values) and band[0] <= ratios[rank - 1] <= band[1]:
        assert found == rank
    assert found <= max(math.ceil(1 / band[1]), min(rank, len(values)))  # E_r <= 1 / r


def test_the_rank_moves_both_ways():
    values = np.array([8.0, 4.0, 2.0, 1.0, 0.5, 0.25])  # ratios 1, 1/3, 1/7, 1/15, 1/31, 1/63
    assert rank_in_band(values, 1, (0.02, 0.1)) == 4
    assert rank_in_band(values, 6, (0.02, 0.1)) == 5
    assert rank_in_band(values, 9, (0.2, 0.4)) == 2
    assert rank_in_band(values, 4, (1 / 15, 1 / 15)) == 4  # the band's edges belong to it
    assert rank_in_band(values, 1, (0.001, 0.002)) == 6
    assert rank_in_band(values[:0], 7, (0.01, 0.1)) == 1


def test_a_fraction_takes_the_least_rank_that_holds_it():
    def summary(values, total):
        return Summary(np.eye(5)[:, : len(values)], np.sqrt(values), np.zeros(5), 9.0, total, 9)

    values = np.array([4.0, 3.0, 2.0])
    for fraction, rank in [(0.1, 1), (0.4, 1), (0.41, 2), (0.7, 2), (0.9, 3), (0.95, 3)]:
        assert rank_for_fraction(summary(values, 10.0), fraction) == rank, fraction
    assert rank_for_fraction(summary(values[:0], 0.0), 0.5) == 1


def test_the_pairs_kept_are_as_many_again_and_ten_more():
    assert StreamSettings().kept(4, 100) == 18
    assert StreamSettings().kept(4, 15) == 15
    assert StreamSettings(oversampling=3).kept(4, 100) == 7
    assert StreamSettings(oversampling=0).kept(4, 100) == 4


def test_an_adaptive_stream_starts_at_the_first_rank_or_all_columns():
    assert Stream(50, StreamSettings(n_components="auto")).rank == FIRST_RANK
    assert Stream(4, StreamSettings(n_components=0.5)).rank == 4
    assert Stream(4, StreamSettings(n_components=3)).rank == 3


# ---- drift -----------------------------------------------------------------------------------------------------


@given(seeds, st.integers(1, 8), st.integers(1, 8))
def test_the_sine_is_that_of_the_largest_angle(seed, p, q):
    rng = np.random.default_rng(seed)
    u, v = orth(rng.standard_normal((9, p))), orth(rng.standard_normal((9, q)))
    if seed % 3 == 0:
        v = np.hstack([u[:, : min(p, q)], v[:, : 9 - p]])[:, :q]
        v = orth(v)
    expected = np.sin(scipy.linalg.subspace_angles(u, v).max())
    assert largest_sine(u, v) == pytest.approx(expected, abs=1e-8)
    assert largest_sine(v, u) == pytest.approx(expected, abs=1e-8)


def scatter_of(x, weights):
    _, basis, values, _ = pooled(x, weights)
    return (basis * values**2) @ basis.T


def drift_by_hand(x, forgetting, window, block, k):
    """Drift and its loss, from the scatter of all rows so far less that of all before the window, aged as long."""
    bases = []
    for last in (1, 2):
        rows = window * block * last
        age = (rows - 1 - np.arange(rows)) // block
        now = scatter_of(x[:rows], forgetting ** (2.0 * age))
        before = rows - window * block
        own = now - (scatter_of(x[:before], forgetting ** (2.0 * age[:before])) if before else 0)
        values, vectors = np.linalg.eigh(own)
        bases.append(vectors[:, ::-1][:, :k])
    old, new = bases
    loss = 1 - np.trace(old.T @ own @ old) / values[::-1][:k].sum()
    return np.sin(scipy.linalg.subspace_angles(old, new).max()), loss


@pytest.mark.parametrize("forgetting", [1.0, 0.9, 0.6])
def test_drift_is_between_the_windows_own_rows(forgetting):
    rng = np.random.default_rng(12)
    x = np.vstack([rows_of(rng, 40, 6), rows_of(rng, 40, 6)])
    stream = pushed(x, [slice(0, 80)], StreamSettings(n_components=2, block_size=10, forgetting=forgetting, window=4))
    sine, loss = drift_by_hand(x, forgetting, 4, 10, 2)
    assert stream.drift == pytest.approx(sine, rel=1e-8)
    assert stream.drift_loss == pytest.approx(loss, rel=1e-8)
    assert 0.1 < loss < 0.99


def test_there_is_no_drift_before_two_windows():
    x = rows_of(np.random.default_rng(13), 100, 5)
    stream = Stream(5, StreamSettings(n_components=2, block_size=10, window=3))
    seen = []
    for start in range(0, 100, 10):
        stream.push(x[start : start + 10])
        seen.append(stream.drift)
    assert [drift is None for drift in seen] == [True] * 5 + [False] * 5
    assert len(set(seen[5:8])) == 1
    assert seen[8] != seen[7]


def test_drift_is_about_directions_that_rows_have():
    """Rows of rank one, looked at with two components: the second is rounding, and no angle of it means anything."""
    rng = np.random.default_rng(14)
    x = np.outer(rng.standard_normal(120), np.arange(1.0, 6.0))
    stream = pushed(x, [slice(0, 120)], StreamSettings(n_components=2, block_size=10, window=3))
    assert stream.drift < 1e-6
    assert stream.drift_loss < 1e-9


def test_a_window_without_variance_has_no_drift():
    rng, settings = np.random.default_rng(15), StreamSettings(n_components=2, block_size=10, window=2, center=False)
    x = np.vstack([rng.standard_normal((40, 4)), np.zeros((40, 4)), rng.standard_normal((60, 4))])
    stream, seen = Stream(4, settings), []
    for start in range(0, 140, 20):
        stream.push(x[start : start + 20])
        seen.append((stream.drift is None, stream.drift_loss is None))
    assert [a for a, _ in seen] == [b for _, b in seen] == [True, False, True, True, True, False, False]


@pytest.mark.parametrize(("mine", "theirs", "since"), [(1, 3, 4), (3, 2, 3), (2, 1, 1)])
def test_what_came_by_merging_is_no_windows_own(mine, theirs, since):
    """It is aged by the blocks since the merge, be they a whole window or not, and what is left are their own rows."""
    rng = np.random.default_rng(16)
    settings = StreamSettings(n_components=2, block_size=10, forgetting=0.6, window=4)
    x, other = rows_of(rng, 80, 5, offset=0.0), 30 * rows_of(rng, 30, 5, offset=0.0)
    stream = pushed(x, [slice(0, 10 * mine)], settings)
    stream.merge(pushed(other, [slice(0, 10 * theirs)], settings))
    merged = stream.folded
    assert stream._window is None
    stream.push(x[10 * mine : 10 * (mine + since)])
    assert stream.blocks % 4 == 0
    now, then = ((s.basis * s.values**2) @ s.basis.T for s in (stream.folded, merged))
    own = now - 0.6 ** (2 * since) * then
    assert largest_sine(stream._window, np.linalg.eigh(own)[1][:, -2:]) < 1e-6


def test_what_a_stream_starts_from_is_no_windows_own():
    rng = np.random.default_rng(19)
    x, settings = rows_of(rng, 40, 5), StreamSettings(n_components=2, block_size=10, window=2)
    stream = Stream(5, settings)
    stream.start_from(pushed(100 * x, [slice(0, 40)], settings).now())
    start = stream.folded
    stream.push(x[:20])
    now, then = ((s.basis * s.values**2) @ s.basis.T for s in (stream.folded, start))
    assert largest_sine(stream._window, np.linalg.eigh(now - then)[1][:, -2:]) < 1e-6


# ---- saved state -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("offset", [None, np.arange(6.0)])
def test_a_stream_saved_in_the_midst_of_a_block_goes_on_to_the_bit(kind, weighted, offset):
    rng = np.random.default_rng(17)
    x, weights = rows_of(rng, 90, 6), rng.random(90) if weighted else None
    settings = StreamSettings(
        n_components="auto", block_size=10, forgetting=0.9, window=2, seed=3, energy=(0.05, 0.2), oversampling=2,
        center=offset is None,
    )  # fmt: skip
    for stop in (0, 7, 40, 63):
        whole = pushed(x, [slice(0, stop)], settings, weights, kind, offset)
        back = Stream.from_plain(decode(bits(whole)))
        assert bits(back) == bits(whole)
        for stream in (whole, back):
            stream.push(KINDS[kind](x[stop:85]), None if weights is None else weights[stop:85], offset)
        assert bits(back) == bits(whole)
        assert encode(back.now().as_plain()) == encode(whole.now().as_plain())
        assert (back.drift, back.drift_loss) == (whole.drift, whole.drift_loss)
        assert back.drift is not None


def test_a_damaged_state_is_refused():
    x = rows_of(np.random.default_rng(18), 33, 4)
    good = pushed(x, [slice(0, 33)], StreamSettings(n_components=2, block_size=10)).as_plain()
    damages = [{key: value for key, value in good.items() if key != gone} for gone in good]
    damages += [
        {**good, "settings": {**good["settings"], "unknown": 1}}, {**good, "folded": None}, {**good, "drift": 3},
        {**good, "held": {"data": np.ones(1)}}, None, [], np.zeros(3),
        {**good, "folded": {**good["folded"], "mass": -1.0}},
    ]  # fmt: skip
    for damage in damages:
        with pytest.raises(FileError, match="no stream's state, or a damaged one"):
            Stream.from_plain(damage)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"n_components": "most"}, "'auto', got 'most'"),
        ({"n_components": 0}, "n_components = 0: expected at least 1"),
        ({"n_components": 1.0}, r"lies in \(0, 1\), got 1.0"),
        ({"n_components": 0.0}, r"lies in \(0, 1\), got 0.0"),
        ({"n_components": math.nan}, r"lies in \(0, 1\), got nan"),
        ({"block_size": 0}, "block_size = 0 and window = 10 are at least 1"),
        ({"window": 0}, "window = 0 are at least 1"),
        ({"oversampling": -1}, "oversampling = -1 is not negative"),
        ({"forgetting": 0.0}, r"forgetting lies in \(0, 1\], 1 forgets nothing; got 0.0"),
        ({"forgetting": 1.01}, "got 1.01"),
        ({"energy": (0.1, 0.1)}, r"got \(0.1, 0.1\)"),
        ({"energy": (-0.1, 0.1)}, "0 <= alpha < beta <= 1"),
        ({"energy": (0.1, 1.1)}, "0 <= alpha < beta <= 1"),
    ],
)
def test_settings_that_no_stream_could_have_are_refused(wrong, text):
    with pytest.raises(ConfigurationError, match=text):
        check_settings(StreamSettings(**wrong))


def test_settings_at_their_limits_are_fine():
    for fine in ({"n_components": 1, "block_size": 1, "window": 1, "oversampling": 0}, {"energy": (0.0, 1.0)}):
        check_settings(StreamSettings(**fine))
