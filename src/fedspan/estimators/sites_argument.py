"""What `fit` takes: many sites, or one array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import scipy.sparse

from fedspan.data import Source
from fedspan.data.arrays import is_array
from fedspan.errors import ConfigurationError

Sites = Any
"""A list, or a dict by name, of 2-D arrays, sparse matrices, frames, Sources or paths; or one array, as one site."""


def name_sites(sites: Sites) -> dict[str, Any] | None:
    """Return sites by name, or None where this is one array rather than a collection of sites.

    >>> import numpy as np
    >>> sorted(name_sites([np.eye(2), np.eye(2)]))
    ['site0', 'site1']
    >>> name_sites([[1.0, 2.0], [3.0, 4.0]]) is None
    True
    """
    if isinstance(sites, Source | str | Path):
        return {"site0": sites}
    if scipy.sparse.issparse(sites):  # before the next question: a dok_matrix is a mapping too
        return None
    if isinstance(sites, Mapping):
        named = {str(name): data for name, data in sites.items()}
        if len(named) < len(sites):
            raise ConfigurationError(f"two sites have the same name once it is written as text: {list(sites)[:10]}")
        return named
    if isinstance(sites, list | tuple) and sites and all(_is_site(item) for item in sites):
        width = len(str(len(sites) - 1))
        return {f"site{i:0{width}d}": data for i, data in enumerate(sites)}
    return None


def has_names(sites: Sites) -> bool:
    """Whether columns are known by names: a frame's default 0, 1, 2 are positions, to scikit-learn and to us."""
    items = sites.values() if isinstance(sites, Mapping) else sites if isinstance(sites, list | tuple) else [sites]
    frames = [item for item in items if hasattr(item, "columns") and hasattr(item, "dtypes")]
    return all(isinstance(label, str) for frame in frames for label in frame.columns)


def by_name(values: Any, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return per-site values by site name, whether they came as a dict or in the order of the sites."""
    if values is None:
        return {}
    if isinstance(values, Mapping):
        strangers = set(map(str, values)) - set(named)
        if strangers:
            raise ConfigurationError(f"weights are given for {sorted(strangers)}, but the sites are {sorted(named)}")
        return {str(name): value for name, value in values.items()}
    if not isinstance(values, Sequence) or len(values) != len(named):
        raise ConfigurationError(f"weights come as a dict by site, or a list of {len(named)}, one for each site")
    return dict(zip(named, values, strict=True))


def _is_site(item: Any) -> bool:
    if isinstance(item, Source | str | Path) or scipy.sparse.issparse(item):
        return True
    if hasattr(item, "columns") and hasattr(item, "dtypes"):
        return True
    return is_array(item) and item.ndim == 2
