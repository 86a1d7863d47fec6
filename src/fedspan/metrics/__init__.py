"""Measures of subspaces and of federations: pure functions on arrays, nothing federated.

>>> import numpy as np
>>> from fedspan.metrics import projection_distance
>>> projection_distance(np.eye(3)[:, :2], np.eye(3)[:, 1:])
1.0
"""

from fedspan.metrics.bounds import Bounds, bounds
from fedspan.metrics.faps import FapsAssumptions, faps_assumptions
from fedspan.metrics.local import local_approximation, residual_error
from fedspan.metrics.subspace import captured_variance, kkt_violation, principal_angles, projection_distance
from fedspan.metrics.theorems import ErrorBound, PowerBound, ResidualBound

__all__ = [
    "Bounds",
    "ErrorBound",
    "FapsAssumptions",
    "PowerBound",
    "ResidualBound",
    "bounds",
    "captured_variance",
    "faps_assumptions",
    "kkt_violation",
    "local_approximation",
    "principal_angles",
    "projection_distance",
    "residual_error",
]
