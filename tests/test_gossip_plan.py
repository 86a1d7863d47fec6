"""The plan of a study without a coordinator: what a run then takes, the price of noise, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from fedspan.data import open_source
from fedspan.engines import Gossip
from fedspan.errors import ConfigurationError
from fedspan.gossip_plan import plan_gossip
from fedspan.privacy import GaussianPrivacy
from fedspan.run import Study, run
from fedspan.solvers import UDA, BlockKrylov, Power, PrivatePower
from fedspan.topology import Weights, mix
from tests.conformance.solvers import promise, rows_of

NODES = dict.fromkeys((f"s{i}" for i in range(8)), 20)


def sources(d=12):
    return {name: open_source(x) for name, x in rows_of(sizes=NODES, d=d).items()}


@pytest.mark.parametrize("law", [Gossip(graph="ring"), Gossip(), Gossip(agree=False, accuracy=1e-6)], ids=str)
@pytest.mark.parametrize("solver", [Power(rounds=5, tol=0.0), BlockKrylov(rounds=3, tol=0.0, oversampling=0)], ids=str)
def test_a_run_takes_what_was_planned(law, solver):
    study = Study(n_components=3, solver=solver)
    plan, made = plan_gossip(law, study, sources())
    result = run(study, sources(), engine=law)
    assert [r.step for r in made.rounds] == [r.step for r in result.history] == [r.step for r in plan.rounds]
    assert [r.exchanges for r in made.rounds] == result.nodes.steps
    for planned, record in zip(made.rounds, result.history, strict=True):
        assert planned.bytes_all == pytest.approx(record.bytes_up, rel=0.03)
    assert made.bytes_all == pytest.approx(result.bytes_up, rel=0.01)
    assert made.rounds[-1].bytes_node * made.nodes == made.rounds[-1].bytes_all  # all have as many neighbours
    assert made.degrees == ((2, 2) if law.graph == "ring" else (4, 4))


def test_the_graphs_figures_are_those_of_the_graph():
    law = Gossip(graph=[("s0", f"s{i}") for i in range(1, 8)])
    _, made = plan_gossip(law, Study(n_components=3, solver="power"), sources())
    weights = Weights(law.over(NODES, 0))
    moduli = np.sort(np.abs(np.linalg.eigvalsh(weights.matrix.toarray())))
    assert (made.graph, made.nodes, made.links, made.degrees) == ("given", 8, 7, (1, 7))
    assert (made.diameter, made.stands) == (2, 0)
    assert made.sigma == pytest.approx(moduli[-2])
    assert made.gap == pytest.approx(1 - moduli[-2])
    worst = np.linalg.eigh(weights.matrix.toarray())[1][:, [-2]]
    plain = mix(worst, weights.sigma, made.plain_exchanges, lambda: weights.matrix, accelerated=False)
    fast = mix(worst, weights.sigma, made.exchanges, lambda: weights.matrix)
    assert max(np.abs(plain).max(), np.abs(fast).max()) < 1e-10
    assert made.plain_exchanges > 2 * made.exchanges
    assert made.rounds[-1].bytes_node == made.rounds[-1].bytes_all / 2  # the middle one tells all the others


def test_counting_on_fewer_nodes_costs_noise_and_a_run_finds_it_so():
    study = Study(n_components=3, solver=PrivatePower(rounds=3), privacy=promise("distributed", honest=6))
    plan, made = plan_gossip(Gossip(), study, sources())
    assert (made.honest, made.stands >= 2) == (6, True)
    assert made.noise == pytest.approx((8 / 6) ** 0.5)
    assert made.accuracy == 1e-13
    assert "There is no coordinator" in plan.privacy.words
    assert plan.masks is None
    result = run(study, sources(), engine=Gossip())
    assert set(result.nodes.steps) == {r.exchanges for r in made.rounds}  # the plan counts a round that may not come
    central = run(Study(n_components=3, solver=PrivatePower(rounds=3), privacy=promise("central")), sources())
    noise = [next(r.sigma for r in g.releases if r.step == "gram.multiply") for g in (result.privacy, central.privacy)]
    assert noise[0] / noise[1] == pytest.approx(made.noise, rel=1e-3)


def test_what_a_run_would_refuse_the_plan_refuses():
    study = Study(n_components=3, solver=UDA())
    with pytest.raises(ConfigurationError, match="uda needs single replies"):
        plan_gossip(Gossip(), study, sources())
    private = GaussianPrivacy(1.0, 1e-6, row_norm=30.0, trust="distributed", honest=5)
    with pytest.raises(ConfigurationError, match="can cut this graph"):
        plan_gossip(Gossip(graph="ring"), Study(n_components=3, solver="power", privacy=private), sources())


def test_wide_data_is_planned_as_quickly_and_counted_in_full():
    study = Study(n_components=3, solver=Power(rounds=2, tol=0.0))
    rng = np.random.default_rng(0)
    wide = {name: open_source(rng.standard_normal((4, 5000))) for name in NODES}
    _, made = plan_gossip(Gossip(graph="ring"), study, wide)
    last = made.rounds[-1]
    assert last.bytes_node == pytest.approx(2 * 8 * 5000 * 3 * (last.exchanges + 1), rel=0.01)
