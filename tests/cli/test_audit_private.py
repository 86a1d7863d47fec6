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
[solve]
n_components = 2
[privacy]
epsilon = 1.0
delta = 1e-6
row_norm = 1.0
trust = "{trust}"
adaptive_clip = false
"""


@pytest.fixture
def study(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    for name in ("north", "south"):
        np.save(tmp_path / f"{name}.npy", rng.standard_normal((400, 5)) * [0.2, 0.1, 0.1, 0.05, 0.05])
    monkeypatch.chdir(tmp_path)
    return lambda trust: (tmp_path / "study.toml").write_text(STUDY.format(trust=trust))


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
