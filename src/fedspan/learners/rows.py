"""What a model is fitted to, how, and what comes of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fedspan.encoding import Array


class Rows(NamedTuple):
    """Rows, and what is to be predicted of each: a number, or the number of its class (int64)."""

    X: Array
    y: Array


class Descent(NamedTuple):
    """How parameters descend: stochastic gradients with momentum, over batches of rows drawn anew each epoch.

    ``batch`` 0 takes all rows at once.
    """

    rate: float = 0.1
    momentum: float = 0.5
    batch: int = 10
    epochs: int = 1


class Fitted(NamedTuple):
    """Parameters after a descent, and the mean loss met on its last epoch."""

    shared: Array
    own: Array
    loss: float


def batches(rows: Rows, size: int, rng: np.random.Generator) -> Iterator[Rows]:
    """Yield all rows once, in batches of ``size`` and an order drawn anew; 0: all rows at once, as they are.

    >>> [len(some.y) for some in batches(Rows(np.eye(5), np.arange(5)), 2, np.random.default_rng(0))]
    [2, 2, 1]
    """
    if not size:
        yield rows
        return
    order = rng.permutation(len(rows.y))
    for at in range(0, len(order), size):
        some = order[at : at + size]
        yield Rows(rows.X[some], rows.y[some])
