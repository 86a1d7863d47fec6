"""Scikit-learn manners over `fedspan.run`."""

from fedspan.estimators.pca import FederatedPCA
from fedspan.estimators.representation import FederatedRepresentation
from fedspan.estimators.streaming import StreamingPCA
from fedspan.estimators.svd import FederatedTruncatedSVD

__all__ = ["FederatedPCA", "FederatedRepresentation", "FederatedTruncatedSVD", "StreamingPCA"]
