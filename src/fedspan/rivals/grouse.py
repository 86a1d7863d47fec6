"""GROUSE: Grassmannian rank-one update subspace estimation (Balzano, Nowak, Recht 2010).

==================  ======================================================================
paper               here
==================  ======================================================================
U_t                 ``basis``
v, w, p, r          ``row``, ``weights`` U'v, ``inside`` U w, ``residual`` v - U w
sigma               ||r|| ||p||
eta_0               ``step``; eta_t = eta_0 / t with t the number of rows so far
==================  ======================================================================

Each row turns U along the geodesic of its gradient by the angle eta_t sigma. "Step size 2" of Federated-PCA is read as
eta_0 = 2, as the authors' own code takes a constant step: divided by t, and no turn at all where the angle would be a
right one or more. That angle grows with the square of the data's scale, so large values stop GROUSE. ``step="greedy"``
has no such scale: the angle arctan(||r|| / ||p||) takes in the whole row (Zhang, Balzano 2016).

Left out: rows with missing entries, which are what GROUSE is for.
"""

from __future__ import annotations

import math

import numpy as np

from fedspan.encoding import Array
from fedspan.errors import ConfigurationError
from fedspan.linalg import orth
from fedspan.rivals.checks import as_rows, rank_fits


class Grouse:
    """One geodesic step a row, from a random start.

    >>> rows = np.outer([1.0, 2.0, -1.0], [0.6, 0.8, 0.0])
    >>> tracker = Grouse(3, 1, step="greedy")
    >>> tracker.update(rows)
    >>> np.abs(tracker.basis[:, 0]).round(6)
    array([0.6, 0.8, 0. ])
    """

    def __init__(self, n_features: int, n_components: int, *, step: float | str = 2.0, seed: int = 0) -> None:
        rank_fits(n_features, n_components)
        if step != "greedy" and (isinstance(step, str) or not step > 0):
            raise ConfigurationError(f"step is {step!r}; expected a positive number, or 'greedy'")
        self._step: float | None = None if isinstance(step, str) else float(step)
        self._basis = orth(np.random.default_rng(seed).standard_normal((n_features, n_components)))
        self._rows = 0

    @property
    def basis(self) -> Array:
        """d x r; the random start before the first row."""
        return self._basis

    def update(self, rows: Array) -> None:
        for row in as_rows(rows, len(self._basis)):
            self._rows += 1
            self._turn(row)

    def _turn(self, row: Array) -> None:
        weights = self._basis.T @ row
        inside = self._basis @ weights
        residual = row - inside
        residual -= self._basis @ (self._basis.T @ residual)  # once more, or orthogonality is lost row by row
        length, outside = float(np.linalg.norm(weights)), float(np.linalg.norm(residual))
        if outside <= np.finfo(np.float64).eps * length or length == 0:
            return  # the row adds nothing, or has no gradient
        angle = math.atan2(outside, length) if self._step is None else self._step * length * outside / self._rows
        if angle < math.pi / 2:
            turned = (math.cos(angle) - 1) / length * inside + math.sin(angle) / outside * residual
            self._basis = self._basis + np.outer(turned, weights / length)
