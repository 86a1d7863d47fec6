"""Rows with a label or a number each: what a representation is learnt from."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedspan.data.arrays import ArraySource
from fedspan.encoding import Array
from fedspan.errors import DataError


class Labelled(ArraySource):
    """Rows X in memory and what is to be predicted of each, y: numbers, or classes (whole numbers or texts).

    ``test`` are rows of the same site, (X, y), that nothing is learnt from.

    >>> Labelled(np.eye(3), ["cat", "dog", "cat"]).classes
    ['cat', 'dog']
    """

    def __init__(self, X: Any, y: Any, test: tuple[Any, Any] | None = None, columns: tuple[str, ...] | None = None):
        rows = np.ascontiguousarray(X)
        super().__init__(rows, columns)
        self.X: Array = rows.astype(self.dtype, copy=False)
        self.y: Array = np.asarray(y)
        if self.y.shape != (self.shape[0],):
            raise DataError(f"there is one y for each row; got {self.shape[0]} rows and y of shape {self.y.shape}")
        if self.y.dtype.kind not in "biufU":
            raise DataError(f"y is numbers or texts, got an array of {self.y.dtype}")
        if self.shape[0] == 0 or not np.isfinite(self.X).all() or (self.y.dtype.kind == "f" and np.isnan(self.y).any()):
            raise DataError(
                f"rows to learn from are finite and at least one; got {self.shape[0]} rows, or gaps in them"
            )
        self.test = None if test is None else Labelled(*test, columns=columns)
        if self.test is not None and self.test.shape[1] != self.shape[1]:
            raise DataError(f"test rows have {self.test.shape[1]} columns, the others {self.shape[1]}")

    @property
    def is_classes(self) -> bool:
        """Whether y is classes, rather than numbers."""
        return self.y.dtype.kind != "f"

    @property
    def classes(self) -> list[Any]:
        """The different values of y, in order."""
        return np.unique(self.y).tolist()  # type: ignore[no-any-return]
