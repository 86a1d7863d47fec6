"""Splitting one data set into sites, to simulate a federation.

Each helper returns index arrays; `split` applies them. Together they cover every row once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedspan.encoding import Array
from fedspan.errors import ConfigurationError


def even(rows: int, sites: int, *, seed: int | None = 0) -> list[Array]:
    """Deal rows at random to sites of equal size (to within one); ``seed=None`` keeps their order.

    >>> [len(part) for part in even(10, 3)]
    [4, 3, 3]
    """
    _check(rows, sites)
    order = np.arange(rows) if seed is None else np.random.default_rng(seed).permutation(rows)
    return [np.sort(part) for part in np.array_split(order, sites)]


def uneven(rows: int, sites: int, *, spread: float = 1.0, seed: int = 0, least: int = 1) -> list[Array]:
    """Deal rows at random to sites whose sizes follow a log-normal law; ``spread`` 0 is even.

    >>> sizes = [len(part) for part in uneven(100, 4, seed=1)]
    >>> sum(sizes), min(sizes) >= 1
    (100, True)
    """
    _check(rows, sites * least)
    rng = np.random.default_rng(seed)
    share = np.exp(spread * rng.standard_normal(sites))
    extra = rng.multinomial(rows - sites * least, share / share.sum())
    order = rng.permutation(rows)
    return [np.sort(part) for part in np.split(order, np.cumsum(least + extra)[:-1])]


def by_label(labels: Sequence[Any] | Array, sites: int, *, labels_per_site: int = 2, seed: int = 0) -> list[Array]:
    """Give each site rows of a few labels only: sort by label, cut into shards, deal the shards.

    >>> parts = by_label([0, 0, 1, 1, 2, 2], sites=3, labels_per_site=1)
    >>> sorted(len(part) for part in parts)
    [2, 2, 2]
    """
    label = np.asarray(labels)
    _check(len(label), sites * labels_per_site)
    shards = np.array_split(np.argsort(label, kind="stable"), sites * labels_per_site)
    deal = np.random.default_rng(seed).permutation(len(shards)).reshape(sites, labels_per_site)
    return [np.sort(np.concatenate([shards[i] for i in row])) for row in deal]


def by_classes(
    labels: Sequence[Any] | Array,
    sites: int,
    classes_per_site: int,
    *,
    seed: int = 0,
    classes: Sequence[Any] | Array | None = None,
    shares: Sequence[float] | Array | None = None,
) -> list[Array]:
    """Give each site rows of so many classes, each class to equally many sites (to within one).

    The rows of a class are dealt evenly among the sites that hold it, or in proportion to the sites' ``shares``: with
    `lognormal_shares`, and with all classes at every site, as `uneven` does but with every label alike.
    A class with fewer rows than sites that hold it leaves some of them without.
    Which site gets which classes depends on ``classes`` (those that the labels have), ``sites`` and ``seed`` only: so
    test rows that are dealt alike come to sites that learn the same classes. Name the ``classes`` where the test rows
    may lack some.

    >>> labels = np.repeat([0, 1, 2], 4)
    >>> train, test = by_classes(labels, 3, 2), by_classes(labels[::2], 3, 2)
    >>> [np.unique(labels[part]).tolist() for part in train]
    [[1, 2], [0, 1], [0, 2]]
    >>> [np.unique(labels[::2][part]).tolist() for part in test]
    [[1, 2], [0, 1], [0, 2]]
    """
    label = np.asarray(labels)
    known = np.unique(label if classes is None else np.asarray(classes))
    _check(len(label), sites)
    if strangers := set(label.tolist()) - set(known.tolist()):
        raise ConfigurationError(
            f"there are rows of {sorted(strangers)[:10]}, which are not among the classes; add them"
        )
    if not 1 <= classes_per_site <= len(known) or sites * classes_per_site < len(known):
        raise ConfigurationError(
            f"{sites} sites with {classes_per_site} classes each cannot hold each of {len(known)} classes once or "
            f"more; take from {-(-len(known) // sites)} to {len(known)} classes per site"
        )
    weight = None if shares is None else _weights(shares, sites)
    rng = np.random.default_rng(seed)
    left = np.full(len(known), sites * classes_per_site / len(known))
    holders: list[list[int]] = [[] for _ in known]
    for site in range(sites):
        for chosen in np.lexsort((rng.random(len(known)), -left))[:classes_per_site]:  # those with most sites to go
            holders[chosen].append(site)
            left[chosen] -= 1
    parts: list[list[Array]] = [[] for _ in range(sites)]
    for at, value in enumerate(known):
        rows = rng.permutation(np.flatnonzero(label == value))
        holding = rng.permutation(holders[at])
        cuts = None if weight is None else _cuts(len(rows), weight[holding])
        for site, some in zip(holding, np.array_split(rows, len(holding) if cuts is None else cuts), strict=True):
            parts[site].append(some)
    return [np.sort(np.concatenate(part)) for part in parts]


def lognormal_shares(sites: int, *, spread: float = 1.0, seed: int = 0) -> Array:
    """Return relative sizes that follow a log-normal law, for `by_classes`; ``spread`` 0 is even.

    >>> lognormal_shares(3, spread=0.0)
    array([1., 1., 1.])
    """
    return np.exp(spread * np.random.default_rng(seed).standard_normal(sites))


def by_time(times: Sequence[Any] | Array, sites: int) -> list[Array]:
    """Give each site one stretch of time, of equal numbers of rows.

    >>> [part.tolist() for part in by_time([3, 1, 2, 0], sites=2)]
    [[1, 3], [0, 2]]
    """
    _check(len(times), sites)
    return [np.sort(part) for part in np.array_split(np.argsort(np.asarray(times), kind="stable"), sites)]


def split(data: Any, parts: Sequence[Array], prefix: str = "site") -> dict[str, Any]:
    """Cut an array, sparse matrix or pandas frame into named sites by their row indices.

    >>> sorted(split(np.eye(4), even(4, 2)))
    ['site0', 'site1']
    """
    width = len(str(len(parts) - 1))
    rows = data.iloc if hasattr(data, "iloc") else data
    return {f"{prefix}{i:0{width}d}": rows[part] for i, part in enumerate(parts)}


def _weights(shares: Sequence[float] | Array, sites: int) -> Array:
    weight = np.asarray(shares, dtype=float)
    if weight.shape != (sites,) or not np.all((weight > 0) & np.isfinite(weight)):
        raise ConfigurationError(f"shares are {sites} positive numbers, one for each site; got {weight.tolist()}")
    return weight


def _cuts(rows: int, weight: Array) -> list[int]:
    """Where to cut so many rows in proportion to the weights; each part has one row at least, where there are enough.

    >>> _cuts(10, np.array([1.0, 3.0, 1.0]))
    [2, 8]
    """
    spare = max(rows - len(weight), 0)
    least = np.minimum(np.arange(1, len(weight)), rows)
    return (least + np.round(spare * np.cumsum(weight)[:-1] / weight.sum()).astype(int)).tolist()  # type: ignore[no-any-return]


def _check(rows: int, needed: int) -> None:
    if needed < 1 or rows < needed:
        raise ConfigurationError(f"these sites need {needed} rows between them, there are {rows}; take fewer sites")
