"""The tables of a plan."""

from __future__ import annotations

from itertools import groupby

from rich.table import Table

from fedspan.cli.output import counted, plain_table
from fedspan.learning_plan import LearningPlan
from fedspan.plan import Plan, PlannedMasks, PlannedRound
from fedspan.privacy.guarantee import Guarantee
from fedspan.progress import human_bytes


def rounds_table(plan: Plan | LearningPlan) -> Table:
    """Return the rounds of a plan, equal ones as one line."""
    headings = ("step", "seen", "sites", "up, a site", "down", "up, all sites", "down")
    table = plain_table("rounds", *headings, left=2)
    table.columns[1].no_wrap = True  # on a narrow terminal other columns give way: a step's name is looked up
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


def masks_words(masks: PlannedMasks) -> str:
    """Return how the sums of a study are made secure, and what that costs beside bytes."""
    of = f"of at least {masks.fewest} of {counted(masks.sites, 'site')} ({masks.may_drop_out} may drop out of a round)"
    if not masks.may_drop_out:
        of = f"each of all {counted(masks.sites, 'site')} that a round waits for (none may drop out)"
    words = (
        f"Secure sums: the coordinator sees sums only, {of}. Each site shares masks with {masks.neighbours} others; "
        f"{masks.holders_needed} of those who hold its shares give a secret back."
    )
    if masks.noise is not None:
        more = f"{masks.noise:.3g} times" if masks.noise > 1 else "no more than"
        words += f" The noise on a sum of all is {more} that of one party who adds it alone."
    return words


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
