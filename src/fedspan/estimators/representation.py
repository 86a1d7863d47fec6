"""`FederatedRepresentation`: a representation that all sites share and a head of each one's own, as an estimator."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedspan.data.labelled import Labelled
from fedspan.encoding import Array
from fedspan.estimators.base import cohort_of, seed_of
from fedspan.estimators.labelled_argument import labelled_sites
from fedspan.estimators.predicting import Predicting
from fedspan.estimators.remarks import remarks_on
from fedspan.estimators.site_scores import SiteScores
from fedspan.layers import OnRound
from fedspan.learners.choices import learner_of, model_spec
from fedspan.learners.model import model_of
from fedspan.learning import LearnedModel, Learning, learn
from fedspan.progress import round_printer
from fedspan.rounds import Cohort


class FederatedRepresentation(Predicting):
    """A representation of few numbers that all sites share, and on it a head of each site's own, which stays there.

    Parameters
    ----------
    n_components
        The width of a linear model's representation (None: 2). A network's is that of its layers.
    model
        ``"linear"``, ``"mlp"``, ``"lenet5"``, ``"bilstm"`` (networks need ``fedspan[torch]``), or a dict with the
        ``"kind"`` and settings of it, as in ``{"kind": "mlp", "hidden": [64, 8]}``.
    learner
        ``"fedrep"`` (heads stay at the sites), ``"lg-fedavg"`` (bodies stay), ``"fedavg"``, ``"hf-maml"`` (nothing
        does), ``"flanp"``, ``"lg-flanp"``, ``"doubling"``, or settings from `fedspan.learners`, such as
        ``FedRep(rounds=20)`` or ``Doubling(stage=FedRep())``, with `fedspan.solvers.Doubling`.
    start
        ``"random"``, ``"moments"`` (the method of moments; linear models of one number), or an array.
    privacy
        A `fedspan.privacy.GaussianPrivacy` for the method-of-moments start, and for that only (Remark 4.11 of the
        paper): what sites send while they learn is not noised.
    participation
        A `Cohort`, or the fraction of sites asked in each round.
    engine
        A name or a callable, such as `fedspan.engines.VirtualTime`; by default all sites run in this process.
    random_state
        The run's seed.
    tune
        Epochs of descent at each site before it is measured, in what is its own (where nothing is, in all of the
        model). It predicts with what comes of it. No virtual time is charged for that.
    evaluate_every
        Measure all sites before each so-many-th round, for ``curve_``; None measures at the end only.
    verbose, on_round
        Print a line each round; call ``on_round(record, estimate)`` after each of the learner's rounds, with the
        shared parameters that the round was asked with.
    run_folder, resume
        Where to record the run, so that it can be looked at; go on with the run recorded there.

    Attributes
    ----------
    site_scores_, fairness_
        How well each site's test rows (without any, its training rows) are predicted: a `SiteScores`, which prints as
        a table; and the worst, median and best site with their spread.
    shared_, heads_
        The shared parameters, and what each site in this process predicts with beside them.
    classes_, n_components_, n_features_in_, sites_, joined_
        The classes (None for numbers), the representation's width, the number of columns; rows, columns and classes
        of each site; the sites that joined later.
    single_class_sites_, unseen_labels_, diverged_
        Sites with one class only; test labels that no site had in training, by site; how often the learner diverged
        at a site, whose parameters were then left out.
    history_, curve_, n_rounds_, n_setup_rounds_, bytes_up_, bytes_down_, clock_, converged_, loss_
        What the run took, and its start with it: ``clock_`` in virtual seconds, None where the engine keeps no time.
        ``history_`` has a record for each round but the start's, ``curve_`` the scores along the run.
    start_, privacy_spent_
        What the method-of-moments start took and spent, None without one.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> B = np.linalg.qr(rng.standard_normal((9, 2)))[0]
    >>> def site():
    ...     X = rng.standard_normal((50, 9))
    ...     return X, X @ B @ rng.standard_normal(2)
    >>> sites = {name: site() for name in ("berlin", "lyon", "turin")}
    >>> from fedspan.learners import FedRep
    >>> model = FederatedRepresentation(2, learner=FedRep(rounds=60, rate=0.2, batch=0)).fit(sites)
    >>> model.transform(sites["lyon"][0]).shape
    (50, 2)
    >>> model.score("lyon", *sites["lyon"]) > 0.99
    True
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        model: str | Mapping[str, Any] = "linear",
        learner: Any = "fedrep",
        start: str | Array = "random",
        privacy: Any = None,
        participation: Cohort | float | None = None,
        engine: Any = None,
        random_state: int = 0,
        tune: int = 0,
        evaluate_every: int | None = None,
        verbose: int = 0,
        on_round: OnRound | None = None,
        run_folder: str | Path | None = None,
        resume: bool = False,
    ) -> None:
        self.n_components = n_components
        self.model = model
        self.learner = learner
        self.start = start
        self.privacy = privacy
        self.participation = participation
        self.engine = engine
        self.random_state = random_state
        self.tune = tune
        self.evaluate_every = evaluate_every
        self.verbose = verbose
        self.on_round = on_round
        self.run_folder = run_folder
        self.resume = resume

    def fit(self, sites: Any) -> Self:
        """Learn from the sites' rows without pooling them.

        Parameters
        ----------
        sites
            A dict by name, or a list, of ``(X, y)``, ``(X, y, X_test, y_test)`` or
            `fedspan.data.Labelled`. Floating point ``y`` are numbers; whole numbers and texts are classes.
        """
        study, sources = self._study(), labelled_sites(sites)
        watchers: list[OnRound] = [round_printer()] if self.verbose else []
        on_round = self.on_round
        if on_round is not None:  # set-up and measuring have no estimate to show
            watchers.append(lambda record, estimate: None if estimate is None else on_round(record, estimate))
        folder = None if self.run_folder is None else Path(self.run_folder)
        result = learn(
            study, sources, engine=self.engine, folder=folder, resume=self.resume, privacy=self.privacy,
            watchers=watchers,
        )  # fmt: skip
        self._learn(result, sources)
        for kind, remark in remarks_on(self):
            warnings.warn(remark, kind, stacklevel=2)
        return self

    def _study(self) -> Learning:
        return Learning(
            learner=learner_of(self.learner), model=model_spec(self.model, self.n_components),
            start=self.start if isinstance(self.start, str) else np.asarray(self.start),
            cohort=cohort_of(self.participation), seed=seed_of(self.random_state), tune=self.tune,
            evaluate_every=self.evaluate_every,
        )  # fmt: skip

    def _learn(self, result: LearnedModel, sources: Mapping[str, Labelled]) -> None:
        """Keep what a run learnt."""
        agreed, learned = result.agreed, result.learned
        self.agreed_, self.learner_, self.sites_ = agreed, learner_of(self.learner), dict(result.sites)
        self.shared_ = result.shared
        self.heads_ = {name: own for name, own in result.heads.items() if own.size}
        self.joined_: list[str] = []
        self.classes_ = None if agreed["classes"] is None else np.asarray(agreed["classes"])
        self.n_features_in_ = int(agreed["model"]["features"])
        if agreed["columns"] is not None:
            self.feature_names_in_ = np.array(agreed["columns"], dtype=object)
        elif hasattr(self, "feature_names_in_"):  # of an earlier fit
            del self.feature_names_in_
        row = np.zeros((1, self.n_features_in_))
        self.n_components_ = int(model_of(agreed["model"]).features(self.shared_, self._first()[1], row).shape[1])
        self._measure(result, sources)
        self.diverged_, self.loss_, self.converged_ = result.diverged, learned.loss, learned.converged
        self.history_ = result.history
        self.n_rounds_, self.n_setup_rounds_ = result.rounds, result.setup_rounds
        self.bytes_up_, self.bytes_down_, self.clock_ = result.bytes_up, result.bytes_down, result.clock
        start = result.start
        self.start_ = None if start is None else {
            "solver": type(start.solver).__name__, "rounds": start.rounds, "setup_rounds": start.setup_rounds,
            "bytes_up": start.bytes_up, "bytes_down": start.bytes_down, "clock": start.clock,
        }  # fmt: skip
        self.privacy_spent_ = None if start is None or start.privacy is None else start.privacy.as_plain()

    def _measure(self, result: LearnedModel, sources: Mapping[str, Labelled]) -> None:
        """Keep how well sites are predicted, and which of their labels that cannot be right about."""
        on = {name: "training" if source.test is None else "test" for name, source in sources.items()}
        self.site_scores_ = SiteScores.of(result.scores, on)
        self.fairness_ = self.site_scores_.fairness
        self.curve_ = [
            {
                "round": sum(not r.setup for r in result.history if r.round < record.round), "clock": record.clock,
                "scores": SiteScores.of(told, on),
            }
            for record, told in result.curve
        ]  # fmt: skip
        self.single_class_sites_: list[str] = []
        self.unseen_labels_: dict[str, list[Any]] = {}
        if self.classes_ is None:
            return
        self.single_class_sites_ = [name for name, site in sorted(self.sites_.items()) if len(site["classes"]) == 1]
        known = set(self.classes_.tolist())
        for name, source in sorted(sources.items()):
            unseen = [] if source.test is None else [label for label in source.test.classes if label not in known]
            if unseen:
                self.unseen_labels_[name] = unseen
