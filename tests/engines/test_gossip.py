"""Gossip: what is asked of whom, what nodes have in the end, what is counted, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from fedspan import FederatedPCA
from fedspan.data import Preparation, open_source
from fedspan.encoding import payload_bytes
from fedspan.engines import Gossip, InProcess, get_engine
from fedspan.engines.gossip import Network, check_open
from fedspan.engines.gossip_table import gossip_of
from fedspan.errors import CohortError, ConfigurationError
from fedspan.rounds import Cohort, Gather, Mean, Merge, Reply, Round, Site, Sum, numbered, site_step
from fedspan.run import Study, run
from fedspan.solvers import Power
from fedspan.topology import Weights, planned_steps

NAMES = ["a", "b", "c", "d", "e", "f"]


@site_step("tests.gossip.times")
def times(site, message):
    """The message times the site's place, weighed by it."""
    place = NAMES.index(site.id) + 1
    return Reply({"much": message * place, "few": np.array(1e-9 * place)}, weight=float(place))


@site_step("tests.gossip.counting")
def counting(site, message):
    """How often the site answered."""
    return Reply(np.ones(1), state={"answered": site.state.get("answered", 0) + 1})


def sites(names=NAMES):
    rng = np.random.default_rng(0)
    return [Site(name, open_source(rng.standard_normal((5, 3))), seed=1) for name in names]


def network(names=NAMES, seed=0, **law):
    return Network(Gossip(**{"graph": "ring", "accuracy": 1e-12} | law), sites(names), seed)


def ask(net, message=None, reduce=None, number=0, **more):
    """Ask one question of all nodes, by default each the same."""
    message = np.ones((4, 2)) if message is None else message
    question = Round(times, message, reduce or Sum(), number=number, **more)
    return net.exchange(dict.fromkeys(net.graph.names, question))


# ---- sums --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("graph", ["ring", "random-regular", [*pairwise(NAMES)]])
@pytest.mark.parametrize("agree", [True, False])
@pytest.mark.parametrize("link_loss", [0.0, 0.3])
def test_every_node_has_the_sum(graph, agree, link_loss):
    outcomes = ask(network(graph=graph, agree=agree, link_loss=link_loss))
    assert list(outcomes) == NAMES
    for outcome in outcomes.values():
        np.testing.assert_allclose(outcome.value["much"], 21, rtol=1e-11)
        assert outcome.value["few"] == pytest.approx(21e-9, rel=1e-11)  # as near as the large part
        assert outcome.sites == NAMES
    bits = {outcome.value["much"].tobytes() for outcome in outcomes.values()}
    assert (len(bits) == 1) == agree


def test_each_site_answers_its_own_node():
    net = network()
    questions = {name: Round(times, np.full((2, 1), 10.0**i), Sum(), number=0) for i, name in enumerate(NAMES)}
    for outcome in net.exchange(questions).values():
        np.testing.assert_allclose(outcome.value["much"], 654321, rtol=1e-11)


def test_a_mean_is_weighted():
    for outcome in ask(network(), reduce=Mean()).values():
        np.testing.assert_allclose(outcome.value["much"], sum(i * i for i in range(1, 7)) / 21, rtol=1e-11)


def test_headers_reach_everybody_in_diameter_steps():
    net = network()
    outcomes = net.exchange(dict.fromkeys(NAMES, _describe()))
    headers = outcomes["a"].value
    assert list(headers) == NAMES
    assert all(outcome.value == headers for outcome in outcomes.values())
    assert net.steps == [3]
    assert outcomes["a"].bytes_up == 12 * sum(payload_bytes(header) for header in headers.values())


def _describe():
    return next(numbered(_set_up()))


def _set_up():
    from fedspan.data.preprocess import set_up

    return set_up(Preparation())


def test_the_bytes_of_all_links_are_counted():
    """A ring of 6: 12 messages in each exchange, of 9 numbers; looks at 2 parts, and the first node's sum at last."""
    net = network()
    steps = planned_steps(Weights(net.graph), 1e-12)
    assert net.steps == []
    outcome = ask(net)["a"]
    assert net.steps == [steps]
    assert outcome.bytes_up == 8 * 12 * (steps * 9 + 3 * 2 * 2 + 9)
    assert outcome.bytes_down == 0
    assert ask(network(agree=False))["a"].bytes_up == outcome.bytes_up - 8 * 12 * 9


def test_links_are_silent_alike_for_one_seed_and_otherwise_for_another():
    def told(seed):
        net = network(seed=seed, link_loss=0.4, accuracy=1e-3)
        return ask(net)["b"].value["much"].tobytes(), ask(net, number=1)["b"].value["much"].tobytes()

    assert told(0) == told(0)
    assert len({*told(0), *told(1)}) == 4


# ---- crashes -----------------------------------------------------------------------------------------------------


def test_a_node_that_crashes_before_a_round_is_not_in_its_sum():
    net = network(crashes={"c": 2})
    for number in (0, 1):
        net.lose_before(number)
        assert ask(net, number=number)["a"].value["much"][0, 0] == pytest.approx(21)
    net.lose_before(2)
    outcomes = ask(net, number=2)
    assert list(outcomes) == ["a", "b", "d", "e", "f"]
    for outcome in outcomes.values():
        np.testing.assert_allclose(outcome.value["much"], 18, rtol=1e-11)
        assert outcome.sites == ["a", "b", "d", "e", "f"]
    assert net.crashed == {"c": 2}


def test_a_node_that_crashes_in_a_round_costs_half_of_its_exchanges():
    net, whole = network(crashes={"c": 1.5}), network()
    assert ask(net)["a"].value["much"][0, 0] == pytest.approx(21)
    before, smaller = planned_steps(net.weights, 1e-12), planned_steps(Weights(net.graph.without(["c"])), 1e-12)
    net.lose_before(1)
    outcomes = ask(net, number=1)
    assert list(outcomes) == ["a", "b", "d", "e", "f"]
    np.testing.assert_allclose(outcomes["f"].value["much"], 18, rtol=1e-11)
    assert net.steps == [before, before // 2 + smaller]
    ring, path = 12, 8  # messages in an exchange
    halves = 8 * ring * (before // 2) * 9 + 8 * path * (smaller * 9 + 4 * 2 * 2 + 9)
    assert outcomes["a"].bytes_up == halves
    assert ask(whole)["a"].bytes_up != halves


def test_a_crash_among_the_headers_leaves_the_node_out():
    net = network(crashes={"b": 0.5})
    outcomes = net.exchange(dict.fromkeys(NAMES, _describe()))
    assert list(outcomes) == list(outcomes["a"].value) == ["a", "c", "d", "e", "f"]


def test_a_graph_that_falls_apart_names_its_parts():
    net = network(crashes={"b": 1, "e": 1.5})
    net.lose_before(1)
    with pytest.raises(CohortError, match=r"round 1: with b, e crashed .* into \(a, f\) and \(c, d\); give the graph"):
        ask(net, number=1)


def test_the_last_node_goes_on_alone_and_none_is_an_error():
    net = network(["a", "b"], crashes={"a": 1, "b": 2})
    net.lose_before(1)
    assert list(ask(net, number=1)) == ["b"]
    assert ask(net, number=1)["b"].value["much"][0, 0] == 2
    with pytest.raises(CohortError, match=r"no node is left; let one of them live \(crashes\)$"):
        net.lose_before(2)


# ---- settings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"degree": 1}, "at least 2; got 1"),
        ({"degree": 2.5}, "whole number"),
        ({"degree": True}, "whole number"),
        ({"accuracy": 0}, "accuracy is a positive number"),
        ({"accuracy": 0.1}, "at most 0.01"),
        ({"accuracy": 1e-16}, "at least 1e-13"),
        ({"link_loss": 1.0}, "no link would be heard"),
        ({"link_loss": -0.1}, "link_loss"),
        ({"agree": "no"}, "agree is True or False"),
        ({"seed": -1}, "seed"),
        ({"crashes": ["a"]}, "crashes is a dict"),
        ({"crashes": {"a": 1.25}}, r"3 for before round 3 or 3.5 .* got 1.25"),
        ({"crashes": {"a": -1}}, "crashes"),
        ({"crashes": {"a": "soon"}}, "crashes"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, said):
    with pytest.raises(ConfigurationError, match=said):
        Gossip(**settings)


def test_the_graph_is_of_the_sites_and_of_a_seed():
    with pytest.raises(ConfigurationError, match="crashes names no site 'z'"):
        Gossip(crashes={"z": 1}).over(NAMES, 0)
    many = [f"s{i}" for i in range(20)]
    assert Gossip().over(many, 0) != Gossip().over(many, 1)
    assert Gossip(seed=1).over(many, 0) == Gossip().over(many, 1)


def test_the_engine_is_known_by_its_name_and_is_no_callable_for_learners():
    assert get_engine("gossip") == Gossip()
    with pytest.raises(ConfigurationError, match=r"write Gossip\(\)"):
        get_engine(Gossip)
    with pytest.raises(ConfigurationError, match="has no coordinator, and representations"):
        get_engine("gossip")(sites(), 0)


@pytest.mark.parametrize(
    "question",
    [
        Round(times, 1, Gather()),
        Round(times, 1, Merge(len)),
        Round(times, 1, Sum(), Cohort(fraction=0.5)),
        Round(times, 1, Sum(), Cohort(first=2)),
    ],
)
def test_rounds_that_are_no_sums_of_all_are_refused(question):
    with pytest.raises(ConfigurationError, match=r"tests\.gossip\.times .* gossip"):
        check_open(question)
    with pytest.raises(ConfigurationError, match=r"tests\.gossip\.times .* gossip"):
        network().exchange(dict.fromkeys(NAMES, replace(question, number=0)))


def test_a_table_is_read_as_the_settings():
    law = gossip_of({"graph": [["a", "b"], ["b", "c"]], "accuracy": 1e-8, "crashes": {"a": 2.5}}, "abc", 0)
    assert law == Gossip(graph=[["a", "b"], ["b", "c"]], accuracy=1e-8, crashes={"a": 2.5})
    for raw, said in [
        ({"grap": "ring"}, "did you mean 'graph'"),
        ({"graph": 3}, "a graph's name, or a list of links"),
        ({"graph": [["a", 1]]}, "a graph's name, or a list of links"),
        ({"graph": "torus"}, r"\[run.gossip\] a torus"),
        ({"crashes": {"a": "soon"}}, r"crashes.a = \"soon\""),
        ({"link_loss": 2}, r"\[run.gossip\] link_loss"),
        ({"agree": 1}, "true or false"),
    ]:
        with pytest.raises(ConfigurationError, match=said):
            gossip_of(raw, "abc", 0)


# ---- through the estimators --------------------------------------------------------------------------------------


def test_an_estimator_has_every_nodes_answer_and_another_engine_none():
    rng = np.random.default_rng(0)
    data = {name: rng.standard_normal((20, 5)) * [5, 4, 3, 1, 1] for name in NAMES}
    model = FederatedPCA(2, engine=Gossip(graph="ring", agree=False)).fit(data)
    assert sorted(model.nodes_) == NAMES
    assert 0 < model.disagreement_ < 1e-8
    np.testing.assert_array_equal(model.nodes_["a"], model.components_)
    plain = FederatedPCA(2).fit(data)
    np.testing.assert_allclose(model.nodes_["d"], plain.components_, atol=1e-8)
    assert not hasattr(plain, "nodes_")
    model.set_params(engine=None).fit(data)
    assert not hasattr(model, "nodes_")
    assert not hasattr(model, "disagreement_")


def test_a_model_file_leaves_the_nodes_answers_out(tmp_path):
    rng = np.random.default_rng(0)
    model = FederatedPCA(2, engine="gossip").fit({name: rng.standard_normal((20, 4)) for name in NAMES})
    model.save(tmp_path / "model.fedspan")
    loaded = FederatedPCA.load(tmp_path / "model.fedspan")
    np.testing.assert_array_equal(loaded.components_, model.components_)
    assert loaded.disagreement_ == model.disagreement_
    assert not hasattr(loaded, "nodes_")


def test_a_history_counts_all_links_and_the_nodes_alive():
    sources = {name: open_source(np.random.default_rng(i).standard_normal((9, 4))) for i, name in enumerate(NAMES)}
    study = Study(n_components=2, solver=Power(rounds=4, tol=0.0))
    result = run(study, sources, engine=Gossip(graph="ring", crashes={"b": 4}))
    plain = run(study, sources, engine=InProcess)
    assert [r.step for r in result.history] == [r.step for r in plain.history]
    assert [r.sites for r in result.history] == [6, 6, 6, 6, 5, 5, 5]
    assert all(r.bytes_down == 0 < r.bytes_up for r in result.history)
    assert len(result.nodes.steps) == len(result.history)
    assert result.nodes.crashed == {"b": 4}
    assert sorted(result.nodes.estimates) == ["a", "c", "d", "e", "f"]
