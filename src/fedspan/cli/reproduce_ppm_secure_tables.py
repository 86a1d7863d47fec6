"""Private power in its placements, and Table 2's growth of cost: as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedspan.cli.reproduce_faps_tables import markdown
from fedspan.cli.reproduce_ppm_growth import ORDERS

_ABSENT = "-"


def text(result: dict[str, Any]) -> str:
    """Return what is there as Markdown: ``sets`` (`reproduce_ppm_secure`) and ``growth`` (`reproduce_ppm_growth`)."""
    sections: list[str] = []
    for found in result.get("sets", {}).values():
        sections += _side_by_side(found)
    if "growth" in result:
        sections += _table_2(result["growth"])
    return "\n\n".join(sections) + "\n"


# ---- side by side ----------------------------------------------------------------------------------------------


def _side_by_side(found: dict[str, Any]) -> Iterator[str]:
    name = found.get("set", "the set")
    yield f"## Private power on {name}, one party and many"
    if "absent" in found:
        yield f"Not available here, nothing is downloaded: {found['absent']}"
        return
    yield (
        f"{found['users']:,} users, {found['items']:,} items, {found['interactions']:,} interactions for training; the "
        "item-item matrix is normalised by both degrees, which are taken as they are: the paper's neighbours (12) are "
        "about a change of that matrix, and nothing is charged for degrees. Captured: the variance along the answer, "
        "of that along the leading eigenvectors. Noise: its deviation on each number of the last sum. Bytes are of "
        "all sites and rounds."
    )
    yield _interactions(found)
    recall = f"recall@{found['runs'][0]['top']}"
    yield markdown(
        ["", "noise by", "epsilon", "change", "noise", "captured", "distance", recall, "MB up", "MB down", "s"],
        [_row(run) for run in found["runs"]],
    )
    exact = [f"{value:.3f} (k = {k})" for k, value in found["exact_recall"].items() if value is not None]
    if exact:
        yield f"The leading eigenvectors themselves have a recall of {', '.join(exact)}."
    yield _same(found["runs"])


def _interactions(found: dict[str, Any]) -> str:
    changes = found["interaction_changes"]
    return (
        f"Without one interaction the matrix changes by {changes['median']:.3f} in (12) (median of "
        f"{changes['count']:,} at random; {changes['most']:.3f} at most); (12) hides a change of 1."
    )


def _row(run: dict[str, Any]) -> list[str]:
    private = run["calibration"] != "none"
    recall = _ABSENT if run["recall"] is None else f"{run['recall']:.3f}"
    return [
        run["method"] + (f", {run['sites']} sites" if run["sites"] > 1 else ""),
        run["calibration"] if private else _ABSENT,
        f"{run['epsilon']:g}" if private else _ABSENT,
        f"{run['change']:g}" if private else _ABSENT,
        f"{run['noise']:.2g}" if private else _ABSENT,
        f"{run['captured']:.3f}", f"{run['distance']:.3f}", recall,
        f"{run['bytes_up'] / 1e6:,.1f}", f"{run['bytes_down'] / 1e6:,.1f}", f"{run['seconds']:.1f}",
    ]  # fmt: skip


def _same(runs: list[dict[str, Any]]) -> str:
    """Say how far placements are apart that add the same noise (Theorem 6.2)."""
    groups: dict[tuple[Any, ...], list[float]] = {}
    for run in runs:
        if run["calibration"] != "none":
            key = tuple(run[name] for name in ("calibration", "epsilon", "delta", "change", "k", "p", "rounds"))
            groups.setdefault(key, []).append(run["captured"])
    apart = max((max(values) - min(values) for values in groups.values() if len(values) > 1), default=None)
    if apart is None:
        return "One placement only: there is nothing to compare it with."
    return (
        f"Placements with the same terms are {apart:.3f} apart in captured variance at most, each with noise of its "
        "own (Theorem 6.2 says that they are as accurate)."
    )


# ---- Table 2 ---------------------------------------------------------------------------------------------------


def _table_2(growth: dict[str, Any]) -> Iterator[str]:
    yield "## Table 2: how the cost of a secure sum grows"
    yield (
        "Beside each measured figure the paper's order, its two terms with the factors that fit all points best (m: "
        "the numbers in a message, which the paper writes n^2). Growth is from the fewest sites to the most."
    )
    points, fits = growth["points"], growth["fits"]
    header = ["sites", "m", *(f"{order.who}, {order.what}" for order in ORDERS.values())]
    rows = [
        [
            str(point["sites"]), f"{point['size']:,}",
            *(f"{_figure(name, point[name])} ({_figure(name, fits[name]['fitted'][at])})" for name in ORDERS),
        ]
        for at, point in enumerate(points)
    ]  # fmt: skip
    yield markdown(header, rows)
    yield markdown(
        ["", "the paper: O(...)", "sites", "grew", "its order grew", "largest misfit"],
        [_growth(name, fit) for name, fit in fits.items()],
    )


def _growth(name: str, fit: dict[str, Any]) -> list[str]:
    order, growth = ORDERS[name], fit["growth"]
    return [
        f"{order.who}, {order.what}", order.words, f"{growth['from']} to {growth['to']}",
        f"{growth['measured']:.3g}x", f"{growth['fitted']:.3g}x", f"{fit['misfit']:.1%}",
    ]  # fmt: skip


def _figure(name: str, value: float) -> str:
    return f"{value:,.0f}" if name.endswith("bytes") else f"{value:.3g}"
