"""FedPower against Algorithms 2 and 3 of Guo et al. (2021), written out here line by line, without noise."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspan.errors import ConfigurationError
from fedspan.metrics import projection_distance
from fedspan.rounds import Cohort
from fedspan.solvers import FedPower
from tests.solvers.helpers import ROWS, D, K, arrays, pooled, solve, start

by_size = "by-size-with-replacement"


# ---- the paper, transcribed ------------------------------------------------------------------------------------


def orth(y):
    """Gram-Schmidt: the QR factor with a positive diagonal, column by column."""
    q = np.zeros_like(y)
    for j in range(y.shape[1]):
        v = y[:, j].copy()
        for _ in range(2):
            v -= q[:, :j] @ (q[:, :j].T @ v)
        q[:, j] = v / np.linalg.norm(v)
    return q


def transform(kind, z, reference):
    """D of (3.2) for F = O_r, of (3.16), or the identity."""
    if kind == "procrustes":
        w1, _, w2t = np.linalg.svd(z.T @ reference)
        return w1 @ w2t
    if kind == "sign":
        return np.diag([1.0 if z[:, j] @ reference[:, j] >= 0 else -1.0 for j in range(z.shape[1])])
    return np.eye(z.shape[1])


def algorithm_2(data, z0, T, sync_set, align, reference):
    """Full participation; returns Z at every synchronisation, and the output of line 12."""
    m = list(data)
    s = {i: len(data[i]) for i in m}
    n = sum(s.values())
    p = {i: s[i] / n for i in m}
    M = {i: data[i].T @ data[i] / s[i] for i in m}
    baseline = max(m, key=lambda i: s[i])
    Z = dict.fromkeys(m, z0)
    last_global, synchronised = z0, []
    for t in range(1, T + 1):
        Y = {i: M[i] @ Z[i] for i in m}  # line 4
        if t in sync_set:  # line 5
            target = Z[baseline] if reference == "baseline" else last_global
            total = sum(p[i] * Y[i] @ transform(align, Z[i], target) for i in m)  # lines 6-7
            Y = dict.fromkeys(m, total)  # line 8
        Z = {i: orth(Y[i]) for i in m}  # line 10
        if t in sync_set:
            last_global = Z[m[0]]
            synchronised.append(last_global)
    if T in sync_set:
        return synchronised, Z[m[0]]
    target = Z[baseline] if reference == "baseline" else last_global
    return synchronised, orth(sum(p[i] * Z[i] @ transform(align, Z[i], target) for i in m))  # line 12


def algorithm_3(data, z0, sync_steps, draws, scheme, align, reference):
    """Partial participation with given draws; returns Z at every synchronisation."""
    s = {i: len(data[i]) for i in data}
    n = sum(s.values())
    M = {i: data[i].T @ data[i] / s[i] for i in data}
    z, synchronised = z0, []
    for steps, drawn in zip(sync_steps, draws, strict=True):
        Z = {}
        for i in drawn:  # what the others do between synchronisations is overwritten by line 11
            Z[i] = z
            for _ in range(steps - 1):
                Z[i] = orth(M[i] @ Z[i])
        target = Z[max(drawn, key=lambda i: s[i])] if reference == "baseline" else z
        Y = {i: M[i] @ Z[i] @ transform(align, Z[i], target) for i in drawn}  # line 8
        if scheme == 1:
            k = sum(drawn.values())
            total = sum(drawn[i] * Y[i] for i in drawn) / k  # line 10, scheme 1
        else:
            total = len(data) / len(drawn) * sum(s[i] / n * Y[i] for i in drawn)  # line 10, scheme 2
        z = orth(total)
        synchronised.append(z)
    return synchronised


def estimates(questions):
    """Z as the coordinator holds it after each synchronisation."""
    return [q.estimate for q in questions[1:]]


# ---- Algorithm 2 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("align", ["procrustes", "sign", None])
@pytest.mark.parametrize("reference", ["global", "baseline"])
@pytest.mark.parametrize("p", [1, 4])
def test_full_participation_is_algorithm_2(align, reference, p):
    data, z0 = arrays(), start()
    solver = FedPower(local_steps=p, align=align, reference=reference, rounds=7, tol=0.0)
    solution, questions = solve(solver, data, z0=z0)
    expected, _ = algorithm_2(data, z0, 6 * p, set(range(p, 6 * p + 1, p)), align, reference)
    assert len(expected) == 6
    for ours, theirs in zip(estimates(questions), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-10)
    assert projection_distance(solution.estimate.basis, expected[-1]) < 1e-10


@pytest.mark.parametrize("align", ["procrustes", "sign", None])
@pytest.mark.parametrize("reference", ["global", "baseline"])
@pytest.mark.parametrize("T", [8, 9, 10, 11, 3])
def test_the_output_between_synchronisations_is_line_12(align, reference, T):
    data, z0 = arrays(), start()
    solver = FedPower(local_steps=4, align=align, reference=reference, rounds=50, tol=0.0, iterations=T)
    solution, questions = solve(solver, data, z0=z0)
    synchronised, output = algorithm_2(data, z0, T, set(range(4, T + 1, 4)), align, reference)
    assert len(questions) == len(synchronised) + (T % 4 > 0) + 1
    np.testing.assert_allclose(questions[-1].estimate, output, atol=1e-10)
    assert projection_distance(solution.estimate.basis, output) < 1e-10


@pytest.mark.parametrize(("sync", "p"), [("decay", 4), ("halve", 4), ((2, 3, 7, 12), 4), (3, 99)])
def test_other_schedules_are_algorithm_2_on_their_sets(sync, p):
    data, z0 = arrays(), start()
    solver = FedPower(local_steps=p, sync=sync, rounds=5, tol=0.0, reference="baseline")
    steps = {"decay": [4, 7, 9, 10], "halve": [4, 6, 7, 8], 3: [3, 6, 9, 12]}.get(sync, sync)
    _, questions = solve(solver, data, z0=z0)
    expected, _ = algorithm_2(data, z0, steps[-1], set(steps), "procrustes", "baseline")
    for ours, theirs in zip(estimates(questions), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-10)


def test_the_initial_matrix_need_not_be_orthonormal():
    """Line 2 starts from a Gaussian matrix; only its span, and the order of its columns, counts."""
    data, z0 = arrays(), start()
    mixed = z0 @ np.array([[2.0, 1.0, 0.3], [0.0, 0.5, -1.0], [0.0, 0.0, 3.0]])
    one, _ = algorithm_2(data, z0, 8, {4, 8}, "procrustes", "baseline")
    other, _ = algorithm_2(data, mixed, 8, {4, 8}, "procrustes", "baseline")
    np.testing.assert_allclose(one[-1], other[-1], atol=1e-10)


# ---- Algorithm 3 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("align", ["procrustes", "sign", None])
@pytest.mark.parametrize("reference", ["global", "baseline"])
@pytest.mark.parametrize("scheme", [1, 2])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_partial_participation_is_algorithm_3(align, reference, scheme, seed):
    data, z0 = arrays(), start()
    cohort = Cohort(fraction=0.75, sample=by_size if scheme == 1 else "uniform")
    solver = FedPower(local_steps=4, align=align, reference=reference, rounds=6, tol=0.0)
    _, questions = solve(solver, data, z0=z0, cohort=cohort, seed=seed)
    draws = [cohort.draw(list(ROWS), np.random.default_rng([seed, t]), lambda: ROWS) for t in range(5)]
    if scheme == 1 and seed == 0:
        assert any(times > 1 for drawn in draws for times in drawn.values())  # the case that matters
    expected = algorithm_3(data, z0, [4] * 5, draws, scheme, align, reference)
    for ours, theirs in zip(estimates(questions), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-10)


def test_the_final_average_of_scheme_1_weighs_by_draw_not_by_size():
    data, z0 = arrays(), start()
    cohort = Cohort(fraction=0.5, sample=by_size)
    solver = FedPower(local_steps=4, iterations=2, rounds=9, tol=0.0, align=None)
    _, questions = solve(solver, data, z0=z0, cohort=cohort, seed=3)
    drawn = cohort.draw(list(ROWS), np.random.default_rng([3, 0]), lambda: ROWS)
    twice = {i: orth(data[i].T @ (data[i] @ orth(data[i].T @ (data[i] @ z0)))) for i in drawn}
    expected = orth(sum(times * twice[i] for i, times in drawn.items()) / 2)
    np.testing.assert_allclose(questions[-1].estimate, expected, atol=1e-10)


@pytest.mark.parametrize(("sample", "scale"), [(by_size, 1.0), ("uniform", 4 / 2)])
def test_aggregates_are_right_on_average(sample, scale):
    """E(Y_t) over the draws is what full participation gives (Section 3.2): a mean of many first aggregates."""
    data, z0 = arrays(), start()
    n = sum(ROWS.values())
    full = sum(x.T @ (x @ z0) for x in data.values()) / n
    solver, total = FedPower(local_steps=1, align=None, rounds=2, tol=0.0), np.zeros_like(z0)
    for seed in range(1500):
        got = []
        cohort = Cohort(fraction=0.5, sample=sample)
        solve(solver, data, z0=z0, cohort=cohort, seed=seed, watch=lambda q, o, got=got: got.append(o.value))
        total += got[0] / 2 if sample == by_size else scale * got[0] / n
    assert np.abs(total / 1500 - full).max() < 0.04 * np.abs(full).max()


# ---- schedules -------------------------------------------------------------------------------------------------


def first(solver, count):
    """The first so many steps t of the synchronisation set."""
    steps, t = [], 0
    for gap in solver.schedule():
        t += gap
        steps.append(t)
        if len(steps) == count:
            break
    return steps


@given(st.integers(1, 9), st.integers(1, 40))
def test_every_p_is_the_set_3_1(p, T):
    expected = [t for t in range(1, T + 1) if t % p == 0]
    assert first(FedPower(local_steps=p), len(expected) or 1)[: len(expected)] == expected
    assert first(FedPower(sync=p, local_steps=99), len(expected) or 1)[: len(expected)] == expected


@given(st.integers(1, 9), st.integers(1, 15))
def test_decaying_p_is_the_set_3_15(p, count):
    expected = [sum(max(p - i, 1) for i in range(level + 1)) for level in range(count)]
    assert first(FedPower(local_steps=p, sync="decay"), count) == expected


@given(st.integers(1, 64), st.integers(1, 12))
def test_halving_p_goes_down_to_one(p, count):
    gaps = np.diff([0, *first(FedPower(local_steps=p, sync="halve"), count)])
    assert list(gaps) == [max(p // 2**i, 1) for i in range(count)]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8, unique=True))
def test_a_list_is_the_set_itself(steps):
    solver = FedPower(sync=sorted(steps))
    assert first(solver, 99) == sorted(steps)
    assert solver.sync == tuple(sorted(steps))
    assert solver == FedPower(sync=tuple(sorted(steps)))
    assert hash(solver) == hash(FedPower(sync=tuple(sorted(steps))))


# ---- stopping and refusing -------------------------------------------------------------------------------------


def test_rounds_are_the_budget_with_the_last_for_the_values():
    for rounds in (2, 3, 8):
        solution, questions = solve(FedPower(rounds=rounds, tol=0.0), arrays())
        assert len(questions) == rounds
        assert [q.step.name for q in questions] == ["fedpower.local_steps"] * (rounds - 1) + ["gram.multiply"]
        assert solution.converged is None


def test_it_stops_when_the_subspace_settles():
    solution, questions = solve(FedPower(rounds=200, tol=1e-5, local_steps=2), arrays())
    assert solution.converged is True
    assert len(questions) < 100
    assert projection_distance(questions[-2].estimate, questions[-1].estimate) <= 1e-5
    assert projection_distance(questions[-3].estimate, questions[-2].estimate) > 1e-5
    unsettled, questions = solve(FedPower(rounds=4, tol=1e-12, local_steps=2), arrays())
    assert unsettled.converged is False
    assert len(questions) == 4


def test_a_list_of_synchronisations_ends_the_run():
    _, questions = solve(FedPower(sync=[1, 2, 5], rounds=50, tol=0.0), arrays())
    assert [q.message["steps"] for q in questions[:-1]] == [1, 1, 3]


def test_iterations_end_the_run_and_the_budget_still_holds():
    _, questions = solve(FedPower(local_steps=2, iterations=7, rounds=50, tol=0.0), arrays())
    assert [(q.message["steps"], q.message["average"]) for q in questions[:-1]] == [
        (2, False), (2, False), (2, False), (1, True),
    ]  # fmt: skip
    _, questions = solve(FedPower(local_steps=2, iterations=7, rounds=3, tol=0.0), arrays())
    assert len(questions) == 3


def test_one_local_step_is_the_distributed_power_method():
    data = arrays()
    solution, _ = solve(FedPower(local_steps=1, rounds=300, tol=1e-12), data)
    assert projection_distance(solution.estimate.basis, pooled(data)[0]) < 1e-9


def test_more_local_steps_get_near_in_fewer_rounds():
    data = arrays(rows={"a": 900, "b": 900})
    near = {
        p: projection_distance(
            solve(FedPower(local_steps=p, rounds=4, tol=0.0), data)[0].estimate.basis, pooled(data)[0]
        )
        for p in (1, 4)
    }
    assert near[4] < near[1] / 2


def test_alignment_matters_where_columns_turn():
    """Two directions of equal variance have no order: unaligned, the sites' bases partly cancel."""
    rng = np.random.default_rng(5)
    scale = np.array([3.0, 3.0, 3.0, *[0.5] * (D - 3)])
    data = {name: rng.standard_normal((n, D)) * scale for name, n in ROWS.items()}
    distances = {}
    for align in ("procrustes", None):
        _, questions = solve(FedPower(local_steps=8, rounds=3, tol=0.0, align=align), data)
        aggregate = []
        solve(
            FedPower(local_steps=8, rounds=2, tol=0.0, align=align), data, watch=lambda q, o, a=aggregate: a.append(o)
        )
        distances[align] = np.linalg.svd(aggregate[0].value, compute_uv=False)[-1]
        assert len(questions) == 3
    assert distances["procrustes"] > 1.2 * distances[None]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"rounds": 1}, "at least 2 rounds"),
        ({"rounds": 0}, "at least 1"),
        ({"tol": -1.0}, "not negative"),
        ({"oversampling": -1}, "not negative"),
        ({"local_steps": 0}, "at least 1 local step"),
        ({"sync": 0}, "at least 1 local step"),
        ({"sync": "decays"}, "'decay', 'halve' or a list"),
        ({"sync": [3, 2]}, "rises from at least 1"),
        ({"sync": [0, 2]}, "rises from at least 1"),
        ({"sync": [2, 2]}, "rises from at least 1"),
        ({"sync": []}, "rises from at least 1"),
        ({"sync": 2.5}, "'decay', 'halve' or a list"),
        ({"sync": np.array(2.5)}, "'decay', 'halve' or a list"),
        ({"sync": [[1], [2, 3]]}, r"a step of sync is an integer, got \[1\]"),
        ({"sync": np.eye(2)}, "a step of sync is an integer"),
        ({"sync": [1, 2.5]}, r"a step of sync is an integer, got 2\.5"),
        ({"sync": True}, "sync is an integer, got True"),
        ({"local_steps": "4"}, "local_steps is an integer, got '4'"),
        ({"iterations": 0}, "iterations is at least 1"),
        ({"iterations": 2.0}, r"iterations is an integer or None, got 2\.0"),
        ({"align": "opt"}, "'procrustes', 'sign' or None"),
        ({"align": ["sign"]}, "'procrustes', 'sign' or None"),
        ({"reference": "local"}, "'global' or 'baseline'"),
    ],
)
def test_impossible_settings_are_refused(settings, text):
    with pytest.raises(ConfigurationError, match=text):
        FedPower(**settings)


def test_numbers_of_numpy_become_plain_ones():
    solver = FedPower(
        rounds=np.int64(9), tol=np.float32(0.5), oversampling=np.int8(1), local_steps=np.int16(3),
        sync=np.array([1, 3, 7]), iterations=np.uint8(7),
    )  # fmt: skip
    assert solver == FedPower(
        rounds=9, tol=0.5, oversampling=1, local_steps=3, sync=(1, 3, 7), iterations=7
    )  # fmt: skip
    assert json.loads(json.dumps(vars(solver)))["sync"] == [1, 3, 7]
    assert FedPower(sync=np.int64(3)).sync == 3
    assert hash(FedPower(sync=np.array([2, 4]))) == hash(FedPower(sync=[2, 4]))


def test_the_baseline_is_the_site_with_most_rows():
    """Where the text once writes argmin, the most is meant: the smaller site turns, the larger does not."""
    data, z0 = arrays(rows={"a": 40, "b": 10}), start()
    got = []
    solver = FedPower(local_steps=3, rounds=2, tol=0.0, reference="baseline")
    solve(solver, data, z0=z0, watch=lambda q, o: got.append(o.value))
    z = {name: got[0][name]["z"] for name in data}
    y = {name: got[0][name]["y"] for name in data}
    by_hand = orth(y["a"] + y["b"] @ transform("procrustes", z["b"], z["a"]))
    _, questions = solve(solver, data, z0=z0)
    np.testing.assert_allclose(questions[-1].estimate, by_hand, atol=1e-12)


def test_ranks_are_bounded_by_the_features():
    assert FedPower(oversampling=4).rank(3, 9) == 7
    assert FedPower(oversampling=40).rank(K, D) == D
