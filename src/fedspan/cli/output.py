"""What the commands share: where text goes, machine output, progress, and errors as one line.

Results go to stdout, progress and errors to stderr, so a pipe gets results only. With ``--json`` stdout holds one
JSON object and nothing else.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from fedspan.encoding import Array
from fedspan.errors import (
    CohortError,
    ConfigurationError,
    ConvergenceError,
    DataError,
    FedspanError,
    FileError,
    ResumeError,
    SiteError,
)
from fedspan.layers import OnRound, RoundRecord
from fedspan.progress import human_bytes, round_line

UNEXPECTED, USAGE, INTERRUPTED = 1, 2, 130
SEALED = "the site's own log"
"""What an error names instead of its cause, where a site with a privacy policy sent it."""
EXIT_CODES: dict[type[FedspanError], int] = {
    ConfigurationError: 3,
    DataError: 4,
    FileError: 4,
    SiteError: 5,
    CohortError: 5,
    ResumeError: 6,
    ConvergenceError: 7,
}
EXIT_HELP = (
    "Exit codes: 0 done; 1 unexpected; 2 wrong usage; 3 a study or setting is wrong; 4 a site's data, or a file, "
    "cannot be used; 5 a site or round failed; 6 the run cannot be resumed; "
    "7 the solver diverged; 130 interrupted."
)


class Stopped(KeyboardInterrupt):
    """Ctrl-C, with what to do next."""


def _remember_json(context: typer.Context, value: bool) -> bool:
    context.meta["fedspan.json"] = value  # shared with the parent context, where errors are reported
    return value


Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.", callback=_remember_json)]
"""The ``--json`` option of every verb."""


def program() -> str:
    """Return what to type for this program: its name where the shell would find it, else the path it was called by."""
    called = sys.argv[0]
    outside_the_path = Path(called).name == "fedspan" and shutil.which("fedspan") is None
    return shlex.quote(called) if outside_the_path else "fedspan"


def console(*, stderr: bool = False) -> Console:
    """Return a console that prints texts as they are; without a terminal to ask, lines are 100 columns wide."""
    plain: dict[str, Any] = {"stderr": stderr, "markup": False, "emoji": False, "highlight": False}
    made = Console(**plain)
    return made if made.is_terminal or "COLUMNS" in os.environ else Console(**plain, width=100)


def say(*lines: str | Text | Table) -> None:
    """Print prose and tables on stdout; a terminal breaks prose between words, a pipe not at all."""
    out = console()
    for line in lines:
        out.print(line, soft_wrap=not isinstance(line, Table) and not out.is_terminal)


def say_exactly(*lines: str | Text) -> None:
    """Print lines with paths and commands on stdout: never broken, so that they can be copied."""
    out = console()
    for line in lines:
        out.print(line, soft_wrap=True)


def bold(text: str, rest: str = "") -> Text:
    """Return a line that begins in bold."""
    return Text.assemble((text, "bold"), rest)


def note(text: str) -> None:
    """Print one line on stderr."""
    console(stderr=True).print(text, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print one JSON object on stdout."""
    sys.stdout.write(as_json(value) + "\n")


def as_json(value: Any) -> str:
    """Return strict JSON: arrays as lists, and null for numbers that JSON has no word for.

    >>> as_json({"worst": float("inf")}).split()
    ['{', '"worst":', 'null', '}']
    """
    return json.dumps(_strict(value), indent=2, default=str, allow_nan=False)


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(part) for part in value]
    if hasattr(value, "tolist"):
        return _strict(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def report_error(error: BaseException, code: int, *, as_json: bool) -> None:
    """Say in one line what went wrong; to a machine, on stdout too."""
    text = _words(error)
    if SEALED in text and error.__cause__ is not None:  # all sites are in this process, and the log may be gone by now
        text += f". It says: {_words(error.__cause__)}"
    note(f"fedspan: {text}")
    if as_json:
        print_json({"error": text, "kind": type(error).__name__, "exit_code": code})


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__


def exit_code(error: FedspanError) -> int:
    """Return the documented exit code of an error."""
    return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), UNEXPECTED)


def counted(number: int, noun: str) -> str:
    """Return how many there are of something.

    >>> counted(1, "round"), counted(2000, "row")
    ('1 round', '2,000 rows')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def plain_table(first: str, *others: str, left: int = 0) -> Table:
    """Return an empty table without a frame; its columns stand to the right but for the first 1 + ``left``."""
    table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False, caption_justify="left", caption_style="dim")
    table.add_column(first)
    for i, name in enumerate(others):
        table.add_column(name, justify="left" if i < left else "right")
    return table


def labelled(rows: Sequence[tuple[str, str]]) -> list[Text]:
    """Return label and value pairs as lines, the values below each other."""
    width = max(len(label) for label, _ in rows) + 3
    return [bold(f"{label:<{width}}", value) for label, value in rows]


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
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=28),
        MofNCompleteColumn(separator=f" of {qualifier} " if qualifier else " of "),
        TextColumn("{task.fields[detail]}", markup=False),
        TimeElapsedColumn(),
        console=err,
        transient=True,
    )


def _lines(record: RoundRecord, estimate: Array | None) -> None:
    """Thin out: every round up to 10, every tenth up to 100, every hundredth beyond."""
    number = record.round + 1
    if number <= 10 or (number <= 100 and number % 10 == 0) or number % 100 == 0:
        note(round_line(record))
