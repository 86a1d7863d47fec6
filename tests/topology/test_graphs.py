"""Graphs over sites: the named ones, a given list of links, what is refused, and what is left when nodes are gone."""

from __future__ import annotations

import sys

import networkx
import numpy as np
import pytest

from fedspan.errors import ConfigurationError
from fedspan.topology import Graph, in_words, make_graph


def names(count):
    return [f"s{i:02d}" for i in range(count)]


def peer(graph):
    """The same graph as networkx has it."""
    made = networkx.Graph(list(graph.links))
    made.add_nodes_from(range(len(graph.names)))
    return made


@pytest.mark.parametrize(
    ("kind", "count", "degree", "diameter", "connectivity"),
    [("ring", 9, 2, 4, 2), ("torus", 12, 4, 3, 4), ("random-regular", 20, 4, None, 4), ("random-regular", 4, 3, 1, 3)],
)
def test_named_graphs_are_what_networkx_says(kind, count, degree, diameter, connectivity):
    graph = make_graph(kind, names(count), 4, seed=3)
    assert set(graph.degrees) == {degree}
    assert graph.diameter == networkx.diameter(peer(graph)) == (diameter or graph.diameter)
    assert graph.connectivity == connectivity
    np.testing.assert_array_equal(
        graph.adjacency.toarray(), networkx.to_numpy_array(peer(graph), nodelist=range(count))
    )


def test_a_torus_is_two_rings_crossed():
    torus = make_graph("torus", names(20))
    assert networkx.is_isomorphic(peer(torus), networkx.cartesian_product(*map(networkx.cycle_graph, (4, 5))))


def test_a_seed_is_a_graph_and_another_seed_another():
    draws = [make_graph("random-regular", names(30), 4, seed=seed).links for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]


def test_random_graphs_are_drawn_until_one_is_in_one_piece():
    assert any(
        not networkx.is_connected(networkx.random_regular_graph(2, 12, seed=seed)) for seed in range(5)
    )  # of degree 2 many are several rings
    for seed in range(5):
        assert len(make_graph("random-regular", names(12), 2, seed=seed).parts) == 1


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_few_sites_are_all_linked(count):
    graph = make_graph("random-regular", names(count), 4)
    assert len(graph.links) == count * (count - 1) // 2
    assert graph.diameter == min(count - 1, 1)
    assert make_graph("ring", names(count)).diameter == {1: 0, 2: 1, 3: 1, 5: 2}[count]


def test_links_are_given_by_name_in_any_order_and_counted_once():
    graph = make_graph([("c", "a"), ["a", "b"], ("a", "c")], ["b", "a", "c"])
    assert graph == Graph(("a", "b", "c"), ((0, 1), (0, 2)))
    assert (graph.diameter, graph.connectivity) == (2, 1)
    assert graph.distances("b") == {"b": 0, "a": 1, "c": 2}


@pytest.mark.parametrize(
    ("kind", "count", "degree", "said"),
    [
        ("rong", 4, 4, "did you mean 'ring'"),
        ("torus", 14, 4, "14 sites make 2 by 7"),
        ("random-regular", 9, 3, "give an even degree"),
        ([("s00", "s01"), ("s02", "s03")], 4, 4, r"2 parts, .* \(s00, s01\) and \(s02, s03\); link them"),
        ([("s00", "s01")], 3, 4, "2 parts"),
        ([("s00", "s0")], 2, 4, "names no site 's0'; did you mean 's0"),
        ([("s00", "s00")], 2, 4, "links a site with itself"),
        ([("s00", "s01", "s02")], 3, 4, "a link is a pair"),
        ([("s00", 1)], 3, 4, "a link is a pair"),
        ([], 3, 4, "or a list of links"),
        (3, 3, 4, "or a list of links"),
    ],
)
def test_what_is_no_graph_is_refused(kind, count, degree, said):
    with pytest.raises(ConfigurationError, match=said):
        make_graph(kind, names(count), degree)


def test_nodes_that_are_gone_take_their_links_along():
    ring = make_graph("ring", names(6))
    left = ring.without(["s01", "s03"])
    assert left.names == ("s00", "s02", "s04", "s05")
    assert left.links == ((0, 3), (2, 3))
    assert left.parts == [["s00", "s04", "s05"], ["s02"]]
    assert left.connectivity == 0
    assert ring.without(["s01", "s05"]).parts == [["s02", "s03", "s04"], ["s00"]]  # the largest first
    assert in_words([[str(i)] for i in range(6)]) == "(0) and (1) and (2) and (3) and 2 more"


def test_a_ring_needs_no_networkx_and_a_random_graph_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "networkx", None)
    assert make_graph("ring", names(5)).diameter == 2
    assert make_graph("random-regular", names(5), 4).diameter == 1
    with pytest.raises(ConfigurationError, match=r"pip install \"fedspan\[gossip\]\""):
        make_graph("random-regular", names(9), 4)
