"""What a study without a coordinator will take: the graph, how fast it mixes, and the bytes over its links."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fedspan.data import Source
from fedspan.engines import Gossip
from fedspan.gossip_masks import PairMasks
from fedspan.gossip_run import check_gossip, is_shared
from fedspan.plan import Plan, make_plan
from fedspan.study import Study
from fedspan.topology import Weights, planned_steps, steps_needed


@dataclass(frozen=True)
class GossipRound:
    """One round: as many exchanges between neighbours, and their bytes."""

    step: str
    setup: bool
    exchanges: int
    bytes_node: int
    """From the node with most neighbours."""
    bytes_all: int
    """Over all links, both ways."""


@dataclass(frozen=True)
class GossipPlan:
    """A study's graph, and its rounds as they go over it; no link silent, no node crashed."""

    graph: str
    nodes: int
    links: int
    degrees: tuple[int, int]
    """The fewest and the most neighbours of a node."""
    diameter: int
    sigma: float
    """The second eigenvalue of the Metropolis weights."""
    accuracy: float
    exchanges: int
    """For one sum, by Chebyshev's semi-iteration."""
    plain_exchanges: int
    """What plain averaging would take."""
    stands: int
    """How many nodes may crash, whichever they are, before the others fall into parts."""
    rounds: list[GossipRound]
    honest: int | None
    """Of how many nodes the noise is enough, where each adds a share."""

    @property
    def gap(self) -> float:
        """The spectral gap."""
        return 1 - self.sigma

    @property
    def noise(self) -> float | None:
        """The noise in a sum, over that of a study that counts on all nodes."""
        return None if self.honest is None else math.sqrt(self.nodes / self.honest)

    @property
    def bytes_all(self) -> int:
        """Over all links, in all rounds."""
        return sum(r.bytes_all for r in self.rounds)


def plan_gossip(law: Gossip, study: Study, sources: Mapping[str, Source]) -> tuple[Plan, GossipPlan]:
    """Return the plan of a study, and what it is on its graph; bytes are right but for a few of each round."""
    check_gossip(law, study, sources, resume=False, record="rounds")
    plan = make_plan(study, sources, coordinator=False)
    graph = law.over(sources, study.seed)
    weights, honest = Weights(graph), None
    accuracy = law.accuracy
    if study.privacy is not None and is_shared(study):
        accuracy, honest = min(accuracy, PairMasks.accuracy), study.privacy.honest or len(sources)
    exchanges, most = planned_steps(weights, accuracy), int(graph.degrees.max())
    rounds = []
    for r in plan.rounds:
        if r.gathered:  # every header goes over every link, each way
            told, steps = r.bytes_up, graph.diameter
        else:
            told, steps = (exchanges + law.agree) * r.up + 16 * graph.diameter, exchanges
        rounds.append(GossipRound(r.step, r.setup, steps, told * most, told * 2 * len(graph.links)))
    made = GossipPlan(
        law.graph if isinstance(law.graph, str) else "given", len(graph.names), len(graph.links),
        (int(graph.degrees.min()), most), graph.diameter, weights.sigma, accuracy, exchanges,
        _plain(weights, accuracy), graph.connectivity - 1, rounds, honest,
    )  # fmt: skip
    return plan, made


def _plain(weights: Weights, accuracy: float) -> int:
    """Return what plain averaging would take, for the same bound (`planned_steps`)."""
    apart = accuracy / (2 * max(weights.graph.diameter, 1) * math.sqrt(len(weights.graph.names)))
    return steps_needed(weights.sigma, apart, accelerated=False) if len(weights.graph.names) > 1 else 0
