"""Who a site is: an Ed25519 key that outlives its runs."""

from __future__ import annotations

import hmac
from functools import lru_cache
from pathlib import Path
from typing import Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedspan.encoding import write_once
from fedspan.errors import FileError


class Identity:
    """A site's own key to sign with; `public` is what others know it by."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public = private.public_key().public_bytes_raw()

    @classmethod
    def generate(cls) -> Self:
        """Return a new identity, from the operating system's randomness."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load_or_make(cls, path: Path) -> Self:
        """Return the identity in a file, readable by its owner only; make one at first."""
        path = Path(path)
        try:
            if not path.exists():
                write_once(path, cls.generate()._bytes(), mode=0o600)
            data = path.read_bytes()
        except OSError as cause:
            raise FileError(f"{path}: the site's identity cannot be read or made ({cause})") from cause
        if len(data) == 64:
            found = cls(Ed25519PrivateKey.from_private_bytes(data[:32]))
            if found.public == data[32:]:
                return found
        raise FileError(
            f"{path} should hold an identity, 64 bytes of which the last 32 follow from the first, and does not; "
            f"restore it from a copy: the others know this site by its key"
        )

    def sign(self, message: bytes) -> bytes:
        """Return the 64 bytes of this site's signature."""
        return self._private.sign(message)

    def draws(self, about: bytes) -> bytes:
        """Return 32 bytes that nobody else can foresee: the same for the same text."""
        return hmac.digest(self._private.private_bytes_raw(), b"fedspan draws 1" + about, "sha256")

    def _bytes(self) -> bytes:
        return self._private.private_bytes_raw() + self.public


def verify(public: bytes, signature: bytes, message: bytes) -> bool:
    """Return whether a signature of the message is by the owner of a public key; whatever is malformed is not.

    >>> site = Identity.generate()
    >>> verify(site.public, site.sign(b"sum 7"), b"sum 7"), verify(site.public, site.sign(b"sum 7"), b"sum 8")
    (True, False)
    """
    if not all(isinstance(part, bytes) for part in (public, signature, message)):
        return False
    return is_by(public, signature, message)


@lru_cache(maxsize=65536)
def is_by(public: bytes, signature: bytes, message: bytes) -> bool:
    """Verify; where many sites are simulated in one process, each of them is shown the same signatures."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
