"""Which epsilon for which accuracy: the real private study, run on synthetic twins. No data is read.

A twin has the public figures of a study (sites, rows, features, the bound on rows) and a spectrum that the user picks.
The answer is only as good as that pick, and says so.

With exact accounting, what a private study finds depends on the rows n and the budget mu by n mu alone: sums over rows
(the Gram matrix, the mean, the count) grow with n, their noise with 1 / mu. So a twin of n' < n rows with
mu' = mu n / n' stands for n rows, and large studies are tried on small twins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import eigh, solve_triangular

from fedspan.data import Preparation, Source, open_source
from fedspan.encoding import Array
from fedspan.errors import ConfigurationError, ConvergenceError, DataError, nearest
from fedspan.privacy.accountant import epsilon_of, mu_of
from fedspan.privacy.gaussian import Bounds, GaussianPrivacy
from fedspan.privacy.terms import check_terms
from fedspan.run import Study, run
from fedspan.solvers import NAMES, FedPower, Solver
from fedspan.study import resolve_private

SAID = "On synthetic twins: your data's spectrum decides; no data was read."
EPSILONS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
MOST_ROWS, MOST_ENTRIES = 20_000, 4_000_000
"""The size of a scaled twin; it has twice as many rows as features at least."""
UNSCALED_ENTRIES = 100_000_000
"""The size of a twin that cannot be scaled."""
FILLED = 0.5
"""The mean of a twin row's squared norm, of what is allowed; as `fedspan.privacy.terms.power_rounds` assumes."""


@dataclass(frozen=True)
class Spectrum:
    """How a twin's variances fall: ``power`` (j^-rate), ``geometric`` (rate^j) or ``flat``.

    >>> Spectrum("geometric", 0.5).variances(3)
    array([0.571429, 0.285714, 0.142857])
    """

    kind: str = "power"
    rate: float = 1.0

    def variances(self, d: int) -> Array:
        """Return d variances that sum to 1."""
        at = np.arange(1, d + 1, dtype=float)
        values: Array = (
            self.rate ** (at - 1) if self.kind == "geometric" else at ** -(self.rate * (self.kind == "power"))
        )
        return np.asarray(values / values.sum())

    @property
    def words(self) -> str:
        """The spectrum for people."""
        if self.kind == "flat":
            return "all variances equal"
        return f"variances j^-{self.rate:g}" if self.kind == "power" else f"variances {self.rate:g}^j"

    @classmethod
    def parse(cls, text: str) -> Spectrum:
        """Return the spectrum of a text such as ``power:1.0``, ``geometric:0.9`` or ``flat``."""
        kind, _, given = text.strip().partition(":")
        defaults = {"power": 1.0, "geometric": 0.9, "flat": 1.0}
        if kind not in defaults:
            raise ConfigurationError(f"there is no spectrum {kind!r}; {nearest(kind, defaults)}")
        try:
            rate = float(given) if given else defaults[kind]
        except ValueError:
            rate = math.nan
        fits = {"power": 0 <= rate < math.inf, "geometric": 0 < rate <= 1, "flat": not given}
        if not fits[kind]:
            raise ConfigurationError(
                f"spectrum {text!r}: write power:A with A >= 0 (variances j^-A), geometric:R with 0 < R <= 1 "
                "(variances R^j), or flat"
            )
        return cls(kind, rate)


@dataclass(frozen=True)
class Point:
    """The accuracy at one epsilon: the variance captured, relative to the non-private answer on the same twin."""

    epsilon: float
    values: tuple[float, ...]
    """One for each twin."""

    @property
    def mean(self) -> float:
        """Over the twins."""
        return float(np.mean(self.values))

    @property
    def error(self) -> float | None:
        """The standard error of the mean; None with a single twin."""
        many = len(self.values)
        return float(np.std(self.values, ddof=1) / math.sqrt(many)) if many > 1 else None


@dataclass(frozen=True)
class Reached:
    """Where a curve reaches its target: log epsilon against log loss, between two that were tried."""

    epsilon: float
    between: tuple[float, float] | None
    """None: the smallest epsilon tried reaches it already."""


@dataclass(frozen=True)
class Curve:
    """Accuracy against epsilon, for one solver and trust."""

    solver: str
    trust: str
    points: tuple[Point, ...]

    def reached(self, target: float) -> Reached | None:
        """Return the smallest epsilon with this accuracy; None where none that was tried has it.

        >>> curve = Curve("covariance", "local", (Point(0.1, (0.9,)), Point(10.0, (0.999,))))
        >>> curve.reached(0.99), curve.reached(0.2)
        (Reached(epsilon=1.0, between=(0.1, 10.0)), Reached(epsilon=0.1, between=None))
        """
        at = next((i for i, point in enumerate(self.points) if point.mean >= target), None)
        if at is None:
            return None
        high = self.points[at]
        if at == 0:
            return Reached(high.epsilon, None)
        low = self.points[at - 1]
        before, wanted, after = (math.log(max(1 - share, 1e-9)) for share in (low.mean, target, high.mean))
        part = (before - wanted) / (before - after)
        between = math.log(low.epsilon) * (1 - part) + math.log(high.epsilon) * part
        return Reached(math.exp(between), (low.epsilon, high.epsilon))


@dataclass(frozen=True)
class Calibration:
    """Curves of accuracy against epsilon, and what they were made from."""

    curves: tuple[Curve, ...]
    n_components: int
    features: int
    rows: int
    twin_rows: int
    """Fewer than ``rows`` where twins are scaled: their mu is larger in the same proportion."""


def calibrate(
    study: Study,
    rows: Mapping[str, int],
    features: int,
    *,
    spectrum: Spectrum | None = None,
    epsilons: Sequence[float] = EPSILONS,
    solvers: Sequence[str | Solver] = (),
    trusts: Sequence[str] = (),
    seeds: int = 5,
    begin: Callable[[str], None] = lambda step: None,
) -> Calibration:
    """Run a private study on ``seeds`` twins of so many rows at each site, for every epsilon, solver and trust."""
    spectrum = Spectrum() if spectrum is None else spectrum
    privacy = _checked(study)
    k = _rank(study.n_components, spectrum, features)
    tried = [(s, replace(privacy, trust=t)) for s in solvers or (study.solver,) for t in trusts or (privacy.trust,)]
    plain = replace(study.preparation, columns="strict", weight_column=None, min_rows=1)
    base = replace(study, n_components=k, preparation=plain, init=None)
    named = [_named(replace(base, solver=s), p, rows, features, k) for s, p in tried]
    sizes = twin_sizes(rows, features) if _scales(tried) else _unscaled(rows, features)
    factor = sum(rows.values()) / sum(sizes.values())
    found: list[list[list[float]]] = [[[] for _ in epsilons] for _ in tried]
    for seed in range(seeds):
        twin = make_twin(spectrum, sum(sizes.values()), features, privacy, seed)
        held = _Held(twin, plain, k)
        sources = _split(twin, sizes)
        for at, (solver, terms) in enumerate(tried):
            begin(f"twin {seed + 1} of {seeds}, {named[at]}, trust {terms.trust}")
            for column, epsilon in zip(found[at], epsilons, strict=True):
                scaled = replace(terms, epsilon=_stand_in(epsilon, privacy.delta, factor), testing_seed=seed)
                column.append(held.share(replace(base, solver=solver, seed=seed, privacy=scaled), sources))
    curves = tuple(
        Curve(name, terms.trust, tuple(Point(e, tuple(v)) for e, v in zip(epsilons, columns, strict=True)))
        for name, (_, terms), columns in zip(named, tried, found, strict=True)
    )
    return Calibration(curves, k, features, sum(rows.values()), sum(sizes.values()))


def rows_needed(rows: int, delta: float, reached: float, epsilon: float) -> int:
    """Return how many rows would give at ``epsilon`` the accuracy that ``rows`` rows give at epsilon ``reached``."""
    return math.ceil(rows * mu_of(reached, delta) / mu_of(epsilon, delta))


def twin_sizes(rows: Mapping[str, int], features: int) -> dict[str, int]:
    """Return each site's rows in a scaled twin: in proportion, one at least.

    >>> twin_sizes({"a": 3_000_000, "b": 1_000_000}, 100)
    {'a': 15000, 'b': 5000}
    """
    most = max(min(MOST_ROWS, MOST_ENTRIES // features), 2 * features)
    total = sum(rows.values())
    return dict(rows) if total <= most else {site: max(1, round(n * most / total)) for site, n in rows.items()}


def make_twin(spectrum: Spectrum, rows: int, features: int, privacy: GaussianPrivacy, seed: int) -> Array:
    """Return a twin's rows, within the bound that the study's rows have.

    Where there are rows enough their covariance is the spectrum exactly, so that a small twin is like a large one.
    """
    z = np.random.default_rng([seed, 0]).standard_normal((rows, features))
    if rows >= 2 * features:
        z -= z.mean(axis=0)
        z = solve_triangular(np.linalg.cholesky(z.T @ z / rows), z.T, lower=True, overwrite_b=True).T
    z *= np.sqrt(spectrum.variances(features))
    if isinstance(privacy.row_norm, Bounds):
        return _in_box(z, privacy.row_norm, seed)
    norm = privacy.row_bounds(features, centred=True, scaled=False).norm
    assert norm is not None
    z *= norm * math.sqrt(FILLED)  # noise is alike in all directions: there is no need to turn the axes
    z *= np.minimum(1.0, norm / np.maximum(np.linalg.norm(z, axis=1), 1e-300))[:, None]
    return z


def _in_box(z: Array, box: Bounds, seed: int) -> Array:
    """Turn the axes, so that columns depend on each other, and let each fill its range: two deviations are half."""
    d = z.shape[1]
    box.half_width(d)  # refuses another number of columns
    z = z @ np.linalg.qr(np.random.default_rng([seed, 1]).standard_normal((d, d)))[0]  # alike in twins of any size
    half, middle = (box.high - box.low) / 2, (box.high + box.low) / 2
    z *= half / 2 / np.maximum(z.std(axis=0), 1e-300)
    return np.asarray(np.clip(z + middle, box.low, box.high))


class _Held:
    """How much of a twin's variance a subspace holds, against the best of its rank."""

    def __init__(self, twin: Array, preparation: Preparation, k: int) -> None:
        rows = twin - twin.mean(axis=0) if preparation.center else twin
        if preparation.scale:
            rows = rows / np.maximum(twin.std(axis=0), 1e-300)
        self._rows = rows
        gram = rows.T @ rows if rows.shape[1] <= rows.shape[0] else rows @ rows.T
        top = min(k, len(gram))
        self._best = float(eigh(gram, eigvals_only=True, subset_by_index=(len(gram) - top, len(gram) - 1)).sum())

    def share(self, study: Study, sources: Mapping[str, Source]) -> float:
        """Run a study and return the share its answer holds; one that diverged has none."""
        try:
            basis = run(study, sources).estimate.basis
        except ConvergenceError:
            return 0.0
        return float(np.linalg.norm(self._rows @ basis) ** 2) / self._best


def _checked(study: Study) -> GaussianPrivacy:
    privacy = study.privacy
    if privacy is None:
        raise ConfigurationError("the study has no privacy, so there is no epsilon to choose")
    if privacy.relation not in ("row", "row-replace"):
        raise ConfigurationError(
            f"neighbours = {privacy.relation!r} bounds no row, so nothing public says how large a twin's rows are; "
            'calibrate with neighbours = "row" and a row_norm'
        )
    if study.preparation.normalise is not None:
        raise ConfigurationError(
            f'normalise = "{study.preparation.normalise}" is for counts, and a twin has none; calibrate without it, or '
            "run the study on counts that you made up"
        )
    return privacy


def _named(study: Study, privacy: GaussianPrivacy, rows: Mapping[str, int], d: int, k: int) -> str:
    """Return a solver's name; refuse now what its run would refuse later."""
    check_terms(privacy, study.preparation, study.cohort, len(rows))
    solver: Any = resolve_private(study, privacy, d, k, float(sum(rows.values())), len(rows))
    return NAMES[type(solver)]


def _rank(wanted: int | float | str, spectrum: Spectrum, d: int) -> int:
    """Return the number of components: a share of the variance is counted out on the twin's spectrum."""
    if isinstance(wanted, float):
        return int(np.searchsorted(np.cumsum(spectrum.variances(d)), wanted) + 1)
    k = wanted if isinstance(wanted, int) else min(16, d)
    if not 1 <= k <= d:
        raise DataError(f"n_components = {k} must lie between 1 and {d}, the number of features")
    return k


def _scales(tried: Sequence[tuple[str | Solver, GaussianPrivacy]]) -> bool:
    """Whether accuracy depends on rows and mu by their product alone: not in papers' formulas, nor where a release of
    several local steps is clipped to a norm of its own."""
    clipped = (p.site_norm is not None and (s == "fedpower" or isinstance(s, FedPower)) for s, p in tried)
    return all(p.calibration == "tight" for _, p in tried) and not any(clipped)


def _unscaled(rows: Mapping[str, int], features: int) -> dict[str, int]:
    if sum(rows.values()) * features > UNSCALED_ENTRIES:
        raise ConfigurationError(
            f"a twin of {sum(rows.values()):,} x {features:,} numbers is too large, and with published formulas (or "
            "fedpower's site_norm) a smaller one is not like it; calibrate with calibration = \"tight\", or state "
            f"--rows {UNSCALED_ENTRIES // features} at most"
        )  # fmt: skip
    return dict(rows)


def _stand_in(epsilon: float, delta: float, factor: float) -> float:
    """Return the epsilon whose mu is ``factor`` times as large."""
    return epsilon if factor == 1 else epsilon_of(mu_of(epsilon, delta) * factor, delta)


def _split(twin: Array, sizes: Mapping[str, int]) -> dict[str, Source]:
    ends = np.cumsum(list(sizes.values()))[:-1]
    return {site: open_source(part) for site, part in zip(sizes, np.split(twin, ends), strict=True)}
