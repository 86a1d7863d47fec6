"""Table 1 of Federated-PCA, ours beside the paper's, and the figures behind Figures 5-13: as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fedspan.cli.reproduce_faps_tables import markdown
from fedspan.cli.reproduce_fpca_data import METHODS_OF_TABLE_1, TABLE_1
from fedspan.cli.reproduce_fpca_merges import FIRST, MERGES
from fedspan.cli.reproduce_fpca_order import ORDERED, SPIRIT
from fedspan.cli.reproduce_fpca_private import DELTA, EPSILONS, RANK
from fedspan.cli.reproduce_fpca_runs import ADAPTIVE, ALONE, CARRIED, HIGH, LOW

_PICTURE = "(The paper: picture only.)"


def text(result: dict[str, Any]) -> str:
    """Return everything as Markdown."""
    sections = [section for key, write in _SECTIONS.items() if key in result for section in write(result)]
    return "\n\n".join([_about(result), *sections]) + "\n"


def _about(result: dict[str, Any]) -> str:
    s = result["settings"]
    size = "Tiny problems: a look, not a comparison. " if s["quick"] else ""
    return (
        f"{size}Blocks of {s['block']} rows, no centring, GROUSE's step 2, FD's sketch 2 r, PM's blocks of d rows, "
        f"rank {s['rank']} at the start. The paper gives no band (alpha, beta) for its adaptive rank; here "
        f"({s['energy'][0]:g}, {s['energy'][1]:g}), whose ratio is the largest it advises. FPCA keeps 2 r + 10 columns "
        "inside, as StreamingPCA does by default, unless r columns are said. Subspace errors are the root mean square "
        "sine of the angles to as many offline components. One core."
    )


def _section(title: str, *parts: str) -> str:
    return "\n\n".join([f"## {title}", *(part for part in parts if part)])


# ---- Figures 5 and 12 ------------------------------------------------------------------------------------------


def _figure_5(result: dict[str, Any]) -> Iterator[str]:
    limits = result["settings"]["merges"]
    header = ["n, merge", "subspace error", "error of the values", "ms", "times Eq. (2)", "values apart"]
    rows = []
    for measured in result["merges"]:
        first = measured["merges"][FIRST]["seconds"]
        for name in MERGES:
            m = measured["merges"][name]
            rows.append([f"{measured['n']}, {name}", f"{m['subspace']:.4f}", f"{m['values']:.2e}",
                         f"{1000 * m['seconds']:.2f}", f"{first / m['seconds']:.2f}", f"{m['apart']:.0e}"])  # fmt: skip
    about = (
        f"Synth(1), d = {limits['d']}, r = {limits['rank']}; each half streamed and cut to r pairs, these merged, and "
        "compared with the SVD of all rows. The last column is the largest relative difference of a singular value "
        f"from Eq. (2)'s. {_PICTURE}"
    )
    yield _section("Figure 5: merging", about, markdown(header, rows))


def _figure_12(result: dict[str, Any]) -> Iterator[str]:
    limits = result["settings"]["workers"]
    rows = [
        [str(m["workers"]), f"{m['total']:.4f}", f"{m['pca']:.4f}", f"{m['merge']:.4f}", f"{m['captured']:.6f}"]
        for m in result["workers"]
    ]
    about = (
        f"Synth(1), {limits['rows']} x {limits['d']}, r = {limits['rank']}. As if each worker had a core of its own: "
        "PCA is the slowest worker's time, merge the sum over the levels of a binary tree of the slowest merge there. "
        f"Captured is the variance in the root's components, relative to the offline ones. {_PICTURE}"
    )
    yield _section(
        "Figure 12: time against workers", about, markdown(["workers", "total s", "PCA s", "merge s", "captured"], rows)
    )


# ---- Figures 6-9 -----------------------------------------------------------------------------------------------


def _figures_6_to_8(result: dict[str, Any]) -> Iterator[str]:
    spectra = {f"alpha = {found['alpha']:g}": found for found in result["spectra"]}
    limits = result["settings"]["spectra"]
    about = (
        f"Synth(alpha), {limits['rows']} x {limits['d']}. At the end of the stream: error (66), the number of "
        f"components in brackets. More components leave less. {_PICTURE}"
    )
    subspaces = _grid(spectra, lambda run: f"{run['subspace']:.4f}" if "subspace" in run else "")
    yield _section("Figures 6 and 7: errors and ranks", about, _grid(spectra, _error_and_rank), _bracketed(spectra))
    yield _section("Figure 8: subspaces", f"Against as many components of the offline SVD. {_PICTURE}", subspaces)


def _figure_9(result: dict[str, Any]) -> Iterator[str]:
    here = {found["label"]: found for found in result["streams"] if "absent" not in found}
    absent = [found["label"] for found in result["streams"] if "absent" in found]
    missing = f"Not available here, nothing is downloaded: {'; '.join(absent)}." if absent else ""
    about = (
        "At the end of the stream: error (66), the number of components in brackets. MNIST's entries lie in [0, 1], "
        "the others are raw: GROUSE's step has a scale, and nearly stops on large values; its greedy step has none. FD "
        f'is measured by the subspace of its sketch; the paper leaves it out for "exploding errors". {_PICTURE}'
    )
    parts = [_grid(here, _error_and_rank), _bracketed(here)] if here else []
    yield _section("Figure 9: real data", about, missing, *parts)


def _grid(found: dict[str, dict[str, Any]], cell: Callable[[dict[str, Any]], str]) -> str:
    """A row for each method, a column for each stream."""
    names = dict.fromkeys(name for each in found.values() for name in each["runs"])
    rows = [[name, *(cell(each["runs"][name]) if name in each["runs"] else "" for each in found.values())]
            for name in names]  # fmt: skip
    return markdown(["method", *found], [row for row in rows if any(row[1:])])


def _error_and_rank(run: dict[str, Any]) -> str:
    return f"{run['errors'][-1]:.4g} ({run['ranks'][-1]})"


def _bracketed(found: dict[str, dict[str, Any]]) -> str:
    """Say where (16) holds, and by how much it fails."""
    rows = []
    for label, each in found.items():
        rows.append([label, f"{each['low']} to {each['high']}", *map(_side, each["brackets"].values())])
    header = ["(16) for the adaptive run", "ranks", f"above {HIGH}", f"below {LOW}", "above rho_rmax", "below rho_rmin"]
    note = (
        f"{LOW} and {HIGH} keep the least and the largest rank of the adaptive run, its start included; rho_r are the "
        "offline residuals. In how many of the points each side holds, and by how much at the most it does not, "
        "relative to the error. Above rho_rmax is a theorem. The others are not: a stream that stays at its least rank "
        f"can at best reach rho_rmin. {CARRIED} measures against the scores as they were given, so it is never below "
        f"{ADAPTIVE}."
    )
    return f"{markdown(header, rows)}\n\n{note}"


def _side(side: dict[str, Any]) -> str:
    missed = "" if side["held"] == side["of"] else f", by {side['most']:.0e}"
    return f"{side['held']} of {side['of']}{missed}"


# ---- Figures 10 and 11 -----------------------------------------------------------------------------------------


def _figures_10_and_11(result: dict[str, Any]) -> Iterator[str]:
    for number, found in result["private"].items():
        title = f"Figure {number}: private projections, {found['label']}"
        if "absent" in found:
            yield _section(title, "Not available here, nothing is downloaded.")
            continue
        rows = [[f"{run['mechanism']}, epsilon {run['epsilon']:g}", f"{run['captured']:.4f}", f"{run['moved']:.3f}"]
                for run in found["runs"]]  # fmt: skip
        about = (
            f"{found['n']} rows of norm one and {found['d']} columns at one site, delta {DELTA:g}, rank {RANK}; draws "
            f"of the noise: {found['draws']}. Captured is the variance in the six components, relative to the offline "
            "ones; moved is how far the projections to the first two are from the offline ones, after the best "
            f"rotation, relative to their size. {_PICTURE}"
        )
        yield _section(title, about, markdown(["mechanism", "captured", "moved"], rows), _who_is_closer(found["runs"]))


def _who_is_closer(runs: list[dict[str, Any]]) -> str:
    """Say which of the published two moves the projections less: the paper says streaming on MNIST, not on wine."""
    moved = {(run["mechanism"], run["epsilon"]): run["moved"] for run in runs}
    said = []
    for epsilon in EPSILONS:
        name = min(("streaming MOD-SuLQ", "MOD-SuLQ"), key=lambda name: moved[f"{name}, published", epsilon])
        said.append(f"{name} at epsilon {epsilon:g}")
    return f"Closer to offline, as published: {', '.join(said)}. (The paper: streaming on MNIST, not on wine.)"


# ---- Figure 13 -------------------------------------------------------------------------------------------------


def _figure_13(result: dict[str, Any]) -> Iterator[str]:
    limits, measured = result["settings"]["permutations"], result["order"]
    header = ["method", *(f"r = {m['rank']}" for m in measured)]
    tables = [
        markdown(header, [[name, *(f"{m['methods'][name][key]:.1e}" for m in measured)] for name in ORDERED])
        for key in ("svd", "own")
    ]
    exact = ", ".join(f"{m['exact']:.0e} (r = {m['rank']})" for m in measured)
    about = (
        f"Synth(1), {limits['rows']} x {limits['d']}; means over {limits['count']} permutations "
        f"({limits['spirit_count']} for {SPIRIT}). FPCA keeps 2 r + 10 columns inside, all of them from "
        f"r = {(limits['d'] - 9) // 2} on; in r columns, the paper's memory, it loses what it cuts off. {_PICTURE}"
    )
    yield _section(
        "Figure 13: the order of the rows", about, f"Against the offline SVD:\n\n{tables[0]}",
        f"Against the method's own run on the unpermuted rows:\n\n{tables[1]}",
        f"The same for FPCA on rows of rank r exactly, where Lemma 10 holds: {exact}.",
    )  # fmt: skip


# ---- Table 1 ---------------------------------------------------------------------------------------------------


def _table_1(result: dict[str, Any]) -> Iterator[str]:
    found = result["memory"]
    header = ["method"]
    rows = [[name] for name in (*METHODS_OF_TABLE_1, ALONE)]
    for data, printed in TABLE_1.items():
        header += [data.removeprefix("motes_"), "paper"]
        for row in rows:
            ours = found[data]
            row += [
                "not available" if "absent" in ours else " / ".join(f"{kb:.2f}" for kb in ours[row[0]]),
                " / ".join(f"{kb:.2f}" for kb in printed.get(row[0], ())),
            ]
    about = (
        "Average / median, Kb: the most allocated at once during each update with 50 rows, the method's own state "
        "included, its caller's rows not. The paper had MATLAB's profiler and does not say over what it averages; its "
        "GROUSE held the whole matrix. Here every rival holds O(d r) numbers. FPCA folds blocks of 50 rows into "
        "2 r + 10 columns; with masks slices of 10 into r, and a block is no more than read."
    )
    yield _section("Table 1: memory", about, markdown(header, rows))


_SECTIONS: dict[str, Callable[[dict[str, Any]], Iterator[str]]] = {
    "merges": _figure_5, "spectra": _figures_6_to_8, "streams": _figure_9, "private": _figures_10_and_11,
    "workers": _figure_12, "order": _figure_13, "memory": _table_1,
}  # fmt: skip
