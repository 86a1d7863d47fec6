"""Shamir's shares of a secret: any ``threshold`` of them give it back, fewer say nothing of it.

A share is the value of a random polynomial of degree ``threshold - 1`` at the holder's point, the secret its value at
0. The field is that of the least prime above 2²⁵⁶, so that every 32 bytes are a secret, and a share has 33 bytes.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache

from fedspan.errors import ConfigurationError, ProtocolError

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33
_BETWEEN = 16  # steps of Horner's rule from one division to the next
_LARGEST_POINT = 2**32  # small points keep the arithmetic short


def split(secret: bytes, points: Sequence[int], threshold: int) -> list[bytes]:
    """Return a share for each point; ``threshold`` of them give the secret back.

    >>> shares = split(bytes(range(32)), [1, 2, 3], 2)
    >>> combine({1: shares[0], 3: shares[2]}, 2) == bytes(range(32))
    True
    """
    if len(secret) != SECRET_BYTES:
        raise ConfigurationError(f"a secret to share has {SECRET_BYTES} bytes, got {len(secret)}")
    if not all(map(_is_point, points)) or len(set(points)) < len(points):
        raise ConfigurationError(f"points are different whole numbers from 1 to 2^32, got {list(points)!r:.200}")
    if not 1 <= threshold <= len(points):
        raise ConfigurationError(f"threshold is from 1 to the {len(points)} shares that are made, got {threshold}")
    coefficients = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    coefficients.append(int.from_bytes(secret, "big"))  # highest power first
    return [_value(coefficients, point).to_bytes(SHARE_BYTES, "big") for point in points]


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Return the secret that ``threshold`` shares were made of: those with the smallest points are used.

    That shares are the ones made cannot be seen of them: a false one gives another secret, or 33 bytes and an error.
    """
    if threshold < 1 or len(shares) < threshold:
        raise ProtocolError(f"a secret needs at least 1 share, and here {threshold}; got {len(shares)}")
    for point in shares:
        if not _is_point(point):
            raise ProtocolError(f"a share's point is a whole number from 1 to 2^32, got {point!r:.80}")
    points = tuple(sorted(shares)[:threshold])
    values = [_read(shares[point], point) for point in points]
    secret = sum(map(int.__mul__, values, _coefficients_at_zero(points))) % PRIME
    if secret >> 8 * SECRET_BYTES:
        raise ProtocolError(f"the shares at {list(points)!r:.80} are not of one secret of {SECRET_BYTES} bytes")
    return secret.to_bytes(SECRET_BYTES, "big")


def _is_point(point: object) -> bool:
    return isinstance(point, int) and not isinstance(point, bool) and 1 <= point <= _LARGEST_POINT


def is_share(share: object) -> bool:
    """Return whether this could be a share: so many bytes of a number below the prime."""
    return isinstance(share, bytes) and len(share) == SHARE_BYTES and int.from_bytes(share, "big") < PRIME


def _read(share: bytes, point: int) -> int:
    if is_share(share):
        return int.from_bytes(share, "big")
    raise ProtocolError(f"the share at {point} is no {SHARE_BYTES} bytes of a number below 2^256 + 297")


def _value(coefficients: list[int], point: int) -> int:
    """Return the polynomial's value by Horner's rule; small points leave most divisions to a few."""
    value = 0
    for start in range(0, len(coefficients), _BETWEEN):
        for coefficient in coefficients[start : start + _BETWEEN]:
            value = value * point + coefficient
        value %= PRIME
    return value


@lru_cache(maxsize=1024)
def _coefficients_at_zero(points: tuple[int, ...]) -> tuple[int, ...]:
    """Return Lagrange's coefficients at 0: the product of x_j / (x_j - x_i) over j ≠ i, for each i."""
    above = math.prod(points)
    below = [x * math.prod([y - x for y in points if y != x]) % PRIME for x in points]
    return tuple(above * inverse % PRIME for inverse in _inverses(below))


def _inverses(values: list[int]) -> list[int]:
    """Return inverses modulo the prime at the price of one: Montgomery's trick."""
    before = [1]
    for value in values:
        before.append(before[-1] * value % PRIME)
    inverse = pow(before[-1], -1, PRIME)
    inverses = []
    for product, value in zip(reversed(before[:-1]), reversed(values), strict=True):
        inverses.append(product * inverse % PRIME)
        inverse = inverse * value % PRIME
    return inverses[::-1]
