"""A solver of nothing, for tests: its sites keep state between rounds and draw noise, so that every repetition shows.

Each site holds a position. A round adds the message, noise and the position before; the sum of positions is the next
message. A round that ran twice, or went on from the wrong state, changes every number after it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from fedspan.linalg import Estimate, orth
from fedspan.rounds import STEPS, Reply, Round, Site, Solve, Sum, site_step
from fedspan.solvers import NAMES, SOLVERS, Problem, Solution

NAME = "tests-walk"


def _walk(site: Site, message, noise) -> Reply:
    before = site.state.get("position", np.zeros_like(message))
    steps = site.state.get("steps", 0)
    position = before / 2 + message + noise + site.data.gram_times(message) / 1000
    return Reply(site.noised(position=position), state={"position": position, "steps": steps + 1})


@site_step("tests.walk")
def walk(site: Site, message) -> Reply:
    """Noise from the site's own generator: the same for the same round."""
    return _walk(site, message, site.rng.standard_normal(message.shape))


@site_step("tests.walk_entropy")
def walk_entropy(site: Site, message) -> Reply:
    """Noise that nobody can draw again."""
    raw = np.frombuffer(os.urandom(2 * message.size), dtype=np.uint16).reshape(message.shape)
    return _walk(site, message, raw / 65536.0)


@site_step("tests.walk_restart", lost="restart")
def walk_restart(site: Site, message) -> Reply:
    """Goes on from the message alone where its state is lost."""
    return _walk(site, message, site.rng.standard_normal(message.shape))


@dataclass(frozen=True, kw_only=True)
class Walk:
    """Asks a step so many times."""

    rounds: int = 4
    step: str = "tests.walk"
    partial = True

    def rank(self, k: int, d: int) -> int:
        """Return k."""
        return k

    def solve(self, problem: Problem) -> Solve[Solution]:
        """Sum, orthonormalise, ask again."""
        z = problem.start
        for _ in range(self.rounds):
            total = yield Round(STEPS[self.step], z, Sum(), problem.cohort, estimate=z)
            z = orth(total)
        return Solution(Estimate(z, np.linalg.norm(total, axis=0)))


def register(monkeypatch) -> None:
    """Have studies know the solver, for one test."""
    monkeypatch.setitem(SOLVERS, NAME, Walk)
    monkeypatch.setitem(NAMES, Walk, NAME)
