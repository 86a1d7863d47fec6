"""No coordinator: every site is a node that talks with its neighbours in a graph.

`Gossip` is what a user hands to ``engine=``; `Network` is one round of it. Each node's site answers its own node's
question; what the sites sum up to comes out of averages between neighbours (`fedspan.topology.gossip`), as many times
the mean as there are nodes. All nodes are in this process, but no node's numbers depend on more than its own and what
its neighbours told it. Who asks the questions is `fedspan.gossip_run`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np

from fedspan.encoding import Array, Plain, payload_bytes
from fedspan.engines.replies import Layout
from fedspan.engines.simulated import Simulated
from fedspan.engines.speeds import check_number
from fedspan.errors import CohortError, ConfigurationError, nearest
from fedspan.rounds import Gather, Mean, Outcome, Round, Site, Sum
from fedspan.topology import Graph, Weights, in_words, make_graph, planned_steps, settle
from fedspan.topology.graphs import Edge

LEAST_ACCURACY = 1e-13
"""What differences between nodes come down to on any graph, before rounding keeps them up."""
NO_REPRESENTATIONS = (
    'engine = "gossip" has no coordinator, and representations are learnt with one; take "in-process" or "virtual-time"'
)


@dataclass(frozen=True, kw_only=True)
class Gossip:
    """An engine without a coordinator: hand it to ``engine=``.

    Parameters
    ----------
    graph
        Who talks with whom: ``"random-regular"``, ``"ring"``, ``"torus"``, or a list of links between sites.
    degree
        Neighbours of each node in a random regular graph; where there are no more other nodes, all are linked.
    accuracy
        How far nodes' sums may differ, relative to the largest site's reply: of each array in a reply by itself. A
        solver's tolerance below it is raised to it.
    link_loss
        The chance that a link is silent in one exchange, both ways; exchanges then go on until the nodes agree.
    crashes
        Which nodes crash when, to try it out: 3 is before round 3, 3.5 in the middle of it.
    agree
        Whether all nodes take over the first one's sum, each after comparing it with its own: their solvers then go the
        same way to the bit. Without, each goes on from its own sum.
    seed
        What graph and silent links are drawn with (None: the run's own seed).

    >>> Gossip(graph="ring", crashes={"berlin": 3.5}).dying("berlin")
    (3, True)
    """

    graph: str | Sequence[Edge] = "random-regular"
    degree: int = 4
    accuracy: float = 1e-10
    link_loss: float = 0.0
    crashes: Mapping[str, float] = field(default_factory=dict)
    agree: bool = True
    seed: int | None = None

    def __post_init__(self) -> None:
        degree: Any = self.degree
        if isinstance(degree, bool) or not isinstance(degree, Integral) or degree < 2:
            raise ConfigurationError(f"degree is a whole number of neighbours, at least 2; got {self.degree!r}")
        check_number("accuracy", self.accuracy, most=1e-2, unit="the largest reply, at most 0.01")
        if self.accuracy < LEAST_ACCURACY:
            raise ConfigurationError(
                f"accuracy is at least {LEAST_ACCURACY:g}, below which rounding keeps nodes apart; got "
                f"{self.accuracy!r}"
            )
        check_number("link_loss", self.link_loss, zero=True, unit="links, a chance below 1")
        if self.link_loss >= 1:
            raise ConfigurationError(f"link_loss is a chance below 1, got {self.link_loss!r}: no link would be heard")
        if not isinstance(self.agree, bool):
            raise ConfigurationError(f"agree is True or False, got {self.agree!r}")
        seed: Any = self.seed
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0):
            raise ConfigurationError(f"seed is a whole number, 0 or more, or None for the run's; got {self.seed!r}")
        if not isinstance(self.crashes, Mapping):
            raise ConfigurationError(f'crashes is a dict of rounds by node, as {{"berlin": 3.5}}; got {self.crashes!r}')
        for name, when in self.crashes.items():
            check_number(f"crashes[{name!r}]", when, zero=True, unit="rounds")
            if 2 * when % 1:
                raise ConfigurationError(
                    f"crashes[{name!r}] is 3 for before round 3 or 3.5 for the middle of it, and so on; got {when!r}"
                )

    def __call__(self, sites: Sequence[Site], seed: int = 0) -> NoReturn:
        """Refuse: what takes an engine like this one has a coordinator."""
        raise ConfigurationError(NO_REPRESENTATIONS)

    def over(self, names: Iterable[str], seed: int) -> Graph:
        """Return the graph over these sites; ``seed`` is the run's."""
        graph = make_graph(self.graph, names, self.degree, seed if self.seed is None else self.seed)
        for name in self.crashes:
            if name not in graph.names:
                raise ConfigurationError(f"crashes names no site {name!r}; {nearest(name, graph.names)}")
        return graph

    def dying(self, name: str) -> tuple[float, bool]:
        """Return the round in which a node crashes (inf: none), and whether in its middle."""
        when = self.crashes.get(name, math.inf)
        return (math.floor(when), when % 1 != 0) if when < math.inf else (math.inf, False)


class Masked(NamedTuple):
    """The nodes' numbers as they may be told to neighbours, and the bytes that it took to agree on the masks."""

    values: Array
    bytes: int = 0


class Mask(Protocol):
    """Hides single replies in what nodes send."""

    accuracy: float
    """What nodes must be averaged to, as what they send is larger than what is averaged."""

    def __call__(self, number: int, graph: Graph, rows: Array, layout: Layout) -> Masked:
        """Return what nodes may send in this round; its sum is that of the rows."""
        ...


class Network(Simulated):
    """The nodes that are alive, and what a round makes of their replies."""

    def __init__(self, law: Gossip, sites: Sequence[Site], seed: int, mask: Mask | None = None) -> None:
        super().__init__(sites, seed)
        self._law, self._mask = law, mask
        self.graph = law.over(self._sites, seed)
        self.weights = Weights(self.graph)
        self.accuracy = law.accuracy if mask is None else min(law.accuracy, mask.accuracy)
        self.crashed: dict[str, float] = {}
        self.steps: list[int] = []
        """Exchanges of each round."""

    def lose_before(self, number: int) -> None:
        """Let the nodes go that crash before this round."""
        self._lose(number, [name for name in self.graph.names if self._law.dying(name) == (number, False)])

    def exchange(self, questions: Mapping[str, Round]) -> dict[str, Outcome]:
        """Have each site answer its node's question; return what each node that is alive then has of the replies."""
        question = next(iter(questions.values()))
        check_open(question)
        replies = {name: self.ask(name, questions[name]) for name in self.graph.names}
        dying = [name for name in self.graph.names if self._law.dying(name) == (question.number, True)]
        if isinstance(question.reduce, Gather):
            self._lose(question.number, dying)
            return self._flood({name: replies[name].value for name in self.graph.names})
        layout = Layout.of(next(iter(replies.values())), weighted=isinstance(question.reduce, Mean))
        rows = np.stack([layout.pack(name, reply) for name, reply in replies.items()])
        steps = traffic = 0
        if dying:  # half of the exchanges are in vain; the others begin again among themselves
            steps = planned_steps(self.weights, self.accuracy) // 2
            traffic = self._masked(question.number, rows, layout).bytes + self._told(steps * layout.size)
            kept = [name not in dying for name in self.graph.names]
            self._lose(question.number, dying)
            rows = rows[kept]
        masked = self._masked(question.number, rows, layout)
        settled = settle(
            masked.values, layout.parts, self.weights, self.accuracy, silent=self._law.link_loss,
            rng=np.random.default_rng([self._seed, question.number, 2]),
        )  # fmt: skip
        self.steps.append(steps + settled.steps)
        looked = settled.looks * self.graph.diameter * 2 * len(layout.parts)
        adopted = layout.size if self._law.agree else 0
        traffic += masked.bytes + self._told(settled.steps * layout.size + looked + adopted)
        return self._sums(settled.values, layout, traffic)

    def _sums(self, means: Array, layout: Layout, traffic: int) -> dict[str, Outcome]:
        """Return the sum that each node has; where they agree, the first one's, which no other's is far from."""
        names = list(self.graph.names)
        if self._law.agree:
            shared = Outcome(layout.unpack(len(names) * means[0]), names, traffic, 0)
            return dict.fromkeys(names, shared)
        return {
            name: Outcome(layout.unpack(len(names) * mean), names, traffic, 0)
            for name, mean in zip(names, means, strict=True)
        }

    def _flood(self, headers: dict[str, Plain]) -> dict[str, Outcome]:
        """Let every node pass on what it hears, once, to all its neighbours: after ``diameter`` steps all have all."""
        traffic = sum(payload_bytes(header) for header in headers.values()) * 2 * len(self.graph.links)
        self.steps.append(self.graph.diameter)
        return {name: Outcome(dict(headers), list(headers), traffic, 0) for name in headers}

    def _masked(self, number: int, rows: Array, layout: Layout) -> Masked:
        return Masked(rows) if self._mask is None else self._mask(number, self.graph, rows, layout)

    def _told(self, numbers: int) -> int:
        """Return the bytes that so many numbers from each node to each of its neighbours are."""
        return 8 * numbers * 2 * len(self.graph.links)

    def _lose(self, number: int, names: Sequence[str]) -> None:
        """Go on without some nodes; refuse where the others are no longer in one part."""
        if not names:
            return
        self.crashed |= {name: self._law.crashes[name] for name in names}
        self.graph = self.graph.without(names)
        if len(self.graph.parts) != 1:
            lost = f"round {number}: with {', '.join(sorted(self.crashed))} crashed"
            if not self.graph.names:
                raise CohortError(f"{lost} no node is left; let one of them live (crashes)")
            raise CohortError(
                f"{lost} the graph falls apart into {in_words(self.graph.parts)}; give the graph more links (a higher "
                f"degree), so that it stands the loss of more nodes"
            )
        self.weights = Weights(self.graph)


def check_open(question: Round) -> None:
    """Refuse a round that needs more than a sum of all sites' replies."""
    if not question.cohort.is_full:
        raise ConfigurationError(
            f"step {question.step.name} asks some of the sites ({question.cohort}), and gossip has no coordinator to "
            f"choose or to wait for them; leave out participation, and take a solver that asks all: krylov, power"
        )
    if not isinstance(question.reduce, Sum | Mean) and not question.step.public:
        raise ConfigurationError(
            f"step {question.step.name} shows every single reply, and gossip makes nothing but sums; take a solver "
            f"that needs no more: krylov, power, fedpower (reference = 'global'), faps, covariance"
        )
