"""A private study's terms: what it may ask, which solver serves it, in how many rounds. From public figures only."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fedspan.cohort import Cohort
from fedspan.data import Facts, Preparation
from fedspan.data.preprocess import SetUp
from fedspan.encoding import Plain
from fedspan.errors import ConfigurationError
from fedspan.linalg import orth
from fedspan.privacy import published
from fedspan.privacy.gaussian import Bounds, GaussianPrivacy
from fedspan.solvers import NAMES, SOLVERS, BlockKrylov, Covariance, FedPower, ModSulq, Solver, StreamingModSulq, make

Agree = Callable[[int, float, dict[str, int | None]], dict[str, Plain]]
COVARIANCE_FEATURES = 4096
"""Up to so many features the whole Gram matrix is a message (64 MB), and the best one to put noise on."""
MOST_ROUNDS = 8
FELT = 0.03
"""Noise below this share of the total variance is not worth clipping more for."""
LEAST = 2 / 3
"""The most that the clip is tightened."""
ROUNDS_IN_THE_DARK = 3
_STARTS = 4


def check_terms(privacy: GaussianPrivacy, preparation: Preparation, cohort: Cohort, sites: int) -> None:
    """Refuse a study that the guarantee could not cover."""
    p, rows = preparation, privacy.relation in ("row", "row-replace")
    if p.normalise is not None:
        _check_degrees(privacy, rows=rows)
    if not rows and (p.center or p.scale or p.missing == "mean"):
        raise ConfigurationError(
            f"neighbours = {privacy.relation!r} bounds no mean, scale or imputation; set center = false, scale = false "
            'and missing = "error", or take neighbours = "row"'
        )
    if p.scale and not isinstance(privacy.row_norm, Bounds):
        raise ConfigurationError(
            "scale = true needs the columns' ranges: a row's norm before and after scaling are two bounds, and "
            "row_norm is one number; give row_norm = Bounds(low, high)"
        )
    if privacy.relation == "row" and privacy.shares["count"] == 0:
        raise ConfigurationError(
            'the number of rows is needed and its share is 0; give shares["count"] some, or state n_public = true'
        )
    needs = [(p.center or p.missing == "mean", "mean"), (p.scale, "scale"), (p.normalise is not None, "degree")]
    for needed, share in needs:
        if needed and privacy.shares[share] == 0:
            raise ConfigurationError(f'the {share} is needed and its share is 0; give shares["{share}"] some')
    if privacy.relation == "site" and not privacy.n_public:
        raise ConfigurationError(
            "neighbours = 'site' bounds no number of rows, and a study needs it; state n_public = true: each site's "
            "number of rows is then public"
        )
    if cohort.late == "carry" and privacy.trust != "local":
        raise ConfigurationError(
            f"late = 'carry' lets a row count in two sums, and trust = {privacy.trust!r} has noise for one; drop late "
            f"replies, or take trust = 'local'"
        )
    if privacy.trust == "distributed":
        _check_shares_of_noise(privacy, cohort, sites)


def _check_degrees(privacy: GaussianPrivacy, *, rows: bool) -> None:
    """Columns' degrees are a release of raw rows; what enters the Gram matrix is bounded by itself."""
    if not rows:
        raise ConfigurationError(
            f"neighbours = {privacy.relation!r} bounds no column's degree; leave normalise out, or take neighbours = "
            '"row"'
        )
    if isinstance(privacy.row_norm, Bounds):
        raise ConfigurationError(
            'normalise = "degree" takes one number as row_norm, the norm of rows over the roots of both degrees: '
            "ranges of the columns say nothing of it"
        )
    if privacy.raw_norm is None:
        raise ConfigurationError(
            'raw_norm is missing: with normalise = "degree" the columns\' degrees are released, and their noise rests '
            "on a bound on raw rows, which is never taken from the data; give a number (rows of zeros and ones with at "
            "most g ones have norm sqrt(g))"
        )


def _check_shares_of_noise(privacy: GaussianPrivacy, cohort: Cohort, sites: int) -> None:
    """Split noise is enough only where as many answer as were counted on."""
    honest = privacy.honest or sites
    least = asked_of(cohort, sites)
    if cohort.deadline is not None or cohort.sample != "uniform" or least < honest:
        raise ConfigurationError(
            f"with trust = 'distributed' each of {honest} sites adds a share of the noise, and this cohort may leave "
            f"fewer; ask all sites, or set honest to at most {least} (and no deadline)"
        )


def asked_of(cohort: Cohort, sites: int) -> int:
    """Return how many sites' replies a round waits for."""
    pool = sites if cohort.only is None else len(cohort.only)
    drawn = pool if cohort.fraction == 1 else max(1, round(cohort.fraction * pool))
    return min(cohort.first or drawn, drawn)


def set_up_for(privacy: GaussianPrivacy, agree: Agree, check: Callable[[int], None] = lambda width: None) -> SetUp:
    """Return what a private study asks while it prepares the data."""
    return SetUp(
        count=not privacy.rows_known,
        total=privacy.shares["variance"] > 0,
        least_degree=privacy.least_degree,
        bounds=lambda d: privacy.row_bounds(d, centred=True, scaled=False),
        agree=agree,
        check=check,
        tighten=partial(tighter_norm, privacy),
    )


def tighter_norm(
    privacy: GaussianPrivacy, total: float, rows: float, preparation: dict[str, Plain], sites: int
) -> float | None:
    """Return a norm to clip rows to below the terms' C, or None: post-processing of the noised total variance.

    Noise grows with C^2, and a bound that was set before the data was seen is often loose: rows centred within it are
    shorter. At the root mean square norm (the total over the rows, one deviation of its noise added) noise is small for
    what the clip cuts. That cut does not shrink with more rows, so it is made only where the noise would be felt, its
    largest singular value above `FELT` of the total, and never below `LEAST` of C: a row is then cut to two thirds at
    most, and no direction's variance by more than a factor of 2.25, whatever lies in it.
    """
    if not privacy.may_tighten:
        return None
    d = preparation["features"]
    neighbours = privacy.neighbours_of(privacy.bounds_under(preparation, d, tightened=False))
    heard = math.sqrt(sites) if privacy.trust == "local" else 1.0  # every site's noise is in the sum
    about = neighbours.total(d) * heard / (privacy.mu * math.sqrt(privacy.total_share))
    likely = max(total, 0.0) + about
    if neighbours.gram() * heard / privacy.mu * math.sqrt(2 * d) < FELT * likely:
        return None
    norm = max(math.sqrt(likely / max(rows, 1.0)), LEAST * neighbours.bound)
    return norm if norm < neighbours.bound else None


def private_solver(
    solver: str | Solver, privacy: GaussianPrivacy, d: int, k: int, rows: float, sites: int = 1
) -> Solver:
    """Return the solver with its rounds set and no tolerance; refuse one whose releases noise cannot cover.

    A solver given by its name gets as many rounds as `power_rounds` finds best; one with settings keeps its own.
    """
    chosen: Any = coverable(solver, privacy, d)
    if not hasattr(chosen, "rounds"):
        return chosen  # type: ignore[no-any-return]
    rank = chosen.rank(k, d)
    if isinstance(solver, str) or chosen.rounds is None:
        rounds = power_rounds(privacy, d, k, rank, rows, sites) + isinstance(chosen, FedPower)  # its last: the values
    else:
        rounds = chosen.rounds
    if isinstance(chosen, BlockKrylov):  # after so many blocks the basis is the whole space, and it stops
        rounds = min(rounds, -(-d // rank))
    elif isinstance(solver, str) and rank == d:  # one product shows the whole space
        rounds = 1 + isinstance(chosen, FedPower)
    return replace(chosen, rounds=rounds, tol=0.0)  # type: ignore[no-any-return]


def coverable(solver: str | Solver, privacy: GaussianPrivacy, d: int) -> Solver:
    """Return the solver that serves so many features, its rounds not settled; refuse what noise cannot cover.

    Nothing but public figures is looked at, so that a study is refused before anything is released.
    """
    if solver == "auto":
        solver = "covariance" if d <= COVARIANCE_FEATURES else "private-power"
    chosen: Any = make(solver) if isinstance(solver, str) else solver
    if getattr(chosen, "releases", None) is None:
        able = [name for name, kind in SOLVERS.items() if kind().releases is not None]
        raise ConfigurationError(
            f"{NAMES.get(type(chosen), type(chosen).__name__)} declares no sensitivity, so no noise can cover what it "
            f"releases; take one that does: {', '.join(able)}, or auto"
        )
    if isinstance(chosen, ModSulq) and privacy.trust != "local":
        raise ConfigurationError(
            f"{NAMES[type(chosen)]} adds its noise at the sites, slice by slice; set trust = 'local' (got "
            f"{privacy.trust!r}), or take covariance"
        )
    if isinstance(chosen, StreamingModSulq) and privacy.relation != "row-replace":
        raise ConfigurationError(
            f"streaming-mod-sulq cuts rows into blocks by counting them, and neighbours = {privacy.relation!r} would "
            "move a row to another block; state n_public = true: neighbours then replace rows"
        )
    if isinstance(chosen, FedPower):
        if isinstance(solver, str) and privacy.calibration == "tight" and privacy.site_norm is None:
            chosen = replace(chosen, local_steps=1)
        _check_fedpower(chosen, privacy)
    if privacy.calibration == "published":
        check_published(privacy, chosen)
    return chosen  # type: ignore[no-any-return]


def _check_fedpower(solver: FedPower, privacy: GaussianPrivacy) -> None:
    if solver.reference == "baseline" and solver.align is not None:
        raise ConfigurationError(
            'fedpower with reference = "baseline" sends each site\'s own Z, which no noise covers; take "global"'
        )
    if privacy.calibration == "tight" and privacy.site_norm is None and solver.takes_local_steps:
        raise ConfigurationError(
            "fedpower with several local steps releases what no bound on rows covers; give site_norm, that it is "
            "clipped to, or take local_steps = 1"
        )


def check_published(privacy: GaussianPrivacy, solver: Solver) -> str:
    """Return the paper's formula for a solver; refuse one for another paper's solver."""
    fitting = {
        Covariance: ("analyze-gauss", "mod-sulq"),
        FedPower: ("fedpower",),
        ModSulq: ("streaming-mod-sulq",),
        StreamingModSulq: ("streaming-mod-sulq",),
    }.get(type(solver), ("ppm", "hardt-price"))
    if privacy.formula is not None and privacy.formula not in fitting:
        raise ConfigurationError(
            f"formula {privacy.formula!r} is not about {NAMES[type(solver)]}; it has {' or '.join(fitting)}"
        )
    if privacy.formula == "hardt-price" and privacy.relation not in ("entry", "ppm-12"):
        raise ConfigurationError("formula = 'hardt-price' is about entries; set neighbours to 'entry' or 'ppm-12'")
    if privacy.formula == "mod-sulq" and not privacy.n_public:
        raise ConfigurationError("MOD-SuLQ's noise takes the number of rows as public; set n_public = true")
    if fitting == ("fedpower",):
        _check_published_fedpower(privacy)
    formula = privacy.formula or fitting[0]
    if formula in ("ppm", "hardt-price"):
        published.ppm_sigma(privacy.epsilon, privacy.delta, 1)  # refuses a delta that its proof does not cover
    if formula == "analyze-gauss":
        published.analyze_gauss_sigma(privacy.epsilon, privacy.delta)
    return formula


def _check_published_fedpower(privacy: GaussianPrivacy) -> None:
    if not privacy.n_public:
        raise ConfigurationError("FedPower's published noise takes the sites' sizes as public; set n_public = true")
    if privacy.trust != "local":
        raise ConfigurationError(
            "FedPower's published noise is added at the sites and again at the coordinator; set trust = 'local'"
        )
    if privacy.relation != "entry" or privacy.entry_change != 1.0:
        raise ConfigurationError(
            "FedPower's published noise is for a change of 1 in an entry of the Gram matrix, and hides no row; set "
            "neighbours = 'entry' and entry_change = 1, or calibration = 'tight'"
        )


def power_rounds(privacy: GaussianPrivacy, d: int, k: int, rank: int, rows: float, sites: int = 1) -> int:
    """Return how many rounds of power iteration capture most, tried on a made-up spectrum: no data is looked at.

    More rounds converge further but split the budget: each gets sqrt(rounds) times the noise. The trial matrix is
    diagonal with variances falling as 1 / j and rows that use half of the norm they may have; noise is what the terms
    give. The noised number of rows is all that depends on data, and that was released. Where the trial drowns in noise
    it cannot tell, and a few rounds are taken: data with a stronger first direction may still come through.

    >>> power_rounds(GaussianPrivacy(1.0, 1e-6, row_norm=1.0), 100, 5, 5, 10_000)
    5
    """
    width = min(d, 1024)
    values = 1.0 / np.arange(1, width + 1)
    neighbours = privacy.neighbours_of(privacy.row_bounds(d, centred=True, scaled=False))
    unit = max(rows, 1.0) * neighbours.bound**2 / 2 if privacy.relation.startswith("row") else neighbours.bound * d
    values *= unit / values.sum()
    captured = np.zeros(MOST_ROUNDS)
    noise = math.sqrt(d / width * (sites if privacy.trust == "local" else 1)) / privacy.mu
    for start in range(_STARTS):
        for rounds in range(1, MOST_ROUNDS + 1):
            rng = np.random.default_rng(start)
            z = orth(rng.standard_normal((width, rank)))
            for _ in range(rounds):
                sigma = neighbours.product(z) * math.sqrt(rounds) * noise
                y = values[:, None] * z + sigma * rng.standard_normal(z.shape)
                z = orth(y)
            top = np.linalg.svd(y, full_matrices=False)[0][:, :k]
            captured[rounds - 1] += float(np.sum(values[:, None] * top**2))
    blind = _STARTS * k * float(values.mean())  # what a random basis captures
    return int(np.argmax(captured)) + 1 if captured.max() > 3 * blind else ROUNDS_IN_THE_DARK


def terms_of(solver: Solver, privacy: GaussianPrivacy, cohort: Cohort, rows: dict[str, int | None]) -> dict[str, Plain]:
    """Return what every site is told: how often the solver asks and, for papers that need them, the public sizes."""
    terms: dict[str, Plain] = {"releases": solver.releases, "trust": privacy.trust}
    if privacy.calibration == "published":
        terms["formula"] = check_published(privacy, solver)
    if privacy.calibration == "published" and privacy.n_public:
        terms["sizes"] = [int(n or 0) for n in rows.values()]
    if privacy.calibration == "published" and not cohort.is_full:
        terms["drawn"] = [asked_of(cohort, len(rows)), 1 if cohort.sample == "by-size-with-replacement" else 2]
    return terms


def solver_noise(privacy: GaussianPrivacy, facts: Facts, solver: Solver, sites: int = 1) -> float:
    """Return about how large a value the noise alone would show: its largest singular value.

    On a Gram matrix it is symmetric with variance sigma^2 / 2 off the diagonal, so the edge of its spectrum is
    sqrt(2 d) sigma; on a product d x r it is sigma (sqrt(d) + sqrt(r)); for slices see `_sliced_noise`.
    """
    spent = _setup_share(privacy, facts)
    mu = privacy.mu * math.sqrt((1 - spent) / (solver.releases or 1))
    bounds = privacy.bounds_under(facts.preparation, facts.features)
    sigma, d = privacy.neighbours_of(bounds).gram() / mu, facts.features
    noises = sites if privacy.trust == "local" else 1
    rank = solver.rank(min(16, d), d)
    if isinstance(solver, ModSulq):
        return sigma * _sliced_noise(d, rank, noises * getattr(solver, "blocks", 1), solver.merge)
    edge = math.sqrt(2 * d) if isinstance(solver, Covariance) else math.sqrt(d) + math.sqrt(rank)
    return sigma * math.sqrt(noises) * edge


def _sliced_noise(d: int, rank: int, count: int, merge: str) -> float:
    """Return the same of ``count`` noised d x d matrices N_j, not symmetric, of deviation 1.

    Published: side by side they are one matrix, d x (d count). Tight: what is added up is not N_j but the r leading
    pairs of sqrt(N_j N_j'), which is positive: its mean, of size about 1.5 sqrt(d) r / d, does not cancel.
    """
    if merge == "published":
        return math.sqrt(d) * (1 + math.sqrt(count))
    return math.sqrt(d) * (2 * math.sqrt(count) + 1.5 * (count - 1) * rank / d)


def _setup_share(privacy: GaussianPrivacy, facts: Facts) -> float:
    """Return the share of mu^2 that set-up releases took."""
    by_degree = bool(facts.preparation.get("degree"))
    used = {
        "count": not privacy.rows_known,
        "variance": not math.isnan(facts.total),
        "mean": facts.column_mean is not None,
        "scale": facts.scale is not None and not by_degree,
        "degree": by_degree,
    }
    return sum(privacy.shares[name] for name, asked in used.items() if asked)
