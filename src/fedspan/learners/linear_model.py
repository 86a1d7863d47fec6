"""The linear representation of Tziotis et al. (section 4): y = w' B' x, B shared (d x k), w each site's own (k)."""

from __future__ import annotations

from math import prod

import numpy as np

from fedspan.encoding import Array
from fedspan.errors import ConfigurationError, DataError
from fedspan.learners.rows import Descent, Fitted, Rows
from fedspan.linalg import orth
from fedspan.solvers.settings import whole


class LinearModel:
    """B (features x components) and W (components x outputs); half the mean square error is the loss.

    Where the head W is a site's own, B is sent as it is, else both as one flat vector. Classes are one column each.
    """

    def __init__(
        self, features: int, components: int, outputs: int = 1, own: str = "head", head_layers: int = 1,
        classes: bool = False,
    ) -> None:  # fmt: skip
        components = whole("components", components)
        if own not in ("head", "body", "none"):
            raise ConfigurationError(f'own is "head", "body" or "none", got {own!r}')
        if not 1 <= components <= features:
            raise ConfigurationError(f"components lie between 1 and the {features} features, got {components}")
        self._body, self._head = (features, components), (components, outputs)
        self._own, self._classes = own, classes

    def start(self, rng: np.random.Generator) -> tuple[Array, Array]:
        body = orth(rng.standard_normal(self._body))
        # A head of zeros would give the body no gradient; only a method that fits no head exactly begins with it.
        head = rng.standard_normal(self._head) / np.sqrt(self._head[0])
        return self._parts(body, head)

    def fit(self, shared: Array, own: Array, rows: Rows, how: Descent, rng: np.random.Generator, part: str) -> Fitted:
        body, head = self._whole(shared, own)
        X, y = rows.X, self._targets(rows.y)
        if part == "own" and self._own == "head":  # Alg. 2, line 10: the best head, exactly
            seen = X @ body
            if not np.isfinite(seen).all():
                return Fitted(shared, own, np.nan)
            head = np.linalg.lstsq(seen, y, rcond=None)[0]
            return Fitted(*self._parts(body, head), _half_mean_square(seen @ head - y))
        moves = {
            "head": part == "both" or part == self._side("head"),
            "body": part == "both" or part == self._side("body"),
        }
        speed_b, speed_w, total = np.zeros_like(body), np.zeros_like(head), 0.0
        for epoch in range(how.epochs):
            order = rng.permutation(len(X)) if how.batch else np.arange(len(X))
            step = how.batch or len(X)
            for at in range(0, len(X), step):
                some = order[at : at + step] if how.batch else slice(None)
                grad_b, grad_w, loss = self._gradient(body, head, X[some], y[some])
                if epoch == how.epochs - 1:
                    total += loss * len(y[some])
                if moves["body"]:
                    speed_b = how.momentum * speed_b + grad_b
                    body = body - how.rate * speed_b
                if moves["head"]:
                    speed_w = how.momentum * speed_w + grad_w
                    head = head - how.rate * speed_w
        return Fitted(*self._parts(body, head), total / len(X))

    def gradient(self, shared: Array, own: Array, rows: Rows) -> tuple[Array, Array, float]:
        body, head = self._whole(shared, own)
        grad_b, grad_w, loss = self._gradient(body, head, rows.X, self._targets(rows.y))
        return (*self._parts(grad_b, grad_w), loss)

    def outputs(self, shared: Array, own: Array, X: Array) -> Array:
        body, head = self._whole(shared, own)
        return X @ body @ head

    def features(self, shared: Array, own: Array, X: Array) -> Array:
        return X @ self._whole(shared, own)[0]

    def settled(self, shared: Array) -> Array:
        """Alg. 2, line 14 (line 16 must pass this on, not the mean itself)."""
        return orth(shared) if self._own == "head" else shared

    def _side(self, piece: str) -> str:
        return "own" if self._own == piece else "shared"

    def _targets(self, y: Array) -> Array:
        if self._classes:
            if strange := int(np.sum((y < 0) | (y >= self._head[1]))):
                raise DataError(
                    f"{strange} of {len(y)} labels are none of the {self._head[1]} classes of this model (-1 stands "
                    f"for a label that no site had); leave those rows out, or learn anew"
                )
            return np.eye(self._head[1])[y]
        return y.astype(float)[:, None]

    @staticmethod
    def _gradient(body: Array, head: Array, X: Array, y: Array) -> tuple[Array, Array, float]:
        scores = X @ body
        wrong = (scores @ head - y) / len(X)
        return X.T @ (wrong @ head.T), scores.T @ wrong, _half_mean_square(wrong * len(X))

    def _parts(self, body: Array, head: Array) -> tuple[Array, Array]:
        match self._own:
            case "head":
                return body, head.ravel()
            case "body":
                return head.ravel(), body.ravel()
        return np.concatenate([body.ravel(), head.ravel()]), np.zeros(0)

    def _whole(self, shared: Array, own: Array) -> tuple[Array, Array]:
        match self._own:
            case "head":
                body, head = shared, own
            case "body":
                body, head = own, shared
            case _:
                cut = self._body[0] * self._body[1]
                body, head = shared[:cut], shared[cut:]
        if (body.size, head.size) != (prod(self._body), prod(self._head)):
            raise ConfigurationError(
                f"this model has a basis of {_times(self._body)} and a head of {_times(self._head)} numbers, got "
                f"parameters of shapes {body.shape} and {head.shape}; were they learnt with another model?"
            )
        return body.reshape(self._body), head.reshape(self._head)


def _times(shape: tuple[int, int]) -> str:
    return f"{shape[0]} x {shape[1]}"


def _half_mean_square(wrong: Array) -> float:
    return 0.5 * float(np.sum(wrong * wrong)) / len(wrong)
