"""Synthetic matrices that an experiment then splits among sites."""

from __future__ import annotations

import numpy as np
import scipy.sparse

from fedspan.datasets.synthetic.draw import Array, Seed, orthonormal, positive
from fedspan.errors import ConfigurationError


def power_law(n_samples: int = 4000, n_features: int = 400, *, alpha: float = 1.0, seed: Seed = 0) -> Array:
    """Gaussian rows with covariance S diag(i^-alpha) S', S a random orthogonal matrix (FPCA, D.1).

    Parameters
    ----------
    n_samples, n_features : int
        N = 4000 and d = 400 in the paper.
    alpha : float
        Decay of the eigenvalues, positive; 0.001 (flat) to 3 (steep) in the paper.
    seed : int or numpy Generator

    Returns
    -------
    array of shape (n_samples, n_features)

    Examples
    --------
    >>> X = power_law(1000, 5, alpha=2.0)
    >>> X.shape
    (1000, 5)
    """
    positive(n_samples=n_samples, n_features=n_features, alpha=alpha)
    rng = np.random.default_rng(seed)
    axes = orthonormal(rng, n_features, n_features)
    deviations = np.arange(1, n_features + 1) ** (-alpha / 2)
    return np.asarray((rng.standard_normal((n_samples, n_features)) * deviations) @ axes.T)


def geometric_spectrum(n_samples: int = 10_000, n_features: int = 500, *, xi: float = 1.01, seed: Seed = 0) -> Array:
    """Matrix with singular values xi^(1-i) and random singular vectors (FAPS (23), (24)).

    The paper's A = U Sigma V' is features x samples; this is its transpose, samples in rows. Its singular
    vectors are orthonormalised uniform entries from [-1, 1]. The rows are not centred.

    Parameters
    ----------
    n_samples, n_features : int
        m and n of the paper, n_features <= n_samples.
    xi : float
        Decay rate above 1; near 1 the problem is hard.
    seed : int or numpy Generator

    Examples
    --------
    >>> import numpy as np
    >>> np.linalg.svd(geometric_spectrum(20, 3, xi=2.0), compute_uv=False).round(6)
    array([1.  , 0.5 , 0.25])
    """
    positive(n_samples=n_samples, n_features=n_features)
    if n_features > n_samples or xi <= 1:
        raise ConfigurationError(
            f"n_samples is {n_samples}, n_features {n_features}, xi {xi}; expected n_features <= n_samples and xi > 1"
        )
    rng = np.random.default_rng(seed)
    left = np.linalg.qr(rng.uniform(-1, 1, (n_features, n_features)))[0]
    right = np.linalg.qr(rng.uniform(-1, 1, (n_samples, n_features)))[0]
    return np.asarray((right * xi ** -np.arange(n_features, dtype=np.float64)) @ left.T)


def user_item(
    n_users: int = 1000,
    n_items: int = 2000,
    *,
    mean_interactions: float = 30.0,
    popularity: float = 1.0,
    seed: Seed = 0,
) -> scipy.sparse.csr_array:
    """0/1 interactions with long-tailed popularity and activity, as recommender data has (PPM, 5.1.1).

    The chance of the j-th most popular item falls as j^-popularity; a user's activity is geometric, at least
    one. Repeated draws count once, so the mean number of distinct items is somewhat below
    ``mean_interactions``. Item numbers are shuffled, users are independent: a user is one person's data.

    Parameters
    ----------
    n_users, n_items : int
    mean_interactions : float
        Mean number of draws a user, at least 1 (Gowalla: about 34).
    popularity : float
        Exponent of the popularity law; 0 makes all items equal.
    seed : int or numpy Generator

    Returns
    -------
    scipy.sparse.csr_array of shape (n_users, n_items)

    Examples
    --------
    >>> R = user_item(100, 50, mean_interactions=5)
    >>> R.shape, float(R.max())
    ((100, 50), 1.0)
    """
    positive(n_users=n_users, n_items=n_items)
    if mean_interactions < 1 or popularity < 0:
        raise ConfigurationError(
            f"mean_interactions is {mean_interactions}, popularity {popularity}; expected >= 1 and >= 0"
        )
    rng = np.random.default_rng(seed)
    chance = np.arange(1, n_items + 1, dtype=np.float64) ** -popularity
    items_by_rank = rng.permutation(n_items)
    activity = rng.geometric(1 / mean_interactions, n_users)
    users = np.repeat(np.arange(n_users, dtype=np.int32), activity)
    items = items_by_rank[rng.choice(n_items, size=len(users), p=chance / chance.sum())].astype(np.int32)
    counts = scipy.sparse.csr_array((np.ones(len(users)), (users, items)), shape=(n_users, n_items))
    counts.sum_duplicates()
    counts.data[:] = 1.0
    return counts
