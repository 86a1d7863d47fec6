"""SPIRIT: streaming pattern discovery with an adaptive rank (Papadimitriou, Sun, Faloutsos 2005).

==================  ======================================================================
paper               here
==================  ======================================================================
w_i                 a column of ``basis``
lambda              ``forgetting``; 1 forgets nothing
d_i                 ``_steps``: column i moves by its score over this; from 0.01, as the authors' code
E, E_i              ``_total``, ``_energies``: squares of the rows and of their scores
f_E, F_E            ``energy``
k                   ``rank``, from ``n_components`` at the start
==================  ======================================================================

Each row moves column after column towards what the columns before it left over. Then there is one column more while
less than f_E of the energy is captured, one less while more than F_E.

Two choices are the authors' code's, not the paper's. Energies are of the scores after the move: those before it miss
what a new column is just taking in, and with forgetting the rank then runs up to d. And after a change the rank rests
for ``pause`` rows; without that it reaches d on MNIST.

That code keeps the columns orthonormal by Gram-Schmidt, which divides by zero where they became linearly dependent
(Federated-PCA, D.2.4: it "failed to complete"). Here it is QR after each row, which always has an answer. Left out:
nothing.
"""

from __future__ import annotations

import numpy as np

from fedspan.encoding import Array
from fedspan.errors import ConfigurationError
from fedspan.linalg import orth
from fedspan.rivals.checks import as_rows, rank_fits

_FIRST_STEP = 0.01


class Spirit:
    """A basis that grows and shrinks by one column at a time.

    >>> tracker = Spirit(3, 2)
    >>> tracker.update(np.tile([0.6, 0.8, 0.0], (50, 1)))
    >>> tracker.rank, tracker.basis[:, 0].round(3)
    (1, array([0.6, 0.8, 0. ]))
    """

    def __init__(
        self,
        n_features: int,
        n_components: int = 1,
        *,
        forgetting: float = 1.0,
        energy: tuple[float, float] = (0.95, 0.98),
        pause: int = 10,
    ) -> None:
        rank_fits(n_features, n_components)
        if not 0 < forgetting <= 1 or not 0 < energy[0] <= energy[1] <= 1 or pause < 1:
            raise ConfigurationError(
                f"forgetting is {forgetting}, energy {energy}, pause {pause}; "
                "expected 0 < forgetting <= 1, 0 < low <= high <= 1 and a pause of at least 1 row"
            )
        self._forgetting, (self._low, self._high), self._pause = forgetting, energy, pause
        self._basis = np.eye(n_features, n_components)
        self._steps = np.full(n_components, _FIRST_STEP)
        self._energies = np.zeros(n_components)
        self._total = 0.0
        self._since = 0  # rows since the rank changed

    @property
    def rank(self) -> int:
        """How many columns there are now."""
        return self._basis.shape[1]

    @property
    def basis(self) -> Array:
        """d x rank; leading axes before the first row."""
        return self._basis

    def update(self, rows: Array) -> None:
        for row in as_rows(rows, len(self._basis)):
            self._track(row)
            self._energies = self._forgetting * self._energies + (row @ self._basis) ** 2
            self._total = self._forgetting * self._total + float(row @ row)
            self._since += 1
            if self._since >= self._pause:
                self._adapt()

    def _track(self, row: Array) -> None:
        self._steps *= self._forgetting
        columns, left = self._basis.T.copy(), row.copy()
        for at, column in enumerate(columns):
            score = float(column @ left)
            self._steps[at] += score**2
            column += (score / self._steps[at]) * (left - score * column)
            left -= score * column
        self._basis = orth(columns.T)

    def _adapt(self) -> None:
        d, rank = self._basis.shape
        captured = float(self._energies.sum())
        if captured < self._low * self._total and rank < d:
            self._basis = orth(np.column_stack([self._basis, np.eye(d, 1, -rank)]))
            self._steps, self._energies = np.append(self._steps, _FIRST_STEP), np.append(self._energies, 0.0)
            self._since = 0
        elif captured > self._high * self._total and rank > 1:
            self._basis, self._steps, self._energies = self._basis[:, :-1], self._steps[:-1], self._energies[:-1]
            self._since = 0
