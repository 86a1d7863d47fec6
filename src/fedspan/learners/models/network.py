"""A network as a model in two parts: a front of its own kind, then fully connected layers; all in one flat vector.

The flat vector holds the front's parameters, then each layer's; the last layers are the head, the rest is the body. So
both parts are slices, and a step of a descent is in-place arithmetic on slices. The gradient of the front is
autograd's, that of the layers is by hand (`dense`). What is computed in is the precision of the parameters.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedspan.encoding import Array
from fedspan.errors import ConfigurationError, DataError
from fedspan.learners.models.dense import Dense
from fedspan.learners.models.descending import CHUNK, Front, Moving
from fedspan.learners.rows import Descent, Fitted, Rows

MOST_READ = 0.9
"""A descent reads no columns that are 0 in all its rows where at least one in ten is."""


class Network:
    """Front (or none) and fully connected layers, of which the last ``head_layers`` are the head."""

    def __init__(self, front: Front | None, dense: Dense, own: str, head_layers: int, features: int) -> None:
        self._front, self._dense, self._own, self._features = front, dense, own, features
        self._shapes = [*(front.shapes if front else []), *dense.shapes]
        self._ends = np.cumsum([0, *map(prod, self._shapes)]).tolist()
        self._fronts = len(front.shapes) if front else 0
        self._head_at = len(dense.shapes) - head_layers
        self._cut = self._ends[self._fronts + self._head_at]
        self._random = dense.dropout > 0 or (front is not None and front.random)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def start(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """As torch does by default: uniform within 1 / sqrt(inputs), weights and biases."""
        parts = self._front.start(rng) if self._front else []
        for shape in self._dense.shapes:
            bound = 1 / np.sqrt(shape[0] - 1)
            parts.append(rng.uniform(-bound, bound, shape))
        return self._parts(np.concatenate([part.ravel() for part in parts]).astype(np.float32))

    def fit(self, shared: Array, own: Array, rows: Rows, how: Descent, rng: np.random.Generator, part: str) -> Fitted:
        read = self._read(rows.X)
        if read is not None:
            return self._fit_narrow(read, shared, own, rows, how, rng, part)
        with torch.no_grad():
            moving = self._moving(shared, own, self._trained(part))
            loss = moving.descend(*self._rows_and_truth(rows, shared.dtype), how, rng)
            return Fitted(*self._parts(moving.flat.cpu().numpy()), loss)

    def gradient(self, shared: Array, own: Array, rows: Rows) -> tuple[Array, Array, float]:
        """As when predicting: nothing is dropped or augmented."""
        with torch.no_grad():
            moving = self._moving(shared, own, slice(0, self._ends[-1]))
            loss = moving.accumulate(*self._rows_and_truth(rows, shared.dtype))
            return *self._parts(moving.speed.cpu().numpy()), loss

    def outputs(self, shared: Array, own: Array, X: Array) -> Array:
        return self._predicted(shared, own, X, len(self._dense.shapes))

    def features(self, shared: Array, own: Array, X: Array) -> Array:
        return self._predicted(shared, own, X, self._head_at)

    def settled(self, shared: Array) -> Array:
        """As it is."""
        return shared

    # ---- columns that are 0 in all rows: they neither matter nor does a descent move what they are weighed with ----

    def _read(self, X: Array) -> Array | None:
        """Return the columns that are not 0 throughout; None where leaving the others out would save little."""
        if self._front is not None or X.ndim != 2 or X.shape[1] != self._features:
            return None
        read = np.flatnonzero(X.any(axis=0))
        return read if 0 < len(read) <= MOST_READ * self._features else None

    def _fit_narrow(
        self, read: Array, shared: Array, own: Array, rows: Rows, how: Descent, rng: np.random.Generator, part: str
    ) -> Fitted:
        """Fit a network of those columns only, and put what it learnt in its place."""
        dense = Dense([len(read), *self._dense.sizes[1:]], self._dense.dropout)
        narrow = Network(None, dense, self._own, len(self._dense.shapes) - self._head_at, len(read))
        inputs, outputs = self._dense.shapes[0]
        swapped = self._own == "body"
        body, other = (own, shared) if swapped else (shared, own)
        at = np.append(read, self._features)  # the last row is the bias
        few = np.concatenate([body[: inputs * outputs].reshape(inputs, outputs)[at].ravel(), body[inputs * outputs :]])
        fitted = narrow.fit(*((other, few) if swapped else (few, other)), Rows(rows.X[:, read], rows.y), how, rng, part)
        few, other = (fitted.own, fitted.shared) if swapped else (fitted.shared, fitted.own)
        body = body.copy()
        body[: inputs * outputs].reshape(inputs, outputs)[at] = few[: len(at) * outputs].reshape(-1, outputs)
        body[inputs * outputs :] = few[len(at) * outputs :]
        return Fitted(*((other, body) if swapped else (body, other)), fitted.loss)

    def _moving(self, shared: Array, own: Array, trained: slice) -> Moving:
        return Moving(self._front, self._dense, self._views, self._flat(shared, own), trained)

    # ---- parameters ------------------------------------------------------------------------------------------

    def _views(self, flat: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return views of the front's parameters, and of the layers."""
        every = [
            flat[begin:end].view(shape)
            for begin, end, shape in zip(self._ends[:-1], self._ends[1:], self._shapes, strict=True)
        ]
        return every[: self._fronts], every[self._fronts :]

    def _parts(self, flat: Array) -> tuple[Array, Array]:
        body, head = flat[: self._cut].copy(), flat[self._cut :].copy()
        match self._own:
            case "head":
                return body, head
            case "body":
                return head, body
        return flat, flat[:0]

    def _flat(self, shared: Array, own: Array) -> Tensor:
        """Return a copy of all parameters, which may be changed."""
        flat = np.concatenate([own, shared] if self._own == "body" else [shared, own])
        if flat.shape != (self._ends[-1],):
            raise ConfigurationError(
                f"this network has {self._ends[-1]} parameters, got {len(shared)} shared and {len(own)} of a site's "
                f"own; were they learnt with another model?"
            )
        return torch.from_numpy(flat).to(self._device)

    def _trained(self, part: str) -> slice:
        match part, self._own:
            case ("both", _) | ("shared", "none"):
                return slice(0, self._ends[-1])
            case ("own", "none"):
                return slice(0, 0)
            case ("own", "head") | ("shared", "body"):
                return slice(self._cut, self._ends[-1])
        return slice(0, self._cut)

    # ---- rows ------------------------------------------------------------------------------------------------

    def _rows(self, X: Array, dtype: Any) -> Tensor:
        if X.ndim != 2 or X.shape[1] != self._features:
            raise DataError(f"this network reads rows of {self._features} numbers, got an array of shape {X.shape}")
        rows = np.ones((len(X), self._features + (self._front is None)), dtype)
        rows[:, : self._features] = X
        return torch.from_numpy(rows).to(self._device)

    def _truth(self, y: Array, dtype: Any) -> Tensor:
        """Return one row for each label, 1 at its class."""
        classes = self._dense.sizes[-1]
        strange = (y < 0) | (y >= classes)
        if strange.any():
            raise DataError(
                f"{int(strange.sum())} of {len(y)} labels are none of the {classes} classes of this network (numbers "
                f"0 to {classes - 1}; -1 stands for a label that no site had); leave those rows out, or learn anew"
            )
        return torch.from_numpy(np.eye(classes, dtype=dtype)[y]).to(self._device)

    def _rows_and_truth(self, rows: Rows, dtype: Any) -> tuple[Tensor, Tensor]:
        return self._rows(rows.X, dtype), self._truth(rows.y, dtype)

    def _predicted(self, shared: Array, own: Array, X: Array, layers: int) -> Array:
        with torch.no_grad():
            moving = self._moving(shared, own, slice(0, 0))
            found = [moving.passed(rows, layers) for rows in self._rows(X, shared.dtype).split(CHUNK)]
            return torch.cat(found).cpu().numpy()  # type: ignore[no-any-return]
