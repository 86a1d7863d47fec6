"""Keys of a round: what two sites share and nobody else, and boxes that show any damage."""

from __future__ import annotations

import hmac
import itertools

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from hypothesis import given
from hypothesis import strategies as st

from fedspan.errors import ProtocolError
from fedspan.secure.keys import KeyPair, open_sealed, seal

KEY, ABOUT = bytes(range(32)), b"round 7, a to b"


@pytest.fixture(scope="module")
def pairs():
    return [KeyPair.generate() for _ in range(3)]


def test_both_sides_share_the_same_and_no_other_pair_does(pairs):
    a, b, _ = pairs
    assert a.shared(b.public, b"mask") == b.shared(a.public, b"mask")
    shared = {one.shared(other.public, b"mask") for one, other in itertools.combinations(pairs, 2)}
    assert len(shared) == 3
    assert {len(key) for key in shared} == {32}


def test_the_info_separates_what_is_shared(pairs):
    a, b, _ = pairs
    assert len({a.shared(b.public, info) for info in (b"", b"mask", b"box", b"mask 1")}) == 4


def test_a_pair_is_that_of_its_private_half(pairs):
    a, b, _ = pairs
    again = KeyPair.from_private(a.private)
    assert (again.public, again.private) == (a.public, a.private)
    assert again.shared(b.public, b"x") == b.shared(a.public, b"x")
    assert a.private.hex() not in repr(a)
    assert len({pair.private for pair in pairs}) == 3


def test_what_is_shared_is_hkdf_of_the_exchange(pairs):
    a, b, _ = pairs
    raw = X25519PrivateKey.from_private_bytes(a.private).exchange(X25519PublicKey.from_public_bytes(b.public))
    extracted = hmac.digest(bytes(32), raw, "sha256")  # RFC 5869 with no salt
    assert a.shared(b.public, b"mask") == hmac.digest(extracted, b"mask\x01", "sha256")


def test_a_box_is_chacha20_poly1305_with_the_nonce_zero():
    assert seal(KEY, b"text", ABOUT) == ChaCha20Poly1305(KEY).encrypt(bytes(12), b"text", ABOUT)


@pytest.mark.parametrize("private", [b"", bytes(31), bytes(33), "x" * 32, None])
def test_what_is_no_private_key_is_refused(private):
    with pytest.raises(ProtocolError, match="private key"):
        KeyPair.from_private(private)


LOW_ORDER = [
    bytes(32),
    (1).to_bytes(32, "little"),
    (2**255 - 20).to_bytes(32, "little"),
    (2**255 - 19).to_bytes(32, "little"),
    (2**255 - 18).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
]


@pytest.mark.parametrize("public", [*LOW_ORDER, b"", bytes(31), KEY + b"x", "x" * 32, None])
def test_a_public_key_that_tells_all_what_is_shared_is_refused(pairs, public):
    with pytest.raises(ProtocolError, match="public key"):
        pairs[0].shared(public, b"mask")


@given(st.binary(max_size=200), st.binary(max_size=50))
def test_a_box_gives_back_what_was_sealed(plaintext, about):
    assert open_sealed(KEY, seal(KEY, plaintext, about), about) == plaintext


def test_a_box_with_any_byte_changed_is_refused():
    box = seal(KEY, b"two shares of a secret", ABOUT)
    for place in range(len(box)):
        changed = bytearray(box)
        changed[place] ^= 1
        with pytest.raises(ProtocolError, match="damaged"):
            open_sealed(KEY, bytes(changed), ABOUT)


@pytest.mark.parametrize(
    ("key", "cut", "about"),
    [
        (KEY[::-1], None, ABOUT),
        (KEY[1:], None, ABOUT),
        (KEY, -1, ABOUT),
        (KEY, 5, ABOUT),
        (KEY, 0, ABOUT),
        (KEY, None, b"round 8, a to b"),
    ],
)
def test_a_box_of_another_key_or_cut_short_or_about_something_else_is_refused(key, cut, about):
    box = seal(KEY, b"two shares of a secret", ABOUT)
    assert b"shares" not in box
    with pytest.raises(ProtocolError, match="damaged"):
        open_sealed(key, box[:cut], about)


@pytest.mark.parametrize("box", [None, "text", 7])
def test_what_is_no_box_is_refused(box):
    with pytest.raises(ProtocolError, match="damaged"):
        open_sealed(KEY, box, ABOUT)
