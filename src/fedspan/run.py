"""Assemble and run a study: data preparation, solver, layers, engine. The order of layers is fixed here.

solver and set-up  ->  numbered  ->  observe  ->  follow  ->  record  ->  account  ->  transcript  ->  engine

`record` is there with a run folder, `transcript` only where it is asked for too, `follow` and `account` in a private
study.
"""

from __future__ import annotations

import json
import secrets
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
from fedspan.errors import BudgetExhausted, ConfigurationError, DataError, FileError, ResumeError, nearest
from fedspan.layers import Journal, OnRound, RoundRecord, account, follow, observe, record, transcript
from fedspan.linalg import Estimate, canonical_signs, left_svd, orth, orth_against
from fedspan.privacy.gaussian import GaussianPrivacy
from fedspan.privacy.guarantee import Guarantee, guarantee
from fedspan.privacy.ledger import Ledger
from fedspan.privacy.policy import Releases, SitePolicy
from fedspan.privacy.secret import KEY, Secret
from fedspan.privacy.terms import check_published, check_terms, private_solver, set_up_for, solver_noise, terms_of
from fedspan.privacy.transcript import TranscriptWriter, has_transcript
from fedspan.rounds import Cohort, Site, Solve, drive, numbered
from fedspan.sites import LEDGER, open_sites
from fedspan.solvers import NAMES, Covariance, PrivatePower, Problem, Solution, Solver, check_solver, choose, make
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
    privacy: GaussianPrivacy | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.solver, str):
            check_solver(self.solver)
        if self.privacy is not None and not isinstance(self.privacy, GaussianPrivacy):
            raise ConfigurationError(f"privacy is a GaussianPrivacy or None, got {self.privacy!r}")

    def _shape(self, source: Source) -> list[int | None]:
        """Return a site's shape; without its rows where those are its own (its memory knows them)."""
        told = self.privacy is None or self.privacy.rows_known
        return [source.shape[0] if told else None, source.shape[1]]

    def fingerprint(self, sources: Mapping[str, Source]) -> dict[str, Any]:
        """Return what a resumed run must agree on, as plain data."""
        solver = self.solver if isinstance(self.solver, str) else {NAMES[type(self.solver)]: vars(self.solver)}
        return {
            "n_components": self.n_components, "solver": solver, "preparation": asdict(self.preparation),
            "cohort": asdict(self.cohort), "seed": self.seed, "init": None if self.init is None else digest(self.init),
            "sites": {name: self._shape(source) for name, source in sorted(sources.items())},
            "privacy": None if self.privacy is None else self.privacy.as_plain(),
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
    privacy: Guarantee | None = None
    """What was promised and spent."""
    stopped: str | None = None
    """Why the run ended before its solver did."""

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
    if study.privacy is not None:
        check_terms(study.privacy, study.preparation, study.cohort, len(sources))
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
    run_id, releases = run_name(folder), None
    if study.privacy is not None:
        ledger = None if folder is None else Ledger(folder / LEDGER)
        secret = Secret(None if folder is None else folder / KEY)
        releases = Releases(study.privacy, run=run_id, who="", sites=len(sources), ledger=ledger, secret=secret)
    site_folder = None if folder is None else folder / "sites"
    sites = open_sites(
        sources, seed=study.seed, folder=site_folder, privacy=study.privacy, run=run_id, preparation=study.preparation
    )
    history: list[RoundRecord] = []
    progress = Progress()
    watching = [lambda r, _: history.append(r), *watchers]
    solve = assemble(solve_study(study, progress), journal, releases, writer, watching)
    stopped = None
    try:
        progress.solution = drive(solve, engine(sites, study.seed))
    except BudgetExhausted as error:
        stopped = str(error)
        if not progress.salvage():
            raise
    facts, solver, solution = progress.outcome()
    basis, values = solution.estimate
    if not facts.symmetric:
        values = np.maximum(values, 0.0)
    promised = None
    if releases is not None:
        promised = guarantee(releases, facts.features)
        destroy_secrets(releases, sites)
    estimate = Estimate(canonical_signs(basis), values)
    return Result(estimate, facts, solver, solution.converged, history, promised, stopped)


def destroy_secrets(releases: Releases, sites: Sequence[Site]) -> None:
    """Forget what noise was keyed by: the run is over, and nothing is released again."""
    releases.secret.destroy()
    for site in sites:
        if isinstance(site.policy, SitePolicy):
            site.policy.releases.secret.destroy()


@dataclass
class Progress:
    """How far a study is: what would be its answer if it had to stop here."""

    facts: Facts | None = None
    solver: Solver | None = None
    k: int = 0
    last: Array | None = None
    """The last d x r aggregate."""
    solution: Solution | None = None

    def salvage(self) -> bool:
        """Make a solution of the last aggregate, if there is one."""
        if self.facts is None or self.last is None:
            return False
        basis, values = left_svd(self.last)
        self.solution = Solution(Estimate(basis[:, : self.k], values[: self.k]), False)
        return True

    def outcome(self) -> tuple[Facts, Solver, Solution]:
        """Return what is known at the end."""
        if self.facts is None or self.solver is None or self.solution is None:
            raise AssertionError("a study ends with facts, a solver and a solution")
        return self.facts, self.solver, self.solution


def run_name(folder: Path | None) -> str:
    """Return the name that releases are charged to: that of a run folder stays when it is resumed."""
    if folder is None:
        return secrets.token_hex(8)
    return str(json.loads((folder / "terms.json").read_text())["run"])


def contents(folder: Path) -> set[Path] | None:
    """Return what a folder holds before a run, None where there is no such folder."""
    return set(folder.iterdir()) if folder.is_dir() else None


def discard(folder: Path, before: set[Path] | None) -> None:
    """Remove what a failed run left, and nothing that was there ``before`` it: that is the user's.

    A folder whose ledgers hold a charge stays: something was released, and that is not forgotten.
    """
    if any(is_charged(ledger) for ledger in folder.rglob(LEDGER)):
        return
    if before is None:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for part in (contents(folder) or set()) - before:
        if part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        else:
            part.unlink(missing_ok=True)


def is_charged(ledger: Path) -> bool:
    """Whether a ledger's file holds a charge; one that cannot be read may."""
    try:
        with Ledger(ledger) as book:
            return bool(book.charges())
    except FileError:
        return True


def assemble(
    solve: Solve[Any],
    journal: Journal | None,
    releases: Releases | None,
    writer: TranscriptWriter | None,
    watchers: Sequence[OnRound],
) -> Solve[Any]:
    """Put the layers around a solver, in their order."""
    solve = observe(numbered(solve), *watchers)
    if releases is not None:
        solve = follow(solve, releases)
    if journal is not None:
        solve = record(solve, journal)
    if releases is not None:
        solve = account(solve, releases)
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
        agreed = {**fingerprint, "record": kept, "run": secrets.token_hex(8)}
        write_atomically(terms, json.dumps(agreed, indent=1, sort_keys=True).encode())
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


def solve_study(study: Study, progress: Progress | None = None) -> Solve[Solution]:
    """The coordinator's whole half: prepare the data, choose rank and solver, solve."""
    progress = Progress() if progress is None else progress
    if study.privacy is not None:
        return (yield from _solve_privately(study, study.privacy, progress))
    facts = progress.facts = yield from set_up(study.preparation)
    check_rank(study.n_components, facts)
    if isinstance(study.n_components, int):
        solver = progress.solver = resolve_solver(study, facts.features, study.n_components, symmetric=facts.symmetric)
        return (yield from solve_rank(study, facts, solver, study.n_components, study.init))
    most = min(facts.features, facts.n_rows)
    k, init = min(16, most), study.init
    while True:  # double the rank until the rule is satisfied inside it, each time from the last answer
        solver = progress.solver = resolve_solver(study, facts.features, k, symmetric=facts.symmetric)
        solution = yield from solve_rank(study, facts, solver, k, init)
        wanted = _rank_found(study, facts, solution.estimate.values)
        if wanted is not None or k == most:
            return _cut(solution, wanted or k)
        k, init = min(2 * k, most), solution.estimate.basis


def _solve_privately(study: Study, privacy: GaussianPrivacy, progress: Progress) -> Solve[Solution]:
    """The same under privacy: one solve, its rounds agreed before; a rank that was not given is cut from its answer."""
    chosen: list[Solver] = []
    if not isinstance(study.n_components, int) and privacy.shares["variance"] == 0:
        raise ConfigurationError(
            f"n_components = {study.n_components!r} is found from the total variance, whose share of the budget is 0; "
            'give shares["variance"] some, or a number of components'
        )

    def agree(d: int, total: float, rows: dict[str, int | None]) -> dict[str, Any]:
        k = study.n_components if isinstance(study.n_components, int) else min(16, d)
        chosen.append(resolve_private(study, privacy, d, k, total, len(rows)))
        return terms_of(chosen[0], privacy, study.cohort, rows)

    asked = set_up_for(privacy, agree, lambda width: check_private_rank(study.n_components, width))
    facts = progress.facts = yield from set_up(study.preparation, asked)
    solver = progress.solver = chosen[0]
    given = isinstance(study.n_components, int)
    k = study.n_components if isinstance(study.n_components, int) else min(facts.features, 16)
    if not given and isinstance(solver, Covariance):
        k = facts.features  # one release holds every value
    progress.k = k
    solution = yield from solve_rank(study, facts, solver, k, study.init, progress)
    facts = progress.facts = with_total(facts, solution)
    if given:
        return solution
    noise = solver_noise(privacy, facts, solver, facts.sites)
    return _cut(solution, _rank_found(study, facts, solution.estimate.values, noise) or k)


def with_total(facts: Facts, solution: Solution) -> Facts:
    """Return the facts with the best total variance that was released: never less than the values it is the sum of.

    That of a noised Gram matrix has far less noise than the small share of the budget for the total by itself.
    """
    if solution.total is None and np.isnan(facts.total):
        return facts
    total = facts.total if solution.total is None else solution.total
    return replace(facts, total=max(total, float(np.maximum(solution.estimate.values, 0.0).sum())))


def _rank_found(study: Study, facts: Facts, values: Array, noise: float = 0.0) -> int | None:
    if isinstance(study.n_components, float):
        return rank_by_fraction(values, facts.total, study.n_components)
    return rank_by_threshold(values, facts.total, facts.n_rows, facts.features, noise)


def _cut(solution: Solution, k: int) -> Solution:
    basis, values = solution.estimate
    return replace(solution, estimate=Estimate(basis[:, :k], values[:k]))


def resolve_private(study: Study, privacy: GaussianPrivacy, d: int, k: int, rows: float, sites: int) -> Solver:
    """Return the solver of a private study, with its rounds."""
    check_solver(study.solver)
    named = study.solver
    if named == "auto" and not study.cohort.is_full:
        named = "private-power"
    solver = private_solver(named, privacy, d, k, rows, sites)
    if privacy.calibration == "published":
        check_published(privacy, solver)
    return resolve_solver(replace(study, solver=solver), d, k)


def solve_rank(
    study: Study, facts: Facts, solver: Solver, k: int, init: Array | None, progress: Progress | None = None
) -> Solve[Solution]:
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
    solution = yield from under({"preparation": facts.preparation}, solver.solve(problem), progress)
    basis, values = solution.estimate
    missing = k - basis.shape[1]
    if missing > 0:  # the rows have fewer directions than k: the rest is any others, of value zero
        others = orth_against(problem.start, basis)[0]
        basis, values = np.hstack([basis, others[:, :missing]]), np.append(values, np.zeros(missing))
    return replace(solution, estimate=Estimate(basis[:, :k], values[:k]))


def under(terms: dict[str, Any], solve: Solve[Solution], progress: Progress | None = None) -> Solve[Solution]:
    """Name the study's terms in every question, so that a site which lost its state can restart; note progress."""
    value = None
    while True:
        try:
            question = solve.send(value)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        value = yield replace(question, terms=terms)
        if progress is not None:
            product = value.get("product") if isinstance(value, dict) else value
            if isinstance(product, np.ndarray) and product.ndim == 2:
                progress.last = product


def resolve_solver(study: Study, d: int, k: int, *, symmetric: bool = False) -> Solver:
    """Return the solver asked for, or the one that fits; refuse a cohort it cannot honour."""
    check_solver(study.solver)
    solver = study.solver
    if solver == "auto":
        solver = choose(d, k, full=study.cohort.is_full)
    elif isinstance(solver, str):
        solver = make(solver)
    if isinstance(solver, PrivatePower) and study.privacy is None:
        raise ConfigurationError(
            "private-power needs a privacy policy: give privacy=GaussianPrivacy(epsilon, delta, row_norm=...), or take "
            "power, which has none"
        )
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
    check_form(wanted)


def check_form(wanted: int | float | str) -> None:
    """Refuse an ``n_components`` that is neither a number, nor a fraction, nor ``"auto"``."""
    if isinstance(wanted, float):
        if not 0 < wanted < 1:
            raise ConfigurationError(f"a fractional n_components lies in (0, 1), got {wanted}")
    elif not isinstance(wanted, int) and wanted != "auto":
        raise ConfigurationError(f"n_components is an integer, a fraction in (0, 1) or 'auto', got {wanted!r}")


def check_private_rank(wanted: int | float | str, features: int) -> None:
    """Refuse a number of components that no data could have; of the rows nothing is known."""
    if isinstance(wanted, int) and not 1 <= wanted <= features:
        raise DataError(f"n_components = {wanted} must lie between 1 and {features}, the features of the study")
    check_form(wanted)


def _plain(value: Any) -> Any:
    """Return a value as JSON would give it back."""
    return json.loads(json.dumps(value))
