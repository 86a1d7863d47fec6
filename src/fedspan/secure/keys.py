"""Keys: who a site is (Ed25519), what two sites share (X25519, HKDF-SHA256), and sealed boxes (ChaCha20-Poly1305).

An identity lasts as long as its file; its public half is in the roster that the sites pin, so that nobody who relays
messages can put a key of their own in another's place. A key pair is made for one round and forgotten.
"""

from __future__ import annotations

from typing import Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedspan.errors import ProtocolError
from fedspan.secure.identity import Identity, verify
from fedspan.secure.roster import Roster

__all__ = ["Identity", "KeyPair", "Roster", "open_sealed", "seal", "verify"]

_NONCE = bytes(12)  # always zeros: a key seals one message only, so no nonce is ever used twice with it


class KeyPair:
    """A secret of one round and its public half (X25519)."""

    def __init__(self, private: X25519PrivateKey) -> None:
        self._private = private
        self.public = private.public_key().public_bytes_raw()
        self._exchanged: dict[bytes, bytes] = {}

    @classmethod
    def generate(cls) -> Self:
        """Return a new pair, from the operating system's randomness."""
        return cls(X25519PrivateKey.generate())

    @classmethod
    def from_private(cls, private: bytes) -> Self:
        """Return the pair of a private half, as given back by its shares."""
        try:
            return cls(X25519PrivateKey.from_private_bytes(private))
        except (TypeError, ValueError) as cause:
            raise ProtocolError(f"a private key is 32 bytes ({cause})") from cause

    @property
    def private(self) -> bytes:
        """The secret half: 32 bytes, to be shared by `fedspan.secure.shamir` and shown to nobody."""
        return self._private.private_bytes_raw()

    def shared(self, other_public: bytes, info: bytes) -> bytes:
        """Return the 32 bytes that both sides get for the same ``info``, and nobody else does.

        >>> a, b = KeyPair.generate(), KeyPair.generate()
        >>> a.shared(b.public, b"mask") == b.shared(a.public, b"mask") != a.shared(b.public, b"box")
        True
        """
        return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(self._exchange(other_public))

    def _exchange(self, other_public: bytes) -> bytes:
        """Return what two keys agree on, worked out once: a box there and one back are under the same."""
        if other_public not in self._exchanged:
            try:
                exchanged = self._private.exchange(X25519PublicKey.from_public_bytes(other_public))
            except (TypeError, ValueError) as cause:  # malformed, or of low order: all would know what comes of it
                raise ProtocolError(f"a public key is 32 bytes that a private key was drawn for ({cause})") from cause
            self._exchanged[other_public] = exchanged
        return self._exchanged[other_public]


def seal(key: bytes, plaintext: bytes, about: bytes) -> bytes:
    """Return a box that only who has the key can open, and only about the same; a key seals one box only."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, plaintext, about)


def open_sealed(key: bytes, box: bytes, about: bytes) -> bytes:
    """Return what was sealed; refuse a box that is damaged, of another key or about something else."""
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, box, about)
    except (InvalidTag, TypeError, ValueError) as cause:
        raise ProtocolError("a sealed box is damaged, of another key or about something else") from cause
