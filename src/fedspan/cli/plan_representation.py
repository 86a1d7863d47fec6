"""``fedspan plan`` of a study of labelled rows: its rounds and bytes, from headers alone."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fedspan.cli.headers import read_header
from fedspan.cli.output import bold, counted, say
from fedspan.cli.plan_table import privacy_table, rounds_table
from fedspan.errors import ConfigurationError, DataError, nearest
from fedspan.learners.choices import learner_as_plain
from fedspan.learning_file import LearningFile
from fedspan.learning_plan import LearningPlan, Outline, plan_learning
from fedspan.study_file import column_names, prefixed


def planned(described: LearningFile, classes: int | None, rows: int | None, features: int | None) -> LearningPlan:
    """Return the plan of a study: its columns from the files' headers, its classes as they are stated."""
    if classes is None and described.model["kind"] != "linear":
        raise ConfigurationError(
            "how many classes there are is in the labels, which a plan does not read: state it, as in --classes 10"
        )
    if classes is not None and (classes < 1 or described.task == "numbers"):
        raise ConfigurationError(f"--classes {classes}: a number of classes, for a study whose task is not numbers")
    columns: tuple[str, ...] | None = None
    if features is None:
        columns, features = _columns(described)
    sites = tuple(described.sites)
    outline = Outline(sites=sites, features=features, columns=columns, classes=classes, rows=rows)
    return plan_learning(described.study(), outline, described.privacy)


def _columns(described: LearningFile) -> tuple[tuple[str, ...] | None, int]:
    """Return the columns of the first site, whose order all others follow; of its file only the header is read."""
    name, site = next(iter(described.sites.items()))
    dropped, label = {*described.drop, *site.drop}, described.label
    with prefixed(f"site {name!r}: "):
        names = column_names(site)
        if names is None:
            return None, read_header(site, (*described.drop, *site.drop), None).width - 1
        kept = [column for column in names if column not in dropped]
        if isinstance(label, int):
            del kept[label]
        elif label in kept:
            kept.remove(label)
        else:
            raise DataError(f"there is no column {label!r} to predict; {nearest(label, kept)}")
        return tuple(kept), len(kept)


def as_data(described: LearningFile, plan: LearningPlan) -> dict[str, Any]:
    """Return a plan as plain data."""
    return {
        "name": described.name, "estimator": described.estimator, "solver": described.solver,
        "settings": learner_as_plain(described.learner)["settings"], "model_settings": described.model,
        "n_features": plan.features, "classes": plan.classes, "parameters": plan.parameters,
        "rounds": [asdict(r) for r in plan.rounds], "bytes_up": plan.bytes_up, "bytes_down": plan.bytes_down,
        "privacy": None if plan.start is None or plan.start.privacy is None else plan.start.privacy.as_plain(),
    }  # fmt: skip


def show(described: LearningFile, plan: LearningPlan) -> None:
    """Print a plan for people."""
    rounds = sum(not r.setup for r in plan.rounds)
    outputs = "numbers" if plan.classes is None else f"{plan.classes} classes"
    say(
        bold(
            described.name,
            f": {described.solver} of a model of kind {described.model['kind']}, "
            f"{counted(plan.features, 'feature')} to {outputs}; {plan.parameters:,} parameters are shared by "
            f"{counted(len(described.sites), 'site')}. At most "
            f"{counted(rounds, 'round')} and {len(plan.rounds) - rounds} to agree, begin and measure:",
        ),
        "",
        rounds_table(plan),
    )
    if plan.start is not None and plan.start.privacy is not None:
        say("", f"Of the start only: {plan.start.privacy.words}", "", privacy_table(plan.start.privacy))
    if plan.classes is None and described.task is None and plan.start is None:
        say("", "If y is classes, say how many with --classes: a linear model then has an output for each.")
