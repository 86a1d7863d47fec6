"""A descent in a slice of a network's flat vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedspan.encoding import Array
from fedspan.learners.models.dense import Dense, apply, cross_entropy, with_ones
from fedspan.learners.rows import Descent

CHUNK = 1000
"""How many rows pass at once where memory, not the method, sets the number."""


class Chance:
    """What is left to chance in training: a generator of numpy's, and one of torch's that it seeds."""

    def __init__(self, rng: np.random.Generator, device: torch.device) -> None:
        self.rng = rng
        self.masks = torch.Generator(device=device).manual_seed(int(rng.integers(2**62)))


class Front(Protocol):
    """What lies before the fully connected layers."""

    shapes: list[tuple[int, ...]]
    """Of each of its parameters."""
    random: bool
    """Whether a training row comes out otherwise each time: dropout, augmentation."""

    def start(self, rng: np.random.Generator) -> list[Array]:
        """Return first parameters."""
        ...

    def forward(self, parameters: Sequence[Tensor], X: Tensor, chance: Chance | None) -> Tensor:
        """Return a row for each row of X. ``chance`` is given in training only."""
        ...


class Moving:
    """A network whose parameters in the slice ``trained`` move; ``speed`` is their momentum, begun at zero."""

    def __init__(
        self, front: Front | None, dense: Dense, views: Callable[[Tensor], tuple[list[Tensor], list[Tensor]]],
        flat: Tensor, trained: slice,
    ) -> None:  # fmt: skip
        self.flat, self.speed = flat, torch.zeros_like(flat)
        self._front, self._dense, self._trained = front, dense, trained
        self._space: dict[int, list[Tensor]] = {}  # by the number of rows
        self._filters, self._layers = views(flat)
        filter_speeds, layer_speeds = views(self.speed)
        inside = [trained.start <= layer.storage_offset() < trained.stop for layer in self._layers]
        self._speeds = [speed if moves else None for speed, moves in zip(layer_speeds, inside, strict=True)]
        self._front_moves = front is not None and trained.start < min(trained.stop, self._layers[0].storage_offset())
        self._front_speed = self.speed[: self._layers[0].storage_offset()]
        if self._front_moves:
            for leaf, speed in zip(self._filters, filter_speeds, strict=True):
                leaf.requires_grad_()
                leaf.grad = speed  # autograd adds to it in place: momentum needs no pass of its own

    def descend(self, X: Tensor, truth: Tensor, how: Descent, rng: np.random.Generator) -> float:
        """Descend over batches drawn anew each epoch; return the mean loss met on the last one."""
        random = self._dense.dropout > 0 or (self._front is not None and self._front.random)
        chance = Chance(rng, X.device) if random else None
        X, stage = self._passed_once(X)
        moved, speed = self.flat[self._trained], self.speed[self._trained]
        loss = torch.zeros((), dtype=X.dtype, device=X.device)
        for epoch in range(how.epochs):
            rows, wanted = X, truth
            if how.batch:
                order = torch.from_numpy(rng.permutation(len(X))).to(X.device)
                rows, wanted = X[order], truth[order]
            size = how.batch or len(X)
            for some, right in zip(rows.split(size), wanted.split(size), strict=True):
                scores = self._step(some, right, stage, how.momentum, 1 / len(some), chance)
                moved.add_(speed, alpha=-how.rate)
                if epoch == how.epochs - 1:
                    loss += cross_entropy(scores, right)
        return float(loss) / len(X)

    def accumulate(self, X: Tensor, truth: Tensor) -> float:
        """Leave the mean loss's gradient in ``speed``, and return the loss; nothing is left to chance."""
        stage, loss = self._first, 0.0
        for some, right in zip(X.split(CHUNK), truth.split(CHUNK), strict=True):
            loss += float(cross_entropy(self._step(some, right, stage, 1.0, 1 / len(X), None), right))
        return loss / len(X)

    def passed(self, X: Tensor, layers: int) -> Tensor:
        """Return what so many layers make of rows: scores, or without the column of ones what the next one reads."""
        seen = X if self._front is None else with_ones(self._front.forward(self._filters, X, None))
        for layer in self._layers[: min(layers, len(self._layers) - 1)]:
            seen = apply(layer, seen)
        return seen @ self._layers[-1] if layers == len(self._layers) else seen[:, :-1]

    @property
    def _first(self) -> int:
        """The number of the first stage: the front is -1."""
        return 0 if self._front is None else -1

    def _passed_once(self, X: Tensor) -> tuple[Tensor, int]:
        """Pass all rows through what neither moves nor is left to chance; return them, and where they go on."""
        stage = self._first
        if self._front is not None and not self._front_moves and not self._front.random:
            X = with_ones(torch.cat([self._front.forward(self._filters, some, None) for some in X.split(CHUNK)]))
            stage = 0
        while 0 <= stage < len(self._layers) - 1 and self._speeds[stage] is None and not self._dense.dropout:
            X, stage = apply(self._layers[stage], X), stage + 1
        return X, stage

    def _step(
        self, X: Tensor, truth: Tensor, stage: int, momentum: float, scale: float, chance: Chance | None
    ) -> Tensor:
        """Turn the speed into ``momentum`` times itself plus ``scale`` times the rows' gradient; return the scores."""
        front = None
        if stage < 0 and self._front is not None:
            with torch.set_grad_enabled(self._front_moves):
                front = self._front.forward(self._filters, X, chance)
            X, stage = with_ones(front.detach()), 0
        if len(X) not in self._space:
            self._space[len(X)] = self._dense.space(X)
        space = self._space[len(X)]
        seen = self._dense.forward(self._layers, stage, X, space, chance.masks if chance else None)
        wrong = torch.softmax(seen[-1], 1).sub_(truth)
        down = self._dense.backward(
            self._layers, self._speeds, seen, wrong, momentum, scale, self._front_moves, chance is not None
        )
        if front is not None and down is not None:
            self._front_speed.mul_(momentum)
            front.backward(down.mul_(scale))
        return seen[-1]
