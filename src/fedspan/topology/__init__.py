"""Who merges with whom, and who talks with whom."""

from fedspan.topology.gossip import Settled, Weights, mix, planned_steps, settle, steps_needed
from fedspan.topology.graphs import Graph, in_words, make_graph
from fedspan.topology.tree import Tree, fan_out_of

__all__ = [
    "Graph", "Settled", "Tree", "Weights", "fan_out_of", "in_words", "make_graph", "mix", "planned_steps", "settle",
    "steps_needed",
]  # fmt: skip
