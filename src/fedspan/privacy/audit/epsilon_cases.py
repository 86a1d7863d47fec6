"""Worst cases for the empirical audit: two tiny neighbouring data sets and a hostile coordinator's questions.

Data sets are such that each release's bound (`fedspan.sensitivity`) is attained or nearly so. Columns come in a
number that is a power of two: rows of a Hadamard matrix are orthogonal AND corners of a box, so they are the worst
under a bound on norms and under one on columns alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import hadamard

from fedspan.data.arrays import ArraySource
from fedspan.data.preprocess import moments, prepare, spread
from fedspan.data.source import Source, SymmetricSource
from fedspan.encoding import Array
from fedspan.errors import ConfigurationError
from fedspan.privacy.gaussian import Bounds, GaussianPrivacy
from fedspan.privacy.terms import private_solver
from fedspan.rounds import Gather, Round, Sum
from fedspan.solvers import Covariance, FedPower, ModSulq, Solver, StreamingModSulq
from fedspan.solvers.covariance import gram
from fedspan.solvers.fedpower import local_steps
from fedspan.solvers.mod_sulq import factor
from fedspan.solvers.problem import multiply

_FAR = 1e6
_MANY = 300  # rows for each column: against them MOD-SuLQ's noise is small, and its folding nearly linear
_TARGET = "site 0"


@dataclass(frozen=True)
class Case:
    """Two neighbouring data sets, and what is asked of them."""

    privacy: GaussianPrivacy
    rounds: tuple[Round, ...]
    worlds: tuple[Mapping[str, Source], Mapping[str, Source]]
    features: int
    charged: str = _TARGET
    """Whose ledger says what a run costs."""
    colluding: tuple[str, ...] = ()
    """Sites that show the attacker all they know: he takes their own part off each sum."""

    def read(self, question: Round, value: Any) -> dict[str, Any]:
        """Return a round's value as parts by name ("": there is but one)."""
        if question.step is factor:
            (folded,) = value.values()
            return {"": symmetric_root(folded)}
        return value if isinstance(value, dict) else {"": value}


def worst_case(
    privacy: GaussianPrivacy,
    solver: str | Solver = "covariance",
    *,
    features: int = 4,
    sites: int | None = None,
    colluding: int = 0,
    center: bool | None = None,
    scale: bool = False,
    missing: str = "error",
    normalise: str | None = None,
    setup_only: bool = False,
) -> Case:
    """Return the worst case of a study: as `private_solver` and the set-up would make it, asked by a hostile hand.

    ``sites`` is by default 1 (3 where noise is split), ``center`` true where neighbours are rows and not normalised by
    degree. ``colluding`` of the sites help the attacker; what holds then is for a ``privacy`` whose ``honest`` counts
    on the others only. With ``setup_only`` the case ends with the set-up releases, and rows are the worst for them.
    """
    by_degree = normalise == "degree"
    if features < 2 or features & (features - 1):
        raise ConfigurationError(f"features is a power of two, at least 2; got {features}")
    of_rows = privacy.relation in ("row", "row-replace")
    count = sites or (3 if privacy.trust == "distributed" else 1)
    if not 0 <= colluding < count:
        raise ConfigurationError(f"colluding is a number of sites, fewer than the {count} there are; got {colluding}")
    chosen = private_solver(solver, privacy, features, 1, 100.0, count)
    if isinstance(chosen, StreamingModSulq):
        raise ConfigurationError(
            "streaming-mod-sulq is audited as mod-sulq: each of its blocks is that release of other rows; take mod-sulq"
        )
    steps = chosen.local_steps if isinstance(chosen, FedPower) else 1
    center = of_rows and not by_degree if center is None else center
    far = privacy.relation == "row" and steps == 1  # where one row more counts fully wherever the mean is
    if by_degree:
        asked = _set_up_by_degree(privacy, features, chosen)
    else:
        asked = _set_up(privacy, features, chosen, center=center, scale=scale, gaps=missing, far=far)
    if not setup_only:
        asked += _solver_rounds(chosen, features, steps)
    if steps > 1:
        pair = _turning(privacy, features)
    else:
        many = _MANY if isinstance(chosen, ModSulq) else 0
        pair = _furthest(privacy, features, many, opposite=setup_only, counts=by_degree)
    others: dict[str, Source] = {f"site {i}": _others(privacy, features) for i in range(1, count)}
    helpers = tuple(list(others)[len(others) - colluding :])
    worlds = {_TARGET: pair[0], **others}, {_TARGET: pair[1], **others}
    return Case(privacy, asked, worlds, features, colluding=helpers)


# ---- questions -------------------------------------------------------------------------------------------------


def _set_up(
    privacy: GaussianPrivacy, d: int, solver: Solver, *, center: bool, scale: bool, gaps: str, far: bool
) -> tuple[Round, ...]:
    """The set-up questions, with a mean and a scale of the coordinator's choice: the worst, not the true ones."""
    agreed: dict[str, Any] = {
        "columns": None, "weight_column": None, "features": d, "total": privacy.shares["variance"] > 0,
        "privacy": {"releases": solver.releases},
    }  # fmt: skip
    sums = center or scale or gaps == "mean"
    rounds = []
    if sums or not privacy.rows_known:
        wanted = {"count": not privacy.rows_known, "sums": sums, "missing": gaps}
        rounds.append(Round(moments, {**wanted, "columns": None, "weight_column": None, "degree": False}, Sum()))
    if gaps == "mean":
        agreed["fill"] = np.zeros(d)
    reach = 0.999 * (
        privacy.row_bounds(d, centred=True, scaled=False).raw_norm or 0.0
    )  # as far as a site lets a mean be
    if scale:  # so far off along one column that rows are clipped to R nearly along it
        rounds.append(Round(spread, {**agreed, "mean": -reach * np.eye(d)[0]}, Sum()))
        agreed["scale"] = np.full(d, 1e-3)
    if center:
        # so far off that clipping before centring, not after, would show
        agreed["mean"] = np.full(d, -reach / math.sqrt(d) if far else 0.0)
    return (*rounds, Round(prepare, agreed, Sum()))


def _set_up_by_degree(privacy: GaussianPrivacy, d: int, solver: Solver) -> tuple[Round, ...]:
    """The same by degree: all degrees the least there may be, so that rows are as long as they come."""
    wanted = {"count": not privacy.rows_known, "sums": True, "missing": "error", "columns": None, "weight_column": None}
    agreed = {
        "columns": None, "weight_column": None, "features": d, "total": privacy.shares["variance"] > 0,
        "privacy": {"releases": solver.releases}, "degree": True,
        "scale": np.full(d, math.sqrt(privacy.least_degree())),
    }  # fmt: skip
    return Round(moments, {**wanted, "degree": True}, Sum()), Round(prepare, agreed, Sum())


def _solver_rounds(solver: Any, d: int, steps: int) -> tuple[Round, ...]:
    """The solver's questions, as many as it was granted; Z orthonormal but for its size, which no bound may miss."""
    if isinstance(solver, Covariance):
        return (Round(gram, None, Sum()),)
    if isinstance(solver, ModSulq):
        return (Round(factor, {"slice": d, "rank": d}, Gather()),)
    directions = np.asarray(hadamard(d), dtype=float)[:, :2] / math.sqrt(d)
    rounds = []
    for i in range(solver.rounds):
        z: Array = 10.0**i * directions
        message = {"z": z, "steps": steps, "average": False, "align": None, "gather": False, "per_row": False}
        if steps > 1:
            rounds.append(Round(local_steps, {**message, "z": np.eye(d, 1)}, Sum()))
        elif isinstance(solver, FedPower) and i < solver.rounds - 1:
            rounds.append(Round(local_steps, message, Sum()))
        else:
            rounds.append(Round(multiply, z, Sum()))
    return tuple(rounds)


# ---- data ------------------------------------------------------------------------------------------------------


def _length(privacy: GaussianPrivacy) -> float:
    """Longer than any row may count: the clip must hold."""
    if privacy.relation == "site":
        return 3.0 * math.sqrt(privacy.site_norm or 1.0)
    norm = privacy.row_norm
    if isinstance(norm, Bounds):
        return _FAR
    return 3.0 * (1.0 if norm is None or norm == "unit" else float(norm))


def _furthest(
    privacy: GaussianPrivacy, d: int, many: int, *, opposite: bool, counts: bool = False
) -> tuple[Source, Source]:
    """A product's worst: one row more along Z; two orthogonal ones exchanged (for sums: two opposite ones).

    Of rows of counts the two are as far apart for sums, too: their sum and their difference turned to half columns.
    """
    if privacy.relation in ("entry", "ppm-12"):
        return _entries(privacy, d, many)
    u, v = _length(privacy) * np.asarray(hadamard(d), dtype=float)[:2] / math.sqrt(d)
    if counts:
        u, v = _FAR * (u + v), _FAR * (u - v)  # none has an entry below zero, and both reach their bounds
        opposite = False
    if privacy.relation == "site":
        return ArraySource(u[None]), ArraySource(v[None])
    own = np.full((privacy.rows_per_person, 1), 1.0)
    base = _base(privacy, d, many)
    if privacy.relation == "row":
        return ArraySource(base), ArraySource(np.vstack([base, own * u]))
    other = -u if opposite else v
    return ArraySource(np.vstack([base, own * u])), ArraySource(np.vstack([base, own * other]))


def _base(privacy: GaussianPrivacy, d: int, many: int) -> Array:
    """Rows that both data sets have."""
    size = 1.0 if isinstance(privacy.row_norm, Bounds) else _length(privacy) / 3
    few = 0.1 * size * np.random.default_rng(0).uniform(-1, 1, (3, d))
    return np.vstack([few, *[size * np.eye(d)] * many])


def _entries(privacy: GaussianPrivacy, d: int, many: int) -> tuple[Source, Source]:
    change, c = np.zeros((d, d)), privacy.entry_change
    if privacy.relation == "entry":
        change[0, 1] = change[1, 0] = c
    else:
        change[0, 0] = c
    base = many * c * np.eye(d)
    return SymmetricSource(base), SymmetricSource(base + change)


def _others(privacy: GaussianPrivacy, d: int) -> Source:
    if privacy.relation in ("entry", "ppm-12"):
        return SymmetricSource(np.eye(d))
    return ArraySource(_base(privacy, d, 0))


def _turning(privacy: GaussianPrivacy, d: int) -> tuple[Source, Source]:
    """For several local steps from z = e_1: a row p makes them end at p, x near -p makes them end at x.

    Both have a small positive part along z, x ten times that of p, so x decides where both are there.
    """
    c = privacy.entry_change
    if privacy.relation in ("entry", "ppm-12"):
        t = c / 2 if privacy.relation == "entry" else c / math.sqrt(8)
        shares = []
        for sign in (1.0, -1.0):
            share = np.zeros((d, d))
            share[0, 1] = share[1, 0] = sign * t
            share[1, 1] = _FAR
            shares.append(SymmetricSource(share))
        return shares[0], shares[1]
    p, x = np.zeros((1, d)), np.zeros((1, d))
    p[0, :2], x[0, :2] = (1e-3, 1.0), (1e-2, -1.0)
    p, x = _length(privacy) * p, _length(privacy) * x
    if privacy.relation == "row":
        return ArraySource(p), ArraySource(np.vstack([p, x]))
    return ArraySource(p), ArraySource(x)


def symmetric_root(folded: Array) -> Array:
    """Return (K K')^(1/2): for K = U S of a noised N = U S V', its symmetric part where that is far from zero.

    Near a large multiple B of the identity, N = B I + D + E has the polar factor B I + D + (E + E') / 2 to first
    order, and <D, E> = <D, (E + E') / 2> for symmetric D: nothing that tells D apart is lost.
    """
    values, vectors = np.linalg.eigh(folded @ folded.T)
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T)
