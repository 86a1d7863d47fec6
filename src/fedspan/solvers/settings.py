"""What iterative solvers' settings share."""

from __future__ import annotations

from dataclasses import dataclass

from fedspan.errors import ConfigurationError
from fedspan.solvers.problem import Problem


@dataclass(frozen=True, kw_only=True)
class Iterative:
    """A budget of communications, a tolerance (0: use the whole budget) and an oversampling of the rank."""

    rounds: int = 100
    tol: float = 1e-9
    oversampling: int = 0

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ConfigurationError(f"rounds is the budget of communications, at least 1; got {self.rounds}")
        if self.tol < 0 or self.oversampling < 0:
            raise ConfigurationError(f"tol and oversampling are not negative; got {self.tol}, {self.oversampling}")

    @property
    def partial(self) -> bool:
        """Power-like methods stay right on average when only some sites answer."""
        return True

    def rank(self, k: int, d: int) -> int:
        """Return the iteration rank r = k + oversampling, at most d."""
        return min(k + self.oversampling, d)

    def attainable(self, problem: Problem) -> float:
        """Return the tolerance, raised to what the sites' precision can meet."""
        return max(self.tol, problem.precision) if self.tol > 0 else 0.0
