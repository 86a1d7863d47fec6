"""The file of a learnt representation: safetensors arrays and a JSON header with a format version. No pickle, no code.

A digest of header and arrays lies beside them, so that a file in which anything was changed or damaged is refused
rather than predicting something else.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

from fedspan.encoding import Array, encode, write_atomically
from fedspan.errors import ConfigurationError, FileError
from fedspan.layers import RoundRecord
from fedspan.learners.choices import learner_as_plain, learner_from_plain
from fedspan.rounds import Cohort

FORMAT, VERSION = "fedspan-representation", 1
NOT_KEPT = ("engine", "on_round", "run_folder", "resume", "privacy", "verbose")
"""Parameters that belong to a run, not to a model."""
OF_SITES = ("heads_", "sites_", "joined_", "site_scores_", "curve_", "fairness_", "single_class_sites_",
            "unseen_labels_", "diverged_", "unheard_sites_")  # fmt: skip
"""Attributes that tell of single sites."""

E = TypeVar("E")


def save_representation(model: Any, path: Path, *, heads: bool = True) -> None:
    """Write a fitted representation to one file, whole or not at all."""
    fitted = {k: v for k, v in vars(model).items() if k.endswith("_") and not k.startswith("_")}
    own = fitted.pop("heads_") if heads else {}
    if not heads:
        empty = {name: type(fitted[name])() for name in OF_SITES if name in fitted and fitted[name] is not None}
        fitted |= empty
    params = _params(model) if heads else _without_names(_params(model))
    sites = sorted(own)
    arrays = {"shared": fitted.pop("shared_"), **{f"own.{i}": own[site] for i, site in enumerate(sites)}}
    fitted.pop("classes_")  # they are in what was agreed
    header = {
        "format": FORMAT, "version": VERSION, "estimator": type(model).__name__, "params": params,
        "fitted": {name: _to_json(name, value) for name, value in fitted.items()}, "sites": sites,
    }  # fmt: skip
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    text = json.dumps({**header, "digest": _digest(header, arrays)})
    write_atomically(path, save(arrays, {"fedspan": text}))


def load_representation(path: Path, kind: type[E]) -> E:
    """Read a file as the estimator that wrote it."""
    header, arrays = read_representation(path)
    try:
        params = header["params"]
        params |= {"learner": learner_from_plain(params["learner"]), "participation": _cohort(params["participation"])}
        model = kind(**params)
        fitted = {name: _from_json(name, value) for name, value in header["fitted"].items()}
        fitted |= {"shared_": arrays["shared"], "classes_": _classes(fitted["agreed_"]["classes"])}
        fitted["heads_"] = {site: arrays[f"own.{i}"] for i, site in enumerate(header["sites"])}
        model._restore(fitted)  # type: ignore[attr-defined]
    except (TypeError, LookupError, ValueError, AttributeError) as cause:
        raise FileError(f"{path} was written by another version of fedspan, or is damaged ({cause})") from cause
    return model


def read_representation(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """Read a file's header and arrays."""
    if not path.exists():
        raise FileError(f"there is no model file {path}")
    if not holds_representation(path):
        raise FileError(
            f"{path} holds no learnt representation (its arrays are not safetensors); models of other estimators are "
            f"read by theirs, as in FederatedPCA.load"
        )
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except Exception as cause:  # a damaged file raises whatever its reader stumbles over
        raise FileError(f"{path} is not a fedspan model file, or was cut short ({cause})") from cause
    if "fedspan" not in metadata:
        raise FileError(f"{path} was not written by fedspan: a safetensors file without fedspan's header")
    try:
        header = dict(json.loads(metadata["fedspan"]))
        intact = header.pop("digest") == _digest(header, arrays)
    except (ValueError, LookupError, TypeError):
        intact = False
    if not intact:
        raise FileError(f"{path} is damaged: its content is not what was written; take a copy, or learn anew")
    found = header.get("format"), header.get("version")
    if found[0] != FORMAT or not isinstance(found[1], int) or found[1] > VERSION:
        raise FileError(
            f"{path} has format {found[0]!r} version {found[1]}; this fedspan reads {FORMAT!r} up to version "
            f"{VERSION}: update fedspan"
        )
    return header, arrays


def holds_representation(path: Path) -> bool:
    """Whether a file begins as safetensors do: the length of a header, and the header's first brace."""
    try:
        with path.open("rb") as file:
            begin = file.read(9)
    except OSError:
        return False
    return len(begin) == 9 and begin[8:] == b"{" and not begin.startswith(b"PK")


def _digest(header: dict[str, Any], arrays: dict[str, Array]) -> str:
    return hashlib.sha256(json.dumps(header).encode() + encode(arrays)).hexdigest()


def _params(model: Any) -> dict[str, Any]:
    kept = {k: v for k, v in model.get_params(deep=False).items() if k not in NOT_KEPT}
    kept["learner"] = learner_as_plain(kept["learner"])
    part = kept["participation"]
    kept["participation"] = {"cohort": asdict(part)} if isinstance(part, Cohort) else part
    if not isinstance(kept["start"], str):  # parameters to begin with belong to a run
        kept["start"] = "random"
    return {name: _plain(value) for name, value in kept.items()}


def _without_names(params: dict[str, Any]) -> dict[str, Any]:
    """Return parameters without the names of sites: a cohort's."""
    part = params["participation"]
    if not isinstance(part, dict):
        return params
    return {**params, "participation": {"cohort": {**part["cohort"], "only": None}}}


def _cohort(plain: Any) -> Any:
    if not isinstance(plain, dict):
        return plain
    settings = dict(plain["cohort"])
    return Cohort(**{**settings, "only": None if settings["only"] is None else tuple(settings["only"])})


def _classes(agreed: list[Any] | None) -> Array | None:
    return None if agreed is None else np.asarray(agreed)


def _to_json(name: str, value: Any) -> Any:
    match name:
        case "learner_":
            return learner_as_plain(value)
        case "history_":
            return [asdict(record) for record in value]
        case "feature_names_in_":
            return value.tolist()
    return _plain(value)


def _from_json(name: str, value: Any) -> Any:
    match name:
        case "learner_":
            return learner_from_plain(value)
        case "history_":
            return [RoundRecord(**record) for record in value]
        case "feature_names_in_":
            return np.array(value, dtype=object)
    return value


def _plain(value: Any) -> Any:
    """Return plain data, numpy's numbers as Python's own; refuse anything else."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return value.tolist()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigurationError(f"a model file holds plain data; {value!r} is not")
