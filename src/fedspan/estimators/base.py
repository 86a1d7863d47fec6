"""What the estimators share: opening sites, running the study, transforming, saving."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import validate_data

from fedspan.data import Preparation, Source, open_source
from fedspan.errors import ConfigurationError, FedspanError
from fedspan.estimators.decomposition import Decomposition
from fedspan.estimators.sites_argument import Sites, by_name, has_names, name_sites
from fedspan.layers import OnRound
from fedspan.privacy.guarantee import transcript_warning
from fedspan.progress import round_printer
from fedspan.rounds import Cohort
from fedspan.run import Result, Study, run
from fedspan.solvers import NAMES


class FederatedDecomposition(Decomposition, ABC):
    """A federated decomposition; `FederatedPCA` and `FederatedTruncatedSVD` say which."""

    @abstractmethod
    def _study(self) -> Study:
        """Return the study that the parameters describe."""

    def fit(self, sites: Sites, y: Any = None, sample_weight: Any = None, site_weight: Any = None) -> Self:
        """Fit to the sites' data without pooling it.

        Parameters
        ----------
        sites
            A list, or a dict by name, whose items are 2-D arrays, sparse matrices, frames, Sources or paths: one
            site each. Anything else is validated as one array: a federation of one site.
        y
            Ignored.
        sample_weight
            A weight for each row: an array for one site, else a list or dict of arrays as ``sites`` is.
        site_weight
            A factor for each site: a list or dict as ``sites`` is.
        """
        study = self._study()
        sources = self._open(sites, sample_weight, site_weight)
        watchers: list[OnRound] = [round_printer()] if self.verbose else []
        on_round = self.on_round
        if on_round is not None:  # the solver's rounds: set-up rounds have no estimate to show
            watchers.append(lambda record, estimate: None if estimate is None else on_round(record, estimate))
        folder = None if self.run_folder is None else Path(self.run_folder)
        if self.record == "transcript" and folder is not None:
            warnings.warn(transcript_warning(self.privacy), UserWarning, stacklevel=2)
        result = run(
            study, sources, engine=self.engine, folder=folder, resume=self.resume, record=self.record,
            watchers=watchers,
        )  # fmt: skip
        self._learn(result, np.result_type(*(source.dtype for source in sources.values())))
        if result.stopped is not None:
            warnings.warn(f"the run stopped at its last estimate: {result.stopped}", UserWarning, stacklevel=2)
        if self.converged_ is False and study.cohort.is_full and result.stopped is None:  # sampling noise never settles
            warnings.warn(
                f"{NAMES[type(self.solver_)]} used its budget, {self.n_rounds_} rounds, and missed its tolerance; "
                f"give it more rounds, a larger tol (0: no test), or take another solver",
                ConvergenceWarning,
                stacklevel=2,
            )
        if hasattr(self, "feature_names_in_") and not has_names(sites):
            del self.feature_names_in_
        return self

    def _open(self, sites: Sites, sample_weight: Any, site_weight: Any) -> dict[str, Source]:
        named = name_sites(sites)
        if named is None:
            if site_weight is not None:
                raise ConfigurationError("site_weight weighs sites against each other; one array is one site")
            X = validate_data(
                self,
                sites,
                dtype=[np.float64, np.float32],
                accept_sparse="csr",
                ensure_min_samples=2,
                copy=False,
                **self._gaps(),
            )
            if sample_weight is not None:
                sample_weight = np.broadcast_to(np.asarray(sample_weight, dtype=float), X.shape[:1])
            return {"site0": open_source(X, weights=sample_weight)}
        if hasattr(self, "feature_names_in_"):  # of an earlier fit
            del self.feature_names_in_
        rows, factors = by_name(sample_weight, named), by_name(site_weight, named)
        return {
            name: open_named(name, data, weights=rows.get(name), site_weight=factors.get(name, 1.0))
            for name, data in named.items()
        }

    def _learn(self, result: Result, dtype: np.dtype[Any]) -> None:
        facts, (basis, values) = result.facts, result.estimate
        self.components_ = np.ascontiguousarray(basis.T.astype(dtype))
        self.singular_values_ = values if facts.symmetric else np.sqrt(values)
        self.n_components_ = len(values)
        self.n_features_in_ = facts.features
        if facts.columns is not None and not hasattr(self, "feature_names_in_"):
            self.feature_names_in_ = np.array(facts.columns, dtype=object)
        self.n_samples_seen_ = facts.n_rows
        self.scale_ = facts.scale
        self.fill_ = facts.column_mean if self._fills else None
        self.n_rounds_, self.n_setup_rounds_ = result.rounds, result.setup_rounds
        self.bytes_up_, self.bytes_down_ = result.bytes_up, result.bytes_down
        self.converged_, self.solver_ = result.converged, result.solver
        self.history_ = result.history
        self.missing_ = facts.missing
        self.privacy_spent_ = None if result.privacy is None else result.privacy.as_plain()
        for name in ("nodes_", "disagreement_"):  # of an earlier fit
            self.__dict__.pop(name, None)
        if result.nodes is not None:
            self.nodes_ = {name: found.basis.T for name, found in result.nodes.estimates.items()}
            self.disagreement_ = result.nodes.disagreement
        self.releases_ = [(r.round, r.step, r.aggregate, r.sites, r.bytes_up) for r in result.history]


def open_named(name: str, data: Any, **options: Any) -> Source:
    """Open one site's data; where that fails, say which site's."""
    try:
        return open_source(data, **options)
    except FedspanError as error:
        raise type(error)(f"site {name!r}: {error}") from error


def make_study(estimator: Any, preparation: Preparation) -> Study:
    """Return the study an estimator's parameters describe."""
    wanted = estimator.n_components
    if isinstance(wanted, Integral):
        wanted = int(wanted)
    elif isinstance(wanted, Real):
        wanted = float(wanted)
    return Study(
        n_components=wanted, solver=estimator.solver, preparation=preparation,
        cohort=cohort_of(estimator.participation), seed=seed_of(estimator.random_state), init=estimator.init,
        privacy=estimator.privacy, secure=estimator.secure,
    )  # fmt: skip


def cohort_of(participation: Any) -> Cohort:
    """Return the cohort that a parameter ``participation`` means: all sites, a fraction of them, or as it says."""
    if participation is None:
        return Cohort()
    return Cohort(fraction=float(participation)) if isinstance(participation, Real) else participation


def seed_of(random_state: Any) -> int:
    """Return the run's seed."""
    if isinstance(random_state, bool) or not isinstance(random_state, Integral) or random_state < 0:
        raise ConfigurationError(f"random_state is an integer, 0 or more, the run's seed; got {random_state!r}")
    return int(random_state)
