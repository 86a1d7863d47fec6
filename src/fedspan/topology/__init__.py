"""Who merges with whom."""

from fedspan.topology.tree import Tree, fan_out_of

__all__ = ["Tree", "fan_out_of"]
