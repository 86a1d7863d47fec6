"""Pictures: the one file of the command line that imports matplotlib."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedspan.encoding import write_atomically

COLOURS = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#ccbb44", "#66ccee")
"""Paul Tol's "bright": told apart by colour-blind readers and in print."""
MARKERS = "osD^v*"
_LEGEND_COLUMNS = 2
_LEGEND: dict[str, Any] = {"fontsize": 9, "frameon": False}
_FLOOR = 1e-16  # a distance of exactly 0 has no place on a log scale


def write_curves(
    path: Path,
    title: str,
    panels: Sequence[Mapping[str, Any]],
    *,
    x: str,
    y: str,
    across: int | None = None,
    top: float | None = None,
    log: bool = True,
    one_legend: bool = False,
) -> None:
    """Write panels, each with its curves on a log scale, as a PNG: in one row, or at most ``across`` in each.

    A panel is ``{"title": str, "curves": [{"label": str, "values": [...], "colour": int, "dashed": bool}, ...]}``;
    values are drawn against 0, 1, 2 and so on, or against the curve's ``"at"``. A panel's own ``"x"`` names its axis.
    What lies above ``top`` is cut off. ``log=False`` takes plain scales. ``one_legend`` puts a single legend below
    all panels, which are then smaller: the curves of one label look alike in all of them.
    """
    legend_lines = max(-(-len(panel["curves"]) // _LEGEND_COLUMNS) for panel in panels)
    wide = min(len(panels), across or len(panels))
    high = -(-len(panels) // wide)
    size = (3.6 * wide + 0.4, 2.9 * high + 1.2) if one_legend else (5.0 * wide + 0.4, (4.1 + 0.2 * legend_lines) * high)
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=13)
    axes = figure.subplots(high, wide, squeeze=False)
    for axis in axes.ravel()[len(panels) :]:
        axis.set_visible(False)
    for axis, panel in zip(axes.ravel(), panels, strict=False):
        _draw(axis, panel["curves"], log)
        if not one_legend:
            axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=_LEGEND_COLUMNS, **_LEGEND)  # hides none
        axis.set_title(panel["title"], fontsize=11)
        axis.set_xlabel(panel.get("x", x))
        if top is not None and axis.get_ylim()[1] > top:
            axis.set_ylim(top=top)
    for axis in axes[:, 0]:
        axis.set_ylabel(y)
    if one_legend:
        known = {
            label: line for axis in axes.ravel() for line, label in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        figure.legend(known.values(), known.keys(), loc="outside lower center", ncols=2 * wide, **_LEGEND)
    _save(path, figure)


def write_points(path: Path, title: str, panels: Sequence[Mapping[str, Any]], *, across: int) -> None:
    """Write panels of points in the plane as a PNG: ``{"title": str, "points": n x 2, "of": n classes}`` each.

    Axes are a panel's own: what noise has moved or shrunk is still seen.
    """
    wide = min(len(panels), across)
    high = -(-len(panels) // wide)
    figure = Figure(figsize=(3.4 * wide, 3.4 * high), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=13)
    axes = figure.subplots(high, wide, squeeze=False)
    for axis in axes.ravel()[len(panels) :]:
        axis.set_visible(False)
    for axis, panel in zip(axes.ravel(), panels, strict=False):
        axis.scatter(*panel["points"].T, c=panel["of"], cmap="viridis", s=3, linewidths=0)
        axis.set_title(panel["title"], fontsize=9)
        axis.tick_params(labelsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    _save(path, figure)


def _save(path: Path, figure: Figure) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_atomically(path, buffer.getvalue())


def _draw(axis: Any, curves: Sequence[Mapping[str, Any]], log: bool) -> None:
    for at, curve in enumerate(curves):
        values = [max(value, _FLOOR) if log else value for value in curve["values"]]
        colour = int(curve["colour"]) % len(COLOURS)
        step = max(5, len(values) // 12)  # from mark to mark; those of neighbouring curves do not hide each other
        (axis.semilogy if log else axis.plot)(
            curve.get("at", range(len(values))),
            values,
            label=curve["label"],
            color=COLOURS[colour],
            linestyle="--" if curve["dashed"] else "-",
            marker=MARKERS[colour],
            markerfacecolor="white" if curve["dashed"] else COLOURS[colour],
            markersize=4.5,
            markevery=(at * step // 5 % step, step) if len(values) > 5 else 1,
            linewidth=1.5,
        )
    ends = [at for curve in curves for at in curve.get("at", (0, len(curve["values"]) - 1))]
    if max(ends) > min(ends):
        axis.set_xlim(min(ends), max(ends))
    axis.grid(True, which="major", color="#dddddd", linewidth=0.8)
    axis.spines[["top", "right"]].set_visible(False)
