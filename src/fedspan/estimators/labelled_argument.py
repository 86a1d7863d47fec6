"""What `FederatedRepresentation.fit` takes: sites with rows and what is to be predicted of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fedspan.data.labelled import Labelled
from fedspan.errors import ConfigurationError, FedspanError

_EXPECTED = "(X, y), (X, y, X_test, y_test) or a fedspan.data.Labelled"


def labelled_sites(sites: Any) -> dict[str, Labelled]:
    """Return labelled rows by site. What goes wrong names the site.

    >>> import numpy as np
    >>> sorted(labelled_sites([(np.eye(2), [0, 1]), (np.eye(2), [1, 1])]))
    ['site0', 'site1']
    """
    if isinstance(sites, Mapping):
        named = {str(name): given for name, given in sites.items()}
        if len(named) < len(sites):
            raise ConfigurationError(f"two sites have the same name once it is written as text: {list(sites)[:10]}")
    elif isinstance(sites, list):
        width = len(str(len(sites) - 1))
        named = {f"site{i:0{width}d}": given for i, given in enumerate(sites)}
    else:
        raise ConfigurationError(
            f"sites is a dict by name, or a list, of {_EXPECTED}; got a {type(sites).__name__}. Of one site write "
            f'fit({{"site": (X, y)}})'
        )
    if not named:
        raise ConfigurationError(f"there are no sites: sites is a dict by name, or a list, of {_EXPECTED}")
    return {name: labelled(name, given) for name, given in named.items()}


def labelled(name: str, given: Any) -> Labelled:
    """Return the labelled rows of one site."""
    if isinstance(given, Labelled):
        return given
    if not isinstance(given, tuple | list) or len(given) not in (2, 4):
        many = f" of {len(given)}" if isinstance(given, tuple | list) else ""
        raise ConfigurationError(f"site {name!r}: expected {_EXPECTED}, got a {type(given).__name__}{many}")
    with at_site(name):
        return Labelled(given[0], given[1], test=None if len(given) == 2 else (given[2], given[3]))


@contextmanager
def at_site(name: str) -> Iterator[None]:
    """Name the site in fedspan's own errors."""
    try:
        yield
    except FedspanError as error:
        raise type(error)(f"site {name!r}: {error}") from error.__cause__
