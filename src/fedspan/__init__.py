"""fedspan finds the subspace that many data owners share while the data stays where it is.

Start with `FederatedPCA`; read `fedspan.rounds` for the idea behind it.
"""

from fedspan.estimators import FederatedPCA, FederatedRepresentation, FederatedTruncatedSVD, StreamingPCA
from fedspan.rounds import Cohort

__all__ = ["Cohort", "FederatedPCA", "FederatedRepresentation", "FederatedTruncatedSVD", "StreamingPCA"]
__version__ = "0.1.0.dev0"
