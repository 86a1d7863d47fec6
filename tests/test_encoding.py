"""Plain data to bytes and back: exact, canonical, and nothing but plain data."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from datetime import date

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from fedspan.encoding import decode, digest, encode, payload_bytes, write_atomically
from fedspan.errors import FileError

DTYPES = ["<f8", "<f4", "<i8", "<i4", "<u1", "<u8", "|b1", "<f2"]
arrays = npst.arrays(st.sampled_from(DTYPES), npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
keys = st.text(min_size=1, max_size=6)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
plain = st.recursive(
    scalars | arrays,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


def same(one, other):
    """Equal in type, structure and bits."""
    if isinstance(one, np.ndarray):
        return (
            isinstance(other, np.ndarray)
            and (one.dtype, one.shape) == (other.dtype, other.shape)
            and one.tobytes() == other.tobytes()
        )
    if isinstance(one, dict):
        return isinstance(other, dict) and set(one) == set(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return isinstance(other, float) and (one.hex() == other.hex())  # nan is nan, whatever its payload
    return type(one) is type(other) and one == other


@given(plain)
def test_what_goes_in_comes_out(value):
    assert same(value, decode(encode(value)))


@given(plain)
def test_decoding_and_encoding_again_gives_the_same_bytes(value):
    data = encode(value)
    assert encode(decode(data)) == data


@given(st.dictionaries(keys, scalars | arrays, min_size=2, max_size=5))
def test_equal_data_has_equal_bytes_whatever_the_order_of_its_keys(value):
    backwards = dict(reversed(value.items()))
    assert encode(value) == encode(backwards)
    assert digest(value) == digest(backwards)


@given(arrays)
def test_equal_arrays_have_equal_bytes_whatever_their_layout(array):
    wide = np.zeros((*array.shape, 2), dtype=array.dtype)
    wide[..., 0] = array
    for other in (np.asfortranarray(array), wide[..., 0], array.astype(array.dtype.newbyteorder(">"))):
        assert encode(other.reshape(array.shape)) == encode(array)


@given(plain, plain)
def test_different_data_has_different_digests(one, other):
    assert (digest(one) == digest(other)) == (encode(one) == encode(other))
    if encode(one) == encode(other):
        assert same(decode(encode(one)), decode(encode(other)))


@pytest.mark.parametrize("value", [1.0, np.float64(1.0), 1, True, "1", [1], np.array(1), np.array([1]), None], ids=repr)
def test_types_are_told_apart(value):
    others = [1.0, 1, True, "1", [1], np.array(1), np.array([1]), np.array(1.0), None]
    assert sum(encode(value) == encode(other) for other in others) == 1


@pytest.mark.parametrize("number", [0.1, -0.0, float("inf"), float("-inf"), 5e-324, 1.7976931348623157e308, 2**200])
def test_numbers_are_exact(number):
    out = decode(encode(number))
    assert out == number
    assert np.signbit(float(out)) == np.signbit(float(number))


def test_nan_is_kept():
    assert np.isnan(decode(encode(float("nan"))))


def test_numpy_scalars_become_numbers():
    assert type(decode(encode(np.int32(7)))) is int
    assert type(decode(encode(np.float32(0.5)))) is float
    assert decode(encode((1, 2))) == [1, 2]


def test_a_decoded_array_can_be_written_to():
    out = decode(encode(np.zeros(3)))
    out[0] = 1.0
    assert out.flags.owndata or out.base.flags.writeable


@dataclass
class Thing:
    x: int = 1


@pytest.mark.parametrize(
    "value",
    [
        Thing(),
        object(),
        lambda: 1,
        print,
        int,
        {1: "a"},
        {"": 1},
        {("a",): 1},
        {1, 2},
        b"bytes",
        1j,
        date(2020, 1, 1),
        np.array(["a"]),
        np.array([object()]),
        np.array([1j]),
        np.array(["2020-01-01"], dtype="datetime64[D]"),
        np.zeros(2, dtype=[("a", float)]),
        np.random.default_rng(0),
    ],
    ids=lambda v: type(v).__name__,
)
@pytest.mark.parametrize("nest", [lambda v: v, lambda v: [v], lambda v: {"a": {"b": v}}], ids=["bare", "list", "dict"])
def test_whatever_is_not_plain_is_refused(value, nest):
    with pytest.raises(TypeError, match="only plain data travels between sites"):
        encode(nest(value))


def test_nothing_is_unpickled(monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("unpickled")

    monkeypatch.setattr(pickle, "loads", never)
    monkeypatch.setattr(pickle, "load", never)
    assert same(decode(encode({"z": np.eye(2)})), {"z": np.eye(2)})
    with pytest.raises(FileError, match="expected fedspan's plain-data format"):
        decode(pickle.dumps({"z": 1}))


@given(plain, st.data())
def test_bytes_cut_short_are_an_error(value, data):
    encoded = encode(value)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(FileError):
        decode(encoded[:cut])


@given(plain, st.binary(min_size=1, max_size=9))
def test_bytes_too_many_are_an_error(value, more):
    with pytest.raises(FileError, match="should end after"):
        decode(encode(value) + more)


def header(text):
    raw = text if isinstance(text, bytes) else json.dumps(text).encode()
    return b"FSP1" + len(raw).to_bytes(8, "little") + raw


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"FSP1",
        b"FSP2" + encode(1)[4:],
        header(b"{not json"),
        header(b"\xff\xfe"),
        header({"": "array", "dtype": "<f8", "shape": [2]}),
        header({"": "array", "dtype": "O", "shape": [1]}) + b"12345678",
        header({"": "array", "dtype": "<U2", "shape": [1]}) + b"12345678",
        header({"": "array", "dtype": "nonsense", "shape": [1]}) + b"12345678",
        header({"": "array", "dtype": ",", "shape": [1]}) + b"12345678",
        header({"": "array", "dtype": "3f8", "shape": [1]}) + b"12345678",
        header({"": "array", "dtype": ["f8"], "shape": [1]}) + b"12345678",
        header({"": "array", "dtype": "<f3", "shape": [1]}) + b"12345678",
        header({"": "array", "dtype": "<f8", "shape": [-1]}),
        header({"": "array", "dtype": "<f8", "shape": "ab"}),
        header({"": "array"}),
        header({"": "float"}),
        header({"": "float", "hex": "zz"}),
        header({"": "code", "text": "1"}),
        b"FSP1" + (2**62).to_bytes(8, "little") + b"1",
    ],
    ids=range(20),
)
def test_damaged_bytes_are_an_error_of_ours(data):
    with pytest.raises(FileError):
        decode(data)


@given(plain, st.integers(0, 10**6), st.integers(1, 255))
def test_a_flipped_byte_is_other_data_or_an_error_of_ours(value, at, flip):
    data = bytearray(encode(value))
    data[at % len(data)] ^= flip
    try:
        decode(bytes(data))
    except FileError:
        return
    assert bytes(data) != encode(value)


# ---- counting --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (None, 0),
        (True, 8),
        (3, 8),
        (2.5, 8),
        ("né", 3),
        ("\ud800", 3),
        (np.zeros((5, 2)), 80),
        (np.zeros(3, dtype=np.float32), 12),
        ([1, "ab", None], 10),
        ({"a": np.zeros(2), "b": [1.0, {"c": 1}]}, 32),
    ],
    ids=repr,
)
def test_payload_counts_numbers_and_texts(value, count):
    assert payload_bytes(value) == count


@given(plain)
def test_payload_is_at_most_what_travels(value):
    numbers_as_text = 8 * encode(value).count(b",") + 8 * encode(value).count(b"{") + 64
    assert payload_bytes(value) <= len(encode(value)) + numbers_as_text


# ---- files -----------------------------------------------------------------------------------------------------


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "a" / "file"
    write_atomically(path, b"first")
    write_atomically(path, b"second")
    assert path.read_bytes() == b"second"

    def fails(source, target):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fails)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"third")
    assert path.read_bytes() == b"second"
    assert [p.name for p in path.parent.iterdir()] == ["file"]
