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
from fedspan.linalg.merge import absorb, basic_merge, faster_merge, merge, nonzero
from fedspan.linalg.squares import centred_squares
from fedspan.linalg.summary import Summary, fold, merge_summaries

__all__ = [
    "Estimate", "OrderFreeSum", "Summary", "absorb", "basic_merge", "canonical_signs", "centred_squares",
    "faster_merge", "fold", "left_svd", "merge", "merge_summaries", "nonzero", "orth", "orth_against", "procrustes",
    "ritz", "ritz_turn", "sign_fix", "spectral_norm", "top_eigenvectors", "top_of_factors", "top_of_product",
]  # fmt: skip
