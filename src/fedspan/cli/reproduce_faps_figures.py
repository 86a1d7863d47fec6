"""Figures 1-4 of Wang, Liu, Zhang (2022): what is measured for them alone, and their panels.

Figure 1 is read by `fedspan.privacy.audit` from the transcript of a run: everything the coordinator saw of site 1, the
set-up rounds included, against its true A_1'A_1. The paper does not say how many sites it had.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedspan.cli.reproduce_faps_data import Leak
from fedspan.cli.reproduce_faps_runs import METHODS, Task, follow
from fedspan.cli.reproduce_shared import Report
from fedspan.data import ArraySource, Preparation
from fedspan.data.partition import even, split
from fedspan.encoding import Array
from fedspan.privacy.audit import ATTACKS, SiteAudit, audit
from fedspan.privacy.transcript import Transcript
from fedspan.run import Study, run
from fedspan.solvers import FAPS, Power, Solver

ENOUGH = 1e-5
"""What Figure 1(b) asks of either error."""
KINDS = ("Gaussian", "(23), xi = 1.01")
_FAPS_TOP = 10.0  # Prop. 2 applied to FAPS goes wrong by far more
_COLOURS = {"SSI": 0, "LocalPower": 4, "FAPS": 1, "FAPS as published": 1, "Krylov": 2}
_VARIES = {"n": "n", "m": "m", "p": "p", "xi": "-log10(xi - 1)"}


# ---- Figure 1 --------------------------------------------------------------------------------------------------


def measure_leak(leak: Leak, report: Report) -> list[dict[str, Any]]:
    """Return, for each kind of matrix, the curves of part (a) and the iterations of part (b), as plain data."""
    solvers: dict[str, Solver] = {"SSI": Power(rounds=leak.rounds, tol=0), "FAPS": FAPS(rounds=leak.rounds, tol=0)}
    found = []
    for kind in KINDS:
        sites = _deal(leak, kind, leak.n)
        task = Task.of(sites, leak.p)
        start = task.start(0)
        part: dict[str, Any] = {"kind": kind, "n": leak.n, "a": {}, "b": []}
        for name, solver in solvers.items():
            seen = audited(solver, sites, start)
            part["a"][name] = {
                "kkt": follow(METHODS[name], task, start, most=leak.rounds).curve, "attacks": _curves(seen),
                "verdict": seen.verdict,
            }  # fmt: skip
            report(f"figure 1(a), {kind}: {name}")
        for n in leak.against:
            part["b"].append(_against(leak, kind, n))
            report(f"figure 1(b), {kind}: n = {n}")
        found.append(part)
    return found


def _deal(leak: Leak, kind: str, n: int) -> dict[str, Array]:
    return split(leak.rows(kind, n), even(leak.m, leak.sites, seed=None))


def audited(solver: Solver, sites: dict[str, Array], start: Array) -> SiteAudit:
    """Run a solver with its transcript kept, and audit the first site."""
    study = Study(n_components=start.shape[1], solver=solver, preparation=Preparation(center=False), init=start)
    first = min(sites)
    with tempfile.TemporaryDirectory() as folder:
        run(study, {name: ArraySource(rows) for name, rows in sites.items()}, folder=Path(folder), record="transcript")
        rounds = Transcript.read(Path(folder)).rounds
    alone = Transcript(tuple(replace(seen, replies={first: seen.replies[first]}) for seen in rounds))
    return audit(alone, {first: sites[first].T @ sites[first]}).sites[first]


def _curves(seen: SiteAudit) -> dict[str, Any]:
    """Return each attack's error against how many iterations were answered; after set-up alone that is none."""
    setup = min(round_ for curve in seen.curves.values() for round_ in curve.rounds)
    return {
        attack: {"at": [number - setup for number in curve.rounds], "errors": curve.errors}
        for attack, curve in seen.curves.items()
    }


def _against(leak: Leak, kind: str, n: int) -> dict[str, Any]:
    sites = _deal(leak, kind, n)
    task = Task.of(sites, leak.p)
    start = task.start(0)
    kkt = follow(METHODS["SSI"], task, start).curve
    seen = audited(Power(rounds=leak.rounds, tol=0), sites, start)
    paper = _curves(seen)[ATTACKS[0]]
    return {
        "n": n,
        "converged": _first(range(len(kkt)), kkt),
        "reconstructed": _first(paper["at"], paper["errors"]),
        "least": min(paper["errors"]),
    }


def _first(at: Sequence[int], errors: Sequence[float]) -> int | None:
    return next((number for number, error in zip(at, errors, strict=True) if error <= ENOUGH), None)


# ---- panels ----------------------------------------------------------------------------------------------------


def draw_figures(folder: Path, result: dict[str, Any], write: Callable[..., None]) -> dict[str, str]:
    """Write the pictures; return their files by name."""
    files = {}
    for name, title, panels, options in _figures(result):
        if panels:
            files[name] = f"figure{name}.png"
            write(folder / files[name], f"Figure {name}: {title}", panels, **options)
    return files


def _figures(result: dict[str, Any]) -> Iterator[tuple[str, str, list[dict[str, Any]], dict[str, Any]]]:
    leaks, kkt = result["leak"], "scaled KKT violation"
    first = [_leak_panel(part, name) for name in ("SSI", "FAPS") for part in leaks]
    options = {"x": "iterations", "y": "relative error", "across": 2, "top": _FAPS_TOP}
    yield "1a", "what the coordinator reconstructs of site 1", first, options
    yield "1b", "SSI's iterations to 1e-5", [_against_panel(p) for p in leaks], {"x": "n", "y": "iterations"}
    groups = [_group_panel(group) for group in result["groups"]]
    yield "2", "iterations until rule (27)", groups, {"x": "", "y": "iterations", "across": 2}
    images = [_curve_panel(found) for found in result["images"] if "absent" not in found]
    yield "3", "image sets, p = 5, 16 sites", images, {"x": "iterations", "y": kkt}
    arithmetic = [_curve_panel(found) for found in result["arithmetic"]]
    yield "4", "arithmetic singular values", arithmetic, {"x": "iterations", "y": kkt, "across": 2}


def _leak_panel(part: dict[str, Any], name: str) -> dict[str, Any]:
    found = part["a"][name]
    curves = [{"label": "KKT violation", "values": found["kkt"], "colour": 0, "dashed": True}]
    curves += [
        {"label": attack, "values": curve["errors"], "at": curve["at"], "colour": at, "dashed": False}
        for at, (attack, curve) in enumerate(found["attacks"].items(), start=1)
    ]
    return {"title": f"{name}, {part['kind']}, n = {part['n']}", "curves": curves}


def _against_panel(part: dict[str, Any]) -> dict[str, Any]:
    curves = []
    for colour, (key, label) in enumerate((("converged", "KKT violation"), ("reconstructed", ATTACKS[0]))):
        reached = [point for point in part["b"] if point[key] is not None]
        curves.append(
            {
                "label": label, "at": [point["n"] for point in reached], "values": [point[key] for point in reached],
                "colour": colour, "dashed": False,
            }
        )  # fmt: skip
    return {"title": part["kind"], "curves": curves}


def _group_panel(group: dict[str, Any]) -> dict[str, Any]:
    means = {
        name: [sum(run["iterations"] for run in s["runs"][name]) / len(s["runs"][name]) for s in group["settings"]]
        for name in METHODS
    }
    curves = [_line(name, values, at=group["at"]) for name, values in means.items()]
    return {"title": f"varying {group['varies']}", "x": _VARIES[group["varies"]], "curves": curves}


def _curve_panel(found: dict[str, Any]) -> dict[str, Any]:
    """The first start."""
    return {"title": found["label"], "curves": [_line(name, found["runs"][name][0]["curve"]) for name in METHODS]}


def _line(name: str, values: list[float], **more: Any) -> dict[str, Any]:
    return {
        "label": name, "values": values, "colour": _COLOURS[name], "dashed": name == "FAPS as published", **more,
    }  # fmt: skip
