"""What every fitted representation can do: predict, transform, take a new site in, be measured, saved and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from fedspan.data.arrays import ArraySource
from fedspan.data.labelled import Labelled, as_labels, as_rows, check_kinds
from fedspan.encoding import Array, Plain
from fedspan.errors import ConfigurationError, ConvergenceError, DataError, few, nearest
from fedspan.estimators.labelled_argument import at_site, labelled_sites
from fedspan.estimators.site_scores import SiteScores
from fedspan.learners.agreement import part_of
from fedspan.learners.model import class_numbers, model_of
from fedspan.learners.rows import Rows
from fedspan.learners.site import diverged, first_parameters, scores
from fedspan.representation_file import load_representation, save_representation
from fedspan.solvers.settings import whole

_JOINING = 5
"""What the order of a new site's rows is drawn with, beside the seed and its name."""


def _has_classes(self: Any) -> bool:
    if getattr(self, "classes_", None) is None:
        raise AttributeError("this model predicts numbers, not classes: predict returns them")
    return True


def _has_chances(self: Any) -> bool:
    if _has_classes(self) and self.agreed_["model"]["kind"] == "linear":
        raise AttributeError("a linear model's scores are no probabilities: take decision_function")
    return True


class Predicting(BaseEstimator):  # type: ignore[misc]
    """What every fitted representation can do; `FederatedRepresentation` says how one is learnt."""

    agreed_: dict[str, Plain]
    shared_: Array
    heads_: dict[str, Array]
    sites_: dict[str, dict[str, Any]]
    joined_: list[str]
    classes_: Array | None
    site_scores_: SiteScores
    curve_: list[dict[str, Any]]
    learner_: Any
    tune: int

    # ---- predictions ---------------------------------------------------------------------------------------------

    def predict(self, site: str | None, X: Any) -> Array:
        """Return what a site's model says of each row: a class as it was given in ``y``, or a number.

        ``site`` may be None where the learner keeps nothing at the sites: the shared model then answers.
        """
        outputs = self._outputs(site, X)
        return outputs[:, 0] if self.classes_ is None else self.classes_[outputs.argmax(axis=1)]

    @available_if(_has_classes)  # type: ignore[untyped-decorator]
    def decision_function(self, site: str | None, X: Any) -> Array:
        """Return a score for each row and class, in the order of ``classes_``; the largest is what is predicted."""
        return self._outputs(site, X)

    @available_if(_has_chances)  # type: ignore[untyped-decorator]
    def predict_proba(self, site: str | None, X: Any) -> Array:
        """Return a network's probability of each class (softmax of its scores)."""
        outputs = self._outputs(site, X)
        raised = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        return np.asarray(raised / raised.sum(axis=1, keepdims=True))

    def score(self, site: str | None, X: Any, y: Any) -> float:
        """Return the accuracy at a site, or R^2 where y is numbers."""
        predicted, truth = self.predict(site, X), as_labels(y)
        if self.classes_ is None:
            return float(r2_score(truth, predicted))
        check_kinds(truth, self.classes_, "given")
        return float(accuracy_score(truth, predicted))

    def transform(self, X: Any, site: str | None = None) -> Array:
        """Return the representation of rows: what the body makes of them, before any head.

        With LG-FedAvg the body is each site's own: then ``site`` says whose.
        """
        check_is_fitted(self, "shared_")
        if site is None and self.agreed_["model"]["own"] == "body":
            raise ConfigurationError(
                f"with this learner the body is each site's own: say whose, as in transform(X, site={self._example!r})"
            )
        if site is None:
            shared, own = self.shared_, self._first()[1]
        else:
            shared, own = self._parameters(site)
        return np.asarray(model_of(self.agreed_["model"]).features(shared, own, self._rows(X)))

    def evaluate(self, sites: Any) -> SiteScores:
        """Return how well each site is predicted on the rows given here, as a table: see `SiteScores`.

        ``sites`` as in ``fit``. Where test rows are given, they are measured; else all rows, called ``"test"`` too:
        the model has not learnt from them.
        """
        check_is_fitted(self, "shared_")
        told = {}
        for name, data in labelled_sites(sites).items():
            shared, own = self._parameters(name)
            with at_site(name):
                test = data.test or data
                self._check_columns(test.columns, test.shape[1])
                if self.classes_ is not None:
                    check_kinds(test.y, self.classes_, "given")
                model, seen = model_of(self.agreed_["model"]), self.sites_.get(name, {}).get("classes")
                told[name] = scores(model, shared, own, test, self.agreed_["classes"], seen)
        return SiteScores.of(told, dict.fromkeys(told, "test"))

    # ---- new sites -----------------------------------------------------------------------------------------------

    def join(self, name: str, X: Any, y: Any, *, epochs: int | None = None) -> Self:
        """Take in a site that was not in training: it learns a part of its own, all that is shared stays as it is.

        FedRep: a head on the representation (linear: the exact one). LG-FedAvg: a body under the shared head. A
        learner that keeps nothing at the sites: the model tuned to this site. ``epochs`` over its rows; by default
        as many as a site had that took part in every round, where the model is tuned ``tune`` and one at least.
        Nothing leaves the site. Labels that no site had in training are refused: no head has an output for them.
        """
        check_is_fitted(self, "shared_")
        if name in self.sites_ or name in self.heads_:
            raise ConfigurationError(f"there is a site {name!r} already; give the new one another name")
        with at_site(name):
            data = Labelled(X, y)
            self._check_columns(data.columns, data.shape[1])
            rows = self._rows_to_learn(data)
            self.heads_[name] = self._learnt_at(name, rows, self._epochs() if epochs is None else epochs)
        classes = data.classes if self.classes_ is not None else None
        columns = None if data.columns is None else list(data.columns)
        self.sites_[name] = {"rows": data.shape[0], "features": data.shape[1], "columns": columns, "classes": classes}
        self.joined_.append(name)
        return self

    def _learnt_at(self, name: str, rows: Rows, epochs: int) -> Array:
        """Return what one site learns of its own, with all that is shared as it is."""
        if whole("epochs", epochs) < 1:
            raise ConfigurationError(f"epochs is at least 1, got {epochs}")
        nothing_own = self.agreed_["model"]["own"] == "none"
        how = part_of(self.learner_).tuning._replace(epochs=epochs)
        rng = np.random.default_rng([self.agreed_["seed"], _JOINING, int.from_bytes(name.encode(), "little")])
        model, own, part = model_of(self.agreed_["model"]), self._first()[1], "both" if nothing_own else "own"
        with np.errstate(over="ignore", invalid="ignore"):
            fitted = model.fit(self.shared_, own, rows, how, rng, part)
        if diverged(fitted, self.shared_):
            raise ConvergenceError(
                "what it learns runs away, or is no longer finite numbers; scale its rows as the others' are"
            )
        return np.asarray(fitted.shared if nothing_own else fitted.own)

    def _rows_to_learn(self, data: Labelled) -> Rows:
        if self.classes_ is None:
            if data.y.dtype.kind == "U":
                raise DataError("y is texts, and this model predicts numbers")
            return Rows(data.X, data.y.astype(float))
        check_kinds(data.y, self.classes_, "given")
        numbers = class_numbers(data.y, self.agreed_["classes"])
        unknown = np.unique(data.y[numbers < 0]).tolist()
        if unknown:
            raise DataError(
                f"{int((numbers < 0).sum())} of {len(numbers)} rows have labels that no site had in training: "
                f"{few([repr(label) for label in unknown])}; leave those rows out, or learn anew with this site"
            )
        return Rows(data.X, numbers)

    def _epochs(self) -> int:
        part = part_of(self.learner_)
        if part.own == "none":
            return max(self.tune, 1)
        return int(getattr(part, "head_epochs", part.epochs) * part.rounds)

    # ---- files ---------------------------------------------------------------------------------------------------

    def save(self, path: str | Path, *, heads: bool = True) -> None:
        """Write the fitted model to one file (safetensors arrays and a JSON header; no pickle).

        The file holds what every site in this process keeps to itself: its head, its scores, its labels. With
        ``heads=False`` it holds only what all sites share anyway, and can be given on.
        """
        check_is_fitted(self, "shared_")
        save_representation(self, Path(path), heads=heads)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a model that `save` wrote."""
        return load_representation(Path(path), cls)

    def _restore(self, fitted: dict[str, Any]) -> None:
        """Take back what a model file kept."""
        for name, value in fitted.items():
            setattr(self, name, value)
        self.site_scores_ = SiteScores(self.site_scores_)
        self.curve_ = [{**point, "scores": SiteScores(point["scores"])} for point in self.curve_]

    # ---- parameters and rows -------------------------------------------------------------------------------------

    def _outputs(self, site: str | None, X: Any) -> Array:
        check_is_fitted(self, "shared_")
        shared, own = self._parameters(site)
        return np.asarray(model_of(self.agreed_["model"]).outputs(shared, own, self._rows(X)))

    def _first(self) -> tuple[Array, Array]:
        return first_parameters(self.agreed_)

    def _parameters(self, site: str | None) -> tuple[Array, Array]:
        """Return the shared part and the own part that a site predicts with."""
        own = self.agreed_["model"]["own"]
        if site is None:
            if own == "none":
                return self.shared_, self._first()[1]
            raise ConfigurationError(f"each site has its own {own}: name one, such as {self._example!r}")
        kept = self.heads_.get(site)
        if kept is None and not (own == "none" and site in self.sites_):
            raise ConfigurationError(self._unknown(site))
        if own == "none":
            return (self.shared_ if kept is None else kept), self._first()[1]
        assert kept is not None
        return self.shared_, kept

    def _unknown(self, site: Any) -> str:
        way_out = f"a new site learns its own part with join({site!r}, X, y)"
        if not self.sites_:
            return f"this model holds no site, as it was saved with heads=False; {way_out}"
        return f"there is no site {site!r}; {nearest(str(site), self.sites_)} Or {way_out}"

    @property
    def _example(self) -> str:
        return next(iter(self.sites_), "name")

    def _rows(self, X: Any) -> Array:
        rows, names = as_rows(X)
        source = ArraySource(rows)
        self._check_columns(names, source.shape[1])
        rows = rows.astype(source.dtype, copy=False)
        if not np.isfinite(rows).all():
            row, column = np.argwhere(~np.isfinite(rows))[0].tolist()
            raise DataError(
                f"row {row} has {rows[row, column]} in column {column}; fill gaps before, or leave rows out"
            )
        return rows

    def _check_columns(self, names: Any, width: int) -> None:
        """Refuse rows that are not described as those in training were."""
        known: int = self.agreed_["model"]["features"]
        if width != known:
            raise DataError(f"rows have {width} columns, and the model was learnt from {known}")
        wanted = self.agreed_["columns"]
        if names is not None and wanted is not None and list(names) != wanted:
            at = next(i for i, (one, other) in enumerate(zip(names, wanted, strict=True)) if one != other)
            raise DataError(
                f"column {at + 1} is {names[at]!r}, and {wanted[at]!r} in the rows that the model was learnt from; "
                f"give the same columns in the same order"
            )
