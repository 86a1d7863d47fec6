"""``fedspan fit`` of labelled rows: learn a representation, and say how well each site is predicted."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import Any

from rich.table import Table

from fedspan import __version__
from fedspan.cli.output import (
    counted,
    labelled,
    note,
    plain_table,
    program,
    say,
    say_exactly,
    watching_rounds,
)
from fedspan.cli.runs import MODEL, finish, keeping
from fedspan.data.labelled import Labelled
from fedspan.estimators import FederatedRepresentation
from fedspan.estimators.remarks import remarks_on
from fedspan.estimators.site_scores import SiteScores
from fedspan.learners.choices import learner_as_plain
from fedspan.learning import START, LearnedModel, learn
from fedspan.learning_file import LearningFile
from fedspan.progress import human_bytes
from fedspan.sites import LEDGER

_AROUND = 3  # describe, agree, evaluate
SHOWN = 12
"""Of more sites than that, only the worst and the best are listed."""


def learn_into(folder: Path, described: LearningFile, *, resume: bool, again: str) -> dict[str, Any]:
    """Run a study of labelled rows in a folder."""
    sources, started = described.open_sources(), time.perf_counter()
    with (
        keeping(folder, described.path, resume=resume, again=again),
        watching_rounds(described.name, _budget(described)) as watch,
    ):
        result = learn(
            described.study(), sources, engine=described.execution, folder=folder, resume=resume,
            privacy=described.privacy, watchers=[watch],
        )  # fmt: skip
    model = representation_of(described, result, sources)
    remarks = [text for _, text in remarks_on(model)]
    for remark in remarks:
        note(f"Warning: {remark}.")
    summary = {**summarise(described, model, result, time.perf_counter() - started), "warnings": remarks}
    finish(folder, model, summary)
    return {**summary, "folder": str(folder), "model": str(folder / MODEL)}


def _budget(described: LearningFile) -> int | None:
    """Return the most rounds a run can take, where the study says it."""
    if hasattr(described.learner, "stage") or described.start == "moments":
        return None
    rounds, every = described.learner.rounds, described.evaluate_every
    return int(rounds + _AROUND + (0 if every is None else ceil(rounds / every)))


def representation_of(
    described: LearningFile, result: LearnedModel, sources: Mapping[str, Labelled]
) -> FederatedRepresentation:
    """Return a fitted estimator, as if it had made the run itself.

    The label and what was dropped are kept with it, so that ``fedspan predict`` reads a site's file as the study did.
    """
    model = FederatedRepresentation(
        model=described.model, learner=described.learner, start=described.start,
        participation=None if described.cohort.is_full else described.cohort, random_state=described.seed,
        tune=described.tune, evaluate_every=described.evaluate_every,
    )  # fmt: skip
    model._learn(result, sources)
    model.label_ = described.label
    model.dropped_ = sorted({*described.drop, *(name for site in described.sites.values() for name in site.drop)})
    return model


def summarise(
    described: LearningFile, model: FederatedRepresentation, result: LearnedModel, seconds: float
) -> dict[str, Any]:
    """Return what a run learnt and took, as plain data."""
    return {
        "name": described.name, "estimator": type(model).__name__, "solver": described.solver,
        "settings": learner_as_plain(described.learner)["settings"], "model_settings": described.model,
        "n_components": model.n_components_, "n_features": model.n_features_in_,
        "n_rows": sum(site["rows"] for site in model.sites_.values()), "n_sites": len(model.sites_),
        "classes": None if model.classes_ is None else model.classes_.tolist(),
        "loss": model.loss_, "converged": model.converged_, "diverged": model.diverged_,
        "unheard_sites": model.unheard_sites_,
        "fairness": model.fairness_, "sites": dict(model.site_scores_),
        "curve": [
            {"round": point["round"], "clock": point["clock"], **point["scores"].fairness} for point in model.curve_
        ],
        "single_class_sites": model.single_class_sites_, "unseen_labels": model.unseen_labels_,
        "rounds": result.rounds, "setup_rounds": result.setup_rounds, "bytes_up": result.bytes_up,
        "bytes_down": result.bytes_down, "seconds": round(seconds, 4), "clock": result.clock,
        "start": model.start_, "privacy": model.privacy_spent_, "fedspan": __version__,
    }  # fmt: skip


# ---- for people ------------------------------------------------------------------------------------


def show_learning(summary: dict[str, Any], described: LearningFile) -> None:
    """Print what a run learnt and took."""
    s, scores = summary, SiteScores(summary["sites"])
    rows_of = f"{counted(s['n_rows'], 'row')} of {counted(s['n_features'], 'feature')}"
    state = {True: "; its loss stalled", False: "; stopped at its budget, its loss still falling", None: ""}
    setup = f"and {s['setup_rounds']} to agree, begin and measure"
    rows = [
        ("study", f"{s['name']}: {rows_of} at {counted(s['n_sites'], 'site')}"),
        ("learner", f"{_learner(s)}{state[s['converged']]}"),
        ("model", _model(s)),
        ("rounds", f"{s['rounds']}, {setup}; {s['seconds']:.2f} s"),
        *([] if s["clock"] is None else [("virtual time", f"{s['clock']:.4g} s, as the study's speeds have it")]),
        ("traffic", f"{human_bytes(s['bytes_up'])} from the sites, {human_bytes(s['bytes_down'])} to them"),
        (s["fairness"]["measure"], _fairness(s["fairness"], scores)),
    ]
    if s["privacy"]:
        spent, ledger = s["privacy"]["spent_epsilon"], Path(s["folder"]) / START / LEDGER
        rows += [
            ("privacy", s["privacy"]["words"]),
            ("spent", f"epsilon {spent:.4g} of {s['privacy']['epsilon']:g} by the start, see {ledger}"),
        ]
    name = next(iter(described.sites))
    example = shlex.quote(str(described.sites[name].path))
    rows += [
        ("kept in", s["folder"]),
        ("next", f"{program()} predict {shlex.quote(s['model'])} {example} --site {shlex.quote(name)}"),
    ]
    say_exactly(*labelled(rows), "")
    say(site_table(scores))


def site_table(scores: SiteScores) -> Table:
    """Return the figures of each site; of many only the worst and the best."""
    table = plain_table("site", "rows", scores.measure)
    table.add_column("", justify="left")
    names, half = list(scores), SHOWN // 2
    if len(names) > SHOWN:
        ranked = scores.ranked
        names = [*ranked[:half], "", *ranked[-half:]]
    for name in names:
        if not name:
            table.add_row(f"... {len(scores) - 2 * half} more", "", "", "")
            continue
        table.add_row(name, f"{scores[name]['rows']:,}", scores.shown(name), scores.remark(name))
    if len(scores) > SHOWN:
        table.caption = f"the {half} worst and the {half} best; summary.json has all"
    return table


def _learner(summary: dict[str, Any]) -> str:
    stage = summary["settings"].get("stage")
    return str(summary["solver"]) + ("" if stage is None else f", in stages of {stage['kind']}")


def _model(summary: dict[str, Any]) -> str:
    classes = summary["classes"]
    outputs = "numbers" if classes is None else f"{len(classes)} {'class' if len(classes) == 1 else 'classes'}"
    kind = summary["model_settings"]["kind"]
    return f"{kind}; a representation of {counted(summary['n_components'], 'number')}, to predict {outputs}"


def _fairness(fairness: dict[str, Any], scores: SiteScores) -> str:
    def shown(figure: float) -> str:
        return f"{figure:.1%}" if fairness["measure"] == "accuracy" else f"{figure:.4g}"

    on = {figures["on"] for figures in scores.values()}
    where = f"{on.pop()} rows" if len(on) == 1 else "test rows where a site has any, else training rows"
    return (
        f"worst {shown(fairness['worst'])} ({fairness['worst_site']}), median {shown(fairness['median'])}, best "
        f"{shown(fairness['best'])} ({fairness['best_site']}); on {where}"
    )
