"""What a neighbour can change: every formula is attained by its worst neighbour and exceeded by none."""

from __future__ import annotations

import math
from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspan.errors import PolicyError
from fedspan.sensitivity import Neighbours, checked_matrix
from fedspan.solvers.covariance import to_triangle
from fedspan.solvers.fedpower import local_sensitivity
from fedspan.solvers.problem import product_sensitivity

REPLACE = math.sqrt(2.0)
SEEDS = st.integers(0, 2**32)
ROOM = 1 + 1e-9  # of rounding in these tests themselves


def clipped(rows, bound):
    """Rows as they enter the Gram matrix: none longer than the bound."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1.0, bound / np.maximum(lengths, 1e-300))


def rows_of(rng, count, d, bound, extreme):
    """Rows within the bound; extreme ones lie on it, along few directions."""
    rows = rng.standard_normal((count, d))
    if extreme:
        rows = np.eye(d)[rng.integers(0, d, count)] * rng.choice([-1.0, 1.0], (count, 1)) * 10 * bound
    return clipped(rows * rng.choice([0.3, 10.0]) * bound, bound)


@st.composite
def people(draw):
    """A message Z, a bound, and one person's rows before and after."""
    rng = np.random.default_rng(draw(SEEDS))
    d, r, m = draw(st.integers(1, 6)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    bound, extreme = draw(st.sampled_from([0.2, 1.0, 7.0])), draw(st.booleans())
    z = rng.standard_normal((d, r)) * draw(st.sampled_from([1e-3, 1.0, 1000.0]))
    before, after = (rows_of(rng, m, d, bound, extreme) for _ in range(2))
    return z, bound, m, before, after


def z_of(seed=0, d=7, r=3):
    return np.random.default_rng(seed).standard_normal((d, r))


# ---- rows: attained --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [1, 4])
@pytest.mark.parametrize("r", [1, 3, 9])
def test_a_product_changes_by_the_whole_bound_at_the_worst_row(m, r):
    z, near = z_of(r=r), Neighbours("row", 1.7, rows_per_person=m)
    worst = near.worst_row(z)
    assert np.linalg.norm(worst) == pytest.approx(1.7, rel=1e-12)
    rows = np.tile(worst, (m, 1))
    assert np.linalg.norm(rows.T @ (rows @ z)) == pytest.approx(near.product(z), rel=1e-9)


@pytest.mark.parametrize("m", [1, 4])
def test_a_gram_matrix_changes_by_the_whole_bound_at_the_worst_row(m):
    near = Neighbours("row", 1.7, rows_per_person=m)
    rows = np.tile(near.worst_row(d=5), (m, 1))
    assert np.linalg.norm(rows.T @ rows) == pytest.approx(near.gram(), rel=1e-9)
    assert np.linalg.norm(to_triangle(rows.T @ rows)) == pytest.approx(near.gram(), rel=1e-9)  # as it travels
    assert np.trace(rows.T @ rows) == pytest.approx(near.total(5), rel=1e-9)


@pytest.mark.parametrize("m", [1, 3])
def test_replaced_rows_attain_the_square_root_of_two_more(m):
    near = Neighbours("row-replace", 1.3, rows_per_person=m)
    x, y = 1.3 * np.eye(5)[0], 1.3 * np.eye(5)[1]
    change = m * (np.outer(x, x) - np.outer(y, y))
    assert np.linalg.norm(change) == pytest.approx(near.gram(), rel=1e-9)
    assert np.linalg.norm(change @ np.eye(5)) == pytest.approx(near.product(np.eye(5)), rel=1e-9)
    assert near.gram() == pytest.approx(REPLACE * m * 1.3**2)


@pytest.mark.parametrize("m", [1, 3])
def test_sums_of_raw_rows_and_their_squares_attain_their_bounds(m):
    x, y, radius = np.eye(4)[0] * 2.0, np.eye(4)[1] * 2.0, 2.0
    row, other = (Neighbours(kind, 9.0, raw=radius, rows_per_person=m) for kind in ("row", "row-replace"))
    assert np.linalg.norm(m * x) == pytest.approx(row.row_sum(), rel=1e-9)
    assert np.linalg.norm(m * (x - (-x))) == pytest.approx(other.row_sum(), rel=1e-9)  # a row turned round
    assert np.linalg.norm(m * x**2) == pytest.approx(row.squares(), rel=1e-9)
    assert np.linalg.norm(m * (x**2 - y**2)) == pytest.approx(other.squares(), rel=1e-9)


@pytest.mark.parametrize("m", [1, 3])
def test_degrees_of_raw_rows_attain_their_bounds(m):
    x, y, radius = np.eye(4)[0] * 2.0, np.eye(4)[1] * 2.0, 2.0
    row, other = (Neighbours(kind, 9.0, raw=radius, rows_per_person=m) for kind in ("row", "row-replace"))
    assert np.linalg.norm(m * x) == pytest.approx(row.degrees(), rel=1e-9)
    assert np.linalg.norm(m * (x - y)) == pytest.approx(other.degrees(), rel=1e-9)  # counts have no opposite rows
    for relation, raw in (("row", None), ("entry", 2.0), ("site", 2.0)):
        with pytest.raises(PolicyError, match="the columns' degrees"):
            Neighbours(relation, 9.0, raw=raw).degrees()


@given(people())
def test_no_rows_of_counts_exceed_the_bounds_of_degrees(case):
    _, bound, m, before, after = case
    before, after = abs(before), abs(after)
    row, replaced = (Neighbours(kind, 9.0, raw=bound, rows_per_person=m) for kind in ("row", "row-replace"))
    assert np.linalg.norm(before.sum(axis=0)) <= row.degrees() * ROOM
    assert np.linalg.norm(before.sum(axis=0) - after.sum(axis=0)) <= replaced.degrees() * ROOM


@pytest.mark.parametrize("relation", ["row", "row-replace"])
def test_the_values_present_in_each_column_attain_their_bound(relation):
    near = Neighbours(relation, 1.0, rows_per_person=2)
    assert near.present(9) == pytest.approx(np.linalg.norm(2 * np.ones(9)), rel=1e-9)  # all gaps against none


@pytest.mark.parametrize("relation", ["row", "row-replace"])
def test_the_sum_of_weights_changes_by_a_persons_rows(relation):
    assert Neighbours(relation, 1.0, rows_per_person=3).count() == 3.0


# ---- rows: never exceeded --------------------------------------------------------------------------------------


@given(people())
def test_no_added_rows_exceed_the_bounds(case):
    z, bound, m, before, _ = case
    near = Neighbours("row", bound, raw=bound, rows_per_person=m)
    gram = before.T @ before
    assert np.linalg.norm(gram @ z) <= near.product(z) * ROOM
    assert np.linalg.norm(gram) <= near.gram() * ROOM
    assert np.trace(gram) <= near.total(len(gram)) * ROOM
    assert np.linalg.norm(before.sum(axis=0)) <= near.row_sum() * ROOM
    assert np.linalg.norm((before**2).sum(axis=0)) <= near.squares() * ROOM


@given(people())
def test_no_replaced_rows_exceed_the_bounds(case):
    z, bound, m, before, after = case
    near = Neighbours("row-replace", bound, raw=bound, rows_per_person=m)
    change = before.T @ before - after.T @ after
    assert np.linalg.norm(change @ z) <= near.product(z) * ROOM
    assert np.linalg.norm(to_triangle(change)) <= near.gram() * ROOM
    assert abs(np.trace(change)) <= near.total(len(change)) * ROOM
    assert np.linalg.norm(before.sum(axis=0) - after.sum(axis=0)) <= near.row_sum() * ROOM
    assert np.linalg.norm((before**2 - after**2).sum(axis=0)) <= near.squares() * ROOM


def test_a_random_row_is_far_from_the_worst_so_that_tests_at_random_rows_would_miss_a_small_bound():
    z, near, rng = np.diag([10.0, 1, 1, 1, 1, 1, 1, 1]), Neighbours("row", 1.0), np.random.default_rng(0)
    rows = clipped(10 * rng.standard_normal((200, 8)), 1.0)
    assert max(np.linalg.norm(x) * np.linalg.norm(z.T @ x) for x in rows) < near.product(z) / 1.05
    assert np.linalg.norm(z.T @ near.worst_row(z)) == pytest.approx(near.product(z))


# ---- entries ---------------------------------------------------------------------------------------------------


@given(SEEDS, st.integers(1, 7), st.integers(1, 3))
def test_the_entry_bound_is_the_largest_over_all_pairs_of_entries(seed, d, r):
    z, near = np.random.default_rng(seed).standard_normal((d, r)), Neighbours("entry", 0.7)
    changes = {}
    for i, j in combinations_with_replacement(range(d), 2):
        e = np.zeros((d, d))
        e[i, j] = e[j, i] = 0.7
        changes[i, j] = np.linalg.norm(e @ z)
        assert np.linalg.norm(e) <= near.gram() * ROOM
        assert abs(np.trace(e)) <= near.total(d) * ROOM
    assert max(changes.values()) == pytest.approx(near.product(z), rel=1e-9)
    if d > 1:
        assert changes[tuple(sorted(near.worst_entry(z)))] == pytest.approx(near.product(z), rel=1e-9)


def test_the_entry_bounds_of_a_gram_matrix_and_of_its_trace_are_attained():
    near, e = Neighbours("entry", 0.7), np.zeros((3, 3))
    e[0, 1] = e[1, 0] = 0.7
    assert np.linalg.norm(e) == pytest.approx(near.gram(), rel=1e-12)
    assert near.total(3) == 0.7


def ppm_norm(e):
    """sqrt(sum_i ||E_i||_1^2), PPM (12)."""
    return math.sqrt(float(np.sum(np.abs(e).sum(axis=1) ** 2)))


@given(SEEDS, st.integers(1, 7), st.integers(1, 3), st.sampled_from(["dense", "diagonal", "one pair", "few", "signs"]))
def test_no_change_within_ppm_12_exceeds_its_bounds(seed, d, r, kind):
    rng = np.random.default_rng(seed)
    z, e, near = rng.standard_normal((d, r)), rng.standard_normal((d, d)), Neighbours("ppm-12", 0.7)
    match kind:
        case "diagonal":
            e = np.diag(rng.choice([0.0, 1.0, 5.0], d))
        case "one pair":
            e = np.zeros((d, d))
            e[rng.integers(d), rng.integers(d)] = 1.0
        case "few":
            e *= rng.random((d, d)) < 0.3
        case "signs":
            e = np.sign(e)
    e = e + e.T
    e *= 0.7 / max(ppm_norm(e), 1e-300)
    assert ppm_norm(e) <= 0.7 * ROOM
    assert np.linalg.norm(e @ z) <= near.product(z) * ROOM
    assert np.linalg.norm(to_triangle(e)) <= near.gram() * ROOM
    assert abs(np.trace(e)) <= near.total(d) * ROOM


def test_ppm_12_is_attained_by_a_diagonal_entry_and_by_the_identity():
    z, near = z_of(), Neighbours("ppm-12", 0.7)
    i, j = near.worst_entry(z)
    assert i == j
    e = np.zeros((7, 7))
    e[i, i] = 0.7
    assert np.linalg.norm(e @ z) == pytest.approx(near.product(z), rel=1e-9)
    assert np.linalg.norm(e) == pytest.approx(near.gram(), rel=1e-9)
    spread = 0.7 * np.eye(7) / math.sqrt(7)
    assert ppm_norm(spread) == pytest.approx(0.7)
    assert np.trace(spread) == pytest.approx(near.total(7), rel=1e-9)


# ---- sites -----------------------------------------------------------------------------------------------------


@given(SEEDS, st.integers(1, 6), st.integers(1, 4))
def test_no_site_exceeds_its_bounds(seed, d, rank):
    rng = np.random.default_rng(seed)
    near, z = Neighbours("site", 2.0), rng.standard_normal((d, 3))
    one, other = (rng.standard_normal((rank, d)) for _ in range(2))
    one, other = (x * math.sqrt(2.0 / np.sum(x**2)) for x in (one, other))  # trace S
    change = one.T @ one - other.T @ other
    assert np.linalg.norm(change) <= near.gram() * ROOM
    assert np.linalg.norm(change @ z) <= near.product(z) * ROOM
    assert abs(np.trace(change)) <= near.total(d) * ROOM


def test_the_site_bounds_are_attained():
    near, (x, y) = Neighbours("site", 2.0), math.sqrt(2.0) * np.eye(3)[:2]
    change = np.outer(x, x) - np.outer(y, y)
    assert np.linalg.norm(change) == pytest.approx(near.gram(), rel=1e-9)
    assert np.linalg.norm(change @ np.eye(3)) == pytest.approx(near.product(np.eye(3)), rel=1e-9)
    assert np.trace(np.outer(x, x)) == pytest.approx(near.total(3), rel=1e-9)


def test_a_clipped_release_of_anything_moves_by_twice_its_bound_and_needs_one():
    assert Neighbours("row", 1.0, whole=3.0).clipped() == 6.0
    with pytest.raises(PolicyError, match="site_norm"):
        Neighbours("row", 1.0).clipped()


# ---- the message as received -----------------------------------------------------------------------------------

RELATED = [
    Neighbours("row", 1.3), Neighbours("row-replace", 1.3), Neighbours("entry", 1.3), Neighbours("ppm-12", 1.3),
    Neighbours("site", 1.3),
]  # fmt: skip
related = pytest.mark.parametrize("near", RELATED, ids=lambda n: n.relation)


@related
def test_a_message_a_thousand_times_as_large_has_a_bound_a_thousand_times_as_large(near):
    z = z_of()
    assert near.product(1000 * z) == pytest.approx(1000 * near.product(z), rel=1e-12)
    shapes = {"product": (7, 3)}
    assert product_sensitivity(1000 * z, near, shapes)["product"] == pytest.approx(1000 * near.product(z))
    message = {"z": 1000 * z, "steps": 1, "average": False, "align": None, "gather": False, "per_row": False}
    assert local_sensitivity(message, near, shapes)["product"] == pytest.approx(1000 * near.product(z))


@related
@pytest.mark.parametrize(
    "bad",
    [
        np.full((3, 2), np.nan), np.array([[1.0, np.inf]]), np.ones(3), np.ones((2, 2, 2)), np.eye(3, dtype=int),
        np.eye(2, dtype=complex), np.eye(2, dtype=bool), np.array([["a"]]), np.float64(1.0), None,
    ],
    ids=["nan", "inf", "vector", "cube", "int", "complex", "bool", "text", "number", "none"],
)  # fmt: skip
def test_a_message_that_no_bound_can_be_computed_from_is_refused(near, bad):
    with pytest.raises(PolicyError, match="finite numbers"):
        near.product(bad)
    with pytest.raises(PolicyError, match="finite numbers"):
        checked_matrix(bad)


@related
def test_an_empty_message_moves_nothing(near):
    assert near.product(np.zeros((4, 0))) == 0.0
    assert near.product(np.zeros((4, 2))) == 0.0


@related
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.longdouble, int])
def test_a_message_in_other_numbers_is_refused(near, dtype):
    with pytest.raises(PolicyError, match="float64"):
        near.product(np.ones((4, 3), dtype=dtype))


# Was a fault once: squares of 1e-170 underflow, so that the bound was 0 and G Z left as it was
@related
def test_a_tiny_message_has_a_tiny_bound_and_not_none(near):
    z = np.random.default_rng(0).standard_normal((6, 2))
    assert near.product(1e-170 * z) == pytest.approx(1e-170 * near.product(z), rel=1e-12, abs=0.0)


def test_a_person_at_many_sites_moves_what_each_of_them_clips():
    assert Neighbours("row", 1.0, rows_per_person=8, whole=2.0).clipped() == 8 * 2 * 2.0
    assert Neighbours("site", 1.0, rows_per_person=8, whole=2.0).clipped() == 2 * 2.0


@pytest.mark.parametrize("relation", ["entry", "ppm-12", "site"])
def test_figures_of_rows_have_no_bound_where_the_relation_is_not_about_rows(relation):
    near = Neighbours(relation, 1.0, raw=1.0)
    for figure in (near.row_sum, near.squares, near.count, lambda: near.present(3)):
        with pytest.raises(PolicyError, match=relation):
            figure()


def test_sums_of_raw_rows_need_a_bound_on_raw_rows():
    for figure in (Neighbours("row", 1.0).row_sum, Neighbours("row", 1.0).squares):
        with pytest.raises(PolicyError, match="raw rows"):
            figure()


def test_the_number_of_rows_behind_a_product_is_bounded_only_where_it_is_released():
    near, z = Neighbours("row", 1.3, rows_per_person=2), z_of()
    assert set(product_sensitivity(z, near, {"product": z.shape})) == {"product"}
    assert product_sensitivity(z, near, {"product": z.shape, "rows": ()})["rows"] == 2.0


@pytest.mark.parametrize("change", [{"gather": True}, {"per_row": True}])
def test_what_fedpower_divides_by_a_private_size_or_sends_besides_has_no_bound(change):
    message = {"z": z_of(), "steps": 1, "average": False, "align": None, "gather": False, "per_row": False, **change}
    assert local_sensitivity(message, Neighbours("row", 1.0, whole=1.0), {}) == {}


@pytest.mark.parametrize("change", [{"steps": 2}, {"average": True}, {"steps": 5, "average": True}])
def test_fedpower_after_local_steps_has_the_bound_it_is_clipped_to(change):
    message = {"z": z_of(), "steps": 1, "average": False, "align": None, "gather": False, "per_row": False, **change}
    assert local_sensitivity(message, Neighbours("row", 1.0, whole=3.0), {}) == {"product": 6.0}
    with pytest.raises(PolicyError, match="local steps"):
        local_sensitivity(message, Neighbours("row", 1.0), {})
