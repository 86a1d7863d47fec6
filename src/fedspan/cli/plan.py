"""``fedspan plan``: the rounds and bytes of a study, before it runs."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedspan.cli.output import Json, bold, counted, plain_table, print_json, say
from fedspan.plan import Plan, PlannedRound, make_plan
from fedspan.privacy.guarantee import Guarantee
from fedspan.progress import human_bytes
from fedspan.solvers import NAMES, settings_of
from fedspan.study_file import load_study


def plan(
    study: Annotated[Path, typer.Argument(help="The study file (TOML).", show_default=False)],
    json: Json = False,
) -> None:
    """List the rounds a study will take at most, and the bytes of each, before it runs."""
    described = load_study(study)
    made = make_plan(described.study(), described.open_sources())
    if json:
        print_json({"name": described.name, **as_data(made)})
    else:
        show(described.name, made)


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
    }


def show(name: str, plan: Plan) -> None:
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
        _table(plan),
        "",
        f"Memory: about {human_bytes(plan.coordinator_memory)} at the coordinator, "
        f"{human_bytes(plan.site_memory)} at a site beside its data.",
    )
    if plan.privacy is not None:
        say("", plan.privacy.words, "", privacy_table(plan.privacy))
    if plan.first_rank_only:
        say(
            f"The study chooses the number of components: this is its first try, {plan.n_components}; "
            "it doubles until enough are found."
        )


def _table(plan: Plan) -> Table:
    headings = ("step", "coordinator sees", "sites", "up, a site", "down", "up, all sites", "down")
    table = plain_table("rounds", *headings, left=2)
    for numbers, r in _runs(plan.rounds):
        first, last = numbers[0] + 1, numbers[-1] + 1
        times = len(numbers)
        table.add_row(
            str(first) if times == 1 else f"{first}-{last}", r.step, "each reply" if r.gathered else "the sum",
            str(r.sites), human_bytes(r.up), human_bytes(r.down), human_bytes(times * r.bytes_up),
            human_bytes(times * r.bytes_down),
        )  # fmt: skip
    table.add_section()
    table.add_row("in all", "", "", "", "", "", human_bytes(plan.bytes_up), human_bytes(plan.bytes_down))
    return table


def privacy_table(promised: Guarantee) -> Table:
    """Return what each release costs of the budget, and the noise on each of its numbers."""
    table = plain_table("release", "step", "times", "share of mu^2", "noise on the sum", left=2)
    for r in promised.releases:
        table.add_row(r.release, r.step, str(r.times), f"{r.share:.1%}", f"{r.sigma:.4g}")
    table.caption = "noise: the deviation on each number, in the units of the release"
    return table


def _runs(rounds: list[PlannedRound]) -> list[tuple[list[int], PlannedRound]]:
    """Return equal rounds that follow each other as one entry, with their numbers."""
    grouped = groupby(enumerate(rounds), key=lambda pair: pair[1])
    return [([number for number, _ in pairs], r) for r, pairs in ((r, list(g)) for r, g in grouped)]
