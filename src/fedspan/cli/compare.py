"""``fedspan compare``: several solvers on one study, in one table."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table
from rich.text import Text

from fedspan.cli.output import Json, bold, counted, note, plain_table, print_json, say, watching_steps
from fedspan.cli.runs import privacy_warnings
from fedspan.data import Preparation, Source
from fedspan.data.preprocess import set_up
from fedspan.encoding import Array
from fedspan.engines import get_engine
from fedspan.errors import ConfigurationError, FedspanError, nearest
from fedspan.metrics import projection_distance
from fedspan.privacy import GaussianPrivacy
from fedspan.privacy.terms import check_terms
from fedspan.progress import human_bytes
from fedspan.rounds import Round, Solve, Sum, drive, numbered
from fedspan.run import Result, Study, run
from fedspan.sites import open_sites
from fedspan.solvers import NAMES, SOLVERS, BlockKrylov, Covariance, Solver, make
from fedspan.solvers.problem import multiply
from fedspan.study import resolve_private, resolve_solver
from fedspan.study_file import StudyFile, load_study

WIDE = 2000
"""Beyond so many features, methods that send d x d numbers are tried only when asked for by name."""


@dataclass(frozen=True)
class Trial:
    """One solver's run: what it took, and how near it came."""

    solver: str
    rounds: int
    setup_rounds: int
    bytes_up: int
    bytes_down: int
    error: float
    """The sine of the largest angle between its subspace and the exact one."""
    variance: float
    """The variance in its subspace, as a share of what the exact one holds."""
    converged: bool | None
    seconds: float
    clock: float | None = None
    """By the engine's own time, set-up included, where it keeps one."""


def compare(
    study: Annotated[Path, typer.Argument(help="The study file (TOML).", show_default=False)],
    solvers: Annotated[
        str | None, typer.Option(help="Names with commas between (default: all that fit the study).")
    ] = None,
    json: Json = False,
) -> None:
    """Run several solvers on the same study and put them side by side."""
    described = load_study(study)
    sources = described.open_sources()
    warned: list[str] = []

    def tell(text: str) -> None:
        note(text)
        warned.append(text.removeprefix("Warning: "))

    if described.privacy is not None:
        check_terms(described.privacy, described.preparation, described.cohort, len(sources))
        tell("Warning: errors are measured against the exact answer, computed here without noise: for data you hold.")
    exact = run(_exactly(described, sources), sources)
    settled = replace(described.study(), n_components=exact.estimate.basis.shape[1])
    candidates = _able(_candidates(described, solvers, exact.facts.features), settled, exact, tell, asked=solvers)
    for warning in privacy_warnings(described.privacy, len(candidates), kept=False):
        tell(f"Warning: {warning}.")
    trials = try_solvers(
        settled, sources, candidates, exact.estimate.basis,
        lambda _, one: run(one, sources, engine=described.execution), title=described.name, tell=tell,
    )  # fmt: skip
    if json:
        print_json({"name": described.name, "trials": [asdict(trial) for trial in trials], "warnings": warned})
    else:
        say(_heading(described, exact), "", table_of(trials))


def _heading(described: StudyFile, exact: Result) -> Text:
    facts = exact.facts
    return bold(
        described.name,
        f": {counted(exact.estimate.basis.shape[1], 'component')} of {counted(facts.features, 'feature')}; "
        f"{counted(facts.n_rows, 'row')} at {counted(facts.sites, 'site')}. "
        f"Error is against the exact answer ({NAMES[type(exact.solver)]}).",
    )


def try_solvers(
    study: Study,
    sources: Mapping[str, Source],
    candidates: Mapping[str, str | Solver],
    exact: Array,
    execute: Callable[[str, Study], Result],
    *,
    title: str,
    tell: Callable[[str], None] = note,
) -> list[Trial]:
    """Run each solver, then measure all of them against the exact basis in one more round.

    One that fails does not end the comparison, as what the others took and spent would be lost; unless all of them do.
    """
    results: dict[str, tuple[Result, float]] = {}
    failed: FedspanError | None = None
    with watching_steps(title, len(candidates)) as begin:
        for name, solver in candidates.items():
            begin(name)
            started = time.perf_counter()
            try:
                result = execute(name, replace(study, solver=solver))
            except FedspanError as error:
                tell(f"{name} is left out: {error}")
                failed = error
            else:
                results[name] = result, time.perf_counter() - started
    if failed is not None and not results:
        raise failed
    bases = [exact, *(result.estimate.basis for result, _ in results.values())]
    best, *held = captured(study.preparation, sources, bases)
    return [
        Trial(
            name, r.rounds, r.setup_rounds, r.bytes_up, r.bytes_down,
            projection_distance(exact, r.estimate.basis), share / best if best > 0 else 1.0, r.converged, seconds,
            r.clock,
        )
        for (name, (r, seconds)), share in zip(results.items(), held, strict=True)
    ]  # fmt: skip


def captured(preparation: Preparation, sources: Mapping[str, Source], bases: Sequence[Array]) -> list[float]:
    """Return the variance that each basis holds, by one federated product of all of them."""
    wide = np.hstack(bases)

    def ask() -> Solve[Array]:
        yield from set_up(preparation)
        product: Array = yield Round(multiply, wide, Sum())
        return product

    product = drive(numbered(ask()), get_engine(None)(open_sites(sources, seed=0), 0))
    held = np.sum(wide * product, axis=0)
    ends = np.cumsum([basis.shape[1] for basis in bases])
    return [float(part.sum()) for part in np.split(held, ends[:-1])]


def table_of(trials: Sequence[Trial], *, against: str = "exact", seconds: str = "in this process") -> Table:
    """Return the trials as one table; ``against`` and ``seconds`` say what these columns mean."""
    clocks = any(t.clock is not None for t in trials)
    last = ("seconds", "virtual time") if clocks else ("seconds",)
    table = plain_table("solver", "rounds", "bytes up", "bytes down", f"error vs {against}", "variance kept", *last)
    for t in trials:
        table.add_row(
            t.solver + (" *" if t.converged is False else ""), f"{t.rounds} + {t.setup_rounds}",
            human_bytes(t.bytes_up), human_bytes(t.bytes_down),
            f"{t.error:.0e}" if t.error < 0.001 else f"{t.error:.3f}", f"{t.variance:.2%}", f"{t.seconds:.2f}",
            *([f"{t.clock:.4g}"] if clocks else []),
        )  # fmt: skip
    table.caption = f"rounds: the solver's + set-up; bytes: all sites together; seconds: {seconds}"
    if any(t.converged is False for t in trials):
        table.caption += "\n* its budget of rounds ended before its tolerance was met"
    return table


def _exactly(described: StudyFile, sources: Mapping[str, Source]) -> Study:
    """Return the study with a solver that is exact to rounding, and every site in every round."""
    widest = max(source.shape[1] for source in sources.values())
    solver = Covariance() if widest <= WIDE else BlockKrylov(rounds=300, tol=1e-12)
    return replace(described.study(), solver=solver, cohort=type(described.cohort)(), privacy=None)


def _candidates(described: StudyFile, asked: str | None, d: int) -> dict[str, str | Solver]:
    full = described.cohort.is_full
    if asked is None:
        wide = () if d <= WIDE else ("covariance", "dr-svd")
        named = {name: make(name) for name in SOLVERS if name not in wide and _fits(name, described.privacy)}
        named = {name: solver for name, solver in named.items() if full or solver.partial}
    else:
        named = {name: _named(name) for name in map(str.strip, asked.split(",")) if name}
    chosen: dict[str, str | Solver] = dict(named)
    if described.privacy is not None:  # by name: the plan chooses their rounds
        chosen = {name: name for name in named}
    if asked is not None and not chosen:
        raise ConfigurationError(f"--solvers names none; known: {', '.join(SOLVERS)}")
    given = described.solver
    if not isinstance(given, str) and NAMES[type(given)] in chosen:
        chosen[NAMES[type(given)]] = given  # with the study's own settings
    return chosen


def _able(
    candidates: Mapping[str, str | Solver], study: Study, exact: Result, tell: Callable[[str], None], *,
    asked: str | None,
) -> dict[str, str | Solver]:  # fmt: skip
    """Return the candidates that can serve the study; refuse one that was asked for, before any has run."""
    able = {}
    for name, solver in candidates.items():
        try:
            _check_able(replace(study, solver=solver), exact)
        except ConfigurationError as error:
            if asked is not None:
                raise ConfigurationError(f"--solvers: {name} cannot run on this study: {error}") from error
            tell(f"{name} is left out: {error}")
        else:
            able[name] = solver
    return able


def _check_able(study: Study, exact: Result) -> None:
    facts, k = exact.facts, exact.estimate.basis.shape[1]
    if study.privacy is None:
        resolve_solver(study, facts.features, k, symmetric=facts.symmetric)
    else:
        resolve_private(study, study.privacy, facts.features, k, float(facts.n_rows), facts.sites)


def _fits(name: str, privacy: GaussianPrivacy | None) -> bool:
    """Whether a solver is for a study with, or without, privacy."""
    if privacy is None:
        return name not in ("private-power", "mod-sulq", "streaming-mod-sulq")
    if name == "streaming-mod-sulq" and privacy.relation != "row-replace":
        return False
    return SOLVERS[name]().releases is not None and (not name.endswith("mod-sulq") or privacy.trust == "local")


def _named(name: str) -> Solver:
    if name not in SOLVERS:
        raise ConfigurationError(f"--solvers: there is no solver {name!r}; {nearest(name, SOLVERS)}")
    return make(name)
