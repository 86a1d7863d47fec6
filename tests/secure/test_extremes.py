"""Secure sums of numbers that no usual bound holds for: the plain answer, or an error; never another answer."""

from __future__ import annotations

import numpy as np
import pytest

from fedspan import FederatedPCA, FederatedTruncatedSVD
from fedspan.data import SymmetricSource
from fedspan.errors import DataError
from fedspan.privacy import GaussianPrivacy

NAMES = ["ash", "elm", "oak", "yew"]


@pytest.mark.parametrize("solver", ["krylov", "covariance"])
@pytest.mark.parametrize("shift", [0.0, 20.0])
def test_shares_that_are_not_positive_have_traces_that_bound_nothing(solver, shift):
    rng = np.random.default_rng(0)
    halves = {name: rng.standard_normal((6, 6)) for name in NAMES}
    shares = {n: SymmetricSource(h + h.T + (shift if n == "ash" else -shift) * np.eye(6)) for n, h in halves.items()}
    plain, masked = (FederatedTruncatedSVD(2, solver=solver, secure=given).fit(shares) for given in (False, True))
    np.testing.assert_allclose(masked.singular_values_, plain.singular_values_, rtol=1e-9)


@pytest.mark.parametrize("scale", [1e-98, 1e-120, 1e80])
def test_numbers_too_small_or_too_large_for_a_sum_are_an_error(scale):
    rows = {name: scale * np.random.default_rng(i).standard_normal((20, 4)) for i, name in enumerate(NAMES)}
    FederatedPCA(2).fit(rows)
    with pytest.raises(DataError, match=r"too small for one, or none; .* rescale the columns"):
        FederatedPCA(2, secure=True).fit(rows)


@pytest.mark.parametrize("epsilon", [1e10, 1e11, 1e12])
def test_noise_in_floats_leaves_room_for_the_others(epsilon):
    """It was not cut to the grid's room: forty sites' numbers would wrap around together, where each one's fits."""
    rows = {f"s{i:02}": np.tile([[1.0, 0.2]], (5000, 1)) for i in range(40)}
    privacy = GaussianPrivacy(
        epsilon, 1e-6, row_norm=1.0, trust="distributed", arithmetic="float", testing_seed=1, adaptive_clip=False
    )
    model = FederatedPCA(1, solver="covariance", center=False, privacy=privacy)
    if epsilon > 1e10:
        with pytest.raises(DataError, match=r"code data; the site's own log says more"):
            model.fit(rows)
    else:
        np.testing.assert_allclose(abs(model.fit(rows).components_[0]), np.array([1.0, 0.2]) / np.hypot(1.0, 0.2))
