"""Noise that neighbours cancel: GOPA (Sabater, Bellet, Ramon 2022), where no coordinator and no masks modulo 2⁶⁴ are.

=====================  ==========================================================================================
paper                  here
=====================  ==========================================================================================
X_u, eta_u             what a node would send, and its own share of the noise, of deviation ``own`` (its policy's)
Delta_uv = -Delta_vu   N(0, ``pair``²) on each link, from a secret that only its two ends have
X_u + sum Delta + eta  what a node sends: nobody but its neighbours can tell more, and the sum is that of X + eta
=====================  ==========================================================================================

What it costs, exactly. Whoever sees all that honest nodes send, and knows what colluding nodes know (the noise of
their links among it), sees a Gaussian about the honest values with covariance S = own² I + pair² L in each coordinate;
L is the Laplacian of the graph of the honest nodes alone. A change of length c at node i is mu-Gaussian DP with
mu² = c² e_i' S⁻¹ e_i (`gopa_mu`). With L's eigenvalues l and eigenvectors u, in one part of m nodes,

    mu² = c² [ 1 / (m own²) + sum over l > 0 of u_i² / (own² + pair² l) ].

The first term is what a trusted coordinator's noise would cost that adds up m shares. The second is at most
K_ii / pair², K the pseudo-inverse of L. With the resistances R between nodes, K_ii = (1/m) sum_j R_ij -
(1/2m²) sum_jk R_jk, and no resistance is more than the number of links on the way: in any connected graph
K_ii ≤ (1 + 2 + ... + (m - 1)) / m = (m - 1) / 2. So the noise of `pair_deviation` keeps the second term below 10⁻¹⁰ of
the first, whichever nodes are honest, as long as they are connected. (By L's second eigenvalue alone, which is at least
4 / m², it would take m / 2 times the variance.)

Left out: the paper's proofs of correct behaviour. Nodes follow the protocol, and may pool what they saw. The noise is
in floating point: what a pair adds and takes off differs by its rounding, about 10⁻¹⁶ of `pair`.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
from scipy.special import ndtri

from fedspan.encoding import Array, encode
from fedspan.secure.keys import KeyPair
from fedspan.secure.masks import random_mask

OVERHEAD = 1e-10
"""What pairs of neighbours cost beside central noise, at most: a part of it."""


def pair_deviation(own: float, nodes: int, honest: int) -> float:
    """Return the deviation of a pair's noise, for ``own`` noise at each of so many nodes, so many of them honest.

    Their cost without it is c² / (honest own²), and with it at most c² (nodes - 1) / (2 pair²) more.

    >>> pair_deviation(1.0, 64, 64) / 1e6
    4.49
    """
    return own * math.sqrt(honest * (nodes - 1) / (2 * OVERHEAD))


def gopa_mu(adjacency: Any, honest: Any, own: float, pair: float, change: float = 1.0) -> Array:
    """Return what a change at each of the honest nodes costs, exactly, as mu of Gaussian DP.

    Parameters
    ----------
    adjacency
        Of all nodes: symmetric, 0 or 1.
    honest
        The numbers of the nodes that do not collude and have not crashed, or a flag for each node.
    own, pair
        The deviations of a node's own noise, and of the noise on a link.

    >>> alone, linked = np.zeros((4, 4)), np.ones((4, 4)) - np.eye(4)
    >>> gopa_mu(alone, [0, 1, 2, 3], 1.0, 1e6), gopa_mu(linked, [0, 1, 2, 3], 1.0, 1e6)
    (array([1., 1., 1., 1.]), array([0.5, 0.5, 0.5, 0.5]))
    """
    dense = np.asarray(adjacency.todense() if hasattr(adjacency, "todense") else adjacency, dtype=float)
    links = dense[np.ix_(np.arange(len(dense))[honest], np.arange(len(dense))[honest])]
    values, vectors = np.linalg.eigh(np.diag(links.sum(axis=0)) - links)
    values[values < 2 / max(len(values), 1) ** 2] = 0.0  # none lies between 0 and 4 / m² (Mohar, 1991)
    cost = vectors**2 @ (1.0 / (own**2 + pair**2 * values))
    return np.asarray(change * np.sqrt(cost))


class PairKeys:
    """A node's key pair of one run, and the noise that it shares with its neighbours."""

    def __init__(self, name: str, run: str, testing_seed: int | None = None) -> None:
        self.name, self._run = name, run
        if testing_seed is None:
            self._keys = KeyPair.generate()
        else:  # anybody can make them again: every report says that such noise protects nothing
            self._keys = KeyPair.from_private(hashlib.sha256(encode(["testing", testing_seed, name])).digest())
            self._run = "testing"

    @property
    def public(self) -> bytes:
        """What neighbours are told."""
        return self._keys.public

    def noise(self, neighbour: str, public: bytes, number: int, part: str, size: int) -> Array:
        """Return N(0, 1) noise of one link for a part of a round's reply: the negative of what the neighbour gets."""
        low, high = sorted((self.name, neighbour))
        key = self._keys.shared(public, encode(["fedspan gopa", self._run, number, part, low, high]))
        return _normal(key, size) if self.name == low else -_normal(key, size)


def _normal(key: bytes, size: int) -> Array:
    """Return deviates from a key's stream: 63 bits say how far in the tail one is, one bit on which side."""
    words = random_mask(key, size)
    tail = ((words >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-64
    return np.asarray(np.where(words & np.uint64(1), ndtri(tail), -ndtri(tail)))
