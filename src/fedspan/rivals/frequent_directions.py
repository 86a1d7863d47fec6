"""Frequent Directions (Liberty 2013; in its fast form Ghashami, Liberty, Phillips, Woodruff 2016).

==================  ======================================================================
paper               here
==================  ======================================================================
A, B                the rows so far, ``sketch``
ell                 2 r rows of sketch, r = ``n_components``
delta               ``shift``: the (r + 1)-th squared singular value of a full sketch
==================  ======================================================================

A full sketch is turned into its singular vectors, and ``shift`` is taken off every squared singular value; so at most r
rows are left. Of every shift at least r + 1 directions pay, hence for every k <= r and unit vector v

    0 <= ||X v||^2 - ||B v||^2 <= sum of shifts <= ||X - X_k||_F^2 / (r + 1 - k),

which k = 0 makes ||X||_F^2 / (r + 1). Left out: robust Frequent Directions, which returns the same subspace.
"""

from __future__ import annotations

import numpy as np

from fedspan.encoding import Array
from fedspan.rivals.checks import as_rows, rank_fits


class FrequentDirections:
    """A sketch B of 2 r rows with B'B near X'X.

    >>> sketcher = FrequentDirections(3, 1)
    >>> sketcher.update(
    ...     np.eye(3)
    ... )  # the third row finds the sketch full: the first two are equal, and shrink to nothing
    >>> sketcher.sketch
    array([[0., 0., 0.],
           [0., 0., 1.]])
    """

    def __init__(self, n_features: int, n_components: int) -> None:
        rank_fits(n_features, n_components)
        self._rank = n_components
        self._sketch = np.zeros((2 * n_components, n_features))
        self._filled = 0

    @property
    def sketch(self) -> Array:
        """B, at most 2 r rows."""
        return self._sketch[: self._filled].copy()

    @property
    def basis(self) -> Array:
        """d x r; narrower while fewer than r rows came."""
        return np.linalg.svd(self.sketch, full_matrices=False)[2][: self._rank].T

    def update(self, rows: Array) -> None:
        rows = as_rows(rows, self._sketch.shape[1])
        while len(rows):
            if self._filled == len(self._sketch):
                self._shrink()
            taken = rows[: len(self._sketch) - self._filled]
            self._sketch[self._filled : self._filled + len(taken)] = taken
            self._filled += len(taken)
            rows = rows[len(taken) :]

    def _shrink(self) -> None:
        _, s, vt = np.linalg.svd(self._sketch, full_matrices=False)
        kept = self._rank
        shift = s[kept] ** 2 if kept < len(s) else 0.0
        self._sketch[:kept] = np.sqrt(s[:kept] ** 2 - shift)[:, None] * vt[:kept]
        self._filled = kept
