"""Rows with a label or a number each: what a representation is learnt from."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

from fedspan.data.arrays import ArraySource, is_array
from fedspan.data.source import to_host
from fedspan.encoding import Array, Plain
from fedspan.errors import DataError


class Labelled(ArraySource):
    """Rows X in memory and what is to be predicted of each, y: numbers, or classes (whole numbers or texts).

    Floating point y are numbers, all others classes. ``test`` are rows of the same site, (X, y), that nothing is
    learnt from. ``columns`` are the names of X's; a frame brings its own.

    >>> Labelled(np.eye(3), ["cat", "dog", "cat"]).classes
    ['cat', 'dog']
    """

    def __init__(self, X: Any, y: Any, test: tuple[Any, Any] | None = None, columns: tuple[str, ...] | None = None):
        rows, named = as_rows(X)
        super().__init__(rows, columns or named)
        self.X: Array = rows.astype(self.dtype, copy=False)
        self.y: Array = as_labels(y)
        if self.y.shape != (self.shape[0],):
            raise DataError(f"there is one y for each row; got {self.shape[0]} rows and y of shape {self.y.shape}")
        if self.shape[0] == 0:
            raise DataError("there are no rows to learn from")
        if not np.isfinite(self.X).all():
            row, column = np.argwhere(~np.isfinite(self.X))[0].tolist()
            name = column if self.columns is None else repr(self.columns[column])
            raise DataError(
                f"row {row} has {self.X[row, column]} in column {name}; fill gaps before, or leave rows out"
            )
        self.test = None if test is None else Labelled(*test, columns=columns)
        if self.test is not None:
            self._check_test(self.test)

    def _check_test(self, test: Labelled) -> None:
        if test.shape[1] != self.shape[1]:
            raise DataError(f"test rows have {test.shape[1]} columns, the others {self.shape[1]}")
        if test.columns != self.columns:
            raise DataError("test rows have other columns than those to learn from, or the same in another order")
        check_kinds(test.y, self.y, "of test rows")

    @property
    def is_classes(self) -> bool:
        """Whether y is classes, rather than numbers."""
        return self.y.dtype.kind != "f"

    @property
    def classes(self) -> list[Any]:
        """The different values of y, in order."""
        return np.unique(self.y).tolist()  # type: ignore[no-any-return]

    def attached(self) -> Plain:
        """Return y, and the test rows: a run must not go on with others."""
        test = None if self.test is None else [self.test.X, self.test.attached()]
        return [self.y.tolist() if self.y.dtype.kind == "U" else self.y, test]


def as_rows(X: Any) -> tuple[Array, tuple[str, ...] | None]:
    """Return rows as one array in memory, and their columns' names where X is a frame that names them."""
    if scipy.sparse.issparse(X):
        raise DataError("rows to learn from are a dense array or a frame; this is a sparse matrix: take X.toarray()")
    if not (hasattr(X, "columns") and hasattr(X, "to_numpy")):
        return np.ascontiguousarray(to_host(X) if is_array(X) else X), None
    named = all(isinstance(name, str) for name in X.columns)  # a frame's default 0, 1, 2 are positions
    return np.ascontiguousarray(X.to_numpy()), tuple(X.columns) if named else None


def as_labels(y: Any) -> Array:
    """Return labels as an array of whole numbers, texts or finite numbers.

    >>> as_labels(np.array(["b", "a"], dtype=object)).dtype.kind
    'U'
    """
    labels = np.asarray(y)
    if labels.dtype.kind == "O" and all(isinstance(label, str) for label in labels.flat):
        labels = labels.astype(str)
    if labels.dtype.kind not in "biufU":
        raise DataError(f"y is numbers or texts, got an array of {labels.dtype}")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise DataError(f"y is finite; row {int(np.flatnonzero(~np.isfinite(labels).ravel())[0])} has none")
    if labels.dtype.kind == "u":
        if labels.size and labels.max() > np.iinfo(np.int64).max:
            raise DataError(f"whole numbers in y are at most 2^63 - 1, got {labels.max()}; give labels as texts")
        labels = labels.astype(np.int64)  # of one kind with those of other sites
    return labels


def check_kinds(y: Array, known: Array, which: str) -> None:
    """Refuse texts where whole numbers are known, and the like: no label of one kind equals one of another."""
    if (y.dtype.kind == "U") != (known.dtype.kind == "U"):
        kinds = ["texts" if array.dtype.kind == "U" else "numbers" for array in (y, known)]
        raise DataError(f"the labels {which} are {kinds[0]}, the others {kinds[1]}; give both of one kind")
