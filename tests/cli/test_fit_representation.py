"""``fedspan fit``, ``plan``, ``predict`` and ``transform`` of a study of labelled rows."""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from fedspan import FederatedRepresentation
from fedspan.cli import fit_representation
from fedspan.data.label_column import read_labelled
from fedspan.learning import START
from fedspan.learning_file import load_learning
from fedspan.representation_file import read_representation
from fedspan.sites import LEDGER
from tests.cli.conftest import invoke, python

NAMES = ["lyon", "oslo", "turin"]
COLUMNS = ["a", "b", "c", "d", "e"]
MLP = '[solve.model]\nkind = "mlp"\nhidden = [8, 3]\n'
DOUBLING = '[solve.settings]\nstage = "fedrep"\nn0 = 1\nstage_settings = { rounds = 4 }\n'
CLASSES, NUMBERS = ["ill", "unsure", "well"], None

STOP_AT_ROUND_9 = """
import os, signal, sys
from fedspan.cli import fit_representation, main

real, signal_name = fit_representation.learn, sys.argv.pop(1)

def learn(*arguments, watchers=(), **more):
    def stop(record, estimate):
        if record.round == 9:
            os.kill(os.getpid(), getattr(signal, signal_name))
    return real(*arguments, watchers=[*watchers, stop], **more)

fit_representation.learn = learn
main()
"""

PRIVATE = "[privacy]\nepsilon = 4.0\ndelta = 1e-6\nrow_norm = 8.0\nn_public = true\n"


def write_site(path: Path, labels: list[str] | None, *, rows: int = 40, seed: int = 0) -> None:
    """Write rows of five columns, an id and an outcome: w' B' x, or the class that is largest."""
    rng = np.random.default_rng([seed, len(path.stem), ord(path.stem[0])])
    B = np.linalg.qr(np.random.default_rng(1).standard_normal((5, 2)))[0]
    X, heads = rng.standard_normal((rows, 5)), rng.standard_normal((2, 3))
    scores = X @ B @ heads
    y = scores[:, 0].tolist() if labels is None else [labels[i] for i in scores.argmax(axis=1)]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", *COLUMNS, "outcome"])
        writer.writerows([f"p{i}", *row, label] for i, (row, label) in enumerate(zip(X.tolist(), y, strict=True)))


def write_study(
    folder: Path,
    more: str = "",
    *,
    labels: list[str] | None = CLASSES,
    solve: str = "",
    data: str = "test_fraction = 0.2",
) -> Path:
    """Write a study of three sites, and its sites."""
    for name in NAMES:
        write_site(folder / f"{name}.csv", labels)
    sites = "\n".join(f'{name} = "{name}.csv"' for name in NAMES)
    study = folder / "study.toml"
    study.write_text(
        f'name = "wards"\n[sites]\n{sites}\n[data]\nlabel = "outcome"\ndrop = ["id"]\n{data}\n'
        f'[solve]\nestimator = "representation"\n{solve}\n{more}'
    )
    return study


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return write_study(tmp_path, MLP + "[solve.settings]\nrounds = 6\n")


def run_folder(study: Path) -> Path:
    return study.parent / "runs" / "wards"


# ---- fit ---------------------------------------------------------------------------------------------------------


def test_a_fit_writes_a_whole_run_folder_and_a_summary_for_people(study: Path) -> None:
    result = invoke("fit", study)
    assert result.exit_code == 0
    run = run_folder(study)
    assert {p.name for p in run.iterdir()} == {
        "study.toml", "terms.json", "rounds.jsonl", "rounds", "sites", "model.fedspan", "summary.json",
    }  # fmt: skip
    assert (run / "study.toml").read_bytes() == study.read_bytes()
    for text in (
        "96 rows of 5 features at 3 sites",
        "representation of 3 numbers, to predict 3 classes",
        "on test rows",
    ):
        assert text in result.stdout
    assert "fedrep.update" in result.stderr
    table = [line.split() for line in result.stdout.splitlines() if line.split()[:1] in ([name] for name in NAMES)]
    summary = json.loads((run / "summary.json").read_text())
    assert table == [[name, "8", f"{summary['sites'][name]['accuracy']:.1%}"] for name in NAMES]


def test_the_next_command_that_is_printed_runs(study: Path, in_folder: Path) -> None:
    line = next(line for line in invoke("fit", study).stdout.splitlines() if line.startswith("next"))
    words = shlex.split(line)
    assert words[2] == "predict"
    result = invoke(*words[2:])
    assert result.exit_code == 0
    assert (in_folder / "lyon-predictions.csv").exists()


def test_the_model_is_the_estimators(study: Path) -> None:
    invoke("fit", study)
    model = FederatedRepresentation.load(run_folder(study) / "model.fedspan")
    described = load_learning(study)
    direct = FederatedRepresentation(model=described.model, learner=described.learner).fit(described.open_sources())
    assert model.shared_.tobytes() == direct.shared_.tobytes()
    assert model.site_scores_ == direct.site_scores_
    assert list(model.feature_names_in_) == COLUMNS


def test_json_is_the_summary_and_nothing_else_is_on_stdout(study: Path) -> None:
    summary = json.loads(invoke("fit", study, "--json").stdout)
    run = run_folder(study)
    kept = json.loads((run / "summary.json").read_text())
    assert summary == {**kept, "folder": str(run), "model": str(run / "model.fedspan")}
    assert summary["rounds"] == 6
    assert summary["classes"] == CLASSES
    assert summary["fairness"]["worst"] == min(site["accuracy"] for site in summary["sites"].values())
    assert summary["warnings"] == []


def test_numbers_in_stages_and_virtual_time(tmp_path: Path) -> None:
    more = DOUBLING + '[run]\nengine = "virtual-time"\nspeeds = { mean = 2.0 }\n'
    study = write_study(tmp_path, more, labels=NUMBERS, solve='solver = "doubling"')
    result = invoke("fit", study)
    assert "doubling, in stages of FedRep" in result.stdout
    assert "virtual time" in result.stdout
    assert "mse" in result.stdout
    summary = json.loads((run_folder(study) / "summary.json").read_text())
    assert summary["clock"] > 0
    assert summary["classes"] is None
    model = FederatedRepresentation.load(run_folder(study) / "model.fedspan")
    assert [r.sites for r in model.history_ if not r.setup] == [1, 1, 2, 2, 3, 3, 3, 3]


def test_a_private_start_is_told_and_charged(tmp_path: Path) -> None:
    more = "[solve.settings]\nrounds = 3\nbatch = 0\n" + PRIVATE
    study = write_study(tmp_path, more, labels=NUMBERS, solve='start = "moments"')
    result = invoke("fit", study)
    assert "Of the start only: (4, 1e-06)-differential privacy" in result.stdout
    ledger = run_folder(study) / START / LEDGER
    assert str(ledger) in result.stdout
    assert ledger.exists()
    assert json.loads((run_folder(study) / "summary.json").read_text())["privacy"]["epsilon"] == 4.0


def test_what_a_private_start_released_is_kept_when_the_run_fails(tmp_path: Path) -> None:
    more = "[solve.settings]\nn0 = 9\n" + PRIVATE
    study = write_study(tmp_path, more, labels=NUMBERS, solve='start = "moments"\nsolver = "doubling"')
    result = invoke("fit", study)
    assert result.exit_code == 3
    assert "begins with n0 = 9 sites, but a round waits for 3" in result.stderr
    assert (run_folder(study) / START / LEDGER).exists()


def test_the_budget_that_is_shown_is_the_runs(study: Path) -> None:
    study.write_text(study.read_text().replace("[solve]", "[solve]\nevaluate_every = 4"))
    invoke("fit", study)
    history = FederatedRepresentation.load(run_folder(study) / "model.fedspan").history_
    assert fit_representation._budget(load_learning(study)) == len(history)


def test_what_was_measured_along_the_run_is_in_the_summary(study: Path) -> None:
    study.write_text(study.read_text().replace("[solve]", "[solve]\nevaluate_every = 4"))
    invoke("fit", study)
    summary = json.loads((run_folder(study) / "summary.json").read_text())
    fitted = FederatedRepresentation.load(run_folder(study) / "model.fedspan")
    assert [(one["round"], one["clock"], one["median"]) for one in summary["curve"]] == [
        (one["round"], one["clock"], one["scores"].fairness["median"]) for one in fitted.curve_
    ]
    assert len(summary["curve"]) > 1


def test_of_many_sites_the_worst_and_the_best_are_shown(tmp_path: Path) -> None:
    names = [f"site{i:02d}" for i in range(20)]
    for i, name in enumerate(names):
        write_site(tmp_path / f"{name}.csv", CLASSES, seed=i)
    sites = "\n".join(f'{name} = "{name}.csv"' for name in names)
    study = tmp_path / "study.toml"
    study.write_text(
        f'[sites]\n{sites}\n[data]\nlabel = "outcome"\ndrop = ["id"]\n'
        '[solve]\nestimator = "representation"\n[solve.settings]\nrounds = 2\n'
    )
    out = invoke("fit", study).stdout
    shown = [line.split()[0] for line in out.splitlines() if line.startswith("site") and "%" in line]
    assert "... 8 more" in out
    scores = FederatedRepresentation.load(tmp_path / "runs" / "study" / "model.fedspan").site_scores_
    assert shown == [*scores.ranked[:6], *scores.ranked[-6:]]
    assert sum("training rows" in line for line in out.splitlines() if line.startswith("site")) == 12


def test_one_class_only_is_a_warning_and_no_end(study: Path) -> None:
    write_site(study.parent / "oslo.csv", ["ill"] * 3)
    result = invoke("fit", study)
    assert result.exit_code == 0
    assert "Warning: one class only at site oslo" in result.stderr
    summary = json.loads((run_folder(study) / "summary.json").read_text())
    assert summary["single_class_sites"] == ["oslo"]
    assert summary["warnings"][0].startswith("one class only")


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"solve": 'solver = "fedrp"'}, 3, "there is no learner 'fedrp'; did you mean 'fedrep'"),
        ({"data": 'task = "numbers"'}, 4, "is no number; take task = \"classes\""),
        ({"data": 'columns = "strict"'}, 3, "has no key 'columns'; it belongs to [data] of studies with"),
        ({"more": '[solve.model]\nkind = "mlp"\nhiden = [3]\n'}, 3, "has no setting 'hiden'; did you mean 'hidden'"),
        ({"more": '[solve.model]\nkind = "mlp"\n', "labels": NUMBERS}, 4, "a network of kind 'mlp' predicts classes"),
        ({"solve": 'start = "moments"'}, 3, "the method of moments needs y to be numbers"),
    ],
)  # fmt: skip
def test_a_study_that_fails_leaves_nothing_behind(tmp_path: Path, change: dict, code: int, message: str) -> None:
    study = write_study(tmp_path, **change)
    result = invoke("fit", study)
    assert result.exit_code == code
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) <= 12
    assert not run_folder(study).exists()


def test_a_learner_that_diverges_has_its_own_exit_code(tmp_path: Path) -> None:
    study = write_study(tmp_path, MLP + "[solve.settings]\nrate = 1e30\nmomentum = 0\nrounds = 50\n")
    result = invoke("fit", study)
    assert result.exit_code == 7
    assert "give it a smaller rate" in result.stderr


# ---- going on ----------------------------------------------------------------------------------------------------


def assert_same_run(one: Path, other: Path) -> None:
    first, second = read_representation(one / "model.fedspan"), read_representation(other / "model.fedspan")
    assert {name: array.tobytes() for name, array in first[1].items()} == {
        name: array.tobytes() for name, array in second[1].items()
    }
    assert first[0]["fitted"]["site_scores_"] == second[0]["fitted"]["site_scores_"]
    ours, theirs = ({p.name: p.read_bytes() for p in (run / "rounds").iterdir()} for run in (one, other))
    assert ours == theirs


@pytest.mark.parametrize("end", ["SIGINT", "SIGKILL"])
def test_a_stopped_or_killed_run_goes_on_to_the_same_bits(tmp_path: Path, end: str) -> None:
    study = write_study(tmp_path, "[solve.settings]\nrounds = 12\n")
    stopped = python("-c", STOP_AT_ROUND_9, end, "fit", study, cwd=tmp_path)
    assert stopped.returncode == (130 if end == "SIGINT" else -9)
    run = run_folder(study)
    assert not (run / "summary.json").exists()
    if end == "SIGINT":
        assert "the rounds so far are kept. Go on with: " in stopped.stderr
    assert invoke("fit", study).exit_code == 6  # a run is there that did not finish
    assert invoke("fit", study, "--resume").exit_code == 0
    assert invoke("fit", study, "--folder", tmp_path / "whole").exit_code == 0
    assert_same_run(run, tmp_path / "whole")


def test_a_changed_study_or_other_labels_are_not_resumed(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*arguments, watchers=(), **more):
        def interrupt(record, estimate):
            if record.round == 4:
                raise KeyboardInterrupt

        return learn(*arguments, watchers=[*watchers, interrupt], **more)

    learn = fit_representation.learn
    monkeypatch.setattr(fit_representation, "learn", stop)
    assert invoke("fit", study).exit_code == 130
    monkeypatch.undo()
    text = study.read_text()
    study.write_text(text.replace("rounds = 6", "rounds = 7"))
    result = invoke("fit", study, "--resume")
    assert result.exit_code == 6
    assert "the study changed since the run in" in result.stderr
    study.write_text(text)
    rows = (study.parent / "oslo.csv").read_text()
    (study.parent / "oslo.csv").write_text(rows.replace("well", "ill"))
    result = invoke("fit", study, "--resume")
    assert result.exit_code == 6
    assert "oslo" in result.stderr
    (study.parent / "oslo.csv").write_text(rows)
    assert invoke("fit", study, "--resume").exit_code == 0


# ---- plan --------------------------------------------------------------------------------------------------------


def test_a_plan_reads_headers_only_and_is_what_the_run_does(study: Path) -> None:
    contents = {name: (study.parent / f"{name}.csv").read_text() for name in NAMES}
    for name in NAMES:  # no row is left to look at
        (study.parent / f"{name}.csv").write_text(contents[name].splitlines()[0] + "\n")
    plan = json.loads(invoke("plan", study, "--classes", 3, "--json").stdout)
    for name in NAMES:
        (study.parent / f"{name}.csv").write_text(contents[name])
    invoke("fit", study)
    history = FederatedRepresentation.load(run_folder(study) / "model.fedspan").history_
    assert [r["step"] for r in plan["rounds"]] == [r.step for r in history]
    ran = [(r.bytes_up, r.bytes_down) for r in history if not r.setup]
    assert [(r["bytes_up"], r["bytes_down"]) for r in plan["rounds"] if not r["setup"]] == ran
    assert (plan["n_features"], plan["classes"]) == (5, 3)


def test_a_plan_for_people_and_what_it_must_be_told(study: Path) -> None:
    out = invoke("plan", study, "--classes", 3).stdout
    assert "fedrep of a model of kind mlp, 5 features to 3 classes" in out
    assert "fedrep.update" in out
    result = invoke("plan", study)
    assert result.exit_code == 3
    assert "state it, as in --classes 10" in result.stderr
    study.write_text(study.read_text().replace('label = "outcome"', 'label = "outcom"'))
    result = invoke("plan", study, "--classes", 3)
    assert result.exit_code == 4
    assert "no column 'outcom' to predict; did you mean 'outcome'" in result.stderr


def test_a_plan_of_a_linear_model_says_that_it_took_y_for_numbers(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    assert "If y is classes, say how many with --classes" in invoke("plan", study).stdout
    assert "--classes" not in invoke("plan", study, "--classes", 3).stdout


def test_a_plan_of_a_private_start_shows_what_it_costs(tmp_path: Path) -> None:
    study = write_study(tmp_path, PRIVATE, labels=NUMBERS, solve='start = "moments"')
    assert "--rows 10000" in invoke("plan", study).stderr
    out = invoke("plan", study, "--rows", 120).stdout
    assert "Of the start only: (4, 1e-06)-differential privacy" in out
    assert "share of mu^2" in out
    assert "--classes" not in out  # such a start is for numbers


# ---- predict and transform ---------------------------------------------------------------------------------------


def predictions(path: Path) -> list[str]:
    rows = path.read_text().splitlines()
    assert rows[0] == "prediction"
    return rows[1:]


def test_predictions_are_the_models(study: Path, in_folder: Path) -> None:
    invoke("fit", study)
    path = run_folder(study) / "model.fedspan"
    model = FederatedRepresentation.load(path)
    X = read_labelled(study.parent / "oslo.csv", "outcome", drop=["id"])[0]
    assert invoke("predict", path, "oslo.csv", "--site", "oslo").exit_code == 0
    assert predictions(in_folder / "oslo-predictions.csv") == model.predict("oslo", X).tolist()
    told = json.loads(invoke("predict", path, "oslo.csv", "--site", "lyon", "-o", "x.csv", "--json").stdout)
    assert told == {"out": "x.csv", "rows": 40, "site": "lyon"}
    assert predictions(in_folder / "x.csv") == model.predict("lyon", X).tolist()
    lines = [line.split(",") for line in (in_folder / "oslo.csv").read_text().splitlines()]
    bare = "\n".join(",".join(line[5:0:-1]) for line in lines)  # without id and outcome, columns in another order
    (in_folder / "bare.csv").write_text(bare + "\n")
    invoke("predict", path, "bare.csv", "--site", "oslo")
    assert predictions(in_folder / "bare-predictions.csv") == predictions(in_folder / "oslo-predictions.csv")
    assert invoke("transform", path, "oslo.csv", "-o", "z.npy").exit_code == 0
    np.testing.assert_array_equal(np.load(in_folder / "z.npy"), model.transform(X))


def test_rows_without_names_are_read_too(tmp_path: Path, in_folder: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        X = rng.standard_normal((30, 4))
        np.save(tmp_path / f"{name}.npy", np.column_stack([X, (X[:, 0] > 0).astype(float)]))
    (tmp_path / "study.toml").write_text(
        '[sites]\na = "a.npy"\nb = "b.npy"\n[data]\nlabel = -1\n[solve]\nestimator = "representation"\n'
        "[solve.settings]\nrounds = 3\nbatch = 0\n"
    )
    assert invoke("fit", "study.toml").exit_code == 0
    model = tmp_path / "runs" / "study" / "model.fedspan"
    assert invoke("predict", model, "a.npy", "--site", "a").exit_code == 0
    np.save(tmp_path / "bare.npy", np.load(tmp_path / "a.npy")[:, :4])
    assert invoke("predict", model, "bare.npy", "--site", "a").exit_code == 0
    assert predictions(in_folder / "a-predictions.csv") == predictions(in_folder / "bare-predictions.csv")
    plan = json.loads(invoke("plan", "study.toml", "--json").stdout)
    assert plan["n_features"] == 4


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["oslo.csv"], 3, "say whose model predicts, as in --site lyon"),
        (["oslo.csv", "--site", "olso"], 3, "there is no site 'olso' (did you mean 'oslo'?)"),
        (["oslo.csv", "--site", "oslo", "-o", "x.npy"], 3, "predictions are written as .csv"),
        (["oslo.csv", "--site", "oslo", "-o", "oslo.csv"], 3, "is the data itself"),
        (["olso.csv", "--site", "oslo"], 4, "there is no such file; did you mean 'oslo.csv'?"),
        (["less.csv", "--site", "oslo"], 4, "lacks c of the model's 5 columns"),
        (["more.csv", "--site", "oslo"], 4, "columns the model does not know: x; leave them out with --drop x"),
        (["none.csv", "--site", "oslo"], 4, "has no rows"),
    ],
)
def test_what_cannot_be_predicted_is_told(
    study: Path, in_folder: Path, arguments: list, code: int, message: str
) -> None:
    (in_folder / "less.csv").write_text("a,b,d,e\n1,2,3,4\n")
    (in_folder / "more.csv").write_text("a,b,c,d,e,x\n1,2,3,4,5,6\n")
    (in_folder / "none.csv").write_text("a,b,c,d,e\n")
    invoke("fit", study)
    result = invoke("predict", run_folder(study) / "model.fedspan", *arguments)
    assert result.exit_code == code
    assert message in result.stderr


def test_a_columns_that_is_dropped_by_hand_is_not_missed(study: Path, in_folder: Path) -> None:
    (in_folder / "more.csv").write_text("a,b,c,d,e,x\n1,2,3,4,5,text\n")
    invoke("fit", study)
    result = invoke("predict", run_folder(study) / "model.fedspan", "more.csv", "--site", "oslo", "--drop", "x")
    assert result.exit_code == 0


def test_where_bodies_are_the_sites_own_transform_asks_whose(tmp_path: Path, in_folder: Path) -> None:
    study = write_study(tmp_path, MLP + "[solve.settings]\nrounds = 2\n", solve='solver = "lg-fedavg"')
    invoke("fit", study)
    model = run_folder(study) / "model.fedspan"
    result = invoke("transform", model, "oslo.csv")
    assert result.exit_code == 3
    assert "say whose" in result.stderr
    assert invoke("transform", model, "oslo.csv", "--site", "oslo").exit_code == 0
    assert invoke("transform", model, "oslo.csv", "--left").exit_code == 3


# ---- verbs that are for other studies ----------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["compare", "audit", "calibrate", "stream"])
def test_other_verbs_say_that_this_is_not_for_them(study: Path, verb: str) -> None:
    result = invoke(verb, study)
    assert result.exit_code == 3
    assert 'estimator = "representation" learns from labelled rows: fedspan fit and fedspan plan take' in result.stderr


def test_other_models_and_studies_are_told_apart(federation, tmp_path: Path) -> None:
    (tmp_path / "wards").mkdir()
    study = write_study(tmp_path / "wards", MLP)
    invoke("fit", study)
    model = run_folder(study) / "model.fedspan"
    result = invoke("export", model)
    assert result.exit_code == 3
    assert "holds a learnt representation, which has no table of components" in result.stderr
    invoke("fit", federation.study)
    other = federation.run_folder / "model.fedspan"
    result = invoke("predict", other, federation.file("lyon"), "--site", "lyon")
    assert result.exit_code == 4
    assert "holds no learnt representation" in result.stderr
    result = invoke("transform", other, federation.file("lyon"), "--site", "lyon", "-o", tmp_path / "z.npy")
    assert result.exit_code == 3
    assert "--site is for learnt representations" in result.stderr
    result = invoke("plan", federation.study, "--classes", 3)
    assert result.exit_code == 3
    assert '--classes is for studies with estimator = "representation"' in result.stderr


def test_a_study_of_components_has_no_labels(federation) -> None:
    federation.write_study('[data]\nlabel = "outcome"\n')
    result = invoke("fit", federation.study)
    assert result.exit_code == 3
    assert 'it belongs to [data] of studies with estimator = "representation"' in result.stderr
