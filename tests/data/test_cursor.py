"""A place in a site's rows: what is read between two places, however blocks are cut, and how often files are opened."""

from __future__ import annotations

import itertools

import array_api_strict
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from fedspan.data.cursor import Cursor

N = 23
ROWS = np.arange(2.0 * N).reshape(N, 2)
WEIGHTS = np.arange(1.0, N + 1)


class Opened:
    """Rows in blocks of these sizes, which counts how often they are read from the start, and how far."""

    def __init__(self, sizes, kind=np.asarray, weighted=True):
        self.sizes, self.kind, self.weighted = sizes, kind, weighted
        self.times = self.blocks = 0

    def __call__(self):
        self.times += 1
        start = 0
        for size in self.sizes:
            self.blocks += 1
            part = slice(start, start + size)
            yield self.kind(ROWS[part]), WEIGHTS[part] if self.weighted else None
            start += size


@st.composite
def sizes(draw):
    """Sizes of blocks, some of them empty, that make up N."""
    edges = sorted(draw(st.lists(st.integers(0, N), max_size=6)))
    return [b - a for a, b in zip([0, *edges], [*edges, N], strict=True)]


def read(cursor, start, stop):
    parts = list(cursor.read(start, stop))
    dense = [part.toarray() if scipy.sparse.issparse(part) else part for part, _ in parts]
    weights = [heavy for _, heavy in parts]
    rows = np.vstack(dense) if parts else np.zeros((0, 2))
    return rows, None if not parts or weights[0] is None else np.concatenate(weights)


@given(sizes(), st.lists(st.tuples(st.integers(0, N), st.integers(0, N + 5)), max_size=8), st.booleans())
def test_any_two_places_have_the_rows_between_them(sizes, places, sparse):
    opened = Opened(sizes, scipy.sparse.csr_array if sparse else np.asarray)
    cursor = Cursor(opened)
    for start, stop in places:
        rows, weights = read(cursor, start, stop)
        np.testing.assert_array_equal(rows, ROWS[start:stop])
        if len(rows):
            np.testing.assert_array_equal(weights, WEIGHTS[start:stop])


@given(sizes(), st.lists(st.integers(0, N), max_size=6))
def test_one_piece_after_the_other_is_one_reading(sizes, places):
    opened, edges = Opened(sizes), [0, *sorted(places), N]
    cursor = Cursor(opened)
    for start, stop in itertools.pairwise(edges):
        np.testing.assert_array_equal(read(cursor, start, stop)[0], ROWS[start:stop])
    assert opened.times == 1
    assert opened.blocks <= len(sizes)


def test_rows_further_on_are_reached_without_a_new_start_and_earlier_ones_with_one():
    opened = Opened([5] * 4 + [3])
    cursor = Cursor(opened)
    read(cursor, 0, 4)
    read(cursor, 9, 12)
    assert (opened.times, opened.blocks) == (1, 3)  # no block is taken before it is needed
    np.testing.assert_array_equal(read(cursor, 11, 13)[0], ROWS[11:13])
    assert opened.times == 2
    assert read(cursor, 20, 99)[0].shape == (3, 2)
    assert read(cursor, 23, 99)[0].shape == (0, 2)
    assert opened.times == 2


def test_a_reading_that_was_left_in_the_midst_goes_on_where_it_was():
    opened = Opened([5] * 4 + [3])
    cursor = Cursor(opened)
    pieces = cursor.read(0, 20)
    np.testing.assert_array_equal(next(pieces)[0], ROWS[:5])
    pieces.close()
    np.testing.assert_array_equal(read(cursor, 5, 20)[0], ROWS[5:20])
    assert opened.times == 1
    np.testing.assert_array_equal(read(cursor, 0, 20)[0], ROWS[:20])


def test_whole_blocks_are_handed_on_as_they_are():
    block, heavy = ROWS[:5], WEIGHTS[:5]
    cursor = Cursor(lambda: iter([(block, heavy)]))
    ((part, weights),) = cursor.read(0, 5)
    assert np.shares_memory(part, block)
    assert np.shares_memory(weights, heavy)


@pytest.mark.parametrize("kind", [scipy.sparse.csr_array, scipy.sparse.csr_matrix])
def test_sparse_rows_stay_sparse_and_there_may_be_no_weights(kind):
    cursor = Cursor(Opened([4, 19], kind, weighted=False))
    for part, weights in cursor.read(2, 9):
        assert scipy.sparse.issparse(part)
        assert weights is None


def test_rows_of_another_library_come_to_the_host():
    for part, _ in Cursor(Opened([4, 19], array_api_strict.asarray)).read(1, 9):
        assert isinstance(part, np.ndarray)


def test_an_offset_is_kept_for_whoever_reads():
    assert Cursor(Opened([N])).offset is None
    assert Cursor(Opened([N]), np.ones(2)).offset.tolist() == [1.0, 1.0]
