"""How many components to keep."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspan.threshold import rank_by_fraction, rank_by_threshold

spectra = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=12).map(lambda v: np.sort(v)[::-1])


@given(spectra, st.floats(0.01, 0.99))
def test_the_fraction_is_reached_and_not_before(values, fraction):
    total = float(values.sum())
    rank = rank_by_fraction(values, total, fraction)
    assert values[:rank].sum() >= fraction * total * (1 - 1e-9)
    assert values[: rank - 1].sum() < fraction * total * (1 + 1e-9)


def test_a_fraction_out_of_reach_is_none():
    assert rank_by_fraction(np.array([3.0, 2.0]), 10.0, 0.5) == 2
    assert rank_by_fraction(np.array([3.0, 2.0]), 10.0, 0.51) is None


def test_rounding_does_not_cost_a_component():
    values = np.full(10, 0.1)
    assert rank_by_fraction(values, float(values.sum()), 0.3) == 3


def spiked(rows, features, strength, rank, seed=0, kept=None):
    """Squared singular values of a low-rank signal in unit noise, and their total."""
    rng = np.random.default_rng(seed)
    u = np.linalg.qr(rng.standard_normal((rows, rank)))[0]
    v = np.linalg.qr(rng.standard_normal((features, rank)))[0]
    x = strength * np.sqrt(rows) * u @ v.T + rng.standard_normal((rows, features))
    s = np.linalg.svd(x, compute_uv=False) ** 2
    return s[:kept], float(s.sum())


@pytest.mark.parametrize(("rows", "features"), [(400, 60), (60, 400), (200, 200), (3000, 30)])
@pytest.mark.parametrize("rank", [1, 3, 6])
@pytest.mark.parametrize("seed", [0, 1])
def test_strong_signals_are_counted(rows, features, rank, seed):
    strength = 4.0 * np.sqrt(max(rows, features) / rows)
    values, total = spiked(rows, features, strength, rank, seed, kept=16)
    assert rank_by_threshold(values, total, rows, features) == rank


def test_noise_alone_keeps_one():
    rng = np.random.default_rng(0)
    s = np.linalg.svd(rng.standard_normal((300, 40)), compute_uv=False) ** 2
    assert rank_by_threshold(s[:16], float(s.sum()), 300, 40) == 1


def test_too_few_values_to_see_noise_is_none():
    values, total = spiked(400, 60, 4.0, 6, kept=4)
    assert rank_by_threshold(values, total, 400, 60) is None


def test_the_square_case_is_4_over_root_3():
    """lambda(1) = 4 / sqrt(3) (Gavish and Donoho 2014): a value just above the threshold is kept."""
    n, noise = 100, 1.0
    threshold = (4 / np.sqrt(3)) ** 2 * n * noise
    for factor, kept in [(1.01, 2), (0.99, 1)]:
        values = np.array([100 * threshold, factor * threshold, 1.0])
        rest = noise * n * (n - 1)  # what is left after the first value is noise of unit variance
        total = values[0] + rest
        assert rank_by_threshold(values, total, n, n) == kept


@pytest.mark.parametrize("total", [0.0, -1e-9])
def test_no_variance_is_no_error(total):
    assert rank_by_threshold(np.zeros(3), total, 10, 5) == 1
