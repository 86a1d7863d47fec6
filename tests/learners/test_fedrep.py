"""FedRep against the paper's formulas, written densely, and against its own promises."""

from __future__ import annotations

import numpy as np
import pytest

from fedspan.errors import ConfigurationError
from fedspan.learners import FedRep
from fedspan.learners.model import model_of
from fedspan.learners.rows import Descent, Rows
from fedspan.learners.site import first_parameters
from fedspan.linalg import orth
from fedspan.metrics import projection_distance
from fedspan.rounds import Cohort
from tests.learners.labelled import Federation, clouds, linear_spec, network_spec, planted, rows_of

ALG_2 = {"batch": 0, "momentum": 0.0, "epochs": 1}


def solve(learner, sources, start=None, cohort=None, **spec):
    federation = Federation(sources, linear_spec(learner, **spec))
    return federation, federation.solve(learner, start, cohort)


def round_17_to_19(basis, sources, eta, weights=None):
    """(17), (18), (19): the exact heads, the mean of one gradient step each, QR."""
    heads, gradients = [], []
    for source in sources:
        X, Y, m = source.X, source.y, len(source.y)
        gram = basis.T @ X.T @ X @ basis / m
        heads.append(np.linalg.inv(gram) @ (basis.T @ X.T @ Y / m))  # (17)
        gradients.append(np.outer(X.T @ (X @ basis @ heads[-1] - Y), heads[-1]) / m)
    mean = basis - eta * np.average(gradients, axis=0, weights=weights)  # (18)
    return orth(mean), heads  # (19)


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_round_of_the_linear_case_is_formulas_17_to_19(rounds):
    sources, _ = planted(noise=0.5)
    federation, found = solve(FedRep(rounds=rounds, rate=0.2, **ALG_2), sources)
    basis = first_parameters(federation.agreed)[0]
    for _ in range(rounds):
        basis, heads = round_17_to_19(basis, sources.values(), 0.2)
    np.testing.assert_allclose(found.shared, basis, atol=1e-10)
    for name, head in zip(sources, heads, strict=True):
        np.testing.assert_allclose(federation.own(name), head, atol=1e-10)
    assert len(federation.questions) == rounds + 1


def test_by_rows_a_site_counts_as_often_as_it_has_rows():
    few, many = planted(sites=3, rows=12, noise=0.3)[0], planted(sites=3, rows=70, noise=0.3)[0]
    sources = {"site0": few["site0"], "site1": many["site1"], "site2": few["site2"]}
    federation, found = solve(FedRep(rounds=1, rate=0.2, by_rows=True, **ALG_2), sources)
    start = first_parameters(federation.agreed)[0]
    weighted = round_17_to_19(start, sources.values(), 0.2, weights=[12, 70, 12])[0]
    np.testing.assert_allclose(found.shared, weighted, atol=1e-10)
    plain = round_17_to_19(start, sources.values(), 0.2)[0]
    assert np.abs(weighted - plain).max() > 1e-3


def test_the_loss_is_the_mean_of_the_sites_losses_before_the_step():
    sources, _ = planted(noise=0.5)
    federation, found = solve(FedRep(rounds=1, rate=0.2, **ALG_2), sources)
    basis = first_parameters(federation.agreed)[0]
    heads = round_17_to_19(basis, sources.values(), 0.2)[1]
    losses = [0.5 * np.mean((s.X @ basis @ h - s.y) ** 2) for s, h in zip(sources.values(), heads, strict=True)]
    assert found.loss == pytest.approx(np.mean(losses), rel=1e-10)


def test_without_noise_the_planted_subspace_is_found_at_the_rate_that_the_heads_tell():
    """Each round shrinks the distance by 1 - eta sigma_min^2 of the heads, and by more where rows are few."""
    sources, truth = planted(sites=40, rows=400, d=12, k=2, seed=3)
    tell, eta = [], 0.11
    start = orth(truth + 0.25 * np.random.default_rng(1).standard_normal(truth.shape))
    federation, found = solve(FedRep(rounds=90, rate=eta, heads=True, **ALG_2), sources, start, d=12)
    asked = [q.estimate for q in federation.questions[1:]]
    distances = [projection_distance(b, truth) for b in [*asked, found.shared]]
    for outcome in federation.outcomes[1:]:
        moment = outcome.value["heads"] / 40
        tell.append(1 - eta * np.linalg.eigvalsh(moment)[0])
    distances, tell = np.array(distances), np.array(tell)
    rates = distances[1:] / distances[:-1]
    heads = np.linalg.svd(np.array(federation_heads(sources, truth)), compute_uv=False) / np.sqrt(40)
    a = 0.5 * eta * (1 - distances[0] ** 2) * heads[-1] ** 2  # Theorem 4.7
    assert found.contraction == pytest.approx(tell[-1], rel=1e-12)
    assert eta <= 1 / (8 * heads[0] ** 2)
    assert 0.85 < tell[-1] < 0.95
    assert distances[-1] < 1e-3 * distances[0]
    assert np.all(rates <= np.sqrt(1 - a))
    assert np.all(rates <= tell + 0.01)  # 400 rows a site: their Gram matrices are not quite the identity


def federation_heads(sources, truth):
    """The planted heads: exact where there is no noise."""
    return [np.linalg.lstsq(s.X @ truth, s.y, rcond=None)[0] for s in sources.values()]


def test_heads_are_second_moments_summed_over_sites():
    sources, _ = planted(noise=0.2)
    federation, found = solve(FedRep(rounds=1, rate=0.1, heads=True, **ALG_2), sources)
    heads = round_17_to_19(first_parameters(federation.agreed)[0], sources.values(), 0.1)[1]
    moment = sum(np.outer(h, h) for h in heads)
    np.testing.assert_allclose(federation.outcomes[1].value["heads"], moment, rtol=1e-9)
    assert found.contraction == pytest.approx(1 - 0.1 * np.linalg.eigvalsh(moment / len(heads))[0], rel=1e-9)
    assert solve(FedRep(rounds=1, **ALG_2), sources)[1].contraction is None


def test_by_rows_the_second_moments_of_heads_count_so_too():
    few, many = planted(sites=2, rows=12, noise=0.3)[0], planted(sites=2, rows=70, noise=0.3)[0]
    sources = {"site0": few["site0"], "site1": many["site1"]}
    federation, found = solve(FedRep(rounds=1, rate=0.1, heads=True, by_rows=True, **ALG_2), sources)
    heads = round_17_to_19(first_parameters(federation.agreed)[0], sources.values(), 0.1)[1]
    moment = (12 * np.outer(heads[0], heads[0]) + 70 * np.outer(heads[1], heads[1])) / 82
    assert found.contraction == pytest.approx(1 - 0.1 * np.linalg.eigvalsh(moment)[0], rel=1e-9)


def test_heads_of_several_classes_have_second_moments_of_k_by_k():
    sources = clouds(dtype=np.float64)
    spec = {"outputs": 3, "classes": True, "d": 6, "k": 2}
    federation = Federation(sources, linear_spec(FedRep(), **spec), classes=[0, 1, 2])
    federation.solve(FedRep(rounds=1, heads=True, **ALG_2))
    own = [federation.own(name).reshape(2, 3) for name in sources]
    np.testing.assert_allclose(federation.outcomes[1].value["heads"], sum(w @ w.T for w in own), rtol=1e-9)


def test_a_networks_heads_have_no_second_moments():
    federation = Federation(clouds(), network_spec(FedRep()), classes=[0, 1, 2])
    with pytest.raises(ConfigurationError, match="leave heads out"):
        federation.solve(FedRep(rounds=1, heads=True))


@pytest.mark.parametrize("rows", [20, 25])
def test_fresh_rows_are_read_one_after_another_then_from_the_first_again(rows):
    sources, _ = planted(sites=3, rows=rows, noise=0.4)
    learner = FedRep(rounds=5, rate=0.2, fresh=10, **ALG_2)
    federation, found = solve(learner, sources)
    basis = first_parameters(federation.agreed)[0]
    for begin in (0, 10, 0, 10, 0):  # none is left after two rounds, or five: too few
        some = [Rows(s.X[begin : begin + 10], s.y[begin : begin + 10]) for s in sources.values()]
        basis, _ = round_17_to_19(basis, some, 0.2)
    np.testing.assert_allclose(found.shared, basis, atol=1e-10)
    everything = solve(FedRep(rounds=2, rate=0.2, fresh=rows, **ALG_2), sources)[1].shared
    np.testing.assert_allclose(everything, solve(FedRep(rounds=2, rate=0.2, **ALG_2), sources)[1].shared, atol=1e-12)


def test_fresh_rows_count_by_rows_as_many_as_were_read():
    sources = {"site0": planted(rows=30)[0]["site0"], "site1": planted(rows=5)[0]["site1"]}
    federation, _ = solve(FedRep(rounds=1, fresh=8, by_rows=True, **ALG_2), sources)
    assert federation.outcomes[1].value["weight"] == 8 + 5


def test_a_round_of_a_network_is_head_epochs_then_body_epochs():
    """By hand through the model: the head first, from where it was; then the body, with the new head."""
    sources, learner = clouds(), FedRep(rounds=2, head_epochs=3, epochs=2, rate=0.1, batch=7)
    federation = Federation(sources, network_spec(learner), classes=[0, 1, 2])
    found = federation.solve(learner)
    model, (shared, own) = model_of(federation.agreed["model"]), first_parameters(federation.agreed)
    heads = dict.fromkeys(sources, own)
    for number in (1, 2):
        bodies = []
        for name, source in sources.items():
            rng = federation.generator(name, number)
            rows = rows_of(source)
            heads[name] = model.fit(shared, heads[name], rows, Descent(0.1, 0.5, 7, 3), rng, "own").own
            bodies.append(model.fit(shared, heads[name], rows, Descent(0.1, 0.5, 7, 2), rng, "shared").shared)
        shared = (np.sum(bodies, axis=0) / np.float32(4)).astype(np.float32)
    np.testing.assert_allclose(found.shared, shared, rtol=1e-6, atol=1e-7)
    assert found.shared.dtype == np.float32
    for name, head in heads.items():
        np.testing.assert_allclose(federation.own(name), head, rtol=1e-5, atol=1e-6)


def test_a_site_that_was_not_asked_keeps_its_head():
    sources, _ = planted(sites=3, noise=0.2)
    federation = Federation(sources, linear_spec(FedRep()))
    federation.solve(FedRep(rounds=2, **ALG_2), cohort=Cohort(only=("site0", "site1")))
    assert federation.own("site2") is None  # it never had one of its own
    assert federation.own("site0") is not None


def test_it_stops_where_the_loss_stalls_and_says_so():
    sources, _ = planted(noise=0.5)
    asked, stalled = solve(FedRep(rounds=60, rate=0.25, stall=0.01, **ALG_2), sources)
    assert 6 <= len(asked.questions) - 1 < 60
    federation, spent = solve(FedRep(rounds=7, rate=0.25, stall=1e-9, **ALG_2), sources)
    assert stalled.converged is True
    assert spent.converged is False
    assert len(federation.questions) == 7 + 1
    assert solve(FedRep(rounds=2, **ALG_2), sources)[1].converged is None


def test_only_bodies_losses_and_weights_leave_a_site():
    federation, _ = solve(FedRep(rounds=2, **ALG_2), planted()[0])
    for outcome in federation.outcomes[1:]:
        assert set(outcome.value) == {"shared", "weight", "loss", "diverged"}
        assert outcome.value["shared"].shape == (9, 2)
        assert outcome.bytes_up == 8 * (9 * 2 * 8 + 3 * 8)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"head_epochs": 0}, "head_epochs and fresh rows are at least 1, got 0 and None"),
        ({"head_epochs": 1.5}, "head_epochs is an integer, got 1.5"),
        ({"fresh": 0}, "head_epochs and fresh rows are at least 1, got 5 and 0"),
        ({"fresh": "all"}, "fresh is a number of rows for each round, or None for all, got 'all'"),
        ({"heads": 1}, "heads is true or false, got 1"),
    ],
)
def test_settings_of_fedrep_that_do_not_fit_are_refused(settings, text):
    with pytest.raises(ConfigurationError, match=text):
        FedRep(**settings)
