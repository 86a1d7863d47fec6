"""What a study asks of its secure sums: who may collude, who may drop out, and how sure it is to be.

Symbols of Bell et al. (2020): n sites, each with k neighbours; a share γ of the sites colludes with the coordinator, a
share δ drops out; t of the m = k + 1 holders of a secret's shares give it back; σ bits of security, η of correctness.
Three tails are kept small: that 2t - m of a site's neighbours collude, that so many sites in a row collude that the
graph of masks can be cut (`_cut_tail`: where Bell et al. let a share δ drop out at random, here the coordinator chooses
them), and that fewer than t of a site's neighbours are left.
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

    def colluders(self, n: int) -> int:
        """Return how many of n sites may collude."""
        return _ceil_part(self.colluding, n)

    def neighbours(self, n: int, of: int = 0) -> int:
        """Return k, with how many others each of n sites shares masks: n - 1, or an even number below it.

        ``of``: how many sites a round asks; all who collude may be among the n that are left.
        """
        return self._graph(n, of)[0]

    def gap(self, n: int, of: int = 0) -> int:
        """Return how many of k/2 sites in a row on the circle of the graph may be missing from a sum."""
        return self._graph(n, of)[1]

    def _graph(self, n: int, of: int) -> tuple[int, int]:
        if n <= self.complete_up_to:
            return n - 1, n
        wrong, gone = min(n, _ceil_part(self.colluding, max(n, of))), _ceil_part(self.dropouts, n)
        return _fewest_neighbours(n, wrong, gone, self._threshold, self.security, self.correctness)

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
    n: int, wrong: int, gone: int, threshold: Fraction, security: int, correctness: int
) -> tuple[int, int]:
    """Return the smallest even k for which all tails are small enough, and the gap that goes with it; or n - 1.

    Tails are sums of point masses, which are far cheaper: where the largest of them is too much alone, so is the tail.
    Each tail must lie beyond its mean, where the point mass at its edge is the largest.
    """
    k = np.arange(2, n - 1, 2)
    t = threshold.numerator * (k + 1) // threshold.denominator + 1
    caught, left = 2 * t - (k + 1), t - 1
    private, failed = -security * _LN2, -correctness * _LN2 - math.log(n)
    possible = (caught * (n - 1) > wrong * k) & (left * (n - 1) < (n - 1 - gone) * k)
    possible &= hypergeom.logpmf(caught, n - 1, wrong, k) <= private - math.log(n)
    possible &= hypergeom.logpmf(left, n - 1, n - 1 - gone, k) <= failed
    for i in np.flatnonzero(possible):
        kept = hypergeom.logsf(caught[i] - 1, n - 1, wrong, k[i]) <= private - math.log(n)
        if kept and hypergeom.logcdf(left[i], n - 1, n - 1 - gone, k[i]) <= failed:
            half, spare = int(k[i]) // 2, int(k[i]) + 1 - int(t[i])
            gap = min(spare, _most_gone(n, gone, half, failed))
            if 2 * _cut_tail(n, wrong, half, spare, gap) + 2 * math.log(n) - _LN2 <= private:
                return int(k[i]), gap
    return n - 1, n


def _most_gone(n: int, gone: int, half: int, failed: float) -> int:
    """Return how many of so many sites in a row drop out at most, but for a chance of exp(failed)."""
    return next((g for g in range(half) if hypergeom.logsf(g, n, gone, half) <= failed), half)


def _cut_tail(n: int, wrong: int, half: int, spare: int, gap: int) -> float:
    """Return the logarithm of the chance that the masks' graph can be cut at one place of the circle.

    A coordinator who knows the graph picks whom it lets drop out. To know the sum of a part of the sites alone, it must
    leave no mask between that part and the rest, so at each end of the part it needs L <= k/2 sites in a row that
    collude (c of them) or are missing. Masks that reach across, k/2 - L of the last site's, must not be made: that
    site is told that their partners sent no boxes. It allows m - t of its m - 1 neighbours to be missing, and as many
    holders of each secret may be, so (L - c) + (k/2 - L) <= m - t; and sites sign for no more than ``gap`` missing in a
    row, L - c <= gap. Both hold with the fewest colluders for L = k/2 - (m - t) + gap. A part has two ends.
    """
    needed = half - spare
    if needed < 1:
        return 0.0
    return float(hypergeom.logsf(needed - 1, n, wrong, min(half, needed + gap)))


def _ceil_part(part: float, n: int) -> int:
    return math.ceil(Fraction(part).limit_denominator(10**6) * n)
