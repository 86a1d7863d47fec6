"""``fedspan fit``: run a study and keep the run in a folder."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from fedspan.cli.fit_representation import learn_into, show_learning
from fedspan.cli.output import (
    Json,
    counted,
    labelled,
    note,
    plain_table,
    print_json,
    program,
    say,
    say_exactly,
    watching_rounds,
)
from fedspan.cli.runs import (
    COPY,
    MODEL,
    finish,
    folder_name,
    folder_to_resume,
    folder_to_start,
    keeping,
    model_of,
    summarise,
)
from fedspan.data import Source
from fedspan.errors import ResumeError
from fedspan.learning_file import LearningFile, is_learning, load_learning, parse_learning
from fedspan.privacy.guarantee import transcript_warning
from fedspan.progress import human_bytes
from fedspan.run import Result, run
from fedspan.sites import LEDGER
from fedspan.study_file import StudyFile, load_study, parse_study

Described = StudyFile | LearningFile
_SETUP_ROUNDS = 4  # at most: describe, moments, spread, prepare
_SHOWN = 10


def fit(
    study: Annotated[Path, typer.Argument(help="The study file (TOML).", show_default=False)],
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run that did not finish.")] = False,
    folder: Annotated[
        Path | None,
        typer.Option(help="The run folder, as named (default: the study's name, numbered, in the folder it gives)."),
    ] = None,
    json: Json = False,
) -> None:
    """Run a study: find the components, or learn the representation, that the sites share; keep the run in a folder."""
    described: Described = load_learning(study) if is_learning(study) else load_study(study)
    default = described.folder / folder_name(described.name)
    chosen = folder_to_resume(default, folder) if resume else folder_to_start(default, folder)
    if resume:
        check_unchanged(described, chosen)
    again = f"{program()} fit {shlex.quote(str(study))} --resume"
    again += "" if folder is None else f" --folder {shlex.quote(str(folder))}"
    if isinstance(described, LearningFile):
        summary = learn_into(chosen, described, resume=resume, again=again)
    else:
        summary = run_into(chosen, described, resume=resume, again=again)
    if json:
        print_json(summary)
    elif isinstance(described, LearningFile):
        show_learning(summary, described)
    else:
        show_summary(summary, described)


def check_unchanged(now: Described, folder: Path) -> None:
    """Refuse to resume where the study file differs from the copy in the run folder."""
    copy = folder / COPY
    if not copy.exists():
        raise ResumeError(f"{folder} has no {COPY}, so it is not known which study began there; start it anew")
    before = copy.read_bytes()
    if isinstance(now, LearningFile):
        changed = now.changes(parse_learning(before, now.path))
    else:
        changed = now.changes(parse_study(before, now.path))
    if changed:
        raise ResumeError(
            f"{now.path}: the study changed since the run in {folder} began: {', '.join(changed)}; "
            f"restore it (its copy is {copy}), or start anew with another --folder"
        )


def run_into(folder: Path, described: StudyFile, *, resume: bool, again: str) -> dict[str, Any]:
    """Run a study in a folder. A run that could not go on anyway leaves nothing behind; ``again`` resumes it."""
    sources, started = described.open_sources(), time.perf_counter()
    if described.record == "transcript":
        note(f"Warning: {transcript_warning(described.privacy)}.")
    telling = None if described.gossip is not None else described.study().telling_sums(len(sources))
    if telling is not None:
        note(f"Warning: {telling}.")
    with (
        keeping(folder, described.path, resume=resume, again=again),
        watching_rounds(described.name, _budget(described)) as watch,
    ):
        result = run(
            described.study(), sources, engine=described.execution, folder=folder, resume=resume,
            record=described.record, watchers=[watch],
        )  # fmt: skip
    return _keep(folder, described, sources, result, time.perf_counter() - started, telling)


def _budget(described: StudyFile) -> int | None:
    """Return the most rounds a run can take, where the study says it."""
    rounds = getattr(described.solver, "rounds", None)
    if not isinstance(rounds, int) or not isinstance(described.n_components, int):
        return None
    return None if hasattr(described.solver, "stage") else rounds + _SETUP_ROUNDS


def _keep(
    folder: Path,
    described: StudyFile,
    sources: Mapping[str, Source],
    result: Result,
    seconds: float,
    telling: str | None,
) -> dict[str, Any]:
    dropped = {*described.drop, *(name for site in described.sites.values() for name in site.drop)}
    model = model_of(described.estimator, described.study(), sources, result, dropped=tuple(sorted(dropped)))
    auto = described.solver == "auto"
    summary = summarise(described.name, model, result, seconds=seconds, auto=auto)
    if summary["secure"] is not None:
        summary["secure"]["warning"] = telling
    finish(folder, model, summary)
    return {**summary, "folder": str(folder), "model": str(folder / MODEL)}


# ---- for people ------------------------------------------------------------------------------------


def show_summary(summary: dict[str, Any], described: StudyFile) -> None:
    """Print what a run found and took."""
    s = summary
    rows_of = f"{counted(s['n_rows'], 'row')} of {counted(s['n_features'], 'feature')}"
    about = "about " if s["privacy"] is not None and not s["rows"] else ""
    chosen = ", chosen by auto" if s["solver_chosen_by"] == "auto" else ""
    state = {True: "converged", False: "stopped at its budget, NOT converged", None: "no tolerance to meet"}
    rows = [
        ("study", f"{s['name']}: {about}{rows_of} at {counted(s['n_sites'], 'site')}"),
        ("solver", f"{s['solver']}{chosen}; {state[s['converged']]}"),
        ("rounds", f"{s['rounds']}, and {s['setup_rounds']} to set up; {s['seconds']:.2f} s"),
        *([] if s["clock"] is None else [("virtual time", f"{s['clock']:.4g} s, as the study's speeds have it")]),
        *_traffic(s),
        ("found", _found(s)),
    ]
    if s["secure"]:
        rows.append(("secure", _secured(s["secure"])))
    if s["stopped"]:
        rows.append(("stopped", f"at the last estimate: {s['stopped']}"))
    if s["privacy"]:
        rows += [("privacy", s["privacy"]["words"]), ("spent", _spent(s["privacy"], Path(s["folder"]) / LEDGER))]
    if s["missing"]:
        rows.append(("filled", ", ".join(f"{site} {share:.1%}" for site, share in s["missing"].items())))
    example = shlex.quote(str(next(iter(described.sites.values())).path))
    rows += [
        ("kept in", s["folder"]),
        ("next", f"{program()} transform {shlex.quote(s['model'])} {example}"),
    ]
    say_exactly(*labelled(rows), "")
    say(_components(s))


def _traffic(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what travelled; without a coordinator, between whom."""
    up, down, nodes = human_bytes(summary["bytes_up"]), human_bytes(summary["bytes_down"]), summary["nodes"]
    if nodes is None:
        return [("traffic", f"{up} from the sites, {down} to them")]
    lost = f"; crashed: {', '.join(nodes['crashed'])}" if nodes["crashed"] else ""
    return [
        ("traffic", f"{up} between neighbours, in {counted(nodes['steps'], 'exchange')}"),
        ("nodes", f"{nodes['alive']}, whose answers differ by at most {nodes['disagreement']:.1e}{lost}"),
    ]


def _secured(secure: dict[str, Any]) -> str:
    """Return how the sums were made."""
    words = f"the coordinator saw {counted(secure['sums'], 'sum')}, and no site's reply"
    words += f"; {counted(secure['dropped'], 'drop-out')}" if secure["dropped"] else ""
    words += f"; {counted(secure['asked_again'], 'sum')} asked again" if secure["asked_again"] else ""
    words += "".join(f"; {site} refused: {why}" for site, why in secure["refused"].items())
    return f"{words}; rounding at most {secure['rounding']:.2g}"


def _spent(privacy: dict[str, Any], ledger: Path) -> str:
    if privacy["spent_epsilon"] is None:
        return f"no epsilon can be told, as no guarantee is established; {ledger} has the charges"
    return f"epsilon {privacy['spent_epsilon']:.4g} of {privacy['epsilon']:g}, see {ledger}"


def _found(summary: dict[str, Any]) -> str:
    shares = summary["explained_variance_ratio"]
    share = (
        "; their share of the variance was not released"
        if shares is None
        else f" with {sum(shares):.1%} of the variance"
    )
    return f"{counted(summary['n_components'], 'component')}{share}"


def _components(summary: dict[str, Any]) -> Table:
    value = "singular value" if summary["explained_variance"] is None else "variance"
    table = plain_table("component", value, "share", "together")
    variances, shares = summary["explained_variance"], summary["explained_variance_ratio"]
    variances = summary["singular_values"] if variances is None else variances
    together = None if shares is None else np.cumsum(shares)
    for i, variance in enumerate(variances[:_SHOWN]):
        parts = ("", "") if shares is None or together is None else (f"{shares[i]:.1%}", f"{together[i]:.1%}")
        table.add_row(str(i + 1), f"{variance:.4g}", *parts)
    if len(variances) > _SHOWN:
        table.add_row(f"... {len(variances) - _SHOWN} more", "", "", "")
    return table
