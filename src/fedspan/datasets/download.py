"""From an address to a cached ``.npz``: fetch, check, parse, store.

Nothing half-written is ever left under a final name: work happens in a temporary folder inside the cache, and
the finished file is renamed into place. A pinned checksum must match. Where no checksum was ever published,
the SHA-256 of the first download that could be parsed is recorded in ``checksums.json`` beside the cached
files; later downloads must match it, and an `UnpinnedDownload` warning says that no more was checked.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import tempfile
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedspan.datasets.entry import Entry, RemoteFile
from fedspan.errors import DataError, FedspanError, FileError

TIMEOUT_SECONDS = 60


class UnpinnedDownload(UserWarning):
    """A file was fetched for which no published checksum is known, so its content was not verified."""


def files_put_by_hand(entry: Entry, data_folder: Path | None) -> list[list[Path]]:
    """Files of a set that nobody serves, as its own tools leave them; nothing where the first kind is not there."""
    if data_folder is None or not entry.local:
        return []
    found = [sorted((data_folder / entry.name).glob(pattern)) for pattern in entry.local]
    return found if found[0] else []


def build(entry: Entry, cache: Path, data_folder: Path | None) -> Path:
    """Fetch and parse ``entry`` into the cache; return the path of its ``.npz``."""
    local = files_put_by_hand(entry, data_folder)
    if entry.parse is None or not (entry.files or local):
        raise DataError(f"{entry.name} cannot be fetched automatically. {entry.by_hand}")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{entry.name}-", dir=cache))
    except OSError as reason:
        raise DataError(
            f"the cache folder {cache} cannot be written ({reason}); set FEDSPAN_CACHE to one that can"
        ) from reason
    try:
        if local:
            return _store(_parse(entry, entry.parse, local), work / "done.npz", cache / f"{entry.name}.npz")
        paths = [_obtain(entry, file, work, data_folder) for file in entry.files]
        recorded = read_recorded(cache)
        unpinned = {
            file.url: digest
            for file, path in zip(entry.files, paths, strict=True)
            if (digest := _verify(entry, file, path, recorded)) is not None
        }
        parts = _parse(entry, entry.parse, paths)
        _record(cache, {**recorded, **unpinned})
        stored = _store(parts, work / "done.npz", cache / f"{entry.name}.npz")
        _warn_unpinned(entry, unpinned, recorded)
        return stored
    finally:
        shutil.rmtree(work, ignore_errors=True)


def read_recorded(cache: Path) -> dict[str, str]:
    """Checksums recorded at first downloads, by address."""
    path = cache / "checksums.json"
    try:
        recorded = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as reason:
        raise FileError(f"{path} is not valid JSON ({reason}); correct it, or delete it to start anew") from reason
    return {str(url): str(digest) for url, digest in recorded.items()}


def digest_of(path: Path, algorithm: str) -> str:
    """Checksum of a file as ``algorithm:hex``."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, lambda: hashlib.new(algorithm, usedforsecurity=False))
    return f"{algorithm}:{digest.hexdigest()}"


# ------------------------------------------------------------------------------------------ steps


def _obtain(entry: Entry, file: RemoteFile, work: Path, data_folder: Path | None) -> Path:
    """A file put by hand into FEDSPAN_DATA, else a download."""
    if data_folder is not None and (by_hand := data_folder / entry.name / file.filename).is_file():
        return by_hand
    target, failures = work / file.filename, []
    for address in (file.url, *file.mirrors):
        try:
            _fetch(address, target)
        except (OSError, http.client.HTTPException) as reason:  # URLError and timeouts are OSErrors
            failures.append(f"{address} ({reason})")
        else:
            return target
    raise DataError(
        f"{entry.name} could not be downloaded from {' nor from '.join(failures)}. Without a network, "
        f"fetch the file elsewhere and put it at $FEDSPAN_DATA/{entry.name}/{file.filename}; or put a "
        f"prepared {entry.name}.npz into $FEDSPAN_DATA"
    )


def _fetch(address: str, target: Path) -> None:
    request = urllib.request.Request(address, headers={"User-Agent": "fedspan"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response, target.open("wb") as out:
        shutil.copyfileobj(response, out, 1 << 20)
        announced = response.headers.get("Content-Length")
    # A connection that breaks off reads like the end of the file, so the length has to be compared.
    if announced is not None and target.stat().st_size != int(announced):
        raise OSError(f"the connection broke off after {target.stat().st_size} of {announced} bytes")


def _verify(entry: Entry, file: RemoteFile, path: Path, recorded: Mapping[str, str]) -> str | None:
    """Compare with the pinned or the recorded checksum; return the SHA-256 of an unpinned file."""
    expected = file.checksum or recorded.get(file.url)
    found = digest_of(path, expected.split(":", 1)[0] if expected else "sha256")
    if expected is not None and found != expected:
        way_out = (
            "the transfer was damaged or the file was replaced; try again, and if it persists report it"
            if file.checksum
            else "its source has changed since it was first downloaded; to accept the new file, delete its "
            "line from checksums.json in the cache folder"
        )
        raise FileError(
            f"{file.filename} of {entry.name} has checksum {found}, expected {expected}: {way_out}. Nothing was stored"
        )
    return None if file.checksum else found


def _parse(
    entry: Entry, parse: Callable[..., dict[str, NDArray[Any]]], paths: list[Path] | list[list[Path]]
) -> dict[str, NDArray[Any]]:
    try:
        parts = parse(paths)
    except FedspanError:
        raise
    except Exception as reason:  # any reader may fail in its own way on a damaged file
        came, hint = "downloaded", "the address may now hold something else: see"
        if entry.local:
            came, hint = "put into FEDSPAN_DATA", "make it again:"
        raise FileError(
            f"what was {came} for {entry.name} cannot be read ({type(reason).__name__}: {reason}); "
            f"{hint} {entry.source}"
        ) from reason
    shape = stored_shape(parts)
    if entry.shape is not None and shape != entry.shape:
        raise FileError(
            f"what was downloaded for {entry.name} has shape {shape}, expected {entry.shape}; the address "
            f"may now hold something else: see {entry.source}"
        )
    return parts


def stored_shape(parts: Mapping[str, NDArray[Any]]) -> tuple[int, ...]:
    """Rows and columns of a stored set, whichever layout it has."""
    if "indptr" in parts:
        return tuple(int(n) for n in parts["shape"])
    if "num" in parts:
        return (len(parts["num"]), 54)
    return tuple(parts["X"].shape)


def _record(cache: Path, checksums: Mapping[str, str]) -> None:
    if not checksums:
        return
    handle, draft = tempfile.mkstemp(prefix=".checksums-", dir=cache)
    with os.fdopen(handle, "w") as out:
        out.write(json.dumps(checksums, indent=1, sort_keys=True) + "\n")
    os.replace(draft, cache / "checksums.json")


def _warn_unpinned(entry: Entry, unpinned: Mapping[str, str], recorded: Mapping[str, str]) -> None:
    for url, digest in unpinned.items():
        known = "it equals the first download" if url in recorded else f"its {digest} is recorded for later ones"
        warnings.warn(
            f"{url} has no published checksum, so the content of {entry.name} was not verified; {known}",
            UnpinnedDownload,
            stacklevel=4,  # the caller of load()
        )


def _store(parts: Mapping[str, NDArray[Any]], draft: Path, final: Path) -> Path:
    arrays: dict[str, Any] = dict(parts)
    np.savez_compressed(draft, **arrays)
    os.replace(draft, final)
    return final
