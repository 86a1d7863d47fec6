"""What ``reproduce srpfl`` runs on: the paper's sets and splits (section 5, appendix C), and how much of them.

Every site has as many test rows as the others, of the classes that it learns. Images of digits and letters are scaled
to [0, 1], coloured ones to [-1, 1]; words are numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedspan.data.labelled import Labelled
from fedspan.data.partition import by_classes, even, lognormal_shares
from fedspan.datasets import load
from fedspan.encoding import Array, Plain
from fedspan.engines.speeds import CorrelatedSpeeds, FixedSpeeds, Speeds

MLP: dict[str, Plain] = {"kind": "mlp", "hidden": [512, 256, 64]}
EQUAL, NEAR, SPREAD = "equal sizes", "sizes 100 + U[0, 50]", "log-normal sizes"
LOG_NORMAL = 1.0
"""The standard deviation of the sizes' logarithms: the paper does not give its own."""


@dataclass(frozen=True)
class Set:
    """A set as the paper takes it: its name there, the one it is loaded by, how it is learnt."""

    paper: str
    name: str
    model: dict[str, Plain] = field(hash=False)
    shards: tuple[int, ...]
    """Classes per site in Figures 3 to 6."""
    classes: tuple[int, int] | None = None
    """Only those from the first number on, before the second."""
    epochs: int = 5
    head_epochs: int = 5
    image: bool = True
    colours: bool = False


def lenet(channels: list[int], hidden: list[int], dropout: float = 0.0) -> dict[str, Plain]:
    """The paper's LeNet-5, with crop and flip."""
    return {
        "kind": "lenet5", "image": [3, 32, 32], "channels": channels, "hidden": hidden, "dropout": dropout,
        "augment": True,
    }  # fmt: skip


MNIST = Set("MNIST", "mnist", MLP, (2, 5))
EMNIST = Set("EMNIST", "emnist", MLP, (5,), classes=(0, 10))
FEMNIST = Set("FEMNIST", "femnist", MLP, (3,), classes=(36, 46))  # the letters a to j
CIFAR10 = Set("CIFAR10", "cifar10", lenet([64, 64], [120, 64]), (2, 5), epochs=1, head_epochs=1, colours=True)
CIFAR10_SUBSET = Set(
    "CIFAR10, subset", "cifar10_subset", lenet([64, 64], [120, 64]), (5,), epochs=1, head_epochs=1, colours=True
)
CIFAR10_NARROW = Set(
    "CIFAR10, subset, 16 channels", "cifar10_subset", lenet([16, 16], [120, 64]), (5,), epochs=1, head_epochs=1,
    colours=True,
)  # fmt: skip
CIFAR100 = Set("CIFAR100", "cifar100", lenet([64, 128], [256, 128], 0.6), (20,), colours=True)
SENT140 = Set("Sent140", "sent140", {"kind": "bilstm"}, (2,), image=False)


@dataclass(frozen=True)
class Problem:
    """A set, split among sites. ``shards``: classes per site (None: rows of all, dealt at random)."""

    of: Set
    sites: int
    rows: int | None
    """Per site, on average (None: all there are)."""
    tests: int | None
    shards: int | None
    sizes: str = EQUAL
    groups: int = 0
    """So many groups of labels, each at as many sites: those of the first labels are named first."""

    @property
    def label(self) -> str:
        """What of the set is where."""
        split = "all classes" if self.shards is None else f"shard {self.shards}"
        if self.groups:
            split = f"{self.groups} groups of labels"
        return ", ".join([self.of.paper, split, *([] if self.sizes == EQUAL else [self.sizes])])

    def deal(self, seed: int) -> dict[str, Labelled]:
        """Load the set, without a network, and split it."""
        fitted, held = self._load(np.random.default_rng([seed, 7]))
        (X, y), (X_test, y_test) = fitted, held
        classes = np.unique(np.concatenate([y, y_test]))
        parts = self._parts(y, classes, _shares(self.sizes, self.sites, seed), seed)
        tests = self._parts(y_test, classes, None, seed)
        width = len(str(self.sites - 1))
        return {
            f"site{i:0{width}d}": Labelled(X[own], y[own], test=(X_test[held], y_test[held]))
            for i, (own, held) in enumerate(zip(parts, tests, strict=True))
        }

    def _load(self, rng: np.random.Generator) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """Return rows with their labels to learn from, and to test: where the set has too few of these, of the others.

        (Sent140 has 359 tweets to test.)
        """
        data = load(self.of.name, dtype=np.float32, download=False)
        rows, tests = _all(self.rows, self.sites), _all(self.tests, self.sites)
        X, y = _chosen(data.X, data.y, self.of, rng)
        if data.X_test is not None and len(data.X_test) >= max(tests or 0, len(X) // 20):
            X_test, y_test = _chosen(data.X_test, data.y_test, self.of, rng)
        else:
            cut = len(X) // 5
            (X_test, X), (y_test, y) = np.split(X, [cut]), np.split(y, [cut])
        return (_scaled(X[:rows], self.of), y[:rows]), (_scaled(X_test[:tests], self.of), y_test[:tests])

    def _parts(self, y: Array, classes: Array, shares: Array | None, seed: int) -> list[Array]:
        if self.groups:
            return list(self._grouped(y, classes, seed))
        if self.shards is None and shares is None:
            return even(len(y), self.sites, seed=seed)
        return by_classes(y, self.sites, self.shards or len(classes), seed=seed, classes=classes, shares=shares)

    def _grouped(self, y: Array, classes: Array, seed: int) -> Iterator[Array]:
        """Deal each group of labels to a group of sites of its own."""
        counts = [len(some) for some in np.array_split(np.arange(self.sites), self.groups)]
        for labels, sites in zip(np.array_split(classes, self.groups), counts, strict=True):
            rows = np.flatnonzero(np.isin(y, labels))
            for part in by_classes(y[rows], sites, len(labels), seed=seed, classes=labels):
                yield rows[part]

    def in_order(self) -> Speeds:
        """Speeds that are correlated with the labels: the sites of the first group are the fastest."""
        width = len(str(self.sites - 1))
        return CorrelatedSpeeds(order=tuple(f"site{i:0{width}d}" for i in range(self.sites)), of=FixedSpeeds())


def _all(per_site: int | None, sites: int) -> int | None:
    return None if per_site is None else per_site * sites


def _chosen(X: Any, y: Any, of: Set, rng: np.random.Generator) -> tuple[Any, Array]:
    """Return the rows of the classes that count, in an order drawn at random, and their labels."""
    label = np.asarray(y).astype(int)
    low, high = of.classes or (label.min(), label.max() + 1)
    kept = rng.permutation(np.flatnonzero((label >= low) & (label < high)))
    return X[kept], label[kept]


def _scaled(X: Any, of: Set) -> Array:
    """Return rows as the networks read them."""
    rows: Array = np.asarray(X, dtype=np.float32).reshape(len(X), -1)
    if of.colours:  # the file has colours last
        return rows.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2).reshape(len(X), -1) / np.float32(127.5) - 1
    return rows / 255 if of.image else rows


def _shares(sizes: str, sites: int, seed: int) -> Array | None:
    """How large each site is, relative to the others."""
    if sizes == EQUAL:
        return None
    return (
        100 + np.random.default_rng(seed).uniform(0, 50, sites)
        if sizes == NEAR
        else lognormal_shares(sites, spread=LOG_NORMAL, seed=seed)
    )
