"""`FederatedPCA`: principal components, with scikit-learn's manners."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

from fedspan.data import Preparation
from fedspan.encoding import Array
from fedspan.estimators.base import FederatedDecomposition, make_study
from fedspan.estimators.decomposition import carry_names, copy_attributes
from fedspan.layers import OnRound
from fedspan.rounds import Cohort
from fedspan.run import Result, Study
from fedspan.solvers import Solver


class FederatedPCA(FederatedDecomposition):
    """Principal components of rows that stay at their sites.

    Parameters
    ----------
    n_components
        How many: an integer, a fraction of the variance in (0, 1), or ``"auto"`` (a threshold on the values).
    solver
        ``"auto"``, a name (``"krylov"``, ``"power"``, ``"fedpower"``, ``"covariance"``, ``"uda"``, ``"wda"``,
        ``"dr-svd"``) or a settings object from `fedspan.solvers`.
    center, scale
        Subtract the federated mean; divide by the federated standard deviation.
    privacy
        A `fedspan.privacy.GaussianPrivacy`: what the study promises. Noise is then added and charged to a ledger,
        ``rounds`` are chosen from public figures where the solver is given by name, and ``tol`` is ignored.
    secure
        True or a `fedspan.secure.SecureSums`: the coordinator learns sums of the sites' replies, and no single one.
    participation
        A `Cohort`, or the fraction of sites asked in each round.
    engine
        A name or an engine of `fedspan.engines`; by default all sites run in this process. With `Gossip` there is no
        coordinator: ``nodes_`` holds each node's components, ``disagreement_`` how far they are apart.
    random_state
        The run's seed.
    verbose, on_round
        Print a line each round; call ``on_round(record, estimate)`` after each of the solver's rounds, with the
        orthonormal basis that the round was asked with.
    run_folder, resume
        Where to record the run, so that it can be looked at; go on with the run recorded there.
    record
        What the run folder keeps: ``"rounds"``, or ``"transcript"`` for each site's releases too. Those are then to be
        protected as the releases are.
    init
        A d x k basis to start from.
    whiten
        Scale scores to unit variance.
    columns, missing
        How columns are aligned (``"strict"``, ``"intersect"``, ``"union-zero"``) and gaps are met (``"error"``,
        ``"mean"``).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> north, south = rng.standard_normal((50, 5)), rng.standard_normal((70, 5))
    >>> pca = FederatedPCA(n_components=2).fit({"north": north, "south": south})
    >>> pca.transform(north).shape
    (50, 2)
    >>> pca.n_samples_seen_
    120
    """

    def __init__(
        self,
        n_components: int | float | str = 10,
        *,
        solver: str | Solver = "krylov",
        center: bool = True,
        scale: bool = False,
        privacy: Any = None,
        secure: Any = False,
        participation: Cohort | float | None = None,
        engine: Any = None,
        random_state: int = 0,
        verbose: int = 0,
        on_round: OnRound | None = None,
        run_folder: str | Path | None = None,
        resume: bool = False,
        init: Array | None = None,
        whiten: bool = False,
        columns: str = "strict",
        missing: str = "error",
        record: str = "rounds",
    ) -> None:
        self.n_components = n_components
        self.solver = solver
        self.center = center
        self.scale = scale
        self.privacy = privacy
        self.secure = secure
        self.participation = participation
        self.engine = engine
        self.random_state = random_state
        self.verbose = verbose
        self.on_round = on_round
        self.run_folder = run_folder
        self.resume = resume
        self.init = init
        self.whiten = whiten
        self.columns = columns
        self.missing = missing
        self.record = record

    def _study(self) -> Study:
        preparation = Preparation(
            center=bool(self.center), scale=bool(self.scale), columns=self.columns, missing=self.missing
        )
        return make_study(self, preparation)

    def _learn(self, result: Result, dtype: np.dtype[Any]) -> None:
        super()._learn(result, dtype)
        facts, values = result.facts, result.estimate.values
        freedom = max(facts.weight - 1, 1.0)
        self.explained_variance_ = values / freedom
        if np.isnan(facts.total):  # withheld: shares["variance"] is 0
            self.explained_variance_ratio_ = self.noise_variance_ = None
        else:
            self.explained_variance_ratio_ = np.minimum(values / facts.total, 1.0) if facts.total > 0 else 0 * values
        self.mean_ = np.zeros(facts.features) if facts.mean is None else facts.mean
        left = min(facts.features, facts.n_rows) - len(values)
        if not np.isnan(facts.total):
            rest = max(facts.total - float(values.sum()), 0.0)
            self.noise_variance_ = rest / freedom / left if left > 0 else 0.0

    def _offset(self) -> Array | None:
        return self.mean_

    def _spread(self) -> Array | float:
        if not self.whiten:
            return 1.0
        spread = np.sqrt(self.explained_variance_)
        return np.where(spread > 0, spread, 1.0)

    def to_sklearn(self) -> Any:
        """Return a fitted scikit-learn `PCA` (behind a `StandardScaler` where columns were scaled)."""
        check_is_fitted(self)
        pca = PCA(n_components=self.n_components_, whiten=self.whiten)
        copy_attributes(
            self,
            pca,
            "components_ explained_variance_ explained_variance_ratio_ singular_values_ n_components_",
        )
        pca.noise_variance_, pca.n_samples_ = self.noise_variance_, self.n_samples_seen_
        pca.n_features_in_, pca.mean_ = self.n_features_in_, self.mean_
        if self.scale_ is None:
            return carry_names(self, pca)
        pca.mean_ = np.zeros(self.n_features_in_)
        scaler = StandardScaler()
        scaler.mean_, scaler.scale_, scaler.var_ = self.mean_, self.scale_, self.scale_**2
        scaler.n_features_in_, scaler.n_samples_seen_ = self.n_features_in_, self.n_samples_seen_
        return make_pipeline(carry_names(self, scaler), pca)
