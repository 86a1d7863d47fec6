"""`load`: where sets are looked for, how stored files become a Dataset, and what is said when they do not."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse

from fedspan.datasets import load, names
from fedspan.errors import ConfigurationError, DataError, FileError

NOT_IN_THE_FOLDER = [
    *("acoustic", "combined", "aloi", "connect-4", "ijcnn1", "amazon-book", "yelp2018", "motes_humidity"),
    *("motes_temperature", "fashion-mnist", "cifar10", "cifar100", "emnist", "femnist", "sent140"),
]
BUNDLED = {
    "digits": (1797, 64),
    "breast_cancer": (569, 30),
    "wine": (178, 13),
    "diabetes": (442, 10),
    "iris": (150, 4),
}
REAL = {
    "mnist": (60000, 784),
    "a9a": (32561, 123),
    "w8a": (49749, 300),
    "covtype": (581012, 54),
    "housing_scale": (506, 13),
    "gowalla": (29858, 40981),
    "wine_red": (1599, 11),
    "motes_light": (7712, 48),
    "cifar10_subset": (10000, 3072),
    "hapmap3": (957, 14079),
}


def store(folder, name, **arrays):
    folder.mkdir(exist_ok=True)
    np.savez(folder / f"{name}.npz", **arrays)


# ----------------------------------------------------------------------------------------- lookup


def test_names_are_those_of_all_papers():
    assert {*NOT_IN_THE_FOLDER, *BUNDLED, *REAL} <= set(names())
    assert list(names()) == sorted(names())


def test_the_data_folder_comes_before_the_cache(data_folder, cache):
    store(cache, "motes_light", X=np.ones((2, 2)))
    assert load("motes_light").X[0, 0] == 1
    store(data_folder, "motes_light", X=np.zeros((3, 2)))
    found = load("motes_light")
    assert found.X.shape == (3, 2)
    assert found.origin == str(data_folder / "motes_light.npz")


@pytest.mark.parametrize("stored", ["connect-4", "connect_4"])
@pytest.mark.parametrize("asked", ["connect-4", "connect_4", "Connect-4"])
def test_hyphens_underscores_and_case_do_not_matter(data_folder, stored, asked):
    store(data_folder, stored, X=np.ones((1, 1)))
    assert load(asked).name == "connect-4"


def test_the_default_cache_is_the_users(monkeypatch, tmp_path):
    monkeypatch.delenv("FEDSPAN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    with pytest.raises(DataError, match=str(tmp_path / "xdg" / "fedspan")):
        load("mnist", download=False)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(DataError, match=str(tmp_path / ".cache" / "fedspan")):
        load("mnist", download=False)


def test_an_unknown_name_gets_a_suggestion():
    with pytest.raises(ConfigurationError, match="did you mean 'gowalla'"):
        load("gowala")


def test_a_data_folder_that_is_none_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDSPAN_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigurationError, match="no folder"):
        load("mnist")


@pytest.mark.parametrize("name", ["femnist", "hapmap3"])
@pytest.mark.parametrize("download", [True, False])
def test_sets_that_are_prepared_by_hand_say_how(name, download):
    with pytest.raises(DataError, match=rf"FEDSPAN_DATA.*{name}\.npz|{name}\.npz into \$FEDSPAN_DATA"):
        load(name, download=download)


def leaf(folder, *labels):
    folder.mkdir(parents=True)
    told = {"users": ["f0"], "user_data": {"f0": {"x": [[0.0, 1.0]] * len(labels), "y": labels}}}
    (folder / "all_data_0.json").write_text(json.dumps(told))


def test_files_of_leaf_are_read_where_they_were_put_and_kept_in_the_cache(data_folder, cache):
    leaf(data_folder / "femnist" / "train", 3, 61)
    leaf(data_folder / "femnist" / "test", 5)
    found = load("femnist", download=False)
    assert found.X.tolist() == [[0, 255], [0, 255]]
    assert (found.y.tolist(), found.y_test.tolist()) == ([3, 61], [5])
    assert found.extras["site"].tolist() == ["f0", "f0"]
    assert found.origin == str(cache / "femnist.npz")


def test_files_of_leaf_that_are_damaged_are_named(data_folder, cache):
    leaf(data_folder / "femnist" / "train", 3)
    (data_folder / "femnist" / "train" / "all_data_1.json").write_text("{")
    with pytest.raises(FileError, match="put into FEDSPAN_DATA for femnist cannot be read"):
        load("femnist")
    assert list(cache.iterdir()) == []


def test_test_files_of_leaf_alone_are_no_set(data_folder):
    leaf(data_folder / "femnist" / "test", 3)
    with pytest.raises(DataError, match="femnist/train"):
        load("femnist")


def test_integers_would_overflow_and_are_refused():
    with pytest.raises(ConfigurationError, match="floating"):
        load("iris", dtype=np.uint8)


# ---------------------------------------------------------------------------------------- layouts


def test_images_become_floats(data_folder):
    images = np.array([[250, 3]], dtype=np.uint8)
    store(data_folder, "mnist", X=images, y=np.uint8([7]), X_test=images[:, ::-1], y_test=np.uint8([1]))
    found = load("mnist", dtype=np.float32)
    assert found.X.dtype == found.X_test.dtype == np.float32
    assert found.X.tolist() == [[250, 3]]
    assert found.X_test.tolist() == [[3, 250]]
    assert found.y.dtype == np.int64
    assert found.y_test.tolist() == [1]


def test_csr_parts_become_a_matrix_whose_test_part_may_lack_a_shape(data_folder):
    parts = {"data": np.uint8([1, 1]), "indices": np.uint16([0, 2]), "indptr": np.int32([0, 1, 2])}
    test = {f"test_{key}": value for key, value in parts.items()}
    store(data_folder, "gowalla", **parts, **test, shape=np.array([2, 5]))
    found = load("gowalla")
    assert scipy.sparse.issparse(found.X)
    assert found.X.dtype == np.float64
    assert found.X.indices.dtype == np.int32
    assert found.X_test.shape == (2, 5)
    assert (found.X @ np.arange(5.0)).tolist() == [0, 2]
    assert "sparse" in repr(found)


def test_cover_types_are_spread_to_columns(data_folder):
    store(
        data_folder,
        "covtype",
        num=np.int16([[-3] * 10]),
        wilderness=np.uint8([3]),
        soil=np.uint8([39]),
        y=np.uint8([7]),
    )
    found = load("covtype")
    assert found.X.shape == (1, 54)
    assert np.flatnonzero(found.X[0, 10:]).tolist() == [3, 43]
    assert found.X[0, :10].tolist() == [-3] * 10
    assert found.columns[-1] == "soil_39"


def test_missing_genotypes_are_nan_and_names_are_text(data_folder):
    persons = {"ids": np.array([b"NA1", b"NA2"]), "pop": np.array([b"CEU", b"YRI"])}
    markers = {"snp": np.array([b"rs1", b"rs2"]), "pos": np.int32([5, 6])}
    store(data_folder, "hapmap3", G=np.int8([[0, -1], [2, 1]]), **persons, **markers)
    found = load("hapmap3")
    assert np.isnan(found.X[0, 1])
    assert found.X[1].tolist() == [2, 1]
    assert found.columns == ("rs1", "rs2")
    assert found.extras["pop"].tolist() == ["CEU", "YRI"]
    assert sorted(found.extras) == ["ids", "pop", "pos"]


def test_a_truncated_file_says_so(data_folder):
    store(data_folder, "wine_red", X=np.arange(2000.0).reshape(-1, 2))
    path = data_folder / "wine_red.npz"
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(FileError, match=r"wine_red\.npz cannot be read .*truncated.*delete it"):
        load("wine_red")


def test_a_file_with_damaged_content_says_so(data_folder):
    store(data_folder, "wine_red", X=np.arange(2000.0).reshape(-1, 2))
    path = data_folder / "wine_red.npz"
    content = bytearray(path.read_bytes())
    content[5000:5100] = bytes(100)
    path.write_bytes(content)
    with pytest.raises(FileError, match="cannot be read"):
        load("wine_red")


def test_pickled_arrays_are_never_opened(data_folder):
    np.savez(data_folder / "wine_red.npz", X=np.array([{"a": 1}], dtype=object))
    with pytest.raises(FileError, match="plain arrays"):
        load("wine_red")


def test_a_file_without_the_expected_arrays_says_what_it_holds(data_folder):
    store(data_folder, "wine_red", features=np.ones((2, 2)))
    with pytest.raises(FileError, match=r"\['features'\]; expected X"):
        load("wine_red")


# ----------------------------------------------------------------------------------- the sets


@pytest.mark.parametrize("name", sorted(BUNDLED))
def test_scikit_learn_sets_need_no_file(name):
    found = load(name)
    assert found.X.shape == BUNDLED[name]
    assert len(found.y) == len(found.X)
    assert len(found.columns) == found.X.shape[1]
    assert found.origin == "scikit-learn"


@pytest.mark.parametrize("name", sorted(REAL))
def test_real_files_load_as_they_are(real_data, name):
    real_data(name)
    found = load(name, dtype=np.float32)
    assert found.X.shape == REAL[name]
    assert found.X.dtype == np.float32
    if found.y is not None:
        assert len(found.y) == found.X.shape[0]
    if found.X_test is not None:
        assert found.X_test.shape[1] == found.X.shape[1]
    if found.columns is not None:
        assert len(found.columns) == found.X.shape[1]


def test_real_sparse_sets_have_their_published_number_of_interactions(real_data):
    real_data("gowalla")
    found = load("gowalla")
    assert found.X.nnz + found.X_test.nnz == 1_027_370
    assert found.X.max() == 1


def test_real_genotypes_have_missing_calls(real_data):
    real_data("hapmap3")
    found = load("hapmap3", dtype=np.float32)
    assert np.isnan(found.X).any()
    assert np.nanmin(found.X) == 0
    assert np.nanmax(found.X) == 2
    assert len(set(found.extras["pop"])) == 11
