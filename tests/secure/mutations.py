"""Plain data, damaged: what is right but for one place, or nothing that anybody would send."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import numpy as np

DTYPES = ["u1", "i1", "<u8", ">u8", "<i8", "<f8", ">f4", "<f2", "?"]
TEXTS = ["", "x", "s000", "\ud800", "\x00", "é" * 7, "00" * 32, "FF" * 32, "0" * 63, "name", "value", "bound"]
NUMBERS = [0, 1, -1, 2, 2**31 - 1, 2**31, -(2**31), 2**63, 2**64, 10**40, True, False, None]
FLOATS = [0.0, -0.0, 1.5, float("nan"), float("inf"), -float("inf"), 1e308, 5e-324]


def rubbish(rng: Random, depth: int = 3) -> Any:
    """Any plain data."""
    kind = rng.randrange(9 if depth else 5)
    if kind == 0:
        return rng.choice(TEXTS)
    if kind == 1:
        return rng.choice(NUMBERS)
    if kind == 2:
        return rng.choice(FLOATS)
    if kind in (3, 4):
        return array(rng)
    if kind in (5, 6):
        return [rubbish(rng, depth - 1) for _ in range(rng.randrange(4))]
    keys = ["from", "boxes", "names", "digests", "letter", "session", "alive", "refused", "kind", "x"]
    return {rng.choice(keys): rubbish(rng, depth - 1) for _ in range(rng.randrange(4))}


def array(rng: Random) -> np.ndarray:
    """Any small array of numbers."""
    shape = tuple(rng.choice([0, 1, 2, 3, 32, 64, 82, 128]) for _ in range(rng.randrange(3)))
    size = int(np.prod(shape)) if shape else 1
    dtype = np.dtype(rng.choice(DTYPES))
    data = np.frombuffer(rng.randbytes(size * dtype.itemsize), np.uint8)
    found = (data & 1 if dtype.kind == "b" else data).view(dtype)
    return found.reshape(shape).copy()


def mutate(value: Any, rng: Random) -> Any:
    """Return a value that differs in one place."""
    if rng.randrange(12) == 0:
        return rubbish(rng)
    if isinstance(value, dict) and value:
        return _dict(value, rng)
    if isinstance(value, list) and value:
        return _list(value, rng)
    if isinstance(value, np.ndarray):
        return _array(value, rng)
    if isinstance(value, str) and value:
        return _text(value, rng)
    if isinstance(value, int):
        return rng.choice([value + 1, value - 1, -value, value << 40, float(value), str(value), None, not value])
    return rubbish(rng)


def _dict(value: dict[str, Any], rng: Random) -> dict[str, Any]:
    key = rng.choice(sorted(value))
    match rng.randrange(8):
        case 0:
            return {k: v for k, v in value.items() if k != key}
        case 1:
            return {**value, rng.choice(["more", "refused", "letter"]): rubbish(rng, 1)}
        case 2:
            return {(f"{k}x" if k == key else k): v for k, v in value.items()}
        case 3:
            return {**value, key: value[rng.choice(sorted(value))]}
    return {**value, key: mutate(value[key], rng)}


def _list(value: list[Any], rng: Random) -> list[Any]:
    i = rng.randrange(len(value))
    match rng.randrange(7):
        case 0:
            return value[:i] + value[i + 1 :]
        case 1:
            return [*value[:i], value[i], *value[i:]]
        case 2:
            return value[::-1]
        case 3:
            return rng.sample(value, len(value))
        case 4:
            return [*value, rubbish(rng, 1)]
    return [*value[:i], mutate(value[i], rng), *value[i + 1 :]]


def _array(value: np.ndarray, rng: Random) -> Any:
    match rng.randrange(9):
        case 0:
            return value[:-1] if value.ndim else array(rng)
        case 1:
            return np.concatenate([value, value[:1]]) if value.ndim else array(rng)
        case 2:
            return value.reshape(-1)
        case 3:
            return value[None]
        case 4:
            return value.astype(rng.choice(["i1", "<f8", "<u2", ">u8"]))
        case 5:
            return value[::-1].copy() if value.ndim else value
        case 6:
            return value.tolist()
    changed = value.copy()
    if changed.size:
        octets = changed.reshape(-1).view(np.uint8)
        octets[rng.randrange(octets.size)] ^= 1 << rng.randrange(8)
    return changed


def _text(value: str, rng: Random) -> Any:
    i = rng.randrange(len(value))
    match rng.randrange(6):
        case 0:
            return value[:-1]
        case 1:
            return value.upper() if value.upper() != value else value + "0"
        case 2:
            return value[:i] + rng.choice(["\ud800", "0", "g", " "]) + value[i + 1 :]
        case 3:
            return value.encode("utf-8", "surrogatepass").hex()
        case 4:
            return rng.choice(TEXTS)
    return value + value


def reheaded(data: bytes, rng: Random) -> bytes:
    """Return encoded plain data whose description differs in one place."""
    size = int.from_bytes(data[4:12], "little")
    try:
        header = json.dumps(mutate(json.loads(data[12 : 12 + size]), rng)).encode()
    except (TypeError, ValueError):  # an array is no part of a description
        header = rng.choice([b"{}", b"[", b'{"":7}', b'{"":"array"}', b"1e999", b'{"":"float","hex":"x"}'])
    return data[:4] + len(header).to_bytes(8, "little") + header + data[12 + size :]


def damaged(data: bytes, rng: Random) -> bytes:
    """Return bytes that differ in a few places, are cut short or go on."""
    match rng.randrange(5):
        case 0:
            return data[: rng.randrange(len(data) + 1)]
        case 1:
            return data + rng.randbytes(rng.randrange(1, 9))
        case 2:
            i = rng.randrange(len(data) + 1)
            return data[:i] + rng.randbytes(rng.randrange(1, 9)) + data[i:]
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        if changed:
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)
