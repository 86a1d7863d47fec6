"""FPCA's theorems: toys by hand, and random data looked through for a counter-example.

Merges here are plain SVDs of summaries side by side (Alg. 4), up random trees, so that a bound is tested and not the
library's own merge.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspan.errors import ConfigurationError, DataError
from fedspan.metrics import energy_ratio, fpca_bounds, fpca_correlation, fpca_rows, merge_error

SILVER = 1 + math.sqrt(2)
TOY = [5.0, 4.0, 2.0, 1.0]  # rho_2 = sqrt(5)


def cut(factor, r):
    """U S of the best rank-r approximation of a factor of shape (d, m)."""
    u, s, _ = np.linalg.svd(factor, full_matrices=False)
    return u[:, :r] * s[:r]


def pair(summary):
    u, s, _ = np.linalg.svd(summary, full_matrices=False)
    return u, s


def residual(factor, r):
    return float(np.linalg.norm(np.linalg.svd(factor, compute_uv=False)[r:]))


@st.composite
def problems(draw):
    """The columns of Y, a rank, and a generator for the rest."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    d, decay = draw(st.integers(2, 7)), draw(st.floats(0, 3))
    y = (rng.standard_normal((d, draw(st.integers(8, 40)))).T * np.arange(1, d + 1) ** -decay).T
    return y, draw(st.integers(1, d - 1)), rng


def up_a_tree(blocks, r, rng):
    """Merge cut blocks up a random tree; its summary and its depth."""
    nodes = [(cut(block, r), 0) for block in blocks]
    while len(nodes) > 1:
        fan = int(rng.integers(2, 5))
        order = rng.permutation(len(nodes))
        children, nodes = [nodes[i] for i in order[:fan]], [nodes[i] for i in order[fan:]]
        nodes.append((cut(np.hstack([c for c, _ in children]), r), 1 + max(level for _, level in children)))
    return nodes[0]


def split(y, rng):
    places = np.sort(rng.choice(np.arange(1, y.shape[1]), size=int(rng.integers(1, 7)), replace=False))
    return np.split(y, places, axis=1)


def worst_case(groups, depth, tie=1e-6):
    """Blocks and a merge order for which t truncations lose almost t rho_1^2: each prefers its own axis to the shared.

    Every group keeps its own axis by a hair at each of its cuts, and loses e_0 each time; the root then loses all
    groups but one. Best would have been to keep e_0.
    """
    own = np.eye(groups + 1)[:, 1:] * (1 + tie)
    shared = np.eye(groups + 1)[:, :1]
    leaves = [np.hstack([own[:, [g]], shared]) for g in range(groups)]
    merged = [cut(leaf, 1) for leaf in leaves]
    for _ in range(depth - 1):
        merged = [cut(np.hstack([node, shared]), 1) for node in merged]
    y = np.hstack([*leaves, *[shared] * (groups * (depth - 1))])
    return y, cut(np.hstack(merged), 1)


# ---- merges, by hand ---------------------------------------------------------------------------------------------


def test_the_merge_bounds_by_hand():
    found = fpca_bounds(TOY, r=2, noise=0.5)
    rho = math.sqrt(5)
    assert found.residual == pytest.approx(rho)
    assert found.lemma_11.error == pytest.approx(3 * rho)
    assert found.theorem_2.error == pytest.approx(3 * math.sqrt(2) * rho + SILVER * 0.5)
    assert found.theorem_3.error == pytest.approx((SILVER**2 - 1) * rho)
    assert found.lemma_11.sharper == found.theorem_3.sharper == pytest.approx(math.sqrt(2) * rho)
    assert found.theorem_2.sharper == pytest.approx(math.sqrt(2) * rho + SILVER * 0.5)
    assert found.theorem_1 is found.bracket is None
    assert "taken as 1" in found.constants


@pytest.mark.parametrize(("depth", "factor"), [(1, 4.8284271), (2, 13.0710678), (3, 32.9705627)])
def test_theorem_3_grows_with_the_tree(depth, factor):
    found = fpca_bounds(TOY, r=2, depth=depth).theorem_3
    assert found.factor == pytest.approx(factor)
    assert found.error == pytest.approx(factor * math.sqrt(5))
    assert found.sharper == pytest.approx(math.sqrt(depth + 1) * math.sqrt(5))


def test_which_statement_speaks_of_which_tree():
    def speaking(**settings):
        found = fpca_bounds(TOY, r=2, **settings)
        return [b.applies for b in (found.lemma_11, found.theorem_2, found.theorem_3)]

    assert speaking() == [True, True, True]
    assert speaking(noise=0.1) == [False, True, False]
    assert speaking(depth=2) == [False, False, True]
    assert speaking(depth=0) == [False, False, False]
    assert speaking(blocks=2) == [False, False, False]
    streamed = fpca_bounds(TOY, r=2, depth=3, blocks=40).theorem_3
    assert "a site folds 40 blocks" in streamed.why_not
    assert "make depth 42" in streamed.why_not
    assert streamed.sharper == pytest.approx(math.sqrt(43) * math.sqrt(5))


def test_a_bound_above_the_data_is_vacuous():
    """U S = 0 has the error ||Y||."""
    assert fpca_bounds([1.0, 0.3], r=1, depth=1).theorem_3.vacuous
    assert not fpca_bounds([1.0, 0.3], r=1, depth=1).lemma_11.vacuous
    assert not fpca_bounds([1.0, 0.2], r=1, depth=1).theorem_3.vacuous


def test_a_rank_that_holds_everything_has_no_error():
    found = fpca_bounds([2.0, 1.0], r=2, depth=10_000, ranks=(2, 2))
    assert found.theorem_3.factor == math.inf
    assert found.theorem_3.error == found.theorem_3.sharper == found.bracket.certain == 0.0


# ---- merges, on data ---------------------------------------------------------------------------------------------


@given(problems())
def test_lemma_11_holds_without_a_rotation(problem):
    y, r, rng = problem
    blocks = split(y, rng)
    z = [u[:, :r] * s[:r] @ vt[:r] for u, s, vt in (np.linalg.svd(b, full_matrices=False) for b in blocks)]
    u, s, vt = np.linalg.svd(np.hstack(z), full_matrices=False)
    error = np.linalg.norm(u[:, :r] * s[:r] @ vt[:r] - y)
    bound = fpca_bounds(np.linalg.svd(y, compute_uv=False), r=r).lemma_11
    assert error <= bound.sharper * (1 + 1e-9) <= bound.error * (1 + 2e-9)
    assert error >= bound.error / 3 * (1 - 1e-9)  # rho_r: the constant could not be below 1


@given(problems(), st.floats(1e-3, 10))
def test_theorem_2_holds_with_noise(problem, size):
    y, r, rng = problem
    z = np.hstack([cut(block, r) for block in split(y, rng)])
    noise = rng.standard_normal(z.shape)
    noise *= size / np.linalg.norm(noise)
    sigma = np.linalg.svd(y, compute_uv=False)
    found = merge_error(*pair(cut(z + noise, r)), gram=y @ y.T)
    bound = fpca_bounds(sigma, r=r, noise=float(size)).theorem_2
    assert found.error <= bound.sharper + 1e-6
    assert bound.sharper <= bound.error


@given(problems())
def test_theorem_3_holds_up_random_trees(problem):
    y, r, rng = problem
    summary, depth = up_a_tree(split(y, rng), r, rng)
    u, s = pair(summary)
    found = merge_error(u[:, :r], s[:r], gram=y @ y.T, depth=depth)
    slack = 1e-6 * np.linalg.norm(y)
    assert found.floor <= found.error + slack
    assert found.error <= found.lost + slack
    assert found.lost <= found.theorem_3.sharper + slack
    assert found.theorem_3.sharper <= found.theorem_3.error
    assert found.within
    assert found.applies


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_sharper_bound_is_reached_in_the_worst_case(depth):
    y, summary = worst_case(200, depth)
    found = merge_error(*pair(summary), gram=y @ y.T, depth=depth)
    assert found.error <= found.theorem_3.sharper
    assert found.error > 0.99 * found.theorem_3.sharper  # so no factor below sqrt(depth + 1) holds
    assert found.error < 0.3 * found.theorem_3.error  # what is printed is far from it


@given(problems())
def test_a_stream_of_blocks_counts_each_block(problem):
    """Alg. 3 at one site, rank r; then (16) with certain instead of high."""
    y, r, rng = problem
    blocks = split(y, rng)
    kept = np.zeros((len(y), 0))
    for block in blocks:
        kept = cut(np.hstack([kept, block]), r)
    u, s = pair(kept)
    found = merge_error(u, s, gram=y @ y.T, depth=0, blocks=len(blocks))
    bracket = fpca_bounds(np.linalg.svd(y, compute_uv=False), r=r, depth=0, blocks=len(blocks), ranks=(r, r)).bracket
    slack = 1e-6 * np.linalg.norm(y)
    assert bracket.low <= found.error + slack
    assert found.error <= bracket.certain + slack
    assert found.theorem_3.sharper == pytest.approx(bracket.certain)
    assert not found.applies  # Theorem 3 is not about this


# ---- the measured error ------------------------------------------------------------------------------------------


@given(problems())
def test_the_error_is_the_least_over_rotations(problem):
    """Against the Procrustes rotation itself, computed from the rows."""
    y, r, rng = problem
    summary = cut(y[:, ::2], r)
    padded = np.hstack([summary, np.zeros((len(y), y.shape[1] - summary.shape[1]))])
    left, _, right = np.linalg.svd(y.T @ padded)
    found = merge_error(*pair(summary), gram=y @ y.T)
    assert found.error == pytest.approx(np.linalg.norm(padded - y @ (left @ right)), abs=1e-6 * np.linalg.norm(y))
    other = np.linalg.qr(rng.standard_normal((y.shape[1],) * 2))[0]
    assert found.error <= np.linalg.norm(padded - y @ other) + 1e-6 * np.linalg.norm(y)


def test_the_best_pair_has_the_least_error_and_an_exact_one_none():
    y = np.random.default_rng(0).standard_normal((30, 200))
    u, s, _ = np.linalg.svd(y, full_matrices=False)
    best = merge_error(u[:, :7], s[:7], gram=y @ y.T)
    assert best.error == pytest.approx(best.floor) == pytest.approx(np.linalg.norm(s[7:]))
    assert best.lost == pytest.approx(best.floor)
    assert merge_error(u, s, gram=y @ y.T).error < 1e-6 * np.linalg.norm(y)
    turned = np.linalg.qr(np.random.default_rng(1).standard_normal((30, 7)))[0]
    far = merge_error(turned, s[:7], gram=y @ y.T)
    assert far.error > 1.1 * far.floor


def test_a_summary_of_other_rows_is_not_within():
    found = merge_error(np.eye(3)[:, [2]], [2.0], gram=np.diag([4.0, 1e-4, 0.0]))
    assert found.error == pytest.approx(math.sqrt(8 + 1e-4))
    assert not found.within


def test_a_summary_of_more_than_the_rows_is_named():
    found = merge_error(np.eye(2)[:, :1], [3.0], gram=np.diag([4.0, 1.0]))
    assert not found.applies
    assert "U S holds 9 and the rows 5" in found.why_not


# ---- rank --------------------------------------------------------------------------------------------------------


def test_the_energy_ratio_by_hand():
    assert energy_ratio(TOY, 3) == pytest.approx(2 / 11)
    assert fpca_bounds(TOY, r=3).energy == pytest.approx(2 / 11)


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=8), st.integers(1, 8))
def test_the_energy_ratio_is_at_most_1_over_r(values, r):
    """So no rank of 1/beta or more grows by (15)."""
    sigma = sorted(values, reverse=True)
    r = min(r, len(sigma))
    assert 0 < energy_ratio(sigma, r) <= (1 + 1e-12) / r
    assert energy_ratio([2.0] * 8, r) == pytest.approx(1 / r)


def test_the_bracket_by_hand():
    one = fpca_bounds(TOY, r=2, depth=0, ranks=(1, 3)).bracket
    assert (one.low, one.high, one.certain) == pytest.approx((1.0, math.sqrt(21), math.sqrt(21)))
    assert one.applies
    streamed = fpca_bounds(TOY, r=2, depth=1, blocks=3, ranks=(1, 3)).bracket
    assert streamed.certain == pytest.approx(2 * math.sqrt(21))
    assert not streamed.applies
    assert "cut 4 times" in streamed.why_not


@given(problems())
def test_the_best_pair_of_any_rank_lies_in_the_bracket(problem):
    y, r, rng = problem
    u, s = pair(y)
    low, high = sorted(rng.integers(1, len(y) + 1, size=2))
    bracket = fpca_bounds(s, r=r, depth=0, ranks=(int(low), int(high))).bracket
    for rank in range(low, high + 1):
        error = merge_error(u[:, :rank], s[:rank], gram=y @ y.T, depth=0).error
        assert bracket.low - 1e-6 * s[0] <= error <= bracket.high + 1e-6 * s[0]


def test_a_stream_of_fixed_rank_can_leave_the_bracket_as_printed():
    """One row e_1, then rows 0.9 e_2 for ever: the stream keeps e_1. (16) would make every fixed rank exact."""
    y = np.array([[1.0, 0.0, 0.0, 0.0], [0.0, 0.9, 0.9, 0.9]])
    kept = y[:, :1]
    for at in range(1, 4):
        kept = cut(np.hstack([kept, y[:, [at]]]), 1)
    error = merge_error(*pair(kept), gram=y @ y.T, depth=0, blocks=4).error
    bracket = fpca_bounds(np.linalg.svd(y, compute_uv=False), r=1, depth=0, blocks=4, ranks=(1, 1)).bracket
    assert error == pytest.approx(math.sqrt(3) * 0.9)
    assert bracket.high == pytest.approx(1.0)
    assert error > 1.5 * bracket.high
    assert error <= bracket.certain


# ---- Theorem 1 ---------------------------------------------------------------------------------------------------


def stream(values=(20.0, 10.0, 1.0), **settings):
    defaults = {"r": 1, "rows": 100, "block_rows": 10, "p": 8.0}
    return fpca_bounds(values, **{**defaults, **settings}).theorem_1


def test_theorem_1_by_hand():
    # lambda = 4, 1, 0.01; r = 2, p^(1/3) = 2: eta = 4 + sqrt(2 * 0.01 / (2 * 1)) = 4.1
    found = stream((200.0, 100.0, 10.0), r=2, rows=10_000, c=0.01)
    power = 8 * 4.1**2
    assert found.eta == pytest.approx(4.1)
    assert found.exponent == pytest.approx(power - 1)
    log_g = math.log(2) + power * math.log(4) + math.log(0.04) + (power - 1) * math.log(10_000 / (power * 10))
    assert math.log(found.empirical) == pytest.approx(log_g)
    assert found.rows_needed == pytest.approx(power * 10)
    assert found.block_needed == pytest.approx(2 * 2 / (math.sqrt(2) - 1) ** 2)
    assert found.failure == pytest.approx(10_000**-0.01 + math.exp(-0.02))
    assert found.vacuous
    two_blocks = stream((200.0, 100.0, 10.0), r=2, rows=10_000, block_rows=5000)
    assert two_blocks.asymptotic == pytest.approx(2 ** (power - 1) * 100)  # rho_2^2(Y) = 100


def test_theorem_1s_population_term():
    found = stream(values=(10.0, 10.0, 0.0), r=2, d=50, rows=100, block_rows=50, alpha=2.0)
    assert found.empirical == found.asymptotic == 0.0  # rank r: the stream is exact
    assert found.population == pytest.approx(2 * 48 * math.sqrt(math.log(100) / 100))


def test_theorem_1_by_hand_with_a_heavy_tail():
    # lambda = 2, 1 and six of 1: 2 rho^2 = 12 is above r lambda_1 + rho^2 = 10. p^(1/3) = 1.1
    values = np.sqrt(np.array([2.0, *[1.0] * 7]) * 1e6)
    found = stream(values, r=2, rows=10**6, block_rows=1000, p=1.331, alpha=2.2, c=0.05)
    power = 1.331 * (2 + math.sqrt(24)) ** 2
    log_g = math.log(2.2 * 1.1 / 0.01 * 10) + power * math.log(4) + (power - 1) * math.log(1000 / power)
    assert math.log(found.empirical) == pytest.approx(log_g)
    assert found.failure == pytest.approx(10 ** (6 * -0.05 * 4.84) + math.exp(-0.22))
    assert found.block_needed == pytest.approx(2.2 * 2 * 1.1 / (math.sqrt(1.1) - 1) ** 2)
    assert stream(values, r=2, rows=10**6, block_rows=1000, alpha=2.2, c=1e4).block_needed == pytest.approx(4.4e4)


def test_theorem_1_takes_the_smaller_factor():
    flat = stream(values=(10.0, 10.0), r=1, rows=10_000, block_rows=100, p=2.0)
    eta = 1 + math.sqrt(2 / 2 ** (1 / 3))
    assert flat.eta == pytest.approx(eta)
    steep = math.log(flat.empirical)
    base = math.log(2) / 3 - 2 * math.log(2 ** (1 / 3) - 1) + 2 * eta**2 * math.log(4)
    base += (2 * eta**2 - 1) * math.log(100 / (2 * eta**2))
    assert steep == pytest.approx(base + math.log(0.01))  # lambda_1/lambda_1 rho^2, not lambda_1 + rho^2


def test_theorem_1_grows_with_the_stream_and_its_condition_number():
    values = np.array([3.0, 2.9, 1e-3])
    short, long = (stream(values * math.sqrt(n), r=2, rows=n, block_rows=200, p=2.0) for n in (10_000, 100_000))
    assert short.eta == pytest.approx(long.eta)
    assert short.empirical < long.empirical  # by itself it does not say that more rows help
    uneven = stream(np.array([3.0, 2.0, 1e-3]) * 100, r=2, rows=10_000, block_rows=200, p=2.0)
    assert uneven.eta > short.eta
    assert uneven.empirical > short.empirical


def test_theorem_1s_conditions_are_named():
    fine = stream(np.array([3.0, 2.9, 1e-5]) * 100, r=2, rows=10_000, block_rows=200, p=2.0)
    assert fine.applies
    assert fine.why_not == ""
    assert not fine.vacuous
    assert stream(np.array([3.0, 2.9, 1e-5]) * 100, r=2, rows=10_000, block_rows=200, p=2.0, c=1e-3).vacuous
    assert "blocks of 100 rows are below the 169" in stream([3.0, 2.9], r=2, rows=9000, block_rows=100, p=2.0).why_not
    assert "tau = 500 is below" in stream([3.0, 2.9], r=2, rows=500, block_rows=400, p=2.0).why_not
    assert "alpha is 40" in stream([3.0, 2.9], r=2, rows=1000, block_rows=10, alpha=40.0).why_not
    null = stream([3.0, 0.0], r=2)
    assert "lambda_2 is 0" in null.why_not
    assert null.eta == math.inf
    assert null.empirical == 0.0


def test_theorem_1_overflows_to_infinity():
    found = stream([1e3, 1.0, 0.5], r=2)
    assert found.empirical == found.population == found.asymptotic == math.inf
    assert found.vacuous


def test_theorem_1_promises_nothing_about_short_streams():
    """As printed, G runs to 0 below tau = p eta^2 b."""
    found = stream(np.array([3.0, 2.9, 1.0]) * 10, r=2, rows=1000, block_rows=900, p=2.0)
    assert found.rows_needed > 1000
    assert found.empirical == math.inf


def test_no_choice_of_p_makes_theorem_1_small():
    """G >= 298 rho^2, as eta >= 1 and tau >= p eta^2 b."""
    for p in np.geomspace(1.01, 100, 60):
        eta_1 = fpca_bounds([1e6, 1.0], r=1, rows=10**6, block_rows=1, p=float(p)).theorem_1
        assert eta_1.empirical * 10**6 >= 298


# ---- private -----------------------------------------------------------------------------------------------------


def objective(phi, d, omega):
    a = 1 / omega**2 + math.log(2)
    inside = 1 - a / ((d - 1) * np.log(1 / np.sqrt(1 - phi**2)) - math.log(8))
    return 1 - (1 - phi) / 4 * inside**2


def admissible(d, omega):
    return max(
        1 / math.sqrt(2 * math.pi * d),
        math.sqrt(1 - math.exp(-2 * math.log(8 * d) / (d - 1))),
        math.sqrt(1 - math.exp(-(2 / omega**2 + math.log(256)) / (d - 1))),
    )


@pytest.mark.parametrize(("d", "omega"), [(3, 5.0), (50, 0.3), (784, 0.38), (784, 0.08), (784, 1e6), (10_000, 1.0)])
def test_lemma_8_is_the_minimum_over_the_interval(d, omega):
    found = fpca_correlation(d, omega)
    start = admissible(d, omega)
    grid = start + (1 - start) * np.linspace(1e-9, 1 - 1e-9, 200_001)
    assert found.phi >= start * (1 - 1e-12)
    assert found.correlation == pytest.approx(objective(grid, d, omega).min(), abs=1e-8)
    assert found.correlation == pytest.approx(objective(found.phi, d, omega), abs=1e-9)
    assert not found.vacuous


@given(st.integers(2, 10**9), st.floats(0.1, 1e8))
def test_lemma_8s_minimum_satisfies_all_of_38(d, omega):
    assert fpca_correlation(d, omega).phi >= admissible(d, omega) * (1 - 1e-12)


@given(st.integers(2, 10**6), st.floats(1e-4, 1e8), st.floats(1.0, 10))
def test_lemma_8_falls_with_noise_but_never_below_three_quarters(d, omega, more):
    first, second = fpca_correlation(d, omega), fpca_correlation(d, omega * more)
    assert 0.75 <= second.correlation <= first.correlation + 1e-12 <= 1 + 1e-12


def test_lemma_8_comes_near_three_quarters_where_there_is_nothing_but_noise():
    assert fpca_correlation(10**9, 1e9).correlation == pytest.approx(0.75, abs=1e-3)


@pytest.mark.parametrize("omega", [5e-3, 1e-3, 1e-300])
def test_lemma_8_with_little_noise_is_vacuous(omega):
    found = fpca_correlation(784, omega)
    assert found.correlation == 1.0
    assert found.vacuous


def test_lemma_9_by_hand():
    found = fpca_rows(100, epsilon=0.5, delta=0.01, correlation=0.99, c1=3.0)
    assert found.rows == pytest.approx(3 * 1000 * math.sqrt(math.log(1e4)) / 0.5 * (1 - 0.16))
    assert not found.vacuous
    assert fpca_rows(100, epsilon=0.5, delta=0.01, correlation=1.0).rows == pytest.approx(
        2000 * math.sqrt(math.log(1e4))
    )
    low = fpca_rows(100, epsilon=0.5, delta=0.01, correlation=0.93)  # below 1 - 1/16
    assert low.rows == 0.0
    assert low.vacuous
    assert not fpca_rows(100, epsilon=0.5, delta=0.01, correlation=0.93, c2=10.0).vacuous


# ---- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"values": [1.0, 2.0]}, "largest first"),
        ({"values": [1.0, -2.0]}, "none below 0"),
        ({"values": [[1.0]]}, "largest first"),
        ({"values": []}, "largest first"),
        ({"values": [math.nan, 1.0]}, "largest first"),
        ({"r": 0}, "r is 0, d 4, with 4 values"),
        ({"r": 5}, "r is 5, d 4"),
        ({"d": 3}, "r is 2, d 3, with 4 values"),
        ({"depth": -1}, "depth is -1"),
        ({"blocks": 0}, "blocks 0"),
        ({"noise": -1.0}, "noise is -1"),
        ({"noise": math.nan}, "noise is nan"),
        ({"ranks": (3, 2)}, r"ranks is \(3, 2\)"),
        ({"ranks": (1, 5)}, "<= 4, their number"),
        ({"rows": 10}, "Theorem 1 needs both"),
        ({"block_rows": 10}, "Theorem 1 needs both"),
        ({"rows": 10, "block_rows": 11}, "block_rows 11"),
        ({"rows": 1, "block_rows": 1}, "rows >= 2"),
        ({"rows": 10, "block_rows": 5, "p": 1.0}, "p > 1"),
        ({"rows": 10, "block_rows": 5, "alpha": 0.5}, "alpha 0.5"),
        ({"rows": 10, "block_rows": 5, "c": 0.0}, "c > 0"),
    ],
)
def test_refused_problems(change, words):
    settings = {"values": TOY, "r": 2, **change}
    with pytest.raises(ConfigurationError, match=words):
        fpca_bounds(settings.pop("values"), **settings)


def test_zeros_are_no_data():
    with pytest.raises(DataError, match="all singular values are 0"):
        fpca_bounds([0.0, 0.0], r=1)


def test_refused_measurements():
    gram = np.diag([2.0, 1.0, 0.5])
    with pytest.raises(DataError, match=r"pass components_\.T"):
        merge_error(np.eye(3)[:2], [1.0, 1.0], gram=gram)
    with pytest.raises(DataError, match=r"values \(1,\)"):
        merge_error(np.eye(3)[:, :2], [1.0], gram=gram)
    with pytest.raises(DataError, match="symmetric"):
        merge_error(np.eye(2)[:, :1], [1.0], gram=[[1.0, 2.0], [0.0, 1.0]])
    with pytest.raises(ConfigurationError, match="r is 3 with 2 values"):
        energy_ratio([1.0, 0.5], 3)


@pytest.mark.parametrize(("d", "omega"), [(1, 1.0), (10, 0.0), (10, math.inf), (10, math.nan)])
def test_refused_noise(d, omega):
    with pytest.raises(ConfigurationError, match="Lemma 8 needs d >= 2"):
        fpca_correlation(d, omega)


@pytest.mark.parametrize(
    "change", [{"epsilon": 0}, {"delta": 1.0}, {"correlation": 1.1}, {"c1": 0.0}, {"c2": -1.0}, {"d": 0}]
)
def test_refused_sample_sizes(change):
    settings = {"d": 10, "epsilon": 1.0, "delta": 0.1, "correlation": 0.9, **change}
    with pytest.raises(ConfigurationError, match=f"{next(iter(change))} {next(iter(change.values()))}|d is 0"):
        fpca_rows(settings.pop("d"), **settings)
