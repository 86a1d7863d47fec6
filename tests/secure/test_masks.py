"""Masks: the key stream of AES-256-CTR, added modulo 2^64."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from fedspan.errors import ConfigurationError
from fedspan.secure.masks import add_mask, random_mask

KEY = bytes(range(32))
SIZES = [0, 1, 7, 2**15 - 1, 2**15, 2**15 + 1, 100_000]
keys = st.binary(min_size=32, max_size=32)


def numbers(size: int) -> np.ndarray:
    return np.random.default_rng(size).integers(0, 2**64, size, dtype=np.uint64)


@pytest.mark.parametrize("size", SIZES)
def test_the_mask_is_the_ciphers_key_stream_in_little_endian_words(size):
    cipher = Cipher(algorithms.AES(KEY), modes.CTR(bytes(16))).encryptor()
    stream = np.frombuffer(cipher.update(bytes(8 * size)), dtype="<u8")
    vector = numbers(size)
    masked = vector.copy()
    add_mask(masked, KEY, sign=1)
    assert np.array_equal(masked, vector + stream)
    assert np.array_equal(random_mask(KEY, size), stream)


def test_the_first_block_is_aes_256_of_zero():
    block = random_mask(bytes(32), 2).astype("<u8").tobytes()
    assert block.hex() == "dc95c078a2408989ad48a21492842087"  # NIST's known answer for the key of zeros


@given(keys, keys, st.integers(0, 300))
def test_what_two_sites_add_and_take_off_cancels(one, other, size):
    a, b = numbers(size), numbers(size + 1)[:size]
    masked_a, masked_b = a.copy(), b.copy()
    add_mask(masked_a, one, sign=1)
    add_mask(masked_b, one, sign=-1)
    add_mask(masked_b, other, sign=1)
    total = masked_a + masked_b
    add_mask(total, other, sign=-1)
    assert np.array_equal(total, a + b)


@pytest.mark.parametrize("size", SIZES)
def test_adding_then_taking_off_changes_nothing(size):
    vector = numbers(size)
    masked = vector.copy()
    add_mask(masked, KEY, sign=-1)
    assert size == 0 or not np.array_equal(masked, vector)
    add_mask(masked, KEY, sign=1)
    assert np.array_equal(masked, vector)


def test_a_shorter_mask_is_the_beginning_of_a_longer_one():
    assert np.array_equal(random_mask(KEY, 40_000)[:33_000], random_mask(KEY, 33_000))


def test_another_key_is_another_mask_of_uniform_bits():
    one, other = random_mask(KEY, 50_000), random_mask(bytes(32), 50_000)
    assert not np.any(one == other)
    ones = np.bitwise_count(one ^ other).sum() / (64 * 50_000)
    assert abs(ones - 0.5) < 0.002


def test_it_is_in_place_in_a_part_of_an_array_and_nowhere_else():
    whole = numbers(100)
    before = whole.copy()
    add_mask(whole[20:50], KEY, sign=1)
    assert np.array_equal(whole[20:50], before[20:50] + random_mask(KEY, 30))
    assert np.array_equal(np.delete(whole, slice(20, 50)), np.delete(before, slice(20, 50)))


def read_only() -> np.ndarray:
    vector = numbers(4)
    vector.flags.writeable = False
    return vector


@pytest.mark.parametrize(
    ("vector", "key", "sign", "words"),
    [
        (numbers(4).reshape(2, 2), KEY, 1, "flat"),
        (numbers(8)[::2], KEY, 1, "contiguous"),
        (numbers(4).view(np.int64), KEY, 1, "uint64"),
        (np.zeros(4), KEY, 1, "uint64"),
        (numbers(4).astype(">u8"), KEY, 1, "uint64"),
        (read_only(), KEY, 1, "writeable"),
        (numbers(4), KEY[:16], 1, "32 bytes"),
        (numbers(4), KEY, 0, "sign"),
        (numbers(4), KEY, 2, "sign"),
    ],
)
def test_what_cannot_be_masked_is_refused_and_left_alone(vector, key, sign, words):
    before = vector.copy()
    with pytest.raises(ConfigurationError, match=words):
        add_mask(vector, key, sign=sign)
    assert np.array_equal(vector, before)
