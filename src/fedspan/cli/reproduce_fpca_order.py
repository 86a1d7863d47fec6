"""Figure 13 of Federated-PCA: what the order of the rows does to each method, over permutations of one matrix.

Two errors of each permuted run's subspace: against the offline SVD, and against the method's own unpermuted run. SPIRIT
keeps the rank, as every method here: its energy band is opened all the way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import mean
from typing import Any

import numpy as np

from fedspan.cli.reproduce_fpca_data import Permutations
from fedspan.cli.reproduce_fpca_runs import (
    ADAPTIVE,
    ALONE,
    FD,
    GREEDY,
    GROUSE,
    PM,
    Fpca,
    Tracker,
    rival,
    subspace_error,
)
from fedspan.cli.reproduce_shared import Report
from fedspan.datasets.synthetic import power_law
from fedspan.encoding import Array
from fedspan.linalg import top_eigenvectors
from fedspan.rivals import Spirit

SPIRIT = "SPIRIT, rank r"
ORDERED = (ADAPTIVE, ALONE, GROUSE, GREEDY, FD, PM, SPIRIT)


def measure_order(limits: Permutations, report: Report) -> list[dict[str, Any]]:
    """Return each method's mean errors for each rank, on full-rank Synth(1) and on rows of exactly that rank."""
    rows, rng = power_law(limits.rows, limits.d, alpha=1.0), np.random.default_rng(13)
    orders = [rng.permutation(limits.rows) for _ in range(limits.count)]
    offline = top_eigenvectors(rows.T @ rows, limits.d).basis
    measured = []
    for rank in limits.ranks:
        found = {}
        for name in ORDERED:
            used = orders[: limits.spirit_count] if name == SPIRIT else orders
            found[name] = _errors(partial(_method, name, limits.d, rank), rows, used, offline)
        exact = _exact(rows, offline[:, :rank], orders)
        measured.append({"rank": rank, "methods": found, "exact": exact})
        report(f"figure 13: rank {rank}")
    return measured


def _method(name: str, d: int, rank: int) -> Tracker:
    if name == SPIRIT:
        return Spirit(d, rank, energy=(1e-300, 1.0))
    if name in (ADAPTIVE, ALONE):
        return Fpca(rank, oversampling=0 if name == ALONE else None)
    return rival(name, d, rank)


def _errors(make: Callable[[], Tracker], rows: Array, orders: list[Array], offline: Array) -> dict[str, Any]:
    own = _basis(make(), rows)
    bases = [_basis(make(), rows[order]) for order in orders]
    return {
        "svd": mean(subspace_error(basis, offline) for basis in bases),
        "own": mean(subspace_error(basis, own) for basis in bases),
        "permutations": len(orders),
    }


def _exact(rows: Array, basis: Array, orders: list[Array]) -> float:
    """Return FPCA's own error on the rows projected to the rank: Lemma 10, which is exact there."""
    within = (rows @ basis) @ basis.T
    return float(_errors(partial(Fpca, basis.shape[1]), within, orders, basis)["own"])


def _basis(tracker: Tracker, rows: Array) -> Array:
    tracker.update(rows)
    return tracker.basis
