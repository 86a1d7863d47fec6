"""``fedspan reproduce srpfl``: Figures 3-8 and Theorem 4.9 of Tziotis et al. (2023), in virtual time.

Tziotis, Shen, Pedarsani, Hassani, Mokhtari: Straggler-Resilient Personalized Federated Learning, section 5 and
appendix C. All its results are pictures. Nothing is downloaded: a set that is neither in ``FEDSPAN_DATA`` nor in the
cache is listed as not available.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedspan.cli.reproduce_shared import Report, curve_writer
from fedspan.cli.reproduce_srpfl_figures import draw_figure
from fedspan.cli.reproduce_srpfl_linear import measure_linear
from fedspan.cli.reproduce_srpfl_runs import REACHED, SEED, run_figures
from fedspan.cli.reproduce_srpfl_scale import COMMUNICATION, FULL, QUICK, WHOLE
from fedspan.cli.reproduce_srpfl_tables import text
from fedspan.encoding import write_atomically
from fedspan.learners.model import networks

__all__ = ["reproduce", "text"]


def reproduce(
    folder: Path,
    *,
    tables: bool = True,
    figures: bool = True,
    quick: bool = False,
    whole: bool = False,
    report: Report = lambda _: None,
) -> dict[str, Any]:
    """Run every panel, measure the theorem's ratio, and write the tables and the figures to a folder.

    The folder gets ``srpfl.json`` (what is returned: plain data, all curves), ``tables.md`` (its `text`) and the
    figures as pictures. ``quick`` takes tiny problems, a look and not a comparison; ``whole`` the paper's 100 sites
    and all rows.
    """
    scale, started = QUICK if quick else WHOLE if whole else FULL, time.perf_counter()
    write = curve_writer() if figures else None
    networks()  # says how to install PyTorch, before anything is computed
    settings = {
        **asdict(scale), "communication": COMMUNICATION, "seed": SEED, "reached": REACHED, "quick": quick,
        "whole": whole,
    }  # fmt: skip
    result: dict[str, Any] = {
        "paper": "Tziotis, Shen, Pedarsani, Hassani, Mokhtari: Straggler-Resilient Personalized Federated Learning",
        "settings": settings,
    }
    with threadpool_limits(limits=1):  # batches of ten rows: a second BLAS thread costs more than it brings
        result["linear"] = measure_linear(scale.linear, report)
        result["panels"], result["figures"] = [], {}
        for figure in run_figures(scale, report):  # each is on disk as soon as it is made
            result["panels"].append(figure)
            if write is not None:
                result["figures"] |= draw_figure(folder, figure, COMMUNICATION, write)
            result["seconds"] = round(time.perf_counter() - started, 1)
            write_atomically(folder / "srpfl.json", json.dumps(result, indent=1).encode())
            if tables:
                write_atomically(folder / "tables.md", text(result).encode())
    return result
