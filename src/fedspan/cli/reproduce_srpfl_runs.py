"""Run the panels of Figures 3 to 8: every method once for each order of the sites that it depends on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fedspan.cli.reproduce_shared import Report
from fedspan.cli.reproduce_srpfl_clock import Clock
from fedspan.cli.reproduce_srpfl_data import Problem
from fedspan.cli.reproduce_srpfl_methods import FEDREP, METHODS, PAIRS, Trained, train
from fedspan.cli.reproduce_srpfl_scale import COMMUNICATION, Column, Scale, figures
from fedspan.data.labelled import Labelled
from fedspan.datasets.registry import find
from fedspan.encoding import Array
from fedspan.engines.speeds import FixedSpeeds, Speeds
from fedspan.errors import ConvergenceError, DataError
from fedspan.solvers import Doubling

SEED = 0
REACHED = (0.9, 0.99)
"""The parts of a method's final accuracy that times are taken to."""


class Bench:
    """Sites, clocks and trained methods, each made once."""

    def __init__(self, scale: Scale, report: Report) -> None:
        self._scale, self._report = scale, report
        self._sites: dict[Problem, dict[str, Labelled]] = {}
        self._clocks: dict[Problem, Clock] = {}
        self._trained: dict[tuple[Any, ...], Trained] = {}

    def sites(self, problem: Problem) -> dict[str, Labelled]:
        """Return a problem's sites."""
        if problem not in self._sites:
            self._sites[problem] = problem.deal(SEED)
        return self._sites[problem]

    def clock(self, problem: Problem) -> Clock:
        """Return what tells the time at these sites."""
        if problem not in self._clocks:
            self._clocks[problem] = Clock(self.sites(problem), self._scale.draws)
        return self._clocks[problem]

    def trained(self, column: Column, method: str) -> Trained:
        """Return a method's run. One that waits for all it asks depends on no speeds."""
        problem, fraction = column.problem, column.fraction
        training = self._scale.training(problem, fraction)
        doubles = isinstance(METHODS[method](training), Doubling)
        order: Speeds = (column.order or column.speeds) if doubles else FixedSpeeds()
        key = (problem, method, fraction, order)
        if key not in self._trained:
            self._trained[key] = train(
                method, training, problem.of.model, self.sites(problem), fraction=fraction, speeds=order, seed=SEED
            )
            self._report(f"{column.title}: {method}, {self._trained[key].accuracy[-1]:.3f}")
        return self._trained[key]


def run_figures(scale: Scale, report: Report) -> Iterator[dict[str, Any]]:
    """Yield every figure with its columns' curves."""
    bench = Bench(scale, report)
    for number, title, columns in figures(scale):
        report(f"figure {number}: {title}")
        yield {"number": number, "title": title, "columns": [_column(bench, one) for one in columns]}


def _column(bench: Bench, column: Column) -> dict[str, Any]:
    about = {"title": column.title, "methods": list(column.methods), "fraction": column.fraction}
    try:
        sites = bench.sites(column.problem)
    except DataError as why:
        return {**about, "absent": f"{why} (its source: {find(column.problem.of.name).source})"}
    sizes = [source.shape[0] for source in sites.values()]
    runs = {name: _run(bench, column, name) for name in column.methods}
    spread = [min(sizes), float(np.median(sizes)), max(sizes)]
    return {**about, "sites": len(sizes), "rows": spread, "runs": runs, **judged(runs)}


def judged(runs: dict[str, Any]) -> dict[str, Any]:
    """Return when each run meets what FedRep comes to, and what doubling saves."""
    sound = {name: run for name, run in runs.items() if "diverged" not in run}
    target = REACHED[-1] * sound[FEDREP]["final"] if FEDREP in sound else None
    return {
        "target": target,
        "reached": {name: _reached(run, target) for name, run in sound.items()},
        "ratios": {
            name: {f"{part:g}": _ratios(run, sound[PAIRS[name]], part) for part in REACHED}
            for name, run in sound.items() if PAIRS.get(name) in sound
        },
    }  # fmt: skip


def _run(bench: Bench, column: Column, method: str) -> dict[str, Any]:
    try:
        trained = bench.trained(column, method)
    except ConvergenceError as why:
        return {"diverged": str(why)}
    clock = bench.clock(column.problem)
    times = {
        f"{cost:g}": clock(trained.cohorts, column.speeds, cost)[trained.at].tolist() for cost in COMMUNICATION
    }  # fmt: skip
    return {"rounds": trained.at, "accuracy": trained.accuracy, "times": times, "final": _final(trained.accuracy)}


def _final(accuracy: list[float]) -> float:
    """The accuracy at the end: the mean of the last three that were measured."""
    return float(np.mean(accuracy[-3:]))


def _reached(run: dict[str, Any], target: float | None) -> dict[str, float | None]:
    """When a run first is as accurate as the target, for each cost of communication."""
    hit: Array = np.flatnonzero(np.array(run["accuracy"]) >= (np.inf if target is None else target))
    return {cost: float(times[hit[0]]) if len(hit) else None for cost, times in run["times"].items()}


def _ratios(run: dict[str, Any], plain: dict[str, Any], part: float) -> dict[str, float | None]:
    """A method's time with doubling over that without, to this part of the latter's final accuracy."""
    fast, slow = (_reached(one, part * plain["final"]) for one in (run, plain))
    found: dict[str, float | None] = {}
    for cost, time in fast.items():
        other = slow[cost]
        found[cost] = None if time is None or not other else time / other
    return found
