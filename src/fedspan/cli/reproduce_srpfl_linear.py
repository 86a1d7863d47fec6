"""Theorem 4.9 in the linear case: the time of doubling over that of full participation, predicted and measured.

The paper shows no experiment of it. Sites share a planted subspace, with noise 1; communication takes C = 1 mean
compute time. Full participation runs to its floor; the target is 1.1 times that. A stage of doubling ends where its
loss stalls: the theorem's own constant asks for hundreds of rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedspan.cli.reproduce_shared import Report
from fedspan.data.labelled import Labelled
from fedspan.datasets import shared_representation
from fedspan.encoding import Array
from fedspan.engines import VirtualTime
from fedspan.layers import RoundRecord
from fedspan.learners import FedRep
from fedspan.learning import Learning, learn
from fedspan.metrics import doubling_bounds, order_statistic_mean, projection_distance
from fedspan.solvers import Doubling

ROWS, FEATURES, COMPONENTS, NOISE = 50, 20, 2, 1.0
RATE = 1 / 8
"""The largest that Theorem 4.7 allows where the heads' second moment is the identity."""
COMMUNICATION, TARGET, PART = 1.0, 1.1, 8
FULL_ROUNDS, LAST_ROUNDS, STALL, MOST = 100, 50, 0.01, 60


@dataclass(frozen=True)
class Linear:
    """How much of it is run."""

    sites: tuple[int, ...]
    seeds: int


def measure_linear(limits: Linear, report: Report) -> list[dict[str, Any]]:
    """Return, for each number of sites, the means over the seeds."""
    measured = []
    for sites in limits.sites:
        cells = [_cell(sites, seed) for seed in range(limits.seeds)]
        means = {key: float(np.mean([cell[key] for cell in cells])) for key in cells[0]}
        bounds = doubling_bounds(sites // PART, sites, means["a"], COMMUNICATION, TARGET)
        predicted = bounds.expected_doubling / bounds.expected_full
        ratio = means["doubling"] / means["full"]
        measured.append({"sites": sites, **means, "ratio": ratio, "counts": predicted, "bound": bounds.ratio})
        report(f"theorem 4.9: {sites} sites, ratio {ratio:.2f}")
    return measured


def _cell(sites: int, seed: int) -> dict[str, float]:
    problem = shared_representation(sites, ROWS, FEATURES, k=COMPONENTS, noise=NOISE, seed=seed)
    data = {f"site{i:04d}": Labelled(x, y) for i, (x, y) in enumerate(zip(problem.X, problem.y, strict=True))}
    plain = FedRep(rounds=FULL_ROUNDS, rate=RATE, batch=0, heads=True)
    stage = FedRep(rounds=LAST_ROUNDS, rate=RATE, batch=0)
    doubling = Doubling(stage=stage, n0=sites // PART, rounds="stall", stall=STALL, most=MOST)
    full, times, contraction = _run(plain, data, problem.representation, seed)
    fast, fast_times, _ = _run(doubling, data, problem.representation, seed)
    target = TARGET * float(full[-1])
    met = int(np.flatnonzero(full <= target)[0])
    return {
        "floor": float(full[-1]), "rounds": met, "full": float(times[met]), "a": 1 - contraction**2,
        "doubling": _reached(fast, fast_times, target),
    }  # fmt: skip


def _run(learner: Any, data: dict[str, Labelled], planted: Array, seed: int) -> tuple[Array, Array, float]:
    """Return the distance to what was planted and the expected virtual time, round by round; and the contraction."""
    distances, waited = list[float](), list[float]()

    def watch(record: RoundRecord, estimate: Array | None) -> None:
        if record.step == "fedrep.update" and estimate is not None:
            distances.append(projection_distance(estimate, planted))
            waited.append(order_statistic_mean(record.sites, len(data)) + COMMUNICATION)

    study = Learning(learner=learner, model={"kind": "linear", "components": COMPONENTS}, seed=seed)
    result = learn(study, data, engine=VirtualTime(), watchers=[watch])
    distances.append(projection_distance(result.shared, planted))
    return np.array(distances), np.cumsum([0.0, *waited]), result.learned.contraction or 0.0


def _reached(distances: Array, times: Array, target: float) -> float:
    hit = np.flatnonzero(distances <= target)
    return float(times[hit[0]]) if len(hit) else float("inf")
