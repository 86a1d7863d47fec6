"""FLANP and LG-FLANP: doubling that holds on to the sites of a stage; FedAvg inside doubling."""

from __future__ import annotations

import pytest

from fedspan.engines import FixedSpeeds, InProcess, VirtualTime
from fedspan.errors import ConfigurationError
from fedspan.learners import FLANP, LGFLANP, FedAvg, FedRep, LGFedAvg
from fedspan.rounds import Cohort
from fedspan.solvers import Doubling
from tests.learners.labelled import Federation, clouds, network_spec

SIZES = (12, 15, 9, 12, 15, 12, 9, 12)
STAGED = {
    "flanp": FLANP(n0=2, rounds=3, stage_rounds=4),
    "lg-flanp": LGFLANP(n0=2, rounds=3, stage_rounds=4),
}


def run(learner, engine, cohort=None):
    stage = learner.stage
    federation = Federation(clouds(SIZES), network_spec(stage), classes=[0, 1, 2], engine=engine, seed=3)
    return federation, federation.solve(learner, cohort=cohort)


def answered(federation):
    return [set(outcome.sites) for outcome in federation.outcomes[1:]]


@pytest.mark.parametrize("name", STAGED)
def test_a_stage_keeps_its_sites_and_the_next_waits_for_twice_as_many(name):
    engine = VirtualTime(speeds=FixedSpeeds(mean=1.0))
    federation, found = run(STAGED[name], engine)
    sites = answered(federation)
    assert [len(some) for some in sites] == [2] * 4 + [4] * 4 + [8] * 3
    assert sites[0] == sites[1] == sites[2] == sites[3]
    assert sites[4] == sites[5] == sites[6] == sites[7]
    assert sites[0] < sites[4]  # fixed speeds: the fastest two are among the fastest four
    assert found.shared.size == federation.questions[1].message["shared"].size


@pytest.mark.parametrize("name", STAGED)
def test_only_the_sites_that_a_stage_holds_are_asked(name):
    federation, _ = run(STAGED[name], InProcess)
    sites = answered(federation)
    asked = [question.cohort.only for question in federation.questions[1:]]
    assert asked[0] is None
    assert set(asked[1]) == set(asked[2]) == set(asked[3]) == sites[0]
    assert asked[4] is None
    assert asked[8:] == [None] * 3


def test_flanp_is_fedavg_and_lg_flanp_is_lg_fedavg_each_ending_its_stages_where_the_loss_stalls():
    for made, kind in ((FLANP(rate=0.2, stall=0.05), FedAvg), (LGFLANP(rate=0.2, stall=0.05), LGFedAvg)):
        assert isinstance(made, Doubling)
        assert made.stage == kind(rate=0.2, stall=0.05)
        assert (made.n0, made.rounds, made.resample) == (4, 50, "stage")


def test_a_stage_ends_where_its_loss_stalls():
    learner = FLANP(n0=2, rounds=8, stage_rounds=40, stall=0.5)
    federation, _ = run(learner, VirtualTime())
    waited = [len(some) for some in answered(federation)]
    assert 6 <= waited.count(2) < 40
    assert waited == sorted(waited)


def test_fedavg_inside_doubling_takes_whoever_is_first_in_each_round():
    """Remark 4.10: without a hold, and with the rounds that are asked for."""
    learner = Doubling(stage=FedAvg(rounds=2), n0=2, rounds=3)
    federation, _ = run(learner, VirtualTime())
    assert [len(some) for some in answered(federation)] == [2] * 3 + [4] * 3 + [8] * 2
    assert all(question.cohort.only is None for question in federation.questions)


def test_the_next_stage_begins_where_the_one_before_ended():
    learner = Doubling(stage=FedRep(rounds=1), n0=4, rounds=1)
    federation, _ = run(learner, VirtualTime())
    ended = federation.outcomes[1].value["shared"] / federation.outcomes[1].value["weight"]
    begun = federation.questions[2].message["shared"]
    assert begun == pytest.approx(ended, abs=1e-6)


@pytest.mark.parametrize("learner", [FLANP(n0=9), LGFLANP(n0=9), Doubling(stage=FedRep(), n0=9)], ids=str)
def test_fewer_sites_than_a_first_stage_waits_for_are_named(learner):
    with pytest.raises(ConfigurationError, match=r"begins with n0 = 9 sites, but a round waits for 8 at most; take n0"):
        run(learner, VirtualTime())
    with pytest.raises(ConfigurationError, match=r"n0 = 9 sites, but a round waits for 4 at most"):
        run(learner, VirtualTime(), Cohort(fraction=0.5))
