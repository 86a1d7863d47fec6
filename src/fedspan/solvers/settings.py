"""What iterative solvers' settings share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from fedspan.errors import ConfigurationError
from fedspan.solvers.problem import Problem


def whole(name: str, value: Any, expected: str = "an integer") -> int:
    """Return an integer setting, numpy's as Python's own; refuse anything else.

    >>> whole("rounds", 2.5)
    Traceback (most recent call last):
    fedspan.errors.ConfigurationError: rounds is an integer, got 2.5 (float)
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ConfigurationError(f"{name} is {expected}, got {value!r} ({type(value).__name__})")
    return int(value)


def finite(name: str, value: Any) -> float:
    """Return a finite number, numpy's as Python's own; refuse anything else."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ConfigurationError(f"{name} is a finite number, got {value!r} ({type(value).__name__})")
    return float(value)


def settle(settings: object, **values: Any) -> None:
    """Put checked values in place of what was given: for ``__post_init__`` of a frozen dataclass."""
    for name, value in values.items():
        object.__setattr__(settings, name, value)


@dataclass(frozen=True, kw_only=True)
class Iterative:
    """A budget of communications, a tolerance (0: use the whole budget) and an oversampling of the rank."""

    rounds: int = 100
    tol: float = 1e-9
    oversampling: int = 0

    def __post_init__(self) -> None:
        settle(
            self,
            rounds=whole("rounds", self.rounds),
            tol=finite("tol", self.tol),
            oversampling=whole("oversampling", self.oversampling),
        )
        if self.rounds < 1:
            raise ConfigurationError(f"rounds is the budget of communications, at least 1; got {self.rounds}")
        if self.tol < 0 or self.oversampling < 0:
            raise ConfigurationError(f"tol and oversampling are not negative; got {self.tol}, {self.oversampling}")

    @property
    def partial(self) -> bool:
        """Power-like methods stay right on average when only some sites answer."""
        return True

    @property
    def releases(self) -> int | None:
        """One a round."""
        return self.rounds

    def rank(self, k: int, d: int) -> int:
        """Return the iteration rank r = k + oversampling, at most d."""
        return min(k + self.oversampling, d)

    def attainable(self, problem: Problem) -> float:
        """Return the tolerance, raised to what the sites' precision can meet."""
        return max(self.tol, problem.precision) if self.tol > 0 else 0.0
