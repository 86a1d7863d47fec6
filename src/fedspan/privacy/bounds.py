"""`Bounds`: the public ranges of the columns, which rows are clamped to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedspan.encoding import Array
from fedspan.errors import ConfigurationError


@dataclass(frozen=True, eq=False)
class Bounds:
    """The public range of each column (or one for all): entries beyond it are clamped.

    >>> Bounds(0, [120, 250]).half_width(2)
    138.6...
    """

    low: Any
    high: Any

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            object.__setattr__(self, name, _side(name, getattr(self, name)))
        if 1 != len(self.low) != len(self.high) != 1:
            raise ConfigurationError(
                f"Bounds low names {len(self.low)} columns and high {len(self.high)}; give as many of each, or one "
                f"number for all columns"
            )
        if np.any(self.low >= self.high):
            raise ConfigurationError(f"Bounds need low < high in every column, got {self.low} and {self.high}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bounds) and hash(self) == hash(other)

    def __hash__(self) -> int:
        return hash((self.low.tobytes(), self.high.tobytes()))

    def half_width(self, d: int) -> float:
        """The norm of half the box's diagonal: no row in it is farther from its middle."""
        return float(np.linalg.norm(self._wide((self.high - self.low) / 2, d)))

    def reach(self, d: int) -> float:
        """The norm of the box's farthest corner from zero."""
        return float(np.linalg.norm(self._wide(np.maximum(abs(self.low), abs(self.high)), d)))

    def _wide(self, side: Array, d: int) -> Array:
        if len(side) not in (1, d):
            raise ConfigurationError(f"Bounds name {len(side)} columns, and the study has {d}; give one number or {d}")
        return np.broadcast_to(side, (d,))


def _side(name: str, given: Any) -> Array:
    """Return one side of a box as numbers, one for each column or one for all."""
    try:
        side = np.atleast_1d(np.asarray(given))
        side = side.astype(float) if side.dtype.kind in "iufO" else np.empty(0)  # a text of digits is no number
    except (TypeError, ValueError):  # lists of several lengths, or things that are no numbers
        side = np.empty(0)
    if side.ndim != 1 or side.size == 0 or not np.all(np.isfinite(side)):
        raise ConfigurationError(f"Bounds {name} is a finite number, or a list of one for each column; got {given!r}")
    return side
