"""Reading what the other side sent: every field checked, so that nothing but a `ProtocolError` comes of rubbish."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from fedspan.encoding import Array, Plain
from fedspan.errors import ProtocolError

MOST = 2**31


def shown(value: Any) -> str:
    """Return the beginning of what was sent, for an error text; whatever it is."""
    try:
        return f"{value!r:.80}"
    except (RecursionError, ValueError):  # nested too deep, or a number of too many digits
        return type(value).__name__


def fields(message: Plain, *names: str) -> list[Any]:
    """Return the fields of a message that has these and, but for a letter, no others."""
    if not isinstance(message, dict) or set(message) != set(names):
        found = sorted(map(str, message)) if isinstance(message, dict) else type(message).__name__
        raise ProtocolError(f"a message has the fields {sorted(names)}, got {found!s:.200}")
    return [message[name] for name in names]


def table(value: Any, what: str, keys: Collection[str]) -> dict[str, Any]:
    """Return a dict of some of these keys."""
    if not isinstance(value, dict) or not set(value) <= set(keys):
        raise ProtocolError(f"{what} are a dict by {' or '.join(sorted(keys))}, got {shown(value)}")
    return value


def text(value: Any, what: str) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise ProtocolError(f"{what} is a text, got {type(value).__name__}")
    return value


def hexadecimal(value: Any, what: str, size: int) -> str:
    """Return the hexadecimal of so many bytes."""
    if not isinstance(value, str) or len(value) != 2 * size or set(value) - set("0123456789abcdef"):
        raise ProtocolError(f"{what} is {size} bytes in hexadecimal, got {shown(value)}")
    return value


def flag(value: Any, what: str) -> bool:
    """Return True or False."""
    if not isinstance(value, bool):
        raise ProtocolError(f"{what} is True or False, got {shown(value)}")
    return value


def whole(value: Any, what: str) -> int:
    """Return a whole number from 0."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < MOST:
        raise ProtocolError(f"{what} is a whole number from 0, got {shown(value)}")
    return value


def names(value: Any, what: str) -> list[str]:
    """Return names of sites, each once and in order."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ProtocolError(f"{what} is a list of sites' names, got {shown(value)}")
    if value != sorted(set(value)):
        raise ProtocolError(f"{what} names each site once, in order; got {shown(value)}")
    return value


def octets(value: Any, what: str, size: int, count: int | None = None) -> Array:
    """Return an array of bytes: ``size`` of them, or ``count`` rows of so many."""
    shape = (size,) if count is None else (count, size)
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.shape != shape:
        got = f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
        raise ProtocolError(f"{what} is an array of bytes of shape {shape}, got {got}")
    return value


def as_array(data: bytes) -> Array:
    """Return bytes as an array that can travel."""
    return np.frombuffer(data, dtype=np.uint8)


def stack(rows: list[bytes], size: int) -> Array:
    """Return byte strings of one length as rows; no rows are an array too."""
    return np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(len(rows), size)
