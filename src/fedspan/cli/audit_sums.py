"""``fedspan audit`` of a run whose sums were secure: beside it, the same run without masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.table import Table

from fedspan.cli.output import bold, note, plain_table, say
from fedspan.data import Source
from fedspan.encoding import Array
from fedspan.errors import ConfigurationError
from fedspan.privacy.audit.sums import SumsAudit, audit_sums
from fedspan.privacy.audit.views import replayed
from fedspan.privacy.transcript import Transcript
from fedspan.sites import open_sites
from fedspan.study_file import StudyFile

_SHOWN = 10
NOISED = (
    "the run is not shown without masks: what each site added as noise is gone with its key. What a coordinator and "
    "colluding sites learn in spite of noise is bounded by the guarantee"
)


def names_of(colluding: str) -> list[str]:
    """Return the sites named on the command line.

    >>> names_of("berlin, oslo")
    ['berlin', 'oslo']
    """
    return sorted({name.strip() for name in colluding.split(",") if name.strip()})


def audit_of_sums(
    described: StudyFile,
    transcript: Transcript,
    sources: Mapping[str, Source],
    grams: Mapping[str, Array],
    published: Array | None,
    known: int | None,
    colluding: list[str],
    begin: Callable[[str], None],
) -> SumsAudit:
    """Attack the sums; where no noise was added at the sites, beside the same rounds without masks."""
    privacy, unmasked = described.privacy, None
    if privacy is None or privacy.trust == "central":
        sites = open_sites(sources, seed=described.seed, privacy=privacy, preparation=described.preparation)
        unmasked = replayed(transcript, sites)
    elif colluding:
        raise ConfigurationError(
            f"--colluding takes off each sum what these sites put in, and under trust = {privacy.trust!r} that has "
            f"noise of which nothing is kept; the guarantee counts on {privacy.honest or 'all'} sites' noise (honest)"
        )
    else:
        note(f"Note: {NOISED}.")
    return audit_sums(
        transcript, grams, published, known, described.seed, unmasked=unmasked, colluding=colluding, on_site=begin
    )


def show_sums(name: str, found: SumsAudit) -> None:
    """Print the tables and the verdicts."""
    d = found.features
    say(
        bold(name, f": what secure sums over {len(found.members)} sites tell of their {d:,} x {d:,} matrices A_i'A_i."),
        "Errors are ||guess - truth|| / ||truth||, for a single site of the guess's best multiple: 1 is no guess.",
        "",
        _sums(found),
        "",
        _sites(found),
        "",
    )
    say(*found.verdicts)


def _sums(found: SumsAudit) -> Table:
    table = plain_table("sums", "attack", "last error", "least error", "at round", left=1)
    for some in (found.whole, found.rest):
        label = "" if some is None else some.site
        for attack, curve in {} if some is None else some.curves.items():
            table.add_row(label, attack, figure(curve.last), figure(curve.least), str(curve.least_round))
            label = ""
    return table


def _sites(found: SumsAudit) -> Table:
    table = plain_table("site", "masked replies", "random numbers", "the sums", "other sites", "without masks")
    rows: list[dict[str, Any]] = sorted(found.table(), key=lambda row: row["guess"] or 0.0)
    for row in rows[:_SHOWN]:
        columns = ("masked", "random", "guess", "others", "plain")
        table.add_row(row["site"], *("" if row[column] is None else figure(row[column]) for column in columns))
    if len(rows) > _SHOWN:
        table.caption = f"the {_SHOWN} sites that the sums tell most of; {len(rows) - _SHOWN} more in the report"
    return table


def figure(error: float) -> str:
    """Return an error as a column shows it.

    >>> figure(0.25), figure(3e-16)
    ('0.250', '3e-16')
    """
    return f"{error:.3f}" if 1e-3 <= error < 1000 else f"{error:.0e}"
