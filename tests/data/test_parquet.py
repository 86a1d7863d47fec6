"""Parquet files, streamed: types, nulls, row groups of any size, damage, and a proof of bounded memory."""

import decimal
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from fedspan.errors import DataError, FileError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from fedspan.data import parquet as module  # noqa: E402
from fedspan.data.parquet import ParquetSource  # noqa: E402

RNG = np.random.default_rng(0)
X = RNG.standard_normal((1000, 4))


def stored(path, table, **options):
    pq.write_table(table if isinstance(table, pa.Table) else pa.table(table), path, **options)
    return path


def named(array, names="abcdefgh"):
    return {names[i]: array[:, i] for i in range(array.shape[1])}


def rows_of(source):
    return np.concatenate([np.empty((0, source.shape[1]), dtype=source.dtype), *source.blocks()])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "site.parquet"


@pytest.mark.parametrize("group", [1, 64, 333, 1000])
@pytest.mark.parametrize("batch", [1, 3200, 1 << 20])
def test_rows_come_in_order_whatever_the_row_groups(path, monkeypatch, group, batch):
    monkeypatch.setattr(module, "BATCH_BYTES", batch)
    source = ParquetSource(stored(path, named(X[:200]), row_group_size=group))
    assert (source.shape, source.columns, source.dtype) == ((200, 4), tuple("abcd"), np.float64)
    assert all(block.nbytes <= max(batch, 32) for block in source.blocks())
    np.testing.assert_array_equal(rows_of(source), X[:200])
    z = RNG.standard_normal((4, 2))
    np.testing.assert_allclose(source.gram_times(z), X[:200].T @ X[:200] @ z)


def test_one_huge_row_group_comes_in_batches(path, monkeypatch):
    monkeypatch.setattr(module, "BATCH_BYTES", 3200)
    source = ParquetSource(stored(path, named(X), row_group_size=len(X)))
    assert pq.ParquetFile(path).num_row_groups == 1
    assert [len(block) for block in source.blocks()] == [100] * 10


def test_float32_is_kept_only_where_all_is(path):
    single = ParquetSource(stored(path, named(X.astype(np.float32))))
    assert single.dtype == np.float32
    assert all(block.dtype == np.float32 for block in single.blocks())
    mixed = ParquetSource(stored(path, {"a": X[:, 0].astype(np.float32), "n": np.arange(1000) + (1 << 30) + 1}))
    assert mixed.dtype == np.float64
    np.testing.assert_array_equal(rows_of(mixed)[:, 1], np.arange(1000) + (1 << 30) + 1)
    assert ParquetSource(path, drop=["n"]).dtype == np.float32


def test_numbers_of_every_kind_and_nulls(path):
    table = pa.table(
        {
            "i8": pa.array([1, None, 3], pa.int8()),
            "u64": pa.array([1, 2**63 + 1, None], pa.uint64()),
            "i64": pa.array([2**53 + 1, 1, 0], pa.int64()),
            "half": pa.array(np.array([0.5, 1.5, 2.5], dtype=np.float16)),
            "yes": pa.array([True, None, False]),
            "money": pa.array([decimal.Decimal("1.25"), None, decimal.Decimal("-2.50")], pa.decimal128(10, 2)),
            "none": pa.array([None, None, None]),
        }
    )
    nan = np.nan
    expected = [
        [1, 1, 2.0**53, 0.5, 1, 1.25, nan],
        [nan, 2.0**63, 1, 1.5, nan, nan, nan],
        [3, nan, 0, 2.5, 0, -2.5, nan],
    ]
    np.testing.assert_array_equal(rows_of(ParquetSource(stored(path, table))), expected)


def test_columns_that_are_not_numeric_are_refused_all_at_once(path):
    table = {"id": ["x", "y"], "a": [1.0, 2.0], "when": np.array(["2024", "2025"], dtype="M8[s]"), "l": [[1], [2]]}
    stored(path, table)
    names = r'"id", "when", "l"'
    with pytest.raises(DataError, match=rf"site\.parquet: columns {names} are not numeric.*drop = \[{names}\]"):
        ParquetSource(path)
    source = ParquetSource(path, drop=["id", "when", "l"])
    assert source.columns == ("a",)
    np.testing.assert_array_equal(rows_of(source), [[1], [2]])


def test_drop_is_checked(path):
    stored(path, {"age": [1], "b": [2]})
    with pytest.raises(DataError, match=r"site\.parquet: there is no column 'aeg' to drop; did you mean 'age'"):
        ParquetSource(path, drop=["aeg"])
    assert ParquetSource(path, drop=["aeg", "b"], strict_drop=False).columns == ("age",)


def test_names_with_points_and_names_used_twice(path):
    source = ParquetSource(stored(path, {"a.b": [1.0], "a": [2.0], "c": [3.0]}), drop=["a.b"])
    np.testing.assert_array_equal(rows_of(source), [[2, 3]])
    twice = pa.table([pa.array([1.0]), pa.array([2.0]), pa.array([3.0])], names=["a", "b", "a"])
    source = ParquetSource(stored(path, twice))
    assert source.columns == ("a", "b", "a")
    np.testing.assert_array_equal(rows_of(source), [[1, 2, 3]])


def test_row_labels_of_pandas_are_no_data(path):
    pd = pytest.importorskip("pandas")
    pd.DataFrame({"a": [1.0, 2.0]}, index=[10, 20]).to_parquet(path)
    assert ParquetSource(path).columns == ("a",)


def test_no_rows(path):
    source = ParquetSource(stored(path, {"a": pa.array([], pa.float64()), "b": pa.array([], pa.float64())}))
    assert source.shape == (0, 2)
    np.testing.assert_array_equal(source.gram_times(np.eye(2)), np.zeros((2, 2)))


@pytest.mark.parametrize("keep", [0, 3, 100, -1, -200])
def test_truncated_files(path, keep):
    whole = stored(path, named(X)).read_bytes()
    path.write_bytes(whole[:keep])
    with pytest.raises(FileError, match=r"site\.parquet: not a readable Parquet file.*cut short"):
        ParquetSource(path)


def test_damage_in_the_middle_is_found_while_reading(path):
    stored(path, named(X), write_page_checksum=True, compression="none")
    source = ParquetSource(path)
    damaged = bytearray(path.read_bytes())
    damaged[2000] ^= 0xFF
    path.write_bytes(damaged)
    with pytest.raises(FileError, match=r"site\.parquet: not a readable Parquet file"):
        rows_of(source)


def test_a_file_that_changed_is_noticed(path):
    source = ParquetSource(stored(path, named(X)))
    stored(path, named(X[:10]))
    with pytest.raises(FileError, match="holds 10 rows where its footer said 1000"):
        rows_of(source)


def test_what_is_not_there(tmp_path):
    with pytest.raises(FileError, match=r"none\.parquet"):
        ParquetSource(tmp_path / "none.parquet")


# ---- a site larger than the memory -------------------------------------------------------------------------

CHILD = """
import json, resource, sys
import numpy as np
import pyarrow.parquet as pq
from fedspan.data.parquet import ParquetSource
from fedspan import FederatedPCA

paths, room, fit = sys.argv[1].split(","), int(sys.argv[2]), sys.argv[3] == "fit"
square = np.ones((500, 500))
square @ square  # BLAS takes its own buffer once, before the limit
status = open("/proc/self/status").read()
used = int(status.split("VmData:")[1].split()[0]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (used + room, used + room))
report = {}
source = ParquetSource(paths[0])
report["product"] = source.gram_times(np.ones((source.shape[1], 2)))[:, 0].tolist()
if fit:
    pca = FederatedPCA(n_components=3, solver="krylov").fit({f"site{i}": path for i, path in enumerate(paths)})
    report["variances"] = pca.explained_variance_.tolist()
try:
    pq.read_table(paths[0], use_threads=False, pre_buffer=False)
    report["whole"] = "loaded"
except MemoryError:
    report["whole"] = "MemoryError"
print(json.dumps(report))
"""


def within_limit(paths, room, what):
    """Read files in a process that can take no more than ``room`` bytes beyond what its imports took."""
    plain = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CHILD, ",".join(map(str, paths)), str(room), what]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **plain}, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def write_in_pieces(path, rows, width, pieces, seed):
    """Write one row group in pieces, and return its Gram matrix and column sums."""
    rng = np.random.default_rng(seed)
    spread = np.linspace(1, 3, width)
    names = [f"c{i}" for i in range(width)]
    kept = [(rng.integers(-99, 100, (rows // pieces, width)) * spread).astype(np.float64) for _ in range(pieces)]
    whole = pa.table({name: np.concatenate([part[:, i] for part in kept]) for i, name in enumerate(names)})
    pq.write_table(whole, path, row_group_size=rows)
    assert pq.ParquetFile(path).num_row_groups == 1
    return sum(part.T @ part for part in kept), sum(part.sum(axis=0) for part in kept)


linux = pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA is enforced on Linux")


@linux
def test_a_file_larger_than_the_memory_is_multiplied(path):
    """128 MB of numbers in one row group go through 96 MB of memory."""
    gram, _ = write_in_pieces(path, 1 << 20, 16, 1, seed=0)
    report = within_limit([path], 96 << 20, "multiply")
    assert report["whole"] == "MemoryError"
    np.testing.assert_allclose(report["product"], gram.sum(axis=1), rtol=1e-10, atol=1e-10 * abs(gram).max())


@linux
@pytest.mark.soak
def test_a_federation_larger_than_the_memory_is_fitted(tmp_path):
    """Two sites of 400 MB each, one row group each, are fitted in 200 MB of memory."""
    paths = [tmp_path / f"{i}.parquet" for i in range(2)]
    found = [write_in_pieces(path, 1_250_000, 40, 5, seed=i) for i, path in enumerate(paths)]
    gram, sums = sum(g for g, _ in found), sum(s for _, s in found)
    rows = 2 * 1_250_000
    expected = np.linalg.eigvalsh((gram - np.outer(sums, sums) / rows) / (rows - 1))[::-1][:3]
    report = within_limit(paths, 200 << 20, "fit")
    assert report["whole"] == "MemoryError"
    np.testing.assert_allclose(report["variances"], expected, rtol=1e-6)
