"""What the headers of a study's files tell without a row being read: columns and, for some kinds of file, rows."""

from __future__ import annotations

from dataclasses import dataclass

from fedspan.data import open_source
from fedspan.data.align import align_columns
from fedspan.data.arrays import kept_columns
from fedspan.data.csv import CsvTable
from fedspan.data.open import PARQUETS, TEXTS
from fedspan.errors import ConfigurationError, FedspanError
from fedspan.study_file import SiteEntry, StudyFile


@dataclass(frozen=True)
class Figures:
    """What a twin is made from."""

    rows: dict[str, int]
    features: int


@dataclass(frozen=True)
class Header:
    """What a file's header says."""

    names: list[str] | None
    width: int
    rows: int | None
    """None where the header does not say."""


def figures_of(described: StudyFile, rows: int | None, features: int | None) -> Figures:
    """Return rows and features as stated, else from the files' headers; with both stated no file is opened."""
    if features is not None and features < 1:
        raise ConfigurationError(f"--features is a positive number of columns, got {features}")
    sites = list(described.sites)
    if rows is not None and rows < len(sites):
        raise ConfigurationError(f"--rows is for all {len(sites)} sites together, at least one at each; got {rows}")
    public = described.privacy is not None and described.privacy.rows_known
    if rows is None and not public:
        raise ConfigurationError(
            "how many rows there are is not public in this study, so it is not looked up: state about how many there "
            "are at all sites together, as in --rows 10000 (or set n_public = true in [privacy])"
        )
    headers = {} if rows and features else {name: _header(described, name, features) for name in sites}
    if features is None:
        columns = align_columns({s: (h.names, h.width) for s, h in headers.items()}, described.preparation.columns)
        used = [c for c in columns or () if c != described.preparation.weight_column]
        features = len(used) if columns is not None else next(iter(headers.values())).width
    if rows is not None:
        each, over = divmod(rows, len(sites))
        return Figures({site: each + (i < over) for i, site in enumerate(sites)}, features)
    unsaid = [site for site, header in headers.items() if header.rows is None]
    if unsaid:
        raise ConfigurationError(
            f"the header of site {unsaid[0]!r}'s file does not say how many rows it has (those of .parquet and .npy "
            "do); state them for all sites together, as in --rows 10000"
        )
    return Figures({site: header.rows or 1 for site, header in headers.items()}, features)


def _header(described: StudyFile, name: str, features: int | None) -> Header:
    site = described.sites[name]
    try:
        return read_header(site, (*described.drop, *site.drop), features)
    except FedspanError as error:
        raise type(error)(f"site {name!r}: {error}") from error


def read_header(site: SiteEntry, drop: tuple[str, ...], features: int | None) -> Header:
    """Return what the header of a site's file says; no row is read."""
    kind = site.path.suffix.lower()
    if site.triples is not None or kind not in (*PARQUETS, *TEXTS, ".npy"):
        names = (site.triples or {}).get("vocabulary")
        if names is None and features is None:
            raise ConfigurationError(
                f"{site.path.name} has no header that tells its columns without its rows; state them with --features"
            )
        return Header(names, features or len(names or ()), None)
    if kind in TEXTS:
        delimiter = "\t" if kind == ".tsv" and site.delimiter is None else site.delimiter
        table = CsvTable(site.path, delimiter=delimiter, decimal=site.decimal, header=site.header)
        if table.names is None:
            return Header(None, table.width, None)
        kept = [table.names[i] for i in kept_columns(table.names, drop, strict=False)]
        return Header(kept, len(kept), None)
    source = open_source(site.path, drop=drop, strict_drop=False)  # of these only the header is read
    return Header(None if source.columns is None else list(source.columns), source.shape[1], source.shape[0])
