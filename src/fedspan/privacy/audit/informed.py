"""The attacker who knows the solver: every equation its definition yields, and every fact of the set-up rounds.

It begins with a first guess that meets the facts and the exact products in closed form:

- the mean row alone contributes m m' (`Setup.mean_part`), and G - m m' is positive semi-definite too;
- products G Q = B fix all of G but the block between directions that were never asked for, and Nyström's
  E (Q'B)^+ E' bounds that block from below;
- what the trace has left over is spread evenly over that block, then moved within it to meet the diagonal (which
  sites release where columns are scaled).

Then it makes the least change, in Frobenius norm, that meets the other equations, each as well as it is known:
`fedspan.privacy.audit.change`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse.linalg import lsqr

from fedspan.encoding import Array
from fedspan.privacy.audit.change import away_from, least_change
from fedspan.privacy.audit.equations import Equation, Setup
from fedspan.privacy.audit.products import Products

_FEW = 100  # up to so many features the diagonal is met together with the other equations, beyond it before them


def informed_guess(setup: Setup, products: Products, others: Sequence[Equation]) -> Array:
    """Return the guess of G from what set-up told, from exact products and from other equations."""
    guess, fixed = first_guess(setup, products)
    if fixed.shape[1] < setup.features:
        if setup.trace is not None:
            left = max(setup.trace - float(np.trace(guess)), 0.0)
            guess += (left / (setup.features - fixed.shape[1])) * away_from(fixed)
        if setup.diagonal is not None:
            guess += _to_diagonal(setup.diagonal - np.diagonal(guess), fixed)
    if not others:
        return guess
    if setup.diagonal is not None and setup.features <= _FEW:
        others = [*others, *(_entry(i, entry, setup.features) for i, entry in enumerate(setup.diagonal))]
    return guess + least_change(guess, others, fixed, keep_trace=setup.trace is not None)


def _entry(i: int, value: float, d: int) -> Equation:
    """Return G_ii = value as an equation."""
    return Equation(-1, "inner", np.eye(d)[:, i : i + 1], np.asarray(value))


def first_guess(setup: Setup, products: Products) -> tuple[Array, Array]:
    """Return the least G that products and means allow, and a basis of the directions that products fixed.

    A positive semi-definite G with no more trace than that IS this guess: their difference is positive, of trace zero.
    """
    mean = setup.mean_part
    known = products.less(mean)
    if setup.positive:
        known = known.told_anew()
    guess = known.nystroem() if setup.positive else known.symmetric()
    return guess + mean @ mean.T, known.basis


def _to_diagonal(missing: Array, basis: Array) -> Array:
    """Return the least symmetric D, zero on the basis, whose diagonal is ``missing``: P diag(x) P, P = I - QQ'."""
    away = away_from(basis)
    x = lsqr(away * away, missing, atol=1e-12, btol=1e-12, iter_lim=300)[0]  # singular where little is left free
    return np.asarray((away * x) @ away)
