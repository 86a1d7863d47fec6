"""What lies before a network's fully connected layers: convolutions for images, an LSTM for words."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedspan.encoding import Array
from fedspan.errors import DataError
from fedspan.learners.models.dense import drop
from fedspan.learners.models.descending import Chance

MARGIN = 4
"""By how many pixels a crop may be off."""


class Convolutions:
    """Two convolutions of 5 x 5, each followed by ReLU and a pool of 2 x 2."""

    def __init__(self, image: Sequence[int], channels: Sequence[int], augment: bool) -> None:
        depth, height, width = image
        self._image, self.random = tuple(image), augment
        self.shapes: list[tuple[int, ...]] = []
        for inputs, outputs in ((depth, channels[0]), (channels[0], channels[1])):
            self.shapes += [(outputs, inputs, 5, 5), (outputs,)]
        self.outputs = channels[1] * _after(height) * _after(width)

    def start(self, rng: np.random.Generator) -> list[Array]:
        """Uniform within 1 / sqrt(inputs), as torch does by default."""
        bounds = [1 / np.sqrt(np.prod(shape[1:])) for shape in self.shapes[::2] for _ in range(2)]
        return [rng.uniform(-bound, bound, shape) for bound, shape in zip(bounds, self.shapes, strict=True)]

    def forward(self, parameters: Sequence[Tensor], X: Tensor, chance: Chance | None) -> Tensor:
        X = X.reshape(-1, *self._image)
        if self.random and chance is not None:
            X = augmented(X, chance.rng)
        for filters, bias in zip(parameters[::2], parameters[1::2], strict=True):
            X = F.max_pool2d(F.conv2d(X, filters, bias).relu_(), 2)
        return X.flatten(1)


def _after(side: int) -> int:
    return ((side - 4) // 2 - 4) // 2


def augmented(X: Tensor, rng: np.random.Generator) -> Tensor:
    """Return images (rows x channels x height x width) shifted by up to 4 pixels each way, half of them mirrored."""
    rows, _, height, width = X.shape
    shifts = rng.integers(0, 2 * MARGIN + 1, (2, rows, 1))
    across = np.broadcast_to(np.arange(width), (rows, width))
    across = np.where(rng.random((rows, 1)) < 0.5, across[:, ::-1], across) + shifts[0]
    down = np.arange(height) + shifts[1]
    at = [
        torch.from_numpy(part).to(X.device)
        for part in (np.arange(rows)[:, None, None], down[:, :, None], across[:, None])
    ]
    padded = F.pad(X, (MARGIN,) * 4)
    return padded[at[0], :, at[1], at[2]].movedim(-1, 1).contiguous()


class Recurrent:
    """An embedding and two bidirectional LSTM layers, dropout between; the outputs are the last states of both ways."""

    def __init__(self, vocabulary: int, embedding: int, dimension: int, dropout: float) -> None:
        self._vocabulary, self._dropout = vocabulary, dropout
        with torch.device("meta"):  # only what they do is wanted: their parameters are slices of the flat vector
            self._layers = [
                torch.nn.LSTM(inputs, dimension, bidirectional=True, batch_first=True)
                for inputs in (embedding, 2 * dimension)
            ]
        self._swapping = Lock()  # a call puts parameters into the layers, which every thread has the same of
        self._names = [[name for name, _ in layer.named_parameters()] for layer in self._layers]
        self.shapes: list[tuple[int, ...]] = [(vocabulary, embedding)]
        self.shapes += [tuple(part.shape) for layer in self._layers for part in layer.parameters()]
        self.outputs, self.random = 2 * dimension, dropout > 0
        self._bound = 1 / np.sqrt(dimension)

    def start(self, rng: np.random.Generator) -> list[Array]:
        """As torch does by default: a normal embedding, the rest uniform within 1 / sqrt(dimension)."""
        words = rng.standard_normal(self.shapes[0])
        return [words, *(rng.uniform(-self._bound, self._bound, shape) for shape in self.shapes[1:])]

    def forward(self, parameters: Sequence[Tensor], X: Tensor, chance: Chance | None) -> Tensor:
        words = X.long()
        if not torch.equal(words.to(X.dtype), X):
            raise DataError("rows are numbers of words, whole numbers; these have fractions: are they words at all?")
        if bool(((words < 0) | (words >= self._vocabulary)).any()):
            raise DataError(
                f"rows are numbers of words, 0 to {self._vocabulary - 1}; got {int(words.min())} to "
                f"{int(words.max())}; give the rarest words one number, or the network a larger vocabulary"
            )
        seen, at = F.embedding(words, parameters[0]), 1
        for number, (layer, names) in enumerate(zip(self._layers, self._names, strict=True)):
            if number and chance is not None and self._dropout:
                mask = torch.ones_like(seen)
                drop(mask, self._dropout, chance.masks)
                seen = seen * mask
            own = dict(zip(names, parameters[at:], strict=False))
            with self._swapping:
                seen, (last, _) = torch.func.functional_call(layer, own, (seen,))
            at += len(names)
        return torch.cat([last[0], last[1]], dim=1)
