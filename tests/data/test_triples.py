"""User-item-value triples as sparse sources."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from fedspan.data.triples import from_triples, read_triples
from fedspan.errors import ConfigurationError, DataError, FileError

USERS = ["ann", "bob", "ann", "cid", "bob", "ann"]
ITEMS = ["tea", "tea", "rye", "oat", "tea", "tea"]
VALUES = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
EXPECTED = np.array([[0, 4, 33], [0, 0, 18], [8, 0, 0]], dtype=float)  # oat, rye, tea


def dense(source):
    return next(source.blocks()).toarray()


def test_rows_follow_the_users_and_columns_the_sorted_items():
    source = from_triples(USERS, ITEMS, VALUES)
    assert source.columns == ("oat", "rye", "tea")
    assert scipy.sparse.issparse(next(source.blocks()))
    np.testing.assert_array_equal(dense(source), EXPECTED)


def test_without_values_each_triple_counts_one():
    np.testing.assert_array_equal(dense(from_triples(USERS, ITEMS)), [[0, 1, 2], [0, 0, 2], [1, 0, 0]])


def test_float32_is_kept_and_integers_become_float64():
    assert from_triples(USERS, ITEMS, np.array(VALUES, dtype=np.float32)).dtype == np.float32
    assert from_triples(USERS, ITEMS, [1, 2, 3, 4, 5, 6]).dtype == np.float64


@pytest.mark.parametrize("kind", [np.array, np.asarray, list, lambda x: np.array(x, dtype=object)])
def test_integer_labels_are_sorted_by_number(kind):
    source = from_triples(kind([70, 8, 8]), kind([10, 9, 100]))
    assert source.columns == ("9", "10", "100")
    np.testing.assert_array_equal(dense(source), [[0, 1, 0], [1, 0, 1]])


def test_a_vocabulary_gives_the_columns():
    source = from_triples(USERS, ITEMS, VALUES, vocabulary=["tea", "fig", "oat", "rye"])
    assert source.columns == ("tea", "fig", "oat", "rye")
    np.testing.assert_array_equal(dense(source), EXPECTED[:, [2, 0, 0, 1]] * [1, 0, 1, 1])


def test_items_out_of_the_vocabulary():
    with pytest.raises(DataError, match=r"2 items are not in the vocabulary, 'rye' first.*unknown = \"drop\""):
        from_triples(USERS, ITEMS, VALUES, vocabulary=["tea"])
    source = from_triples(USERS, ITEMS, VALUES, vocabulary=["tea"], unknown="drop")
    np.testing.assert_array_equal(dense(source), [[33], [18], [0]])
    with pytest.raises(ConfigurationError, match="unknown is 'error' or 'drop'"):
        from_triples(USERS, ITEMS, unknown="ignore")
    with pytest.raises(DataError, match="twice"):
        from_triples(USERS, ITEMS, vocabulary=["tea", "oat", "rye", "tea"])


@pytest.mark.parametrize(
    ("users", "items", "values", "text"),
    [
        (["a"], ["x", "y"], None, "equal numbers"),
        (["a", "b"], ["x", "y"], [1.0], "equal numbers"),
        (["a"], ["x"], [np.nan], "finite numbers"),
        (["a"], ["x"], ["one"], "finite numbers"),
        ([None], ["x"], None, "without a user or an item"),
        (np.array(["a", np.nan], dtype=object), ["x", "y"], None, "without a user or an item"),
        ([1.5], ["x"], None, "texts or integers"),
        ([["a"]], ["x"], None, "one-dimensional"),
    ],
)
def test_what_is_refused(users, items, values, text):
    with pytest.raises(DataError, match=text):
        from_triples(users, items, values)


def test_no_triples():
    assert from_triples(np.array([], dtype=int), np.array([], dtype=int)).shape == (0, 0)
    assert from_triples(np.array([], dtype=int), np.array([], dtype=int), vocabulary=["a"]).shape == (0, 1)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5), st.integers(-9, 9)), min_size=1, max_size=30))
def test_against_a_dense_table(triples):
    users, items, values = (np.array(part) for part in zip(*triples, strict=True))
    source = from_triples(users, items, values)
    rows = list(dict.fromkeys(users.tolist()))
    columns = sorted(set(items.tolist()))
    table = np.zeros((len(rows), len(columns)))
    for u, i, v in triples:
        table[rows.index(u), columns.index(i)] += v
    assert source.columns == tuple(map(str, columns))
    np.testing.assert_array_equal(dense(source), table)


# ---- files -------------------------------------------------------------------------------------------------


def write_csv(path, delimiter=",", decimal="."):
    lines = [delimiter.join(["when", "item", "user", "value"])]
    for user, item, value in zip(USERS, ITEMS, VALUES, strict=True):
        lines.append(delimiter.join(["monday", f'"{item}"', user, str(value).replace(".", decimal)]))
    path.write_text("\n".join(lines) + "\n")
    return path


def write_parquet(path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"item": ITEMS, "when": ["monday"] * 6, "user": USERS, "value": VALUES}), path)
    return path


@pytest.mark.parametrize(("delimiter", "decimal"), [(",", "."), (";", ","), ("\t", ".")])
def test_csv(tmp_path, delimiter, decimal):
    source = read_triples(write_csv(tmp_path / "t.csv", delimiter, decimal), decimal=decimal)
    assert source.columns == ("oat", "rye", "tea")
    np.testing.assert_array_equal(dense(source), EXPECTED)


@pytest.mark.parametrize("batch", [64, 1 << 20])
def test_parquet(tmp_path, monkeypatch, batch):
    path = write_parquet(tmp_path / "t.parquet")
    monkeypatch.setattr("fedspan.data.parquet.BATCH_BYTES", batch)
    source = read_triples(path)
    assert source.columns == ("oat", "rye", "tea")
    np.testing.assert_array_equal(dense(source), EXPECTED)


def test_csv_in_several_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("fedspan.data.text.TEXT_BYTES", 20)
    np.testing.assert_array_equal(dense(read_triples(write_csv(tmp_path / "t.csv"))), EXPECTED)


@pytest.mark.parametrize("write", [write_csv, write_parquet])
def test_other_names_and_two_columns(tmp_path, write):
    path = write(tmp_path / f"t.{write.__name__.removeprefix('write_')}")
    np.testing.assert_array_equal(dense(read_triples(path, value=None)), [[0, 1, 2], [0, 0, 2], [1, 0, 0]])
    turned = read_triples(path, user="item", item="user")
    assert turned.columns == ("ann", "bob", "cid")
    with pytest.raises(DataError, match=r"there is no column 'users'; did you mean 'user'"):
        read_triples(path, user="users")
    with pytest.raises(DataError, match="vocabulary"):
        read_triples(path, vocabulary=["tea"])


def test_numeric_labels_in_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    table = pa.table({"user": pa.array([7, 8, 7]), "item": pa.array(["a", "b", "a"]).dictionary_encode()})
    pq.write_table(table, tmp_path / "t.pq")
    source = read_triples(tmp_path / "t.pq", value=None)
    np.testing.assert_array_equal(dense(source), [[2, 0], [0, 1]])


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (",tea,1", "line 3: a triple without a user"),
        ("ann,,1", "line 3: a triple without a user or an item"),
        ("ann,tea,", "line 3: column 'value' has '', not a finite number"),
        ("ann,tea,many", "line 3: column 'value' has 'many'"),
        ("ann,tea,inf", "line 3: column 'value' has 'inf'"),
        ("ann,tea", "line 3: 2 fields"),
    ],
)
def test_bad_lines(tmp_path, line, text):
    (tmp_path / "t.csv").write_text(f"user,item,value\nann,tea,1\n{line}\n")
    with pytest.raises((DataError, FileError), match=rf"t\.csv, {text}"):
        read_triples(tmp_path / "t.csv")


def test_bad_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    good = {"user": ["a", "b"], "item": ["x", "y"], "value": [1.0, 2.0]}
    for name, column, text in (
        ("user", ["a", None], "column 'user' has 1 rows without a label"),
        ("value", [1.0, None], "column 'value' has values that are missing"),
        ("value", ["1", "2"], 'columns "value" are not numeric'),
    ):
        pq.write_table(pa.table({**good, name: column}), tmp_path / "t.parquet")
        with pytest.raises(DataError, match=rf"t\.parquet: {text}"):
            read_triples(tmp_path / "t.parquet")
