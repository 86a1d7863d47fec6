"""Orthonormal bases: making them, aligning them, fixing their signs."""

from __future__ import annotations

import numpy as np
import scipy.linalg

from fedspan.encoding import Array


def orth(y: Array) -> Array:
    """Orthonormalise columns by QR with R's diagonal positive.

    The sign rule makes orth continuous: sites that hold nearly the same Y get nearly the same basis. A plain
    Householder QR flips columns between them, and FedPower without alignment then stalls (on w8a at a projection
    distance of 0.4 instead of 0.07).
    """
    q, r = np.linalg.qr(y)
    return q * np.where(np.diagonal(r) < 0, -1.0, 1.0)


def orth_against(block: Array, basis: Array, threshold: float = 1e-10) -> Array:
    """Return an orthonormal basis of what ``block`` adds to ``basis``, dropping directions that add nothing.

    A direction is dropped where it falls below ``threshold`` times the block's largest norm: a rank-deficient
    block comes back narrower, and one inside the basis comes back with no columns.
    """
    scale = np.linalg.norm(block, axis=0).max(initial=0.0)
    if scale == 0:
        return block[:, :0]
    rest = block
    for _ in range(2):  # once more: "twice is enough" (Kahan, Parlett)
        rest = rest - basis @ (basis.T @ rest)
    q, r, _ = scipy.linalg.qr(rest, mode="economic", pivoting=True, check_finite=False)
    kept = int(np.sum(np.abs(np.diagonal(r)) > threshold * scale))
    q = q[:, :kept]
    return orth(q - basis @ (basis.T @ q)) if kept else q


def procrustes(z: Array, reference: Array) -> Array:
    """Return the orthogonal D that brings ``z @ D`` nearest to ``reference`` (FedPower (3.2) with F = O_r)."""
    w1, _, w2t = np.linalg.svd(z.T @ reference)
    return w1 @ w2t  # type: ignore[no-any-return]


def sign_fix(z: Array, reference: Array) -> Array:
    """Return the diagonal +-1 matrix that brings ``z @ D`` nearest to ``reference`` (FedPower (3.16))."""
    return np.diag(np.where(np.sum(z * reference, axis=0) < 0, -1.0, 1.0))


def canonical_signs(basis: Array) -> Array:
    """Return the basis with each column's largest entry positive: one sign rule everywhere.

    >>> canonical_signs(np.array([[0.1], [-0.9]]))
    array([[-0.1],
           [ 0.9]])
    """
    if basis.size == 0:
        return basis
    peaks = np.take_along_axis(basis, np.abs(basis).argmax(axis=0)[None], axis=0)
    return basis * np.where(peaks < 0, -1.0, 1.0)
