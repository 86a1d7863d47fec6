"""Doubling's formulas (Tziotis et al., Lemma B.1 and Theorem 4.9): order statistics, doubling points, rounds a stage.

==============  =================================================================================================
paper           here
==============  =================================================================================================
N, n_0          ``sites``, ``n0``; stage r waits for n_0 2^r of them
a               ``a``: a round with all sites shrinks the distance by sqrt(1 - a), up to the noise (10)
E[T_n]          `order_statistic_mean`: the n-th fastest of N exponential times, in units of their mean 1 / lambda
c, C            ``c``: what communication costs a round, in the same units; C = c / lambda
c-hat           ``target``: the error over the least that all sites can reach, in (1, sqrt 2) (12)
==============  =================================================================================================

(203) asks for the time of the stage before; for stage 0 that of n_0 / 2 sites is taken, as if there were one. A stage
has at least one round. (202) is printed with r where its proof (206) has X_(r+1): the proof's form is taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedspan.errors import ConfigurationError


def order_statistic_mean(n: int, sites: int) -> float:
    """Return the mean time of the n-th fastest of ``sites`` exponential times of mean 1: H_N - H_(N-n).

    >>> order_statistic_mean(1, 4), round(order_statistic_mean(4, 4), 4)
    (0.25, 2.0833)
    """
    if not 0 <= n <= sites:
        raise ConfigurationError(f"the n-th fastest of {sites} sites has n from 0 to {sites}; got {n}")
    return math.fsum(1 / i for i in range(sites - n + 1, sites + 1))


def stage_sizes(n0: int, sites: int) -> list[int]:
    """Return how many sites each stage waits for: n0, twice as many, and so on; all in the last.

    >>> stage_sizes(8, 50)
    [8, 16, 32, 50]
    """
    if not 1 <= n0 <= sites:
        raise ConfigurationError(f"n0 = {n0} sites to begin with, but there are {sites}; take n0 from 1 to {sites}")
    sizes = []
    while n0 < sites:
        sizes.append(n0)
        n0 *= 2
    return [*sizes, sites]


def doubling_points(n0: int, sites: int, a: float, c: float = 0.0) -> list[float]:
    """Return X_r (202), below which stage r is worth its time: infinite for stage 0, then falling.

    >>> tuple(round(x, 2) for x in doubling_points(8, 64, a=0.25, c=1.0))
    (inf, 6.84, 2.96, 1.21)
    """
    _check(a, c)
    sizes = stage_sizes(n0, sites)
    times = [order_statistic_mean(n, sites) for n in sizes]
    points = [math.inf]
    for r in range(len(sizes) - 1):
        noise = a / (math.sqrt(2**r * (1 - a)) * (1 - math.sqrt(1 - a)))
        points.append(noise * (1 + (times[r] + c) * (1 - math.sqrt(0.5)) / (times[r + 1] - times[r])))
    return points


def stage_rounds(n0: int, sites: int, a: float) -> list[int]:
    """Return tau_r (203) for every stage but the last: how many rounds wait for n0 2^r sites.

    The communication cost cancels in the bound. ``a`` is at most 1/4 in the theorem; an estimate may be larger.

    >>> stage_rounds(8, 64, a=0.5)
    [4, 4, 8]
    """
    _check(a, 0.0)
    sizes = stage_sizes(n0, sites)
    times = [order_statistic_mean(n, sites) for n in sizes]
    before = [order_statistic_mean(n0 // 2, sites), *times]
    rounds = []
    for r in range(len(sizes) - 1):
        steps = (times[r + 1] - times[r]) / (times[r] - before[r])
        rounds.append(max(1, math.ceil(2 * math.log(math.sqrt(2) * steps) / -math.log1p(-a))))
    return rounds


@dataclass(frozen=True)
class DoublingBounds:
    """Theorem 4.9: what doubling and full participation take, in units of the mean compute time."""

    doubling: float  # (217), at most
    full: float  # (248), at least
    ratio: float  # (256), at most: the first over the second
    rounds_full: float  # (253), at least
    rounds_last: float  # (240): rounds of the last stage, with all sites
    expected_doubling: float  # the sum over stages of tau_r (E[T_n] + c) with (203) and (240)
    expected_full: float  # (253) times E[T_N] + c
    applies: bool
    why_not: str


def doubling_bounds(n0: int, sites: int, a: float, c: float = 0.0, target: float = 1.1) -> DoublingBounds:
    """Return Theorem 4.9's bounds, and beside them the times that its round counts come to.

    The paper does not say of which base its logarithms are; all are natural here.

    >>> bounds = doubling_bounds(8, 1024, a=0.25, c=1.0)
    >>> round(bounds.ratio, 2), bounds.expected_doubling < bounds.expected_full
    (1.84, True)
    """
    _check(a, c)
    if not 1 < target < math.sqrt(2):
        raise ConfigurationError(f"target is c-hat, between 1 and the root of 2; got {target}")
    rate, log_n, accuracy = -math.log1p(-a), math.log(sites), math.log(1 / (target - 1))
    sizes, all_in = stage_sizes(n0, sites), order_statistic_mean(sites, sites) + c
    early = zip(stage_rounds(n0, sites, a), sizes, strict=False)
    last, full = 2 * accuracy / rate, (log_n + 2 * accuracy) / rate
    spent = math.fsum(t * (order_statistic_mean(n, sites) + c) for t, n in early)
    doubling, most = log_n * (6 * (c + 1) + 4 * accuracy) / rate, log_n * full
    why_not = "" if a <= 0.25 else f"the theorem needs a of at most 1/4, got {a:g}"
    return DoublingBounds(
        doubling=doubling, full=most, ratio=doubling / most if most else math.inf, rounds_full=full, rounds_last=last,
        expected_doubling=spent + math.ceil(last) * all_in, expected_full=math.ceil(full) * all_in,
        applies=not why_not, why_not=why_not,
    )  # fmt: skip


def _check(a: float, c: float) -> None:
    if not 0 < a < 1:
        raise ConfigurationError(f"a, by which a round shrinks the squared distance, lies between 0 and 1; got {a}")
    if not 0 <= c < math.inf:
        raise ConfigurationError(f"c is the cost of communication in units of the mean compute time; got {c}")
