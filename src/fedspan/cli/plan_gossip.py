"""The plan of a study without a coordinator, for people and for machines."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from typing import Any

from rich.table import Table

from fedspan.cli.output import counted, plain_table
from fedspan.gossip_plan import GossipPlan
from fedspan.progress import human_bytes


def as_data(plan: GossipPlan) -> dict[str, Any]:
    """Return a plan as plain data."""
    return {**asdict(plan), "gap": plan.gap, "noise": plan.noise, "bytes_all": plan.bytes_all}


def gossip_table(plan: GossipPlan) -> Table:
    """Return the rounds of a plan, equal ones as one line."""
    table = plain_table("rounds", "step", "exchanges", "from a node", "over all links", left=2)
    for _, group in groupby(enumerate(plan.rounds), key=lambda pair: pair[1]):
        numbers, same = zip(*group, strict=True)
        first, last, r = numbers[0] + 1, numbers[-1] + 1, same[0]
        table.add_row(
            str(first) if first == last else f"{first}-{last}", r.step, str(r.exchanges), human_bytes(r.bytes_node),
            human_bytes(len(same) * r.bytes_all),
        )  # fmt: skip
    table.add_section()
    table.add_row("in all", "", str(sum(r.exchanges for r in plan.rounds)), "", human_bytes(plan.bytes_all))
    return table


def gossip_words(plan: GossipPlan) -> list[str]:
    """Return the graph and what it stands, in sentences."""
    least, most = plan.degrees
    neighbours = str(most) if least == most else f"{least} to {most}"
    lines = [
        f"No coordinator: {counted(plan.nodes, 'node')} on a {plan.graph} graph, each with {neighbours} neighbours, "
        f"{plan.diameter} links across. Spectral gap {plan.gap:.3g} (second eigenvalue {plan.sigma:.4f}): "
        f"{counted(plan.exchanges, 'exchange')} for a sum to {plan.accuracy:g}, where plain averaging takes "
        f"{plan.plain_exchanges:,}.",
        f"It stands the crash of any {plan.stands}." if plan.stands > 0 else "A single crash may cut it.",
    ]
    if plan.honest is not None and plan.noise is not None:
        dearer = f"{plan.noise:.3g} times that of counting on all" if plan.noise > 1 else "no more than central noise"
        lines.append(
            f"Of the noise {counted(plan.honest, 'honest node')} are enough, so up to {plan.nodes - plan.honest} may "
            f"collude or crash; in a sum it is {dearer}."
        )
    return lines
