"""Pure arrays, nothing federated."""

from fedspan.linalg.accumulate import OrderFreeSum
from fedspan.linalg.basis import canonical_signs, orth, orth_against, procrustes, sign_fix
from fedspan.linalg.eigen import (
    Estimate,
    left_svd,
    ritz,
    ritz_turn,
    spectral_norm,
    top_eigenvectors,
    top_of_factors,
    top_of_product,
)

__all__ = [
    "Estimate", "OrderFreeSum", "canonical_signs", "left_svd", "orth", "orth_against", "procrustes", "ritz",
    "ritz_turn", "sign_fix", "spectral_norm", "top_eigenvectors", "top_of_factors", "top_of_product",
]  # fmt: skip
