"""`open_source`: what it takes, what it refuses, weights and dropped columns."""

import builtins
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse

import fedspan.data
from fedspan.data import ArraySource, CsvSource, SparseSource, SymmetricSource, open_source
from fedspan.errors import ConfigurationError, DataError, FileError

RNG = np.random.default_rng(0)
X = RNG.standard_normal((20, 3))
NAMES = ("age", "mass", "site")


def rows_of(source):
    return np.concatenate([block.toarray() if scipy.sparse.issparse(block) else block for block in source.blocks()])


@pytest.mark.parametrize(
    "data", [X, np.asmatrix(X), scipy.sparse.csc_matrix(X), scipy.sparse.coo_array(X), ArraySource(X)]
)
def test_what_is_in_memory(data):
    np.testing.assert_allclose(rows_of(open_source(data)), X)


def test_frames():
    for library in (pytest.importorskip("pandas"), pytest.importorskip("polars")):
        source = open_source(library.DataFrame({"a": X[:, 0], "b": X[:, 1]}), drop=["a"])
        assert source.columns == ("b",)
        np.testing.assert_array_equal(rows_of(source), X[:, [1]])


def test_arrays_of_other_libraries():
    xp = pytest.importorskip("array_api_strict")
    assert isinstance(open_source(xp.asarray(X)), ArraySource)


def test_a_masked_array_has_missing_values():
    masked = np.ma.masked_array([[1, 2], [3, 4]], mask=[[False, True], [False, False]])
    np.testing.assert_array_equal(rows_of(open_source(masked)), [[1, np.nan], [3, 4]])


@pytest.fixture
def files(tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.savez(tmp_path / "x.npz", X=X, columns=np.array(NAMES))
    scipy.sparse.save_npz(tmp_path / "sparse.npz", scipy.sparse.csr_array(X))
    header, body = "age,mass,site\n", "\n".join(",".join(map(repr, row)) for row in X.tolist())
    (tmp_path / "x.csv").write_text(header + body)
    (tmp_path / "x.TXT").write_text((header + body).replace(",", "|"))
    (tmp_path / "x.tsv").write_text((header + body).replace(",", "\t"))
    return tmp_path


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "sparse.npz", "x.csv", "x.TXT", "x.tsv"])
@pytest.mark.parametrize("kind", [str, lambda path: path])
def test_files(files, name, kind):
    np.testing.assert_allclose(rows_of(open_source(kind(files / name))), X)


@pytest.mark.parametrize("suffix", ["parquet", "pq"])
def test_parquet_files(tmp_path, suffix):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table(dict(zip(NAMES, X.T, strict=True))), tmp_path / f"x.{suffix}")
    source = open_source(tmp_path / f"x.{suffix}", drop=["site"])
    assert isinstance(source, fedspan.data.ParquetSource)
    np.testing.assert_array_equal(rows_of(source), X[:, :2])


def test_text_options(tmp_path):
    (tmp_path / "x.csv").write_text("a:b\n1,5:2\n")
    np.testing.assert_array_equal(rows_of(open_source(tmp_path / "x.csv", delimiter=":", decimal=",")), [[1.5, 2]])


def test_a_header_is_said_or_looked_for(tmp_path):
    (tmp_path / "x.csv").write_text("0,1\n5,6\n")
    with pytest.raises(DataError, match="header = true"):
        open_source(tmp_path / "x.csv")
    assert open_source(tmp_path / "x.csv", header=True).columns == ("0", "1")
    assert open_source(tmp_path / "x.csv", header=False).shape == (2, 2)
    with pytest.raises(ConfigurationError, match="header is True, False or None"):
        open_source(tmp_path / "x.csv", header="yes")
    with pytest.raises(ConfigurationError, match="triples are found by the names"):
        open_source(tmp_path / "x.csv", header=False, triples=True)


def test_missing_files_name_the_nearest(files):
    with pytest.raises(FileError, match=r"y\.csv: there is no such file; did you mean 'x\.csv'"):
        open_source(files / "y.csv")
    with pytest.raises(FileError, match=r"there is no such file$"):
        open_source(files / "something-else.parquet")
    with pytest.raises(FileError, match="there is no folder"):
        open_source(files / "nowhere" / "x.csv")
    with pytest.raises(FileError, match="is a folder"):
        open_source(files)
    (files / "x.xlsx").write_bytes(b"")
    with pytest.raises(FileError, match=r"known suffixes: \.npy, \.npz, \.csv, \.tsv, \.txt, \.parquet, \.pq"):
        open_source(files / "x.xlsx")


@pytest.mark.parametrize("data", [[[1, 2], [3, 4]], 3.0, None, {"a": [1]}, iter(())])
def test_other_things_are_refused(data):
    with pytest.raises(DataError, match=f"cannot read rows from a {type(data).__name__}"):
        open_source(data)


def test_lazy_frames_are_to_be_collected():
    pl = pytest.importorskip("polars")
    with pytest.raises(DataError, match="collect"):
        open_source(pl.DataFrame({"a": [1.0]}).lazy())


# ---- drop --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x.npz", "x.csv", "x.tsv"])
def test_drop(files, name):
    source = open_source(files / name, drop=["mass"])
    assert source.columns == ("age", "site")
    np.testing.assert_allclose(rows_of(source), X[:, [0, 2]])
    with pytest.raises(DataError, match=rf"{name}: there is no column 'mas' to drop; did you mean 'mass'"):
        open_source(files / name, drop=["mas"])
    assert open_source(files / name, drop=["mas"], strict_drop=False).columns == NAMES
    with pytest.raises(DataError, match="leaves no column"):
        open_source(files / name, drop=NAMES)


@pytest.mark.parametrize("kind", [ArraySource, lambda x, n: SparseSource(scipy.sparse.csr_array(x), n)])
def test_drop_from_a_source(kind):
    source = kind(X, NAMES)
    source.weights = np.arange(20.0)
    dropped = open_source(source, drop="age")
    assert dropped.columns == ("mass", "site")
    assert dropped.weights is source.weights
    np.testing.assert_allclose(rows_of(dropped), X[:, 1:])
    assert source.columns == NAMES
    if kind is not ArraySource:
        assert isinstance(dropped, SparseSource)


@pytest.mark.parametrize("data", [X, scipy.sparse.csr_array(X)])
@pytest.mark.parametrize("strict", [True, False])
def test_drop_needs_names(data, strict):
    with pytest.raises(DataError, match=r"drop = \['age'\] needs column names"):
        open_source(data, drop=["age"], strict_drop=strict)


# ---- weights -----------------------------------------------------------------------------------------------


def test_weights_leave_the_callers_source_alone():
    source = ArraySource(X)
    weighted = open_source(source, weights=np.arange(20), site_weight=2.0)
    assert (source.weights, source.site_weight) == (None, 1.0)
    assert weighted.mass == 2 * 190
    assert open_source(source) is source


def test_weights_of_a_file(files):
    assert open_source(files / "x.csv", weights=[0.5] * 20).mass == 10


@pytest.mark.parametrize("bad", [[1.0] * 19, np.ones((20, 1)), [np.nan] * 20, [-1.0] * 20, [np.inf] * 20])
def test_bad_row_weights(bad):
    with pytest.raises(DataError, match="row weights"):
        open_source(X, weights=bad)


@pytest.mark.parametrize("bad", [0, -1, np.nan, np.inf])
def test_bad_site_weights(bad):
    with pytest.raises(DataError, match="a site's weight is positive and finite"):
        open_source(X, site_weight=bad)


def test_symmetric_shares_have_no_rows_to_weigh():
    share = SymmetricSource(np.eye(3), NAMES)
    assert open_source(share, site_weight=3.0).site_weight == 3
    with pytest.raises(DataError, match="no rows to weigh"):
        open_source(share, weights=np.ones(3))
    with pytest.raises(DataError, match="no columns to drop"):
        open_source(share, drop=["age"])


# ---- triples -----------------------------------------------------------------------------------------------


def test_triples(tmp_path):
    (tmp_path / "t.csv").write_text("user,item,value\na,x,1\nb,y,2\na,y,4\n")
    source = open_source(tmp_path / "t.csv", triples=True, drop=["x"])
    assert source.columns == ("y",)
    np.testing.assert_array_equal(rows_of(source), [[4], [2]])
    named = open_source(tmp_path / "t.csv", triples={"user": "item", "item": "user", "value": None})
    np.testing.assert_array_equal(rows_of(named), [[1, 0], [1, 1]])
    for library in (pytest.importorskip("pandas"), pytest.importorskip("polars")):
        frame = library.DataFrame({"user": ["a", "b"], "item": [7, 9], "value": [1.0, 2.0]})
        assert open_source(frame, triples=True).columns == ("7", "9")
        with pytest.raises(DataError, match="there is no column 'thing' for the item"):
            open_source(frame, triples={"item": "thing"})


def test_triples_are_checked(files):
    with pytest.raises(ConfigurationError, match="no option 'users'; did you mean 'user'"):
        open_source(files / "x.csv", triples={"users": "a"})
    with pytest.raises(ConfigurationError, match="triples is True or a table of user, item"):
        open_source(files / "x.csv", triples="yes")
    with pytest.raises(FileError, match="triples are read from"):
        open_source(files / "x.npy", triples=True)
    with pytest.raises(DataError, match="not from a ndarray"):
        open_source(X, triples=True)


# ---- optional packages -------------------------------------------------------------------------------------


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    (tmp_path / "x.parquet").write_bytes(b"")
    real = builtins.__import__

    def without(name, *rest, **more):
        if name.partition(".")[0] == "pyarrow":
            raise ModuleNotFoundError("No module named 'pyarrow'")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, "fedspan.data.parquet", raising=False)
    with pytest.raises(ConfigurationError, match=r'pip install "fedspan\[parquet\]"'):
        open_source(tmp_path / "x.parquet")
    with pytest.raises(ConfigurationError, match=r'pip install "fedspan\[parquet\]"'):
        _ = fedspan.data.ParquetSource


def test_pyarrow_is_not_imported_before_it_is_needed():
    """By fedspan, that is: scikit-learn imports pandas, and pandas pyarrow, where they are installed."""
    code = "import fedspan.data, sys; print('fedspan.data.parquet' in sys.modules, 'polars' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_what_is_exported():
    assert sorted(fedspan.data.__all__) == fedspan.data.__all__
    for name in fedspan.data.__all__:
        assert hasattr(fedspan.data, name)
    with pytest.raises(AttributeError, match="no attribute 'NoSource'"):
        _ = fedspan.data.NoSource
    assert fedspan.data.CsvSource is CsvSource
