"""``fedspan audit``: what it runs, prints, writes and refuses."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from fedspan.cli import audit
from fedspan.privacy.audit import ATTACKS
from fedspan.run import Study, run
from fedspan.study_file import load_study
from tests.cli.conftest import SIZES, Federation, invoke


def test_a_study_is_run_and_audited(federation: Federation) -> None:
    result = invoke("audit", federation.study)
    assert result.exit_code == 0
    assert "Warning: the transcript keeps each site's releases" in result.stderr
    assert "audit of hospitals: berlin" in result.stderr
    lines = result.stdout.splitlines()
    for site in SIZES:
        assert any(line.startswith(f"{site} ") for line in lines)
        verdict = next(line for line in lines if line.startswith(f"{site}: "))
        assert "all 21 numbers are learnt" in verdict
    assert sum(line.strip().startswith("least squares, symmetric") for line in lines) == 3
    assert any(line.startswith("outside: from the 2 published components and 8 known entries") for line in lines)
    folder = federation.run_folder
    assert str(folder / "audit.png") in lines[-1]
    assert (folder / "audit.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in folder.iterdir()} >= {"transcript", "model.fedspan", "summary.json", "audit.json"}
    kept = json.loads((folder / "audit.json").read_text())
    assert set(kept["sites"]["berlin"]["curves"]) >= set(ATTACKS[:4])


def test_a_finished_run_is_audited_without_running_it_again(federation: Federation) -> None:
    federation.write_study('[run]\nrecord = "transcript"\n', solver="faps")
    assert invoke("fit", federation.study).exit_code == 0
    before = sorted(path.name for path in federation.run_folder.parent.iterdir())
    out = federation.folder / "out"
    arguments = ("audit", federation.study, "--run", federation.run_folder, "--known", 5, "--folder", out)
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0
    assert "Warning" not in result.stderr
    found = json.loads(result.stdout)
    assert sorted(path.name for path in federation.run_folder.parent.iterdir()) == before
    assert not (federation.run_folder / "audit.json").exists()
    assert found["files"] == {"report": str(out / "audit.json"), "picture": str(out / "audit.png")}
    assert found["external"]["known"] == 5
    assert json.loads((out / "audit.json").read_text())["sites"] == found["sites"]
    for site in found["sites"].values():
        assert site["verdict"].endswith("FAPS is not private: it needs noise or masks")
        assert site["penalties"][0]["deviation"] < 1e-9
        assert site["norm_error"] < 0.05


def test_the_truth_is_what_the_run_prepared(federation: Federation) -> None:
    """Scaled, centred: a covariance release is the truth itself."""
    federation.write_study("[data]\nscale = true\n", solver="covariance")
    found = json.loads(invoke("audit", federation.study, "--json").stdout)
    assert max(site["curves"]["informed"]["errors"][-1] for site in found["sites"].values()) < 1e-12


def test_without_matplotlib_the_table_is_still_there(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fedspan.cli.plots", None)
    result = invoke("audit", federation.study)
    assert result.exit_code == 0
    assert "Install fedspan[plots]" in result.stderr
    assert "berlin: " in result.stdout
    assert (federation.run_folder / "audit.json").exists()
    assert not (federation.run_folder / "audit.png").exists()


def test_many_sites_are_thinned_out_in_table_and_picture(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "_SHOWN", 2)
    monkeypatch.setattr(audit, "_PANELS", 1)
    result = invoke("audit", federation.study)
    assert "the 2 sites that are reconstructed best; 1 more in audit.json" in result.stdout
    assert sum(line.strip().startswith("informed") for line in result.stdout.splitlines()) == 2
    assert sum(": A_i'A_i reconstructed" in line for line in result.stdout.splitlines()) == 3


def test_a_run_of_an_estimator_has_no_model_to_attack_from_outside(federation: Federation, tmp_path: Path) -> None:
    described = load_study(federation.study)
    run(described.study(), described.open_sources(), folder=tmp_path / "bare", record="transcript")
    result = invoke("audit", federation.study, "--run", tmp_path / "bare")
    assert result.exit_code == 0
    assert "no summary.json tells whether the run finished" in result.stderr
    assert "no model.fedspan, so there is no attack from outside" in result.stderr
    assert "outside:" not in result.stdout


# ---- what is refused ---------------------------------------------------------------------------------------------


def test_a_run_without_a_transcript_is_refused(federation: Federation) -> None:
    invoke("fit", federation.study)
    result = invoke("audit", federation.study, "--run", federation.run_folder)
    assert result.exit_code == 4
    assert 'run the study with [run] record = "transcript"' in result.stderr


def test_another_study_or_other_data_than_the_runs_are_refused(federation: Federation) -> None:
    invoke("audit", federation.study)
    run_folder = federation.run_folder
    federation.write_study(k=3)
    result = invoke("audit", federation.study, "--run", run_folder)
    assert result.exit_code == 6
    assert "the study changed" in result.stderr
    federation.write_study()
    federation.write_site("lyon", federation.rows["lyon"] * 1.5)
    result = invoke("audit", federation.study, "--run", run_folder)
    assert result.exit_code == 4
    assert "site 'lyon' has other data than when the run was made" in result.stderr


def test_a_site_that_the_study_lost_is_named(federation: Federation, tmp_path: Path) -> None:
    described = load_study(federation.study)
    run(described.study(), described.open_sources(), folder=tmp_path / "bare", record="transcript")
    del federation.rows["turin"]
    federation.write_study()
    result = invoke("audit", federation.study, "--run", tmp_path / "bare")
    assert result.exit_code == 3
    assert "the run has a site 'turin'" in result.stderr


def test_more_known_entries_than_there_are_is_refused(federation: Federation) -> None:
    result = invoke("audit", federation.study, "--known", 21)
    assert result.exit_code == 3
    assert "between 1 and 20 for 6 features" in result.stderr


@pytest.mark.parametrize("known", [0, -3])
def test_no_known_entries_are_refused_before_anything_is_run(federation: Federation, known: int) -> None:
    result = invoke("audit", federation.study, "--known", known)
    assert result.exit_code == 3
    assert f"at least 1; got {known}" in result.stderr
    assert not federation.run_folder.exists()


def test_rows_put_together_anew_are_refused(federation: Federation) -> None:
    """A column shuffled inside a site leaves its trace and moments as they were; its digest tells."""
    invoke("audit", federation.study)
    arguments = ("audit", federation.study, "--run", federation.run_folder)
    result = invoke(*arguments)
    assert result.exit_code == 0
    assert "Note:" not in result.stderr
    rows = federation.rows["lyon"].copy()
    rows[:, 2] = np.roll(rows[:, 2], 1)
    federation.write_site("lyon", rows)
    result = invoke(*arguments)
    assert result.exit_code == 4
    assert "site 'lyon' has other data than when the run was made (other rows, columns or weights)" in result.stderr
    assert "restore it, or audit a new run" in result.stderr


def test_without_the_sites_memories_the_trace_is_compared_and_the_rest_is_said(federation: Federation) -> None:
    invoke("audit", federation.study)
    arguments = ("audit", federation.study, "--run", federation.run_folder)
    shutil.rmtree(federation.run_folder / "sites" / "lyon")
    result = invoke(*arguments)
    assert result.exit_code == 0
    assert "keeps no memory of lyon, so it cannot be verified that the data there is the run's" in result.stderr
    federation.write_site("lyon", federation.rows["lyon"] * 1.5)
    result = invoke(*arguments)
    assert result.exit_code == 4
    assert "its sum of squares was" in result.stderr


def test_a_run_that_did_not_finish_is_audited_as_far_as_it_came(federation: Federation) -> None:
    invoke("audit", federation.study)
    (federation.run_folder / "summary.json").unlink()
    result = invoke("audit", federation.study, "--run", federation.run_folder)
    assert result.exit_code == 0
    assert "the run did not finish: verdicts are about the rounds so far" in result.stderr


def test_a_transcript_that_was_cut_off_is_refused(federation: Federation) -> None:
    invoke("audit", federation.study)
    folder = federation.run_folder / "transcript"
    max(folder.glob("*.plain")).unlink()
    lines = (folder / "index.jsonl").read_text().splitlines(keepends=True)
    (folder / "index.jsonl").write_text("".join(lines[:-1]))
    result = invoke("audit", federation.study, "--run", federation.run_folder)
    assert result.exit_code == 4
    assert f"round {len(lines) - 1} was answered and is not in the transcript" in " ".join(result.stderr.split())


def test_a_cohort_that_leaves_sites_out_scores_the_others(federation: Federation) -> None:
    federation.write_study('[participation]\nonly = ["berlin", "turin"]\n', solver="fedpower")
    found = json.loads(invoke("audit", federation.study, "--json").stdout)
    assert found["sites"]["lyon"]["curves"].keys() == {"informed"}  # from set-up alone
    assert found["sites"]["berlin"]["curves"].keys() >= set(ATTACKS[:4])


def test_the_pictures_panels_stand_in_rows(tmp_path: Path) -> None:
    from matplotlib.image import imread

    from fedspan.cli.plots import write_curves

    curve = {"label": "one", "values": [1e5, 1e-3, 1e-9], "at": [3, 4, 7], "colour": 0, "dashed": False}
    panels = [
        {"title": str(i), "curves": [curve, {**curve, "label": "two", "values": [0.5], "at": [3]}]} for i in range(4)
    ]
    sizes = {}
    for across in (None, 3):
        write_curves(tmp_path / "x.png", "title", panels, x="x", y="y", across=across, top=10.0)
        sizes[across] = np.shape(imread(tmp_path / "x.png"))
    assert sizes[None][1] > sizes[3][1]
    assert sizes[None][0] < sizes[3][0]


def test_study_is_what_the_audit_ran(federation: Federation) -> None:
    """The transcript is the audit's wish, not the study's: its copy in the run folder is as it was written."""
    invoke("audit", federation.study)
    assert (federation.run_folder / "study.toml").read_bytes() == federation.study.read_bytes()
    assert isinstance(load_study(federation.study).study(), Study)
