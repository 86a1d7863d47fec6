"""Running a method on a task until the FAPS paper's own rule (27) holds, and measuring it as the paper does.

Every method starts from the same random basis, at iteration rank p, without a tolerance of its own. Rule (27) is
applied from outside to its estimates, with the pooled Gram matrix, so that all are stopped alike; the time that takes
is not counted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedspan.data import ArraySource, Source, SymmetricSource
from fedspan.encoding import Array
from fedspan.engines import InProcess
from fedspan.linalg import orth, top_eigenvectors
from fedspan.metrics import kkt_violation
from fedspan.rounds import Outcome, Round, Site, drive, numbered
from fedspan.solvers import FAPS, BlockKrylov, FedPower, Power, Problem, Solver

MOST = 3000
"""Iterations at most (section 5.2)."""
TOL = 1e-10
"""The tolerance of rule (27)."""
NEAR = 2e-6
"""Just above the scaled KKT violations that the paper prints for its runs on (23)."""

METHODS: dict[str, Solver] = {  # two rounds to spare, so that it is rule (27) that ends a run
    "SSI": Power(rounds=MOST + 2, tol=0),
    "LocalPower": FedPower(rounds=MOST + 2, tol=0, local_steps=8, sync="halve", align="procrustes"),
    "FAPS": FAPS(rounds=MOST + 2, tol=0),
    "FAPS as published": FAPS.published(rounds=MOST + 2, tol=0),
    "Krylov": BlockKrylov(rounds=MOST + 2, tol=0, oversampling=0),
}
"""The paper's three, FAPS once with fedspan's settings and once with the paper's, and block Krylov at rank p."""


@dataclass(frozen=True)
class Task:
    """A federation and the answer it should give."""

    sources: Mapping[str, Source]
    gram: Array
    """Pooled."""
    values: Array
    """Its p leading eigenvalues."""

    @classmethod
    def of(cls, parts: Mapping[str, Array], p: int) -> Task:
        """Hand each site its A_i'A_i, or its rows where multiplying those is cheaper."""
        gram = np.asarray(sum(rows.T @ rows for rows in parts.values()))
        return cls({name: _source(rows) for name, rows in parts.items()}, gram, top_eigenvectors(gram, p).values)

    def start(self, seed: int) -> Array:
        """Return a random start: entries uniform in [-1, 1], orthonormalised (section 5.2)."""
        return orth(np.random.default_rng(seed).uniform(-1, 1, (len(self.gram), len(self.values))))


def _source(rows: Array) -> Source:
    m, n = rows.shape
    return SymmetricSource(rows.T @ rows) if 2 * m >= n else ArraySource(rows)


@dataclass(frozen=True)
class Run:
    """One method from one start."""

    iterations: int
    """Rounds until rule (27) held."""
    met: bool
    """Whether it ever did."""
    seconds: float
    error: float
    """In the singular values: ||S - S*||_F / ||S*||_F."""
    curve: list[float]
    """The scaled KKT violation after 0, 1, 2, ... iterations."""
    inner: float | None
    """FAPS: inner steps of a site in a round, on average."""

    @property
    def kkt(self) -> float:
        """The scaled KKT violation at the end."""
        return self.curve[-1]

    @property
    def near(self) -> int | None:
        """Iterations until the scaled KKT violation was at most `NEAR`."""
        return next((at for at, violation in enumerate(self.curve) if violation <= NEAR), None)


class _Stopped(Exception):
    """The run is over."""


class _Watcher:
    """Executes rounds, keeps what the measures need of each estimate, and stops the run."""

    def __init__(self, task: Task, sites: list[Site], most: int) -> None:
        self._engine, self._task, self._most = InProcess(sites), task, most
        self._total = float(np.trace(task.gram))
        self.captured: list[float] = []
        self.curve: list[float] = []
        self.projected = np.zeros((0, 0))
        self.seconds = 0.0
        self._since = time.perf_counter()

    @property
    def met(self) -> bool:
        """Rule (27). Krylov's first round only gives values to the start, so the rule begins with the second."""
        if len(self.captured) < 3:
            return False
        return abs(self.captured[-1] - self.captured[-2]) <= TOL * self.captured[-1]

    def look(self, z: Array) -> None:
        """Measure an estimate."""
        product = self._task.gram @ z
        self.projected = z.T @ product
        self.captured.append(float(np.trace(self.projected)))
        self.curve.append(kkt_violation(z, product, self._total))

    def __call__(self, question: Round) -> Outcome:
        assert question.estimate is not None  # every round of the methods here has one
        self.seconds += time.perf_counter() - self._since
        self.look(question.estimate)
        if self.met or len(self.curve) > self._most:
            raise _Stopped
        self._since = time.perf_counter()
        return self._engine(question)


def follow(solver: Solver, task: Task, start: Array, most: int = MOST) -> Run:
    """Run a method until rule (27) holds, or for ``most`` iterations."""
    sites = [Site(name, source) for name, source in task.sources.items()]
    watcher, p = _Watcher(task, sites, most), start.shape[1]
    problem = Problem(start, p, total=float(np.trace(task.gram)))
    met = True
    try:
        solution = drive(numbered(solver.solve(problem)), watcher)
        watcher.look(solution.estimate.basis)  # Krylov with nothing left to ask: the answer is exact
    except _Stopped:
        met = watcher.met
    exact = np.sqrt(task.values)
    found = np.sqrt(np.maximum(np.linalg.eigvalsh(watcher.projected)[::-1], 0.0))
    error = float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
    iterations = len(watcher.curve) - 1
    return Run(iterations, met, watcher.seconds, error, watcher.curve, _inner_steps(sites, iterations))


def _inner_steps(sites: list[Site], iterations: int) -> float | None:
    kept = [site.memory.versions[0][1].get("faps") for site in sites]
    steps = [local["steps"] for local in kept if local is not None]
    return float(np.mean(steps)) / iterations if steps else None
