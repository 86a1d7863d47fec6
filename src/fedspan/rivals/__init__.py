"""The streaming rivals of Federated-PCA (Grammenos et al. 2020, appendix D): small, exact, to compare with.

Each takes rows in order through ``update``, in pieces of any size, and holds O(d r) numbers. Its ``basis``, d x r with
orthonormal columns, is the subspace so far.
"""

from fedspan.rivals.frequent_directions import FrequentDirections
from fedspan.rivals.grouse import Grouse
from fedspan.rivals.memory_limited_power import MemoryLimitedPower
from fedspan.rivals.spirit import Spirit

__all__ = ["FrequentDirections", "Grouse", "MemoryLimitedPower", "Spirit"]
