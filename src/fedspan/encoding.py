"""Plain data to bytes and back: all that travels between sites and coordinator, or is kept on disk.

Plain data is ``None``, ``bool``, ``int``, ``float``, ``str``, lists, dicts with string keys, and numeric numpy
arrays. No pickle and no code: an unknown type is an error here, not a surprise at the other end.

The layout is one JSON header, its length in front, and the arrays' bytes behind it. Equal data gives equal bytes,
so a digest of the bytes is a digest of the data.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
import os
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedspan.errors import FileError

Array = NDArray[Any]
Plain = Any
"""None, bool, int, float, str, list, dict with string keys, or a numeric numpy array, nested."""

_MAGIC = b"FSP1"
_NUMERIC = frozenset("biuf")
_DTYPE = re.compile(r"[<>|=]?[biuf]\d{1,2}")


def encode(value: Plain) -> bytes:
    """Return the bytes of plain data.

    >>> decode(encode({"z": np.eye(2), "t": 3}))["z"]
    array([[1., 0.],
           [0., 1.]])
    """
    arrays: list[Array] = []
    header = json.dumps(_flatten(value, arrays), separators=(",", ":"), sort_keys=True).encode()
    return b"".join([_MAGIC, len(header).to_bytes(8, "little"), header, *(a.tobytes() for a in arrays)])


def decode(data: bytes) -> Plain:
    """Return the plain data that `encode` made these bytes of."""
    size = int.from_bytes(data[4:12], "little")
    if data[:4] != _MAGIC or 12 + size > len(data):
        raise FileError(f"expected fedspan's plain-data format, got {len(data)} bytes that are not; cut short?")
    try:
        value, end = _build(json.loads(data[12 : 12 + size]), data, 12 + size)
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as cause:  # sent by no friend, maybe
        raise cause if isinstance(cause, FileError) else FileError(f"plain data is damaged ({cause})") from cause
    if end != len(data):
        raise FileError(f"plain data should end after {end} bytes but has {len(data)}; cut short or damaged?")
    return value


def digest(value: Plain) -> str:
    """Return the SHA-256 of plain data, as hexadecimal."""
    return hashlib.sha256(encode(value)).hexdigest()


def payload_bytes(value: Plain) -> int:
    """Count the bytes of the numbers and texts in plain data: what a release costs on any wire.

    >>> payload_bytes({"product": np.zeros((5, 2)), "rows": 7})
    88
    """
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, dict):
        return sum(payload_bytes(v) for v in value.values())
    if isinstance(value, list | tuple):
        return sum(payload_bytes(v) for v in value)
    if isinstance(value, str):
        return len(value.encode(errors="surrogatepass"))  # whatever was received
    return 0 if value is None else 8


def write_atomically(path: Path, data: bytes) -> None:
    """Write a whole file or nothing: to a temporary file beside it, then rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_once(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write beside the place and link there: a kill leaves no half, and of two at once the first one stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(part, path)
    except FileExistsError:
        pass  # another was faster, and its content is the one
    finally:
        part.unlink()


def _flatten(value: Plain, arrays: list[Array]) -> Plain:
    """Replace arrays by their description and collect them, in order of appearance with dict keys sorted."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return {"": "float", "hex": float(value).hex()}  # exact, and able to say nan and inf
    if isinstance(value, np.ndarray) and value.dtype.kind in _NUMERIC:
        little = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<")).reshape(value.shape)
        arrays.append(little)
        return {"": "array", "dtype": little.dtype.str, "shape": list(value.shape)}
    if isinstance(value, list | tuple):
        return [_flatten(v, arrays) for v in value]
    if isinstance(value, dict) and all(isinstance(k, str) and k for k in value):
        return {k: _flatten(value[k], arrays) for k in sorted(value)}
    raise TypeError(f"only plain data travels between sites; got {type(value).__name__}: {value!r:.80}")


def _build(node: Plain, data: bytes, at: int) -> tuple[Plain, int]:
    if isinstance(node, list):
        items = []
        for child in node:
            item, at = _build(child, data, at)
            items.append(item)
        return items, at
    if not isinstance(node, dict):
        return node, at
    if node.get("") == "float":
        return float.fromhex(node["hex"]), at
    if node.get("") == "array":
        name, shape = node["dtype"], tuple(map(operator.index, node["shape"]))
        if not isinstance(name, str) or _DTYPE.fullmatch(name) is None or min(shape, default=0) < 0:
            raise FileError(f"plain data has arrays of numbers, not of {name!r:.40} with shape {shape!s:.80}")
        dtype = np.dtype(name)  # of nothing else: numpy's own parser of such texts is not for strangers
        end = at + dtype.itemsize * math.prod(shape)
        if end > len(data):
            raise FileError(f"plain data ends after {len(data)} bytes where an array needs {end}; cut short?")
        return np.frombuffer(data[at:end], dtype=dtype).reshape(shape).astype(dtype.newbyteorder("=")), end
    if "" in node:
        raise FileError(f"plain data is damaged: there is nothing called {node['']!r}")
    built = {}
    for key in sorted(node):
        built[key], at = _build(node[key], data, at)
    return built, at
