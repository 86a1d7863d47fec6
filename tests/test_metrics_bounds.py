"""FedPower's theorems, each against a computation by hand on two sites in the plane, and their monotonicity.

The toy: M_1 = diag(4 + 3a, 1) with weight 1/4 and M_2 = diag(4 - a, 1) with weight 3/4, so M = diag(4, 1).
Then sigma_1 = 4, gap = 3, kappa = 4 and eta = 3a/4, all for k = 1 and d = 2.
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspan.errors import ConfigurationError, DataError
from fedspan.metrics import Bounds, bounds, residual_error
from fedspan.metrics.theorems import phi, psi

SIZES = (100, 300)


def toy(a=0.01, **settings):
    grams = [np.diag([4 + 3 * a, 1.0]), np.diag([4 - a, 1.0])]
    defaults = {"grams": grams, "sizes": SIZES, "k": 1, "local_steps": 3, "iterations": 60}
    return bounds(**{**defaults, **settings})


def test_the_problem_is_described_as_by_hand():
    found = toy()
    assert isinstance(found, Bounds)
    assert found.eta == pytest.approx(0.03 / 4)
    assert found.kappa == pytest.approx(4)
    assert found.gap == pytest.approx(3)
    assert found.sigma_1 == pytest.approx(4)
    assert "constant" in found.constants


def test_theorem_1_by_hand():
    bound = toy(target=0.01).theorem_1
    assert bound.iterations_published == pytest.approx(4 * math.log(2 / 0.01))
    assert bound.iterations == pytest.approx(4 / 3 * math.log(2 / 0.01))
    assert bound.applies
    assert bound.why_not == ""


def test_theorem_6_by_hand():
    # All sites share their eigenvectors here, so C_t = 0 and the second branch is eta sigma_1 / delta_k.
    bound, eta = toy().theorem_6, 0.0075
    assert bound.c_t == pytest.approx(0, abs=1e-9)
    assert bound.delta_k == pytest.approx(3)  # |sigma_2(M_i) - sigma_1(M)| = |1 - 4|
    assert bound.gamma_k == pytest.approx(1 / 3.99)
    assert bound.with_alignment == pytest.approx(eta * 4 / 3)
    # Without alignment the largest of steps 1 and 2 counts: 4 e sqrt(k) p kappa^p eta at p = 2.
    assert bound.without_alignment == pytest.approx(4 * math.e * 2 * 4**2 * eta)


def test_theorem_6_first_branch_by_hand():
    # A rotated second site makes C_t large; one local step apart, 2 e^2 kappa p eta is then the smaller.
    turn = np.array([[np.cos(0.4), -np.sin(0.4)], [np.sin(0.4), np.cos(0.4)]])
    grams = [np.diag([4.0, 3.9]), turn @ np.diag([4.0, 3.9]) @ turn.T]
    found = bounds(grams=grams, sizes=[1, 1], k=1, local_steps=2, iterations=10)
    assert found.theorem_6.with_alignment == pytest.approx(2 * math.e**2 * found.kappa * found.eta)
    assert found.theorem_6.c_t == pytest.approx(math.tan(0.2))


def test_theorem_6_second_branch_with_rotated_sites_by_hand():
    turn = np.array([[np.cos(0.2), -np.sin(0.2)], [np.sin(0.2), np.cos(0.2)]])
    grams = [turn @ np.diag([4.0, 1.0]) @ turn.T, turn.T @ np.diag([4.0, 1.0]) @ turn]
    found = bounds(grams=grams, sizes=[1, 1], k=1, local_steps=2, iterations=10)
    sigma_1 = 4 * math.cos(0.2) ** 2 + math.sin(0.2) ** 2  # the off-diagonal entries cancel in M
    eta = 3 * math.sin(0.2) * math.cos(0.2) / sigma_1
    ratio = max(1 / 4, (5 - sigma_1) / sigma_1)
    expected = eta * sigma_1 / (sigma_1 - 1) + 2 * ratio**0.25 * math.tan(0.2)
    assert found.eta == pytest.approx(eta)
    assert found.theorem_6.with_alignment == pytest.approx(expected)


def test_theorem_5_by_hand():
    rho, eta = 0.1, 0.0075
    bound = toy(rho=rho, epsilon=0.5, delta=1e-5, rank=2).theorem_5
    sigma = 20 / (0.5 * 100) * math.sqrt(2 * math.log(1.25 * 20 / 1e-5))
    common = 1 / 3 / (1 - (1 - 0.75) * rho)
    noise = common * sigma * math.sqrt(1 / 16 + 9 / 16) * math.sqrt(2) * (math.sqrt(2) + math.sqrt(math.log(20)))
    local = common * 4 * (eta + (2 + eta) * rho)
    assert bound.noise_scale == pytest.approx(sigma)
    assert bound.noise == pytest.approx(noise)
    assert bound.local == pytest.approx(local)
    assert (bound.sampling, bound.imbalance) == (0, 0)
    assert bound.error == pytest.approx(noise + local)
    assert bound.iterations == pytest.approx(max(0, 4 / 3 * math.log(2 / bound.error)))


def test_theorem_8_by_hand():
    rho, eta = 0.1, 0.0075
    bound = toy(rho=rho, epsilon=0.5, delta=1e-5, participants=1).theorem_8
    sigma = 20 / (0.5 * 100) * math.sqrt(2 * math.log(1.25 * 20 * 0.75 / 1e-5))
    common = 1 / 3 / (1 - rho)
    pairs, squares = 2 * (1 / 4) * (3 / 4), 1 / 16 + 9 / 16
    assert bound.noise == pytest.approx(common * sigma * (math.sqrt(2) + math.sqrt(math.log(20))))
    assert bound.local == pytest.approx(common * 4 * (eta + (2 + eta) * rho))
    expected = common * 4 * (pairs + squares + 1) * (math.log(3) + math.log(20))
    assert bound.sampling == pytest.approx(expected)
    assert bound.error == pytest.approx(bound.noise + bound.local + bound.sampling)


def test_theorem_9_by_hand():
    rho, eta = 0.1, 0.0075
    bound = toy(rho=rho, epsilon=0.5, delta=1e-5, participants=1).theorem_9
    sigma = 20 / (0.5 * 100) * math.sqrt(2 * math.log(1.25 * 20 / 2 / 1e-5))
    common = 1 / 3 / (2 * (1 / 4 - 3 / 4 * rho))  # m/K = 2, lightest cohort 1/4, heaviest 3/4
    heavy = 2 * 3 / 4  # max(m/K varsigma, 1)
    squares = 1 / 16 + 9 / 16
    logs = math.log(3) + math.log(20)
    noise = common * heavy * math.sqrt(9 / 16) * 2 * sigma * (math.sqrt(2) + math.sqrt(math.log(20)))
    assert bound.noise == pytest.approx(noise)
    assert bound.local == pytest.approx(common * heavy * heavy * 4 * (eta + (2 + eta) * rho))
    expected = common * heavy * 4 * (2 * 3 / 16 + squares + 2 * squares) * logs
    assert bound.sampling == pytest.approx(expected)
    assert bound.imbalance == pytest.approx(common * (3 / 4) * 4 * 2 * abs(heavy - 1))
    assert bound.error == pytest.approx(bound.noise + bound.local + bound.sampling + bound.imbalance)


def test_extremes_over_cohorts_are_those_of_all_subsets():
    sizes, K = [7, 1, 3, 2, 5], 3
    shares = np.array(sizes) / sum(sizes)
    sums = [sum(c) for c in combinations(shares, K)]
    grams = [np.diag([4.0, 1.0])] * 5
    bound = bounds(grams=grams, sizes=sizes, k=1, local_steps=1, iterations=5, participants=K).theorem_9
    ratio = 5 / K
    expected = 1 / 3 / (ratio * min(sums)) * max(sums) * 4 * ratio * abs(ratio * max(sums) - 1)
    assert bound.imbalance == pytest.approx(expected)


# ----------------------------------------------------------------------------------- properties


@given(st.floats(0.0, 0.05), st.floats(1.01, 3.0), st.integers(2, 5))
def test_residual_bounds_grow_with_eta(a, factor, local_steps):
    small, large = (toy(x, local_steps=local_steps).theorem_6 for x in (a, a * factor))
    assert small.with_alignment <= large.with_alignment + 1e-12
    assert small.without_alignment <= large.without_alignment + 1e-12


@given(st.integers(2, 30), st.integers(0, 2**32 - 1))
def test_phi_and_psi_fall_with_the_number_of_participants(m, seed):
    shares = np.random.default_rng(seed).dirichlet(np.ones(m))
    assert all(phi(shares, K + 1) < phi(shares, K) for K in range(1, m))
    assert all(psi(shares, K + 1) < psi(shares, K) for K in range(1, m))


def test_noise_term_falls_with_epsilon_and_vanishes_without_privacy():
    noises = [toy(epsilon=e, delta=1e-6).theorem_5.noise for e in (0.1, 1.0, 10.0)]
    assert noises[0] > noises[1] > noises[2] > 0
    assert toy().theorem_5.noise == 0


def test_even_sites_have_no_imbalance():
    grams = [np.diag([4.0, 1.0])] * 4
    found = bounds(grams=grams, sizes=[10] * 4, k=1, local_steps=1, iterations=5, participants=2)
    assert found.theorem_9.imbalance == pytest.approx(0, abs=1e-12)


def test_one_local_step_has_no_residual_error():
    found = toy(local_steps=1)
    assert found.rho == 0
    assert found.theorem_6.with_alignment == 0


def test_rows_and_grams_give_the_same_bounds():
    rng = np.random.default_rng(0)
    sites = [rng.standard_normal((n, 4)) * [3, 2, 1, 1] for n in (400, 500)]
    settings = {"k": 2, "local_steps": 2, "iterations": 40, "participants": 2}
    from_rows = bounds(sites=sites, **settings)
    from_grams = bounds(grams=[a.T @ a / len(a) for a in sites], sizes=[400, 500], **settings)
    assert from_rows == from_grams


def test_alignment_chooses_the_bound():
    assert toy(align="procrustes").rho == toy().theorem_6.with_alignment
    assert toy(align=None).rho == toy(align="sign").rho == toy().theorem_6.without_alignment


def test_the_measured_residual_error_is_below_lemma_14():
    rng = np.random.default_rng(3)
    d, k, p = 6, 2, 3
    sites = [rng.standard_normal((4000, d)) * [6, 5, 2, 2, 2, 2] for _ in range(3)]
    grams = [a.T @ a / len(a) for a in sites]
    found = bounds(sites=sites, k=k, local_steps=p, iterations=300)
    z = np.linalg.eigh(sum(grams) / 3)[1][:, -k:]
    bases = [z] * 3
    for _ in range(p - 1):
        bases = [np.linalg.qr(m @ b)[0] for m, b in zip(grams, bases, strict=True)]
        assert residual_error(bases) <= math.sqrt(2) * found.theorem_6.with_alignment


# ------------------------------------------------------------------------------------- conditions


def test_all_is_well_on_an_easy_problem():
    found = toy(a=0.001, local_steps=2, iterations=1000)
    assert found.theorem_5.applies, found.theorem_5.why_not
    assert found.theorem_6.applies, found.theorem_6.why_not
    assert found.theorem_5.why_not == ""


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"a": 0.5, "local_steps": 3}, "above 1/p"),
        ({"a": 0.2, "local_steps": 2}, "eta kappa"),
        ({"rho": 5.0}, "lose rank"),
        ({"rho": 0.9}, "is above min"),
        ({"a": 0.0001, "local_steps": 1, "iterations": 1}, "fewer than"),
    ],
)
def test_what_fails_is_said(settings, text):
    bound = toy(**settings).theorem_5
    assert not bound.applies
    assert text in bound.why_not


def test_without_a_gap_nothing_applies_and_errors_are_infinite():
    found = bounds(grams=[np.eye(3)] * 2, sizes=[1, 1], k=1, local_steps=2, iterations=4, participants=1)
    for bound in (found.theorem_1, found.theorem_5, found.theorem_8, found.theorem_9):
        assert not bound.applies
        assert "no gap" in bound.why_not
    assert math.isinf(found.theorem_5.error)


def test_a_rank_deficient_gram_gives_infinite_but_no_undefined_values():
    grams = [np.diag([4.0, 1.0, 1e-14, 0.0]), np.diag([4.2, 1.0, 0.0, 0.0])]
    found = bounds(grams=grams, sizes=[1, 1], k=1, local_steps=60, iterations=120, align=None)
    assert math.isinf(found.theorem_5.error)
    assert not math.isnan(found.theorem_6.with_alignment)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"k": 2}, "1 <= k < d"),
        ({"rank": 3}, "k <= rank <= d"),
        ({"local_steps": 0}, "local_steps"),
        ({"local_steps": 61}, "at least once"),
        ({"participants": 3}, "participants"),
        ({"epsilon": 1.0}, "both"),
        ({"epsilon": -1.0, "delta": 0.1}, "epsilon > 0"),
        ({"align": "signs"}, "sign"),
        ({"target": 0.0}, "target"),
        ({"sizes": None}, "row counts"),
    ],
)
def test_wrong_settings_are_refused(settings, text):
    with pytest.raises(ConfigurationError, match=text):
        toy(**settings)


def test_zero_data_is_refused():
    with pytest.raises(DataError, match="zeros"):
        bounds(grams=[np.zeros((2, 2))], sizes=[1], k=1, local_steps=1, iterations=1)
