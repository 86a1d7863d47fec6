"""How the numbers of a reply lie in one vector, for engines that add vectors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from fedspan.encoding import Array, Plain
from fedspan.errors import ConvergenceError
from fedspan.rounds import Reply

_WEIGHT = ""
"""The part that is the weights of a `Mean`; no reply has one of this name."""


@dataclass(frozen=True)
class Layout:
    """The parts of a reply with their shapes, one after another; of a `Mean`, the weight is the last."""

    shapes: tuple[tuple[str | None, tuple[int, ...]], ...]
    """Each part's name (None: the reply is one array) and shape."""

    @classmethod
    def of(cls, reply: Reply, *, weighted: bool = False) -> Layout:
        """Return the layout of a reply and all that are like it."""
        value: Any = reply.value
        parts = list(value.items()) if isinstance(value, dict) else [(None, value)]
        shapes = tuple((name, np.shape(part)) for name, part in parts)
        return cls((*shapes, (_WEIGHT, ())) if weighted else shapes)

    @property
    def sizes(self) -> list[int]:
        """How many numbers each part has."""
        return [math.prod(shape) for _, shape in self.shapes]

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return sum(self.sizes)

    @property
    def parts(self) -> list[slice]:
        """Where each part lies."""
        ends = np.cumsum([0, *self.sizes]).tolist()
        return [slice(start, stop) for start, stop in pairwise(ends)]

    @property
    def names(self) -> list[str | None]:
        """What each part is called."""
        return [name for name, _ in self.shapes]

    def pack(self, site: str, reply: Reply) -> Array:
        """Return a reply's numbers; its weight times them, and the weight, where there is one."""
        weighted = self.names[-1] == _WEIGHT
        if Layout.of(reply, weighted=weighted) != self:
            raise ConvergenceError(
                f"site {site!r} replies {_words(Layout.of(reply))}, where others reply {_words(self)}: the nodes' "
                f"solvers went different ways; let them agree (agree = True), or give a smaller accuracy"
            )
        value: Any = reply.value
        parts = [np.ravel(part) for part in (value.values() if isinstance(value, dict) else [value])]
        if weighted:
            parts = [*(reply.weight * part for part in parts), np.array([reply.weight])]
        return np.concatenate(parts).astype(float)

    def unpack(self, numbers: Array) -> Plain:
        """Return the value that a sum of packed replies stands for."""
        if self.names[-1] == _WEIGHT:
            numbers = numbers / numbers[-1]
        value = {
            name: numbers[part].reshape(shape)[()]  # a number, where the part is one
            for (name, shape), part in zip(self.shapes, self.parts, strict=True)
            if name != _WEIGHT
        }
        return value.get(None, value)


def _words(layout: Layout) -> str:
    return ", ".join(f"{name or 'an array'} of shape {shape}" for name, shape in layout.shapes if name != _WEIGHT)
