"""What a site keeps of one secure sum, from its keys to its release; never written down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedspan.encoding import Plain, digest
from fedspan.errors import ProtocolError, few
from fedspan.secure import messages
from fedspan.secure.keys import KeyPair, open_sealed, seal
from fedspan.secure.masks import add_mask
from fedspan.secure.roll import Advert, Roll, Subject, pair_sign
from fedspan.secure.shamir import SHARE_BYTES

BOX = 2 * SHARE_BYTES + 16
"""Bytes of a sealed pair of shares."""


@dataclass
class Session:
    """One sum, as one of those who take part sees it."""

    name: str
    subject: Subject
    masking: KeyPair = field(default_factory=KeyPair.generate)
    sealing: KeyPair = field(default_factory=KeyPair.generate)
    said: dict[str, tuple[str, Plain]] = field(default_factory=dict)
    """What was asked and answered in each phase."""
    roll: Roll = field(init=False)
    neighbours: list[str] = field(default_factory=list)
    adverts: dict[str, Advert] = field(default_factory=dict)
    own_seed: bytes = b""
    held: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)
    """By site: the shares of its own mask's seed and of its masking key. Of those who sent none, none."""
    about: str = ""
    """How the numbers that were masked are read (`fedspan.secure.roll.reading`); "": none were."""
    alive: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    """The list, as this site signed it."""

    def once(self, phase: str, message: Plain, make: Callable[[], Plain]) -> Plain:
        """Answer a phase once; the same question gets the same bytes again, another one is refused."""
        asked = _digest(message)
        if phase in self.said:
            before, reply = self.said[phase]
            if before != asked:
                raise ProtocolError(f"the sum's {phase} were asked for twice, with different messages")
            return reply
        reply = make()
        self.said[phase] = asked, reply
        return reply

    def check(self, claimed: Plain) -> None:
        """Refuse what belongs to another sum."""
        if messages.hexadecimal(claimed, "the session", 32) != self.roll.session.hex():
            raise ProtocolError("this belongs to another secure sum")

    # ---- boxes ---------------------------------------------------------------------------------------------------

    def sealed(self, name: str, shares: bytes) -> bytes:
        """Return a box of shares that only one neighbour can open."""
        info = self.roll.seal_info(self.name, name)
        return seal(self.sealing.shared(self.adverts[name].seal, info), shares, info)

    def take_boxes(self, senders: list[str], boxes: list[bytes]) -> None:
        """Open the boxes of the neighbours who take part: enough of them, and always the same."""
        strangers = sorted(set(senders) - set(self.neighbours))
        if strangers:
            raise ProtocolError(f"boxes from {few(strangers)}, no neighbours of site {self.name!r} in this sum")
        if len(senders) + 1 < self.roll.needed:
            raise ProtocolError(
                f"{len(senders)} of {len(self.neighbours)} neighbours take part; this site's policy is "
                f"{self.roll.needed - 1}"
            )
        opened = {name: self._open(name, box) for name, box in zip(senders, boxes, strict=True)}
        before = {name: held for name, held in self.held.items() if name != self.name}
        if self.about and before != opened:
            raise ProtocolError("other boxes than those the reply was masked for")
        self.held = {self.name: self.held[self.name], **opened}

    def _open(self, name: str, box: bytes) -> tuple[bytes, bytes]:
        info = self.roll.seal_info(name, self.name)
        try:
            shares = open_sealed(self.sealing.shared(self.adverts[name].seal, info), box, info)
        except ProtocolError as error:
            raise ProtocolError(f"the shares from {name!r} were tampered with ({error})") from error
        return shares[:SHARE_BYTES], shares[SHARE_BYTES:]

    # ---- masks ---------------------------------------------------------------------------------------------------

    def hide(self, vector: NDArray[np.uint64], about: str) -> None:
        """Hide a vector in place: under this site's own mask, and one for each neighbour who takes part."""
        if self.about:
            raise ProtocolError("a sum hides one vector of each site")
        self.about = about
        add_mask(vector, self.own_seed, sign=+1)
        for name in self.held:
            if name != self.name:
                key = self.masking.shared(self.adverts[name].mask, self.roll.mask_info(self.name, name, about))
                add_mask(vector, key, sign=pair_sign(self.name, name))

    # ---- the list ------------------------------------------------------------------------------------------------

    @property
    def survivors_text(self) -> bytes:
        """What this site signs, and wants to see signed by others."""
        return self.roll.survivors_text(self.alive, self.dropped, self.about)

    def check_list(self, alive: list[str], dropped: list[str], least: int) -> None:
        """Refuse a list that is not of this sum, is contradicted by this site's masks, or is too short to hide in."""
        both, listed = sorted(set(alive) & set(dropped)), {*alive, *dropped}
        if both:
            raise ProtocolError(f"{few(both)} would be both in the sum and dropped: both secrets would be told")
        strangers = sorted(listed - set(self.roll.names))
        if strangers:
            raise ProtocolError(f"the list has sites that are not on the roll: {few(strangers)}")
        if not self.about or self.name not in alive:
            raise ProtocolError(f"site {self.name!r} is asked about a sum that it is not in")
        wrong = sorted((set(self.held) - listed) | (listed & set(self.neighbours) - set(self.held)))
        if wrong:
            raise ProtocolError(f"the list is not of those who share masks with this site: see {few(wrong)}")
        if len(alive) < least:
            raise ProtocolError(f"the sum would be of {len(alive)} sites; this site's policy is {least} at least")
        missing, allowed = self.roll.most_missing(alive)
        if missing > allowed:
            raise ProtocolError(
                f"{missing} of {self.roll.degree // 2} neighbours in a row are missing from the sum, as if to cut it "
                f"in two; this site's policy is {allowed} at most"
            )

    def shares_of(self, secret: int, names: list[str]) -> Plain:
        """Return the shares held of these sites' masks' seeds (0) or masking keys (1), in order of name."""
        return messages.stack([self.held[name][secret] for name in sorted(set(self.held) & set(names))], SHARE_BYTES)


def _digest(message: Plain) -> str:
    try:
        return digest(message)
    except (RecursionError, TypeError, ValueError) as cause:  # what was decoded from bytes is none of these
        raise ProtocolError(f"a message is plain data ({type(cause).__name__})") from cause
