"""Growing text files: every complete row once, whatever the pieces it comes in; bad lines, resuming, rotation."""

import csv
import io
import json
import os
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspan.data import Tail, follow, open_source
from fedspan.data.tail import text as module
from fedspan.encoding import decode, encode
from fedspan.errors import ConfigurationError, DataError, FileError, ResumeError


def rows_of(tail, width=None):
    """Return all rows that are there, with the complaints between them."""
    blocks, complaints = [], []
    while True:
        try:
            for block in tail.read():
                blocks.append(block)
                assert block.dtype == np.float64
                assert block.nbytes <= 4 << 20
        except DataError as error:
            complaints.append(str(error))
        else:
            width = blocks[0].shape[1] if blocks else width or 0
            return np.concatenate([np.empty((0, width)), *blocks]), complaints


def again(tail, path, **options):
    """Return a tail that goes on from where another one is, as after a stop: the position goes through bytes."""
    return follow(path, position=decode(encode(tail.position)), **options)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "turin.csv"


def append(path, text):
    with path.open("ab") as file:
        file.write(text if isinstance(text, bytes) else text.encode())


# ---- growth --------------------------------------------------------------------------------------

numbers = st.one_of(st.none(), st.floats(allow_nan=False), st.integers(-(10**15), 10**15).map(float))
notes = st.one_of(st.just("x"), st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=5))


def as_csv(table, delimiter, end, mark):
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=delimiter, lineterminator=end)
    writer.writerow(["a", "b", "note"])
    writer.writerows(table)
    return (("\ufeff" if mark else "") + file.getvalue()).encode()


def as_jsonl(table, delimiter, end, mark):
    names = ["a", "b", "note"]
    records = [dict(zip(names, row, strict=True)) for row in table]
    lines = [json.dumps(r if i == 0 else {k: v for k, v in r.items() if v is not None}) for i, r in enumerate(records)]
    return (("\ufeff" if mark else "") + end.join([*lines, "", ""])).encode()


@given(
    write=st.sampled_from([as_csv, as_jsonl]),
    table=st.lists(st.tuples(numbers, numbers, notes), min_size=1, max_size=8),
    delimiter=st.sampled_from([",", ";", "\t"]),
    end=st.sampled_from(["\n", "\r\n"]),
    mark=st.booleans(),
    cuts=st.lists(st.integers(0, 400), max_size=8),
    chunk=st.sampled_from([1, 16, 1 << 20]),
    stops=st.lists(st.booleans(), min_size=1),
)
def test_any_pieces_give_the_rows_of_the_whole_file(
    tmp_path_factory, write, table, delimiter, end, mark, cuts, chunk, stops
):
    folder = tmp_path_factory.mktemp("tail")
    suffix = "csv" if write is as_csv else "jsonl"
    content, path = write(table, delimiter, end, mark), folder / f"grows.{suffix}"
    (folder / f"whole.{suffix}").write_bytes(content)
    whole = open_source(folder / f"whole.{suffix}", delimiter=delimiter, drop=["note"])
    options = {"drop": ["note"], "delimiter": delimiter}
    places = sorted({min(cut, len(content)) for cut in cuts} | {0, len(content)})
    with pytest.MonkeyPatch.context() as patch:
        for name in ("file", "text"):
            patch.setattr(f"fedspan.data.tail.{name}.CHUNK_BYTES", chunk)
        tail, found = follow(path, **options), [np.empty((0, 2))]
        for i, (start, stop) in enumerate(pairwise(places)):
            append(path, content[start:stop])
            for block in tail.read():
                found.append(block)
                if stops[i % len(stops)]:  # it ends after any block, and another one goes on
                    break
            if stops[i % len(stops)]:
                tail = again(tail, path, **options)
        found.extend(tail.read())
    np.testing.assert_array_equal(np.concatenate(found), np.concatenate([np.empty((0, 2)), *whole.blocks()]))
    assert tail.columns == whole.columns == ("a", "b")
    assert tail.position["rows"] == len(table)
    assert tail.waiting is None
    assert list(tail.read()) == []


def test_half_lines_wait(path):
    tail = follow(path)
    assert isinstance(tail, Tail)
    assert list(tail.read()) == []
    assert (tail.columns, tail.waiting, tail.exhausted) == (None, f"{path} is not there yet", False)
    append(path, "a,")
    assert list(tail.read()) == []
    assert tail.columns is None
    append(path, "b\n1,2\n3")
    np.testing.assert_array_equal(rows_of(tail)[0], [[1, 2]])
    assert tail.columns == ("a", "b")
    assert tail.waiting == f"{path}, line 3 is not complete: 1 bytes wait for the end of the line"
    append(path, ",4\n\n")
    np.testing.assert_array_equal(rows_of(tail)[0], [[3, 4]])
    assert tail.waiting is None


def test_a_late_header_and_a_header_alone(path):
    append(path, "\n\n")
    tail = follow(path)
    assert list(tail.read()) == []
    append(path, '"a\nb",c\n')
    assert list(tail.read()) == []
    assert tail.columns == ("ab", "c")
    tail = again(tail, path)
    assert tail.columns == ("ab", "c")
    append(path, "1,2\n")
    np.testing.assert_array_equal(rows_of(tail)[0], [[1, 2]])


def test_a_quoted_field_of_several_lines_waits_for_its_end(path):
    append(path, 'a,note,b\n1,"one\n')
    tail = follow(path, drop=["note"])
    assert list(tail.read()) == []
    append(path, '""two"",\n')
    assert list(tail.read()) == []
    append(path, 'end",2\n3,"x",4\n')
    np.testing.assert_array_equal(rows_of(tail)[0], [[1, 2], [3, 4]])


def test_a_quote_inside_a_field_does_not_wait(path):
    append(path, 'a,note\n1,5" pipe\n')
    np.testing.assert_array_equal(rows_of(follow(path, drop=["note"]))[0], [[1]])


def test_layouts_are_those_of_a_finished_file(path, tmp_path):
    append(path, "a;b\n1,5;NA\n")
    np.testing.assert_array_equal(rows_of(follow(path, decimal=","))[0], [[1.5, np.nan]])
    tabs = tmp_path / "x.tsv"
    append(tabs, "a,1\tb\n1\t2\n")
    assert rows_of(follow(tabs))[0].tolist() == [[1, 2]]
    bare = tmp_path / "x.txt"
    append(bare, "5,6\n7,8\n")
    tail = follow(bare)
    assert rows_of(tail)[0].tolist() == [[5, 6], [7, 8]]
    assert tail.columns is None
    append(bare, "9,10\n")
    assert rows_of(again(tail, bare))[0].tolist() == [[9, 10]]
    counts = tmp_path / "counts.csv"
    append(counts, "0,1\n5,6\n")
    assert rows_of(follow(counts, header=True))[0].tolist() == [[5, 6]]
    assert rows_of(follow(counts, header=False))[0].tolist() == [[0, 1], [5, 6]]
    with pytest.raises(FileError, match=r"counts\.csv: the first row counts.*header = true"):
        list(follow(counts).read())


def test_a_first_row_that_may_be_cut_in_two_ways_is_not_guessed_at(path):
    append(path, "a;b,c\n1;2\n")
    with pytest.raises(FileError, match=r"turin\.csv: the first row has ';' and ','.*delimiter = ';'"):
        list(follow(path).read())
    assert rows_of(follow(path, delimiter=";"))[0].tolist() == [[1, 2]]


def test_large_inputs_come_in_small_blocks(path):
    append(path, "a,b,c,d\n" + "1,,,\n" * 300_000)
    tail = follow(path)
    blocks = list(tail.read())
    assert sum(map(len, blocks)) == 300_000
    assert 1 << 20 < max(block.nbytes for block in blocks) <= 4 << 20


def test_few_bytes_that_stand_for_many_gaps_come_in_small_blocks(tmp_path):
    path = tmp_path / "gaps.jsonl"
    append(path, json.dumps({f"c{i}": 0 for i in range(100)}) + "\n" + "{}\n" * 20_000)
    blocks = list(follow(path).read())
    assert sum(map(len, blocks)) == 20_001
    assert max(block.nbytes for block in blocks) <= 4 << 20


# ---- columns -------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_columns_are_taken_by_name_and_in_order(tmp_path, suffix):
    path = tmp_path / f"x.{suffix}"
    append(path, "a,b,c\n1,2,3\n" if suffix == "csv" else '{"a": 1, "b": 2, "c": 3}\n')
    tail = follow(path, columns=["c", "a"], drop=["b"])
    assert rows_of(tail)[0].tolist() == [[3, 1]]
    assert tail.columns == ("c", "a")
    for wrong, text in [(["a", "mass"], "'mass'; known: a, b, c"), (["cc"], "'cc'; did you mean 'c'")]:
        with pytest.raises(FileError, match=rf"x\.{suffix}: there is no column {text}"):
            list(follow(path, columns=wrong).read())


def test_names_used_twice_and_names_that_are_not_there(path):
    append(path, "a,b,a\n1,2,3\n")
    assert rows_of(follow(path))[0].tolist() == [[1, 2, 3]]
    assert rows_of(follow(path, columns=["b"]))[0].tolist() == [[2]]
    with pytest.raises(FileError, match=r"turin\.csv: 2 columns are called 'a'; rename them"):
        list(follow(path, columns=["a", "b"]).read())
    with pytest.raises(FileError, match=r"turin\.csv: the columns have no names here, but are wanted by name \(a, b\)"):
        list(follow(path, columns=["a", "b"], header=False).read())


def test_drop_is_checked(path):
    append(path, "age,b\n1,2\n")
    with pytest.raises(FileError, match=r"there is no column 'aeg' to drop; did you mean 'age'"):
        list(follow(path, drop=["aeg"]).read())
    assert rows_of(follow(path, drop="b"))[0].tolist() == [[1]]
    assert rows_of(follow(path, drop=["aeg", "b"], strict_drop=False))[0].tolist() == [[1]]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_columns_of_texts_are_named_with_what_mends_it(tmp_path, suffix):
    path = tmp_path / f"x.{suffix}"
    head = "id,age,city\n" if suffix == "csv" else ""
    write = (lambda *row: ",".join(row) + "\n") if suffix == "csv" else (
        lambda i, a, c: json.dumps({"id": i, "age": float(a), "city": c}) + "\n"
    )  # fmt: skip
    append(path, head + write("ann", "41", "Bern") + write("bob", "38", "Genf"))
    tail = follow(path)
    for _ in range(2):  # it stays so until somebody mends it, and nothing is lost
        with pytest.raises(FileError, match=r'columns "id", "city" are not numeric.*ann.*drop = \["id", "city"\]'):
            list(tail.read())
    assert tail.position["rows"] == 0
    assert rows_of(follow(path, drop=["id", "city"]))[0].tolist() == [[41], [38]]
    with pytest.raises(FileError, match='columns "id" are not'):
        list(again(tail, path, drop=["city"]).read())


def test_a_decimal_comma_that_was_not_announced(path):
    append(path, "a;b\n1,5;2\n")
    with pytest.raises(FileError, match=r'columns "a" are not numeric.*set decimal = ","'):
        list(follow(path).read())


# ---- bad lines -----------------------------------------------------------------------------------


def test_bad_lines_are_named_once_and_nothing_else_is_lost(path):
    append(path, 'a,b\n1,2\n3\n4,oops\n5,6\n7,8,9\n"10",11\n12,"x\n')
    tail = follow(path)
    rows, complaints = rows_of(tail)
    assert rows.tolist() == [[1, 2], [5, 6], [10, 11]]
    assert [text.partition(": ")[0] for text in complaints] == [f"{path}, line {n}" for n in (3, 4, 6)]
    assert "1 fields where the first row has 2" in complaints[0]
    assert "column 'b' has 'oops', which is not a number" in complaints[1]
    append(path, '",13\n14,15\n')
    rows, complaints = rows_of(tail)
    assert rows.tolist() == [[14, 15]]
    assert len(complaints) == 1
    assert complaints[0].startswith(f"{path}, line 8: 3 fields where the first row has 2")


def test_rows_before_a_bad_line_come_first_and_the_position_is_behind_it(path):
    append(path, "a,b\n1,2\nbad\n3,4\n")
    tail = follow(path)
    reader = tail.read()
    assert next(reader).tolist() == [[1, 2]]
    at_row = tail.position
    with pytest.raises(DataError, match="line 3"):
        next(reader)
    assert rows_of(again(tail, path))[0].tolist() == [[3, 4]]
    rows, complaints = rows_of(follow(path, position=at_row))
    assert (rows.tolist(), len(complaints)) == ([[3, 4]], 1)
    assert rows_of(tail)[0].tolist() == [[3, 4]]


def test_text_in_a_column_that_had_numbers_is_a_bad_line(path):
    append(path, "a,b\nx,1\n2,3\n")
    rows, complaints = rows_of(follow(path))
    assert (rows.tolist(), len(complaints)) == ([[2, 3]], 1)
    append(path, "y,4\n5,z\n")
    tail = follow(path)
    assert rows_of(tail)[0].tolist() == [[2, 3]]
    append(path, "y,4\n")
    assert rows_of(again(tail, path))[1][0].endswith("column 'a' has 'y', which is not a number")


def test_bytes_that_are_no_text(path):
    append(path, b"a,note\n1,x\n2,\xe9\n3,z\n")
    rows, complaints = rows_of(follow(path, drop=["note"]))
    assert rows.tolist() == [[1], [3]]
    assert complaints == [f"{path}, line 3: this is not UTF-8 text; save the file as UTF-8"]
    path.write_bytes(b"\xe9,b\n1,2\n")
    with pytest.raises(FileError, match=r"turin\.csv: this is not UTF-8"):
        list(follow(path).read())


def test_a_quote_that_never_closes_takes_only_its_line(path):
    append(path, 'a,b\n1,2\n3,"4\n' + "5,6\n" * 60_000)
    rows, complaints = rows_of(follow(path))
    assert len(rows) == 60_001
    assert len(complaints) == 1
    assert f"{path}, line 3: not readable as CSV (field larger than field limit" in complaints[0]


def test_many_bad_lines_cost_one_parse_of_each_piece(path, monkeypatch):
    append(path, "a,b\n" + "1,2\nbad\n" * 500)
    calls = []
    parse = module.TextTail._parse
    monkeypatch.setattr(module.TextTail, "_parse", lambda *a, **o: calls.append(1) or parse(*a, **o))
    rows, complaints = rows_of(follow(path))
    assert (len(rows), len(complaints), len(calls)) == (500, 500, 1)


def test_a_line_without_an_end(path, monkeypatch):
    monkeypatch.setattr("fedspan.data.tail.file.CHUNK_BYTES", 64)
    monkeypatch.setattr("fedspan.data.tail.text.LINE_BYTES", 256)
    append(path, "a,b\n1,2\n" + "9" * 300)
    tail = follow(path)
    reader = tail.read()
    assert next(reader).tolist() == [[1, 2]]
    with pytest.raises(FileError, match=r"line 3 does not end within .* MB; is this text\?"):
        next(reader)


def test_json_lines_that_are_refused(tmp_path):
    path = tmp_path / "x.jsonl"
    lines = ["oops", '{"a": 1, "b": null}', "[1, 2]", '{"a": 1, "c": 2}', '{"a": "1"}', "{", "", '{"a": true}', "7"]
    append(path, "\n".join([*lines, ""]))
    tail = follow(path)
    rows, complaints = rows_of(tail)
    np.testing.assert_array_equal(rows, [[1, np.nan], [1, np.nan]])
    texts = {1: "this is not JSON", 3: "expected an object", 4: "the key 'c' is not in the first object (known: a, b)",
             5: """column 'a' has "1", which is not a number""", 6: "this is not JSON", 9: "got 7"}  # fmt: skip
    assert len(complaints) == len(texts)
    for (line, text), complaint in zip(texts.items(), complaints, strict=True):
        assert complaint.startswith(f"{path}, line {line}: ")
        assert text in complaint
    assert rows_of(again(tail, path))[1] == []


def test_json_arrays(tmp_path):
    path = tmp_path / "x.ndjson"
    append(path, "[1, 2.5]\n[null, NaN]\n[1]\n{}\n[1, 1" + "0" * 400 + "]\n")
    tail = follow(path)
    rows, complaints = rows_of(tail)
    np.testing.assert_array_equal(rows, [[1, 2.5], [np.nan, np.nan]])
    assert tail.columns is None
    assert "an array of 1 values where the first one has 2" in complaints[0]
    assert "expected an array" in complaints[1]
    assert "column 2 has 10000" in complaints[2]
    with pytest.raises(FileError, match="needs column names"):
        list(follow(path, drop=["a"]).read())


# ---- files that are no longer what was read ------------------------------------------------------


@pytest.fixture
def read_once(path):
    append(path, "a,b\n1,2\n3,4\n")
    tail = follow(path)
    assert len(rows_of(tail)[0]) == 2
    return tail


def test_a_file_that_shrank(read_once, path):
    content = path.read_bytes()
    path.write_bytes(content[:8])
    for tail in (read_once, again(read_once, path)):
        with pytest.raises(FileError, match=r"turin\.csv shrank: 12 bytes were read, it has 8; .*tail -n \+1 -F"):
            list(tail.read())
    path.write_bytes(content + b"5,6\n")  # put back: it goes on
    assert rows_of(read_once)[0].tolist() == [[5, 6]]


def test_a_file_that_was_replaced(read_once, path, tmp_path):
    other = tmp_path / "other.csv"
    other.write_bytes(path.read_bytes() + b"5,6\n")
    os.replace(other, path)
    with pytest.raises(FileError, match=r"turin\.csv was replaced after 12 bytes of it were read; .*rotated"):
        list(read_once.read())
    assert rows_of(again(read_once, path))[0].tolist() == [[5, 6]]  # a copy with all that was read will do


@pytest.mark.parametrize("content", ["a,b\n9,2\n3,4\n5,6\n", "7,7\n" * 9])
def test_a_file_that_was_written_anew(read_once, path, content):
    path.write_text(content)
    for tail in (read_once, again(read_once, path)):
        with pytest.raises(
            FileError, match=r"turin\.csv changed within the 12 bytes that were read; put the file back"
        ):
            list(tail.read())


def test_a_file_that_is_gone(read_once, path):
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(FileError, match=r"turin\.csv is gone after 12 bytes"):
        list(read_once.read())
    path.write_bytes(content)
    assert list(again(read_once, path).read()) == []


def test_before_anything_was_read_any_file_will_do(path, tmp_path):
    append(path, "a,")
    tail = follow(path)
    assert list(tail.read()) == []
    other = tmp_path / "other.csv"
    other.write_text("c,d\n1,2\n")
    os.replace(other, path)
    assert rows_of(tail)[0].tolist() == [[1, 2]]
    assert tail.columns == ("c", "d")


# ---- what is refused at once ---------------------------------------------------------------------


def test_what_cannot_be_followed(tmp_path):
    with pytest.raises(ConfigurationError, match=r"x\.npy cannot be followed: what grows is a file of lines \(\.csv"):
        follow(tmp_path / "x.npy")
    with pytest.raises(ConfigurationError, match="decimal"):
        follow(tmp_path / "x.csv", decimal=";")
    with pytest.raises(ConfigurationError, match="header is True, False or None"):
        follow(tmp_path / "x.csv", header="yes")
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(FileError, match=r"pipe\.csv is no file that can grow; a pipe is read as standard input"):
        list(follow(tmp_path / "pipe.csv").read())


def test_positions_of_something_else(read_once, path, tmp_path):
    with pytest.raises(ResumeError, match=r"x\.jsonl is read as jsonl, and the position .* is one of csv"):
        follow(tmp_path / "x.jsonl", position=read_once.position)
    for damaged in ({}, {"kind": "csv"}, {**read_once.position, "at": "12"}, [1]):
        with pytest.raises(FileError, match="the position to go on from is damaged"):
            follow(path, position=damaged)
