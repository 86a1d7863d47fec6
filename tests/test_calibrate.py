"""Calibration: twins are what they say, a small one stands for a large one, and curves are read off rightly."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from fedspan import calibrate as module
from fedspan.calibrate import Curve, Point, Spectrum, calibrate, make_twin, rows_needed, twin_sizes
from fedspan.data import Preparation
from fedspan.errors import ConfigurationError, DataError
from fedspan.privacy import GaussianPrivacy
from fedspan.privacy.accountant import mu_of
from fedspan.privacy.gaussian import Bounds
from fedspan.rounds import Cohort
from fedspan.run import Study
from fedspan.solvers import FedPower

SITES = {"a": 500, "b": 300, "c": 200}


def private(**settings: Any) -> GaussianPrivacy:
    return GaussianPrivacy(**{"epsilon": 1.0, "delta": 1e-6, "row_norm": 1.0, **settings})


def study(solver: Any = "covariance", **settings: Any) -> Study:
    return Study(n_components=3, solver=solver, privacy=private(**settings))


# ---- spectra and twins -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "first"), [("power", 2.0), ("power:2", 4.0), ("geometric:0.5", 2.0), ("flat", 1.0), ("power:0", 1.0)]
)
def test_a_spectrum_falls_as_it_says(text: str, first: float) -> None:
    values = Spectrum.parse(text).variances(5)
    assert values.sum() == pytest.approx(1.0)
    assert values[0] / values[1] == pytest.approx(first)


@pytest.mark.parametrize("text", ["power:-1", "power:x", "geometric:1.5", "geometric:0", "flat:2", "power:nan"])
def test_a_spectrum_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="write power:A"):
        Spectrum.parse(text)
    with pytest.raises(ConfigurationError, match="did you mean 'geometric'"):
        Spectrum.parse("geometrc:0.5")


def test_a_twin_keeps_the_bound_and_the_spectrum() -> None:
    twin = make_twin(Spectrum("power", 0.5), 5000, 40, private(row_norm=3.0), 0)
    norms = np.linalg.norm(twin, axis=1)
    assert norms.max() <= 3.0 * (1 + 1e-12)
    assert np.mean(norms**2) == pytest.approx(4.5, rel=0.05)
    values = np.linalg.eigvalsh(twin.T @ twin)[::-1]
    np.testing.assert_allclose(values / values.sum(), Spectrum("power", 0.5).variances(40), rtol=0.1)


def test_twins_differ_by_seed_only() -> None:
    make = [make_twin(Spectrum(), 50, 4, private(), seed) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(make[0], make[1])
    assert not np.allclose(make[0], make[2])


@pytest.mark.parametrize("rows", [10, 2000])
def test_a_twin_in_ranges_fills_them(rows: int) -> None:
    low, high = np.array([0.0, -1, 5, 0, 0, 0]), np.array([1.0, 1, 9, 100, 1, 1])
    twin = make_twin(Spectrum(), rows, 6, private(row_norm=Bounds(low, high)), 0)
    assert np.all((low <= twin) & (twin <= high))
    np.testing.assert_allclose(twin.std(axis=0), (high - low) / 4, rtol=0.2)
    with pytest.raises(ConfigurationError, match="Bounds name 2 columns"):
        make_twin(Spectrum(), rows, 6, private(row_norm=Bounds([0, 0], 1)), 0)


def test_a_twin_of_few_rows_is_made_too() -> None:
    assert make_twin(Spectrum(), 3, 10, private(), 0).shape == (3, 10)
    assert make_twin(Spectrum(), 10, 1, private(), 0).shape == (10, 1)


def test_large_studies_get_small_twins_in_proportion() -> None:
    assert twin_sizes({"a": 100, "b": 50}, 10) == {"a": 100, "b": 50}
    assert twin_sizes({"a": 10**9, "b": 1}, 10) == {"a": 20_000, "b": 1}
    assert sum(twin_sizes({"a": 10**9}, 4096).values()) == 2 * 4096


# ---- a small twin stands for a large one -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("solver", "settings", "preparation"),
    [
        ("covariance", {}, Preparation()),
        ("covariance", {"trust": "central", "n_public": True}, Preparation(missing="mean")),
        ("private-power", {"trust": "distributed"}, Preparation()),
        ("fedpower", {}, Preparation(center=False)),
        ("mod-sulq", {}, Preparation()),
        ("covariance", {"row_norm": Bounds(-1, 3)}, Preparation(scale=True)),
    ],
)
def test_a_scaled_twin_agrees_with_the_whole_one(
    solver: str, settings: dict[str, Any], preparation: Preparation, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Study(n_components=3, solver=solver, privacy=private(**settings), preparation=preparation)
    rows, options = {"a": 4000, "b": 2500, "c": 1500}, {"epsilons": (0.01, 0.03, 0.1), "seeds": 12}
    whole = calibrate(asked, rows, 12, **options)  # type: ignore[arg-type]
    monkeypatch.setattr(module, "MOST_ROWS", 800)
    scaled = calibrate(asked, rows, 12, **options)  # type: ignore[arg-type]
    assert (whole.rows, whole.twin_rows, scaled.rows, scaled.twin_rows) == (8000, 8000, 8000, 800)
    for a, b in zip(whole.curves[0].points, scaled.curves[0].points, strict=True):
        assert a.error is not None
        assert b.error is not None
        assert abs(a.mean - b.mean) <= 4 * math.hypot(a.error, b.error)
        assert abs(a.mean - b.mean) <= 0.02  # the same noise is drawn, so it agrees far better than that
    means = [p.mean for p in whole.curves[0].points]
    assert means[0] < means[-1] - 0.05  # the case tells budgets apart


def test_without_the_scaling_it_would_not_agree() -> None:
    few, many = (calibrate(study(), {"a": n}, 12, epsilons=(0.1,), seeds=6).curves[0].points[0] for n in (800, 8000))
    assert many.mean - few.mean > 0.1


def test_billions_of_rows_take_no_time() -> None:
    found = calibrate(study(), {"a": 10**10, "b": 10**10}, 5, epsilons=(0.01, 10.0), seeds=2)
    assert all(p.mean > 0.999 for p in found.curves[0].points)


def test_published_noise_is_not_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 100)
    terms = {"calibration": "published", "n_public": True}
    assert calibrate(study(**terms), SITES, 6, epsilons=(1.0,), seeds=1).twin_rows == 1000
    clipped = study(FedPower(rounds=3, local_steps=2), site_norm=5.0)
    assert calibrate(clipped, SITES, 6, epsilons=(1.0,), seeds=1).twin_rows == 1000
    assert calibrate(study(), SITES, 6, epsilons=(1.0,), seeds=1).twin_rows == 100
    monkeypatch.setattr(module, "UNSCALED_ENTRIES", 600)
    with pytest.raises(ConfigurationError, match="--rows 100 at most"):
        calibrate(study(**terms), SITES, 6)


# ---- curves ------------------------------------------------------------------------------------------------------


def test_more_budget_and_more_trust_are_better() -> None:
    found = calibrate(study(), SITES, 8, epsilons=(0.3, 1.0, 3.0, 10.0), trusts=("local", "central"), seeds=4)
    local, central = found.curves
    assert (local.trust, central.trust, local.solver) == ("local", "central", "covariance")
    means = [p.mean for p in local.points]
    assert means == sorted(means)
    assert central.points[1].mean > local.points[1].mean
    assert all(0 < value <= 1 + 1e-9 for p in central.points for value in p.values)
    assert central.points[-1].mean > 0.99


def test_the_same_call_gives_the_same_figures() -> None:
    one, two = (calibrate(study("private-power"), SITES, 6, epsilons=(1.0,), seeds=2) for _ in range(2))
    assert one == two


def test_steps_are_told() -> None:
    told: list[str] = []
    calibrate(study(), SITES, 4, epsilons=(1.0,), solvers=("covariance", "power"), seeds=2, begin=told.append)
    assert len(told) == 4
    assert told[0] == "twin 1 of 2, covariance, trust local"


def test_the_study_itself_is_kept() -> None:
    """Cohort, rows per person and the names of sites are the study's own."""
    base = study("fedpower", rows_per_person=2)
    partial = Study(n_components=2, solver="fedpower", privacy=base.privacy, cohort=Cohort(only=("a", "b")))
    assert calibrate(partial, SITES, 5, epsilons=(1.0,), seeds=1).n_components == 2


@pytest.mark.parametrize(("wanted", "k"), [(0.5, 2), ("auto", 6), (4, 4)])
def test_a_rank_still_to_be_found_is_taken_from_the_spectrum(wanted: Any, k: int) -> None:
    asked = Study(n_components=wanted, solver="covariance", privacy=private())
    assert calibrate(asked, SITES, 6, epsilons=(1.0,), seeds=1).n_components == k


def test_a_target_is_read_off_between_epsilons() -> None:
    curve = Curve("covariance", "local", (Point(0.1, (0.6, 0.6)), Point(1.0, (0.9, 0.9)), Point(10.0, (1.0, 1.0))))
    reached = curve.reached(0.8)
    assert reached is not None
    assert reached.between == (0.1, 1.0)
    assert reached.epsilon == pytest.approx(10 ** (-1 + math.log(2) / math.log(4)))
    assert curve.reached(0.9).epsilon == pytest.approx(1.0)  # type: ignore[union-attr]
    assert curve.reached(0.95).epsilon < 10  # type: ignore[union-attr]
    assert curve.reached(1.01) is None
    assert Point(1.0, (0.5,)).error is None
    assert Point(1.0, (0.4, 0.6)).error == pytest.approx(0.1)


def test_rows_and_mu_stand_for_each_other() -> None:
    needed = rows_needed(1000, 1e-6, 10.0, 1.0)
    assert needed / 1000 == pytest.approx(mu_of(10.0, 1e-6) / mu_of(1.0, 1e-6), rel=1e-3)
    assert rows_needed(1000, 1e-6, 1.0, 1.0) == 1000


# ---- what is refused ---------------------------------------------------------------------------------------------


def test_what_cannot_be_calibrated_is_refused_before_any_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*args: object) -> None:
        raise AssertionError("a twin was made")

    monkeypatch.setattr(module, "make_twin", none)
    with pytest.raises(ConfigurationError, match="no privacy"):
        calibrate(Study(), SITES, 5)
    entry = Study(n_components=2, privacy=private(neighbours="entry"), preparation=Preparation(center=False))
    with pytest.raises(ConfigurationError, match="'entry' bounds no row"):
        calibrate(entry, SITES, 5)
    with pytest.raises(DataError, match="between 1 and 2"):
        calibrate(study(), SITES, 2)
    with pytest.raises(ConfigurationError, match="uda declares no sensitivity"):
        calibrate(study(), SITES, 5, solvers=("covariance", "uda"))
    with pytest.raises(ConfigurationError, match="set trust = 'local'"):
        calibrate(study(), SITES, 5, solvers=("mod-sulq",), trusts=("local", "central"))
    scaled = Study(n_components=2, privacy=private(), preparation=Preparation(scale=True))
    with pytest.raises(ConfigurationError, match="scale = true needs"):
        calibrate(scaled, SITES, 5)
