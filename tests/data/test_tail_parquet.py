"""Folders to which Parquet files are added: order, files that are being written, resuming, what is refused."""

import os

import numpy as np
import pytest

from fedspan.data import follow
from fedspan.encoding import decode, encode
from fedspan.errors import ConfigurationError, DataError, FileError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

RNG = np.random.default_rng(0)


def put(folder, name, **columns):
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), folder / name)


def rows_of(tail):
    blocks, complaints = [np.empty((0, len(tail.columns or ())))], []
    while True:
        try:
            for block in tail.read():
                assert block.dtype == np.float64
                assert block.flags.c_contiguous
                blocks.append(block)
        except DataError as error:
            complaints.append(str(error))
        else:
            return np.concatenate(blocks[len(blocks) > 1 :]).tolist(), complaints


def again(tail, path, **options):
    return follow(path, position=decode(encode(tail.position)), **options)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "incoming"


def test_files_come_by_name_each_once(folder):
    tail = follow(folder)
    assert rows_of(tail) == ([], [])
    assert (tail.columns, tail.waiting) == (None, f"{folder} is not there yet")
    put(folder, "b.parquet", x=[3.0], y=[4.0])
    put(folder, "a.pq", x=[1, 2], y=[None, 5])
    rows, _ = rows_of(tail)
    np.testing.assert_array_equal(rows, [[1, np.nan], [2, 5], [3, 4]])
    assert tail.columns == ("x", "y")
    assert rows_of(tail) == ([], [])
    put(folder, "aa.parquet", y=[7], x=[6])  # late, and its columns in another order
    assert rows_of(again(tail, folder)) == ([[6, 7]], [])
    assert rows_of(tail) == ([[6, 7]], [])
    assert (tail.waiting, tail.exhausted) == (None, False)


def test_files_that_are_being_written_wait_and_hold_up_nobody(folder):
    put(folder, "whole.parquet", x=[1.0, 2.0])
    content = (folder / "whole.parquet").read_bytes()
    for name in (".a.parquet", "_a.parquet", "a.parquet.tmp", "a.parquet.part", "a.txt"):
        (folder / name).write_bytes(b"no")
    (folder / "half.parquet").write_bytes(content[:50])
    tail = follow(folder)
    assert rows_of(tail) == ([[1], [2]], [])
    assert "half.parquet: not a readable Parquet file" in tail.waiting
    (folder / "half.parquet").write_bytes(content)
    assert rows_of(tail) == ([[1], [2]], [])
    assert tail.waiting is None


def test_any_block_is_a_place_to_go_on_from(folder, monkeypatch):
    monkeypatch.setattr("fedspan.data.tail.parquet.BLOCK_BYTES", 80)
    monkeypatch.setattr("fedspan.data.parquet.BATCH_BYTES", 200)
    x = RNG.standard_normal((40, 2))
    put(folder, "a.parquet", u=x[:23, 0], v=x[:23, 1])
    put(folder, "c.parquet", u=x[23:, 0], v=x[23:, 1])
    whole = list(follow(folder).read())
    assert max(map(len, whole)) == 5
    np.testing.assert_array_equal(np.concatenate(whole), x)
    tail, found = follow(folder), []
    while (block := next(iter(tail.read()), None)) is not None:  # stopped and started after each
        found.append(block)
        tail = again(tail, folder)
    np.testing.assert_array_equal(np.concatenate(found), x)
    tail = follow(folder)
    next(iter(tail.read()))
    put(folder, "0.parquet", u=[0.0], v=[0.0])  # first by name, but another one is being read
    rows, _ = rows_of(again(tail, folder))
    np.testing.assert_array_equal(rows, [*x[5:23], [0, 0], *x[23:]])


def test_columns(folder):
    put(folder, "a.parquet", id=["x"], u=[1], v=[2])
    with pytest.raises(DataError, match=r'a\.parquet: columns "id" are not numeric.*drop = \["id"\]'):
        list(follow(folder).read())
    assert rows_of(follow(folder, drop=["id"])) == ([[1, 2]], [])
    tail = follow(folder, drop=["id"], columns=["v"])
    assert rows_of(tail) == ([[2]], [])
    assert tail.columns == ("v",)
    put(folder, "b.parquet", id=["x"], u=[3])
    rows, complaints = rows_of(tail)
    assert rows == []
    assert complaints == [f"{folder / 'b.parquet'}: there is no column 'v'; known: u"]
    with pytest.raises(DataError, match="there is no column 'idd' to drop; did you mean 'id'"):
        list(follow(folder, drop=["idd"]).read())


def test_a_file_with_other_columns_is_named_once_and_passed_over(folder):
    put(folder, "a.parquet", u=[1], v=[2])
    put(folder, "b.parquet", u=[3], w=[4])
    put(folder, "c.parquet", u=[5], v=[6], w=[7])
    put(folder, "d.parquet", u=[8], v=[9])
    tail = follow(folder)
    rows, complaints = rows_of(tail)
    assert rows == [[1, 2], [8, 9]]
    assert [text.partition(": ")[0] for text in complaints] == [str(folder / f"{name}.parquet") for name in "bc"]
    assert "lacks ['v'], adds ['w']" in complaints[0]
    assert "lacks [], adds ['w']" in complaints[1]
    assert rows_of(again(tail, folder)) == ([], [])


def test_files_that_change_after_they_were_read(folder, monkeypatch):
    put(folder, "a.parquet", u=[1])
    tail = follow(folder)
    rows_of(tail)
    put(folder, "a.parquet", u=[1, 2, 3])
    put(folder, "b.parquet", u=[4])
    rows, complaints = rows_of(tail)
    assert rows == [[4]]
    assert len(complaints) == 1
    assert "a.parquet changed after it was read, and is not read again: a Parquet file cannot grow" in complaints[0]
    (folder / "a.parquet").unlink()  # to clear up what was read is no fault
    assert rows_of(tail) == ([], [])


@pytest.mark.parametrize("change", ["changed", "is gone"])
def test_a_file_that_changes_while_it_is_read(folder, monkeypatch, change):
    monkeypatch.setattr("fedspan.data.tail.parquet.BLOCK_BYTES", 8)
    put(folder, "a.parquet", u=[1, 2, 3])
    tail = follow(folder)
    assert next(iter(tail.read())).tolist() == [[1]]
    if change == "changed":
        put(folder, "a.parquet", u=[1, 2, 3, 4])
    else:
        (folder / "a.parquet").unlink()
    rows, complaints = rows_of(again(tail, folder))
    assert rows == []
    assert complaints == [f"{folder / 'a.parquet'} {change} after 1 of its rows were read; the others are left out"]


def test_a_file_that_is_damaged_within(folder):
    put(folder, "a.parquet")
    pq.write_table(pa.table({"u": RNG.standard_normal(1000)}), folder / "a.parquet", write_page_checksum=True)
    content = bytearray((folder / "a.parquet").read_bytes())
    content[100:400] = bytes(300)
    (folder / "a.parquet").write_bytes(content)
    put(folder, "b.parquet", u=[1])
    rows, complaints = rows_of(follow(folder))
    assert rows == [[1]]
    assert len(complaints) == 1
    assert "a.parquet: not a readable Parquet file" in complaints[0]
    assert complaints[0].endswith("It is left out from row 1 on")


def test_a_single_file(tmp_path):
    file = tmp_path / "x.parquet"
    tail = follow(file)
    assert rows_of(tail) == ([], [])
    assert (tail.exhausted, tail.waiting) == (False, f"{file} is not there yet")
    put(tmp_path, "x.parquet", u=np.array([1, 2], dtype=np.float32))
    assert rows_of(tail) == ([[1], [2]], [])
    assert tail.exhausted
    put(tmp_path, "x.parquet", u=[1, 2, 3])
    with pytest.raises(DataError, match="write new rows to a new file in a folder"):
        list(tail.read())


def test_what_is_no_folder(tmp_path):
    tail = follow(tmp_path / "later")
    (tmp_path / "later").write_text("a file after all")
    with pytest.raises(FileError, match="later: cannot be read"):
        list(tail.read())
    with pytest.raises(ConfigurationError, match="cannot be followed"):
        follow(tmp_path / "later")
    with pytest.raises(FileError, match="damaged"):
        follow(tmp_path, position={"kind": "parquet", "read": []})
    assert os.listdir(tmp_path) == ["later"]
