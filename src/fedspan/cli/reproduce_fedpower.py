"""``fedspan reproduce fedpower``: Table 2 and Figures 3-6 of Guo et al. (2021), the paper's figures beside ours.

Table 2: k = 5, p = 4, m = max(n // 1000, 3) sites, 40 communications, ten random splits, no centring. The paper
does not say its iteration rank r; three are tabled: r = k = 5, r = 7 (which reproduces most of its figures) and
r = 10 (its Table 3's). Figures: one split, r = k = 5, sign-fixing, the paper's numbers of sites.
Nothing is downloaded: a set that is neither in ``FEDSPAN_DATA`` nor in the cache is listed as not available.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedspan.data import ArraySource, Preparation, Source, SymmetricSource
from fedspan.data.partition import even, split
from fedspan.datasets import load, names
from fedspan.encoding import Array, write_atomically
from fedspan.errors import ConfigurationError, DataError, FileError
from fedspan.linalg import top_eigenvectors
from fedspan.metrics import projection_distance
from fedspan.rounds import Cohort
from fedspan.run import Study, run
from fedspan.solvers import UDA, WDA, FedPower, RandomizedSVD, Solver

Report = Callable[[str], None]
K = 5
COLUMNS = ("OPT", "Sign-fixing", "Vanilla", "DR-SVD", "UDA", "WDA")
FEDPOWER: dict[str, str | None] = {"OPT": "procrustes", "Sign-fixing": "sign", "Vanilla": None}
ONE_SHOT: dict[str, Solver] = {"DR-SVD": RandomizedSVD(), "UDA": UDA(), "WDA": WDA()}
WITHIN = 4.0
"""How far above the paper's mean error ours may lie."""

PAPER: dict[str, tuple[float, ...]] = {  # Table 2: mean, std for each of COLUMNS
    "Acoustic": (1.83e-3, 4.4e-4, 2.03e-3, 3.9e-4, 2.38e-3, 8.5e-4, 1.54e-2, 6.59e-3, 7.76e-3, 2.64e-3, 6.67e-3, 2.41e-3),
    "Aloi": (3.07e-2, 1.1e-2, 6.57e-2, 1.06e-2, 5.24e-2, 1.1e-2, 1.92e-3, 4.3e-4, 4.8e-2, 1.1e-2, 4.37e-2, 4.73e-3),
    "A9a": (4.09e-3, 4.2e-4, 5.82e-3, 1.41e-3, 8.13e-2, 3.44e-2, 4.63e-2, 9.24e-3, 2.64e-2, 1.58e-2, 2.4e-2, 1.5e-2),
    "Combined": (6.01e-3, 1.59e-3, 5.57e-3, 1.05e-3, 2.47e-2, 3.4e-2, 5.19e-2, 6.23e-3, 4.63e-2, 2.97e-2, 4.16e-2, 2.76e-2),
    "Connect-4": (1.27e-2, 4.52e-3, 1.81e-2, 3.79e-3, 1.7e-2, 4.35e-3, 1.61e-2, 2.96e-3, 1.65e-1, 3.48e-2, 1.56e-1, 3.26e-2),
    "Covtype": (7.38e-3, 8.5e-4, 6.23e-3, 3.3e-4, 1.28e-2, 1.88e-3, 1.82e-1, 8.73e-2, 6.09e-2, 9.7e-3, 5.6e-2, 9.41e-3),
    "Housing": (1.18e-2, 5.45e-3, 2.76e-2, 1.14e-2, 3.84e-2, 5.11e-2, 5.66e-1, 2.62e-1, 9.16e-2, 5.09e-2, 5.89e-2, 3.25e-2),
    "Ijcnn1": (1.53e-1, 1.87e-1, 1.95e-1, 2.45e-1, 3.23e-1, 2.24e-1, 1.21, 1.7e-1, 3.85e-1, 7.62e-2, 3.67e-1, 7.59e-2),
    "MNIST": (2.62e-3, 3.4e-4, 4.85e-3, 8e-4, 5.08e-3, 7.9e-4, 5e-5, 0.0, 1.08e-2, 3e-3, 8.91e-3, 2.53e-3),
    "W8a": (1.9e-2, 2.46e-3, 1.75e-2, 1.76e-3, 1.68e-2, 1.29e-3, 7.13e-2, 2.06e-2, 1.52e-1, 4.37e-2, 1.51e-1, 4.11e-2),
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A row of the table: the paper's set, the name it is loaded by, and how it is brought into [-1, 1]."""

    paper: str
    data: str
    scaling: str = "as it is"

    @property
    def label(self) -> str:
        """The set, with its scaling where there are two."""
        return f"{self.paper} ({self.scaling})" if self.paper == "Covtype" else self.paper


ROWS = (
    Row("Acoustic", "acoustic"), Row("Aloi", "aloi"), Row("A9a", "a9a"), Row("Combined", "combined"),
    Row("Connect-4", "connect-4"), Row("Covtype", "covtype", "max-abs"), Row("Covtype", "covtype", "min-max"),
    Row("Housing", "housing_scale"), Row("Ijcnn1", "ijcnn1"), Row("MNIST", "mnist", "/ 255"), Row("W8a", "w8a"),
)  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """How much is run: the paper's settings, or a quick look."""

    rows: tuple[Row, ...] = ROWS
    ranks: tuple[int, ...] = (5, 7, 10)
    splits: int = 10
    communications: int = 40
    panels: tuple[tuple[str, int], ...] = (("MNIST", 200), ("A9a", 20), ("Acoustic", 100))


QUICK = Scale(
    rows=tuple(row for row in ROWS if row.paper in ("Housing", "A9a")),
    ranks=(5,), splits=2, communications=20, panels=(("A9a", 20),),
)  # fmt: skip


def reproduce(
    folder: Path, *, tables: bool = True, figures: bool = True, quick: bool = False, report: Report = lambda _: None
) -> dict[str, Any]:
    """Compute Table 2 and Figures 3-6 and write them to a folder.

    The folder gets ``fedpower.json`` (what is returned: plain data), ``table2.md`` (`text` of it) and
    ``figure3.png`` to ``figure6.png``. ``quick`` takes two small sets, two splits, 20 communications.
    """
    scale, started = QUICK if quick else Scale(), time.perf_counter()
    draw = _plotter() if figures else None
    result: dict[str, Any] = {
        "paper": "Guo, Li, Chang, Wang, Zhang: Privacy-Preserving Distributed SVD via Federated Power",
        "settings": {
            "components": K, "local_steps": 4, "communications": scale.communications, "splits": scale.splits,
            "ranks": list(scale.ranks) if tables else [], "quick": quick,
        },
    }  # fmt: skip
    with threadpool_limits(limits=1):  # the products are small: a second BLAS thread costs more than it brings
        if tables:
            measured = [_measure(row, scale, report) for row in scale.rows]
            result["tables"] = [_table(rank, measured) for rank in scale.ranks]
        if draw is not None:
            result["figures"] = _figures(folder, scale, draw, report)
    result["seconds"] = round(time.perf_counter() - started, 1)
    write_atomically(folder / "fedpower.json", json.dumps(result, indent=1).encode())
    if tables:
        write_atomically(folder / "table2.md", text(result).encode())
    return result


def _plotter() -> Callable[..., None]:
    try:
        from fedspan.cli.plots import write_curves
    except ImportError as cause:
        raise ConfigurationError(
            "figures need matplotlib: install fedspan[plots], or ask for the tables only"
        ) from cause
    return write_curves


# ---- data --------------------------------------------------------------------------------------------------------


def _matrix(row: Row) -> Array:
    """Load a set without a network, dense (then a site keeps its Gram matrix), and scale it."""
    if row.data not in names():
        raise DataError(f"fedspan has no data set named {row.data!r}")
    X = load(row.data, download=False).X
    X = X.toarray() if scipy.sparse.issparse(X) else np.asarray(X, dtype=float)
    low, high = X.min(axis=0), X.max(axis=0)
    if row.scaling == "/ 255":
        return X / 255  # type: ignore[no-any-return]
    if row.scaling == "max-abs":
        return X / _unless_zero(np.maximum(-low, high))
    if row.scaling == "min-max":
        return 2 * (X - low) / _unless_zero(high - low) - 1
    return X


def _unless_zero(width: Array) -> Array:
    return np.where(width > 0, width, 1.0)


def _truth(X: Array) -> Array:
    return top_eigenvectors(X.T @ X, K).basis


def _rows(X: Array, m: int, seed: int) -> dict[str, Source]:
    return {name: ArraySource(part) for name, part in split(X, even(len(X), m, seed=seed)).items()}


def _error(solver: Solver, sources: dict[str, Source], seed: int, truth: Array) -> float:
    study = Study(n_components=K, solver=solver, preparation=Preparation(center=False), seed=seed)
    return projection_distance(run(study, sources).estimate.basis, truth)


# ---- Table 2 -----------------------------------------------------------------------------------------------------


def _measure(row: Row, scale: Scale, report: Report) -> dict[str, Any]:
    """Return every method's error on every split, FedPower's for each rank; or why the set is absent."""
    try:
        X = _matrix(row)
    except (DataError, FileError) as why:
        report(f"{row.label}: not available here")
        return {"set": row.label, "paper_set": row.paper, "absent": str(why)}
    (n, d), started = X.shape, time.perf_counter()
    m, truth = max(n // 1000, 3), _truth(X)
    errors: dict[str, list[float]] = {}
    for seed in range(scale.splits):
        for key, error in _one_split(X, m, seed, truth, scale):
            errors.setdefault(key, []).append(error)
        report(f"{row.label}: split {seed + 1} of {scale.splits}, {time.perf_counter() - started:.0f} s")
    return {
        "set": row.label, "paper_set": row.paper, "scaling": row.scaling, "n": n, "d": d, "m": m, "errors": errors,
        "seconds": round(time.perf_counter() - started, 1),
    }  # fmt: skip


def _one_split(X: Array, m: int, seed: int, truth: Array, scale: Scale) -> Iterator[tuple[str, float]]:
    sources = _rows(X, m, seed)
    for name, solver in ONE_SHOT.items():
        yield name, _error(solver, sources, seed, truth)
    if len(X) // m >= X.shape[1]:
        # FedPower only ever multiplies by A_i'A_i: each site computes it once, for all variants and ranks.
        sources = {s: SymmetricSource(block.T @ block) for s, source in sources.items() for block in source.blocks()}
    for rank in scale.ranks:
        for name, align in FEDPOWER.items():
            budget = scale.communications + 1  # and one for the Ritz values
            solver = FedPower(rounds=budget, tol=0, local_steps=4, align=align, oversampling=rank - K)
            yield f"{name} r={rank}", _error(solver, sources, seed, truth)


def _table(rank: int, measured: list[dict[str, Any]]) -> dict[str, Any]:
    """Set ours beside the paper's for one rank, and judge."""
    rows = []
    for found in measured:
        row = {key: value for key, value in found.items() if key != "errors"}
        row["cells"] = {}
        for at, column in enumerate(COLUMNS):
            mean, std = PAPER[found["paper_set"]][2 * at : 2 * at + 2]
            cell: dict[str, Any] = {"paper_mean": mean, "paper_std": std}
            if "errors" in found:
                ours = found["errors"][f"{column} r={rank}" if column in FEDPOWER else column]
                cell |= {"mean": float(np.mean(ours)), "std": float(np.std(ours, ddof=1)), "runs": ours}
                cell["ratio"] = cell["mean"] / mean
            row["cells"][column] = cell
        rows.append(row)
    return {"rank": rank, "rows": rows, "checks": _checks([row for row in rows if "absent" not in row])}


def _checks(rows: list[dict[str, Any]]) -> dict[str, Any]:
    judged = [(row["cells"][column]["ratio"], row["set"], column) for row in rows for column in FEDPOWER]
    said = [row for row in rows if row["cells"]["OPT"]["paper_mean"] < row["cells"]["UDA"]["paper_mean"]]
    contrary = [row["set"] for row in said if not row["cells"]["OPT"]["mean"] < row["cells"]["UDA"]["mean"]]
    ratio, where, column = max(judged, default=(0.0, "", ""))
    return {
        "within": bool(judged) and ratio <= WITHIN,
        "worst": {"set": where, "column": column, "ratio": ratio},
        "procrustes_below_uda": bool(said) and not contrary,
        "judged": len(said),
        "contrary": contrary,
    }


def text(result: dict[str, Any]) -> str:
    """Return the tables as Markdown: for each set our mean (std), the paper's, and the ratio; then the checks."""
    return "\n".join(_table_text(table, result["settings"]) for table in result.get("tables", ()))


def _table_text(table: dict[str, Any], settings: dict[str, Any]) -> str:
    lines = [
        f"## Table 2 at r = {table['rank']}", "",
        f"k = {K}, p = 4, {settings['communications']} communications, {settings['splits']} random splits; "
        "mean projection distance (std), then the paper's, then ours / paper's.", "",
        "| " + " | ".join(["set".ljust(17), "  m", "     ", *(c.ljust(18) for c in COLUMNS)]) + " |",
        "| " + " | ".join(["-" * 17, "--:", "-----", *("-" * 18 for _ in COLUMNS)]) + " |",
    ]  # fmt: skip
    for row in table["rows"]:
        cells = [row["cells"][column] for column in COLUMNS]
        theirs = [_mean_std(c["paper_mean"], c["paper_std"]) for c in cells]
        if "absent" in row:
            lines.append(_line(row["set"], "", "ours", ["not available here"] * len(COLUMNS)))
            lines.append(_line("", "", "paper", theirs))
            continue
        lines.append(_line(row["set"], str(row["m"]), "ours", [_mean_std(c["mean"], c["std"]) for c in cells]))
        lines.append(_line("", "", "paper", theirs))
        lines.append(_line("", "", "ratio", [f"{c['ratio']:.2f}" for c in cells]))
    return "\n".join([*lines, "", *_check_lines(table["checks"]), ""])


def _line(label: str, m: str, kind: str, cells: list[str]) -> str:
    return "| " + " | ".join([f"{label:17}", f"{m:>3}", f"{kind:5}", *(f"{cell:18}" for cell in cells)]) + " |"


def _mean_std(mean: float, std: float) -> str:
    return f"{mean:.2e} ({std:.1e})"


def _check_lines(checks: dict[str, Any]) -> list[str]:
    worst = checks["worst"]
    below = f"{checks['judged']} rows" if not checks["contrary"] else f"not on {', '.join(checks['contrary'])}"
    return [
        f"- every FedPower variant within {WITHIN:.0f}x of the paper: {_yes(checks['within'])} "
        f"(worst: {worst['set']}, {worst['column']}, {worst['ratio']:.2f}x)",
        f"- Procrustes below UDA where the paper says so: {_yes(checks['procrustes_below_uda'])} ({below})",
    ]


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"
