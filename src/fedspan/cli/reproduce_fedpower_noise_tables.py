"""Table 3 of Guo et al. (2021) and what Figures 7-10 show, ours beside the paper's: as text."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from fedspan.cli.reproduce_faps_tables import markdown
from fedspan.cli.reproduce_fedpower_noise_runs import claimed

WITHIN = 1.5
"""How far from the paper's mean, up or down, a cell with noise may lie and still count as reproduced."""
SATURATED = 0.25
"""Above so large a distance, errors no longer grow as the noise does: no delta can be read from them."""


def text(result: dict[str, Any]) -> str:
    """Return everything as Markdown."""
    sections = [f"FedPower with noise, {result['guarantee']}.", *_table_3(result), *_figures(result)]
    return "\n\n".join(sections) + "\n"


# ---- Table 3 ---------------------------------------------------------------------------------------------------


def _table_3(result: dict[str, Any]) -> Iterator[str]:
    if "table3" not in result:
        return
    rows, settings = result["table3"], result["settings"]
    yield f"## Table 3 ({result['guarantee']})"
    yield _how(settings)
    names = list(rows[0]["cells"])
    yield markdown(["set", "", *(f"eps_1 = {name}" for name in names)], [line for row in rows for line in _lines(row)])
    here = [row for row in rows if "absent" not in row]
    absent = [row["set"] for row in rows if "absent" in row]
    if absent:
        yield f"Not available here, nothing is downloaded: {', '.join(absent)}."
    if here:
        yield "\n".join(f"- {line}" for line in [*_checks(here, settings["iterations"]), _certified(settings)])


def _how(settings: dict[str, Any]) -> str:
    s = settings
    return (
        f"p = {s['local_steps']} decaying, m = {s['sites']}, k = 5, r = {s['rank']}, eps_2 = {s['epsilon_server']:g}; "
        f"{s['replications']} replications (the paper: 20), each with a split, a start and noise of its own, from its "
        "seed: it can be repeated, and protects nobody. Smallest projection distance (sin theta_k, of V_5 to the r "
        f"columns) over the first {s['iterations']} iterations, which are {s['communications']} communications; mean "
        f"(std). The paper names no delta: here {s['delta']:g} for each release, chosen in view of its figures (at "
        "1e-4 the noise is 1.40 times as large). The fitting delta is the one at which a cell would agree, if errors "
        "grow as the noise does. eps_1 = inf: no noise at all, none at the server either. Certified: replications 1 to "
        f"{s['certified_replications']}."
    )


def _lines(row: dict[str, Any]) -> Iterator[list[str]]:
    cells = list(row["cells"].values())
    theirs = [_mean_std(cell["paper_mean"], cell["paper_std"]) for cell in cells]
    if "absent" in row:
        yield [row["set"], "ours", *("not available" for _ in cells)]
        yield ["", "paper", *theirs]
        return
    yield [row["set"], "ours", *(_mean_std(cell["mean"], cell["std"]) for cell in cells)]
    yield ["", "paper", *theirs]
    yield ["", "ratio", *(_ratio(cell["ratio"]) for cell in cells)]
    yield ["", "fitting delta", *(_delta(cell) for cell in cells)]
    yield [
        "", "certified",
        *(_mean_std(c["certified_mean"], c["certified_std"]) if "certified_mean" in c else "-" for c in cells),
    ]  # fmt: skip


def _ratio(ratio: float) -> str:
    return f"{ratio:.2f}" if 0.01 <= ratio < 100 else f"{ratio:.0e}"


def _delta(cell: dict[str, Any]) -> str:
    usable = "fitting_delta" in cell and max(cell["mean"], cell["paper_mean"]) < SATURATED
    return f"{cell['fitting_delta']:.1e}" if usable else "-"


def _mean_std(mean: float, std: float) -> str:
    return f"{mean:.2e} ({std:.0e})"


def _checks(rows: list[dict[str, Any]], iterations: int) -> Iterator[str]:
    noised = [(row["set"], name, cell) for row in rows for name, cell in row["cells"].items() if "claimed" in cell]
    far = [f"{where} at {name} ({cell['ratio']:.2f})" for where, name, cell in noised if not _near(cell)]
    beyond = f"; not {', '.join(far)}" if far else ""
    yield f"with noise, within {WITHIN:g}x of the paper: {len(noised) - len(far)} of {len(noised)} cells{beyond}"
    fits = [cell["fitting_delta"] for _, _, cell in noised if _delta(cell) != "-"]
    if fits:
        yield (
            f"the delta that would give the paper's figures exactly, cell by cell: {min(fits):.1e} to {max(fits):.1e}, "
            f"median {median(fits):.1e} (distances go as sqrt(log(1.25/delta)); none is read above {SATURATED:g})"
        )
    yield from _growth(rows)
    chance = ", ".join(f"{row['set']} {row['at_random']:.2f}" for row in rows)
    yield f"for comparison, bases that are noise alone in every communication: {chance}"
    ends = [row for row in rows if "inf" in row["cells"]]
    if ends:
        reached = ", ".join(f"{row['set']} {row['cells']['inf']['by_communications_mean']:.0e}" for row in ends)
        yield f"eps_1 = inf over {iterations} communications, not iterations (both readings are possible): {reached}"
        kept = ", ".join(f"{row['set']} {row['server_only']:.1e}" for row in ends)
        yield f"eps_1 = inf with the server's noise kept (one replication): {kept}. The paper's is without any"


def _near(cell: dict[str, Any]) -> bool:
    return bool(1 / WITHIN <= cell["ratio"] <= WITHIN)


def _growth(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Compare how the error grows with the two noises' sum: by this it is known how eps_1 and eps_2 enter."""
    for low, by in (("1", "sqrt(2) = 1.41"), ("0.1", "sqrt(101) = 10.05")):
        told = [
            f"{row['set']} {cells[low]['mean'] / cells['10']['mean']:.2f} "
            f"({cells[low]['paper_mean'] / cells['10']['paper_mean']:.2f})"
            for row in rows
            for cells in [row["cells"]]
            if low in cells and "10" in cells
        ]
        if told:
            yield (
                f"from eps_1 = 10 to {low} the noise grows by about {by}; the error by, ours (the paper's): "
                f"{', '.join(told)}"
            )


def _certified(settings: dict[str, Any]) -> str:
    low, delta = claimed(0.1, settings["communications"])
    high = claimed(100.0, settings["communications"])[0]
    return (
        f"certified: one noised Gram matrix a site, exact composition, for a change of 1 in an entry of A'A and its "
        f"mirror, nobody trusted, at the epsilon that the published run's own composition claims, "
        f"{settings['communications']} x (eps_1 + eps_2), so from {low:.3g} to {high:.4g}. Its delta is "
        f"{settings['certified_delta']:g}, much stricter than the claimed total of {delta:.2g}. An epsilon above 10 "
        "promises next to nothing: there the line only compares noise. For eps_1 = inf nothing is claimed"
    )


# ---- Figures 7-10 ----------------------------------------------------------------------------------------------


def _figures(result: dict[str, Any]) -> Iterator[str]:
    if "figures" not in result:
        return
    s = result["settings"]
    yield f"## Figures 7-10 ({result['guarantee']})"
    yield (
        f"Algorithms 2 and 3 as printed, r = k = 5, sign-fixing, {s['figure_communications']} communications. The "
        f"paper gives no budget: here epsilon {s['figure_epsilon']:g} and delta {s['figure_delta']:g} at the sites and "
        "as much at the server in every communication, so that each leaks 1 by its account. The values in the legends "
        "are ours. One split, one start, one draw of the noise."
    )
    for figure in result["figures"].values():
        yield f"### {figure['title'].splitlines()[0]}"
        for panel in figure["panels"]:
            rows = [[c["label"], f"{min(c['values']):.2e}", f"{c['values'][-1]:.2e}"] for c in panel["curves"]]
            yield markdown([panel["title"], "smallest distance", "last"], rows)
        if "absent" in figure:
            yield f"Not available here: {', '.join(figure['absent'])}."
