"""Every reader of the protocol against damaged and made-up messages: refused, or harmless; never another error."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedspan.encoding import decode, encode, payload_bytes
from fedspan.errors import CohortError, DataError, FileError, ProtocolError
from fedspan.reduce import MaskedSum
from fedspan.rounds import STEPS, Round
from fedspan.secure import Identity, Roster
from fedspan.secure.unmasked import Unmasked
from tests.secure.by_hand import PHASES, REGULAR, ByHand, parties_of, plain_sum
from tests.secure.mutations import damaged, mutate, reheaded, rubbish
from tests.secure.sites_by_hand import NAMES, Exchange, Z, prepared, sites_of
from tests.secure.test_party import ONE, at


class Fuzzer:
    """One target after another; ``tried`` counts messages, ``refused`` those that came to nothing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._at: dict[str, tuple[ByHand, Any]] = {}
        self._masked: tuple[Exchange, Any] | None = None
        self._files: dict[str, bytes] = {}
        self._replies: list[dict[str, Any]] = []
        self.tried: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    @property
    def targets(self) -> dict[str, Callable[[Random], None]]:
        """What is fuzzed, by name."""
        return {
            **{f"party: {phase}": (lambda rng, phase=phase: self.party(phase, rng)) for phase in PHASES},
            "masked step": self.masked_step, "collector": self.collector, "site's reply": self.one_site_lies,
            "coordinator's message": self.one_site_is_lied_to, "encoding": self.encoding,
            "roster": lambda rng: self.file("roster", rng), "identity": lambda rng: self.file("identity", rng),
            "released": lambda rng: self.file("released", rng),
        }  # fmt: skip

    def once(self, name: str, rng: Random) -> None:
        """Try one target with one message."""
        self.tried[name] += 1
        self.targets[name](rng)

    def party(self, phase: str, rng: Random) -> None:
        """A site reads a message; after rubbish it still answers the right one."""
        if phase not in self._at:
            sum_ = ByHand(parties_of(4))
            self._at[phase] = sum_, at(sum_, phase)
        sum_, message = self._at[phase]
        sent = rubbish(rng) if rng.randrange(6) == 0 else mutate(message, rng)
        try:
            sum_.answer(phase, ONE, sent)
        except ProtocolError as error:
            self.refused[f"party: {phase}"] += 1
            payload_bytes(str(error))
            encode({"refused": str(error)})
            if rng.randrange(40):
                return
            assert "refused" not in sum_.told(phase, ONE, message)
        del self._at[phase]  # it was answered: that sum is no use any more

    def masked_step(self, rng: Random) -> None:
        """A site works out and masks a reply; what does not fit the scale is an error of its data."""
        if self._masked is None:
            exchange = Exchange(
                prepared(sites_of()),
                Round(STEPS["gram.multiply"], Z, number=1, parents=dict.fromkeys(NAMES, 0)),
            )
            self._masked = exchange, exchange.message()
        exchange, message = self._masked
        letter = exchange.made.mask_letters()["ash"]
        sent, told = (mutate(message, rng), letter) if rng.randrange(3) else (message, mutate(letter, rng))
        if not isinstance(sent, dict):
            told = None
        try:
            reply = exchange.told("masked", "ash", sent, None if told is None else {"ash": told})
        except DataError:
            self._masked = None
            return
        if set(reply) == {"refused"}:
            self.refused["masked step"] += 1
            encode(reply)
            return
        assert set(reply) == {"masked", "exponents"}
        self._masked = None

    def collector(self, rng: Random) -> None:
        """The coordinator adds up masked replies; what is none of them is left out, with a reason."""
        parts = {"a": np.arange(6, dtype=np.uint64).reshape(2, 3), "b": np.array(7, dtype=np.uint64)}
        good = {"masked": parts, "exponents": {"a": 3, "b": 40}}
        collector = MaskedSum().collector(False)
        bad = [rubbish(rng) if rng.randrange(5) == 0 else mutate(good, rng) for _ in range(rng.randrange(1, 3))]
        replies = [*bad, good, good, good]
        for place in rng.sample(range(len(replies)), len(replies)):
            collector.add(f"s{place}", replies[place], 1.0, 1)
        found = collector.result()
        honest = {f"s{place}" for place in range(len(bad), len(replies))}
        assert honest <= set(found["sites"])
        assert set(found["sites"]) | set(found["refused"]) == {f"s{place}" for place in range(len(replies))}
        assert set(found["total"]) == set(parts)
        encode(found["refused"])

    def one_site_lies(self, rng: Random) -> None:
        """A sum with one reply damaged is the exact sum of those in it, or none."""
        phase, liar = rng.choice(["keys", "shares", "consent", "release"]), f"s00{rng.randrange(6)}"

        def lie(asked: str, name: str, reply: Any) -> Any:
            if (asked, name) != (phase, liar):
                return reply
            return rubbish(rng) if rng.randrange(6) == 0 else mutate(reply, rng)

        self._whole("site's reply", ByHand(parties_of(6), lie=lie))

    def one_site_is_lied_to(self, rng: Random) -> None:
        """A sum with one message damaged on its way to a site, likewise."""
        phase, victim = rng.choice(PHASES), f"s00{rng.randrange(6)}"

        def meddle(asked: str, name: str, message: Any) -> Any:
            if (asked, name) != (phase, victim):
                return message
            return rubbish(rng) if rng.randrange(6) == 0 else mutate(message, rng)

        self._whole("coordinator's message", ByHand(parties_of(6), meddle=meddle))

    def _whole(self, target: str, sum_: ByHand) -> None:
        try:
            total = sum_.run()
        except CohortError:
            self.refused[target] += 1
            return
        self.refused[target] += bool(sum_.made.refused)
        assert np.array_equal(total, plain_sum(sum_.vectors, sum_.made.alive))
        encode(sum_.made.refused)
        for reason in sum_.made.refused.values():
            payload_bytes(reason)

    def encoding(self, rng: Random) -> None:
        """Bytes are plain data, or an error."""
        if not self._replies:
            sum_ = ByHand(parties_of(4))
            sum_.run()
            self._replies = [*sum_.replies.values(), sum_.made.shares(), sum_.made.mask_letters(), sum_.made.release()]
        try:
            value = decode(rng.choice([damaged, reheaded])(encode(rng.choice(self._replies)), rng))
        except FileError:
            self.refused["encoding"] += 1
            return
        encode(value)

    def file(self, kind: str, rng: Random) -> None:
        """A file that was damaged is an error that names it, or is whole."""
        path = self._folder / kind
        if kind not in self._files:
            path.unlink(missing_ok=True)
            if kind == "roster":
                Roster.pin(path, Roster({name: Identity.generate().public for name in NAMES}))
            elif kind == "identity":
                Identity.load_or_make(path)
            else:
                sum_ = ByHand(parties_of(4, folder=self._folder / "parties"))
                sum_.run()
                path.write_bytes((self._folder / "parties" / ONE / "released").read_bytes())
            self._files[kind] = path.read_bytes()
        path.unlink()
        path.write_bytes(damaged(self._files[kind], rng))
        read = {"roster": Roster.load, "identity": Identity.load_or_make, "released": lambda p: Unmasked("a run", p)}
        try:
            read[kind](path)
        except FileError as error:
            self.refused[kind] += kind in str(error)


NAMES_OF_TARGETS = list(Fuzzer(Path()).targets)


@pytest.mark.parametrize("target", NAMES_OF_TARGETS)
def test_no_message_ends_in_another_error_than_a_refusal(target, tmp_path):
    fuzzer = Fuzzer(tmp_path)

    @settings(deadline=None, max_examples=60, database=None, suppress_health_check=list(HealthCheck))
    @given(st.randoms(use_true_random=False))
    def try_once(rng):
        fuzzer.once(target, rng)

    try_once()
    assert fuzzer.tried[target] >= 50
    assert fuzzer.refused[target] > 0 or target == "collector"


@pytest.mark.parametrize("target", NAMES_OF_TARGETS)
def test_nor_does_any_of_many_more(target, tmp_path):
    """Cheaper than looking for the simplest one: seeds after seeds, for a while."""
    fuzzer = Fuzzer(tmp_path)
    for seed in range(60 if target in ("site's reply", "coordinator's message") else 300):
        fuzzer.once(target, Random(f"{target} {seed}"))
    assert fuzzer.refused[target] > 0 or target == "collector"


@pytest.mark.soak
def test_for_five_minutes_no_message_ends_in_another_error(tmp_path):
    """All readers, one after the other, with seeds that were never tried; says how many messages it was."""
    fuzzer, seed = Fuzzer(tmp_path), time.time_ns()
    ends = time.monotonic() + 300
    while time.monotonic() < ends:
        for target in NAMES_OF_TARGETS:
            for _ in range(1 if target in ("site's reply", "coordinator's message") else 20):
                seed += 1
                try:
                    fuzzer.once(target, Random(seed))
                except Exception:
                    print(f"{target}: Random({seed})")
                    raise
    for target, tried in fuzzer.tried.items():
        print(f"{target}: {tried} messages, {fuzzer.refused[target]} refused")
    print(f"in all {sum(fuzzer.tried.values())} messages")
    assert set(fuzzer.tried) == set(NAMES_OF_TARGETS)


def test_a_fuzzer_sees_a_reader_that_lets_an_error_through(tmp_path, monkeypatch):
    monkeypatch.setattr("fedspan.secure.messages.names", lambda value, what: sorted(set(value)))
    fuzzer = Fuzzer(tmp_path)

    def try_many():
        for seed in range(3000):
            fuzzer.once("party: shares", Random(seed))

    with pytest.raises(TypeError):
        try_many()


@pytest.mark.parametrize("seed", range(8))
def test_graphs_of_neighbours_are_fuzzed_too(seed):
    """Where sites do not hear of each other's keys: damaged replies of one of twenty-four."""
    rng = Random(seed)
    at_fault = rng.choice(["keys", "shares", "consent", "release"]), f"s0{rng.randrange(10, 24)}"

    def lie(phase, name, reply):
        return mutate(reply, rng) if (phase, name) == at_fault else reply

    sum_ = ByHand(parties_of(24, REGULAR), REGULAR, lie=lie)
    try:
        assert np.array_equal(sum_.run(), plain_sum(sum_.vectors, sum_.made.alive))
    except CohortError:
        assert sum_.made.refused
