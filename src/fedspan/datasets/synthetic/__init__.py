"""The synthetic data of the five papers. Samples lie in rows; the same seed gives the same arrays.

=========================  ===================================================================================
generator                  paper
=========================  ===================================================================================
`power_law`                FPCA (Grammenos et al.), appendix D.1, Synth(alpha)
`geometric_spectrum`       FAPS (Wang et al.), (23) and (24)
`user_item`                PPM (Nicolas et al.), section 5.1.1: stands in for Gowalla and its like
`random_symmetric_shares`  PPM, section 6: sites hold shares of one symmetric matrix
`shared_representation`    SRPFL (Tziotis et al.), section 4, the linear representation model
`low_rank_sites`           FedPower (Guo et al.), Assumption 1: sites from one covariance, or nearly
=========================  ===================================================================================
"""

from fedspan.datasets.synthetic.federations import (
    LowRankSites,
    SharedRepresentation,
    SymmetricShares,
    low_rank_sites,
    random_symmetric_shares,
    shared_representation,
)
from fedspan.datasets.synthetic.matrices import geometric_spectrum, power_law, user_item

__all__ = [
    "LowRankSites",
    "SharedRepresentation",
    "SymmetricShares",
    "geometric_spectrum",
    "low_rank_sites",
    "power_law",
    "random_symmetric_shares",
    "shared_representation",
    "user_item",
]
