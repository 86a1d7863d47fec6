"""Small eigenproblems: Rayleigh-Ritz, and the leading eigenvectors of a matrix or of a product."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse.linalg

from fedspan.encoding import Array
from fedspan.linalg.basis import orth_against


class Estimate(NamedTuple):
    """The answer of a solver: an orthonormal d x r basis with its values, largest first."""

    basis: Array
    values: Array


def ritz(z: Array, product: Array, k: int | None = None) -> Estimate:
    """Rayleigh-Ritz: the best eigenvectors of G inside span(z), from z and G z alone.

    >>> ritz(np.eye(3)[:, :2], np.diag([1.0, 4.0, 9.0])[:, :2]).values
    array([4., 1.])
    """
    values, vectors = _leading(z, product, k)
    return Estimate(z @ vectors, values)


def ritz_turn(z: Array, product: Array, k: int) -> Array:
    """Return the r x k matrix that turns z into its k leading Ritz vectors (and G z into their products)."""
    return _leading(z, product, k)[1]


def _leading(z: Array, product: Array, k: int | None) -> tuple[Array, Array]:
    projected = z.T @ product
    values, vectors = np.linalg.eigh((projected + projected.T) / 2)
    leading = slice(None, None if k is None else -k - 1, -1)
    return values[leading], vectors[:, leading]


def left_svd(product: Array) -> Estimate:
    """Return the left singular vectors and values: the next power iterate G z, its columns in Ritz order."""
    u, s, _ = np.linalg.svd(product, full_matrices=False)
    return Estimate(u, s)


def top_eigenvectors(gram: Array, k: int) -> Estimate:
    """Return the k leading eigenpairs of a symmetric matrix."""
    d = gram.shape[0]
    values, vectors = scipy.linalg.eigh(gram, subset_by_index=[max(d - k, 0), d - 1], check_finite=False)
    return Estimate(vectors[:, ::-1], values[::-1])


def top_of_factors(factors: Array, k: int) -> Estimate:
    """Return the k leading eigenpairs of ``factors @ factors.T`` without forming it when it would be the larger."""
    d, width = factors.shape
    if d <= width:
        return top_eigenvectors(factors @ factors.T, k)
    basis, values = left_svd(factors)
    return Estimate(basis[:, :k], values[:k] ** 2)


def top_of_product(times: Callable[[Array], Array], d: int, k: int, rng: np.random.Generator) -> Estimate:
    """Return the k leading eigenpairs of a symmetric matrix known only by its product, by ARPACK.

    None where the matrix is zero, which ARPACK cannot start from.
    """
    start = rng.standard_normal(d)
    if not np.any(times(start.reshape(d, 1))):
        return Estimate(np.zeros((d, 0)), np.zeros(0))
    operator = scipy.sparse.linalg.LinearOperator(
        (d, d), matvec=lambda v: times(v.reshape(d, 1))[:, 0], matmat=times, dtype=np.float64
    )
    values, vectors = scipy.sparse.linalg.eigsh(operator, k=k, which="LA", v0=start)
    order = np.argsort(values)[::-1]
    return Estimate(vectors[:, order], values[order])


def spectral_norm(times: Callable[[Array], Array], start: Array, steps: int = 8) -> float:
    """Return the largest |eigenvalue| of a symmetric matrix known by its product: a few Lanczos steps from a vector.

    A lower bound, within a few percent where the start is not orthogonal to the leading eigenvector.

    >>> spectral_norm(lambda v: np.array([[3.0], [1.0]]) * v, np.array([[0.6], [0.8]]))
    3.0
    """
    basis = start / np.linalg.norm(start)
    products = times(basis)
    for _ in range(min(steps, len(start)) - 1):
        block, _ = orth_against(products[:, -1:], basis)
        if block.shape[1] == 0:
            break
        basis, products = np.hstack([basis, block]), np.hstack([products, times(block)])
    projected = basis.T @ products
    return float(np.abs(np.linalg.eigvalsh((projected + projected.T) / 2)).max())
