"""JSON lines as a finished file: objects, arrays, gaps, what is refused."""

import json

import numpy as np
import pytest

from fedspan.data import JsonlSource, open_source
from fedspan.errors import DataError, FileError


@pytest.fixture
def write(tmp_path):
    def put(*lines, name="site.jsonl", **options):
        path = tmp_path / name
        path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
        return open_source(path, **options)

    return put


def rows_of(source):
    return np.concatenate([np.empty((0, source.shape[1])), *source.blocks()])


def test_objects(write):
    source = write({"a": 1, "b": 2.5}, "", {"b": None, "a": True}, {"b": -1e300}, "", name="x.ndjson")
    assert isinstance(source, JsonlSource)
    assert (source.columns, source.shape) == (("a", "b"), (3, 2))
    np.testing.assert_array_equal(rows_of(source), [[1, 2.5], [1, np.nan], [np.nan, -1e300]])


def test_arrays(write):
    source = write([1, 2], [None, 4])
    assert (source.columns, source.shape) == (None, (2, 2))
    np.testing.assert_array_equal(rows_of(source), [[1, 2], [np.nan, 4]])


def test_drop(write):
    lines = {"id": "x", "a": 1, "b": 2}, {"id": "y", "a": 3, "b": 4, "note": {"any": ["thing"]}}
    source = write(*lines, drop=["id", "note"])
    assert source.columns == ("a", "b")
    np.testing.assert_array_equal(rows_of(source), [[1, 2], [3, 4]])
    with pytest.raises(DataError, match=r"site\.jsonl: there is no column 'nota' to drop; did you mean 'note'"):
        write(*lines, drop=["id", "nota", "note"])
    assert write(*lines, drop=["id", "nota", "note"], strict_drop=False).columns == ("a", "b")
    with pytest.raises(DataError, match=r"line 2: the key 'note' is not in the first object.*drop = \[\"note\"\]"):
        write(*lines, drop=["id"])


def test_columns_of_texts_are_refused_all_at_once(write):
    with pytest.raises(
        DataError, match=r'columns "id", "l" are not numeric \(for example \'x\', \'\[1\]\'\); leave them'
    ):
        write({"id": "x", "a": 1, "l": [1]}, {"id": "y", "a": 2, "l": [2]})


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("{oops}", "this is not JSON"),
        ('{"a": 1} {"a": 2}', "this is not JSON"),
        ("[1]", "expected an object, as on the first line, got"),
        ('{"a": "7"}', """column 'a' has "7", which is not a number"""),
        ('{"a": 1' + "0" * 5000 + "}", "this is not JSON"),
        ("[" * 10_000, "this is not JSON"),
    ],
)
def test_lines_that_are_refused(write, line, text):
    with pytest.raises(DataError, match=rf"site\.jsonl, line 2: {text}"):
        write({"a": 1}, line)


def test_first_lines_that_are_refused(write):
    for line in ("{}", "[]", "3"):
        with pytest.raises(DataError, match=r"site\.jsonl, line 1: expected an object or an array"):
            write(line)
    with pytest.raises(FileError, match="the file is empty; expected one JSON object"):
        write("", "")
    with pytest.raises(DataError, match="needs column names"):
        write([1, 2], drop=["a"])


def test_a_large_file_is_parsed_anew_at_each_pass(write, monkeypatch, tmp_path):
    lines = [{"a": i, "b": -i} for i in range(300)]
    kept = write(*lines)
    monkeypatch.setattr("fedspan.data.text.TEXT_BYTES", 100)
    monkeypatch.setattr("fedspan.data.text.CACHE_BYTES", 100)
    anew = write(*lines)
    assert (kept.pass_cost, anew.pass_cost) == (1, 500)
    for _ in range(2):
        np.testing.assert_array_equal(rows_of(anew), rows_of(kept))
    assert len(list(anew.blocks())) > 10
    write(*lines[1:])
    with pytest.raises(FileError, match="changed since it was opened"):
        list(anew.blocks())
