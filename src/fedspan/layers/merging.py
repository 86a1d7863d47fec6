"""What `Merge` rounds remember: the newest value of every site, whichever round it came in.

Below this layer such a round is a `Gather`: the coordinator, or the nodes of a tree that run in its process, see each
site's value, and the journal keeps those, so a resumed run remembers as an uninterrupted one. The solver is given what
the root of the tree has.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from fedspan.reduce import Gather, Merge
from fedspan.rounds import Outcome, Round, Solve
from fedspan.topology import Tree

T = TypeVar("T")


def merging(solve: Solve[T]) -> Solve[T]:
    """Combine what came so far, with the nodes that nothing new came to as they were."""
    outcome: Outcome | None = None
    trees: dict[str, Tree] = {}
    while True:
        try:
            question: Round = solve.send(outcome)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        if not isinstance(question.reduce, Merge):
            outcome = yield question
            continue
        tree = trees.setdefault(question.step.name, question.reduce.tree())
        outcome = yield replace(question, reduce=Gather())
        for site, value in outcome.value.items():
            tree.put(site, value)
        outcome = outcome._replace(value=tree.root())
