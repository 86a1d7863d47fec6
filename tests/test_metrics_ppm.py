"""PPM's coherences, bounds and sensitivity ratios."""

import math

import numpy as np
import pytest

from fedspan.errors import ConfigurationError
from fedspan.metrics import (
    coherence_max,
    coherence_row_sum,
    ppm_bounds,
    ppm_rounds,
    sensitivity_ratio,
    sensitivity_ratio_measured,
)
from fedspan.metrics.ppm import start_sensitivities

VALUES = [9.0, 8.0, 1.0, 0.5]
PROBLEM = {"d": 10_000, "k": 1, "q": 2, "p": 4, "epsilon": 0.5, "delta": 1e-6}


def random_basis(n, k, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((n, k)))[0]


# ---- coherence ---------------------------------------------------------------------------------------------------


def test_coherences_are_the_largest_entry_and_absolute_row_sum():
    u = random_basis(30, 30)
    assert coherence_max(u) == np.abs(u).max()
    assert coherence_row_sum(u) == pytest.approx(np.linalg.norm(u, np.inf))
    assert coherence_max(np.eye(4)) == coherence_row_sum(np.eye(4)) == 1.0


def test_mu_1_of_all_eigenvectors_is_never_below_1():
    """So the min(1, mu_1) of (17) is 1."""
    for seed in range(5):
        assert coherence_row_sum(random_basis(20, 20, seed)) >= 1.0


def test_some_eigenvectors_give_lower_bounds():
    u = random_basis(40, 40)
    assert coherence_max(u[:, :5]) <= coherence_max(u)
    assert coherence_row_sum(u[:, :5]) < coherence_row_sum(u)


# ---- bounds ------------------------------------------------------------------------------------------------------


def test_the_bounds_as_printed():
    found = ppm_bounds(VALUES, **PROBLEM, rounds=7, mu_0=0.3, mu_1=5.0, largest_entry=0.2, largest_row=0.35)
    common = math.sqrt(7 * 10_000 * math.log(1e6) * math.log(7)) / (0.5 * 8.0)
    assert found.gap == 8.0
    assert found.old == pytest.approx(0.2 * 2 * common)
    assert found.old_independent == pytest.approx(0.3 * 2 * common * math.sqrt(math.log(10_000)))
    assert found.new == pytest.approx(0.35 * common)
    assert found.new_independent == pytest.approx(common)
    assert found.limit == pytest.approx(8 / 9 / math.log(10_000))
    assert found.why_not == ""
    assert "taken as 1" in found.constants


def test_what_was_not_measured_is_not_bounded():
    found = ppm_bounds(VALUES, **PROBLEM)
    assert found.old is found.old_independent is found.new is None
    assert found.rounds == ppm_rounds(VALUES, k=1, q=2, d=10_000) == math.ceil(9 / 8 * math.log(10_000))
    assert ppm_bounds(VALUES, **PROBLEM, mu_1=0.5).new_independent == pytest.approx(found.new_independent / 2)


def test_one_round_is_not_free():
    assert ppm_bounds(VALUES, **PROBLEM, rounds=1).new_independent > 0


def test_conditions_that_fail_are_named():
    assert "Theorem 2.4 is stated for epsilon < 1" in ppm_bounds(VALUES, **{**PROBLEM, "epsilon": 1.0}).why_not
    assert "exp(-0.42678 epsilon)" in ppm_bounds(VALUES, **{**PROBLEM, "delta": 0.9}).why_not


def test_the_limit_with_a_null_space():
    assert ppm_bounds([3.0, 0.0, 0.0, 0.0], **{**PROBLEM, "d": 4, "p": 4}).limit == 0.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"p": 3}, "expected 2 q <= p <= d"),
        ({"p": 10_001}, "expected 2 q <= p <= d"),
        ({"k": 3}, "expected 1 <= k <= q"),
        ({"q": 4, "p": 8}, "sigma_\\(q\\+1\\) among them"),
        ({"epsilon": 0}, "epsilon is 0"),
        ({"delta": math.nan}, "delta nan"),
        ({"rounds": 0}, "rounds is 0"),
        ({"d": 3}, "d is 3 with 4 eigenvalues"),
        ({"values": [1.0, 2.0, 0.5]}, "largest first"),
        ({"values": [1.0, 1.0, 1.0]}, "sigma_1 equals sigma_3"),
    ],
)
def test_refusals(change, words):
    settings = {"values": VALUES, **PROBLEM, **change}
    with pytest.raises(ConfigurationError, match=words):
        ppm_bounds(settings.pop("values"), **settings)


# ---- the ratio ---------------------------------------------------------------------------------------------------


def test_the_ratio_by_its_formula():
    n, k = 8000, 640
    mean, variance = n / (n - 2), 2 * n**2 * (n - 1) / ((n - 2) ** 2 * (n - 4))
    old = math.sqrt(2 * variance * math.log(k * n)) * k / n + k * mean / n
    new = math.sqrt(2 * variance * math.log(n) * k) / n + k * mean / n
    assert sensitivity_ratio(k, n) == pytest.approx(math.sqrt(old / new))


def test_the_formula_is_conservative():
    for k in (16, 64, 200):
        assert 1 < sensitivity_ratio(k, 800) < sensitivity_ratio_measured(k, 800, 3, np.random.default_rng(k))


def test_leading_columns_serve_every_smaller_k():
    ks = [70, 5, 130, 64]
    old, new = start_sensitivities(ks, 150, 2, np.random.default_rng(3))
    rng = np.random.default_rng(3)
    for run in range(2):
        drawn = rng.standard_normal((150, 130))
        for at, k in enumerate(ks):
            alone = np.linalg.qr(drawn[:, :k])[0]
            assert old[run, at] == pytest.approx(math.sqrt(k) * np.abs(alone).max())
            assert new[run, at] == pytest.approx(np.linalg.norm(alone, axis=1).max())


def test_one_column_has_ratio_1():
    assert sensitivity_ratio_measured(1, 50, 2, np.random.default_rng(0)) == pytest.approx(1.0)
    assert sensitivity_ratio(1, 50) == pytest.approx(1.0)


def test_ratio_refusals():
    with pytest.raises(ConfigurationError, match="k is 9, n 8"):
        sensitivity_ratio(9, 8)
    with pytest.raises(ConfigurationError, match="runs is 0"):
        start_sensitivities([2], 8, 0, np.random.default_rng(0))
    with pytest.raises(ConfigurationError, match=r"U has shape \(3,\)"):
        coherence_max([1, 2, 3])
