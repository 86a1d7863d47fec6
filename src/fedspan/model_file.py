"""The model file: npz arrays and a JSON header with a format version. No pickle, no code."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedspan.encoding import write_atomically
from fedspan.errors import ConfigurationError, FileError
from fedspan.layers import RoundRecord
from fedspan.rounds import Cohort
from fedspan.solvers import NAMES, make, settings_of

FORMAT, VERSION = "fedspan-model", 1
NOT_KEPT = ("engine", "on_round", "run_folder", "resume", "record", "init", "privacy", "secure", "verbose")
"""Parameters that belong to a run, not to a model."""

OF_A_RUN = ("nodes_",)
"""Fitted attributes that a model file leaves out: answers of single nodes, each as large as the model."""

E = TypeVar("E")


def save_model(model: Any, path: Path) -> None:
    """Write a fitted estimator to one file, whole or not at all."""
    arrays: dict[str, Any] = {}
    fitted: dict[str, Any] = {}
    for name, value in sorted(model._kept().items()):
        if name in OF_A_RUN:
            continue
        if isinstance(value, np.ndarray):
            arrays[name] = value.astype(str) if value.dtype == object else value
        else:
            fitted[name] = _to_json(value)
    params = {k: _to_json(v) for k, v in model.get_params(deep=False).items() if k not in NOT_KEPT}
    header = {
        "format": FORMAT, "version": VERSION, "estimator": type(model).__name__, "params": params, "fitted": fitted,
    }  # fmt: skip
    buffer = io.BytesIO()
    np.savez(buffer, header=np.frombuffer(json.dumps(header).encode(), dtype=np.uint8), **arrays)
    write_atomically(path, buffer.getvalue())


def load_model(path: Path, kinds: dict[str, type], wanted: type[E]) -> E:
    """Read a model file as the estimator that wrote it."""
    header, arrays = read_model(path)
    written = str(header.get("estimator"))
    kind = kinds.get(written)
    if kind is None or not issubclass(kind, wanted):
        raise ConfigurationError(f"{path} holds a {written}, not a {wanted.__name__}")
    try:
        model = kind(**{k: _from_json(v) for k, v in header["params"].items()})
        fitted = {name: _from_json(value) for name, value in header["fitted"].items()}
        fitted |= {name: value.astype(object) if value.dtype.kind == "U" else value for name, value in arrays.items()}
        model._restore(fitted)  # type: ignore[attr-defined]
    except (TypeError, LookupError, AttributeError, ConfigurationError, FileError) as cause:
        raise FileError(f"{path} was written by another version of fedspan, or is damaged ({cause})") from cause
    return model


def read_model(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read a model file's header and arrays."""
    if not path.exists():
        raise FileError(f"there is no model file {path}")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as parts:
            header = json.loads(parts["header"].tobytes())
            arrays = {name: parts[name] for name in parts.files if name != "header"}
        found = header["format"], header["version"]
        supported = found[0] == FORMAT and found[1] <= VERSION
        if supported and not (isinstance(header["params"], dict) and isinstance(header["fitted"], dict)):
            raise ValueError("its header is not one of ours")
    except Exception as cause:  # a damaged archive raises whatever its reader stumbles over
        raise FileError(f"{path} is not a fedspan model file, or was cut short ({cause})") from cause
    if not supported:
        raise FileError(
            f"{path} has format {found[0]!r} version {found[1]}; this fedspan reads {FORMAT!r} up to version "
            f"{VERSION}: update fedspan"
        )
    return header, arrays


def _to_json(value: Any) -> Any:
    if type(value) in NAMES:
        return {"solver": NAMES[type(value)], "settings": settings_of(value)}
    if isinstance(value, Cohort):
        return {"cohort": asdict(value)}
    if isinstance(value, list) and value and isinstance(value[0], RoundRecord):
        return {"history": [asdict(r) for r in value]}
    if is_dataclass(value) or callable(value):
        raise ConfigurationError(f"a model file holds plain data; {value!r} is not")
    return value.item() if isinstance(value, np.generic) else value


def _from_json(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    # By their kinds, not by their keys alone: figures by site are a dict too, and a site may be called anything.
    match value:
        case {"solver": str(name), "settings": dict(settings)}:
            return make(name, **settings)
        case {"cohort": dict(settings)}:
            return Cohort(**{**settings, "only": None if settings["only"] is None else tuple(settings["only"])})
        case {"history": list(records)}:
            return [RoundRecord(**r) for r in records]
    return value
