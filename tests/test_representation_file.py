"""The file of a learnt representation: the same model back to the bit, no pickle, errors of ours for other bytes."""

from __future__ import annotations

import hashlib
import json
import pickle
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from fedspan import Cohort, FederatedPCA, FederatedRepresentation
from fedspan.encoding import encode
from fedspan.errors import ConfigurationError, FedspanError, FileError
from fedspan.learners import FLANP, HFMAML, FedAvg, FedRep, LGFedAvg
from fedspan.representation_file import NOT_KEPT, OF_SITES, holds_representation, read_representation
from fedspan.solvers import Doubling
from tests.labelled import NAMES, D, basis, classes, numbers

pytestmark = pytest.mark.filterwarnings("ignore:no reply counted")  # of so few rounds, first=3

MLP = {"kind": "mlp", "hidden": [6, 3]}
QUICK = {"rounds": 2, "batch": 8}
MODELS = {
    "linear": (lambda: FederatedRepresentation(2, learner=FedRep(rounds=3, batch=0)), numbers),
    "moments": (lambda: FederatedRepresentation(2, learner=FedRep(rounds=3, batch=0), start="moments"), numbers),
    "given": (lambda: FederatedRepresentation(2, learner=FedRep(rounds=3, batch=0), start=basis()), numbers),
    "by name": (lambda: FederatedRepresentation(model=MLP, learner="hf-maml", participation=0.5), lambda: classes(8)),
    "deep": (lambda: FederatedRepresentation(model=MLP, learner=FedRep(**QUICK), evaluate_every=1), classes),
    "lg": (lambda: FederatedRepresentation(model=MLP, learner=LGFedAvg(**QUICK)), classes),
    "fedavg": (lambda: FederatedRepresentation(model=MLP, learner=FedAvg(**QUICK), random_state=3), classes),
    "tuned": (lambda: FederatedRepresentation(model=MLP, learner=HFMAML(**QUICK), tune=2), classes),
    "doubling": (
        lambda: FederatedRepresentation(
            model=MLP, learner=Doubling(stage=FedRep(**QUICK), n0=2), participation=Cohort(only=NAMES, first=3),
            engine="virtual-time",
        ),
        classes,
    ),
    "flanp": (
        lambda: FederatedRepresentation(model=MLP, learner=FLANP(n0=2, stall=None, stage_rounds=1, **QUICK)), classes,
    ),
}  # fmt: skip
X = np.random.default_rng(3).standard_normal((9, D)).astype(np.float32)


@pytest.fixture(scope="module", params=MODELS, ids=str)
def model(request):
    make, sites = MODELS[request.param]
    return make().fit(sites())


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model.fedspan"
    FederatedRepresentation(model=MLP, learner=FedRep(**QUICK)).fit(classes()).save(path)
    return path


def test_a_loaded_model_predicts_the_same_bits(model, tmp_path):
    path = tmp_path / "model.fedspan"
    model.save(path)
    again = FederatedRepresentation.load(str(path))
    for site in NAMES:
        assert again.predict(site, X).tobytes() == model.predict(site, X).tobytes()
        assert again.transform(X, site).tobytes() == model.transform(X, site).tobytes()
    if model.classes_ is not None:
        assert again.decision_function("ash", X).tobytes() == model.decision_function("ash", X).tobytes()
        assert again.classes_.dtype == model.classes_.dtype


def test_a_loaded_model_is_the_same_model(model, tmp_path):
    model.save(tmp_path / "one")
    again = FederatedRepresentation.load(tmp_path / "one")
    kept = {k: v for k, v in again.get_params().items() if k not in NOT_KEPT}
    ours = {k: v for k, v in model.get_params().items() if k not in NOT_KEPT}
    if not isinstance(ours["start"], str):
        ours["start"] = "random"
    assert kept == ours
    fitted = {name for name in vars(model) if name.endswith("_")}
    assert {name for name in vars(again) if name.endswith("_")} == fitted
    for name in fitted - {"heads_", "shared_", "classes_"}:
        assert getattr(again, name) == getattr(model, name), name
    assert again.heads_.keys() == model.heads_.keys()
    assert str(again.site_scores_) == str(model.site_scores_)
    assert again.curve_[0]["scores"].fairness == model.curve_[0]["scores"].fairness
    again.save(tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_loaded_model_takes_in_a_new_site_as_the_first_would(model, tmp_path):
    model.save(tmp_path / "model")
    again, twin = (FederatedRepresentation.load(tmp_path / "model") for _ in range(2))
    rows = (numbers if model.classes_ is None else classes)(seed=5)["oak"][:2]
    assert again.join("fir", *rows).heads_["fir"].tobytes() == twin.join("fir", *rows).heads_["fir"].tobytes()
    again.save(tmp_path / "joined")
    assert FederatedRepresentation.load(tmp_path / "joined").joined_ == ["fir"]


@pytest.mark.parametrize("kind", ["linear", "deep", "lg", "tuned", "doubling"])
def test_a_file_without_heads_tells_of_no_site(kind, tmp_path):
    make, sites = MODELS[kind]
    fitted = make().fit(sites())
    fitted.save(tmp_path / "shared", heads=False)
    header, arrays = read_representation(tmp_path / "shared")
    assert list(arrays) == ["shared"]
    assert arrays["shared"].tobytes() == fitted.shared_.tobytes()
    assert header["sites"] == []
    assert not any(header["fitted"].get(name) for name in OF_SITES)
    content = (tmp_path / "shared").read_bytes()
    for site in NAMES:
        assert site.encode() not in content
    again = FederatedRepresentation.load(tmp_path / "shared")
    assert (again.site_scores_.fairness, again.fairness_) == ({}, {})
    with pytest.raises(ConfigurationError, match=r"holds no site, as it was saved with heads=False; .* join\('ash'"):
        again.predict("ash", X)
    if kind != "lg":
        assert again.transform(X).tobytes() == fitted.transform(X).tobytes()
    rows = sites(seed=1)["ash"][:2]
    assert again.join("ash", *rows).predict("ash", X).shape == (9,)


def test_a_file_with_heads_holds_all_of_them(saved):
    _, arrays = read_representation(saved)
    assert sorted(arrays) == ["own.0", "own.1", "own.2", "own.3", "shared"]


def test_nothing_is_pickled(tmp_path, monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("a pickle")

    for name in ("loads", "load", "dumps", "dump", "Unpickler", "Pickler"):
        monkeypatch.setattr(pickle, name, never)
    FederatedRepresentation(learner=FedRep(rounds=1, batch=0)).fit(numbers()).save(tmp_path / "model")
    FederatedRepresentation.load(tmp_path / "model")


def test_any_reader_of_safetensors_reads_it(saved):
    with safe_open(saved, framework="np") as file:
        header = json.loads(file.metadata()["fedspan"])
        assert file.get_tensor("shared").dtype == np.float32
    assert (header["format"], header["version"]) == ("fedspan-representation", 1)
    assert header["estimator"] == "FederatedRepresentation"
    assert header["params"]["model"] == MLP
    assert header["sites"] == list(NAMES)
    assert not set(NOT_KEPT) & set(header["params"])


@pytest.mark.parametrize("names", [("cohort", "kind"), ("shared", "own.0"), ("größe/ß", "../x")])
def test_sites_may_be_called_as_they_like(names, tmp_path):
    sites = dict(zip(names, numbers().values(), strict=False))
    fitted = FederatedRepresentation(learner=FedRep(rounds=1, batch=0)).fit(sites)
    fitted.save(tmp_path / "model")
    again = FederatedRepresentation.load(tmp_path / "model")
    for name in names:
        assert again.predict(name, X).tobytes() == fitted.predict(name, X).tobytes()


def test_learners_that_are_no_plain_data_are_refused(tmp_path):
    class Mine(FedRep):
        """A learner of the user's own."""

    fitted = FederatedRepresentation(learner=Mine(rounds=1, batch=0)).fit(numbers())
    with pytest.raises(ConfigurationError, match="a file holds plain data, and Mine"):
        fitted.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


# ---- other files -------------------------------------------------------------------------------------------------


def test_models_of_other_estimators_are_told_apart(saved, tmp_path):
    FederatedPCA(2).fit([x for x, _ in numbers().values()]).save(tmp_path / "pca")
    assert not holds_representation(tmp_path / "pca")
    with pytest.raises(FileError, match=r"holds no learnt representation.*FederatedPCA.load"):
        FederatedRepresentation.load(tmp_path / "pca")
    with pytest.raises(ConfigurationError, match="holds a FederatedRepresentation, not a FederatedPCA"):
        FederatedPCA.load(saved)


def test_a_file_of_anothers_is_refused(tmp_path):
    (tmp_path / "weights").write_bytes(save_tensors({"w": np.eye(3)}, {"by": "someone"}))
    with pytest.raises(FileError, match="was not written by fedspan"):
        FederatedRepresentation.load(tmp_path / "weights")
    with pytest.raises(FileError, match="there is no model file"):
        FederatedRepresentation.load(tmp_path / "nothing")
    for content in (b"", b"PK", b"\x00" * 100, b"not a model at all", pickle.dumps({"a": 1})):
        (tmp_path / "junk").write_bytes(content)
        with pytest.raises(FileError):
            FederatedRepresentation.load(tmp_path / "junk")


def rewritten(saved, tmp_path, change):
    """Return a file whose header was changed by someone who knows how to."""
    header, arrays = read_representation(saved)
    change(header)
    digest = hashlib.sha256(json.dumps(header).encode() + encode(arrays)).hexdigest()
    path = tmp_path / "other"
    path.write_bytes(save_tensors(arrays, {"fedspan": json.dumps({**header, "digest": digest})}))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h: h.update(version=2), r"version 2; this fedspan reads .* up to version 1: update fedspan"),
        (lambda h: h.update(format="fedspan-other"), "has format 'fedspan-other'"),
        (lambda h: h.update(version="1"), "has format 'fedspan-representation' version 1"),
        (lambda h: h.pop("params"), "written by another version of fedspan, or is damaged"),
        (lambda h: h["params"].update(depth=3), "written by another version"),
        (lambda h: h["fitted"].pop("agreed_"), "written by another version"),
        (lambda h: h["sites"].append("fifth"), "written by another version"),
        (lambda h: h["params"].update(learner={"kind": "Os", "settings": {}}), "written by another version"),
        (lambda h: h["fitted"]["history_"][0].update(colour="red"), "written by another version"),
    ],
)
def test_newer_and_other_headers_are_refused_by_name(saved, tmp_path, change, message):
    path = rewritten(saved, tmp_path, change)
    with pytest.raises(FileError, match=message) as error:
        FederatedRepresentation.load(path)
    assert str(path) in str(error.value)


def test_a_damaged_weight_is_found(saved, tmp_path):
    content = bytearray(saved.read_bytes())
    content[-5] ^= 1
    (tmp_path / "damaged").write_bytes(content)
    with pytest.raises(FileError, match="damaged: its content is not what was written"):
        FederatedRepresentation.load(tmp_path / "damaged")


def test_wherever_a_file_is_cut_it_is_refused(saved, tmp_path):
    content = saved.read_bytes()
    begin = struct.unpack("<Q", content[:8])[0] + 8
    for cut in {*range(12), begin - 1, begin, begin + 1, len(content) // 2, len(content) - 1}:
        (tmp_path / "cut").write_bytes(content[:cut])
        with pytest.raises(FileError):
            FederatedRepresentation.load(tmp_path / "cut")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changed_bytes_are_refused_or_change_nothing(saved, tmp_path, data):
    content = bytearray(saved.read_bytes())
    for at in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=3, unique=True)):
        content[at] ^= data.draw(st.integers(1, 255))
    (tmp_path / "changed").write_bytes(content)
    try:
        again = FederatedRepresentation.load(tmp_path / "changed")
    except FedspanError:
        return
    whole = FederatedRepresentation.load(saved)
    assert again.predict("ash", X).tobytes() == whole.predict("ash", X).tobytes()


def test_a_failed_write_leaves_the_old_file(saved, tmp_path, monkeypatch):
    path = tmp_path / "model"
    path.write_bytes(saved.read_bytes())
    fitted = FederatedRepresentation.load(path)

    def full(*args):
        raise OSError("no space left")

    monkeypatch.setattr("fedspan.encoding.os.replace", full)
    with pytest.raises(OSError, match="no space left"):
        fitted.save(path)
    assert path.read_bytes() == saved.read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    assert load_tensors(path.read_bytes())["shared"].size == fitted.shared_.size
