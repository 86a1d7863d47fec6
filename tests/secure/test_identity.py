"""Who a site is: signatures that only it can make, by a key that outlives its runs."""

from __future__ import annotations

import threading

import pytest

from fedspan.errors import FileError
from fedspan.secure import identity
from fedspan.secure.keys import Identity, verify

MESSAGE = b"the survivors of round 7"


@pytest.fixture
def site():
    return Identity.generate()


def test_a_signature_is_its_owners_and_of_one_message(site):
    signature = site.sign(MESSAGE)
    assert (len(site.public), len(signature)) == (32, 64)
    assert verify(site.public, signature, MESSAGE)
    assert not verify(site.public, signature, MESSAGE + b"0")
    assert not verify(Identity.generate().public, signature, MESSAGE)


def test_a_signature_with_any_byte_changed_is_none(site):
    signature = site.sign(MESSAGE)
    for place in range(64):
        changed = bytearray(signature)
        changed[place] ^= 1
        assert not verify(site.public, bytes(changed), MESSAGE)


@pytest.mark.parametrize(
    "junk", [b"", bytes(31), bytes(63), bytes(65), b"\xff" * 32, b"\xff" * 64, None, "x" * 32, 7, []]
)
def test_what_is_malformed_verifies_nothing_and_raises_nothing(site, junk):
    signature = site.sign(MESSAGE)
    assert verify(junk, signature, MESSAGE) is False
    assert verify(site.public, junk, MESSAGE) is False
    assert verify(site.public, signature, junk) is False


def test_a_signature_that_was_verified_is_not_verified_again_and_speaks_for_no_other(site, monkeypatch):
    signature = site.sign(MESSAGE)
    assert verify(site.public, signature, MESSAGE)
    monkeypatch.setattr(identity, "Ed25519PublicKey", None)  # with which nothing can be verified any more
    assert verify(site.public, signature, MESSAGE)
    with pytest.raises(AttributeError):
        verify(site.public, signature, MESSAGE + b"0")


def test_an_identity_in_a_file_lasts_and_is_its_owners_alone(tmp_path):
    path = tmp_path / "keys" / "identity"
    first = Identity.load_or_make(path)
    again = Identity.load_or_make(path)
    assert again.public == first.public
    assert verify(first.public, again.sign(MESSAGE), MESSAGE)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["identity"]
    assert Identity.load_or_make(tmp_path / "other").public != first.public


def test_of_many_at_once_the_first_identity_is_everybodys(tmp_path):
    found, ready = [], threading.Barrier(8)

    def load() -> None:
        ready.wait()
        found.append(Identity.load_or_make(tmp_path / "identity").public)

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


def test_a_damaged_file_is_refused_and_not_replaced(tmp_path):
    path = tmp_path / "identity"
    Identity.load_or_make(path)
    good = path.read_bytes()
    changed = bytearray(good)
    changed[3] ^= 8
    for damaged in (b"", good[:-1], good + b"\n", bytes(changed), bytes(64)):
        path.write_bytes(damaged)
        with pytest.raises(FileError, match="should hold an identity"):
            Identity.load_or_make(path)
        assert path.read_bytes() == damaged


def test_a_place_that_cannot_hold_a_file_is_said(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "file" / "identity"):
        with pytest.raises(FileError, match="cannot be read or made"):
            Identity.load_or_make(path)
