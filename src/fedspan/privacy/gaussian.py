"""`GaussianPrivacy`: what a study promises its sites' people, and what that rests on. Settings only, no noise yet."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from functools import cached_property
from numbers import Integral, Real
from typing import Any

import numpy as np

from fedspan.data.clip import LARGEST_ENTRY, RowBounds
from fedspan.errors import ConfigurationError, PolicyError, nearest
from fedspan.privacy.accountant import check_epsilon_delta, mu_of
from fedspan.privacy.bounds import Bounds
from fedspan.sensitivity import RELATIONS, Neighbours

__all__ = ["FORMULAS", "MOST_SHARED", "SHARES", "TRUSTS", "Bounds", "GaussianPrivacy"]

TRUSTS = ("local", "distributed", "central")
FORMULAS = ("ppm", "hardt-price", "fedpower", "analyze-gauss", "mod-sulq", "streaming-mod-sulq")
SHARES = {"mean": 0.1, "count": 0.02, "variance": 0.02, "scale": 0.1, "degree": 0.1}
"""Of mu^2, for the releases that prepare the data; those not needed go to the solver."""
MOST_SHARED = 0.99
"""The most that the shares of one study sum to: a solver with next to nothing left would release noise alone."""
DEGREE_DEVIATIONS = 2.0
"""A noised degree is taken for no less than so many deviations of its noise: below, it is mostly noise."""


@dataclass(frozen=True)
class GaussianPrivacy:
    """(epsilon, delta)-differential privacy by Gaussian noise: for whom, against whom, and on what bound.

    Parameters
    ----------
    epsilon, delta
        The guarantee for everything the study releases together.
    row_norm
        The most that a row may count: a number (the norm of the row as it enters the Gram matrix; raw rows are clipped
        to it too where their mean is released), ``"unit"`` (1), or `Bounds` of the columns. Rows beyond are clipped.
    raw_norm
        The norm that raw rows are clipped to where their sums are released: the mean, the columns' squares or, with
        ``normalise="degree"``, the degrees, which need it. By default ``row_norm``, or half the diagonal of the box.
    site_norm
        With ``neighbours="site"``: the most that the squares of a site's prepared rows may sum to. Else: what
        FedPower's releases after several local steps are clipped to.
    entry_change
        With ``neighbours="entry"`` or ``"ppm-12"``: the change of an entry of the Gram matrix that is hidden.
    rows_per_person
        How many rows one person may have, over all sites.
    n_public
        The number of rows of each site is public; neighbours are then ``row-replace``.
    neighbours
        ``"row"`` (added or removed), ``"row-replace"``, ``"entry"``, ``"ppm-12"`` or ``"site"``.
    trust
        ``"local"``: nobody; each site adds the whole noise. ``"distributed"``: that single replies are hidden by
        masks; each site adds its share. ``"central"``: the coordinator, who adds the noise.
    calibration
        ``"tight"`` (exact Gaussian composition) or ``"published"`` (a paper's ``formula``, or the solver's own).
    shares
        Of mu^2, for the mean, the number of rows, the total variance, the columns' scales and their degrees (in place
        of mean and scale); 0 withholds the figure.
    formula
        With ``calibration="published"``: ``"ppm"``, ``"hardt-price"``, ``"fedpower"``, ``"analyze-gauss"``,
        ``"mod-sulq"`` or ``"streaming-mod-sulq"``.
    split
        FedPower's (eps_1, eps_2) of each communication, at the site and at the coordinator (Section 5.3).
    honest
        With ``trust="distributed"``: how many sites' noise is counted on (default: all).
    arithmetic
        ``"grid"`` (fixed point, exact discrete noise) or ``"float"``.
    adaptive_clip
        Clip rows further than ``row_norm``: to their root mean square norm, as the noised total variance tells, or to
        two thirds of the bound if that is more, where noise would be felt (`fedspan.privacy.terms.tighter_norm`).
    testing_seed
        Draws the noise from a seed. It then protects nothing, and every report says so.

    Examples
    --------
    >>> GaussianPrivacy(1.0, 1e-6, row_norm=1.0).mu
    0.236...
    """

    epsilon: float
    delta: float
    row_norm: float | str | Bounds | None = None
    _: KW_ONLY
    raw_norm: float | None = None
    site_norm: float | None = None
    entry_change: float = 1.0
    rows_per_person: int = 1
    n_public: bool = False
    neighbours: str = "row"
    trust: str = "local"
    calibration: str = "tight"
    shares: Mapping[str, float] = field(default_factory=lambda: dict(SHARES))
    formula: str | None = None
    split: tuple[float, float] | None = None
    honest: int | None = None
    arithmetic: str = "grid"
    adaptive_clip: bool = True
    testing_seed: int | None = None

    def __post_init__(self) -> None:
        check_epsilon_delta(self.epsilon, self.delta)
        _one_of("neighbours", self.neighbours, RELATIONS)
        _one_of("trust", self.trust, TRUSTS)
        _one_of("calibration", self.calibration, ("tight", "published"))
        _one_of("arithmetic", self.arithmetic, ("grid", "float"))
        if self.formula is not None:
            _one_of("formula", self.formula, FORMULAS)
        self._check_flags()
        self._check_bounds()
        self._check_counts()
        self._check_shares()
        if (self.formula or self.split) and self.calibration != "published":
            raise ConfigurationError(
                'formula and split are papers\' own; set calibration="published", or leave them out'
            )
        if self.split is not None:
            object.__setattr__(self, "split", _split(self.split))

    def _check_flags(self) -> None:
        """Refuse a text where a flag belongs: "false" is true to Python, and would weaken the guarantee unseen."""
        for name in ("n_public", "adaptive_clip"):
            value = getattr(self, name)
            if not isinstance(value, bool | np.bool_):
                raise ConfigurationError(f"{name} is True or False, got {value!r}; give one of the two, without quotes")
            object.__setattr__(self, name, bool(value))

    def _check_bounds(self) -> None:
        norm = self.row_norm
        if isinstance(norm, str) and norm != "unit":
            raise ConfigurationError(f'row_norm is a number, "unit" or Bounds(low, high); got {norm!r}')
        if not isinstance(norm, str | Bounds | None):
            _positive("row_norm", norm)
        if self.relation in ("row", "row-replace") and norm is None:
            raise ConfigurationError(
                "row_norm is missing: the guarantee for rows rests on a bound on their norm, which is never taken from "
                'the data; give a number, "unit" for rows of norm 1, or Bounds(low, high) of the columns'
            )
        if self.relation == "site" and self.site_norm is None:
            raise ConfigurationError(
                "site_norm is missing: the guarantee for whole sites rests on a bound on the sum of squares of a "
                "site's rows, which is never taken from the data"
            )
        for name in ("site_norm", "raw_norm"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))
        _positive("entry_change", self.entry_change)

    def _check_counts(self) -> None:
        for name in ("rows_per_person", "honest", "testing_seed"):
            value = getattr(self, name)
            if value is None and name != "rows_per_person":
                continue
            least, words = (1, "at least 1") if name != "testing_seed" else (-math.inf, "or None for noise that hides")
            if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
                raise ConfigurationError(f"{name} is a whole number, {words}; got {value!r}")
            object.__setattr__(self, name, int(value))  # numpy's own is no plain data

    def _check_shares(self) -> None:
        if not isinstance(self.shares, Mapping):
            raise ConfigurationError(
                f'shares is a dict of parts of the budget by name, as {{"mean": 0.1}}; got {self.shares!r}'
            )
        for name, share in self.shares.items():
            if name not in SHARES:
                raise ConfigurationError(f"there is no share {name!r}; {nearest(str(name), SHARES)}")
            if not _is_number(share) or not 0 <= share < 1:
                raise ConfigurationError(f"the share of {name} is a number in [0, 1), got {share!r}")
        shares = {**SHARES, **{name: float(share) for name, share in self.shares.items()}}
        either = max(shares["mean"] + shares["scale"], shares["degree"])  # counts are neither centred nor scaled
        together = math.fsum([shares["count"], shares["variance"], either])
        if together > MOST_SHARED + 1e-12:  # 0.99 itself may round to either side
            raise ConfigurationError(
                f"the shares {shares} sum to {together:.4g} and leave next to nothing of the budget for the solver; "
                f"let them sum to at most {MOST_SHARED}"
            )
        object.__setattr__(self, "shares", shares)

    @property
    def relation(self) -> str:
        """The neighbour relation; where the number of rows is public, rows can only be replaced."""
        return "row-replace" if self.neighbours == "row" and self.n_public else self.neighbours

    @property
    def rows_known(self) -> bool:
        """Whether a site may say how many rows it has."""
        return self.n_public or self.relation in ("row-replace", "entry", "ppm-12")

    @property
    def total_share(self) -> float:
        """The share of one release of the total variance: it is asked again where the clip is tightened in between."""
        return self.shares["variance"] / (2 if self.may_tighten else 1)

    @property
    def may_tighten(self) -> bool:
        """Whether the clip may be tightened after set-up."""
        return self.adaptive_clip and self.relation in ("row", "row-replace") and self.calibration == "tight"

    @cached_property
    def mu(self) -> float:
        """The budget in Gaussian differential privacy."""
        return mu_of(self.epsilon, self.delta)

    def heard(self, sites: int) -> float:
        """Return how many times the variance that is counted on is in a sum of so many sites' replies."""
        if self.trust == "local":
            return float(sites)
        return sites / (self.honest or sites) if self.trust == "distributed" else 1.0

    def least_degree(self, sites: int | None = None) -> float:
        """Return the least that a column's noised degree is taken for: some deviations of its noise, or 1.

        The noise is that in a sum over so many sites; by default that of one mechanism, which no sum has less of.

        It is made of the terms alone, so to raise degrees to it is post-processing. Rare columns, whose noised degrees
        may be anything near zero or below, are then not blown up by its inverse root.
        """
        if self.shares["degree"] == 0:
            raise PolicyError("no share of the budget was set aside for the degree; it stays at the site")
        heard = 1.0 if sites is None else self.heard(sites)
        bounds = self.row_bounds(1, centred=False, scaled=True, by_degree=True)
        sigma = self.neighbours_of(bounds).degrees() / (self.mu * math.sqrt(self.shares["degree"]))
        return max(1.0, DEGREE_DEVIATIONS * sigma * math.sqrt(heard))

    def bounds_under(self, preparation: Mapping[str, Any], width: int, *, tightened: bool = True) -> RowBounds:
        """Return what sites clip to under a preparation; ``tightened``: with the norm that it may have of its own."""
        return self.row_bounds(
            width,
            centred=preparation.get("mean") is not None,
            scaled=preparation.get("scale") is not None,
            by_degree=bool(preparation.get("degree")),
            tighter=preparation.get("norm") if tightened else None,
        )

    def row_bounds(
        self, width: int, *, centred: bool, scaled: bool, by_degree: bool = False, tighter: float | None = None
    ) -> RowBounds:
        """Return what sites clip to, for rows of this many columns; ``tighter`` than the terms if so agreed."""
        if self.relation not in ("row", "row-replace"):
            return RowBounds(site_total=self.site_norm if self.relation == "site" else None)
        bounds = self._bounds_of_counts() if by_degree else self._bounds_of_rows(width, centred, scaled)
        if tighter is None:
            return bounds
        if not _is_number(tighter) or not 0 < tighter < math.inf:
            raise PolicyError(f"rows are clipped to a positive norm, got {tighter!r}")
        return replace(bounds, norm=min(bounds.norm, float(tighter)))  # type: ignore[type-var]

    def _bounds_of_rows(self, width: int, centred: bool, scaled: bool) -> RowBounds:
        if isinstance(self.row_norm, Bounds):
            box = self.row_norm
            around = box.half_width(width)
            norm = math.sqrt(width) if scaled else around if centred else box.reach(width)
            return RowBounds(norm, min(around, self.raw_norm or math.inf), box.low, box.high)
        return RowBounds(self._norm, None if scaled else self.raw_norm or self._norm)

    def _bounds_of_counts(self) -> RowBounds:
        """Rows over the roots of both degrees are clipped to C, raw ones to R; none has an entry below zero."""
        if isinstance(self.row_norm, Bounds):
            raise PolicyError("rows over the roots of their degrees have no ranges; give row_norm as one number")
        return RowBounds(self._norm, self.raw_norm, np.zeros(1), np.full(1, LARGEST_ENTRY), about_zero=True)

    @property
    def _norm(self) -> float:
        return 1.0 if self.row_norm == "unit" else float(self.row_norm)  # type: ignore[arg-type]

    def neighbours_of(self, bounds: RowBounds) -> Neighbours:
        """Return the neighbour relation with the bound that sites clip to."""
        bound = {"entry": self.entry_change, "ppm-12": self.entry_change, "site": self.site_norm}.get(
            self.relation, bounds.norm
        )
        return Neighbours(
            self.relation,
            float(bound),  # type: ignore[arg-type]
            raw=bounds.raw_norm,
            rows_per_person=self.rows_per_person,
            whole=self.site_norm,
        )

    def as_plain(self) -> dict[str, Any]:
        """Return the settings as plain data: for a fingerprint, a model file, a report."""
        plain = {name: value for name, value in asdict(self).items() if name != "row_norm"}
        norm: Any = self.row_norm
        if isinstance(norm, Bounds):
            norm = {"low": norm.low.tolist(), "high": norm.high.tolist()}
        return {**plain, "row_norm": norm, "split": None if self.split is None else list(self.split)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> GaussianPrivacy:
        """Return what `as_plain` gave."""
        given = dict(plain)
        norm, split = given.get("row_norm"), given.get("split")
        given["row_norm"] = Bounds(**norm) if isinstance(norm, Mapping) else norm
        given["split"] = None if split is None else tuple(split)
        return cls(**given)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _one_of(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigurationError(f"{name} is {value!r}; {nearest(str(value), choices)}")


def _positive(name: str, value: Any) -> None:
    if not _is_number(value) or not 0 < value < math.inf:
        raise ConfigurationError(f"{name} is a positive finite number, got {value!r}")


def _split(split: Any) -> tuple[float, float]:
    good = isinstance(split, list | tuple) and len(split) == 2
    if not good or not all(_is_number(e) and e > 0 for e in split):
        raise ConfigurationError(f"split is (eps_1, eps_2), two positive numbers (inf: no noise there); got {split!r}")
    return float(split[0]), float(split[1])
