"""The papers' noise scales: the formulas, the factors the docstrings state, and where their proofs end."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspan.errors import ConfigurationError
from fedspan.privacy.accountant import delta_of, mu_of, zcdp_epsilon, zcdp_of_gaussian
from fedspan.privacy.published import (
    PPM_DELTA_RATE,
    analyze_gauss_sigma,
    delta_max,
    delta_rows,
    fedpower_sigma,
    fedpower_sigma_partial,
    fedpower_sigma_server,
    fedpower_split,
    mod_sulq_beta,
    ppm_share,
    ppm_sigma,
    streaming_mod_sulq_omega,
)

TIGHT = mu_of(1.0, 1e-6)  # sensitivity / noise

# ---- PPM ---------------------------------------------------------------------------------------------------------


@given(st.floats(0.01, 100.0), st.floats(1.0, 15.0), st.integers(1, 100))
def test_ppm_is_proven_where_it_is_accepted(epsilon, margin, rounds):
    delta = math.exp(-PPM_DELTA_RATE * epsilon * margin)
    sigma = ppm_sigma(epsilon, delta, rounds)
    assert zcdp_epsilon(rounds * zcdp_of_gaussian(1 / sigma), delta) <= epsilon * (1 + 1e-9)
    assert delta_of(math.sqrt(rounds) / sigma, epsilon) <= delta


def test_at_the_edge_zcdp_gives_epsilon_and_beyond_it_more():
    epsilon = 2.0
    for rate in (1.0, 0.99, 0.25 / PPM_DELTA_RATE):  # the last is the condition as printed, exp(-epsilon/4)
        delta = math.exp(-PPM_DELTA_RATE * epsilon * rate)
        rho = epsilon**2 / (8 * math.log(1 / delta))
        if rate == 1.0:
            assert zcdp_epsilon(rho, delta) == pytest.approx(epsilon, rel=1e-12)
            ppm_sigma(epsilon, delta, 3)
        else:
            assert zcdp_epsilon(rho, delta) > epsilon * (1 + 1e-3)
            with pytest.raises(ConfigurationError, match=r"exp\(-0.42678 epsilon\) = 0.4259: lower delta or epsilon"):
                ppm_sigma(epsilon, delta, 3)


def test_the_rate_is_the_root_of_the_condition():
    assert pytest.approx(1 / (8 * (1 - 1 / math.sqrt(2)))) == PPM_DELTA_RATE == pytest.approx(0.426777, abs=1e-6)


def test_ppm_formula_and_factor():
    assert ppm_sigma(0.5, 1e-6, 7) == pytest.approx(math.sqrt(4 * 7 * math.log(1e6)) / 0.5)
    for rounds in (1, 9):
        assert ppm_sigma(1.0, 1e-6, rounds) * TIGHT / math.sqrt(rounds) == pytest.approx(1.76, abs=0.005)
        assert ppm_sigma(0.1, 1e-6, rounds) * mu_of(0.1, 1e-6) / math.sqrt(rounds) == pytest.approx(2.05, abs=0.005)


def test_the_shares_sum_to_the_noise():
    assert 25 * ppm_share(1.0, 1e-6, 3, 25) ** 2 == pytest.approx(ppm_sigma(1.0, 1e-6, 3) ** 2)


def test_rows_bound_a_change_and_are_never_above_the_old_bound():
    rng = np.random.default_rng(0)
    z = np.linalg.qr(rng.standard_normal((40, 6)))[0]
    assert delta_rows(z) == pytest.approx(np.linalg.norm(z, axis=1).max())
    assert delta_rows(z) < delta_max(z) == pytest.approx(math.sqrt(6) * np.abs(z).max())
    for _ in range(50):
        c = rng.standard_normal((40, 40)) * (rng.random((40, 40)) < 0.01)
        c += c.T
        size = math.sqrt(np.sum(np.abs(c).sum(axis=1) ** 2))
        assert np.linalg.norm(c @ z) <= size * delta_rows(z) * (1 + 1e-12)
    with pytest.raises(ConfigurationError, match=r"Z has shape \(3,\)"):
        delta_rows([1, 2, 3])


def test_an_entry_and_its_mirror_are_a_change_of_root_2():
    z = np.full((2, 4), 0.5)  # both rows of norm 1
    mirror = np.array([[0.0, 1.0], [1.0, 0.0]])
    assert np.linalg.norm(mirror @ z) == pytest.approx(math.sqrt(2) * delta_rows(z))


# ---- FedPower ----------------------------------------------------------------------------------------------------


def test_fedpower_full_participation():
    sigma = fedpower_sigma(0.5, 1e-5, 4, 200)
    assert sigma == pytest.approx(4 / (0.5 * 200) * math.sqrt(2 * math.log(1.25 * 4 / 1e-5)))
    assert fedpower_sigma_server(0.5, 1e-5, 4, 200, 0.3) == pytest.approx(0.3 * sigma)


def test_fedpower_is_proven_for_its_own_sensitivity():
    for communications in (1, 10, 100):
        mu = math.sqrt(communications) / fedpower_sigma(1.0, 1e-6, communications, 1)
        assert delta_of(mu, 1.0) <= 1e-6
    assert fedpower_sigma(1.0, 1e-6, 10, 1) * TIGHT / math.sqrt(10) == pytest.approx(4.28, abs=0.005)


def test_its_sensitivity_is_that_of_one_column():
    """A change of 1 at (i, j) moves r columns at once: ||Z||_max is short by up to sqrt(r)."""
    z = np.full((9, 9), 1 / 3)
    change = np.zeros((9, 9))
    change[0, 1] = 1
    assert np.linalg.norm(change @ z) == pytest.approx(math.sqrt(9) * np.abs(z).max())


def test_fedpower_partial_participation():
    sizes = [100, 200, 300, 400]
    site, server = fedpower_sigma_partial(0.5, 1e-5, 4, sizes, 2, 1)
    assert site == pytest.approx(4 / (0.5 * 100) * math.sqrt(2 * math.log(1.25 * 4 * 0.4 / 1e-5)))
    assert server == pytest.approx(4 / (2 * 0.5 * 100) * math.sqrt(2 * math.log(1.25 * 4 / 1e-5)))
    site, server_2 = fedpower_sigma_partial(0.5, 1e-5, 4, sizes, 2, 2)
    assert site == pytest.approx(4 / (0.5 * 100) * math.sqrt(2 * math.log(1.25 * 4 * 0.25 / 1e-5)))
    assert server_2 == pytest.approx(0.4 * server)


def test_fedpower_split():
    site, server = fedpower_split(10.0, 0.1, 1e-6, 100, 0.25)
    assert site == pytest.approx(math.sqrt(2 * math.log(1.25e6)) / (10 * 100))
    assert server == pytest.approx(0.25 * math.sqrt(2 * math.log(1.25e6)) / (0.1 * 100))
    assert fedpower_split(math.inf, 0.1, 1e-6, 100, 0.25) == (0.0, server)


def test_the_classical_mechanism_fails_for_large_epsilon():
    for epsilon, share in ((10.0, 0.98), (100.0, 0.54)):
        sigma = fedpower_split(epsilon, math.inf, 1e-6, 1, 1.0)[0]
        assert sigma * mu_of(epsilon, 1e-6) == pytest.approx(share, abs=0.005)
        assert delta_of(1 / sigma, epsilon) > 1e-6


# ---- on a covariance ---------------------------------------------------------------------------------------------


@given(st.floats(0.001, 1.0), st.floats(-30.0, -1.0))
def test_analyze_gauss_holds_up_to_epsilon_1(epsilon, power):
    sigma = analyze_gauss_sigma(epsilon, 10.0**power, sensitivity=2.0)
    assert delta_of(2 / sigma, epsilon) <= 10.0**power


def test_analyze_gauss_factor_and_limit():
    assert analyze_gauss_sigma(1.0, 1e-6) * TIGHT == pytest.approx(1.25, abs=0.005)
    with pytest.raises(ConfigurationError, match="proven for epsilon <= 1"):
        analyze_gauss_sigma(1.01, 1e-6)
    with pytest.raises(ConfigurationError, match="sensitivity is 0"):
        analyze_gauss_sigma(1.0, 1e-6, 0)


@pytest.mark.parametrize("noise", [mod_sulq_beta, streaming_mod_sulq_omega])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("delta", [0.1, 1e-6, 1e-30])
@pytest.mark.parametrize("d", [1, 2, 50])
def test_the_covariance_noises_hold_by_the_exact_mechanism(noise, epsilon, delta, d):
    n = 1000
    assert delta_of(math.sqrt(2) / n / noise(epsilon, delta, d, n), epsilon) <= delta


def test_how_far_the_covariance_noises_are_above_the_tight_one():
    n, d, tight = 60_000, 784, math.sqrt(2) / 60_000 / TIGHT
    assert mod_sulq_beta(1.0, 1e-6, d, n) / tight == pytest.approx(939, abs=0.5)
    assert streaming_mod_sulq_omega(1.0, 1e-6, d, n) / tight == pytest.approx(3802, abs=0.5)
    for size in (100, 1000, 10_000):  # up to logarithms, that is a factor below 2
        assert 1 < mod_sulq_beta(1.0, 1e-6, size, n) / tight / (size / math.sqrt(2)) < 2
        assert 1 < streaming_mod_sulq_omega(1.0, 1e-6, size, n) / tight / (2 * math.sqrt(2) * size) < 2


@given(st.floats(0.01, 10.0), st.floats(-20.0, -1.0), st.integers(1, 1000), st.integers(1, 10**6))
def test_omega_against_the_root_of_33(epsilon, power, d, n):
    """(33): 2 eps w^2 - (4 d/n) l w - 4/n^2 = 0. Its root is below (17), even with 2 d in place of 4 d."""
    spread = math.sqrt(2 * math.log(d**2 / (10.0**power * math.sqrt(2 * math.pi))))
    root = np.roots([2 * epsilon, -4 * d / n * spread, -4 / n**2]).max()
    omega = streaming_mod_sulq_omega(epsilon, 10.0**power, d, n)
    halved = omega - 2 * d / (epsilon * n) * spread
    assert root <= halved * (1 + 1e-9)
    assert halved <= omega
    # the last term is sqrt(2)/(sqrt(eps) n): n times the root depends on n no more
    assert n * root == pytest.approx((d * spread + math.sqrt((d * spread) ** 2 + 2 * epsilon)) / epsilon, rel=1e-9)


# ---- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ppm_sigma(1.0, 1e-6, 0), "rounds is 0"),
        (lambda: ppm_sigma(1.0, 1e-6, True), "rounds is True"),
        (lambda: ppm_sigma(math.nan, 1e-6, 1), "epsilon is nan"),
        (lambda: ppm_share(1.0, 1e-6, 1, 2.5), "sites is 2.5"),
        (lambda: fedpower_sigma(1.0, 1e-6, 0, 10), "communications is 0"),
        (lambda: fedpower_sigma(1.0, 2, 3, 10), "delta is 2"),
        (lambda: fedpower_sigma_server(1.0, 1e-6, 3, 10, 1.5), "largest_share is 1.5"),
        (lambda: fedpower_sigma_partial(1.0, 1e-6, 3, [5, 5], 3, 2), "3 participants of 2 sites"),
        (lambda: fedpower_sigma_partial(1.0, 1e-6, 3, [5, 5], 1, 3), "scheme is 3"),
        (lambda: fedpower_sigma_partial(1.0, 0.9, 1, [5] * 20, 1, 2), "lower delta"),
        (lambda: fedpower_split(-1.0, 0.1, 1e-6, 10, 0.1), "epsilon is -1"),
        (lambda: mod_sulq_beta(1.0, 1e-6, 0, 10), "d is 0"),
        (lambda: streaming_mod_sulq_omega(1.0, 0.9, 1, 10), "lower delta"),
    ],
)
def test_refusals(call, words):
    with pytest.raises(ConfigurationError, match=words):
        call()
