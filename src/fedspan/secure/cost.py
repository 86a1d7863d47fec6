"""What one secure sum costs in bytes, by its rules: for a plan, before anybody has a key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedspan.secure.fixed_point import WIDE
from fedspan.secure.roll import ADVERT, KINDS
from fedspan.secure.rules import SecureSums
from fedspan.secure.session import BOX
from fedspan.secure.shamir import SHARE_BYTES

_DIGEST, _SIGNATURE = 32, 64
_HEX, _NONCE = 64, 32  # a digest, and a nonce, as text
_NUMBER = 8


@dataclass(frozen=True)
class Asked:
    """A question, as far as its bytes go."""

    step: str
    message: int
    """Bytes of the message."""
    parts: Mapping[str, int]
    """How many numbers each part of a reply has."""
    mean: bool = False
    repeated: int = 0
    """How many sites' replies count more than once."""


@dataclass(frozen=True)
class SumCost:
    """Bytes of one sum: from a site and to it, and from all and to all."""

    up: int
    down: int
    bytes_up: int
    bytes_down: int

    def __add__(self, other: SumCost) -> SumCost:
        """Return the cost of two sums."""
        return SumCost(
            self.up + other.up, self.down + other.down, self.bytes_up + other.bytes_up,
            self.bytes_down + other.bytes_down,
        )  # fmt: skip


def sum_cost(
    rules: SecureSums, names: Sequence[str], alive: Sequence[str], asked: Asked, kind: str, *, scaled: bool
) -> SumCost:
    """Return what a sum costs if all of ``names`` give keys and share, and ``alive`` of them answer all the way.

    ``scaled``: whether the coordinator says how fine the numbers are.
    """
    n, k, left = len(names), rules.neighbours(len(names)), len(alive)
    parts = {**asked.parts, **({"weight of the mean": 1} if asked.mean else {})}
    numbers = WIDE * len(parts) if kind == KINDS[0] else sum(parts.values())
    reply = _NUMBER * (numbers + len(parts)) + _HEX  # and each part's exponent, and how they are read
    before, after = ADVERT + k * BOX + _DIGEST, reply + _SIGNATURE + (k + 1) * SHARE_BYTES
    roll, present = sum(len(name.encode()) for name in names), sum(len(name.encode()) for name in alive)
    told = len(kind) + _HEX + _NONCE + roll + n * _DIGEST + k * ADVERT
    exponents = _NUMBER * len(parts) if scaled and kind != KINDS[0] else 0
    question = _HEX + len(asked.step) + asked.message + exponents + _NUMBER * (1 + asked.repeated) + k * BOX
    agreed = 2 * _HEX + roll + present + left * _SIGNATURE
    to_all = n * (told + question) + k * roll + left * agreed
    return SumCost(before + after, -(-to_all // n), n * before + left * after, to_all)
