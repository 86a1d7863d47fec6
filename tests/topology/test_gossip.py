"""Averages over a graph: the mean stays, differences shrink as the eigenvalue says, whatever links are silent."""

from __future__ import annotations

import math

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspan.errors import CohortError
from fedspan.topology import Graph, Weights, make_graph, mix, planned_steps, settle, steps_needed


def graph_of(kind="random-regular", count=16, degree=4, seed=0):
    return make_graph(kind, [f"s{i:02d}" for i in range(count)], degree, seed)


def unlike(values, mean):
    return np.linalg.norm(values - mean)


@st.composite
def graphs(draw):
    """Any connected graph of 2 to 12 nodes: a random tree, and links beside it."""
    count = draw(st.integers(2, 12))
    links = {(draw(st.integers(0, i - 1)), i) for i in range(1, count)}
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda pair: pair[0] < pair[1])
    links |= draw(st.sets(pairs, max_size=20))
    return Graph(tuple(map(str, range(count))), tuple(sorted(links)))


# ---- weights -----------------------------------------------------------------------------------------------------


@given(graphs())
def test_metropolis_weights_keep_the_mean_and_sigma_is_the_second_modulus(graph):
    weights = Weights(graph)
    dense = weights.matrix.toarray()
    np.testing.assert_array_equal(dense, dense.T)
    np.testing.assert_allclose(dense.sum(axis=1), 1, atol=1e-14)
    assert dense.min() >= -1e-16
    assert all(dense[i, j] == 1 / (1 + max(graph.degrees[[i, j]])) for i, j in graph.links)
    moduli = np.sort(np.abs(np.linalg.eigvals(dense)))[::-1]
    assert weights.sigma == pytest.approx(moduli[1], abs=1e-12)
    assert weights.gap == 1 - weights.sigma
    assert weights.sigma < 1


def test_sigma_of_a_ring_is_the_known_one():
    assert Weights(graph_of("ring", 64)).sigma == pytest.approx(1 / 3 + 2 / 3 * math.cos(2 * math.pi / 64))


def test_sigma_of_many_nodes_is_found_without_all_eigenvalues():
    graph = graph_of(count=700, seed=1)
    dense = np.linalg.eigvalsh(Weights(graph).matrix.toarray())
    assert Weights(graph).sigma == pytest.approx(np.abs(dense[:-1]).max(), abs=1e-9)


def test_silent_links_leave_their_weight_at_home():
    weights = Weights(graph_of("ring", 5))
    heard = np.array([True, False, True, True, False])
    step = weights.of_links(heard).toarray()
    np.testing.assert_allclose(step.sum(axis=1), 1)
    np.testing.assert_array_equal(step, step.T)
    for (i, j), there in zip(weights.graph.links, heard, strict=True):
        assert step[i, j] == (1 / 3 if there else 0)
    rng = np.random.default_rng(0)
    silent = [5 - (np.count_nonzero(weights.with_loss(rng, 0.3).toarray()) - 5) / 2 for _ in range(2000)]
    assert np.mean(silent) == pytest.approx(1.5, abs=0.1)


# ---- steps -------------------------------------------------------------------------------------------------------


@given(graphs(), st.integers(0, 30), st.booleans(), st.floats(0, 0.9), st.integers(0, 99))
def test_the_mean_stays_whatever_happens(graph, steps, accelerated, loss, seed):
    weights, rng = Weights(graph), np.random.default_rng(seed)
    values = rng.standard_normal((len(graph.names), 3)) + 5
    after = mix(values, weights.sigma, steps, lambda: weights.with_loss(rng, loss), accelerated=accelerated)
    size = max(1.0, float(np.abs(after).max()))
    np.testing.assert_allclose(after.mean(axis=0), values.mean(axis=0), rtol=0, atol=1e-13 * (steps + 1) * size)


@given(graphs(), st.integers(1, 25), st.integers(0, 99))
@settings(max_examples=50)
def test_differences_shrink_at_least_as_the_eigenvalue_says(graph, steps, seed):
    weights = Weights(graph)
    values = np.random.default_rng(seed).standard_normal((len(graph.names), 4))
    mean, begin = values.mean(axis=0), unlike(values, values.mean(axis=0))
    chebyshev = 1 / math.cosh(steps * math.acosh(1 / weights.sigma)) if weights.sigma > 1e-12 else 0.0
    fast = mix(values, weights.sigma, steps, lambda: weights.matrix)
    slow = mix(values, weights.sigma, steps, lambda: weights.matrix, accelerated=False)
    assert unlike(fast, mean) <= chebyshev * begin * (1 + 1e-9) + 1e-13
    assert unlike(slow, mean) <= weights.sigma**steps * begin * (1 + 1e-9) + 1e-13


def test_the_bounds_are_met_by_the_worst_start():
    weights = Weights(graph_of("ring", 12))
    worst = np.linalg.eigh(weights.matrix.toarray())[1][:, [-2]]
    fast = mix(worst, weights.sigma, 20, lambda: weights.matrix)
    assert unlike(fast, 0) == pytest.approx(1 / math.cosh(20 * math.acosh(1 / weights.sigma)), rel=1e-9)
    slow = mix(worst, weights.sigma, 20, lambda: weights.matrix, accelerated=False)
    assert unlike(slow, 0) == pytest.approx(weights.sigma**20, rel=1e-9)


@pytest.mark.parametrize("accelerated", [True, False])
@pytest.mark.parametrize("kind", ["ring", "torus", "random-regular"])
def test_steps_needed_are_enough_and_one_less_is_not(kind, accelerated):
    weights = Weights(graph_of(kind, 64))
    steps = steps_needed(weights.sigma, 1e-8, accelerated=accelerated)
    basis = np.linalg.eigh(weights.matrix.toarray())[1][:, :-1]
    left = [
        np.linalg.norm(mix(basis, weights.sigma, k, lambda: weights.matrix, accelerated=accelerated), 2)
        for k in (steps - 1, steps)
    ]
    assert left[1] <= 1e-8 < left[0]


def test_a_step_hears_nobody_but_neighbours():
    graph = graph_of("ring", 9)
    weights = Weights(graph)
    values = np.zeros((9, 1))
    values[0] = 1.0
    for steps in range(4):
        heard = np.flatnonzero(mix(values, weights.sigma, steps, lambda: weights.matrix)[:, 0])
        near = [i for i, name in enumerate(graph.names) if graph.distances("s00")[name] <= steps]
        np.testing.assert_array_equal(heard, near)


def test_mixing_changes_nothing_it_was_given():
    weights = Weights(graph_of())
    values = np.arange(32.0).reshape(16, 2)
    for steps in range(5):
        mix(values, weights.sigma, steps, lambda: weights.matrix)
    np.testing.assert_array_equal(values, np.arange(32.0).reshape(16, 2))


# ---- until nodes agree -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ring", "torus", "random-regular"])
@pytest.mark.parametrize("loss", [0.0, 0.05, 0.2, 0.5])
def test_nodes_agree_however_many_links_are_silent(kind, loss):
    weights, rng = Weights(graph_of(kind, 64, seed=1)), np.random.default_rng(0)
    values = rng.standard_normal((64, 6)) * [1, 1, 1, 1e-6, 1e-6, 1e-6]
    parts = [slice(0, 3), slice(3, 6)]
    settled = settle(values, parts, weights, 1e-10, silent=loss, rng=rng)
    for part in parts:
        largest = np.linalg.norm(values[:, part], axis=1).max()
        apart = np.linalg.norm(settled.values[:, None, part] - settled.values[None, :, part], axis=2).max()
        assert apart <= 1e-10 * largest
        off = np.abs(settled.values[:, part] - values[:, part].mean(axis=0)).max()
        assert off <= 1e-10 * largest
    assert settled.steps == settled.looks * planned_steps(weights, 1e-10)
    assert (settled.looks == 1) == (loss == 0)


def test_a_ring_that_loses_links_would_diverge_with_all_its_momentum():
    weights, rng = Weights(graph_of("ring", 64)), np.random.default_rng(0)
    values = rng.standard_normal((64, 3))
    steps = planned_steps(weights, 1e-10)
    assert unlike(mix(values, weights.sigma, steps, lambda: weights.with_loss(rng, 0.2)), 0) > 1e3
    assert settle(values, [slice(0, 3)], weights, 1e-10, silent=0.2, rng=rng).looks < 20


def test_links_that_are_hardly_ever_heard_end_in_an_error():
    weights = Weights(graph_of("ring", 16))
    values = np.random.default_rng(0).standard_normal((16, 2))
    with pytest.raises(CohortError, match=r"after \d+ steps nodes still differ .*accuracy = 1e-10; too many links"):
        settle(values, [slice(0, 2)], weights, 1e-10, silent=0.999, rng=np.random.default_rng(1))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_nodes_that_all_know_one_another_need_one_step(count):
    weights = Weights(graph_of(count=count))
    values = np.arange(3.0 * count).reshape(count, 3)
    settled = settle(values, [slice(0, 3)], weights, 1e-12)
    assert settled.steps == min(count - 1, 1)
    np.testing.assert_allclose(settled.values, np.broadcast_to(values.mean(axis=0), values.shape), rtol=1e-12)


def test_zeros_and_numbers_that_are_none_come_through():
    weights = Weights(graph_of())
    zeros = settle(np.zeros((16, 2)), [slice(0, 2)], weights, 1e-12)
    np.testing.assert_array_equal(zeros.values, 0)
    values = np.ones((16, 2))
    values[3, 0] = np.nan
    broken = settle(values, [slice(0, 2)], weights, 1e-12)
    assert np.isnan(broken.values[:, 0]).all()
    np.testing.assert_array_equal(broken.values[:, 1], 1)


@pytest.mark.parametrize("size", [1e-320, 1e-200, 1e100, 1e160, 1.5e308])
def test_the_largest_and_the_smallest_numbers_are_averaged_as_well(size):
    weights = Weights(graph_of("ring", 6))
    values = np.random.default_rng(3).uniform(-1, 1, (6, 4))
    parts = [slice(0, 3), slice(3, 4)]
    scaled = values * np.array([1, 1, 1, size])
    settled = settle(scaled, parts, weights, 1e-12)
    assert settled.steps >= planned_steps(weights, 1e-12)
    assert settled.looks == 1
    means = values.mean(axis=0)
    np.testing.assert_allclose(settled.values[:, :3], np.tile(means[:3], (6, 1)), atol=1e-11)
    np.testing.assert_allclose(settled.values[:, 3] / size, means[3], atol=1e-3 if size < 1e-300 else 1e-11)


def test_random_regular_graphs_mix_in_steps_that_hardly_grow_with_their_size():
    steps = {count: planned_steps(Weights(graph_of(count=count, seed=1)), 1e-10) for count in (64, 256)}
    rings = {count: planned_steps(Weights(graph_of("ring", count)), 1e-10) for count in (64, 256)}
    assert steps[256] < 1.4 * steps[64] < 0.2 * rings[64]
    assert rings[256] > 3.5 * rings[64]
    assert networkx.is_connected(networkx.Graph(list(graph_of(count=256, seed=1).links)))
