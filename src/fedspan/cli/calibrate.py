"""``fedspan calibrate``: which epsilon for which accuracy, tried on synthetic twins of a study; no data is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedspan import calibrate as twins
from fedspan.calibrate import Calibration, Curve, Spectrum, rows_needed
from fedspan.cli.headers import figures_of
from fedspan.cli.output import Json, bold, counted, plain_table, print_json, say, say_exactly, watching_steps
from fedspan.errors import ConfigurationError, nearest
from fedspan.privacy import GaussianPrivacy
from fedspan.privacy.gaussian import TRUSTS, Bounds
from fedspan.solvers import NAMES, SOLVERS, Solver
from fedspan.study_file import StudyFile, load_study

MOST_SEEDS = 1000


def calibrate(
    study: Annotated[Path, typer.Argument(help="The study file (TOML), with a [privacy] table.", show_default=False)],
    target: Annotated[
        float | None, typer.Option(help="Find the smallest epsilon that captures this share of the variance, as 0.95.")
    ] = None,
    epsilons: Annotated[
        str | None, typer.Option(help="What to try, with commas between (default: seven from 0.01 to 10).")
    ] = None,
    solvers: Annotated[str | None, typer.Option(help="Names with commas between (default: the study's).")] = None,
    trusts: Annotated[
        str | None, typer.Option(help="local, distributed, central: with commas between (default: the study's).")
    ] = None,
    rows: Annotated[
        int | None, typer.Option(help="Rows in all, at all sites together; needed unless public.", show_default=False)
    ] = None,
    features: Annotated[
        int | None, typer.Option(help="Columns that are used (default: as the files' headers say).", show_default=False)
    ] = None,
    spectrum: Annotated[
        str, typer.Option(help="How a twin's variances fall: power:A, geometric:R or flat.")
    ] = "power:1.0",
    seeds: Annotated[int, typer.Option(help="How many twins.")] = 5,
    plot: Annotated[Path | None, typer.Option(help="Draw the curves into this .png; needs matplotlib.")] = None,
    json: Json = False,
) -> None:
    """Say which epsilon gives which accuracy, on synthetic twins made from public figures; no data is read."""
    described = load_study(study)
    privacy = _privacy_of(described)
    if target is not None and not 0 < target < 1:
        raise ConfigurationError(f"--target is a share of the variance between 0 and 1, as 0.95; got {target:g}")
    if not 1 <= seeds <= MOST_SEEDS:
        raise ConfigurationError(f"--seeds is how many twins to try, from 1 to {MOST_SEEDS}; got {seeds}")
    tried, shape = _epsilons(epsilons), Spectrum.parse(spectrum)
    chosen, trusted = _solvers(solvers, described), _trusts(trusts)
    draw = None if plot is None else _drawing(plot)
    figures = figures_of(described, rows, features)
    steps = seeds * max(len(chosen), 1) * max(len(trusted), 1)
    with watching_steps(described.name, steps) as begin:
        found = twins.calibrate(
            described.study(), figures.rows, figures.features, spectrum=shape, epsilons=tried, solvers=chosen,
            trusts=trusted, seeds=seeds, begin=begin,
        )  # fmt: skip
    if plot is not None and draw is not None:
        _draw(draw, plot, described.name, found)
    if json:
        print_json({"name": described.name, **as_data(found, privacy, shape, target), "plot": plot and str(plot)})
    else:
        show(described, found, privacy, shape, target)
        if plot is not None:
            say_exactly("", f"Drawn in {plot}")


# ---- what was asked ------------------------------------------------------------------------------------------------


def _privacy_of(described: StudyFile) -> GaussianPrivacy:
    if described.privacy is None:
        raise ConfigurationError(
            f"{described.path} has no [privacy] table, so there is no epsilon to choose; add one, for example the four "
            "lines  [privacy] / epsilon = 1.0 / delta = 1e-6 / row_norm = 1.0"
        )
    return described.privacy


def _epsilons(text: str | None) -> list[float]:
    if text is None:
        return list(twins.EPSILONS)
    given = []
    for word in filter(None, map(str.strip, text.split(","))):
        try:
            value = float(word)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise ConfigurationError(f"--epsilons: {word!r} is not a positive number; write them as 0.1,1,3")
        given.append(value)
    if not given:
        raise ConfigurationError("--epsilons names none; write them as 0.1,1,3")
    return sorted(set(given))


def _names(option: str, text: str | None, known: Sequence[str]) -> list[str]:
    """Return the names in an option, each once."""
    if text is None:
        return []
    names = list(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
    for name in names:
        if name not in known:
            raise ConfigurationError(f"{option}: there is no {name!r}; {nearest(name, known)}")
    if not names:
        raise ConfigurationError(f"{option} names none; known: {', '.join(known)}")
    return names


def _solvers(text: str | None, described: StudyFile) -> list[str | Solver]:
    given = described.solver
    own = None if isinstance(given, str) else NAMES[type(given)]
    return [given if name == own else name for name in _names("--solvers", text, [*SOLVERS, "auto"])]


def _trusts(text: str | None) -> list[str]:
    return _names("--trusts", text, TRUSTS)


# ---- the answer ----------------------------------------------------------------------------------------------------


def as_data(found: Calibration, privacy: GaussianPrivacy, spectrum: Spectrum, target: float | None) -> dict[str, Any]:
    """Return a calibration as plain data."""
    return {
        "note": twins.SAID, "n_components": found.n_components, "n_features": found.features, "rows": found.rows,
        "twin_rows": found.twin_rows, "delta": privacy.delta, "row_norm": privacy.as_plain()["row_norm"],
        "spectrum": f"{spectrum.kind}:{spectrum.rate:g}" if spectrum.kind != "flat" else "flat", "target": target,
        "curves": [_curve_data(curve, found, privacy, target) for curve in found.curves],
    }  # fmt: skip


def _curve_data(curve: Curve, found: Calibration, privacy: GaussianPrivacy, target: float | None) -> dict[str, Any]:
    points = [{"epsilon": p.epsilon, "mean": p.mean, "error": p.error, "values": p.values} for p in curve.points]
    reached = None if target is None else curve.reached(target)
    answer = None
    if reached is not None:
        needed = rows_needed(found.rows, privacy.delta, reached.epsilon, privacy.epsilon)
        exact = privacy.calibration == "tight"
        answer = {
            "epsilon": reached.epsilon,
            "between": reached.between,
            "rows_at_own_epsilon": needed if exact else None,
        }
    return {"solver": curve.solver, "trust": curve.trust, "points": points, "reached": answer}


def show(
    described: StudyFile, found: Calibration, privacy: GaussianPrivacy, spectrum: Spectrum, target: float | None
) -> None:
    """Print a calibration for people."""
    many = len(found.curves[0].points[0].values)
    twinned = "one twin" if many == 1 else f"{many} twins, ± standard error"
    norm = "in their ranges" if isinstance(privacy.row_norm, Bounds) else f"of norm at most {_norm(privacy):g}"
    say(
        bold(
            described.name,
            f": {counted(found.n_components, 'component')} of {counted(found.features, 'feature')}; "
            f"{counted(found.rows, 'row')} {norm} at {counted(len(described.sites), 'site')}; "
            f"delta = {privacy.delta:g}.",
        ),
        f"{twins.SAID} Here: {spectrum.words}.",
        f"Variance captured, of what the non-private answer captures on the same twin; {twinned}:",
        "",
        _table(found),
        "",
    )
    if found.twin_rows < found.rows:
        say(
            f"Twins have {found.twin_rows:,} rows and a mu {found.rows / found.twin_rows:.3g} times as large, which "
            f"stands for {found.rows:,}: signal grows with rows, noise with 1 / mu."
        )
    if not isinstance(described.n_components, int):
        say(f"The study chooses its number of components; {found.n_components} was tried.")
    if target is not None:
        say(*(_verdict(curve, found, privacy, target, len(described.sites)) for curve in found.curves))


def _norm(privacy: GaussianPrivacy) -> float:
    return 1.0 if privacy.row_norm == "unit" else float(privacy.row_norm)  # type: ignore[arg-type]


def _table(found: Calibration) -> Table:
    table = plain_table("epsilon", *(f"{curve.solver}, {curve.trust}" for curve in found.curves))
    for row in zip(*(curve.points for curve in found.curves), strict=True):
        spread = (f"{p.mean:.1%}" + ("" if p.error is None else f" ± {p.error:.1%}") for p in row)
        table.add_row(f"{row[0].epsilon:g}", *spread)
    return table


def _verdict(curve: Curve, found: Calibration, privacy: GaussianPrivacy, target: float, sites: int) -> str:
    who, reached = f"{curve.solver}, trust {curve.trust}", curve.reached(target)
    if reached is None:
        best = max(point.mean for point in curve.points)
        return (
            f"{who}: no epsilon up to {curve.points[-1].epsilon:g} reaches {target:.1%} (the best is {best:.1%}). "
            + ("What would help: " + "; ".join(_ways_out(curve, privacy, sites)) + ".")
        )
    if reached.between is None:
        text = f"{who}: {target:.1%} is reached at the smallest epsilon tried, {reached.epsilon:g}."
    else:
        low, high = reached.between
        text = (
            f"{who}: {target:.1%} is reached at epsilon = {reached.epsilon:.2g} (interpolated on log scales between "
            f"{low:g} and {high:g})."
        )
    if privacy.calibration != "tight":
        return text
    about = "at most " if reached.between is None else "about "
    needed = rows_needed(found.rows, privacy.delta, reached.epsilon, privacy.epsilon)
    return f"{text} With the study's epsilon = {privacy.epsilon:g} it takes {about}{_round(needed):,} rows."


def _ways_out(curve: Curve, privacy: GaussianPrivacy, sites: int) -> list[str]:
    """Return what would bring the accuracy nearer, the strongest first."""
    ways = ["more rows (twice as many are worth twice the mu)"]
    if curve.trust == "local" and sites > 2:
        ways.append(f'trust = "distributed", with {math.sqrt(sites):.2g} times less noise at {sites} sites')
    if not isinstance(privacy.row_norm, Bounds):
        ways.append("a tighter row_norm where the rows allow it (half of it is a quarter of the noise)")
    else:
        ways.append("narrower ranges where the columns allow it")
    ways.append("fewer features, or fewer components")
    if privacy.rows_per_person > 1:
        ways.append("fewer rows_per_person")
    return ways


def _round(number: int) -> int:
    """Round to two digits: more would be pretence."""
    return number if number < 100 else round(number, 2 - len(str(number)))


# ---- the picture ---------------------------------------------------------------------------------------------------


def _drawing(path: Path) -> Callable[..., None]:
    """Return what draws curves; what would fail later is said before anything is computed."""
    if path.suffix.lower() != ".png" or not path.parent.is_dir():
        raise ConfigurationError(f"--plot {path}: name a .png file in a folder that is there")
    try:
        from fedspan.cli.plots import write_curves
    except ImportError as cause:
        raise ConfigurationError("--plot needs matplotlib: install fedspan[plots], or leave --plot out") from cause
    return write_curves


def _draw(write_curves: Callable[..., None], path: Path, name: str, found: Calibration) -> None:
    curves = [
        {
            "label": f"{curve.solver}, {curve.trust}", "values": [max(1 - p.mean, 1e-6) for p in curve.points],
            "at": [math.log10(p.epsilon) for p in curve.points], "colour": at, "dashed": False,
        }
        for at, curve in enumerate(found.curves)
    ]  # fmt: skip
    panels = [{"title": "on synthetic twins; no data was read", "curves": curves}]
    write_curves(path, name, panels, x="log10 of epsilon", y="variance lost to privacy (share)")
