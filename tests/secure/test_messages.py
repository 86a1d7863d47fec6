"""What the other side sent is read field by field; whatever is none of it is a `ProtocolError`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspan.errors import ProtocolError
from fedspan.secure import messages

READERS = {
    "fields": lambda v: messages.fields(v, "a", "b"),
    "table": lambda v: messages.table(v, "it", ("a", "b")),
    "text": lambda v: messages.text(v, "it"),
    "hexadecimal": lambda v: messages.hexadecimal(v, "it", 2),
    "flag": lambda v: messages.flag(v, "it"),
    "whole": lambda v: messages.whole(v, "it"),
    "names": lambda v: messages.names(v, "it"),
    "octets": lambda v: messages.octets(v, "it", 3),
    "rows": lambda v: messages.octets(v, "it", 3, 2),
}
GOOD: dict[str, list[Any]] = {
    "fields": [{"a": 1, "b": None}],
    "table": [{}, {"a": 1}, {"a": 1, "b": 2}],
    "text": ["", "x"],
    "hexadecimal": ["00ff", "abcd"],
    "flag": [True, False],
    "whole": [0, 1, 2**31 - 1],
    "names": [[], ["a"], ["a", "b"]],
    "octets": [np.zeros(3, np.uint8)],
    "rows": [np.zeros((2, 3), np.uint8)],
}
BAD: dict[str, list[Any]] = {
    "fields": [{}, {"a": 1}, {"a": 1, "b": 2, "c": 3}, ["a", "b"], None, "ab"],
    "table": [{"c": 1}, [], None, ["a"], np.zeros(2)],
    "text": [None, b"x", 1, ["x"]],
    "hexadecimal": ["00f", "00FF", "zzzz", b"00ff", 255, None, ["00", "ff"]],
    "flag": [1, 0, None, "True", np.True_, np.zeros(2)],
    "whole": [-1, 2**31, 1.0, True, "1", None, np.int64(3), np.zeros(1)],
    "names": ["a", ("a",), [1], ["b", "a"], ["a", "a"], [None], None, {"a": 1}],
    "octets": [np.zeros(2, np.uint8), np.zeros((3, 1), np.uint8), np.zeros(3, np.int8), np.zeros(3), bytes(3), None],
    "rows": [np.zeros((3, 2), np.uint8), np.zeros(6, np.uint8), [[0, 0, 0], [0, 0, 0]]],
}


@pytest.mark.parametrize(("reader", "value"), [(r, v) for r in GOOD for v in GOOD[r]])
def test_what_is_right_is_returned(reader, value):
    found = READERS[reader](value)
    assert found is value if reader != "fields" else found == [1, None]


@pytest.mark.parametrize(("reader", "value"), [(r, v) for r in BAD for v in BAD[r]])
def test_what_is_not_is_refused(reader, value):
    with pytest.raises(ProtocolError, match=r"it is|it are|it names|a message has the fields \['a', 'b'\], got"):
        READERS[reader](value)


def deep(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


LONG = [deep(100_000), 10**6000, {str(i): i for i in range(10_000)}, "x" * 10**6]


@pytest.mark.parametrize("value", LONG, ids=lambda v: type(v).__name__)
def test_an_error_text_is_short_whatever_was_sent(value):
    for name, reader in READERS.items():
        if name == "text" and isinstance(value, str):
            continue
        with pytest.raises(ProtocolError) as error:
            reader(value)
        assert len(str(error.value)) < 400


def test_what_cannot_be_shown_is_named():
    assert messages.shown(deep(100_000)) == "list"
    assert messages.shown(10**6000) == "int"
    assert messages.shown("ab") == "'ab'"


@given(st.lists(st.binary(min_size=5, max_size=5), max_size=6))
def test_byte_strings_travel_as_rows(rows):
    stacked = messages.stack(rows, 5)
    assert stacked.shape == (len(rows), 5)
    assert [row.tobytes() for row in messages.octets(stacked, "rows", 5, len(rows))] == rows


def test_bytes_travel_as_an_array():
    assert messages.octets(messages.as_array(b"\x00\x07\xff"), "it", 3).tolist() == [0, 7, 255]
