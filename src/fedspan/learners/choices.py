"""Learners and models as people give them: by name, as settings, as a table. And as plain data, for files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fedspan.encoding import Plain
from fedspan.errors import ConfigurationError, nearest
from fedspan.learners import FLANP, LEARNERS, LGFLANP, FedRep, make_learner
from fedspan.learners.model import NETWORKS
from fedspan.solvers import Doubling
from fedspan.solvers.settings import whole

STAGED = {"flanp": FLANP, "lg-flanp": LGFLANP}
"""Learners that are doubling around another one, by name."""
NAMES = (*LEARNERS, *STAGED, "doubling")
MODELS = ("linear", *NETWORKS)
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (*LEARNERS.values(), Doubling)}
_SAID = ("features", "classes", "outputs", "own", "head_layers")
"""Settings of a model that the data and the learner say."""


def learner_of(given: Any) -> Any:
    """Return a learner: by name with its default settings, or the settings that were given.

    >>> learner_of("lg-fedavg").own
    'body'
    """
    if isinstance(given, str):
        if given == "doubling":
            return Doubling(stage=FedRep())
        if given in STAGED:
            return STAGED[given]()
        if given not in LEARNERS:
            raise ConfigurationError(f"there is no learner {given!r}; {nearest(given, NAMES)}")
        return make_learner(given)
    inner = given.stage if isinstance(given, Doubling) else given
    if isinstance(given, type) or not all(hasattr(inner, name) for name in ("solve", "own", "head_layers", "rounds")):
        raise ConfigurationError(
            f"learner is a name ({', '.join(NAMES)}) or settings, such as FedRep(rounds=20) or "
            f"Doubling(stage=FedRep()); got {given!r}"
        )
    return given


def model_spec(model: Any, n_components: Any = None) -> dict[str, Plain]:
    """Return a model's settings with its ``kind``, without what the data and the learner say.

    >>> model_spec("linear", 3), model_spec({"kind": "mlp", "hidden": (64, 8)})
    ({'kind': 'linear', 'components': 3}, {'kind': 'mlp', 'hidden': [64, 8]})
    """
    if not isinstance(model, str | Mapping):
        raise ConfigurationError(
            f'model is a name ({", ".join(MODELS)}) or a dict of settings with its "kind"; got {model!r}'
        )
    spec = {"kind": model} if isinstance(model, str) else {str(key): _plain(value) for key, value in model.items()}
    kind = spec.get("kind")
    if kind not in MODELS:
        raise ConfigurationError(f"there is no model of kind {kind!r}; {nearest(str(kind), MODELS)}")
    for key in spec:
        if key in _SAID:
            raise ConfigurationError(f"model: {key} is said by the data and the learner; leave it out")
    if kind == "linear":
        for key in spec:
            if key not in ("kind", "components"):
                raise ConfigurationError(f"a linear model has no setting {key!r}; its width is n_components")
        wanted = whole("n_components", spec.get("components", 2) if n_components is None else n_components)
        if wanted < 1:
            raise ConfigurationError(f"n_components is at least 1, got {wanted}")
        return {"kind": "linear", "components": wanted}
    if n_components is not None:
        raise ConfigurationError(
            f"n_components = {n_components} is for a linear model; the width of a network's representation is that of "
            f'its layers: model={{"kind": "{kind}", "hidden": [..., {n_components}]}}'
        )
    return spec


def learner_as_plain(learner: Any) -> Plain:
    """Return settings as plain data, those of a stage in them too.

    >>> learner_as_plain(FedRep(rounds=3))["settings"]["rounds"]
    3
    """
    if isinstance(learner, str):
        return learner
    if type(learner).__name__ not in _KINDS:
        raise ConfigurationError(
            f"a file holds plain data, and {type(learner).__name__} is no learner of fedspan's own"
        )
    settings = {field.name: getattr(learner, field.name) for field in fields(learner) if field.init}
    if "stage" in settings:
        settings["stage"] = learner_as_plain(settings["stage"])
    return {"kind": type(learner).__name__, "settings": settings}


def learner_from_plain(plain: Plain) -> Any:
    """Return the settings that `learner_as_plain` made this of.

    >>> learner_from_plain(learner_as_plain(FedRep(rounds=3)))
    FedRep(rounds=3, ...)
    """
    if isinstance(plain, str):
        return plain
    settings = dict(plain["settings"])
    if "stage" in settings:
        settings["stage"] = learner_from_plain(settings["stage"])
    return _KINDS[plain["kind"]](**settings)


def _plain(value: Any) -> Plain:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value
