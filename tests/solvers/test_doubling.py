"""Doubling: whom each stage waits for, how long it lasts, and that the last one is the method without it."""

from __future__ import annotations

import numpy as np
import pytest

from fedspan.data import Preparation, open_source
from fedspan.engines import VirtualTime
from fedspan.engines.speeds import DynamicSpeeds, GivenSpeeds
from fedspan.errors import CohortError, ConfigurationError
from fedspan.learners import FedRep
from fedspan.metrics import projection_distance, stage_rounds
from fedspan.privacy import GaussianPrivacy
from fedspan.rounds import Cohort
from fedspan.run import Study, run
from fedspan.solvers import FAPS, BlockKrylov, Doubling, FedPower, Power, PrivatePower, make, settings_of
from fedspan.solvers.doubling import _completed
from fedspan.solvers.problem import Problem

K, D = 2, 8
NAMES = [f"s{i:02d}" for i in range(16)]
SPEEDS = GivenSpeeds(times={name: float(1 + (5 * i) % 16) for i, name in enumerate(NAMES)})
FASTEST = sorted(NAMES, key=SPEEDS.times.__getitem__)


class Seeing:
    """An engine in virtual time that keeps each of the solver's questions, and who counted."""

    def __init__(self, speeds=SPEEDS):
        self.law, self.questions, self.sites, self.clock = VirtualTime(speeds=speeds), [], [], []

    def __call__(self, sites, seed=0):
        execute = self.law(sites, seed)

        def ask(question):
            outcome = execute(question)
            if not (question.step.setup or question.step.free):
                self.questions.append(question)
                self.sites.append(outcome.sites)
                self.clock.append(outcome.clock)
            return outcome

        return ask

    @property
    def waited(self):
        return [len(sites) for sites in self.sites]


def rows(n=12, names=NAMES, seed=0, spread=0.4):
    """Rows of one law with falling variances, as many at each site as ``n`` says."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.standard_normal((D, D)))[0]
    sizes = n if isinstance(n, list) else [n] * len(names)
    return {
        name: rng.standard_normal((m, D)) * spread ** np.arange(D) @ turn
        for name, m in zip(names, sizes, strict=True)
    }  # fmt: skip


def solve(solver, *, data=None, engine=None, cohort=None, seed=0, **more):
    engine = Seeing() if engine is None else engine
    data = rows() if data is None else data
    study = Study(
        n_components=K, solver=solver, preparation=Preparation(center=False), cohort=cohort or Cohort(), seed=seed,
        **more,
    )  # fmt: skip
    return run(study, {name: open_source(x) for name, x in data.items()}, engine=engine), engine


def pooled(data):
    x = np.vstack(list(data.values()))
    return np.linalg.eigh(x.T @ x)[1][:, : -K - 1 : -1]


# ---- whom a stage waits for --------------------------------------------------------------------------------------


def test_stages_wait_for_twice_as_many_of_the_fastest():
    _, seen = solve(Doubling(stage=Power(rounds=5, tol=0.0), n0=2, rounds=3))
    assert seen.waited == [2] * 3 + [4] * 3 + [8] * 3 + [16] * 5
    for sites in seen.sites:
        assert set(sites) == set(FASTEST[: len(sites)])


def test_it_begins_with_an_eighth_of_the_sites_and_one_at_least():
    assert solve(Doubling(stage=Power(rounds=3, tol=0.0)))[1].waited[0] == 2
    few = rows(names=NAMES[:4])
    assert solve(Doubling(stage=Power(rounds=3, tol=0.0)), data=few, engine=Seeing(GivenSpeeds()))[1].waited[0] == 1


def test_the_last_stage_takes_all_where_their_number_is_no_power_of_two():
    data, engine = rows(names=NAMES[:11]), Seeing(GivenSpeeds())
    _, seen = solve(Doubling(stage=Power(rounds=4, tol=0.0), n0=3, rounds=1), data=data, engine=engine)
    assert seen.waited == [3, 6, 11, 11, 11, 11]


def test_early_rounds_take_the_time_of_the_sites_they_wait_for():
    _, seen = solve(Doubling(stage=Power(rounds=2, tol=0.0), n0=4, rounds=2))
    assert np.diff(seen.clock).tolist() == [4.0, 8.0, 8.0, 16.0, 16.0]


def test_a_stage_begins_where_the_one_before_ended():
    data = rows()
    _, seen = solve(Doubling(stage=Power(rounds=6, tol=0.0), n0=4, rounds=2), data=data)
    fast = {name: data[name] for name in FASTEST[:4]}
    gram = sum(x.T @ x for x in fast.values())
    z = seen.questions[0].estimate
    for _ in range(2):
        z = np.linalg.qr(gram @ z)[0]
    assert projection_distance(seen.questions[2].estimate, z) < 1e-12  # the third question is stage 1's first


def test_growth_by_samples_doubles_the_rows_behind_a_stage():
    sizes = [40, 3, 5, 2, 60, 4, 7, 3, 9, 2, 30, 5, 6, 3, 8, 10]
    data = rows(sizes)
    of, total = dict(zip(NAMES, sizes, strict=True)), sum(sizes)
    _, seen = solve(Doubling(stage=Power(rounds=2, tol=0.0), n0=2, rounds=1, growth="samples"), data=data)
    for stage, sites in enumerate(seen.sites[:3]):
        wanted, ordered = total * 2**stage / 8, [name for name in FASTEST if name in sites]
        assert ordered == FASTEST[: len(sites)]
        assert sum(of[name] for name in ordered) >= wanted > sum(of[name] for name in ordered[:-1])
    assert len(seen.sites[3]) == 16


def test_growth_by_samples_begins_with_n0_where_not_all_are_waited_for():
    solver = Doubling(stage=Power(rounds=2, tol=0.0), n0=2, rounds=1, growth="samples")
    _, seen = solve(solver, cohort=Cohort(first=8))
    assert seen.waited == [2, 4, 8, 8]  # sites of as many rows: as in growth by sites


def test_without_a_test_of_progress_a_stage_has_all_its_rounds():
    early = {"n0": 2, "rounds": "stall", "stall": 0.0, "most": 4}
    assert [stage._early("stall").rounds for stage in (Doubling(**early), Doubling(stage=FedRep(), **early))] == [4, 4]
    assert Doubling(stage=FedRep(stall=0.1), **early)._early("stall").stall is None
    assert Doubling(**early)._early("stall").tol == 0.0


def test_a_fraction_of_the_sites_is_asked_and_the_fastest_of_those_counted():
    cohort = Cohort(fraction=0.5)
    _, seen = solve(Doubling(stage=Power(rounds=3, tol=0.0), n0=2, rounds=2), cohort=cohort)
    assert seen.waited == [2, 2, 4, 4, 8, 8, 8]
    assert len({frozenset(sites) for sites in seen.sites}) > 3  # sampled anew each round


@pytest.mark.parametrize(("resample", "sets"), [("round", 4), ("stage", 1)])
def test_speeds_that_change_bring_other_sites_unless_a_stage_holds_on_to_them(resample, sets):
    solver = Doubling(stage=Power(rounds=2, tol=0.0), n0=4, rounds=4, resample=resample)
    _, seen = solve(solver, engine=Seeing(DynamicSpeeds()))
    for begin in (0, 4):
        different = len({frozenset(sites) for sites in seen.sites[begin : begin + 4]})
        assert different == 1 if sets == 1 else different > 1


@pytest.mark.parametrize(
    "stage", [BlockKrylov(rounds=20, tol=1e-12, oversampling=0), FAPS(rounds=60, tol=1e-13)], ids=["krylov", "faps"]
)
def test_a_method_that_needs_the_same_sites_has_them_throughout_a_stage(stage):
    data = rows()
    result, seen = solve(Doubling(stage=stage, n0=4, rounds=4), data=data, engine=Seeing(DynamicSpeeds()))
    assert len({frozenset(sites) for sites in seen.sites[:4]}) == 1
    assert {len(sites) for sites in seen.sites} == {4, 8, 16}
    assert projection_distance(result.estimate.basis, pooled(data)) < 1e-6


# ---- how long a stage lasts --------------------------------------------------------------------------------------


def test_the_formula_gives_each_stage_its_rounds():
    solver = Doubling(stage=Power(rounds=3, tol=0.0), n0=2, rounds="formula", contraction=0.25)
    _, seen = solve(solver)
    expected = stage_rounds(2, 16, 0.25)
    assert [seen.waited.count(n) for n in (2, 4, 8)] == expected
    assert len(set(expected)) > 1


def test_a_stage_ends_where_progress_stalls_or_at_the_most():
    _, loose = solve(Doubling(stage=Power(rounds=3, tol=0.0), n0=4, rounds="stall", stall=1e-1, most=30))
    _, tight = solve(Doubling(stage=Power(rounds=3, tol=0.0), n0=4, rounds="stall", stall=1e-5, most=30))
    _, capped = solve(Doubling(stage=Power(rounds=3, tol=0.0), n0=4, rounds="stall", stall=0.0, most=7))
    assert loose.waited.count(4) < tight.waited.count(4) < 30
    assert capped.waited.count(4) == capped.waited.count(8) == 7


def test_the_last_stage_has_the_whole_budget_and_the_tolerance_of_the_method():
    result, seen = solve(Doubling(stage=Power(rounds=300, tol=1e-12), n0=2))
    assert result.converged is True
    assert 10 < seen.waited.count(16) < 300


def test_a_method_that_keeps_its_last_round_for_values_has_two_in_each_stage():
    _, seen = solve(Doubling(stage=FedPower(rounds=4, local_steps=2), n0=8, rounds=1))
    assert seen.waited.count(8) == 2


# ---- the answer --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [Power(rounds=500, tol=1e-13), BlockKrylov(tol=1e-12)], ids=["power", "krylov"])
def test_the_answer_is_that_of_all_rows(stage):
    data = rows()
    result, _ = solve(Doubling(stage=stage), data=data)
    x = np.vstack(list(data.values()))
    assert projection_distance(result.estimate.basis, pooled(data)) < 1e-8
    np.testing.assert_allclose(result.estimate.values, np.linalg.eigvalsh(x.T @ x)[::-1][:K], rtol=1e-9)


def test_one_site_is_the_method_without_doubling():
    data = rows(names=["only"])
    engines = Seeing(GivenSpeeds()), Seeing(GivenSpeeds())
    plain, _ = solve(Power(rounds=9, tol=0.0), data=data, engine=engines[0])
    doubled, seen = solve(Doubling(stage=Power(rounds=9, tol=0.0)), data=data, engine=engines[1])
    assert len(seen.sites) == 9
    np.testing.assert_array_equal(plain.estimate.basis, doubled.estimate.basis)


def test_early_stages_cost_less_time_than_they_save():
    data = rows(n=1000, spread=0.8)
    power = Power(rounds=400, tol=1e-8)
    _, full = solve(power, data=data)
    _, fast = solve(Doubling(stage=power, rounds=6), data=data)
    assert fast.clock[-1] < full.clock[-1]


def test_missing_columns_of_a_start_are_filled_with_others():
    found = np.eye(D)[:, :2]
    problem = Problem(np.eye(D)[:, 2:6], 2, rng=np.random.default_rng(0))
    filled = _completed(found, problem)
    assert filled.shape == (D, 4)
    np.testing.assert_allclose(filled.T @ filled, np.eye(4), atol=1e-12)
    np.testing.assert_allclose(np.abs(filled[:, :2]), found, atol=1e-12)


# ---- what cannot be ----------------------------------------------------------------------------------------------


def test_fewer_sites_than_it_begins_with_are_refused_with_the_way_out():
    with pytest.raises(ConfigurationError, match="n0 = 32 sites, but a round waits for 16 at most; take n0 of at most"):
        solve(Doubling(n0=32))
    with pytest.raises(ConfigurationError, match="n0 = 10 sites, but a round waits for 8 at most"):
        solve(Doubling(n0=10), cohort=Cohort(fraction=0.5))


def test_sites_that_never_answer_do_not_stop_the_early_stages_but_are_named_in_the_last():
    dead = GivenSpeeds(times={NAMES[3]: float("inf")})
    engine = Seeing(dead)
    with pytest.raises(CohortError, match="s03"):
        solve(Doubling(stage=Power(rounds=3, tol=0.0), n0=4, rounds=2), engine=engine)


def test_privacy_is_refused():
    with pytest.raises(ConfigurationError, match="doubling"):
        solve(Doubling(), privacy=GaussianPrivacy(1.0, 1e-6, row_norm=5.0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stage": Power}, "stage is a solver that has rounds"), ({"stage": "power"}, "got 'power'"),
        ({"stage": make("covariance")}, "stage is a solver that has rounds"),
        ({"stage": PrivatePower(rounds=3)}, "stage cannot be PrivatePower"),
        ({"stage": Doubling()}, "stage cannot be Doubling"), ({"n0": 0}, "at least 1, got 0"),
        ({"n0": 2.5}, "a number of sites, or None"), ({"most": 0}, "at least 1"), ({"stall": -1.0}, "not negative"),
        ({"stage": FedRep(), "rounds": "stall", "stall": 1.5}, "stall is a part of the loss"),
        ({"rounds": 0}, "at least 1 round, got 0"), ({"rounds": "formulae"}, "did you mean 'formula'"),
        ({"rounds": "formula"}, "needs a contraction"), ({"contraction": 1.0}, "between 0 and 1, got 1"),
        ({"growth": "rows"}, "growth is 'rows'"), ({"resample": "never"}, "resample is 'never'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        Doubling(**settings)


def test_a_solver_inside_travels_by_its_name():
    solver = Doubling(stage=BlockKrylov(oversampling=3), n0=2, rounds="stall", growth="samples")
    assert make("doubling", **settings_of(solver)) == solver
    assert make("doubling", stage="krylov", stage_settings={"oversampling": 3}).stage == BlockKrylov(oversampling=3)
