"""What stands in for the sites' data and policies in a plan: the right shapes, and no rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np

from fedspan.data import Source
from fedspan.data.clip import RowBounds
from fedspan.data.source import Block
from fedspan.encoding import Array
from fedspan.privacy.policy import SitePolicy
from fedspan.rounds import Site


class Header(Source):
    """A source of which only the outside is looked at; its one row is zero."""

    pass_cost = 2.0  # not 1: the rows are not in memory, so nobody asks whether they are sparse

    def __init__(self, source: Source) -> None:
        self.shape, self.dtype, self.columns = source.shape, source.dtype, source.columns
        self.symmetric, self.weights, self.site_weight = source.symmetric, None, source.site_weight

    def blocks(self) -> Iterator[Block]:
        yield np.zeros((1, self.shape[1]))

    def gram_times(self, z: Array) -> Array:
        return z

    def trace(self) -> float:
        return 1.0


class Diagonal(Source):
    """Stands in for prepared rows: its Gram matrix is diagonal, of full rank, without large gaps."""

    dtype = np.dtype(np.float64)

    def __init__(self, rows: int, width: int, number: int) -> None:
        self.shape, self._number = (rows, width), number
        self.own_answer = False
        """Set when a step looked at the rows, so that another site's answer differs from this one's."""

    def blocks(self) -> Iterator[Block]:
        raise NotImplementedError("a plan has no rows")

    def gram_times(self, z: Array) -> Array:
        return z * self._values[:, None]

    def gram(self) -> Array:
        return np.diag(self._values)

    def times(self, v: Array, *, weighted: bool = False) -> Array:
        self.own_answer = True
        rng = np.random.default_rng(self._number)
        return rng.standard_normal((min(self.shape[0], v.shape[1]), v.shape[1]))  # more rows: the same R factor

    offset = None

    @property
    def cursor(self) -> Diagonal:
        """Rows, for solvers that stream them: no more than there are directions."""
        self.own_answer = True
        return self

    def read(self, start: int, stop: int) -> Iterator[tuple[Array, None]]:
        rng = np.random.default_rng(self._number)
        yield rng.standard_normal((min(stop - start, self.shape[1]), self.shape[1])), None

    def part(self, start: int, stop: int) -> Diagonal:
        return self

    @cached_property
    def _values(self) -> Array:
        return np.linspace(2.0, 1.0, self.shape[1])


class Priced(SitePolicy):
    """A site's policy on stand-ins: releases are charged, so that the plan can tell their price, but not noised."""

    def noised(self, site: Site, parts: dict[str, Array], about: Array | None = None) -> dict[str, Array]:
        assert site.asked is not None
        self.releases.charge(site.asked, {name: np.shape(part) for name, part in parts.items()}, about)
        return parts

    def noising(
        self, site: Site, name: str, shape: tuple[int, ...], data: Any, block: tuple[str, int] | None
    ) -> Callable[[Array], Array]:
        assert site.asked is not None
        self.releases.charge(site.asked, {name: shape}, block=block)
        return lambda piece: piece

    def clipped(self, site: Site, release: Array) -> Array:
        return release

    def row_bounds(self, width: int, preparation: dict[str, Any], *, install: bool) -> RowBounds | None:
        super().row_bounds(width, preparation, install=install)
        return None  # a stand-in has no rows to clip
