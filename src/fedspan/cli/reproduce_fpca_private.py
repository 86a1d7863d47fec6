"""Figures 10 and 11 of Federated-PCA: projections to private components, for epsilon 0.6 and 1, delta 0.1, rank 6.

Rows are brought to norm one, as Lemma 4 needs ("orthonormal columns"), and lie at one site; their number is public. The
noise is Lemma 4's on slices (streaming MOD-SuLQ) or MOD-SuLQ's on the symmetric matrix, as published, and what the same
epsilon and delta need by the exact Gaussian mechanism. Streaming MOD-SuLQ takes the site's rows as one block, which is
the least noise it can have: of smaller blocks each has more. Noise comes from testing seeds, so that a run can be
repeated.
"""

from __future__ import annotations

from statistics import mean
from typing import Any

import numpy as np

from fedspan.cli.reproduce_fpca_data import Scale
from fedspan.cli.reproduce_shared import Report
from fedspan.data import Preparation, Source, open_source
from fedspan.datasets import load
from fedspan.encoding import Array
from fedspan.errors import DataError
from fedspan.linalg import procrustes, top_eigenvectors
from fedspan.privacy import GaussianPrivacy
from fedspan.run import Study, run
from fedspan.solvers import Covariance, ModSulq, Solver

EPSILONS, DELTA, RANK = (0.6, 1.0), 0.1, 6
FIGURES = {"10": ("MNIST", "mnist"), "11": ("wine (red)", "wine_red")}
MECHANISMS: dict[str, tuple[Solver, dict[str, Any]]] = {
    "streaming MOD-SuLQ, published": (
        ModSulq(merge="published"), {"calibration": "published", "formula": "streaming-mod-sulq"},
    ),
    "streaming MOD-SuLQ, tight": (ModSulq(), {}),
    "MOD-SuLQ, published": (Covariance(), {"calibration": "published", "formula": "mod-sulq"}),
    "MOD-SuLQ, tight": (Covariance(), {}),
}  # fmt: skip
_SHOWN = 1500
"""Rows in a picture."""


def measure_private(scale: Scale, report: Report) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """Return what each mechanism keeps of each set, as plain data, and the panels of the pictures."""
    found: dict[str, Any] = {}
    pictures: dict[str, list[dict[str, Any]]] = {}
    for number, (label, name) in FIGURES.items():
        try:
            loaded = load(name, download=False)
        except DataError as why:
            found[number] = {"label": label, "absent": str(why)}
            report(f"figure {number}, {label}: not available here")
            continue
        rows = np.asarray(loaded.X[: scale.private_rows], dtype=np.float64)
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        data = _Projected(rows, loaded.y)
        pictures[number] = [data.panel("offline", data.offline)]
        runs = [_mechanism(name, epsilon, data, pictures[number], scale.draws)
                for name in MECHANISMS for epsilon in EPSILONS]  # fmt: skip
        found[number] = {"label": label, "n": len(rows), "d": rows.shape[1], "draws": scale.draws, "runs": runs}
        report(f"figure {number}: {label}")
    return found, pictures


def _mechanism(name: str, epsilon: float, data: _Projected, panels: list[dict[str, Any]], draws: int) -> dict[str, Any]:
    bases = [private_basis(name, epsilon, data.source, seed) for seed in range(draws)]
    panels.append(data.panel(f"{name}, epsilon {epsilon:g}", bases[0]))
    return {
        "mechanism": name,
        "epsilon": epsilon,
        "captured": mean(data.captured(basis) for basis in bases),
        "moved": mean(data.moved(basis) for basis in bases),
    }


def private_basis(name: str, epsilon: float, source: Source, seed: int) -> Array:
    """Return the six components that one mechanism releases."""
    solver, terms = MECHANISMS[name]
    privacy = GaussianPrivacy(
        epsilon, DELTA, row_norm=1.0, n_public=True, shares={"variance": 0.0}, testing_seed=seed, **terms
    )
    preparation = Preparation(center=False)
    study = Study(n_components=RANK, solver=solver, preparation=preparation, seed=seed, privacy=privacy)
    return run(study, {"site": source}).estimate.basis


class _Projected:
    """A set, its offline components, and how a private basis compares."""

    def __init__(self, rows: Array, labels: Array | None) -> None:
        self.source = open_source(rows)
        self.gram = rows.T @ rows
        self.offline, values = top_eigenvectors(self.gram, RANK)
        self._best = float(values.sum())
        step = max(1, len(rows) // _SHOWN)
        self._shown = rows[::step]
        self._labels = np.zeros(len(rows), dtype=int)[::step] if labels is None else labels[: len(rows) : step]

    def captured(self, basis: Array) -> float:
        """The variance in all six components, relative to the offline ones."""
        return float(np.sum(basis * (self.gram @ basis))) / self._best

    def moved(self, basis: Array) -> float:
        """How far the two-dimensional projections are from the offline ones, after the best rotation."""
        two, best = basis[:, :2], self.offline[:, :2]
        both = best.T @ self.gram @ best
        alike = np.linalg.svd(two.T @ self.gram @ best, compute_uv=False).sum()
        squares = np.trace(two.T @ self.gram @ two) + np.trace(both) - 2 * alike
        return float(np.sqrt(max(squares, 0.0) / np.trace(both)))

    def panel(self, title: str, basis: Array) -> dict[str, Any]:
        """Points of a picture, turned to lie as the offline ones."""
        points, best = self._shown @ basis[:, :2], self._shown @ self.offline[:, :2]
        return {"title": title, "points": points @ procrustes(points, best), "of": self._labels}
