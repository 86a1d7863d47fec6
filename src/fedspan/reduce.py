"""What the coordinator may see of the replies: a sum, mean or merge, or each one. Declared, so that layers can refuse.

An engine asks a reduction for a collector, adds replies to it and takes the result. A plain collector adds in the
order of arrival (the in-process engine visits sites in name order, so its sums repeat to the bit). An order-free
one gives the same bits whatever the order, for engines where replies race; it costs O(d r) memory like the plain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedspan.encoding import Array, Plain
from fedspan.linalg.accumulate import OrderFreeSum
from fedspan.topology import Tree
from fedspan.topology.tree import Combine


class _PlainSum:
    """Adds arrays, or dicts of arrays and numbers, in the order given. Never changes what it was given."""

    def __init__(self) -> None:
        self._total: Any = None
        self._owned = False

    def add(self, value: Plain, times: float = 1) -> None:
        """Add ``times`` the value."""
        if isinstance(value, dict):
            if self._total is None:
                self._total = {key: _PlainSum() for key in value}
            for key, part in value.items():
                self._total[key].add(part, times)
            return
        if times != 1:
            value = times * value
        if self._total is None:
            self._total = value
        elif not self._owned or not isinstance(self._total, np.ndarray):
            self._total, self._owned = self._total + value, True
        else:
            np.add(self._total, value, out=self._total)

    def result(self) -> Plain:
        """Return the sum."""
        if isinstance(self._total, dict):
            return {key: part.result() for key, part in self._total.items()}
        return self._total


class _OrderFree(_PlainSum):
    """The same over `OrderFreeSum`: identical bits for every order of arrival."""

    def add(self, value: Plain, times: float = 1) -> None:
        """Add ``times`` the value."""
        if isinstance(value, dict):
            if self._total is None:
                self._total = {key: _OrderFree() for key in value}
            for key, part in value.items():
                self._total[key].add(part, times)
            return
        array = np.asarray(value, dtype=float)
        if self._total is None:
            self._total = OrderFreeSum(array.shape)
        self._total.add(array if times == 1 else times * array)

    def result(self) -> Plain:
        """Return the sum, rounded once."""
        if isinstance(self._total, dict):
            return {key: part.result() for key, part in self._total.items()}
        total: Array = self._total.result()
        return total if total.ndim else float(total)


class _SumCollector:
    def __init__(self, order_free: bool) -> None:
        self._sum = _OrderFree() if order_free else _PlainSum()

    def add(self, name: str, value: Plain, weight: float, times: int) -> None:
        self._sum.add(value, times)

    def result(self) -> Plain:
        return self._sum.result()


class _MeanCollector(_SumCollector):
    def __init__(self, order_free: bool) -> None:
        super().__init__(order_free)
        self._weight = _OrderFree() if order_free else _PlainSum()

    def add(self, name: str, value: Plain, weight: float, times: int) -> None:
        self._sum.add(value, times * weight)
        self._weight.add(float(weight), times)

    def result(self) -> Plain:
        total, weight = self._sum.result(), self._weight.result()
        if isinstance(total, dict):
            return {key: part / weight for key, part in total.items()}
        return total / weight


class _GatherCollector:
    def __init__(self) -> None:
        self._values: dict[str, Plain] = {}

    def add(self, name: str, value: Plain, weight: float, times: int) -> None:
        self._values[name] = value
        for again in range(2, times + 1):  # drawn with replacement: there as often as it was drawn
            self._values[f"{name} ({again})"] = value

    def result(self) -> Plain:
        return {name: self._values[name] for name in sorted(self._values)}


@dataclass(frozen=True)
class Sum:
    """The coordinator sees the sum of the values, part by part."""

    def collector(self, order_free: bool) -> _SumCollector:
        """Return an empty collector."""
        return _SumCollector(order_free)


@dataclass(frozen=True)
class Mean:
    """The coordinator sees the mean of the values, weighted by each reply's weight."""

    def collector(self, order_free: bool) -> _MeanCollector:
        """Return an empty collector."""
        return _MeanCollector(order_free)


@dataclass(frozen=True)
class Gather:
    """The coordinator sees each site's value, by name."""

    def collector(self, order_free: bool) -> _GatherCollector:
        """Return an empty collector."""
        return _GatherCollector()


class _MergeCollector:
    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def add(self, name: str, value: Plain, weight: float, times: int) -> None:
        self._tree.put(name, value)

    def result(self) -> Plain:
        return self._tree.root()


@dataclass(frozen=True)
class Merge:
    """The coordinator sees what ``combine`` makes of the sites' newest values, up a tree of nodes.

    Values are cumulative and say their place in ``"seq"``. What came in rounds before is remembered by the layer
    `fedspan.layers.merging`; a bare engine combines what came in this one.
    """

    combine: Combine
    fan_out: int | None = None
    """Children of a node; None: as many as ``depth`` asks for, or all sites under the root."""
    depth: int | None = None

    def tree(self) -> Tree:
        """Return the tree, of no values yet."""
        return Tree(self.combine, self.fan_out, self.depth)

    def collector(self, order_free: bool) -> _MergeCollector:
        """Return an empty collector."""
        return _MergeCollector(self.tree())


class _MaskedCollector:
    """Adds replies of one layout; of several, those of the most sites count: the others' masks do not cancel."""

    def __init__(self) -> None:
        self._groups: dict[_Layout, _MaskedGroup] = {}
        self._refused: dict[str, str] = {}

    def add(self, name: str, value: Plain, weight: float, times: int) -> None:
        layout = _masked_layout(value)
        if layout is None:
            said = value.get("refused") if isinstance(value, dict) else None
            self._refused[name] = said if isinstance(said, str) else "its reply is not masked"
            return
        if layout not in self._groups:
            self._groups[layout] = _MaskedGroup(value)
        self._groups[layout].add(name, value)

    def result(self) -> Plain:
        groups = sorted(self._groups.values(), key=lambda group: (-len(group.sites), group.sites))
        chosen = groups[0] if groups else _MaskedGroup({"masked": {}, "exponents": {}, "about": ""})
        unlike = [name for other in groups[1:] for name in other.sites]
        why = "its masked reply is not like the others': of another form, scale or state"
        return {
            "total": chosen.total, "exponents": chosen.exponents, "about": chosen.about,
            "sites": sorted(chosen.sites), "refused": self._refused | dict.fromkeys(unlike, why),
        }  # fmt: skip


class _MaskedGroup:
    def __init__(self, first: dict[str, Plain]) -> None:
        self.exponents: dict[str, int] = first["exponents"]
        self.about: str = first["about"]
        self.total: dict[str, Array] = {key: np.zeros_like(part) for key, part in first["masked"].items()}
        self.sites: list[str] = []

    def add(self, name: str, value: dict[str, Plain]) -> None:
        for key, total in self.total.items():
            np.add(total, value["masked"][key], out=total)  # wraps: this is addition modulo 2^64
        self.sites.append(name)


_Layout = tuple[str, tuple[tuple[str, tuple[int, ...], int], ...]]


def _masked_layout(value: Plain) -> _Layout | None:
    """Return how a masked reply is read, its parts' shapes and exponents; or None where it is none."""
    if not isinstance(value, dict) or set(value) != {"masked", "exponents", "about"}:
        return None
    parts, exponents = value["masked"], value["exponents"]
    if not isinstance(value["about"], str):
        return None
    if not isinstance(parts, dict) or not isinstance(exponents, dict) or set(parts) != set(exponents) or not parts:
        return None
    if not all(isinstance(part, np.ndarray) and part.dtype == np.uint64 for part in parts.values()):
        return None
    if not all(isinstance(e, int) and not isinstance(e, bool) and abs(e) <= MOST_EXPONENT for e in exponents.values()):
        return None
    return value["about"], tuple(sorted((key, part.shape, exponents[key]) for key, part in parts.items()))


MOST_EXPONENT = 1000
"""Fixed-point numbers are multiples of a power of two that is itself far from the ends of the floats."""


@dataclass(frozen=True)
class MaskedSum:
    """The coordinator sees the sum modulo 2^64 of masked replies, which tells nothing until the masks are taken off."""

    def collector(self, order_free: bool) -> _MaskedCollector:
        """Return an empty collector; integers add up alike in any order."""
        return _MaskedCollector()


Reduce = Sum | Mean | Gather | Merge | MaskedSum
