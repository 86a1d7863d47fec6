"""Memory of a stream: a few blocks, however many rows have gone by."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest

from fedspan import StreamingPCA
from fedspan.stream import Stream, StreamSettings

BLOCK, D = 500, 200
UNIT = 8 * D * (30 + BLOCK)
"""Bytes of d (r + block) numbers."""


def peaks(rows: int, marks: tuple[int, ...]) -> list[int]:
    """The most that was allocated between marks, while rows come and go."""
    rng = np.random.default_rng(0)
    chunk = rng.standard_normal((BLOCK, D)) * np.linspace(3, 1, D)
    pca = StreamingPCA(10, block_size=BLOCK)
    found = []
    tracemalloc.start()
    try:
        for done in range(BLOCK, rows + 1, BLOCK):
            pca.partial_fit(np.roll(chunk, done // BLOCK, axis=0) * rng.choice([-1.0, 1.0], (BLOCK, 1)))
            if done % (100 * BLOCK) == 0:
                gc.collect()  # until then Python keeps up to 2,000 freed tuples of each size, 0.4 MB in the end
            if done in marks:
                found.append(tracemalloc.get_traced_memory()[1])
                tracemalloc.reset_peak()
    finally:
        tracemalloc.stop()
    assert pca.n_samples_seen_ == rows
    return found


def test_memory_is_a_few_blocks():
    first, last = peaks(50_000, (10_000, 50_000))
    assert last < 8 * UNIT
    assert last < 1.1 * first


@pytest.mark.parametrize("size", [70, 499, 1300])
def test_pieces_of_any_size_are_held_for_one_block_and_no_longer(size):
    """As `fedspan stream` pushes them: to a stream itself, without the copies that an estimator makes."""
    rng = np.random.default_rng(0)
    stream, found = Stream(D, StreamSettings(n_components=10, block_size=BLOCK)), []
    tracemalloc.start()
    try:
        for done in range(size, 60_001, size):
            stream.push(rng.standard_normal((size, D)))
            if done <= 10_000 < done + size:
                found.append(tracemalloc.get_traced_memory()[1])
                tracemalloc.reset_peak()
        found.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    assert found[1] < 8 * UNIT + 2 * 8 * D * size
    assert found[1] < 1.1 * found[0]


@pytest.mark.soak
def test_memory_is_flat_over_ten_million_rows():
    first, middle, last = peaks(10_000_000, (100_000, 5_000_000, 10_000_000))
    assert last < 8 * UNIT
    assert max(middle, last) < 1.1 * first
