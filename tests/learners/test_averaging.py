"""FedAvg, LG-FedAvg and HF-MAML against what their papers write, computed anew."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest

from fedspan.errors import ConfigurationError
from fedspan.learners import HFMAML, FedAvg, LGFedAvg
from fedspan.learners.model import model_of
from fedspan.learners.rows import Descent
from fedspan.learners.site import first_parameters
from fedspan.rounds import Cohort
from tests.learners.labelled import Federation, clouds, linear_spec, network_spec, planted, rows_of

SIZES = {"site0": 24, "site1": 30, "site2": 18, "site3": 27}


def network_run(learner, sources, cohort=None):
    federation = Federation(sources, network_spec(learner), classes=[0, 1, 2])
    return federation, federation.solve(learner, cohort=cohort)


@pytest.mark.parametrize("by_rows", [True, False])
def test_fedavg_is_the_mean_of_the_sites_models(by_rows):
    sources, learner = clouds(), FedAvg(rounds=2, epochs=2, batch=7, by_rows=by_rows)
    federation, found = network_run(learner, sources)
    model, (shared, own) = model_of(federation.agreed["model"]), first_parameters(federation.agreed)
    assert own.size == 0
    weights = list(SIZES.values()) if by_rows else None
    for number in (1, 2):
        fits = [
            model.fit(shared, own, rows_of(s), Descent(0.1, 0.5, 7, 2), federation.generator(name, number), "both")
            for name, s in sources.items()
        ]
        shared = np.average([fit.shared for fit in fits], axis=0, weights=weights).astype(np.float32)
    np.testing.assert_allclose(found.shared, shared, rtol=1e-5, atol=1e-6)
    assert found.loss == pytest.approx(np.average([fit.loss for fit in fits], weights=weights), rel=1e-5)
    assert federation.outcomes[-1].value["weight"] == (sum(SIZES.values()) if by_rows else 4)


@pytest.mark.parametrize("by_rows", [True, False])
def test_lg_fedavg_averages_heads_and_each_site_goes_on_with_its_own_body(by_rows):
    sources, learner = clouds(), LGFedAvg(rounds=3, batch=7, by_rows=by_rows)
    federation, found = network_run(learner, sources)
    model, (shared, own) = model_of(federation.agreed["model"]), first_parameters(federation.agreed)
    assert (len(shared), len(own)) == (6 * 4 + 5 * 3, 7 * 5)  # the last two of three layers are shared
    bodies, weights = dict.fromkeys(sources, own), list(SIZES.values()) if by_rows else None
    for number in (1, 2, 3):
        heads = []
        for name, source in sources.items():
            how = Descent(0.1, 0.5, 7, 1)
            rng = federation.generator(name, number)
            fit = model.fit(shared, bodies[name], rows_of(source), how, rng, "both")
            heads.append(fit.shared)
            bodies[name] = fit.own
        shared = np.average(heads, axis=0, weights=weights).astype(np.float32)
    np.testing.assert_allclose(found.shared, shared, rtol=1e-5, atol=1e-6)
    for name, body in bodies.items():
        np.testing.assert_allclose(federation.own(name), body, rtol=1e-4, atol=1e-6)
    assert np.abs(bodies["site0"] - bodies["site1"]).max() > 0.01


@pytest.mark.parametrize("learner", [FedAvg(rounds=40, rate=0.2), LGFedAvg(rounds=40, rate=0.2)], ids=["fedavg", "lg"])
def test_they_learn_to_tell_clouds_apart(learner):
    sources = clouds()
    federation, found = network_run(learner, sources)
    model = model_of(federation.agreed["model"])
    for name, source in sources.items():
        outputs = model.outputs(found.shared, federation.own(name), source.test.X)
        assert np.mean(outputs.argmax(axis=1) == source.test.y) > 0.9
    assert found.loss < 0.3


@pytest.mark.parametrize("kind", [FedAvg, LGFedAvg, HFMAML])
def test_averaging_stops_where_the_loss_stalls(kind):
    sources, _ = planted(noise=0.5)
    quiet = {"rate": 0.05, "batch": 0}
    federation = Federation(sources, linear_spec(kind()))
    stalled = federation.solve(kind(rounds=300, stall=0.01, **quiet))
    assert stalled.converged is True
    assert 6 <= len(federation.questions) - 1 < 300
    assert Federation(sources, linear_spec(kind())).solve(kind(rounds=7, stall=1e-9, **quiet)).converged is False
    assert Federation(sources, linear_spec(kind())).solve(kind(rounds=7, **quiet)).converged is None


@pytest.mark.parametrize("kind", [FedAvg, LGFedAvg, HFMAML])
def test_some_sites_only_are_asked(kind):
    federation, _ = network_run(kind(rounds=3), clouds(), Cohort(fraction=0.5))
    assert [len(outcome.sites) for outcome in federation.outcomes[1:]] == [2, 2, 2]


# ---- HF-MAML -----------------------------------------------------------------------------------------------------


def quadratic(source, w):
    """Gradient and Hessian of half the mean square error of y = x'w: the linear model with one component of its own."""
    X, y = source
    return X.T @ (X @ w - y) / len(y), X.T @ X / len(y)


class Quadratic:
    """A model whose loss is a quadratic, so that a difference of gradients is its Hessian, exactly."""

    def start(self, rng):
        return rng.standard_normal(4), np.zeros(0)

    def gradient(self, shared, own, rows):
        slope, _ = quadratic((rows.X, rows.y), shared)
        return slope, own, 0.5 * float(np.mean((rows.X @ shared - rows.y) ** 2))

    def settled(self, shared):
        return shared


@pytest.fixture
def quadratics(monkeypatch):
    """Sites whose model is a quadratic."""
    first, site = Quadratic().start(np.random.default_rng(0)), import_module("fedspan.learners.site")
    monkeypatch.setattr(site, "model_of", lambda spec: Quadratic())
    monkeypatch.setattr(site, "_first_parameters", lambda model, seed: first)
    return planted(sites=5, rows=20, d=4, noise=0.3)[0]


@pytest.mark.parametrize("inner", [0.0, 0.2])
def test_a_meta_step_is_the_one_with_the_exact_hessian(quadratics, inner):
    """(I - alpha H) grad f(w - alpha grad f(w)), the paper's (5), on a loss whose Hessian is known."""
    learner = HFMAML(rounds=3, batch=0, rate=0.1, inner=inner, delta=0.01)
    federation = Federation(quadratics, {})
    found = federation.solve(learner)
    w = Quadratic().start(np.random.default_rng(0))[0]
    for _ in range(3):
        steps = []
        for source in quadratics.values():
            slope, hessian = quadratic((source.X, source.y), w)
            there, _ = quadratic((source.X, source.y), w - inner * slope)
            steps.append((np.eye(4) - inner * hessian) @ there)
        w = w - 0.1 * np.mean(steps, axis=0)
    np.testing.assert_allclose(found.shared, w, rtol=1e-9)


def test_meta_steps_take_three_batches_from_three_orders(quadratics):
    """The gradient inside is of D, the one outside of D', the Hessian of D''; momentum is over the steps of a round."""
    learner = HFMAML(rounds=1, batch=8, epochs=2, rate=0.1, inner=0.2, delta=0.01, momentum=0.3, by_rows=True)
    federation = Federation(quadratics, {})
    found = federation.solve(learner)
    ends, losses = [], []
    for name, source in quadratics.items():
        w, speed, rng = Quadratic().start(np.random.default_rng(0))[0], np.zeros(4), federation.generator(name, 1)
        for _ in range(2):
            orders = [rng.permutation(20) for _ in range(3)]
            losses.append([])
            for at in (0, 8, 16):
                d, d1, d2 = ((source.X[order[at : at + 8]], source.y[order[at : at + 8]]) for order in orders)
                inside = w - 0.2 * quadratic(d, w)[0]
                slope = quadratic(d1, inside)[0]
                losses[-1].append(0.5 * np.mean((d1[0] @ inside - d1[1]) ** 2))
                speed = 0.3 * speed + (np.eye(4) - 0.2 * quadratic(d2, w)[1]) @ slope
                w = w - 0.1 * speed
        ends.append(w)
    np.testing.assert_allclose(found.shared, np.mean(ends, axis=0), rtol=1e-9)
    assert found.loss == pytest.approx(np.mean(losses[1::2]), rel=1e-9)  # of the last epoch, met after the inner step


def test_the_difference_of_gradients_is_a_networks_hessian_to_its_order():
    """On an MLP: the meta-gradient by two central differences of the meta-loss, along some directions."""
    sources = {"site0": clouds(dtype=np.float64)["site0"]}
    learner = HFMAML(rounds=1, batch=0, rate=1.0, inner=0.05, delta=1e-4)
    spec = network_spec(learner)
    federation = Federation(sources, spec, classes=[0, 1, 2])
    start = first_parameters(federation.agreed)[0].astype(np.float64)
    step = start - federation.solve(learner, start).shared  # the meta-gradient
    model, rows = model_of(spec), rows_of(sources["site0"])

    def meta_loss(w):
        inside = w - 0.05 * model.gradient(w, np.zeros(0), rows)[0]
        return model.gradient(inside, np.zeros(0), rows)[2]

    rng = np.random.default_rng(0)
    for _ in range(5):
        way = rng.standard_normal(len(start))
        way /= np.linalg.norm(way)
        slope = (meta_loss(start + 1e-5 * way) - meta_loss(start - 1e-5 * way)) / 2e-5
        assert way @ step == pytest.approx(slope, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"inner": -0.1}, "inner is not negative, delta is positive; got -0.1"),
        ({"delta": 0.0}, "inner is not negative, delta is positive"),
        ({"inner": "x"}, "inner is a finite number, got 'x'"),
    ],
)
def test_settings_of_maml_that_do_not_fit_are_refused(settings, text):
    with pytest.raises(ConfigurationError, match=text):
        HFMAML(**settings)
