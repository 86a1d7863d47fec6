"""A study and the coordinator's whole half of it: prepare the data, choose rank and solver, solve.

One generator, `solve_study`, for every study; what lies around it (layers, engine, run folder) is in `fedspan.run`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from fedspan.agreed_sums import agreed_sums, check_sums_only, drawn_of, secure_of, telling_sums
from fedspan.data import Facts, Preparation, Source
from fedspan.data.preprocess import set_up
from fedspan.encoding import Array, digest
from fedspan.errors import ConfigurationError, DataError
from fedspan.linalg import Estimate, canonical_signs, left_svd, orth, orth_against
from fedspan.privacy.gaussian import GaussianPrivacy
from fedspan.privacy.terms import coverable, private_solver, set_up_for, solver_noise, terms_of
from fedspan.rounds import Cohort, Solve
from fedspan.secure import SecureSums, SumTerms
from fedspan.solvers import (
    NAMES,
    Covariance,
    FedPower,
    PrivatePower,
    Problem,
    Solution,
    Solver,
    check_solver,
    choose,
    make,
    settings_of,
)
from fedspan.threshold import rank_by_fraction, rank_by_threshold


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
    secure: SecureSums | None = None
    """Whether the coordinator learns sums only, and on what terms."""
    precision: float = 0.0
    """How far sums may be off where an engine does not make them exact: a tolerance below it is raised to it."""

    def __post_init__(self) -> None:
        if not isinstance(self.solver, str):
            check_solver(self.solver)
        if self.privacy is not None and not isinstance(self.privacy, GaussianPrivacy):
            raise ConfigurationError(f"privacy is a GaussianPrivacy or None, got {self.privacy!r}")
        object.__setattr__(self, "secure", secure_of(self.secure))

    def _shape(self, source: Source) -> list[int | None]:
        """Return a site's shape; without its rows where those are its own (its memory knows them)."""
        told = self.privacy is None or self.privacy.rows_known
        return [source.shape[0] if told else None, source.shape[1]]

    def fingerprint(self, sources: Mapping[str, Source]) -> dict[str, Any]:
        """Return what a resumed run must agree on, as plain data."""
        solver = self.solver if isinstance(self.solver, str) else {NAMES[type(self.solver)]: settings_of(self.solver)}
        return {
            "n_components": self.n_components, "solver": solver, "preparation": asdict(self.preparation),
            "cohort": asdict(self.cohort), "seed": self.seed, "init": None if self.init is None else digest(self.init),
            "sites": {name: self._shape(source) for name, source in sorted(sources.items())},
            "privacy": None if self.privacy is None else self.privacy.as_plain(),
            "secure": None if self.secure is None else self.secure.as_plain(),
        }  # fmt: skip

    def drawn(self, sites: int) -> int:
        """Return how many sites a round asks."""
        return drawn_of(self.cohort, sites)

    def masks(self, sites: int, run: str = "") -> SumTerms | None:
        """Return the terms of its secure sums; None where replies are seen one by one."""
        return agreed_sums(self.secure, self.privacy, self.cohort, sites, run)

    def telling_sums(self, sites: int) -> str | None:
        """Return a warning where its secure sums, put together, tell single sites apart; None where they do not."""
        return telling_sums(self.masks(sites), self.cohort, sites)


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


def answer_of(progress: Progress) -> Estimate:
    """Return a study's answer as it is shown: signs canonical, and no value below 0 where rows make up the matrix."""
    facts, _, solution = progress.outcome()
    basis, values = solution.estimate
    return Estimate(canonical_signs(basis), values if facts.symmetric else np.maximum(values, 0.0))


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

    asked = set_up_for(privacy, agree, lambda width: check_private(study, privacy, width))
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
    solver = private_solver(_named(study), privacy, d, k, rows, sites)
    return resolve_solver(replace(study, solver=solver), d, k)


def _named(study: Study) -> str | Solver:
    return "private-power" if study.solver == "auto" and not study.cohort.is_full else study.solver


def check_private(study: Study, privacy: GaussianPrivacy, d: int) -> None:
    """Refuse, from public figures, what would be refused later: nothing was released yet."""
    check_private_rank(study.n_components, d)
    k = study.n_components if isinstance(study.n_components, int) else min(16, d)
    resolve_solver(replace(study, solver=coverable(_named(study), privacy, d)), d, k)


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
        rows=facts.n_rows if facts.rows else None, sites=facts.sites,
        precision=max(facts.precision, study.precision), cohort=study.cohort, rng=rng,
    )  # fmt: skip
    exact = study.privacy is None and not facts.symmetric
    known = (facts.total, facts.weight) if exact else (None, None)
    solution = yield from under({"preparation": facts.preparation}, solver.solve(problem), progress, *known)
    basis, values = solution.estimate
    missing = k - basis.shape[1]
    if missing > 0:  # the rows have fewer directions than k: the rest is any others, of value zero
        others = orth_against(problem.start, basis)[0]
        basis, values = np.hstack([basis, others[:, :missing]]), np.append(values, np.zeros(missing))
    return replace(solution, estimate=Estimate(basis[:, :k], values[:k]))


def under(
    terms: dict[str, Any],
    solve: Solve[Solution],
    progress: Progress | None = None,
    total: float | None = None,
    weight: float | None = None,
) -> Solve[Solution]:
    """Name the study's terms and scale in every question, so that a site which lost its state can restart, and masked
    sums know what they add up to; note progress."""
    value = None
    while True:
        try:
            question = solve.send(value)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        value = yield replace(question, terms=terms, total=total, weight=weight)
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
    check_sums(study, solver)
    if symmetric and NAMES[type(solver)] == "dr-svd":
        raise ConfigurationError("dr-svd multiplies rows, of which shares of a symmetric matrix have none; take krylov")
    if study.cohort.sample != "uniform" and NAMES[type(solver)] != "fedpower":
        raise ConfigurationError("sampling by size with replacement is FedPower's scheme 1; take solver fedpower")
    return solver


def check_sums(study: Study, solver: str | Solver) -> None:
    """Refuse a solver that must see single replies in a study that shows sums only."""
    if study.secure is None:
        return
    check_sums_only(solver)
    published = study.privacy is not None and study.privacy.calibration == "published"
    if published and (solver == "fedpower" or isinstance(solver, FedPower)):
        raise ConfigurationError(
            "FedPower's published noise is larger the larger a site is, and numbers that are added up under masks have "
            "one scale; take calibration = 'tight', or leave out secure sums"
        )


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
