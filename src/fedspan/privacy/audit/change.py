"""The least symmetric change of a guess that meets linear equations: weighted least squares, minimum norm.

Equations of the kinds `cross`, `core` and `inner` see a symmetric D only through D Q, with Q a basis of their z's. So D
splits in two: E = (I - QQ')D Q, a small least-squares problem that is solved at once, and T = Q'D Q, found by LSQR on
q x q matrices. Nothing of size d^2 x d^2 is ever formed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
from scipy.sparse.linalg import LinearOperator, lsqr

from fedspan.encoding import Array
from fedspan.privacy.audit.equations import Equation

_EXACT = 1e6  # the weight of an equation that holds to rounding, against 1 for the wish to change little
_CARE = 100.0  # the error of a cross equation in its worst direction, over its deviation: as measured on runs of FAPS,
_ROOT = 5.0  # or over its root, if that is more: so where W_i vanishes, as at a single site
_STEPS = 300  # of LSQR, at most: what it finds late is what the equations hardly tell
_NEW = 1e-7  # directions nearer than this to those before are not new


def away_from(basis: Array) -> Array:
    """Return the projector onto what is orthogonal to a basis."""
    return np.asarray(np.eye(len(basis)) - basis @ basis.T)


def new_directions(stack: Array, basis: Array, least: float = _NEW) -> Array:
    """Return an orthonormal basis of what a stack of columns adds to a basis, beyond ``least``."""
    rest = stack - basis @ (basis.T @ stack)
    rest -= basis @ (basis.T @ rest)
    u, s, _ = np.linalg.svd(rest, full_matrices=False)
    return np.asarray(u[:, s > least])


def least_change(guess: Array, equations: Sequence[Equation], fixed: Array, *, keep_trace: bool) -> Array:
    """Return the least D, zero on ``fixed``, with which guess + D meets the equations."""
    rows = [(e, _miss(e, guess)) for e in equations]
    unit = max(float(np.sqrt(np.nanmean(miss**2))) for _, miss in rows) or 1.0
    weighed = [
        _Row(e, miss / unit, min(_EXACT, unit / max(_error(e) * abs(e.beta or 0.0), 1e-300))) for e, miss in rows
    ]
    # An inner equation is quadratic in z, so its weight goes in by the root; what weighs less than 1 tells nothing.
    strength = [np.sqrt(row.weight) if row.equation.kind == "inner" else row.weight for row in weighed]
    added = new_directions(np.hstack([s * row.equation.z for s, row in zip(strength, weighed, strict=True)]), fixed, 1)
    basis = np.hstack([fixed, added])
    if not added.shape[1]:
        return np.zeros_like(guess)
    outside = len(guess) - basis.shape[1]
    price = 0.0  # what T's trace costs: it is taken back outside, or must not change where there is no outside
    if keep_trace:
        price = 1 / np.sqrt(outside) if outside else _EXACT
    t = _inside(weighed, basis, fixed.shape[1], price)
    half = (added @ (t / 2) + _outside(weighed, basis, added)) @ added.T
    change = unit * (half + half.T)
    if keep_trace and outside:
        change -= (unit * float(np.trace(t)) / outside) * away_from(basis)
    return np.asarray(change)


class _Row(NamedTuple):
    equation: Equation
    miss: Array
    weight: float


def _error(equation: Equation) -> float:
    """Return the error to expect of a cross equation of FAPS, as a share of beta_i."""
    error = _CARE * equation.deviation
    return error if equation.exact else max(error, _ROOT * float(np.sqrt(equation.deviation)))


def _miss(equation: Equation, guess: Array) -> Array:
    """Return by how much a guess misses an equation."""
    z = equation.z
    image = guess @ z
    if equation.kind == "cross":
        image -= z @ (z.T @ image)
    elif equation.kind == "core":
        image = z.T @ image
    else:
        image = np.sum(z * image)
    return np.asarray(equation.value - image)


def _outside(rows: Sequence[_Row], basis: Array, added: Array) -> Array:
    """Return E: from each cross equation E (Q'z) = (I - QQ') miss, all rows of E by the same damped inverse."""
    crosses = [row for row in rows if row.equation.kind == "cross"]
    if not crosses:
        return np.zeros_like(added)
    seen = np.hstack([row.weight * (added.T @ row.equation.z) for row in crosses])
    rest = np.hstack([row.weight * row.miss for row in crosses])
    u, s, vt = np.linalg.svd(seen, full_matrices=False)
    found = (rest @ vt.T * (s / (s**2 + 1))) @ u.T
    return np.asarray(found - basis @ (basis.T @ found))


def _inside(rows: Sequence[_Row], basis: Array, fixed: int, price: float) -> Array:
    """Return T: the weighted sum of squares of all misses, of T itself and of its trace, at its least."""
    ordered = sorted(rows, key=lambda row: (row.equation.kind, row.equation.z.shape[1]))
    groups = [
        _Group(kind, list(some), basis, fixed)
        for (kind, _), some in groupby(ordered, key=lambda row: (row.equation.kind, row.equation.z.shape[1]))
    ]
    q = basis.shape[1] - fixed
    ends = np.cumsum([len(group.value) for group in groups])

    def of(x: Array) -> Array:
        t = x.reshape(q, q)
        t = (t + t.T) / 2
        return np.concatenate([*(group.of(t) for group in groups), [price * np.trace(t)]])

    def back(y: Array) -> Array:
        t = price * y[-1] * np.eye(q)
        for group, part in zip(groups, np.split(y[:-1], ends[:-1]), strict=True):
            t += group.back(part)
        return np.asarray((t + t.T) / 2).ravel()

    values = np.append(np.concatenate([group.value for group in groups]), 0.0)
    operator = LinearOperator((len(values), q * q), matvec=of, rmatvec=back, dtype=float)
    t = lsqr(operator, values, damp=1.0, atol=1e-14, btol=1e-14, iter_lim=_STEPS)[0].reshape(q, q)
    return np.asarray((t + t.T) / 2)


class _Group:
    """Equations of one kind and shape, in the coordinates of the basis: what they make of T, and back."""

    def __init__(self, kind: str, rows: Sequence[_Row], basis: Array, fixed: int) -> None:
        self.kind, self.fixed = kind, fixed
        self.z = np.stack([basis.T @ row.equation.z for row in rows])
        self.free = self.z[:, fixed:]
        count, q, r = self.free.shape
        self.side_by_side = np.ascontiguousarray(self.free.transpose(1, 0, 2)).reshape(q, count * r)
        misses = np.stack([basis.T @ row.miss if kind == "cross" else row.miss for row in rows])
        self.known = np.isfinite(misses)
        self.weight = np.array([row.weight for row in rows]).reshape(-1, *[1] * (misses.ndim - 1))
        self.value = (self.weight * misses)[self.known]

    def of(self, t: Array) -> Array:
        image = (t @ self.side_by_side).reshape(len(t), len(self.z), -1).transpose(1, 0, 2)
        core = self.free.mT @ image
        if self.kind == "cross":
            made = -self.z @ core
            made[:, self.fixed :] += image
        else:
            made = core if self.kind == "core" else np.trace(core, axis1=1, axis2=2)
        return np.asarray((self.weight * made)[self.known])

    def back(self, y: Array) -> Array:
        full = np.zeros(self.known.shape)
        full[self.known] = y
        full *= self.weight
        if self.kind == "cross":
            left = full[:, self.fixed :] - self.free @ (self.z.mT @ full)
        else:
            left = self.free @ full if self.kind == "core" else self.free * full[:, None, None]
        return np.asarray(left.transpose(1, 0, 2).reshape(left.shape[1], -1) @ self.side_by_side.T)
