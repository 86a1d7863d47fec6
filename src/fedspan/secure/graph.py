"""Who shares masks with whom: a random k-regular graph (Bell et al., 2020, section 3), a new one for each seed.

It is the Harary graph of an order that the seed shuffles: sites on a circle, each joined to the k/2 nearest on either
side. The order is that of a hash, so all who know the seed and the names find the same graph, with every version of
every package.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from fedspan.errors import ConfigurationError, few


def neighbours(names: Sequence[str], seed: bytes, k: int) -> dict[str, list[str]]:
    """Return each site's neighbours, by name: k of them, or all the others when k is at least n - 1.

    >>> neighbours(["a", "b", "c", "d", "e"], b"round 1", 2)
    {'a': ['d', 'e'], 'b': ['c', 'd'], 'c': ['b', 'e'], 'd': ['a', 'b'], 'e': ['a', 'c']}
    """
    n, known = len(names), sorted(set(names))
    if len(known) < n:
        twice = [name for name in known if names.count(name) > 1]
        raise ConfigurationError(f"a graph joins sites of different names; given more than once: {few(twice)}")
    if k >= n - 1:
        return {name: [other for other in known if other != name] for name in known}
    if k < 2 or k % 2:
        raise ConfigurationError(f"k is even and at least 2, or all {n - 1} others; got {k}")
    circle = sorted(known, key=lambda name: hashlib.sha256(seed + name.encode()).digest())
    steps = [step for step in range(-k // 2, k // 2 + 1) if step]
    at = {name: place for place, name in enumerate(circle)}
    return {name: sorted(circle[(at[name] + step) % n] for step in steps) for name in known}
