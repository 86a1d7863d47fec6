"""`FederatedRepresentation`: what it learns, tells and refuses, in scikit-learn's manners."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics import r2_score

from fedspan import Cohort, FederatedRepresentation
from fedspan.data.labelled import Labelled
from fedspan.engines import FixedSpeeds, GivenSpeeds, VirtualTime
from fedspan.errors import ConfigurationError, ConvergenceError, DataError
from fedspan.estimators.site_scores import SiteScores
from fedspan.learners import HFMAML, FedAvg, FedRep, LGFedAvg
from fedspan.metrics import projection_distance
from fedspan.privacy import GaussianPrivacy
from fedspan.solvers import Doubling
from tests.labelled import NAMES, D, K, basis, classes, numbers

MLP = {"kind": "mlp", "hidden": [8, 4]}
DEEP = {"kind": "mlp", "hidden": [24, 4]}
LINEAR = FedRep(rounds=300, rate=0.4, batch=0)
QUICK = {"rounds": 3, "batch": 8}
LEARNERS = [FedRep(**QUICK), LGFedAvg(**QUICK), FedAvg(**QUICK), HFMAML(**QUICK), Doubling(stage=FedRep(**QUICK), n0=1)]
LEARNT = [(learner, tune) for learner in LEARNERS for tune in (0, 1)]


def ids(value):
    return type(getattr(value, "stage", value)).__name__ if not isinstance(value, tuple) else None


@pytest.fixture(scope="module")
def linear():
    return FederatedRepresentation(K, learner=LINEAR).fit(numbers())


@pytest.fixture(scope="module")
def deep():
    return FederatedRepresentation(model=DEEP, learner=FedRep(rounds=40, batch=8)).fit(classes(90))


# ---- what it learns ----------------------------------------------------------------------------------------------


def test_the_representation_is_shared_and_each_site_has_its_own_head(linear):
    assert projection_distance(linear.shared_, basis()) < 0.05
    for name, (X, y) in numbers().items():
        np.testing.assert_allclose(linear.transform(X), X @ linear.shared_)
        np.testing.assert_allclose(linear.predict(name, X), X @ linear.shared_ @ linear.heads_[name])
        assert linear.score(name, X, y) == r2_score(y, linear.predict(name, X)) > 0.98
    X, y = numbers()["ash"]
    assert linear.score("elm", X, y) < 0.5  # a head of another site's


def test_a_network_learns_what_differs_by_site(deep):
    scores = deep.site_scores_
    assert all(figures["on"] == "test" and figures["rows"] == 12 for figures in scores.values())
    assert deep.fairness_["median"] > 0.6
    for name, (X, y, X_test, y_test) in classes(90).items():
        assert deep.score(name, X, y) > 0.85
        assert scores[name]["accuracy"] == deep.score(name, X_test, y_test)
        assert set(deep.predict(name, X)) <= {"ill", "unsure", "well"}
        scored = deep.decision_function(name, X)
        np.testing.assert_array_equal(deep.classes_[scored.argmax(axis=1)], deep.predict(name, X))
        chances = deep.predict_proba(name, X)
        np.testing.assert_allclose(chances.sum(axis=1), 1, rtol=1e-6)
        np.testing.assert_array_equal(chances.argmax(axis=1), scored.argmax(axis=1))
    assert deep.transform(X).shape == (len(X), 4)
    assert (deep.n_components_, deep.n_features_in_, list(deep.classes_)) == (4, D, ["ill", "unsure", "well"])


LABELS = [np.array([3, 5, 9]), np.array([3, 5, 9], dtype=np.int8), np.array([False, True, False]), ["x", "yy", "z"]]


@pytest.mark.parametrize("labels", LABELS, ids=str)
def test_classes_come_back_as_the_labels_given(labels):
    rng = np.random.default_rng(0)
    sites = {n: (rng.standard_normal((12, 4)), np.asarray(labels)[rng.permutation(12) % 3]) for n in "ab"}
    model = FederatedRepresentation(learner=FedRep(rounds=2, batch=0)).fit(sites)
    predicted = model.predict("a", sites["a"][0])
    assert set(predicted.tolist()) <= set(np.asarray(labels).tolist())
    assert predicted.dtype.kind == np.asarray(labels).dtype.kind
    assert not hasattr(model, "predict_proba")
    assert model.decision_function("a", sites["a"][0]).shape == (12, len(set(np.asarray(labels).tolist())))


@pytest.mark.parametrize(("learner", "tune"), LEARNT, ids=ids)
def test_what_is_measured_is_what_predicts(learner, tune):
    """The table of the run, `evaluate` and `score` are of one model, tuned or not."""
    model = FederatedRepresentation(model=MLP, learner=learner, tune=tune).fit(classes())
    assert model.evaluate(classes()) == model.site_scores_
    for name, (_, _, X, y) in classes().items():
        assert model.score(name, X, y) == model.site_scores_[name]["accuracy"]
    own = model.agreed_["model"]["own"]
    assert sorted(model.heads_) == (list(NAMES) if own != "none" or tune else [])


def test_the_best_heads_of_a_linear_model_are_exact(linear):
    for name, (X, y) in numbers().items():
        exact = np.linalg.lstsq(X @ linear.shared_, y, rcond=None)[0]
        np.testing.assert_allclose(linear.heads_[name], exact, atol=1e-3)


def test_frames_columns_have_names():
    columns = [f"c{i}" for i in range(D)]
    sites = {n: (pd.DataFrame(X, columns=columns), pd.Series(y)) for n, (X, y) in numbers().items()}
    model = FederatedRepresentation(learner=FedRep(rounds=3, batch=0)).fit(sites)
    assert list(model.feature_names_in_) == columns
    X = sites["ash"][0]
    np.testing.assert_array_equal(model.predict("ash", X), model.predict("ash", X.to_numpy()))
    with pytest.raises(DataError, match="column 1 is 'c1', and 'c0' in the rows that the model was learnt from"):
        model.predict("ash", X[[columns[1], columns[0], *columns[2:]]])
    assert not hasattr(model.fit(numbers()), "feature_names_in_")


def test_texts_of_a_frame_are_classes():
    sites = {n: (pd.DataFrame(X), pd.Series(y, dtype=object)) for n, (X, y, *_) in classes().items()}
    model = FederatedRepresentation(learner=FedRep(rounds=1, batch=0)).fit(sites)
    assert list(model.classes_) == ["ill", "unsure", "well"]


def test_a_list_of_sites_gets_names():
    model = FederatedRepresentation(learner=FedRep(rounds=1, batch=0)).fit(list(numbers().values()))
    assert list(model.sites_) == ["site0", "site1", "site2", "site3"]


def test_labelled_sources_are_taken_as_they_are():
    sites = {name: Labelled(X, y, test=(X[:5], y[:5])) for name, (X, y) in numbers().items()}
    model = FederatedRepresentation(learner=FedRep(rounds=2, batch=0)).fit(sites)
    assert {figures["rows"] for figures in model.site_scores_.values()} == {5}


def test_same_seed_same_bits_and_another_seed_others():
    model = FederatedRepresentation(model=MLP, learner=FedRep(**QUICK))
    fitted = [clone(model).set_params(random_state=seed).fit(classes()) for seed in (0, 0, 1)]
    assert fitted[0].shared_.tobytes() == fitted[1].shared_.tobytes() != fitted[2].shared_.tobytes()


# ---- what it tells -----------------------------------------------------------------------------------------------


def test_the_run_is_told():
    seen = []
    model = FederatedRepresentation(
        learner=FedRep(rounds=6, rate=0.3, batch=0), evaluate_every=3, engine=VirtualTime(communication=2.0),
        on_round=lambda record, estimate: seen.append((record.step, estimate.shape)),
    ).fit(numbers())  # fmt: skip
    assert model.n_rounds_ == 6
    assert model.n_setup_rounds_ == 5  # describe, agree; three measurements
    assert len(model.history_) == 11
    assert model.bytes_up_ == sum(r.bytes_up for r in model.history_)
    assert model.clock_ == model.history_[-1].clock > 12.0
    assert [step for step, _ in seen if step == "fedrep.update"] == ["fedrep.update"] * 6
    assert seen[0][1] == (D, K)
    assert [point["round"] for point in model.curve_] == [0, 3, 6]
    mse = [point["scores"].fairness["mean"] for point in model.curve_]
    assert mse[0] > mse[1] > mse[2] == model.fairness_["mean"]
    assert model.curve_[0]["clock"] < model.curve_[1]["clock"] < model.clock_ + 1e-9
    assert model.converged_ is None
    assert FederatedRepresentation(learner=FedRep(rounds=1, batch=0)).fit(numbers()).clock_ is None


def test_convergence_is_told():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = FederatedRepresentation(learner=FedRep(rounds=500, rate=0.4, batch=0, stall=0.01)).fit(numbers())
    assert found.converged_ is True
    assert found.n_rounds_ < 500
    with pytest.warns(ConvergenceWarning, match="the loss still fell after 7 rounds"):
        found = FederatedRepresentation(learner=FedRep(rounds=7, rate=0.1, batch=0, stall=1e-6)).fit(numbers())
    assert found.converged_ is False


def test_lines_of_rounds_are_printed(capsys):
    FederatedRepresentation(learner=FedRep(rounds=2, batch=0), verbose=1).fit(numbers())
    lines = capsys.readouterr().err
    assert (lines.count("fedrep.update"), lines.count("clock")) == (2, 0)
    engine = VirtualTime(speeds=GivenSpeeds(default=2.0))
    FederatedRepresentation(learner=FedRep(rounds=2, batch=0), engine=engine, verbose=1).fit(numbers())
    lines = [line for line in capsys.readouterr().err.splitlines() if "fedrep.update" in line]
    assert [line.split("clock ")[1].split(" s")[0] for line in lines] == ["2", "4"]


def test_doubling_is_faster_in_virtual_time_where_sites_are_slow():
    """Straggling sites wait for nobody and nobody for them, until the last stage."""
    engine = VirtualTime(speeds=FixedSpeeds(mean=10.0))
    stage = FedRep(rounds=2, batch=0)
    early = FederatedRepresentation(learner=Doubling(stage=stage, n0=1, rounds=2), engine=engine).fit(numbers())
    full = FederatedRepresentation(learner=FedRep(rounds=6, batch=0), engine=engine).fit(numbers())
    assert early.n_rounds_ == full.n_rounds_ == 6
    assert early.clock_ < full.clock_


def test_the_start_and_its_privacy_are_told():
    terms = GaussianPrivacy(5.0, 1e-6, row_norm=8.0, n_public=True)
    model = FederatedRepresentation(learner=FedRep(rounds=2, batch=0), start="moments", privacy=terms).fit(numbers())
    assert model.privacy_spent_["spent_epsilon"] <= 5.0
    assert model.privacy_spent_["words"].startswith("Of the start only: (5, 1e-06)-differential privacy")
    assert model.start_["rounds"] >= 1
    plain = FederatedRepresentation(learner=FedRep(rounds=2, batch=0)).fit(numbers())
    assert plain.start_ is None
    assert plain.privacy_spent_ is None
    assert model.bytes_up_ == plain.bytes_up_ + model.start_["bytes_up"]
    assert model.n_rounds_ == plain.n_rounds_


def test_the_table_and_its_fairness():
    told = {
        "north": {"rows": 10, "right": 9, "unseen": 0, "new": 0},
        "south": {"rows": 20, "right": 10, "unseen": 1, "new": 3},
        "west": {"rows": 5, "right": 5, "unseen": 0, "new": 0},
    }  # fmt: skip
    table = SiteScores.of(told, {"north": "test", "south": "test", "west": "training"})
    assert table.measure == "accuracy"
    assert table.ranked == ["south", "north", "west"]
    fairness = table.fairness
    assert (fairness["worst_site"], fairness["worst"]) == ("south", 0.5)
    assert (fairness["best_site"], fairness["best"]) == ("west", 1.0)
    assert (fairness["median"], fairness["spread"]) == (0.9, 0.5)
    assert fairness["mean"] == pytest.approx(0.8)
    assert fairness["deviation"] == pytest.approx(np.std([0.9, 0.5, 1.0]))
    lines = str(table).splitlines()
    assert lines[0].split() == ["site", "rows", "accuracy"]
    assert lines[2].endswith(
        "50.0%  (2 with labels that only other sites had in training; 1 with labels that no site had in training)"
    )
    assert lines[3].endswith("100.0%  (training rows)")


def test_a_site_without_a_finite_error_is_the_worst():
    told = {"a": {"rows": 2, "squares": 1.0}, "b": {"rows": 2, "squares": np.inf}}
    fairness = SiteScores.of(told, dict.fromkeys(told, "test")).fairness
    assert (fairness["worst_site"], fairness["worst"], fairness["spread"]) == ("b", np.inf, np.inf)


def test_of_numbers_less_is_better():
    told = {"a": {"rows": 4, "squares": 8.0}, "b": {"rows": 2, "squares": 1.0}}
    table = SiteScores.of(told, {"a": "test", "b": "test"})
    assert table == {"a": {"rows": 4, "mse": 2.0, "on": "test"}, "b": {"rows": 2, "mse": 0.5, "on": "test"}}
    assert (table.fairness["worst_site"], table.fairness["best_site"], table.fairness["spread"]) == ("a", "b", 1.5)


# ---- new sites ---------------------------------------------------------------------------------------------------


def newcomer(seed=7, rows=60):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, D))
    return X, X @ basis() @ rng.standard_normal(K) + 0.05 * rng.standard_normal(rows)


def test_a_new_site_learns_the_exact_head_of_a_linear_model(linear):
    X, y = newcomer()
    before, heads = linear.shared_.tobytes(), {n: h.tobytes() for n, h in linear.heads_.items()}
    model = clone(linear).fit(numbers()).join("fir", X[:40], y[:40])
    assert model.shared_.tobytes() == before
    assert {n: model.heads_[n].tobytes() for n in NAMES} == heads
    np.testing.assert_allclose(model.heads_["fir"], np.linalg.lstsq(X[:40] @ model.shared_, y[:40], rcond=None)[0])
    assert model.score("fir", X[40:], y[40:]) > 0.95
    assert model.joined_ == ["fir"]
    assert model.sites_["fir"]["rows"] == 40
    assert "fir" not in model.site_scores_
    assert model.evaluate({"fir": (X[40:], y[40:])})["fir"]["mse"] < 0.05


def test_few_rows_are_enough_for_a_new_site(linear):
    """A head of k numbers needs few rows: a regression of its own on all columns does far worse."""
    X, y = newcomer(rows=100)
    model = clone(linear).fit(numbers()).join("fir", X[:8], y[:8])
    alone = np.linalg.lstsq(X[:8], y[:8], rcond=None)[0]
    assert np.mean((model.predict("fir", X[8:]) - y[8:]) ** 2) < 0.5 * np.mean((X[8:] @ alone - y[8:]) ** 2)


@pytest.mark.parametrize(("learner", "tune"), LEARNT, ids=ids)
def test_a_new_site_joins_whatever_learnt(learner, tune):
    sites = classes()
    X, y, X_test, y_test = sites.pop("yew")
    model = FederatedRepresentation(model=MLP, learner=learner, tune=tune).fit(sites)
    shared, heads = model.shared_.tobytes(), {n: h.tobytes() for n, h in model.heads_.items()}
    twin = clone(model).fit(sites)
    assert model.join("yew", X, y) is model
    twin.join("yew", X, y)
    assert model.heads_["yew"].tobytes() == twin.heads_["yew"].tobytes()
    assert model.shared_.tobytes() == shared
    assert {n: h.tobytes() for n, h in model.heads_.items() if n != "yew"} == heads
    begun = model.shared_ if model.agreed_["model"]["own"] == "none" else model._first()[1]
    assert not np.array_equal(model.heads_["yew"], begun)
    longer = model.join("yew2", X, y, epochs=60)
    right = longer.predict_proba("yew2", X)[np.arange(len(y)), np.searchsorted(longer.classes_, y)]
    assert np.log(right).mean() > np.log(1 / 3)  # better than chance
    assert longer.evaluate({"yew2": (X_test, y_test)})["yew2"]["rows"] == 12


def test_a_head_alone_makes_the_difference(deep):
    """The representation of the others, and a head of its own: better than any of the others' heads."""
    rng = np.random.default_rng(50)
    X = rng.standard_normal((200, D)).astype(np.float32)
    y = np.array(["well", "ill", "unsure"])[np.argmax(X @ basis() @ rng.standard_normal((K, 3)), axis=1)]
    model = clone(deep).fit(classes(90)).join("fir", X[:100], y[:100])
    own = model.score("fir", X[100:], y[100:])
    assert own > max(model.score(name, X[100:], y[100:]) for name in NAMES) + 0.1


@pytest.mark.parametrize(
    ("name", "X", "y", "error", "message"),
    [
        ("ash", np.eye(D), ["ill"] * D, ConfigurationError, "there is a site 'ash' already"),
        ("fir", np.eye(3), ["ill"] * 3, DataError, "site 'fir': rows have 3 columns, and the model was learnt from 7"),
        ("fir", np.eye(D), ["cured"] * D, DataError, "site 'fir': 7 of 7 rows have labels that no site had .*'cured'"),
        ("fir", np.eye(D), [1] * D, DataError, "site 'fir': the labels given are numbers, the others texts"),
        ("fir", np.eye(D), ["ill"], DataError, "site 'fir': there is one y for each row"),
        ("fir", np.full((2, D), np.nan), ["ill"] * 2, DataError, "site 'fir': row 0 has nan in column 0"),
        ("fir", np.zeros((0, D)), [], DataError, "site 'fir': "),
    ],
)  # fmt: skip
def test_a_new_site_that_does_not_fit_is_named(deep, name, X, y, error, message):
    with pytest.raises(error, match=message):
        deep.join(name, X, y)
    assert sorted(deep.sites_) == list(NAMES)


def test_a_new_site_learns_for_one_epoch_at_least(deep):
    for epochs, message in ((0, "epochs is at least 1, got 0"), (1.5, "epochs is an integer")):
        with pytest.raises(ConfigurationError, match=f"site 'fir': {message}"):
            deep.join("fir", np.eye(D), ["ill"] * D, epochs=epochs)


def test_a_new_site_that_diverges_is_stopped(deep):
    wild = np.array([[1e35], [1e35], [-1e35], [-1e35]], dtype=np.float32) * np.ones(D, dtype=np.float32)
    with pytest.raises(ConvergenceError, match=r"site 'fir': what it learns runs away, .* scale its rows"):
        deep.join("fir", wild, ["ill", "well"] * 2)
    assert "fir" not in deep.heads_


# ---- what it refuses ---------------------------------------------------------------------------------------------


def test_an_unknown_site_is_refused_with_the_nearest(linear):
    X = numbers()["ash"][0]
    with pytest.raises(ConfigurationError, match=r"no site 'ahs' \(did you mean 'ash'\?\); .* join\('ahs', X, y\)"):
        linear.predict("ahs", X)
    with pytest.raises(ConfigurationError, match="no site 'oka'"):
        linear.evaluate({"oka": numbers()["oak"]})
    with pytest.raises(ConfigurationError, match="each site has its own head: name one, such as 'ash'"):
        linear.predict(None, X)


def test_sites_called_by_numbers_are_found_by_them():
    rows = numbers()
    model = FederatedRepresentation(K, learner=FedRep(rounds=1, batch=0)).fit({1: rows["ash"], 2: rows["oak"]})
    X, y = rows[NAMES[2]]
    np.testing.assert_array_equal(model.predict(1, X), model.predict("1", X))
    assert model.join(3, X, y).score(3, X, y) == model.score("3", X, y)
    with pytest.raises(ConfigurationError, match="there is a site '1' already"):
        model.join(1, X, y)


def test_a_model_without_parts_of_the_sites_answers_for_anyone():
    model = FederatedRepresentation(model=MLP, learner=FedAvg(**QUICK)).fit(classes())
    X = classes()["ash"][0]
    np.testing.assert_array_equal(model.predict(None, X), model.predict("ash", X))
    with pytest.raises(ConfigurationError, match="no site 'fir'"):
        model.predict("fir", X)


def test_where_the_body_is_a_sites_own_transform_needs_the_site():
    model = FederatedRepresentation(model=MLP, learner=LGFedAvg(**QUICK)).fit(classes())
    X = classes()["ash"][0]
    with pytest.raises(ConfigurationError, match=r"say whose, as in transform\(X, site='ash'\)"):
        model.transform(X)
    assert not np.array_equal(model.transform(X, "ash"), model.transform(X, site="elm"))
    assert model.n_components_ == model.transform(X, "ash").shape[1] == 8  # the last two of three layers are the head


def test_sites_that_no_round_heard_from_are_named():
    asked = {"learner": FedRep(rounds=2, batch=0), "participation": Cohort(only=NAMES[1:])}
    with pytest.warns(
        ConvergenceWarning, match=f"no reply counted of site {NAMES[0]}: what is their own is what every"
    ):
        model = FederatedRepresentation(K, **asked).fit(numbers())
    assert model.unheard_sites_ == [NAMES[0]]
    np.testing.assert_array_equal(model.heads_[NAMES[0]], model._first()[1])
    assert FederatedRepresentation(K, tune=1, **asked).fit(numbers()).unheard_sites_ == []
    shared = FederatedRepresentation(K, **{**asked, "learner": FedAvg(rounds=2, rate=0.01)}).fit(numbers())
    assert shared.unheard_sites_ == []  # nothing is a site's own


def test_one_class_only_and_unseen_labels_are_survived_and_named():
    sites = classes()
    X, y, X_test, _ = sites["ash"]
    sites["ash"] = X, np.full(len(y), "ill")
    sites["elm"] = (*sites["elm"][:2], X_test, np.array(["cured", "ill", "odd"] * 4))
    for name in ("oak", "yew"):
        keep = sites[name][1] != "well"
        sites[name] = (sites[name][0][keep], sites[name][1][keep], *sites[name][2:])
    model = FederatedRepresentation(model=MLP, learner=FedRep(**QUICK))
    with pytest.warns(UserWarning) as warned:  # noqa: PT030 - both are looked at below
        model.fit(sites)
    texts = [str(w.message) for w in warned]
    assert texts[0] == "one class only at site ash: what is their own can tell nothing else"
    assert texts[1] == (
        "8 test rows at site elm have labels that no site had in training ('cured', 'odd'): they count as wrong"
    )
    assert model.single_class_sites_ == ["ash"]
    assert model.unseen_labels_ == {"elm": ["cured", "odd"]}
    table = model.site_scores_
    assert (table["elm"]["unseen"], table["elm"]["new"]) == (8, 8)
    assert table["oak"]["unseen"] == 0
    assert table["oak"]["new"] == int(np.sum(sites["oak"][3] == "well")) > 0
    assert "labels that only other sites had in training" in str(table)
    assert table["ash"]["on"] == "training"


def test_whole_numbers_that_look_like_numbers_are_asked_about():
    sites = {name: (X, np.arange(len(y)) + 100 * i) for i, (name, (X, y)) in enumerate(numbers().items())}
    with pytest.warns(UserWarning, match="y has 166 different labels at 166 rows, .* give them as floating point"):
        FederatedRepresentation(learner=FedRep(rounds=1, batch=0)).fit(sites)


def test_a_diverging_site_is_left_out_and_named():
    wild = numbers()
    wild["oak"] = wild["oak"][0] * 1e4, wild["oak"][1]
    model = FederatedRepresentation(learner=FedAvg(rounds=4, rate=0.1, batch=0, epochs=40))
    with np.errstate(all="ignore"), pytest.warns(ConvergenceWarning, match="diverged 4 times at site oak, .* left out"):
        model.fit(wild)
    assert model.diverged_ == {"oak": 4}
    assert np.isfinite(model.shared_).all()


@pytest.mark.parametrize(
    ("sites", "error", "message"),
    [
        ((np.eye(3), [0, 1, 2]), ConfigurationError, r"a dict by name, or a list, .* got a tuple"),
        ({}, ConfigurationError, "there are no sites"),
        ({"a": np.eye(3)}, ConfigurationError, r"site 'a': expected \(X, y\)"),
        ({"a": (np.eye(3), [0, 1, 2], np.eye(3))}, ConfigurationError, "got a tuple of 3"),
        ({"a": (np.eye(3), [0, 1])}, DataError, "site 'a': there is one y for each row"),
        ({"a": (np.eye(3), [0, 1, None])}, DataError, "site 'a': y is numbers or texts"),
        ({"a": (np.eye(3), [0.0, 1.0, np.inf])}, DataError, "site 'a': y is finite; row 2 has none"),
        (
            {"a": (np.eye(3), [0, 1, 2], np.eye(2), [0, 1])},
            DataError,
            "site 'a': test rows have 2 columns",
        ),
        (
            {"a": (np.eye(3), [0, 1, 2], np.eye(3), ["x"] * 3)},
            DataError,
            "labels of test rows are texts, the others",
        ),
        ({1: (np.eye(3), [0, 1, 2]), "1": (np.eye(3), [0, 1, 2])}, ConfigurationError, "two sites have the same name"),
    ],
)
def test_what_is_no_site_is_refused(sites, error, message):
    with pytest.raises(error, match=message):
        FederatedRepresentation().fit(sites)


def test_sparse_rows_are_refused_with_the_way_out():
    with pytest.raises(DataError, match=r"site 'a': .* take X.toarray\(\)"):
        FederatedRepresentation().fit({"a": (scipy.sparse.eye(3).tocsr(), [0, 1, 2])})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learner": "fedrp"}, "no learner 'fedrp'; did you mean 'fedrep'"),
        ({"learner": FedRep}, "learner is a name"),
        ({"learner": Doubling()}, "learner is a name"),
        ({"model": "mpl"}, "no model of kind 'mpl'; did you mean 'mlp'"),
        ({"model": 3}, "model is a name"),
        ({"n_components": 3, "model": "mlp"}, "n_components = 3 is for a linear model"),
        ({"n_components": 0}, "n_components is at least 1"),
        ({"n_components": 2.5}, "n_components is an integer"),
        ({"random_state": None}, "random_state is an integer"),
        ({"random_state": -1}, "random_state is an integer, 0 or more"),
        ({"participation": 2.0}, "fraction is a number"),
        ({"start": "moment"}, "did you mean 'moments'"),
        ({"privacy": GaussianPrivacy(1.0, 1e-6, row_norm=1.0)}, "covers the method-of-moments start only"),
        ({"learner": Doubling(stage=LINEAR, n0=5)}, "begins with n0 = 5 sites, but a round waits for 4"),
        ({"engine": "warp"}, "no engine 'warp'"),
    ],
)
def test_settings_are_refused_with_a_way_out(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        FederatedRepresentation(**settings).fit(numbers())


def test_rows_to_predict_are_checked(linear):
    with pytest.raises(DataError, match="rows have 3 columns, and the model was learnt from 7"):
        linear.predict("ash", np.eye(3))
    with pytest.raises(DataError, match="row 1 has nan in column 2"):
        linear.transform(np.where(np.arange(14).reshape(2, 7) == 9, np.nan, 1.0))
    with pytest.raises(AttributeError):
        linear.predict_proba("ash", np.eye(7))


# ---- scikit-learn's manners --------------------------------------------------------------------------------------


def test_parameters_are_kept_as_given_and_clone():
    model = dict(MLP)
    estimator = FederatedRepresentation(model=model, learner=FedRep(rounds=2), participation=0.5, start="random")
    assert estimator.get_params()["model"] is model
    copy = clone(estimator)
    assert copy.get_params() == estimator.get_params()
    assert copy.set_params(tune=3).tune == 3
    with pytest.raises(NotFittedError):
        copy.predict("ash", np.eye(3))
    with pytest.raises(NotFittedError):
        copy.join("ash", np.eye(3), [0, 1, 2])
    with pytest.raises(NotFittedError):
        copy.transform(np.eye(3))
    assert "FederatedRepresentation(" in repr(estimator)


def test_learners_by_name_are_those_with_default_settings():
    for name, learner in (("fedavg", FedAvg()), ("lg-fedavg", LGFedAvg())):
        named, given = (
            FederatedRepresentation(model=MLP, learner=one).fit(classes(rows=12)) for one in (name, learner)
        )
        assert named.shared_.tobytes() == given.shared_.tobytes()


@pytest.mark.filterwarnings("ignore:no reply counted")
def test_participation_is_a_fraction_or_a_cohort():
    model = FederatedRepresentation(learner=FedRep(rounds=3, batch=0), participation=0.5).fit(numbers())
    assert [r.sites for r in model.history_ if not r.setup] == [2, 2, 2]
    only = model.set_params(participation=Cohort(only=("ash",))).fit(numbers())
    assert [r.sites for r in only.history_ if not r.setup] == [1, 1, 1]
    assert sorted(only.site_scores_) == list(NAMES)


def test_a_run_folder_can_be_resumed(tmp_path):
    settings = {"model": MLP, "learner": FedRep(**QUICK), "run_folder": tmp_path / "run"}
    one = FederatedRepresentation(**settings).fit(classes())
    two = FederatedRepresentation(**settings, resume=True).fit(classes())
    assert one.shared_.tobytes() == two.shared_.tobytes()
    assert one.site_scores_ == two.site_scores_
