"""What is kept of rows that were seen once: a `Summary`, to which blocks are folded and with which others merge.

With w_i the weight of a row now, the summary holds the weights' sum, the weighted mean and total variance exactly, and
of the scatter  C = sum_i w_i (x_i - mean)(x_i - mean)'  the leading eigenpairs as (U, S): C is about U S^2 U', whose
trace is never more. So the share of the variance that U holds lies in [0, 1] by construction.

Two sets of rows have the scatter  C1 + C2 + (m1 m2 / (m1 + m2)) (mean1 - mean2)(mean1 - mean2)'  with masses m1, m2
(Chan, Golub and LeVeque 1983), so a merge is one of pairs with one column more. Forgetting by a factor f scales U S
(Alg. 4's lambda_1), and mass and total by f^2: an old row weighs f^2 of what it did, in the mean as in the scatter, and
the summary is that of weighted rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import scipy.sparse

from fedspan.encoding import Array, Plain
from fedspan.errors import DataError
from fedspan.linalg.basis import orth, orth_against
from fedspan.linalg.eigen import Estimate
from fedspan.linalg.merge import absorb, nonzero
from fedspan.linalg.squares import centred_squares

_LARGEST = 1e290  # a sum of squares: those of very many sites can still be added
_FRESH = 0.1
"""How much of a probe is random: it finds what is orthogonal to all so far, and blurs the rest by its square."""


@dataclass(frozen=True)
class Summary:
    """Rows seen, in O(d r) numbers."""

    basis: Array
    """d x r, orthonormal."""
    values: Array
    """Singular values of the weighted, centred rows, largest first."""
    mean: Array
    """Of the rows, by weight; zero where they are not centred."""
    mass: float
    """The sum of the rows' weights."""
    total: float
    """The trace of the scatter, of which ``values ** 2`` is a part."""
    rows: int
    """How many were seen."""

    @classmethod
    def empty(cls, d: int) -> Self:
        """Return the summary of no rows."""
        return cls(np.zeros((d, 0)), np.zeros(0), np.zeros(d), 0.0, 0.0, 0)

    def faded(self, factor: float) -> Summary:
        """Return the summary with every row weighing ``factor ** 2`` of what it did."""
        if factor == 1:
            return self
        mass, total = factor**2 * self.mass, factor**2 * self.total
        return replace(self, values=factor * self.values, mass=mass, total=total)

    def cut(self, rank: int) -> Summary:
        """Return the summary with its leading pairs only; the total stays that of all."""
        if len(self.values) <= rank:
            return self
        return replace(self, basis=self.basis[:, :rank], values=self.values[:rank])

    def as_plain(self) -> dict[str, Plain]:
        """Return the summary as plain data: r d + d + r numbers and three more."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_plain(cls, plain: Any) -> Self:
        """Return what `as_plain` gave; refuse what is no summary, whoever sent it."""
        try:
            given = {field.name: plain[field.name] for field in fields(cls)}
            found = cls(**given)
            (d, r), finite = found.basis.shape, [found.mass, found.total, *found.values, *found.mean]
            arrays = (found.basis, found.values, found.mean)
            real = all(a.dtype == np.float64 for a in arrays) and isinstance(found.mass, float)
            if not real or not isinstance(found.total, float):
                raise TypeError("its numbers are floats of 64 bits")
            shaped = found.values.shape == (r,) and found.mean.shape == (d,) and type(found.rows) is int
            if not shaped or not np.all(np.isfinite(finite)) or not np.all(np.isfinite(found.basis)):
                raise ValueError("its shapes or numbers do not fit together")
            if min(*finite[:2], found.rows) < 0 or np.any(np.diff(found.values) > 0) or np.any(found.values < 0):
                raise ValueError("rows, weights and singular values are not negative, and the values fall")
            with np.errstate(over="ignore"):
                held = float(found.values @ found.values)
            if not held <= found.total * (1 + 1e-9) or _overflows(found.total, found.mass, found.mean):
                raise ValueError("its singular values hold more than the total, or its numbers are too large to merge")
            if np.abs(found.basis.T @ found.basis - np.eye(r)).max(initial=0.0) > 1e-6:
                raise ValueError("its basis is not orthonormal")
        except (LookupError, TypeError, AttributeError, ValueError) as cause:
            raise DataError(f"this is no summary of rows: {cause}; send it again") from cause
        return found


def fold(
    summary: Summary,
    block: Any,
    rank: int,
    *,
    weights: Array | None = None,
    center: bool = True,
    offset: Array | None = None,
    forgetting: float = 1.0,
    rng: np.random.Generator,
) -> Summary:
    """Return the summary with a block of rows (n x d, dense or CSR) added: the block SVD update (FPCA (3), Alg. 3).

    A block of at most ``rank`` rows enters as it is. A larger one costs a few products with it instead of a
    decomposition: its own leading directions are sought from the basis so far (a warm start, one step of subspace
    iteration) and at random, and the best pairs inside both are exact there. With ``center=False`` an ``offset`` is
    subtracted from each row, implicitly from sparse ones.

    >>> rng = np.random.default_rng(0)
    >>> seen = fold(Summary.empty(2), np.array([[1.0, 0.0], [3.0, 0.0]]), 1, rng=rng)
    >>> seen.mean, seen.values, seen.total
    (array([2., 0.]), array([1.414...]), 2.0)
    """
    n, d = block.shape
    mass, summary = float(n) if weights is None else float(weights.sum()), summary.faded(forgetting)
    if mass == 0:
        return replace(summary, rows=summary.rows + n)
    joint, shift = summary.mean, np.zeros(d)
    if center:
        offset = _sums(block, weights) / mass
        joint, shift = _joint_mean(summary, offset, mass)
    added = _Block(block, weights, offset, shift)
    total = summary.total + added.squares
    if _overflows(total, summary.mass + mass, joint):
        raise DataError("the block has values so large that their squares overflow; rescale its columns")
    pair = _updated(Estimate(summary.basis, summary.values), added, rank, rng)
    return Summary(pair.basis, pair.values, joint, summary.mass + mass, _at_least(total, pair), summary.rows + n)


def merge_summaries(
    first: Summary, second: Summary, rank: int, *, forgetting: float = 1.0, enhancing: float = 1.0
) -> Summary:
    """Return the summary of both sets of rows (Alg. 6, with the step between their means as one more column)."""
    first, second = first.faded(forgetting), second.faded(enhancing)
    joint, shift = _joint_mean(first, second.mean, second.mass)
    factor = np.column_stack([second.basis * second.values, shift])
    pair = absorb(first.basis, first.values, factor, rank)
    total = first.total + second.total + float(shift @ shift)
    mass, rows = first.mass + second.mass, first.rows + second.rows
    return Summary(pair.basis, pair.values, joint, mass, _at_least(total, pair), rows)


def _sums(block: Any, weights: Array | None) -> Array:
    if weights is None and not scipy.sparse.issparse(block):
        return np.asarray(block.sum(axis=0, dtype=np.float64))
    return np.asarray(block.T @ (np.ones(block.shape[0]) if weights is None else weights))  # a sparse sum is in float32


def _joint_mean(summary: Summary, mean: Array, mass: float) -> tuple[Array, Array]:
    """Return the mean of both, and the column by which their scatters together fall short of the joint one."""
    both = summary.mass + mass
    step = mean - summary.mean
    if both == 0:
        return mean, np.zeros_like(step)
    return summary.mean + (mass / both) * step, math.sqrt(summary.mass) * math.sqrt(mass / both) * step


def _overflows(total: float, mass: float, mean: Array) -> bool:
    with np.errstate(over="ignore"):
        return not total + mass * (1.0 + float(mean @ mean)) < _LARGEST


def _at_least(total: float, pair: Estimate) -> float:
    return max(total, float(pair.values @ pair.values))  # rounding must not make a share of more than all


class _Block:
    """A: a block's rows, centred and weighted, with the shift of the mean below; not formed where they are sparse."""

    def __init__(self, block: Any, weights: Array | None, mean: Array | None, shift: Array) -> None:
        self.rows = block.shape[0] + 1
        self.sparse = scipy.sparse.issparse(block)
        roots = None if weights is None else np.sqrt(weights)[:, None]
        self._shift = shift[None]
        with np.errstate(over="ignore"):  # told by the sum, which is then infinite
            if self.sparse:
                squares = float(centred_squares(block, weights, mean).sum())
            else:
                block = np.asarray(block, dtype=np.float64)
                block = block if mean is None else block - mean
                block = block if roots is None else block * roots
                mean = roots = None
                squares = float(np.einsum("ij,ij->", block, block))
            self.squares = squares + float(shift @ shift)
        self._block, self._mean, self._roots = block, mean, roots

    def times(self, v: Array) -> Array:
        """A v."""
        scores = self._block @ v
        if self._mean is not None:
            scores -= self._mean @ v
        if self._roots is not None:
            scores *= self._roots
        return np.vstack([scores, self._shift @ v])

    def back(self, left: Array) -> Array:
        """A' left."""
        upper = left[:-1] if self._roots is None else left[:-1] * self._roots
        product = self._block.T @ upper
        if self._mean is not None:
            product -= np.outer(self._mean, upper.sum(axis=0))
        return np.asarray(product + self._shift.T @ left[-1:])

    def factor(self) -> Array:
        """A' itself, of a dense block."""
        return np.vstack([self._block, self._shift]).T


def _updated(pair: Estimate, block: _Block, rank: int, rng: np.random.Generator) -> Estimate:
    """Return the leading pairs of [U S, A'], A the block."""
    basis, values = pair
    if not block.sparse and block.rows <= rank + 1:
        return _kept_orthonormal(absorb(basis, values, block.factor(), rank))
    scores = block.times(basis)
    added, _ = orth_against(block.back(_probe(scores, rank, rng)), basis)
    if basis.shape[1] == 0:  # nothing to start from: two more steps
        added = orth(block.back(block.times(orth(block.back(block.times(added))))))
    k, w = len(values), added.shape[1]
    inside = np.zeros((k + block.rows, k + w))
    inside[:k, :k] = np.diag(values)
    inside[k:, :k], inside[k:, k:] = scores, block.times(added)
    _, found, turn = np.linalg.svd(np.linalg.qr(inside, mode="r"))
    turn = turn[:rank].T
    return _kept_orthonormal(nonzero(Estimate(basis @ turn[:k] + added @ turn[k:], found[:rank])))


def _kept_orthonormal(pair: Estimate) -> Estimate:
    """Take back what rounding adds in each of very many updates, before it can grow."""
    basis, values = pair
    error = basis.T @ basis - np.eye(len(values))
    return pair if np.abs(error).max(initial=0.0) < 1e-13 else Estimate(basis - basis @ (error / 2), values)


def _probe(scores: Array, rank: int, rng: np.random.Generator) -> Array:
    """Return combinations of the rows to look along: the scores so far, each with something at random."""
    rows, known = scores.shape
    lengths = np.linalg.norm(scores, axis=0)
    probe = rng.standard_normal((rows, min(rank, rows)))
    warm = min(known, probe.shape[1])
    probe[:, :warm] *= _FRESH / math.sqrt(rows)
    probe[:, :warm] += np.divide(scores, lengths, out=np.zeros_like(scores), where=lengths > 0)[:, :warm]
    return probe
