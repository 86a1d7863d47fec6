"""Pre-processing as named federated steps: both halves.

Rounds: ``data.describe`` (who holds which columns), ``data.moments`` (weights, sums: the federated mean),
``data.spread`` (the federated variance, where columns are scaled) and ``data.prepare`` (every site installs
the same preparation and replies its share of the total variance). A site that cannot take part says why, by
name.

Under a privacy policy a site keeps its number of rows (unless public by statement) and of gaps to itself, clips raw
rows before it sums them, and is asked for no figure that no share of the budget was set aside for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedspan.data.align import align_columns
from fedspan.data.aligned import Aligned
from fedspan.data.clip import RowBounds, bounded_sums, bounded_weights
from fedspan.data.columns import column_sums, count_gaps, gap_weights, lowest_entry
from fedspan.data.complaints import NEGATIVE, check_present, unusable
from fedspan.data.prepared import Prepared, inverse_degrees
from fedspan.data.source import Source
from fedspan.encoding import Array, Plain
from fedspan.errors import ConfigurationError, DataError, FileError
from fedspan.rounds import Gather, Reply, Round, Site, Solve, Sum, site_step


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """How the sites' rows become one matrix.

    ``columns``: ``"strict"`` (all sites have the same), ``"intersect"`` or ``"union-zero"``. ``missing``:
    ``"error"`` or ``"mean"`` (the federated mean of the column). ``normalise="degree"`` divides user-item
    entries by the root of both degrees. ``weight_column`` names a column of row weights.
    """

    columns: str = "strict"
    missing: str = "error"
    max_missing_fraction: float = 1.0
    min_rows: int = 1
    center: bool = True
    scale: bool = False
    normalise: str | None = None
    weight_column: str | None = None

    def __post_init__(self) -> None:
        _one_of("columns", self.columns, ("strict", "intersect", "union-zero"))
        _one_of("missing", self.missing, ("error", "mean"))
        _one_of("normalise", self.normalise, (None, "degree"))
        if not 0 <= self.max_missing_fraction <= 1:
            raise ConfigurationError(f"max_missing_fraction lies in [0, 1], got {self.max_missing_fraction}")
        if self.min_rows < 1:
            raise ConfigurationError(f"min_rows is at least 1, got {self.min_rows}")
        if self.normalise and (self.center or self.scale or self.missing != "error"):
            raise ConfigurationError(
                'normalise = "degree" is for user-item counts: set center = false, scale = false and missing = "error"'
            )


@dataclass(frozen=True)
class Facts:
    """What the coordinator knows after the set-up rounds."""

    rows: dict[str, int]
    """Rows of each site; empty where sites keep them to themselves."""
    features: int
    columns: list[str] | None
    weight: float
    """The sum of all row weights: the number of rows where there are no weights."""
    column_mean: Array | None
    """The federated mean of each column, whether or not it was subtracted (by degree: of the rows over the root of
    theirs). None: not released; of a private study by degree it never is."""
    mean: Array | None
    """What was subtracted."""
    scale: Array | None
    """What columns were divided by."""
    total: float
    """The trace of the Gram matrix of the prepared rows; NaN: not released."""
    precision: float
    """The rounding unit of the coarsest site's numbers."""
    symmetric: bool
    missing: dict[str, float]
    """The share of missing entries at each site, where gaps are filled."""
    preparation: dict[str, Plain]
    """What every site installed."""
    sites: int

    @property
    def n_rows(self) -> int:
        """Rows in all; where sites keep theirs to themselves, as the noised count says."""
        return sum(self.rows.values()) if self.rows else max(round(self.weight), 1)


@dataclass(frozen=True)
class SetUp:
    """What a private study asks in its set-up rounds; without privacy, everything."""

    count: bool = True
    """Whether the number of rows is asked for; where it is public, `describe` said it."""
    total: bool = True
    bounds: Callable[[int], RowBounds] = lambda width: RowBounds()
    """What sites clip raw rows to, for so many columns: their mean lies within."""
    least_degree: Callable[[int], float] = lambda sites: 0.0
    """The least that a column's noised degree, summed over so many sites, is taken for."""
    agree: Callable[[int, float, dict[str, int | None]], dict[str, Plain]] | None = None
    """From the features, all rows and those of each site (None: its own), the terms that sites are told."""

    tighten: Callable[[float, float, dict[str, Plain], int], float | None] = lambda *figures: None
    """From the noised total, the rows, the preparation and the sites, a norm to clip rows to from here on."""

    check: Callable[[int], None] = lambda width: None
    """Refuses a study of so many features."""

    @property
    def private(self) -> bool:
        """Whether sites have a policy."""
        return self.agree is not None


@site_step("data.describe", lost="restart", setup=True, public=True)
def describe(site: Site, message: dict[str, Plain]) -> Reply:
    """Say the shape, columns and precision of this site's data; refuse what cannot be used."""
    source: Source = site.source
    rows, features = source.shape
    if features == 0:
        raise DataError(f"site {site.id!r} has no columns; leave the site out or drop fewer columns")
    if rows < message["min_rows"] and (site.policy is None or not site.withholds("rows")):
        said = f"{rows} rows, " if not site.withholds("rows") else ""
        few = "no rows" if rows == 0 else f"{said}fewer than min_rows = {message['min_rows']}"
        raise DataError(f"site {site.id!r} has {few}; leave the site out or lower min_rows")
    names = None if source.columns is None else list(source.columns)
    if names is not None and len(set(names)) < len(names):
        twice = sorted({n for n in names if names.count(n) > 1})
        raise DataError(f"site {site.id!r} has duplicate columns {twice}; rename or drop them")
    missing = 0.0
    if message["missing"] == "mean" and (site.policy is None or not site.withholds("missing")):
        with _at(site):
            missing = sum(count_gaps(block) for block in source.blocks()) / max(rows * features, 1)
        if missing > message["max_missing_fraction"]:
            said = f"{missing:.1%} of its entries, " if not site.withholds("missing") else ""
            raise DataError(
                f"site {site.id!r} misses {said}more than max_missing_fraction = "
                f"{message['max_missing_fraction']}; raise it, drop sparse columns or leave the site out"
            )
    value = {
        "rows": None if site.withholds("rows") else rows, "features": features, "columns": names,
        "dtype": source.dtype.name,
        "symmetric": source.symmetric, "missing": 0.0 if site.withholds("missing") else missing,
    }  # fmt: skip
    return Reply(value)


def moments_sensitivity(message: Any, neighbours: Any, shapes: dict[str, tuple[int, ...]]) -> dict[str, float]:
    """The sums of clipped rows (by degree: of counts), the values present in each column, and the rows."""
    bounds: dict[str, float] = {}
    if message["count"]:
        bounds["weight"] = neighbours.count()
    if message["sums"] and message["degree"]:
        bounds["degrees"] = neighbours.degrees()
    elif message["sums"]:
        bounds["sums"] = neighbours.row_sum()
    if message["sums"] and message["missing"] == "mean":
        bounds["present"] = neighbours.present(*shapes["present"])
    return bounds


@site_step("data.moments", lost="restart", setup=True, sensitivity=moments_sensitivity)
def moments(site: Site, message: dict[str, Plain]) -> Reply:
    """Sum weights and columns over present entries; missing or infinite ones are refused unless filled."""
    with_gaps = message["missing"] == "mean"
    weight, lowest = 0.0, 0.0
    with _at(site), np.errstate(invalid="ignore", over="ignore"):  # reported below, with the column's name
        lenient = site.policy is not None  # where an error would be a release
        aligned = Aligned(site.source, message["columns"], None, message["weight_column"], check_weights=not lenient)
        width = aligned.width
        bounds = row_bounds(site, width, {"degree": message["degree"]})
        sums, present, normal = np.zeros(width), np.zeros(width), np.zeros(width)
        for block, weights in aligned.rows():
            weights = weights if bounds is None or weights is None else bounded_weights(weights)
            mass = float(block.shape[0]) if weights is None else float(weights.sum())
            weight += mass
            held = mass - gap_weights(block, weights, with_gaps)
            present += held
            sums += (
                column_sums(block, weights, with_gaps)
                if bounds is None
                else bounded_sums(block, weights, with_gaps, bounds)
            )
            if message["degree"] and bounds is None:  # under a policy counts are clamped, and roots stay with the rows
                lowest = min(lowest, lowest_entry(block))
                root = np.sqrt(inverse_degrees(block)) if lowest >= 0 else np.zeros(block.shape[0])
                normal += column_sums(block, root if weights is None else root * weights, with_gaps)
    if not np.all(np.isfinite(sums)):
        raise DataError(f"site {site.id!r} has {unusable(aligned, ~np.isfinite(sums), message['columns'], with_gaps)}")
    if lowest < 0:
        raise DataError(f"site {site.id!r} has {NEGATIVE}")
    parts = {"weight": np.array(weight), "degrees" if message["degree"] else "sums": sums, "present": present}
    if message["degree"]:
        parts["normal"] = normal  # of the rows over the roots of their degrees
    asked = moments_sensitivity(message, _Nothing(), {"present": (width,)}) if site.policy is not None else parts
    parts = {name: part for name, part in parts.items() if name in asked or not site.withholds(name)}
    return Reply(_as_dict(site.noised(**parts), parts))


def spread_sensitivity(message: Any, neighbours: Any, shapes: dict[str, tuple[int, ...]]) -> dict[str, float]:
    """The columns' squares about the mean."""
    return {"squares": neighbours.squares()}


@site_step("data.spread", lost="restart", setup=True, sensitivity=spread_sensitivity)
def spread(site: Site, message: dict[str, Plain]) -> Reply:
    """Sum the squares about the federated mean, column by column."""
    bounds = row_bounds(site, message.get("features", site.source.shape[1]), message)
    if bounds is not None:
        bounds = replace(bounds, norm=bounds.raw_norm, site_total=None)
    unscaled = {key: value for key, value in message.items() if key != "scale"}  # rows are clipped as they are summed
    with _at(site):
        return Reply(site.noised(squares=Prepared(site.source, unscaled, bounds=bounds).column_squares()))


def total_sensitivity(message: Any, neighbours: Any, shapes: dict[str, tuple[int, ...]]) -> dict[str, float]:
    """The trace of the Gram matrix."""
    return {"total": neighbours.total(message["features"]) if message["total"] else 0.0}


@site_step("data.prepare", lost="restart", setup=True, sensitivity=total_sensitivity)
def prepare(site: Site, message: dict[str, Plain]) -> Reply:
    """Install the preparation; reply this site's share of the total variance."""
    with _at(site):
        install(site, message)
        with np.errstate(over="ignore", invalid="ignore"):
            total = site.data.total() if message.get("total", True) else 0.0
    if not np.isfinite(total):
        raise DataError(f"site {site.id!r} has values so large that their squares overflow; rescale its columns")
    return Reply(site.noised(total=np.array(total)), state={"preparation": message})


def row_bounds(site: Site, width: int, preparation: dict[str, Plain], *, install: bool = False) -> RowBounds | None:
    """Return what a site's policy clips rows to."""
    return None if site.policy is None else site.policy.row_bounds(width, preparation, install=install)


def install(site: Site, preparation: dict[str, Plain]) -> None:
    """See the site's data through a preparation from now on; under a policy clipped, and bounded by that clip only."""
    if site.policy is not None:
        site.policy.check_preparation(site, preparation)
    width = preparation.get("features", site.source.shape[1])
    bounds = row_bounds(site, width, preparation)
    site.data = Prepared(site.source, preparation, rounds=lambda: site.round, bounds=bounds)
    site.prepared = preparation
    row_bounds(site, width, preparation, install=True)  # now that it is so
    if site.policy is not None:
        site.policy.note(site.data.clipping.words)


def set_up(preparation: Preparation, asked_for: SetUp | None = None) -> Solve[Facts]:
    """The coordinator's half: align, average, scale, and have every site install the result."""
    p, private = preparation, SetUp() if asked_for is None else asked_for
    asked = {"min_rows": p.min_rows, "missing": p.missing, "max_missing_fraction": p.max_missing_fraction}
    described = yield Round(describe, asked, Gather())
    symmetric = _kind(described, p)
    columns = align_columns({s: (d["columns"], d["features"]) for s, d in described.items()}, p.columns)
    if columns is not None and p.weight_column is not None:
        columns = [c for c in columns if c != p.weight_column]
    by_degree = p.normalise == "degree"
    width = len(columns) if columns is not None else next(iter(described.values()))["features"]
    private.check(width)  # before anything is released
    rows = {s: d["rows"] for s, d in described.items() if d["rows"] is not None}
    shared = {
        "columns": columns, "missing": p.missing, "weight_column": p.weight_column, "degree": by_degree,
        "count": private.count,
        "sums": not private.private or p.center or p.scale or by_degree or p.missing == "mean",
    }  # fmt: skip
    sums: dict[str, Any] = {}
    if shared["count"] or shared["sums"]:
        sums = yield Round(moments, shared, Sum())
    weight = float(sums["weight"]) if shared["count"] else float(sum(rows.values()))
    if private.private:
        weight = max(weight, 1.0)  # noise may have carried the count below
    if weight <= 0:
        raise DataError("the weights of all rows sum to zero; give some row a positive weight")
    mean = _mean(sums, weight, width, private) if shared["sums"] and not by_degree else None
    agreed: dict[str, Plain] = {"columns": columns, "weight_column": p.weight_column, "features": width}
    agreed["total"] = private.total
    if p.missing == "mean":
        agreed["fill"] = mean
    if p.center:
        agreed["mean"] = mean
    if p.missing == "mean" and not private.private:
        check_present(sums["present"], weight, columns)
    if p.scale:
        squares = yield Round(spread, {**agreed, "mean": mean}, Sum())  # about the mean, centred or not
        squares = np.maximum(squares, 0.0) if private.private else squares
        spreads = _spreads(squares / max(weight - 1, 1), np.zeros(width) if mean is None else mean, weight)
        agreed["scale"] = np.maximum(spreads, private.bounds(width).least_scale(width))
    if by_degree:
        agreed["degree"], agreed["scale"] = True, _roots(sums["degrees"], private.least_degree(len(described)))
    if private.agree is not None:
        agreed["privacy"] = private.agree(width, weight, {s: d["rows"] for s, d in described.items()})
    total = yield Round(prepare, agreed, Sum())
    norm = private.tighten(float(total), weight, agreed, len(described)) if private.total else None
    if norm is not None:
        agreed = {**agreed, "norm": norm}
        total = yield Round(prepare, agreed, Sum())  # of the rows as they are clipped now
    return Facts(
        rows=rows,
        features=width,
        columns=columns,
        weight=weight,
        column_mean=sums["normal"] / weight if "normal" in sums else mean,
        mean=agreed.get("mean"),
        scale=agreed.get("scale"),
        total=float(total) if private.total else float("nan"),
        precision=max(float(np.finfo(d["dtype"]).eps) for d in described.values()),
        symmetric=symmetric,
        missing={s: d["missing"] for s, d in described.items()} if p.missing == "mean" and not private.private else {},
        preparation=agreed,
        sites=len(described),
    )


def _mean(sums: dict[str, Any], weight: float, width: int, private: SetUp) -> Array:
    """Return the columns' mean over the values present; a noised one is brought back into the bounds it rests on."""
    present = sums.get("present", np.full(width, weight))
    if not private.private:
        plain: Array = np.divide(sums["sums"], present, out=np.zeros(width), where=present > 0)
        return plain
    bounds, offset = private.bounds(width), sums["sums"] / np.maximum(present, 1.0)
    radius, length = bounds.raw_norm or np.inf, float(np.linalg.norm(offset))
    mean: Array = bounds.middle(width) + offset * min(1.0, radius / max(length, 1e-300))
    return mean if bounds.low is None else np.clip(mean, bounds.low, bounds.high)


class _Nothing:
    """A relation under which nothing changes: asks a sensitivity for the names of its parts."""

    def __getattr__(self, name: str) -> Callable[..., float]:
        return lambda *args: 0.0


def _as_dict(released: Any, parts: dict[str, Array]) -> dict[str, Array]:
    """Return a release of one part by its name too: the coordinator looks parts up."""
    return released if isinstance(released, dict) else dict(zip(parts, [released], strict=True))


def _kind(described: dict[str, Any], p: Preparation) -> bool:
    kinds = {s: d["symmetric"] for s, d in described.items()}
    if len(set(kinds.values())) > 1:
        odd = sorted(s for s, k in kinds.items() if k)
        raise DataError(f"sites {odd} hold shares of a symmetric matrix, the others rows; a study has one kind")
    symmetric = any(kinds.values())
    if symmetric and (p.center or p.scale or p.normalise or p.weight_column or p.missing != "error"):
        raise ConfigurationError(
            "shares of a symmetric matrix have no rows to centre, scale, normalise, weigh or fill; use "
            'FederatedTruncatedSVD, or set center = false, scale = false and missing = "error"'
        )
    return symmetric


@contextmanager
def _at(site: Site) -> Iterator[None]:
    """Name the site in what its data raises."""
    try:
        yield
    except (DataError, FileError) as error:
        raise type(error)(f"site {site.id!r}: {error}") from error


def _spreads(variance: Array, mean: Array, weight: float) -> Array:
    """Return standard deviations; within rounding of zero the column is constant (scikit-learn's rule)."""
    rounding = np.finfo(float).eps
    constant = variance <= weight * rounding * variance + (weight * rounding * mean) ** 2
    return _unless_zero(np.where(constant, 0.0, np.sqrt(variance)))


def _roots(degrees: Array, least: float) -> Array:
    """Return the roots of the columns' degrees; noised ones are no less than a public figure, so each has a root."""
    return _unless_zero(np.sqrt(np.maximum(degrees, least)))


def _unless_zero(scale: Array) -> Array:
    """A constant column is left as it is (scikit-learn's rule), not divided by zero."""
    return np.where(scale > 0, scale, 1.0)


def _one_of(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        raise ConfigurationError(f"{name} is one of {', '.join(map(repr, choices))}; got {value!r}")
