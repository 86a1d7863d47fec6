"""Figures 3-8 of SRPFL: a column for each set and split, a row for each cost of communication."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedspan.cli.reproduce_srpfl_methods import (
    BY_SAMPLES,
    FEDAVG,
    FEDAVG_FT,
    FEDAVG_S,
    FEDREP,
    FEDREP_S,
    FLANP_FT,
    LG,
    LG_BY_SAMPLES,
    LG_FLANP,
    LG_S,
    MAML,
    TUNED,
)

_STYLE = {  # colour, dashed
    FEDREP_S: (0, False), FEDREP: (0, True), LG_S: (1, False), LG: (1, True), FEDAVG: (2, True), FEDAVG_S: (3, False),
    FEDAVG_FT: (3, True), FLANP_FT: (4, False), LG_FLANP: (4, True), MAML: (2, False), TUNED: (5, True),
    BY_SAMPLES: (2, False), LG_BY_SAMPLES: (3, False),
}  # fmt: skip


def draw_figure(
    folder: Path, figure: Mapping[str, Any], costs: Sequence[float], curves: Callable[..., None]
) -> dict[str, str]:
    """Write one figure's picture, of the columns that were available; return its file by its number."""
    number, columns = figure["number"], [column for column in figure["columns"] if "absent" not in column]
    if not columns:
        return {}
    panels = [_panel(column, f"{cost:g}") for cost in costs for column in columns]
    curves(
        folder / f"figure{number}.png", f"Figure {number[0]}: {figure['title']}", panels,
        x="virtual time", y="mean test accuracy", across=len(columns), log=False, one_legend=True,
    )  # fmt: skip
    return {number: f"figure{number}.png"}


def _panel(column: Mapping[str, Any], cost: str) -> dict[str, Any]:
    lines = []
    for name, (colour, dashed) in _STYLE.items():
        run = column["runs"].get(name, {"diverged": "not run"})
        if "diverged" in run:
            continue
        lines.append(
            {"label": name, "values": run["accuracy"], "at": run["times"][cost], "colour": colour, "dashed": dashed}
        )
    return {"title": f"{column['title']}\nC.T. = {cost}", "curves": lines}
