"""The Gaussian mechanism: as much noise as the sensitivity, the cost and the number of parts ask for, and no less."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from fedspan.errors import PolicyError
from fedspan.privacy.mechanisms import FLOAT_SLACK, Scale, add_noise, fixed_scale, in_pieces, tight_scale
from fedspan.privacy.noise import Grid, Stream, split_distance


def variance_agrees(noise, sigma, room=1.0):
    """A chi-square test of the deviation that fails once in a million; ``room`` widens its upper side."""
    noise = np.ravel(noise)
    statistic = float(np.sum(noise**2)) / sigma**2
    low, high = scipy.stats.chi2.ppf([5e-7, 1 - 5e-7], noise.size)
    return low <= statistic <= high * room**2


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("sites", [1, 4, 100])
@pytest.mark.parametrize("arithmetic", ["float", "grid"])
def test_the_deviation_is_sensitivity_times_root_parts_over_mu(parts, sites, arithmetic):
    scale = tight_scale(2.5, 0.3, parts, 40, sites, arithmetic)
    rounding = 0.0 if scale.grid is None else scale.grid.rounding_sensitivity(40)
    assert scale.sensitivity == pytest.approx(2.5 * (1 + FLOAT_SLACK) + rounding, rel=1e-12)
    assert scale.sigma == pytest.approx(scale.sensitivity * math.sqrt(parts) / 0.3, rel=1e-12)
    assert scale.share == pytest.approx(scale.sigma / math.sqrt(sites), rel=1e-12)
    assert 1 <= scale.sigma / (2.5 * math.sqrt(parts) / 0.3) < 1 + 2 * FLOAT_SLACK
    assert (scale.grid is None) == (arithmetic == "float")


@given(
    st.floats(1e-6, 1e6), st.floats(1e-3, 10), st.integers(1, 5), st.integers(1, 10**6), st.integers(1, 1000),
    st.sampled_from(["float", "grid"]),
)  # fmt: skip
def test_all_parts_and_sites_together_cost_no_more_than_mu(sensitivity, mu, parts, size, sites, arithmetic):
    scale = tight_scale(sensitivity, mu, parts, size, sites, arithmetic)
    change = sensitivity + (0.0 if scale.grid is None else math.sqrt(size) * scale.grid.step)
    of_one_part = change / (scale.share * math.sqrt(sites))
    assert of_one_part * math.sqrt(parts) <= mu


@pytest.mark.parametrize("sensitivity", [0.0, -1.0, 1e-160, 1e160, math.inf, math.nan])
def test_a_sensitivity_that_no_noise_fits_is_refused(sensitivity):
    for arithmetic in ("float", "grid"):
        with pytest.raises(PolicyError, match="cannot be noised"):
            tight_scale(sensitivity, 1.0, 1, 1, 1, arithmetic)


@pytest.mark.parametrize("arithmetic", ["float", "grid"])
@pytest.mark.parametrize("sites", [1, 9])
@pytest.mark.parametrize("parts", [1, 2])
def test_many_releases_have_the_variance_they_should(arithmetic, sites, parts):
    scale = tight_scale(3.0, 0.5, parts, 20_000, sites, arithmetic)
    noise = add_noise(Stream.for_testing(1, arithmetic), np.zeros(20_000), scale)
    assert variance_agrees(noise, 3.0 * math.sqrt(parts) / 0.5 / math.sqrt(sites), room=1 + 2 * FLOAT_SLACK)
    assert abs(np.mean(noise)) < 6 * scale.share / math.sqrt(noise.size)
    assert scipy.stats.kstest(noise / scale.share, "norm").pvalue > 1e-6


@pytest.mark.parametrize("arithmetic", ["float", "grid"])
def test_the_sum_of_all_shares_has_the_deviation_of_the_whole(arithmetic):
    scale = tight_scale(3.0, 0.5, 1, 5000, 9, arithmetic)
    shares = [add_noise(Stream.for_testing(2, site), np.zeros(5000), scale) for site in range(9)]
    assert variance_agrees(np.sum(shares, axis=0), 3.0 / 0.5, room=1 + 2 * FLOAT_SLACK)


def test_the_noise_test_itself_tells_half_and_double_the_deviation():
    noise = add_noise(Stream.for_testing(3), np.zeros(1000), tight_scale(1.0, 1.0, 1, 1000, 1, "grid"))
    assert variance_agrees(noise, 1.0, 1.01)
    assert not variance_agrees(noise / 2, 1.0, 1.01)
    assert not variance_agrees(noise / math.sqrt(2), 1.0, 1.01)
    assert not variance_agrees(noise * 1.2, 1.0, 1.01)


def test_a_release_on_the_grid_has_only_multiples_of_its_step():
    scale = tight_scale(1.0, 0.7, 1, 300, 1, "grid")
    value = np.random.default_rng(0).standard_normal(300) / 3
    steps = add_noise(Stream.for_testing(4), value, scale) / scale.grid.step
    np.testing.assert_array_equal(steps, np.rint(steps))
    assert scale.sigma / scale.grid.step >= 2**24


def test_noise_is_added_to_the_value_whatever_its_shape():
    value = np.arange(6.0).reshape(2, 3)
    for scale in (tight_scale(1e-9, 1.0, 1, 6, 1, "grid"), tight_scale(1e-9, 1.0, 1, 6, 1, "float")):
        np.testing.assert_allclose(add_noise(Stream.for_testing(5), value, scale), value, atol=1e-7)
        assert add_noise(Stream.for_testing(5), np.array(3.0), scale) == pytest.approx(3.0)


def test_a_published_deviation_is_taken_as_it_is_with_its_pattern():
    assert fixed_scale(6.0, 9) == Scale(pytest.approx(math.nan, nan_ok=True), 6.0, 2.0, None)
    pattern = np.array([1.0, math.sqrt(2.0)])
    noise = np.array(
        [add_noise(Stream.for_testing(6, i), np.zeros(2), fixed_scale(6.0, 9), pattern) for i in range(3000)]
    )
    assert variance_agrees(noise[:, 0], 2.0)
    assert variance_agrees(noise[:, 1], 2.0 * math.sqrt(2.0))
    np.testing.assert_array_equal(add_noise(Stream.for_testing(7), pattern, fixed_scale(0.0)), pattern)


def test_pieces_of_a_release_have_noise_of_their_own():
    scale = tight_scale(1.0, 1.0, 1, 4000, 1, "grid")
    noised = in_pieces(Stream.for_testing(8), scale)
    pieces = [noised(np.zeros((100, 10))) for _ in range(4)]
    assert len({piece.tobytes() for piece in pieces}) == 4
    assert variance_agrees(np.stack(pieces), 1.0, 1.01)
    assert abs(np.corrcoef(pieces[0].ravel(), pieces[1].ravel())[0, 1]) < 0.2


def test_without_a_seed_the_same_value_never_leaves_twice_alike():
    scale = tight_scale(1.0, 1.0, 1, 4, 1, "grid")
    stream = Stream()
    assert add_noise(stream, np.zeros(4), scale).tobytes() != add_noise(stream, np.zeros(4), scale).tobytes()
    assert not stream.testing


def test_rounding_to_the_grid_moves_neighbours_apart_by_no_more_than_is_counted():
    grid, rng = Grid.for_noise(1.0), np.random.default_rng(0)
    x, y = rng.standard_normal((2, 500))
    apart = np.linalg.norm(grid.from_grid(grid.to_grid(x)) - grid.from_grid(grid.to_grid(y)))
    assert apart <= np.linalg.norm(x - y) + grid.rounding_sensitivity(500)


def test_a_person_at_many_sites_moves_the_rounding_at_each():
    scale = tight_scale(2.5, 0.3, 1, 40, 9, "grid", 8)
    rounding = 8 * scale.grid.rounding_sensitivity(40)
    assert scale.sensitivity == pytest.approx(2.5 * (1 + FLOAT_SLACK) + rounding, rel=1e-12)


def test_the_slack_is_twice_the_worst_rounding_of_two_million_rows():
    n = 2e6  # n u of the sum of n terms of size C^2 (u = 2^-53)
    assert 1.99 * n * 2.0**-53 * n <= FLOAT_SLACK


@pytest.mark.parametrize("sites", [2, 3, 60, 1000, 10**6])
def test_shares_of_noise_add_up_to_one_gaussian_but_for_a_distance_below_the_least_float(sites):
    scale = tight_scale(1.0, 0.1, 1, 10_000, sites, "grid", parties=sites)
    assert scale.grid is not None
    assert 2**20 <= scale.share / scale.grid.step < 2**21
    assert split_distance(scale.share / scale.grid.step, sites) == 0.0


@pytest.mark.parametrize("parties", [1, 3, 1000, 2**20])
def test_no_sum_of_values_and_noise_wraps_around_in_64_bits(parties):
    """Values are cut, as a refusal would tell that they are large; neighbours are brought no further apart."""
    scale = tight_scale(1.0, 0.5, 1, 4, parties, "grid", parties=parties)
    huge = np.array([1e300, -1e300, np.inf, 3.0])
    most = max(int(abs(add_noise(Stream.for_testing(seed), huge, scale) / scale.grid.step).max()) for seed in range(20))
    assert 2**60 < parties * most < 2**62
    assert scale.grid.to_grid(3.0) == round(3.0 / scale.grid.step)
