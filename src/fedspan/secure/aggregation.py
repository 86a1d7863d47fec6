"""The coordinator's half of secure aggregation: it relays, adds up, and takes off the masks it was told.

It holds no key of its own. What it makes of the sites' replies is one sum over those who answered. A reply that cannot
be read costs its sender the sum, and of false shares half of those to spare are found and left out. What only other
sites can see (keys that are not signed, boxes that do not open) costs those who see it: they say so, and drop out.
Everything here is of one attempt at one sum.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedspan.encoding import Plain
from fedspan.errors import CohortError, ProtocolError, few
from fedspan.secure import messages
from fedspan.secure.decoding import correct
from fedspan.secure.keys import KeyPair
from fedspan.secure.masks import add_mask
from fedspan.secure.roll import ADVERT, Advert, Roll, Subject, fingerprint, pair_sign
from fedspan.secure.session import BOX
from fedspan.secure.shamir import SHARE_BYTES, combine
from fedspan.secure.too_few import way_out

_LONGEST_REASON = 400


def new_nonce() -> str:
    """Return what sets this attempt apart from all others."""
    return secrets.token_hex(16)


class Aggregation:
    """One attempt: messages out, replies in, in the order of the phases."""

    def __init__(self, subject: Subject, least: int = 0) -> None:
        self.subject, self._expected = subject, subject.expected
        self._least = max(least, subject.rules.fewest(subject.expected))
        self._noised_for, self._waited = least, 0
        self.refused: dict[str, str] = {}
        """Why sites took no further part."""
        self.asked: list[str] = []
        self.before: list[str] = []
        """Whose sum was begun to be unmasked in an earlier attempt: it can be no other one any more. None: it was not.
        """
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

    def take_keys(self, replies: Mapping[str, Plain], waited: int = 0) -> None:
        """Draw up the roll of those who gave keys; the sum must be of ``waited`` of them at least."""
        probe, earlier = KeyPair.generate(), Counter[tuple[str, ...]]()
        for name, (octets, before) in self._good(replies, lambda reply: _advert(reply, probe)):
            self._adverts[name] = octets
            earlier[before] += 1
        self.asked, self._least, self._waited = sorted(self._adverts), max(self._least, waited), waited
        self._enough(self.asked, "gave their keys")
        digests = tuple(fingerprint(self._adverts[name]) for name in self.asked)
        self.roll = Roll(self.subject, tuple(self.asked), digests)
        self._go_on(earlier)

    def _go_on(self, earlier: Counter[tuple[str, ...]]) -> None:
        """Take up an earlier attempt, where those who released for it are too many for any other sum."""
        del earlier[()]
        for sites, count in earlier.most_common(1):
            if len(self.asked) - count < self.roll.quorum:
                self.before = list(sites)

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
        for name, (boxes, commitment) in self._good(replies, lambda r: messages.fields(r, "boxes", "commitment")):
            neighbours = self.roll.neighbours(name)
            try:
                rows = messages.octets(boxes, "the boxes", BOX, len(neighbours))
                self._commitments[name] = messages.octets(commitment, "a commitment", 32).tobytes()
            except ProtocolError as error:
                self._refuse(name, error)
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

    @property
    def wanted(self) -> list[str]:
        """Who may be in the sum: all of those, unless an earlier attempt says who."""
        return sorted(set(self._boxes) & set(self.before)) if self.before else self.sharing

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
        for name, reason in refused.items():
            self._refuse(name, reason)
        self.alive = sorted(set(senders) & set(self._boxes))
        self.dropped = sorted(set(self._boxes) - set(self.alive))
        least = max(self._least, self.subject.rules.fewest(len(self.asked)), len(self.before))
        self._enough(self.alive, "sent their masked replies", least)

    # ---- the list and the release ----------------------------------------------------------------------------------

    def consent(self) -> Plain:
        """Return the list to sign."""
        return {"session": self.session, "alive": self.alive, "dropped": self.dropped}

    def take_consents(self, replies: Mapping[str, Plain]) -> None:
        """Collect signatures; sites check them, not the coordinator."""
        for name, (signature,) in self._good(replies, lambda r: messages.fields(r, "signature")):
            try:
                self._signatures[name] = messages.octets(signature, "a signature", 64).tobytes()
            except ProtocolError as error:
                self._refuse(name, error)
        self._enough(self._signatures, "signed the list of the sum's sites", self.roll.quorum)

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
        for name, found in self._good(replies, lambda r: messages.fields(r, "own", "pairs")):
            held = {n for n in self.roll.neighbours(name) if n in self._boxes} | {name}
            for shares, whose, into in zip(found, (self.alive, self.dropped), (self._own, self._pairs), strict=True):
                owners = sorted(held & set(whose))
                try:
                    rows = messages.octets(shares, "the shares", SHARE_BYTES, len(owners))
                except ProtocolError as error:
                    self._refuse(name, error)
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
                f"each are needed{self._reasons()}; {self._ways(self.roll.quorum)}"
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
        """Combine shares; where some are false, find out which."""
        holders = dict(enumerate(self.roll.holders(name), start=1))
        given = {point: shares[holder] for point, holder in holders.items() if holder in shares}
        for read in (_all_true, correct):
            try:
                secret, false = read(given, self.roll.needed)
            except ProtocolError:
                continue
            if fits(name, secret):
                for point in false:
                    self._refuse(holders[point], f"its share of the secret of {name!r} is false")
                return secret
        raise CohortError(
            f"{self._about}: some shares of the secret of {name!r} are false, and the rest do not give it back"
            f"{self._reasons()}; leave out the sites that are not to be believed"
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
                found = read(reply)
            except ProtocolError as error:
                self._refuse(name, error)
                continue
            yield name, found

    def _refuse(self, name: str, why: object) -> None:
        self.refused[name] = f"{why!s:.{_LONGEST_REASON}}"

    def _enough(self, who: Iterable[str], did: str, needed: int | None = None) -> None:
        needed, count = self._least if needed is None else needed, len(list(who))
        if count < needed:
            of = max(self._expected, len(self.asked))
            raise CohortError(
                f"{self._about}: {count} sites {did}, and it takes {needed} of {of}{self._reasons()}; "
                f"{self._ways(needed)}"
            )

    def _ways(self, needed: int) -> str:
        if self.before:
            return "a sum of these very sites was begun to be unmasked: wait for them (a longer deadline)"
        of = max(self._expected, len(self.asked))
        return way_out(self.subject.rules, needed, of, waited=self._waited, noised_for=self._noised_for)

    @property
    def _about(self) -> str:
        return f"round {self.subject.number}: no secure sum"

    def _reasons(self) -> str:
        said = [f"{name!r}: {why}" for name, why in sorted(self.refused.items())]
        return f" ({'; '.join(said[:3])}{' ...' if len(said) > 3 else ''})" if said else ""


def _all_true(shares: Mapping[int, bytes], threshold: int) -> tuple[bytes, list[int]]:
    return combine(shares, threshold), []


def _advert(reply: Plain, probe: KeyPair) -> tuple[bytes, tuple[str, ...]]:
    """Read a site's keys, with which anybody could make a shared one, and for whom it released before."""
    octets, before = messages.fields(reply, "advert", "before")
    advert = Advert.of(messages.octets(octets, "an advert", ADVERT).tobytes())
    for key in (advert.mask, advert.seal):
        probe.shared(key, b"probe")
    return advert.octets, tuple(messages.names(before, "the sites of an earlier sum"))
