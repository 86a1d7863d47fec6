"""What a model is fitted to, how, and what comes of it."""

from __future__ import annotations

from typing import NamedTuple

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
