"""The model file: the same model back, no pickle, and errors of ours for any other bytes."""

from __future__ import annotations

import io
import json
import pickle
import zipfile

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedspan import Cohort, FederatedPCA, FederatedTruncatedSVD
from fedspan.errors import ConfigurationError, FedspanError, FileError
from fedspan.model_file import NOT_KEPT, read_model
from fedspan.solvers import BlockKrylov, FedPower, Power

RNG = np.random.default_rng(0)
SITES = {
    "north": RNG.standard_normal((30, 5)) * [5, 4, 3, 2, 1],
    "south": RNG.standard_normal((40, 5)) * [5, 4, 3, 2, 1],
}
X = RNG.standard_normal((9, 5))
FRAMES = {name: pd.DataFrame(x, columns=list("vwxyz")) for name, x in SITES.items()}
GAPPY = {name: np.where(np.abs(x) < 0.2, np.nan, x) for name, x in SITES.items()}

MODELS = {
    "pca": (lambda: FederatedPCA(2), SITES),
    "svd": (lambda: FederatedTruncatedSVD(2), SITES),
    "whitened": (lambda: FederatedPCA(2, whiten=True, scale=True), SITES),
    "uncentred": (lambda: FederatedPCA(2, center=False), SITES),
    "named": (lambda: FederatedPCA(2, solver="power"), FRAMES),
    "filled": (lambda: FederatedPCA(2, missing="mean"), GAPPY),
    "settings": (lambda: FederatedPCA(2, solver=FedPower(sync=[1, 3, 5], align="sign", tol=0)), SITES),
    "cohort": (lambda: FederatedPCA(2, solver="power", participation=Cohort(only=("north",), first=1)), SITES),
    "fraction": (lambda: FederatedPCA(0.9, solver=BlockKrylov(oversampling=2)), SITES),
    "auto": (lambda: FederatedPCA("auto", solver="auto"), SITES),
    "single": (lambda: FederatedPCA(2), {name: x.astype(np.float32) for name, x in SITES.items()}),
    "degrees": (lambda: FederatedTruncatedSVD(2, normalise="degree"), {n: np.abs(x) for n, x in SITES.items()}),
}


@pytest.fixture(params=MODELS, ids=str)
def model(request):
    make, sites = MODELS[request.param]
    return make().fit(sites)


def rows(model):
    names = getattr(model, "feature_names_in_", None)
    if getattr(model, "normalise", None) == "degree":
        return np.abs(X)
    return X.astype(model.components_.dtype) if names is None else pd.DataFrame(X, columns=names)


def test_a_loaded_model_is_the_same_model(model, tmp_path):
    path = tmp_path / "model.fedspan"
    model.save(path)
    again = type(model).load(path)
    x = rows(model)
    assert again.transform(x).tobytes() == model.transform(x).tobytes()
    scores = model.transform(x)
    assert again.inverse_transform(scores).tobytes() == model.inverse_transform(scores).tobytes()
    ours = {k: v for k, v in model.get_params().items() if k not in NOT_KEPT}
    assert {k: v for k, v in again.get_params().items() if k not in NOT_KEPT} == ours
    fitted = {name for name in vars(model) if name.endswith("_") and not name.startswith("_")}
    assert {name for name in vars(again) if name.endswith("_") and not name.startswith("_")} == fitted
    for name in fitted:
        one, other = getattr(model, name), getattr(again, name)
        if isinstance(one, np.ndarray):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype, name
        elif name != "releases_":  # its rows come back as lists
            assert one == other, name
    assert [tuple(r) for r in again.releases_] == model.releases_


def test_a_loaded_model_can_be_saved_and_fitted_again(model, tmp_path):
    model.save(tmp_path / "one")
    again = type(model).load(str(tmp_path / "one"))
    again.save(tmp_path / "two")
    assert read_model(tmp_path / "one")[0] == read_model(tmp_path / "two")[0]
    assert again.fit({name: np.abs(x) for name, x in SITES.items()}).components_.shape[1] == 5


def test_nothing_is_pickled(tmp_path, monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("a pickle")

    for name in ("loads", "load", "dumps", "dump", "Unpickler", "Pickler"):
        monkeypatch.setattr(pickle, name, never)
    fitted = FederatedPCA(2).fit(FRAMES)
    fitted.save(tmp_path / "model")
    again = FederatedPCA.load(tmp_path / "model")
    assert list(again.feature_names_in_) == list("vwxyz")
    with np.load(tmp_path / "model", allow_pickle=False) as parts:
        assert all(parts[name].dtype != object for name in parts.files)


def test_the_header_is_json_with_a_version(tmp_path):
    FederatedPCA(2).fit(SITES).save(tmp_path / "model")
    with zipfile.ZipFile(tmp_path / "model") as archive, archive.open("header.npy") as file:
        header = json.loads(np.load(io.BytesIO(file.read())).tobytes())
    assert (header["format"], header["version"], header["estimator"]) == ("fedspan-model", 1, "FederatedPCA")
    assert header["params"]["n_components"] == 2
    assert header["fitted"]["n_samples_seen_"] == 70
    assert not set(NOT_KEPT) & set(header["params"])


def test_what_belongs_to_a_run_does_not_go_along(tmp_path):
    fitted = FederatedPCA(2, on_round=lambda r, e: None, run_folder=tmp_path / "run", verbose=0, init=np.eye(5)[:, :2])
    fitted.fit(SITES).save(tmp_path / "model")
    again = FederatedPCA.load(tmp_path / "model")
    assert again.on_round is None
    assert again.run_folder is None
    assert again.init is None


@pytest.mark.parametrize("names", [("solver", "cohort"), ("history", "settings"), ("solver", "settings")])
def test_sites_may_be_called_as_they_like(tmp_path, names):
    gappy = dict(zip(names, GAPPY.values(), strict=True))
    fitted = FederatedPCA(2, missing="mean").fit(gappy)
    fitted.save(tmp_path / "model")
    assert FederatedPCA.load(tmp_path / "model").missing_ == fitted.missing_


def test_the_other_estimators_model_is_refused(tmp_path):
    FederatedPCA(2).fit(SITES).save(tmp_path / "model")
    with pytest.raises(ConfigurationError, match="holds a FederatedPCA, not a FederatedTruncatedSVD"):
        FederatedTruncatedSVD.load(tmp_path / "model")


def test_no_file_is_an_error(tmp_path):
    with pytest.raises(FileError, match="there is no model file"):
        FederatedPCA.load(tmp_path / "none")


def test_a_file_is_replaced_whole(tmp_path, monkeypatch):
    path = tmp_path / "model"
    first = FederatedPCA(2).fit(SITES)
    first.save(path)

    def fails(source, target):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fails)
    with pytest.raises(OSError, match="disk full"):
        FederatedPCA(3).fit(SITES).save(path)
    assert FederatedPCA.load(path).n_components_ == 2
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_model_that_is_not_plain_is_refused(tmp_path):
    fitted = FederatedPCA(2, solver=Power()).fit(SITES)
    fitted.solver_ = lambda: None
    with pytest.raises(ConfigurationError, match="holds plain data"):
        fitted.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


# ---- other bytes -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model"
    FederatedPCA(2).fit(FRAMES).save(path)
    return path.read_bytes()


def test_a_file_cut_short_anywhere_is_an_error_of_ours(saved, tmp_path):
    path = tmp_path / "cut"
    for cut in [*range(0, len(saved), 97), len(saved) - 1]:
        path.write_bytes(saved[:cut])
        with pytest.raises(FileError, match="not a fedspan model file, or was cut short"):
            FederatedPCA.load(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.integers(0, 10**9), st.integers(1, 255))
def test_a_flipped_byte_is_an_error_of_ours_or_does_not_matter(saved, tmp_path, at, flip):
    data = bytearray(saved)
    data[at % len(data)] ^= flip
    path = tmp_path / "flipped"
    path.write_bytes(bytes(data))
    try:
        model = FederatedPCA.load(path)
    except FedspanError:
        return
    assert model.components_.shape == (2, 5)


def archive(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def header(**changes):
    content = {"format": "fedspan-model", "version": 1, "estimator": "FederatedPCA", "params": {}, "fitted": {}}
    return np.frombuffer(json.dumps({**content, **changes}).encode(), dtype=np.uint8)


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04",
        b"not a model at all",
        pickle.dumps({"components_": 1}),
        npy(np.eye(3)),
        archive(x=np.eye(2)),
        archive(header=np.frombuffer(b"{", dtype=np.uint8)),
        archive(header=np.frombuffer(b"[1]", dtype=np.uint8)),
        archive(header=np.frombuffer(b"\xff\xfe", dtype=np.uint8)),
        archive(header=header(format="other")),
        archive(header=header(version=2)),
        archive(header=header(version="one")),
        archive(header=header(estimator="Unknown")),
        archive(header=np.frombuffer(b'{"format": "fedspan-model", "version": 1}', dtype=np.uint8)),
        archive(header=header(params={"no_such": 1})),
        archive(header=header(params={"solver": {"solver": "nonsense", "settings": {}}})),
        archive(header=header(params=[1])),
    ],
    ids=range(17),
)
def test_other_files_are_errors_of_ours(data, tmp_path):
    path = tmp_path / "other"
    path.write_bytes(data)
    with pytest.raises(FedspanError):
        FederatedPCA.load(path)


def test_a_newer_version_says_what_to_do(tmp_path):
    path = tmp_path / "newer"
    path.write_bytes(archive(header=header(version=2)))
    with pytest.raises(
        FileError, match="version 2; this fedspan reads 'fedspan-model' up to version 1: update fedspan"
    ):
        FederatedPCA.load(path)


def test_an_array_of_objects_is_not_unpickled(tmp_path):
    ran = []

    class Evil:
        def __reduce__(self):
            return ran.append, (1,)

    buffer = io.BytesIO()
    np.savez(buffer, header=header(), components_=np.array([Evil()], dtype=object))
    path = tmp_path / "evil"
    path.write_bytes(buffer.getvalue())
    ran.clear()
    with pytest.raises(FileError):
        FederatedPCA.load(path)
    assert ran == []
