"""One round of 100 sites of MNIST: fedspan's learners beside a plain loop of torch.optim over the sites.

Both do the same work from the same parameters with the same batches: what they come to is compared first, and is the
same to rounding. Then they take turns, and a ratio is the median over the turns. The plain loop is what one writes with
torch: one module that each site's parameters are loaded into, batches cut from tensors by index, `torch.optim.SGD` over
the parameters that move while the others are frozen. Beside it: the same with SGD's ``fused=True``, for which one
must ask.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.report import figure, finish
from benchmarks.representation_mnist import MODEL, SITES, sites
from fedspan.encoding import Array
from fedspan.engines import InProcess
from fedspan.learners import FedRep, Learner, LGFedAvg, Task
from fedspan.learners.site import agree, first_parameters
from fedspan.rounds import Round
from fedspan.sites import open_sites

TURNS = 7
LENET = {"kind": "lenet5", "image": [1, 28, 28]}
CELLS = [
    ("FedRep, MLP", FedRep(rounds=1), MODEL, 3.0),
    ("LG-FedAvg, MLP", LGFedAvg(rounds=1), MODEL, None),
    ("FedRep, LeNet-5", FedRep(rounds=1), LENET, None),
    ("LG-FedAvg, LeNet-5", LGFedAvg(rounds=1), LENET, None),
]


def main(arguments: list[str]) -> None:
    """Race every cell, or those whose names hold a text that is given."""
    try:
        import torch
    except ImportError:
        sys.exit("skipped: torch is not installed")
    figure("threads of torch", torch.get_num_threads())
    sources = sites(seed=0)
    for name, learner, model, target in CELLS:
        if not arguments or any(part in name for part in arguments):
            race(name, learner, model, target, sources)
    finish()


def race(name: str, learner: Any, model: dict[str, Any], target: float | None, sources: dict[str, Any]) -> None:
    """Time one round of a learner, and of the plain loop, in turn."""
    from benchmarks.learner_round_plain import PlainLoop

    spec = {**model, "features": 784, "classes": 10, "own": learner.own, "head_layers": learner.head_layers}
    agreed = {"model": spec, "classes": list(range(10)), "seed": 0}
    ours = federation(learner, agreed, sources)
    plain = PlainLoop(learner, agreed, sources)
    apart = float(np.abs(ours() - plain.round()).max())
    figure(f"{name}: shared parameters apart after a round, at most", apart, 1e-4)
    turns: dict[str, Callable[[], Any]] = {"ours": ours, "plain": plain.round, "fused": plain.fused_round}
    seconds = {who: np.zeros(TURNS) for who in turns}
    for turn in range(TURNS):
        for who, one_round in turns.items():
            started = time.perf_counter()
            one_round()
            seconds[who][turn] = time.perf_counter() - started
    figure(f"{name}: one round of {SITES} sites, seconds", float(np.median(seconds["ours"])))
    figure(f"{name}: the plain loop, seconds", float(np.median(seconds["plain"])))
    figure(f"{name}: how many times faster than the plain loop", float(np.median(seconds["plain"] / seconds["ours"])))
    figure(f"{name}: than the plain loop with fused SGD", float(np.median(seconds["fused"] / seconds["ours"])))
    if target is not None:
        limit = round(1 / target, 3)
        figure(
            f"{name}: time, in parts of the plain loop's", float(np.median(seconds["ours"] / seconds["plain"])), limit
        )


def federation(learner: Learner, agreed: dict[str, Any], sources: dict[str, Any]) -> Callable[[], Array]:
    """Return what asks the sites for one round, as a study does, from first parameters each time."""
    opened = open_sites(sources, seed=0)
    engine = InProcess(opened)
    engine(Round(agree, agreed, number=0))
    task = Task(first_parameters(agreed)[0], agreed["model"], len(opened))
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
