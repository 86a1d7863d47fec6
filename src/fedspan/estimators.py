"""`FederatedPCA` and `FederatedTruncatedSVD`: scikit-learn manners over `fedspan.run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Self

import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted, validate_data

from fedspan.data import Preparation, Source, open_source
from fedspan.data.arrays import is_array
from fedspan.encoding import Array
from fedspan.errors import ConfigurationError
from fedspan.layers import OnRound
from fedspan.model_file import load_model, save_model
from fedspan.progress import round_printer
from fedspan.rounds import Cohort
from fedspan.run import Result, Study, run
from fedspan.solvers import NAMES, Solver

Sites = Any
"""A list, or a dict by name, of 2-D arrays, sparse matrices, frames, Sources or paths; or one array, as one site."""


class _FederatedDecomposition(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """What the two estimators share: opening sites, running the study, transforming, saving."""

    def _study(self) -> Study:
        raise NotImplementedError

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
        for name in ("privacy", "secure"):
            if getattr(self, name):
                raise ConfigurationError(f"{name}={getattr(self, name)!r} is not available in this version of fedspan")
        sources = self._open(sites, sample_weight, site_weight)
        watchers: list[OnRound] = [round_printer()] if self.verbose else []
        if self.on_round is not None:
            watchers.append(self.on_round)
        folder = None if self.run_folder is None else Path(self.run_folder)
        result = run(study, sources, engine=self.engine, folder=folder, watchers=watchers)
        self._learn(result, next(iter(sources.values())).dtype)
        return self

    def _open(self, sites: Sites, sample_weight: Any, site_weight: Any) -> dict[str, Source]:
        named = name_sites(sites)
        if named is None:
            X = validate_data(
                self,
                sites,
                dtype=[np.float64, np.float32],
                accept_sparse="csr",
                ensure_min_samples=2,
                copy=False,
            )
            if sample_weight is not None:
                sample_weight = np.broadcast_to(np.asarray(sample_weight, dtype=float), X.shape[:1])
            return {"site0": open_source(X, weights=sample_weight)}
        rows, factors = _by_name(sample_weight, named, sites), _by_name(site_weight, named, sites)
        return {
            name: open_source(data, weights=rows.get(name), site_weight=factors.get(name, 1.0))
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
        self.privacy_spent_ = None
        self.releases_ = sorted({(r.step, r.sites) for r in result.history})

    def _offset(self) -> Array | None:
        return None

    def transform(self, X: Any) -> Array:
        """Return the rows' scores: their coordinates in the subspace."""
        check_is_fitted(self)
        if isinstance(X, Source | str | Path):
            X = np.concatenate([_dense(b) for b in open_source(X).blocks()])
        X = validate_data(self, X, dtype=[np.float64, np.float32], accept_sparse="csr", reset=False, **self._gaps())
        offset = self._offset()
        if self.fill_ is not None:
            X = _filled(X, self.fill_)
        axes = self._axes().T
        scores = X @ axes
        if offset is not None:
            scores = scores - offset @ axes
        return np.asarray(scores, dtype=X.dtype)

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
        return load_model(Path(path), {c.__name__: c for c in (FederatedPCA, FederatedTruncatedSVD)}, cls)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = self._fills
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class FederatedPCA(_FederatedDecomposition):
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
    privacy, secure
        Not available in this version.
    participation
        A `Cohort`, or the fraction of sites asked in each round.
    engine
        A name or a callable; by default all sites run in this process.
    random_state
        The run's seed.
    verbose, on_round
        Print a line each round; call ``on_round(record, estimate)`` after each round.
    run_folder
        Where to record the run, so that it can be looked at and resumed.
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
        init: Array | None = None,
        whiten: bool = False,
        columns: str = "strict",
        missing: str = "error",
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
        self.init = init
        self.whiten = whiten
        self.columns = columns
        self.missing = missing

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
        self.explained_variance_ratio_ = np.minimum(values / facts.total, 1.0) if facts.total > 0 else 0 * values
        self.mean_ = np.zeros(facts.features) if facts.mean is None else facts.mean
        left = min(facts.features, facts.n_rows) - len(values)
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
        _copy(
            self,
            pca,
            "components_ explained_variance_ explained_variance_ratio_ singular_values_ n_components_",
        )
        pca.noise_variance_, pca.n_samples_ = self.noise_variance_, self.n_samples_seen_
        pca.n_features_in_, pca.mean_ = self.n_features_in_, self.mean_
        if self.scale_ is None:
            return _named(self, pca)
        pca.mean_ = np.zeros(self.n_features_in_)
        scaler = StandardScaler()
        scaler.mean_, scaler.scale_, scaler.var_ = self.mean_, self.scale_, self.scale_**2
        scaler.n_features_in_, scaler.n_samples_seen_ = self.n_features_in_, self.n_samples_seen_
        return make_pipeline(_named(self, scaler), pca)


class FederatedTruncatedSVD(_FederatedDecomposition):
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
        init: Array | None = None,
        columns: str = "strict",
        normalise: str | None = None,
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
        self.init = init
        self.columns = columns
        self.normalise = normalise

    def _study(self) -> Study:
        return make_study(self, Preparation(center=False, columns=self.columns, normalise=self.normalise))

    def _learn(self, result: Result, dtype: np.dtype[Any]) -> None:
        super()._learn(result, dtype)
        facts, (basis, values) = result.facts, result.estimate
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
        _copy(
            self,
            svd,
            "components_ explained_variance_ explained_variance_ratio_ singular_values_ n_features_in_",
        )
        return _named(self, svd)


def name_sites(sites: Sites) -> dict[str, Any] | None:
    """Return sites by name, or None where this is one array rather than a collection of sites.

    >>> sorted(name_sites([np.eye(2), np.eye(2)]))
    ['site0', 'site1']
    >>> name_sites([[1.0, 2.0], [3.0, 4.0]]) is None
    True
    """
    if isinstance(sites, Source | str | Path):
        return {"site0": sites}
    if isinstance(sites, Mapping):
        return {str(name): data for name, data in sites.items()}
    if isinstance(sites, list | tuple) and sites and all(_is_site(item) for item in sites):
        width = len(str(len(sites) - 1))
        return {f"site{i:0{width}d}": data for i, data in enumerate(sites)}
    return None


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
        seed=int(estimator.random_state), init=estimator.init,
    )  # fmt: skip


def _is_site(item: Any) -> bool:
    if isinstance(item, Source | str | Path) or scipy.sparse.issparse(item):
        return True
    if hasattr(item, "columns") and hasattr(item, "dtypes"):
        return True
    return is_array(item) and item.ndim == 2


def _by_name(values: Any, named: Mapping[str, Any], sites: Sites) -> dict[str, Any]:
    """Return per-site values by site name, whether they came as a dict or in the order of the sites."""
    if values is None:
        return {}
    if isinstance(values, Mapping):
        strangers = set(map(str, values)) - set(named)
        if strangers:
            raise ConfigurationError(f"weights are given for {sorted(strangers)}, but the sites are {sorted(named)}")
        return {str(name): value for name, value in values.items()}
    if not isinstance(values, Sequence) or len(values) != len(named):
        raise ConfigurationError(f"weights come as a dict by site, or a list of {len(named)}, one for each site")
    return dict(zip(named, values, strict=True))


def _filled(X: Any, fill: Array) -> Any:
    """Return rows with their gaps filled as in the fit, whether or not the columns were centred too."""
    if not scipy.sparse.issparse(X):
        return np.where(np.isnan(X), fill.astype(X.dtype), X)
    gaps = np.isnan(X.data)
    X = X.copy()
    X.data[gaps] = fill[X.indices[gaps]]
    return X


def _dense(block: Any) -> Array:
    return block.toarray() if scipy.sparse.issparse(block) else np.asarray(block)


def _copy(source: Any, target: Any, names: str) -> None:
    for name in names.split():
        setattr(target, name, getattr(source, name))


def _named(source: Any, target: Any) -> Any:
    if hasattr(source, "feature_names_in_"):
        target.feature_names_in_ = source.feature_names_in_
    return target


__all__ = ["NAMES", "FederatedPCA", "FederatedTruncatedSVD", "Sites", "make_study", "name_sites"]
