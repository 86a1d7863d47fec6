"""A plan of a study of labelled rows is what its run does, and looks at no data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedspan.errors import ConfigurationError
from fedspan.learners import FLANP, HFMAML, FedAvg, FedRep, LGFedAvg
from fedspan.learning import Learning, learn
from fedspan.learning_plan import Outline, plan_learning
from fedspan.privacy import GaussianPrivacy
from fedspan.rounds import Cohort
from fedspan.solvers import Doubling
from tests.labelled import NAMES, D, classes, numbers, sources

MLP = {"kind": "mlp", "hidden": [6, 3]}
LINEAR = FedRep(rounds=4, rate=0.2, batch=0)
QUICK = {"rounds": 3, "batch": 8}
OUTLINE = Outline(sites=NAMES, features=D)
STUDIES = {
    "linear": Learning(learner=LINEAR, evaluate_every=2),
    "heads": Learning(learner=replace(LINEAR, heads=True, fresh=5)),
    "moments": Learning(learner=LINEAR, start="moments"),
    "given": Learning(learner=LINEAR, start=np.eye(D, 2)),
    "half": Learning(learner=LINEAR, cohort=Cohort(fraction=0.5)),
    "first": Learning(learner=LINEAR, cohort=Cohort(first=3)),
    "doubling": Learning(learner=Doubling(stage=LINEAR, n0=1, rounds=2)),
    "fedrep": Learning(learner=FedRep(**QUICK), model=MLP, tune=1, evaluate_every=1),
    "lg": Learning(learner=LGFedAvg(**QUICK), model=MLP),
    "fedavg": Learning(learner=FedAvg(**QUICK), model=MLP, tune=1),
    "maml": Learning(learner=HFMAML(**QUICK), model=MLP),
    "deep doubling": Learning(learner=Doubling(stage=FedRep(**QUICK), n0=2), model=MLP),
}  # fmt: skip


@pytest.mark.parametrize("name", STUDIES)
def test_a_plan_is_what_the_run_does(name):
    study = STUDIES[name]
    deep = study.model["kind"] == "mlp"
    made = {site: (given[0], np.searchsorted(["ill", "unsure", "well"], given[1])) for site, given in classes().items()}
    found = learn(study, sources(made if deep else numbers()))
    plan = plan_learning(study, replace(OUTLINE, classes=3 if deep else None))
    begun = [] if found.start is None else found.start.history
    ran = [(r.step, r.setup, r.sites, r.bytes_up, r.bytes_down) for r in found.history]
    planned = [(r.step, r.setup, r.sites, r.bytes_up, r.bytes_down) for r in plan.rounds]
    assert planned[len(begun) :] == ran
    assert [step for step, *_ in planned[: len(begun)]] == [r.step for r in begun]
    assert (plan.bytes_up, plan.bytes_down) == (sum(p[3] for p in planned), sum(p[4] for p in planned))
    assert plan.parameters == found.shared.size


@pytest.mark.parametrize(
    ("learner", "rounds"),
    [
        (FedRep(rounds=40, stall=0.5), 40),
        (FLANP(n0=1, stage_rounds=7, rounds=20, stall=0.9), 7 + 7 + 20),
        (Doubling(stage=FedRep(rounds=20, stall=0.5), n0=1, rounds="stall", most=9), 9 + 9 + 20),
    ],
)
def test_a_plan_shows_the_whole_budget(learner, rounds):
    plan = plan_learning(Learning(learner=learner), OUTLINE)
    assert sum(not r.setup for r in plan.rounds) == rounds
    with np.errstate(all="ignore"):
        assert learn(Learning(learner=learner), sources(numbers())).rounds < rounds


def test_many_sites_and_large_networks_cost_no_more_than_one():
    many = Outline(sites=tuple(f"s{i}" for i in range(2000)), features=784, classes=10)
    plan = plan_learning(Learning(learner=FedRep(rounds=2), model={"kind": "mlp"}), many)
    update = next(r for r in plan.rounds if r.step == "fedrep.update")
    body = 785 * 512 + 513 * 256 + 257 * 64
    assert plan.parameters == body
    assert (update.up, update.bytes_up) == (4 * body + 24, 2000 * (4 * body + 24))


def test_a_private_start_needs_to_know_about_how_many_rows_there_are():
    study, privacy = Learning(learner=LINEAR, start="moments"), GaussianPrivacy(1.0, 1e-6, row_norm=1.0, n_public=True)
    with pytest.raises(ConfigurationError, match="--rows 10000"):
        plan_learning(study, OUTLINE, privacy)
    plan = plan_learning(study, replace(OUTLINE, rows=4000), privacy)
    assert plan.start.privacy.as_plain()["epsilon"] == 1.0
    assert all(r.setup for r in plan.rounds if r.step != "fedrep.update")


def test_what_a_run_would_refuse_a_plan_refuses():
    with pytest.raises(ConfigurationError, match="n0 = 9 sites, but a round waits for 4"):
        plan_learning(Learning(learner=Doubling(stage=LINEAR, n0=9)), OUTLINE)
    with pytest.raises(ConfigurationError, match="needs y to be numbers"):
        plan_learning(STUDIES["moments"], replace(OUTLINE, classes=2))
