"""The empirical bound on epsilon: right on ideal Gaussians, below every certified figure, above it with a fault."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from scipy.stats import binomtest

import fedspan.privacy.releases
from benchmarks.privacy_audit import FAULTS, Setting, layers, settings, with_fault
from fedspan.errors import ConfigurationError
from fedspan.privacy.accountant import epsilon_of
from fedspan.privacy.audit.epsilon import (
    Attack,
    _rates,
    audit_case,
    empirical_epsilon,
    epsilon_lower_bound,
    mu_lower_bound,
)
from fedspan.privacy.audit.epsilon_cases import symmetric_root, worst_case
from fedspan.privacy.gaussian import GaussianPrivacy
from fedspan.privacy.mechanisms import tight_scale
from fedspan.solvers import Covariance, FedPower, ModSulq, PrivatePower

ALL = list(settings(full=True))
RUN = [
    s
    for s in settings()
    if (s.trust == "local" and s.neighbours == "row")
    or (s.mechanism == "covariance" and s.arithmetic == "grid" and "row" not in (s.neighbours, s.trust))
    or (s.mechanism == "private-power, 3 rounds" and s.arithmetic == "grid" and s.neighbours == "row")
]
FAINT = {"a share too small: sigma / m for sigma / sqrt(m)": 500, "a round answered twice, with fresh noise": 800}
"""Faults that need more runs to show, and how many."""
LOOSE = ("mean, count, variance", "scale")
"""Where rows are replaced, the worst rows for the sums and those for the squares are not the same."""


def ideal(mu, runs, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(0, 1, runs), rng.normal(mu, 1, runs)


# ---- statistics ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [0.25, 1.0, 2.5, 4.0])
def test_the_bound_of_an_ideal_mechanism_never_exceeds_its_epsilon(mu):
    for seed in range(20):
        scores = ideal(mu, 1000, seed)
        assert mu_lower_bound(*scores) <= mu
        for delta in (1e-1, 1e-2, 1e-6):
            assert epsilon_lower_bound(*scores, delta) <= epsilon_of(mu, delta)


def test_the_confidence_is_kept():
    """At 90% no more than a tenth of the bounds are wrong, and without holding out many more would be."""
    wrong = {True: 0, False: 0}
    for seed in range(150):
        scores = ideal(1.0, 100, seed)
        for held_out in wrong:
            wrong[held_out] += mu_lower_bound(*scores, 0.9, held_out=held_out) > 1.0
    assert wrong[True] <= 15 + 3 * np.sqrt(15)
    assert wrong[False] > wrong[True]


@pytest.mark.parametrize("mu", [1.0, 2.5, 4.0])
def test_with_many_runs_the_bound_is_near(mu):
    scores = ideal(mu, 40_000, 0)
    assert mu_lower_bound(*scores) >= 0.9 * mu
    if mu < 3:  # beyond, the best event is rarer than all these runs could show
        assert epsilon_lower_bound(*scores, 0.1) >= 0.6 * epsilon_of(mu, 0.1)


def test_nothing_is_found_where_there_is_nothing():
    assert all(mu_lower_bound(*ideal(0.0, 1000, seed)) == 0.0 for seed in range(20))
    assert mu_lower_bound(np.zeros(100), np.zeros(100)) == 0.0


def test_either_order_and_either_side_will_do():
    a, b = ideal(2.5, 4000, 0)
    forward, backward = mu_lower_bound(a, b), mu_lower_bound(b, a)
    assert forward == pytest.approx(backward, abs=0.1)
    rare = np.where(np.arange(4000) % 4 == 0, 1.0, 0.0)  # only b ever shows it: one side tells all, the other nothing
    assert epsilon_lower_bound(np.zeros(4000), rare, 1e-2) > 3
    assert epsilon_lower_bound(rare, np.zeros(4000), 1e-2) > 3
    assert epsilon_lower_bound(np.zeros(4000), -rare, 1e-2) > 3


def test_rates_are_clopper_and_pearsons():
    a, b = ideal(1.0, 200, 3)
    (low,), (high,) = _rates(a, b, np.array([0.5]), 0, 0.99)
    assert low == pytest.approx(binomtest(int(np.sum(b > 0.5)), 200).proportion_ci(0.99, "exact").low)
    assert high == pytest.approx(binomtest(int(np.sum(a > 0.5)), 200).proportion_ci(0.99, "exact").high)


@pytest.mark.parametrize(
    ("a", "delta", "confidence"),
    [([0.0], 1e-2, 0.9), ([0.0, np.nan], 1e-2, 0.9), ([[0.0, 1.0]], 1e-2, 0.9), ([0.0, 1.0], 0.0, 0.9),
     ([0.0, 1.0], 1e-2, 1.0)],
)  # fmt: skip
def test_what_is_no_sample_is_refused(a, delta, confidence):
    with pytest.raises(ConfigurationError):
        epsilon_lower_bound(np.array(a), np.zeros(4), delta, confidence)


# ---- cases -----------------------------------------------------------------------------------------------------


def test_the_neighbours_are_the_worst_that_the_terms_allow():
    for setting in ALL:
        attack = Attack(setting.case(), layers)
        certified = np.sqrt(attack.spent)
        loose = setting.mechanism == "scale" or (setting.neighbours == "row-replace" and setting.mechanism in LOOSE)
        least = 0.65 if loose else 0.95
        assert least * certified <= attack.attained <= certified, str(setting)


@pytest.mark.parametrize("setting", RUN, ids=str)
def test_no_bound_exceeds_what_is_certified(setting):
    found = audit_case(setting.case(), 100, layer=layers)
    assert found.ok
    assert 0 <= found.mu <= found.certified_mu
    assert found.lower_bound <= found.certified


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name):
    found = with_fault(name, FAINT.get(name, 300))
    assert not found.ok
    assert found.lower_bound > found.certified


def test_a_round_is_not_answered_twice_unless_a_fault_lets_it():
    plant, setting = FAULTS["a round answered twice, with fresh noise"]
    assert Attack(setting.case())._twice is None
    with plant():
        assert Attack(setting.case())._twice is not None


def test_a_persons_rows_count_together():
    privacy = GaussianPrivacy(8.0, 1e-2, row_norm=1.0, rows_per_person=3)
    attack = Attack(worst_case(privacy))
    assert attack.attained == pytest.approx(privacy.mu, rel=2e-3)
    assert len(worst_case(privacy).worlds[1]["site 0"].gram()) == 4


@pytest.mark.parametrize("mechanism", ["covariance", "private-power, 3 rounds", "scale"])
def test_a_trusted_coordinator_is_the_studys_own(mechanism):
    """Without the layers above, the audit makes the coordinator's call itself: it costs and adds the same."""
    case = Setting(mechanism, "central").case()
    own, real = Attack(case), Attack(case, layers)
    assert own.spent == pytest.approx(real.spent)
    assert own.attained == pytest.approx(real.attained)
    spread = [attack.measure(0, 100, 0).std(axis=0) for attack in (own, real)]
    np.testing.assert_allclose(spread[0], spread[1], rtol=0.5)


# ---- colluding sites -------------------------------------------------------------------------------------------


def shared(honest, **more):
    """Four sites that split the noise so that these would be enough, two of which help the attacker."""
    privacy = GaussianPrivacy(8.0, 1e-2, row_norm=2.0, trust="distributed", honest=honest, **more)
    return worst_case(privacy, Covariance(), sites=4, colluding=2)


def test_colluders_take_their_own_part_off_the_sum():
    case = shared(2)
    assert case.colluding == ("site 2", "site 3")
    assert case.worlds[0].keys() == {"site 0", "site 1", "site 2", "site 3"}
    one, all_of_them = Attack(case), Attack(worst_case(case.privacy, Covariance(), sites=4))
    spread, of_all = (attack.measure(0, 200, 0).std(axis=0)[-1] for attack in (one, all_of_them))
    assert spread / of_all == pytest.approx(np.sqrt(2 / 4), rel=0.15)


@pytest.mark.parametrize("arithmetic", ["grid", "float"])
def test_what_is_certified_for_the_honest_holds_against_colluders(arithmetic):
    attack = Attack(shared(2, arithmetic=arithmetic))
    assert 0.95 * np.sqrt(attack.spent) <= attack.attained <= np.sqrt(attack.spent)
    found = audit_case(shared(2, arithmetic=arithmetic), 300)
    assert found.ok
    assert found.mu > 0.5 * found.certified_mu


def test_half_the_noise_is_found_by_colluders():
    halved = patch.object(
        fedspan.privacy.releases, "tight_scale", lambda *given: replace(s := tight_scale(*given), share=s.share / 2)
    )
    with halved:
        assert not audit_case(shared(2), 300).ok


def test_noise_that_counts_on_colluders_is_not_enough():
    privacy = GaussianPrivacy(8.0, 1e-2, row_norm=2.0, trust="distributed")  # all four are said to be honest
    assert audit_case(worst_case(privacy, Covariance(), sites=4), 300).ok
    assert not audit_case(worst_case(privacy, Covariance(), sites=4, colluding=3), 300).ok


def test_somebody_is_honest():
    privacy = GaussianPrivacy(8.0, 1e-2, row_norm=2.0, trust="distributed")
    with pytest.raises(ConfigurationError, match="fewer than the 3 there are"):
        worst_case(privacy, colluding=3)


def test_the_folded_pair_shows_the_symmetric_part():
    rng = np.random.default_rng(0)
    change = rng.standard_normal((3, 3))
    basis, values, _ = np.linalg.svd(1e6 * np.eye(3) + change)
    found = symmetric_root(basis * values) - 1e6 * np.eye(3)
    np.testing.assert_allclose(found, (change + change.T) / 2, atol=1e-4)


# ---- the public function ---------------------------------------------------------------------------------------


def test_an_audit_repeats_with_its_seed():
    privacy = GaussianPrivacy(20.0, 1e-3, row_norm="unit")
    first, second, other = (empirical_epsilon(privacy, "covariance", 100, seed) for seed in (0, 0, 1))
    assert first == second
    assert first.mu != other.mu
    assert first.delta == 1e-3
    assert first.certified == pytest.approx(20.0)
    assert first.runs == 100


def test_an_audit_draws_noise_as_a_study_does():
    found = empirical_epsilon(GaussianPrivacy(8.0, 1e-2, row_norm=1.0), PrivatePower(rounds=2), 200, seed=None)
    assert found.ok
    assert found.mu > 0


def test_solvers_by_name_get_the_rounds_of_a_study():
    privacy = GaussianPrivacy(8.0, 1e-2, neighbours="site", site_norm=1.0, n_public=True)
    assert len(worst_case(privacy, "private-power").rounds) >= 2
    assert empirical_epsilon(privacy, "fedpower", 60).ok


def test_what_no_noise_covers_is_refused():
    privacy = GaussianPrivacy(1.0, 1e-6, row_norm=1.0, trust="central")
    with pytest.raises(ConfigurationError, match="mod-sulq"):
        empirical_epsilon(privacy, ModSulq())
    with pytest.raises(ConfigurationError, match="baseline"):
        empirical_epsilon(privacy, FedPower(reference="baseline"))
    with pytest.raises(ConfigurationError, match="power of two"):
        empirical_epsilon(privacy, features=3)
