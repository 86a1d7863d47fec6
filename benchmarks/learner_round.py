"""One round of MNIST sites, 5 classes each: fedspan's learners beside a plain loop of torch.optim over the sites.

Both do the same work from the same parameters with the same batches: what they come to is compared first, in float64.
Then they take turns in float32; a ratio is the median over turns, of the clock on the wall and of this process's own
time, which others on the machine do not lengthen. The plain loop is what one writes with torch: one module that each
site's parameters are loaded into, batches cut from tensors by index, `torch.optim.SGD` over the parameters that move
while the others are frozen. Beside it: the same with SGD's ``fused=True``, for which one must ask.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from benchmarks.report import figure, finish
from benchmarks.representation_mnist import MODEL, sites
from fedspan.encoding import Array
from fedspan.engines import InProcess
from fedspan.learners import FedRep, LGFedAvg, Task
from fedspan.learners.site import agree, first_parameters
from fedspan.rounds import Round
from fedspan.sites import open_sites


class Cell(NamedTuple):
    """What is raced: so many sites, so many turns."""

    name: str
    learner: Any
    model: dict[str, Any]
    sites: int
    turns: int
    target: float | None = None


LENET = {"kind": "lenet5", "image": [1, 28, 28]}
CELLS = [
    Cell("FedRep, MLP", FedRep(rounds=1), MODEL, 100, 3, target=3.0),
    Cell("LG-FedAvg, MLP", LGFedAvg(rounds=1), MODEL, 100, 3),
    Cell("FedRep, LeNet-5", FedRep(rounds=1), LENET, 5, 3),
    Cell("LG-FedAvg, LeNet-5", LGFedAvg(rounds=1), LENET, 5, 3),
]
COMPARED = 5
"""How many sites' parameters are compared."""


def main(arguments: list[str]) -> None:
    """Race every cell, or those whose names hold a text that is given."""
    try:
        import torch
    except ImportError:
        sys.exit("skipped: torch is not installed")
    figure("threads of torch", torch.get_num_threads())
    sources = sites(seed=0)
    for cell in CELLS:
        if not arguments or any(part in cell.name for part in arguments):
            race(cell, sources)
    finish()


def race(cell: Cell, sources: dict[str, Any]) -> None:
    """Time one round of a learner, and of the plain loop, in turn."""
    from benchmarks.learner_round_plain import PlainLoop

    name, learner = cell.name, cell.learner
    spec = {**cell.model, "features": 784, "classes": 10, "own": learner.own, "head_layers": learner.head_layers}
    agreed = {"model": spec, "classes": list(range(10)), "seed": 0}
    few, some = (dict(list(sources.items())[:count]) for count in (COMPARED, cell.sites))
    pair = federation(learner, agreed, few, np.float64)(), PlainLoop(learner, agreed, few, np.float64).round()
    figure(f"{name}: shared parameters apart after a round, at most", float(np.abs(pair[0] - pair[1]).max()), 1e-9)
    plain = PlainLoop(learner, agreed, some, np.float32)
    ours = federation(learner, agreed, some, np.float32)
    taken = np.array([[timed(one_round) for one_round in (ours, plain.round)] for _ in range(cell.turns)])
    fused = timed(plain.fused_round)
    for clock, what in enumerate(("", ", process time")):
        mine, theirs = taken[:, :, clock].T
        figure(f"{name}: one round of {cell.sites} sites{what}", float(np.median(mine)), unit="s")
        figure(f"{name}: the plain loop{what}", float(np.median(theirs)), unit="s")
        figure(f"{name}: how many times as fast as the plain loop{what}", float(np.median(theirs / mine)))
        figure(f"{name}: as the plain loop with fused SGD, once{what}", fused[clock] / float(np.median(mine)))
    if cell.target is not None:
        part = float(np.median(taken[:, 0, 0] / taken[:, 1, 0]))
        figure(f"{name}: time, as part of the plain loop's", part, round(1 / cell.target, 3))


def timed(one_round: Callable[[], Any]) -> tuple[float, float]:
    """Return how long a round takes on the wall's clock, and of this process's own time."""
    wall, own = time.perf_counter(), time.process_time()
    one_round()
    return time.perf_counter() - wall, time.process_time() - own


def federation(learner: Any, agreed: dict[str, Any], sources: dict[str, Any], dtype: Any) -> Callable[[], Array]:
    """Return what asks the sites for one round, as a study does, from first parameters each time."""
    opened = open_sites(sources, seed=0)
    engine = InProcess(opened)
    engine(Round(agree, agreed, number=0))
    task = Task(first_parameters(agreed)[0].astype(dtype), agreed["model"], len(opened))
    parents = {site.id: 0 for site in opened}

    def one_round() -> Array:
        solve = learner.solve(task)
        outcome = engine(replace(next(solve), number=1, parents=parents))
        try:
            solve.send(outcome.value)
        except StopIteration as stop:
            return np.asarray(stop.value.shared)
        raise AssertionError("a learner of one round asks once")

    return one_round


if __name__ == "__main__":
    main(sys.argv[1:])
