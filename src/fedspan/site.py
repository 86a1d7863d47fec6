"""A site: its data, its memory and its policy, and the steps that are run there. The other half of `fedspan.rounds`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from fedspan.encoding import Array, Plain
from fedspan.errors import FedspanError

if TYPE_CHECKING:
    from fedspan.rounds import Round


class Reply(NamedTuple):
    """What a step returns: ``value`` leaves the site (``weight`` with it, for a `Mean`), ``state`` stays there."""

    value: Plain
    weight: float = 1.0
    state: dict[str, Plain] | None = None


Sensitivity = Callable[[Any, Any, dict[str, tuple[int, ...]]], dict[str, float]]
"""From the message as received, the neighbour relation (`fedspan.sensitivity.Neighbours`) and the parts' shapes:
for each named part of a release, the most that a neighbour can change it (L2). 0: it depends on no row."""


Bound = Callable[[Any, float, float], dict[str, float] | None]
"""From a message, and from the sum of squares and the number of some prepared rows: the most that any number of each
part of a reply about them is (``"value"``: of a reply that is one array). Adding up over sites; None: not known."""


@dataclass(frozen=True)
class Step:
    """A site's half of a solver. The name travels, never the code.

    ``lost`` says what to do where the site no longer has the state it should go on from: ``"restart"`` from the
    message and the study's terms, or ``"leave"`` the round. ``setup`` marks rounds that prepare data, counted apart.
    ``free`` marks rounds that agree or measure and are no part of a method: no time passes in virtual time, and they
    are counted apart too. ``sensitivity`` bounds what a neighbour changes; a step without it is refused under a
    privacy policy. ``bound`` bounds the numbers of the reply, for secure sums to be scaled by; without one they ask
    first. ``public`` marks steps that tell no figure of the rows where these are private. ``protocol`` marks parts of
    a secure sum: they keep a state of their own and, ``quick``, take a site no time.
    """

    name: str
    run: Callable[[Site, Any], Reply]
    lost: str = "leave"
    setup: bool = False
    sensitivity: Sensitivity | None = None
    free: bool = False
    bound: Bound | None = None
    public: bool = False
    protocol: bool = False
    quick: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether it goes on from a state of its own, and not only from the preparation."""
        return self.lost == "restart" and not self.setup

    def __call__(self, site: Site, message: Plain) -> Reply:
        """Run the step at a site."""
        return self.run(site, message)


STEPS: dict[str, Step] = {}
"""Every step by its name: what a site looks a question up in."""


def site_step(name: str, **marks: Any) -> Callable[[Callable[[Site, Any], Reply]], Step]:
    """Register a function as a step under a name that can travel; ``marks`` are the fields of `Step`."""

    def register(run: Callable[[Site, Any], Reply]) -> Step:
        if name in STEPS:
            raise ValueError(f"two steps are called {name!r}")
        STEPS[name] = Step(name, run, **marks)
        return STEPS[name]

    return register


class Policy(Protocol):
    """A site's privacy policy: sees every part of a release before it leaves, and returns what may leave."""

    exact: bool
    """Whether the noise of this site's releases is a share on a grid, which nothing may round any more."""

    def steps(self) -> Mapping[str, float] | None:
        """Return the grid that each part of the last release lies on, or None where nothing is noised here."""
        ...

    def admit(self, site: Site, question: Round) -> None:
        """Refuse a question before the step runs."""
        ...

    def noised(self, site: Site, parts: dict[str, Array], about: Array | None = None) -> dict[str, Array]:
        """Return the parts with this site's noise, charged to its ledger."""
        ...

    def noising(
        self, site: Site, name: str, shape: tuple[int, ...], data: Any, block: tuple[str, int] | None
    ) -> Callable[[Array], Array]:
        """Charge one release that is made in pieces, and return what adds its noise to a piece."""
        ...

    def clipped(self, site: Site, release: Array) -> Array:
        """Return a release that no row bound covers, brought within the policy's own."""
        ...

    def withholds(self, figure: str) -> bool:
        """Whether a figure about the data that no step needs (``"rows"``, ``"missing"``) stays at the site."""
        ...

    def check_preparation(self, site: Site, preparation: dict[str, Plain]) -> None:
        """Refuse a preparation that this site did not agree to, before its rows are seen through it."""
        ...

    def row_bounds(self, width: int, preparation: dict[str, Plain], *, install: bool) -> Any:
        """Return what rows of so many columns are clipped to before they count (`fedspan.data.clip.RowBounds`).

        ``install``: for all that follows, rather than for one sum of raw rows.
        """
        ...

    def note(self, text: str) -> None:
        """Keep a line for this site's own eyes."""
        ...

    def refusal(self, site: Site, question: Round, error: Exception) -> FedspanError:
        """Return what may be said outside of an error at this site: a code, no value."""
        ...


class Memory:
    """A site's state between rounds: the newest version and the one before, each with the round that made it.

    The one before is kept because the coordinator may drop a late reply and go on from the round before it.
    This one lives in memory; `fedspan.sites.DurableMemory` survives the process, and never answers a round twice.
    """

    durable = False
    """Whether a reply is kept before it leaves, so that a round asked again gets the same one."""

    def __init__(self) -> None:
        self.versions: tuple[tuple[int, dict[str, Plain]], ...] = ()

    def recall(self, question: Round) -> Reply | None:
        """Return the reply this round was given before, if it is kept."""
        return None

    def version(self, parent: int | None) -> dict[str, Plain] | None:
        """Return the state that round ``parent`` left behind (None: nothing yet), or None if it is not here."""
        if parent is None:
            return {}
        for number, state in self.versions:
            if number == parent:
                return state
        return None

    def commit(self, question: Round, parent: int | None, reply: Reply, state: dict[str, Plain]) -> None:
        """Keep a round's new state and the version it came from."""
        self.versions = ((question.number, state), *(v for v in self.versions if v[0] == parent))


class Site:
    """All that a step may see of a site."""

    __slots__ = (
        "_rng", "asked", "data", "id", "masks", "memory", "policy", "prepared", "reopen", "round", "seed", "source",
        "state",
    )  # fmt: skip

    def __init__(
        self,
        id: str,
        source: Any,
        *,
        policy: Policy | None = None,
        memory: Memory | None = None,
        seed: int = 0,
        reopen: Callable[[Site, dict[str, Plain]], None] | None = None,
    ) -> None:
        self.id = id
        self.source = source
        """The data as opened."""
        self.data = source
        """The data as the study prepared it: columns aligned, centred, scaled, weighted."""
        self.prepared: Plain = None
        """The preparation that ``data`` is seen through."""
        self.policy = policy
        self.memory = Memory() if memory is None else memory
        self.masks: Any = None
        """This site's half of secure sums (`fedspan.secure.Party`), where it answers in no other way."""
        self.seed = seed
        self.reopen = reopen
        """Sees the data as a state says it is prepared, where it is not."""
        self.round = -1
        self.asked: Round | None = None
        """The question being answered."""
        self.state: dict[str, Plain] = {}
        self._rng: np.random.Generator | None = None

    @property
    def rng(self) -> np.random.Generator:
        """This site's generator for this round, the same however often the round is asked; made on first use."""
        if self._rng is None:
            name = int.from_bytes(self.id.encode(), "little")
            self._rng = np.random.default_rng([self.seed, name, self.round])
        return self._rng

    def noised(self, about: Array | None = None, /, **parts: Array) -> Any:
        """The line where a paper writes "+ noise": the release, with this site's own noise if its policy asks any.

        One part comes back as it is, several as a dict. ``about`` is the site's own Z where a published formula
        scales the noise by it; it does not leave.
        """
        if self.policy is not None:
            parts = self.policy.noised(self, parts, about)
        if len(parts) == 1:
            return next(iter(parts.values()))
        return parts

    def noising(
        self, name: str, shape: tuple[int, ...], data: Any = None, block: tuple[str, int] | None = None
    ) -> Callable[[Array], Array]:
        """Return what adds noise to a release of this shape piece by piece: one release, charged once.

        ``data``: the part of the rows that it is about, where that is not all. ``block``: of which partition of the
        rows, and the how many-th part: releases about different parts of one partition are charged side by side.
        """
        if self.policy is None:
            return lambda piece: piece
        return self.policy.noising(self, name, shape, self.data if data is None else data, block)

    def clipped(self, release: Array) -> Array:
        """Return a release that no bound on rows covers, brought within the policy's bound on the whole of it."""
        return release if self.policy is None else self.policy.clipped(self, release)

    def withholds(self, figure: str) -> bool:
        """Whether this site keeps a figure about its data to itself."""
        return self.masks is not None if self.policy is None else self.policy.withholds(figure)
