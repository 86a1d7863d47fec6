"""Figures 5 and 12 of Federated-PCA: what merging costs and loses, and how time falls with the number of workers."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from fedspan.cli.reproduce_fpca_data import BLOCK, Merges, Workers
from fedspan.cli.reproduce_fpca_runs import subspace_error
from fedspan.cli.reproduce_shared import Report
from fedspan.datasets.synthetic import power_law
from fedspan.encoding import Array
from fedspan.estimators import StreamingPCA
from fedspan.linalg import Estimate, basic_merge, faster_merge, merge, top_eigenvectors

MERGES = {"Eq. (2), Alg. 4": basic_merge, "Alg. 5": faster_merge, "Alg. 6": merge}
FIRST = "Eq. (2), Alg. 4"


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return what a call returns, and its seconds."""
    started = time.perf_counter()
    found = call()
    return found, time.perf_counter() - started


# ---- Figure 5 --------------------------------------------------------------------------------------------------


def measure_merges(limits: Merges, report: Report) -> list[dict[str, Any]]:
    """Merge two halves of Synth(1), each of them streamed, and compare with the SVD of all rows."""
    measured = []
    for n in limits.rows:
        rows = power_law(n, limits.d, alpha=1.0)
        offline = top_eigenvectors(rows.T @ rows, limits.d)
        first, second = (_streamed(half, limits.rank) for half in np.array_split(rows, 2))
        plain = basic_merge(*first, *second, limits.rank)
        found = {name: {"seconds": float("inf")} for name in MERGES}
        for _ in range(limits.repeats):  # in turn, so that what else the machine does meets all of them
            for name, method in MERGES.items():
                merged, seconds = timed(partial(method, *first, *second, limits.rank))
                apart = float(np.max(np.abs(merged.values / plain.values - 1)))
                fastest = min(seconds, found[name]["seconds"])
                found[name] = {"seconds": fastest, "apart": apart, **_errors(merged, offline, limits.rank)}
        measured.append({"n": n, "merges": found})
        report(f"figure 5: n = {n}")
    return measured


def _streamed(rows: Array, rank: int) -> Estimate:
    summary = StreamingPCA(rank, center=False, block_size=BLOCK).partial_fit(rows).summary().cut(rank)
    return Estimate(summary.basis, summary.values)


def _errors(merged: Estimate, offline: Estimate, rank: int) -> dict[str, float]:
    values = np.sqrt(offline.values[:rank])
    return {
        "subspace": subspace_error(merged.basis, offline.basis),
        "values": float(np.linalg.norm(merged.values - values) / np.linalg.norm(values)),
    }


# ---- Figure 12 -------------------------------------------------------------------------------------------------


def measure_workers(limits: Workers, report: Report) -> list[dict[str, Any]]:
    """Split the rows among workers, merge their streams in a binary tree, and time the longest path."""
    rows = power_law(limits.rows, limits.d, alpha=1.0)
    best = float(top_eigenvectors(rows.T @ rows, limits.rank).values.sum())
    measured = []
    for count in limits.counts:
        parts = np.array_split(rows, count)
        trials = [_trial(parts, limits.rank) for _ in range(limits.repeats)]
        pca, merging, model = min(trials, key=lambda trial: trial[0] + trial[1])
        held = float(np.sum((rows @ model.components_.T) ** 2)) / best
        measured.append({"workers": count, "pca": pca, "merge": merging, "total": pca + merging, "captured": held})
        report(f"figure 12: {count} workers")
    return measured


def _trial(parts: list[Array], rank: int) -> tuple[float, float, StreamingPCA]:
    """Return the slowest worker's time, the slowest merges' of each level together, and the root."""
    models, slowest = [], 0.0
    for part in parts:
        model, seconds = timed(partial(StreamingPCA(rank, center=False, block_size=BLOCK).fit, part))
        models.append(model)
        slowest = max(slowest, seconds)
    merging = 0.0
    while len(models) > 1:
        level = [timed(partial(a.merge, b)) for a, b in zip(models[::2], models[1::2], strict=False)]
        merging += max(seconds for _, seconds in level)
        models = [model for model, _ in level] + models[len(models) // 2 * 2 :]
    return slowest, merging, models[0]
