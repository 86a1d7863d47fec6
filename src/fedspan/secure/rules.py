"""What a study asks of its secure sums: who may collude, who may drop out, and how sure it is to be.

Symbols of Bell et al. (2020): n sites, each with k neighbours; a share γ of the sites colludes with the coordinator, a
share δ drops out; t of the m = k + 1 holders of a secret's shares give it back; σ bits of security, η of correctness.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from functools import lru_cache
from numbers import Integral, Real
from typing import Any

import numpy as np
from scipy.stats import hypergeom

from fedspan.encoding import Plain
from fedspan.errors import ConfigurationError, nearest

FEWEST = 3
"""Sites in a sum at least: of the sum of two, each learns the other's."""

_LN2 = math.log(2)


@dataclass(frozen=True, kw_only=True)
class SecureSums:
    """Secure sums: the coordinator learns the sum over the sites that answered, and nothing else of them.

    Parameters
    ----------
    threshold
        Which part of those who hold shares of a site's secrets must be there to give them back, between 1/2 and 1.
        A fraction of a denominator up to 1000: 2/3 is meant exactly.
    minimum
        The fewest sites in a sum, at least 3; None for the quorum.
    colluding, dropouts
        The largest part of the sites that shows the coordinator all it knows, or that drops out of a round.
    security, correctness
        Bits: the sums stay secret but for a chance of 2^-security a round, and succeed but for 2^-correctness.
    complete_up_to
        Up to so many sites, each shares masks with all the others.
    repeats
        How often a round that failed is asked again, with fresh keys.

    Examples
    --------
    >>> rules = SecureSums()
    >>> rules.quorum(60), rules.neighbours(50), rules.holders_needed(49)
    (41, 49, 34)
    """

    threshold: float = 2 / 3
    minimum: int | None = None
    colluding: float = 0.1
    dropouts: float = 0.1
    security: int = 80
    correctness: int = 30
    complete_up_to: int = 50
    repeats: int = 2

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other or mean nothing."""
        self._check_fractions()
        self._check_counts()
        if not 1 / 2 < self._threshold < 1:
            raise ConfigurationError(
                f"threshold is between 1/2 and 1, by 1/1000 at least: below, two halves could be told different "
                f"stories; got {self.threshold!r}"
            )
        if Fraction(self.colluding) >= 2 * self._threshold - 1:
            raise ConfigurationError(
                f"with threshold {self.threshold:.4g}, less than {2 * self.threshold - 1:.4g} of the sites may "
                f"collude (2 threshold - 1), got colluding={self.colluding!r}; raise the threshold"
            )

    def quorum(self, n: int) -> int:
        """Return how many of n sites a round needs: more than the threshold's part."""
        return _more_than(self._threshold, n)

    def fewest(self, n: int) -> int:
        """Return the fewest sites that a sum over n sites is unmasked for."""
        return max(FEWEST, self.quorum(n), self.minimum or 0)

    def neighbours(self, n: int) -> int:
        """Return k, with how many others each of n sites shares masks: n - 1, or an even number below it."""
        if n <= self.complete_up_to:
            return n - 1
        parts = self._threshold, self.colluding, self.dropouts
        return _fewest_neighbours(n, *parts, self.security, self.correctness)

    def holders_needed(self, k: int) -> int:
        """Return t, how many of the k neighbours and the site itself give a secret back."""
        return _more_than(self._threshold, k + 1)

    def check(self, n: int) -> None:
        """Refuse a study of too few sites."""
        if n < FEWEST:
            raise ConfigurationError(
                f"secure sums need at least {FEWEST} sites, as of the sum of two each learns the other's; got {n}"
            )
        if self.minimum is not None and self.minimum > n:
            raise ConfigurationError(f"minimum={self.minimum} sites in a sum are more than the {n} there are")

    def as_plain(self) -> dict[str, Plain]:
        """Return the settings as plain data: for a fingerprint, a message, a report."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> SecureSums:
        """Return what `as_plain` gave."""
        known = [field.name for field in fields(cls)]
        for name in plain:
            if name not in known:
                raise ConfigurationError(f"secure sums have no setting {name!r}; {nearest(str(name), known)}")
        return cls(**plain)

    @property
    def _threshold(self) -> Fraction:
        return Fraction(self.threshold).limit_denominator(1000)

    def _check_fractions(self) -> None:
        for name, least, most in [("threshold", "1/2", 1.0), ("colluding", "0", 0.5), ("dropouts", "0", 0.5)]:
            value = getattr(self, name)
            if isinstance(value, bool | np.bool_) or not isinstance(value, Real) or not 0 <= float(value) < most:
                raise ConfigurationError(f"{name} is a part of the sites from {least} to below {most:g}, got {value!r}")
            object.__setattr__(self, name, float(value))  # numpy's own is no plain data

    def _check_counts(self) -> None:
        least = {"minimum": FEWEST, "security": 1, "correctness": 1, "complete_up_to": 0, "repeats": 0}
        for name, fewest in least.items():
            value = getattr(self, name)
            if value is None and name == "minimum":
                continue
            if isinstance(value, bool | np.bool_) or not isinstance(value, Integral) or value < fewest:
                raise ConfigurationError(f"{name} is a whole number, at least {fewest}; got {value!r}")
            object.__setattr__(self, name, int(value))


def _more_than(part: Fraction, n: int) -> int:
    return part.numerator * n // part.denominator + 1


@lru_cache(maxsize=256)
def _fewest_neighbours(
    n: int, threshold: Fraction, colluding: float, dropouts: float, security: int, correctness: int
) -> int:
    """Return the smallest even k for which all three tails are small enough, or n - 1.

    Tails are sums of point masses, which are far cheaper: where the largest of them is too much alone, so is the tail.
    Each tail must lie beyond its mean, where the point mass at its edge is the largest.
    """
    wrong, gone = _ceil_part(colluding, n), _ceil_part(dropouts, n)
    k = np.arange(2, n - 1, 2)
    t = threshold.numerator * (k + 1) // threshold.denominator + 1
    caught, left = 2 * t - (k + 1), t - 1
    most_private, most_failed = -security * _LN2 - math.log(n), -correctness * _LN2 - math.log(n)
    possible = (caught * (n - 1) > wrong * k) & (left * (n - 1) < (n - 1 - gone) * k)
    possible &= k / 2 * math.log((wrong + gone) / n) <= most_private if wrong + gone else True
    possible &= hypergeom.logpmf(caught, n - 1, wrong, k) <= most_private
    possible &= hypergeom.logpmf(left, n - 1, n - 1 - gone, k) <= most_failed
    for i in np.flatnonzero(possible):
        private = hypergeom.logsf(caught[i] - 1, n - 1, wrong, k[i]) <= most_private
        if private and hypergeom.logcdf(left[i], n - 1, n - 1 - gone, k[i]) <= most_failed:
            return int(k[i])
    return n - 1


def _ceil_part(part: float, n: int) -> int:
    return math.ceil(Fraction(part).limit_denominator(10**6) * n)
