"""Merging two subspaces with their singular values: Algorithms 4, 5 and 6 of Federated-PCA (Grammenos et al. 2020).

Each finds the r leading left singular pairs of [forgetting U1 S1, enhancing U2 S2]: what the rows behind both would
give, as far as the two pairs hold them. Where the joint rank fits r nothing is lost, and the order of merges does not
matter but for rounding; where it does not, what is cut off is the loss, and another order cuts another way.

The singular values of the result are those of the concatenation to rounding in all three, so Alg. 6, the fastest, is
what the rest of fedspan uses; the other two are there to check it and to be compared with.
"""

from __future__ import annotations

import numpy as np

from fedspan.encoding import Array
from fedspan.linalg.basis import orth_against
from fedspan.linalg.eigen import Estimate, left_svd

_FEW = 1e-2
_DEPENDENT = 1e-3  # of a column's length: with less than this beside the others, QR would blow up what rounding left


def basic_merge(
    u1: Array, s1: Array, u2: Array, s2: Array, r: int, *, forgetting: float = 1.0, enhancing: float = 1.0
) -> Estimate:
    """Alg. 4: the SVD of the concatenation.

    >>> axes = np.eye(3)
    >>> basic_merge(axes[:, :1], np.array([3.0]), axes[:, :1], np.array([4.0]), 1).values
    array([5.])
    """
    basis, values = left_svd(np.hstack([forgetting * u1 * s1, enhancing * u2 * s2]))
    return Estimate(basis[:, :r], values[:r])


def faster_merge(
    u1: Array, s1: Array, u2: Array, s2: Array, r: int, *, forgetting: float = 1.0, enhancing: float = 1.0
) -> Estimate:
    """Alg. 5: the SVD of the concatenation's small triangular factor.

    >>> axes = np.eye(3)
    >>> faster_merge(axes[:, :1], np.array([3.0]), axes[:, :1], np.array([4.0]), 1).values
    array([5.])
    """
    q, small = np.linalg.qr(np.hstack([forgetting * u1 * s1, enhancing * u2 * s2]))
    turn, values = left_svd(small)
    return Estimate(q @ turn[:, :r], values[:r])


def merge(
    u1: Array, s1: Array, u2: Array, s2: Array, r: int, *, forgetting: float = 1.0, enhancing: float = 1.0
) -> Estimate:
    """Alg. 6: U1 is orthonormal already, so only what U2 adds to it is orthonormalised.


    >>> axes = np.eye(3)
    >>> merge(axes[:, :1], np.array([3.0]), axes[:, :1], np.array([4.0]), 1).values
    array([5.])
    """
    s1, s2 = forgetting * s1, enhancing * s2
    return _merged(u1, s1, u2, s2, r, max(_last(s1, r), _last(s2, r)))


def _merged(u1: Array, s1: Array, u2: Array, s2: Array, r: int, least: float) -> Estimate:
    """Return the r leading pairs; ``u2`` may be any columns of norm one, for nothing here asks for more:

    [U1 S1, U2 S2] = [U1, Q] [[S1, Z S2], [0, R S2]].
    """
    inside = u1.T @ u2
    q, outside = _added(u2 - u1 @ inside, u1)
    k = u1.shape[1]
    small = np.zeros((k + len(outside), k + u2.shape[1]))
    small[:k, :k] = np.diag(s1)
    small[:k, k:] = inside * s2
    small[k:, k:] = outside * s2
    turn, values = _leading(small, r, least)
    return Estimate(u1 @ turn[:k] + q @ turn[k:], values)


def _last(values: Array, r: int) -> float:
    """Return the r-th value: with a concatenation, no singular value gets less."""
    return float(values[r - 1]) if len(values) >= r else 0.0


def _leading(small: Array, r: int, least: float) -> Estimate:
    """Return the leading left singular pairs of a small square matrix, the r-th value known to be at least ``least``.

    The eigenpairs of small small' come in half the time of an SVD and lose sigma_1 / sigma_r of the precision: taken
    where that is at most a hundred, two digits of sixteen.
    """
    gram = small @ small.T
    if least**2 <= _FEW**2 * np.trace(gram):
        turn, values = left_svd(small)
        return Estimate(turn[:, :r], values[:r])
    values, vectors = np.linalg.eigh(gram)
    return Estimate(vectors[:, : -r - 1 : -1], np.sqrt(values[: -r - 1 : -1]))


def absorb(u: Array, s: Array, factor: Array, r: int) -> Estimate:
    """Return the r leading left singular pairs of [U S, factor]: `merge` with columns of any length.

    >>> absorb(np.eye(3)[:, :1], np.array([3.0]), np.array([[4.0], [0.0], [0.0]]), 2).values
    array([5.])
    """
    lengths = np.linalg.norm(factor, axis=0)
    real = lengths > 0
    return nonzero(_merged(u, s, factor[:, real] / lengths[real], lengths[real], r, _last(s, r)))


def nonzero(pair: Estimate) -> Estimate:
    """Drop pairs whose singular value is rounding: their vectors mean nothing."""
    basis, values = pair
    keep = int(np.sum(values > 1e-14 * values.max(initial=0.0)))
    return Estimate(basis[:, :keep], values[:keep])


def _added(rest: Array, basis: Array) -> tuple[Array, Array]:
    """Return Q, R with Q R = ``rest``, Q orthonormal and orthogonal to ``basis`` to rounding."""
    least = _DEPENDENT * np.linalg.norm(rest, axis=0)
    rest = rest - basis @ (basis.T @ rest)  # what rounding left inside, relative to a small rest, is not small
    d, wide = rest.shape
    if wide <= d - basis.shape[1]:
        q, r = np.linalg.qr(rest)
        if np.all(np.abs(np.diagonal(r)) > least):
            return q, r
    q, rest = orth_against(rest, basis)
    return q, q.T @ rest
