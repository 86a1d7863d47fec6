"""Who shares masks with whom: a random k-regular graph (Bell et al., 2020, section 3), a new one for each seed.

It is the Harary graph of an order that the seed shuffles: sites on a circle, each joined to the k/2 nearest on either
side. The order is that of a hash, so all who know the seed and the names find the same graph, with every version of
every package.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Sequence

from fedspan.errors import ConfigurationError, few


def neighbours(names: Sequence[str], seed: bytes, k: int) -> dict[str, list[str]]:
    """Return each site's neighbours, by name: k of them, or all the others when k is at least n - 1.

    >>> neighbours(["a", "b", "c", "d", "e"], b"round 1", 2)
    {'a': ['d', 'e'], 'b': ['c', 'd'], 'c': ['b', 'e'], 'd': ['a', 'b'], 'e': ['a', 'c']}
    """
    circle = Circle(names, seed, k)
    return {name: circle.neighbours(name) for name in sorted(names)}


class Circle:
    """The graph as a circle, for those who want one site's neighbours only."""

    def __init__(self, names: Sequence[str], seed: bytes, k: int) -> None:
        n, known = len(names), sorted(set(names))
        if len(known) < n:
            twice = [name for name in known if names.count(name) > 1]
            raise ConfigurationError(f"a graph joins sites of different names; given more than once: {few(twice)}")
        if k < n - 1 and (k < 2 or k % 2):
            raise ConfigurationError(f"k is even and at least 2, or all {n - 1} others; got {k}")
        self._known, self._k = known, k
        self._order = sorted(known, key=lambda name: hashlib.sha256(seed + name.encode()).digest())
        self._at = {name: place for place, name in enumerate(self._order)}

    def neighbours(self, name: str) -> list[str]:
        """Return a site's neighbours, sorted."""
        n, at, half = len(self._known), self._at[name], self._k // 2
        if self._k >= n - 1:
            return [other for other in self._known if other != name]
        return sorted(self._order[(at + step) % n] for step in range(-half, half + 1) if step)

    def most_missing(self, present: Container[str]) -> int:
        """Return how many of k/2 sites in a row on the circle are not present, at the place where most are."""
        half, missing = self._k // 2, [name not in present for name in self._order]
        if not half or len(missing) <= half:
            return sum(missing)
        count = most = sum(missing[:half])
        for place, gone in enumerate(missing):
            count += missing[(place + half) % len(missing)] - gone
            most = max(most, count)
        return most
