"""``fedspan transform``: the scores of one site's rows, or its left factors, at the site."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from fedspan.cli.output import Json, note, print_json, say_exactly
from fedspan.cli.representation_rows import rows_for
from fedspan.cli.writers import check_suffix, write_blocks
from fedspan.data import Source, open_source
from fedspan.data.prepared import Prepared, inverse_degrees
from fedspan.data.source import like, to_host
from fedspan.encoding import Array, Plain
from fedspan.errors import ConfigurationError, DataError, few
from fedspan.estimators import FederatedRepresentation
from fedspan.estimators.decomposition import Decomposition
from fedspan.representation_file import holds_representation


def transform(
    model: Annotated[Path, typer.Argument(help="The model file (.fedspan).", show_default=False)],
    data: Annotated[Path, typer.Argument(help="A site's data file.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Where to write: .npy, .csv or .parquet (default: DATA-scores.npy)."),
    ] = None,
    left: Annotated[bool, typer.Option("--left", help="Write the site's left singular vectors U_i.")] = False,
    drop: Annotated[list[str] | None, typer.Option(help="A column to leave out; may be repeated.")] = None,
    delimiter: Annotated[str | None, typer.Option(help="What separates the fields of a text file.")] = None,
    decimal: Annotated[str, typer.Option(help="The decimal mark of a text file.")] = ".",
    header: Annotated[
        bool | None, typer.Option("--header/--no-header", help="Whether a text file's first row names its columns.")
    ] = None,
    site_weight: Annotated[float, typer.Option(help="With --left: the site's weight in the study.", min=0.0)] = 1.0,
    site: Annotated[
        str | None,
        typer.Option(help="Of a representation by LG-FedAvg: whose body.", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Write the scores of a site's rows (or with --left its share of the left factors). Nothing leaves the site."""
    learnt = holds_representation(model)
    if site is not None and not learnt:
        raise ConfigurationError("--site is for learnt representations; these components are the same at all sites")
    if left and learnt:
        raise ConfigurationError("--left is for components; a learnt representation has no left factors")
    target = Path(f"{data.stem}-{'left' if left else 'scores'}.npy") if out is None else out
    check_suffix(target)
    if target.exists() and data.exists() and target.samefile(data):
        raise ConfigurationError(f"{target} is the data itself; write the scores to another file")
    if learnt:
        representation = FederatedRepresentation.load(model)
        rows = rows_for(representation, data, drop or [], delimiter=delimiter, decimal=decimal, header=header)
        found = representation.transform(rows, site)
        names = [f"feature{i + 1}" for i in range(found.shape[1])]
        write_blocks(target, [found], names, len(found), found.dtype)
        _told(target, "the representation", len(found), names, as_json=json)
        return
    fitted = load_any_model(model)
    dropped = [*getattr(fitted, "dropped_", []), *(drop or [])]
    source = open_source(
        data, drop=dropped, strict_drop=False, site_weight=site_weight, delimiter=delimiter, decimal=decimal,
        header=header,
    )  # fmt: skip
    prepared = as_prepared(fitted, source, data, left=left)
    names = [f"{'u' if left else 'score'}{i + 1}" for i in range(fitted.n_components_)]
    write_blocks(target, scores(fitted, prepared, data, left=left), names, source.shape[0], source.dtype)
    _told(target, "left factors" if left else "scores", source.shape[0], names, as_json=json)


def _told(target: Path, what: str, rows: int, names: list[str], *, as_json: bool) -> None:
    if as_json:
        print_json({"out": str(target), "rows": rows, "columns": names})
    else:
        say_exactly(f"{target}: {what} of {rows:,} rows in {len(names)} columns")


def load_any_model(path: Path) -> Any:
    """Read a model file, whichever estimator it holds."""
    return Decomposition.load(path)


def as_prepared(model: Any, source: Source, path: Path, *, left: bool) -> Prepared:
    """See a file's rows as the model's study saw its own: columns aligned, gaps filled, centred, scaled."""
    if source.shape[0] == 0:
        raise DataError(f"{path} has no rows to transform")
    known = getattr(model, "feature_names_in_", None)
    names = None if known is None or source.columns is None else [str(name) for name in known]
    weight_column = getattr(model, "weight_column_", None)
    has_weights = source.columns is not None and weight_column in source.columns
    if left and weight_column is not None and not has_weights:
        raise DataError(f"{path} has no column {weight_column!r}: the study took row weights from it")
    if names is None:
        _check_width(model, source, path)
    else:
        _check_columns(model, source, path, names, weight_column)
    preparation: dict[str, Plain] = {
        "columns": names, "mean": getattr(model, "mean_", None), "scale": model.scale_,
        "fill": getattr(model, "fill_", None), "degree": getattr(model, "normalise", None) == "degree",
        "weight_column": weight_column if has_weights else None,
    }  # fmt: skip
    return Prepared(source, preparation)


def scores(model: Any, prepared: Prepared, path: Path, *, left: bool) -> Iterator[Array]:
    """Yield the scores of each block of rows: A_i V, divided by the singular values for the left factors."""
    v = model.components_.T.astype(float)
    if left:
        v = v * _inverse(model.singular_values_)
    elif getattr(model, "whiten", False):
        v = v * _inverse(np.sqrt(model.explained_variance_))
    if model.scale_ is not None:
        v = v / model.scale_[:, None]
    shift = 0.0 if getattr(model, "mean_", None) is None else model.mean_ @ v
    row = 0
    for block, weights in prepared.rows():
        part = to_host(block @ like(block, v)) - shift
        if not left:  # row weights belong to the study's sums, degrees to the rows themselves
            weights = inverse_degrees(block) if getattr(model, "normalise", None) == "degree" else None
        if weights is not None:
            part = part * np.sqrt(weights)[:, None]
        if not np.all(np.isfinite(part)):
            bad = row + int(np.flatnonzero(~np.isfinite(part).all(axis=1))[0]) + 1
            filled = getattr(model, "fill_", None) is not None
            what = "an infinite value" if filled else "a missing or infinite value, and the study filled none"
            raise DataError(f"{path}: row {bad} has {what}; mend or remove the row")
        row += len(part)
        yield part


def _inverse(values: Array) -> Array:
    """Return 1 / values; a direction without any variance gets 0, not infinity."""
    held = values > 1e-12 * max(values.max(initial=0.0), 1e-300)
    return np.divide(1.0, values, out=np.zeros_like(values), where=held)


def _check_width(model: Any, source: Source, path: Path) -> None:
    if source.shape[1] != model.n_features_in_:
        raise DataError(
            f"{path} has {source.shape[1]} columns, the model {model.n_features_in_} features; leave columns out "
            f"with --drop, or take the file the study was made for"
        )


def _check_columns(model: Any, source: Source, path: Path, names: list[str], weight_column: str | None) -> None:
    """The file's columns are the model's, but for what the study's own rule for columns allows."""
    have = list(source.columns or ())
    twice = sorted({name for name in have if have.count(name) > 1})
    if twice:
        raise DataError(f"{path} has duplicate columns {twice}; rename them")
    lacks = [name for name in names if name not in set(have)]
    extra = [name for name in have if name not in set(names) and name != weight_column]
    rule = getattr(model, "columns", "strict")  # a stream has no other
    if lacks and rule != "union-zero":
        raise DataError(f"{path} lacks {few(lacks)} of the model's {len(names)} columns; add them to the file")
    if extra and rule != "intersect":
        options = " ".join(f"--drop {name}" for name in extra[:3]) + (" ..." if len(extra) > 3 else "")
        raise DataError(f"{path} has columns the model does not know: {few(extra)}; leave them out with {options}")
    if lacks:
        note(f"{path}: {few(lacks)} are not in the file and count as zero, as in the study")
    if extra:
        note(f"{path}: {few(extra)} are not in the model and are left out, as in the study")
