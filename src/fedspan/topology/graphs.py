"""Who talks with whom where there is no coordinator: undirected graphs over the sites' names.

Everybody knows the whole graph: it is public. networkx draws random graphs and counts how many nodes may be lost; a
ring, a torus and an explicit list of edges need no more than numpy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse.csgraph import connected_components, shortest_path

from fedspan.encoding import Array
from fedspan.errors import ConfigurationError, few, nearest

Edge = tuple[str, str]
NAMED = ("random-regular", "ring", "torus")
_TRIES = 100


@dataclass(frozen=True)
class Graph:
    """Nodes in name order, and the links between them as pairs of their numbers, the smaller first."""

    names: tuple[str, ...]
    links: tuple[tuple[int, int], ...]

    @cached_property
    def adjacency(self) -> Any:
        """The symmetric 0/1 matrix of the links, sparse."""
        size = len(self.names)
        ends = np.array(self.links, dtype=int).reshape(-1, 2)
        half = scipy.sparse.coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(size, size)).tocsr()
        return (half + half.T).tocsr()

    @cached_property
    def degrees(self) -> Array:
        """How many neighbours each node has."""
        degrees: Array = np.bincount(np.array(self.links, dtype=int).ravel(), minlength=len(self.names))
        return degrees

    @cached_property
    def diameter(self) -> int:
        """The most links between two nodes: after so many steps everybody has heard of everybody."""
        return int(shortest_path(self.adjacency, unweighted=True).max()) if len(self.names) > 1 else 0

    @cached_property
    def parts(self) -> list[list[str]]:
        """The names of the nodes that can reach one another, the largest part first."""
        count, labels = connected_components(self.adjacency, directed=False)
        found = [[name for name, label in zip(self.names, labels, strict=True) if label == i] for i in range(count)]
        return sorted(found, key=lambda part: (-len(part), part))

    @cached_property
    def connectivity(self) -> int:
        """The fewest nodes whose loss leaves the others in more than one part (or a single one)."""
        if len(self.parts) > 1 or len(self.names) < 2:
            return 0
        return int(_networkx().node_connectivity(_networkx().Graph(list(self.links))))

    def distances(self, name: str) -> dict[str, int]:
        """Return how many links away each node that can be reached from this one is."""
        steps = shortest_path(self.adjacency, unweighted=True, indices=self.names.index(name))
        return {other: int(far) for other, far in zip(self.names, steps, strict=True) if np.isfinite(far)}

    def without(self, gone: Iterable[str]) -> Graph:
        """Return what is left when nodes are gone, with their links."""
        lost = set(gone)
        kept = tuple(name for name in self.names if name not in lost)
        place = {self.names.index(name): i for i, name in enumerate(kept)}
        return Graph(kept, tuple((place[i], place[j]) for i, j in self.links if i in place and j in place))


def make_graph(kind: str | Sequence[Edge], names: Iterable[str], degree: int = 4, seed: int = 0) -> Graph:
    """Return the graph of a kind, or of a list of links, over these sites.

    >>> make_graph("ring", "abcd").links
    ((0, 1), (0, 3), (1, 2), (2, 3))
    >>> make_graph([("a", "b"), ("c", "b")], "abc").diameter
    2
    """
    known = tuple(sorted(names))
    if isinstance(kind, str):
        if kind not in NAMED:
            hint = nearest(kind, NAMED)
            raise ConfigurationError(f"there is no graph {kind!r}; {hint}, or give a list of links between sites")
        pairs = _drawn(kind, len(known), degree, seed)
    else:
        pairs = _given(kind, known)
    return _checked(Graph(known, tuple(sorted({(min(pair), max(pair)) for pair in pairs}))))


def _drawn(kind: str, size: int, degree: int, seed: int) -> Iterable[tuple[int, int]]:
    if kind == "torus":
        return _torus(size)
    if kind == "ring":
        return [(i, (i + 1) % size) for i in range(size)] if size > 2 else _complete(size)
    return _complete(size) if degree >= size - 1 else _random_regular(size, degree, seed)


def _complete(size: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(size) for j in range(i + 1, size)]


def _torus(size: int) -> list[tuple[int, int]]:
    """Rows and columns as nearly equal in number as they can be, each a ring."""
    rows = max((r for r in range(1, math.isqrt(size) + 1) if size % r == 0), default=0)
    if rows < 3:
        raise ConfigurationError(
            f"a torus has at least 3 rows and 3 columns of nodes, and {size} sites make {rows} by "
            f'{size // max(rows, 1)}; take graph = "random-regular" or "ring"'
        )
    columns = size // rows
    across = [(r * columns + c, r * columns + (c + 1) % columns) for r in range(rows) for c in range(columns)]
    down = [(r * columns + c, (r + 1) % rows * columns + c) for r in range(rows) for c in range(columns)]
    return across + down


def _random_regular(size: int, degree: int, seed: int) -> list[tuple[int, int]]:
    """Draw until the graph is in one piece: of degree 3 and more nearly all are."""
    if size * degree % 2:
        raise ConfigurationError(
            f"no graph of {size} nodes gives each of them {degree} neighbours, as both numbers are odd; give an even "
            f"degree"
        )
    for again in range(_TRIES):
        links = [(int(i), int(j)) for i, j in _networkx().random_regular_graph(degree, size, seed=seed + again).edges]
        if len(Graph(tuple(map(str, range(size))), tuple(links)).parts) == 1:
            return links
    raise ConfigurationError(
        f"none of {_TRIES} random graphs of {size} nodes with {degree} neighbours each was in one piece; give a higher "
        f"degree"
    )


def _given(links: Any, names: tuple[str, ...]) -> list[tuple[int, int]]:
    """Return a list of links between names as pairs of numbers; refuse what is none."""
    if not isinstance(links, list | tuple | set | frozenset) or not links:
        raise ConfigurationError(
            f'graph is one of {", ".join(map(repr, NAMED))}, or a list of links as ("berlin", "cairo"); got {links!r}'
        )
    place = {name: i for i, name in enumerate(names)}
    pairs = []
    for link in links:
        if not isinstance(link, list | tuple) or len(link) != 2 or not all(isinstance(end, str) for end in link):
            raise ConfigurationError(f"a link is a pair of sites' names, got {link!r}")
        for end in link:
            if end not in place:
                raise ConfigurationError(f"the link {tuple(link)} names no site {end!r}; {nearest(end, names)}")
        if link[0] == link[1]:
            raise ConfigurationError(f"{tuple(link)} links a site with itself; leave it out")
        pairs.append((place[link[0]], place[link[1]]))
    return pairs


def _checked(graph: Graph) -> Graph:
    parts = graph.parts
    if len(parts) > 1:
        raise ConfigurationError(f"the graph is in {len(parts)} parts, and sums need one: {in_words(parts)}; link them")
    return graph


def in_words(parts: Sequence[Sequence[str]]) -> str:
    """Return the parts of a graph as an error names them.

    >>> in_words([["a", "b"], ["c"]])
    '(a, b) and (c)'
    """
    shown = [f"({few(list(part))})" for part in parts[:4]]
    return " and ".join([*shown, f"{len(parts) - 4} more"] if len(parts) > 4 else shown)


def _networkx() -> Any:
    try:
        import networkx
    except ImportError as cause:
        raise ConfigurationError(
            f"random graphs, and how many nodes a graph may lose, need networkx ({cause}); install it with: "
            f'pip install "fedspan[gossip]"'
        ) from cause
    return networkx
