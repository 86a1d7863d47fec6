"""Arrays of every library, sparse matrices, frames and numpy's files as sources."""

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse

from fedspan.data.arrays import ArraySource, ColumnSubset, SparseSource, from_frame, from_npy, from_npz
from fedspan.data.source import BLOCK_BYTES, SymmetricSource
from fedspan.errors import DataError, FileError

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 5))
Z = RNG.standard_normal((5, 3))


def rows_of(source):
    return np.concatenate([np.asarray(block) for block in source.blocks()])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_floats_are_kept(dtype):
    source = ArraySource(X.astype(dtype))
    assert source.dtype == dtype
    assert all(block.dtype == dtype for block in source.blocks())
    product = source.gram_times(Z)
    assert product.dtype == np.float64
    np.testing.assert_allclose(product, X.T @ X @ Z, rtol=1e-12 if dtype == np.float64 else 1e-4)


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64, np.bool_, np.float16, ">f8", np.longdouble])
def test_other_numbers_become_float64(dtype):
    whole = (10 * X).astype(dtype)
    source = ArraySource(whole)
    assert source.dtype == np.float64
    np.testing.assert_array_equal(rows_of(source), whole.astype(np.float64))


def test_blocks_are_views_in_order_and_about_one_size():
    array = RNG.standard_normal((3 * BLOCK_BYTES // 80, 10))
    blocks = list(ArraySource(array).blocks())
    assert len(blocks) == 4
    assert all(np.shares_memory(block, array) and block.nbytes <= BLOCK_BYTES for block in blocks)
    np.testing.assert_array_equal(np.concatenate(blocks), array)
    one = next(ArraySource(X).blocks())
    assert one is X


@pytest.mark.parametrize(
    "bad", [np.zeros((2, 2), dtype=complex), np.array([["a", "b"]]), np.zeros((2, 2), dtype=object)]
)
def test_no_numbers_are_refused(bad):
    with pytest.raises(DataError, match="must be numbers"):
        ArraySource(bad)


@pytest.mark.parametrize("shape", [(3,), (2, 2, 2)])
def test_other_dimensions_are_refused(shape):
    with pytest.raises(DataError, match=f"expected 2 dimensions, got {len(shape)}"):
        ArraySource(np.zeros(shape))


@pytest.mark.parametrize("kind", ["array_api_strict", "torch"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "bool"])
def test_other_libraries(kind, dtype):
    xp = pytest.importorskip(kind)
    host = (X > 0) if dtype == "bool" else (10 * X).astype(dtype)
    array = xp.asarray(host)
    source = ArraySource(array)
    assert source.dtype == (np.float32 if dtype == "float32" else np.float64)
    assert isinstance(next(source.blocks()), type(array))
    wide = host.astype(float)
    product = source.gram_times(Z)
    assert isinstance(product, np.ndarray)
    np.testing.assert_allclose(product, wide.T @ wide @ Z, rtol=1e-4 if dtype == "float32" else 1e-12)
    np.testing.assert_allclose(source.times(Z), wide @ Z, rtol=1e-4 if dtype == "float32" else 1e-12, atol=1e-5)


def test_other_libraries_refuse_complex_numbers():
    xp = pytest.importorskip("array_api_strict")
    with pytest.raises(DataError, match="real numbers"):
        ArraySource(xp.asarray(X.astype(complex)))


def test_half_precision_is_multiplied_in_single():
    torch = pytest.importorskip("torch")
    source = ArraySource(torch.asarray(X).to(torch.bfloat16))
    assert source.dtype == np.float32
    assert next(source.blocks()).dtype == torch.float32


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_on_an_accelerator(dtype):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("there is no accelerator")
    host = (100 * RNG.standard_normal((500, 5))).astype(dtype)
    source = ArraySource(torch.asarray(host).to("cuda"))
    assert all(block.is_cuda for block in source.blocks())
    wide = host.astype(float)
    expected = wide.T @ wide @ Z
    np.testing.assert_allclose(source.gram_times(Z), expected, rtol=0, atol=1e-5 * abs(expected).max())


# ---- sparse ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csr_matrix", "csr_array", "csc_matrix", "csc_array", "coo_array", "lil_matrix"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int32, np.bool_])
def test_sparse_of_any_kind(kind, dtype):
    dense = (np.where(X > 0.5, 4 * X, 0)).astype(dtype)
    source = SparseSource(getattr(scipy.sparse, kind)(dense))
    assert source.dtype == (np.float32 if dtype == np.float32 else np.float64)
    block = next(source.blocks())
    assert block.format == "csr"
    wide = dense.astype(float)
    np.testing.assert_allclose(source.gram_times(Z), wide.T @ wide @ Z, rtol=1e-4, atol=1e-4)


def test_parts_of_a_sparse_entry_are_added_without_changing_the_caller():
    twice = scipy.sparse.csr_array((np.array([1.0, 2.0]), np.array([0, 0]), np.array([0, 2])), shape=(1, 2))
    source = SparseSource(twice)
    assert next(source.blocks()).data.tolist() == [3.0]
    assert twice.data.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("bad", [scipy.sparse.eye_array(2, dtype=complex), scipy.sparse.coo_array(np.ones(3))])
def test_sparse_that_is_no_matrix_of_numbers_is_refused(bad):
    with pytest.raises(DataError, match=r"must be numbers|2 dimensions"):
        SparseSource(bad)


def test_symmetric_shares():
    share = X[:5] + X[:5].T
    for kept in (share, scipy.sparse.csr_array(share)):
        source = SymmetricSource(kept, tuple("abcde"))
        np.testing.assert_allclose(source.gram_times(Z), share @ Z)
        np.testing.assert_allclose(source.gram(), share)
        assert source.trace() == pytest.approx(np.trace(share))
    np.testing.assert_allclose(
        SymmetricSource(np.array([[2, 1], [1, 2]])).gram_times(np.full((2, 1), 0.5)), [[1.5]] * 2
    )
    with pytest.raises(DataError, match="must equal its transpose"):
        SymmetricSource(np.triu(np.ones((3, 3))))
    with pytest.raises(DataError, match="is square"):
        SymmetricSource(np.ones((3, 2)))


def test_a_subset_of_columns():
    for source in (ArraySource(X, tuple("abcde")), SparseSource(scipy.sparse.csr_array(X), tuple("abcde"))):
        subset = ColumnSubset(source, [3, 0])
        assert subset.columns == ("d", "a")
        np.testing.assert_allclose(subset.gram(), X[:, [3, 0]].T @ X[:, [3, 0]])
    xp = pytest.importorskip("array_api_strict")
    np.testing.assert_allclose(rows_of(ColumnSubset(ArraySource(xp.asarray(X)), [1])), X[:, [1]])


# ---- frames ------------------------------------------------------------------------------------------------


def columns_of_every_kind():
    return {
        "i": [1, 2, None, 4],
        "f": [0.5, None, 2.5, 3.5],
        "b": [True, False, None, True],
        "u": [7, 8, 9, 10],
    }


EXPECTED = np.array([[1, 0.5, 1, 7], [2, np.nan, 0, 8], [np.nan, 2.5, np.nan, 9], [4, 3.5, 1, 10]])


def test_pandas_with_nullable_types():
    frame = pd.DataFrame(columns_of_every_kind()).astype({"i": "Int64", "f": "Float64", "b": "boolean", "u": "uint8"})
    source = from_frame(frame)
    assert source.columns == ("i", "f", "b", "u")
    np.testing.assert_array_equal(rows_of(source), EXPECTED)


def test_pandas_with_arrow_and_sparse_types():
    frame = pd.DataFrame(columns_of_every_kind()).astype(
        {"i": "int64[pyarrow]", "f": "double[pyarrow]", "b": "bool[pyarrow]", "u": pd.SparseDtype("float32", 0)}
    )
    np.testing.assert_array_equal(rows_of(from_frame(frame)), EXPECTED)


def test_polars_with_nulls():
    frame = pl.DataFrame(columns_of_every_kind()).with_columns(pl.col("u").cast(pl.UInt8))
    source = from_frame(frame)
    assert source.columns == ("i", "f", "b", "u")
    np.testing.assert_array_equal(rows_of(source), EXPECTED)


def test_polars_decimals_and_empty_columns():
    frame = pl.DataFrame({"d": ["1.25", None], "n": [None, None]}).with_columns(pl.col("d").cast(pl.Decimal(10, 2)))
    np.testing.assert_array_equal(rows_of(from_frame(frame)), [[1.25, np.nan], [np.nan, np.nan]])


@pytest.mark.parametrize("library", [pd, pl])
def test_float32_frames_stay_float32_and_mixed_ones_do_not_lose_digits(library):
    single = library.DataFrame({"a": X[:, 0].astype(np.float32), "b": X[:, 1].astype(np.float32)})
    assert from_frame(single).dtype == np.float32
    mixed = library.DataFrame({"a": X[:, 0].astype(np.float32), "n": np.arange(60) + (1 << 30) + 1})
    assert from_frame(mixed).dtype == np.float64
    np.testing.assert_array_equal(rows_of(from_frame(mixed))[:, 1], np.arange(60) + (1 << 30) + 1)


@pytest.mark.parametrize("library", [pd, pl])
def test_columns_that_are_not_numeric_are_refused_all_at_once(library):
    dates = np.array(["2024-01-01", "2024-01-02"], dtype="datetime64[ns]")
    frame = library.DataFrame({"name": ["ann", "bob"], "age": [1, 2], "when": dates})
    with pytest.raises(DataError, match=r'columns "name", "when" are not numeric.*drop = \["name", "when"\]'):
        from_frame(frame)
    assert from_frame(frame, ["name", "when"]).columns == ("age",)


@pytest.mark.parametrize("library", [pd, pl])
def test_dropping_from_frames(library):
    frame = library.DataFrame({"name": ["ann"], "age": [41]})
    with pytest.raises(DataError, match="no column 'nane' to drop; did you mean 'name'"):
        from_frame(frame, ["nane"])
    assert from_frame(frame, ["name", "other"], strict_drop=False).columns == ("age",)
    with pytest.raises(DataError, match="leaves no column"):
        from_frame(frame, ["name", "age"])


def test_pandas_columns_of_the_same_name_are_kept():
    frame = pd.DataFrame(np.ones((2, 3)), columns=["a", "b", "a"])
    assert from_frame(frame).columns == ("a", "b", "a")
    assert from_frame(frame, ["a"]).columns == ("b",)


# ---- numpy's files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_is_mapped(tmp_path, order):
    path = tmp_path / "x.npy"
    np.save(path, np.asarray(X, order=order))
    source = from_npy(path)
    assert isinstance(next(source.blocks()), np.memmap)
    np.testing.assert_allclose(source.gram_times(Z), X.T @ X @ Z)


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA is enforced on Linux")
def test_npy_of_integers_is_never_loaded_whole(tmp_path):
    """A 64 MB file of bytes, 512 MB as float64, goes through 96 MB of memory."""
    path = tmp_path / "big.npy"
    np.lib.format.open_memmap(path, mode="w+", dtype=np.int8, shape=(1 << 20, 64))[:] = 1
    code = (
        "import resource, sys\n"
        "import numpy as np\n"
        "from pathlib import Path\n"
        "from fedspan.data.arrays import from_npy\n"
        "used = int(open('/proc/self/status').read().split('VmData:')[1].split()[0]) << 10\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (used + (96 << 20),) * 2)\n"
        "source = from_npy(Path(sys.argv[1]))\n"
        "assert source.gram_times(np.ones((64, 2))).tolist() == [[64.0 * (1 << 20)] * 2] * 64\n"
        "try:\n"
        "    np.load(sys.argv[1]).astype(float)\n"
        "except MemoryError:\n"
        "    print('whole: MemoryError')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "whole: MemoryError\n"


@pytest.mark.parametrize("keep", [5, 60, 128, 400])
def test_truncated_npy(tmp_path, keep):
    path = tmp_path / "cut.npy"
    np.save(path, X)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(FileError, match=r"cut\.npy: not a readable \.npy file"):
        from_npy(path)


def test_npy_with_something_else(tmp_path):
    np.save(tmp_path / "flat.npy", np.ones(3))
    with pytest.raises(DataError, match=r"flat\.npy: .*expected 2 dimensions, got 1"):
        from_npy(tmp_path / "flat.npy")
    np.save(tmp_path / "objects.npy", np.array([[{}]]), allow_pickle=True)
    with pytest.raises(FileError, match=r"objects\.npy"):
        from_npy(tmp_path / "objects.npy")
    np.savez(tmp_path / "x.npz", X=X)
    (tmp_path / "x.npz").rename(tmp_path / "archive.npy")
    with pytest.raises(FileError, match=r"should be called \.npz"):
        from_npy(tmp_path / "archive.npy")


def test_npy_without_rows(tmp_path):
    np.save(tmp_path / "none.npy", np.empty((0, 4)))
    source = from_npy(tmp_path / "none.npy")
    assert source.shape == (0, 4)
    np.testing.assert_array_equal(source.gram_times(np.eye(4)), np.zeros((4, 4)))
    assert source.times(np.eye(4)).shape == (0, 4)


def test_npz_takes_x_or_the_only_matrix(tmp_path):
    np.savez(tmp_path / "x.npz", X=X.astype(np.float32), y=np.ones(60), X_test=X, columns=np.array(list("abcde")))
    source = from_npz(tmp_path / "x.npz")
    assert (source.columns, source.dtype) == (tuple("abcde"), np.float32)
    np.savez(tmp_path / "one.npz", G=X, names=np.array(["p"] * 60))
    np.testing.assert_array_equal(rows_of(from_npz(tmp_path / "one.npz")), X)
    np.savez(tmp_path / "two.npz", A=X, B=X)
    with pytest.raises(FileError, match=r"two\.npz: expected an array 'X' or one matrix, found \['A', 'B'\]"):
        from_npz(tmp_path / "two.npz")
    np.savez(tmp_path / "short.npz", X=X, columns=np.array(["a"]))
    with pytest.raises(FileError, match="1 column names for 5 columns"):
        from_npz(tmp_path / "short.npz")


@pytest.mark.parametrize("kind", ["csr", "csc", "coo"])
def test_npz_as_scipy_writes_it(tmp_path, kind):
    matrix = scipy.sparse.random_array((30, 7), density=0.3, format=kind, rng=1)
    scipy.sparse.save_npz(tmp_path / "s.npz", matrix)
    source = from_npz(tmp_path / "s.npz")
    np.testing.assert_array_equal(next(source.blocks()).toarray(), matrix.toarray())


def test_npz_of_bare_parts(tmp_path):
    csr = scipy.sparse.random_array((30, 7), density=0.3, format="csr", rng=1)
    parts = {"data": (9 * csr.data).astype(np.uint8), "indices": csr.indices.astype(np.uint16)}
    np.savez(tmp_path / "p.npz", **parts, indptr=csr.indptr, shape=np.array(csr.shape))
    source = from_npz(tmp_path / "p.npz")
    np.testing.assert_array_equal(next(source.blocks()).data, parts["data"])
    parts["indices"][0] = 99  # a product would read beside the matrix
    np.savez(tmp_path / "p.npz", **parts, indptr=csr.indptr, shape=np.array(csr.shape))
    with pytest.raises(FileError, match=r"p\.npz: not a readable"):
        from_npz(tmp_path / "p.npz")


def test_truncated_npz(tmp_path):
    np.savez(tmp_path / "x.npz", X=X)
    whole = (tmp_path / "x.npz").read_bytes()
    for keep in (0, 100, len(whole) - 10):
        (tmp_path / "x.npz").write_bytes(whole[:keep])
        with pytest.raises(FileError, match=r"x\.npz: not a readable \.npz file"):
            from_npz(tmp_path / "x.npz")
