"""How long sites take to compute, in virtual seconds: the speed models of Tziotis et al. (section 5, appendix C).

=====================  =========================================================================================
paper                  here
=====================  =========================================================================================
fixed computation      `FixedSpeeds`: a time for each site, exponential, drawn once
dynamic computation    `DynamicSpeeds`: a rate for each site, drawn once; a time from it, drawn every round
stragglers %           `TwoSpeeds`: fast and slow sites, a time for each drawn once
correlated             `CorrelatedSpeeds`: the times of another model, handed out in a given order of sites
\\-                     `GivenSpeeds`: the times as given; ``inf`` is a site that never answers
=====================  =========================================================================================

The exponential law has a ``mean`` here, which is 1 / lambda where lambda is a rate (Theorem 4.9) and lambda itself in
the paper's straggler regimes (its fast sites have "lambda = 0.1", its slow ones "lambda = 10").
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Protocol

import numpy as np

from fedspan.encoding import Array
from fedspan.errors import ConfigurationError, nearest

_ONCE, _EVERY_ROUND = 2, 3
"""What a generator is seeded with beside the run's seed, so that no two laws draw the same numbers."""


class Speeds(Protocol):
    """A law of compute times."""

    def seconds(self, names: Sequence[str], seed: int, number: int) -> Array:
        """Return how long each of these sites (all there are, in name order) computes in this round."""
        ...


def check_number(name: str, value: Any, *, zero: bool = False, most: float = math.inf, unit: str = "seconds") -> None:
    """Refuse what is no finite number more than 0 (or 0, where ``zero``) and at most ``most``."""
    number: Any = math.nan if isinstance(value, bool) or not isinstance(value, Real) else value
    if not (number > 0 or (zero and number == 0)) or number > most or number == math.inf:
        low = "a number, 0 or more," if zero else "a positive number"
        raise ConfigurationError(f"{name} is {low} of {unit}; got {value!r}")


@dataclass(frozen=True, kw_only=True)
class FixedSpeeds:
    """A time for each site, drawn once from an exponential law and the same in every round.

    >>> FixedSpeeds(mean=2.0).seconds(["a", "b"], seed=0, number=7).round(2)
    array([4.49, 2.41])
    """

    mean: float = 1.0

    def __post_init__(self) -> None:
        check_number("mean", self.mean)

    def seconds(self, names: Sequence[str], seed: int, number: int) -> Array:
        return np.random.default_rng([seed, 0, _ONCE]).exponential(self.mean, len(names))


@dataclass(frozen=True, kw_only=True)
class DynamicSpeeds:
    """A rate for each site, drawn once and uniformly from ``slowest`` (None: ``fastest`` / sites) to ``fastest``.

    Every round each site draws a time from the exponential law of its rate: its mean is 1 / rate.
    """

    slowest: float | None = None
    fastest: float = 1.0

    def __post_init__(self) -> None:
        slowest = self.fastest if self.slowest is None else self.slowest
        check_number("fastest", self.fastest, unit="rounds a second")
        check_number("slowest", slowest, unit="rounds a second")
        if slowest > self.fastest:
            raise ConfigurationError(f"slowest is a rate up to fastest = {self.fastest}, got {self.slowest}")

    def seconds(self, names: Sequence[str], seed: int, number: int) -> Array:
        slowest = self.fastest / len(names) if self.slowest is None else self.slowest
        rates = np.random.default_rng([seed, 0, _ONCE]).uniform(slowest, self.fastest, len(names))
        return np.random.default_rng([seed, number, _EVERY_ROUND]).exponential(1 / rates)


@dataclass(frozen=True, kw_only=True)
class TwoSpeeds:
    """A share of ``stragglers`` among the sites has times of mean ``slow``, the rest of mean ``fast``; drawn once."""

    stragglers: float = 0.3
    fast: float = 0.1
    slow: float = 10.0

    def __post_init__(self) -> None:
        check_number("fast", self.fast)
        check_number("slow", self.slow)
        check_number("stragglers", self.stragglers, zero=True, most=1.0, unit="sites over all sites, at most 1")

    def seconds(self, names: Sequence[str], seed: int, number: int) -> Array:
        rng = np.random.default_rng([seed, 0, _ONCE])
        means = np.full(len(names), self.fast)
        means[rng.permutation(len(names))[: round(self.stragglers * len(names))]] = self.slow
        return rng.exponential(means)


@dataclass(frozen=True, kw_only=True)
class GivenSpeeds:
    """The times as given, by site; ``inf`` is a site that never answers. The others take ``default``.

    >>> GivenSpeeds(times={"b": 3.0}).seconds(["a", "b"], seed=0, number=0)
    array([1., 3.])
    """

    times: Mapping[str, float] = field(default_factory=dict)
    default: float = 1.0

    def __post_init__(self) -> None:
        for name, time in [*self.times.items(), ("sites not named (default)", self.default)]:
            if time != math.inf:  # that is said of a site that never answers
                check_number(f"the time of {name}", time, zero=True)

    def seconds(self, names: Sequence[str], seed: int, number: int) -> Array:
        strangers = set(self.times) - set(names)
        if strangers:
            stranger = min(strangers)
            raise ConfigurationError(f"a time is given for {stranger!r}, which is no site; {nearest(stranger, names)}")
        return np.array([self.times.get(name, self.default) for name in names], dtype=float)


@dataclass(frozen=True, kw_only=True)
class CorrelatedSpeeds:
    """The times of another model, handed out in every round so that the sites in ``order`` are the fastest first.

    With sites in the order of their labels, who is fast depends on what they hold: groups of labels are groups of
    speeds, as in the paper's correlated regime.

    >>> CorrelatedSpeeds(order=("b", "a"), of=FixedSpeeds(mean=2.0)).seconds(["a", "b"], seed=0, number=0).round(2)
    array([4.49, 2.41])
    """

    order: tuple[str, ...]
    of: Speeds = field(default_factory=FixedSpeeds)

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", tuple(self.order))

    def seconds(self, names: Sequence[str], seed: int, number: int) -> Array:
        if sorted(self.order) != sorted(names):
            raise ConfigurationError(
                f"order names every site once, the fastest first; got {len(self.order)} names for {len(names)} sites"
            )
        place = {name: i for i, name in enumerate(self.order)}
        times = np.sort(self.of.seconds(names, seed, number))
        return times[[place[name] for name in names]]


SPEEDS: dict[str, type[Any]] = {"fixed": FixedSpeeds, "dynamic": DynamicSpeeds, "two": TwoSpeeds, "given": GivenSpeeds}
"""Speed models by the name that study files use."""


def make_speeds(model: str = "fixed", **settings: Any) -> Speeds:
    """Return the speed model of that name.

    >>> make_speeds("two", stragglers=0.5)
    TwoSpeeds(stragglers=0.5, fast=0.1, slow=10.0)
    """
    if model not in SPEEDS:
        raise ConfigurationError(f"there is no speed model {model!r}; {nearest(model, SPEEDS)}")
    known = list(SPEEDS[model].__dataclass_fields__)
    for key in settings:
        if key not in known:
            raise ConfigurationError(f"speed model {model!r} has no setting {key!r}; {nearest(key, known)}")
    return SPEEDS[model](**settings)  # type: ignore[no-any-return]
