"""Noise: exact in law, equal for equal bits, from the cipher it says; the grid it lives on; shares of it."""

from __future__ import annotations

import copy
import math
import pickle
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import ndtri

from fedspan.errors import ConfigurationError
from fedspan.privacy import noise
from fedspan.privacy.noise import Grid, Stream, normal, rounded_normal, split_distance

MP = mpmath.MPContext()
MP.prec = 400


class Given(Stream):
    """A stream of words chosen by the test."""

    def __init__(self, words):
        super().__init__()
        self.words = [int(word) for word in words]

    def bits(self, n):
        taken, self.words = self.words[:n], self.words[n:]
        assert len(taken) == n, "the sampler asked for more bits than it needs"
        return np.array(taken, dtype=np.uint64)


def tail(h, sigma):
    """P(sigma N(0, 1) > h), by erf's Taylor series and not by mpmath's erfc."""
    x = MP.mpf(h) / (MP.mpf(sigma) * MP.sqrt(2))
    term = total = x
    n = 0
    while abs(term) > MP.mpf(2) ** -360:
        n += 1
        term *= 2 * x * x / (2 * n + 1)
        total += term
    return MP.mpf(1) / 2 - MP.exp(-x * x) * total / MP.sqrt(MP.pi)


# ---- the stream -----------------------------------------------------------------------------------------------------


def keyed(key):
    stream = Stream.for_testing(0)
    stream._use(key)
    return stream


def test_a_stream_is_the_published_keystream_of_aes_256():
    words = keyed(bytes(32)).bits(2)
    assert words.astype("<u8").tobytes().hex() == "dc95c078a2408989ad48a21492842087"  # NIST's AESAVS, GFSbox, all zero


def test_a_stream_counts_up_from_zero():
    key = bytes(range(32))
    blocks = b"".join(i.to_bytes(16, "big") for i in range(1000))
    expected = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(blocks)
    assert keyed(key).bits(2000).astype("<u8").tobytes() == expected


def test_asking_in_pieces_gives_the_same_words():
    whole, pieces = Stream.for_testing(1), Stream.for_testing(1)
    sizes = [1, 0, 7, noise._CHUNK + 3, 2]
    assert np.array_equal(whole.bits(sum(sizes)), np.concatenate([pieces.bits(n) for n in sizes]))


def test_testing_streams_repeat_and_differ_by_seed():
    assert np.array_equal(Stream.for_testing(1, "a").bits(8), Stream.for_testing(1, "a").bits(8))
    assert np.array_equal(Stream.for_testing(np.int64(3)).bits(8), Stream.for_testing(3).bits(8))
    seeds = [(), (1,), ("1",), (1, 2), (12,), ("1", "2"), ("1, 2",), (-1,), ("é",), (2**200,)]
    assert len({int(Stream.for_testing(*seed).bits(1)[0]) for seed in seeds}) == len(seeds)


def test_ordinary_streams_differ_and_say_that_they_are_no_tests():
    a, b = Stream(), Stream()
    assert not np.any(a.bits(64) == b.bits(64))
    assert not a.testing
    assert Stream.for_testing(1).testing
    with pytest.raises(AttributeError):
        a.testing = True


def test_a_key_is_replaced_before_its_share_is_used_up(monkeypatch):
    monkeypatch.setattr(noise, "_BYTES_PER_KEY", 64)
    words = keyed(bytes(32)).bits(12).astype("<u8").tobytes()
    monkeypatch.undo()
    first = keyed(bytes(32)).bits(12).astype("<u8").tobytes()
    assert words[:64] == first[:64]
    assert words[64:] == keyed(first[64:96]).bits(4).astype("<u8").tobytes()


def test_a_forked_process_gets_noise_of_its_own(monkeypatch):
    stream = Stream()
    stream._use(bytes(32))
    monkeypatch.setattr(noise.os, "getpid", lambda: -1)
    forked = stream.bits(4)
    assert not np.any(forked == keyed(bytes(32)).bits(4))
    assert not np.array_equal(forked, stream.bits(4))


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_a_stream_cannot_be_copied(copied):
    with pytest.raises(TypeError):
        copied(Stream())


def test_few_samples_need_the_exact_path():
    for sigma, most in [(1.0, 0), (2.0**24, 4), (2.0**30, 100)]:  # expected: 5e-8, 0.9 and 58
        undecided = noise._filter(Stream.for_testing("rate").bits(10**6), sigma)[1]
        assert len(undecided) <= most


# ---- the law --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [1.0, 1.5, 7.3])
def test_rounded_normals_follow_the_exact_law(sigma):
    n = 10**6
    drawn = rounded_normal(Stream.for_testing("law", str(sigma)), sigma, n)
    k = np.arange(-math.ceil(6 * sigma), math.ceil(6 * sigma) + 1)
    cdf = stats.norm.cdf((k + 0.5) / sigma)
    expected = n * np.diff(cdf, prepend=stats.norm.cdf((k[0] - 0.5) / sigma))
    seen = np.bincount(drawn - k[0], minlength=len(k))
    common = expected >= 10
    pooled = [np.append(counts[common], counts[~common].sum()) for counts in (seen, expected)]
    chi2 = np.sum((pooled[0] - pooled[1]) ** 2 / np.maximum(pooled[1], 1e-9))
    assert 0.001 < stats.chi2.sf(chi2, common.sum()) < 0.999
    assert np.max(np.abs(np.cumsum(seen) / n - cdf)) < 1.95 / math.sqrt(n)  # Kolmogorov: a chance of 0.001 at most


def test_large_rounded_normals_are_normal():
    n, sigma = 10**6, 2.0**24
    drawn = rounded_normal(Stream.for_testing("moments"), sigma, n)
    assert drawn.dtype == np.int64
    z = drawn / sigma
    for power, moment, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        assert abs(np.mean(z**power) - moment) < 4 * math.sqrt(variance / n)
    assert stats.kstest(z, "norm").pvalue > 0.001
    parity = np.mean(drawn & 1)
    assert abs(parity - 0.5) < 4 * 0.5 / math.sqrt(n)


def test_float_deviates_are_normal():
    z = normal(Stream.for_testing("floats"), 10**6)
    assert stats.kstest(z, "norm").pvalue > 0.001
    words = Stream.for_testing("floats").bits(5)
    u = (words >> np.uint64(1)).astype(float) * 2.0**-64
    assert z[:5] == pytest.approx(np.where(words & np.uint64(1), 1, -1) * ndtri(u), abs=1e-12)


@pytest.mark.parametrize("size", [0, 1, noise._CHUNK, noise._CHUNK + 1])
def test_any_size(size):
    assert rounded_normal(Stream.for_testing(1), 3.0, size).shape == (size,)
    assert normal(Stream.for_testing(1), size).shape == (size,)


@pytest.mark.parametrize("sigma", [0.99, 0.0, -1.0, 2.0**30 + 1, math.inf, math.nan])
def test_sigma_out_of_range_is_refused(sigma):
    with pytest.raises(ConfigurationError, match="grid steps"):
        rounded_normal(Stream.for_testing(1), sigma, 1)


# ---- the filter and the exact path -----------------------------------------------------------------------------------


def test_the_margin_is_ten_times_the_error_of_ndtri():
    rng = np.random.default_rng(0)
    u = np.concatenate(
        [
            rng.random(1000) / 2,
            2.0 ** -rng.uniform(1, 65, 1000),
            0.5 - 2.0 ** -rng.uniform(2, 54, 300),
            math.exp(-2) * (1 + rng.uniform(-1e-2, 1e-2, 500)),  # where Cephes changes from one formula to another
            math.exp(-32) * (1 + rng.uniform(-1e-2, 1e-2, 200)),
        ]
    )
    z = ndtri(u)
    with MP.workprec(160):
        off = [
            float((MP.ncdf(MP.mpf(b)) - MP.mpf(a)) / MP.npdf(b)) for a, b in zip(u.tolist(), z.tolist(), strict=True)
        ]
    assert 10 * np.max(np.abs(off) / (1 + np.abs(z))) <= noise._MARGIN


@pytest.mark.parametrize("sigma", [1.0, 7.3, 2.0**24, 1.7 * 2**24, 2.0**30])
def test_the_filter_decides_as_the_exact_path_does(monkeypatch, sigma):
    fast = rounded_normal(Stream.for_testing("filter", str(sigma)), sigma, 300)
    monkeypatch.setattr(noise, "_MARGIN", math.inf)
    calls = []
    exact = noise._exact
    monkeypatch.setattr(noise, "_exact", lambda *a: calls.append(a) or exact(*a[:3], 0))  # and without the guess
    assert np.array_equal(rounded_normal(Stream.for_testing("filter", str(sigma)), sigma, 300), fast)
    assert len(calls) == 300


@pytest.mark.parametrize("sigma", [1.0, 1.5, 1000.1, 2.0**24, 1.9 * 2**24, 2.0**30])
def test_words_next_to_a_half_integer_are_decided_rightly(sigma):
    """The filter's hardest inputs: words from 1 to 2^14 intervals away from the edge between two integers."""
    words, expected = [], []
    for z in np.linspace(0, 7, 25):
        k = int(z * sigma)
        edge = int(MP.floor(tail(k + MP.mpf(1) / 2, sigma) * MP.mpf(2) ** 64))
        room = (
            int(MP.floor(tail(k + MP.mpf(3) / 2, sigma) * MP.mpf(2) ** 64)),
            (int(MP.floor(tail(k - MP.mpf(1) / 2, sigma) * MP.mpf(2) ** 64)) if k else 2**63),
        )
        for away in (1, 2, 3, 100, 2**14):
            if edge - away > room[0]:
                words += [(edge - away) << 1, (edge - away) << 1 | 1]
                expected += [k + 1, -k - 1]
            if edge + away < room[1]:
                words += [(edge + away) << 1, (edge + away) << 1 | 1]
                expected += [k, -k]
    assert len(words) > 300
    assert rounded_normal(Given(words), sigma, len(words)).tolist() == expected


@pytest.mark.parametrize("sigma", [1.0, 7.3, 1.9 * 2**24])
@pytest.mark.parametrize("z", [0.0, 0.8, 3.3])
def test_an_interval_across_an_edge_is_given_more_bits(sigma, z):
    k = int(z * sigma)
    scaled = tail(k + MP.mpf(1) / 2, sigma) * MP.mpf(2) ** 192
    digits = int(MP.floor(scaled))
    first, second, third = digits >> 128, (digits >> 64) % 2**64, digits % 2**64
    assert rounded_normal(Given([first << 1, 0]), sigma, 1) == [k + 1]
    assert rounded_normal(Given([first << 1, 2**64 - 1]), sigma, 1) == [k]
    assert rounded_normal(Given([first << 1 | 1, second, third - 1]), sigma, 1) == [-k - 1]
    assert rounded_normal(Given([first << 1 | 1, second, third + 1]), sigma, 1) == [-k]
    later = Given([first << 1, 10**18, second + 1, 5])  # the bits of a chunk come first, then what it lacks
    assert rounded_normal(later, sigma, 2)[0] == k
    assert later.words == [5]


@pytest.mark.parametrize("sigma", [1.0, 2.0**30])
def test_the_outermost_interval_is_continued(sigma):
    u = MP.mpf(5) / MP.mpf(2) ** 128
    (k,) = rounded_normal(Given([0, 5, 0, 0]), sigma, 1).tolist()
    assert k > 12.8 * sigma
    assert MP.erfc((k + MP.mpf(1) / 2) / sigma / MP.sqrt(2)) / 2 <= u < MP.erfc((k - 0.5) / sigma / MP.sqrt(2)) / 2
    assert rounded_normal(Given([2**64 - 1, 2**64 - 2, 0, 0]), sigma, 2).tolist() == [0, 0]


def test_a_bad_guess_costs_nothing_but_time():
    known = int(tail(MP.mpf(1000.2), 700.0) * MP.mpf(2) ** 64)
    for guess in (0, 1, 999, 1000, 1001, 5000, 10**9):
        assert noise._exact(Given([]), known, 700.0, guess) == 1000


# ---- the grid -------------------------------------------------------------------------------------------------------

GRIDS = st.integers(-900, 900).map(lambda e: Grid(2.0**e))


@given(st.floats(1e-200, 1e200), st.floats(1, 2**29))
def test_a_grid_for_noise_has_the_steps_asked_for(sigma, at_least):
    step = Grid.for_noise(sigma, at_least).step
    assert math.frexp(step)[0] == 0.5
    assert at_least <= sigma / step < 2 * at_least


def test_a_grid_for_noise_at_its_edges():
    assert Grid.for_noise(1.0) == Grid(2.0**-24)
    assert Grid.for_noise(math.nextafter(1.0, 0)) == Grid(2.0**-25)
    assert isinstance(Grid(1).step, float)


@given(GRIDS, st.lists(st.integers(-(2**53), 2**53)))
def test_the_grid_is_exact_below_two_to_the_53(grid, k):
    values = grid.from_grid(k)
    assert [math.ldexp(n, math.frexp(grid.step)[1] - 1) for n in k] == values.tolist()
    assert grid.to_grid(values).tolist() == k


@given(GRIDS, st.lists(st.floats(-(2.0**61), 2.0**61), min_size=1), st.randoms(use_true_random=False))
def test_rounding_moves_two_inputs_apart_by_its_sensitivity_at_most(grid, x, random):
    y = [value + random.uniform(-3, 3) for value in x]
    a, b = np.array(x), np.array(y)
    moved = grid.to_grid(a * grid.step) - a
    assert np.all(np.abs(moved) <= 0.5)
    apart = np.linalg.norm((grid.to_grid(a * grid.step) - grid.to_grid(b * grid.step)).astype(float))
    assert apart * grid.step <= (np.linalg.norm(a - b) * grid.step + grid.rounding_sensitivity(len(x))) * (1 + 1e-9)
    assert grid.rounding_sensitivity(len(x)) == math.sqrt(len(x)) * grid.step


@pytest.mark.parametrize("value", [2.0**62, -(2.0**62), 1e308, math.inf, -math.inf, math.nan])
def test_what_does_not_fit_the_grid_is_cut_and_not_refused(value):
    edge = 0 if math.isnan(value) else int(math.copysign(2**62, value))
    np.testing.assert_array_equal(Grid(1.0).to_grid([0.0, value, 1.0]), [0, edge, 1])
    assert Grid(2.0**-900).to_grid(value) == edge
    noised = Grid(1.0).add_on_grid(Stream.for_testing(1), [value], 2.0**25)
    assert abs(noised[0] - edge) < 10 * 2.0**25
    assert Grid(1.0).to_grid(math.nextafter(2.0**62, 0)) == 2**62 - 512


@pytest.mark.parametrize("step", [0.0, -1.0, 3.0, 0.1, math.inf, math.nan, 2.0**-1000])
def test_a_step_is_a_power_of_two(step):
    with pytest.raises(ConfigurationError, match="power of two"):
        Grid(step)


@pytest.mark.parametrize(("sigma", "at_least"), [(0.0, 1), (-1.0, 1), (math.nan, 1), (1.0, 0.5), (1.0, 2**30)])
def test_a_grid_for_impossible_noise_is_refused(sigma, at_least):
    with pytest.raises(ConfigurationError, match="at_least"):
        Grid.for_noise(sigma, at_least)


def test_noise_on_the_grid():
    grid, x = Grid.for_noise(0.3), np.linspace(-5, 5, 60_000).reshape(200, 300)
    out = grid.add_on_grid(Stream.for_testing("grid"), x, 0.3)
    assert out.shape == x.shape
    added = rounded_normal(Stream.for_testing("grid"), 0.3 / grid.step, x.size).reshape(x.shape)
    assert np.array_equal(grid.to_grid(out), grid.to_grid(x) + added)
    assert np.array_equal(out, np.rint(out / grid.step) * grid.step)
    assert np.std(out - x) == pytest.approx(0.3, rel=0.02)
    assert grid.add_on_grid(Stream.for_testing("grid"), 1.0, 0.3).shape == ()
    huge = grid.add_on_grid(Stream.for_testing("grid"), np.array([2.0**61, -(2.0**61)]) * grid.step, 0.3)
    assert np.abs(huge) / grid.step == pytest.approx(2.0**61)


# ---- shares of noise ------------------------------------------------------------------------------------------------


def distance(s, m):
    """The total variation that `split_distance` bounds, from exact convolutions in high precision."""
    reach = math.ceil(14 * s)
    share = [MP.erfc((k - MP.mpf(1) / 2) / s / MP.sqrt(2)) / 2 for k in range(-reach, reach + 2)]
    share = [a - b for a, b in pairwise(share)]
    unit = 2**300  # integers of 300 binary digits: numpy convolves these, and floats would hide what is looked for
    pmf = ints = np.array([int(MP.nint(p * unit)) for p in share], dtype=object)
    for _ in range(m - 1):
        pmf = np.convolve(pmf, ints) // unit
    other = [one_rounding(k, MP.sqrt(m) * s, m) for k in range(-m * reach, m * reach + 1)]
    assert abs(sum(other) - 1) < 1e-40
    return float(sum(abs(MP.mpf(int(p)) / unit - q) for p, q in zip(pmf, other, strict=True)) / 2)


def one_rounding(k, tau, m):
    """P(round(N(0, tau²) + m - 1 uniforms) = k): an m-fold difference of the m-fold integral of the density."""
    total = MP.mpf(0)
    for i in range(m + 1):
        x = k + MP.mpf(m) / 2 - i
        before, now = MP.npdf(x, 0, tau), MP.erfc(-x / tau / MP.sqrt(2)) / 2
        for n in range(2, m + 1):
            before, now = now, (x * now + tau**2 * before) / (n - 1)
        total += (-1) ** i * math.comb(m, i) * now
    return total


@pytest.mark.parametrize("m", [2, 3, 5])
@pytest.mark.parametrize("s", [0.5, 0.8, 1.0, 1.5, 2.0])
def test_shares_of_noise_are_as_near_to_one_gaussian_as_said(s, m):
    true, bound = distance(s, m), split_distance(s, m)
    assert 0 < true <= bound <= 1
    if s >= 1:
        assert bound < 1e4 * true  # and the bound has the right exponent


def test_shares_of_noise_at_the_ends():
    assert split_distance(1.0, 1) == 0
    assert split_distance(2.0**10, 2) == split_distance(2.0**24, 10**6) == 0
    assert split_distance(0.01, 3) == 1
    assert split_distance(1.0, 10**7) == 1
    assert 0 < split_distance(3.0, 1000) < 1e-60
    for s, m in [(0.0, 2), (-1.0, 2), (math.nan, 2), (math.inf, 2), (1.0, 0)]:
        with pytest.raises(ConfigurationError, match="sigma is positive"):
            split_distance(s, m)
