"""Linear representations: doubling against full participation, N = 64, 256 and 1024, in virtual time (Theorem 4.9).

Who is fast says nothing of what a site holds, and one basis is enough to start from at random. So each run's rounds
are stamped with what they take on average over all draws of exponential speeds: the n-th of N replies is there after
H_N - H_{N-n} mean compute times; communication takes C = 1 of them.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.report import figure, finish
from fedspan.data.labelled import Labelled
from fedspan.datasets import shared_representation
from fedspan.encoding import Array
from fedspan.engines import VirtualTime
from fedspan.learners import FedRep
from fedspan.learning import Learning, learn
from fedspan.metrics import doubling_bounds, order_statistic_mean, projection_distance
from fedspan.solvers import Doubling

ROWS, FEATURES, COMPONENTS, NOISE, SEEDS = 50, 20, 2, 1.0, 5
RATE, COMMUNICATION, TARGET = 1 / 8, 1.0, 1.1
"""The rate is the largest that Theorem 4.7 allows where the heads' second moment is the identity."""
FULL, LAST, STALL, MOST = 100, 50, 0.01, 60
STARTS = {"random": 8, "moments": 4}
"""How each run begins, and which part of the sites doubling begins with: one over this."""
LIMITS = {("random", 256): 0.55, ("random", 1024): 0.40, ("moments", 256): 0.70, ("moments", 1024): 0.70}


@dataclass(frozen=True)
class Cell:
    """One seed of one setting: where both runs met the target, and when."""

    full: float
    doubling: float
    formula: float
    start_time: float
    floor: float
    rounds_full: int
    early: list[int]
    contraction: float


def main() -> None:
    """Print the ratios for each N and start, with what the theorem predicts beside."""
    ratios: dict[str, list[float]] = {}
    for start, part in STARTS.items():
        for sites in (64, 256, 1024):
            with ProcessPoolExecutor() as pool:
                cells = list(pool.map(one, [(sites, start, part, seed) for seed in range(SEEDS)]))
            ratios.setdefault(start, []).append(report(sites, start, part, cells))
    falls = max(b - a for a, b in zip(ratios["random"], ratios["random"][1:], strict=False))
    figure("random start: largest step of the ratio from one N to the next (negative: it falls)", falls, 0.0)
    finish()


def one(asked: tuple[int, str, int, int]) -> Cell:
    """Run full participation to its floor, then doubling with the same rows and start."""
    sites, start, part, seed = asked
    problem = shared_representation(sites, ROWS, FEATURES, k=COMPONENTS, noise=NOISE, seed=seed)
    data = {f"site{i:04d}": Labelled(x, y) for i, (x, y) in enumerate(zip(problem.X, problem.y, strict=True))}
    stage = FedRep(rounds=LAST, rate=RATE, batch=0)
    full = run(FedRep(rounds=FULL, rate=RATE, batch=0, heads=True), data, problem.representation, start, seed)
    rules: dict[str, Any] = {
        "stall": {"rounds": "stall", "stall": STALL, "most": MOST},
        "formula": {"rounds": "formula", "contraction": 1 - full.contraction**2},
    }
    fast, planned = (
        run(Doubling(stage=stage, n0=sites // part, **rule), data, problem.representation, start, seed)
        for rule in rules.values()
    )
    target = TARGET * full.distances[-1]
    waited, counts = np.unique(fast.waited, return_counts=True)
    return Cell(
        full=full.reached(target, sites), doubling=fast.reached(target, sites),
        formula=planned.reached(target, sites), start_time=full.start_time, floor=float(full.distances[-1]),
        rounds_full=int(np.flatnonzero(full.distances <= target)[0]), early=counts[waited < sites].tolist(), contraction=full.contraction,
    )  # fmt: skip


@dataclass(frozen=True)
class Trajectory:
    """The distance to the planted subspace before each round and after the last, and whom each round waited for."""

    distances: Array
    waited: Array
    start_time: float
    contraction: float

    def reached(self, target: float, sites: int) -> float:
        """Return the expected virtual time at which the distance first is the target."""
        times = [order_statistic_mean(int(n), sites) + COMMUNICATION for n in self.waited]
        hit = np.flatnonzero(self.distances <= target)
        return float(np.sum(times[: hit[0]])) if len(hit) else float("inf")


def run(learner: Any, data: dict[str, Labelled], planted: Array, start: str, seed: int) -> Trajectory:
    """Run one learner; note the distance to what was planted, round by round."""
    distances: list[float] = []
    waited: list[int] = []

    def watch(record: Any, estimate: Array | None) -> None:
        if record.step == "fedrep.update" and estimate is not None:
            distances.append(projection_distance(estimate, planted))
            waited.append(record.sites)

    study = Learning(learner=learner, model={"kind": "linear", "components": COMPONENTS}, start=start, seed=seed)
    result = learn(study, data, engine=VirtualTime(), watchers=[watch])
    distances.append(projection_distance(result.shared, planted))
    started = 0 if result.start is None else sum(not record.setup for record in result.start.history)
    every = order_statistic_mean(len(data), len(data)) + COMMUNICATION
    return Trajectory(np.array(distances), np.array(waited), started * every, result.learned.contraction or 0.0)


def report(sites: int, start: str, part: int, cells: list[Cell]) -> float:
    """Print one line of the table, and what the theorem says of it; return the ratio."""
    full, fast, planned, begun = (
        float(np.mean([getattr(c, name) for c in cells])) for name in ("full", "doubling", "formula", "start_time")
    )
    a = 1 - float(np.mean([c.contraction for c in cells])) ** 2
    bounds = doubling_bounds(sites // part, sites, a, COMMUNICATION, TARGET)
    what = f"N = {sites}, {start} start"
    figure(f"{what}: floor of full participation, distance", float(np.mean([c.floor for c in cells])))
    figure(f"{what}: its rounds to 1.1 times that", float(np.mean([c.rounds_full for c in cells])))
    rounds = [float(np.mean(r)) for r in zip(*(c.early for c in cells), strict=True)]
    figure(f"{what}: rounds of doubling's early stages, from {sites // part} sites on", rounds[0], unit=str(rounds[1:]))
    figure(f"{what}: time of full participation, of doubling", full, unit=f"{fast:.1f}")
    ratio = fast / full
    figure(f"{what}: ratio", ratio, LIMITS.get((start, sites)))
    figure(f"{what}: the same with the rounds of (203) in place of the stall rule", planned / full)
    if begun:
        figure(f"{what}: the same with the start's own rounds, alike for both", (fast + begun) / (full + begun))
    figure(f"{what}: a from the heads, sqrt(1 - a) = 1 - eta sigma_min^2", a)
    figure(
        f"{what}: predicted ratio, by the counts of rounds (203), (240) and (253)",
        bounds.expected_doubling / bounds.expected_full,
    )
    figure(f"{what}: predicted ratio, the theorem's bound (256)", bounds.ratio)
    return ratio


if __name__ == "__main__":
    sys.exit(main())
