"""The noise scales that papers print, each as one function: to reproduce them, and to say what they prove.

fedspan's own noise is sensitivity / `fedspan.privacy.accountant.mu_of`, which is exact. These are the papers': most
prove more than they need (so they add too much noise), some prove less than they say. Every docstring tells which, and
tests keep the factors.

"Tight" below means: the exact noise for the same sensitivity, the same (epsilon, delta) and as many releases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from fedspan.errors import ConfigurationError
from fedspan.privacy.accountant import check_delta, check_epsilon_delta

PPM_DELTA_RATE = (2 + math.sqrt(2)) / 8
"""`ppm_sigma` needs delta <= exp(-PPM_DELTA_RATE epsilon); about 0.427."""

# ---- PPM (Nicolas et al. 2024) ---------------------------------------------------------------------------------


def ppm_sigma(epsilon: float, delta: float, rounds: int) -> float:
    """Return epsilon^-1 sqrt(4 L log(1/delta)) of PPM's Algorithm 1; times Delta_l it is the noise of round l.

    Proven: L rounds together are (epsilon, delta)-DP by zCDP, rho = epsilon^2 / (8 log(1/delta)), if Delta_l bounds the
    sensitivity and rho + 2 sqrt(rho log(1/delta)) = epsilon^2 / (8 log(1/delta)) + epsilon / sqrt(2) <= epsilon. That
    is log(1/delta) >= epsilon / (8 (1 - 1/sqrt(2))) = (2 + sqrt(2))/8 epsilon = 0.42678 epsilon.

    Not proven: the condition the paper prints, delta <= exp(-epsilon/4). Its (33) has epsilon/2 where 2 sqrt(1/8) is
    1/sqrt(2). The corrected one is enforced here.

    Above the tight noise by 1.76 at (1, 1e-6) and 2.05 at (0.1, 1e-6), whatever L.

    >>> ppm_sigma(1.0, 1e-6, 1)
    7.434
    """
    check_epsilon_delta(epsilon, delta)
    _check_count("rounds", rounds)
    log = -math.log(delta)
    if log * (1 + 1e-12) < PPM_DELTA_RATE * epsilon:  # the edge itself may round to either side
        raise ConfigurationError(
            f"delta is {delta:g} with epsilon {epsilon:g}; PPM's noise is proven for delta <= exp(-0.42678 epsilon) = "
            f"{math.exp(-PPM_DELTA_RATE * epsilon):.4g}: lower delta or epsilon, or use the exact calibration"
        )
    return math.sqrt(4 * rounds * log) / epsilon


def ppm_share(epsilon: float, delta: float, rounds: int, sites: int) -> float:
    """Return nu = sigma / sqrt(s) of PPM's Algorithm 2: s such shares of noise sum to `ppm_sigma` (Theorem 6.2).

    Proven towards those who see nothing but the sum, if every site answers. A site knows its own share: to c sites that
    pool theirs, the sum has only sqrt((s - c)/s) of the noise.

    >>> ppm_share(1.0, 1e-6, 1, 100)
    0.7434
    """
    _check_count("sites", sites)
    return ppm_sigma(epsilon, delta, rounds) / math.sqrt(sites)


def delta_rows(z: ArrayLike) -> float:
    """Return max_i ||Z_i||, PPM's sensitivity (13): for a change C of A with sqrt(sum_i ||C_i||_1^2) <= 1 (12).

    A change of one entry by 1, and of its mirror, is a C of size sqrt(2) there: its sensitivity is sqrt(2) times this.

    >>> delta_rows([[0.6, 0.8], [0.8, -0.6]])
    1.0
    """
    return float(np.sqrt(np.max(np.sum(_matrix(z) ** 2, axis=1))))


def delta_max(z: ArrayLike) -> float:
    """Return sqrt(p) ||Z||_max, the sensitivity before PPM (Hardt, Price 2014; Balcan et al. 2016); >= `delta_rows`.

    >>> delta_max([[0.6, 0.8], [0.8, -0.6]])
    1.131
    """
    rows = _matrix(z)
    return float(math.sqrt(rows.shape[1]) * np.max(np.abs(rows)))


# ---- FedPower (Guo et al.) -------------------------------------------------------------------------------------


def fedpower_sigma(epsilon: float, delta: float, communications: int, smallest_site: int) -> float:
    """Return sigma of FedPower's Algorithm 2; times ||Z^(i)||_max it is a site's noise (line 6), c = floor(T/p).

    sigma = c / (epsilon min_i s_i) sqrt(2 log(1.25 c / delta)): c Gaussian mechanisms at (epsilon/c, delta/c).

    What it proves: (epsilon, delta) for the sites' releases, and with the server's as much again (Theorem 4: 2 epsilon,
    2 delta), under three conditions the paper does not state. (1) One local step per communication: with p > 1, Z^(i)
    is itself a function of the private data. (2) epsilon / c <= 1, for the classical Gaussian mechanism. (3) A
    sensitivity of ||Z||_max: that is one column's; the whole d x r release moves by up to max_i ||Z_i||, up to
    sqrt(r) times more, and by sqrt(2) max_i ||Z_i|| where an entry of A'A and its mirror change.

    For its own sensitivity it is above the tight noise by 4.28 at (1, 1e-6) and 10 communications: sqrt(c) by basic
    composition, the rest by the mechanism.

    >>> fedpower_sigma(1.0, 1e-6, 10, 1000)
    0.05717
    """
    _check_count("communications", communications)
    _check_count("smallest_site", smallest_site)
    check_epsilon_delta(epsilon, delta)
    return _classical(epsilon / communications, delta / communications) / smallest_site


def fedpower_sigma_server(
    epsilon: float, delta: float, communications: int, smallest_site: int, largest_share: float
) -> float:
    """Return sigma' = sigma max_i p_i of Algorithm 2; times max_i ||Z^(i) D^(i)||_max it is the server's (line 7).

    Proves (epsilon, delta) towards those who see the aggregate only, under the conditions of `fedpower_sigma`. Towards
    the server it proves nothing, and the sites' noise, which is in the aggregate already, is not counted.

    >>> fedpower_sigma_server(1.0, 1e-6, 10, 1000, 0.1)
    0.005717
    """
    _check_share(largest_share)
    return largest_share * fedpower_sigma(epsilon, delta, communications, smallest_site)


def fedpower_sigma_partial(
    epsilon: float, delta: float, communications: int, sizes: Sequence[int], participants: int, scheme: int
) -> tuple[float, float]:
    """Return a site's sigma and the server's sigma' (scheme 1) or sigma'' (scheme 2) of Algorithm 3, as printed.

    With c = floor(T/p), s = min_i s_i, p_i = s_i / sum s and K participants:

    - sigma   = c / (epsilon s) sqrt(2 log(1.25 c max_i q_i / delta)), q_i = p_i in scheme 1 and 1/m in scheme 2
    - sigma'  = c / (K epsilon s) sqrt(2 log(1.25 c / delta))
    - sigma'' = sigma' max_i p_i

    What Theorem 7 proves is less than it says, beyond the conditions of `fedpower_sigma`. The q_i, an amplification by
    sampling, count against an observer who does not know who was drawn: the coordinator draws, so towards it nothing is
    gained; and q_i is the chance of one draw, not of K. sigma' takes a site's weight as 1/K, but scheme 1 draws with
    replacement, so it may be up to 1. sigma'' lacks the factor m of scheme 2's aggregate (m/K) sum p_i Y_i.

    >>> fedpower_sigma_partial(1.0, 1e-6, 10, [1000] * 10, 5, scheme=1)
    (0.05299, 0.01143)
    """
    counts = list(sizes)
    for count in counts:
        _check_count("a site's size", count)
    _check_count("participants", participants)
    if scheme not in (1, 2) or not counts or (scheme == 2 and participants > len(counts)):
        raise ConfigurationError(
            f"scheme is {scheme!r} with {participants} participants of {len(counts)} sites; expected scheme 1, or "
            "scheme 2 with no more participants than sites"
        )
    share = max(counts) / sum(counts)
    chance = share if scheme == 1 else 1 / len(counts)
    check_epsilon_delta(epsilon, delta)
    _check_count("communications", communications)
    site = _classical(epsilon / communications, delta / (communications * chance)) / min(counts)
    server = fedpower_sigma(epsilon, delta, communications, min(counts)) / participants
    return site, server if scheme == 1 else share * server


def fedpower_split(
    epsilon_site: float, epsilon_server: float, delta: float, smallest_site: int, largest_share: float
) -> tuple[float, float]:
    """Return the site's and the server's sigma for budgets (eps_1, delta) and (eps_2, delta) of EACH communication.

    Section 5.3 of FedPower, where Table 3 has eps_1 = inf, 100, 10, 1, 0.1 and eps_2 = 0.1. It prints no formula:
    this is its Gaussian mechanism at these budgets, sqrt(2 log(1.25/delta)) / (eps_1 min s_i), and max_i p_i times that
    for eps_2. inf means no noise. (That section says Algorithm 2 spends (epsilon / 2c, delta / 2c) on each release; by
    the proof of Theorem 4 it is (epsilon / c, delta / c).)

    Proven for eps_1, eps_2 <= 1 only, and under the conditions of `fedpower_sigma`; c communications cost c times as
    much by the paper's composition. For large eps the classical formula is too SMALL: at eps 100 and delta 1e-6 it is
    0.54 of what (100, 1e-6) needs, at eps 10 0.98.

    >>> fedpower_split(10.0, 0.1, 1e-6, 100, 0.01)
    (0.0053, 0.0053)
    >>> fedpower_split(math.inf, math.inf, 1e-6, 100, 0.01)
    (0.0, 0.0)
    """
    _check_share(largest_share)
    _check_count("smallest_site", smallest_site)
    scales = []
    for epsilon in (epsilon_site, epsilon_server):
        if epsilon == math.inf:
            check_delta(delta)
            scales.append(0.0)
        else:
            check_epsilon_delta(epsilon, delta)
            scales.append(_classical(epsilon, delta) / smallest_site)
    return scales[0], largest_share * scales[1]


# ---- noise on a covariance -------------------------------------------------------------------------------------


def analyze_gauss_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Return sensitivity sqrt(2 ln(1.25/delta)) / epsilon (Dwork, Talwar, Thakurta, Zhang 2014, Algorithm 1).

    The deviation of each entry of a symmetric noise matrix on A'A, rows of norm at most 1; the sensitivity is 1 for
    adding or removing a row, sqrt(2) for replacing one. Proven for epsilon <= 1 only, as the classical Gaussian
    mechanism is; enforced.

    Above the tight noise of the same form by 1.25 at (1, 1e-6). Entries off the diagonal count twice in A'A but carry
    one draw: in the basis (diagonal, sqrt(2) x upper triangle) they need only 1/sqrt(2) of this.

    >>> analyze_gauss_sigma(1.0, 1e-6)
    5.299
    """
    check_epsilon_delta(epsilon, delta)
    if not 0 < sensitivity < math.inf:
        raise ConfigurationError(f"sensitivity is {sensitivity!r}; expected a finite number above 0, e.g. 1.0")
    if epsilon > 1:
        raise ConfigurationError(
            f"epsilon is {epsilon:g}; the classical Gaussian mechanism is proven for epsilon <= 1: lower it, or use "
            "the exact calibration"
        )
    return sensitivity * _classical(epsilon, delta)


def mod_sulq_beta(epsilon: float, delta: float, d: int, n: int) -> float:
    """Return beta of MOD-SuLQ (Chaudhuri, Sarwate, Sinha 2012): the deviation of symmetric noise on (1/n) sum x x'.

    beta = (d + 1)/(n epsilon) sqrt(2 log((d^2 + d)/(delta 2 sqrt(2 pi)))) + 1/(n sqrt(epsilon)), for n rows of norm at
    most 1, one of which is replaced.

    Proven: (epsilon, delta)-DP, but by bounding every entry of the noise; the Frobenius sensitivity sqrt(2)/n gives a
    noise without the factor d. Above the tight noise by about d/sqrt(2), up to logarithms: 939 at (1, 1e-6), d = 784.

    >>> mod_sulq_beta(1.0, 1e-6, 784, 60_000)
    0.09351
    """
    _check_covariance(epsilon, delta, d, n)
    log = _positive_log((d * d + d) / (delta * 2 * math.sqrt(2 * math.pi)), delta)
    return (d + 1) / (n * epsilon) * math.sqrt(2 * log) + 1 / (n * math.sqrt(epsilon))


def streaming_mod_sulq_omega(epsilon: float, delta: float, d: int, n: int) -> float:
    """Return omega of FPCA's Lemma 4, (17): the deviation of NON-symmetric noise on (1/n) X X', columns of norm 1.

    omega = 4 d/(epsilon n) sqrt(2 log(d^2/(delta sqrt(2 pi)))) + sqrt(2)/(sqrt(epsilon) n).

    The end of the proof can be read as sqrt(2)/sqrt(epsilon n). The algebra decides for (17): the term is
    (2/(epsilon n)) sqrt(epsilon/2) = sqrt(2)/(sqrt(epsilon) n). The same algebra shows that the larger root of (33) is
    at most 2 d/(epsilon n) sqrt(...) + the same term: the 4 of the print is twice what its own proof needs.

    The printed proof bounds N_ij from above only, where it needs |N_ij|, and (29) lacks P(G^ in S). The guarantee
    holds all the same, since the exact Gaussian mechanism needs far less: above the tight noise, that of sensitivity
    sqrt(2)/n, by about 2 sqrt(2) d up to logarithms: by 3802 at (1, 1e-6), d = 784.

    >>> streaming_mod_sulq_omega(1.0, 1e-6, 784, 60_000)
    0.3786
    """
    _check_covariance(epsilon, delta, d, n)
    log = _positive_log(d * d / (delta * math.sqrt(2 * math.pi)), delta)
    return 4 * d / (epsilon * n) * math.sqrt(2 * log) + math.sqrt(2) / (math.sqrt(epsilon) * n)


# ---- shared ----------------------------------------------------------------------------------------------------


def _classical(epsilon: float, delta: float) -> float:
    """Return sqrt(2 log(1.25/delta)) / epsilon, the classical Gaussian mechanism for sensitivity 1."""
    return math.sqrt(2 * _positive_log(1.25 / delta, delta)) / epsilon


def _positive_log(value: float, delta: float) -> float:
    if value <= 1:
        raise ConfigurationError(f"delta comes to {delta:g}, and the paper's logarithm to 0 or less: lower delta")
    return math.log(value)


def _matrix(z: ArrayLike) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    rows = np.asarray(z, dtype=np.float64)
    if rows.ndim != 2 or rows.size == 0:
        raise ConfigurationError(f"Z has shape {rows.shape}; expected a matrix of d rows and p columns")
    return rows


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"{name} is {value!r}; expected a whole number of at least 1")


def _check_share(largest_share: float) -> None:
    if not 0 < largest_share <= 1:
        raise ConfigurationError(
            f"largest_share is {largest_share!r}; expected max_i p_i, the largest site's share of the rows: above 0, "
            "at most 1"
        )


def _check_covariance(epsilon: float, delta: float, d: int, n: int) -> None:
    check_epsilon_delta(epsilon, delta)
    _check_count("d", d)
    _check_count("n", n)
