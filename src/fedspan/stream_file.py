"""A study file with ``estimator = "streaming"``: sites whose rows are read as they come."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_type_hints

from fedspan.encoding import digest
from fedspan.errors import ConfigurationError, nearest
from fedspan.stream import StreamSettings, check_settings
from fedspan.study_file import (
    SiteEntry,
    content_of,
    prefixed,
    rank_of,
    raw_study,
    refuse_labelled,
    seed_of,
    sites_of,
    tables_of,
)
from fedspan.study_schema import STREAM_KEYS
from fedspan.toml_tables import FLAG, TABLE, TEXT, TEXTS, Kind, Table, as_hinted, shown

MISSING = ("error", "mean", "skip")
"""What may be done with gaps: their rows are refused, filled with the mean so far, or left out."""

SETTINGS = ("block_size", "oversampling", "forgetting", "energy", "window")
"""The keys of [solve.settings]; see `fedspan.StreamingPCA`."""

_DATA = ("columns", "center", "missing", "drop", "delimiter", "decimal", "header")
_COLUMNS = Kind('"strict", or the list of their names in order', lambda v: v == "strict" or TEXTS.fits(v))


@dataclass(frozen=True, kw_only=True)
class StreamFile:
    """What a study of streams says, checked."""

    path: Path
    """The file itself."""
    name: str
    sites: dict[str, SiteEntry]
    drop: tuple[str, ...]
    columns: tuple[str, ...] | None
    """The names to take, in this order; None takes all, and all sites have the same."""
    missing: str
    settings: StreamSettings
    folder: Path
    """Where streams are kept."""

    @property
    def fingerprint(self) -> str:
        """What all machines that stream this study share: summaries with another fingerprint are not merged."""
        settings = {**asdict(self.settings), "energy": list(self.settings.energy), "seed": 0}
        return digest({"name": self.name, "columns": self.columns and list(self.columns), "settings": settings})


def load_stream(path: str | Path) -> StreamFile:
    """Read and check the file of a study of streams.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "study.toml")
    ...     _ = file.write_text('[sites]\\nturin = "turin.csv"\\n[solve]\\nestimator = "streaming"\\n')
    ...     study = load_stream(file)
    >>> study.name, study.settings.block_size
    ('study', 500)
    """
    path = Path(path)
    content = content_of(path)
    with prefixed(f"{path}: "):
        return _stream_of(raw_study(content), path)


def _stream_of(raw: dict[str, Any], path: Path) -> StreamFile:
    refuse_labelled(raw)
    top, tables = tables_of(raw)
    data, solve, run = tables["data"], tables["solve"], tables["run"]
    _check_tables(raw, solve)
    sites = sites_of(raw, data, path.parent, keys=STREAM_KEYS)
    with prefixed("[data] "):
        missing = _policy(data.get("missing", TEXT, "error"))
    for name, site in sites.items():
        if site.missing is not None:
            with prefixed(f"[sites.{name}] "):
                _policy(site.missing)
    columns = data.get("columns", _COLUMNS, "strict")
    return StreamFile(
        path=path,
        name=top.get("name", TEXT, path.stem),
        sites=sites,
        drop=tuple(data.get("drop", TEXTS, ())),
        columns=None if columns == "strict" else tuple(columns),
        missing=missing,
        settings=_settings(solve, data, seed_of(run)),
        folder=path.parent / run.get("folder", TEXT, "runs"),
    )


def _check_tables(raw: dict[str, Any], solve: Table) -> None:
    """Refuse what belongs to studies in rounds."""
    estimator = solve.get("estimator", TEXT, "pca")
    if estimator != "streaming":
        raise ConfigurationError(
            f"[solve] estimator = {shown(estimator)} works in rounds: run this study with fedspan fit, or set "
            'estimator = "streaming" and leave out the solver'
        )
    if "privacy" in raw:
        raise ConfigurationError(
            "[privacy] is not for streams: their summaries are published without noise. For a private one-pass study "
            'take estimator = "pca" with solver = "streaming-mod-sulq", whose blocks are noised, and fedspan fit'
        )
    if "participation" in raw:
        raise ConfigurationError(
            "[participation] is for rounds: of streams whatever has arrived is merged; leave it out"
        )
    for table, known in (
        ("data", _DATA),
        ("solve", ("estimator", "n_components", "settings")),
        ("run", ("seed", "folder")),
    ):
        for key in raw.get(table, {}):
            if key not in known:
                raise ConfigurationError(
                    f'[{table}] {key} is not for estimator = "streaming", which takes {", ".join(known)}; leave it out'
                )


def _policy(missing: str) -> str:
    if missing not in MISSING:
        known = ", ".join(f'"{name}"' for name in MISSING)
        raise ConfigurationError(f"missing = {shown(missing)}: expected one of {known}")
    return missing


def _settings(solve: Table, data: Table, seed: int) -> StreamSettings:
    given: dict[str, Any] = dict(solve.get("settings", TABLE, {}))
    hints = get_type_hints(StreamSettings)
    for key in given:
        if key not in SETTINGS:
            raise ConfigurationError(f"[solve.settings] a stream has no setting {key!r}; {nearest(key, SETTINGS)}")
        given[key] = as_hinted(f"[solve.settings] {key}", given[key], hints[key])
    band = given.get("energy", (0.01, 0.1))
    if len(band) != 2:
        raise ConfigurationError(f"[solve.settings] energy = {shown(band)}: expected two numbers, a band")
    wanted = rank_of(solve)
    settings = StreamSettings(
        **{**given, "energy": tuple(map(float, band)), "forgetting": float(given.get("forgetting", 1.0))},
        n_components=wanted, center=data.get("center", FLAG, True), seed=seed,
    )  # fmt: skip
    with prefixed("[solve] "):
        check_settings(settings)
    return settings
