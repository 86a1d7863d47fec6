"""Tables 1-4 of Wang, Liu, Zhang (2022), ours beside the paper's, and the figures behind Figures 1 and 4: as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import mean
from typing import Any

from fedspan.cli.reproduce_faps_data import TABLE_1, TABLE_2, TABLE_3, TABLE_4, Printed
from fedspan.cli.reproduce_faps_figures import ENOUGH
from fedspan.cli.reproduce_faps_runs import METHODS, NEAR

Runs = dict[str, list[dict[str, Any]]]
"""By method, a run for each start."""
_ERRORS = {"kkt": "KKT violation", "error": "relative error"}
_FAR = 1e-5  # rule (27) may hold far from the answer: where the captured variance turns round, or hardly moves


def text(result: dict[str, Any]) -> str:
    """Return everything as Markdown."""
    sections = [
        _short(result),
        *(section for key, write in _SECTIONS.items() if key in result for section in write(result)),
    ]
    return "\n\n".join(sections) + "\n"


def _section(title: str, *parts: str) -> str:
    return "\n\n".join([f"## {title}", *(part for part in parts if part)])


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """Return a table whose columns are aligned in plain text too; the first is flush left."""
    widths = [max(len(row[at]) for row in [header, *rows]) for at in range(len(header))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = [header, rule, *rows]
    return "\n".join(
        "| " + " | ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) + " |" for line in lines
    )


# ---- cells -----------------------------------------------------------------------------------------------------


def _mean(runs: list[dict[str, Any]], key: str) -> float:
    return float(mean(run[key] for run in runs))


def _starts(number: int) -> str:
    return "1 start" if number == 1 else f"{number} starts"


def _iterations(runs: list[dict[str, Any]]) -> str:
    """The mean over the starts, and their range."""
    counts = [run["iterations"] for run in runs]
    missed = "" if all(run["met"] for run in runs) else " (27) not met"
    return f"{mean(counts):.0f} ({min(counts)}-{max(counts)}){missed}" if len(counts) > 1 else f"{counts[0]}{missed}"


def _near(runs: list[dict[str, Any]]) -> str:
    reached = [run["near"] for run in runs]
    return f"{mean(reached):.0f}" if None not in reached else "not all reach it"


def _printed(figures: Printed, name: str, style: str = ".2e") -> str:
    return format(figures[name], style) if name in figures else ""


def _method_rows(runs: Runs, paper: dict[str, Printed]) -> tuple[list[str], list[list[str]]]:
    """A row for each method: all that is measured, the paper's figure beside where it prints one."""
    header, rows = ["method"], [[name] for name in METHODS]
    columns: dict[str, tuple[Callable[[list[dict[str, Any]]], str], str]] = {
        "iterations": (_iterations, ".0f"),
        "near": (_near, ""),
        "seconds": (lambda made: f"{_mean(made, 'seconds'):.2f}", ".2f"),
        "kkt": (lambda made: f"{_mean(made, 'kkt'):.2e}", ".2e"),
        "error": (lambda made: f"{_mean(made, 'error'):.2e}", ".2e"),
        "inner": (lambda made: "" if made[0]["inner"] is None else f"{_mean(made, 'inner'):.1f}", ""),
    }
    titles = {**_ERRORS, "near": f"to KKT {NEAR:.0e}", "inner": "inner steps"}
    for key, (cell, style) in columns.items():
        header += [titles.get(key, key), *(["paper"] if key in paper else [])]
        for row, name in zip(rows, METHODS, strict=True):
            row += [cell(runs[name]), *([_printed(paper[key], name, style)] if key in paper else [])]
    return header, rows


def _iteration_rows(labelled: dict[str, Runs]) -> str:
    """A row for each problem, a column for each method: iterations."""
    rows = [[label, *(_iterations(runs[name]) for name in METHODS)] for label, runs in labelled.items()]
    return markdown(["iterations", *METHODS], rows)


def _averages(label: str, all_runs: list[Runs], key: str) -> list[str]:
    """A row of ours, for `_ERRORS`."""
    return [f"{label}: ours", *(f"{mean(_mean(runs[name], key) for runs in all_runs):.2e}" for name in METHODS)]


def _printed_row(label: str, figures: Printed) -> list[str]:
    return [label, *(_printed(figures, name) for name in METHODS)]


def _early(labelled: dict[str, Runs]) -> str:
    """Say where rule (27) held far from the answer."""
    found = [
        f"{name} on {label} after {run['iterations']} iterations (KKT violation {run['kkt']:.0e})"
        for label, runs in labelled.items() for name in METHODS for run in runs[name]
        if run["met"] and run["kkt"] > _FAR
    ]  # fmt: skip
    return f"Rule (27) held while the KKT violation was above {_FAR:.0e}: {'; '.join(found)}." if found else ""


# ---- sections --------------------------------------------------------------------------------------------------


def _group_label(setting: dict[str, Any]) -> str:
    return f"n = {setting['n']}, m = {setting['m']}, p = {setting['p']}, xi = {setting['xi']:.4g}"


def _tables_1_and_2(result: dict[str, Any]) -> Iterator[str]:
    groups, starts = result["groups"], _starts(result["settings"]["starts"])
    first = groups[0]["settings"][0]
    about = f"Reduced: {groups[0]['reduced']}. {_group_label(first)}, {starts}."
    yield _section("Table 1: a small example", about, markdown(*_method_rows(first["runs"], TABLE_1)))
    labelled = {_group_label(setting): setting["runs"] for group in groups for setting in group["settings"]}
    reduced = "\n".join(f"- varying {group['varies']}: {group['reduced']}" for group in groups)
    averages = []
    for group in groups:
        runs, varies = [setting["runs"] for setting in group["settings"]], group["varies"]
        for key, title in _ERRORS.items():
            averages += [
                _averages(f"{title}, varying {varies}", runs, key),
                _printed_row("paper", TABLE_2[varies][key]),
            ]
    about = f"{starts}, the mean and the range; settings that two groups share are listed once. Reduced from:"
    yield _section(
        "Table 2 and Figure 2: synthetic data", about, reduced, _iteration_rows(labelled),
        markdown(["average", *METHODS], averages), _early(labelled),
    )  # fmt: skip


def _table_3(result: dict[str, Any]) -> Iterator[str]:
    here = {found["label"]: found["runs"] for found in result["images"] if "absent" not in found}
    absent = [found["label"] for found in result["images"] if "absent" in found]
    about = (
        f"p = 5, 16 even sites, {_starts(result['settings']['starts'])}. CIFAR-10 is 10,000 of the paper's 50,000 "
        "images. The paper does not say whether it centres, and prints averages over its four sets."
    )
    missing = f"Not available here, nothing is downloaded: {'; '.join(absent)}." if absent else ""
    rows = []
    for key, title in _ERRORS.items():
        rows += [_averages(f"{title}, {label}", [runs], key) for label, runs in here.items()]
        rows.append(_printed_row("paper, four sets", TABLE_3[key]))
    tables = [_iteration_rows(here), markdown(["average", *METHODS], rows)] if here else []
    yield _section("Table 3 and Figure 3: images", about, missing, *tables, _early(here))


def _table_4(result: dict[str, Any]) -> Iterator[str]:
    uneven = result["uneven"]
    sites = ", ".join(str(rows) for rows in uneven["rows"])
    size = "Reduced" if result["settings"]["quick"] else "Full size"
    starts = _starts(len(uneven["runs"]["SSI"]))
    about = f"{size}: {_group_label(uneven)}, sites of {sites} rows; {starts}, the mean and the range."
    rows = markdown(*_method_rows(uneven["runs"], TABLE_4))
    yield _section("Table 4: uneven sites", about, rows, _early({"this": uneven["runs"]}))


def _figure_1(result: dict[str, Any]) -> Iterator[str]:
    parts = result["leak"]
    rows = [
        [f"{part['kind']}, n = {at['n']}", _or_not(at["converged"]), _or_not(at["reconstructed"]), f"{at['least']:.0e}"]
        for part in parts for at in part["b"]
    ]  # fmt: skip
    verdicts = [f"- {name}, {part['kind']}: {part['a'][name]['verdict']}" for part in parts for name in part["a"]]
    limits = result["settings"]["leak"]
    about = (
        f"Reduced: n = 1000, m = 10000, p = 100; here n = {limits['n']}, m = {limits['m']}, p = {limits['p']}, "
        f"{limits['sites']} sites (the paper gives no number). Both errors are relative here, absolute there. SSI's "
        f"iterations to {ENOUGH:.0e}:"
    )
    header = ["problem", "in the KKT violation", "in A_1'A_1 (Prop. 2)", "least error of that"]
    yield _section("Figure 1: what is reconstructed", about, markdown(header, rows), "\n".join(verdicts))


def _or_not(iterations: int | None) -> str:
    return "not reached" if iterations is None else str(iterations)


def _figure_4(result: dict[str, Any]) -> Iterator[str]:
    labelled = {found["label"]: found["runs"] for found in result["arithmetic"]}
    about = (
        "Reduced: n = 1000, m = 160000, p = 10, 128 sites of 1250 rows, that is 1.25 for each feature. Iterations "
        "until rule (27), one start:"
    )
    yield _section("Figure 4: arithmetic singular values", about, _iteration_rows(labelled), _early(labelled))


_SECTIONS = {
    "groups": _tables_1_and_2, "images": _table_3, "uneven": _table_4, "leak": _figure_1, "arithmetic": _figure_4,
}  # fmt: skip


# ---- in short --------------------------------------------------------------------------------------------------

_OTHERS = [name for name in METHODS if name != "SSI"]


def checks(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return, for every problem, what share of SSI's iterations each other method needs."""
    problems: dict[tuple[str, str], Runs] = {  # what is in two groups counts once
        ("Figure 2", _group_label(setting)): setting["runs"] for group in result.get("groups", ())
        for setting in group["settings"]
    }  # fmt: skip
    problems |= {("Figure 3", f["label"]): f["runs"] for f in result.get("images", ()) if "absent" not in f}
    if "uneven" in result:
        problems["Table 4", "uneven sites"] = result["uneven"]["runs"]
    problems |= {("Figure 4", f["label"]): f["runs"] for f in result.get("arithmetic", ())}
    return [{"where": where, "problem": label, "share": _shares(runs)} for (where, label), runs in problems.items()]


def _shares(runs: Runs) -> dict[str, float]:
    return {name: _mean(runs[name], "iterations") / _mean(runs["SSI"], "iterations") for name in _OTHERS}


def _short(result: dict[str, Any]) -> str:
    found = result["checks"]
    rows = []
    for where in dict.fromkeys(check["where"] for check in found):
        here = [check["share"] for check in found if check["where"] == where]
        rows.append([f"{where} ({len(here)})", *(_range([share[name] for share in here]) for name in _OTHERS)])
    about = (
        "Iterations as a share of SSI's, least and largest of the problems: below 1 is a win. Every method at "
        "iteration rank p, from the same starts, stopped by rule (27) at 1e-10. Sites hold A_i'A_i, or their rows "
        "where these are cheaper to multiply; seconds are with that, and one BLAS thread. FAPS as published begins at "
        "a stationary point that its inner steps leave by rounding alone, so another machine may give other figures."
    )
    contrary = [f"{c['where']}, {c['problem']} ({c['share']['FAPS']:.2f})" for c in found if c["share"]["FAPS"] >= 1]
    lost = f"FAPS needs no fewer iterations than SSI on: {'; '.join(contrary)}." if contrary else ""
    return _section("In short", about, markdown(["problems", *_OTHERS], rows), lost)


def _range(shares: list[float]) -> str:
    below = sum(share < 1 for share in shares)
    return f"{min(shares):.2f} to {max(shares):.2f}, {below} won" if len(shares) > 1 else f"{shares[0]:.2f}"
