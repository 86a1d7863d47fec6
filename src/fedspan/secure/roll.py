"""Who takes part in one secure sum, and what both sides work out of it alike: session, graph, points, texts to sign.

The session is a hash of all that the sum is about: the run, the round, the question, and every participant's fresh
keys. The graph, the keys and every signature hang on it, so nothing of one sum is of any use in another, and nobody
picks neighbours for a site: whoever wants another graph needs other keys, which is one draw more from the same lot.
Draws cost no more than hashing the roll, and those who collude may make as many keys as they like. After 2^g of them
the chance of `SecureSums.security` = σ bits is at most 2^(g - σ): by default 2^-40 after 2^40 graphs.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

from fedspan.encoding import Plain, digest, encode
from fedspan.secure.graph import Circle
from fedspan.secure.rules import SecureSums

KINDS = ("bound", "value")
"""What is summed: bounds that a scale is chosen by, or the replies themselves."""
ADVERT = 32 + 32 + 64
"""Bytes of an advert: the key that masks are made with, the one that boxes are sealed with, and a signature."""


@dataclass(frozen=True)
class Advert:
    """A site's fresh public keys for one sum, signed by its identity."""

    mask: bytes
    seal: bytes
    signature: bytes

    @classmethod
    def of(cls, octets: bytes) -> Advert:
        """Return the advert of `ADVERT` bytes."""
        return cls(octets[:32], octets[32:64], octets[64:])

    @property
    def octets(self) -> bytes:
        """As it travels."""
        return self.mask + self.seal + self.signature


@dataclass(frozen=True)
class Subject:
    """What one secure sum is about: the same at the coordinator and at every site that masks agree with."""

    run: str
    number: int
    kind: str
    question: str
    """The digest of the round's question."""
    nonce: str
    """The coordinator's, another for each attempt."""
    rules: SecureSums
    expected: int = 0
    """How many sites a round asks: whoever colludes is among the few that are left."""

    def advert_text(self, name: str, mask: bytes, seal: bytes) -> bytes:
        """Return what a site signs to say that these are its keys."""
        return encode(["fedspan keys 1", self._digest, name, mask.hex(), seal.hex()])

    @cached_property
    def _digest(self) -> str:
        return digest(self._plain)

    @cached_property
    def _plain(self) -> list[object]:
        about = [self.run, self.number, self.kind, self.question, self.nonce]
        return [*about, self.rules.as_plain(), self.expected]


@dataclass(frozen=True)
class Roll:
    """Those who gave their keys for a sum, in order of name."""

    subject: Subject
    names: tuple[str, ...]
    digests: tuple[bytes, ...]
    """Of each one's advert."""

    @cached_property
    def session(self) -> bytes:
        """32 bytes that stand for this sum."""
        about = [*self.subject._plain, list(self.names), b"".join(self.digests).hex()]
        return hashlib.sha256(encode(["fedspan session 1", *about])).digest()

    @cached_property
    def degree(self) -> int:
        """k: with how many others each one shares masks."""
        return self.subject.rules.neighbours(len(self.names), self.subject.expected)

    @cached_property
    def needed(self) -> int:
        """t: how many holders give a secret back."""
        return self.subject.rules.holders_needed(self.degree)

    @cached_property
    def quorum(self) -> int:
        """How many signatures on one list it takes."""
        return self.subject.rules.quorum(max(self.subject.expected, len(self.names)))

    def most_missing(self, alive: list[str]) -> tuple[int, int]:
        """Return how many of k/2 neighbours in a row a sum lacks at most, and how many it may."""
        if self.degree >= len(self.names) - 1:
            return 0, len(self.names)
        allowed = self.subject.rules.gap(len(self.names), self.subject.expected)
        return self._circle.most_missing(set(alive)), allowed

    @cached_property
    def _circle(self) -> Circle:
        return Circle(self.names, self.session, self.degree)

    def neighbours(self, name: str) -> list[str]:
        """Return a participant's neighbours, sorted."""
        return self._circle.neighbours(name)

    def holders(self, name: str) -> list[str]:
        """Return who holds shares of a participant's secrets, by their points from 1: its neighbours and itself."""
        return sorted([*self.neighbours(name), name])

    def seal_info(self, sender: str, receiver: str) -> bytes:
        """Return what the key of one box hangs on."""
        return encode(["fedspan box 1", self.session.hex(), sender, receiver])

    def mask_info(self, one: str, other: str, about: str) -> bytes:
        """Return what the key of one pair's mask hangs on; ``about`` says how the numbers are read (`reading`)."""
        return encode(["fedspan mask 1", self.session.hex(), about, *sorted([one, other])])

    def survivors_text(self, alive: list[str], dropped: list[str], about: str) -> bytes:
        """Return what sites sign to agree on who is in the sum, and how its numbers are read."""
        return encode(["fedspan survivors 1", self.session.hex(), about, digest([alive, dropped])])


def reading(exponents: Plain, times: Plain, mean: Plain, state: Plain, lineage: str = "") -> str:
    """Return the digest of how the numbers of a sum are read: masks of sites that were told otherwise do not cancel.

    Else one site could be told a finer scale than the others, or to count a million times, and its numbers would stand
    above the sum of the rest. So they would if the others had been made to see their rows through a preparation that
    leaves nothing of them: ``state`` holds the one that the numbers were made under. Or if the others' steps had been
    made to go on from a state that leaves nothing of theirs: ``lineage`` is the digest of all questions whose state
    this one goes on from.
    """
    preparation = state.get("preparation") if isinstance(state, dict) else None
    return digest([exponents, times, mean, preparation, lineage])


def fingerprint(octets: bytes) -> bytes:
    """Return the digest of an advert."""
    return hashlib.sha256(octets).digest()


def pair_sign(name: str, other: str) -> int:
    """Return with which sign a site's mask with another one counts: what one adds, the other takes off."""
    return 1 if name < other else -1
