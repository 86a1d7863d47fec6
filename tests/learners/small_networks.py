"""A small network of each kind, its torch twin, and rows for it."""

from __future__ import annotations

import numpy as np

from fedspan.learners.model import model_of
from fedspan.learners.rows import Rows
from tests.learners.torch_twins import Lenet, Mlp, Words

SPECS = {
    "mlp": {"kind": "mlp", "features": 7, "classes": 3, "hidden": [6, 5]},
    "lenet5": {
        "kind": "lenet5", "features": 2 * 16 * 18, "classes": 3, "image": [2, 16, 18], "channels": [3, 4],
        "hidden": [6, 5],
    },
    "bilstm": {
        "kind": "bilstm", "features": 4, "classes": 3, "vocabulary": 11, "embedding": 3, "dimension": 4,
        "hidden": [5], "dropout": 0.0,
    },
}  # fmt: skip
KINDS = tuple(SPECS)


def twin_of(kind):
    if kind == "mlp":
        return Mlp([7, 6, 5, 3])
    if kind == "lenet5":
        return Lenet([2, 16, 18], [3, 4], [4 * 1 * 1, 6, 5, 3])
    return Words(11, 3, 4, [8, 5, 3])


def rows_for(kind, n=13, seed=3):
    rng = np.random.default_rng(seed)
    spec = SPECS[kind]
    shape = (n, spec["features"])
    X = rng.integers(0, 11, shape).astype(float) if kind == "bilstm" else rng.standard_normal(shape)
    return Rows(X, rng.integers(0, 3, n))


def made(kind, own="head", head_layers=1, dtype=np.float64, seed=0, **more):
    """A model, its two parts in some precision, and the flat vector that both come of."""
    model = model_of({**SPECS[kind], **more, "own": own, "head_layers": head_layers})
    shared, mine = (part.astype(dtype) for part in model.start(np.random.default_rng(seed)))
    return model, shared, mine


def joined(own, shared, mine):
    return np.concatenate([mine, shared] if own == "body" else [shared, mine])
