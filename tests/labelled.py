"""Small federations of labelled rows, for the tests of representations."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedspan.data.labelled import Labelled

NAMES = ("ash", "elm", "oak", "yew")
D, K = 7, 2


def basis(d: int = D, k: int = K) -> np.ndarray:
    """Return the representation that all sites share."""
    return np.linalg.qr(np.random.default_rng(99).standard_normal((d, k)))[0]


def numbers(rows: int = 40, *, noise: float = 0.05, seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Sites whose y is a number: w' B' x, with B shared and w each site's own."""
    sites = {}
    for i, name in enumerate(NAMES):
        rng = np.random.default_rng([seed, i])
        X = rng.standard_normal((rows + i, D))
        sites[name] = X, X @ basis() @ rng.standard_normal(K) + noise * rng.standard_normal(rows + i)
    return sites


def classes(rows: int = 30, *, seed: int = 0) -> dict[str, tuple[Any, ...]]:
    """Sites whose y is one of three texts, with test rows; the text that stands for a direction differs by site."""
    sites = {}
    for i, name in enumerate(NAMES):
        rng = np.random.default_rng([seed, i])
        words = np.array(["ill", "unsure", "well"])[rng.permutation(3)]
        heads = rng.standard_normal((K, 3))

        def draw(count: int, rng: Any = rng, words: Any = words, heads: Any = heads) -> tuple[np.ndarray, np.ndarray]:
            X = rng.standard_normal((count, D)).astype(np.float32)
            y = np.argmax(X @ basis() @ heads, axis=1)
            y[:3] = [0, 1, 2]  # every site has every class
            return X, words[y]

        sites[name] = (*draw(rows + i), *draw(12))
    return sites


def sources(sites: dict[str, tuple[Any, ...]]) -> dict[str, Labelled]:
    """Open sites as the estimator does."""
    return {
        name: Labelled(given[0], given[1], test=None if len(given) == 2 else (given[2], given[3]))
        for name, given in sites.items()
    }
