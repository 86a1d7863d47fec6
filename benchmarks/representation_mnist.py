"""Representations on MNIST: doubling against full participation, 100 sites of 5 classes, in virtual time.

A run's parameters do not depend on how long a round takes, but on who is fast: full participation's on neither. So
each run's rounds are stamped with what they take on average, over all draws of exponential speeds with the order of
the sites that the run had: the n-th of N replies is there after H_N - H_{N-n} mean compute times.
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import figure, finish, need
from fedspan.data.labelled import Labelled
from fedspan.data.partition import by_classes
from fedspan.engines import VirtualTime
from fedspan.learners import FedRep, LGFedAvg
from fedspan.learning import Learning, learn
from fedspan.metrics import order_statistic_mean
from fedspan.solvers import Doubling

SITES, CLASSES, SEEDS, ROUNDS = 100, 5, 5, 40
N0, EARLY = 25, 6
LEARNERS = {"FedRep": FedRep, "LG-FedAvg": LGFedAvg}
MODEL = {"kind": "mlp", "hidden": [512, 256, 64]}


def main(arguments: list[str]) -> None:
    """Run all cells, or read them from a file of an earlier run; print the table."""
    if arguments:
        cells = json.loads(Path(arguments[0]).read_text())
    else:
        cells = run_all()
    for name in LEARNERS:
        report(name, cells)
    finish()


def run_all(rounds: int = ROUNDS, early: int = EARLY, n0: int = N0) -> list[dict[str, Any]]:
    """Run every learner, with and without doubling, for every seed, a process for each core."""
    asked = [
        {"learner": name, "doubling": doubling, "seed": seed, "rounds": rounds, "early": early, "n0": n0}
        for seed in range(SEEDS) for name in LEARNERS for doubling in (False, True)
    ]  # fmt: skip
    need("mnist")
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with ProcessPoolExecutor() as pool:
        return list(pool.map(run_one, asked))


def run_one(asked: dict[str, Any]) -> dict[str, Any]:
    """Run one learner; return its mean accuracy and how many sites were waited for, round by round."""
    learner: Any = LEARNERS[asked["learner"]](rounds=asked["rounds"])
    if asked["doubling"]:
        stages = int(np.ceil(np.log2(SITES / asked["n0"])))
        last = LEARNERS[asked["learner"]](rounds=asked["rounds"] - stages * asked["early"])
        learner = Doubling(stage=last, n0=asked["n0"], rounds=asked["early"])
    study = Learning(learner=learner, model=MODEL, seed=asked["seed"], evaluate_every=1)
    result = learn(study, sites(asked["seed"]), engine=VirtualTime())
    waited = [record.sites for record in result.history if not record.setup]
    accuracy = [float(np.mean([s["right"] / s["rows"] for s in scores.values()])) for _, scores in result.curve]
    left_out = sum(result.diverged.values())
    return {**asked, "waited": waited, "accuracy": accuracy[1:], "left_out": left_out}


def sites(seed: int) -> dict[str, Labelled]:
    """MNIST over the sites, each with rows and test rows of the same five classes."""
    data = need("mnist")
    X, X_test = (rows.reshape(len(rows), -1).astype(np.float32) / 255 for rows in (data.X, data.X_test))
    parts = by_classes(data.y, SITES, classes_per_site=CLASSES, seed=seed)
    tests = by_classes(data.y_test, SITES, classes_per_site=CLASSES, seed=seed)
    return {
        f"site{i:02d}": Labelled(X[a], data.y[a].astype(int), test=(X_test[b], data.y_test[b].astype(int)))
        for i, (a, b) in enumerate(zip(parts, tests, strict=True))
    }


def report(name: str, cells: list[dict[str, Any]]) -> None:
    """Print the ratios of one learner, and its final accuracies."""
    full = sorted((c for c in cells if c["learner"] == name and not c["doubling"]), key=lambda c: c["seed"])
    fast = sorted((c for c in cells if c["learner"] == name and c["doubling"]), key=lambda c: c["seed"])
    ends = [(final(a), final(b)) for a, b in zip(full, fast, strict=True)]
    figure(f"{name}: final accuracy of full participation", float(np.mean([a for a, _ in ends])))
    figure(f"{name}: of doubling, at equal rounds", float(np.mean([b for _, b in ends])))
    figure(f"{name}: points apart, at most", 100 * abs(float(np.mean([a - b for a, b in ends]))), 0.5)
    left_out = sum(cell["left_out"] for cell in [*full, *fast])
    figure(f"{name}: replies left out because a site diverged, all runs", left_out)
    for communication, target in ((0, 0.45), (10, 1.0), (100, None)):
        times = [
            [reached(cell, 0.99 * final(a), communication) for cell in (a, b)] for a, b in zip(full, fast, strict=True)
        ]
        slow, quick = np.mean(times, axis=0)
        figure(f"{name}, C.T. = {communication}: time to 99 % of the final accuracy, full participation", slow)
        figure(f"{name}, C.T. = {communication}: the same, doubling", quick)
        limit = target if name == "FedRep" else None
        figure(f"{name}, C.T. = {communication}: ratio", quick / slow, limit)


def final(cell: dict[str, Any]) -> float:
    """The accuracy at the end: the mean of the last five rounds."""
    return float(np.mean(cell["accuracy"][-5:]))


def reached(cell: dict[str, Any], target: float, communication: float) -> float:
    """The expected virtual time at which a run's accuracy first is the target."""
    clock = np.cumsum([order_statistic_mean(n, SITES) + communication for n in cell["waited"]])
    hit = np.flatnonzero(np.array(cell["accuracy"]) >= target)
    return float(clock[hit[0]]) if len(hit) else float("inf")


if __name__ == "__main__":
    main(sys.argv[1:])
