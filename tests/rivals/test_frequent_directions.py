"""Frequent Directions keeps its guarantee, on random matrices and on its worst case."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspan.rivals import FrequentDirections


def sketched(rows, rank):
    sketcher = FrequentDirections(rows.shape[1], rank)
    sketcher.update(rows)
    return sketcher.sketch


def loss(rows, sketch):
    """Least and largest ||X v||^2 - ||B v||^2 over unit vectors."""
    values = np.linalg.eigvalsh(rows.T @ rows - sketch.T @ sketch)
    return values[0], values[-1]


def bound(rows, rank):
    tails = np.append(np.cumsum(np.linalg.svd(rows, compute_uv=False)[::-1] ** 2)[::-1], 0.0)
    return min(tails[min(k, len(tails) - 1)] / (rank + 1 - k) for k in range(rank + 1))


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 40), st.integers(6, 12), st.floats(0.0, 3.0))
def test_the_guarantee(seed, rank, n, d, alpha):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, d)) * np.arange(1.0, d + 1) ** -alpha
    sketch = sketched(rows, rank)
    least, largest = loss(rows, sketch)
    rounding = 1e-9 * np.sum(rows**2)
    assert len(sketch) <= 2 * rank
    assert least >= -rounding
    assert largest <= bound(rows, rank) + rounding


def test_the_worst_case_comes_near_the_guarantee():
    """Equal orthogonal rows: every shift takes from r + 1 of them and nothing is left for chance."""
    rank = 4
    rows = np.tile(np.eye(rank + 1), (40, 1))
    largest = loss(rows, sketched(rows, rank))[1]
    assert 0.9 * bound(rows, rank) < largest <= bound(rows, rank) + 1e-9


def test_a_direction_that_is_weak_in_every_row_and_strong_in_all_is_found():
    """Cut without a shift, a sketch keeps the first row for ever and misses a thousand others."""
    rows = np.vstack([10 * np.eye(3)[:1], np.tile(np.eye(3)[1:2], (1000, 1))])
    sketch = sketched(rows, 1)
    assert loss(rows, sketch)[1] <= bound(rows, 1) + 1e-9
    assert np.sum(sketch[:, 1] ** 2) > 800


def test_a_matrix_of_the_rank_is_kept_whole():
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((200, 3)) @ rng.standard_normal((3, 10))
    assert np.abs(loss(rows, sketched(rows, 3))).max() < 1e-9 * np.sum(rows**2)


@pytest.mark.parametrize("rank", [5, 4])
def test_up_to_as_many_directions_as_there_are_columns(rank):
    rows = np.random.default_rng(2).standard_normal((300, 5))
    least, largest = loss(rows, sketched(rows, rank))
    assert least >= -1e-9
    assert (largest < 1e-9) == (rank == 5)


def test_a_sketch_is_a_copy():
    sketcher = FrequentDirections(3, 1)
    sketcher.update(np.eye(3)[:1])
    sketcher.sketch[:] = 0
    np.testing.assert_array_equal(sketcher.sketch, np.eye(3)[:1])
    assert sketcher.basis.shape == (3, 1)
