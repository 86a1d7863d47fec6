"""Figures 5-9, 12 and 13 of Federated-PCA: their panels. (Figures 10 and 11 are points, drawn as they are measured.)"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedspan.cli.reproduce_fpca_merges import MERGES
from fedspan.cli.reproduce_fpca_order import ORDERED
from fedspan.cli.reproduce_fpca_runs import (
    ADAPTIVE,
    ALONE,
    CARRIED,
    FD,
    FORGETTING,
    GREEDY,
    GROUSE,
    HIGH,
    LOW,
    PM,
    UNFORGETTING,
)

_STYLE = {  # colour, dashed
    ADAPTIVE: (1, False), CARRIED: (1, True), ALONE: (2, True), LOW: (3, True), HIGH: (3, False), FORGETTING: (0, True),
    UNFORGETTING: (0, False), PM: (2, False), GROUSE: (4, False), GREEDY: (4, True), FD: (5, False),
}  # fmt: skip
Figure = tuple[str, str, list[dict[str, Any]], dict[str, Any]]


def draw_figures(
    folder: Path, result: Mapping[str, Any], pictures: Mapping[str, Any], curves: Callable[..., None],
    points: Callable[..., None],
) -> dict[str, str]:  # fmt: skip
    """Write the pictures; return their files by name."""
    files = {}
    for name, title, panels, options in _figures(result):
        if panels:
            files[name] = f"figure{name}.png"
            curves(folder / files[name], f"Figure {name.removesuffix('-ranks')}: {title}", panels, **options)
    for name, panels in pictures.items():
        files[name] = f"figure{name}.png"
        points(folder / files[name], f"Figure {name}: projections to two components", panels, across=3)
    return files


def _figures(result: Mapping[str, Any]) -> Iterator[Figure]:
    yield "5", "merging two halves of Synth(1)", _merge_panels(result["merges"]), {"x": "n", "y": ""}
    spectra, across = result["spectra"], {"x": "rows", "across": 3}
    for number, spirit in (("6", FORGETTING), ("7", UNFORGETTING)):
        named = [ADAPTIVE, CARRIED, LOW, HIGH, spirit]
        errors = [_panel(f"alpha = {found['alpha']:g}", found, "errors", named) for found in spectra]
        yield number, f"error (66), {spirit}", errors, {"y": "error (66)", **across}
        ranks = [_panel(f"alpha = {found['alpha']:g}", found, "ranks", [ADAPTIVE, LOW, HIGH, spirit])
                 for found in spectra]  # fmt: skip
        yield f"{number}-ranks", f"components, {spirit}", ranks, {"y": "components", **across}
    yield "8", "subspaces across spectra", [_spectra_panel(spectra)], {"x": "alpha", "y": "subspace error"}
    streams = [_panel(found["label"], found, "errors", found["runs"]) for found in result["streams"]
               if "absent" not in found]  # fmt: skip
    yield "9", "real data", streams, {"x": "rows", "y": "error (66)"}
    yield "12", "time against workers", [_workers_panel(result["workers"])], {"x": "workers", "y": "seconds"}
    order = [_order_panel(result["order"], key, title) for key, title in
             (("svd", "against the offline SVD"), ("own", "against the unpermuted run"))]  # fmt: skip
    yield "13", "mean subspace error over permutations", order, {"x": "r", "y": "subspace error"}


def _panel(title: str, found: Mapping[str, Any], key: str, names: Iterable[str]) -> dict[str, Any]:
    """The adaptive run comes last, on top of those that it lies between."""
    drawn = sorted((name for name in names if name in found["runs"]), key=ADAPTIVE.__eq__)
    return {"title": title, "curves": [_line(name, found["runs"][name][key], found["at"]) for name in drawn]}


def _line(name: str, values: list[float], at: list[float]) -> dict[str, Any]:
    colour, dashed = _STYLE[name]
    return {"label": name, "values": values, "at": at, "colour": colour, "dashed": dashed}


def _merge_panels(measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    titles = {"subspace": "subspace error", "values": "relative error of the values", "seconds": "seconds"}
    at, panels = [m["n"] for m in measured], []
    for key, title in titles.items():
        values = {name: [m["merges"][name][key] for m in measured] for name in MERGES}
        curves = [{"label": name, "values": values[name], "at": at, "colour": colour, "dashed": colour > 0}
                  for colour, name in enumerate(MERGES)]  # fmt: skip
        panels.append({"title": title, "curves": curves})
    return panels


def _spectra_panel(spectra: list[dict[str, Any]]) -> dict[str, Any]:
    names = [name for name in spectra[0]["runs"] if name not in (CARRIED, LOW, HIGH)]
    at = [found["alpha"] for found in spectra]
    curves = [_line(name, [found["runs"][name]["subspace"] for found in spectra], at) for name in names]
    return {"title": "each against as many offline components", "curves": curves}


def _workers_panel(measured: list[dict[str, Any]]) -> dict[str, Any]:
    curves = []
    for colour, key in enumerate(("total", "pca", "merge")):
        kept = [m for m in measured if m[key] > 0]  # one worker merges nothing
        curves.append({"label": key, "values": [m[key] for m in kept], "at": [m["workers"] for m in kept],
                       "colour": colour, "dashed": False})  # fmt: skip
    return {"title": "slowest worker, and the longest path up the tree", "curves": curves}


def _order_panel(measured: list[dict[str, Any]], key: str, title: str) -> dict[str, Any]:
    styles = {name: _STYLE.get(name, (0, False)) for name in ORDERED}
    at = [m["rank"] for m in measured]
    return {
        "title": title,
        "curves": [
            {"label": name, "values": [m["methods"][name][key] for m in measured], "at": at, "colour": colour,
             "dashed": dashed}
            for name, (colour, dashed) in styles.items()
        ],
    }  # fmt: skip
