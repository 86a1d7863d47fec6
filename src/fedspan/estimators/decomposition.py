"""What every fitted decomposition can do, however it was fitted: transform rows, be saved and be loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from fedspan.data import Source, open_source
from fedspan.data.prepared import Prepared, inverse_degrees
from fedspan.encoding import Array
from fedspan.errors import ConfigurationError, DataError
from fedspan.model_file import load_model, save_model
from fedspan.representation_file import holds_representation


class Decomposition(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """What every fitted decomposition can do: transform rows, be saved and be loaded."""

    scale_: Array | None

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
        rows: Array = np.asarray((Z * self._spread()) @ self.components_)
        if self.scale_ is not None:
            rows = rows * self.scale_
        offset = self._offset()
        if offset is not None:
            rows = rows + offset
        return rows

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
        axes: Array = self.components_ if self.scale_ is None else self.components_ / self.scale_
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
        if holds_representation(Path(path)):
            raise ConfigurationError(f"{path} holds a FederatedRepresentation, not a {cls.__name__}")
        return load_model(Path(path), known_models(), cls)

    def _kept(self) -> dict[str, Any]:
        """Return what a model file keeps: all that was fitted."""
        return {name: value for name, value in vars(self).items() if name.endswith("_") and not name.startswith("_")}

    def _restore(self, fitted: dict[str, Any]) -> None:
        """Take back what a model file kept."""
        for name, value in fitted.items():
            setattr(self, name, value)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = self._fills
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def known_models() -> dict[str, type[Decomposition]]:
    """Return every estimator that a model file may hold, by its name."""
    kinds, waiting = {}, [*Decomposition.__subclasses__()]
    while waiting:
        kind = waiting.pop()
        kinds[kind.__name__] = kind
        waiting += kind.__subclasses__()
    return kinds


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
