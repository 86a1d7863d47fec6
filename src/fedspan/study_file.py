"""The study file: a TOML file that says which sites, how their data is prepared, and what is solved.

`load_study` reads one into a `StudyFile` and refuses what it does not understand: an unknown key with the
nearest known one, a wrong type with what was given and expected. Paths are relative to the file's folder.

The text ``"none"`` in ``[solve.settings]`` and for the ``value`` of triples stands for no value, which TOML cannot
write: ``align = "none"``.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

from fedspan.data import Preparation, Source, open_source
from fedspan.data.arrays import nearest_column
from fedspan.data.csv import CsvTable
from fedspan.data.open import PARQUETS, TEXTS
from fedspan.data.optional import parquet_module
from fedspan.engines import Gossip, VirtualTime, get_engine
from fedspan.engines.gossip_table import gossip_of
from fedspan.engines.speeds_table import virtual_time_of
from fedspan.errors import ConfigurationError, DataError, FedspanError, nearest
from fedspan.privacy import GaussianPrivacy
from fedspan.rounds import Cohort
from fedspan.run_folder import check_record
from fedspan.secure import SecureSums
from fedspan.solvers import SOLVERS, Solver, make
from fedspan.study import Study
from fedspan.study_schema import (
    COHORT,
    HOMES,
    KEYS,
    LAYOUT,
    PREPARATION,
    PRIVACY,
    RANGE,
    RANK,
    SECURE,
    SITE_KEYS,
    STREAM_KEYS,
    TRIPLES,
)
from fedspan.toml_tables import FLAG, NUMBER, TABLE, TEXT, WHOLE, Kind, Table, as_hinted, fitting, shown
from fedspan.toml_tables import TEXTS as NAMES


@dataclass(frozen=True, kw_only=True)
class SiteEntry:
    """One site of a study: its file, and where it differs from the others."""

    path: Path
    weight: float = 1.0
    delimiter: str | None = None
    decimal: str = "."
    header: bool | None = None
    """Whether a text file begins with a header; None looks."""
    triples: dict[str, Any] | None = None
    """The options of `read_triples`, where the file holds triples."""
    drop: tuple[str, ...] = ()
    missing: str | None = None
    """In a stream, what to do with gaps where it is not what [data] says."""
    test: Path | None = None
    """Of labelled rows, the file of those that nothing is learnt from."""


@dataclass(frozen=True, kw_only=True)
class StudyFile:
    """What a study file says, checked."""

    path: Path
    """The file itself."""
    name: str
    sites: dict[str, SiteEntry]
    drop: tuple[str, ...]
    preparation: Preparation
    estimator: str
    """``"pca"`` or ``"svd"``."""
    n_components: int | float | str
    solver: str | Solver
    cohort: Cohort
    engine: str
    seed: int
    folder: Path
    """Where runs are kept."""
    record: str
    """What is kept of a run: ``"rounds"``, or ``"transcript"`` for each site's releases too."""
    privacy: GaussianPrivacy | None = None
    speeds: VirtualTime | None = None
    """How fast the sites are, where the engine is in virtual time."""
    gossip: Gossip | None = None
    """Who talks with whom, where there is no coordinator."""
    secure: SecureSums | None = None
    """Whether the coordinator learns sums only, and on what terms."""

    @property
    def execution(self) -> str | VirtualTime | Gossip:
        """The engine that `fedspan.run.run` takes."""
        return self.speeds or self.gossip or self.engine

    def study(self) -> Study:
        """Return the study that `fedspan.run.run` takes."""
        return Study(
            n_components=self.n_components, solver=self.solver, preparation=self.preparation,
            cohort=self.cohort, seed=self.seed, privacy=self.privacy, secure=self.secure,
        )  # fmt: skip

    def open_sources(self) -> dict[str, Source]:
        """Open every site's file. What goes wrong names the site."""
        self._check_drop()
        return {name: self._open(name, site) for name, site in self.sites.items()}

    def changes(self, before: StudyFile) -> list[str]:
        """Return what differs from another reading of the study and may change a run's answer."""
        names = (f.name for f in fields(self) if f.name not in ("path", "name", "engine", "folder", "record"))
        return [name for name in names if getattr(self, name) != getattr(before, name)]

    def _open(self, name: str, site: SiteEntry) -> Source:
        with prefixed(f"site {name!r}: "):
            return open_source(
                site.path, drop=(*self.drop, *site.drop), strict_drop=False, site_weight=site.weight,
                delimiter=site.delimiter, decimal=site.decimal, header=site.header, triples=site.triples,
            )  # fmt: skip

    def _check_drop(self) -> None:
        """A shared name to drop may be absent at some sites, but not at all of them."""
        if not self.drop and not any(site.drop for site in self.sites.values()):
            return
        headers = {name: column_names(site) for name, site in self.sites.items()}
        for name, header in headers.items():
            if header is not None:
                _known_columns(self.sites[name].drop, header, f"site {name!r}: there is no column {{!r}} to drop")
        present = [header for header in headers.values() if header is not None]
        if len(present) == len(headers):
            everywhere = {column for header in present for column in header}
            _known_columns(self.drop, everywhere, "[data] drop: no site has a column {!r}")


def load_study(path: str | Path) -> StudyFile:
    """Read and check a study file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "study.toml")
    ...     _ = file.write_text('[sites]\\nberlin = "berlin.csv"\\n[solve]\\nn_components = 3\\n')
    ...     study = load_study(file)
    >>> study.name, study.n_components, sorted(study.sites)
    ('study', 3, ['berlin'])
    """
    return parse_study(content_of(Path(path)), Path(path))


def content_of(path: Path) -> bytes:
    """Return what a study file holds."""
    if not path.is_file():
        beside = [p.name for p in path.parent.glob("*.toml")] if path.parent.is_dir() else []
        hint = nearest(path.name, beside) if beside else "write one, or see one made by `fedspan demo`"
        raise ConfigurationError(f"there is no study file {path}; {hint}")
    try:
        return path.read_bytes()
    except OSError as cause:
        raise ConfigurationError(f"{path}: the study file cannot be read ({cause.strerror})") from cause


def parse_study(content: bytes, path: Path) -> StudyFile:
    """Check the content of a study file that stands, or stood, at ``path``."""
    with prefixed(f"{path}: "):
        return _study_of(raw_study(content), path)


def raw_study(content: bytes) -> dict[str, Any]:
    """Return the tables of a study file, not checked."""
    try:
        return tomllib.loads(content.decode("utf-8-sig"))  # editors on Windows write a mark in front
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as cause:
        raise ConfigurationError(f"this is not valid TOML: {cause}") from cause


def tables_of(raw: dict[str, Any]) -> tuple[Table, dict[str, Table]]:
    """Return the keys at the top of a study file, and each table by its name; an unknown key is refused."""
    top = Table(raw, "the top of the file", ("name", "sites", *KEYS), HOMES)
    return top, {name: Table(raw.get(name, {}), f"[{name}]", keys, HOMES) for name, keys in KEYS.items()}


def column_names(site: SiteEntry) -> list[str] | None:
    """Return the columns in the header of a site's file; None where it has none, or cannot be read.

    Of triples too: their columns are the items.
    """
    if site.triples is not None:
        return None
    kind = site.path.suffix.lower()
    try:
        if kind in PARQUETS:
            return list(parquet_module().pq.read_schema(site.path).names)
        if kind in TEXTS:
            delimiter = "\t" if kind == ".tsv" and site.delimiter is None else site.delimiter
            return CsvTable(site.path, delimiter=delimiter, decimal=site.decimal, header=site.header).names
    except (OSError, ValueError):  # opening the file reports it better
        return None
    return None


# ---- the schema ----------------------------------------------------------------------------------


def refuse_labelled(raw: dict[str, Any]) -> None:
    """Refuse a study of labelled rows before its keys are: they are known elsewhere."""
    solve = raw.get("solve")
    if isinstance(solve, dict) and solve.get("estimator") == "representation":
        raise ConfigurationError(
            '[solve] estimator = "representation" learns from labelled rows: fedspan fit and fedspan plan take such a '
            "study, and this does not"
        )


def _study_of(raw: dict[str, Any], path: Path) -> StudyFile:
    refuse_labelled(raw)
    top, tables = tables_of(raw)
    data, solve, run, base = tables["data"], tables["solve"], tables["run"], path.parent
    estimator = _estimator(solve)
    record = run.get("record", TEXT, "rounds")
    with prefixed("[run] "):
        check_record(record)
    sites = sites_of(raw, data, base)
    engine, speeds = engine_of(run, sites)
    return StudyFile(
        path=path,
        name=top.get("name", TEXT, path.stem),
        sites=sites,
        drop=tuple(data.get("drop", NAMES, ())),
        preparation=_preparation(data, estimator),
        estimator=estimator,
        n_components=rank_of(solve),
        solver=_solver(solve, private="privacy" in raw),
        cohort=cohort_of(tables["participation"], sites),
        engine=engine,
        seed=seed_of(run),
        folder=base / run.get("folder", TEXT, "runs"),
        record=record,
        privacy=privacy_of(tables["privacy"]) if "privacy" in raw else None,
        speeds=speeds,
        gossip=_gossip(run, engine, sites),
        secure=_secure(run, tables["secure"], given="secure" in raw),
    )


def _secure(run: Table, rules: Table, *, given: bool) -> SecureSums | None:
    """Return what [secure] says, or its defaults where [run] has secure = true."""
    wanted = run.get("secure", FLAG, given)
    if given and not wanted:
        raise ConfigurationError("[run] secure = false, and there is a table [secure]; leave out one of the two")
    settings = rules.given(SECURE)
    with prefixed("[secure] "):
        return SecureSums(**settings) if wanted else None


def engine_of(run: Table, sites: Mapping[str, SiteEntry]) -> tuple[str, VirtualTime | None]:
    """Return the engine that [run] names, and how fast the sites are where it is in virtual time."""
    engine: str = run.get("engine", TEXT, "in-process")
    with prefixed("[run] "):
        get_engine(engine)
    speeds = run.get("speeds", TABLE)
    if speeds is not None and engine != "virtual-time":
        raise ConfigurationError(
            f'[run.speeds] is for engine = "virtual-time"; it is {shown(engine)}: set that in [run]'
        )
    return engine, virtual_time_of(speeds or {}, sites) if engine == "virtual-time" else None


def _gossip(run: Table, engine: str, sites: Mapping[str, SiteEntry]) -> Gossip | None:
    """Return who talks with whom where [run] names the engine gossip."""
    table = run.get("gossip", TABLE)
    if table is not None and engine != "gossip":
        raise ConfigurationError(f'[run.gossip] is for engine = "gossip"; it is {shown(engine)}: set that in [run]')
    return gossip_of(table or {}, sites, seed_of(run)) if engine == "gossip" else None


def seed_of(run: Table) -> int:
    """Return the seed that [run] names."""
    seed: int = run.get("seed", WHOLE, 0)
    if seed < 0:
        raise ConfigurationError(f"[run] seed = {seed}: expected a whole number, 0 or more")
    return seed


def sites_of(
    raw: dict[str, Any], data: Table, base: Path, *, keys: tuple[str, ...] = SITE_KEYS
) -> dict[str, SiteEntry]:
    """Return the sites of [sites] by name, each table of these ``keys``; streams may be read from standard input."""
    if not raw.get("sites"):
        raise ConfigurationError('[sites] is missing: name each site and its file, as in berlin = "berlin.csv"')
    entries = Table(raw["sites"], "[sites]", raw["sites"])
    either = Kind("a path in quotes, or a table with a path", lambda v: isinstance(v, str | dict))
    shared = _layout(data, "[data]")
    return {name: _site(name, entries.get(name, either), shared, base, keys) for name in sorted(raw["sites"])}


def _site(
    name: str, given: str | dict[str, Any], shared: dict[str, Any], base: Path, keys: tuple[str, ...]
) -> SiteEntry:
    if not re.fullmatch(r"[^./\\\0][^/\\\0]*", name):  # each site keeps its memory in a folder of its name
        raise ConfigurationError(f"[sites] {name!r}: a site's name has no slash and no dot in front")
    table = Table({"path": given} if isinstance(given, str) else given, f"[sites.{name}]", keys)
    path = table.get("path", TEXT)
    if not path:
        raise ConfigurationError(f'[sites.{name}] has no path; write  path = "{name}.csv"')
    weight = float(table.get("weight", NUMBER, 1.0))
    if not 0 < weight < float("inf"):
        raise ConfigurationError(f"[sites.{name}] weight = {weight}: a site's weight is positive and finite")
    layout = {**shared, **_layout(table, f"[sites.{name}]")}
    if layout.get("triples") is not None and layout.get("header") is False:
        raise ConfigurationError(f"[sites.{name}] triples are found by the names of their columns: leave out header")
    test = table.get("test", TEXT)
    return SiteEntry(
        path=Path("-") if keys is STREAM_KEYS and path == "-" else base / path, weight=weight,
        drop=tuple(table.get("drop", NAMES, ())), missing=table.get("missing", TEXT), **layout,
        test=None if test is None else base / test,
    )  # fmt: skip


def _layout(table: Table, where: str) -> dict[str, Any]:
    """Return how files are written, as far as a table says it."""
    layout = table.given(LAYOUT)
    if "triples" in layout:
        layout["triples"] = _triples(layout["triples"], f"{where} triples")
    return layout


def _triples(given: bool | dict[str, Any], where: str) -> dict[str, Any] | None:
    if isinstance(given, bool):
        return {} if given else None
    options = Table(given, where, TRIPLES).given(TRIPLES)
    if options.get("value") == "none":
        options["value"] = None
    if options.get("unknown", "error") not in ("error", "drop"):
        raise ConfigurationError(f'{where} unknown is "error" or "drop", got {shown(options["unknown"])}')
    return options


def _estimator(solve: Table) -> str:
    estimator: str = solve.get("estimator", TEXT, "pca")
    if estimator == "streaming":
        raise ConfigurationError(
            '[solve] estimator = "streaming" reads its inputs as they grow, in no rounds: run this study with '
            "fedspan stream STUDY --once (without --once it goes on until it is stopped)"
        )
    if estimator not in ("pca", "svd"):
        raise ConfigurationError(f"[solve] there is no estimator {estimator!r}; {nearest(estimator, ('pca', 'svd'))}")
    return estimator


def _preparation(data: Table, estimator: str) -> Preparation:
    given = data.given(PREPARATION)
    if estimator == "svd":
        for key, plain in (("center", False), ("scale", False), ("missing", "error")):
            if given.setdefault(key, plain) != plain:
                raise ConfigurationError(
                    f'[data] {key} = {shown(given[key])} is for estimator = "pca"; '
                    "a truncated SVD takes the rows as they are"
                )
    elif "normalise" in given:
        raise ConfigurationError('[data] normalise is for estimator = "svd"; set that, or leave this out')
    with prefixed("[data] "):
        return Preparation(**given)


def rank_of(solve: Table) -> int | float | str:
    """Return how many components [solve] asks for."""
    wanted: int | float | str = solve.get("n_components", RANK, 10)
    if not isinstance(wanted, str) and not (0 < wanted < 1 or (WHOLE.fits(wanted) and wanted >= 1)):
        raise ConfigurationError(f"[solve] n_components = {wanted}: expected {RANK.words}")
    return wanted


def _solver(solve: Table, *, private: bool) -> str | Solver:
    """Return the solver with its settings; in a private study one without settings by its name: the plan sets them."""
    name: str = solve.get("solver", TEXT, "auto" if private else "krylov")
    settings: dict[str, Any] = dict(solve.get("settings", TABLE, {}))
    if name == "auto":
        if settings:
            raise ConfigurationError('[solve.settings] belong to a solver, and solver = "auto" names none')
        return name
    with prefixed("[solve] "):
        make(name)
    if private and not settings:
        return name
    settings = _settings("[solve.settings]", name, settings)
    with prefixed("[solve.settings] "):
        return make(name, **settings)


def _settings(where: str, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a solver's settings, each of its type; of a solver around another, that one's too."""
    settings, hints = dict(given), get_type_hints(SOLVERS[name])
    if "stage" in hints:
        stage = fitting(f"{where} stage", settings.get("stage", "power"), TEXT)
        inner = fitting(f"{where} stage_settings", settings.get("stage_settings", {}), TABLE)
        with prefixed(f"{where} stage: "):
            make(stage)
        settings |= {"stage": stage, "stage_settings": _settings(f"{where} stage_settings", stage, inner)}
    for key in settings.keys() & hints.keys() - {"stage"}:
        settings[key] = as_hinted(f"{where} {key}", settings[key], hints[key])
    return settings


def cohort_of(table: Table, sites: Mapping[str, SiteEntry]) -> Cohort:
    """Return whom [participation] asks."""
    given = table.given(COHORT)
    for name in given.get("only", ()):
        if name not in sites:
            raise ConfigurationError(f"[participation] only: there is no site {name!r}; {nearest(name, sites)}")
    if "only" in given:
        given["only"] = tuple(given["only"])
    with prefixed("[participation] "):
        return Cohort(**given)


def privacy_of(table: Table) -> GaussianPrivacy:
    """Return the terms of [privacy]."""
    given = table.given(PRIVACY)
    for key in ("epsilon", "delta"):
        if key not in given:
            raise ConfigurationError(f"[privacy] {key} is missing: the guarantee is (epsilon, delta)")
    with prefixed("[privacy] "):
        if isinstance(given.get("row_norm"), dict):
            box = Table(given["row_norm"], "row_norm", ("low", "high"))
            if len(box.given({"low": RANGE, "high": RANGE})) < 2:
                raise ConfigurationError("row_norm as a table needs both low and high")
        return GaussianPrivacy.from_plain(given)


def _known_columns(drop: Collection[str], header: Collection[str], text: str) -> None:
    for column in drop:
        if column not in header:
            raise DataError(f"{text.format(column)}; {nearest_column(column, sorted(header))}")


@contextmanager
def prefixed(text: str) -> Iterator[None]:
    """Put where it happened in front of fedspan's own errors."""
    try:
        yield
    except FedspanError as error:
        raise type(error)(f"{text}{error}") from error.__cause__
