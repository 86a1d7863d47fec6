"""A tree of merges: sites at the leaves, nodes that each combine what their children have, one root.

Sites publish CUMULATIVE summaries, numbered. A node keeps the newest of each child and combines on demand, so a summary
that is lost or comes twice does no harm: the next one brings all it held. Nothing is waited for.
"""

from __future__ import annotations

from collections.abc import Callable

from fedspan.encoding import Plain
from fedspan.errors import ConfigurationError

Combine = Callable[[list[Plain]], Plain]
"""Makes one value of several."""
_Key = tuple[tuple[str, int], ...]


class Tree:
    """Keeps the newest value of each site (the one of the highest ``"seq"``) and combines them up to the root.

    >>> tree = Tree(lambda values: {"sum": sum(v["sum"] for v in values)}, fan_out=2)
    >>> for site, seq, value in [("a", 1, 1), ("b", 1, 10), ("a", 2, 5), ("a", 1, 1), ("c", 1, 100)]:
    ...     _ = tree.put(site, {"seq": seq, "sum": value})
    >>> tree.root(), tree.depth
    ({'sum': 115}, 2)
    """

    def __init__(self, combine: Combine, fan_out: int | None = None, depth: int | None = None) -> None:
        self._combine, self._fan_out, self._depth = combine, fan_out, depth
        self._newest: dict[str, Plain] = {}
        self._nodes: dict[_Key, Plain] = {}
        self.depth = 0
        """Levels of nodes above the sites, when last combined."""

    def put(self, site: str, value: Plain) -> bool:
        """Keep a value if it is newer than the site's last; say whether it was."""
        known = self._newest.get(site)
        if known is not None and known["seq"] >= value["seq"]:
            return False
        self._newest[site] = value
        return True

    def root(self) -> Plain:
        """Return what the root has; nodes beneath which nothing is new are not combined again."""
        sites = sorted(self._newest)
        fan_out = fan_out_of(len(sites), self._fan_out, self._depth)
        level: list[tuple[_Key, Plain]] = [(((s, self._newest[s]["seq"]),), self._newest[s]) for s in sites]
        used: dict[_Key, Plain] = {}
        self.depth = 0
        while len(level) > 1 or self.depth == 0:
            groups = [level[start : start + fan_out] for start in range(0, len(level), fan_out)]
            level = [self._node(children, used) for children in groups]
            self.depth += 1
        self._nodes = used
        return level[0][1]

    def _node(self, children: list[tuple[_Key, Plain]], used: dict[_Key, Plain]) -> tuple[_Key, Plain]:
        if len(children) == 1 and self.depth > 0:  # a last node with one child has what that has
            return children[0]
        key = tuple(leaf for leaves, _ in children for leaf in leaves)
        used[key] = self._nodes[key] if key in self._nodes else self._combine([value for _, value in children])
        return key, used[key]


def fan_out_of(sites: int, fan_out: int | None, depth: int | None) -> int:
    """Return how many children a node has, from either or both of fan-out and depth; all, if neither is given.

    >>> fan_out_of(1000, None, 3), fan_out_of(1000, 10, None), fan_out_of(7, None, None)
    (10, 10, 7)
    """
    if depth is None:
        return max(fan_out or sites, 2)
    if fan_out is None:
        fan_out = 2
        while fan_out**depth < sites:
            fan_out += 1
    if fan_out**depth < sites:
        raise ConfigurationError(
            f"a tree of depth {depth} with fan_out = {fan_out} has room for {fan_out**depth} sites, and there are "
            f"{sites}; give a larger fan_out or depth, or leave one of them out"
        )
    return max(fan_out, 2)
