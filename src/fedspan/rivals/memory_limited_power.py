"""The memory-limited power method (Mitliagkas, Caramanis, Jain 2013): one power step for each block of rows.

==================  ======================================================================
paper               here
==================  ======================================================================
p, k                ``n_features``, ``n_components``
B                   ``block_size``; d in Federated-PCA, appendix D.1
Q_tau               ``basis``, from the last whole block
S_(tau+1)           ``_product``: sum of x (x'Q) over the block; its 1/B does not change the span
==================  ======================================================================

Left out: nothing. The theorem's B grows with log p and the noise; a block of d rows is Federated-PCA's choice.
"""

from __future__ import annotations

import numpy as np

from fedspan.encoding import Array
from fedspan.errors import ConfigurationError
from fedspan.linalg import orth
from fedspan.rivals.checks import as_rows, rank_fits


class MemoryLimitedPower:
    """Q <- QR(sum over a block of x (x'Q)), from a random start.

    >>> method = MemoryLimitedPower(3, 1, block_size=2)
    >>> method.update(np.outer([1.0, 2.0, -1.0], [0.6, 0.8, 0.0]))
    >>> np.abs(method.basis[:, 0]).round(6)
    array([0.6, 0.8, 0. ])
    """

    def __init__(self, n_features: int, n_components: int, *, block_size: int | None = None, seed: int = 0) -> None:
        rank_fits(n_features, n_components)
        self._block = n_features if block_size is None else block_size
        if self._block < n_components:
            raise ConfigurationError(
                f"block_size is {block_size}, n_components {n_components}; "
                "a block needs at least as many rows, or its power step has a smaller rank"
            )
        self._basis = orth(np.random.default_rng(seed).standard_normal((n_features, n_components)))
        self._product = np.zeros_like(self._basis)
        self._pending = 0

    @property
    def basis(self) -> Array:
        """d x r; the random start before the first whole block."""
        return self._basis

    def update(self, rows: Array) -> None:
        rows = as_rows(rows, len(self._basis))
        while len(rows):
            taken = rows[: self._block - self._pending]
            self._product += taken.T @ (taken @ self._basis)
            self._pending += len(taken)
            rows = rows[len(taken) :]
            if self._pending == self._block:
                self._basis = orth(self._product)
                self._product, self._pending = np.zeros_like(self._basis), 0
