"""Data that no learner was made for: each is named, counted, and survived or stopped cleanly."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from fedspan.data import open_source
from fedspan.data.labelled import Labelled
from fedspan.errors import ConfigurationError, ConvergenceError, DataError
from fedspan.learners import HFMAML, FedAvg, FedRep, LGFedAvg
from fedspan.learners.model import model_of
from fedspan.learners.rows import Fitted
from fedspan.learners.site import diverged
from fedspan.learning import Learning, learn
from fedspan.solvers import Doubling
from tests.learners.labelled import Federation, clouds, linear_spec, planted

MLP, LINEAR = {"kind": "mlp", "hidden": [5, 4]}, {"kind": "linear", "components": 2}
KINDS = {"fedrep": FedRep, "lg-fedavg": LGFedAvg, "fedavg": FedAvg, "hf-maml": HFMAML}
every = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def run(learner, sources, model=MLP, **settings):
    return learn(Learning(learner=learner, model=dict(model), **settings), sources)


def right(result, name):
    return result.scores[name]["right"] / result.scores[name]["rows"]


# ---- classes -----------------------------------------------------------------------------------------------------


@every
def test_a_site_with_one_class_only_takes_part_and_predicts_it(kind):
    sources = clouds()
    X = sources["site1"].X[sources["site1"].y == 2]
    sources["site1"] = Labelled(X, np.full(len(X), 2), test=(X, np.full(len(X), 2)))
    result = run(kind(rounds=30), sources, tune=1)
    assert result.sites["site1"]["classes"] == [2]
    assert result.agreed["classes"] == [0, 1, 2]
    assert right(result, "site1") == 1
    assert min(right(result, name) for name in sources) > 0.6
    assert result.diverged == {}


@pytest.mark.parametrize("model", [MLP, LINEAR], ids=["mlp", "linear"])
def test_a_federation_with_one_class_only_predicts_it(model):
    sources = {name: Labelled(s.X, np.full(len(s.y), "yes")) for name, s in clouds().items()}
    result = run(FedRep(rounds=2, batch=0), sources, model)
    assert [right(result, name) for name in sources] == [1] * 4


@every
@pytest.mark.parametrize("model", [MLP, LINEAR], ids=["mlp", "linear"])
def test_labels_unseen_in_training_are_counted_and_predicted_wrongly(kind, model):
    sources = {name: Labelled(s.X / 5, s.y) for name, s in clouds().items()}
    source = sources["site2"]
    sources["site2"] = Labelled(source.X, source.y, test=(source.X[:5], np.array([0, 7, 1, -3, 2])))
    result = run(kind(rounds=2, batch=0), sources, model)
    assert result.scores["site2"]["rows"] == 5
    assert result.scores["site2"]["unseen"] == 2
    assert result.scores["site2"]["right"] <= 3
    assert [result.scores[name]["unseen"] for name in ("site0", "site1", "site3")] == [0, 0, 0]
    assert model_of(result.agreed["model"]).outputs(result.shared, result.heads["site2"], source.X).shape[1] == 3


# ---- sites that do not fit each other ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("y", "text"),
    [
        (np.linspace(0, 1, 30), "site 'site1' has numbers to predict, site 'site0' whole numbers .classes.; give y of"),
        (["cat", "dog"] * 15, "site 'site1' has texts .classes. to predict, site 'site0' whole numbers .classes."),
    ],
    ids=["numbers", "texts"],
)
def test_numbers_beside_classes_are_refused_and_the_site_is_named(y, text):
    sources = clouds()
    sources["site1"] = Labelled(sources["site1"].X, y)
    for model in (MLP, LINEAR):
        with pytest.raises(DataError, match=text):
            run(FedRep(), sources, model)


def test_a_network_is_not_asked_for_numbers():
    with pytest.raises(DataError, match="a network of kind 'mlp' predicts classes, and y is numbers"):
        run(FedRep(), planted()[0], MLP)


@pytest.mark.parametrize(
    ("X", "y", "text"),
    [
        (np.ones((3, 2)), [1, 2], r"one y for each row; got 3 rows and y of shape \(2,\)"),
        (np.ones((2, 2)), [[1], [2]], r"one y for each row; got 2 rows and y of shape \(2, 1\)"),
        (np.array([[1.0, np.nan]]), [1], "row 0 has nan in column 1"),
        (np.array([[np.inf, 1.0]]), [1], "row 0 has inf in column 0"),
        (np.ones((2, 2)), [0.5, np.nan], "y is finite; row 1 has none"),
        (np.ones((2, 2)), [0.5, np.inf], "y is finite; row 1 has none"),
        (np.ones((2, 2)), [1, None], "y is numbers or texts, got an array of object"),
        (np.ones((0, 2)), np.ones(0), "there are no rows to learn from"),
        (np.array([["a", "b"]]), [1], "data must be numbers"),
    ],
)
def test_rows_that_no_one_can_learn_from_are_refused(X, y, text):
    with pytest.raises(DataError, match=text):
        Labelled(X, y)


def test_rows_without_anything_to_predict_are_refused_and_the_site_is_named():
    with pytest.raises(DataError, match="site 'site3' has rows, but nothing to predict"):
        run(FedRep(), {**clouds(), "site3": open_source(np.ones((4, 6)))})


def test_no_site_at_all_is_refused():
    with pytest.raises(ConfigurationError, match="at least one site, got none"):
        run(FedRep(), {})


def test_fewer_sites_than_the_first_stage_waits_for_are_named():
    with pytest.raises(ConfigurationError, match="n0 = 5 sites, but a round waits for 4 at most"):
        run(Doubling(stage=FedRep(), n0=5), clouds())


# ---- learners that diverge -----------------------------------------------------------------------------------------


def with_wild_site(sources, factor, model):
    """Sites of which one has rows (a network's) or answers (a linear model's) out of all scale."""
    wild = sources["site1"]
    of_rows = (wild.X.astype(float) * factor, wild.y) if model is MLP else (wild.X, wild.y * factor)
    return {**sources, "site1": Labelled(*of_rows)}


@every
@pytest.mark.parametrize("factor", [1e3, 1e6, 1e12, 1e30, 1e300])
@pytest.mark.parametrize("model", [MLP, LINEAR], ids=["mlp", "linear"])
def test_a_site_where_the_learner_diverges_is_counted_and_the_others_go_on_without_it(kind, model, factor):
    """To the bit what they would learn without that site."""
    sources = clouds() if model is MLP else planted(noise=0.1)[0]
    learner = kind(rounds=3)
    result = run(learner, with_wild_site(sources, factor, model), model)
    others = {name: source for name, source in sources.items() if name != "site1"}
    without = run(learner, others, model)
    assert result.diverged == {"site1": 3}
    assert result.learned.diverged == 3
    assert result.shared.tobytes() == without.shared.tobytes()
    assert result.learned.loss == pytest.approx(without.learned.loss, rel=1e-12)
    for name in others:
        assert result.heads[name].tobytes() == without.heads[name].tobytes()
        assert result.scores[name] == without.scores[name]
    assert np.isfinite(result.heads["site1"]).all()


@pytest.mark.parametrize("factor", [1e6, 1e200])
def test_second_moments_of_heads_are_those_of_the_sites_that_go_on(factor):
    sources = planted(noise=0.1)[0]
    learner = FedRep(rounds=2, heads=True, batch=0)
    result = run(learner, with_wild_site(sources, factor, LINEAR), LINEAR)
    without = run(learner, {name: s for name, s in sources.items() if name != "site1"}, LINEAR)
    assert result.learned.contraction == pytest.approx(without.learned.contraction, rel=1e-12)


@every
@pytest.mark.parametrize("model", [MLP, LINEAR], ids=["mlp", "linear"])
def test_where_it_diverges_at_all_sites_the_run_stops_with_a_way_out(kind, model):
    sources = clouds() if model is MLP else planted(noise=0.1)[0]
    rows, answers = (1e300, 1) if model is MLP else (1, 1e6)
    sources = {name: Labelled(s.X.astype(float) * rows, s.y * answers) for name, s in sources.items()}
    with pytest.raises(ConvergenceError, match=r"update: the learner diverges at all [48] sites .* give it a smaller"):
        run(kind(rounds=3), sources, model)


@pytest.mark.parametrize(
    ("shared", "own", "loss", "expected"),
    [
        (np.full(4, 2.0), 0.0, 0.1, False),
        (np.full(4, 15.9), 0.0, 0.1, False),  # moved 29.8; the limit is 10 (1 + 2)
        (np.full(4, 16.1), 0.0, 0.1, True),  # moved 30.2
        (np.full(4, 15.9), 1e9, 0.1, False),  # what is its own harms nobody
        (np.array([1, 1, np.inf, 1]), 0.0, 0.1, True),
        (np.array([1, 1, np.nan, 1]), 0.0, 0.1, True),
        (np.ones(4), np.nan, 0.1, True),
        (np.ones(4), 0.0, np.inf, True),
        (np.full(4, 1e30, np.float32), 0.0, 0.1, True),
    ],
)
def test_what_is_called_diverged(shared, own, loss, expected):
    with np.errstate(over="ignore"):
        assert diverged(Fitted(shared, np.full(2, own), loss), np.ones(4, shared.dtype)) is expected


def test_a_site_that_diverged_keeps_what_it_had_and_comes_back():
    """One round's answers are out of scale; the site goes on from its last good head."""
    sources = planted(noise=0.1)[0]
    learner = FedRep(rounds=3, fresh=10, batch=0)
    y = sources["site1"].y.copy()
    y[10:20] *= 1e6  # read in the second round
    sources["site1"] = Labelled(sources["site1"].X, y)
    federation = Federation(sources, linear_spec(learner))
    found = federation.solve(learner)
    assert [outcome.value["diverged"] for outcome in federation.outcomes[1:]] == [0, 1, 0]
    assert [outcome.value["weight"] for outcome in federation.outcomes[1:]] == [8, 7, 8]
    assert found.diverged == 1
    assert federation.sites["site1"].memory.versions[0][1]["diverged"] == 1


# ---- no torch ------------------------------------------------------------------------------------------------------


def test_without_torch_networks_name_the_extra_and_linear_models_work(monkeypatch):
    for name in [name for name in sys.modules if name == "torch" or name.startswith("fedspan.learners.models")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("fedspan.learners.models", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    model_of({"kind": "linear", "features": 3, "components": 2})
    with pytest.raises(ConfigurationError, match=r"networks need PyTorch: pip install 'fedspan\[torch\]'"):
        model_of({"kind": "mlp", "features": 977, "classes": 3})  # a spec that nothing has made before


def test_another_missing_module_is_not_blamed_on_torch(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("fedspan.learners.models")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("fedspan.learners.models", raising=False)
    monkeypatch.setitem(sys.modules, "fedspan.learners.models.kinds", None)
    with pytest.raises(ModuleNotFoundError, match="kinds"):
        model_of({"kind": "mlp", "features": 978, "classes": 3})
