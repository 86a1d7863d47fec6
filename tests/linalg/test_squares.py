"""Sums of squares about a mean."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from fedspan.linalg import centred_squares

seeds = st.integers(0, 2**32 - 1)


@given(seeds, st.integers(0, 8), st.integers(1, 5), st.booleans(), st.sampled_from([0.0, 1.0, 1e8]))
def test_dense_sparse_and_by_hand_agree(seed, n, d, centred, offset):
    rng = np.random.default_rng(seed)
    x = np.where(rng.random((n, d)) < 0.6, rng.standard_normal((n, d)) + offset, 0.0)
    weights = rng.choice([0.0, 0.5, 1.0, 2.0], n)
    mean = x.mean(axis=0) if centred and n else None
    for w in (None, weights):
        rest = x - (0.0 if mean is None else mean)
        by_hand = ((np.ones(n) if w is None else w)[:, None] * rest**2).sum(axis=0)
        for block in (x, scipy.sparse.csr_array(x), scipy.sparse.csr_matrix(x)):
            np.testing.assert_allclose(centred_squares(block, w, mean), by_hand, rtol=1e-12, atol=1e-20)


@pytest.mark.parametrize("weights", [None, *np.random.default_rng(0).random((9, 50))])
def test_a_full_column_far_from_zero_keeps_its_digits(weights):
    """What the entries left out add is exactly nothing, not a difference of masses times the squared mean."""
    x = 1e8 + np.linspace(-1, 1, 50)[:, None]
    mean = np.average(x, axis=0, weights=weights)
    found = centred_squares(scipy.sparse.csr_array(x), weights, mean)
    np.testing.assert_allclose(found, centred_squares(x, weights, mean), rtol=1e-12)
    assert found[0] == pytest.approx(np.sum((weights if weights is not None else 1) * np.ravel(x - mean) ** 2))


def test_float32_rows_are_summed_in_float64():
    x = np.array([[4097.0], [1.0], [1.0]], dtype=np.float32)
    for block in (x, scipy.sparse.csr_array(x)):
        assert centred_squares(block, None, None)[0] == 4097**2 + 2  # float32 stops at 2^24
