"""Synthetic federations: what each site holds is part of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedspan.datasets.synthetic.draw import (
    Array,
    Seed,
    counts_of,
    not_negative,
    orthonormal,
    positive,
    rank_fits,
)
from fedspan.errors import ConfigurationError


class SymmetricShares(NamedTuple):
    """A symmetric matrix and the sites' shares of it, which sum to it."""

    total: Array
    shares: list[Array]


class SharedRepresentation(NamedTuple):
    """Regression problems of many sites that share one subspace."""

    X: list[Array]
    y: list[Array]
    representation: Array  # B*, d x k, orthonormal columns
    heads: Array  # w_i*, one row a site, each of norm sqrt(k)


class LowRankSites(NamedTuple):
    """Sites drawn from one spiked covariance, and its leading eigenvectors."""

    sites: list[Array]
    basis: Array  # d x k


def random_symmetric_shares(
    n_features: int = 100,
    n_sites: int = 10,
    *,
    matrix: ArrayLike | None = None,
    decay: float = 0.9,
    spread: float = 1.0,
    seed: Seed = 0,
) -> SymmetricShares:
    """Sites' shares A^(i) of one symmetric matrix, sum A^(i) = A (PPM, section 6).

    A share is A/s plus a random symmetric matrix; these cancel in the sum. So no share resembles A when
    ``spread`` is large, and a share need not be positive semidefinite, as in PPM's setting.

    Parameters
    ----------
    n_features, n_sites : int
        d and s; a given ``matrix`` says its own d.
    matrix : array of shape (d, d), optional
        The symmetric A to share out; a random one with eigenvalues decay^i where not given.
    decay : float
        Between 0 and 1.
    spread : float
        Frobenius norm of a share's own part, relative to that of A/s.
    seed : int or numpy Generator

    Examples
    --------
    >>> import numpy as np
    >>> total, shares = random_symmetric_shares(6, 3)
    >>> np.allclose(sum(shares), total)
    True
    """
    positive(n_features=n_features, n_sites=n_sites, decay=decay)
    rng = np.random.default_rng(seed)
    if matrix is None:
        axes = orthonormal(rng, n_features, n_features)
        total = (axes * decay ** np.arange(n_features, dtype=np.float64)) @ axes.T
    else:
        total = np.array(matrix, dtype=np.float64)
    if total.ndim != 2 or total.shape[0] != total.shape[1] or not np.allclose(total, total.T):
        raise ConfigurationError(f"matrix has shape {total.shape}; expected a symmetric d x d matrix")
    total = (total + total.T) / 2
    own = rng.standard_normal((n_sites, *total.shape))
    own = own + own.transpose(0, 2, 1)
    own -= own.mean(axis=0)
    size = np.linalg.norm(own, axis=(1, 2), keepdims=True).max() or 1.0
    own *= spread * np.linalg.norm(total) / n_sites / size
    return SymmetricShares(total, list(total / n_sites + own))


def shared_representation(
    n_sites: int = 50,
    n_samples: int | Sequence[int] = 100,
    n_features: int = 20,
    *,
    k: int = 2,
    noise: float = 0.1,
    seed: Seed = 0,
) -> SharedRepresentation:
    """Linear regressions with one representation and personal heads (SRPFL, section 4).

    y_i = w_i' B' x_i + z with x_i standard normal (Assumption 4.3), z normal of deviation ``noise``,
    orthonormal B and heads of norm sqrt(k) (Assumption 4.6).

    Parameters
    ----------
    n_sites : int
    n_samples : int, or one for each site
    n_features : int
        d of the paper.
    k : int
        Dimension of the representation, at most d. The heads must span it for it to be found (Assumption
        4.4), so let ``n_sites >= k``.
    noise : float
    seed : int or numpy Generator

    Examples
    --------
    >>> problem = shared_representation(n_sites=3, n_samples=[10, 20, 30], n_features=5)
    >>> [x.shape for x in problem.X], problem.heads.shape
    ([(10, 5), (20, 5), (30, 5)], (3, 2))
    """
    counts = counts_of(n_samples, n_sites)
    rank_fits(k, n_features)
    not_negative(noise=noise)
    rng = np.random.default_rng(seed)
    representation = orthonormal(rng, n_features, k)
    heads = rng.standard_normal((n_sites, k))
    heads *= np.sqrt(k) / np.linalg.norm(heads, axis=1, keepdims=True)
    X = [rng.standard_normal((n, n_features)) for n in counts]
    y = [x @ representation @ head + noise * rng.standard_normal(len(x)) for x, head in zip(X, heads, strict=True)]
    return SharedRepresentation(X, y, representation, heads)


def low_rank_sites(
    n_sites: int = 10,
    n_samples: int | Sequence[int] = 200,
    n_features: int = 30,
    *,
    k: int = 5,
    spikes: ArrayLike | None = None,
    noise: float = 0.5,
    heterogeneity: float = 0.0,
    seed: Seed = 0,
) -> LowRankSites:
    """Sites drawn from one spiked covariance V diag(spikes) V' + noise^2 I, or from nearly the same one.

    With ``heterogeneity`` 0 the sites differ by sampling only, so FedPower's eta (Assumption 1; see
    `fedspan.metrics.local_approximation`) shrinks as 1/sqrt(rows): Lemma 24. A positive value turns each
    site's own subspace away from V, and eta stays.

    Parameters
    ----------
    n_sites : int
    n_samples : int, or one for each site
    n_features : int
    k : int
        Number of spikes, at most n_features.
    spikes : array of shape (k,), optional
        Variances along the columns of V; k, k-1, .., 1 where not given.
    noise : float
        Deviation of the isotropic part.
    heterogeneity : float
        From 0 (one subspace) to 1 (each site its own): site i uses orth((1 - h) V + h W_i), W_i random.
    seed : int or numpy Generator

    Examples
    --------
    >>> from fedspan.metrics import local_approximation
    >>> alike, apart = (low_rank_sites(heterogeneity=h).sites for h in (0.0, 0.8))
    >>> local_approximation(sites=alike) < local_approximation(sites=apart)
    True
    """
    counts = counts_of(n_samples, n_sites)
    rank_fits(k, n_features)
    not_negative(noise=noise)
    scales = np.sqrt(np.arange(k, 0, -1.0) if spikes is None else np.asarray(spikes, dtype=np.float64))
    if scales.shape != (k,) or not 0 <= heterogeneity <= 1:
        raise ConfigurationError(
            f"spikes have shape {scales.shape}, heterogeneity is {heterogeneity}; "
            f"expected {k} non-negative spikes and 0 <= heterogeneity <= 1"
        )
    rng = np.random.default_rng(seed)
    basis = orthonormal(rng, n_features, k)
    sites = []
    for count in counts:
        own = (1 - heterogeneity) * basis + heterogeneity * orthonormal(rng, n_features, k)
        axes = np.linalg.qr(own)[0]
        signal = (rng.standard_normal((count, k)) * scales) @ axes.T
        sites.append(signal + noise * rng.standard_normal((count, n_features)))
    return LowRankSites(sites, basis)
