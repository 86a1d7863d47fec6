"""A site's half of secure aggregation (Bell et al. 2020; with all pairs it is that of Bonawitz et al. 2017).

==============  ==================================================================================================
phase           what the site does
==============  ==================================================================================================
`advertise`     fresh keys for this sum, signed by its pinned identity
`share`         finds its neighbours, checks their signatures, seals to each one share of its two secrets
`admit`/`mask`  opens the boxes it was sent, hides its vector under its own mask and one for each neighbour
`consent`       signs the list of those who are in the sum: one list, and long enough
`release`       after a quorum of signatures on THAT list: for each neighbour the share of one secret, never of both
==============  ==================================================================================================

The coordinator relays everything and is believed nothing. Whatever no honest one sends is a `ProtocolError`: the site
takes no further part in the sum. A site that released for a round does so again only for the very same list of sites,
which tells nothing new: two sums of nearly the same sites would tell what sets them apart.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedspan.encoding import Plain, decode, digest, encode, write_atomically
from fedspan.errors import FileError, ProtocolError, few
from fedspan.rounds import Reply
from fedspan.secure import messages
from fedspan.secure.keys import Identity, KeyPair, Roster, open_sealed, seal, verify
from fedspan.secure.masks import add_mask
from fedspan.secure.roll import ADVERT, KINDS, Advert, Roll, Subject, fingerprint, pair_sign
from fedspan.secure.rules import SecureSums
from fedspan.secure.shamir import SHARE_BYTES, split

BOX = 2 * SHARE_BYTES + 16
"""Bytes of a sealed pair of shares."""


@dataclass
class Session:
    """What a site keeps of one sum, from its keys to its release; never written down."""

    subject: Subject
    masking: KeyPair
    sealing: KeyPair
    said: dict[str, tuple[str, Plain]] = field(default_factory=dict)
    """What was asked and answered in each phase: asked again, the same bytes again; asked otherwise, refused."""
    roll: Roll | None = None
    neighbours: list[str] = field(default_factory=list)
    adverts: dict[str, Advert] = field(default_factory=dict)
    own_seed: bytes = b""
    held: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)
    """By site: the shares of its own mask's seed and of its masking key. Of those who sent none, none."""
    masked: bool = False
    listed: tuple[list[str], list[str]] | None = None
    """Alive and dropped, as this site signed it."""


class Party:
    """One site's protocol state over a run."""

    def __init__(
        self,
        name: str,
        identity: Identity,
        roster: Roster,
        rules: SecureSums,
        *,
        run: str,
        expected: int | None = None,
        least: int = 0,
        most_times: int = 1,
        folder: Path | None = None,
    ) -> None:
        if roster.get(name) != identity.public:
            raise ProtocolError(f"site {name!r} is on the roster with another key than its own; correct the roster")
        self.name, self.rules, self.run = name, rules, run
        self._identity, self._roster = identity, roster
        self.expected = len(roster) if expected is None else expected
        """How many sites the study says a round asks: the quorum is of so many at least, however short a roll is."""
        self.least = max(least, rules.fewest(self.expected))
        """The fewest sites in a sum that this one helps to unmask."""
        self.most_times = most_times
        """How often a reply may count: once, but in studies that draw sites with replacement."""
        self._closed = -1
        self._file = None if folder is None else folder / "released"
        self._released = self._recall()
        self._session: Session | None = None
        self._reply: tuple[str, Reply] | None = None

    # ---- keys ----------------------------------------------------------------------------------------------------

    def advertise(self, number: int, message: Plain) -> Plain:
        """Begin a sum: make keys for it and sign them."""
        kind, question, nonce = messages.fields(message, "kind", "question", "nonce")
        if kind not in KINDS:
            raise ProtocolError(f"a secure sum is of kind {' or '.join(KINDS)}, got {kind!r:.80}")
        messages.hexadecimal(question, "the question's digest", 32)
        messages.hexadecimal(nonce, "the nonce", 16)
        self._check_open(number, question)
        subject = Subject(self.run, number, kind, question, nonce, self.rules)
        if self._session is None or self._session.subject != subject:
            self._session = Session(subject, KeyPair.generate(), KeyPair.generate())
        keys = self._session
        return self.once("keys", message, lambda: {"advert": messages.as_array(self._advert(keys))})

    def _check_open(self, number: int, question: str) -> None:
        released, about, _ = self._released
        if number < released:
            raise ProtocolError(f"round {number} is over: this site released for round {released}")
        if number == released and question != about:
            raise ProtocolError(f"round {number} was another question when this site released for it")
        if number <= self._closed:
            raise ProtocolError(f"round {number} ended here with an error, and this site says no more about it")

    def close(self, number: int) -> None:
        """Say no more about a round: an error told a bit of the reply, and that is enough."""
        self._closed = number

    def _advert(self, session: Session) -> bytes:
        mask, sealing = session.masking.public, session.sealing.public
        signature = self._identity.sign(session.subject.advert_text(self.name, mask, sealing))
        return Advert(mask, sealing, signature).octets

    # ---- shares --------------------------------------------------------------------------------------------------

    def share(self, number: int, message: Plain) -> Plain:
        """Learn who takes part; seal to each neighbour a share of both secrets."""
        return self.once("shares", message, lambda: self._share(self._at(number, "keys"), message))

    def _share(self, session: Session, message: Plain) -> Plain:
        names, digests, letter = messages.fields(message, "names", "digests", "letter")
        roll = self._read_roll(session, names, digests)
        neighbours = roll.neighbours(self.name)
        (adverts,) = messages.fields(letter, "adverts")
        rows = messages.octets(adverts, "the neighbours' keys", ADVERT, len(neighbours))
        known = {name: Advert.of(row.tobytes()) for name, row in zip(neighbours, rows, strict=True)}
        for name, advert in known.items():
            self._check_advert(session.subject, roll, name, advert)
        session.roll, session.neighbours, session.adverts = roll, neighbours, known
        session.own_seed = secrets.token_bytes(32)
        holders = roll.holders(self.name)
        points = range(1, len(holders) + 1)
        of_seed = dict(zip(holders, split(session.own_seed, points, roll.needed), strict=True))
        of_key = dict(zip(holders, split(session.masking.private, points, roll.needed), strict=True))
        session.held[self.name] = of_seed[self.name], of_key[self.name]
        boxes = [self._seal(session, roll, name, of_seed[name] + of_key[name]) for name in neighbours]
        commitment = hashlib.sha256(session.own_seed).digest()
        return {"boxes": messages.stack(boxes, BOX), "commitment": messages.as_array(commitment)}

    def _read_roll(self, session: Session, names: Plain, digests: Plain) -> Roll:
        names = messages.names(names, "the roll")
        octets = messages.octets(digests, "the keys' digests", 32, len(names))
        unknown = [name for name in names if name not in self._roster]
        if unknown:
            raise ProtocolError(f"the roll has sites that are not on this site's roster: {few(unknown)}")
        if self.name not in names:
            raise ProtocolError(f"the roll leaves out site {self.name!r}, which it was sent to")
        if len(names) < self.least:
            raise ProtocolError(
                f"a sum of {len(names)} sites is too few to hide in; this site's policy is {self.least}"
            )
        roll = Roll(session.subject, tuple(names), tuple(row.tobytes() for row in octets))
        own = messages.octets(session.said["keys"][1]["advert"], "the advert", ADVERT).tobytes()
        if roll.digests[names.index(self.name)] != fingerprint(own):
            raise ProtocolError(f"the roll has other keys for site {self.name!r} than it gave")
        return roll

    def _check_advert(self, subject: Subject, roll: Roll, name: str, advert: Advert) -> None:
        if roll.digests[roll.names.index(name)] != fingerprint(advert.octets):
            raise ProtocolError(f"the keys sent for {name!r} are not those on the roll")
        text = subject.advert_text(name, advert.mask, advert.seal)
        if not verify(self._roster.key(name), advert.signature, text):
            raise ProtocolError(f"the keys sent for {name!r} are not signed by the identity on this site's roster")

    def _seal(self, session: Session, roll: Roll, name: str, shares: bytes) -> bytes:
        info = roll.seal_info(self.name, name)
        return seal(session.sealing.shared(session.adverts[name].seal, info), shares, info)

    # ---- masks ---------------------------------------------------------------------------------------------------

    def admit(self, number: int, message: Plain) -> Session:
        """Take in the neighbours' boxes: those who sent none take no part, and share no mask."""
        session = self._at(number, "shares")
        claimed, letter = messages.fields(message, "session", "letter")
        self._check_session(session, claimed)
        senders, boxes = messages.fields(letter, "from", "boxes")
        senders = messages.names(senders, "the senders")
        strangers = sorted(set(senders) - set(session.neighbours))
        if strangers:
            raise ProtocolError(f"boxes from {few(strangers)}, no neighbours of site {self.name!r} in this sum")
        assert session.roll is not None
        if len(senders) + 1 < session.roll.needed:
            raise ProtocolError(
                f"{len(senders)} of {len(session.neighbours)} neighbours take part; this site's policy is "
                f"{session.roll.needed - 1}"
            )
        rows = messages.octets(boxes, "the boxes", BOX, len(senders))
        opened = {name: self._open(session, name, row.tobytes()) for name, row in zip(senders, rows, strict=True)}
        before = {name: held for name, held in session.held.items() if name != self.name}
        if session.masked and before != opened:
            raise ProtocolError("other boxes than those the reply was masked for")
        session.held = {self.name: session.held[self.name], **opened}
        return session

    def _open(self, session: Session, name: str, box: bytes) -> tuple[bytes, bytes]:
        assert session.roll is not None
        info = session.roll.seal_info(name, self.name)
        try:
            shares = open_sealed(session.sealing.shared(session.adverts[name].seal, info), box, info)
        except ProtocolError as error:
            raise ProtocolError(f"the shares from {name!r} were tampered with ({error})") from error
        return shares[:SHARE_BYTES], shares[SHARE_BYTES:]

    def mask(self, session: Session, vector: NDArray[np.uint64], about: str) -> None:
        """Hide a vector in place: under this site's own mask, and one with each neighbour who takes part.

        ``about``: how its numbers are read (`fedspan.secure.roll.reading`).
        """
        if session.masked:
            raise ProtocolError("a sum hides one vector of each site")
        session.masked = True
        add_mask(vector, session.own_seed, sign=+1)
        assert session.roll is not None
        for name in session.held:
            if name != self.name:
                info = session.roll.mask_info(self.name, name, about)
                key = session.masking.shared(session.adverts[name].mask, info)
                add_mask(vector, key, sign=pair_sign(self.name, name))

    def kept(self, question: str, make: Callable[[], Reply]) -> Reply:
        """Return this site's own reply to a question, worked out once: its bound and it are told in two sums."""
        if self._reply is None or self._reply[0] != question:
            self._reply = question, make()
        return self._reply[1]

    # ---- the list ------------------------------------------------------------------------------------------------

    def consent(self, number: int, message: Plain) -> Plain:
        """Sign the list of those in the sum: one list, on which nobody is both alive and dropped."""
        return self.once("consent", message, lambda: self._consent(self._at(number, "shares"), message))

    def _consent(self, session: Session, message: Plain) -> Plain:
        claimed, alive, dropped = messages.fields(message, "session", "alive", "dropped")
        self._check_session(session, claimed)
        alive, dropped = messages.names(alive, "the alive"), messages.names(dropped, "the dropped")
        self._check_list(session, alive, dropped)
        self._check_released(session, alive)
        session.listed = alive, dropped
        assert session.roll is not None
        return {"signature": messages.as_array(self._identity.sign(session.roll.survivors_text(alive, dropped)))}

    def _check_list(self, session: Session, alive: list[str], dropped: list[str]) -> None:
        assert session.roll is not None
        both, all_listed = sorted(set(alive) & set(dropped)), {*alive, *dropped}
        if both:
            raise ProtocolError(f"{few(both)} would be both in the sum and dropped: both secrets would be told")
        strangers = sorted(all_listed - set(session.roll.names))
        if strangers:
            raise ProtocolError(f"the list has sites that are not on the roll: {few(strangers)}")
        if not session.masked or self.name not in alive:
            raise ProtocolError(f"site {self.name!r} is asked about a sum that it is not in")
        wrong = sorted((set(session.held) - all_listed) | (all_listed & set(session.neighbours) - set(session.held)))
        if wrong:
            raise ProtocolError(f"the list is not of those who share masks with this site: see {few(wrong)}")
        least = max(self.least, self.rules.fewest(len(session.roll.names)))
        if len(alive) < least:
            raise ProtocolError(f"the sum would be of {len(alive)} sites; this site's policy is {least} at least")

    def _check_released(self, session: Session, alive: list[str]) -> None:
        (number, _, kinds), subject = self._released, session.subject
        if number == subject.number and kinds.get(subject.kind, digest(alive)) != digest(alive):
            raise ProtocolError(
                f"round {number} was unmasked for other sites; of two such sums one would see what sets them apart"
            )

    # ---- release -------------------------------------------------------------------------------------------------

    def release(self, number: int, message: Plain) -> Plain:
        """Give up shares: of each neighbour in the sum for its own mask, of each dropped one for its masking key."""
        return self.once("release", message, lambda: self._release(self._at(number, "consent"), message))

    def _release(self, session: Session, message: Plain) -> Plain:
        claimed, signers, signatures = messages.fields(message, "session", "signers", "signatures")
        self._check_session(session, claimed)
        assert session.roll is not None
        assert session.listed is not None
        alive, dropped = session.listed
        self._check_signatures(session.roll, session.roll.survivors_text(alive, dropped), alive, signers, signatures)
        self._check_released(session, alive)
        self._remember(session.subject, digest(alive))
        own = [session.held[name][0] for name in sorted(set(session.held) & set(alive))]
        pairs = [session.held[name][1] for name in sorted(set(session.held) & set(dropped))]
        return {"own": messages.stack(own, SHARE_BYTES), "pairs": messages.stack(pairs, SHARE_BYTES)}

    def _check_signatures(self, roll: Roll, text: bytes, alive: list[str], signers: Plain, signatures: Plain) -> None:
        signers = messages.names(signers, "the signers")
        rows = messages.octets(signatures, "the signatures", 64, len(signers))
        quorum, present = self.rules.quorum(max(self.expected, len(roll.names))), set(alive)
        valid = 0
        for name, row in zip(signers, rows, strict=True):
            if name in present and verify(self._roster.key(name), row.tobytes(), text):
                valid += 1
            if valid >= quorum:
                return
        raise ProtocolError(f"{valid} of the sites in the sum signed the list that this site did; it takes {quorum}")

    # ---- state ---------------------------------------------------------------------------------------------------

    def _at(self, number: int, after: str) -> Session:
        """Return the sum under way, if it is of this round and has come so far."""
        session = self._session
        if session is None or session.subject.number != number or after not in session.said:
            raise ProtocolError(f"round {number}: this site has no secure sum under way that has come so far")
        return session

    def once(self, phase: str, message: Plain, make: Callable[[], Plain]) -> Plain:
        """Answer a phase once; the same question gets the same bytes again, another one is refused."""
        asked = digest(message)
        if self._session is not None and phase in self._session.said:
            before, reply = self._session.said[phase]
            if before != asked:
                raise ProtocolError(f"the sum's {phase} were asked for twice, with different messages")
            return reply
        reply = make()
        assert self._session is not None
        self._session.said[phase] = asked, reply
        return reply

    def _check_session(self, session: Session, claimed: Plain) -> None:
        assert session.roll is not None
        if messages.hexadecimal(claimed, "the session", 32) != session.roll.session.hex():
            raise ProtocolError("this belongs to another secure sum")

    def _remember(self, subject: Subject, alive: str) -> None:
        """Note for whom this site releases, on disk before it does."""
        kinds = {**(self._released[2] if self._released[0] == subject.number else {}), subject.kind: alive}
        self._released = subject.number, subject.question, kinds
        if self._file is not None:
            kept = {"round": subject.number, "question": subject.question, "kinds": kinds}
            write_atomically(self._file, encode(kept))

    def _recall(self) -> tuple[int, str, dict[str, str]]:
        """Return the last round that this site released for, its question, and of each kind of sum the list."""
        if self._file is None or not self._file.exists():
            return -1, "", {}
        try:
            kept = decode(self._file.read_bytes())
            return kept["round"], kept["question"], dict(kept["kinds"])
        except (FileError, LookupError, TypeError) as cause:
            raise FileError(f"{self._file}: what this site released is unreadable ({cause}); start anew") from cause
