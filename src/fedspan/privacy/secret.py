"""A site's secret: what the noise of its releases is keyed by, while a run lasts.

The noise of a release is a function of the secret and of the release itself: its question, its preparation, its noise
scale and the very numbers that are noised. Made again, it gets the same noise, so nothing averages out; where anything
about it differs, it gets other noise, and is another release that is charged. Whoever has the secret and the noised
release can take the noise off, so it is kept apart from both, readable by its owner only, and destroyed when the run is
done.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path

from fedspan.encoding import Plain, encode, write_once
from fedspan.errors import FileError

KEY = "noise.key"


class Secret:
    """32 random bytes: in memory, or in a file of their own that survives a kill."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._bytes: bytes | None = None

    def tag(self, *about: Plain) -> bytes:
        """Return what only the owner of the secret can tell from random bytes: the same for the same plain data."""
        return hmac.digest(self._load(), hashlib.sha256(encode(list(about))).digest(), "sha256")

    def destroy(self) -> None:
        """Forget the secret: the noise drawn with it can never be taken off again."""
        self._bytes = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _load(self) -> bytes:
        if self._bytes is None:
            self._bytes = os.urandom(32) if self._path is None else _read_or_make(self._path)
        return self._bytes


def _read_or_make(path: Path) -> bytes:
    if not path.exists():
        write_once(path, os.urandom(32), mode=0o600)
    secret = path.read_bytes()
    if len(secret) != 32:
        raise FileError(f"{path} should hold 32 bytes and has {len(secret)}; remove it: charged releases cost again")
    return secret
