"""One secure sum by hand: the parties, the coordinator, and every message between them within reach."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedspan.errors import ProtocolError
from fedspan.secure import Identity, Party, Roster, SecureSums
from fedspan.secure.aggregation import Aggregation, new_nonce
from fedspan.secure.roll import Subject, reading

RULES = SecureSums()
REGULAR = SecureSums(complete_up_to=2, security=8, correctness=8)
"""At 40 sites each shares masks with some of the others only."""
PHASES = ("keys", "shares", "masked", "consent", "release")
QUESTION = "5e" * 32
ABOUT = reading({"value": 3}, {}, False, None)


def names_of(n: int) -> list[str]:
    """Names that are in order as numbers are."""
    return [f"s{i:03}" for i in range(n)]


def parties_of(n: int, rules: SecureSums = RULES, folder: Path | None = None, **settings: Any) -> dict[str, Party]:
    """Sites that know each other."""
    identities = {name: Identity.generate() for name in names_of(n)}
    roster = Roster({name: identity.public for name, identity in identities.items()})
    given: dict[str, Any] = {"run": "a run", **settings}
    return {
        name: Party(
            name, identity, roster, rules, **given,
            **({} if folder is None else {"folder": folder / name}),
        )
        for name, identity in identities.items()
    }  # fmt: skip


def vectors_of(names: Iterable[str], size: int = 4) -> dict[str, np.ndarray]:
    """A vector of any integers for each site."""
    rng = np.random.default_rng(7)
    return {name: rng.integers(0, 2**64, size, dtype=np.uint64) for name in names}


def plain_sum(vectors: Mapping[str, np.ndarray], names: Iterable[str]) -> np.ndarray:
    """The sum modulo 2^64 of some sites' vectors."""
    chosen = list(names)
    total = np.zeros_like(next(iter(vectors.values())))
    for name in chosen:
        total = total + vectors[name]
    return total


@dataclass
class ByHand:
    """A sum, phase by phase; ``meddle`` changes what a site is asked, ``lie`` what the coordinator is answered."""

    parties: dict[str, Party]
    rules: SecureSums = RULES
    number: int = 0
    kind: str = "value"
    question: str = QUESTION
    nonce: str = field(default_factory=new_nonce)
    least: int = 0
    waited: int = 0
    about: str = ABOUT
    silent: dict[str, set[str]] = field(default_factory=dict)
    """Who does not answer, by phase."""
    meddle: Callable[[str, str, Any], Any] = lambda phase, name, message: message
    lie: Callable[[str, str, Any], Any] = lambda phase, name, reply: reply
    replies: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What the coordinator was answered, by phase and site."""

    def __post_init__(self) -> None:
        first = next(iter(self.parties.values()))
        subject = Subject(first.run, self.number, self.kind, self.question, self.nonce, self.rules, first.expected)
        self.made = Aggregation(subject, self.least)
        self.vectors = vectors_of(self.parties)
        self.total = np.zeros(4, dtype=np.uint64)

    def ask(self, phase: str, names: Iterable[str], message: Any, letters: Mapping[str, Any] | None = None) -> None:
        """Ask sites for one phase."""
        self.replies[phase] = {}
        for name in names:
            if name in self.silent.get(phase, ()):
                continue
            told = message if letters is None else {**message, "letter": letters[name]}
            reply = self.lie(phase, name, self.told(phase, name, self.meddle(phase, name, told)))
            self.replies[phase][name] = reply

    def told(self, phase: str, name: str, message: Any) -> Any:
        """What a site answers: a refusal is a reply."""
        try:
            return self.answer(phase, name, message)
        except ProtocolError as error:
            return {"refused": str(error)}

    def answer(self, phase: str, name: str, message: Any) -> Any:
        """What a site answers, or its error."""
        party = self.parties[name]
        if phase != "masked":
            do = {"keys": party.advertise, "shares": party.share, "consent": party.consent, "release": party.release}
            return do[phase](self.number, message)
        session = party.admit(self.number, message)
        return session.once("masked", message, lambda: self._hidden(session, name))

    def _hidden(self, session: Any, name: str) -> Any:
        vector = self.vectors[name].copy()
        session.hide(vector, self.about)
        return {"masked": vector}

    def keys(self) -> None:
        """Ask for keys."""
        self.ask("keys", self.parties, self.made.keys())
        self.made.take_keys(self.replies["keys"], self.waited)

    def shares(self) -> None:
        """Ask for shares."""
        self.ask("shares", self.made.asked, self.made.shares(), self.made.share_letters())
        self.made.take_shares(self.replies["shares"])

    def masked(self) -> None:
        """Ask for masked vectors."""
        self.ask("masked", self.made.wanted, {"session": self.made.session}, self.made.mask_letters())
        good = {name: reply["masked"] for name, reply in self.replies["masked"].items() if "masked" in reply}
        refused = {name: r["refused"] for name, r in self.replies["masked"].items() if "refused" in r}
        self.total = sum(good.values(), np.zeros(4, dtype=np.uint64))
        self.made.take_masked(good, refused)

    def consent(self) -> None:
        """Ask for signatures."""
        self.ask("consent", self.made.alive, self.made.consent())
        self.made.take_consents(self.replies["consent"])

    def release(self) -> None:
        """Ask for shares of the sum's masks."""
        self.ask("release", self.made.signers, self.made.release())
        self.made.take_released(self.replies["release"])

    def run(self, until: str = "unmask") -> np.ndarray:
        """Go through the phases from where it stands; return the sum."""
        for phase in PHASES[len(self.replies) :]:
            getattr(self, phase)()
            if phase == until:
                return self.total
        self.made.unmask(self.total, self.about)
        return self.total

    @property
    def said(self) -> dict[str, str]:
        """Why sites refused, over all phases."""
        return {
            name: reply["refused"]
            for replies in self.replies.values()
            for name, reply in replies.items()
            if isinstance(reply, dict) and "refused" in reply
        }
