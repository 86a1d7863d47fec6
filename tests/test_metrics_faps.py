"""FAPS's assumptions, against the formulas of its Appendix B worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from fedspan.errors import ConfigurationError
from fedspan.metrics import faps_assumptions


def sites(*norms):
    return [norm * np.eye(3, 5) for norm in norms]


def test_rho_sigma_and_the_limits_follow_from_the_penalties():
    found = faps_assumptions(sites(1, 2), n_components=4)
    np.testing.assert_allclose(found.penalties, [0.15, 0.6])
    assert found.rho == pytest.approx(4)
    assert found.sigma == pytest.approx(np.sqrt(1 - 1 / 16))  # rho d = 8
    assert found.reduction_limit == pytest.approx(found.sigma / (2 * np.sqrt(8)))
    assert found.reduction_limit_in_proof == pytest.approx(found.sigma / 32)
    assert found.distance_limit == pytest.approx(1 / np.sqrt(8))
    assert found.total == pytest.approx(3 + 12)


def test_omega_is_appendix_b_largest_of_five():
    found = faps_assumptions(sites(1), n_components=4, reduction=0.0, decrease=0.5, curvature=1.0)
    sigma2, root = 0.5, 1 + np.sqrt(2)  # rho d = 1
    expected = max(
        1.0, 12 * 2 / (0.5 * sigma2), 4 * np.sqrt(2) * root / np.sqrt(sigma2), 16 * 2, 4 * root / (0.5 * sigma2)
    )
    assert found.omegas == pytest.approx([expected])
    assert expected == 96.0
    wide = faps_assumptions(sites(1), n_components=4, reduction=0.0, decrease=0.5, curvature=500.0)
    assert wide.omegas == pytest.approx([500.0])


def test_omega_with_many_sites_is_its_fourth_term():
    """With c_1 = 1 and rho d = 20, 12 / sigma^2 is below 16."""
    found = faps_assumptions(sites(*[1] * 20), n_components=4, reduction=0.0, decrease=1.0)
    assert 12 / found.sigma**2 < 16
    assert found.omegas == pytest.approx([16 * 20 * 2] * 20)


def test_the_conditions_hold_or_fail_at_their_limits():
    few = {"n_components": 1, "decrease": 1.0}
    enough = faps_assumptions(sites(1), penalties=[1e6], reduction=0.1, **few)
    assert enough.reduction_holds
    assert enough.penalties_hold
    assert enough.start_holds
    needed = enough.omegas[0] * enough.total
    assert faps_assumptions(sites(1), penalties=[needed], reduction=0.1, **few).penalties_hold
    assert not faps_assumptions(sites(1), penalties=[0.999 * needed], reduction=0.1, **few).penalties_hold
    limit = enough.reduction_limit
    assert not faps_assumptions(sites(1), reduction=limit, **few).reduction_holds
    assert np.isinf(faps_assumptions(sites(1), reduction=limit, **few).omegas).all()
    assert faps_assumptions(sites(1), distances=[1.0], **few).start_holds
    assert not faps_assumptions(sites(1), distances=[1.001], **few).start_holds


def test_the_papers_defaults_never_meet_assumption_6_ii():
    rng = np.random.default_rng(0)
    found = faps_assumptions([rng.standard_normal((n, 6)) for n in (10, 30)], n_components=2)
    assert not found.penalties_hold
    assert "Assumption 6 (ii)  FAILS" in str(found)
    assert "(22)               holds" in str(found)


def test_sparse_rows_give_what_dense_ones_do():
    rng = np.random.default_rng(1)
    dense = [np.where(rng.random((90, 80)) < 0.2, 1.0, 0.0) for _ in range(2)]
    one, other = (faps_assumptions(s, n_components=2) for s in (dense, [scipy.sparse.csr_matrix(x) for x in dense]))
    np.testing.assert_allclose(one.penalties, other.penalties, rtol=1e-10)
    assert str(one) == str(other)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"n_components": 0}, "n_components is at least 1"),
        ({"n_components": 1, "reduction": 1.0}, r"reduction in \[0, 1\)"),
        ({"n_components": 1, "decrease": 0.0}, "decrease more than 0"),
        ({"n_components": 1, "penalties": [1.0]}, "one number > 0 for each of 2 sites"),
        ({"n_components": 1, "penalty": 0.0}, "one number > 0 for each of 2 sites"),
        ({"n_components": 1, "distances": [0.1, -0.1]}, "distances has one number >= 0"),
    ],
)
def test_nonsense_is_refused(settings, text):
    with pytest.raises(ConfigurationError, match=text):
        faps_assumptions(sites(1, 2), **settings)


def test_no_sites_have_no_assumptions():
    with pytest.raises(ConfigurationError, match="got none"):
        faps_assumptions([], n_components=1)
