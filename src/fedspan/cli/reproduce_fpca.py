"""``fedspan reproduce fpca``: Figures 5-13 and Table 1 of Grammenos et al. (2020), the paper's figures beside ours.

Grammenos, Mendoza-Smith, Crowcroft, Mascolo: Federated Principal Component Analysis, appendix D. Most of the paper's
results are pictures only; what it prints is Table 1. Nothing is downloaded: a set that is neither in ``FEDSPAN_DATA``
nor in the cache is listed as not available.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedspan.cli.reproduce_fpca_data import BLOCK, ENERGY, FULL, QUICK, RANK, Scale, Stream
from fedspan.cli.reproduce_fpca_figures import draw_figures
from fedspan.cli.reproduce_fpca_memory import measure_memory
from fedspan.cli.reproduce_fpca_merges import measure_merges, measure_workers
from fedspan.cli.reproduce_fpca_order import measure_order
from fedspan.cli.reproduce_fpca_private import measure_private
from fedspan.cli.reproduce_fpca_runs import brackets, race
from fedspan.cli.reproduce_fpca_tables import text
from fedspan.cli.reproduce_shared import Report, curve_writer
from fedspan.datasets.synthetic import power_law
from fedspan.encoding import write_atomically
from fedspan.errors import DataError

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

    The folder gets ``fpca.json`` (what is returned: plain data), ``tables.md`` (its `text`) and the figures as
    pictures. ``quick`` takes tiny problems: a look, not a comparison.
    """
    scale, started = QUICK if quick else FULL, time.perf_counter()
    write = curve_writer() if figures else None
    result: dict[str, Any] = {
        "paper": "Grammenos, Mendoza-Smith, Crowcroft, Mascolo: Federated Principal Component Analysis",
        "settings": {**asdict(scale), "block": BLOCK, "rank": RANK, "energy": list(ENERGY), "quick": quick},
    }
    with threadpool_limits(limits=1):  # the blocks are small: a second BLAS thread costs more than it brings
        result["merges"] = measure_merges(scale.merges, report)
        result["spectra"] = [_spectrum(alpha, scale, report) for alpha in scale.spectra.alphas]
        result["streams"] = [_stream(stream, scale, report) for stream in scale.streams]
        result["private"], pictures = measure_private(scale, report)
        result["workers"] = measure_workers(scale.workers, report)
        result["order"] = measure_order(scale.permutations, report)
        if tables:
            result["memory"] = measure_memory(scale.memory_rows, report)
    if write is not None:
        from fedspan.cli.plots import write_points

        result["figures"] = draw_figures(folder, result, pictures, write, write_points)
    result["seconds"] = round(time.perf_counter() - started, 1)
    write_atomically(folder / "fpca.json", json.dumps(result, indent=1).encode())
    if tables:
        write_atomically(folder / "tables.md", text(result).encode())
    return result


def _spectrum(alpha: float, scale: Scale, report: Report) -> dict[str, Any]:
    """Figures 6-8."""
    found = race(power_law(scale.spectra.rows, scale.spectra.d, alpha=alpha), RANK, scale.points)
    report(f"figures 6-8: alpha = {alpha:g}")
    return {"alpha": alpha, **found, "brackets": brackets(found)}


def _stream(stream: Stream, scale: Scale, report: Report) -> dict[str, Any]:
    """A panel of Figure 9."""
    try:
        rows = stream.load()
    except DataError as why:
        report(f"figure 9, {stream.paper}: not available here")
        return {"label": stream.paper, "absent": str(why)}
    found = race(rows, stream.rank, scale.points, unforgetting=stream.unforgetting)
    report(f"figure 9: {stream.label}")
    return {"label": stream.label, **found, "brackets": brackets(found)}
