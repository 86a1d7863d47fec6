"""Runs without a coordinator: replicas in lockstep, nodes that are done, nodes that crash, and what is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from fedspan import gossip_run
from fedspan.data import Preparation, open_source
from fedspan.encoding import Array
from fedspan.engines import Gossip
from fedspan.errors import CohortError, ConfigurationError, ConvergenceError, PolicyError, ResumeError
from fedspan.gossip_run import check_gossip
from fedspan.linalg import Estimate, orth, ritz
from fedspan.metrics import projection_distance
from fedspan.privacy import GaussianPrivacy
from fedspan.privacy.ledger import Ledger
from fedspan.rounds import Cohort, Reply, Round, Solve, Sum, site_step
from fedspan.run import Study, run
from fedspan.sites import LEDGER
from fedspan.solvers import (
    FAPS,
    NAMES,
    SOLVERS,
    UDA,
    BlockKrylov,
    Covariance,
    Doubling,
    FedPower,
    Power,
    Problem,
    Solution,
)
from tests.conformance.solvers import pooled, rows_of

K, KRYLOV = 3, BlockKrylov(oversampling=0)
NODES = dict.fromkeys(("accra", "berlin", "cairo", "delhi", "essen", "faro"), 25)
asked: list[tuple[str, int, float]] = []
"""Of the solver below: which site was asked, in which round, by the node of which number."""


@site_step("tests.gossip_run.note")
def note(site, message):
    """Note who asks; reply as a power round does."""
    asked.append((site.id, site.round, message["by"]))
    return Reply(site.noised(product=site.data.gram_times(message["z"])))


@dataclass(frozen=True, kw_only=True)
class Uneven:
    """Power iteration that is done after as many rounds as ``budgets`` says, whose turn it is: one a replica."""

    budgets: tuple[int, ...] = (3,)
    begun: ClassVar[list[int]] = []
    partial = True
    releases = None

    def rank(self, k: int, d: int) -> int:
        return k

    def solve(self, problem: Problem) -> Solve[Solution]:
        turn = len(self.begun)
        self.begun.append(turn)
        z: Array = problem.start
        for _ in range(self.budgets[turn % len(self.budgets)]):
            y = yield Round(note, {"z": z, "by": float(turn)}, Sum(), estimate=z)
            z = orth(y)
        return Solution(ritz(z, y), True)


@pytest.fixture
def uneven(monkeypatch):
    """Have studies know the solver, and forget what was asked."""
    monkeypatch.setitem(SOLVERS, "tests-uneven", Uneven)
    monkeypatch.setitem(NAMES, Uneven, "tests-uneven")
    monkeypatch.setattr(Uneven, "begun", [])
    asked.clear()


def go(solver, sites=None, *, n_components=K, privacy=None, seed=0, law=None, **more):
    sites = rows_of(sizes=NODES) if sites is None else sites
    study = Study(
        n_components=n_components, solver=solver, preparation=Preparation(center=True), privacy=privacy, seed=seed
    )
    sources = {name: open_source(x) for name, x in sites.items()}
    return run(study, sources, engine=law or Gossip(graph="ring"), **more)


def without(sites, *names):
    return {name: rows for name, rows in sites.items() if name not in names}


# ---- replicas ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("agree", [True, False])
@pytest.mark.parametrize(
    "solver", [KRYLOV, Power(oversampling=2), FAPS(), Covariance(), FedPower(local_steps=1, rounds=60)], ids=str
)
def test_every_node_has_the_pooled_answer(solver, agree):
    sites = rows_of(sizes=NODES)
    result = go(solver, sites, law=Gossip(graph="ring", agree=agree))
    basis, values = pooled(sites)
    assert sorted(result.nodes.estimates) == sorted(sites)
    for estimate in result.nodes.estimates.values():
        assert projection_distance(estimate.basis, basis) < 1e-4
        np.testing.assert_allclose(estimate.values, values, rtol=1e-6)
    np.testing.assert_array_equal(result.estimate.basis, result.nodes.estimates["accra"].basis)
    assert result.nodes.disagreement < (1e-14 if agree else 1e-6)


def test_nodes_that_agree_are_equal_to_the_bit_and_others_are_not():
    sites = rows_of(sizes=NODES)
    for agree in (True, False):
        result = go(Power(rounds=8, tol=0.0), sites, law=Gossip(graph="ring", agree=agree, accuracy=1e-6))
        answers = {estimate.basis.tobytes() for estimate in result.nodes.estimates.values()}
        assert len(answers) == (1 if agree else len(sites))


def test_krylov_beyond_its_answer_stays_right_where_nodes_agree():
    sites = rows_of(sizes=NODES)
    krylov = BlockKrylov(rounds=40, tol=0.0, oversampling=0, max_basis=3)
    result = go(krylov, sites)
    assert projection_distance(result.estimate.basis, pooled(sites)[0]) < 1e-8


def test_answers_that_have_nothing_in_common_are_an_error(uneven, monkeypatch):
    """As Krylov's without agreement, far beyond its answer on data of many directions: here one node turns its own."""
    original = Uneven.solve

    def astray(self, problem):
        turned = len(self.begun) == 3
        solution = yield from original(self, problem)
        basis, values = solution.estimate
        return replace(solution, estimate=Estimate(np.roll(basis, 1, axis=0) if turned else basis, values))

    monkeypatch.setattr(Uneven, "solve", astray)
    with pytest.raises(ConvergenceError, match=r"the nodes' answers are up to 0\.\d+ apart"):
        go(Uneven(budgets=(30,)))


def test_a_tolerance_below_the_accuracy_is_raised_to_it():
    power = Power(rounds=400, tol=1e-12)
    coarse, fine = (go(power, law=Gossip(graph="ring", accuracy=accuracy)) for accuracy in (1e-5, 1e-13))
    assert coarse.converged
    assert projection_distance(coarse.estimate.basis, pooled(rows_of(sizes=NODES))[0]) < 1e-2
    assert coarse.rounds < fine.rounds / 2


def test_every_node_drives_a_replica_of_its_own(uneven):
    go(Uneven(budgets=(3,)))
    assert len(Uneven.begun) == len(NODES)
    by = {site: {turn for name, _, turn in asked if name == site} for site in NODES}
    assert all(len(turns) == 1 for turns in by.values())
    assert len(set.union(*by.values())) == len(NODES)


def test_a_site_whose_node_is_done_answers_the_nearest_that_is_not(uneven, monkeypatch):
    """On the ring of six: delhi alone asks more, so all answer it; then faro too, and who is as near goes by name."""
    monkeypatch.setattr(gossip_run, "_ASTRAY", 1.0)
    result = go(Uneven(budgets=(2, 2, 2, 5, 2, 2)))
    last = {site: turn for site, number, turn in asked if number == 3 + 4}
    assert last == dict.fromkeys(NODES, 3.0)
    assert result.rounds == 2  # those of the first node
    asked.clear()
    Uneven.begun.clear()
    go(Uneven(budgets=(2, 2, 2, 5, 2, 5)))
    last = {site: turn for site, number, turn in asked if number == 3 + 4}
    assert last == {"accra": 5, "berlin": 3, "cairo": 3, "delhi": 3, "essen": 3, "faro": 5}


def test_sums_stay_complete_when_nodes_are_done(uneven, monkeypatch):
    monkeypatch.setattr(gossip_run, "_ASTRAY", 1.0)
    sites = rows_of(sizes=NODES)
    result = go(Uneven(budgets=(60, 4, 60, 60, 60, 60)), sites)
    basis = pooled(sites)[0]
    far = {name: projection_distance(found.basis, basis) for name, found in result.nodes.estimates.items()}
    assert far.pop("berlin") > 1e-3
    assert max(far.values()) < 1e-8
    assert result.nodes.disagreement == pytest.approx(
        projection_distance(result.estimate.basis, result.nodes.estimates["berlin"].basis)
    )


def test_solvers_that_go_different_ways_are_an_error(uneven, monkeypatch):
    original = Uneven.solve

    def other_way(self, problem):
        if len(self.begun) == 2:  # after accra and berlin
            self.begun.append(2)
            return Power(rounds=3, tol=0.0).solve(problem)
        return original(self, problem)

    monkeypatch.setattr(Uneven, "solve", other_way)
    with pytest.raises(
        ConvergenceError, match=r"in the same round 'faro' asks tests\..* and 'cairo' asks gram.multiply; let"
    ):
        go(Uneven(budgets=(3,)))


def test_answers_of_unlike_ranks_are_apart():
    assert gossip_run._apart(np.eye(3)[:, :2], np.eye(3)[:, :1]) == 1.0
    assert gossip_run._apart(np.eye(3)[:, :2], np.eye(3)[:, 1::-1]) < 1e-15


def test_a_rank_that_is_found_is_found_alike():
    result = go("krylov", n_components=0.9)
    assert {found.basis.shape for found in result.nodes.estimates.values()} == {result.estimate.basis.shape}
    assert result.nodes.disagreement < 1e-8


# ---- crashes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", [4, 4.5, 6, 6.5])
@pytest.mark.parametrize("who", ["accra", "delhi"])
def test_power_goes_on_without_a_node_that_crashes(when, who, tmp_path):
    sites = rows_of(sizes=NODES)
    result = go(Power(rounds=200), sites, law=Gossip(graph="ring", crashes={who: when}), folder=tmp_path / "run")
    mean = np.vstack([*sites.values()]).mean(axis=0)  # the crashed node's rows are in it
    rest = np.vstack([*without(sites, who).values()]) - mean
    basis = np.linalg.svd(rest, full_matrices=False)[2][:K].T
    assert sorted(result.nodes.estimates) == sorted(without(sites, who))
    for found in result.nodes.estimates.values():
        assert projection_distance(found.basis, basis) < 1e-6
    alive = [r.sites for r in result.history]
    assert alive == [6] * int(when) + [5] * (len(alive) - int(when))
    lines = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines if "answer" in line] == [r.round for r in result.history]


@pytest.mark.parametrize("when", [4, 5.5])
@pytest.mark.parametrize("solver", [KRYLOV, FAPS()], ids=["krylov", "faps"])
def test_a_solver_that_needs_the_same_sites_begins_anew(solver, when):
    sites = rows_of(sizes=NODES)
    result = go(solver, sites, law=Gossip(graph="ring", crashes={"cairo": when}))
    basis, values = pooled(without(sites, "cairo"))  # its own mean too: set-up is done again
    assert [r.step for r in result.history].count("data.describe") == 2
    assert result.facts.sites == 5
    for found in result.nodes.estimates.values():
        assert projection_distance(found.basis, basis) < 1e-4
        np.testing.assert_allclose(found.values, values, rtol=1e-6)


def test_a_crash_before_the_solver_begins_needs_no_new_beginning():
    sites = rows_of(sizes=NODES)
    result = go(KRYLOV, sites, law=Gossip(graph="ring", crashes={"cairo": 2}))
    assert [r.step for r in result.history].count("data.describe") == 1
    rest = np.vstack([*without(sites, "cairo").values()]) - np.vstack([*sites.values()]).mean(axis=0)
    assert projection_distance(result.estimate.basis, np.linalg.svd(rest, full_matrices=False)[2][:K].T) < 1e-8


def test_it_begins_anew_from_its_last_estimate():
    seen = []
    law = Gossip(graph="ring", crashes={"cairo": 7})
    go(FAPS(), law=law, watchers=[lambda record, estimate: seen.append((record.step, estimate))])
    steps = [step for step, _ in seen]
    again = steps.index("data.describe", 1)
    before = [estimate for step, estimate in seen[:again] if step == "faps.consensus"][-1]
    after = next(estimate for step, estimate in seen[again:] if step == "faps.consensus")
    assert projection_distance(before, after) < 1e-12


def test_a_crash_while_it_is_set_up_again_needs_no_third_beginning():
    sites = rows_of(sizes=NODES)
    result = go(KRYLOV, sites, law=Gossip(degree=5, crashes={"cairo": 4, "faro": 7}))
    steps = [r.step for r in result.history]
    assert steps.index("data.describe", 1) < 7 < steps.index("gram.multiply", 5)
    assert steps.count("data.describe") == 2
    assert sorted(result.nodes.estimates) == ["accra", "berlin", "delhi", "essen"]


def test_one_crash_after_another_and_silent_links():
    sites = rows_of(sizes=NODES)
    law = Gossip(degree=5, crashes={"accra": 3.5, "berlin": 5, "faro": 4.5}, link_loss=0.2)
    result = go(KRYLOV, sites, law=law)
    basis, _ = pooled(without(sites, "accra", "berlin", "faro"))
    assert sorted(result.nodes.estimates) == ["cairo", "delhi", "essen"]
    assert projection_distance(result.estimate.basis, basis) < 1e-6


def test_a_graph_that_falls_apart_ends_the_run(tmp_path):
    with pytest.raises(CohortError, match="falls apart into"):
        go(Power(), law=Gossip(graph="ring", crashes={"berlin": 4, "essen": 5}), folder=tmp_path / "run")


def test_crashes_after_the_end_change_nothing():
    sites = rows_of(sizes=NODES)
    result = go(Power(), sites, law=Gossip(graph="ring", crashes={"berlin": 5000}))
    assert result.nodes.crashed == {}
    assert len(result.nodes.estimates) == 6


# ---- refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("solver", "said"),
    [
        (UDA(), "uda needs single replies"),
        (FedPower(reference="baseline"), "fedpower needs single replies"),
        (Doubling(), "doubling needs single replies, or waits for few"),
        ("streaming", "streaming needs single replies"),
        ("dr-svd", "dr-svd needs single replies"),
    ],
    ids=str,
)
def test_solvers_that_need_more_than_sums_are_refused_before_anything_is_asked(solver, said, tmp_path):
    seen = []
    with pytest.raises(ConfigurationError, match=said):
        go(solver, watchers=[lambda record, estimate: seen.append(record)], folder=tmp_path / "run")
    assert seen == []
    assert not (tmp_path / "run").exists()


def test_what_needs_a_coordinator_is_refused(tmp_path):
    sources = {name: open_source(x) for name, x in rows_of(sizes=NODES).items()}
    study = Study(n_components=K, solver="power")
    check_gossip(Gossip(), study, sources, resume=False, record="rounds")
    with pytest.raises(ResumeError, match="does not resume"):
        go("power", resume=True, folder=tmp_path / "run")
    with pytest.raises(ConfigurationError, match="a coordinator sees of each site"):
        go("power", record="transcript", folder=tmp_path / "run")
    with pytest.raises(ConfigurationError, match="asks every node in every round"):
        check_gossip(Gossip(), replace(study, cohort=Cohort(first=2)), sources, resume=False, record="rounds")
    private = GaussianPrivacy(1.0, 1e-6, row_norm=30.0, trust="central")
    with pytest.raises(ConfigurationError, match="has the coordinator add the noise"):
        go("power", privacy=private)
    with pytest.raises(ConfigurationError, match="a torus has at least 3 rows"):
        go("power", law=Gossip(graph="torus"))


def test_secure_sums_are_refused_unless_noise_hides_single_nodes():
    sources = {name: open_source(x) for name, x in rows_of(sizes=NODES).items()}
    for privacy in (None, GaussianPrivacy(1.0, 1e-6, row_norm=30.0)):
        study = Study(n_components=K, solver="power", privacy=privacy, secure=True)
        with pytest.raises(ConfigurationError, match="relayed by a coordinator"):
            check_gossip(Gossip(), study, sources, resume=False, record="rounds")


def test_local_trust_works_as_it_is():
    private = GaussianPrivacy(3e5, 1e-3, row_norm=30.0, testing_seed=7)
    sites = rows_of(sizes=NODES)
    result, plain = go("power", sites, privacy=private), go("power", sites, privacy=private, law=None)
    assert projection_distance(result.estimate.basis, plain.estimate.basis) < 1e-6
    assert result.privacy.spent_epsilon == plain.privacy.spent_epsilon


def test_a_budget_that_ends_stops_every_node_at_its_last_estimate(tmp_path):
    private = GaussianPrivacy(3e5, 1e-3, row_norm=30.0, testing_seed=7)
    with Ledger(tmp_path / "run" / "sites" / "cairo" / LEDGER, budget=0.6 * private.mu**2):
        pass
    result = go(Power(rounds=4), privacy=private, folder=tmp_path / "run")
    assert "the budget of" in result.stopped
    assert sorted(result.nodes.estimates) == sorted(NODES)
    assert result.nodes.disagreement < 1e-12
    assert result.estimate.basis.shape == (12, K)


def test_a_private_solver_that_needs_the_same_sites_does_not_begin_anew():
    private = GaussianPrivacy(3e5, 1e-3, row_norm=30.0, testing_seed=7)
    krylov = BlockKrylov(rounds=4, oversampling=0)
    with pytest.raises(PolicyError, match=r"^cairo crashed, .* would release more"):
        go(krylov, privacy=private, law=Gossip(graph="ring", crashes={"cairo": 6}))
