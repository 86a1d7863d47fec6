"""``fedspan reproduce ppm``: Table 1 and Figures 1-2 of Nicolas et al. (2024), the paper's figures beside ours.

Nicolas, Sabater, Maouche, Ben Mokhtar, Coates: Differentially private and decentralized randomized power method. (Table
2 has orders of magnitude only.) Nothing is downloaded: a set that is neither in ``FEDSPAN_DATA`` nor in the cache is
listed as not available.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedspan.cli.reproduce_ppm_data import FULL, QUICK, TABLE_1, Scale, measure_ratios, measure_set
from fedspan.cli.reproduce_ppm_tables import text
from fedspan.cli.reproduce_shared import Report, curve_writer
from fedspan.encoding import write_atomically
from fedspan.errors import DataError
from fedspan.metrics import sensitivity_ratio

__all__ = ["reproduce", "text"]


def reproduce(
    folder: Path,
    *,
    tables: bool = True,
    figures: bool = True,
    quick: bool = False,
    report: Report = lambda _: None,
) -> dict[str, Any]:
    """Compute the table and the figures and write them to a folder.

    The folder gets ``ppm.json`` (what is returned: plain data), ``tables.md`` (its `text`) and ``figure1.png`` and
    ``figure2.png``. ``quick`` takes small starts and few eigenvectors: a look, not a comparison.
    """
    scale, started = QUICK if quick else FULL, time.perf_counter()
    write = curve_writer() if figures else None
    result: dict[str, Any] = {
        "paper": "Nicolas, Sabater, Maouche, Ben Mokhtar, Coates: Differentially private and decentralized randomized "
        "power method",
        "settings": {**asdict(scale), "quick": quick},
    }
    if tables:
        result["sets"] = {name: _measured(name, scale, report) for name in TABLE_1}
    if write is not None:
        result["ratios"] = [_ratios(n, scale, report) for n in scale.rows]
        result["figures"] = _draw(folder, result["ratios"], write)
    result["seconds"] = round(time.perf_counter() - started, 1)
    write_atomically(folder / "ppm.json", json.dumps(result, indent=1).encode())
    if tables:
        write_atomically(folder / "tables.md", text(result).encode())
    return result


def _measured(name: str, scale: Scale, report: Report) -> dict[str, Any]:
    try:
        return measure_set(name, scale, report)
    except DataError as why:
        report(f"{name}: not available here")
        return {"absent": str(why)}


def _ratios(n: int, scale: Scale, report: Report) -> dict[str, Any]:
    found = measure_ratios(n, scale)
    report(f"r(k, n) for n = {n}: {scale.runs} random starts")
    return {**found, "approximation": [sensitivity_ratio(k, n) for k in scale.ks]}


def _draw(folder: Path, ratios: list[dict[str, Any]], write: Callable[..., None]) -> dict[str, str]:
    """Write the pictures; return their files by name."""
    files = {}
    for number, found in enumerate(ratios, start=1):
        curves = [
            {"label": label, "values": found[key], "at": found["ks"], "colour": colour, "dashed": False}
            for label, key, colour in (("measured", "measured", 0), ("Approximation 5.1", "approximation", 2))
        ]
        files[str(number)] = f"figure{number}.png"
        title = f"Figure {number}: old sensitivity over PPM's"
        panel = {"title": f"r(k, n), n = {found['n']}", "curves": curves}
        write(folder / files[str(number)], title, [panel], x="k", y="r(k, n)")
    return files
