"""Gaussian noise for differential privacy: exact on a fixed-point grid, from a cryptographic generator.

Why it is exact. The Gaussian mechanism of the books adds a real N(0, σ²) to a value f and releases all digits; floats
cannot do that, and what they do instead has been attacked (Mironov, 2012). Here f is an integer count of grid steps,
and what is released is f + K with K = round(N(0, σ²)), `rounded_normal`. As f is an integer, f + K = round(f + N):
the release is the real-number Gaussian mechanism followed by a rounding that sees no data. Post-processing costs no
privacy, so the exact accounting of the Gaussian mechanism holds for what leaves the machine, with no error term.

How K is drawn. One bit is the sign; 63 bits say in which interval of width 2⁻⁶⁴ the tail probability U = Φ(-|Z|) < 1/2
lies, so that no precision is lost in the tails. Its image under σΦ⁻¹ is computed in float64 with a margin for every
error. If the whole image rounds to one integer, that is K. Else (8 in 10⁷ at σ = 2²⁴) U is compared with the tail
probabilities of half-integers in high precision, and is given further random bits for as long as these leave it open.
Which integer comes out depends on the bits alone, never on a float's last digit: equal bits, equal noise, everywhere.

Noise split between sites. Where m sites each add K_i = round(N(0, s²)), the sum is not a rounded Gaussian, but is so
near to one that the difference can be bounded: see `split_distance`.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
from dataclasses import dataclass, field

import mpmath
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from fedspan.errors import ConfigurationError

_CHUNK = 2**15  # numbers at a time: the temporary arrays stay in the processor's cache
_BYTES_PER_KEY = 2**36  # 2^32 blocks: told from true randomness with an advantage below 2^-64; the counter has 2^128
_MARGIN = 2.0**-46  # of |z|, times (1 + |z|): 28 times ndtri's largest error as measured, 5e-16 (1 + |z|)
_WIDTH = 1.26  # over 2^64 u: half an interval's width, as |dz/du| = 1 / density < 1.2534 / u in the lower tail
_GUARD = 64  # bits of precision beyond those of the number compared
_SURE = 2.0**-20  # in units of the last random bit: 2^30 times what rounding can make of it with that guard
_MP = mpmath.MPContext()  # our own: others may change the precision of mpmath's
_MP_LOCK = threading.Lock()
_LARGEST = 2.0**30


class Stream:
    """Random bits that nobody can predict: AES-256 in counter mode, keyed from the operating system.

    AES-256-CTR and not ChaCha20: with a processor's AES instructions it is 1.5 times as fast (7 GB/s), and its counter
    has 128 bits. The key is replaced by the stream's own output after 2³² blocks. A process that was forked off gets a
    key of its own, as the same noise twice would cancel; for the same reason a stream cannot be copied or pickled.
    """

    def __init__(self) -> None:
        self._testing = self._keyed = False
        self._use(os.urandom(32))

    @classmethod
    def of_release(cls, tag: bytes) -> Stream:
        """Return the stream of one release, keyed by its tag (`fedspan.privacy.secret`): the same if made again."""
        if len(tag) != 32:
            raise ConfigurationError(f"a release's tag has 32 bytes, got {len(tag)}")
        stream = cls()
        stream._keyed = True
        stream._use(tag)
        return stream

    @property
    def testing(self) -> bool:
        """Whether the bits can be predicted: noise from such a stream protects nothing."""
        return self._testing

    @classmethod
    def for_testing(cls, *entropy: int | str) -> Stream:
        """Return a stream that gives the same bits for the same numbers and words, on all machines.

        >>> Stream.for_testing(7, "noise").bits(1)
        array([4412464044610510294], dtype=uint64)
        """
        stream = cls()
        stream._testing = True
        seed = ascii([part if isinstance(part, str) else int(part) for part in entropy])
        stream._use(hashlib.sha256(f"fedspan.privacy.noise {seed}".encode()).digest())
        return stream

    def _use(self, key: bytes) -> None:
        self._cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        self._left = _BYTES_PER_KEY
        self._process = os.getpid()

    def bits(self, n: int) -> NDArray[np.uint64]:
        """Return the next n words of 64 random bits; asking in pieces gives the same words."""
        if self._process != os.getpid() and not self._testing and not self._keyed:
            self._use(os.urandom(32))
        words, filled = np.empty(n, dtype=np.uint64), 0
        while filled < n:
            if not self._left:
                self._use(self._cipher.update(bytes(32)))
            count = min(n - filled, self._left // 8, _CHUNK)
            self._left -= 8 * count
            words[filled : filled + count] = np.frombuffer(self._cipher.update(bytes(8 * count)), dtype="<u8")
            filled += count
        return words


def normal(stream: Stream, size: int) -> NDArray[np.float64]:
    """Return N(0, 1) deviates as floats: right to about 15 digits, with |z| < 9.3, but not exact in law."""
    out = np.empty(size)
    for start in range(0, size, _CHUNK):
        part = out[start : start + _CHUNK]
        words = stream.bits(len(part))
        part[:] = _deviates(words)[1]
        np.negative(part, out=part, where=_is_negative(words))
    return out


def rounded_normal(stream: Stream, sigma: float, size: int) -> NDArray[np.int64]:
    """Return integers distributed exactly as sigma N(0, 1) rounded to the nearest; sigma is in [1, 2³⁰].

    >>> rounded_normal(Stream.for_testing(0), 1000.0, 4)
    array([-1133,   405, -1754,  -117])
    """
    sigma = float(sigma)
    if not 1 <= sigma <= _LARGEST:
        raise ConfigurationError(f"sigma is a number of grid steps from 1 to 2^30, got {sigma!r}; choose another step")
    out = np.empty(size, dtype=np.int64)
    for start in range(0, size, _CHUNK):
        part = out[start : start + _CHUNK]
        words = stream.bits(len(part))
        part[:], undecided = _filter(words, sigma)
        for i in undecided:
            part[i] = _exact(stream, int(words[i]) >> 1, sigma, int(part[i]))
        np.negative(part, out=part, where=_is_negative(words))
    return out


def _is_negative(words: NDArray[np.uint64]) -> NDArray[np.bool_]:
    return (words & np.uint64(1)).astype(np.bool_)


def _deviates(words: NDArray[np.uint64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return 2⁶⁴ u at the middle of each word's interval, and |z| = -Φ⁻¹(u), as floats give it."""
    middle = (words >> np.uint64(1)).view(np.int64).astype(np.float64) + 0.5
    return middle, -ndtri(middle * 2.0**-64)


def _filter(words: NDArray[np.uint64], sigma: float) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """Return |K| for each word, and where that is but a guess, as an end of the word's interval may round elsewhere.

    The margin covers ndtri, the rounding of u (at most 2⁻⁵² of it, so 1.26 · 2⁻⁵² of z) and that of the products. The
    first interval has no finite image: its width counts as 2.52 sigma, more than 1/2, so it is never decided here.
    """
    middle, z = _deviates(words)
    y = sigma * z
    nearest = np.rint(y)
    slack = sigma * (_MARGIN * (1 + z) + _WIDTH / middle)
    undecided = np.flatnonzero(~(0.5 - np.abs(y - nearest) > slack))
    return nearest.astype(np.int64), undecided


def _exact(stream: Stream, known: int, sigma: float, guess: int) -> int:
    """Return |K| for the tail probability u in [known, known + 1) / 2⁶⁴; a bad guess costs time only."""
    digits = 64

    def beyond(k: int) -> bool:
        """Decide whether sigma |Z| > k + 1/2, that is u < Φ(-(k + 1/2) / sigma), with as many bits of u as it takes."""
        nonlocal known, digits
        while k >= 0:
            with _MP_LOCK, _MP.workprec(digits + _GUARD):
                edge = _MP.ldexp(_MP.erfc((2 * k + 1) / (_MP.mpf(sigma) * _MP.sqrt(8))), digits - 1)
                if known + 1 <= edge - _SURE:
                    return True
                if known >= edge + _SURE:
                    return False
            known, digits = known << 64 | int(stream.bits(1)[0]), digits + 64
        return True

    low, high, step = guess - 1, guess, 1
    while beyond(high):
        low, high, step = high, high + step, 2 * step
    step = 1
    while not beyond(low):
        low, high, step = low - step, low, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if beyond(middle) else (low, middle)
    return high


@dataclass(frozen=True)
class Grid:
    """The multiples of a step, which is a power of two so that scaling by it is exact.

    >>> Grid.for_noise(3.0)
    Grid(step=1.1920928955078125e-07)
    """

    step: float
    most: float = field(default=2.0**62, repr=False)
    """How many steps from zero a value is cut."""

    def __post_init__(self) -> None:
        """Refuse a step that is no power of two, or so extreme that multiples of it overflow or lose digits."""
        object.__setattr__(self, "step", float(self.step))
        if not (2.0**-960 <= self.step <= 2.0**960 and math.frexp(self.step)[0] == 0.5):
            raise ConfigurationError(f"a grid's step is a power of two from 2^-960 to 2^960, got {self.step!r}")

    @classmethod
    def for_noise(cls, sigma: float, at_least: float = 2**24) -> Grid:
        """Return the grid with sigma / step in [at_least, 2 at_least)."""
        if not (1e-250 <= sigma <= 1e250 and 1 <= at_least <= _LARGEST / 2):
            raise ConfigurationError(
                f"sigma is from 1e-250 to 1e250 and at_least from 1 to 2^29, got {sigma!r} and {at_least!r}"
            )
        step = math.ldexp(1.0, math.frexp(sigma)[1] - math.frexp(at_least)[1])
        return cls(step if sigma / step >= at_least else step / 2)

    def to_grid(self, x: ArrayLike) -> NDArray[np.int64]:
        """Return x in steps, rounded to the nearest (ties to even); beyond ``most`` steps cut there, NaN as 0.

        Cut and not refused: that a value was refused would tell something of it, and a cut brings neighbours no
        further apart. 2^62 steps are 10^11 deviations of the noise at least; of noise split between n sites, 2^61 / n
        steps are 10^12 / n of them.
        """
        with np.errstate(over="ignore"):
            steps = np.rint(np.asarray(x, dtype=np.float64) / self.step)
        within: NDArray[np.int64] = np.nan_to_num(np.clip(steps, -self.most, self.most)).astype(np.int64)
        return within

    def from_grid(self, k: ArrayLike) -> NDArray[np.float64]:
        """Return k steps as floats: exact for |k| ≤ 2⁵³, else rounded to a nearby multiple of the step."""
        return np.asarray(np.asarray(k, dtype=np.int64) * self.step, dtype=np.float64)

    def rounding_sensitivity(self, size: int) -> float:
        """Return the most that rounding can add to the L2 distance of two inputs of ``size`` coordinates.

        Rounding moves a coordinate by at most step / 2 on each side, so the difference of two inputs by at most a step
        in each coordinate, and by √size steps in norm; the triangle inequality does the rest.
        """
        return math.sqrt(size) * self.step

    def add_on_grid(self, stream: Stream, x: ArrayLike, sigma: float) -> NDArray[np.float64]:
        """Return x put on the grid, plus a rounded N(0, sigma²), as multiples of the step."""
        steps = self.to_grid(x)
        return self.from_grid(steps + rounded_normal(stream, sigma / self.step, steps.size).reshape(steps.shape))


def split_distance(share_sigma_in_steps: float, m: int) -> float:
    """Bound how far the sum of m shares of noise is from one rounded Gaussian: total variation, per coordinate.

    The sum of m independent round(N(0, s²)) is compared with round(N(0, m s²) + m - 1 uniforms on [-1/2, 1/2]), which
    is the Gaussian mechanism of variance m s² and post-processing. Any s > 0; 0.0 where below the least float.

    Proof. Let g be the density of N(0, s²) plus one uniform. A share is k with probability g(k), the other side with
    probability G(k), G = g * ... * g. By Poisson summation their transforms are (Σ a_j)^m and Σ a_j^m, a_j = ĝ(t + j),
    so the probabilities of any k differ by at most ∫ |(Σ a_j)^m - Σ a_j^m| dt over |t| ≤ 1/2: twice that over [0, 1/2].
    With α = 2π²s², |a_j| ≤ exp(-α (t + j)²); call that b_0 for j = 0 and b_1 for j = -1, the next in size. Those with
    j ≠ 0 sum to at most c b_1, c = 2 / (1 - e^{-2α}). All products of m factors but b_0^m then sum to at most
    Σ_{r≥1} C(m, r) c^r b_1^r b_0^{m-r}, and b_1^r b_0^{m-r} = exp(-α r (m-r) / m - α m (t - r/m)²).

    - r ≤ m/2: its integral is at most exp(-α r (m-r) / m) / (s √(2πm)). As r (m-r) / m is at least
      (m-1)/m + (r-1) (1/2 - 1/m) and C(m, r) ≤ m C(m-1, r-1), these give in all at most
      m c e^{-α (m-1)/m} (1 + c e^{-α (1/2 - 1/m)})^{m-1} / (s √(2πm)).
    - r > m/2: it is largest at t = 1/2, e^{-αm/4}; over half a unit these give in all at most (1 + c)^m e^{-αm/4} / 2.

    Let ε be twice the sum of both. Both sides are N(0, m s²) moved by at most m/2, so either is beyond K = m/2 + L s √m
    with probability at most e^{-L²/2}, which is ε for L = √(2 ln 1/ε). Half the sum of all differences is then at most
    (2K + 1) ε / 2 + ε.

    >>> split_distance(2.0, 5), split_distance(1024.0, 5)
    (3.56e-26, 0.0)
    """
    s = float(share_sigma_in_steps)
    if not (0 < s < math.inf and m >= 1):
        raise ConfigurationError(f"a share's sigma is positive, of at least 1 site; got {s!r} and {m!r}")
    if m == 1:
        return 0.0
    alpha = 2 * math.pi**2 * s * s
    c = -2 / math.expm1(-2 * alpha)
    few = math.log(2 * m * c) - alpha * (m - 1) / m - math.log(s * math.sqrt(2 * math.pi * m))
    few += (m - 1) * math.log1p(c * math.exp(-alpha * (0.5 - 1 / m)))
    log_epsilon = float(np.logaddexp(few, m * (math.log1p(c) - alpha / 4)))
    if log_epsilon >= 0:
        return 1.0
    largest = m / 2 + s * math.sqrt(m) * math.sqrt(-2 * log_epsilon)
    return math.exp(min(0.0, log_epsilon + math.log(largest + 1.5)))
