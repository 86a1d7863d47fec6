"""`FederatedTruncatedSVD`: singular vectors without centring, with scikit-learn's manners."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.utils.validation import check_is_fitted

from fedspan.data import Preparation
from fedspan.encoding import Array
from fedspan.errors import ConfigurationError
from fedspan.estimators.base import FederatedDecomposition, make_study
from fedspan.estimators.decomposition import carry_names, copy_attributes
from fedspan.layers import OnRound
from fedspan.rounds import Cohort
from fedspan.run import Result, Study
from fedspan.solvers import Solver


class FederatedTruncatedSVD(FederatedDecomposition):
    """Leading right singular vectors of rows that stay at their sites, without centring. For sparse data.

    The parameters are those of `FederatedPCA`, but for ``center``, ``scale``, ``whiten`` and ``missing``;
    ``normalise="degree"`` divides user-item entries by the roots of both degrees first.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> svd = FederatedTruncatedSVD(n_components=2).fit([rng.random((30, 6)), rng.random((40, 6))])
    >>> svd.singular_values_.shape
    (2,)
    """

    def __init__(
        self,
        n_components: int | float | str = 10,
        *,
        solver: str | Solver = "krylov",
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
        columns: str = "strict",
        normalise: str | None = None,
        record: str = "rounds",
    ) -> None:
        self.n_components = n_components
        self.solver = solver
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
        self.columns = columns
        self.normalise = normalise
        self.record = record

    def _study(self) -> Study:
        return make_study(self, Preparation(center=False, columns=self.columns, normalise=self.normalise))

    def _learn(self, result: Result, dtype: np.dtype[Any]) -> None:
        super()._learn(result, dtype)
        facts, (basis, values) = result.facts, result.estimate
        if facts.column_mean is None or np.isnan(facts.total):  # would need a release that was not charged
            self.explained_variance_ = self.explained_variance_ratio_ = None
            return
        # As scikit-learn has it: the variance of the scores about their mean, and its share of the columns' variance.
        column_mean = facts.column_mean if facts.scale is None else facts.column_mean / facts.scale
        about = (column_mean @ basis) ** 2
        self.explained_variance_ = np.maximum(values / facts.weight - about, 0.0)
        everything = facts.total / facts.weight - float(column_mean @ column_mean)
        self.explained_variance_ratio_ = self.explained_variance_ / everything if everything > 0 else 0 * values

    def to_sklearn(self) -> Any:
        """Return a fitted scikit-learn `TruncatedSVD`."""
        check_is_fitted(self)
        if self.scale_ is not None:
            raise ConfigurationError("scikit-learn's TruncatedSVD has no degree normalisation to carry it over to")
        svd = TruncatedSVD(n_components=self.n_components_)
        copy_attributes(
            self,
            svd,
            "components_ explained_variance_ explained_variance_ratio_ singular_values_ n_features_in_",
        )
        return carry_names(self, svd)
