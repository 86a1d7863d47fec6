"""The coordinator's half of secure aggregation: it relays, adds up, and takes off the masks it was told.

It holds no key of its own. What it makes of the sites' replies is one sum over those who answered; a reply that is no
honest site's costs its sender the sum, not the others. Everything here is of one attempt at one sum.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedspan.encoding import Plain
from fedspan.errors import CohortError, ProtocolError, few
from fedspan.secure import messages
from fedspan.secure.keys import KeyPair
from fedspan.secure.masks import add_mask
from fedspan.secure.party import BOX
from fedspan.secure.roll import ADVERT, Advert, Roll, Subject, fingerprint, pair_sign
from fedspan.secure.shamir import SHARE_BYTES, combine

_SUBSETS = 32
"""Of shares that are tried where some are false, before the sum is given up."""


def new_nonce() -> str:
    """Return what sets this attempt apart from all others."""
    return secrets.token_hex(16)


class Aggregation:
    """One attempt: messages out, replies in, in the order of the phases."""

    def __init__(self, subject: Subject, expected: int, least: int = 0) -> None:
        self.subject, self._expected, self._least = subject, expected, max(least, subject.rules.fewest(expected))
        self.refused: dict[str, str] = {}
        """Why sites took no further part."""
        self.asked: list[str] = []
        self._adverts: dict[str, bytes] = {}
        self._boxes: dict[str, dict[str, bytes]] = {}
        self._commitments: dict[str, bytes] = {}
        self.alive: list[str] = []
        self.dropped: list[str] = []
        self._signatures: dict[str, bytes] = {}
        self._own: dict[str, dict[str, bytes]] = {}
        self._pairs: dict[str, dict[str, bytes]] = {}
        self.roll: Roll

    # ---- keys ----------------------------------------------------------------------------------------------------

    def keys(self) -> Plain:
        """Return the first message."""
        return {"kind": self.subject.kind, "question": self.subject.question, "nonce": self.subject.nonce}

    def take_keys(self, replies: Mapping[str, Plain]) -> None:
        """Draw up the roll of those who gave keys."""
        for name, octets in self._good(replies, lambda r: messages.octets(r["advert"], "an advert", ADVERT)):
            self._adverts[name] = octets.tobytes()
        self.asked = sorted(self._adverts)
        self._enough(self.asked, "gave their keys")
        digests = tuple(fingerprint(self._adverts[name]) for name in self.asked)
        self.roll = Roll(self.subject, tuple(self.asked), digests)

    # ---- shares --------------------------------------------------------------------------------------------------

    def shares(self) -> Plain:
        """Return the roll."""
        return {"names": self.asked, "digests": messages.stack(list(self.roll.digests), 32)}

    def share_letters(self) -> dict[str, Plain]:
        """Return to each site its neighbours' keys."""
        return {
            name: {"adverts": messages.stack([self._adverts[n] for n in self.roll.neighbours(name)], ADVERT)}
            for name in self.asked
        }

    def take_shares(self, replies: Mapping[str, Plain]) -> None:
        """Sort the boxes by whom they are for."""
        for name, reply in self._good(replies, lambda r: r):
            neighbours = self.roll.neighbours(name)
            try:
                rows = messages.octets(reply["boxes"], "the boxes", BOX, len(neighbours))
                self._commitments[name] = messages.octets(reply["commitment"], "a commitment", 32).tobytes()
            except (LookupError, ProtocolError) as error:
                self.refused[name] = str(error)
                continue
            self._boxes[name] = {n: row.tobytes() for n, row in zip(neighbours, rows, strict=True)}
        self._enough(self._boxes, "shared their secrets")

    # ---- masks ---------------------------------------------------------------------------------------------------

    @property
    def session(self) -> str:
        """The session in hexadecimal, as every later message names it."""
        return self.roll.session.hex()

    @property
    def sharing(self) -> list[str]:
        """Who shared its secrets, and so takes part in the masks."""
        return sorted(self._boxes)

    def mask_letters(self) -> dict[str, Plain]:
        """Return to each site the boxes that its neighbours sealed for it."""
        letters = {}
        for name in self.sharing:
            senders = [other for other in self.roll.neighbours(name) if other in self._boxes]
            boxes = messages.stack([self._boxes[other][name] for other in senders], BOX)
            letters[name] = {"from": senders, "boxes": boxes}
        return letters

    def take_masked(self, senders: Iterable[str], refused: Mapping[str, str]) -> None:
        """Note who is in the sum; the rest of those who shared secrets dropped out."""
        self.refused |= refused
        self.alive = sorted(set(senders) & set(self._boxes))
        self.dropped = sorted(set(self._boxes) - set(self.alive))
        least = max(self._least, self.subject.rules.fewest(len(self.asked)))
        self._enough(self.alive, "sent their masked replies", least)

    # ---- the list and the release ----------------------------------------------------------------------------------

    def consent(self) -> Plain:
        """Return the list to sign."""
        return {"session": self.session, "alive": self.alive, "dropped": self.dropped}

    def take_consents(self, replies: Mapping[str, Plain]) -> None:
        """Collect signatures; sites check them, not the coordinator."""
        for name, octets in self._good(replies, lambda r: messages.octets(r["signature"], "a signature", 64)):
            self._signatures[name] = octets.tobytes()
        quorum = self.subject.rules.quorum(max(self._expected, len(self.asked)))
        self._enough(self._signatures, "signed the list of the sum's sites", quorum)

    def release(self) -> Plain:
        """Return the signatures, as a site wants to see them before it gives up a share."""
        signers = sorted(self._signatures)
        signatures = messages.stack([self._signatures[name] for name in signers], 64)
        return {"session": self.session, "signers": signers, "signatures": signatures}

    @property
    def signers(self) -> list[str]:
        """Who signed, and so can be asked to release."""
        return sorted(self._signatures)

    def take_released(self, replies: Mapping[str, Plain]) -> None:
        """Sort the shares by whose secret they are of."""
        for name, reply in self._good(replies, lambda r: r):
            held = {n for n in self.roll.neighbours(name) if n in self._boxes} | {name}
            for key, whose, into in (("own", self.alive, self._own), ("pairs", self.dropped, self._pairs)):
                owners = sorted(held & set(whose))
                try:
                    rows = messages.octets(reply[key], "the shares", SHARE_BYTES, len(owners))
                except (LookupError, ProtocolError) as error:
                    self.refused[name] = str(error)
                    break
                for owner, row in zip(owners, rows, strict=True):
                    into.setdefault(owner, {})[name] = row.tobytes()

    @property
    def complete(self) -> bool:
        """Whether there are shares enough of every secret."""
        return not self._missing()

    def _missing(self) -> list[str]:
        lacking = [n for n in self.alive if len(self._own.get(n, ())) < self.roll.needed]
        return sorted([*lacking, *(n for n in self.dropped if len(self._pairs.get(n, ())) < self.roll.needed)])

    # ---- unmasking -----------------------------------------------------------------------------------------------

    def unmask(self, total: NDArray[np.uint64], about: str) -> None:
        """Take all masks off a sum, in place; ``about`` as the sites were told to read its numbers."""
        missing = self._missing()
        if missing:
            raise CohortError(
                f"{self._about}: shares are missing of the secrets of {few(missing)}; {self.roll.needed} holders of "
                f"each are needed{self._reasons()}"
            )
        for name in self.alive:
            seed = self._secret(name, self._own[name], self._is_seed)
            add_mask(total, seed, sign=-1)
        alive = set(self.alive)
        for name in self.dropped:
            pair = KeyPair.from_private(self._secret(name, self._pairs[name], self._is_key))
            for other in self.roll.neighbours(name):
                if other in alive:
                    public = Advert.of(self._adverts[other]).mask
                    key = pair.shared(public, self.roll.mask_info(name, other, about))
                    add_mask(total, key, sign=-pair_sign(other, name))

    def _secret(self, name: str, shares: Mapping[str, bytes], fits: Callable[[str, bytes], bool]) -> bytes:
        """Combine shares; where some are false, leave out one holder after another."""
        points = {holder: point for point, holder in enumerate(self.roll.holders(name), start=1)}
        given = {points[holder]: share for holder, share in shares.items()}
        for chosen in islice(_choices(sorted(given), self.roll.needed), _SUBSETS):
            try:
                secret = combine({point: given[point] for point in chosen}, self.roll.needed)
            except ProtocolError:
                continue
            if fits(name, secret):
                return secret
        raise ProtocolError(
            f"{self._about}: the shares of {name!r}'s secret do not give it back; some holder tampered with its share"
        )

    def _is_seed(self, name: str, secret: bytes) -> bool:
        return hashlib.sha256(secret).digest() == self._commitments[name]

    def _is_key(self, name: str, secret: bytes) -> bool:
        return KeyPair.from_private(secret).public == Advert.of(self._adverts[name]).mask

    # ---- what goes wrong -------------------------------------------------------------------------------------------

    def _good(self, replies: Mapping[str, Plain], read: Callable[[Any], Any]) -> Iterable[tuple[str, Any]]:
        """Yield replies that can be read; note the others' reasons."""
        for name, reply in sorted(replies.items()):
            try:
                if isinstance(reply, dict) and set(reply) == {"refused"}:
                    raise ProtocolError(messages.text(reply["refused"], "a reason"))
                yield name, read(reply)
            except (LookupError, TypeError, ProtocolError) as error:
                self.refused[name] = str(error)

    def _enough(self, who: Iterable[str], did: str, needed: int | None = None) -> None:
        needed, count = self._least if needed is None else needed, len(list(who))
        if count < needed:
            of = max(self._expected, len(self.asked))
            raise CohortError(f"{self._about}: {count} sites {did}, and it takes {needed} of {of}{self._reasons()}")

    @property
    def _about(self) -> str:
        return f"round {self.subject.number}: no secure sum"

    def _reasons(self) -> str:
        said = [f"{name!r}: {why}" for name, why in sorted(self.refused.items())]
        return f" ({'; '.join(said[:3])}{' ...' if len(said) > 3 else ''})" if said else ""


def _choices(points: list[int], needed: int) -> Iterable[list[int]]:
    """Yield choices of so many points: all windows of the circle, then random ones."""
    for start in range(len(points)):
        yield sorted((points[start:] + points[:start])[:needed])
    rng = np.random.default_rng(0)
    while len(points) > needed:
        yield sorted(rng.choice(points, size=needed, replace=False).tolist())
