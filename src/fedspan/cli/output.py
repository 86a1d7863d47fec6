"""What the commands share: where text goes, machine output, progress, and errors as one line.

Results go to stdout, progress and errors to stderr, so a pipe gets results only. With ``--json`` stdout holds one
JSON object and nothing else.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedspan.encoding import Array
from fedspan.errors import (
    CohortError,
    ConfigurationError,
    DataError,
    FedspanError,
    FileError,
    ResumeError,
    SiteError,
)
from fedspan.layers import OnRound, RoundRecord
from fedspan.progress import human_bytes, round_line

UNEXPECTED, USAGE, INTERRUPTED = 1, 2, 130
EXIT_CODES: dict[type[FedspanError], int] = {
    ConfigurationError: 3,
    DataError: 4,
    FileError: 4,
    SiteError: 5,
    CohortError: 5,
    ResumeError: 6,
}
EXIT_HELP = (
    "Exit codes: 0 done; 1 unexpected; 2 wrong usage; 3 a study or setting is wrong; 4 a site's data, or a file, "
    "cannot be used; 5 a site or round failed; 6 the run cannot be resumed; 130 interrupted."
)


class Stopped(KeyboardInterrupt):
    """Ctrl-C, with what to do next."""


def _remember_json(context: typer.Context, value: bool) -> bool:
    context.meta["fedspan.json"] = value  # shared with the parent context, where errors are reported
    return value


Json = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON on stdout.", callback=_remember_json)
]
"""The ``--json`` option of every verb."""


def console(*, stderr: bool = False) -> Console:
    """Return a console; where there is no terminal to ask, lines are 100 columns wide."""
    made = Console(stderr=stderr, highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made = Console(stderr=stderr, highlight=False, width=100)
    return made


def say(*lines: Any) -> None:
    """Print lines, or rich tables, on stdout."""
    out = console()
    for line in lines:
        out.print(line, soft_wrap=isinstance(line, str) and not out.is_terminal)


def note(text: str) -> None:
    """Print one plain line on stderr."""
    err = console(stderr=True)
    err.print(text, markup=False, soft_wrap=not err.is_terminal)


def print_json(value: Any) -> None:
    """Print one JSON object on stdout."""
    sys.stdout.write(json.dumps(value, indent=2, default=_plain) + "\n")


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def report_error(error: BaseException, code: int, *, as_json: bool) -> None:
    """Say in one line what went wrong; to a machine, on stdout too."""
    text = str(error) or type(error).__name__
    note(f"fedspan: {text}")
    if as_json:
        print_json({"error": text, "kind": type(error).__name__, "exit_code": code})


def exit_code(error: FedspanError) -> int:
    """Return the documented exit code of an error."""
    return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), UNEXPECTED)


def grid(rows: list[tuple[str, str]]) -> Table:
    """Return label and value pairs as two columns."""
    table = Table.grid(padding=(0, 3))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for label, value in rows:
        table.add_row(label, value)
    return table


# ---- progress --------------------------------------------------------------------------------------


@contextmanager
def watching_rounds(title: str, budget: int | None) -> Iterator[OnRound]:
    """Show a run's rounds: a bar on a terminal, plain lines elsewhere (all at first, then ever fewer).

    ``budget`` is the most rounds the run will take, None where that is not known.
    """
    err = console(stderr=True)
    if not err.is_terminal:
        yield _lines
        return
    with _bar(err, "at most") as bar:
        task = bar.add_task(title, total=budget, detail="")
        traffic = [0]

        def show(record: RoundRecord, estimate: Array | None) -> None:
            traffic[0] += record.bytes_up + record.bytes_down
            change = "" if record.change is None else f", change {record.change:.0e}"
            bar.update(task, completed=record.round + 1, detail=f"{human_bytes(traffic[0])}{change}")

        yield show


@contextmanager
def watching_steps(title: str, steps: int) -> Iterator[Any]:
    """Show a few named steps: yields a function to call with the name of each step as it begins."""
    err = console(stderr=True)
    if not err.is_terminal:
        yield lambda name: note(f"{title}: {name}")
        return
    with _bar(err, "") as bar:
        task = bar.add_task(title, total=steps, completed=-1, detail="")
        yield lambda name: bar.update(task, advance=1, detail=name)


def _bar(err: Console, qualifier: str) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(separator=f" of {qualifier} " if qualifier else " of "),
        TextColumn("{task.fields[detail]}"),
        TimeElapsedColumn(),
        console=err,
        transient=True,
    )


def _lines(record: RoundRecord, estimate: Array | None) -> None:
    """Thin out: every round up to 10, every tenth up to 100, every hundredth beyond."""
    number = record.round + 1
    if number <= 10 or (number <= 100 and number % 10 == 0) or number % 100 == 0:
        note(round_line(record))
