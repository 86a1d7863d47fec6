"""What all sites keep from the start: the model's whole spec, the classes, the columns, the seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedspan.encoding import Plain
from fedspan.errors import DataError, few
from fedspan.learners.model import model_of

Told = Mapping[str, Mapping[str, Any]]
"""Rows, columns and classes of each site, as `learn.describe` tells them."""


def part_of(learner: Any) -> Any:
    """Return the learner itself, or the one in its stages: what says whose part of the model is whose."""
    return part_of(learner.stage) if hasattr(learner, "stage") else learner


def agreement(told: Told, *, model: Mapping[str, Plain], learner: Any, seed: int) -> dict[str, Plain]:
    """Return what all sites keep. Refuse sites that do not fit each other, and a model that does not fit them.

    >>> from fedspan.learners import FedRep
    >>> told = {"a": {"rows": 9, "features": 4, "columns": None, "classes": None}}
    >>> agreement(told, model={"kind": "linear", "components": 2}, learner=FedRep(), seed=0)["model"]["outputs"]
    1
    """
    width, columns, classes = _width(told), _columns(told), _classes(told)
    part = part_of(learner)
    spec = {**model, "features": width, "own": part.own, "head_layers": part.head_layers}
    if spec["kind"] == "linear":
        spec |= {"outputs": 1 if classes is None else len(classes), "classes": classes is not None}
    elif classes is None:
        raise DataError(
            f"a network of kind {spec['kind']!r} predicts classes, and y is numbers (floating point); take model "
            f'"linear", or give y as whole numbers or texts'
        )
    else:
        spec |= {"classes": len(classes)}
    model_of(spec)  # refuses settings that do not fit
    return {"model": spec, "classes": classes, "columns": columns, "seed": seed}


def _width(told: Told) -> int:
    widths = {name: int(site["features"]) for name, site in told.items()}
    most = max(widths.values(), key=lambda width: (list(widths.values()).count(width), width))
    odd = [name for name in sorted(widths) if widths[name] != most]
    if odd:
        raise DataError(
            f"site {odd[0]!r} has {widths[odd[0]]} columns, others {most}{_more(odd)}; all sites describe a row by "
            f"the same columns"
        )
    return most


def _columns(told: Told) -> list[str] | None:
    named = {name: list(site["columns"]) for name, site in sorted(told.items()) if site["columns"] is not None}
    unnamed = [name for name in sorted(told) if name not in named]
    if not named:
        return None
    first = next(iter(named))
    if unnamed:
        raise DataError(f"site {unnamed[0]!r} has no column names but {first!r} does; name them at every site")
    wanted = named[first]
    for name, columns in named.items():
        lacks, extra = sorted(set(wanted) - set(columns)), sorted(set(columns) - set(wanted))
        if lacks or extra:
            raise DataError(
                f"site {name!r} has other columns than site {first!r}: lacks {few(lacks)}, adds {few(extra)}; "
                f"leave columns out, or mend the names"
            )
        if columns != wanted:
            at = next(i for i, (one, other) in enumerate(zip(columns, wanted, strict=True)) if one != other)
            raise DataError(
                f"site {name!r} has its columns in another order than site {first!r}: column {at + 1} is "
                f"{columns[at]!r} there, {wanted[at]!r} here; put them in one order"
            )
    return wanted


def _classes(told: Told) -> list[Any] | None:
    kinds = {name: _kind(site["classes"]) for name, site in sorted(told.items())}
    if len(set(kinds.values())) > 1:
        first, *others = kinds
        odd = next(name for name in others if kinds[name] != kinds[first])
        raise DataError(
            f"site {odd!r} has {kinds[odd]} to predict, site {first!r} {kinds[first]}; give y of one kind at all sites "
            f"(in a study file, task in [data] says which)"
        )
    if "numbers" in kinds.values():
        return None
    return sorted({label for site in told.values() for label in site["classes"]})


def _kind(classes: list[Any] | None) -> str:
    if classes is None:
        return "numbers"
    kind = type(classes[0]).__name__
    return {"str": "texts (classes)", "bool": "true and false (classes)"}.get(kind, "whole numbers (classes)")


def _more(names: list[str]) -> str:
    return f" (nor do {len(names) - 1} other sites)" if len(names) > 1 else ""
