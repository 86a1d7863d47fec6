"""The serialising engine: both halves of a round, with nothing but bytes between them.

The coordinator's half encodes a question (the step's NAME, the message, the round's number, the site's parent) and
holds, for each site, only a function from bytes to bytes. The site's half decodes it, looks the step up, answers and
encodes the reply; an error travels as a name and a text. Replies are folded in a shuffled order of arrival into an
order-free collector. Whatever is not plain data fails here before it fails in a deployment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import fedspan.errors
from fedspan.encoding import decode, encode, payload_bytes
from fedspan.errors import CohortError, FedspanError, SiteError
from fedspan.rounds import STEPS, Cohort, Late, Outcome, Reply, Round, Site, Step, answer

INSIDE_SITE = ("delivered", "replied")
"""Events that happen in a site's process; the others are the coordinator's."""


class CoordinatorDown(Exception):
    """The coordinator's process ended here."""


class SiteDown(Exception):
    """A site's process ended here."""


@dataclass
class Log:
    """What happened, over as many lives of coordinator and sites as the log is handed to."""

    executed: Counter[tuple[str, int]] = field(default_factory=Counter)
    """How often each site ran a step for each round."""
    left: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    """Every reply that left a site, by site and round."""
    asked: list[tuple[int, str, str, Any]] = field(default_factory=list)
    """Round, step, site and message of every question, as decoded at the site."""
    bytes_sent: int = 0
    bytes_received: int = 0


class SiteEnd:
    """A site behind the wire: bytes in, bytes out."""

    def __init__(self, site: Site, log: Log, on_event: Callable[[str, int, str], None]) -> None:
        self.site, self._log, self._on_event = site, log, on_event

    def size(self) -> bytes:
        """What the site weighs in a draw by size."""
        return encode(float(self.site.data.mass))

    def __call__(self, data: bytes) -> bytes:
        """Answer a question."""
        asked = decode(data)
        number, parent = asked["number"], asked["parent"]
        self._on_event("delivered", number, self.site.id)
        self._log.asked.append((number, asked["step"], self.site.id, asked["message"]))
        step = self._counted(STEPS[asked["step"]], number)
        parents = {} if parent is None else {self.site.id: parent}
        letters = {self.site.id: asked["letter"]} if "letter" in asked else {}
        question = Round(
            step, asked["message"], number=number, parents=parents, terms=asked.get("terms"), letters=letters
        )
        try:
            reply = answer(self.site, question)
        except FedspanError as error:
            return encode({"error": type(error).__name__, "text": str(error)})
        except (SiteDown, CoordinatorDown):
            raise
        except Exception as error:
            return encode({"error": "SiteError", "text": f"site {self.site.id!r} failed in step {step.name}: {error}"})
        encoded = encode({"value": reply.value, "weight": float(reply.weight)})
        self._log.left.setdefault((self.site.id, number), []).append(encoded)
        self._on_event("replied", number, self.site.id)
        return encoded

    def _counted(self, step: Step, number: int) -> Step:
        def run(site: Site, message: Any) -> Reply:
            self._log.executed[site.id, number] += 1
            return step.run(site, message)

        return replace(step, run=run)


class Wire:
    """An engine: ``Wire(sites, seed)`` executes rounds, and has hooks to lose, shuffle and kill.

    ``drop(number, site)`` returns ``"question"`` (it never arrives: the site is silent) or ``"reply"`` (the site
    worked, its reply is lost), else None. ``shuffle`` seeds the order of arrival. ``on_event(event, number, site)``
    is called at ``"sending"``, ``"delivered"``, ``"replied"``, ``"arrived"`` and ``"collected"`` and may raise.
    ``reopen(name)`` opens a site anew after it went down; the same bytes are then sent to it again.
    """

    def __init__(
        self,
        sites: Sequence[Site],
        seed: int = 0,
        *,
        drop: Callable[[int, str], str | None] | None = None,
        shuffle: int | None = None,
        on_event: Callable[[str, int, str], None] | None = None,
        reopen: Callable[[str], Site] | None = None,
        log: Log | None = None,
    ) -> None:
        self.log = Log() if log is None else log
        self._seed, self._drop, self._shuffle, self._reopen = seed, drop, shuffle, reopen
        self._on_event = on_event or (lambda event, number, site: None)
        self._ends = {site.id: self._end(site) for site in sorted(sites, key=lambda s: s.id)}

    def _end(self, site: Site) -> SiteEnd:
        return SiteEnd(site, self.log, self._on_event)

    @property
    def sites(self) -> list[Site]:
        """The sites as they are now, for a coordinator that comes back while they live on."""
        return [end.site for end in self._ends.values()]

    def restart(self, name: str) -> None:
        """End a site's process and start another from what it left on disk."""
        assert self._reopen is not None
        self._ends[name] = self._end(self._reopen(name))

    def __call__(self, question: Round) -> Outcome:
        """Execute one round."""
        asked = self._draw(question)
        replies = dict(self._replies(question, asked))
        counted = self._in_time(question, asked, replies)
        collector = question.reduce.collector(True)
        rng = np.random.default_rng([self._shuffle or 0, question.number])
        order = counted if self._shuffle is None else rng.permutation(counted).tolist()
        for name in order:
            collector.add(name, replies[name]["value"], replies[name]["weight"], asked[name])
        self._on_event("collected", question.number, "")
        up = sum(payload_bytes(reply["value"]) for reply in replies.values())
        letters = sum(payload_bytes(question.letters[name]) for name in asked if name in question.letters)
        down = payload_bytes(question.message) * len(asked) + letters
        dropped = [Late(n, r["value"], r["weight"], asked[n]) for n, r in replies.items() if n not in counted]
        times = {name: count for name, count in asked.items() if count != 1}
        return Outcome(collector.result(), sorted(counted), up, down, dropped=tuple(dropped), times=times)

    def _draw(self, question: Round) -> dict[str, int]:
        def sizes() -> dict[str, float]:
            return {name: decode(end.size()) for name, end in self._ends.items()}

        return question.cohort.draw(list(self._ends), np.random.default_rng([self._seed, question.number]), sizes)

    def _replies(self, question: Round, asked: dict[str, int]) -> Iterator[tuple[str, dict[str, Any]]]:
        for name in asked:
            fate = None if self._drop is None else self._drop(question.number, name)
            if fate == "question":
                continue
            self._on_event("sending", question.number, name)
            reply = decode(self._post(name, question))
            if reply.get("error") == "StateLost" and question.terms is not None:
                reply = decode(self._post(name, question, terms=question.terms))
            if "error" in reply:
                raise getattr(fedspan.errors, reply["error"], SiteError)(reply["text"])
            if fate != "reply":
                self._on_event("arrived", question.number, name)
                yield name, reply

    def _post(self, name: str, question: Round, **more: Any) -> bytes:
        """Send a question; the study's terms go along only to a site that says it lost its state."""
        parts = {
            **more,
            "step": question.step.name,
            "message": question.message,
            "number": question.number,
            "parent": question.parents.get(name),
        }
        if name in question.letters:
            parts["letter"] = question.letters[name]
        data = encode(parts)
        self.log.bytes_sent += len(data)
        try:
            reply = self._ends[name](data)
        except SiteDown:
            self.restart(name)
            reply = self._ends[name](data)
        self.log.bytes_received += len(reply)
        return reply

    def _in_time(self, question: Round, asked: dict[str, int], replies: dict[str, Any]) -> list[str]:
        """The first K to arrive, by the same draw as every simulated engine; or all, where all are needed."""
        cohort = question.cohort
        assert cohort.late == "drop", "the test wire does not carry late replies over"
        arrived = list(replies)
        if not cohort.waits_for_all(len(asked)):
            order = np.random.default_rng([self._seed, question.number, 1]).permutation(list(asked)).tolist()
            arrived = self._enough(cohort, [name for name in order if name in replies], asked)
        needed = (
            1
            if cohort.deadline is not None or cohort.share is not None
            else min(cohort.first or len(asked), len(asked))
        )
        if len(arrived) < needed:
            raise CohortError(
                f"round {question.number} ({question.step.name}): {len(arrived)} of {len(asked)} sites answered, "
                f"{needed} are needed"
            )
        return arrived

    def _enough(self, cohort: Cohort, order: list[str], asked: dict[str, int]) -> list[str]:
        """The first replies, as many as the cohort waits for: in number, or in the rows they stand for."""
        rows = {name: float(decode(self._ends[name].size())) for name in asked}
        counted: list[str] = []
        for name in order:
            so_far = sum(rows[one] for one in counted) / sum(rows.values())
            if counted and cohort.satisfied(len(counted), len(asked), so_far):
                break
            counted.append(name)
        return counted
