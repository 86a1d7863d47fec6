"""Pre-processing as named federated steps: both halves.

Rounds: ``data.describe`` (who holds which columns), ``data.moments`` (weights, sums: the federated mean),
``data.spread`` (the federated variance, where columns are scaled) and ``data.prepare`` (every site installs
the same preparation and replies its share of the total variance). A site that cannot take part says why, by
name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedspan.data.align import align_columns
from fedspan.data.aligned import Aligned
from fedspan.data.columns import any_in_columns, column_sums, count_gaps, gap_weights, lowest_entry
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
    """Rows of each site."""
    features: int
    columns: list[str] | None
    weight: float
    """The sum of all row weights: the number of rows where there are no weights."""
    column_mean: Array
    """The federated mean of each column, whether or not it was subtracted (by degree: of the rows over the root of
    theirs)."""
    mean: Array | None
    """What was subtracted."""
    scale: Array | None
    """What columns were divided by."""
    total: float
    """The trace of the Gram matrix of the prepared rows."""
    precision: float
    """The rounding unit of the coarsest site's numbers."""
    symmetric: bool
    missing: dict[str, float]
    """The share of missing entries at each site, where gaps are filled."""
    preparation: dict[str, Plain]
    """What every site installed."""

    @property
    def n_rows(self) -> int:
        """Rows in all."""
        return sum(self.rows.values())


@site_step("data.describe", lost="restart", setup=True)
def describe(site: Site, message: dict[str, Plain]) -> Reply:
    """Say the shape, columns and precision of this site's data; refuse what cannot be used."""
    source: Source = site.source
    rows, features = source.shape
    if features == 0:
        raise DataError(f"site {site.id!r} has no columns; leave the site out or drop fewer columns")
    if rows < message["min_rows"]:
        few = "no rows" if rows == 0 else f"{rows} rows, fewer than min_rows = {message['min_rows']}"
        raise DataError(f"site {site.id!r} has {few}; leave the site out or lower min_rows")
    names = None if source.columns is None else list(source.columns)
    if names is not None and len(set(names)) < len(names):
        twice = sorted({n for n in names if names.count(n) > 1})
        raise DataError(f"site {site.id!r} has duplicate columns {twice}; rename or drop them")
    missing = 0.0
    if message["missing"] == "mean":
        with _at(site):
            missing = sum(count_gaps(block) for block in source.blocks()) / max(rows * features, 1)
        if missing > message["max_missing_fraction"]:
            raise DataError(
                f"site {site.id!r} misses {missing:.1%} of its entries, more than max_missing_fraction = "
                f"{message['max_missing_fraction']}; raise it, drop sparse columns or leave the site out"
            )
    value = {
        "rows": rows, "features": features, "columns": names, "dtype": source.dtype.name,
        "symmetric": source.symmetric, "missing": missing,
    }  # fmt: skip
    return Reply(value)


@site_step("data.moments", lost="restart", setup=True)
def moments(site: Site, message: dict[str, Plain]) -> Reply:
    """Sum weights and columns over present entries; missing or infinite ones are refused unless filled."""
    with_gaps = message["missing"] == "mean"
    weight, lowest = 0.0, 0.0
    with _at(site), np.errstate(invalid="ignore", over="ignore"):  # reported below, with the column's name
        aligned = Aligned(site.source, message["columns"], None, message["weight_column"])
        width = aligned.width
        sums, present, normal = np.zeros(width), np.zeros(width), np.zeros(width)
        for block, weights in aligned.rows():
            mass = float(block.shape[0]) if weights is None else float(weights.sum())
            weight += mass
            present += mass - gap_weights(block, weights, with_gaps)
            sums += column_sums(block, weights, with_gaps)
            if message["degree"]:
                lowest = min(lowest, lowest_entry(block))
                root = np.sqrt(inverse_degrees(block)) if lowest >= 0 else np.zeros(block.shape[0])
                normal += column_sums(block, root if weights is None else root * weights, with_gaps)
    if not np.all(np.isfinite(sums)):
        raise DataError(f"site {site.id!r} has {_unusable(aligned, ~np.isfinite(sums), message['columns'], with_gaps)}")
    if lowest < 0:
        raise DataError(f'site {site.id!r} has negative entries, which normalise = "degree" cannot take the root of')
    parts = {"weight": np.array(weight), "sums": sums, "present": present}
    if message["degree"]:
        parts["normal"] = normal  # of the rows over the roots of their degrees
    return Reply(site.noised(**parts))


@site_step("data.spread", lost="restart", setup=True)
def spread(site: Site, message: dict[str, Plain]) -> Reply:
    """Sum the squares about the federated mean, column by column."""
    with _at(site):
        return Reply(site.noised(squares=Prepared(site.source, message).column_squares()))


@site_step("data.prepare", lost="restart", setup=True)
def prepare(site: Site, message: dict[str, Plain]) -> Reply:
    """Install the preparation; reply this site's share of the total variance."""
    with _at(site):
        install(site, message)
        with np.errstate(over="ignore", invalid="ignore"):
            total = site.data.total()
    if not np.isfinite(total):
        raise DataError(f"site {site.id!r} has values so large that their squares overflow; rescale its columns")
    return Reply(site.noised(total=np.array(total)), state={"preparation": message})


def install(site: Site, preparation: dict[str, Plain]) -> None:
    """See the site's data through a preparation from now on."""
    site.data = Prepared(site.source, preparation, rounds=lambda: site.round)


def set_up(preparation: Preparation) -> Solve[Facts]:
    """The coordinator's half: align, average, scale, and have every site install the result."""
    p = preparation
    asked = {"min_rows": p.min_rows, "missing": p.missing, "max_missing_fraction": p.max_missing_fraction}
    described = yield Round(describe, asked, Gather())
    symmetric = _kind(described, p)
    columns = align_columns({s: (d["columns"], d["features"]) for s, d in described.items()}, p.columns)
    if columns is not None and p.weight_column is not None:
        columns = [c for c in columns if c != p.weight_column]
    by_degree = p.normalise == "degree"
    shared = {
        "columns": columns, "missing": p.missing, "weight_column": p.weight_column, "degree": by_degree,
    }  # fmt: skip
    sums = yield Round(moments, shared, Sum())
    mean = np.divide(sums["sums"], sums["present"], out=np.zeros_like(sums["sums"]), where=sums["present"] > 0)
    agreed: dict[str, Plain] = {"columns": columns, "weight_column": p.weight_column}
    if p.missing == "mean":
        agreed["fill"] = mean
    if p.center:
        agreed["mean"] = mean
    weight = float(sums["weight"])
    if weight <= 0:
        raise DataError("the weights of all rows sum to zero; give some row a positive weight")
    if p.missing == "mean":
        _check_present(sums["present"], weight, columns)
    if p.scale:
        squares = yield Round(spread, {**agreed, "mean": mean}, Sum())  # about the mean, centred or not
        agreed["scale"] = _spreads(squares / max(weight - 1, 1), mean, weight)
    if by_degree:
        agreed["degree"], agreed["scale"] = True, _unless_zero(np.sqrt(sums["sums"]))
    total = yield Round(prepare, agreed, Sum())
    return Facts(
        rows={s: d["rows"] for s, d in described.items()},
        features=len(mean),
        columns=columns,
        weight=weight,
        column_mean=sums["normal"] / weight if by_degree else mean,
        mean=agreed.get("mean"),
        scale=agreed.get("scale"),
        total=float(total),
        precision=max(float(np.finfo(d["dtype"]).eps) for d in described.values()),
        symmetric=symmetric,
        missing={s: d["missing"] for s, d in described.items()} if p.missing == "mean" else {},
        preparation=agreed,
    )


def _check_present(present: Array, weight: float, columns: list[str] | None) -> None:
    """Refuse columns that no site has a value in: they have no mean to fill them with."""
    empty = present <= 1e-12 * weight  # with weights, what is left of their sum less the gaps' is rounding
    if empty.any():
        raise DataError(
            f"every site misses all values in column {_listed(empty, columns)}, so there is no mean to fill them with; "
            "leave these columns out with drop"
        )


def _unusable(aligned: Aligned, bad: Array, columns: list[str] | None, with_gaps: bool) -> str:
    """Return what is wrong with columns whose sums are not finite, and the way out: one more look at the rows."""
    infinite, missing = np.zeros(len(bad), dtype=bool), np.zeros(len(bad), dtype=bool)
    for block, _ in aligned.rows():
        infinite |= any_in_columns(block, "isinf")
        missing |= any_in_columns(block, "isnan")
    missing &= not with_gaps
    large = bad & ~infinite & ~missing
    found = []
    if infinite.any():
        found.append(f"infinite values in column {_listed(infinite, columns)}; remove or replace them")
    if missing.any():
        cure = 'set missing = "mean", or drop these columns or rows'
        found.append(f"NaN (missing values) in column {_listed(missing, columns)}; {cure}")
    if large.any():
        found.append(f"values so large that their sum overflows in column {_listed(large, columns)}; rescale them")
    return ". It has ".join(found)


def _listed(which: Array, columns: list[str] | None) -> str:
    """Return the first few of some columns, by name or number."""
    at = np.flatnonzero(which)
    some = ", ".join(repr(str(i) if columns is None else columns[i]) for i in at[:5])
    return some + (f" and {len(at) - 5} more" if len(at) > 5 else "")


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


def _unless_zero(scale: Array) -> Array:
    """A constant column is left as it is (scikit-learn's rule), not divided by zero."""
    return np.where(scale > 0, scale, 1.0)


def _one_of(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        raise ConfigurationError(f"{name} is one of {', '.join(map(repr, choices))}; got {value!r}")
