"""Table 1 of Nicolas et al. (2024), ours beside the paper's, and the figures behind Figures 1 and 2: as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedspan.cli.reproduce_faps_tables import markdown
from fedspan.cli.reproduce_ppm_data import TABLE_1, Printed, printed_old

_SHOWN = 8  # of the k of Figures 1 and 2


def text(result: dict[str, Any]) -> str:
    """Return everything as Markdown."""
    sections = [*_table_1(result), *_figures(result)]
    return "\n\n".join(sections) + "\n"


def _table_1(result: dict[str, Any]) -> Iterator[str]:
    if "sets" not in result:
        return
    yield "## Table 1: statistics of the sets"
    absent = [name for name, found in result["sets"].items() if "absent" in found]
    if absent:
        yield f"Not available here, nothing is downloaded: {'; '.join(absent)}."
    for name, found in result["sets"].items():
        if "absent" not in found:
            yield from _set(name, found, TABLE_1[name])


def _set(name: str, found: dict[str, Any], printed: Printed) -> Iterator[str]:
    yield f"### {name}"
    rows = [[key, f"{found[key]:,}", f"{getattr(printed, key):,}"] for key in ("users", "items", "interactions")]
    yield markdown(["", "ours", "paper"], rows)
    yield (
        f"Of the interactions {found['train']:,} are for training. Coherences of the degree-normalised item-item "
        "matrix. The paper's are of all eigenvectors of a matrix that has a null space, where they depend on the "
        "basis; those of some vectors are lower bounds for all, those of some items are another matrix's."
    )
    rows = [[c["label"], f"{c['mu_0']:.2f}", f"{c['mu_1']:.2f}"] for c in found["coherence"]]
    rows.append(["the paper", f"{printed.mu_0:.2f}", f"{printed.mu_1:.2f}"])
    yield markdown(["over", "mu_0", "mu_1"], rows)
    yield _beyond(found, printed)
    yield (
        f"Sensitivities. The paper's runtime-independent ones are {printed.old:.2f} sqrt(p) before and 1 now. The "
        f"first is mu_0 sqrt(log d) sqrt(p), which for the paper's own mu_0 comes to {printed_old(printed):.2f} "
        "sqrt(p); the second is 1 for every matrix, since mu_1 is never below 1. At the leading p eigenvectors:"
    )
    rows = [
        [f"p = {s['p']}, {s['label']}", f"{s['old']:.2f}", f"{s['new']:.2f}", f"{s['old'] / s['new']:.2f}"]
        for s in found["sensitivity"]
    ]
    yield markdown(["", "before: sqrt(p) x largest entry", "PPM: largest row norm", "ratio"], rows)


def _beyond(found: dict[str, Any], printed: Printed) -> str:
    """Say where a lower bound is above what the paper prints for all eigenvectors."""
    above = [c["label"] for c in found["coherence"] if "null" not in c and c["mu_0"] > printed.mu_0 + 0.005]
    if not above:
        return "No lower bound here is above the paper's figures."
    return (
        f"Above the paper's mu_0 of {printed.mu_0:.2f} already: {'; '.join(above)}. So the paper's is not that of all "
        "eigenvectors of this matrix: it took fewer of them, or normalised otherwise."
    )


def _figures(result: dict[str, Any]) -> Iterator[str]:
    for number, found in enumerate(result.get("ratios", []), start=1):
        step = max(1, len(found["ks"]) // _SHOWN)
        chosen = sorted({*range(0, len(found["ks"]), step), len(found["ks"]) - 1})
        rows = [
            [str(found["ks"][at]), f"{found['measured'][at]:.2f}", f"{found['approximation'][at]:.2f}"] for at in chosen
        ]
        runs = result["settings"]["runs"]
        size = "a small start" if result["settings"]["quick"] else "full size"
        yield f"## Figure {number}: r(k, n), n = {found['n']}"
        yield (
            f"The old sensitivity of a random start over PPM's; {size}, {runs} starts (the paper: 5), whose ratios "
            f"differ by {found['spread']:.2f} at most. Each start serves every k, by its leading columns: neighbouring "
            f"k are not independent. {_conservative(found)}"
        )
        yield markdown(["k", "measured", "Approximation 5.1"], rows)


def _conservative(found: dict[str, Any]) -> str:
    pairs = list(zip(found["measured"], found["approximation"], strict=True))
    below = sum(approximation < measured for measured, approximation in pairs)
    return f"The approximation is below the measured ratio at {below} of {len(pairs)} k (the paper: conservative)."
