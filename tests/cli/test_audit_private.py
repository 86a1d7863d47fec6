"""``fedspan audit`` on a private study: what noise leaves to be learnt, and the empirical epsilon."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from fedspan.cli import app

STUDY = """
[sites]
north = "north.npy"
south = "south.npy"
east = "east.npy"
[solve]
n_components = 2
[privacy]
epsilon = 1.0
delta = 1e-6
row_norm = 1.0
trust = "{trust}"
adaptive_clip = false
{more}
"""
BUDGET = "this makes a new run, which spends a full budget of its own on the same rows: epsilon 1 (delta 1e-06)"


@pytest.fixture
def study(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    for name in ("north", "south", "east"):
        np.save(tmp_path / f"{name}.npy", rng.standard_normal((400, 5)) * [0.2, 0.1, 0.1, 0.05, 0.05])
    monkeypatch.chdir(tmp_path)
    return lambda trust, more="": (tmp_path / "study.toml").write_text(STUDY.format(trust=trust, more=more))


@pytest.mark.parametrize(("trust", "noisy"), [("local", True), ("central", False)])
def test_an_audit_tells_noise_from_none(study, trust, noisy):
    study(trust)
    result = CliRunner().invoke(app, ["audit", "study.toml", "--json", "--runs", "60"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["empirical"]["ok"] is True
    assert 0 <= told["empirical"]["lower_bound"] <= told["empirical"]["certified"] == pytest.approx(8.0)
    for site in told["sites"].values():
        least = min(min(curve["errors"]) for curve in site["curves"].values())
        # under central trust the coordinator sees plain sums (no row here is clipped), and the audit says so
        assert ("but for the noise" in site["verdict"]) is noisy
        assert (least > 0.05) is noisy


def test_the_empirical_epsilon_is_said_in_words_and_can_be_left_out(study):
    study("distributed")
    words = CliRunner().invoke(app, ["audit", "study.toml", "--runs", "60"]).stdout
    assert "120 runs of this mechanism on worst-case neighbours" in " ".join(words.split())
    assert "within what is certified" in " ".join(words.split())
    study("distributed")
    assert "worst-case" not in CliRunner().invoke(app, ["audit", "study.toml", "--runs", "0"]).stdout


def test_too_few_runs_are_refused(study):
    study("local")
    result = CliRunner().invoke(app, ["audit", "study.toml", "--runs", "3"])
    assert result.exit_code != 0


# Was a fault once: published noise was "within what is certified", where only the tight calibration had been run.
def test_published_noise_is_not_said_to_be_audited(study):
    study("local", 'calibration = "published"')
    result = CliRunner().invoke(app, ["audit", "study.toml", "--runs", "60"])
    assert result.exit_code == 0, result.output
    assert "Not audited: published noise has no empirical epsilon here" in " ".join(result.stdout.split())
    assert "worst-case neighbours show" not in result.stdout
    told = json.loads(CliRunner().invoke(app, ["audit", "study.toml", "--runs", "60", "--json"]).stdout)
    assert told["empirical"] is None
    assert any(text.startswith("published noise has no empirical epsilon") for text in told["warnings"])


def test_noise_from_a_testing_seed_is_said_to_be_no_privacy(study):
    study("local", "testing_seed = 7")
    result = CliRunner().invoke(app, ["audit", "study.toml", "--runs", "60"])
    assert "The study itself is not private: noise from a testing seed." in " ".join(result.stdout.split())
    assert "Warning: not private: noise from a testing seed: testing_seed = 7" in result.stderr
    told = json.loads(CliRunner().invoke(app, ["audit", "study.toml", "--runs", "60", "--json"]).stdout)
    assert [text.partition(":")[0] for text in told["warnings"]] == ["not private"]


# Was a fault once: the run that an audit makes spends a whole budget, and nothing said so.
def test_what_a_new_run_spends_is_said_once(study):
    study("local")
    result = CliRunner().invoke(app, ["audit", "study.toml", "--runs", "0", "--folder", "kept"])
    assert result.stderr.count(BUDGET) == 1
    told = json.loads(CliRunner().invoke(app, ["audit", "study.toml", "--runs", "0", "--json"]).stdout)
    assert [text for text in told["warnings"] if text.startswith(BUDGET)] == told["warnings"]
    again = CliRunner().invoke(app, ["audit", "study.toml", "--run", "kept", "--runs", "0", "--json"])
    assert json.loads(again.stdout)["warnings"] == []  # nothing is run, so nothing is spent
    assert BUDGET not in again.stderr


def test_a_named_folder_that_holds_a_run_is_not_audited_into_another(study, tmp_path):
    study("local")
    arguments = ["audit", "study.toml", "--runs", "0", "--folder", "kept"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 6
    assert "kept holds a run already" in result.stderr
    assert not (tmp_path / "kept-2").exists()
