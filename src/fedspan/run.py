"""Assemble and run a study: data preparation, solver, layers, engine. The order of layers is fixed here.

solver and set-up  ->  numbered  ->  observe  ->  record  ->  transcript  ->  engine

`record` is there with a run folder, `transcript` only where it is asked for too.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedspan.data import Facts, Preparation, Source
from fedspan.data.preprocess import set_up
from fedspan.encoding import Array, digest, write_atomically
from fedspan.engines import Engine, get_engine
from fedspan.errors import ConfigurationError, DataError, FileError, ResumeError, nearest
from fedspan.layers import Journal, OnRound, RoundRecord, observe, record, transcript
from fedspan.linalg import Estimate, canonical_signs, orth, orth_against
from fedspan.privacy.transcript import TranscriptWriter, has_transcript
from fedspan.rounds import Cohort, Solve, drive, numbered
from fedspan.sites import open_sites
from fedspan.solvers import NAMES, Problem, Solution, Solver, check_solver, choose, make
from fedspan.threshold import rank_by_fraction, rank_by_threshold

RECORDS = ("rounds", "transcript")
"""What a run folder may keep: the aggregates, or every site's releases too."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """All that determines a run's answer, but for the data."""

    n_components: int | float | str = 10
    solver: str | Solver = "krylov"
    preparation: Preparation = field(default_factory=Preparation)
    cohort: Cohort = field(default_factory=Cohort)
    seed: int = 0
    init: Array | None = None
    """A d x k basis to start from: a warm start."""

    def __post_init__(self) -> None:
        if not isinstance(self.solver, str):
            check_solver(self.solver)

    def fingerprint(self, sources: Mapping[str, Source]) -> dict[str, Any]:
        """Return what a resumed run must agree on, as plain data."""
        solver = self.solver if isinstance(self.solver, str) else {NAMES[type(self.solver)]: vars(self.solver)}
        return {
            "n_components": self.n_components, "solver": solver, "preparation": asdict(self.preparation),
            "cohort": asdict(self.cohort), "seed": self.seed, "init": None if self.init is None else digest(self.init),
            "sites": {name: list(source.shape) for name, source in sorted(sources.items())},
        }  # fmt: skip


@dataclass(frozen=True)
class Result:
    """What a run found, and what it took."""

    estimate: Estimate
    """k columns, signs canonical, and the eigenvalues of the prepared rows' Gram matrix."""
    facts: Facts
    solver: Solver
    converged: bool | None
    history: list[RoundRecord]

    @property
    def rounds(self) -> int:
        """The solver's rounds."""
        return sum(not r.setup for r in self.history)

    @property
    def setup_rounds(self) -> int:
        """Rounds that prepared the data."""
        return sum(r.setup for r in self.history)

    @property
    def bytes_up(self) -> int:
        """Bytes from the sites, all rounds."""
        return sum(r.bytes_up for r in self.history)

    @property
    def bytes_down(self) -> int:
        """Bytes to the sites, all rounds."""
        return sum(r.bytes_down for r in self.history)


def run(
    study: Study,
    sources: Mapping[str, Source],
    *,
    engine: str | Engine | None = None,
    folder: Path | None = None,
    resume: bool = False,
    record: str = "rounds",
    watchers: Sequence[OnRound] = (),
) -> Result:
    """Run a study on sites. With a folder, every round is recorded there and a stopped run can be resumed.

    ``record="transcript"`` keeps each site's releases in the folder too, which must then be protected like them:
    `fedspan.privacy.transcript`.
    """
    if not sources:
        raise ConfigurationError("a study needs at least one site, got none")
    check_record(record)
    if record == "transcript" and folder is None:
        raise ConfigurationError(
            'record="transcript" keeps what each site released in the run folder, and none was given; name one'
        )
    before = None if folder is None else contents(folder)
    journal = None if folder is None else open_journal(folder, study.fingerprint(sources), record, resume=resume)
    writer = TranscriptWriter(folder) if folder is not None and record == "transcript" else None
    try:
        return _run(study, sources, journal, writer, folder, get_engine(engine), watchers)
    except (ConfigurationError, DataError, FileError):
        if folder is not None and not resume:  # nothing was learnt: leave nothing half-written behind
            discard(folder, before)
        raise


def _run(
    study: Study,
    sources: Mapping[str, Source],
    journal: Journal | None,
    writer: TranscriptWriter | None,
    folder: Path | None,
    engine: Engine,
    watchers: Sequence[OnRound],
) -> Result:
    sites = open_sites(sources, seed=study.seed, folder=None if folder is None else folder / "sites")
    history: list[RoundRecord] = []
    solve = assemble(solve_study(study), journal, writer, [lambda r, _: history.append(r), *watchers])
    facts, solver, solution = drive(solve, engine(sites, study.seed))
    basis, values = solution.estimate
    if not facts.symmetric:
        values = np.maximum(values, 0.0)
    return Result(Estimate(canonical_signs(basis), values), facts, solver, solution.converged, history)


def contents(folder: Path) -> set[Path] | None:
    """Return what a folder holds before a run, None where there is no such folder."""
    return set(folder.iterdir()) if folder.is_dir() else None


def discard(folder: Path, before: set[Path] | None) -> None:
    """Remove what a failed run left, and nothing that was there ``before`` it: that is the user's."""
    if before is None:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for part in (contents(folder) or set()) - before:
        if part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        else:
            part.unlink(missing_ok=True)


def assemble(
    solve: Solve[Any], journal: Journal | None, writer: TranscriptWriter | None, watchers: Sequence[OnRound]
) -> Solve[Any]:
    """Put the layers around a solver, in their order."""
    solve = observe(numbered(solve), *watchers)
    if journal is not None:
        solve = record(solve, journal)
    return solve if writer is None else transcript(solve, writer)


def check_record(wanted: str) -> None:
    """Refuse what no run folder can keep."""
    if wanted not in RECORDS:
        raise ConfigurationError(f"record is 'rounds' or 'transcript', got {wanted!r}; {nearest(str(wanted), RECORDS)}")


def open_journal(folder: Path, fingerprint: dict[str, Any], kept: str, *, resume: bool) -> Journal:
    """Open a run folder: a new one, or with ``resume`` one whose study is the same and that keeps the same."""
    terms = folder / "terms.json"
    if not resume:
        if (folder / "rounds.jsonl").exists() or has_transcript(folder):
            raise ResumeError(f"{folder} holds a run already; resume it, or name another folder")
        write_atomically(terms, json.dumps({**fingerprint, "record": kept}, indent=1, sort_keys=True).encode())
        return Journal(folder)
    if not terms.exists():
        raise ResumeError(f"{folder} holds no run to resume; start the study without resume")
    try:
        recorded = json.loads(terms.read_text())
    except ValueError as cause:
        raise FileError(f"{terms} is damaged ({cause}); the run cannot resume") from cause
    changed = [key for key in fingerprint if _plain(fingerprint[key]) != recorded.get(key)]
    if changed:
        key = changed[0]
        raise ResumeError(
            f"{folder}: the study changed since this run began: {', '.join(changed)} "
            f"({key} was {recorded.get(key)}, is {_plain(fingerprint[key])}); restore it, or use another folder"
        )
    before = recorded.get("record", "rounds")
    if before != kept:
        raise ResumeError(
            f'{folder}: this run began with record = "{before}" and cannot go on with "{kept}": its transcript would '
            f'have a hole; resume it with "{before}", or use another folder'
        )
    return Journal(folder)


def solve_study(study: Study) -> Solve[tuple[Facts, Solver, Solution]]:
    """The coordinator's whole half: prepare the data, choose rank and solver, solve."""
    facts = yield from set_up(study.preparation)
    check_rank(study.n_components, facts)
    if isinstance(study.n_components, int):
        solver = resolve_solver(study, facts.features, study.n_components, symmetric=facts.symmetric)
        solution = yield from solve_rank(study, facts, solver, study.n_components, study.init)
        return facts, solver, solution
    most = min(facts.features, facts.n_rows)
    k, init = min(16, most), study.init
    while True:  # double the rank until the rule is satisfied inside it, each time from the last answer
        solver = resolve_solver(study, facts.features, k, symmetric=facts.symmetric)
        solution = yield from solve_rank(study, facts, solver, k, init)
        basis, values = solution.estimate
        if isinstance(study.n_components, float):
            wanted = rank_by_fraction(values, facts.total, study.n_components)
        else:
            wanted = rank_by_threshold(values, facts.total, facts.n_rows, facts.features)
        if wanted is not None or k == most:
            kept = wanted or k
            return facts, solver, replace(solution, estimate=Estimate(basis[:, :kept], values[:kept]))
        k, init = min(2 * k, most), basis


def solve_rank(study: Study, facts: Facts, solver: Solver, k: int, init: Array | None) -> Solve[Solution]:
    """Solve for k components from a random start, or a given one completed at random."""
    d, rank = facts.features, solver.rank(k, facts.features)
    rng = np.random.default_rng([study.seed, d, rank])
    start = rng.standard_normal((d, rank))
    if init is not None:
        if init.ndim != 2 or init.shape[0] != d:
            raise ConfigurationError(f"init is a basis of {d} rows, one for each feature; got shape {init.shape}")
        given = np.asarray(init, dtype=float)[:, :rank]
        start[:, : given.shape[1]] = given
    problem = Problem(
        orth(start), k, total=facts.total if facts.total > 0 else 1.0, weight=facts.weight,
        precision=facts.precision, cohort=study.cohort, rng=rng,
    )  # fmt: skip
    solution = yield from under({"preparation": facts.preparation}, solver.solve(problem))
    basis, values = solution.estimate
    missing = k - basis.shape[1]
    if missing > 0:  # the rows have fewer directions than k: the rest is any others, of value zero
        others = orth_against(problem.start, basis)[0]
        basis, values = np.hstack([basis, others[:, :missing]]), np.append(values, np.zeros(missing))
    return replace(solution, estimate=Estimate(basis[:, :k], values[:k]))


def under(terms: dict[str, Any], solve: Solve[Solution]) -> Solve[Solution]:
    """Name the study's terms in every question, so that a site which lost its state can restart."""
    value = None
    while True:
        try:
            question = solve.send(value)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        value = yield replace(question, terms=terms)


def resolve_solver(study: Study, d: int, k: int, *, symmetric: bool = False) -> Solver:
    """Return the solver asked for, or the one that fits; refuse a cohort it cannot honour."""
    check_solver(study.solver)
    solver = study.solver
    if solver == "auto":
        solver = choose(d, k, full=study.cohort.is_full)
    elif isinstance(solver, str):
        solver = make(solver)
    if not study.cohort.is_full and not solver.partial:
        raise ConfigurationError(
            f"{NAMES[type(solver)]} needs every site in every round, but the cohort is {study.cohort}; "
            f"take fedpower or power, or ask all sites"
        )
    if symmetric and NAMES[type(solver)] == "dr-svd":
        raise ConfigurationError("dr-svd multiplies rows, of which shares of a symmetric matrix have none; take krylov")
    if study.cohort.sample != "uniform" and NAMES[type(solver)] != "fedpower":
        raise ConfigurationError("sampling by size with replacement is FedPower's scheme 1; take solver fedpower")
    return solver


def check_rank(wanted: int | float | str, facts: Facts) -> None:
    """Refuse an ``n_components`` that the data or the rules do not allow."""
    if isinstance(wanted, int):
        most = facts.features if facts.symmetric else min(facts.features, facts.n_rows)
        if not 1 <= wanted <= most:
            raise DataError(
                f"n_components = {wanted} must lie between 1 and {most}: the study has {facts.features} features "
                f"and {facts.n_rows} rows"
            )
    elif isinstance(wanted, float):
        if not 0 < wanted < 1:
            raise ConfigurationError(f"a fractional n_components lies in (0, 1), got {wanted}")
    elif wanted != "auto":
        raise ConfigurationError(f"n_components is an integer, a fraction in (0, 1) or 'auto', got {wanted!r}")


def _plain(value: Any) -> Any:
    """Return a value as JSON would give it back."""
    return json.loads(json.dumps(value))
