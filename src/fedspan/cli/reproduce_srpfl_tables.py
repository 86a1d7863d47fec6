"""The figures behind Figures 3-8 of SRPFL: final accuracies, and when they are reached, as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedspan.cli.reproduce_faps_tables import markdown
from fedspan.cli.reproduce_srpfl_linear import (
    COMMUNICATION,
    COMPONENTS,
    FEATURES,
    NOISE,
    PART,
    ROWS,
    STALL,
    TARGET,
)
from fedspan.cli.reproduce_srpfl_methods import FEDREP, FEDREP_S, PAIRS
from fedspan.cli.reproduce_srpfl_runs import REACHED


def text(result: dict[str, Any]) -> str:
    """Return everything as Markdown."""
    parts = [_about(result["settings"]), *_absent(result["panels"])]
    for figure in result["panels"]:
        parts += _figure(figure, [f"{cost:g}" for cost in result["settings"]["communication"]])
    return "\n\n".join([*parts, _linear(result)]) + "\n"


def _about(s: dict[str, Any]) -> str:
    size = "Tiny problems: a look, not a comparison. " if s["quick"] else ""
    rows = "all rows" if s["rows"] is None else f"{s['rows']} rows each"
    colours = "all rows" if s["image_rows"] is None else f"{s['image_rows']} rows each"
    local = f"{s['local']} local epoch" if s["local"] else "5 local epochs (1 on CIFAR10)"
    return (
        f"{size}{s['sites']} sites, {rows}, {s['rounds']} rounds; in colour {s['image_sites']} sites, {colours}, "
        f"{s['image_rounds']} rounds. Rate 0.1, momentum 0.5, batches of 10, {local}. Doubling begins with a quarter "
        "of the sites that a round asks, a stage but the last has a fifth of the rounds; FLANP's stages end where the "
        "loss stalls (2 %), after twice as many at the latest. HF-MAML has one local epoch. All methods have the same "
        "number of rounds, 2.5 times as many where a round asks some of the sites. Accuracy is the "
        "mean over all sites, on test rows of the classes that a site learns, its own part as stored; with FT, for "
        "HF-MAML and with heads tuned after as many epochs of descent at the site as a round has. Measuring, and what "
        "is trained for it, takes no virtual time. A site computes for an exponential time, of mean 1, drawn once "
        "(fixed speeds), of a rate from U[1 / M, 1], drawn every round (dynamic), or of mean 0.1 and 10 (stragglers); "
        f"every round costs C.T. beside. Times are means over {s['draws']} draws of the speeds, the same for all "
        f"methods; one run of each, seed {s['seed']}. "
        "The paper's results are pictures in the text we have: there are no figures of its own to set beside ours."
    )


def _absent(panels: list[dict[str, Any]]) -> Iterator[str]:
    missing = {
        column["title"].split(",")[0]: column["absent"]
        for figure in panels for column in figure["columns"] if "absent" in column
    }  # fmt: skip
    if missing:
        yield "\n".join(
            ["Not available here, nothing is downloaded:", "", *(f"- {n}: {w}" for n, w in missing.items())]
        )


def _figure(figure: dict[str, Any], costs: list[str]) -> Iterator[str]:
    here = [column for column in figure["columns"] if "absent" not in column]
    if not here:
        return
    yield f"## Figure {figure['number'][0]}: {figure['title']}"
    for column in here:
        yield _column(column, costs)
    yield _ratios(here, costs)


def _column(column: dict[str, Any], costs: list[str]) -> str:
    low, middle, high = column["rows"]
    sizes = f"{low} rows each" if low == high else f"{low} to {high} rows, median {middle:g}"
    asked = "" if column["fraction"] == 1 else f", {100 * column['fraction']:g} % of them asked in a round"
    rows = []
    for name, run in column["runs"].items():
        times = column["reached"].get(name, {})
        final = "diverged" if "diverged" in run else f"{run['final']:.3f}"
        rows.append([name, final, *(_time(times.get(cost)) for cost in costs)])
    target = "" if column["target"] is None else f" {column['target']:.3f},"
    about = (
        f"{column['title']}: {column['sites']} sites, {sizes}{asked}. Final accuracy, and the virtual time at which"
        f"{target} 99 % of {FEDREP}'s, is first met (a dash: not within the rounds)."
    )
    return f"{about}\n\n{markdown(['method', 'final', *_headed(costs)], rows)}"


def _headed(costs: list[str]) -> list[str]:
    return [f"C.T. = {cost}" for cost in costs]


def _ratios(columns: list[dict[str, Any]], costs: list[str]) -> str:
    rows = [
        [f"{column['title']}: {name}", *(_time(times[cost], 2) for times in ratios.values() for cost in costs)]
        for column in columns for name, ratios in column["ratios"].items()
    ]  # fmt: skip
    header = [f"{100 * part:g} %, C.T. = {cost}" for part in REACHED for cost in costs]
    about = (
        "Time with doubling over the time without, to these parts of the final accuracy without "
        f"({FEDREP_S} over {PAIRS[FEDREP_S]} and so on; below 1 doubling saves time):"
    )
    return f"{about}\n\n{markdown(['', *header], rows)}"


def _linear(result: dict[str, Any]) -> str:
    rows = [
        [str(m["sites"]), f"{m['rounds']:.0f}", f"{m['full']:.1f}", f"{m['doubling']:.1f}", f"{m['ratio']:.2f}",
         f"{m['counts']:.2f}", f"{m['bound']:.2f}"]
        for m in result["linear"]
    ]  # fmt: skip
    header = ["N", "rounds", "full", "doubling", "ratio", "predicted, by (203), (240), (253)", "bound (256)"]
    about = (
        f"{ROWS} rows of {FEATURES} columns at each site, k = {COMPONENTS}, noise {NOISE:g}, communication "
        f"{COMMUNICATION:g} mean compute time, random start, doubling from N / {PART} on, a stage until its loss "
        f"stalls ({100 * STALL:g} %). Virtual time to {TARGET} times the distance that full participation ends at, "
        f"its rounds until then, means over {result['settings']['linear']['seeds']} seeds; expected over all draws of "
        "fixed speeds. Predicted with a from the heads, sqrt(1 - a) = 1 - eta sigma_min^2. (The paper measures none.)"
    )
    return f"## Theorem 4.9: the linear case\n\n{about}\n\n{markdown(header, rows)}"


def _time(seconds: float | None, digits: int = 1) -> str:
    return "-" if seconds is None else f"{seconds:.{digits}f}"
