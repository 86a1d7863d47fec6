"""How many of the d (d + 1) / 2 numbers of G are learnt exactly.

Counted is the rank of all exact equations together, as functionals on symmetric matrices: the dimension of what is
fixed, no matter in which coordinates. An equation that follows from others counts once, or not at all.

- Products G Q, of q directions, fix q (2 d - q + 1) / 2 numbers.
- A cross equation (I - zz')G z fixes what it shows of the directions it adds; a core w'G w what is inside them.
- Single numbers (the trace, the diagonal, each tr(z'G z)) count as far as they are not in the span of the rest.

Where a positive semi-definite G has no trace beyond what the products show, it is fixed altogether.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedspan.encoding import Array
from fedspan.privacy.audit.change import new_directions
from fedspan.privacy.audit.equations import Equation, Setup
from fedspan.privacy.audit.informed import first_guess
from fedspan.privacy.audit.products import Products

_DENSE = 40  # up to so many directions the rank inside them is computed; beyond, a lower bound is counted
_RANK = 1e-7  # singular values below this are rounding: the z's are orthonormal
_NOTHING = 1e-8  # a trace that is left over below this share is rounding


def count_learnt(setup: Setup, products: Products, others: Sequence[Equation]) -> int:
    """Return how many numbers of G the exact equations fix; a lower bound where more than 40 directions mix."""
    d, p = setup.features, len(products.errors)
    numbers = d * (d + 1) // 2
    if p == d or lacks_nothing(setup, products):
        return numbers
    exact = [e for e in others if e.exact]
    crosses = [e for e in exact if e.kind == "cross"]
    added = new_directions(np.hstack([np.zeros((d, 0)), *(e.z for e in crosses)]), products.basis)
    basis = np.hstack([products.basis, added])
    q, m = basis.shape[1], added.shape[1]
    count: int = p * (2 * d - p + 1) // 2 + (d - q) * m
    inside = np.zeros((0, m * (m + 1) // 2))
    if 0 < m <= _DENSE:
        inside = _row_space(np.vstack([_functionals(e, basis, p) for e in exact if e.kind != "inner"]))
    count += len(inside)
    cores = [new_directions(e.z, basis).shape[1] for e in exact if e.kind == "core"]
    count += max((r * (r + 1) // 2 for r in cores), default=0)
    singles = [e.z for e in exact if e.kind == "inner"]
    if setup.diagonal is not None:  # the trace is its sum
        singles += list(np.eye(d)[:, :, None])
    elif setup.trace is not None:
        singles.append(np.eye(d))
    return min(count + _rank_of_singles(singles, basis, added, inside), numbers)


def lacks_nothing(setup: Setup, products: Products) -> bool:
    """Whether the trace shows that the products' least guess is G itself, as for a site of very few rows."""
    if setup.trace is None or not setup.positive:
        return False
    left = setup.trace - float(np.trace(first_guess(setup, products)[0]))
    return abs(left) <= max(_NOTHING, 100 * setup.rounding) * setup.trace


def _functionals(equation: Equation, basis: Array, fixed: int) -> Array:
    """Return what a cross or core equation sees of T, the block inside the added directions: one row a number."""
    z = basis.T @ equation.z
    free = z[fixed:]
    if equation.kind == "cross":
        left = (np.eye(len(z)) - z @ z.T)[:, fixed:]
        pairs = [(a, b) for a in left for b in free.T]
    else:
        at = np.argwhere(np.isfinite(equation.value))
        pairs = [(free[:, i], free[:, j]) for i, j in at]
    return np.stack([_folded(np.outer(a, b)) for a, b in pairs])


def _folded(matrix: Array) -> Array:
    """Return the symmetric part as a vector with the same inner products."""
    matrix = (matrix + matrix.T) / 2
    upper = np.triu_indices(len(matrix), 1)
    return np.concatenate([np.diagonal(matrix), np.sqrt(2) * matrix[upper]])


def _row_space(rows: Array) -> Array:
    _, s, vt = np.linalg.svd(rows, full_matrices=False)
    return np.asarray(vt[s > _RANK])


def _rank_of_singles(singles: Sequence[Array], basis: Array, added: Array, inside: Array) -> int:
    """Return the rank of the numbers tr(f'G f) modulo all that is fixed on the basis."""
    if not singles:
        return 0
    starts = np.cumsum([0, *(f.shape[1] for f in singles[:-1])])
    stack = np.hstack(singles)
    rest = stack - basis @ (basis.T @ stack)
    gram = np.add.reduceat(np.add.reduceat((rest.T @ rest) ** 2, starts, axis=0), starts, axis=1)
    if added.shape[1] <= _DENSE:
        parts = np.stack([_folded((added.T @ f) @ (added.T @ f).T) for f in singles])
        parts -= (parts @ inside.T) @ inside
        gram += parts @ parts.T
    values = np.linalg.eigvalsh(gram)
    return int(np.sum(values > _RANK**2 * max(f.shape[1] ** 2 for f in singles)))
