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
from fedspan.errors import ConfigurationError, ConvergenceError, DataError, FileError, few, nearest
from fedspan.layers import OnRound, RoundRecord
from fedspan.learners import FedRep, Learned, Task
from fedspan.learners.agreement import agreement, part_of
from fedspan.learners.choices import model_spec
from fedspan.learners.site import agree, ask_all, describe, evaluate, first_parameters, own_at
from fedspan.privacy.gaussian import GaussianPrivacy
from fedspan.rounds import Cohort, Round, Site, Solve, drive
from fedspan.run import Result, assemble, run
from fedspan.run_folder import contents, discard, open_journal
from fedspan.sites import open_sites
from fedspan.solvers.settings import settle, whole
from fedspan.study import Study

START = "start"
"""The folder, in a run's, of the run that found its start."""
STARTS = ("random", "moments")


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
    """Epochs of descent at each site before it is measured, in what is its own (all of it, where nothing is).

    What comes of the last of them stays at the site, which predicts with it. No time is charged for any of them."""

    def __post_init__(self) -> None:
        settle(self, model=model_spec(self.model), tune=whole("tune", self.tune, "a number of epochs"))
        every = self.evaluate_every
        if every is not None and whole("evaluate_every", every, "a number of rounds, or None") < 1:
            raise ConfigurationError(f"evaluate_every is at least 1, or None to measure at the end only; got {every}")
        if self.tune < 0:
            raise ConfigurationError(f"tune is a number of epochs, 0 or more; got {self.tune}")
        if self.cohort.sample != "uniform":
            raise ConfigurationError(
                "sampling by size with replacement is FedPower's scheme 1; learners take a uniform sample"
            )
        if isinstance(self.start, str):
            self._check_start(self.start)

    def _check_start(self, start: str) -> None:
        if start not in STARTS:
            raise ConfigurationError(f"start is {start!r}; {nearest(start, STARTS)}, or an array of parameters")
        if start == "moments" and (self.model["kind"] != "linear" or part_of(self.learner).own != "head"):
            raise ConfigurationError(
                'start = "moments" finds the basis of a linear model whose heads are the sites\' own (Alg. 2); take '
                'model "linear" with learner "fedrep" or doubling around it, or start = "random"'
            )

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
    """What each site predicts with beside the shared parameters, read in this process: it did not leave the site.

    Its own part, as stored or as tuned at the end; where nothing is its own, all of the model as tuned, or nothing."""
    agreed: dict[str, Plain]
    """The model, its classes and the seed of first parameters, as all sites keep them."""
    sites: dict[str, dict[str, Any]]
    """Rows, columns and classes of each site."""
    learned: Learned
    scores: dict[str, dict[str, Any]]
    """How well each site's test rows were predicted at the end."""
    curve: list[tuple[RoundRecord, dict[str, dict[str, Any]]]]
    """The same along the run, each with the record of the round that measured it."""
    history: list[RoundRecord]
    diverged: dict[str, int]
    """How often the learner diverged at a site, whose reply was then left out; where it did."""
    unheard: list[str]
    """Sites of no reply that counted, whose own part is still the one that everyone begins with."""
    start: Result | None = None
    """The run that found the start, for ``start="moments"``."""

    @property
    def rounds(self) -> int:
        """The learner's rounds."""
        return sum(not r.setup for r in self.history)

    @property
    def setup_rounds(self) -> int:
        """Rounds that agreed, measured, or found the start."""
        return sum(r.setup for r in self.history) + (0 if self.start is None else len(self.start.history))

    @property
    def clock(self) -> float | None:
        """How long the run took by the engine's own time, its start included; None where it keeps none."""
        own = self.history[-1].clock
        return (own + (0.0 if self.start is None else self.start.clock or 0.0)) or None

    @property
    def bytes_up(self) -> int:
        """Bytes from the sites, all rounds, those of the start too."""
        return sum(r.bytes_up for r in self.history) + (0 if self.start is None else self.start.bytes_up)

    @property
    def bytes_down(self) -> int:
        """Bytes to the sites, all rounds, those of the start too."""
        return sum(r.bytes_down for r in self.history) + (0 if self.start is None else self.start.bytes_down)


def solve_learning(study: Learning, shared: Array | None, measured: list[dict[str, Any]]) -> Solve[tuple[Any, ...]]:
    """The coordinator's whole half: what the sites have, what they agree on, the learner's rounds, the measuring."""
    told = yield from ask_all(describe)
    agreed = agreement(told, model=study.model, learner=study.learner, seed=study.seed)
    yield from ask_all(agree, agreed)
    first = first_parameters(agreed)[0]
    if shared is None:
        shared = first
    elif shared.shape != first.shape:
        raise ConfigurationError(f"start has shape {shared.shape}, and this model's shared part {first.shape}")
    rng = np.random.default_rng([study.seed, 1])
    task = Task(shared, agreed["model"], len(told), seed=study.seed, cohort=study.cohort, rng=rng)
    learned: Learned = yield from _measuring(study.learner.solve(task), study, agreed, measured)
    measured.append((yield _evaluation(study, learned.shared, agreed, keep=True)))
    return learned, agreed, told


def _measuring(
    solve: Solve[Learned], study: Learning, agreed: dict[str, Plain], measured: list[dict[str, Any]]
) -> Solve[Learned]:
    """Name in every question what a site that lost its state goes on from; measure before every so-many-th round."""
    value, count = None, 0
    while True:
        try:
            question = solve.send(value)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        if study.evaluate_every and question.estimate is not None and count % study.evaluate_every == 0:
            measured.append((yield _evaluation(study, question.estimate, agreed)))
        count += question.estimate is not None
        value = yield replace(question, terms={"learning": agreed})


def _evaluation(study: Learning, shared: Array, agreed: dict[str, Plain], *, keep: bool = False) -> Round:
    """Return the question how well each site is predicted."""
    message: dict[str, Plain] = {"shared": shared}
    if study.tune:
        learner = part_of(study.learner)
        how = list(learner.tuning._replace(epochs=study.tune))
        message |= {"part": "both" if learner.own == "none" else "own", "tune": how, "keep": keep}
    return replace(next(ask_all(evaluate, message)), terms={"learning": agreed})


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
    """Run a study of labelled rows. ``privacy`` covers the method-of-moments start, and nothing else.

    With a folder, every round is recorded there and a stopped run can be resumed; its start has a folder in it.
    """
    if not sources:
        raise ConfigurationError("a study needs at least one site, got none")
    if privacy is not None:
        check_private_start(study.start, privacy)
    history: list[RoundRecord] = []
    measured: list[dict[str, Any]] = []
    before = None if folder is None else contents(folder)
    terms = {**study.fingerprint(sources), "privacy": None if privacy is None else privacy.as_plain()}
    journal = None if folder is None else open_journal(folder, terms, "rounds", resume=resume)
    start, shared = None, None if isinstance(study.start, str) else np.asarray(study.start)
    sites: list[Site] = []
    try:
        if _by_moments(study):
            start = _moments_in(folder, study, sources, engine, privacy, watchers, resume=resume)
            shared = start.estimate.basis
        sites = open_sites(sources, seed=study.seed, folder=None if folder is None else folder / "sites")
        watching = [lambda r, _: history.append(r), *watchers]
        solve = assemble(solve_learning(study, shared, measured), journal, None, None, watching)
        learned, agreed, told = drive(solve, get_engine(engine)(sites, study.seed))
    except (ConfigurationError, DataError, FileError):
        if folder is not None and not resume:
            discard(folder, before)
        raise
    except ConvergenceError as error:
        names = [site.id for site in sites if _newest(site).get("diverged")]
        raise ConvergenceError(f"{error}. It diverged at {few(names)}") from None
    evaluations = [record for record in history if record.step == evaluate.name]
    return LearnedModel(
        learned.shared, {site.id: kept_at(site) for site in sites}, agreed, told, learned, measured[-1],
        list(zip(evaluations, measured, strict=True)), history,
        {site.id: int(n) for site in sites if (n := site.state.get("diverged", 0))},
        [site.id for site in sites if agreed["model"]["own"] != "none" and not {"own", "tuned"} & set(site.state)],
        start,
    )  # fmt: skip


def kept_at(site: Site) -> Array:
    """Return what a site predicts with beside the shared parameters, as it left it."""
    site.state = _newest(site)
    return np.asarray(site.state["tuned"]) if "tuned" in site.state else own_at(site)


def _newest(site: Site) -> dict[str, Plain]:
    return site.memory.versions[0][1] if site.memory.versions else {}


def check_private_start(start: str | Array, privacy: GaussianPrivacy) -> None:
    """Refuse a privacy that could not be kept: what is told without noise must not be what it hides."""
    if not isinstance(privacy, GaussianPrivacy):
        raise ConfigurationError(f"privacy is a GaussianPrivacy or None, got {privacy!r}")
    if not isinstance(start, str) or start != "moments":
        raise ConfigurationError(
            'privacy covers the method-of-moments start only (Remark 4.11): set start = "moments", or leave privacy '
            "out; what learners send is not noised"
        )
    if not privacy.rows_known:
        raise ConfigurationError(
            f"sites tell their numbers of rows before they learn, and neighbours = {privacy.neighbours!r} would hide "
            f"them; state that they are public with n_public = true"
        )


def _by_moments(study: Learning) -> bool:
    return isinstance(study.start, str) and study.start == "moments"


def _moments_in(
    folder: Path | None, study: Learning, sources: Mapping[str, Labelled], engine: Any,
    privacy: GaussianPrivacy | None, watchers: Sequence[OnRound], *, resume: bool,
) -> Result:  # fmt: skip
    """Find the start in a folder of its own, so that a resumed run has the same one, and no release is made twice."""
    inner = None if folder is None else folder / START
    began = inner is not None and (inner / "terms.json").exists()
    return moments_start(
        study, sources, engine=engine, privacy=privacy, watchers=watchers, folder=inner, resume=resume and began
    )


def moments_start(
    study: Learning, sources: Mapping[str, Labelled], *, engine: Any = None, privacy: GaussianPrivacy | None = None,
    watchers: Sequence[OnRound] = (), folder: Path | None = None, resume: bool = False,
) -> Result:  # fmt: skip
    """Find the leading k eigenvectors of the sum of P_i = sum of y^2 x x' (Alg. 2, lines 2-3).

    P_i is the Gram matrix of the rows y x, so any solver finds them and any privacy policy covers them; no d x d
    matrix need be formed.
    """
    rows: dict[str, Source] = {}
    for name, source in sources.items():
        if study.cohort.only is not None and name not in study.cohort.only:
            continue  # who is not to be asked is not summed, nor charged
        if source.is_classes:
            raise ConfigurationError(f"the method of moments needs y to be numbers; site {name!r} has classes")
        rows[name] = ArraySource(source.X * source.y[:, None].astype(source.X.dtype))
    return run(moments_study(study, privacy), rows, engine=engine, watchers=watchers, folder=folder, resume=resume)


def moments_study(study: Learning, privacy: GaussianPrivacy | None) -> Study:
    """Return the study whose components a linear model begins with."""
    return Study(
        n_components=int(study.model["components"]), solver="auto", preparation=Preparation(center=False),
        seed=study.seed, privacy=privacy,
    )  # fmt: skip
