"""What hides single nodes where there is no coordinator: noise that neighbours cancel (`fedspan.secure.gopa`).

Each site's own policy has added its share of the noise. Before anything is sent, the node adds noise that it shares
with each neighbour. A node that crashes after that is one whose noise the others know: they take it off, and the
accounting counts that node among those that collude.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedspan.encoding import Array
from fedspan.engines.gossip import LEAST_ACCURACY, Masked
from fedspan.engines.replies import Layout
from fedspan.errors import PolicyError
from fedspan.privacy.policy import SitePolicy
from fedspan.rounds import Site
from fedspan.secure.gopa import PairKeys, pair_deviation
from fedspan.topology import Graph

_KEY = 32
"""Bytes of a public key, told to each neighbour once."""


class PairMasks:
    """The nodes' keys, and what they add to what they send."""

    accuracy = LEAST_ACCURACY
    """What nodes are averaged to: differences begin as large as the pairs' noise, far above what is averaged."""

    def __init__(self, sites: Sequence[Site], run: str) -> None:
        self._policies = {site.id: site.policy for site in sites if isinstance(site.policy, SitePolicy)}
        policy = next(iter(self._policies.values()))
        self._honest, self._nodes = policy.releases.sites, len(sites)
        self._keys = {name: PairKeys(name, run, policy.privacy.testing_seed) for name in self._policies}
        self._met = False

    def check(self, number: int, graph: Graph) -> None:
        """Refuse a round of fewer nodes than noise was sized for."""
        if len(graph.names) < self._honest:
            raise PolicyError(
                f"round {number}: {len(graph.names)} nodes are left, and the noise is enough with {self._honest} "
                f"honest ones; let a study count on fewer (honest), which costs more noise"
            )

    def __call__(self, number: int, graph: Graph, rows: Array, layout: Layout) -> Masked:
        """Return the rows with each link's noise added at one end and taken off at the other."""
        self.check(number, graph)
        hidden = rows.copy()
        told = 0
        for name, part, size in zip(layout.names, layout.parts, layout.sizes, strict=True):
            own = [self._share(node, name, layout) for node in graph.names]
            if max(own) == 0:  # a part that depends on no row
                continue
            told += 1
            for i, j in graph.links:
                pair = pair_deviation(max(own[i], own[j]), self._nodes, self._honest)  # each tells the other its own
                one, other = self._keys[graph.names[i]], self._keys[graph.names[j]]
                hidden[i, part] += pair * one.noise(other.name, other.public, number, name or "", size)
                hidden[j, part] += pair * other.noise(one.name, one.public, number, name or "", size)
        keys, self._met = 0 if self._met else _KEY, True
        return Masked(hidden, 2 * len(graph.links) * (keys + 8 * told))

    def _share(self, node: str, name: str | None, layout: Layout) -> float:
        """Return the deviation of a node's own noise in a part of its last release; a single part has but one name."""
        shares = self._policies[node].releases.shares
        if name is None:
            return next(iter(shares.values()), 0.0)
        return shares.get(name, 0.0)
