"""What every learner is given, and what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from fedspan.encoding import Array, Plain
from fedspan.rounds import Cohort, Solve


@dataclass(frozen=True)
class Task:
    """Parameters that all sites share are to be learnt; what is a site's own stays in its memory."""

    start: Array
    """The shared parameters to begin with: a d x k basis (linear), or one flat vector (a network's)."""
    model: dict[str, Plain]
    """What the parameters mean (`fedspan.learners.model.model_of`). Plain data: it travels with every question."""
    sites: int
    """How many sites there are."""
    seed: int = 0
    """What the sites' own parameters begin with, alike at all sites, is drawn from it."""
    cohort: Cohort = field(default_factory=Cohort)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))


@dataclass(frozen=True)
class Learned:
    """What a learner returns: the shared parameters, and how well they fitted."""

    shared: Array
    loss: float | None = None
    """The mean training loss of the sites that answered last."""
    converged: bool | None = None
    """Whether progress stalled within the budget (None: that was not asked for)."""
    diverged: int = 0
    """How many replies were left out because the learner diverged at their sites; in doubling, of the last stage."""
    contraction: float | None = None
    """By how much a round shrinks the distance to the answer, 1 - eta sigma_min^2 of the heads, where that is known."""

    @property
    def onward(self) -> Array:
        """What a later stage can go on from."""
        return self.shared


class Learner(Protocol):
    """The settings of a method: a frozen dataclass whose `solve` is the coordinator's half."""

    @property
    def rounds(self) -> int:
        """The budget of communications."""
        ...

    def solve(self, task: Task) -> Solve[Learned]:
        """Yield rounds, return what was learnt."""
        ...

    @property
    def own(self) -> str:
        """Which part of a model each site keeps to itself: ``"head"``, ``"body"`` or ``"none"``."""
        ...

    @property
    def head_layers(self) -> int:
        """How many of a network's last layers are its head."""
        ...


def stalled(losses: Sequence[float], stall: float | None, window: int = 3) -> bool:
    """Whether the mean loss of the last rounds is less than ``stall`` below that of as many before, relatively.

    >>> stalled([1.0, 0.9, 0.8, 0.8, 0.8, 0.8], stall=0.2), stalled([3.0, 2.0, 1.0, 0.5, 0.3, 0.2], stall=0.2)
    (True, False)
    """
    if stall is None or len(losses) < 2 * window:
        return False
    before, now = np.mean(losses[-2 * window : -window]), np.mean(losses[-window:])
    return bool(now > (1 - stall) * before)
