"""Engines: callables that execute one round on the sites."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedspan.engines.gossip import Gossip
from fedspan.engines.in_process import InProcess
from fedspan.engines.speeds import CorrelatedSpeeds, DynamicSpeeds, FixedSpeeds, GivenSpeeds, Speeds, TwoSpeeds
from fedspan.engines.virtual_time import VirtualTime
from fedspan.errors import ConfigurationError, nearest
from fedspan.rounds import Outcome, Round, Site

Execute = Callable[[Round], Outcome]
Engine = Callable[[Sequence[Site], int], Execute]
"""Makes an executor of rounds from sites and the run's seed."""

ENGINES: dict[str, Engine] = {"in-process": InProcess, "virtual-time": VirtualTime(), "gossip": Gossip()}


def get_engine(engine: str | Engine | None) -> Engine:
    """Return an engine by name, the one given, or the default."""
    if engine is None:
        return InProcess
    given: object = engine
    for kind in (VirtualTime, Gossip):
        if given is kind:
            raise ConfigurationError(f"engine is the class {kind.__name__}, not an engine: write {kind.__name__}()")
    if callable(engine):
        return engine
    if engine not in ENGINES:
        raise ConfigurationError(f"there is no engine {engine!r}; {nearest(str(engine), ENGINES)}")
    return ENGINES[engine]


__all__ = [
    "ENGINES", "CorrelatedSpeeds", "DynamicSpeeds", "Engine", "Execute", "FixedSpeeds", "GivenSpeeds", "Gossip",
    "InProcess", "Speeds", "TwoSpeeds", "VirtualTime", "get_engine",
]  # fmt: skip
