"""A sum of arrays whose bits do not depend on the order of the terms.

Floating-point addition is not associative, so replies that race would give a different last bit each run. Here each
entry is cut, exactly, into integer digits of 32 bits on a grid that is the same for every term; the digits are
summed as 64-bit integers (exact, in any order) and rounded to a float once, at the end. The four leading digits of
the largest term are kept: 96 to 128 bits below the largest magnitude seen, far beyond a float's 53.
After Demmel and Nguyen, "Parallel reproducible summation" (2015), with integers in place of their floating bins.
"""

from __future__ import annotations

import numpy as np

from fedspan.encoding import Array

_BITS = 32
_DIGITS = 4
_HALF = 1 << (_BITS - 1)
_MOST_TERMS = 2**30  # each digit is below 2^32 in magnitude, so 2^30 of them fit 63 bits


class OrderFreeSum:
    """Sums arrays of one shape; any order of `add` gives identical bits.

    >>> total = OrderFreeSum((1,))
    >>> for x in (1e16, 1.0, -1e16):
    ...     total.add(np.array([x]))
    >>> total.result()
    array([1.])
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._digits = np.zeros((_DIGITS, *shape), dtype=np.int64)
        self._top: int | None = None  # the leading digit counts multiples of 2^(32 * top)
        self._special = np.zeros(shape)  # infinities and NaN, which have no digits
        self._terms = 0

    def add(self, term: Array) -> None:
        """Add one term."""
        self._terms += 1
        if self._terms > _MOST_TERMS:
            raise OverflowError(f"an order-free sum takes at most {_MOST_TERMS} terms")
        finite = np.isfinite(term)
        if not finite.all():
            with np.errstate(invalid="ignore"):  # inf - inf is NaN, as in any sum
                self._special = self._special + np.where(finite, 0.0, term)
            term = np.where(finite, term, 0.0)
        largest = float(np.max(np.abs(term), initial=0.0))
        if largest == 0:
            return
        self._raise_top(int(np.frexp(largest)[1]) // _BITS)
        rest = np.array(term, dtype=float)
        for row in range(_DIGITS):
            unit = _BITS * (self._top - row)  # type: ignore[operator]
            digit = np.trunc(np.ldexp(rest, -unit))
            rest -= np.ldexp(digit, unit)  # exact: cut towards zero, the digits of a float do not overlap
            self._digits[row] += digit.astype(np.int64)

    def _raise_top(self, top: int) -> None:
        """Move the grid up if this term is larger than any before; the digits that fall off are the same ones
        that would never have been kept, had the large term come first."""
        if self._top is None:
            self._top = top
        up = min(top - self._top, _DIGITS)
        if up > 0:
            self._digits = np.concatenate([np.zeros_like(self._digits[:up]), self._digits[: _DIGITS - up]])
            self._top = top

    def result(self) -> Array:
        """Return the sum, rounded to float64."""
        total = np.zeros_like(self._special)
        carry = np.zeros_like(self._digits[0])
        for row in reversed(range(_DIGITS)):
            # Digits below the leading one are carried into [-2^31, 2^31), not [0, 2^32): a small negative sum would
            # else be a leading -1 and digits that cancel it, and their rounding would be all that is left of it.
            value = self._digits[row] + carry
            carry = (value + _HALF) >> _BITS if row else np.zeros_like(carry)
            total = total + np.ldexp((value - (carry << _BITS)).astype(float), -_BITS * row)
        with np.errstate(over="ignore"):  # a sum beyond the largest float is infinite
            total = np.ldexp(total, _BITS * (self._top or 0))
        special = np.where(np.isnan(self._special), np.nan, self._special)
        return np.where(special == 0, total, special)
