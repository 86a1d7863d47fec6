"""What ``reproduce fedpower`` compares with and runs on: the paper's Table 2, its data sets, its settings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse

from fedspan.data import ArraySource, Source
from fedspan.data.partition import even, split
from fedspan.datasets import load, names
from fedspan.encoding import Array
from fedspan.errors import DataError
from fedspan.linalg import top_eigenvectors

K = 5
"""The target rank, everywhere in the paper's section 5."""

COLUMNS = ("OPT", "Sign-fixing", "Vanilla", "DR-SVD", "UDA", "WDA")

PAPER: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {  # Table 2: means, stds, in the order of COLUMNS
    "Acoustic": (
        (1.83e-3, 2.03e-3, 2.38e-3, 1.54e-2, 7.76e-3, 6.67e-3), (4.40e-4, 3.90e-4, 8.50e-4, 6.59e-3, 2.64e-3, 2.41e-3)
    ),
    "Aloi": (
        (3.07e-2, 6.57e-2, 5.24e-2, 1.92e-3, 4.80e-2, 4.37e-2), (1.10e-2, 1.06e-2, 1.10e-2, 4.30e-4, 1.10e-2, 4.73e-3)
    ),
    "A9a": (
        (4.09e-3, 5.82e-3, 8.13e-2, 4.63e-2, 2.64e-2, 2.40e-2), (4.20e-4, 1.41e-3, 3.44e-2, 9.24e-3, 1.58e-2, 1.50e-2)
    ),
    "Combined": (
        (6.01e-3, 5.57e-3, 2.47e-2, 5.19e-2, 4.63e-2, 4.16e-2), (1.59e-3, 1.05e-3, 3.40e-2, 6.23e-3, 2.97e-2, 2.76e-2)
    ),
    "Connect-4": (
        (1.27e-2, 1.81e-2, 1.70e-2, 1.61e-2, 1.65e-1, 1.56e-1), (4.52e-3, 3.79e-3, 4.35e-3, 2.96e-3, 3.48e-2, 3.26e-2)
    ),
    "Covtype": (
        (7.38e-3, 6.23e-3, 1.28e-2, 1.82e-1, 6.09e-2, 5.60e-2), (8.50e-4, 3.30e-4, 1.88e-3, 8.73e-2, 9.70e-3, 9.41e-3)
    ),
    "Housing": (
        (1.18e-2, 2.76e-2, 3.84e-2, 5.66e-1, 9.16e-2, 5.89e-2), (5.45e-3, 1.14e-2, 5.11e-2, 2.62e-1, 5.09e-2, 3.25e-2)
    ),
    "Ijcnn1": (
        (1.53e-1, 1.95e-1, 3.23e-1, 1.21e+0, 3.85e-1, 3.67e-1), (1.87e-1, 2.45e-1, 2.24e-1, 1.70e-1, 7.62e-2, 7.59e-2)
    ),
    "MNIST": (
        (2.62e-3, 4.85e-3, 5.08e-3, 5.00e-5, 1.08e-2, 8.91e-3), (3.40e-4, 8.00e-4, 7.90e-4, 0.00e+0, 3.00e-3, 2.53e-3)
    ),
    "W8a": (
        (1.90e-2, 1.75e-2, 1.68e-2, 7.13e-2, 1.52e-1, 1.51e-1), (2.46e-3, 1.76e-3, 1.29e-3, 2.06e-2, 4.37e-2, 4.11e-2)
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A row of the table: the paper's set, the name it is loaded by, and how it is brought into [-1, 1]."""

    paper: str
    data: str
    scaling: str = "as it is"

    @property
    def label(self) -> str:
        """The set, with its scaling where there are two."""
        return f"{self.paper} ({self.scaling})" if self.paper == "Covtype" else self.paper


ROWS = (
    Row("Acoustic", "acoustic"), Row("Aloi", "aloi"), Row("A9a", "a9a"), Row("Combined", "combined"),
    Row("Connect-4", "connect-4"), Row("Covtype", "covtype", "max-abs"), Row("Covtype", "covtype", "min-max"),
    Row("Housing", "housing_scale"), Row("Ijcnn1", "ijcnn1"), Row("MNIST", "mnist", "/ 255"), Row("W8a", "w8a"),
)  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """How much is run: the paper's settings, or a quick look."""

    rows: tuple[Row, ...] = ROWS
    ranks: tuple[int, ...] = (5, 7, 10)
    splits: int = 10
    communications: int = 40
    panels: tuple[tuple[Row, int], ...] = ((ROWS[9], 200), (ROWS[2], 20), (ROWS[0], 100))
    """For the figures: sets, each with its number of sites."""


QUICK = Scale(
    rows=(ROWS[2], ROWS[7]), ranks=(5, 10), splits=2, panels=((ROWS[2], 20),)
)  # fmt: skip


def matrix(row: Row) -> Array:
    """Load a set without a network, dense (then a site keeps its Gram matrix), and scale it."""
    if row.data not in names():
        raise DataError(f"fedspan knows no data set named {row.data!r}")
    X = load(row.data, download=False).X
    X = X.toarray() if scipy.sparse.issparse(X) else np.asarray(X, dtype=float)
    low, high = X.min(axis=0), X.max(axis=0)
    if row.scaling == "/ 255":
        return np.asarray(X / 255)
    if row.scaling == "max-abs":
        return np.asarray(X / _unless_zero(np.maximum(-low, high)))
    if row.scaling == "min-max":
        return np.asarray(2 * (X - low) / _unless_zero(high - low) - 1)
    return X


def truth(X: Array) -> Array:
    """Return the K leading eigenvectors of the pooled Gram matrix."""
    return top_eigenvectors(X.T @ X, K).basis


def deal(X: Array, m: int, seed: int) -> dict[str, Source]:
    """Deal the rows at random to m sites of equal size."""
    return {name: ArraySource(part) for name, part in split(X, even(len(X), m, seed=seed)).items()}


def _unless_zero(width: Array) -> Array:
    return np.where(width > 0, width, 1.0)
