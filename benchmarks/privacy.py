"""MNIST under differential privacy: variance captured, relative to the non-private answer; published noise beside it.

60,000 rows scaled to norm 1 at 60 sites, k = 5, delta = 1e-6, ten seeds. Rows are added or removed (neighbours "row")
but where a published formula needs the number of rows to be public ("row-replace") or is about entries ("entry").
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.report import figure, finish, need
from fedspan.data import Preparation, open_source, partition
from fedspan.privacy import GaussianPrivacy
from fedspan.run import Study, run
from fedspan.solvers import NAMES, FedPower

K, SITES, SEEDS, DELTA = 5, 60, 10, 1e-6
EPSILONS = (1.0, 0.1)
TARGETS = {1.0: 0.995, 0.1: 0.90}


@dataclass(frozen=True)
class Setting:
    """One line of the table."""

    name: str
    solver: Any
    terms: dict[str, Any]

    def privacy(self, epsilon: float) -> GaussianPrivacy:
        """Return the promise at an epsilon."""
        return GaussianPrivacy(epsilon, DELTA, **{"row_norm": 1.0, **self.terms})


def published(formula: str, **terms: Any) -> dict[str, Any]:
    return {"calibration": "published", "formula": formula, **terms}


PICKED = [Setting(f"fedspan's choice, {t}", "auto", {"trust": t}) for t in ("central", "distributed", "local")]
UNTIGHTENED = Setting("the same without adaptive_clip, central", "auto", {"trust": "central", "adaptive_clip": False})
OTHERS = [
    *(Setting(f"private power, {t}", "private-power", {"trust": t}) for t in ("central", "distributed", "local")),
    Setting("streaming MOD-SuLQ, tight, local", "mod-sulq", {}),
    Setting("Analyze Gauss as published, central", "covariance", published("analyze-gauss", trust="central")),
    Setting("PPM as published, with the row sensitivity, central", "private-power", published("ppm", trust="central")),
    Setting("MOD-SuLQ as published, central", "covariance", published("mod-sulq", trust="central", n_public=True)),
    Setting("streaming MOD-SuLQ as published, local", "mod-sulq", published("streaming-mod-sulq")),
    Setting(
        "FedPower as published (p = 4), local",
        FedPower(rounds=5, local_steps=4),
        published("fedpower", neighbours="entry", row_norm=None, n_public=True),
    ),
]


def main() -> None:
    rows = need("mnist").X / 255.0
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    sources = {name: open_source(x) for name, x in partition.split(rows, partition.even(len(rows), SITES)).items()}
    means: dict[tuple[bool, str, float], float] = {}
    for center, settings in ((False, [*PICKED, *OTHERS]), (True, [*PICKED, UNTIGHTENED])):
        centred = rows - rows.mean(axis=0) if center else rows
        gram = centred.T @ centred
        best = float(np.linalg.eigvalsh(gram)[-K:].sum())
        sys.stdout.write(f"\n{'centred' if center else 'not centred'} (FederatedPCA's center = {center})\n")
        sys.stdout.write(f"{'mechanism':<52} {'epsilon':>7} {'captured':>9} {'sd':>7} rounds  neighbours, label\n")
        for setting in settings:
            for epsilon in EPSILONS:
                means[center, setting.name, epsilon] = line(setting, epsilon, center, sources, gram, best)
    judge(means)
    finish()


def line(setting: Setting, epsilon: float, center: bool, sources: Any, gram: Any, best: float) -> float:
    """Run one setting over the seeds, print its line, return the mean."""
    held = []
    for seed in range(SEEDS):
        study = Study(
            n_components=K, solver=setting.solver, preparation=Preparation(center=center), seed=seed,
            privacy=setting.privacy(epsilon),
        )  # fmt: skip
        result = run(study, sources)
        basis = result.estimate.basis
        held.append(float(np.sum(basis * (gram @ basis))) / best)
    promise = result.privacy
    name = f"{setting.name}: {NAMES[type(result.solver)]}" if setting.solver == "auto" else setting.name
    sys.stdout.write(
        f"{name:<52} {epsilon:>7g} {np.mean(held):>9.4f} {np.std(held, ddof=1):>7.4f} {result.rounds:>6}  "
        f"{promise.neighbours}, {promise.label}\n"
    )
    sys.stdout.flush()
    return float(np.mean(held))


def judge(means: dict[tuple[bool, str, float], float]) -> None:
    """Print the targets: what is lost, so that less is better."""
    sys.stdout.write("\n")
    for center in (False, True):
        for epsilon, target in TARGETS.items():
            title = f"{'centred' if center else 'not centred'}, epsilon {epsilon:g}"
            picked = {t: means[center, f"fedspan's choice, {t}", epsilon] for t in ("central", "distributed")}
            figure(f"lost by fedspan's choice, distributed, {title}", 1 - picked["distributed"], 1 - target)
            apart = abs(1 - picked["distributed"] / picked["central"])
            figure(f"distributed against central, {title}", apart, 0.02)


if __name__ == "__main__":
    main()
