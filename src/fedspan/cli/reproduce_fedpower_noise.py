"""``fedspan reproduce fedpower --noisy``: Table 3 and Figures 7-10 of Guo et al. (2021), theirs beside ours.

As published: no guarantee is established for p > 1. What was read into the paper is in
`fedspan.cli.reproduce_fedpower_noise_runs`; what came of it, in the text that is written.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedspan.cli.reproduce_fedpower_data import Row, deal, matrix, truth
from fedspan.cli.reproduce_fedpower_figures import draw_figures
from fedspan.cli.reproduce_fedpower_noise_runs import (
    CERTIFIED_DELTA,
    DELTA,
    EPSILON_SERVER,
    EPSILONS,
    FIGURE_DELTA,
    FIGURE_EPSILON,
    LOCAL_STEPS,
    NO_GUARANTEE,
    NOISY_QUICK,
    PAPER,
    RANK,
    SITES,
    NoisyScale,
    at_random,
    certified,
    claimed,
    communications,
    noisy_distances,
    published,
)
from fedspan.cli.reproduce_fedpower_noise_tables import text
from fedspan.cli.reproduce_shared import Report, curve_writer
from fedspan.encoding import Array, write_atomically
from fedspan.errors import DataError

__all__ = ["reproduce", "text"]

TITLES = {
    7: "Figure 7: local iterations p, with noise",
    8: "Figure 8: number of sites m (p = 4), with noise",
    9: "Figure 9: K sites asked in each round (p = 4), with noise",
    10: "Figure 10: decaying p, with noise",
}


def reproduce(
    folder: Path,
    *,
    tables: bool = True,
    figures: bool = True,
    quick: bool = False,
    report: Report = lambda _: None,
) -> dict[str, Any]:
    """Compute Table 3 and Figures 7-10 and write them to a folder.

    The folder gets ``fedpower-noisy.json`` (what is returned: plain data), ``tables.md`` (its `text`) and
    ``figure7.png`` to ``figure10.png``. ``quick`` takes two small sets and 20 iterations.
    """
    scale, started = NOISY_QUICK if quick else NoisyScale(), time.perf_counter()
    write = curve_writer() if figures else None
    result: dict[str, Any] = {
        "paper": "Guo, Li, Chang, Wang, Zhang: Privacy-Preserving Distributed SVD via Federated Power",
        "guarantee": NO_GUARANTEE,
        "settings": {
            "rank": RANK, "sites": SITES, "local_steps": LOCAL_STEPS, "iterations": scale.iterations,
            "communications": communications(scale.iterations), "epsilon_server": EPSILON_SERVER, "delta": DELTA,
            "replications": scale.replications, "certified_delta": CERTIFIED_DELTA,
            "certified_replications": scale.certified, "figure_communications": scale.figures.communications,
            "figure_epsilon": FIGURE_EPSILON, "figure_delta": FIGURE_DELTA, "quick": quick,
        },
    }  # fmt: skip
    with threadpool_limits(limits=1):  # the products are small: a second BLAS thread costs more than it brings
        if tables:
            result["table3"] = [_measured(row, scale, report) for row in scale.rows]
        if write is not None:
            titles = {number: f"{title}\n{NO_GUARANTEE}" for number, title in TITLES.items()}
            axis = "accumulated privacy leakage, epsilon (= communications)"
            result["figures"] = draw_figures(
                folder, scale.figures, write, report, titles=titles, measure=noisy_distances, x=axis
            )
    result["seconds"] = round(time.perf_counter() - started, 1)
    write_atomically(folder / "fedpower-noisy.json", json.dumps(result, indent=1).encode())
    write_atomically(folder / "tables.md", text(result).encode())
    return result


def _measured(row: Row, scale: NoisyScale, report: Report) -> dict[str, Any]:
    """Return a row of Table 3: a cell for each eps_1, ours and the paper's; or why the set is absent."""
    found: dict[str, Any] = {"set": row.label, "paper_set": row.paper, "scaling": row.scaling}
    cells = {_name(epsilon): _printed(row, epsilon) for epsilon in scale.epsilons}
    try:
        X = matrix(row)
    except DataError as why:
        report(f"{row.label}: not available here")
        return {**found, "absent": str(why), "cells": cells}
    started, leading, count = time.perf_counter(), truth(X), communications(scale.iterations)
    for seed in range(scale.replications):
        for epsilon in scale.epsilons:
            _one_cell(cells[_name(epsilon)], X, leading, epsilon, count, seed, scale)
        if seed == 0:  # the other reading of eps_1 = inf: the server's noise stays
            found["server_only"] = min(published(deal(X, SITES, 0), leading, (math.inf, EPSILON_SERVER), count, 0))
            found["at_random"] = at_random(len(leading), count)
        report(f"{row.label}: replication {seed + 1} of {scale.replications}, {time.perf_counter() - started:.0f} s")
    for cell in cells.values():
        _judge(cell)
    return {**found, "n": len(X), "d": X.shape[1], "cells": cells, "seconds": round(time.perf_counter() - started, 1)}


def _one_cell(
    cell: dict[str, Any], X: Array, leading: Array, epsilon: float, count: int, seed: int, scale: NoisyScale
) -> None:
    """Add one replication to a cell: split, start and noise from its seed."""
    sources = deal(X, SITES, seed)
    if math.isinf(epsilon):
        found = published(sources, leading, None, scale.iterations, seed)
        cell.setdefault("runs", []).append(min(found[: count + 1]))
        cell.setdefault("runs_by_communications", []).append(min(found))
        return
    found = published(sources, leading, (epsilon, EPSILON_SERVER), count, seed)
    cell.setdefault("runs", []).append(min(found))
    if seed < scale.certified:
        total = claimed(epsilon, count)
        cell["claimed"] = list(total)
        cell.setdefault("certified_runs", []).append(certified(sources, leading, total[0], seed))


def _judge(cell: dict[str, Any]) -> None:
    """Sum up a cell's replications and set them beside the paper's figure."""
    for runs, prefix in (
        ("runs", ""),
        ("runs_by_communications", "by_communications_"),
        ("certified_runs", "certified_"),
    ):
        if runs in cell:
            cell[f"{prefix}mean"] = mean(cell[runs])
            cell[f"{prefix}std"] = stdev(cell[runs]) if len(cell[runs]) > 1 else 0.0
    cell["ratio"] = cell["mean"] / cell["paper_mean"]
    if "claimed" in cell:
        cell["fitting_delta"] = fitting_delta(cell["ratio"], DELTA)


def fitting_delta(ratio: float, delta: float) -> float:
    """Return the delta at which our noise would be the paper's, if distances grow as the noise does.

    >>> fitting_delta(1.0, 0.01)
    0.01
    >>> fitting_delta(1.398, 1e-4)
    0.01...
    """
    return 1.25 * math.exp(-math.log(1.25 / delta) / ratio**2)


def _printed(row: Row, epsilon: float) -> dict[str, Any]:
    means, stds = PAPER[row.paper]
    at = EPSILONS.index(epsilon)
    return {"paper_mean": means[at], "paper_std": stds[at]}


def _name(epsilon: float) -> str:
    return f"{epsilon:g}"
