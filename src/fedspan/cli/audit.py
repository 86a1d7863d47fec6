"""``fedspan audit``: what a study's coordinator could learn of each site, measured."""

from __future__ import annotations

import json as json_format
import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedspan.cli.audit_sums import audit_of_sums, figure, names_of, show_sums
from fedspan.cli.audit_truth import TrueGrams, check_finished, check_rows, published
from fedspan.cli.fit import check_unchanged, run_into
from fedspan.cli.output import (
    Json,
    bold,
    note,
    plain_table,
    print_json,
    program,
    say,
    say_exactly,
    watching_steps,
)
from fedspan.cli.runs import COPY, folder_name, folder_to_start, privacy_warnings
from fedspan.data import Source
from fedspan.encoding import Array, write_atomically
from fedspan.errors import ConfigurationError
from fedspan.privacy.audit import ATTACKS, Audit, SiteAudit
from fedspan.privacy.audit import audit as audit_transcript
from fedspan.privacy.audit.epsilon import EmpiricalEpsilon, empirical_epsilon
from fedspan.privacy.audit.sums import SumsAudit
from fedspan.privacy.gaussian import Bounds, GaussianPrivacy
from fedspan.privacy.guarantee import TESTING
from fedspan.privacy.transcript import Transcript
from fedspan.solvers import ModSulq, Solver, StreamingModSulq
from fedspan.study_file import StudyFile, load_study

REPORT, PICTURE = "audit.json", "audit.png"
_SHOWN, _PANELS, _ACROSS = 10, 6, 3
_TOP = 10.0  # a guess worse than this is off the picture
PUBLISHED = "published noise has no empirical epsilon here: only the tight calibration is run on worst-case neighbours"


def audit(
    study: Annotated[Path, typer.Argument(help="The study file (TOML).", show_default=False)],
    run: Annotated[
        Path | None,
        typer.Option(help="A finished run's folder, with a transcript (default: run the study now).", metavar="FOLDER"),
    ] = None,
    known: Annotated[
        int | None, typer.Option(help="Entries of the pooled A'A that an outsider knows (default: 4 per component).")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where to keep the run and the report (default: as fit does, or --run's).")
    ] = None,
    runs: Annotated[
        int, typer.Option(help="Runs for the empirical epsilon of a private study (0: leave it out).")
    ] = 500,
    colluding: Annotated[
        str, typer.Option(help="Sites that show the coordinator all they know, where sums are secure.", metavar="A,B")
    ] = "",
    json: Json = False,
) -> None:
    """Measure what a coordinator could learn of each site's data from a study's releases."""
    if runs < 0 or 0 < runs < 50:
        raise ConfigurationError(f"--runs is 0, or at least 50 to tell anything; got {runs}")
    if known is not None and known < 1:
        raise ConfigurationError(f"--known is the number of entries that an outsider knows, at least 1; got {known}")
    described = load_study(study)
    warned = _warned(described.privacy, new=run is None, runs=runs)
    kept = _run_now(described, study, folder) if run is None else run
    transcript = Transcript.read(kept)
    if run is not None and (run / COPY).exists():
        check_unchanged(described, run)
    sources = described.open_sources()
    grams = TrueGrams(sources, transcript)
    if run is not None:
        check_finished(run)
        check_rows(run, {name: sources[name] for name in grams})
    found = _found(described, transcript, sources, grams, published(kept), known, names_of(colluding))
    out = kept if run is None or folder is None else folder
    empirical = empirical_of(described, found.features, runs) if runs and _is_audited(described.privacy) else None
    files = _write(out, described.name, found)
    if json:
        print_json({
            "name": described.name, "folder": str(kept), "files": files, "warnings": warned,
            "empirical": None if empirical is None else asdict(empirical), **found.to_dict(),
        })  # fmt: skip
        return
    if isinstance(found, SumsAudit):
        show_sums(described.name, found)
    else:
        show_audit(described.name, found)
    if described.privacy is not None and runs:
        say("", *_privacy_words(described.privacy, empirical))
    say_exactly("", f"Kept in {', '.join(files.values())}")


def _found(
    described: StudyFile,
    transcript: Transcript,
    sources: Mapping[str, Source],
    grams: TrueGrams,
    result: Array | None,
    known: int | None,
    colluding: list[str],
) -> Audit | SumsAudit:
    """Attack what the coordinator saw: single replies, or secure sums."""
    if not transcript.sums and colluding:
        raise ConfigurationError(
            "--colluding is about secure sums, and in this run the coordinator saw each site's replies; leave it out"
        )
    steps = len(transcript.sites) + (1 if transcript.sums else 0) + bool(colluding)
    with watching_steps(f"audit of {described.name}", steps) as begin:
        if transcript.sums:
            return audit_of_sums(described, transcript, sources, grams, result, known, colluding, begin)
        return audit_transcript(transcript, grams, result, known, seed=described.seed, on_site=begin)


def _warned(privacy: GaussianPrivacy | None, *, new: bool, runs: int) -> list[str]:
    """Warn of what the audit spends and of what it cannot tell, once and before it begins; return what was said."""
    warned = privacy_warnings(privacy, int(new), kept=True)
    if privacy is not None and runs and not _is_audited(privacy):
        warned.append(PUBLISHED)
    for text in warned:
        note(f"Warning: {text}.")
    return warned


def _is_audited(privacy: GaussianPrivacy | None) -> bool:
    """Whether the empirical epsilon is about a study's noise: runs are made with fedspan's own, not with a paper's."""
    return privacy is not None and privacy.calibration == "tight"


def empirical_of(described: StudyFile, features: int, runs: int) -> EmpiricalEpsilon:
    """Return an empirical lower bound on epsilon for a study's mechanism, on tiny worst-case neighbours.

    At epsilon 8 and delta 0.01: a few hundred runs can tell something there, and the code that adds noise is the same.
    Where fewer sites' noise is counted on than there are, one of three sites colludes, and takes its own part off.
    """
    given = described.privacy
    assert given is not None
    norm = given.row_norm
    if isinstance(norm, Bounds):
        norm = given.row_bounds(features, centred=True, scaled=False).norm
    colluding = int(given.trust == "distributed" and given.honest is not None)
    honest = 2 if colluding else None
    terms = replace(given, epsilon=8.0, delta=1e-2, row_norm=norm, honest=honest, testing_seed=None)
    return empirical_epsilon(terms, _audited_as(described.solver), runs, seed=None, colluding=colluding)


def _audited_as(solver: str | Solver) -> str | Solver:
    """Return the solver whose release is tried: a block's is that of mod-sulq, about the block's rows."""
    chosen = StreamingModSulq() if solver == "streaming-mod-sulq" else solver
    if isinstance(chosen, StreamingModSulq):
        return ModSulq(oversampling=chosen.oversampling, slice_width=chosen.slice_width, merge=chosen.merge)
    return "covariance" if chosen == "auto" else chosen


def empirical_words(found: EmpiricalEpsilon) -> str:
    """Return in words what many runs proved."""
    verdict = "within what is certified" if found.ok else "ABOVE what is certified: the mechanism is at fault"
    return (
        f"Empirically, {2 * found.runs} runs of this mechanism on worst-case neighbours show an epsilon of at least "
        f"{found.lower_bound:.2f} where {found.certified:.2f} is certified (delta {found.delta:g}, confidence "
        f"{found.confidence:.2%}): {verdict}."
    )


def _privacy_words(privacy: GaussianPrivacy, empirical: EmpiricalEpsilon | None) -> list[str]:
    """Return what many runs proved, with what is no privacy in the study itself."""
    words = [f"Not audited: {PUBLISHED}." if empirical is None else empirical_words(empirical)]
    if privacy.testing_seed is not None:
        words.append(f"The study itself is {TESTING}. These runs drew theirs afresh.")
    return words


def _run_now(described: StudyFile, study: Path, folder: Path | None) -> Path:
    """Run the study with its transcript kept (which `run_into` warns about), and return the run folder."""
    chosen = folder_to_start(described.folder / folder_name(described.name), folder)
    again = (
        f"{program()} fit {shlex.quote(str(study))} --resume --folder {shlex.quote(str(chosen))} (with record = "
        f'"transcript" in [run]), then audit it with --run'
    )
    run_into(chosen, replace(described, record="transcript"), resume=False, again=again)
    return chosen


# ---- for people ------------------------------------------------------------------------------------


def show_audit(name: str, found: Audit) -> None:
    """Print the table and the verdicts."""
    d = found.features
    say(
        bold(name, f": what {len(found.sites)} sites' releases tell of their {d:,} x {d:,} matrices A_i'A_i."),
        "Error is ||guess - A_i'A_i|| / ||A_i'A_i||: 1 is no better than guessing nothing.",
        "",
        _table(found),
        "",
    )
    say(*found.verdicts)


def _worst(found: Audit) -> list[SiteAudit]:
    """Return the sites that were scored, the best reconstructed first."""
    scored = [site for site in found.sites.values() if site.curves]
    return sorted(scored, key=lambda site: min(curve.least for curve in site.curves.values()))


def _table(found: Audit) -> Table:
    table = plain_table("site", "attack", "last error", "least error", "at round", left=1)
    worst = _worst(found)
    shown = {site.site for site in worst[:_SHOWN]}
    before = None
    for row in found.table():
        if row["site"] in shown:
            site = "" if row["site"] == before else row["site"]
            table.add_row(site, row["attack"], figure(row["last"]), figure(row["least"]), str(row["round"]))
            before = row["site"]
    if len(worst) > _SHOWN:
        table.caption = f"the {_SHOWN} sites that are reconstructed best; {len(worst) - _SHOWN} more in {REPORT}"
    return table


def _write(folder: Path, name: str, found: Audit | SumsAudit) -> dict[str, str]:
    """Write the report and, where matplotlib is installed, the picture."""
    text = json_format.dumps({"name": name, **found.to_dict()}, indent=1)
    write_atomically(folder / REPORT, (text + "\n").encode())
    files = {"report": str(folder / REPORT)}
    worst = [some for some in (found.whole, found.rest) if some] if isinstance(found, SumsAudit) else _worst(found)
    panels = [_panel(site) for site in worst[:_PANELS] if site.curves]
    try:
        from fedspan.cli.plots import write_curves
    except ImportError:
        note("No picture: it needs matplotlib. Install fedspan[plots] and audit the run again with --run.")
        return files
    if panels:
        write_curves(
            folder / PICTURE, f"{name}: reconstruction error against round", panels,
            x="round (set-up rounds included)", y="relative error of A_i'A_i", across=_ACROSS, top=_TOP,
        )  # fmt: skip
        files["picture"] = str(folder / PICTURE)
    return files


def _panel(site: SiteAudit) -> dict[str, Any]:
    curves = [
        {
            "label": attack, "values": site.curves[attack].errors, "at": site.curves[attack].rounds, "colour": at,
            "dashed": attack == ATTACKS[0],
        }
        for at, attack in enumerate(ATTACKS)
        if attack in site.curves
    ]  # fmt: skip
    return {"title": site.site, "curves": curves}
