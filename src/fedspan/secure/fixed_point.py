"""Real vectors as integers modulo 2⁶⁴: sums of them are exact, and masks hide them perfectly.

A value is rounded to a multiple of 2^-exponent. With the exponent chosen for a bound on the sum (`exponent_for`) no sum
wraps around: it is at most 2⁶² steps, and half a step more for each site. What is beyond its limit is an error at the
site, before anything is masked.

Wide numbers are for scalars whose size nobody knows yet, such as a sum of squares that the exponent is chosen by: 36
digits of base 2³², one to a word. 18 are behind the point: multiples of 2⁻⁵⁷⁶, where doubles down to 2⁻⁵²³ are exact.
18 are before it, below 2⁵⁷⁶: a sum of 2³¹ numbers of at most 2⁵¹² is at most 2⁵⁴³. Each word has room for 2³² digits,
so they add word by word, with no carry until the sum is read.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedspan.errors import ConfigurationError, DataError, ProtocolError

WIDE = 36
"""Words of a wide number."""

_MOST = 62  # the sum stays within ±2^62 steps
_POINT = 32 * WIDE // 2  # bits behind the point of a wide number
_LARGEST_WIDE = 2.0**512
_TERMS = 2**31  # that a wide sum may have
_EXTREME = 1000  # exponents are within ±1000


DITHER = 2.0
"""The deviation of what is added to a number before it is rounded, in steps.

A rounded number is no linear function: from sums of rounded numbers at many scales one could tell single ones. Added
noise of sigma steps makes them linear but for harmonics of size exp(-2 pi^2 sigma^2), here 5e-35.
"""
MOST_DITHER = 16
"""Steps that it is cut at: eight deviations."""


def encode(
    values: ArrayLike, exponent: int, limit: float, rng: np.random.Generator | None = None
) -> NDArray[np.uint64]:
    """Return values in steps of 2^-exponent, rounded to the nearest, as two's complement.

    With ``rng`` after noise of `DITHER` steps, unless all are zeros: then rounding tells nothing of a value.

    >>> encode([1.5, -0.25], 2, limit=2.0)
    array([                   6, 18446744073709551615], dtype=uint64)
    """
    x = np.asarray(values, dtype=np.float64)
    largest = float(np.max(np.abs(x), initial=0.0))  # nan if any is
    if not largest <= limit:
        raise DataError(
            f"a value of size {largest:.6g} is beyond the limit {limit:.6g} that was agreed for a secure sum, which "
            f"could wrap around; clip the rows, or agree on a larger limit"
        )
    steps = _scaled(x, exponent)
    if np.max(np.abs(steps), initial=0.0) > 2.0**_MOST:
        raise DataError(
            f"a value of size {largest:.6g} is more than 2^{_MOST} steps of 2^{-exponent}; choose an exponent below "
            f"{exponent} (`exponent_for`)"
        )
    if rng is not None and largest > 0:
        steps = steps + np.clip(DITHER * rng.standard_normal(steps.shape), -MOST_DITHER, MOST_DITHER)
    return np.asarray(np.rint(steps)).astype(np.int64).view(np.uint64)


def decode(total: NDArray[np.uint64], exponent: int) -> NDArray[np.float64]:
    """Return what steps of 2^-exponent come to; sums beyond 2⁵³ steps are rounded to the nearest float.

    >>> decode(encode([1.5, -0.25], 2, limit=2.0), 2)
    array([ 1.5 , -0.25])
    """
    values = _scaled(np.asarray(total, dtype=np.uint64).view(np.int64).astype(np.float64), -exponent)
    if not np.all(np.isfinite(values)):
        raise ProtocolError(f"a sum in steps of 2^{-exponent} is beyond the largest float")
    return values


def exponent_for(bound: float) -> int:
    """Return the finest exponent for sums of at most ``bound`` in size: the largest e with bound · 2^e ≤ 2⁶².

    >>> exponent_for(1.0), exponent_for(1000.0), exponent_for(0.0)
    (62, 52, 0)
    """
    bound = float(bound)
    if not 0 <= bound < math.inf:
        raise ConfigurationError(f"a sum's bound is a finite number, not negative; got {bound!r}")
    if bound == 0:
        return 0
    fraction, power = math.frexp(bound)
    finest = _MOST - power + (fraction == 0.5)
    return max(-_EXTREME, min(_EXTREME, finest))


def rounding_error(exponent: int, sites: int) -> float:
    """Return the most that rounding moves an entry of the sum of so many sites: half a step for each, and its noise."""
    return math.ldexp(sites * (2 * MOST_DITHER + 1), -exponent - 1)


def is_on_grid(values: ArrayLike, exponent: int) -> bool:
    """Return whether all values are multiples of 2^-exponent and fewer than 2⁶² of them: `encode` is exact then."""
    x = np.asarray(values, dtype=np.float64)
    steps = _scaled(x, exponent)
    if not np.all(np.abs(steps) < 2.0**_MOST):  # nan is not either
        return False
    back = _scaled(steps, -exponent)  # differs where scaling lost digits below the least float
    return bool(np.all(steps == np.rint(steps)) and np.all(back == x))


def to_wide(value: float) -> NDArray[np.uint64]:
    """Return a number from 0 to 2⁵¹² as digits of base 2³², the least first; digits below 2⁻⁵⁷⁶ are rounded up.

    >>> from_wide(to_wide(0.1) + to_wide(1e100))
    1e+100
    """
    value = float(value)
    if not 0 <= value <= _LARGEST_WIDE:
        raise DataError(f"a wide number is from 0 to 2^512, got {value!r}; is a value of the data out of all bounds?")
    units = math.ceil(Fraction(value) * 2**_POINT)
    return np.frombuffer(units.to_bytes(4 * WIDE, "little"), dtype="<u4").astype(np.uint64)


def from_wide(total: NDArray[np.uint64]) -> float:
    """Return the float nearest to a sum of up to 2³¹ wide numbers."""
    words: Any = np.asarray(total)
    if words.shape != (WIDE,) or words.dtype != np.uint64:
        raise ProtocolError(f"a wide sum has {WIDE} words of uint64, got {words.dtype} of shape {words.shape}")
    digits = [int(word) for word in words]
    if max(digits) > _TERMS * (2**32 - 1):
        raise ProtocolError("a word of a wide sum is larger than 2^31 digits add up to; was a mask not taken off?")
    return float(Fraction(sum(digit << 32 * place for place, digit in enumerate(digits)), 2**_POINT))


def _scaled(x: NDArray[np.float64], exponent: int) -> NDArray[np.float64]:
    """Return x · 2^exponent in one rounding, which only changes digits below the least float; or inf."""
    if not -_EXTREME <= exponent <= _EXTREME:
        raise ConfigurationError(f"an exponent is from -{_EXTREME} to {_EXTREME}, got {exponent!r}")
    with np.errstate(over="ignore", under="ignore"):
        scaled: NDArray[np.float64] = np.ldexp(x, exponent)
    return scaled
