"""An empirical lower bound on epsilon: tell worst-case neighbours apart, over many runs of the real code.

::

    case (epsilon_cases)  ->  the coordinator's view, run by run  ->  one score a run  ->  threshold, rates  ->  bound

A case is two neighbouring data sets and the questions of a hostile coordinator. Real sites with their real policies
answer them, each run with noise of its own; the attacker sees the reply (``trust="local"``), the sum
(``"distributed"``, less what colluding sites put in), or the sum after the coordinator's noise (``"central"``). His
score is the log-likelihood ratio: the inner product of all he saw with the difference that he knows, over the noise's
variance. No test is stronger.

Variances and a threshold are found on one half of the runs; the other half bounds the two error rates by Clopper and
Pearson, at (1 - confidence) / 2 each. What fedspan certifies is mu-Gaussian DP, so by the trade-off that this allows,
mu >= Phi^-1(true positives) - Phi^-1(false positives). `epsilon_lower_bound` needs no such form, but is weak where
delta is small, as no rate below 1 / runs is ever seen. A bound above the certified figure proves a fault; one below it
proves nothing, as with every audit.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri
from scipy.stats import beta

from fedspan.encoding import Array
from fedspan.errors import ConfigurationError, PolicyError
from fedspan.privacy.accountant import check_delta, epsilon_of
from fedspan.privacy.audit.epsilon_cases import Case, worst_case
from fedspan.privacy.gaussian import GaussianPrivacy
from fedspan.privacy.ledger import Charge, Ledger, composed
from fedspan.privacy.policy import SitePolicy
from fedspan.privacy.releases import Releases
from fedspan.rounds import Outcome, Round, Site, Solve, answer, drive, numbered
from fedspan.solvers import Solver

CONFIDENCE = 1 - 1e-4
_THRESHOLDS = 400  # tried on the first half
_RUNS_A_LEDGER = 25  # opening one takes as long as a few runs; a long one is slow to add up
_SURE = 1e-4  # of the difference: the noise that stands for none, so that scores stay finite

Layer = Callable[[Solve[Any], Releases], Solve[Any]]
"""Numbers the rounds and adds a trusted coordinator's noise: `fedspan.layers`, which lie above this module."""


@dataclass(frozen=True)
class EmpiricalEpsilon:
    """What many runs prove, beside what was certified."""

    lower_bound: float
    """Epsilon is at least this, with the confidence, at delta."""
    certified: float
    """Epsilon as the ledger's charges compose, at delta."""
    delta: float
    confidence: float
    runs: int
    """Of each of the two data sets."""
    ok: bool
    """Whether the bound is within what was certified; False proves a fault."""
    mu: float
    """The bound as mu of Gaussian DP."""
    certified_mu: float
    attained_mu: float
    """How far these neighbours are apart, computed: the root of the sum of (difference / sigma)^2."""


# ---- statistics ------------------------------------------------------------------------------------------------


def epsilon_lower_bound(
    scores_a: Array, scores_b: Array, delta: float, confidence: float = CONFIDENCE, *, held_out: bool = True
) -> float:
    """Return an epsilon that no (epsilon, delta)-private mechanism with a smaller one has such scores, or 0.

    For every event S, P_b(S) <= e^epsilon P_a(S) + delta and the same with a and b swapped. S is a half-line of
    scores, chosen on the first half of the runs. ``held_out=False`` uses all runs twice, which claims too much.

    >>> epsilon_lower_bound(np.zeros(2000), np.ones(2000), 1e-2)
    4.60...
    """
    check_delta(delta)

    def bound(low: Array, high: Array) -> Array:
        return np.log(np.maximum(low - delta, 1e-300) / high)

    return _bound(scores_a, scores_b, confidence, bound, held_out=held_out)


def mu_lower_bound(scores_a: Array, scores_b: Array, confidence: float = CONFIDENCE, *, held_out: bool = True) -> float:
    """Return a mu that no mechanism of smaller mu in Gaussian DP has such scores, or 0.

    mu-Gaussian DP is Phi^-1(P_b(S)) - Phi^-1(P_a(S)) <= mu for every event S (Dong, Roth, Su 2022, Definition 2.6).

    >>> rng = np.random.default_rng(0)
    >>> mu_lower_bound(rng.normal(0, 1, 4000), rng.normal(2, 1, 4000))
    1.7...
    """

    def bound(low: Array, high: Array) -> Array:
        return np.asarray(ndtri(np.maximum(low, 1e-300)) - ndtri(high))

    return _bound(scores_a, scores_b, confidence, bound, held_out=held_out)


def _bound(a: Array, b: Array, confidence: float, bound: Callable[[Array, Array], Array], *, held_out: bool) -> float:
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if a.ndim != 1 or b.ndim != 1 or min(len(a), len(b)) < 2 or not np.all(np.isfinite([*a, *b])):
        raise ConfigurationError(f"expected the scores of at least 2 runs each, finite; got {a.shape} and {b.shape}")
    if not 0 < confidence < 1:
        raise ConfigurationError(f"confidence lies in (0, 1), got {confidence!r}")
    half = (len(a) // 2, len(b) // 2) if held_out else (0, 0)
    first = (a[: half[0]], b[: half[1]]) if held_out else (a, b)
    pooled = np.concatenate(first)
    thresholds = np.unique(np.quantile(pooled, np.linspace(0, 1, _THRESHOLDS), method="lower"))
    chosen: tuple[float, float, int] = (-math.inf, 0.0, 0)
    for which in range(4):
        found = bound(*_rates(*first, thresholds, which, confidence))
        best = int(np.argmax(found))
        chosen = max(chosen, (float(found[best]), float(thresholds[best]), which))
    _, threshold, which = chosen
    rest = (a[half[0] :], b[half[1] :])
    return max(0.0, float(bound(*_rates(*rest, np.array([threshold]), which, confidence))[0]))


def _rates(a: Array, b: Array, thresholds: Array, which: int, confidence: float) -> tuple[Array, Array]:
    """Return a lower bound on an event's likelier probability, and an upper one on the other (Clopper, Pearson).

    ``which``: above the threshold or not, and likelier under b or under a.
    """
    hits = []
    for scores in (b, a) if which % 2 == 0 else (a, b):
        above = len(scores) - np.searchsorted(np.sort(scores), thresholds, side="right")
        hits.append((above if which < 2 else len(scores) - above, len(scores)))
    (k, n), (j, m) = hits
    tail = (1 - confidence) / 2
    low = np.where(k > 0, beta.ppf(tail, np.maximum(k, 1), n - k + 1), 0.0)
    high = np.where(j < m, beta.isf(tail, j + 1, np.maximum(m - j, 1)), 1.0)
    return low, high


# ---- runs ------------------------------------------------------------------------------------------------------


def empirical_epsilon(
    privacy: GaussianPrivacy, solver: str | Solver = "covariance", runs: int = 2000, seed: int | None = 0,
    **settings: Any,
) -> EmpiricalEpsilon:  # fmt: skip
    """Audit a study's privacy on tiny worst-case neighbours: no run on its own data is needed.

    ``runs`` are made of each data set. ``seed=None`` draws the noise as a study does, from the cryptographic stream;
    a number makes the audit repeatable. Further ``settings`` are those of `worst_case`.

    >>> found = empirical_epsilon(GaussianPrivacy(8.0, 1e-2, row_norm=1.0), runs=200)
    >>> found.ok, round(found.certified, 6)
    (True, 8.0)
    """
    return audit_case(worst_case(privacy, solver, **settings), runs, seed)


def audit_case(case: Case, runs: int = 2000, seed: int | None = 0, layer: Layer | None = None) -> EmpiricalEpsilon:
    """Run a case many times on both of its data sets, and bound what the views tell.

    ``layer`` adds the noise of a trusted coordinator; without one the same call is made here.
    """
    attack = Attack(case, layer)
    mu = mu_lower_bound(*attack.scores(*(attack.measure(world, runs, seed) for world in (0, 1))))
    certified, delta = math.sqrt(attack.spent), case.privacy.delta
    return EmpiricalEpsilon(
        epsilon_of(mu, delta), epsilon_of(certified, delta), delta, CONFIDENCE, runs, mu <= certified,
        mu, certified, attack.attained,
    )  # fmt: skip


class Attack:
    """The attacker on one case: what he knows beforehand, and his score of a run."""

    def __init__(self, case: Case, layer: Layer | None = None) -> None:
        self.case, self._layer = case, layer
        _ = case.privacy.mu  # worked out here once: copies of the terms then have it
        self._ledgers: dict[str, Ledger] = {}
        self._plain, other = (self._view(world, "plain", None, noisy=False) for world in (0, 1))
        self._twice: Twice | None = Twice()
        self._view(0, "terms", 0)
        self._twice = self._twice if self._twice.succeeded else None  # refused once, refused always
        charges = self._ledgers[case.charged].charges("terms")
        self.spent = composed(charges)
        """What the ledger says that a run costs, mu^2."""
        self._differences = {
            (i, name): difference
            for i, parts in enumerate(self._plain)
            for name, part in parts.items()
            if np.linalg.norm(difference := np.asarray(other[i][name] - part)) > 1e-9 * np.linalg.norm(part)
        }
        self._distances = np.array([np.linalg.norm(difference) for difference in self._differences.values()])
        self.attained = math.hypot(*(self._distances / self._sigmas(charges)))
        """How far the data sets are apart, by the deviations that the ledger says."""

    def _sigmas(self, charges: list[Charge]) -> Array:
        """Return each part's deviation as charged; 0 where it was charged nothing."""
        sigmas = {}
        for charge in charges:
            noise = {name: said["sigma"] for name, said in charge.detail.items() if isinstance(said, dict)}
            sigmas.update({(charge.round, name): sigma for name, sigma in noise.items()})
            sigmas[charge.round, ""] = max(noise.values())
        with_none = [sigmas.get(key, 0.0) for key in self._differences]
        return np.maximum(with_none, 1e-300)

    def measure(self, world: int, runs: int, seed: int | None) -> Array:
        """Make runs on one of the two data sets; return how far each part moved along its difference, run by run."""
        moved = np.zeros((runs, len(self._differences)))
        for run in range(runs):
            if run % _RUNS_A_LEDGER == 0:
                self._ledgers.clear()
            own = None if seed is None else 2 * (seed * 10**9 + run) + world
            view = self._view(world, f"{world} {run}", own)
            for at, ((i, name), difference) in enumerate(self._differences.items()):
                moved[run, at] = np.vdot(difference, view[i][name] - self._plain[i][name])
        return np.asarray(moved / self._distances)

    def scores(self, a: Array, b: Array) -> tuple[Array, Array]:
        """Return the log-likelihood ratios, but for a constant; variances are those seen in the first half.

        Not those that were charged: a fault may be just that the noise is another.
        """
        spread = np.sqrt((a[: len(a) // 2].var(axis=0) + b[: len(b) // 2].var(axis=0)) / 2)
        weights = self._distances / np.maximum(spread, _SURE * self._distances) ** 2
        return a @ weights, b @ weights

    def _view(self, world: int, run: str, seed: int | None, *, noisy: bool = True) -> list[dict[str, Any]]:
        """Make one run; return the parts of each round as the attacker sees them."""
        privacy = copy.copy(self.case.privacy)
        object.__setattr__(privacy, "testing_seed", seed)
        sources = self.case.worlds[world]
        sites = []
        for name, source in sources.items():
            releases = Releases(privacy, run=run, who=name, sites=len(sources), ledger=self._ledger(name))
            sites.append(Site(name, source, policy=_Named(releases) if noisy else _Silent(releases)))
        solve = _ask(self.case.rounds)
        central = noisy and privacy.trust == "central"
        if central and self._layer is not None:
            trusted = Releases(privacy, run=run, who="", sites=len(sources), ledger=self._ledger(self.case.charged))
            trusted.features = self.case.features
            solve, central = self._layer(solve, trusted), False
        else:
            solve = numbered(solve)
        twice = self._twice if noisy and privacy.trust != "central" else None  # an outsider asks nothing
        values = drive(solve, lambda question: _execute(self.case, sites, question, twice, central=central))
        return [self.case.read(question, value) for question, value in zip(self.case.rounds, values, strict=True)]

    def _ledger(self, name: str) -> Ledger:
        """Return a site's ledger; a trusted coordinator keeps the one that the sites then do not."""
        if name not in self._ledgers:
            self._ledgers[name] = Ledger()
        return self._ledgers[name]


class _Named(SitePolicy):
    """A site's policy, which notes what the parts of a release are called."""

    parts: tuple[str, ...] = ()

    def noised(self, site: Site, parts: dict[str, Array], about: Array | None = None) -> dict[str, Array]:
        self.parts = tuple(parts)
        return super().noised(site, parts, about)


class _Silent(SitePolicy):
    """A policy that clips as every other, and adds no noise: how the attacker works out what he looks for."""

    def noised(self, site: Site, parts: dict[str, Array], about: Array | None = None) -> dict[str, Array]:
        return parts

    def noising(self, site: Site, name: str, *about: Any) -> Callable[[Array], Array]:
        return lambda piece: piece


def _ask(rounds: tuple[Round, ...]) -> Solve[list[Any]]:
    """The hostile coordinator: its questions are settled, so no reply is needed to go on."""
    seen = []
    for question in rounds:
        value = yield question
        seen.append(value)
    return seen


class Twice:
    """Asks a site the same round once more: fresh noise on the same release would average out."""

    succeeded = False

    def __call__(self, site: Site, question: Round, value: Any) -> Any:
        """Return the average of two replies, or the first where the second is refused."""
        try:
            again: Any = answer(site, question).value
        except PolicyError:
            return value
        self.succeeded = True
        if isinstance(value, dict):
            return {name: (part + again[name]) / 2 for name, part in value.items()}
        return (value + again) / 2


def _execute(case: Case, sites: list[Site], question: Round, twice: Twice | None, *, central: bool) -> Outcome:
    """Ask every site, add up those that the attacker knows not; add a coordinator's noise where it is trusted."""
    collector = question.reduce.collector(False)
    for site in sites:
        value: Any = answer(site, question).value
        if site.id in case.colluding:
            continue
        collector.add(site.id, value if twice is None else twice(site, question, value), 1.0, 1)
    value = collector.result()
    if central:
        policy: Any = sites[0].policy  # its bounds and terms are the coordinator's too
        parts = policy.releases.release(question, value if isinstance(value, dict) else {policy.parts[0]: value})
        value = parts if isinstance(value, dict) else next(iter(parts.values()))
    return Outcome(value, [site.id for site in sites], 0, 0)
