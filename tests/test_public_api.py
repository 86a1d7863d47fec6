"""The names that users rely on: importable, listed, and nothing listed that is not there."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys

import pytest

import fedspan
from fedspan import FederatedPCA, FederatedRepresentation, FederatedTruncatedSVD

# DESIGN.md, section 4, as far as this version goes. FAPS, PrivatePower, GaussianPrivacy and StreamingPCA come later.
PROMISED = {
    "fedspan": ["FederatedPCA", "FederatedRepresentation", "FederatedTruncatedSVD", "Cohort"],
    "fedspan.learners": ["FedRep", "LGFedAvg", "FedAvg", "HFMAML", "FLANP", "LGFLANP"],
    "fedspan.solvers": ["Power", "FedPower", "BlockKrylov", "UDA", "WDA", "RandomizedSVD", "Covariance"],
    "fedspan.metrics": ["projection_distance", "principal_angles", "captured_variance", "kkt_violation"],
    "fedspan.datasets": ["load", "Dataset"],
    "fedspan.privacy.audit": ["audit", "Audit"],
    "fedspan.data": ["open_source", "Source", "Preparation"],
    "fedspan.rounds": ["Round", "Reply", "Site", "Cohort", "Sum", "Mean", "Gather", "site_step", "answer", "drive"],
}
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(fedspan.__path__, "fedspan.")
    if not module.name.endswith("__main__") and ".cli" not in module.name
)


@pytest.mark.parametrize(("module", "name"), [(m, n) for m, names in PROMISED.items() for n in names])
def test_promised_names_are_there_and_listed(module, name):
    found = importlib.import_module(module)
    assert hasattr(found, name)
    assert name in found.__all__
    thing = getattr(found, name)
    assert getattr(thing, "__doc__", None)


@pytest.mark.parametrize("module", ["fedspan", *MODULES])
def test_what_a_module_lists_is_what_it_has(module):
    found = importlib.import_module(module)
    listed = getattr(found, "__all__", [])
    assert len(set(listed)) == len(listed)
    missing = [name for name in listed if not hasattr(found, name)]
    assert missing == []
    assert found.__doc__


def test_the_package_lists_all_it_shows():
    shown = {name for name, value in vars(fedspan).items() if not name.startswith("_") and not inspect.ismodule(value)}
    assert shown == set(fedspan.__all__)
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", fedspan.__version__)


COMMON = {
    "n_components": 10, "solver": "krylov", "privacy": None, "secure": False, "participation": None, "engine": None,
    "random_state": 0, "verbose": 0, "on_round": None, "run_folder": None, "init": None, "record": "rounds",
}  # fmt: skip


@pytest.mark.parametrize(
    ("estimator", "own"),
    [(FederatedPCA, {"center": True, "scale": False, "whiten": False}), (FederatedTruncatedSVD, {})],
)
def test_parameters_and_their_defaults(estimator, own):
    parameters = inspect.signature(estimator).parameters
    for name, default in {**COMMON, **own}.items():
        assert parameters[name].default == default, name
        positional = name == "n_components"
        assert (parameters[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD) == positional
    for name in ("fit", "transform", "inverse_transform", "fit_transform", "save", "load", "to_sklearn"):
        assert callable(getattr(estimator, name))


def test_parameters_of_a_representation_and_their_defaults():
    parameters = dict(inspect.signature(FederatedRepresentation).parameters)
    first = parameters.pop("n_components")
    assert (first.default, first.kind) == (None, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    assert {name: parameter.default for name, parameter in parameters.items()} == {
        "model": "linear", "learner": "fedrep", "start": "random", "privacy": None, "participation": None,
        "engine": None, "random_state": 0, "tune": 0, "evaluate_every": None, "verbose": 0, "on_round": None,
        "run_folder": None, "resume": False,
    }  # fmt: skip
    assert {parameter.kind for parameter in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    for name in ("fit", "predict", "score", "transform", "join", "evaluate", "save", "load"):
        assert callable(getattr(FederatedRepresentation, name))


def test_importing_fedspan_imports_nothing_optional():
    """scikit-learn itself brings pandas, and pandas pyarrow, where they are installed."""
    names = ("torch", "polars", "matplotlib", "nvflare", "ray")
    code = f"import fedspan, sys; print([name for name in {names} if name in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert found.stdout.strip() == "[]"
