"""Figures 3-6 of Guo et al. (2021), noiseless: projection distance against communications.

The paper's text gives the sets, their numbers of sites, p = 4 (Figures 4 and 5) and sign-fixing. It does not give
r (here r = k = 5) nor the values in its legends; those below are ours. One random split and one start a set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedspan.cli.reproduce_fedpower_data import Row, Scale, deal, matrix, truth
from fedspan.data import Preparation, Source
from fedspan.encoding import Array
from fedspan.errors import DataError
from fedspan.layers import RoundRecord
from fedspan.metrics import projection_distance
from fedspan.privacy.gaussian import GaussianPrivacy
from fedspan.rounds import Cohort
from fedspan.run import Study, run
from fedspan.solvers import FedPower

TITLES: dict[int, str] = {
    3: "Figure 3: local iterations p",
    4: "Figure 4: number of sites m (p = 4)",
    5: "Figure 5: K sites asked in each round (p = 4)",
    6: "Figure 6: decaying p",
}
_SCHEMES = {"scheme 2": "uniform", "scheme 1": "by-size-with-replacement"}


@dataclass(frozen=True)
class Curve:
    """One line of a panel; curves of one colour differ in the figure's second setting, shown by dashes."""

    label: str
    colour: int
    m: int
    local_steps: int = 4
    decay: bool = False
    cohort: Cohort = field(default_factory=Cohort)
    dashed: bool = False


def wanted(number: int, m: int) -> list[Curve]:
    """Return the curves of a figure's panel whose set is dealt to m sites.

    >>> [curve.label for curve in wanted(4, 20)]
    ['m = 5', 'm = 10', 'm = 20', 'm = 40']
    """
    if number == 3:
        return [Curve(f"p = {p}", at, m, p) for at, p in enumerate((1, 2, 4, 8))]
    if number == 4:
        return [Curve(f"m = {size}", at, size) for at, size in enumerate((m // 4, m // 2, m, 2 * m))]
    if number == 5:
        return [
            Curve(f"K = {max(round(share * m), 1)}, {name}", at, m, cohort=Cohort(fraction=share, sample=sample),
                  dashed=name == "scheme 1")
            for at, share in enumerate((0.1, 0.25, 0.5, 1.0)) for name, sample in _SCHEMES.items()
        ]  # fmt: skip
    decaying = [
        Curve(f"p = {p}{', decaying' * decay}", at, m, p, decay, dashed=decay)
        for at, p in enumerate((2, 4, 8), start=1) for decay in (False, True)
    ]  # fmt: skip
    return [Curve("p = 1", 0, m, 1), *decaying]


Distances = Callable[[Curve, dict[str, Source], int, Array], list[float]]
"""Of a curve, its sites, how many communications, and the true basis: the distance after each."""


def distances(
    curve: Curve,
    sources: dict[str, Source],
    communications: int,
    leading: Array,
    *,
    privacy: GaussianPrivacy | None = None,
) -> list[float]:
    """Return the distance after 0, 1, 2, ... communications: each round is asked with the estimate so far."""
    solver = FedPower(
        rounds=communications + 1, tol=0, local_steps=curve.local_steps, sync="decay" if curve.decay else None,
        align="sign",
    )  # fmt: skip
    study = Study(
        n_components=leading.shape[1], solver=solver, preparation=Preparation(center=False), cohort=curve.cohort,
        privacy=privacy,
    )  # fmt: skip
    return watched(study, sources, leading)


def watched(study: Study, sources: dict[str, Source], leading: Array) -> list[float]:
    """Run a study; return the distance of the basis that each round is asked with."""
    found: list[float] = []

    def watch(record: RoundRecord, estimate: Array | None) -> None:
        if estimate is not None:
            found.append(projection_distance(estimate, leading))

    run(study, sources, watchers=[watch])
    return found


def draw_figures(
    folder: Path,
    scale: Scale,
    write: Callable[..., None],
    report: Callable[[str], None],
    *,
    titles: dict[int, str] = TITLES,
    measure: Distances = distances,
    x: str = "communications",
) -> dict[str, Any]:
    """Write a picture for each of four titles, by default ``figure3.png`` to ``figure6.png``; return their curves.

    Four other titles are of the same curves, in the same order, measured by another function.
    """
    figures: dict[str, Any] = {str(n): {"title": title, "panels": []} for n, title in titles.items()}
    for row, m in scale.panels:
        try:
            X = matrix(row)
        except DataError as why:
            report(f"figures, {row.label}: not available here")
            for figure in figures.values():
                figure.setdefault("absent", {})[row.label] = str(why)
            continue
        kinds = dict(zip(titles, TITLES, strict=True))
        for number, panel in _panels(row, X, m, scale.communications, kinds, measure, report):
            figures[str(number)]["panels"].append(panel)
    for name, figure in figures.items():
        if figure["panels"]:
            figure["file"] = f"figure{name}.png"
            write(
                folder / figure["file"], figure["title"], figure["panels"],
                x=x, y="projection distance to the pooled $V_5$",
            )  # fmt: skip
    return figures


def _panels(
    row: Row,
    X: Array,
    m: int,
    communications: int,
    kinds: dict[int, int],
    measure: Distances,
    report: Callable[[str], None],
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each figure's panel for one set; a run that two figures show is made once."""
    known: dict[tuple[Any, ...], list[float]] = {}
    sources: dict[int, dict[str, Source]] = {}
    leading = truth(X)
    for number, kind in kinds.items():
        curves = []
        for curve in wanted(kind, m):
            key = (curve.m, curve.local_steps, curve.decay and curve.local_steps > 1, curve.cohort)
            if key not in known:
                if curve.m not in sources:
                    sources = {curve.m: deal(X, curve.m, seed=0)}
                known[key] = measure(curve, sources[curve.m], communications, leading)
            curves.append({"label": curve.label, "values": known[key], "colour": curve.colour, "dashed": curve.dashed})
        report(f"figure {number}, {row.label}")
        sites = f"m = {m}" if kind != 4 else f"n = {len(X)}"
        yield number, {"set": row.label, "m": m, "title": f"{row.label} ({sites})", "curves": curves}
