"""``fedspan plan``: the rounds and bytes of a study, before it runs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from fedspan.cli import plan_gossip, plan_representation
from fedspan.cli.output import Json, bold, counted, print_json, say
from fedspan.cli.plan_table import masks_words, privacy_table, rounds_table
from fedspan.errors import ConfigurationError
from fedspan.gossip_plan import GossipPlan
from fedspan.gossip_plan import plan_gossip as plan_gossip_study
from fedspan.learning_file import is_learning, load_learning
from fedspan.plan import Plan, make_plan
from fedspan.progress import human_bytes
from fedspan.solvers import NAMES, settings_of
from fedspan.study_file import load_study


def plan(
    study: Annotated[Path, typer.Argument(help="The study file (TOML).", show_default=False)],
    classes: Annotated[
        int | None, typer.Option(help="Of a representation: how many classes there are.", show_default=False)
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(help="Of a representation with a private start: rows at all sites.", min=1, show_default=False),
    ] = None,
    features: Annotated[
        int | None,
        typer.Option(help="Of a representation: columns without the label (default: headers).", min=1),
    ] = None,
    json: Json = False,
) -> None:
    """List the rounds a study will take at most, and the bytes of each, before it runs."""
    if is_learning(study):
        learning = load_learning(study)
        found = plan_representation.planned(learning, classes, rows, features)
        if json:
            print_json(plan_representation.as_data(learning, found))
        else:
            plan_representation.show(learning, found)
        return
    for option, value in (("--classes", classes), ("--rows", rows), ("--features", features)):
        if value is not None:
            raise ConfigurationError(f'{option} is for studies with estimator = "representation"; leave it out')
    described = load_study(study)
    if described.gossip is not None:
        made, gossip = plan_gossip_study(described.gossip, described.study(), described.open_sources())
    else:
        made, gossip = make_plan(described.study(), described.open_sources()), None
    if json:
        also = {} if gossip is None else {"gossip": plan_gossip.as_data(gossip)}
        print_json({"name": described.name, **as_data(made), **also})
    else:
        show(described.name, made, gossip)


def as_data(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain data."""
    return {
        "solver": NAMES[type(plan.solver)],
        "settings": settings_of(plan.solver),
        "n_components": plan.n_components,
        "first_rank_only": plan.first_rank_only,
        "n_features": plan.features,
        "rows": plan.rows,
        "rounds": [asdict(r) for r in plan.rounds],
        "bytes_up": plan.bytes_up,
        "bytes_down": plan.bytes_down,
        "site_memory": plan.site_memory,
        "coordinator_memory": plan.coordinator_memory,
        "privacy": None if plan.privacy is None else plan.privacy.as_plain(),
        "masks": None if plan.masks is None else asdict(plan.masks),
    }


def show(name: str, plan: Plan, gossip: GossipPlan | None = None) -> None:
    """Print a plan for people."""
    solver, rounds = NAMES[type(plan.solver)], sum(not r.setup for r in plan.rounds)
    say(
        bold(
            name,
            f": {counted(plan.n_components, 'component')} of {counted(plan.features, 'feature')} by {solver}; "
            f"{counted(sum(plan.rows.values()), 'row')} at {counted(len(plan.rows), 'site')}. "
            f"At most {counted(rounds, 'round')} and {len(plan.rounds) - rounds} to set up:",
        ),
        "",
        rounds_table(plan) if gossip is None else plan_gossip.gossip_table(gossip),
        "",
        _memory(plan) if gossip is None else _memory_of_a_node(plan),
    )
    if gossip is not None:
        say("", *plan_gossip.gossip_words(gossip))
    if plan.masks is not None:
        say("", masks_words(plan.masks))
        if plan.masks.warning is not None:
            say("", f"Warning: {plan.masks.warning}.")
    if plan.privacy is not None:
        say("", plan.privacy.words, "", privacy_table(plan.privacy))
    if plan.first_rank_only:
        say(
            f"The study chooses the number of components: this is its first try, {plan.n_components}; "
            "it doubles until enough are found."
        )


def _memory(plan: Plan) -> str:
    return (
        f"Memory: about {human_bytes(plan.coordinator_memory)} at the coordinator, "
        f"{human_bytes(plan.site_memory)} at a site beside its data."
    )


def _memory_of_a_node(plan: Plan) -> str:
    return f"Memory: about {human_bytes(plan.coordinator_memory + plan.site_memory)} at a node beside its data."
