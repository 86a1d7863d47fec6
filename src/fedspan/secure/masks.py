"""Masks: the key stream of AES-256 in counter mode, added modulo 2⁶⁴.

A mask is a function of its key alone, as two sites must make the same one and cancel it. So its counter starts at 0,
and a key is used for one stream only. The counter has 128 bits: no vector is too long.
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from fedspan.errors import ConfigurationError

KEY_BYTES = 32
_CHUNK = 2**15  # words at a time: the temporary arrays stay in the processor's cache
_ZEROS = bytes(8 * _CHUNK)


def add_mask(vector: NDArray[np.uint64], key: bytes, *, sign: int) -> None:
    """Add the key's mask to a vector in place, modulo 2⁶⁴, or take it off with sign -1.

    >>> vector = np.arange(3, dtype=np.uint64)
    >>> add_mask(vector, bytes(32), sign=+1)
    >>> vector
    array([ 9910523521560253916,  9736928157321283758, 13345931270979981141],
          dtype=uint64)
    >>> add_mask(vector, bytes(32), sign=-1)
    >>> vector
    array([0, 1, 2], dtype=uint64)
    """
    _check(vector, key, sign)
    change = np.add if sign == 1 else np.subtract
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    stream = np.empty(min(len(vector), _CHUNK), dtype="<u8")
    source, target = memoryview(_ZEROS), memoryview(stream.data).cast("B")
    for start in range(0, len(vector), _CHUNK):
        part = vector[start : start + _CHUNK]
        cipher.update_into(source[: part.nbytes], target)
        change(part, stream[: len(part)], out=part)


def random_mask(key: bytes, size: int) -> NDArray[np.uint64]:
    """Return a key's mask itself."""
    mask = np.zeros(size, dtype=np.uint64)
    add_mask(mask, key, sign=+1)
    return mask


def _check(vector: NDArray[np.uint64], key: bytes, sign: int) -> None:
    good = vector.dtype == np.uint64 and vector.ndim == 1 and vector.flags.c_contiguous and vector.flags.writeable
    if not good:
        raise ConfigurationError(
            f"a mask is added to a flat, contiguous, writeable array of uint64; got {vector.dtype} of shape "
            f"{vector.shape} with strides {vector.strides}"
        )
    if len(key) != KEY_BYTES:
        raise ConfigurationError(f"a mask's key has {KEY_BYTES} bytes, got {len(key)}")
    if sign not in (1, -1):
        raise ConfigurationError(f"a mask is added with sign 1 or taken off with sign -1; got {sign!r}")
