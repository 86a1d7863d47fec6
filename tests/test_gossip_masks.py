"""Studies of shared noise without a coordinator: what is sent, what it sums up to, who may be missing, what is said."""

from __future__ import annotations

import numpy as np
import pytest

from fedspan import FederatedPCA
from fedspan.data import Preparation, open_source
from fedspan.engines import Gossip
from fedspan.engines.gossip import Network
from fedspan.engines.replies import Layout
from fedspan.errors import ConfigurationError, PolicyError
from fedspan.gossip_masks import PairMasks
from fedspan.metrics import projection_distance
from fedspan.privacy import GaussianPrivacy
from fedspan.rounds import Reply
from fedspan.run import Study, run
from fedspan.secure.gopa import PairKeys, pair_deviation
from fedspan.sites import open_sites
from fedspan.solvers import Covariance, Power
from tests.conformance.solvers import PRIVATE, promise, rows_of, solve

NODES = dict.fromkeys(("accra", "berlin", "cairo", "delhi", "essen", "faro"), 25)
SHARED = [case for case in PRIVATE if case.privacy.trust == "distributed"]
RING = Gossip(graph="ring")


def go(law=RING, solver=None, d=12, **terms):
    """Release a d x d matrix of six nodes, with noise from a testing seed unless the terms say otherwise."""
    study = Study(
        n_components=2, solver=solver or Covariance(), preparation=Preparation(center=False),
        privacy=promise(**{"trust": "distributed"} | terms),
    )  # fmt: skip
    return run(study, {name: open_source(x) for name, x in rows_of(sizes=NODES, d=d).items()}, engine=law)


@pytest.fixture
def sent(monkeypatch):
    """What nodes have and what they send, in each round: (graph, layout, own values, sent values)."""
    seen, call = [], PairMasks.__call__

    def noting(self, number, graph, rows, layout):
        masked = call(self, number, graph, rows, layout)
        seen.append((number, graph, layout, rows, masked.values))
        return masked

    monkeypatch.setattr(PairMasks, "__call__", noting)
    return seen


# ---- what is sent ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("graph", ["ring", "random-regular", [*zip("abcde", "bcdef", strict=True)]])
def test_what_nodes_send_has_the_covariance_that_is_accounted(sent, graph, monkeypatch):
    """A Gram matrix of 100 features is 5050 coordinates to estimate the covariance of the nodes' noise from."""
    if isinstance(graph, list):
        names = dict(zip("abcdef", NODES, strict=True))
        graph = [(names[i], names[j]) for i, j in graph]
    go(Gossip(graph=graph), d=100, rows_per_person=1)
    number, made, layout, own, hidden = sent[-1]
    assert layout.size == 5050
    links = made.adjacency.toarray()
    laplacian = np.diag(links.sum(axis=0)) - links
    added = hidden - own
    share = (own - _exact(number)).std()
    pair = pair_deviation(share, 6, 6)
    found = added @ added.T / layout.size
    np.testing.assert_allclose(found / pair**2, laplacian, atol=0.2)
    assert np.abs(added.sum(axis=0)).max() < 1e-7 * share * 6


def _exact(number):
    """The nodes' Gram matrices as they lie in a reply, without noise."""
    from fedspan.solvers.covariance import to_triangle

    return np.array([to_triangle(x.T @ x) for _, x in sorted(rows_of(sizes=NODES, d=100).items())])


def test_the_shares_of_noise_are_their_own_and_are_enough(sent):
    result = go(d=100)
    _, _, _, own, _ = sent[-1]
    noise = own - _exact(0)
    released = [r for r in result.privacy.releases if r.step == "covariance.gram"]
    assert noise.sum(axis=0).std() == pytest.approx(released[0].sigma, rel=0.05)
    np.testing.assert_allclose(np.corrcoef(noise), np.eye(6), atol=0.08)


def test_both_ends_of_a_link_take_the_larger_noise_of_the_two():
    """Where nodes go on from their own sums, what their steps ask for may differ in the last digits."""
    sources = {name: open_source(x) for name, x in rows_of(sizes=NODES).items()}
    sites = open_sites(sources, seed=0, privacy=promise("distributed"), run="r")
    for site, share in zip(sites, (1.0, 4.0, 1.0, 1.0, 1.0, 1.0), strict=True):
        site.policy.releases.shares = {"product": share}
    rows = np.zeros((6, 20_000))
    hidden, _ = PairMasks(sites, "r")(3, RING.over(sources, 0), rows, Layout.of(Reply(rows[0])))
    assert np.abs(hidden.sum(axis=0)).max() < 1e-6
    pair = pair_deviation(1.0, 6, 6)
    deviations = np.sqrt([16 + 1, 16 + 16, 16 + 1, 1 + 1, 1 + 1, 1 + 1]) * pair  # of a node's two links
    np.testing.assert_allclose(hidden.std(axis=1), deviations, rtol=0.03)


def test_keys_are_of_a_run(monkeypatch):
    runs, make = [], PairKeys.__init__

    def noting(self, name, run, testing_seed=None):
        runs.append(run)
        make(self, name, run, testing_seed)

    monkeypatch.setattr(PairKeys, "__init__", noting)
    for _ in range(2):
        go()
    assert len(set(runs[:6])) == len(set(runs[6:])) == 1
    assert "" not in runs
    assert runs[0] != runs[6]


def test_every_sum_is_hidden_and_headers_are_not(sent):
    result = go(solver=Power(rounds=3), epsilon=3e3)
    steps = {record.round: record.step for record in result.history}
    assert [number for number, *_ in sent] == [number for number, step in steps.items() if step != "data.describe"]
    for _, _, _, own, hidden in sent:
        assert np.linalg.norm(hidden - own) > 100 * np.linalg.norm(own)
        assert (hidden != own).all()


# ---- what comes of it --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", SHARED, ids=str)
@pytest.mark.parametrize("agree", [True, False])
def test_the_answer_is_that_of_secure_sums_with_the_same_noise(case, agree):
    sites = rows_of(sizes=NODES)
    here, there = solve(case, sites), solve(case, sites, engine=Gossip(graph="ring", agree=agree))
    for found in there.nodes.estimates.values():
        assert projection_distance(here.estimate.basis, found.basis) < 1e-6
        np.testing.assert_allclose(found.values, here.estimate.values, rtol=1e-6)
    assert there.privacy.spent_epsilon == pytest.approx(here.privacy.spent_epsilon, rel=1e-9)


def test_noise_is_fresh_in_every_run():
    answers = [go(testing_seed=None, epsilon=3e3).estimate.values for _ in range(2)]
    assert np.abs(answers[0] - answers[1]).max() > 1e-9 * answers[0].max()


def test_the_guarantee_names_what_hides_a_node():
    result = go(testing_seed=None)
    assert "There is no coordinator: each node adds a share" in result.privacy.words
    assert "while 6 of them are honest and have not crashed" in result.privacy.words
    assert result.privacy.label == "certified in real arithmetic"
    assert "noise that neighbours cancel is in floating point" in result.privacy.reason
    local = run(
        Study(n_components=2, solver=Covariance(), privacy=promise("local", testing_seed=None)),
        {name: open_source(x) for name, x in rows_of(sizes=NODES).items()},
        engine=RING,
    )
    assert local.privacy.label == "certified"
    assert "nobody is trusted" in local.privacy.words.lower()
    masked = go(law=None, testing_seed=None)
    assert "GOPA" not in masked.privacy.words
    assert masked.privacy.label == "certified"


def test_an_estimator_takes_it():
    private = GaussianPrivacy(3e5, 1e-3, row_norm=30.0, trust="distributed", testing_seed=7)
    for secure in (False, True):  # noise hides single nodes either way
        model = FederatedPCA(2, engine=RING, privacy=private, secure=secure).fit(rows_of(sizes=NODES))
        assert "GOPA" in model.privacy_spent_["words"]
        assert model.disagreement_ < 1e-12


# ---- who may be missing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("graph", "honest", "stands"),
    [("ring", 6, True), ("ring", 5, True), ("ring", 4, False), ("random-regular", 3, True)],
)
def test_colluders_that_could_cut_the_graph_are_refused(graph, honest, stands):
    if stands:
        assert go(Gossip(graph=graph), honest=honest).privacy is not None
        return
    with pytest.raises(ConfigurationError, match=r"counts on 4 of 6 nodes, so 2 may .* and 2 can cut this graph"):
        go(Gossip(graph=graph), honest=honest)


@pytest.mark.parametrize("when", [4, 4.5, 3.5])
def test_neighbours_take_back_the_noise_of_a_node_that_crashed(when, sent):
    law = Gossip(graph="ring", crashes={"cairo": when})
    result = go(law, solver=Power(rounds=40), honest=5, epsilon=3e7)
    sites = rows_of(sizes=NODES)
    del sites["cairo"]
    basis = np.linalg.svd(np.vstack([*sites.values()]), full_matrices=False)[2][:2].T
    assert projection_distance(result.estimate.basis, basis) < 1e-2
    for _, graph, _, own, hidden in sent:
        rest = np.abs((hidden - own).sum(axis=0)).max()
        assert rest < 1e-6 * np.abs(hidden).max()
        assert len(own) == len(graph.names)


def test_a_round_of_too_few_nodes_is_not_done(sent, monkeypatch):
    asked, ask = [], Network.ask

    def noting(self, name, question):
        asked.append(question.number)
        return ask(self, name, question)

    monkeypatch.setattr(Network, "ask", noting)
    for when in (4, 4.5):
        sent.clear()
        asked.clear()
        with pytest.raises(PolicyError, match=r"round 4: 5 nodes are left, and the noise is enough with 6"):
            go(Gossip(graph="ring", crashes={"cairo": when}), solver=Power(rounds=9))
        assert max(number for number, *_ in sent) == (3 if when == 4 else 4)
        assert asked[-1] == (3 if when == 4 else 4)  # no site is charged for a round that is not done


def test_the_masks_bytes_are_counted():
    """Of 8 bytes a part and link end, and once 32 for the keys: noise itself is not sent."""
    shared, local = go(solver=Power(rounds=2)), go(solver=Power(rounds=2), trust="local")
    again = go(solver=Power(rounds=2), law=Gossip(graph="ring", accuracy=1e-13), trust="local")
    more = [s.bytes_up - a.bytes_up for s, a in zip(shared.history, again.history, strict=True)]
    assert more[0] == 0
    assert more[1] == 12 * (32 + 8 * 1)
    assert more[-1] == 12 * 8
    assert shared.nodes.steps[-1] > local.nodes.steps[-1]  # of larger numbers, to the same accuracy
