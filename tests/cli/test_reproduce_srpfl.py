"""Figures 3-8 of SRPFL: tiny and on stand-ins everywhere, on MNIST under `make soak`."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")

from fedspan.cli import (
    plots,
    reproduce_srpfl,
    reproduce_srpfl_data,
    reproduce_srpfl_linear,
    reproduce_srpfl_runs,
)
from fedspan.cli.papers import PAPERS
from fedspan.cli.papers import reproduce as verb
from fedspan.cli.reproduce_srpfl import reproduce, text
from fedspan.cli.reproduce_srpfl_clock import Clock
from fedspan.cli.reproduce_srpfl_data import (
    CIFAR10,
    CIFAR10_NARROW,
    CIFAR100,
    EMNIST,
    FEMNIST,
    MLP,
    MNIST,
    NEAR,
    SENT140,
    SPREAD,
    Problem,
)
from fedspan.cli.reproduce_srpfl_methods import (
    BY_SAMPLES,
    FEDAVG,
    FEDAVG_FT,
    FEDAVG_S,
    FEDREP,
    FEDREP_S,
    FLANP_FT,
    LG,
    LG_S,
    MAML,
    METHODS,
    TUNED,
    Noted,
    Training,
    train,
)
from fedspan.cli.reproduce_srpfl_runs import Bench, run_figures
from fedspan.cli.reproduce_srpfl_scale import COMMUNICATION, FULL, QUICK, WHOLE, Column, figures
from fedspan.data.labelled import Labelled
from fedspan.engines import VirtualTime
from fedspan.engines.speeds import CorrelatedSpeeds, DynamicSpeeds, FixedSpeeds, TwoSpeeds
from fedspan.errors import ConfigurationError, ConvergenceError, DataError
from fedspan.learners import FedAvg
from fedspan.learning import Learning, learn
from fedspan.metrics import doubling_bounds, order_statistic_mean
from fedspan.rounds import Cohort

REAL_DATA = os.environ.get("FEDSPAN_DATA", "")
SMALL = {"kind": "mlp", "hidden": [8, 6]}
TINY = replace(
    QUICK, sites=6, rows=20, tests=10, rounds=5, digits=(replace(MNIST, model=SMALL), EMNIST),
    images=(replace(CIFAR10_NARROW, model=SMALL),), image_rounds=2,
)  # fmt: skip


def stand_in(name, *, dtype, download=True):
    """Digits of ten classes and coloured images, which are told apart at a glance; every other set is missing."""
    assert download is False
    if name not in ("mnist", "cifar10_subset"):
        raise DataError(f"{name} is not here")
    rng = np.random.default_rng(0)
    d = 3072 if name == "cifar10_subset" else 12
    y, y_test = rng.integers(0, 10, 400), rng.integers(0, 10, 200)
    means = rng.uniform(0, 255, (10, d))
    X, X_test = (np.clip(means[of] + rng.normal(0, 20, (len(of), d)), 0, 255).astype(dtype) for of in (y, y_test))
    return SimpleNamespace(X=X, y=y, X_test=X_test, y_test=y_test)


@pytest.fixture(autouse=True)
def stand_ins(request, monkeypatch):
    if "soak" not in request.keywords:
        monkeypatch.setattr(reproduce_srpfl_data, "load", stand_in)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One tiny run of everything: its result, its folder, what it reported, and what was to be drawn."""
    drawn = {}

    def keep(path, title, panels, **options):
        drawn[path.name] = (title, panels, options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduce_srpfl_data, "load", stand_in)
        patch.setattr(reproduce_srpfl, "QUICK", TINY)
        patch.setattr(plots, "write_curves", keep)
        folder, lines = tmp_path_factory.mktemp("srpfl"), []
        result = reproduce(folder, quick=True, report=lines.append)
        return SimpleNamespace(result=result, folder=folder, lines=lines, drawn=drawn)


def columns(made, number):
    return next(figure["columns"] for figure in made.result["panels"] if figure["number"] == number)


# ---- the paper ---------------------------------------------------------------------------------------------------


def test_the_papers_settings():
    assert PAPERS["srpfl"] == "fedspan.cli.reproduce_srpfl"
    assert MLP == {"kind": "mlp", "hidden": [512, 256, 64]}
    assert (CIFAR10.model["channels"], CIFAR10.model["hidden"], CIFAR10.epochs) == ([64, 64], [120, 64], 1)
    assert CIFAR100.model["channels"] == [64, 128]
    assert CIFAR100.model["hidden"] == [256, 128]
    assert CIFAR100.model["dropout"] == 0.6
    assert CIFAR10.model["augment"]
    assert {of.epochs for of in (MNIST, EMNIST, FEMNIST, CIFAR100, SENT140)} == {5}
    assert (EMNIST.classes, COMMUNICATION) == ((0, 10), (0.0, 10.0, 100.0))
    fedrep = METHODS[FEDREP](Training(rounds=3, n0=1))
    assert (fedrep.rate, fedrep.momentum, fedrep.batch) == (0.1, 0.5, 10)


def test_the_figures_have_the_papers_methods_and_regimes():
    plan = {number: made for number, _, made in figures(FULL)}
    assert list(plan) == ["3", "4", "5", "6", "7", "8", "8-stragglers", "8-correlated"]
    rivals = {FEDREP_S, FEDREP, LG_S, LG, FLANP_FT, "LG-FLANP", FEDAVG, FEDAVG_FT, FEDAVG_S, MAML}
    assert all(rivals == set(column.methods) - {TUNED} for number in "456" for column in plan[number])
    assert {column.fraction for number in "46" for column in plan[number]} == {0.2}
    assert {type(column.speeds) for number in "56" for column in plan[number]} == {DynamicSpeeds}
    assert {column.problem.of.paper for column in plan["3"]} >= {"MNIST", "EMNIST", "FEMNIST", "CIFAR100"}
    assert {column.problem.shards for column in plan["3"] if column.problem.of is MNIST} == {2, 5}
    assert {column.problem.of.paper for column in plan["7"]} >= {"MNIST", "EMNIST", "Sent140"}
    assert {column.problem.sizes for column in plan["8"]} == {NEAR, SPREAD}
    assert [column.speeds for column in plan["8-stragglers"][:3]] == [
        TwoSpeeds(stragglers=share, fast=0.1, slow=10.0) for share in (0.1, 0.3, 0.5)
    ]
    assert isinstance(plan["8-correlated"][0].speeds, CorrelatedSpeeds)
    assert plan["8-correlated"][1].speeds == FixedSpeeds()


def test_the_whole_has_a_hundred_sites_and_all_rows():
    problem = WHOLE.problem(MNIST, 5)
    assert (problem.sites, problem.rows, problem.tests) == (100, None, None)
    assert CIFAR10 in WHOLE.images
    assert WHOLE.training(problem, 0.2).n0 == 5


# ---- the sites ---------------------------------------------------------------------------------------------------


def test_sites_learn_and_are_tested_on_the_same_classes():
    sites = Problem(MNIST, 5, 40, 30, shards=4).deal(0)
    assert list(sites) == [f"site{i}" for i in range(5)]
    assert sum(source.shape[0] for source in sites.values()) == 200
    for source in sites.values():
        assert len(source.classes) == 4
        assert set(source.test.classes) <= set(source.classes)
        assert 0 <= source.X.min() < source.X.max() <= 1


def test_without_shards_rows_are_dealt_at_random():
    sites = Problem(MNIST, 4, 60, 20, shards=None).deal(0)
    assert {source.shape[0] for source in sites.values()} == {60}
    assert all(len(source.classes) == 10 for source in sites.values())


def test_sizes_differ_as_said():
    near = [source.shape[0] for source in Problem(MNIST, 8, 50, 20, 5, NEAR).deal(0).values()]
    spread = [source.shape[0] for source in Problem(MNIST, 8, 50, 20, 5, SPREAD).deal(0).values()]
    assert sum(near) == sum(spread) == 400
    assert max(near) / min(near) < 1.7  # 150 / 100, and what the classes' own numbers add
    assert max(spread) / min(spread) > 3


def test_groups_of_labels_are_at_groups_of_sites_the_first_of_which_are_fastest():
    problem = Problem(MNIST, 7, 40, 20, shards=None, groups=3)
    sites = problem.deal(0)
    held = [set(source.classes) | set(source.test.classes) for source in sites.values()]
    assert held == [{0, 1, 2, 3}] * 3 + [{4, 5, 6}] * 2 + [{7, 8, 9}] * 2
    times = problem.in_order().seconds(sorted(sites), 0, 0)
    assert list(times) == sorted(times)


def test_colours_come_first_in_a_row_and_are_scaled():
    loaded = stand_in("cifar10_subset", dtype=np.float32, download=False)
    (X, y), _ = Problem(CIFAR10_NARROW, 2, 50, 10, 5)._load(np.random.default_rng([0, 7]))
    order = np.random.default_rng([0, 7]).permutation(400)
    image = loaded.X[order[3]].reshape(32, 32, 3)
    np.testing.assert_allclose(X[3].reshape(3, 32, 32)[1], image[:, :, 1] / 127.5 - 1, rtol=1e-5)
    assert y[3] == loaded.y[order[3]]


def test_letters_only_and_words_as_they_are(monkeypatch):
    X, y = np.arange(600.0).reshape(300, 2), np.arange(300) % 62
    few = SimpleNamespace(X=X, y=y, X_test=X[:3], y_test=y[:3])
    monkeypatch.setattr(reproduce_srpfl_data, "load", lambda *_, **__: few)
    (_, letters), (_, held) = Problem(FEMNIST, 2, 10, 4, 3)._load(np.random.default_rng(0))
    assert set(letters) | set(held) <= set(range(36, 46))
    (words, _), (tests, numbers) = Problem(SENT140, 2, 10, 20, None)._load(np.random.default_rng(0))
    assert len(tests) == len(numbers) == 40  # three rows to test are too few: a fifth of the others
    assert not {tuple(row) for row in words} & {tuple(row) for row in tests}
    assert {tuple(row) for row in words} <= {tuple(row) for row in X}


# ---- a run -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sites():
    rng = np.random.default_rng(1)
    made = {}
    for i in range(8):
        y = rng.integers(0, 3, 12)
        X = np.eye(3)[y] + 0.3 * rng.standard_normal((12, 3))
        made[f"site{i}"] = Labelled(X, y, test=(X, y))
    return made


def run(method, sites, *, rounds=6, fraction=1.0, speeds=None):
    training = Training(rounds=rounds, n0=2, epochs=1, head_epochs=1)
    return train(method, training, SMALL, sites, fraction=fraction, speeds=speeds or FixedSpeeds(), seed=0)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_as_many_rounds(method, sites):
    found = run(method, sites, rounds=10)
    assert len(found.cohorts) == 10
    assert (found.at[0], found.at[-1]) == (0, 10)
    assert len(found.at) == len(found.accuracy)
    assert found.accuracy[-1] > found.accuracy[0]


def test_what_is_measured_after_the_last_round_is_what_it_came_to(sites):
    """Doubling would go on; it ends where the others do."""
    full = Noted(FedAvg(rounds=5, epochs=1), most=3)
    study = Learning(learner=full, model=SMALL, seed=0)
    short = Learning(learner=FedAvg(rounds=3, epochs=1), model=SMALL, seed=0)
    np.testing.assert_array_equal(learn(study, sites).shared, learn(short, sites).shared)
    assert full.cohorts == [Cohort()] * 3


def test_doubling_waits_for_n0_then_twice_as_many(sites):
    assert [cohort.first for cohort in run(FEDREP_S, sites, rounds=10).cohorts] == [2, 2, 4, 4, *([None] * 6)]
    assert [cohort.share for cohort in run(BY_SAMPLES, sites, rounds=10).cohorts][:4] == [0.25, 0.25, 0.5, 0.5]
    held = run(FLANP_FT, sites, rounds=10).cohorts
    assert len({cohort.hold for cohort in held[:4]}) == 1
    assert held[0].hold is not None


def test_tuned_methods_are_measured_half_as_often(sites):
    assert run(FEDAVG, sites).at == [0, 1, 2, 3, 4, 5, 6]
    assert run(FEDAVG_FT, sites).at == [0, 2, 4, 6]
    assert run(FEDAVG_FT, sites).accuracy[0] != run(FEDAVG, sites).accuracy[0]


# ---- the clock ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [FEDREP, FEDREP_S, FLANP_FT])
def test_the_clock_is_the_engines(method, sites):
    """One draw of it is the clock of the run itself, where all are asked and speeds are fixed."""
    learner = Noted(METHODS[method](Training(rounds=6, n0=2, epochs=1)), 6)
    engine = VirtualTime(speeds=FixedSpeeds(), communication=3.0)
    history = learn(Learning(learner=learner, model=SMALL, seed=0), sites, engine=engine).history
    clocks = [record.clock for record in history if record.step.endswith("update")]
    np.testing.assert_allclose(Clock(sites, 1)(learner.cohorts, FixedSpeeds(), 3.0), [0.0, *clocks])


def test_the_mean_of_the_clock_is_that_of_the_order_statistics(sites):
    cohorts = [Cohort(first=2), Cohort(first=4), Cohort()]
    expected = np.cumsum([order_statistic_mean(n, 8) for n in (2, 4, 8)])
    np.testing.assert_allclose(Clock(sites, 1500)(cohorts, FixedSpeeds(), 0.0)[1:], expected, rtol=0.06)
    part = Clock(sites, 1500)([Cohort(fraction=0.5, first=1)], FixedSpeeds(), 10.0)
    np.testing.assert_allclose(part[1] - 10, order_statistic_mean(1, 4), rtol=0.1)


def test_who_is_held_may_be_slow_in_the_next_round(sites):
    """With dynamic speeds a stage that keeps its sites waits longer than one that takes whoever is first."""
    new, held = (Clock(sites, 200)([Cohort(first=2, hold=hold)] * 4, DynamicSpeeds(), 0.0) for hold in (None, "x"))
    assert held[1] == new[1]
    assert held[4] > 2 * new[4]


def test_every_method_meets_the_same_draws(sites):
    clock = Clock(sites, 5)
    both = [Cohort()] * 3, [Cohort(), Cohort(), Cohort(first=8)]
    one, other = (clock(cohorts, DynamicSpeeds(), 0.0) for cohorts in both)
    np.testing.assert_array_equal(one, other)


# ---- all of it ---------------------------------------------------------------------------------------------------


def test_a_method_that_waits_for_all_is_trained_once_for_all_speeds(made):
    fixed, dynamic = columns(made, "3")[0]["runs"], columns(made, "5")[0]["runs"]
    assert fixed[FEDREP]["accuracy"] == dynamic[FEDREP]["accuracy"]
    assert fixed[FEDREP]["times"]["0"] != dynamic[FEDREP]["times"]["0"]
    assert fixed[FEDREP_S]["accuracy"] != dynamic[FEDREP_S]["accuracy"]
    told = [line.rsplit(",", 1)[0] for line in made.lines if ": " in line and not line.startswith("figure")]
    shard = [line for line in told if line.startswith("MNIST, shard 5: ")]
    assert shard.count(f"MNIST, shard 5: {FEDREP}") == 2  # with all sites and with a part of them
    assert shard.count(f"MNIST, shard 5: {FEDREP_S}") == 4  # and for each of two orders


def test_stragglers_change_the_clock_alone(made):
    plain, slow = columns(made, "3")[0]["runs"][FEDREP_S], columns(made, "8-stragglers")[0]["runs"][FEDREP_S]
    assert plain["accuracy"] == slow["accuracy"]
    assert slow["times"]["0"][-1] > 3 * plain["times"]["0"][-1]


def test_communication_is_paid_in_every_round(made):
    for figure in made.result["panels"]:
        for run in (run for column in figure["columns"] if "runs" in column for run in column["runs"].values()):
            times, rounds = {cost: np.array(t) for cost, t in run["times"].items()}, np.array(run["rounds"])
            assert times["0"][0] == times["100"][0] == 0
            np.testing.assert_allclose(times["10"] - times["0"], 10 * rounds)
            np.testing.assert_allclose(times["100"] - times["0"], 100 * rounds)
            assert len(run["accuracy"]) == len(rounds)


def test_what_is_missing_is_listed_once_with_its_source(made):
    told = (made.folder / "tables.md").read_text()
    assert told == text(made.result)
    assert told.count("EMNIST: emnist is not here (its source: https://www.nist.gov") == 1
    assert told.count("Sent140: sent140 is not here") == 1
    assert "takes no virtual time" in told
    assert json.loads((made.folder / "srpfl.json").read_text())["panels"] == made.result["panels"]


def test_figures_have_a_row_for_each_cost(made):
    assert set(made.drawn) == {f"figure{n}.png" for n in ("3", "4", "5", "6", "7", "8", "8-stragglers", "8-correlated")}
    title, panels, options = made.drawn["figure3.png"]
    assert title == "Figure 3: full participation, fixed speeds"
    assert (options["across"], options["log"], len(panels)) == (2, False, 6)
    assert [panel["title"].rsplit("= ")[-1] for panel in panels] == ["0", "0", "10", "10", "100", "100"]
    first = panels[2]["curves"][0]
    run = columns(made, "3")[0]["runs"][FEDREP_S]
    assert (first["label"], first["values"], first["at"]) == (FEDREP_S, run["accuracy"], run["times"]["10"])
    looks = {(curve["colour"], curve["dashed"]) for curve in panels[0]["curves"]}
    assert len(looks) == len(panels[0]["curves"])


def test_times_and_ratios_are_to_99_percent_of_the_method_without(monkeypatch):
    curves = {FEDREP: [0.0, 0.5, 0.9, 1.0, 1.0, 1.0], FEDREP_S: [0.0, 0.9, 0.995, 0.9, 0.9, 0.9], LG: [0.1] * 6}

    def told(method, *_, **__):
        return SimpleNamespace(at=list(range(6)), accuracy=curves[method], cohorts=(Cohort(),) * 5)

    monkeypatch.setattr(reproduce_srpfl_runs, "train", told)
    bench = Bench(TINY, lambda _: None)
    found = reproduce_srpfl_runs._column(bench, Column(TINY.problem(TINY.digits[0], 5), tuple(curves)))
    times = found["runs"][FEDREP]["times"]["10"]
    assert found["target"] == pytest.approx(0.99)
    assert found["reached"][FEDREP]["10"] == times[3]
    assert found["reached"][FEDREP_S]["10"] == times[2]
    assert found["reached"][LG]["10"] is None
    half, most = ({c: pytest.approx(ratio) for c in ("0", "10", "100")} for ratio in (1 / 2, 2 / 3))
    assert found["ratios"] == {FEDREP_S: {"0.9": half, "0.99": most}}
    assert found["runs"][FEDREP_S]["final"] == pytest.approx(0.9)


def test_theorem_4_9_is_measured_beside_the_prediction(made):
    (found,) = made.result["linear"]
    assert found["sites"] == 32
    assert 0 < found["floor"] < 0.5
    assert found["ratio"] == pytest.approx(found["doubling"] / found["full"])
    every = order_statistic_mean(32, 32) + 1
    assert found["full"] == pytest.approx(found["rounds"] * every)
    bounds = doubling_bounds(4, 32, found["a"], 1.0, 1.1)
    assert found["counts"] == pytest.approx(bounds.expected_doubling / bounds.expected_full)
    line = next(line for line in text(made.result).splitlines() if line.startswith("| 32 "))
    assert f"{found['ratio']:.2f}" in line


def test_a_target_that_is_not_met_takes_for_ever():
    distances, times = np.array([1.0, 0.5, 0.2]), np.array([0.0, 2.0, 5.0])
    assert reproduce_srpfl_linear._reached(distances, times, 0.5) == 2.0
    assert reproduce_srpfl_linear._reached(distances, times, 0.1) == np.inf


SMALL_MODELS = {
    "sent140": replace(SENT140, model={"kind": "bilstm", "vocabulary": 9, "embedding": 3, "dimension": 4}),
    "cifar100": replace(CIFAR100, model={**CIFAR100.model, "channels": [2, 2], "hidden": [6, 5]}),
}


@pytest.mark.parametrize(("name", "d", "classes", "shards"), [("sent140", 5, 2, 2), ("cifar100", 3072, 10, 5)])
def test_sets_that_are_seldom_here_are_learnt_where_they_are(monkeypatch, name, d, classes, shards):
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 9, (200, d)), np.arange(200) % classes
    present = SimpleNamespace(X=X, y=y, X_test=X, y_test=y)
    monkeypatch.setattr(reproduce_srpfl_data, "load", lambda asked, **_: present if asked == name else None)
    bench = Bench(replace(TINY, rounds=2, draws=1), lambda _: None)
    found = reproduce_srpfl_runs._column(bench, Column(TINY.problem(SMALL_MODELS[name], shards), (FEDREP, LG_S)))
    assert all(len(found["runs"][method]["accuracy"]) == 3 for method in (FEDREP, LG_S))


def test_a_method_that_diverges_is_named_and_the_others_go_on(monkeypatch, tmp_path):
    def diverging(method, *arguments, **options):
        if method == LG:
            raise ConvergenceError("the learner diverges")
        return train(method, *arguments, **options)

    monkeypatch.setattr(reproduce_srpfl_runs, "train", diverging)
    monkeypatch.setattr(reproduce_srpfl, "QUICK", replace(TINY, rounds=2, draws=1))
    told = text(reproduce(tmp_path, quick=True, figures=False))
    line = next(line for line in told.splitlines() if line.startswith(f"| {LG} "))
    assert [cell.strip() for cell in line.split("|")[2:4]] == ["diverged", "-"]
    assert any(line.startswith(f"| {LG_S} ") and "diverged" not in line for line in told.splitlines())


def test_a_picture_is_drawn(tmp_path):
    curve = {"label": "a", "values": [0.1, 0.5], "at": [0, 3], "colour": 0, "dashed": True}
    panels = [{"title": title, "curves": [curve]} for title in "xy"]
    plots.write_curves(tmp_path / "a.png", "title", panels, x="x", y="y", log=False, one_legend=True)
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"


def test_the_whole_is_refused_where_there_is_none():
    with pytest.raises(ConfigurationError, match="--whole is for srpfl: faps is run whole without it"):
        verb("faps", whole=True)
    with pytest.raises(ConfigurationError, match="take one of them"):
        verb("srpfl", quick=True, whole=True)


@pytest.mark.parametrize(("paper", "asked"), [("srpfl", {"whole": True}), ("srpfl", {"whole": False}), ("ppm", {})])
def test_only_a_paper_that_is_shortened_is_asked_for_the_whole(monkeypatch, tmp_path, paper, asked):
    told = []

    def reproduce(folder, **options):
        told.append(options)
        return {}

    monkeypatch.setattr(f"{PAPERS[paper]}.reproduce", reproduce)
    monkeypatch.setattr(f"{PAPERS[paper]}.text", lambda _: "")
    verb(paper, folder=tmp_path, quick=False, tables=True, figures=True, noisy=False, json=False, **asked)
    assert {key: value for key, value in told[0].items() if key == "whole"} == asked


@pytest.mark.soak
@pytest.mark.skipif(not os.path.isfile(os.path.join(REAL_DATA, "mnist.npz")), reason="needs mnist.npz in FEDSPAN_DATA")
def test_on_mnist_doubling_saves_time_and_loses_little():
    scale = replace(FULL, digits=(MNIST,), images=(), shards=(5,))
    bench = Bench(scale, lambda _: None)
    found = reproduce_srpfl_runs._column(bench, Column(scale.problem(MNIST, 5), (FEDREP, FEDREP_S)))
    assert found["ratios"][FEDREP_S]["0.9"]["0"] < 1
    assert found["runs"][FEDREP]["final"] > 0.85
    assert abs(found["runs"][FEDREP]["final"] - found["runs"][FEDREP_S]["final"]) < 0.03


def test_run_figures_reports_each_figure():
    lines = []
    assert [made["number"] for made in run_figures(replace(TINY, digits=(), images=()), lines.append)][:2] == ["3", "4"]
    assert [line.split(":")[0] for line in lines if line.startswith("figure")] == [
        f"figure {n}" for n in ("3", "4", "5", "6", "7", "8", "8-stragglers", "8-correlated")
    ]
