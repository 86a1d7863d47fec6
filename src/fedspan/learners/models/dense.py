"""Fully connected layers with ReLU between them and a softmax behind, differentiated by hand.

A layer is one matrix of (inputs + 1) x outputs, its last row the bias, and its input has a column of ones: a product
applies it, a product is its whole gradient, and that product is added to the momentum in place. With ten rows a step
this saves more than half of what autograd and an optimiser over single tensors take.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor


class Dense:
    """Layers of the given sizes; ``dropout`` is the chance of each hidden unit to be left out of a training step."""

    def __init__(self, sizes: Sequence[int], dropout: float = 0.0) -> None:
        self.shapes = [(inputs + 1, outputs) for inputs, outputs in pairwise(sizes)]
        self.sizes, self.dropout = list(sizes), dropout

    def space(self, like: Tensor) -> list[Tensor]:
        """Return room for what each layer but the last makes of so many rows, with a column of ones."""
        return [like.new_ones(len(like), outputs + 1) for _, outputs in self.shapes[:-1]]

    def forward(
        self, layers: Sequence[Tensor], first: int, inputs: Tensor, space: list[Tensor], chance: torch.Generator | None
    ) -> list[Tensor]:
        """Return the inputs of each layer from ``first`` on, those between in ``space``, and last the scores.

        ``inputs`` are those of layer ``first`` and have a column of ones. Without ``chance`` nothing is dropped.
        """
        seen = [inputs]
        for layer, room in zip(layers[first:-1], space[first:], strict=True):
            seen.append(apply(layer, seen[-1], room))
            if chance is not None and self.dropout:
                drop(seen[-1][:, :-1], self.dropout, chance)
        seen.append(seen[-1] @ layers[-1])
        return seen

    def backward(
        self, layers: Sequence[Tensor], speeds: Sequence[Tensor | None], seen: Sequence[Tensor], wrong: Tensor,
        momentum: float, scale: float, down: bool, dropped: bool,
    ) -> Tensor | None:  # fmt: skip
        """Turn each layer's speed into ``momentum`` times itself plus ``scale`` times the gradient.

        ``wrong`` is the loss's gradient in the scores. Return that in the first layer's input, where ``down`` asks.
        """
        first = len(layers) - len(seen) + 1
        keep = 1 / (1 - self.dropout) if dropped else 1.0
        moving = [at for at, speed in enumerate(speeds) if speed is not None]
        lowest = first if down else min(moving, default=len(layers))
        for at in range(len(layers) - 1, lowest - 1, -1):
            inputs, speed = seen[at - first], speeds[at]
            if speed is not None:
                speed.addmm_(inputs.T, wrong, beta=momentum, alpha=scale)
            if at > lowest or down:
                wrong = wrong @ layers[at][:-1].T
            if at > lowest:  # an input is 0 where ReLU or dropout made it so
                wrong = torch.ops.aten.threshold_backward(wrong, inputs[:, :-1], 0)
                if keep != 1:
                    wrong *= keep
        return wrong if down else None


def apply(layer: Tensor, inputs: Tensor, room: Tensor | None = None) -> Tensor:
    """Return a hidden layer's outputs, with a column of ones; in ``room``, which has one already, if it is given."""
    outputs = inputs.new_ones(len(inputs), layer.shape[1] + 1) if room is None else room
    hidden = outputs[:, :-1]
    torch.mm(inputs, layer, out=hidden).relu_()
    return outputs


def with_ones(rows: Tensor) -> Tensor:
    """Return rows with a column of ones."""
    return torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1)


def drop(values: Tensor, dropout: float, chance: torch.Generator) -> None:
    """Set each value to 0 with the chance ``dropout``, and scale the others so that the mean stays, in place."""
    values *= torch.empty_like(values).bernoulli_(1 - dropout, generator=chance)
    values *= 1 / (1 - dropout)


def cross_entropy(scores: Tensor, truth: Tensor) -> Tensor:
    """Return the sum over the rows of -log softmax(scores) at each row's class (``truth``: one-hot)."""
    return -(torch.log_softmax(scores, 1) * truth).sum()
