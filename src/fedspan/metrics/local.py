"""How much the sites differ: the residual error and the local approximation of FedPower."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike

from fedspan.errors import ConfigurationError, DataError, nearest
from fedspan.metrics.subspace import Array, as_matrix, as_rows, as_square

Align = Literal["procrustes", "sign"] | None


def residual_error(bases: Sequence[ArrayLike], align: Align = "procrustes", baseline: int = 0) -> float:
    """Residual error rho_t = max_i ||Z_i D_i - Z_1||_2 of the sites' bases (FedPower (3.3)).

    Parameters
    ----------
    bases : sequence of arrays of shape (d, r)
        The sites' orthonormal bases Z_i after their local steps.
    align : {"procrustes", "sign", None}
        How each D_i is found: the orthogonal matrix of FedPower (3.2), the signs of (3.16), or the identity.
    baseline : int
        Which site is Z_1. The paper takes the one with the most rows.

    Returns
    -------
    float
        0 where all sites agree; at most 2.

    Examples
    --------
    >>> import numpy as np
    >>> z = np.eye(3)[:, :2]
    >>> residual_error([z, -z]), residual_error([z, -z], align=None)
    (0.0, 2.0)
    """
    matrices = [as_matrix(basis, f"bases[{i}]") for i, basis in enumerate(bases)]
    check_align(align)
    if not 0 <= baseline < len(matrices):
        raise ConfigurationError(
            f"baseline is {baseline}, with {len(matrices)} bases; expected one of 0 to {len(matrices) - 1}"
        )
    reference = matrices[baseline]
    if any(z.shape != reference.shape for z in matrices):
        raise DataError(f"bases have shapes {[z.shape for z in matrices]}; all must have one shape d x r")
    return max(float(np.linalg.norm(_aligned(z, reference, align) - reference, 2)) for z in matrices)


def local_approximation(
    grams: Sequence[ArrayLike] | None = None,
    weights: ArrayLike | None = None,
    *,
    sites: Sequence[Any] | None = None,
) -> float:
    """How far the sites are from the whole: eta = max_i ||M_i - M||_2 / ||M||_2 (FedPower, Assumption 1).

    Parameters
    ----------
    grams : sequence of arrays of shape (d, d), optional
        M_i = A_i'A_i / s_i of each site, with ``weights``.
    weights : array of shape (m,), optional
        Row counts s_i or shares p_i; only their ratios matter. M is the weighted mean of the M_i.
    sites : sequence of arrays or scipy.sparse matrices of shape (s_i, d), optional
        The rows A_i themselves, in place of ``grams``; weighted by their row counts unless
        ``weights`` are given.

    Examples
    --------
    >>> import numpy as np
    >>> local_approximation([np.diag([3.0, 1.0]), np.diag([5.0, 1.0])], weights=[1, 1])
    0.25
    """
    covariances, counts = site_covariances(grams, weights, sites)
    return approximation_level(covariances, counts / counts.sum())


def approximation_level(covariances: Sequence[Array], shares: Array) -> float:
    """Compute eta from the M_i and the shares p_i."""
    overall = mean_covariance(covariances, shares)
    size = symmetric_norm(overall)
    if size == 0:
        raise DataError("all sites hold zeros only; eta = max ||M_i - M|| / ||M|| needs M different from 0")
    return max(symmetric_norm(local - overall) for local in covariances) / size


def site_covariances(
    grams: Sequence[ArrayLike] | None, counts: ArrayLike | None, sites: Sequence[Any] | None
) -> tuple[list[Array], Array]:
    """Bring Grams with counts, or the sites' rows, to the list of M_i and their row counts."""
    if (grams is None) == (sites is None):
        given = "neither" if grams is None else "both"
        raise ConfigurationError(f"give the sites' Gram matrices (grams=) or their rows (sites=); {given} given")
    if grams is not None and counts is None:
        raise ConfigurationError("Gram matrices do not tell how many rows they stand for; give the row counts too")
    if sites is not None:
        rows = [as_rows(site, f"sites[{i}]") for i, site in enumerate(sites)]
        covariances = [_gram(a) / a.shape[0] for a in rows]
        counts = [a.shape[0] for a in rows] if counts is None else counts
    else:
        covariances = [as_square(gram, f"grams[{i}]") for i, gram in enumerate(grams or ())]
    sizes = np.asarray(counts, dtype=np.float64)
    if not covariances or sizes.shape != (len(covariances),) or not (sizes > 0).all():
        raise ConfigurationError(
            f"{len(covariances)} sites with row counts of shape {sizes.shape}; "
            "expected at least one site and a positive count for each"
        )
    if len({m.shape for m in covariances}) > 1:
        raise DataError(f"sites have {[m.shape[0] for m in covariances]} columns; all must have the same columns")
    return covariances, sizes


def mean_covariance(covariances: Sequence[Array], shares: Array) -> Array:
    """M = sum_i p_i M_i (FedPower (2.2))."""
    return np.asarray(sum(p * m for p, m in zip(shares, covariances, strict=True)))


def symmetric_norm(matrix: Array) -> float:
    """Spectral norm of a symmetric matrix."""
    return float(np.abs(np.linalg.eigvalsh(matrix)).max())


def check_align(align: object) -> None:
    """Refuse an alignment that is not one of the three."""
    if align not in ("procrustes", "sign", None):
        hint = nearest(str(align), ["procrustes", "sign"])
        raise ConfigurationError(f"align is {align!r}; expected 'procrustes', 'sign' or None ({hint})")


def _aligned(basis: Array, reference: Array, align: Align) -> Array:
    if align is None:
        return basis
    if align == "sign":
        # FedPower (3.16): one sign a column; a zero product has no sign, and either will do.
        return basis * np.where(np.sum(basis * reference, axis=0) < 0, -1.0, 1.0)
    # FedPower (3.2): D = W_1 W_2' from the SVD of Z_i'Z_1.
    left, _, right = np.linalg.svd(basis.T @ reference)
    return np.asarray(basis @ (left @ right))


def _gram(rows: Any) -> Array:
    product = rows.T @ rows
    return np.asarray(product.toarray() if scipy.sparse.issparse(product) else product, dtype=np.float64)
