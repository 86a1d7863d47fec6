"""How near two subspaces are, and how much of the data a subspace holds.

A subspace is given by a d x k matrix whose columns span it. The columns need not be orthonormal, but they
must be linearly independent: a basis that has collapsed to a smaller space is an error here, because
measured as that smaller space it would look better than it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from numpy.typing import ArrayLike, NDArray

from fedspan.errors import ConfigurationError, DataError

Array = NDArray[np.float64]


def projection_distance(U: ArrayLike, V: ArrayLike) -> float:
    """Sine of the largest principal angle between two column spaces (FedPower, Definition 3).

    It equals ``||UU' - VV'||_2`` for spaces of one width. It is computed as ``||V - U U'V||_2``, which keeps
    its digits where the angle is tiny; a cosine of 1 - 1e-20 has none left.

    Parameters
    ----------
    U, V : array of shape (d, k) and (d, l)
        Columns spanning the spaces; orthonormalised here.

    Returns
    -------
    float
        Between 0 and 1. Where the widths differ, the largest angle between the narrower space and the wider
        one: 0 means that the narrower lies inside the wider (FedPower iterates r >= k columns and asks how
        well they hold the leading k).

    Examples
    --------
    >>> import numpy as np
    >>> U = np.array([[1.0], [0.0]])
    >>> projection_distance(U, np.array([[1.0], [1e-10]]))
    1e-10
    >>> projection_distance(np.eye(3)[:, :2], np.eye(3)[:, :1])
    0.0
    """
    wide, narrow = _basis_pair(U, V)
    outside = narrow - wide @ (wide.T @ narrow)
    return min(1.0, float(np.linalg.norm(outside, 2)))


def principal_angles(U: ArrayLike, V: ArrayLike) -> Array:
    """All principal angles between two column spaces, in radians, smallest first (FedPower, appendix E).

    Accurate both near 0 and near a right angle: each comes from its sine and its cosine together. (Where the
    spaces intersect, ``scipy.linalg.subspace_angles`` 1.17 can return 1.5e-8 for an angle of 0.)

    Parameters
    ----------
    U, V : array of shape (d, k) and (d, l)
        Columns spanning the spaces; orthonormalised here.

    Returns
    -------
    array of shape (min(k, l),)

    Examples
    --------
    >>> import numpy as np
    >>> U, V = np.eye(3)[:, :2], np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    >>> np.degrees(principal_angles(U, V)).round(6)
    array([ 0., 45.])
    """
    wide, narrow = _basis_pair(U, V)
    cross = wide.T @ narrow
    cosines = np.linalg.svd(cross, compute_uv=False)
    sines = np.linalg.svd(narrow - wide @ cross, compute_uv=False)
    return np.asarray(np.arctan2(sines[::-1], cosines))


def captured_variance(
    basis: ArrayLike, *, gram: ArrayLike | None = None, X: Any = None, mean: ArrayLike | None = None
) -> float:
    """Share of the total variance that lies in the span of ``basis``.

    Parameters
    ----------
    basis : array of shape (d, k)
        Columns spanning the space; orthonormalised here.
    gram : array of shape (d, d), optional
        A Gram or covariance matrix; the share is of its trace. Give this or ``X``.
    X : array or scipy.sparse matrix of shape (n, d), optional
        The rows themselves; a sparse matrix stays sparse.
    mean : array of shape (d,), optional
        With ``X``: subtracted from each row without being formed row by row, as PCA does. Without it the
        rows are taken as they are.

    Returns
    -------
    float
        Between 0 and 1.

    Examples
    --------
    >>> import numpy as np
    >>> captured_variance(np.eye(2)[:, :1], gram=np.diag([3.0, 1.0]))
    0.75
    >>> captured_variance(np.eye(2)[:, :1], X=np.array([[5.0, 1.0], [5.0, 3.0]]), mean=[5.0, 2.0])
    0.0
    """
    columns = column_basis(basis, "basis")
    if (gram is None) == (X is None):
        raise ConfigurationError(
            "captured_variance needs exactly one of gram= (a d x d matrix) and X= (rows); "
            f"{'neither' if gram is None else 'both'} given"
        )
    if gram is not None:
        if mean is not None:
            raise ConfigurationError("mean= goes with X=; a Gram matrix must be centred before it is formed")
        captured, total = _gram_energy(columns, as_square(gram, "gram"))
    else:
        captured, total = _row_energy(columns, X, mean)
    if not total > 0:
        raise DataError(f"the total variance is {total:g}; a share needs a positive total")
    return min(1.0, max(0.0, captured / total))


def kkt_violation(Z: ArrayLike, GZ: ArrayLike, trace: float) -> float:
    """How far ``Z`` is from spanning an invariant subspace of G: ``||Y - Z(Z'Y)||_F / trace``, Y = GZ.

    This is the scaled KKT violation of FAPS, section 5.2, with G = AA' in its notation and
    trace G = ||A||_F^2. It is 0 for any invariant subspace, not only for the leading one.

    Parameters
    ----------
    Z : array of shape (d, r)
        Orthonormal columns; used as given.
    GZ : array of shape (d, r)
        The Gram matrix times ``Z``, as a round of the power method returns it.
    trace : float
        The trace of the Gram matrix, positive.

    Examples
    --------
    >>> import numpy as np
    >>> gram, z = np.diag([3.0, 1.0]), np.array([[0.6], [0.8]])
    >>> kkt_violation(z, gram @ z, trace=4.0)
    0.24
    """
    basis, product = as_matrix(Z, "Z"), as_matrix(GZ, "GZ")
    if basis.shape != product.shape:
        raise DataError(f"Z has shape {basis.shape} and GZ {product.shape}; they must be the same")
    if not trace > 0:
        raise DataError(f"trace is {trace:g}; the Gram matrix of any data but zeros has a positive trace")
    scaled = product / float(trace)  # before the norm, whose squares would under- or overflow
    return float(np.linalg.norm(scaled - basis @ (basis.T @ scaled)))


def column_basis(matrix: ArrayLike, name: str) -> Array:
    """Orthonormal basis of the columns; an error, naming the argument, where they are dependent."""
    columns = as_matrix(matrix, name)
    d, k = columns.shape
    scale = np.abs(columns).max(axis=0)
    if k <= d and scale.all():
        # Columns are brought to one scale first: a tiny column is a direction, not a dependent one.
        q, r = np.linalg.qr(columns / scale)
        singular = np.linalg.svd(r, compute_uv=False)
        if singular[-1] > d * np.finfo(np.float64).eps * singular[0]:
            return q
    raise DataError(
        f"the {k} columns of {name} are linearly dependent (in dimension {d}); "
        "give a basis of the space, for example numpy.linalg.qr of the independent columns"
    )


def as_matrix(matrix: ArrayLike, name: str) -> Array:
    """Float64 matrix with finite entries, at least one row and one column."""
    array = np.asarray(matrix, dtype=np.float64)
    if array.ndim != 2 or 0 in array.shape:
        raise DataError(f"{name} has shape {array.shape}; expected a d x k matrix (a single vector: reshape(-1, 1))")
    if not np.isfinite(array).all():
        raise DataError(f"{name} holds nan or infinite entries; remove or impute them first")
    return array


def as_rows(rows: Any, name: str) -> Any:
    """Float64 rows with finite entries; a sparse matrix becomes CSR, anything else a dense array."""
    if not scipy.sparse.issparse(rows):
        return as_matrix(rows, name)
    matrix = rows.tocsr().astype(np.float64)
    if 0 in matrix.shape or not np.isfinite(matrix.data).all():
        raise DataError(f"{name} is empty (shape {matrix.shape}) or holds nan or infinite entries")
    return matrix


def as_square(matrix: ArrayLike, name: str) -> Array:
    """Symmetric matrix, checked to rounding."""
    array = as_matrix(matrix, name)
    if array.shape[0] != array.shape[1] or not np.allclose(array, array.T, atol=1e-10 * np.abs(array).max()):
        raise DataError(f"{name} has shape {array.shape}; expected a symmetric d x d matrix")
    return array


def _basis_pair(U: ArrayLike, V: ArrayLike) -> tuple[Array, Array]:
    """Orthonormal bases of both spaces, the wider one first."""
    first, second = column_basis(U, "U"), column_basis(V, "V")
    if first.shape[0] != second.shape[0]:
        raise DataError(
            f"U has {first.shape[0]} rows and V {second.shape[0]}; subspaces of one space have equally many "
            "(scikit-learn's components_ hold the vectors in rows: pass components_.T)"
        )
    return (first, second) if first.shape[1] >= second.shape[1] else (second, first)


def _gram_energy(basis: Array, gram: Array) -> tuple[float, float]:
    if gram.shape[0] != basis.shape[0]:
        raise DataError(f"basis has {basis.shape[0]} rows, gram is {gram.shape[0]} x {gram.shape[0]}")
    return float(np.sum(basis * (gram @ basis))), float(np.trace(gram))


def _row_energy(basis: Array, X: Any, mean: ArrayLike | None) -> tuple[float, float]:
    rows = as_rows(X, "X")
    shift = np.zeros(basis.shape[0]) if mean is None else np.asarray(mean, dtype=np.float64)
    if rows.shape[1] != basis.shape[0] or shift.shape != (basis.shape[0],):
        raise DataError(
            f"basis has {basis.shape[0]} rows, X has {rows.shape[1]} columns, mean has shape {shift.shape}; "
            "the three must agree on d"
        )
    captured = float(np.sum((rows @ basis - shift @ basis) ** 2))
    if not scipy.sparse.issparse(rows):
        return captured, float(np.sum((rows - shift) ** 2))
    # ||X - 1 m'||^2 expanded, so that the sparse matrix is never filled with -m.
    cross = float(np.asarray(rows.sum(axis=0)).ravel() @ shift)
    total = float(scipy.sparse.linalg.norm(rows)) ** 2 - 2 * cross + rows.shape[0] * float(shift @ shift)
    return captured, total
