"""Partitions cover every row once, whatever their shape."""

import itertools

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from fedspan.data import partition
from fedspan.errors import ConfigurationError

rows_and_sites = st.integers(1, 12).flatmap(lambda sites: st.tuples(st.integers(sites, 200), st.just(sites)))
seeds = st.integers(0, 2**32)


def assert_covers(parts, rows):
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(rows))
    for part in parts:
        np.testing.assert_array_equal(part, np.sort(part))


@given(rows_and_sites, st.one_of(st.none(), seeds))
def test_even(sizes, seed):
    rows, sites = sizes
    parts = partition.even(rows, sites, seed=seed)
    assert_covers(parts, rows)
    assert len(parts) == sites
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    if seed is None:
        np.testing.assert_array_equal(np.concatenate(parts), np.arange(rows))


@given(rows_and_sites, seeds, st.floats(0, 3))
def test_uneven(sizes, seed, spread):
    rows, sites = sizes
    parts = partition.uneven(rows, sites, spread=spread, seed=seed)
    assert_covers(parts, rows)
    assert len(parts) == sites
    assert min(map(len, parts)) >= 1


def test_uneven_sizes_spread_and_keep_the_least():
    sizes = [len(part) for part in partition.uneven(10_000, 20, spread=1.5, seed=4, least=50)]
    assert min(sizes) >= 50
    assert max(sizes) > 5 * np.median(sizes)
    even = [len(part) for part in partition.uneven(10_000, 20, spread=0, seed=4)]
    assert max(even) < 2 * min(even)


@given(st.data())
def test_by_label(data):
    sites, each = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3))
    labels = data.draw(st.lists(st.integers(0, 5), min_size=sites * each, max_size=120))
    parts = partition.by_label(labels, sites, labels_per_site=each, seed=data.draw(seeds))
    assert_covers(parts, len(labels))
    assert len(parts) == sites


def test_by_label_gives_few_labels_to_each_site():
    labels = np.repeat(np.arange(10), 30)
    parts = partition.by_label(labels, 10, labels_per_site=2)
    assert max(len(set(labels[part])) for part in parts) <= 2
    assert partition.by_label(list("aabb"), 2, labels_per_site=1)[0].tolist() in ([0, 1], [2, 3])


@given(st.lists(st.floats(allow_nan=False), min_size=5, max_size=60), st.integers(1, 5))
def test_by_time(times, sites):
    parts = partition.by_time(times, sites)
    assert_covers(parts, len(times))
    stretches = [np.array(times)[part] for part in parts]
    assert all(a.max() <= b.min() for a, b in itertools.pairwise(stretches))


def test_the_same_seed_gives_the_same_sites():
    for deal in (partition.even, partition.uneven):
        first, second, other = deal(100, 7, seed=1), deal(100, 7, seed=1), deal(100, 7, seed=2)
        assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
        assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_too_few_rows():
    for deal in (
        lambda: partition.even(2, 3),
        lambda: partition.even(2, 0),
        lambda: partition.uneven(5, 3, least=2),
        lambda: partition.by_label([0, 1, 2], 2, labels_per_site=2),
        lambda: partition.by_time([1.0], 2),
    ):
        with pytest.raises(ConfigurationError, match="take fewer sites"):
            deal()


@pytest.mark.parametrize("kind", ["array", "sparse", "pandas", "polars"])
def test_split(kind):
    x = np.arange(24.0).reshape(12, 2)
    data = x
    if kind == "sparse":
        data = scipy.sparse.csr_array(x)
    elif kind != "array":
        data = pytest.importorskip(kind).DataFrame({"a": x[:, 0], "b": x[:, 1]})
    parts = partition.even(12, 11, seed=5)
    sites = partition.split(data, parts, "clinic")
    assert list(sites) == sorted(sites) == [f"clinic{i:02d}" for i in range(11)]
    for rows, held in zip(parts, sites.values(), strict=True):
        assert type(held) is type(data)
        dense = held.toarray() if kind == "sparse" else np.asarray(held)
        np.testing.assert_array_equal(dense, x[rows])


@given(st.integers(1, 8), seeds, st.floats(0, 3))
def test_by_classes_with_shares(sites, seed, spread):
    labels = np.random.default_rng(seed).integers(0, 4, 60)
    shares = partition.lognormal_shares(sites, spread=spread, seed=seed)
    parts = partition.by_classes(labels, sites, 4, seed=seed, classes=range(4), shares=shares)
    assert_covers(parts, 60)
    assert len(parts) == sites


def test_by_classes_deals_in_proportion_to_the_shares():
    labels = np.repeat([0, 1, 2], 1000)
    parts = partition.by_classes(labels, 4, 3, seed=3, shares=[1, 2, 3, 4])
    for label in (0, 1, 2):
        counts = [int(np.sum(labels[part] == label)) for part in parts]
        np.testing.assert_allclose(counts, [100, 200, 300, 400], atol=3)


def test_shares_change_the_sizes_and_not_the_classes():
    labels = np.arange(600) % 6
    even, uneven = (
        partition.by_classes(labels, 6, 2, seed=5, shares=shares)
        for shares in (None, partition.lognormal_shares(6, spread=1.5, seed=2))
    )
    assert [set(labels[part]) for part in even] == [set(labels[part]) for part in uneven]
    assert {len(part) for part in even} == {100}
    assert max(map(len, uneven)) > 3 * min(map(len, uneven))


def test_every_site_has_a_row_of_each_of_its_classes_whatever_its_share():
    parts = partition.by_classes([0] * 50 + [1] * 50, 5, 2, shares=[1, 1, 1, 1, 1e9])
    labels = np.repeat([0, 1], 50)
    assert [set(labels[part]) for part in parts] == [{0, 1}] * 5
    assert sorted(map(len, parts)) == [2, 2, 2, 2, 92]


@pytest.mark.parametrize("shares", [[1, 2], [1, 0, 1], [1, np.inf, 1], [1, np.nan, 1]])
def test_shares_that_are_none_are_refused(shares):
    with pytest.raises(ConfigurationError, match="3 positive numbers, one for each site"):
        partition.by_classes([0, 1, 2], 3, 1, shares=shares)


def test_lognormal_shares():
    shares = np.log(partition.lognormal_shares(4000, spread=0.7, seed=1))
    assert np.std(shares) == pytest.approx(0.7, rel=0.05)
    assert partition.lognormal_shares(3, spread=0).tolist() == [1, 1, 1]
