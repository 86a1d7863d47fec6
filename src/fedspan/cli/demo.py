"""``fedspan demo``: a federation in one process, from nothing to a table."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from fedspan.cli.compare import Trial, table_of, try_solvers
from fedspan.cli.output import Json, bold, print_json, program, say, say_exactly
from fedspan.cli.runs import COPY, finish, fresh_folder, model_of, summarise
from fedspan.data import open_source, partition
from fedspan.encoding import Array, write_atomically
from fedspan.run import Result, Study, run
from fedspan.solvers import UDA, BlockKrylov, FedPower, Power, RandomizedSVD, Solver

SITES, COMPONENTS = 10, 10
SOLVERS: dict[str, Solver] = {
    "power": Power(),
    "fedpower": FedPower(),
    "uda": UDA(),
    "dr-svd": RandomizedSVD(),
    "krylov": BlockKrylov(),
}


STUDY = """\
# The study behind `fedspan demo`: images of handwritten digits at ten sites. Change it and run it again.
name = "digits"

[sites]                     # name = path, from this file's folder
{sites}

[data]
center = true               # subtract the mean over all sites; scale = true divides by the deviation too

[solve]
n_components = {k}           # or a share of the variance, as 0.9, or "auto"
solver = "{solver}"           # or auto, krylov, power, faps, fedpower, covariance, uda, wda, dr-svd

[run]
folder = "."
"""


def demo(
    folder: Annotated[Path, typer.Option(help="Where to keep the runs; a number is added where it exists.")] = Path(
        "runs/demo"
    ),
    json: Json = False,
) -> None:
    """See fedspan at work: ten uneven sites, five solvers, one table. Needs no files and no network."""
    images = load_digits().data
    sites = partition.split(images, partition.uneven(len(images), SITES, least=20))
    where = fresh_folder(folder)
    write_study(where, sites)
    trials = _try_all(images, sites, where)
    if json:
        print_json({"folder": str(where), "study": str(where / COPY), "trials": list(map(asdict, trials))})
        return
    sizes = [len(rows) for rows in sites.values()]
    say(
        bold(
            f"{len(images):,} images of {images.shape[1]} pixels lie at {SITES} sites",
            f", {min(sizes)} to {max(sizes)} at each. No image leaves its site.",
        ),
        f"Five ways to find their {COMPONENTS} principal components, against PCA of all images pooled:",
        "",
        table_of(trials, against="pooled", seconds="with each round recorded"),
        "",
        _look_at(trials),
        f"Each run is kept in {where}, with the sites' files and a study to change. Next, try:",
    )
    say_exactly(bold(f"  {program()} fit {shlex.quote(str(where / COPY))}"))


def _look_at(trials: list[Trial]) -> str:
    exact = min(trials, key=lambda t: t.error)
    cheap = min(trials, key=lambda t: t.bytes_up + t.bytes_down)
    return (
        f"Look at error against rounds: {exact.solver} is exact to {exact.error:.0e} after {exact.rounds}; "
        f"{cheap.solver}, the cheapest, stays {cheap.error:.2f} off."
    )


def _try_all(images: Array, sites: dict[str, Array], where: Path) -> list[Trial]:
    sources = {name: open_source(rows) for name, rows in sites.items()}
    pooled = PCA(COMPONENTS, svd_solver="full").fit(images).components_.T

    def execute(name: str, study: Study) -> Result:
        started = time.perf_counter()
        result = run(study, sources, folder=where / name)
        model = model_of("pca", study, sources, result)
        summary = summarise(f"demo, {name}", model, result, seconds=time.perf_counter() - started)
        finish(where / name, model, summary)
        return result

    return try_solvers(Study(n_components=COMPONENTS), sources, SOLVERS, pooled, execute, title="demo")


def write_study(folder: Path, sites: dict[str, Array]) -> None:
    """Write the sites' rows as CSV files, and a study file for them here and in each solver's folder."""
    names = ",".join(f"pixel{i}" for i in range(next(iter(sites.values())).shape[1]))
    for name, rows in sites.items():
        lines = [",".join(map(str, row)) for row in rows.astype(int).tolist()]
        write_atomically(folder / "data" / f"{name}.csv", "\n".join([names, *lines, ""]).encode())
    for solver in ("", *SOLVERS):
        up = "../" if solver else ""
        listed = "\n".join(f'{name} = "{up}data/{name}.csv"' for name in sites)
        text = STUDY.format(sites=listed, k=COMPONENTS, solver=solver or "krylov")
        write_atomically(folder / solver / COPY, text.encode())
