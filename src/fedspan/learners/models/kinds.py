"""The paper's networks (Tziotis et al. 2023, appendix C), by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from fedspan.errors import ConfigurationError, nearest
from fedspan.learners.models.dense import Dense
from fedspan.learners.models.fronts import Convolutions, Recurrent
from fedspan.learners.models.network import Network
from fedspan.solvers.settings import finite, whole


def network(kind: str, *, own: str = "head", head_layers: int = 1, **settings: Any) -> Network:
    """Return a network by name, with the paper's sizes by default.

    >>> import numpy as np
    >>> model = network("mlp", features=784, classes=10)
    >>> shared, own = model.start(np.random.default_rng(0))
    >>> own.shape  # of 64 hidden units and a bias to 10 classes
    (650,)
    """
    if kind not in KINDS:
        raise ConfigurationError(f"there is no network {kind!r}; {nearest(str(kind), KINDS)}")
    known = inspect.signature(KINDS[kind]).parameters
    for name in settings:
        if name not in known:
            hint = nearest(name, [*known, "own", "head_layers"])
            raise ConfigurationError(f"a network of kind {kind!r} has no setting {name!r}; {hint}")
    missing = [name for name, about in known.items() if about.default is about.empty and name not in settings]
    if missing:
        raise ConfigurationError(f"a network of kind {kind!r} also needs {', '.join(missing)}")
    if own not in ("head", "body", "none"):
        raise ConfigurationError(f'own is "head", "body" or "none", got {own!r}')
    front, dense = KINDS[kind](**settings)
    most = len(dense.shapes) - (front is None)
    if most < 1:
        raise ConfigurationError("hidden is empty, and a body needs a layer of its own; give one number at least")
    if not 1 <= whole("head_layers", head_layers) <= most:
        raise ConfigurationError(
            f"of this network's fully connected layers the last 1 to {most} can be its head, got {head_layers}; "
            f"more in hidden makes room for more"
        )
    return Network(front, dense, own, head_layers, settings["features"])


def mlp(features: int, classes: int, hidden: Sequence[int] = (512, 256, 64)) -> tuple[None, Dense]:
    """Fully connected layers: the paper's for EMNIST and FEMNIST."""
    sizes = [positive("features", features), *positives("hidden", hidden), positive("classes", classes)]
    return None, Dense(sizes)


def lenet5(
    features: int, classes: int, image: Sequence[int], channels: Sequence[int] = (64, 64),
    hidden: Sequence[int] = (120, 64), dropout: float = 0.0, augment: bool = False,
) -> tuple[Convolutions, Dense]:  # fmt: skip
    """Two convolutions of 5 x 5, each with a pool of 2 x 2, then fully connected layers: the paper's for CIFAR.

    A row is an image as [channels, height, width] one after another. CIFAR-100 takes channels (64, 128), hidden
    (256, 128) and dropout 0.6 behind both hidden layers; ``augment`` crops at random (4 around) and flips.
    """
    shape = positives("image", image)
    if len(shape) != 3 or prod(shape) != features:
        raise ConfigurationError(
            f"image is [channels, height, width], and their product the {features} features of a row; got {shape}"
        )
    if len(positives("channels", channels)) != 2:
        raise ConfigurationError(f"lenet5 has two convolutions; channels are two numbers, got {list(channels)}")
    if min(shape[1:]) < 16:
        raise ConfigurationError(f"two convolutions of 5 x 5 with pools need images of 16 x 16 or more, got {shape}")
    if not isinstance(augment, bool):
        raise ConfigurationError(f"augment is true or false, got {augment!r}")
    front = Convolutions(shape, positives("channels", channels), augment)
    return front, Dense(
        [front.outputs, *positives("hidden", hidden), positive("classes", classes)], chance("dropout", dropout)
    )


def bilstm(
    features: int, classes: int, vocabulary: int = 10000, embedding: int = 100, dimension: int = 256,
    dropout: float = 0.5, hidden: Sequence[int] = (5,),
) -> tuple[Recurrent, Dense]:  # fmt: skip
    """Embedded words, two bidirectional LSTM layers with dropout between, fully connected layers: for Sent140.

    A row is the numbers of its words, from 0 to ``vocabulary`` - 1, padding being a word too. The embedding is
    learnt with the rest from random numbers: the paper's is GloVe's, which must be had from elsewhere.
    """
    positive("features", features)
    front = Recurrent(
        positive("vocabulary", vocabulary), positive("embedding", embedding), positive("dimension", dimension),
        chance("dropout", dropout),
    )  # fmt: skip
    return front, Dense([front.outputs, *positives("hidden", hidden), positive("classes", classes)])


KINDS: dict[str, Callable[..., tuple[Any, Dense]]] = {"mlp": mlp, "lenet5": lenet5, "bilstm": bilstm}


def positive(name: str, value: Any) -> int:
    """Return a number of at least 1; refuse anything else."""
    number = whole(name, value)
    if number < 1:
        raise ConfigurationError(f"{name} is at least 1, got {number}")
    return number


def positives(name: str, values: Any) -> list[int]:
    """Return a list of numbers of at least 1."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ConfigurationError(f"{name} is a list of integers, got {values!r}")
    return [positive(f"each of {name}", value) for value in values]


def chance(name: str, value: Any) -> float:
    """Return a number in [0, 1)."""
    number = finite(name, value)
    if not 0 <= number < 1:
        raise ConfigurationError(f"{name} lies in [0, 1), got {number}")
    return number
