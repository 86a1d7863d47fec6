"""A site's half of secure aggregation (Bell et al. 2020; with all pairs it is that of Bonawitz et al. 2017).

==============  ==================================================================================================
phase           what the site does
==============  ==================================================================================================
`advertise`     fresh keys for this sum, signed by its pinned identity
`share`         finds its neighbours, checks their signatures, seals to each one share of its two secrets
`admit`         opens the boxes it was sent, hides its vector under its own mask and one for each neighbour
`consent`       signs the list of those who are in the sum: one list, and long enough
`release`       after a quorum of signatures on THAT list: for each neighbour the share of one secret, never of both
==============  ==================================================================================================

The coordinator relays everything and is believed nothing. Whatever no honest one sends is a `ProtocolError`: the site
takes no further part in the sum. A site that released for a round does so again only for the very same sum, which
tells nothing new (`fedspan.secure.unmasked`).
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedspan.encoding import Plain, encode, write_atomically
from fedspan.errors import ProtocolError, few
from fedspan.rounds import Reply
from fedspan.secure import messages
from fedspan.secure.keys import Identity, Roster, verify
from fedspan.secure.roll import ADVERT, KINDS, Advert, Roll, Subject, fingerprint
from fedspan.secure.rules import SecureSums
from fedspan.secure.session import BOX, Session
from fedspan.secure.shamir import split
from fedspan.secure.unmasked import Unmasked


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
        self._most_times = most_times
        self._end = None if folder is None else folder / "ended"
        self._ended = self._end is not None and self._end.exists()
        self._readings: dict[tuple[int, str], str] = {}
        self._unmasked = Unmasked(run, None if folder is None else folder / "released")
        self._session: Session | None = None
        self._reply: tuple[str, Reply] | None = None

    # ---- keys ----------------------------------------------------------------------------------------------------

    def advertise(self, number: int, message: Plain) -> Plain:
        """Begin a sum: make keys for it and sign them; say for whom this site released before, if it did."""
        kind, question, nonce = messages.fields(message, "kind", "question", "nonce")
        if messages.text(kind, "the kind of a secure sum") not in KINDS:
            raise ProtocolError(f"a secure sum is of kind {' or '.join(KINDS)}, got {messages.shown(kind)}")
        messages.hexadecimal(question, "the question's digest", 32)
        messages.hexadecimal(nonce, "the nonce", 16)
        self._unmasked.check_question(messages.whole(number, "a round's number"), question)
        self.check_open()
        subject = Subject(self.run, number, kind, question, nonce, self.rules, self.expected)
        if self._session is None or self._session.subject != subject:
            self._session = Session(self.name, subject)
        session, before = self._session, self._unmasked.sites(number, kind)
        return session.once("keys", message, lambda: {"advert": self._advert(session), "before": before})

    def _advert(self, session: Session) -> Plain:
        mask, sealing = session.masking.public, session.sealing.public
        signature = self._identity.sign(session.subject.advert_text(self.name, mask, sealing))
        return messages.as_array(Advert(mask, sealing, signature).octets)

    # ---- shares --------------------------------------------------------------------------------------------------

    def share(self, number: int, message: Plain) -> Plain:
        """Learn who takes part; seal to each neighbour a share of both secrets."""
        session = self._at(number, "keys")
        return session.once("shares", message, lambda: self._share(session, message))

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
        session.held = {self.name: (of_seed[self.name], of_key[self.name])}
        boxes = [session.sealed(name, of_seed[name] + of_key[name]) for name in neighbours]
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

    # ---- masks ---------------------------------------------------------------------------------------------------

    def admit(self, number: int, message: Plain) -> Session:
        """Take in the neighbours' boxes: those who sent none take no part, and share no mask."""
        session = self._at(number, "shares")
        claimed, letter = messages.fields(message, "session", "letter")
        session.check(claimed)
        senders, boxes = messages.fields(letter, "from", "boxes")
        senders = messages.names(senders, "the senders")
        rows = messages.octets(boxes, "the boxes", BOX, len(senders))
        session.take_boxes(senders, [row.tobytes() for row in rows])
        return session

    def times(self, session: Session, times: Plain) -> int:
        """Return how often this site's reply counts: each does once, but where sites are drawn with replacement.

        Were some told to count not at all, or one of them ever so often, the sum would be of few or of one.
        """
        if not isinstance(times, dict):
            raise ProtocolError(f"how often replies count is a dict by site, got {messages.shown(times)}")
        for count in times.values():
            if messages.whole(count, "how often a reply counts") < 1:
                raise ProtocolError("a reply would not count at all, and the sum would be of the others")
        draws = sum(times.get(name, 1) for name in session.roll.names)
        if any(count > 1 for count in times.values()) and draws > self._most_times:
            raise ProtocolError(f"replies would count {draws} times in all; this site's policy is {self._most_times}")
        return int(times.get(self.name, 1))

    def agree(self, session: Session, about: str) -> None:
        """Take note of how a round's numbers are read: in one way only, or one could try how large they are."""
        number, kind = session.subject.number, session.subject.kind
        if any(before != number for before, _ in self._readings):
            self._readings = {}
        if self._readings.setdefault((number, kind), about) != about:
            raise ProtocolError(f"round {number}: this site was told before to read the numbers in another way")

    def kept(self, question: str, make: Callable[[], Reply]) -> Reply:
        """Return this site's own reply to a question, worked out once: its bound and it are told in two sums."""
        if self._reply is None or self._reply[0] != question:
            self._reply = question, make()
        return self._reply[1]

    def end(self) -> None:
        """Say no more in this run: an error tells a bit of this site's rows, and a thousand would tell them all."""
        self._ended = True
        if self._end is not None:
            write_atomically(self._end, b"")

    def check_open(self) -> None:
        """Refuse to go on after an error."""
        if self._ended:
            raise ProtocolError(
                f"site {self.name!r} ended this run with an error, and says no more in it; mend its data and start anew"
            )

    def rng(self, *about: str) -> np.random.Generator:
        """Return a generator that nobody else can foresee: the same for the same question."""
        return np.random.default_rng(int.from_bytes(self._identity.draws(encode([self.run, *about])), "little"))

    # ---- the list and the release ----------------------------------------------------------------------------------

    def consent(self, number: int, message: Plain) -> Plain:
        """Sign the list of those in the sum: one list, on which nobody is both alive and dropped."""
        session = self._at(number, "shares")
        return session.once("consent", message, lambda: self._consent(session, message))

    def _consent(self, session: Session, message: Plain) -> Plain:
        claimed, alive, dropped = messages.fields(message, "session", "alive", "dropped")
        session.check(claimed)
        alive, dropped = messages.names(alive, "the alive"), messages.names(dropped, "the dropped")
        session.check_list(alive, dropped, max(self.least, self.rules.fewest(len(session.roll.names))))
        self._unmasked.check(session.subject, alive, session.about)
        session.alive, session.dropped = alive, dropped
        return {"signature": messages.as_array(self._identity.sign(session.survivors_text))}

    def release(self, number: int, message: Plain) -> Plain:
        """Give up shares: of each neighbour in the sum for its own mask, of each dropped one for its masking key."""
        session = self._at(number, "consent")
        return session.once("release", message, lambda: self._release(session, message))

    def _release(self, session: Session, message: Plain) -> Plain:
        claimed, signers, signatures = messages.fields(message, "session", "signers", "signatures")
        session.check(claimed)
        self._check_signatures(session, signers, signatures)
        self._unmasked.note(session.subject, session.alive, session.about)
        return {"own": session.shares_of(0, session.alive), "pairs": session.shares_of(1, session.dropped)}

    def _check_signatures(self, session: Session, signers: Plain, signatures: Plain) -> None:
        signers = messages.names(signers, "the signers")
        rows = messages.octets(signatures, "the signatures", 64, len(signers))
        valid, quorum, text, present = 0, session.roll.quorum, session.survivors_text, set(session.alive)
        for name, row in zip(signers, rows, strict=True):
            if name in present and verify(self._roster.key(name), row.tobytes(), text):
                valid += 1
            if valid >= quorum:
                return
        raise ProtocolError(f"{valid} of the sites in the sum signed the list that this site did; it takes {quorum}")

    def _at(self, number: int, after: str) -> Session:
        """Return the sum under way, if it is of this round and has come so far."""
        session = self._session
        if session is None or session.subject.number != number or after not in session.said:
            raise ProtocolError(
                f"round {messages.shown(number)}: this site has no secure sum under way that has come so far"
            )
        return session
