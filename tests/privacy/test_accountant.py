"""The accountant against arithmetic of 60 digits, against dp_accounting, and against itself."""

import math
import sys

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspan.errors import ConfigurationError
from fedspan.privacy.accountant import (
    basic_composition,
    check_epsilon_delta,
    compose,
    cross_check,
    delta_of,
    epsilon_of,
    mu_of,
    zcdp_epsilon,
    zcdp_epsilon_tight,
    zcdp_of_gaussian,
)

EPSILONS = st.floats(1e-4, 1e3)
DELTAS = st.floats(-290.0, -0.01).map(lambda power: 10.0**power)
MUS = st.floats(-6.0, 3.0).map(lambda power: 10.0**power)


def exact_delta(mu, epsilon):
    """The formula as it is printed, with digits enough to survive its cancellation."""
    with mpmath.workdps(1000 if mu > 30 else 400):
        mu, epsilon, half = mpmath.mpf(mu), mpmath.mpf(epsilon), mpmath.mpf(1) / 2

        def phi(x):
            return mpmath.erfc(-x / mpmath.sqrt(2)) * half

        return phi(-epsilon / mu + mu * half) - mpmath.exp(epsilon) * phi(-epsilon / mu - mu * half)


# ---- delta_of ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [1e-6, 1e-3, 0.1, 0.49999, 0.5, 1.0, 5.0, 30.0, 1e3])
@pytest.mark.parametrize("quantile", [-30.0, -3.0, -0.1, 0.0, 0.1, 1.0, 5.0, 20.0, 36.0])
def test_delta_is_exact_down_to_1e_300(mu, quantile):
    epsilon = mu * (quantile + mu / 2)  # so that Phi(-quantile) is the first term
    if epsilon < 0:
        epsilon = 0.0
    expected = exact_delta(mu, epsilon)
    assert float(abs(delta_of(mu, epsilon) / expected - 1)) < 2e-11


def test_delta_at_epsilon_0_is_the_total_variation():
    for mu in (1e-6, 0.3, 2.0, 9.0):
        assert delta_of(mu, 0.0) == pytest.approx(math.erf(mu / math.sqrt(8)), rel=1e-12)


def test_delta_at_the_ends():
    assert delta_of(0.0, 1.0) == delta_of(1.0, math.inf) == delta_of(1e-6, 1.0) == delta_of(1e-6, 1e300) == 0.0
    assert delta_of(math.inf, 1.0) == delta_of(1e6, 1.0) == 1.0


@given(MUS, EPSILONS, st.floats(1.01, 3.0))
def test_delta_falls_with_epsilon_and_grows_with_mu(mu, epsilon, factor):
    assert delta_of(mu, epsilon * factor) <= delta_of(mu, epsilon) <= delta_of(mu * factor, epsilon)


# ---- the inverses ------------------------------------------------------------------------------------------------


@given(EPSILONS, DELTAS)
def test_mu_is_rounded_down(epsilon, delta):
    mu = mu_of(epsilon, delta)
    assert mu > 0
    assert delta_of(mu, epsilon) <= delta
    assert delta_of(mu * (1 + 1e-8), epsilon) > delta  # and is the largest


@given(MUS, DELTAS)
def test_epsilon_is_rounded_up(mu, delta):
    epsilon = epsilon_of(mu, delta)
    assert delta_of(mu, epsilon) <= delta
    assert epsilon == 0 or delta_of(mu, epsilon * (1 - 1e-6)) > delta


@settings(max_examples=25, deadline=None)
@given(st.floats(0.01, 20.0), st.floats(-50.0, -1.0))
def test_rounding_is_safe_in_exact_arithmetic_too(epsilon, power):
    delta = 10.0**power
    assert exact_delta(mu_of(epsilon, delta), epsilon) <= delta
    assert exact_delta(1.0, epsilon_of(1.0, delta)) <= delta


@given(st.floats(0.01, 100.0), DELTAS)
def test_the_inverses_agree(epsilon, delta):
    assert epsilon_of(mu_of(epsilon, delta), delta) == pytest.approx(epsilon, rel=1e-7)


def test_inverses_at_the_ends():
    assert epsilon_of(0.0, 1e-6) == epsilon_of(1e-9, 1e-6) == 0.0
    assert epsilon_of(math.inf, 1e-6) == math.inf


def test_published_values():
    """Dong, Roth, Su: the noise of Balle and Wang's analytic Gaussian mechanism for (1, 1e-5) is 3.7306."""
    assert 1 / mu_of(1.0, 1e-5) == pytest.approx(3.730632, rel=1e-6)


# ---- composition -------------------------------------------------------------------------------------------------


def test_releases_compose_by_their_squares():
    assert compose([0.1] * 100) == pytest.approx(1.0)
    assert compose([]) == 0.0
    assert compose([0.0, 0.5]) == 0.5


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("delta", [1e-4, 1e-8])
@pytest.mark.parametrize("rounds", [1, 10, 100])
def test_dp_accounting_agrees(epsilon, delta, rounds):
    pytest.importorskip("dp_accounting")
    found = cross_check([mu_of(epsilon, delta) / math.sqrt(rounds)] * rounds, delta)
    assert found["closed form"] == pytest.approx(epsilon, rel=1e-6)
    assert found["pld"] == pytest.approx(epsilon, rel=0.01)
    assert found["closed form"] <= found["pld"] * (1 + 1e-6)
    assert found["closed form"] <= found["rdp"]


def test_dp_accounting_agrees_on_uneven_releases():
    pytest.importorskip("dp_accounting")
    found = cross_check([0.1, 0.2, 0.2, 0.0, 0.05], 1e-6)
    assert found["pld"] == pytest.approx(found["closed form"], rel=0.01)
    assert found["closed form"] == pytest.approx(epsilon_of(math.sqrt(0.0925), 1e-6))


def test_without_dp_accounting_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ConfigurationError, match=r"install fedspan\[accounting\]"):
        cross_check([0.1], 1e-6)


# ---- zCDP and basic composition ----------------------------------------------------------------------------------


@given(st.floats(1e-6, 100.0), DELTAS)
def test_each_conversion_is_looser_than_the_next(mu, delta):
    rho = zcdp_of_gaussian(mu)
    exact, tight, plain = epsilon_of(mu, delta), zcdp_epsilon_tight(rho, delta), zcdp_epsilon(rho, delta)
    assert exact * (1 - 1e-8) <= tight <= plain


def test_the_tight_conversion_is_minimal_over_alpha():
    rho, delta = 0.02, 1e-6
    alpha = 1 + np.logspace(-4, 6, 200_001)
    every = alpha * rho + np.log1p(-1 / alpha) + (math.log(1 / delta) - np.log(alpha)) / (alpha - 1)
    assert zcdp_epsilon_tight(rho, delta) == pytest.approx(every.min(), rel=1e-6)
    assert zcdp_epsilon_tight(0.0, delta) == 0.0
    assert zcdp_epsilon_tight(1e-12, 0.9) >= 0.0


def test_basic_composition_adds():
    assert basic_composition([]) == (0.0, 0.0)
    assert basic_composition([(1.0, 0.6), (2.0, 0.7)]) == (3.0, 1.0)
    with pytest.raises(ConfigurationError, match="epsilon is -1"):
        basic_composition([(-1, 0.1)])


# ---- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0, -1.0, math.nan, math.inf, True, np.True_, "1", None])
def test_epsilon_is_checked(epsilon):
    with pytest.raises(ConfigurationError, match=r"epsilon is .* expected a finite number above 0"):
        check_epsilon_delta(epsilon, 1e-6)


@pytest.mark.parametrize("delta", [0, 1, -1e-6, 1.5, math.nan, True, "1e-6", None])
def test_delta_is_checked(delta):
    with pytest.raises(ConfigurationError, match=r"delta is .* expected 0 < delta < 1"):
        check_epsilon_delta(1.0, delta)
    with pytest.raises(ConfigurationError, match="delta is"):
        epsilon_of(1.0, delta)


def test_numpy_numbers_are_numbers():
    check_epsilon_delta(np.float64(1), np.float32(0.5))
    check_epsilon_delta(np.int64(2), 1e-6)


@pytest.mark.parametrize("mu", [-1.0, math.nan, True])
def test_mu_is_checked(mu):
    for call in (lambda: delta_of(mu, 1.0), lambda: epsilon_of(mu, 0.1), lambda: compose([mu])):
        with pytest.raises(ConfigurationError, match=r"mu is .* expected a number >= 0"):
            call()
    with pytest.raises(ConfigurationError, match="rho is"):
        zcdp_epsilon(mu, 0.1)
