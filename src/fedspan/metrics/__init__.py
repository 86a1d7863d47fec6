"""Measures of subspaces and of federations: pure functions on arrays, nothing federated.

>>> import numpy as np
>>> from fedspan.metrics import projection_distance
>>> projection_distance(np.eye(3)[:, :2], np.eye(3)[:, 1:])
1.0
"""

from fedspan.metrics.bounds import Bounds, bounds
from fedspan.metrics.faps import FapsAssumptions, faps_assumptions
from fedspan.metrics.fpca import FpcaBounds, MergeError, energy_ratio, fpca_bounds, merge_error
from fedspan.metrics.fpca_theorems import (
    CorrelationBound,
    MergeBound,
    RankBracket,
    SampleBound,
    StreamBound,
    fpca_correlation,
    fpca_rows,
)
from fedspan.metrics.local import local_approximation, residual_error
from fedspan.metrics.ppm import (
    PpmBounds,
    coherence_max,
    coherence_row_sum,
    ppm_bounds,
    ppm_rounds,
    sensitivity_ratio,
    sensitivity_ratio_measured,
)
from fedspan.metrics.srpfl import (
    DoublingBounds,
    doubling_bounds,
    doubling_points,
    order_statistic_mean,
    stage_rounds,
    stage_sizes,
)
from fedspan.metrics.subspace import captured_variance, kkt_violation, principal_angles, projection_distance
from fedspan.metrics.theorems import ErrorBound, PowerBound, ResidualBound

__all__ = [
    "Bounds",
    "CorrelationBound",
    "DoublingBounds",
    "ErrorBound",
    "FapsAssumptions",
    "FpcaBounds",
    "MergeBound",
    "MergeError",
    "PowerBound",
    "PpmBounds",
    "RankBracket",
    "ResidualBound",
    "SampleBound",
    "StreamBound",
    "bounds",
    "captured_variance",
    "coherence_max",
    "coherence_row_sum",
    "doubling_bounds",
    "doubling_points",
    "energy_ratio",
    "faps_assumptions",
    "fpca_bounds",
    "fpca_correlation",
    "fpca_rows",
    "kkt_violation",
    "local_approximation",
    "merge_error",
    "order_statistic_mean",
    "ppm_bounds",
    "ppm_rounds",
    "principal_angles",
    "projection_distance",
    "residual_error",
    "sensitivity_ratio",
    "sensitivity_ratio_measured",
    "stage_rounds",
    "stage_sizes",
]
