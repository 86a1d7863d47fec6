"""``fedspan predict``: what a site's model says of rows, at the site."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated

import typer

from fedspan.cli.output import Json, counted, print_json, say_exactly
from fedspan.cli.representation_rows import rows_for
from fedspan.encoding import write_atomically
from fedspan.errors import ConfigurationError
from fedspan.estimators import FederatedRepresentation


def predict(
    model: Annotated[Path, typer.Argument(help="The model file (.fedspan).", show_default=False)],
    data: Annotated[Path, typer.Argument(help="A file of rows; a column of labels in it is passed over.")],
    site: Annotated[
        str | None,
        typer.Option(help="Whose model predicts: each site has a head of its own.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where to write: .csv (default: DATA-predictions.csv).")
    ] = None,
    drop: Annotated[list[str] | None, typer.Option(help="A column to leave out; may be repeated.")] = None,
    delimiter: Annotated[str | None, typer.Option(help="What separates the fields of a text file.")] = None,
    decimal: Annotated[str, typer.Option(help="The decimal mark of a text file.")] = ".",
    header: Annotated[
        bool | None, typer.Option("--header/--no-header", help="Whether a text file's first row names its columns.")
    ] = None,
    json: Json = False,
) -> None:
    """Write what a site's learnt model predicts of each row, as CSV. Nothing leaves the site."""
    fitted = FederatedRepresentation.load(model)
    target = Path(f"{data.stem}-predictions.csv") if out is None else out
    if target.suffix.lower() != ".csv":
        raise ConfigurationError(f"cannot write {target}: predictions are written as .csv")
    if target.exists() and data.exists() and target.samefile(data):
        raise ConfigurationError(f"{target} is the data itself; write the predictions to another file")
    if site is None and fitted.agreed_["model"]["own"] != "none":
        raise ConfigurationError(f"say whose model predicts, as in --site {next(iter(fitted.sites_), 'NAME')}")
    rows = rows_for(fitted, data, drop or [], delimiter=delimiter, decimal=decimal, header=header)
    predicted = fitted.predict(site, rows).tolist()
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["prediction"])
    writer.writerows([value] for value in predicted)
    write_atomically(target, text.getvalue().encode())
    if json:
        print_json({"out": str(target), "rows": len(predicted), "site": site})
    else:
        of = "the shared model" if site is None else f"the model of {site}"
        say_exactly(f"{target}: predictions of {counted(len(predicted), 'row')} by {of}")
