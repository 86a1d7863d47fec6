"""What secure sums make of a cohort: which they refuse, who must be in a sum, and when sums tell sites apart."""

from __future__ import annotations

import pytest

from fedspan.agreed_sums import fewest_in_sum
from fedspan.cohort import Cohort
from fedspan.errors import ConfigurationError
from fedspan.privacy import GaussianPrivacy
from fedspan.secure import SecureSums
from fedspan.study import Study

SITES = 10
BY_SIZE = "by-size-with-replacement"


def study(trust: str | None = None, **cohort) -> Study:
    privacy = None if trust is None else GaussianPrivacy(epsilon=1.0, delta=1e-6, row_norm=1.0, trust=trust, honest=5)
    if trust in ("local", "central"):
        privacy = GaussianPrivacy(epsilon=1.0, delta=1e-6, row_norm=1.0, trust=trust)
    return Study(n_components=2, secure=True, cohort=Cohort(**cohort), privacy=privacy)


@pytest.mark.parametrize("draws", [3, 5])
def test_few_draws_with_replacement_are_refused_with_a_way_out(draws):
    with pytest.raises(ConfigurationError, match=rf"of {draws} draws, hardly 3 .* at least 6 be drawn \(fraction\)"):
        study(sample=BY_SIZE, fraction=draws / SITES).masks(SITES)


def test_six_draws_and_three_sites_without_replacement_are_not():
    assert study(sample=BY_SIZE, fraction=0.6).masks(SITES).fewest == 3
    assert study(fraction=0.3).masks(SITES).fewest == 3


@pytest.mark.parametrize(
    ("cohort", "fewest"),
    [
        ({}, 10),
        ({"fraction": 0.8}, 8),
        ({"first": 8}, 8),
        ({"first": 20}, 10),
        ({"deadline": 3.0}, 7),
        ({"first": 8, "deadline": 3.0}, 7),
        ({"share": 0.9}, 7),
        ({"fraction": 0.8, "sample": BY_SIZE}, 8),
        ({"fraction": 0.8, "sample": BY_SIZE, "deadline": 3.0}, 6),
    ],
)
def test_how_many_must_be_in_a_sum(cohort, fewest):
    asked = study(**cohort)
    assert fewest_in_sum(asked.masks(SITES), asked.cohort, asked.drawn(SITES)) == fewest


@pytest.mark.parametrize("trust", [None, "central"])
@pytest.mark.parametrize(
    ("cohort", "why"),
    [
        ({"fraction": 0.9}, "with fraction = 0.9 the"),
        ({"first": 8}, "with first = 8 the"),
        ({"deadline": 3.0}, "with deadline = 3.0 the"),
        ({"share": 0.9}, "with share = 0.9 the"),
        ({"sample": BY_SIZE}, f"with sample = '{BY_SIZE}' the"),
        ({"fraction": 0.9, "first": 8}, "with fraction = 0.9, first = 8 the"),
    ],
)
def test_sums_over_changing_sites_without_noise_are_warned_of(cohort, why, trust):
    told = study(trust, **cohort).telling_sums(SITES)
    assert told.startswith(why)
    assert "all sites in every round, or add noise" in told


@pytest.mark.parametrize("cohort", [{}, {"only": [f"s{i}" for i in range(5)]}, {"first": 10}, {"share": 1.0}])
def test_sums_over_the_same_sites_are_not(cohort):
    assert study(**cohort).telling_sums(SITES) is None


@pytest.mark.parametrize("trust", ["local", "distributed"])
def test_nor_are_sums_of_noised_replies_nor_replies_seen_one_by_one(trust):
    assert study(trust, deadline=3.0).telling_sums(SITES) is None
    assert Study(n_components=2, cohort=Cohort(first=8)).telling_sums(SITES) is None
    assert Study(n_components=2, cohort=Cohort(first=8), secure=SecureSums()).telling_sums(SITES)
