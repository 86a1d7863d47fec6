"""No coordinator: MNIST at 64 nodes of a random 4-regular graph, a torus and a ring; silent links, crashes, noise.

Every node drives its own solver. What is compared with the pooled components is the worst of all nodes' answers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.report import figure, finish, need
from fedspan.data import Preparation, Source, open_source, partition
from fedspan.encoding import Array
from fedspan.engines import Gossip
from fedspan.metrics import captured_variance, projection_distance
from fedspan.privacy import GaussianPrivacy
from fedspan.run import Result, Study, run
from fedspan.secure.gopa import gopa_mu, pair_deviation
from fedspan.solvers import BlockKrylov, Power, PrivatePower
from fedspan.topology import Weights, mix, planned_steps

NODES, COMPONENTS, TARGET = 64, 10, 1e-4
KRYLOV, POWER = BlockKrylov(), Power(oversampling=10)
GRAPHS = ("random-regular", "torus", "ring")


def main() -> None:
    """Print what nodes' answers are worth, and what they cost."""
    rows = need("mnist").X / 255.0
    rows -= rows.mean(axis=0)
    truth = leading(rows)
    sources = named(partition.even(len(rows), NODES), rows)
    averages()
    told("4-regular, krylov", sources, truth, KRYLOV, Gossip())
    told("4-regular, power", sources, truth, POWER, Gossip())
    told("4-regular, krylov, each from its own sums", sources, truth, KRYLOV, Gossip(agree=False))
    for graph in GRAPHS[1:]:
        told(f"{graph}, krylov", sources, truth, KRYLOV, Gossip(graph=graph))
    told("4-regular, krylov, a link in five silent", sources, truth, KRYLOV, Gossip(link_loss=0.2))
    crashes(sources, rows)
    noise(sources, rows)
    finish()


def named(parts: list[Array], rows: Array) -> dict[str, Source]:
    """Give each node its rows."""
    return {f"node{i:02d}": open_source(rows[part]) for i, part in enumerate(parts)}


def leading(rows: Array) -> Array:
    """Return the pooled components."""
    return np.linalg.eigh(rows.T @ rows)[1][:, : -COMPONENTS - 1 : -1]


def averages() -> None:
    """Count the exchanges that bring random values within 1e-10: planned, as it is, and by plain averaging."""
    values = np.random.default_rng(0).standard_normal((NODES, 100))
    for graph in GRAPHS:
        weights = Weights(Gossip(graph=graph).over([f"node{i:02d}" for i in range(NODES)], 0))
        figure(f"{graph}: spectral gap", weights.gap)
        figure(f"{graph}: exchanges planned for 1e-10, between any two nodes", planned_steps(weights, 1e-10))
        for kind, accelerated in (("Chebyshev", True), ("plain averaging", False)):
            figure(f"{graph}: exchanges to 1e-10 of random values, {kind}", needed(weights, values, accelerated))


def needed(weights: Weights, values: Array, accelerated: bool) -> int:
    """Return after how many exchanges no node is farther than 1e-10 from the mean, relative to the largest value."""
    size, mean = np.linalg.norm(values, axis=1).max(), values.mean(axis=0)
    low, high = 0, 1
    while low + 1 < high or off(weights, values, high, accelerated, mean) > 1e-10 * size:
        if off(weights, values, high, accelerated, mean) > 1e-10 * size:
            low, high = high, 2 * high
            continue
        middle = (low + high) // 2
        good = off(weights, values, middle, accelerated, mean) <= 1e-10 * size
        low, high = (low, middle) if good else (middle, high)
    return high


def off(weights: Weights, values: Array, steps: int, accelerated: bool, mean: Array) -> float:
    """Return how far the farthest node is from the mean after so many exchanges."""
    after = mix(values, weights.sigma, steps, lambda: weights.matrix, accelerated=accelerated)
    return float(np.linalg.norm(after - mean, axis=1).max())


def told(words: str, sources: Mapping[str, Source], truth: Array, solver: Any, law: Gossip) -> Result:
    """Run a study, and print what came of it."""
    started = time.perf_counter()
    study = Study(n_components=COMPONENTS, solver=solver, preparation=Preparation(center=False))
    result = run(study, sources, engine=law)
    seconds = time.perf_counter() - started
    assert result.nodes is not None
    worst = max(projection_distance(found.basis, truth) for found in result.nodes.estimates.values())
    figure(f"{words}: distance of the worst node to pooled", worst, TARGET)
    figure(f"{words}: nodes' answers apart", result.nodes.disagreement)
    figure(f"{words}: rounds", result.rounds)
    figure(f"{words}: exchanges a round", np.mean(result.nodes.steps[-result.rounds :]))
    figure(f"{words}: sent by a node a round", result.history[-1].bytes_up / NODES / 1e6, unit="MB")
    figure(f"{words}: seconds, all solvers in one process", seconds)
    return result


def crashes(sources: Mapping[str, Source], rows: Array) -> None:
    """Let three nodes crash, two of them in the middle of a round."""
    law = Gossip(crashes={"node00": 4.5, "node31": 5, "node63": 7.5})
    parts = partition.even(len(rows), NODES)
    left = np.concatenate([part for i, part in enumerate(parts) if i not in (0, 31, 63)])
    for name, solver in {"krylov": KRYLOV, "power": POWER}.items():
        told(f"4-regular, {name}, three nodes crash", sources, leading(rows[left]), solver, law)


def noise(sources: Mapping[str, Source], rows: Array) -> None:
    """Compare private power without a coordinator to one that is trusted, to secure sums and to local noise."""
    unit = np.linalg.norm(rows, axis=1).max()
    scaled = {name: open_source(next(iter(source.blocks())) / unit) for name, source in sources.items()}
    gram = rows.T @ rows
    exact = captured_variance(leading(rows), gram=gram)
    for name, trust, engine in (
        ("a trusted coordinator", "central", None),
        ("secure sums", "distributed", None),
        ("gossip (GOPA)", "distributed", Gossip()),
        ("gossip, local noise", "local", Gossip()),
    ):
        kept, seconds, sent = [], 0.0, 0
        for seed in range(3):
            private = GaussianPrivacy(1.0, 1e-6, row_norm=1.0, trust=trust, n_public=True, shares={"variance": 0.0})
            study = Study(
                n_components=COMPONENTS, solver=PrivatePower(rounds=3), preparation=Preparation(center=False),
                privacy=private, seed=seed,
            )  # fmt: skip
            started = time.perf_counter()
            result = run(study, scaled, engine=engine)
            seconds += (time.perf_counter() - started) / 3
            sent = sum(r.bytes_up + r.bytes_down for r in result.history)
            kept.append(captured_variance(result.estimate.basis, gram=gram) / exact)
        figure(f"private power, epsilon 1, {name}: captured of the exact components' variance", float(np.mean(kept)))
        figure(f"private power, {name}: sent in all", sent / 1e6, unit="MB")
        figure(f"private power, {name}: seconds", seconds)
    graph = Gossip().over(sources, 0)
    mu = gopa_mu(graph.adjacency, np.arange(NODES), 1.0, pair_deviation(1.0, NODES, NODES))
    figure("GOPA: price over central noise, mu^2, all honest", float(NODES * np.max(mu**2) - 1), 1e-10)
    cut = [i for i in range(NODES) if i not in (3, 17, 42)]
    mu = gopa_mu(graph.adjacency, cut, 1.0, pair_deviation(1.0, NODES, len(cut)))
    figure("GOPA: the same with three colluding, noise sized for 61", float(len(cut) * np.max(mu**2) - 1), 1e-10)
    figure("GOPA: rounding of a pair's noise, of a node's own", np.finfo(float).eps * pair_deviation(1.0, NODES, NODES))


if __name__ == "__main__":
    sys.exit(main())
