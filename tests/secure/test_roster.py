"""The roster: whose key is whose, pinned at first use."""

from __future__ import annotations

import json

import pytest

from fedspan.errors import ConfigurationError, FileError, ProtocolError
from fedspan.secure.keys import Roster

KEYS = {"clinic": b"c" * 32, "bank": b"b" * 32, "acme": b"a" * 32}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "pins" / "roster.json"


def test_it_is_a_mapping_of_names_to_keys():
    roster = Roster(KEYS)
    assert dict(roster) == KEYS
    assert roster.names == ["acme", "bank", "clinic"]
    assert roster.key("bank") == b"b" * 32
    assert "bank" in roster
    assert all(other not in roster for other in ("Bank", "", None, 7, []))
    assert roster == Roster(dict(reversed(KEYS.items())))
    assert len(roster) == 3


@pytest.mark.parametrize("name", ["mallory", "", None, []])
def test_nobody_else_has_a_key(name):
    with pytest.raises(ProtocolError, match="not on the roster; known: acme"):
        Roster(KEYS).key(name)


def test_the_digest_is_of_names_and_keys():
    rosters = [KEYS, {**KEYS, "bank": b"d" * 32}, {"bank": b"b" * 32}, {**KEYS, "bank": b"a" * 32, "acme": b"b" * 32}]
    assert len({Roster(keys).digest for keys in rosters}) == 4
    assert Roster(KEYS).digest == Roster(dict(reversed(KEYS.items()))).digest
    assert len(bytes.fromhex(Roster(KEYS).digest)) == 32


@pytest.mark.parametrize("keys", [{"a": bytes(31)}, {"a": "x" * 32}, {"": bytes(32)}, {7: bytes(32)}, {"a": None}])
def test_what_is_no_name_or_key_is_refused(keys):
    with pytest.raises(ConfigurationError, match="names and public keys of 32 bytes"):
        Roster(keys)


def test_one_key_is_not_two_sites():
    with pytest.raises(ConfigurationError, match="'bank' and 'twin' have the same key"):
        Roster({**KEYS, "twin": KEYS["bank"]})


def test_the_first_roster_is_pinned_and_the_same_one_is_welcome_again(path):
    roster = Roster(KEYS)
    assert Roster.pin(path, roster) == roster
    before = path.read_bytes()
    assert Roster.pin(path, Roster(KEYS)) == roster == Roster.load(path)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["roster.json"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bank": b"m" * 32}, "another key for bank"),
        ({"bank": b"a" * 32, "acme": b"b" * 32}, "another key for acme, bank"),
        ({"mallory": b"m" * 32}, "new mallory"),
        ({"bank": None}, "missing bank"),
        ({"bank": None, "mallory": b"m" * 32, "acme": b"x" * 32}, "for acme; new mallory; missing bank"),
    ],
)
def test_every_other_roster_is_refused_and_the_first_stays(path, change, words):
    Roster.pin(path, Roster(KEYS))
    other = Roster({name: key for name, key in {**KEYS, **change}.items() if key is not None})
    with pytest.raises(ProtocolError, match=words):
        Roster.pin(path, other)
    assert Roster.load(path) == Roster(KEYS)


GOOD = {"format": "fedspan-roster-1", "keys": {"a": "61" * 32}}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "null",
        json.dumps(GOOD)[:-5],
        json.dumps({**GOOD, "format": "other"}),
        json.dumps({"format": GOOD["format"]}),
        json.dumps({**GOOD, "keys": []}),
        json.dumps({**GOOD, "keys": {"a": "61" * 31}}),
        json.dumps({**GOOD, "keys": {"a": "zz" * 32}}),
        json.dumps({**GOOD, "keys": {"a": 7}}),
        json.dumps({**GOOD, "keys": {"a": "61" * 32, "b": "61" * 32}}),
        "[" * 100_000,
    ],
)
def test_a_damaged_file_is_refused(path, content):
    path.parent.mkdir()
    path.write_text(json.dumps(GOOD))
    assert Roster.load(path).names == ["a"]
    path.write_text(content)
    for read in (Roster.load, lambda p: Roster.pin(p, Roster(KEYS))):
        with pytest.raises(FileError, match="no roster"):
            read(path)


def test_a_file_that_is_not_there_is_refused(path):
    with pytest.raises(FileError, match="no roster"):
        Roster.load(path)
