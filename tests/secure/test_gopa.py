"""GOPA: what pairs of neighbours cost, exactly and at worst, and noise that cancels."""

from __future__ import annotations

import math
from itertools import combinations

import networkx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

from fedspan.errors import ProtocolError
from fedspan.secure.gopa import OVERHEAD, PairKeys, gopa_mu, pair_deviation


def matrix(graph):
    return networkx.to_numpy_array(graph, nodelist=sorted(graph))


def by_inverse(adjacency, honest, own, pair, change=1.0):
    """The same by the textbook: the covariance of what honest nodes send, inverted."""
    links = adjacency[np.ix_(honest, honest)]
    laplacian = np.diag(links.sum(axis=0)) - links
    precision = np.linalg.inv(own**2 * np.eye(len(honest)) + pair**2 * laplacian)
    return change * np.sqrt(np.diag(precision))


# ---- the price ---------------------------------------------------------------------------------------------------


@given(
    st.integers(2, 9), st.floats(0, 1), st.floats(0.1, 5), st.floats(0.1, 50), st.floats(0.1, 10), st.integers(0, 99)
)
def test_mu_is_that_of_the_inverse_covariance(count, density, own, pair, change, seed):
    graph = networkx.gnp_random_graph(count, density, seed=seed)  # connected or not
    honest = sorted(np.random.default_rng(seed).choice(count, size=max(1, count - 2), replace=False).tolist())
    found = gopa_mu(matrix(graph), honest, own, pair, change)
    np.testing.assert_allclose(found, by_inverse(matrix(graph), honest, own, pair, change), rtol=1e-9)
    flags = np.isin(np.arange(count), honest)
    np.testing.assert_array_equal(gopa_mu(matrix(graph), flags, own, pair, change), found)


def test_sparse_matrices_serve_too():
    graph = networkx.cycle_graph(7)
    sparse = networkx.to_scipy_sparse_array(graph, nodelist=range(7))
    np.testing.assert_allclose(gopa_mu(sparse, range(7), 1.0, 3.0), gopa_mu(matrix(graph), range(7), 1.0, 3.0))


def overhead(adjacency, honest, counted):
    """What pairs add to the cost of central noise of so many shares, at the worst node: a part of it."""
    pair = pair_deviation(1.0, len(adjacency), counted)
    mu = gopa_mu(adjacency, honest, 1.0, pair)
    return float((mu**2).max() * counted - counted / len(honest))


def test_whoever_is_honest_the_overhead_is_within_its_bound():
    """Every connected graph of up to six nodes, every set of honest ones that stays connected, every count."""
    worst = 0.0
    for graph in networkx.graph_atlas_g():
        if not 2 <= len(graph) <= 6 or not networkx.is_connected(graph):
            continue
        for size in range(2, len(graph) + 1):
            for honest in combinations(range(len(graph)), size):
                if networkx.is_connected(graph.subgraph(honest)):
                    worst = max(worst, overhead(matrix(graph), list(honest), size))
    assert 0 < worst <= OVERHEAD


@pytest.mark.parametrize("count", [64, 200])
def test_the_longest_path_is_within_the_bound_too(count):
    path = matrix(networkx.path_graph(count))
    assert 0.1 * OVERHEAD < overhead(path, range(count), count) <= OVERHEAD


def test_the_bound_behind_it_is_on_what_a_unit_of_pairs_costs():
    """K_ii <= (m - 1) / 2 for the pseudo-inverse of any connected graph's Laplacian."""
    for graph in networkx.graph_atlas_g()[1:]:
        if networkx.is_connected(graph):
            inverse = np.linalg.pinv(networkx.laplacian_matrix(graph).toarray().astype(float))
            assert np.diag(inverse).max() <= (len(graph) - 1) / 2 + 1e-12


def test_half_of_the_noise_would_not_be_within_it():
    path = matrix(networkx.path_graph(64))
    mu = gopa_mu(path, range(64), 1.0, pair_deviation(1.0, 64, 64) / 2)
    assert (mu**2).max() * 64 - 1 > OVERHEAD


def test_honest_nodes_that_are_cut_pay_for_their_own_part():
    """On a ring of six with two opposite nodes colluding, two are left on either side."""
    ring = matrix(networkx.cycle_graph(6))
    pair = pair_deviation(1.0, 6, 4)
    np.testing.assert_allclose(gopa_mu(ring, [1, 2, 4, 5], 1.0, pair), math.sqrt(1 / 2), rtol=1e-9)
    np.testing.assert_allclose(gopa_mu(ring, [1, 2, 3, 4], 1.0, pair), math.sqrt(1 / 4), rtol=1e-9)


def test_rounding_is_far_below_a_nodes_own_noise():
    assert np.finfo(float).eps * pair_deviation(1.0, 64, 64) < 1e-9
    assert np.finfo(float).eps * pair_deviation(1.0, 1000, 1000) < 2e-8


# ---- the noise ---------------------------------------------------------------------------------------------------


def two(run="r", **more):
    return PairKeys("b", run, **more), PairKeys("a", run, **more)


def test_what_one_end_adds_the_other_takes_off():
    b, a = two()
    added = a.noise("b", b.public, 3, "product", 1000)
    np.testing.assert_array_equal(b.noise("a", a.public, 3, "product", 1000), -added)
    assert added.std() > 0.9


def test_noise_is_standard_normal():
    b, a = two(testing_seed=0)
    drawn = a.noise("b", b.public, 0, "product", 200_000)
    assert kstest(drawn, "norm").pvalue > 0.01
    assert np.abs(drawn).max() > 4


def test_noise_is_another_for_every_pair_run_round_and_part():
    b, a = two()
    c, other = PairKeys("c", "r"), PairKeys("b", "r")
    first = a.noise("b", b.public, 3, "product", 50)
    for drawn in [
        a.noise("c", c.public, 3, "product", 50),
        a.noise("b", other.public, 3, "product", 50),
        a.noise("b", b.public, 4, "product", 50),
        a.noise("b", b.public, 3, "rows", 50),
    ]:
        assert abs(np.corrcoef(first, drawn)[0, 1]) < 0.9
    later = a.noise("b", b.public, 3, "product", 60)
    np.testing.assert_array_equal(later[:50], first)  # of one length only is it used


def test_another_run_is_another_stream_of_the_same_keys():
    b, a = two()
    before = a.noise("b", b.public, 3, "product", 50)
    a._run = "s"
    assert np.abs(a.noise("b", b.public, 3, "product", 50) - before).max() > 0.1


def test_only_a_testing_seed_repeats_itself():
    draws = [a.noise("b", b.public, 0, "product", 10).tobytes() for b, a in (two(), two())]
    assert draws[0] != draws[1]
    tests = [a.noise("b", b.public, 0, "product", 10) for b, a in (two("r", testing_seed=1), two("s", testing_seed=1))]
    np.testing.assert_array_equal(*tests)
    assert tests[0][0] != two("r", testing_seed=2)[1].noise("b", two("r", testing_seed=2)[0].public, 0, "product", 1)[0]


def test_what_is_no_key_is_refused():
    with pytest.raises(ProtocolError, match="public key"):
        two()[0].noise("a", b"short", 0, "product", 3)
