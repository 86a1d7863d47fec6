"""``fedspan reproduce fedpower``: Table 2 and Figures 3-6 of Guo et al. (2021), the paper's figures beside ours.

Table 2: k = 5, p = 4, m = max(n // 1000, 3) sites, 40 communications, ten random splits, no centring. The paper
does not say its iteration rank r; three are tabled: r = k = 5, r = 7 (which comes nearest to most of its figures)
and r = 10 (that of its Table 3). Nothing is downloaded: a set that is neither in ``FEDSPAN_DATA`` nor in the cache
is listed as not available.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedspan.cli.reproduce_fedpower_data import COLUMNS, PAPER, QUICK, K, Row, Scale, deal, matrix, truth
from fedspan.cli.reproduce_fedpower_figures import draw_figures
from fedspan.cli.reproduce_shared import Report, curve_writer
from fedspan.data import Preparation, Source, SymmetricSource
from fedspan.encoding import Array, write_atomically
from fedspan.errors import DataError
from fedspan.metrics import projection_distance
from fedspan.run import Study, run
from fedspan.solvers import UDA, WDA, FedPower, RandomizedSVD, Solver

FEDPOWER: dict[str, str | None] = {"OPT": "procrustes", "Sign-fixing": "sign", "Vanilla": None}
ONE_SHOT: dict[str, Solver] = {"DR-SVD": RandomizedSVD(), "UDA": UDA(), "WDA": WDA()}
WITHIN = 4.0
"""How far above the paper's mean error ours may lie."""


def reproduce(
    folder: Path,
    *,
    tables: bool = True,
    figures: bool = True,
    quick: bool = False,
    report: Report = lambda _: None,
) -> dict[str, Any]:
    """Compute Table 2 and Figures 3-6 and write them to a folder.

    The folder gets ``fedpower.json`` (what is returned: plain data), ``table2.md`` (its `text`) and ``figure3.png``
    to ``figure6.png``. ``quick`` takes two small sets and two splits.
    """
    scale, started = QUICK if quick else Scale(), time.perf_counter()
    write = curve_writer() if figures else None
    result: dict[str, Any] = {
        "paper": "Guo, Li, Chang, Wang, Zhang: Privacy-Preserving Distributed SVD via Federated Power",
        "settings": {
            "components": K, "local_steps": 4, "communications": scale.communications, "splits": scale.splits,
            "quick": quick,
        },
    }  # fmt: skip
    with threadpool_limits(limits=1):  # the products are small: a second BLAS thread costs more than it brings
        if tables:
            measured = [_measure(row, scale, report) for row in scale.rows]
            result["tables"] = [_table(rank, measured) for rank in scale.ranks]
        if write is not None:
            result["figures"] = draw_figures(folder, scale, write, report)
    result["seconds"] = round(time.perf_counter() - started, 1)
    write_atomically(folder / "fedpower.json", json.dumps(result, indent=1).encode())
    if tables:
        write_atomically(folder / "table2.md", text(result).encode())
    return result


# ---- measuring -------------------------------------------------------------------------------------------------


def _measure(row: Row, scale: Scale, report: Report) -> dict[str, Any]:
    """Return every method's error on every split, FedPower's for each rank; or why the set is absent."""
    try:
        X = matrix(row)
    except DataError as why:
        report(f"{row.label}: not available here")
        return {"set": row.label, "paper_set": row.paper, "absent": str(why)}
    (n, d), started = X.shape, time.perf_counter()
    m, leading = max(n // 1000, 3), truth(X)
    errors: dict[str, list[float]] = {}
    for seed in range(scale.splits):
        for key, error in _one_split(X, m, seed, leading, scale):
            errors.setdefault(key, []).append(error)
        report(f"{row.label}: split {seed + 1} of {scale.splits}, {time.perf_counter() - started:.0f} s")
    return {
        "set": row.label, "paper_set": row.paper, "scaling": row.scaling, "n": n, "d": d, "m": m, "errors": errors,
        "seconds": round(time.perf_counter() - started, 1),
    }  # fmt: skip


def _one_split(X: Array, m: int, seed: int, leading: Array, scale: Scale) -> Iterator[tuple[str, float]]:
    sources = deal(X, m, seed)
    for name, solver in ONE_SHOT.items():
        yield name, _error(solver, sources, seed, leading)
    if len(X) // m >= X.shape[1]:  # else the rows are the smaller
        sources = {name: _share(source) for name, source in sources.items()}
    for rank in scale.ranks:
        for name, align in FEDPOWER.items():
            budget = scale.communications + 1  # the last round is for the Ritz values
            fedpower = FedPower(rounds=budget, tol=0, local_steps=4, align=align, oversampling=rank - K)
            yield f"{name} r={rank}", _error(fedpower, sources, seed, leading)


def _share(source: Source) -> Source:
    """With all sites in all rounds FedPower only multiplies by A_i'A_i: compute it once, for all variants."""
    return SymmetricSource(sum(block.T @ block for block in source.blocks()))


def _error(solver: Solver, sources: dict[str, Source], seed: int, leading: Array) -> float:
    study = Study(n_components=K, solver=solver, preparation=Preparation(center=False), seed=seed)
    return projection_distance(run(study, sources).estimate.basis, leading)


# ---- beside the paper ------------------------------------------------------------------------------------------


def _table(rank: int, measured: list[dict[str, Any]]) -> dict[str, Any]:
    """Set ours beside the paper's for one rank, and judge."""
    rows = []
    for found in measured:
        row = {key: value for key, value in found.items() if key != "errors"}
        row["cells"] = {column: _cell(found, column, rank) for column in COLUMNS}
        rows.append(row)
    return {"rank": rank, "rows": rows, "checks": _checks([row for row in rows if "absent" not in row])}


def _cell(found: dict[str, Any], column: str, rank: int) -> dict[str, Any]:
    means, stds = PAPER[found["paper_set"]]
    at = COLUMNS.index(column)
    cell: dict[str, Any] = {"paper_mean": means[at], "paper_std": stds[at]}
    if "absent" in found:
        return cell
    runs = found["errors"][f"{column} r={rank}" if column in FEDPOWER else column]
    mean, std = float(np.mean(runs)), float(np.std(runs, ddof=1))
    return {**cell, "mean": mean, "std": std, "ratio": mean / means[at], "runs": runs}


def _checks(rows: list[dict[str, Any]]) -> dict[str, Any]:
    judged = [(row["cells"][column]["ratio"], row["set"], column) for row in rows for column in FEDPOWER]
    said = [row for row in rows if row["cells"]["OPT"]["paper_mean"] < row["cells"]["UDA"]["paper_mean"]]
    contrary = [row["set"] for row in said if not row["cells"]["OPT"]["mean"] < row["cells"]["UDA"]["mean"]]
    ratio, where, column = max(judged, default=(0.0, "nothing measured", "none"))
    return {
        "within": bool(judged) and ratio <= WITHIN,
        "cells": len(judged),
        "cells_within": sum(over <= WITHIN for over, _, _ in judged),
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
        f"## Table 2 at r = {table['rank']}",
        "",
        f"k = {K}, p = 4, {settings['communications']} communications, {settings['splits']} random splits. "
        "Mean projection distance (std); below it the paper's; below that ours / the paper's.",
        "",
        _line("set", "m", "", list(COLUMNS)),
        _line("-" * 17, "--:", "-" * 5, ["-" * 18] * len(COLUMNS)),
    ]
    for row in table["rows"]:
        cells = [row["cells"][column] for column in COLUMNS]
        theirs = _line("", "", "paper", [_mean_std(c["paper_mean"], c["paper_std"]) for c in cells])
        if "absent" in row:
            lines += [_line(row["set"], "", "ours", ["not available here"] * len(COLUMNS)), theirs]
            continue
        ours = _line(row["set"], str(row["m"]), "ours", [_mean_std(c["mean"], c["std"]) for c in cells])
        lines += [ours, theirs, _line("", "", "ratio", [f"{c['ratio']:.2f}" for c in cells])]
    return "\n".join([*lines, "", *_check_lines(table["checks"]), ""])


def _line(label: str, m: str, kind: str, cells: list[str]) -> str:
    padded = [f"{label:17}", f"{m:>3}", f"{kind:5}", *(f"{cell:18}" for cell in cells)]
    return f"| {' | '.join(padded)} |"


def _mean_std(mean: float, std: float) -> str:
    return f"{mean:.2e} ({std:.1e})"


def _check_lines(checks: dict[str, Any]) -> list[str]:
    worst, contrary = checks["worst"], checks["contrary"]
    where = f"not on {', '.join(contrary)}" if contrary else f"{checks['judged']} rows"
    return [
        f"- every FedPower variant within {WITHIN:.0f}x of the paper: {_yes(checks['within'])} "
        f"({checks['cells_within']} of {checks['cells']} cells; "
        f"worst: {worst['set']}, {worst['column']}, {worst['ratio']:.2f}x)",
        f"- Procrustes below UDA where the paper says so: {_yes(checks['procrustes_below_uda'])} ({where})",
    ]


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"
