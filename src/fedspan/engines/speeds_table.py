"""The table ``[run.speeds]`` of a study file: how fast its sites are, in virtual time.

``model`` names a speed model of `fedspan.engines.speeds`, whose settings stand beside it; ``order`` makes it
correlated; ``communication``, ``bandwidth`` and ``seed`` are those of `VirtualTime`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from fedspan.engines.speeds import SPEEDS, CorrelatedSpeeds, Speeds, make_speeds
from fedspan.engines.virtual_time import VirtualTime
from fedspan.errors import ConfigurationError, nearest
from fedspan.toml_tables import NUMBER, TABLE, TEXT, TEXTS, WHOLE, Kind, Table, fitting

_WHERE = "[run.speeds]"
_ENGINE = {"communication": NUMBER, "bandwidth": NUMBER, "seed": WHOLE}
_KINDS: dict[str, Kind] = {"times": TABLE}
"""The settings of speed models that are no numbers."""


def virtual_time_of(raw: Any, sites: Iterable[str]) -> VirtualTime:
    """Return the engine that the table describes; ``sites`` are the study's.

    >>> virtual_time_of({"model": "fixed", "mean": 2.0, "communication": 1}, ["a", "b"])
    VirtualTime(speeds=FixedSpeeds(mean=2.0), communication=1, bandwidth=None, seed=None)
    """
    named: str = fitting(f"{_WHERE} model", fitting(_WHERE, raw, TABLE).get("model", "fixed"), TEXT)
    if named not in SPEEDS:
        raise ConfigurationError(f"{_WHERE} there is no speed model {named!r}; {nearest(named, SPEEDS)}")
    kinds = {field.name: _KINDS.get(field.name, NUMBER) for field in fields(SPEEDS[named])}
    table = Table(raw, _WHERE, ("model", "order", *_ENGINE, *kinds))
    names = list(sites)
    settings = table.given(kinds)
    for name, seconds in settings.get("times", {}).items():
        fitting(f"{_WHERE} times.{_known(name, names, 'times')}", seconds, NUMBER)
    order = [_known(name, names, "order") for name in table.get("order", TEXTS, ())]
    try:
        speeds: Speeds = make_speeds(named, **settings)
        if order:
            speeds = CorrelatedSpeeds(order=tuple(order), of=speeds)
            speeds.seconds(sorted(names), 0, 0)  # refuses an order that leaves sites out
        return VirtualTime(speeds=speeds, **table.given(_ENGINE))
    except ConfigurationError as error:
        raise ConfigurationError(f"{_WHERE} {error}") from None


def _known(name: str, sites: list[str], where: str) -> str:
    if name not in sites:
        raise ConfigurationError(f"{_WHERE} {where}: there is no site {name!r}; {nearest(name, sites)}")
    return name
