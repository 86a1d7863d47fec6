"""What a coordinator may ask of a site with a policy: every field checked before a row is touched.

A question that made arithmetic fail on some rows and not on others would be answered by the error itself, without
noise. So vectors have the right length, are finite and lie within the bounds that the site's guarantee rests on
anyway, and what the site agreed to (how gaps are met, which column holds weights) cannot be changed by a message.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedspan.data import Preparation, Source
from fedspan.encoding import Plain
from fedspan.errors import PolicyError
from fedspan.privacy.gaussian import GaussianPrivacy
from fedspan.rounds import Round

LARGEST = 1e60
"""No number of a question is larger; with rows clamped to the same, no product of theirs overflows."""
_MOST_SCALE = 1e30
_TIGHTEST = 0.5  # of the terms' own bound; an honest study goes to two thirds at most
_PREPARATION = {"columns", "weight_column", "features", "total", "privacy", "fill", "mean", "scale", "norm", "degree"}


def check_question(question: Round, privacy: GaussianPrivacy, source: Source, agreed: Preparation | None) -> None:
    """Refuse a question whose fields no honest coordinator sends."""
    message: Any = question.message
    if question.number < -1:
        raise PolicyError(f"rounds are numbered from 0, got {question.number}")
    if question.step.name == "data.moments":
        _check_columns(message, source)
        _check_agreed(message, agreed)
    if question.step.name == "data.spread":
        check_preparation(message, privacy, source, agreed)
    if isinstance(message, dict) and message.get("gather"):
        raise PolicyError("a site with a privacy policy keeps its own Z; take reference = 'global'")
    z = message.get("z") if isinstance(message, dict) else message
    if isinstance(z, np.ndarray) and z.size:
        largest = float(np.abs(z).max()) if z.dtype == np.float64 else math.nan
        if not (largest == 0 or 1 / LARGEST < largest < LARGEST):  # NaN too
            raise PolicyError(
                f"a matrix to multiply with has finite float64 entries of at most {LARGEST:g}; got {largest:g} in "
                f"{z.dtype}"
            )


def check_preparation(
    preparation: dict[str, Any], privacy: GaussianPrivacy, source: Source, agreed: Preparation | None
) -> None:
    """Refuse a preparation that no honest coordinator sends, wherever it came from."""
    unknown = set(preparation) - _PREPARATION
    if unknown:
        raise PolicyError(f"a preparation has no {sorted(unknown)}; it has {sorted(_PREPARATION)}")
    _check_columns(preparation, source)
    _check_agreed(preparation, agreed)
    names = preparation.get("columns")
    width = source.shape[1] if names is None else len(names)
    if preparation.get("features", width) != width:
        raise PolicyError(
            f"the study says {preparation['features']!r} features, where the columns it names are {width}"
        )
    _check_vectors(preparation, privacy, width)
    _check_norm(preparation, privacy, width)


def _check_columns(message: dict[str, Plain], source: Source) -> None:
    names = message.get("columns")
    if names is None:
        return
    if not isinstance(names, list) or not names or len({str(name) for name in names}) < len(names):
        raise PolicyError("a study names each of its columns once")
    if source.columns is None:
        raise PolicyError("the study names columns, and this site's have no names")


def _check_agreed(message: dict[str, Plain], agreed: Preparation | None) -> None:
    """What the rows are read by was agreed before the run."""
    by_degree = message.get("degree", False)
    if not isinstance(by_degree, bool):
        raise PolicyError(f"degree is True or False, got {by_degree!r}")
    if agreed is None:
        return
    if by_degree != (agreed.normalise == "degree"):
        raise PolicyError(f"degree = {by_degree} is not what was agreed on, normalise = {agreed.normalise!r}")
    for name in ("missing", "weight_column"):
        if name in message and message[name] != getattr(agreed, name):
            raise PolicyError(f"{name} = {message[name]!r} is not what was agreed on, {getattr(agreed, name)!r}")


def _check_vectors(message: dict[str, Plain], privacy: GaussianPrivacy, width: int) -> None:
    if message.get("degree"):
        _check_roots(message, privacy, width)
        return
    bounds = privacy.row_bounds(width, centred=False, scaled=False)
    for name in ("mean", "fill", "scale"):
        if message.get(name) is not None and privacy.relation not in ("row", "row-replace"):
            raise PolicyError(f"neighbours = {privacy.relation!r} allow no {name}")
    for name in ("mean", "fill"):
        vector = message.get(name)
        if vector is None:
            continue
        vector = _vector(name, vector, width)
        if np.linalg.norm(vector - bounds.middle(width)) > (bounds.raw_norm or 0.0) * (1 + 1e-6):
            raise PolicyError(f"the {name} lies beyond the bound that raw rows are clipped to")
    scale = message.get("scale")
    if scale is not None:
        scale = _vector("scale", scale, width)
        if bounds.low is None:
            raise PolicyError("scales rest on the columns' ranges, and row_norm is one number for all")
        if np.any(scale < bounds.least_scale(width)) or scale.max() > _MOST_SCALE:
            raise PolicyError(f"scales lie between a thousandth of half the columns' ranges and {_MOST_SCALE:g}")


def _check_roots(message: dict[str, Plain], privacy: GaussianPrivacy, width: int) -> None:
    """By degree, columns are divided by roots of noised degrees, each no less than the terms say; nothing else is done.

    An honest coordinator's floor is that of all sites' noise, never below that of one site's.
    """
    if privacy.relation not in ("row", "row-replace"):
        raise PolicyError(f"neighbours = {privacy.relation!r} allow no degree")
    for name in ("mean", "fill"):
        if message.get(name) is not None:
            raise PolicyError(f"a study by degree has no {name}")
    if message.get("scale") is None:
        raise PolicyError("a study by degree sends the roots of the columns' degrees, as its scale")
    scale, least = _vector("scale", message["scale"], width), math.sqrt(privacy.least_degree())
    if np.any(scale < least * (1 - 1e-9)) or scale.max() > _MOST_SCALE:
        raise PolicyError(f"the roots of degrees lie between {least:g}, of the least degree, and {_MOST_SCALE:g}")


def _vector(name: str, value: Any, width: int) -> np.ndarray[Any, Any]:
    vector = np.asarray(value)
    if vector.shape != (width,) or vector.dtype.kind != "f" or not np.all(np.isfinite(vector)):
        raise PolicyError(f"the {name} has {width} finite numbers, one for each column; got shape {vector.shape}")
    return vector


def _check_norm(message: dict[str, Plain], privacy: GaussianPrivacy, width: int) -> None:
    norm = message.get("norm")
    if norm is None:
        return
    if not privacy.adaptive_clip or privacy.relation not in ("row", "row-replace"):
        raise PolicyError("this site's terms do not let the study tighten the clip")
    given = privacy.bounds_under(message, width, tightened=False).norm or 0.0
    if isinstance(norm, bool) or not isinstance(norm, float) or not _TIGHTEST * given <= norm <= given:
        raise PolicyError(f"the clip may be tightened to between {_TIGHTEST * given:g} and {given:g}, got {norm!r}")
