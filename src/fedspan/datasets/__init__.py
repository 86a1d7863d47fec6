"""Data to try things on: the papers' real sets by name, and their synthetic ones by generator.

>>> from fedspan.datasets import load, power_law
>>> load("iris").X.shape
(150, 4)
>>> power_law(100, 8, alpha=2.0).shape
(100, 8)

A set is looked up in the folder that ``FEDSPAN_DATA`` names, then in the cache (``FEDSPAN_CACHE``, else the
user's cache folder), then at its source.
"""

from fedspan.datasets.download import UnpinnedDownload
from fedspan.datasets.loaders import Dataset, load, names
from fedspan.datasets.synthetic import (
    LowRankSites,
    SharedRepresentation,
    SymmetricShares,
    geometric_spectrum,
    low_rank_sites,
    power_law,
    random_symmetric_shares,
    shared_representation,
    user_item,
)

__all__ = [
    "Dataset",
    "LowRankSites",
    "SharedRepresentation",
    "SymmetricShares",
    "UnpinnedDownload",
    "geometric_spectrum",
    "load",
    "low_rank_sites",
    "names",
    "power_law",
    "random_symmetric_shares",
    "shared_representation",
    "user_item",
]
