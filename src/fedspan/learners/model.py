"""What is learnt: a representation that all sites share and a part that is each site's own, as plain arrays.

A model's parameters travel as numpy arrays; what they mean travels as a spec, plain data beside them. A site and the
coordinator make the same model of the same spec. A spec has a ``kind`` (``"linear"``, ``"mlp"``, ...), which part is
a site's ``own`` (``"head"``, ``"body"`` or ``"none"``), how many ``head_layers`` are the head, and the kind's settings.
"""

from __future__ import annotations

import inspect
import json
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from fedspan.encoding import Array, Plain
from fedspan.errors import ConfigurationError, nearest
from fedspan.learners.linear_model import LinearModel
from fedspan.learners.rows import Descent, Fitted, Rows

NETWORKS = ("mlp", "lenet5", "bilstm")
"""Models that need torch."""


class Model(Protocol):
    """A model in two parts. Arrays in, arrays out; nothing is kept between calls but what the spec fixes."""

    def start(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return first parameters: those that are shared, and a site's own."""
        ...

    def fit(self, shared: Array, own: Array, rows: Rows, how: Descent, rng: np.random.Generator, part: str) -> Fitted:
        """Descend in the ``"own"`` part, the ``"shared"`` one or ``"both"``; the other one stays as it is.

        A part with an exact answer (a linear model's head) takes it, whatever ``how`` says.
        """
        ...

    def gradient(self, shared: Array, own: Array, rows: Rows) -> tuple[Array, Array, float]:
        """Return the mean loss's gradient in the shared and the own part, and the loss."""
        ...

    def outputs(self, shared: Array, own: Array, X: Array) -> Array:
        """Return a row for each row of X: numbers, or one score for each class."""
        ...

    def features(self, shared: Array, own: Array, X: Array) -> Array:
        """Return what the body makes of each row: the representation, before the head."""
        ...

    def settled(self, shared: Array) -> Array:
        """Return a mean of shared parameters as it is sent on (a linear model's basis is made orthonormal)."""
        ...


def model_of(spec: dict[str, Plain]) -> Any:
    """Return the model that a spec describes.

    >>> spec = {"kind": "linear", "own": "head", "head_layers": 1, "features": 4, "components": 2, "outputs": 1}
    >>> model_of(spec).start(np.random.default_rng(0))[0].shape
    (4, 2)
    """
    return _model(json.dumps(spec, sort_keys=True))


@lru_cache(maxsize=16)
def _model(spec: str) -> Any:
    described = json.loads(spec)
    kind = described.pop("kind", None)
    if kind == "linear":
        return LinearModel(**_known(LinearModel, described))
    if kind not in NETWORKS:
        raise ConfigurationError(f"there is no model {kind!r}; {nearest(str(kind), ['linear', *NETWORKS])}")
    return networks().network(kind, **described)


def _known(model: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Return a model's settings, all of which it knows."""
    known = inspect.signature(model).parameters
    for name in settings:
        if name not in known:
            raise ConfigurationError(f"a linear model has no setting {name!r}; {nearest(name, known)}")
    if "components" not in settings:
        raise ConfigurationError("a linear model also needs components: of how many columns its representation is")
    return settings


def networks() -> Any:
    """Return the module of networks, the one place that imports torch."""
    try:
        from fedspan.learners import models
    except ModuleNotFoundError as cause:
        if cause.name != "torch":
            raise
        raise ConfigurationError("networks need PyTorch: pip install 'fedspan[torch]'") from cause
    return models


def class_numbers(y: Array, classes: list[Any]) -> Array:
    """Return the number of each label among the classes, -1 for one that is none.

    >>> class_numbers(np.array(["b", "z"]), ["a", "b"])
    array([ 1, -1])
    """
    known = np.asarray(classes)
    at = np.searchsorted(known, y).clip(max=len(known) - 1)
    return np.where(known[at] == y, at, -1)
