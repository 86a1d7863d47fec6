"""The other verbs, what all verbs share, and the demo as a user runs it."""

from __future__ import annotations

import csv
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedspan
from fedspan import FederatedPCA, FederatedTruncatedSVD
from fedspan.cli import app, compare, papers
from fedspan.cli.output import console
from fedspan.errors import ConvergenceError
from tests.cli.conftest import Federation, invoke, python

# ---- demo --------------------------------------------------------------------------------------------------------


def test_the_demo_runs_from_nothing_in_another_process(tmp_path: Path) -> None:
    done = python("-m", "fedspan", "demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    for solver in ("power", "fedpower", "uda", "dr-svd", "krylov"):
        assert sum(line.startswith(f"{solver} ") for line in lines) == 1
        folder = tmp_path / "runs" / "demo" / solver
        assert FederatedPCA.load(folder / "model.fedspan").n_components_ == 10
        assert (folder / "summary.json").exists()
    assert lines[-1].split() == ["fedspan", "fit", "runs/demo/study.toml"]
    assert done.stderr.splitlines()[0] == "demo: power"


def test_the_demos_figures_and_its_study_hold(tmp_path: Path) -> None:
    first = json.loads(invoke("demo", "--folder", tmp_path / "d", "--json").stdout)
    trials = {trial["solver"]: trial for trial in first["trials"]}
    assert trials["krylov"]["error"] < 1e-10
    assert trials["power"]["error"] < 1e-5
    assert 0 < trials["uda"]["error"] < 0.5
    for trial in trials.values():
        assert 0.98 < trial["variance"] <= 1 + 1e-12
    second = json.loads(invoke("demo", "--folder", tmp_path / "d", "--json").stdout)
    assert (first["folder"], second["folder"]) == (str(tmp_path / "d"), str(tmp_path / "d-2"))
    summary = json.loads(invoke("fit", first["study"], "--json").stdout)
    assert summary["explained_variance"] == pytest.approx(
        json.loads((tmp_path / "d" / "krylov" / "summary.json").read_text())["explained_variance"]
    )
    assert summary["folder"] == str(tmp_path / "d" / "digits")


# ---- plan and compare --------------------------------------------------------------------------------------------


def test_a_plan_is_printed_with_its_sums(federation: Federation) -> None:
    federation.write_study("[solve.settings]\nrounds = 4\ntol = 0\n", solver="power")
    result = invoke("plan", federation.study)
    assert result.exit_code == 0
    assert "At most 4 rounds and 3 to set up" in result.stdout
    assert "4-7" in result.stdout
    data = json.loads(invoke("plan", federation.study, "--json").stdout)
    summary = json.loads(invoke("fit", federation.study, "--json").stdout)
    assert (data["bytes_up"], data["bytes_down"]) == (summary["bytes_up"], summary["bytes_down"])
    assert data["solver"] == "power"
    assert len(data["rounds"]) == 7


def test_a_plan_says_when_the_rank_is_still_open(federation: Federation) -> None:
    federation.write_study(k='"auto"')
    assert "first try" in invoke("plan", federation.study).stdout


def test_a_plan_writes_nothing(federation: Federation) -> None:
    before = sorted(federation.folder.rglob("*"))
    invoke("plan", federation.study)
    assert sorted(federation.folder.rglob("*")) == before


def test_compare_puts_all_solvers_side_by_side(federation: Federation) -> None:
    result = invoke("compare", federation.study)
    assert result.exit_code == 0
    for solver in ("power", "fedpower", "krylov", "faps", "covariance", "uda", "wda", "dr-svd"):
        assert f"\n{solver} " in result.stdout
    trials = json.loads(invoke("compare", federation.study, "--json").stdout)["trials"]
    errors = {trial["solver"]: trial["error"] for trial in trials}
    assert max(errors["krylov"], errors["covariance"]) < 1e-8


def test_compare_takes_the_solvers_named_and_the_studys_settings(federation: Federation) -> None:
    federation.write_study("[solve.settings]\nrounds = 3\n", solver="power", k=0.7)
    result = json.loads(invoke("compare", federation.study, "--solvers", "power, krylov", "--json").stdout)
    power, krylov = result["trials"]
    assert (power["solver"], krylov["solver"]) == ("power", "krylov")
    assert (power["rounds"], power["converged"]) == (3, False)
    assert "* its budget" in invoke("compare", federation.study, "--solvers", "power").stdout


@pytest.fixture
def astray(monkeypatch: pytest.MonkeyPatch) -> None:
    """FAPS diverges in its first round."""

    def diverge(product: Any, seen: list[float]) -> None:
        raise ConvergenceError("faps diverged: just so")

    monkeypatch.setattr("fedspan.solvers.faps.check_finite", diverge)


@pytest.mark.usefixtures("astray")
def test_compare_goes_on_without_a_solver_that_goes_astray(federation: Federation) -> None:
    result = invoke("compare", federation.study, "--solvers", "faps,krylov", "--json")
    assert result.exit_code == 0
    assert [trial["solver"] for trial in json.loads(result.stdout)["trials"]] == ["krylov"]
    assert "faps is left out: faps diverged" in result.stderr


@pytest.mark.usefixtures("astray")
def test_a_fit_that_goes_astray_is_an_error_and_leaves_no_model(federation: Federation) -> None:
    federation.write_study(solver="faps")
    result = invoke("fit", federation.study)
    assert result.exit_code == 7
    assert "faps diverged" in result.stderr
    assert not list(federation.folder.rglob("model.fedspan"))


def test_compare_with_wide_data_measures_against_krylov(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "WIDE", 3)
    result = invoke("compare", federation.study)
    assert "exact answer (krylov)" in result.stdout
    assert "\ndr-svd" not in result.stdout


def test_compare_leaves_out_what_the_cohort_forbids(federation: Federation) -> None:
    federation.write_study("[participation]\nfraction = 0.5\n", solver="fedpower")
    solvers = [t["solver"] for t in json.loads(invoke("compare", federation.study, "--json").stdout)["trials"]]
    assert "fedpower" in solvers
    assert "krylov" not in solvers


def test_compare_refuses_an_unknown_solver(federation: Federation) -> None:
    result = invoke("compare", federation.study, "--solvers", "powr")
    assert result.exit_code == 3
    assert "did you mean 'power'?" in result.stderr
    assert invoke("compare", federation.study, "--solvers", ",").exit_code == 3


# ---- export, datasets, reproduce ---------------------------------------------------------------------------------


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_export_writes_three_tables(federation: Federation) -> None:
    federation.write_study("[data]\nscale = true\n")
    invoke("fit", federation.study)
    path = federation.run_folder / "model.fedspan"
    model, out = FederatedPCA.load(path), federation.folder / "out"
    files = json.loads(invoke("export", path, "--csv", "-o", out, "--json").stdout)
    assert files == {name: str(out / f"{name}.csv") for name in ("components", "variance", "mean")}
    components, variance, mean = (read(Path(name)) for name in files.values())
    assert [row["feature"] for row in components] == list(model.feature_names_in_)
    columns = [[float(row[f"component{i + 1}"]) for row in components] for i in range(2)]
    np.testing.assert_array_equal(columns, model.components_)
    np.testing.assert_array_equal([float(row["explained_variance"]) for row in variance], model.explained_variance_)
    np.testing.assert_array_equal([float(row["mean"]) for row in mean], model.mean_)
    np.testing.assert_array_equal([float(row["scale"]) for row in mean], model.scale_)


def test_export_of_a_model_without_names_or_mean(tmp_path: Path) -> None:
    FederatedTruncatedSVD(2).fit([np.random.default_rng(0).random((9, 4))]).save(tmp_path / "model.fedspan")
    assert invoke("export", tmp_path / "model.fedspan").exit_code == 0
    assert [row["feature"] for row in read(tmp_path / "components.csv")] == ["x0", "x1", "x2", "x3"]
    assert {row["mean"] for row in read(tmp_path / "mean.csv")} == {"0.0"}


def test_datasets_are_listed() -> None:
    assert "digits" in invoke("datasets").stdout
    assert {entry["name"] for entry in json.loads(invoke("datasets", "--json").stdout)} >= {"digits", "mnist"}


def test_reproduce_calls_the_papers_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("a_paper")

    def again(folder: Path, **options: object) -> dict[str, object]:
        options.pop("report")("row 1")  # type: ignore[operator]
        folder.mkdir()
        (folder / "table.md").write_text("table")
        return options

    module.reproduce, module.text = again, lambda result: "the table"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_paper", module)
    monkeypatch.setitem(papers.PAPERS, "paper", "a_paper")
    result = invoke("reproduce", "paper", "--folder", tmp_path / "one", "--quick", "--no-figures")
    assert "the table" in result.stdout
    assert str(tmp_path / "one" / "table.md") in result.stdout
    assert result.stderr == "row 1\n"
    found = json.loads(invoke("reproduce", "paper", "--folder", tmp_path / "two", "--json").stdout)
    assert (found["quick"], found["figures"]) == (False, True)
    result = invoke("reproduce", "fedpwr")
    assert result.exit_code == 3
    assert "did you mean 'fedpower'?" in result.stderr


# ---- what all verbs share ----------------------------------------------------------------------------------------


def test_every_verb_has_help_and_json() -> None:
    verbs = [command.callback.__name__ for command in app.registered_commands]  # type: ignore[union-attr]
    assert verbs == [
        "demo",
        "fit",
        "stream",
        "plan",
        "calibrate",
        "compare",
        "transform",
        "predict",
        "export",
        "audit",
        "reproduce",
        "datasets",
    ]
    for verb in verbs:
        result = invoke(verb, "--help")
        assert result.exit_code == 0
        assert "--json" in result.stdout
    assert "Exit codes" in invoke("--help").stdout


def test_the_version_is_told() -> None:
    assert invoke("--version").stdout == f"fedspan {fedspan.__version__}\n"


def test_wrong_usage_is_code_2() -> None:
    assert invoke("fit").exit_code == 2
    assert invoke("fit", "a.toml", "--resum").exit_code == 2
    assert invoke("fti").exit_code == 2


def test_errors_are_one_line_and_with_json_an_object(tmp_path: Path) -> None:
    for verb in ("fit", "plan", "calibrate", "compare"):
        result = invoke(verb, tmp_path / "none.toml", "--json")
        assert result.exit_code == 3
        assert result.stderr.startswith("fedspan: there is no study file")
        assert result.stderr.count("\n") == 1
        assert json.loads(result.stdout) == {
            "error": result.stderr.removeprefix("fedspan: ").strip(), "kind": "ConfigurationError", "exit_code": 3,
        }  # fmt: skip


def test_what_the_system_refuses_is_one_line_too(federation: Federation) -> None:
    (federation.folder / "runs").write_text("a file where the folder should be")
    result = invoke("fit", federation.study)
    assert result.exit_code == 1
    assert result.stderr.startswith("fedspan: ")
    assert "Traceback" not in result.stderr


def test_names_are_printed_as_they_are(federation: Federation) -> None:
    text = federation.study.read_text().replace('name = "hospitals"', 'name = "[red]three[/red] :smile:"')
    federation.study.write_text(text)
    assert "[red]three[/red] :smile:: 125 rows" in invoke("fit", federation.study).stdout
    assert "[red]three[/red] :smile:: 2 components" in invoke("plan", federation.study).stdout


def test_a_bar_is_shown_on_a_terminal(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    assert console(stderr=True).is_terminal
    for verb in ("fit", "compare"):
        result = invoke(verb, federation.study)
        assert result.exit_code == 0
        assert "━" in result.stderr
        assert "data.describe" not in result.stderr
