"""Privacy accounting: what Gaussian releases cost together, as pure functions.

A release of L2 sensitivity Delta with Gaussian noise of deviation sigma is mu-Gaussian DP with mu = Delta / sigma
(Dong, Roth, Su 2022). Such releases compose exactly, adaptive ones included: mu^2 = mu_1^2 + mu_2^2 + ... (`compose`).
What mu means in (epsilon, delta) is exact too: `delta_of`, and its inverses `epsilon_of` and `mu_of`.

zCDP and basic composition, which the papers use, are here to state and to check the papers' own figures: both cost more
noise for the same guarantee. `cross_check` puts the exact figure beside those of Google's dp_accounting.

Whatever is rounded is rounded to the safe side: `mu_of` down, `epsilon_of` up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import erfcx, ndtr

from fedspan.errors import ConfigurationError

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_SMALL = 0.5  # below, a difference of Mills ratios loses digits that its integral keeps
_SLACK = 1e-10  # relative; more than `delta_of` may be wrong by


def check_epsilon_delta(epsilon: float, delta: float) -> None:
    """Refuse anything but a finite epsilon > 0 and 0 < delta < 1.

    >>> check_epsilon_delta(1.0, 1e-6)
    >>> check_epsilon_delta(1.0, 1)
    Traceback (most recent call last):
    fedspan.errors.ConfigurationError: delta is 1; expected 0 < delta < 1: well below 1 / (number of persons), e.g. 1e-6
    """
    if not (_is_number(epsilon) and 0 < epsilon < math.inf):
        raise ConfigurationError(f"epsilon is {epsilon!r}; expected a finite number above 0, e.g. 1.0")
    check_delta(delta)


def check_delta(delta: float) -> None:
    """Refuse anything but 0 < delta < 1."""
    if not (_is_number(delta) and 0 < delta < 1):
        raise ConfigurationError(
            f"delta is {delta!r}; expected 0 < delta < 1: well below 1 / (number of persons), e.g. 1e-6"
        )


def _is_number(value: object) -> bool:
    """Say whether this is a real number; True and False are not meant as one, and nan passes no comparison."""
    return isinstance(value, Real) and not isinstance(value, bool | np.bool_)


def _check_not_negative(name: str, value: float, meaning: str) -> None:
    if not (_is_number(value) and value >= 0):
        raise ConfigurationError(f"{name} is {value!r}; expected a number >= 0: {meaning}")


# ---- Gaussian DP: exact ----------------------------------------------------------------------------------------


def compose(mus: Iterable[float]) -> float:
    """Return the mu of all these releases together: the root of the sum of squares.

    >>> compose([3.0, 4.0])
    5.0
    """
    events = list(mus)
    for mu in events:
        _check_not_negative("mu", mu, "sensitivity / noise deviation of a release")
    return math.hypot(*events)


def delta_of(mu: float, epsilon: float) -> float:
    """Return the least delta for which mu-Gaussian DP is (epsilon, delta)-DP.

    delta = Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2) (Balle, Wang 2018, Theorem 8; Dong, Roth, Su
    2022, Corollary 2.13). With u = epsilon/mu - mu/2, v = u + mu, phi the normal density and M = (1 - Phi)/phi Mills'
    ratio it is phi(u) (M(u) - M(v)), since phi(u) = e^epsilon phi(v): nothing overflows, and tiny deltas keep their
    digits.

    >>> delta_of(1.0, 1.0)
    0.126937
    >>> delta_of(1.0, 0.0)  # the total variation distance, 2 Phi(mu/2) - 1
    0.382925
    """
    _check_not_negative("mu", mu, "sensitivity / noise deviation")
    _check_not_negative("epsilon", epsilon, "0 asks for the total variation distance")
    if mu == 0 or epsilon == math.inf:
        return 0.0
    if mu == math.inf:
        return 1.0
    u, v = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if u > 50:  # below 1e-500
        return 0.0
    if mu >= _SMALL and u < 0:
        return float(min(1.0, ndtr(-u) - _density(u) * _mills(v)))
    fall = _mills(u) - _mills(v) if mu >= _SMALL else _mills_fall(u, mu)
    return float(math.exp(-u * u / 2 + math.log(fall / math.sqrt(2 * math.pi))))


def _density(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _mills(x: Any) -> Any:
    return math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2))


def _mills_fall(u: float, mu: float) -> float:
    """Return M(u) - M(u + mu) for a short step, as the integral of -M' = 1 - t M(t) > 0."""
    t = u + mu * (_NODES + 1) / 2
    return float(mu / 2 * (_WEIGHTS @ (1 - t * _mills(t))))


def epsilon_of(mu: float, delta: float) -> float:
    """Return the least epsilon for which mu-Gaussian DP is (epsilon, delta)-DP, rounded up.

    >>> epsilon_of(0.2, 1e-6)
    0.834
    >>> delta_of(0.2, epsilon_of(0.2, 1e-6)) <= 1e-6
    True
    """
    check_delta(delta)
    _check_not_negative("mu", mu, "sensitivity / noise deviation")
    if mu == math.inf:
        return math.inf

    def enough(epsilon: float) -> bool:
        return delta_of(mu, epsilon) <= delta * (1 - _SLACK)

    if enough(0.0):
        return 0.0
    high = 1.0
    while not enough(high):
        high *= 2
    return _edge(enough, inside=high, outside=0.0)


def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest mu that is (epsilon, delta)-DP, rounded down: noise of sensitivity / mu is enough.

    >>> mu = mu_of(1.0, 1e-6)
    >>> mu
    0.2367
    >>> delta_of(mu, 1.0) <= 1e-6
    True
    """
    check_epsilon_delta(epsilon, delta)

    def allowed(mu: float) -> bool:
        return delta_of(mu, epsilon) <= delta * (1 - _SLACK)

    high = 1.0
    while allowed(high):
        high *= 2
    return _edge(allowed, inside=0.0, outside=high)


def _edge(holds: Callable[[float], bool], *, inside: float, outside: float) -> float:
    """Bisect to the last float where it holds; what is returned has been tried (or is where the search began)."""
    while True:
        middle = (inside + outside) / 2
        if middle in (inside, outside):
            return inside
        inside, outside = (middle, outside) if holds(middle) else (inside, middle)


# ---- what the papers use ---------------------------------------------------------------------------------------


def zcdp_of_gaussian(mu: float) -> float:
    """Return rho = mu^2 / 2 (Bun, Steinke 2016, Proposition 1.6; PPM's Lemma 2.1). Rhos add up.

    >>> zcdp_of_gaussian(0.2)
    0.02
    """
    _check_not_negative("mu", mu, "sensitivity / noise deviation")
    return mu * mu / 2


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Return rho + 2 sqrt(rho log(1/delta)) (Bun, Steinke 2016, Proposition 1.3, as PPM's (31) has it).

    >>> zcdp_epsilon(0.02, 1e-6)  # the exact figure is 0.834
    1.071
    """
    check_delta(delta)
    _check_not_negative("rho", rho, "the zCDP parameter")
    return rho + 2 * math.sqrt(rho * -math.log(delta))


def zcdp_epsilon_tight(rho: float, delta: float) -> float:
    """Return the least epsilon over alpha of the conversion by Canonne, Kamath, Steinke (2020, Proposition 12).

    For every alpha > 1, epsilon = alpha rho + log(1 - 1/alpha) + (log(1/delta) - log(alpha)) / (alpha - 1) is proven;
    a minimum that is not found exactly is therefore still a bound.

    >>> zcdp_epsilon_tight(0.02, 1e-6)
    0.900
    """
    plain = zcdp_epsilon(rho, delta)
    if rho in (0, math.inf):
        return plain

    def at(log_excess: Any) -> Any:
        excess = np.exp(log_excess)  # alpha - 1
        log_alpha = np.log1p(excess)
        return (1 + excess) * rho + log_excess - log_alpha + (-math.log(delta) - log_alpha) / excess

    grid = np.linspace(-25.0, 25.0, 501) + math.log(math.sqrt(-math.log(delta) / rho))  # about Bun and Steinke's alpha
    best = grid[np.argmin(at(grid))]
    found = minimize_scalar(at, bounds=(best - 0.1, best + 0.1), method="bounded", options={"xatol": 1e-10})
    return float(max(0.0, min(plain, found.fun)))


def basic_composition(events: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the sum of the epsilons and of the deltas, as FedPower composes (its Proposition 3).

    >>> basic_composition([(0.1, 1e-6)] * 10)
    (1.0, 1e-05)
    """
    for epsilon, delta in events:
        _check_not_negative("epsilon", epsilon, "of one event")
        _check_not_negative("delta", delta, "of one event")
    return math.fsum(epsilon for epsilon, _ in events), min(1.0, math.fsum(delta for _, delta in events))


# ---- another implementation ------------------------------------------------------------------------------------


def cross_check(mus: Sequence[float], delta: float) -> dict[str, float]:
    """Return the epsilon of these releases together by the closed form and by dp_accounting's two accountants.

    ``pld`` discretises the privacy loss and rounds it up, so it should be a hair above ``closed form``; ``rdp`` (Rényi
    DP) is an upper bound. Needs fedspan[accounting].
    """
    check_delta(delta)
    total = compose(mus)
    try:
        from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
        from dp_accounting.pld import PLDAccountant
        from dp_accounting.rdp import RdpAccountant
    except ImportError as cause:
        raise ConfigurationError(
            "the cross-check needs dp_accounting: install fedspan[accounting]; fedspan's own figure needs nothing more"
        ) from cause
    found = {"closed form": epsilon_of(total, delta)}
    accountants = {"pld": PLDAccountant(value_discretization_interval=min(1e-4, total / 500)), "rdp": RdpAccountant()}
    for name, accountant in accountants.items():
        for mu, count in Counter(mus).items():
            if mu > 0:
                accountant.compose(SelfComposedDpEvent(GaussianDpEvent(1 / mu), count))
        found[name] = float(accountant.get_epsilon(delta))
    return found
