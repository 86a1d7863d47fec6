"""``fedspan export``: a model as CSV files, for R and spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from fedspan.cli.output import Json, print_json, say_exactly
from fedspan.cli.transform import load_any_model
from fedspan.encoding import write_atomically
from fedspan.errors import ConfigurationError
from fedspan.representation_file import holds_representation


def export(
    model: Annotated[Path, typer.Argument(help="The model file (.fedspan).", show_default=False)],
    csv: Annotated[bool, typer.Option("--csv", help="Write CSV files (the only format so far).")] = True,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The folder to write to (default: beside the model).")
    ] = None,
    json: Json = False,
) -> None:
    """Write a model as CSV: components.csv, variance.csv and mean.csv, for R and spreadsheets."""
    if holds_representation(model):
        raise ConfigurationError(
            f"{model} holds a learnt representation, which has no table of components; its numbers are safetensors, "
            f"which other programs read, and fedspan predict and fedspan transform write what it makes of rows"
        )
    tables = tables_of(load_any_model(model))
    folder = model.parent if out is None else out
    files = {name: folder / f"{name}.csv" for name in tables}
    for name, (header, rows) in tables.items():
        write_atomically(files[name], _as_csv(header, rows))
    if json:
        print_json({name: str(path) for name, path in files.items()})
    else:
        say_exactly(*(f"{path}: {len(tables[name][1])} rows" for name, path in files.items()))


def tables_of(model: Any) -> dict[str, tuple[list[str], list[Sequence[Any]]]]:
    """Return the three tables, each a header and rows: a row for each feature, or for each component."""
    k, d = model.components_.shape
    names = [str(n) for n in getattr(model, "feature_names_in_", [f"x{i}" for i in range(d)])]
    mean = getattr(model, "mean_", np.zeros(d))
    scale = np.ones(d) if model.scale_ is None else model.scale_
    components = [f"component{i + 1}" for i in range(k)]
    values = zip(
        components, model.singular_values_.tolist(), model.explained_variance_.tolist(),
        model.explained_variance_ratio_.tolist(), strict=True,
    )  # fmt: skip
    by_feature = zip(names, model.components_.T.tolist(), strict=True)
    return {
        "components": (["feature", *components], [[name, *row] for name, row in by_feature]),
        "variance": (["component", "singular_value", "explained_variance", "share"], list(values)),
        "mean": (["feature", "mean", "scale"], list(zip(names, mean.tolist(), scale.tolist(), strict=True))),
    }


def _as_csv(header: list[str], rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue().encode()
