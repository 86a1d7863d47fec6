"""Single sites out of sums: where these are over different sites, they are equations in all their matrices at once.

With G_i = A_i'A_i and c_ti how often site i counts in round t, a sum says sum_i c_ti G_i Z_t = Y_t. Side by side, G =
[G_1 ... G_n], that is G W = Y for W made of the blocks c_t x Z_t (Kronecker), and G = Y (W'W)^+ W' is the least G that
fits. Of W only W'W is formed, whose blocks are (c_t'c_u) Z_t'Z_u. Where every sum is over the same n sites, all that
comes out is an n-th of the whole for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedspan.encoding import Array
from fedspan.privacy.audit.equations import Setup, read_equations
from fedspan.privacy.audit.views import times_of
from fedspan.privacy.transcript import Transcript

_KNOWN = 1e-11  # directions of W'W with less than this share of the largest are rounding
_MOST = 4096  # columns of W, the latest ones: beyond, W'W takes too long


class SumOfProducts(NamedTuple):
    """One sum: the block it was asked with, its value, and how often each site counts in it."""

    z: Array
    value: Array
    counts: Mapping[str, int]


def sums_of_products(transcript: Transcript, setup: Setup) -> list[SumOfProducts]:
    """Return what the sums of a transcript say of products, as far as they are ones."""
    times, found = times_of(transcript), []
    for seen in transcript.sums:
        counts = {name: times.get(seen.round, {}).get(name, 1) for name in seen.summed or ()}
        equations = None if seen.setup else read_equations(seen, seen.total, setup)
        found += [SumOfProducts(e.z, e.value, counts) for e in equations or () if e.kind == "product"]
    return found


class Joint:
    """The least matrices of all sites that fit all sums."""

    def __init__(self, sums: list[SumOfProducts]) -> None:
        kept, columns = [], 0
        for one in reversed(sums):
            columns += one.z.shape[1]
            if columns <= _MOST:
                kept.append(one)
        self._sums = kept[::-1]

    @property
    def tells_apart(self) -> bool:
        """Whether there are sums over different sites."""
        return len({tuple(sorted(one.counts.items())) for one in self._sums}) > 1

    def solve(self) -> None:
        """Work out Y (W'W)^+, which is the same for every site."""
        z = np.hstack([one.z for one in self._sums])
        sites = sorted({name for one in self._sums for name in one.counts})
        counts = np.array([[one.counts.get(name, 0) for name in sites] for one in self._sums], dtype=float)
        repeats = [one.z.shape[1] for one in self._sums]
        inner = np.repeat(np.repeat(counts @ counts.T, repeats, axis=0), repeats, axis=1) * (z.T @ z)
        self._solved = np.hstack([one.value for one in self._sums]) @ np.linalg.pinv(inner, _KNOWN, hermitian=True)

    def guess(self, site: str) -> Array:
        """Return the guess of one site's matrix, made symmetric."""
        weighed = np.hstack([one.counts.get(site, 0) * one.z for one in self._sums])
        found = self._solved @ weighed.T
        return np.asarray((found + found.T) / 2)
