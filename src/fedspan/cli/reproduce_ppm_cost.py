"""What one secure sum costs its sites and its coordinator: both halves of the protocol, driven phase by phase.

No engine and no study: what is timed is what a site computes for the protocol, and nothing of what it computes for the
reply. Seconds are the processor's, so that other processes on the machine count as little as can be. Bytes are those of
the messages' arrays, texts and numbers, as everywhere in fedspan.
"""

from __future__ import annotations

import gc
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedspan.encoding import Array, Plain, payload_bytes
from fedspan.secure import Party, SecureSums, SumTerms
from fedspan.secure.aggregation import Aggregation, new_nonce
from fedspan.secure.identity import is_by
from fedspan.secure.roll import Subject, reading

_ABOUT = reading({}, {}, mean=False, state=None)
_LARGEST = 2**40  # of the numbers summed


@dataclass(frozen=True)
class SumFigures:
    """One secure sum, measured."""

    sites: int
    size: int
    """Numbers in each site's vector."""
    alive: int
    """Sites in the sum: the rest fell silent when the masked vectors were due."""
    neighbours: int
    holders_needed: int
    exact: bool
    """Whether the sum is that of the vectors, to the last bit."""
    site_seconds: float
    """Of a site in the sum, in the median."""
    slowest_seconds: float
    """Of the slowest one."""
    phases: dict[str, float]
    """By phase, in the median."""
    cipher_seconds: float
    """The stream cipher alone, for so many masks as a site has neighbours."""
    up: float
    """Bytes from a site in the sum, on average."""
    down: float
    server_seconds: float
    server_bytes: int
    """To and from all sites."""


def measure(sites: int, size: int) -> dict[str, float]:
    """Return Table 2's figures of one secure sum without drop-outs: of a site, and of the coordinator.

    >>> sorted(measure(3, 10))
    ['client_bytes', 'client_seconds', 'server_bytes', 'server_seconds']
    """
    found = secure_sum(sites, size)
    return {
        "client_bytes": found.up + found.down, "client_seconds": found.site_seconds,
        "server_bytes": float(found.server_bytes), "server_seconds": found.server_seconds,
    }  # fmt: skip


def secure_sum(sites: int, size: int, dropped: int = 0, seed: int = 0, rules: SecureSums | None = None) -> SumFigures:
    """Make one secure sum of random vectors, and measure it; ``dropped`` sites send no masked vector.

    >>> found = secure_sum(4, 10, dropped=1)
    >>> found.exact, found.alive, found.neighbours
    (True, 3, 3)
    """
    collecting = gc.isenabled()
    gc.disable()  # else one site pays for going through what all of them keep
    try:
        return _Measured(sites, size, SecureSums() if rules is None else rules).run(dropped, seed)
    finally:
        if collecting:
            gc.enable()


class _Measured:
    """A sum in the making, with what it took so far."""

    def __init__(self, sites: int, size: int, rules: SecureSums) -> None:
        self._names = [f"site{i:05d}" for i in range(sites)]
        self._parties = SumTerms(rules, "cost", sites).parties(self._names)
        self._made = Aggregation(Subject("cost", 0, "value", "0" * 64, new_nonce(), rules, sites))
        self._size = size
        self._seconds: dict[str, dict[str, float]] = {name: defaultdict(float) for name in self._names}
        self._up, self._down = dict.fromkeys(self._names, 0), dict.fromkeys(self._names, 0)
        self._server = 0.0

    def run(self, dropped: int, seed: int) -> SumFigures:
        made, rng = self._made, np.random.default_rng(seed)
        gone = set(rng.choice(self._names, dropped, replace=False).tolist())
        self._at_server(made.take_keys, self._phase("keys", Party.advertise, self._at_server(made.keys), self._names))
        shared = self._phase("shares", Party.share, self._at_server(made.shares), made.asked, made.share_letters)
        self._at_server(made.take_shares, shared)
        total, true = self._masked(gone, rng)
        alive = made.alive
        self._at_server(made.take_consents, self._phase("consent", Party.consent, self._at_server(made.consent), alive))
        self._at_server(made.take_released, self._phase("release", Party.release, self._at_server(made.release), alive))
        self._at_server(made.unmask, total, _ABOUT)
        return self._figures(alive, exact=bool(np.array_equal(total, true)))

    def _masked(self, gone: set[str], rng: np.random.Generator) -> tuple[Array, Array]:
        made = self._made
        letters = self._at_server(made.mask_letters)
        total, true = np.zeros(self._size, dtype=np.uint64), np.zeros(self._size, dtype=np.uint64)
        for name in sorted(set(made.sharing) - gone):
            vector = rng.integers(-_LARGEST, _LARGEST, size=self._size).view(np.uint64)
            true += vector
            message = {"session": made.session, "letter": letters[name]}
            self._at_site(name, "masks", partial(self._mask, self._parties[name], message, vector))
            self._down[name] += payload_bytes(message)
            self._up[name] += vector.nbytes
            self._at_server(np.add, total, vector, total)
        self._at_server(made.take_masked, sorted(set(made.sharing) - gone), {})
        return total, true

    @staticmethod
    def _mask(party: Party, message: Plain, vector: Array) -> None:
        party.admit(0, message).hide(vector, _ABOUT)

    def _phase(
        self,
        phase: str,
        step: Callable[[Party, int, Plain], Plain],
        message: dict[str, Plain],
        who: Iterable[str],
        letters: Callable[[], Mapping[str, Plain]] | None = None,
    ) -> dict[str, Plain]:
        """Let every site answer one phase."""
        own = {} if letters is None else self._at_server(letters)
        replies = {}
        for name in who:
            told = {**message, "letter": own[name]} if own else message
            replies[name] = self._at_site(name, phase, partial(step, self._parties[name], 0, told))
            self._down[name] += payload_bytes(told)
            self._up[name] += payload_bytes(replies[name])
        return replies

    def _at_site(self, name: str, phase: str, make: Callable[[], Any]) -> Any:
        is_by.cache_clear()  # what another site verified is no help to this one
        started = time.process_time()
        made = make()
        self._seconds[name][phase] += time.process_time() - started
        return made

    def _at_server(self, make: Callable[..., Any], *given: Any) -> Any:
        started = time.process_time()
        made = make(*given)
        self._server += time.process_time() - started
        return made

    def _figures(self, alive: list[str], *, exact: bool) -> SumFigures:
        made, spent = self._made, [self._seconds[name] for name in alive]
        whole = [sum(own.values()) for own in spent]
        return SumFigures(
            len(self._names), self._size, len(alive), made.roll.degree, made.roll.needed, exact,
            median(whole), max(whole), {phase: median(own[phase] for own in spent) for phase in spent[0]},
            cipher_seconds(made.roll.degree, self._size),
            sum(self._up[name] for name in alive) / len(alive), sum(self._down[name] for name in alive) / len(alive),
            self._server, sum(self._up.values()) + sum(self._down.values()),
        )  # fmt: skip


def cipher_seconds(masks: int, size: int) -> float:
    """Return what the stream cipher takes by itself for so many masks: AES-256 in counter mode over zeros."""
    zeros, stream = bytes(8 * size), bytearray(8 * size)
    started = time.process_time()
    for number in range(masks):
        cipher = Cipher(algorithms.AES(number.to_bytes(32, "big")), modes.CTR(bytes(16))).encryptor()
        cipher.update_into(zeros, stream)
    return time.process_time() - started
