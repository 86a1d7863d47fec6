"""CSV files: layouts, missing values, what is refused, and reading again against keeping."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspan.data import csv as module
from fedspan.data.csv import CsvSource
from fedspan.errors import ConfigurationError, DataError, FileError


@pytest.fixture
def write(tmp_path):
    def put(text, **options):
        path = tmp_path / "site.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return CsvSource(path, **options)

    return put


def rows_of(source):
    return np.concatenate([np.empty((0, source.shape[1])), *source.blocks()])


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_delimiters_are_found(write, delimiter, end):
    text = end.join(delimiter.join(row) for row in (["a", "b", "c"], ["1", "2.5", "-3"], ["4", "5e2", "+6"]))
    for last in ("", end, end + end):
        source = write(text + last)
        assert source.columns == ("a", "b", "c")
        np.testing.assert_array_equal(rows_of(source), [[1, 2.5, -3], [4, 500, 6]])


def test_other_delimiters_are_taken_at_their_word(write):
    np.testing.assert_array_equal(rows_of(write("a b\n1 2\n", delimiter=" ")), [[1, 2]])


@pytest.mark.parametrize("delimiter", [";", "\t", "|", None])
def test_decimal_commas(write, delimiter):
    mark = delimiter or ";"
    source = write(f"a{mark}b\n1,5{mark}-2,25\n3{mark}1,0e3\n", delimiter=delimiter, decimal=",")
    np.testing.assert_array_equal(rows_of(source), [[1.5, -2.25], [3, 1000]])


def test_one_column(write):
    np.testing.assert_array_equal(rows_of(write("a\n1.5\n\n2\n")), [[1.5], [2]])
    np.testing.assert_array_equal(rows_of(write("a\n1,5\n2\n", decimal=",")), [[1.5], [2]])


def test_a_point_is_no_decimal_mark_beside_a_decimal_comma(write):
    with pytest.raises(DataError, match=r"line 3: column 1 has '1\.234', which is not a number"):
        write("7;8\n7;8\n1.234;8\n", decimal=",")


def test_a_first_row_of_numbers_is_data(write):
    source = write("1,3\n3,4\n")
    assert source.columns is None
    assert source.shape == (2, 2)
    assert write("2019,2020\n3,4\n", header=True).columns == ("2019", "2020")
    assert write("a,2\n3,4\n").columns == ("a", "2")
    with pytest.raises(DataError, match="needs column names"):
        write("1,3\n3,4\n", drop=["a"])


@pytest.mark.parametrize("first", ["0,1,2", "1,2,3", " 0, 1, 2", '"0","1","2"', "0,1,2,3,4,5", "0", "1"])
def test_a_first_row_that_counts_is_not_guessed_at(write, first):
    width = first.count(",") + 1
    text = f"{first}\n{','.join(['7'] * width)}\n"
    with pytest.raises(DataError, match=r"site\.csv: the first row counts.*header = true.*header = false"):
        write(text)
    named, bare = write(text, header=True), write(text, header=False)
    assert named.columns == tuple(name.strip(' "') for name in first.split(","))
    assert (named.shape, bare.shape, bare.columns) == ((1, width), (2, width), None)


@pytest.mark.parametrize("first", ["0.0,1.0,2.0", "0,1,3", "2,3,4", "0,2,1", "-1,0,1", "00,01,02"])
def test_other_first_rows_of_numbers_are_data(write, first):
    assert write(f"{first}\n7,8,9\n").shape == (2, 3)


def test_what_pandas_writes_from_an_array(write, tmp_path):
    pd = pytest.importorskip("pandas")
    table = np.arange(6.0).reshape(2, 3) + 0.5
    pd.DataFrame(table).to_csv(tmp_path / "bare.csv", index=False)
    with pytest.raises(DataError, match="looks like a header"):
        CsvSource(tmp_path / "bare.csv")
    np.testing.assert_array_equal(rows_of(CsvSource(tmp_path / "bare.csv", header=True)), table)
    pd.DataFrame(table).to_csv(tmp_path / "index.csv")
    with pytest.raises(DataError, match=r'column 1 of 4 has no name.*index=False.*drop = \[""\].*header = false'):
        CsvSource(tmp_path / "index.csv")
    source = CsvSource(tmp_path / "index.csv", drop=[""])
    assert source.columns == ("0", "1", "2")
    np.testing.assert_array_equal(rows_of(source), table)


def test_a_column_without_a_name_is_refused_by_its_position(write):
    text = "a,b,\n1,2,\n3,4,\n"
    with pytest.raises(DataError, match=r'site\.csv: column 3 of 3 has no name .*drop = \[""\]$'):
        write(text)
    np.testing.assert_array_equal(rows_of(write(text, drop=[""])), [[1, 2], [3, 4]])
    with pytest.raises(DataError, match=r"column 1 \(and 1 more\) of 3 has no name"):
        write("  ,b,\n1,2,3\n")


def test_quoted_fields(write):
    text = '"a,1","b ""x""",note\n"1","2.5","two\nlines, and a comma"\n3,4,"plain"\n'
    source = write(text, drop=["note"])
    assert source.columns == ("a,1", 'b "x"')
    np.testing.assert_array_equal(rows_of(source), [[1, 2.5], [3, 4]])


@pytest.mark.parametrize("word", ["", "NA", "na", "N/A", "NaN", "nan", "null", "NULL", "None", " ", " NA "])
@pytest.mark.parametrize("quote", ["", '"'])
def test_missing_values(write, word, quote):
    gap = f"{quote}{word}{quote}"
    source = write(f"a,b,c\n{gap},{gap},1\n2,{gap},{gap}\n{gap},3,{gap}\n")
    nan = np.nan
    np.testing.assert_array_equal(rows_of(source), [[nan, nan, 1], [2, nan, nan], [nan, 3, nan]])


def test_missing_values_between_tabs(write):
    np.testing.assert_array_equal(rows_of(write("a\tb\n\t\n1\t\n")), [[np.nan, np.nan], [1, np.nan]])


def test_infinite_values_are_read_and_left_to_the_study_to_refuse(write):
    np.testing.assert_array_equal(rows_of(write("a,b\ninf,-Infinity\n")), [[np.inf, -np.inf]])


def test_a_mark_in_front_and_other_alphabets(write):
    source = write("\ufeffalter,größe\n1,2\n")
    assert source.columns == ("alter", "größe")


def test_columns_that_are_not_numeric_are_refused_all_at_once(write):
    text = "id,age,city,mass\nx1,41,Bern,70\nx2,38,Genf,80\n"
    with pytest.raises(DataError, match=r'site\.csv: columns "id", "city" are not numeric.*drop = \["id", "city"\]'):
        write(text)
    source = write(text, drop=["id", "city"])
    assert source.columns == ("age", "mass")
    np.testing.assert_array_equal(rows_of(source), [[41, 70], [38, 80]])


def test_decimal_commas_that_were_not_announced(write):
    with pytest.raises(DataError, match=r'columns "a", "b" are not numeric.*set decimal = ","'):
        write("a;b\n1,5;2,5\n")


@pytest.mark.parametrize("bad", ["oops", "1_000", "0x10", "1,5", "--3"])
def test_a_bad_value_far_down_is_named_with_its_line_and_column(write, monkeypatch, bad):
    monkeypatch.setattr("fedspan.data.text.TEXT_BYTES", 64)
    lines = ["a;b"] + ["1;2"] * 100
    lines[77] = f"1;{bad}"
    with pytest.raises(DataError, match=rf"site\.csv, line 78: column 'b' has '{bad}', which is not a number"):
        write("\n".join(lines))


def test_lines_after_a_record_of_several_lines_keep_their_numbers(write):
    with pytest.raises(FileError, match="line 6: 2 fields where the first row has 3"):
        write('a,b,note\n1,2,"x\n\ny"\n3,4,z\n5,6\n', drop=["note"])


@pytest.mark.parametrize("line", ["1,2,3,4", "1,2", "1", '"1,2,3"'])
@pytest.mark.parametrize("drop", [(), ("c",)])
def test_ragged_lines_are_refused(write, line, drop):
    with pytest.raises(FileError, match=r"site\.csv, line 3: \d fields where the first row has 3"):
        write(f"a,b,c\n1,2,3\n{line}\n1,2,3\n", drop=drop, delimiter=",")


@pytest.mark.parametrize("text", ["", "\n\n", "\ufeff", "  \n"])
def test_empty_files(write, text):
    with pytest.raises(FileError, match=r"site\.csv: the file is empty"):
        write(text)


@pytest.mark.parametrize("text", ["a,b", "a,b\n", "\na,b\r\n\r\n"])
def test_a_header_alone_is_a_site_without_rows(write, text):
    source = write(text)
    assert (source.shape, source.columns) == ((0, 2), ("a", "b"))
    np.testing.assert_array_equal(source.gram_times(np.eye(2)), np.zeros((2, 2)))


def test_bytes_that_are_no_text(write):
    with pytest.raises(FileError, match=r"site\.csv, line 3: this is not UTF-8 text"):
        write(b"a,b\n1,2\n3,\xe94\n")
    with pytest.raises(FileError, match="line 1: this is not UTF-8"):
        write("a,b\n1,2\n".encode("utf-16"))


def test_a_quote_that_never_closes(write):
    with pytest.raises(FileError, match="line 3"):
        write('a,b\n1,2\n"3,4\n' + "5,6\n" * 10)


def test_what_cannot_be_opened(tmp_path):
    with pytest.raises(FileError, match="cannot be read"):
        CsvSource(tmp_path / "none.csv")
    with pytest.raises(FileError, match="cannot be read"):
        CsvSource(tmp_path)


@pytest.mark.parametrize("options", [{"decimal": ";"}, {"delimiter": ",,"}, {"delimiter": ",", "decimal": ","}])
def test_settings_are_checked(write, options):
    with pytest.raises(ConfigurationError):
        write("a,b\n1,2\n", **options)


def test_names_used_twice_are_kept_for_the_study_to_refuse(write):
    assert write("a,b,a\n1,2,3\n").columns == ("a", "b", "a")


def test_drop_is_checked(write):
    with pytest.raises(DataError, match=r"site\.csv: there is no column 'aeg' to drop; did you mean 'age'"):
        write("age,b\n1,2\n", drop=["aeg"])
    assert write("age,b\n1,2\n", drop=["aeg", "b"], strict_drop=False).columns == ("age",)


def big_text(rows=400, gaps=True):
    rng = np.random.default_rng(3)
    table = rng.standard_normal((rows, 4)).round(6)
    body = "\n".join(",".join("" if gaps and rng.random() < 0.05 else repr(float(v)) for v in row) for row in table)
    return f"a,b,c,d\n{body}\n"


@pytest.mark.parametrize("gaps", [False, True])
def test_reading_again_gives_what_keeping_gives(write, monkeypatch, gaps):
    monkeypatch.setattr("fedspan.data.text.TEXT_BYTES", 1000)
    kept = write(big_text(gaps=gaps))
    assert kept.pass_cost == 1
    monkeypatch.setattr("fedspan.data.text.CACHE_BYTES", 100)
    again = write(big_text(gaps=gaps))
    assert again.pass_cost > 100
    assert again._blocks == []
    for first, second in zip(kept.blocks(), again.blocks(), strict=True):
        np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(rows_of(again), rows_of(again))
    assert rows_of(kept).shape == kept.shape == again.shape


def test_a_file_that_changed_is_not_read_again(write, tmp_path, monkeypatch):
    monkeypatch.setattr("fedspan.data.text.CACHE_BYTES", 0)
    source = write("a,b\n1,2\n")
    (tmp_path / "site.csv").write_text("a,b\n1,2\n3,4\n")
    with pytest.raises(FileError, match="changed since it was opened"):
        list(source.blocks())


def test_the_fast_parser_does_the_usual_files(write, monkeypatch):
    """Field by field is some five times slower: plain numbers, gaps and dropped texts must not end there."""
    files = [
        (big_text(gaps=False), {}),
        (big_text(gaps=True), {}),
        ("id;a;b\nx;1,5;NA\ny.z;2;3\n", {"decimal": ",", "drop": ["id"]}),
    ]
    with monkeypatch.context() as patch:
        patch.setattr(module.CsvTable, "records", None)  # a call of it would fail
        fast = [rows_of(write(text, **options)) for text, options in files]
    monkeypatch.setattr(module.CsvTable, "_fast", lambda *_: None)
    slow = [rows_of(write(text, **options)) for text, options in files]
    assert [rows.shape for rows in fast] == [(400, 4), (400, 4), (2, 2)]
    for one, other in zip(fast, slow, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(fast[2], [[1.5, np.nan], [2, 3]])


values = st.one_of(st.none(), st.floats(allow_nan=False), st.integers(-(10**15), 10**15).map(float))


@given(
    table=st.lists(
        st.tuples(values, values, st.text(st.characters(codec="utf-8"), max_size=5)), min_size=1, max_size=8
    ),
    delimiter=st.sampled_from([",", ";", "\t", "|"]),
    block=st.sampled_from([1, 20, 1 << 20]),
)
def test_what_the_csv_module_writes_is_read_back(tmp_path_factory, table, delimiter, block):
    import csv

    path = tmp_path_factory.mktemp("csv") / "any.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["a", "b", "text"])
        writer.writerows(table)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedspan.data.text.TEXT_BYTES", block)
        source = CsvSource(path, delimiter=delimiter, drop=["text"])
        expected = [[np.nan if v is None else v for v in row[:2]] for row in table]
        np.testing.assert_array_equal(rows_of(source), expected)
