"""Private power in its placements on a small stand-in, and the fit of Table 2's orders on costs that are known."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse

from fedspan.cli import reproduce_ppm_secure as secure
from fedspan.cli.reproduce_ppm_data import interaction_changes, leading_vectors, normalised
from fedspan.cli.reproduce_ppm_growth import ORDERS, measure_growth
from fedspan.cli.reproduce_ppm_secure import Placement, Setting, measure, placements, recall, reproduce, text
from fedspan.engines import InProcess
from fedspan.errors import ConfigurationError, DataError
from fedspan.privacy.published import ppm_sigma
from tests.cli.test_reproduce_ppm import interactions, stand_in

SMALL = Setting(k=2, p=5, rounds=3, sites=4, users=40)
SETTINGS = (replace(SMALL, epsilon=25.0, change=1e-4), replace(SMALL, change=1.0))


@pytest.fixture(scope="module")
def found():
    both, lines = stand_in("gowalla", download=False), []
    return {"set": "a stand-in", **measure(both.X, both.X_test, SETTINGS, lines.append)}, lines


def of(found, **wanted):
    return [run for run in found["runs"] if run.items() >= wanted.items()]


# ---- side by side ----------------------------------------------------------------------------------------------


def test_every_placement_is_measured_under_every_setting_and_the_plain_method_once(found):
    result, lines = found
    assert [(run["method"], run["calibration"]) for run in result["runs"]] == [
        ("no privacy", "none"),
        *[
            (m, c)
            for _ in SETTINGS
            for m in ("one party (Alg. 1)", "secure sums (Alg. 2)")
            for c in secure.CALIBRATIONS
        ],
    ]
    assert len(lines) == len(result["runs"])
    assert {run["sites"] for run in of(result, method="secure sums (Alg. 2)")} == {4}
    assert all(run["asked"] == 3 and run["seconds"] >= 0 for run in result["runs"])
    assert json.loads(json.dumps(result)) == result


def test_with_next_to_no_noise_all_are_the_method_without_privacy_and_with_much_none_is(found):
    result = found[0]
    (plain,) = of(result, calibration="none")
    for run in of(result, change=1e-4):
        assert run["captured"] == pytest.approx(plain["captured"], abs=1e-2)
        assert run["recall"] == pytest.approx(plain["recall"], abs=0.05)
    for run in of(result, change=1.0):
        assert run["captured"] < 0.8 * plain["captured"]
        assert run["distance"] > 0.9
    assert 0.9 < plain["captured"] <= 1.0


def test_the_noise_is_the_calibrations_own(found):
    result = found[0]
    for setting in SETTINGS:
        tight, published = (
            of(result, method="one party (Alg. 1)", calibration=c, epsilon=setting.epsilon)[0]["noise"]
            for c in ("tight", "published")
        )
        most = setting.change * ppm_sigma(setting.epsilon, setting.delta, setting.rounds)  # no row is longer than 1
        assert 0.05 * most < tight < published <= most


@pytest.mark.parametrize("placement", placements(SMALL), ids=lambda p: p.trust)
def test_the_whole_budget_is_the_solvers_and_neighbours_are_the_papers(placement):
    promised = secure._private(normalised(interactions(0)), SMALL, placement, "tight").result.privacy
    assert (promised.neighbours, promised.trust) == ("ppm-12", placement.trust)
    assert [(r.step, r.times) for r in promised.releases] == [("gram.multiply", 3)]
    assert promised.releases[0].share == pytest.approx(1.0)
    assert promised.spent_epsilon == pytest.approx(SMALL.epsilon, rel=1e-6)


def test_placements_with_the_same_terms_add_the_same_noise(found):
    for run in of(found[0], method="secure sums (Alg. 2)"):
        (alone,) = of(found[0], method="one party (Alg. 1)", calibration=run["calibration"], epsilon=run["epsilon"])
        assert run["noise"] == pytest.approx(alone["noise"], rel=0.7)  # of Z that came after other noise
        assert run["bytes_up"] >= 4 * alone["bytes_up"] - 4096


def test_another_engine_is_a_placement_of_its_own():
    asked = []

    def engine(sites, seed):
        inner = InProcess(sites, seed)

        def execute(question):
            asked.append(question.step.name)
            return inner(question)

        return execute

    assert placements(SMALL, engine)[-1] == Placement("gossip", "distributed", 4, {"engine": engine})
    ran = secure._private(
        normalised(interactions(0)), SMALL, Placement("gossip", "local", 4, {"engine": engine}), "tight"
    )
    assert asked.count("gram.multiply") == 3
    assert ran.result.facts.sites == 4


def test_recall_is_of_what_a_user_did_not_do_before():
    train = scipy.sparse.csr_array([[1.0, 1, 0, 0], [1, 0, 1, 0], [0, 0, 1, 1]])
    test = scipy.sparse.csr_array([[0.0, 0, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0]])
    setting = replace(SMALL, top=1, users=10)
    basis = np.eye(4)  # scores are the user's own row, so nothing but what was done before has any
    assert recall(train, None, normalised(train), basis, setting) is None
    basis = np.linalg.qr(np.array([[1.0, 0], [1, 0], [1, 0], [0, 1]]))[0]  # users of the first two like the third
    got = recall(train, test, normalised(train), basis, setting)
    assert got == pytest.approx((1 / 2 + 1) / 2)  # the first: one of two; the second has no test; the third: its one
    assert recall(train, test, normalised(train), basis, replace(setting, users=1)) in (0.5, 1.0)


def test_scores_are_projections_turned_back_by_the_items_degrees():
    both, setting = stand_in("gowalla", download=False), replace(SMALL, users=90, top=5)
    train, test = both.X.toarray(), both.X_test.toarray()
    basis, root = leading_vectors(both.X, 3), np.sqrt(train.sum(axis=0))
    found = []
    for x, later in zip(train, test, strict=True):
        if later.any():
            scores = (x / math.sqrt(x.sum()) / root) @ basis @ basis.T * root
            first = np.argsort(-np.where(x > 0, -np.inf, scores))[:5]
            found.append(later[first].sum() / later.sum())
    assert recall(both.X, both.X_test, normalised(both.X), basis, setting) == pytest.approx(np.mean(found))


def test_one_interaction_changes_the_matrix_as_much_as_it_does_written_out():
    ratings = interactions(3, users=30, items=12, share=0.3)
    dense, got = ratings.toarray(), interaction_changes(ratings, 40)
    rows, columns = ratings.nonzero()
    able = np.flatnonzero((dense.sum(axis=1)[rows] > 1) & (dense.sum(axis=0)[columns] > 1))

    def gram(x):
        matrix = normalised(scipy.sparse.csr_array(x)).toarray()
        return matrix.T @ matrix

    for at, change in zip(np.random.default_rng(0).permutation(able)[:40], got, strict=True):
        without = dense.copy()
        without[rows[at], columns[at]] = 0.0
        e = gram(without) - gram(dense)
        assert change == pytest.approx(math.sqrt(np.sum(np.abs(e).sum(axis=1) ** 2)), rel=1e-9)


def test_the_text_says_what_was_run_and_how_far_placements_are_apart(found):
    written = text({"sets": {"x": found[0]}})
    for words in ("## Private power on a stand-in", "90 users, 60 items", "nothing is charged for degrees",
                  "secure sums (Alg. 2), 4 sites", "| published |", "recall@20", "apart in captured variance at most",
                  "The leading eigenvectors themselves have a recall of", "(k = 2)"):  # fmt: skip
        assert words in written
    table = next(block for block in written.split("\n\n") if block.startswith("|")).splitlines()
    assert len({line.count("|") for line in table}) == 1
    assert len(table) == 2 + len(found[0]["runs"])
    apart = [{**run, "captured": {1: 0.5, 4: 0.75}.get(run["sites"])} for run in found[0]["runs"]]
    apart[-1]["captured"] = 0.9  # beside 0.5 of one party
    assert "are 0.400 apart in captured" in text({"sets": {"x": {**found[0], "runs": apart}}})
    alone = {**found[0], "runs": [run for run in found[0]["runs"] if run["sites"] == 1]}
    assert "nothing to compare it with" in text({"sets": {"x": alone}})


def test_a_set_without_test_interactions_has_no_recall():
    result = measure(interactions(0), None, [replace(SMALL, epsilon=20.0)], lambda line: None)
    assert {run["recall"] for run in result["runs"]} == {None}
    assert "The leading eigenvectors themselves" not in text({"sets": {"x": result}})


def test_all_of_it_is_written_and_a_missing_set_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(secure, "load", stand_in)
    monkeypatch.setattr(secure, "QUICK", (SMALL,))
    result = reproduce(tmp_path, quick=True, cost=exact)
    assert json.loads((tmp_path / "ppm-secure.json").read_text()) == json.loads(json.dumps(result))
    assert (tmp_path / "secure.md").read_text() == text(result)
    for title in ("## Private power on gowalla", "## Table 2"):
        assert title in text(result)

    def missing(name, *, download):
        raise DataError(f"{name} is not here")

    monkeypatch.setattr(secure, "load", missing)
    result = reproduce(tmp_path, quick=True, tables=False)
    assert "Not available here, nothing is downloaded: gowalla is not here" in text(result)
    assert "growth" not in result


def test_the_settings_of_the_set_itself_are_the_papers_neighbours_first():
    assert secure.GOWALLA[0] == Setting(k=16, p=32, rounds=3, epsilon=1.0, delta=1e-6, change=1.0)
    for setting in (*secure.GOWALLA, *secure.QUICK):
        ppm_sigma(setting.epsilon, setting.delta, setting.rounds)  # within what the published proof covers


# ---- Table 2 ---------------------------------------------------------------------------------------------------


FACTORS = {
    "client_bytes": (40, 8),
    "client_seconds": (1e-4, 2e-8),
    "server_bytes": (9, 8),
    "server_seconds": (1e-5, 3e-9),
}
SITES, SIZES = [4, 16, 64, 256], [100, 10_000]


def exact(s, m):
    """Costs that grow as the paper says."""
    return {name: float(np.dot(FACTORS[name], order.terms(s, m))) for name, order in ORDERS.items()}


def test_orders_are_the_papers():
    s, m, log = 8, 100, math.log(8)
    assert {name: order.terms(s, m) for name, order in ORDERS.items()} == {
        "client_bytes": (log, m), "client_seconds": (log**2, m * log),
        "server_bytes": (s * log, s * m), "server_seconds": (s * log**2, s * m * log),
    }  # fmt: skip


def test_costs_that_grow_as_the_orders_do_are_fitted_exactly():
    lines = []
    growth = measure_growth(exact, SITES, SIZES, lines.append)
    assert len(growth["points"]) == len(lines) == len(SITES) * len(SIZES)
    for name, fit in growth["fits"].items():
        assert fit["misfit"] < 1e-6
        np.testing.assert_allclose(fit["factors"], FACTORS[name], rtol=1e-4)
        assert fit["growth"]["measured"] == pytest.approx(fit["growth"]["fitted"], rel=1e-6)
        assert (fit["growth"]["from"], fit["growth"]["to"], fit["growth"]["size"]) == (4, 256, 10_000)


@pytest.mark.parametrize(
    ("name", "cost"),
    [
        ("client_bytes", lambda s, m: 8.0 * s * m), ("client_seconds", lambda s, m: 1e-8 * s * m),
        ("server_bytes", lambda s, m: 8.0 * s * s * m), ("server_seconds", lambda s, m: 1e-9 * s * s * m),
    ],
)  # fmt: skip
def test_a_cost_that_grows_faster_than_its_order_shows(name, cost):
    growth = measure_growth(lambda s, m: {**exact(s, m), name: cost(s, m)}, SITES, SIZES)
    fit = growth["fits"][name]
    assert fit["misfit"] > 0.5
    assert fit["growth"]["measured"] > 3 * fit["growth"]["fitted"]
    assert all(other["misfit"] < 1e-6 for key, other in growth["fits"].items() if key != name)
    assert f"{fit['growth']['measured']:.3g}x" in text({"growth": growth})


def test_table_2_is_printed_beside_the_papers_orders():
    written = text({"growth": measure_growth(exact, SITES, SIZES)})
    for words in ("## Table 2", "client, bytes", "log s + m", "log^2 s + m log s", "s log s + s m",
                  "s log^2 s + s m log s", "4 to 256", "80,222 (80,222)"):  # fmt: skip
        assert words in written
    for block in (b.splitlines() for b in written.split("\n\n") if b.startswith("|")):
        assert len({line.count("|") for line in block}) == 1


@pytest.mark.parametrize(
    ("sites", "sizes", "measure", "text"),
    [
        ([4], [10], exact, "two numbers of sites"), ([1, 4], [10], exact, "at least 2"),
        ([4, 8], [], exact, "sizes"), ([4, 8], [0], exact, "a number or more"),
        ([4, 8], [10], lambda s, m: {"client_bytes": 1.0}, "says nothing of client_seconds, server_bytes"),
        ([4, 8], [10], lambda s, m: {**exact(s, m), "server_seconds": 0.0}, "server_seconds is a positive figure"),
    ],
)  # fmt: skip
def test_what_shows_no_growth_is_refused(sites, sizes, measure, text):
    with pytest.raises(ConfigurationError, match=text):
        measure_growth(measure, sites, sizes)


def test_leading_vectors_are_what_answers_are_compared_with(found):
    both = stand_in("gowalla", download=False)
    best = leading_vectors(both.X, 2)
    setting = SETTINGS[0]
    assert found[0]["exact_recall"]["2"] == recall(both.X, both.X_test, normalised(both.X), best, setting)
