"""PCA that waits for no straggler: doubling around power and Krylov against their plain forms, MNIST over 64 sites.

A run is read from its trajectory: the first round that was asked with an estimate whose ten leading Ritz vectors are
within 1e-6 of the pooled components, and the time when that question could be asked. Rounds are stamped with what they
take on average over all draws of exponential speeds (see `benchmarks.representation_linear`); the order of sites
differs from seed to seed, but for the last split: there the sites with small digits are the fast ones.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.report import figure, finish, need
from fedspan.data import Preparation, Source, open_source, partition
from fedspan.encoding import Array
from fedspan.engines import VirtualTime
from fedspan.engines.speeds import CorrelatedSpeeds
from fedspan.linalg import ritz
from fedspan.metrics import order_statistic_mean, projection_distance
from fedspan.run import Study, run
from fedspan.solvers import BlockKrylov, Doubling, Power

SITES, COMPONENTS, OVERSAMPLING, SEEDS, TARGET = 64, 10, 10, 5, 1e-6
POWER = Power(rounds=60, tol=0.0, oversampling=OVERSAMPLING)
KRYLOV = BlockKrylov(rounds=15, tol=0.0, oversampling=OVERSAMPLING)
SOLVERS = {
    "power": POWER,
    "doubling around power": Doubling(stage=POWER, rounds=2),
    "krylov": KRYLOV,
    "doubling around krylov": Doubling(stage=KRYLOV, rounds=3),
}
LIMITS = {0.0: 0.80, 1.0: 0.90}


class Reached(Exception):
    """The trajectory came near enough."""


def main() -> None:
    """Print the times of each solver on both splits, and their ratios to plain power."""
    data = need("mnist")
    rows = data.X.reshape(len(data.X), -1) / 255.0
    rows -= rows.mean(axis=0)
    gram = rows.T @ rows
    truth = np.linalg.eigh(gram)[1][:, : -COMPONENTS - 1 : -1]
    for split in ("random", "by label", "by label, in order of speed"):
        waits: dict[str, list[list[int]]] = {name: [] for name in SOLVERS}
        for seed in range(SEEDS):
            sources, engine = split_rows(rows, data.y, split, seed)
            for name, solver in SOLVERS.items():
                waits[name].append(waits_until(solver, sources, engine, gram, truth, seed))
        report(split, waits)
    finish()


def split_rows(rows: Array, labels: Array, split: str, seed: int) -> tuple[dict[str, Source], VirtualTime]:
    """Give each site a 64th of the rows: any, or of two labels; say who is fast."""
    if split == "random":
        parts = partition.even(len(rows), SITES, seed=seed)
    else:
        parts = partition.by_classes(labels, SITES, 2, seed=seed)
    sources: dict[str, Source] = {f"site{i:02d}": open_source(rows[part]) for i, part in enumerate(parts)}
    if not split.endswith("speed"):
        return sources, VirtualTime()
    least = {name: labels[part].mean() for name, part in zip(sources, parts, strict=True)}
    return sources, VirtualTime(speeds=CorrelatedSpeeds(order=tuple(sorted(sources, key=least.__getitem__))))


def waits_until(
    solver: Any, sources: Mapping[str, Source], engine: VirtualTime, gram: Array, truth: Array, seed: int
) -> list[int]:
    """Return how many sites each round waited for, until the estimate was good enough."""
    waited: list[int] = []

    def watch(record: Any, estimate: Array | None) -> None:
        if record.setup or estimate is None:
            return
        if projection_distance(ritz(estimate, gram @ estimate, COMPONENTS).basis, truth) <= TARGET:
            raise Reached
        waited.append(record.sites)

    study = Study(n_components=COMPONENTS, solver=solver, preparation=Preparation(center=False), seed=seed)
    try:
        run(study, sources, engine=engine, watchers=[watch])
    except Reached:
        return waited
    raise RuntimeError(f"{solver} did not come within {TARGET} in {len(waited)} rounds")


def report(split: str, waits: Mapping[str, list[list[int]]]) -> None:
    """Print each solver's mean rounds and times, and the ratios to plain power."""
    for name, runs in waits.items():
        figure(f"{split} split, {name}: rounds", float(np.mean([len(run) for run in runs])))
    for communication in (0.0, 1.0, 10.0):
        times = {name: float(np.mean([clock(run, communication) for run in runs])) for name, runs in waits.items()}
        for name, time in times.items():
            figure(f"{split} split, C = {communication:g}, {name}: time", time)
        for name in times:
            limit = LIMITS.get(communication) if (split, name) == ("random", "doubling around power") else None
            if name != "power":
                figure(f"{split} split, C = {communication:g}, {name} / power", times[name] / times["power"], limit)


def clock(waited: list[int], communication: float) -> float:
    """Return what the rounds take on average over draws of the speeds."""
    return float(np.sum([order_statistic_mean(n, SITES) + communication for n in waited]))


if __name__ == "__main__":
    sys.exit(main())
