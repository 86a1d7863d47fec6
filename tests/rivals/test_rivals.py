"""The streaming rivals: all of them on what must hold for each."""

from __future__ import annotations

import numpy as np
import pytest

from fedspan.errors import ConfigurationError, DataError
from fedspan.metrics import captured_variance, projection_distance
from fedspan.rivals import FrequentDirections, Grouse, MemoryLimitedPower, Spirit
from fedspan.rivals.checks import as_rows

ALL = {
    "grouse": Grouse,
    "grouse, greedy": lambda d, r: Grouse(d, r, step="greedy"),
    "frequent directions": FrequentDirections,
    "memory-limited power": MemoryLimitedPower,
    "spirit": Spirit,
}


@pytest.fixture(params=ALL)
def make(request):
    return ALL[request.param]


def planted(seed, n=1500, d=20, noise=0.0, sizes=(2.0, 1.5, 1.0)):
    """Rows near a subspace of as many dimensions as sizes, and its basis."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((d, len(sizes))))[0]
    rows = rng.standard_normal((n, len(sizes))) * sizes @ basis.T
    return rows + noise * rng.standard_normal((n, d)), basis


# ---- every one of them -------------------------------------------------------------------------------------------


def test_a_planted_subspace_is_recovered(make):
    rows, basis = planted(0)
    tracker = make(20, 3)
    tracker.update(rows)
    assert projection_distance(tracker.basis, basis) < 0.02


def test_most_of_the_variance_is_captured_under_noise(make):
    rows, basis = planted(1, noise=0.1)
    tracker = make(20, 3)
    tracker.update(rows)
    assert captured_variance(tracker.basis, X=rows) > 0.95 * captured_variance(basis, X=rows)


def test_the_basis_is_orthonormal_from_the_first_row_on(make):
    rows, _ = planted(2, n=200, d=8, noise=0.3)
    tracker = make(8, 3)
    for row in rows:
        tracker.update(row[None])
        basis = tracker.basis
        np.testing.assert_allclose(basis.T @ basis, np.eye(basis.shape[1]), atol=1e-12)


def test_the_size_of_blocks_does_not_matter(make):
    rows, _ = planted(3, n=301, d=10, noise=0.2)
    whole, pieces = make(10, 3), make(10, 3)
    whole.update(rows)
    for piece in np.split(rows, [0, 1, 8, 40, 41, 290]):
        pieces.update(piece)
    np.testing.assert_allclose(pieces.basis, whole.basis, atol=1e-9)


def test_the_callers_rows_are_left_alone(make):
    rows, _ = planted(4, n=60, d=6, noise=0.1)
    before = rows.copy()
    make(6, 2).update(rows)
    np.testing.assert_array_equal(rows, before)


def test_a_stream_of_zeros_does_no_harm(make):
    tracker = make(4, 2)
    tracker.update(np.zeros((30, 4)))
    tracker.update(planted(5, n=400, d=4, sizes=(2.0, 1.0))[0])
    assert np.isfinite(tracker.basis).all()


@pytest.mark.parametrize("rows", [np.zeros((3, 5)), np.zeros(4), np.zeros((2, 2, 4))])
def test_other_columns_are_refused(make, rows):
    with pytest.raises(DataError, match=r"shape .*; expected m x 4, samples in rows .*reshape\(1, -1\)"):
        make(4, 2).update(rows)


def test_nan_is_refused_and_the_stream_goes_on(make):
    rows, basis = planted(6)
    tracker = make(20, 3)
    with pytest.raises(DataError, match="nan or infinite entries; remove or impute"):
        tracker.update(np.full((1, 20), np.nan))
    tracker.update(rows)
    assert projection_distance(tracker.basis, basis) < 0.02


@pytest.mark.parametrize("rank", [0, 5])
def test_a_rank_that_does_not_fit_is_refused(make, rank):
    with pytest.raises(ConfigurationError, match=f"n_components is {rank} of 4 features"):
        make(4, rank)


def test_rows_may_be_anything_numpy_takes():
    assert as_rows([[1, 2]], 2).dtype == np.float64


# ---- each of them ------------------------------------------------------------------------------------------------


def test_grouse_starts_from_its_seed():
    np.testing.assert_array_equal(Grouse(5, 2, seed=3).basis, Grouse(5, 2, seed=3).basis)
    assert projection_distance(Grouse(5, 2, seed=3).basis, Grouse(5, 2, seed=4).basis) > 0.1


def test_grouse_turns_by_the_angle_of_its_step():
    """From the first axis, the row (1, 1) / 2 has sigma = 1/4; the step of 2 over t = 1 turns by 1/2."""
    tracker = Grouse(2, 1, step=2.0)
    tracker._basis = np.array([[1.0], [0.0]])
    tracker.update(np.array([[0.5, 0.5]]))
    np.testing.assert_allclose(tracker.basis[:, 0], [np.cos(0.5), np.sin(0.5)])


def test_greedy_grouse_takes_in_the_whole_row():
    row = np.random.default_rng(0).standard_normal(6)
    tracker = Grouse(6, 2, step="greedy")
    tracker.update(row[None])
    np.testing.assert_allclose(tracker.basis @ (tracker.basis.T @ row), row, atol=1e-12)


def test_grouse_drops_big_steps():
    """Its angle grows with the square of the scale: large values stop it (the greedy step has no scale)."""
    rows, _ = planted(7, n=50)
    stopped, greedy, scaled = Grouse(20, 3), Grouse(20, 3, step="greedy"), Grouse(20, 3, step="greedy")
    start = stopped.basis
    stopped.update(1000 * rows)
    np.testing.assert_array_equal(stopped.basis, start)
    greedy.update(rows)
    scaled.update(1000 * rows)
    np.testing.assert_allclose(scaled.basis, greedy.basis, atol=1e-9)


@pytest.mark.parametrize("step", [0.0, -1.0, float("nan"), "fast"])
def test_a_step_that_is_none_is_refused(step):
    with pytest.raises(ConfigurationError, match="expected a positive number, or 'greedy'"):
        Grouse(4, 2, step=step)


def test_power_steps_are_those_of_whole_blocks():
    """Two blocks of d rows, and half a block that must not be seen yet."""
    rows, _ = planted(8, n=25, d=10, noise=0.5)
    method = MemoryLimitedPower(10, 3, seed=1)
    expected = method.basis
    method.update(rows)
    for block in (rows[:10], rows[10:20]):
        expected = np.linalg.qr(block.T @ block @ expected)[0]
    assert projection_distance(method.basis, expected) < 1e-12


def test_a_block_below_the_rank_is_refused():
    with pytest.raises(
        ConfigurationError, match="block_size is 2, n_components 3; a block needs at least as many rows"
    ):
        MemoryLimitedPower(10, 3, block_size=2)


def test_spirit_finds_the_rank_and_follows_a_change():
    """The noise is between 2 and 5 % of the energy: the right rank is in the band, and no other."""
    rows, _ = planted(9, n=800, d=12, noise=0.1, sizes=(1.0, 1.0, 1.0))
    tracker = Spirit(12, 1, forgetting=0.98)
    tracker.update(rows)
    assert tracker.rank == 3
    later, basis = planted(10, n=800, d=12, noise=0.05, sizes=(1.0,))
    tracker.update(later)
    assert tracker.rank == 1
    assert projection_distance(tracker.basis, basis) < 0.1


def test_spirit_keeps_its_share_of_the_energy():
    rows, _ = planted(11, n=3000, d=12, noise=0.05, sizes=(3.0, 2.0, 1.0, 0.5))
    tracker = Spirit(12, 1, energy=(0.9, 0.95))
    tracker.update(rows)
    assert captured_variance(tracker.basis, X=rows) > 0.89
    assert tracker.rank == 2


def test_spirits_rank_rests_between_changes():
    rows = np.random.default_rng(12).standard_normal((40, 30))
    tracker = Spirit(30, 1, pause=10)
    ranks = []
    for row in rows:
        tracker.update(row[None])
        ranks.append(tracker.rank)
    assert ranks[-1] > ranks[0]
    changes = np.flatnonzero(np.diff(ranks))
    assert np.diff(changes).min() >= 10


def test_spirit_survives_linearly_dependent_columns():
    """The new column, the second axis, already lies in the basis: where Gram-Schmidt divides by zero."""
    tracker = Spirit(3, 1, energy=(1.0, 1.0), pause=1)
    tracker.update(np.tile([[0.0, 1.0, 0.0], [0.0, 1.0, 1e-9]], (20, 1)))
    assert tracker.rank > 1
    np.testing.assert_allclose(tracker.basis.T @ tracker.basis, np.eye(tracker.rank), atol=1e-12)


@pytest.mark.parametrize("wrong", [{"forgetting": 0.0}, {"forgetting": 1.1}, {"energy": (0.9, 0.8)}, {"pause": 0}])
def test_spirits_settings_are_checked(wrong):
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Spirit(4, 2, **wrong)
