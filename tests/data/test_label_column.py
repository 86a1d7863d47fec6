"""Rows with labels from files of every kind, and from arrays and frames."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedspan.data.label_column import as_task, read_labelled
from fedspan.data.labelled import Labelled, as_labels
from fedspan.errors import ConfigurationError, DataError, FileError

ROWS = np.array([[1.0, 2.5], [3.0, 4.5], [5.0, 6.5]])
NAMES = ("age", "mass")
LABELS = {
    "texts": (["ill", "well", "ill"], "U"), "whole": ([1, 2, 1], "i"), "numbers": ([0.5, 2.0, 1.0], "f"),
}  # fmt: skip


def write_csv(path: Path, labels: list, delimiter: str = ",") -> Path:
    lines = [delimiter.join(("id", "age", "outcome", "mass"))]
    lines += [delimiter.join(map(str, ("p", a, y, b))) for (a, b), y in zip(ROWS, labels, strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet", ".jsonl"])
def test_labels_are_read_from_a_column_of_a_name(tmp_path, kind, suffix):
    labels, dtype = LABELS[kind]
    path = tmp_path / f"site{suffix}"
    if suffix in (".csv", ".tsv"):
        write_csv(path, labels, "\t" if suffix == ".tsv" else ",")
    elif suffix == ".parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        columns = {"id": ["p0", "p1", "p2"], "age": ROWS[:, 0], "outcome": labels, "mass": ROWS[:, 1]}
        pq.write_table(pa.table(columns), path)
    else:
        rows = [{"age": a, "outcome": y, "mass": b} for (a, b), y in zip(ROWS, labels, strict=True)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    X, y, columns = read_labelled(path, "outcome", drop=["id"])
    np.testing.assert_array_equal(X, ROWS)
    assert y.tolist() == labels
    assert y.dtype.kind == dtype
    assert columns == NAMES


def test_labels_are_read_from_an_array_or_a_numbered_column(tmp_path):
    np.savez(tmp_path / "site.npz", X=ROWS, y=np.array(["a", "b", "a"]))
    X, y, columns = read_labelled(tmp_path / "site.npz", "y")
    assert (X.tolist(), y.tolist(), columns) == (ROWS.tolist(), ["a", "b", "a"], None)
    np.save(tmp_path / "site.npy", np.column_stack([ROWS[:, 0], [2, 1, 2], ROWS[:, 1]]))
    for number in (1, -2):
        X, y, _ = read_labelled(tmp_path / "site.npy", number)
        assert (X.tolist(), y.tolist()) == (ROWS.tolist(), [2, 1, 2])
    (tmp_path / "bare.csv").write_text("1,7,2.5\n3,8,4.5\n")
    X, y, _ = read_labelled(tmp_path / "bare.csv", 1, header=False)
    assert (X.tolist(), y.tolist()) == ([[1, 2.5], [3, 4.5]], [7, 8])


def test_a_task_says_what_labels_are():
    assert as_task([1, 2.0], None, "").dtype.kind == "i"
    assert as_task([1, 2], "numbers", "").dtype.kind == "f"
    assert as_task([1, 2.5], "classes", "").tolist() == ["1", "2.5"]
    assert as_task(["a", 1], None, "").tolist() == ["a", "1"]
    assert as_task([250, 7.0, 1.5, "E11"], "texts", "").tolist() == ["250", "7", "1.5", "E11"]


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_codes_stay_as_they_are_written_where_the_task_is_texts(tmp_path, suffix):
    labels = ["007", "7", "9007199254740993"]
    path = write_csv(tmp_path / f"site{suffix}", labels, "\t" if suffix == ".tsv" else ",")
    assert read_labelled(path, "outcome", drop=["id"], task="texts")[1].tolist() == labels
    with pytest.raises(DataError, match=r'label 9007199254740992 is too large .* task = "texts"'):
        read_labelled(path, "outcome", drop=["id"])
    with pytest.raises(DataError, match=r"1.152921504606847e.18 is too large .* name the column"):
        as_task([1.0, 2.0**60], "texts", "")
    assert as_task([1.0, 2.0**60], "numbers", "").tolist() == [1.0, 2.0**60]
    assert as_task([1, 2**60], "texts", "").tolist() == ["1", str(2**60)]


def test_unsigned_labels_are_of_one_kind_with_others():
    assert as_labels(np.array([1, 2**63 - 1], dtype=np.uint64)).dtype == np.int64
    with pytest.raises(DataError, match=r"at most 2\^63 - 1, got 9223372036854775808; give labels as texts"):
        as_labels(np.array([1, 2**63], dtype=np.uint64))


@pytest.mark.parametrize(
    ("labels", "task", "message"),
    [
        (["ill", "", "well"], None, "row 2 has no label .1 rows have none."),
        ([1.0, float("nan"), None], None, "row 2 has no label .2 rows have none."),
        (["ill", "well"], "numbers", "label 'ill' is no number; take task = \"classes\""),
    ],
)
def test_labels_that_cannot_be_are_named(labels, task, message):
    with pytest.raises(DataError, match=f"here: {message}"):
        as_task(labels, task, "here")


def test_a_missing_label_of_a_file_names_its_row(tmp_path):
    with pytest.raises(DataError, match=r"site\.csv: row 2 has no label"):
        read_labelled(write_csv(tmp_path / "site.csv", ["ill", "", "well"]), "outcome", drop=["id"])


def test_what_is_not_there_is_named_with_the_nearest(tmp_path):
    path = write_csv(tmp_path / "site.csv", ["a", "b", "a"])
    with pytest.raises(DataError, match="no column 'outcom' to predict; did you mean 'outcome'"):
        read_labelled(path, "outcom")
    with pytest.raises(FileError, match=r"there is no such file; did you mean 'site\.csv'"):
        read_labelled(tmp_path / "sote.csv", "outcome")
    np.save(tmp_path / "m.npy", np.ones((2, 3)))
    with pytest.raises(DataError, match="3 columns, so none of number 3"):
        read_labelled(tmp_path / "m.npy", 3)
    with pytest.raises(ConfigurationError, match=r"given by its number, as in label = -1"):
        read_labelled(tmp_path / "m.npy", "outcome")
    (tmp_path / "bare.csv").write_text("1,7\n3,8\n")
    with pytest.raises(DataError, match="has no header, so the label's column is given by its number"):
        read_labelled(tmp_path / "bare.csv", "outcome", header=False)
    np.savez(tmp_path / "z.npz", X=ROWS, labels=np.ones(3), y=np.ones((3, 1)), short=np.ones(2))
    with pytest.raises(DataError, match="no array 'label' of labels; did you mean 'labels'"):
        read_labelled(tmp_path / "z.npz", "label")
    with pytest.raises(DataError, match=r"array 'y' has shape \(3, 1\)"):
        read_labelled(tmp_path / "z.npz", "y")
    with pytest.raises(DataError, match="has 3 rows and 2 labels in 'short'"):
        read_labelled(tmp_path / "z.npz", "short")
    (tmp_path / "l.jsonl").write_text('{"age": 1, "outcome": 2}\n{"age": 1}\n')
    with pytest.raises(DataError, match=r"l\.jsonl, line 2: it has no label 'outcome'"):
        read_labelled(tmp_path / "l.jsonl", "outcome")
    (tmp_path / "torn.npz").write_bytes(b"PK\x03\x04")
    with pytest.raises(FileError, match=r"not a readable \.npz file"):
        read_labelled(tmp_path / "torn.npz", "y")


def test_labels_and_test_rows_are_part_of_what_a_site_must_keep():
    labels = ([1, 2, 1], [1, 2, 1], [1, 2, 2])
    one, same, relabelled = (Labelled(ROWS, y, test=(ROWS, [1, 1, 1])) for y in labels)
    assert str(one.attached()) == str(same.attached()) != str(relabelled.attached())
    assert str(one.attached()) != str(Labelled(ROWS, [1, 2, 1]).attached())
