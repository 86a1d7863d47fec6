"""``fedspan reproduce``: a paper's tables and figures, run again."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated

import typer

from fedspan.cli.output import Json, note, print_json, say_exactly
from fedspan.cli.runs import fresh_folder
from fedspan.errors import ConfigurationError, nearest

PAPERS = {
    "fedpower": "fedspan.cli.reproduce_fedpower",
    "faps": "fedspan.cli.reproduce_faps",
    "ppm": "fedspan.cli.reproduce_ppm",
    "fpca": "fedspan.cli.reproduce_fpca",
    "srpfl": "fedspan.cli.reproduce_srpfl",
}
"""Papers by name, and the module that runs each one again."""
NOISY = {"fedpower": "fedspan.cli.reproduce_fedpower_noise"}
"""The same for the experiments with noise that a paper has beside those without."""
SECURE = {"ppm": "fedspan.cli.reproduce_ppm_secure"}
"""The same for what a paper says of secure sums."""
SHORTENED = ("srpfl",)
"""Papers of whose experiments the default is a part."""


def reproduce(
    paper: Annotated[str, typer.Argument(help=f"One of: {', '.join(PAPERS)}.", show_default=False)],
    folder: Annotated[
        Path | None, typer.Option(help="Where to write (default: runs/reproduce-PAPER, numbered).")
    ] = None,
    tables: Annotated[bool, typer.Option(help="Write the tables.")] = True,
    figures: Annotated[bool, typer.Option(help="Draw the figures; needs matplotlib.")] = True,
    quick: Annotated[bool, typer.Option("--quick", help="A smaller version, in minutes.")] = False,
    noisy: Annotated[
        bool, typer.Option("--noisy", help=f"The paper's experiments with noise instead ({', '.join(NOISY)}).")
    ] = False,
    secure: Annotated[
        bool, typer.Option("--secure", help=f"What the paper says of secure sums instead ({', '.join(SECURE)}).")
    ] = False,
    whole: Annotated[
        bool, typer.Option("--whole", help=f"As large as in the paper, in hours ({', '.join(SHORTENED)}).")
    ] = False,
    json: Json = False,
) -> None:
    """Run a paper's experiments again and write its tables and figures."""
    _check(paper, noisy=noisy, secure=secure, whole=whole, quick=quick)
    name = NOISY[paper] if noisy else SECURE[paper] if secure else PAPERS[paper]
    module = importlib.import_module(name)  # late: it is slow to import, and may need matplotlib
    default = Path("runs") / f"reproduce-{paper}{'-noisy' * noisy}{'-secure' * secure}"
    where = fresh_folder(default) if folder is None else folder
    size: dict[str, bool] = {"quick": quick, **({"whole": whole} if paper in SHORTENED else {})}
    result = module.reproduce(where, tables=tables, figures=figures, report=note, **size)
    written = sorted(str(path) for path in where.rglob("*") if path.is_file())
    if json:
        print_json({**result, "folder": str(where), "files": written})
    else:
        say_exactly(module.text(result), f"Written to {where}:", *(f"  {name}" for name in written))


def _check(paper: str, *, noisy: bool, secure: bool, whole: bool, quick: bool) -> None:
    """Refuse a paper that is not there, and variants that it has not."""
    if paper not in PAPERS:
        raise ConfigurationError(f"there is no paper {paper!r} to reproduce; {nearest(paper, PAPERS)}")
    if noisy and paper not in NOISY:
        raise ConfigurationError(f"--noisy is for {', '.join(NOISY)}: {paper} is reproduced in one piece; leave it out")
    if secure and paper not in SECURE:
        raise ConfigurationError(f"--secure is for {', '.join(SECURE)}: {paper} has no secure sums; leave it out")
    if whole and paper not in SHORTENED:
        raise ConfigurationError(f"--whole is for {', '.join(SHORTENED)}: {paper} is run whole without it")
    if whole and quick:
        raise ConfigurationError("--whole and --quick ask for opposite things; take one of them")
