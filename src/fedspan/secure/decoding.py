"""Shamir's shares of which some are false: up to half of those beyond the threshold are found and left out.

Shares are the values of a polynomial of degree t - 1 at n points: a Reed-Solomon codeword. It is decoded by Gao's
algorithm (2003): interpolate all n values, then follow Euclid's algorithm between that polynomial and the one that is
zero at all points, until the remainder's degree is below (n + t) / 2; the remainder over its cofactor is the one that
was shared, if at most (n - t) / 2 values are false.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest

from fedspan.errors import ProtocolError
from fedspan.secure.shamir import PRIME, SECRET_BYTES, is_share

Polynomial = list[int]
"""Coefficients modulo the prime, the constant first, the last one not zero; none at all is the polynomial zero."""


def correct(shares: Mapping[int, bytes], threshold: int) -> tuple[bytes, list[int]]:
    """Return the secret, and the points whose shares are not of it.

    >>> from fedspan.secure.shamir import split
    >>> shares = dict(enumerate(split(bytes(range(32)), [1, 2, 3, 4, 5], 3), start=1))
    >>> secret, false = correct({**shares, 4: bytes(33)}, 3)
    >>> secret == bytes(range(32)), false
    (True, [4])
    """
    values = {point: int.from_bytes(share, "big") for point, share in shares.items() if is_share(share)}
    found = _decoded(values, threshold) if len(values) >= threshold >= 1 else None
    if found is None or found[0] >> 8 * SECRET_BYTES:
        spare = max(0, (len(shares) - threshold) // 2)
        raise ProtocolError(
            f"{len(shares)} shares, of which {threshold} would do, are not of one secret but for {spare} false ones"
        )
    false = [point for point in sorted(shares) if point not in values or _value(found, point) != values[point]]
    return found[0].to_bytes(SECRET_BYTES, "big"), false


def _decoded(values: Mapping[int, int], threshold: int) -> Polynomial | None:
    """Return the polynomial that all but a few values are of, padded to its constant; None: there is none."""
    zero = _zero_at(list(values))
    before, now = zero, _through(values, zero)
    past: Polynomial = []
    cofactor: Polynomial = [1]
    while 2 * (len(now) - 1) >= len(values) + threshold:
        quotient, rest = _divided(before, now)
        past, cofactor = cofactor, _less(past, _times(quotient, cofactor))
        before, now = now, rest
    found, rest = _divided(now, cofactor)
    return None if rest or len(found) > threshold else found or [0]


def _zero_at(points: list[int]) -> Polynomial:
    product: Polynomial = [1]
    for point in points:
        product = _times([-point % PRIME, 1], product)
    return product


def _through(values: Mapping[int, int], zero: Polynomial) -> Polynomial:
    """Return the polynomial through all values, by Lagrange's formula."""
    total: Polynomial = []
    for point, value in values.items():
        others, _ = _divided(zero, [-point % PRIME, 1])
        factor = value * pow(_value(others, point), -1, PRIME) % PRIME
        total = _less(total, [-factor * c % PRIME for c in others])
    return total


def _value(polynomial: Polynomial, point: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * point + coefficient) % PRIME
    return value


def _trimmed(polynomial: Polynomial) -> Polynomial:
    while polynomial and polynomial[-1] == 0:
        polynomial.pop()
    return polynomial


def _less(one: Polynomial, other: Polynomial) -> Polynomial:
    return _trimmed([(a - b) % PRIME for a, b in zip_longest(one, other, fillvalue=0)])


def _times(one: Polynomial, other: Polynomial) -> Polynomial:
    product = [0] * (len(one) + len(other))
    for i, a in enumerate(one):
        for j, b in enumerate(other):
            product[i + j] += a * b
    return _trimmed([c % PRIME for c in product])


def _divided(one: Polynomial, other: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Return quotient and rest."""
    rest, lead = list(one), pow(other[-1], -1, PRIME)
    quotient = [0] * max(0, len(one) - len(other) + 1)
    for place in reversed(range(len(quotient))):
        factor = rest[place + len(other) - 1] * lead % PRIME
        quotient[place] = factor
        if factor:
            for i, c in enumerate(other):
                rest[place + i] = (rest[place + i] - factor * c) % PRIME
    return _trimmed(quotient), _trimmed(rest[: len(other) - 1])
