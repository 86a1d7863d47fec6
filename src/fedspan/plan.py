"""What a study will ask of its sites, before it touches their data.

The study is driven as it would be, with tolerances at zero so that the whole budget shows, but on stand-ins:
the set-up rounds see sources of the right shape and columns without rows, and the solver's rounds a diagonal
matrix that multiplies at no cost. Beyond a thousand features the stand-in is smaller than the data and the
sizes of messages are scaled up, so that a plan for a million features is as quick as one for ten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from fedspan.agreed_sums import fewest_in_sum
from fedspan.data import Facts, Source
from fedspan.data.preprocess import set_up
from fedspan.encoding import Plain, payload_bytes
from fedspan.engines import InProcess
from fedspan.layers import declared_bounds
from fedspan.plan_stand_ins import Diagonal, Header, Priced
from fedspan.privacy.gaussian import GaussianPrivacy
from fedspan.privacy.guarantee import Guarantee, guarantee
from fedspan.privacy.releases import Releases
from fedspan.privacy.terms import check_terms, set_up_for, terms_of
from fedspan.rounds import Gather, Mean, Merge, Reply, Round, Site, Solve, drive, numbered
from fedspan.secure import SumTerms
from fedspan.secure.cost import Asked, SumCost, sum_cost
from fedspan.solvers import Solver
from fedspan.study import Study, check_private, check_rank, check_sums, resolve_private, resolve_solver, solve_rank

STAND_IN = 1024
"""Up to so many features the stand-in is as wide as the data."""


@dataclass(frozen=True)
class PlannedRound:
    """One round as it will be asked; bytes are of the numbers and texts in it."""

    step: str
    setup: bool
    sites: int
    gathered: bool
    """Whether the coordinator sees each site's reply, rather than their sum."""
    up: int
    """Bytes from a site, the largest of them."""
    down: int
    """Bytes to each site."""
    bytes_up: int
    """From all sites."""
    bytes_down: int


@dataclass(frozen=True)
class PlannedRounds:
    """The rounds of a study: as many as its budget allows, so never fewer than it will take."""

    rounds: list[PlannedRound]

    @property
    def bytes_up(self) -> int:
        """Bytes from all sites in all rounds."""
        return sum(r.bytes_up for r in self.rounds)

    @property
    def bytes_down(self) -> int:
        """Bytes to all sites in all rounds."""
        return sum(r.bytes_down for r in self.rounds)


@dataclass(frozen=True)
class PlannedMasks:
    """The secure sums of a study: the same figures in every round."""

    sites: int
    """Asked in a round."""
    neighbours: int
    """With how many others each one shares masks."""
    holders_needed: int
    """How many of those who hold shares of a secret give it back."""
    fewest: int
    """Sites in a sum at least, where all that are asked are different: fewer, and the round is asked again."""
    may_drop_out: int
    """Of the sites asked, so many may be missing from a sum."""
    noise: float | None
    """With shares of noise: the noise on a sum of all sites, over that of one party who adds it alone."""
    warning: str | None = None
    """What sums of different rounds tell together, where it is more."""


@dataclass(frozen=True)
class Plan(PlannedRounds):
    """The plan of a study of components."""

    solver: Solver
    n_components: int
    first_rank_only: bool
    """True where the study chooses the rank itself: this is its first try, larger ones may follow."""
    features: int
    rows: dict[str, int]
    privacy: Guarantee | None = None
    """What the study will promise, and the part of the budget and the noise of each release."""
    masks: PlannedMasks | None = None
    """How its sums are made secure, where they are."""

    @property
    def site_memory(self) -> int:
        """About what a site needs beside its data: the largest question and answer."""
        return max(r.up + r.down for r in self.rounds)

    @property
    def coordinator_memory(self) -> int:
        """About what the coordinator needs: the basis it keeps, and the largest aggregate."""
        block = 8 * self.features * self.solver.rank(self.n_components, self.features)
        basis = 2 * block * getattr(self.solver, "max_basis", 2)
        return basis + max(r.bytes_up if r.gathered else r.up for r in self.rounds)


def make_plan(study: Study, sources: Mapping[str, Source], *, coordinator: bool = True) -> Plan:
    """List the rounds that a study will ask of these sources; of their data only shapes and columns are seen.

    Without a ``coordinator`` no one masks replies: noise that neighbours cancel hides them (`fedspan.gossip_plan`).

    >>> from fedspan.data import open_source
    >>> from fedspan.solvers import Power
    >>> plan = make_plan(Study(n_components=2, solver=Power(rounds=3)), {"a": open_source(np.eye(9, 6))})
    >>> [(r.step, r.up, r.down) for r in plan.rounds if not r.setup]
    [('gram.multiply', 96, 96), ('gram.multiply', 96, 96), ('gram.multiply', 96, 96)]
    """
    if study.privacy is not None:
        check_terms(study.privacy, study.preparation, study.cohort, len(sources))
    masks = study.masks(len(sources)) if coordinator else None
    check_sums(study, study.solver)
    engine = _Counting({name: Header(source) for name, source in sources.items()}, study.seed, study.privacy, masks)
    if engine.releases is not None and engine.releases.privacy.trust == "distributed":
        engine.releases.pairwise = not coordinator
    facts, solver, k = drive(numbered(_rounds(study, engine)), engine)
    rows = {name: source.shape[0] for name, source in sources.items()}
    promised = None if engine.releases is None else guarantee(engine.releases)
    first_only = not isinstance(study.n_components, int) and study.privacy is None
    planned = None if masks is None else _planned_masks(study, masks, len(sources))
    return Plan(engine.planned, solver, k, first_only, facts.features, rows, promised, planned)


def _planned_masks(study: Study, terms: SumTerms, sites: int) -> PlannedMasks:
    drawn, privacy, noise = study.drawn(sites), study.privacy, None
    degree, fewest = terms.rules.neighbours(drawn), fewest_in_sum(terms, study.cohort, drawn)
    if privacy is not None and privacy.trust == "distributed":
        noise = float(np.sqrt(drawn / (privacy.honest or sites)))
    needed, told = terms.rules.holders_needed(degree), study.telling_sums(sites)
    return PlannedMasks(drawn, degree, needed, fewest, drawn - fewest, noise, told)


def _rounds(study: Study, engine: _Counting) -> Solve[tuple[Facts, Solver, int]]:
    """`fedspan.study.solve_study` for one rank, on stand-ins."""
    privacy, chosen = study.privacy, []

    def agree(d: int, total: float, rows: dict[str, int | None]) -> dict[str, Any]:
        assert privacy is not None
        k = study.n_components if isinstance(study.n_components, int) else min(16, d)
        stated = float(sum(source.shape[0] for source in engine.headers.values()))  # the study's own files say it here
        chosen.append(resolve_private(study, privacy, d, k, stated, len(rows)))
        return terms_of(chosen[0], privacy, study.cohort, rows)

    asked = (
        None
        if privacy is None
        else replace(
            set_up_for(privacy, agree, partial(check_private, study, privacy)),
            tighten=partial(_may_tighten, privacy),
        )
    )
    facts = yield from set_up(study.preparation, asked)
    if privacy is None:
        facts = replace(facts, rows={name: source.shape[0] for name, source in engine.headers.items()})
        check_rank(study.n_components, facts)
    d = facts.features
    k = study.n_components if isinstance(study.n_components, int) else min(16, d, facts.n_rows)
    if privacy is not None and not isinstance(study.n_components, int):
        k = min(16, d)
    solver = chosen[0] if chosen else resolve_solver(study, d, k)
    width = _width(solver, k, d)
    engine.stand_in(width, {width: d, _triangle(width): _triangle(d), solver.rank(k, width): solver.rank(k, d)})
    smaller = replace(facts, features=width, weight=float(facts.n_rows))
    yield from solve_rank(study, smaller, _whole_budget(solver), k, None)
    return facts, solver, k


def _may_tighten(privacy: GaussianPrivacy, total: float, rows: float, preparation: dict[str, Any], sites: int) -> Any:
    """Return the terms' own norm where a run may clip rows further: a plan counts that round too."""
    if not privacy.may_tighten:
        return None
    return privacy.bounds_under(preparation, preparation["features"]).norm


def _width(solver: Solver, k: int, d: int) -> int:
    """Return the stand-in's width: the data's, or one in which the basis at the coordinator has room."""
    room = (getattr(solver, "max_basis", 0) + 2) * solver.rank(k, min(d, STAND_IN))
    return min(d, max(STAND_IN, room))


def _whole_budget(solver: Any) -> Solver:
    untested = {field.name: 0.0 for field in fields(solver) if field.name in ("tol", "stall")}
    if hasattr(solver, "stage"):
        untested["stage"] = _whole_budget(solver.stage)  # type: ignore[assignment]
    return replace(solver, **untested)  # type: ignore[no-any-return]


def _triangle(d: int) -> int:
    return d * (d + 1) // 2


class _Counting(InProcess):
    """The in-process engine on stand-ins, noting what each round sends.

    Sites that answer alike are asked once, so that thousands cost no more than one.
    """

    def __init__(
        self,
        headers: Mapping[str, Source],
        seed: int,
        privacy: GaussianPrivacy | None = None,
        masks: SumTerms | None = None,
    ) -> None:
        super().__init__([Site(name, source) for name, source in headers.items()], seed)
        self.headers = headers
        self.releases = None if privacy is None else Releases(privacy, run="plan", who="", sites=len(headers))
        self._policy = None if self.releases is None else Priced(self.releases)
        self.planned: list[PlannedRound] = []
        self._data: dict[str, Diagonal] = {}
        self._swap: dict[int, int] = {}
        self._up: list[int] = []
        self._masks = masks
        self._numbers: dict[str, int] = {}
        """How many numbers each part of the last reply has."""
        self._shared: tuple[int, Reply] | None = None

    def stand_in(self, width: int, swap: dict[int, int]) -> None:
        """From here on, sites hold matrices of this width; ``swap`` says as what lengths count."""
        sites = enumerate(self._sites.items())
        self._data = {name: Diagonal(site.source.shape[0], width, i) for i, (name, site) in sites}
        self._swap = {small: large for small, large in swap.items() if small != large}

    def __call__(self, question: Round) -> Any:
        self._up = []
        outcome = super().__call__(question)
        down, drawn = self._size(question.message), self.draw(question)
        cost = SumCost(max(self._up), down, sum(self._up), down * len(drawn))
        if self._masks is not None and not question.step.public:
            cost = self._masked(self._masks, question, drawn, outcome.sites)
        self.planned.append(
            PlannedRound(
                question.step.name, question.step.setup, len(drawn), isinstance(question.reduce, Gather | Merge),
                cost.up, cost.down, cost.bytes_up, cost.bytes_down,
            )
        )  # fmt: skip
        return outcome

    def _masked(self, terms: SumTerms, question: Round, drawn: dict[str, int], alive: list[str]) -> SumCost:
        """Return what the same round costs as a secure sum; where no bound is declared, it is summed first."""
        mean, names = isinstance(question.reduce, Mean), sorted(drawn)
        repeated = sum(times != 1 for times in drawn.values())
        asked = Asked(question.step.name, self._size(question.message), self._numbers, mean, repeated)
        cost = sum_cost(terms.rules, names, alive, asked, "value", scaled=not terms.noised)
        if terms.noised or declared_bounds(question) is not None:
            return cost
        return cost + sum_cost(terms.rules, names, alive, asked, "bound", scaled=False)

    def ask(self, name: str, question: Round) -> Reply:
        if self._shared is not None and self._shared[0] == question.number:
            reply = self._shared[1]
        else:
            data = self._data.get(name)
            source = self._sites[name].source if data is None else data
            stand_in = Site(name, source, policy=self._policy)
            stand_in.asked, stand_in.masks = question, self._masks
            if self.releases is not None and question.step.name == "data.prepare":
                self.releases.accept(question.message["privacy"])
            reply = question.step.run(stand_in, question.message)
            if data is not None and not data.own_answer:
                self._shared = question.number, reply
        self._up.append(self._size(reply.value))
        value = reply.value if isinstance(reply.value, dict) else {"value": reply.value}
        self._numbers = {key: self._size(part) // getattr(part, "itemsize", 8) for key, part in value.items()}
        return reply

    def _size(self, value: Plain) -> int:
        """Count bytes as `payload_bytes` does, for data as wide as the study's."""
        if isinstance(value, np.ndarray):
            return value.itemsize * int(np.prod([self._swap.get(n, n) for n in value.shape], dtype=object))
        if isinstance(value, dict):
            return sum(map(self._size, value.values()))
        if isinstance(value, list | tuple):
            return sum(map(self._size, value))
        return payload_bytes(value)
