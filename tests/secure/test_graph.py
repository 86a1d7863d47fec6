"""The graph of who shares masks with whom: regular, symmetric, connected, and everybody's the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspan.errors import ConfigurationError
from fedspan.secure.graph import Circle, neighbours

names = st.lists(st.text(min_size=1, max_size=5), unique=True, min_size=1, max_size=40)


@given(names, st.binary(max_size=40), st.integers(1, 25))
def test_it_is_regular_symmetric_and_connected(names, seed, half):
    k = 2 * half
    graph = neighbours(names, seed, k)
    assert sorted(graph) == sorted(names)
    for name, others in graph.items():
        assert others == sorted(set(others) - {name})
        assert len(others) == min(k, len(names) - 1)
        assert all(name in graph[other] for other in others)
    assert reached(graph) == set(names)


def reached(graph):
    seen, edge = set(), [next(iter(graph))]
    while edge:
        name = edge.pop()
        if name not in seen:
            seen.add(name)
            edge.extend(graph[name])
    return seen


@given(st.permutations([f"site-{i}" for i in range(12)]))
def test_it_is_the_same_for_names_in_any_order(names):
    assert neighbours(names, b"seed", 4) == neighbours(sorted(names), b"seed", 4)


def test_another_seed_is_another_graph_and_each_pair_is_joined_as_often():
    names = [f"site-{i}" for i in range(11)]
    graphs = [neighbours(names, seed.to_bytes(4, "big"), 4) for seed in range(2000)]
    assert graphs[0] != graphs[1]
    for other in names[1:]:
        together = sum(other in graph[names[0]] for graph in graphs)
        assert abs(together - 800) < 5 * 22  # binomial(2000, 4/10)


@given(st.integers(0, 99), st.sets(st.integers(0, 19), max_size=5))
def test_it_stays_connected_without_any_k_minus_1_sites(seed, lost):
    names = [f"site-{i}" for i in range(20)]
    graph, gone = neighbours(names, bytes([seed]), 6), {names[i] for i in lost}
    left = {name: [o for o in others if o not in gone] for name, others in graph.items() if name not in gone}
    assert reached(left) == set(left)


@pytest.mark.parametrize("k", [3, 5, 1, 0, -2])
def test_an_odd_k_or_none_is_refused_unless_all_are_joined(k):
    with pytest.raises(ConfigurationError, match="k is even"):
        neighbours("abcdefghi", b"", k)


def test_an_odd_k_is_fine_where_all_are_joined():
    assert neighbours(["b", "a", "d", "c"], b"", 3)["b"] == ["a", "c", "d"]


def test_a_name_given_twice_is_refused():
    with pytest.raises(ConfigurationError, match="more than once: b"):
        neighbours(["a", "b", "c", "b"], b"", 2)


@given(st.integers(3, 30), st.integers(1, 8), st.binary(max_size=4), st.sets(st.integers(0, 29)))
def test_the_most_missing_in_a_row_are_counted_around_the_circle(n, half, seed, present):
    names = [f"site-{i}" for i in range(n)]
    circle = Circle(names, seed, 2 * half)
    here = {names[i] for i in present if i < n}
    places = [name not in here for name in circle._order]
    rows = [sum(places[(start + step) % n] for step in range(min(half, n))) for start in range(n)]
    assert circle.most_missing(here) == max(rows)


@given(st.integers(0, 99), st.data())
def test_where_fewer_than_half_of_k_in_a_row_are_missing_the_rest_are_connected(seed, data):
    names, k = [f"site-{i}" for i in range(24)], 8
    circle, graph = Circle(names, bytes([seed]), k), neighbours(names, bytes([seed]), k)
    lost = data.draw(st.sets(st.sampled_from(names), max_size=22))
    here = set(names) - lost
    left = {name: [o for o in others if o in here] for name, others in graph.items() if name in here}
    if circle.most_missing(here) < k // 2:
        assert reached(left) == here
    row = circle._order[3 : 3 + k // 2] + circle._order[15 : 15 + k // 2]
    left = {name: [o for o in others if o not in row] for name, others in graph.items() if name not in row}
    assert reached(left) != set(left)  # and where as many are, twice, they are not
