"""The Gaussian mechanism: how much noise a release needs, and the noise itself.

A release has named parts, each with its sensitivity Delta (`fedspan.sensitivity`). Scaled to unit sensitivity, g parts
together have sensitivity sqrt(g), so at a cost of mu^2 part p gets sigma_p = Delta_p sqrt(g) / mu: one Gaussian
mechanism, one event. Where noise is split between m sites, each adds sigma_p / sqrt(m).

On the grid (``arithmetic="grid"``) values are rounded to multiples of a power of two and the noise is an exactly
rounded Gaussian: a post-processing of the mechanism in real numbers, so the same accounting holds for the very bits
that leave (`fedspan.privacy.noise`). What rounding adds to the sensitivity is counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fedspan.encoding import Array
from fedspan.errors import PolicyError
from fedspan.privacy.noise import Grid, Stream, normal

FLOAT_SLACK = 2.0**-10
"""Added to every sensitivity, relatively: for the rounding of the float64 sums that are released. A product of n rows
is off by at most n u times the sum of its terms' sizes (u = 2^-53), below 2^-11 C^2 for two million rows even in the
worst case, and in practice by sqrt(n) u: any number of rows."""


@dataclass(frozen=True)
class Scale:
    """The noise of one part: its deviation in all, that of this site's share, and the grid they lie on."""

    sensitivity: float
    sigma: float
    share: float
    grid: Grid | None

    @property
    def step(self) -> float:
        """The grid's step; of noise in floats, that of the grid it would lie on."""
        if self.grid is not None:
            return self.grid.step
        return Grid.for_noise(self.share).step if self.share > 0 else 1.0


def tight_scale(
    sensitivity: float,
    mu: float,
    parts: int,
    size: int,
    sites: int,
    arithmetic: str,
    people: int = 1,
    parties: int = 1,
) -> Scale:
    """Return the noise that a part of ``size`` numbers needs at cost mu^2 shared with ``parts`` - 1 others.

    ``people``: at how many sites a neighbour may move the rounding, where their shares of noise are summed.
    ``parties``: how many replies are added up; each is cut where their sum in 64 bits could wrap around.
    """
    if not 1e-150 < sensitivity < 1e150:
        raise PolicyError(f"a release of sensitivity {sensitivity!r} cannot be noised; scale the question")
    bound = sensitivity * (1 + FLOAT_SLACK)
    sigma = bound * math.sqrt(parts) / mu
    if arithmetic == "float":
        return Scale(bound, sigma, sigma / math.sqrt(sites), None)
    grid = replace(Grid.for_noise(sigma / math.sqrt(sites), _SPLIT if sites > 1 else _WHOLE), most=_ROOM / parties)
    bound += people * grid.rounding_sensitivity(size)
    sigma = bound * math.sqrt(parts) / mu
    return Scale(bound, sigma, sigma / math.sqrt(sites), grid)


_WHOLE, _SPLIT = 2.0**24, 2.0**20
"""Steps of the grid in a deviation of noise. Shares of it have a coarser grid, which leaves their values more room; how
far a sum of shares is from one rounded Gaussian (`fedspan.privacy.noise.split_distance`, the term that Kairouz et al.
(2021) add to delta for discrete Gaussians) is below the least float there, for any number of sites."""
_ROOM = 2.0**61
"""Steps that a sum of values may reach: with noise it is below 2^62, and does not wrap around."""


def fixed_scale(sigma: float, sites: int = 1) -> Scale:
    """Return a published formula's noise, in floats as the papers have it."""
    return Scale(math.nan, sigma, sigma / math.sqrt(sites), None)


def add_noise(stream: Stream, value: Array, scale: Scale, shape: Array | float = 1.0) -> Array:
    """Return a value with its noise; ``shape`` multiplies a published formula's deviation entry by entry."""
    value = np.asarray(value, dtype=np.float64)
    if scale.share == 0:
        return value
    if scale.grid is not None:
        return scale.grid.add_on_grid(stream, value, scale.share)
    return value + (scale.share * shape) * normal(stream, value.size).reshape(value.shape)


def in_pieces(stream: Stream, scale: Scale) -> Callable[[Array], Array]:
    """Return what adds this noise to one piece of a release after another."""
    return lambda piece: add_noise(stream, piece, scale)
