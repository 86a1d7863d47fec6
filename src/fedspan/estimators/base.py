"""What the estimators share: opening sites, running the study, transforming, saving."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Self

import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data

from fedspan.data import Preparation, Source, open_source
from fedspan.data.prepared import Prepared, inverse_degrees
from fedspan.encoding import Array
from fedspan.errors import ConfigurationError, DataError, FedspanError
from fedspan.estimators.sites_argument import Sites, by_name, has_names, name_sites
from fedspan.layers import OnRound
from fedspan.model_file import load_model, save_model
from fedspan.privacy.guarantee import transcript_warning
from fedspan.progress import round_printer
from fedspan.rounds import Cohort
from fedspan.run import Result, Study, run
from fedspan.solvers import NAMES


class FederatedDecomposition(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator, ABC):  # type: ignore[misc]
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
        if self.secure:
            raise ConfigurationError(f"secure={self.secure!r} is not available in this version of fedspan")
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
        self.releases_ = [(r.round, r.step, r.aggregate, r.sites, r.bytes_up) for r in result.history]

    def _offset(self) -> Array | None:
        return None

    def transform(self, X: Any) -> Array:
        """Return the rows' scores: their coordinates in the subspace."""
        check_is_fitted(self)
        if isinstance(X, Source | str | Path):
            return self._transform_source(open_source(X))
        X = validate_data(self, X, dtype=[np.float64, np.float32], accept_sparse="csr", reset=False, **self._gaps())
        offset = self._offset()
        if self.fill_ is not None:
            X = _filled(X, self.fill_)
        axes = self._axes().T
        scores = X @ axes
        if offset is not None:
            scores = scores - offset @ axes
        if getattr(self, "normalise", None) == "degree":
            scores = scores * np.sqrt(inverse_degrees(X))[:, None]
        return np.asarray(scores, dtype=X.dtype)

    def _transform_source(self, source: Source) -> Array:
        """Return the scores of a source's rows, reading them block by block."""
        known = getattr(self, "feature_names_in_", None)
        names = None if known is None or source.columns is None else [str(name) for name in known]
        have = source.shape[1] if names is None else len(set(names) & set(source.columns or ()))
        if have != self.n_features_in_:
            raise DataError(f"the data has {have} of the {self.n_features_in_} columns this model was fitted to")
        preparation = {
            "columns": names,
            "mean": self._offset(),
            "scale": self.scale_,
            "fill": self.fill_,
            "degree": getattr(self, "normalise", None) == "degree",
        }
        return Prepared(source, preparation).times(self.components_.T.astype(float)) / self._spread()

    def inverse_transform(self, Z: Any) -> Array:
        """Return the rows that have these scores: the data, projected onto the subspace."""
        check_is_fitted(self)
        Z = np.asarray(Z)
        if Z.ndim != 2 or Z.shape[1] != self.n_components_:
            raise ValueError(f"scores have {self.n_components_} columns, got shape {Z.shape}")
        rows = (Z * self._spread()) @ self.components_
        if self.scale_ is not None:
            rows = rows * self.scale_
        offset = self._offset()
        return rows if offset is None else rows + offset  # type: ignore[no-any-return]

    @property
    def _fills(self) -> bool:
        return getattr(self, "missing", "error") == "mean"

    def _gaps(self) -> dict[str, Any]:
        return {"ensure_all_finite": "allow-nan"} if self._fills else {}

    def _spread(self) -> Array | float:
        """The factor whitening divides by."""
        return 1.0

    def _axes(self) -> Array:
        """Components as the raw columns meet them: divided by scale and, where scores are whitened, by spread."""
        axes = self.components_ if self.scale_ is None else self.components_ / self.scale_
        spread = self._spread()
        return axes if np.isscalar(spread) else axes / np.asarray(spread)[:, None]

    @property
    def _n_features_out(self) -> int:
        return int(self.n_components_)

    def save(self, path: str | Path) -> None:
        """Write the fitted model to one file (npz arrays and a JSON header; no pickle)."""
        check_is_fitted(self)
        save_model(self, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a model that `save` wrote."""
        return load_model(Path(path), {c.__name__: c for c in FederatedDecomposition.__subclasses__()}, cls)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = self._fills
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def open_named(name: str, data: Any, **options: Any) -> Source:
    """Open one site's data; where that fails, say which site's."""
    try:
        return open_source(data, **options)
    except FedspanError as error:
        raise type(error)(f"site {name!r}: {error}") from error


def make_study(estimator: Any, preparation: Preparation) -> Study:
    """Return the study an estimator's parameters describe."""
    part = estimator.participation
    if part is None:
        part = Cohort()
    elif isinstance(part, Real):
        part = Cohort(fraction=float(part))
    wanted = estimator.n_components
    if isinstance(wanted, Integral):
        wanted = int(wanted)
    elif isinstance(wanted, Real):
        wanted = float(wanted)
    if not isinstance(estimator.random_state, Integral):
        raise ConfigurationError(f"random_state is an integer, the run's seed; got {estimator.random_state!r}")
    return Study(
        n_components=wanted, solver=estimator.solver, preparation=preparation, cohort=part,
        seed=int(estimator.random_state), init=estimator.init, privacy=estimator.privacy,
    )  # fmt: skip


def _filled(X: Any, fill: Array) -> Any:
    """Return rows with their gaps filled as in the fit, whether or not the columns were centred too."""
    if not scipy.sparse.issparse(X):
        return np.where(np.isnan(X), fill.astype(X.dtype), X)
    gaps = np.isnan(X.data)
    X = X.copy()
    X.data[gaps] = fill[X.indices[gaps]]
    return X


def copy_attributes(source: Any, target: Any, names: str) -> None:
    """Copy fitted attributes, named in one string, to a scikit-learn estimator."""
    for name in names.split():
        setattr(target, name, getattr(source, name))


def carry_names(source: Any, target: Any) -> Any:
    """Give a scikit-learn estimator the feature names, where there are any."""
    if hasattr(source, "feature_names_in_"):
        target.feature_names_in_ = source.feature_names_in_
    return target
