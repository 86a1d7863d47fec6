"""A plan lists the rounds and bytes that a run then takes, without touching the data."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fedspan.plan
from fedspan.data import Preparation, Source, open_source
from fedspan.errors import ConfigurationError, DataError
from fedspan.plan import make_plan
from fedspan.rounds import Cohort
from fedspan.run import Study, run
from fedspan.secure import SecureSums
from fedspan.solvers import SOLVERS, BlockKrylov, FedPower, Power, make


class Untouchable(Source):
    """A source whose rows must not be read."""

    dtype = np.dtype(np.float64)

    def __init__(self, rows: int, features: int) -> None:
        self.shape = rows, features

    def blocks(self) -> Iterator[Any]:
        raise AssertionError("a plan read the data")


def federation(features: int, *rows: int) -> dict[str, Source]:
    rng = np.random.default_rng(features)
    return {f"site{i}": open_source(rng.standard_normal((n, features))) for i, n in enumerate(rows)}


def whole_budget(name: str) -> Any:
    solver: Any = make(name)
    if name == "doubling":
        return replace(solver, stage=replace(solver.stage, tol=0.0, rounds=15))
    return replace(solver, tol=0.0, rounds=15) if hasattr(solver, "tol") else solver


OPEN = [name for name in SOLVERS if name != "private-power"]
"""Solvers that need no privacy."""


def costs(rounds: list[Any]) -> list[tuple[Any, ...]]:
    return [(r.step, r.setup, r.bytes_up, r.bytes_down) for r in rounds]


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("name", OPEN)
def test_a_plan_is_what_a_run_takes(name: str, scale: bool) -> None:
    sources = federation(40, 60, 45, 90)
    study = Study(n_components=4, solver=whole_budget(name), preparation=Preparation(scale=scale))
    assert costs(make_plan(study, sources).rounds) == costs(run(study, sources).history)


@pytest.mark.parametrize(
    "cohort",
    [
        Cohort(fraction=0.5),
        Cohort(first=2),
        Cohort(first=2, late="carry"),
        Cohort(only=("site0", "site2")),
        Cohort(fraction=0.5, sample="by-size-with-replacement"),
    ],
)
def test_a_plan_draws_the_cohorts_that_a_run_draws(cohort: Cohort) -> None:
    sources = federation(12, 30, 40, 50, 60)
    study = Study(n_components=3, solver=FedPower(tol=0, rounds=8), cohort=cohort, seed=5)
    assert costs(make_plan(study, sources).rounds) == costs(run(study, sources).history)


def test_column_names_and_gaps_count_too() -> None:
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frames = {"a": ["x", "yy", "zzz", "w"], "b": ["zzz", "x", "yy", "v"]}
    sources = {
        site: open_source(pandas.DataFrame(rng.random((20, 4)), columns=names)) for site, names in frames.items()
    }
    preparation = Preparation(columns="union-zero", missing="mean")
    study = Study(n_components=2, solver=whole_budget("power"), preparation=preparation)
    assert costs(make_plan(study, sources).rounds) == costs(run(study, sources).history)


@pytest.mark.parametrize("name", OPEN)
def test_a_narrow_stand_in_gives_the_same_figures(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = federation(300, 400, 500)
    study = Study(n_components=5, solver=name)
    exact = make_plan(study, sources)
    monkeypatch.setattr(fedspan.plan, "STAND_IN", 64)
    assert make_plan(study, sources) == exact


@pytest.mark.parametrize("name", OPEN)
def test_a_plan_for_a_million_features_is_quick_and_reads_nothing(name: str) -> None:
    sources: dict[str, Source] = {f"site{i}": Untouchable(10**7, 10**6) for i in range(3)}
    started = time.process_time()
    plan = make_plan(Study(n_components=10, solver=name), sources)
    assert time.process_time() - started < 20
    assert plan.features == 10**6
    assert plan.bytes_up > 3 * 8 * 10**7


def test_the_budget_is_the_most_rounds() -> None:
    plan = make_plan(Study(n_components=3, solver=Power(rounds=7)), {"a": Untouchable(100, 50)})
    assert sum(not r.setup for r in plan.rounds) == 7
    assert all(r.up == r.down == 8 * 50 * 3 for r in plan.rounds if not r.setup)
    assert plan.site_memory == 2 * 8 * 50 * 3


@pytest.mark.parametrize("wanted", [0.9, "auto"])
def test_a_rank_still_to_be_found_is_planned_for_the_first_try(wanted: float | str) -> None:
    plan = make_plan(Study(n_components=wanted, solver="krylov"), {"a": Untouchable(100, 50)})
    assert plan.first_rank_only
    assert plan.n_components == 16


def test_auto_is_resolved() -> None:
    plan = make_plan(Study(n_components=3, solver="auto"), {"a": Untouchable(10**5, 10**5)})
    assert isinstance(plan.solver, BlockKrylov)


def test_what_the_shapes_forbid_is_refused() -> None:
    with pytest.raises(DataError, match="n_components = 60"):
        make_plan(Study(n_components=60), {"a": Untouchable(100, 50)})
    with pytest.raises(DataError, match="site 'b' has 40 columns"):
        make_plan(Study(), {"a": Untouchable(100, 50), "b": Untouchable(100, 40)})
    with pytest.raises(DataError, match="site 'a' has no rows"):
        make_plan(Study(), {"a": Untouchable(0, 50)})
    with pytest.raises(ConfigurationError, match="krylov needs every site"):
        make_plan(Study(cohort=Cohort(fraction=0.5)), {"a": Untouchable(100, 50)})


SUMS = [name for name in OPEN if getattr(whole_budget(name), "sums_only", True)]


@pytest.mark.parametrize("missing", ["error", "mean"])
@pytest.mark.parametrize("name", SUMS)
def test_a_plan_counts_what_masks_cost(name: str, missing: str) -> None:
    sources = federation(10, 60, 45, 90, 30)
    preparation = Preparation(scale=True, missing=missing)
    study = Study(n_components=3, solver=whole_budget(name), preparation=preparation, secure=SecureSums())
    assert costs(make_plan(study, sources).rounds) == costs(run(study, sources).history)


@pytest.mark.parametrize(
    "cohort", [Cohort(fraction=0.8), Cohort(first=6), Cohort(fraction=0.8, sample="by-size-with-replacement")], ids=str
)
def test_and_with_cohorts(cohort: Cohort) -> None:
    """Names are of one length: whose reach whom is drawn anew each time."""
    sources = federation(12, *range(20, 60, 5))
    study = Study(n_components=3, solver=FedPower(tol=0, rounds=5), cohort=cohort, seed=5, secure=SecureSums())
    if cohort.sample != "uniform":
        study = replace(study, secure=SecureSums(threshold=0.51, colluding=0.0))
    plan, result = make_plan(study, sources), run(study, sources)
    assert costs(plan.rounds) == costs(result.history)
    assert plan.masks is not None
    made = [r.masked for r in result.history if r.masked is not None]
    assert max(m.asked for m in made if not (m.asked == 8 and cohort.fraction < 1)) <= plan.masks.sites


def test_a_solver_that_needs_single_replies_is_refused_before_anything_is_asked() -> None:
    study = Study(n_components=2, solver="uda", secure=SecureSums())
    for attempt in (make_plan, run):
        with pytest.raises(ConfigurationError, match=r"uda shows the coordinator single replies.*krylov"):
            attempt(study, federation(8, 20, 20, 20))
