"""A study of labelled rows: agree on a model, begin, let a learner run, measure what came of it.

`Learning` is all that determines the answer but for the data; `solve_learning` is the coordinator's whole half, and
`learn` runs it: the counterparts of `Study`, `solve_study` and `run`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedspan.data import Preparation, Source
from fedspan.data.arrays import ArraySource
from fedspan.data.labelled import Labelled
from fedspan.encoding import Array, Plain, digest
from fedspan.engines import Engine, get_engine
from fedspan.errors import ConfigurationError, DataError, FileError
from fedspan.layers import OnRound, RoundRecord
from fedspan.learners import FedRep, Learned, Task
from fedspan.learners.site import agree, ask_all, describe, evaluate, first_parameters, own_at
from fedspan.privacy.gaussian import GaussianPrivacy
from fedspan.rounds import Cohort, Site, Solve, drive
from fedspan.run import Result, assemble, run
from fedspan.run_folder import contents, discard, open_journal
from fedspan.sites import open_sites
from fedspan.study import Study


@dataclass(frozen=True, kw_only=True)
class Learning:
    """What is learnt, and how.

    ``model`` is a spec without what the data say (features, classes) and what the learner says (whose part is whose).
    ``start`` is ``"random"``, ``"moments"`` (Alg. 2, lines 2-3; linear models of one number) or parameters.
    """

    learner: Any = field(default_factory=FedRep)
    model: dict[str, Plain] = field(default_factory=lambda: {"kind": "linear", "components": 2})
    start: str | Array = "random"
    cohort: Cohort = field(default_factory=Cohort)
    seed: int = 0
    evaluate_every: int | None = None
    """Measure all sites' test rows before each so-many-th of the learner's rounds (None: at the end only)."""
    tune: int = 0
    """Epochs of descent at each site before it is measured, in what is its own (all of it, where nothing is)."""

    def fingerprint(self, sources: Mapping[str, Labelled]) -> dict[str, Any]:
        """Return what a resumed run must agree on, as plain data."""
        start = self.start if isinstance(self.start, str) else digest(self.start)
        return {
            "learner": described(self.learner), "model": self.model, "start": start, "cohort": asdict(self.cohort),
            "seed": self.seed, "evaluate_every": self.evaluate_every, "tune": self.tune,
            "sites": {name: list(source.shape) for name, source in sorted(sources.items())},
        }  # fmt: skip


def described(settings: Any) -> Any:
    """Return settings, and settings in them, as plain data.

    >>> described(FedRep(rounds=3))["rounds"]
    3
    """
    if not is_dataclass(settings):
        return settings
    return {"": type(settings).__name__} | {key: described(value) for key, value in vars(settings).items()}


@dataclass(frozen=True)
class LearnedModel:
    """What a run learnt, and what it took."""

    shared: Array
    heads: dict[str, Array]
    """Each site's own parameters, read in this process: they did not leave their sites."""
    agreed: dict[str, Plain]
    """The model, its classes and the seed of first parameters, as all sites keep them."""
    described: dict[str, dict[str, Any]]
    """Rows, columns and classes of each site."""
    learned: Learned
    scores: dict[str, dict[str, Any]]
    """How well each site's test rows were predicted at the end."""
    curve: list[tuple[RoundRecord, dict[str, dict[str, Any]]]]
    """The same along the run, each with the record of the round that measured it."""
    history: list[RoundRecord]
    diverged: dict[str, int]
    """How often a site's parameters were no longer finite numbers, where they were."""
    start: Result | None = None
    """The run that found the start, for ``start="moments"``."""


def part_of(learner: Any) -> Any:
    """Return the learner itself, or the one in its stages: what says whose part of the model is whose."""
    return part_of(learner.stage) if hasattr(learner, "stage") else learner


def solve_learning(study: Learning, shared: Array | None, measured: list[dict[str, Any]]) -> Solve[tuple[Any, ...]]:
    """The coordinator's whole half: what the sites have, what they agree on, the learner's rounds, the measuring."""
    told = yield from ask_all(describe)
    agreed = agreement(study, told)
    yield from ask_all(agree, agreed)
    if shared is None:
        shared = first_parameters(agreed)[0]
    rng = np.random.default_rng([study.seed, 1])
    task = Task(shared, agreed["model"], len(told), seed=study.seed, cohort=study.cohort, rng=rng)
    learned: Learned = yield from _measuring(study.learner.solve(task), study, agreed, measured)
    measured.append((yield from ask_all(evaluate, _measure(study, learned.shared))))
    return learned, agreed, told


def agreement(study: Learning, told: Mapping[str, dict[str, Any]]) -> dict[str, Plain]:
    """Return what all sites keep: the model's whole spec, the classes, the seed. Refuse sites that do not fit."""
    widths = {name: site["features"] for name, site in told.items()}
    if len(set(widths.values())) > 1:
        odd = min(widths, key=lambda name: (list(widths.values()).count(widths[name]), name))
        raise DataError(f"site {odd!r} has {widths[odd]} columns, others {max(set(widths.values()) - {widths[odd]})}")
    numbers = [name for name, site in told.items() if site["classes"] is None]
    if numbers and len(numbers) < len(told):
        raise DataError(f"y is numbers at {numbers[:5]} and classes at other sites; give all the same kind")
    classes = None if numbers else sorted({label for site in told.values() for label in site["classes"]})
    learner = part_of(study.learner)
    spec = {
        **study.model,
        "features": next(iter(widths.values())),
        "own": learner.own,
        "head_layers": learner.head_layers,
    }
    if spec.get("kind") == "linear":
        spec |= {"outputs": 1 if classes is None else len(classes), "classes": classes is not None}
    elif classes is None:
        raise DataError("networks predict classes, and y is numbers with a fraction; take model kind 'linear'")
    else:
        spec |= {"classes": len(classes)}
    return {"model": spec, "classes": classes, "seed": study.seed}


def _measure(study: Learning, shared: Array) -> dict[str, Plain]:
    learner = part_of(study.learner)
    if not study.tune:
        return {"shared": shared}
    part = "both" if learner.own == "none" else "own"
    return {"shared": shared, "part": part, "tune": list(learner.tuning._replace(epochs=study.tune))}


def _measuring(
    solve: Solve[Learned], study: Learning, agreed: dict[str, Plain], measured: list[dict[str, Any]]
) -> Solve[Learned]:
    """Name in every question what a site that lost its state goes on from; measure before every so-many-th round."""
    terms, value, count = {"learning": agreed}, None, 0
    while True:
        try:
            question = solve.send(value)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        if study.evaluate_every and question.estimate is not None and count % study.evaluate_every == 0:
            asked = _evaluation(study, question.estimate, terms)
            measured.append((yield asked))
        count += question.estimate is not None
        value = yield replace(question, terms=terms)


def _evaluation(study: Learning, shared: Array, terms: dict[str, Plain]) -> Any:
    asked = next(ask_all(evaluate, _measure(study, shared)))
    return replace(asked, terms=terms)


def learn(
    study: Learning,
    sources: Mapping[str, Labelled],
    *,
    engine: str | Engine | None = None,
    folder: Path | None = None,
    resume: bool = False,
    privacy: GaussianPrivacy | None = None,
    watchers: Sequence[OnRound] = (),
) -> LearnedModel:
    """Run a study of labelled rows. ``privacy`` covers the method-of-moments start, and nothing else."""
    if not sources:
        raise ConfigurationError("a study needs at least one site, got none")
    start, shared = None, None
    if isinstance(study.start, str) and study.start == "moments":
        start = moments_start(study, sources, engine=engine, privacy=privacy, watchers=watchers)
        shared = start.estimate.basis
    elif not isinstance(study.start, str):
        shared = np.asarray(study.start)
    before = None if folder is None else contents(folder)
    journal = None if folder is None else open_journal(folder, study.fingerprint(sources), "rounds", resume=resume)
    sites = open_sites(sources, seed=study.seed, folder=None if folder is None else folder / "sites")
    history: list[RoundRecord] = []
    measured: list[dict[str, Any]] = []
    solve = assemble(
        solve_learning(study, shared, measured), journal, None, None, [lambda r, _: history.append(r), *watchers]
    )
    try:
        learned, agreed, told = drive(solve, get_engine(engine)(sites, study.seed))
    except (ConfigurationError, DataError, FileError):
        if folder is not None and not resume:
            discard(folder, before)
        raise
    evaluations = [record for record in history if record.step == evaluate.name]
    return LearnedModel(
        learned.shared, {site.id: own_of(site) for site in sites}, agreed, told, learned, measured[-1],
        list(zip(evaluations, measured, strict=True)), history,
        {site.id: int(n) for site in sites if (n := site.state.get("diverged", 0))}, start,
    )  # fmt: skip


def own_of(site: Site) -> Array:
    """Return a site's own parameters as it left them."""
    site.state = site.memory.versions[0][1]
    return own_at(site)


def moments_start(
    study: Learning, sources: Mapping[str, Labelled], *, engine: Any = None, privacy: GaussianPrivacy | None = None,
    watchers: Sequence[OnRound] = (),
) -> Result:  # fmt: skip
    """Find the leading k eigenvectors of the sum of P_i = sum of y^2 x x' (Alg. 2, lines 2-3).

    P_i is the Gram matrix of the rows y x, so any solver finds them and any privacy policy covers them; no d x d
    matrix need be formed.
    """
    rows: dict[str, Source] = {}
    for name, source in sources.items():
        if source.is_classes:
            raise ConfigurationError(f"the method of moments needs y to be numbers; site {name!r} has classes")
        rows[name] = ArraySource(source.X * source.y[:, None].astype(source.X.dtype))
    moments = Study(
        n_components=int(study.model["components"]), solver="auto", preparation=Preparation(center=False),
        seed=study.seed, privacy=privacy,
    )  # fmt: skip
    return run(moments, rows, engine=engine, watchers=watchers)


__all__ = ["LearnedModel", "Learning", "agreement", "described", "learn", "moments_start", "solve_learning"]
