"""The verbs put together: one application, and errors as one line with a documented exit code."""

from __future__ import annotations

import errno
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fedspan import __version__
from fedspan.cli import (
    audit,
    calibrate,
    catalogue,
    compare,
    demo,
    export,
    fit,
    papers,
    plan,
    predict,
    stream,
    transform,
)
from fedspan.cli.output import EXIT_HELP, INTERRUPTED, UNEXPECTED, Stopped, exit_code, report_error, say
from fedspan.errors import FedspanError

VERBS = (
    demo.demo, fit.fit, stream.stream, plan.plan, calibrate.calibrate, compare.compare, transform.transform,
    predict.predict,
    export.export, audit.audit, papers.reproduce, catalogue.datasets,
)  # fmt: skip


class Verbs(TyperGroup):
    """Runs a verb; fedspan's own errors become one line on stderr and a documented exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb that was asked for."""
        try:
            return super().invoke(ctx)
        except FedspanError as error:
            code = exit_code(error)
            report_error(error, code, as_json=ctx.meta.get("fedspan.json", False))
        except KeyboardInterrupt as error:
            code = INTERRUPTED
            hint = error if isinstance(error, Stopped) else Stopped("stopped")
            report_error(hint, code, as_json=ctx.meta.get("fedspan.json", False))
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader of a pipe left, as `| head` does
                raise
            code = UNEXPECTED
            report_error(error, code, as_json=ctx.meta.get("fedspan.json", False))
        raise typer.Exit(code)


app = typer.Typer(
    cls=Verbs,
    name="fedspan",
    help="Find the subspace that many data owners share, while the data stays where it is.",
    epilog=EXIT_HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for verb in VERBS:
    app.command()(verb)


def _version(value: bool) -> None:
    if value:
        say(f"fedspan {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line."""
    app()
