"""Scikit-learn manners over `fedspan.run`."""

from fedspan.estimators.pca import FederatedPCA
from fedspan.estimators.streaming import StreamingPCA
from fedspan.estimators.svd import FederatedTruncatedSVD

__all__ = ["FederatedPCA", "FederatedTruncatedSVD", "StreamingPCA"]
