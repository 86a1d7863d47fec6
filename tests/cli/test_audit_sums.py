"""``fedspan audit`` of a study with secure sums."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedspan.cli import audit as audit_module
from fedspan.cli import audit_sums
from tests.cli.conftest import SIZES, Federation, invoke

SECURE = "[run]\nsecure = true\n"
PRIVATE = """
[privacy]
epsilon = 1.0
delta = 1e-6
row_norm = 30.0
trust = "{trust}"
{more}
"""


def test_a_study_with_secure_sums_is_run_and_audited_beside_itself_without_masks(federation: Federation) -> None:
    federation.write_study(SECURE)
    result = invoke("audit", federation.study, "--colluding", "lyon")
    assert result.exit_code == 0
    out = " ".join(result.stdout.split())
    assert "what secure sums over 3 sites tell of their 6 x 6 matrices" in out
    assert "all 3 together: A'A reconstructed to" in out
    assert "the 2 honest together: A'A reconstructed to" in out
    assert "single sites: guesses from masked replies are off by" in out
    assert "outside: from the 2 published components" in out
    for heading in ("masked replies", "random numbers", "the sums", "other sites", "without masks"):
        assert heading in out
    kept = json.loads((federation.run_folder / "audit.json").read_text())
    assert (kept["secure"], kept["colluding"], kept["members"]) == (True, ["lyon"], sorted(SIZES))
    assert set(kept["sites"]) == set(kept["without_masks"]) == {"berlin", "turin"}
    for site in kept["sites"].values():
        assert site["plain"] < 1e-9 < 0.5 < site["masked"]
    assert (federation.run_folder / "audit.png").read_bytes().startswith(b"\x89PNG")


def test_a_finished_run_is_audited(federation: Federation) -> None:
    federation.write_study(SECURE + 'record = "transcript"\n', solver="covariance")
    assert invoke("fit", federation.study).exit_code == 0
    result = invoke("audit", federation.study, "--run", federation.run_folder, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["rest"] is None
    assert len(found["verdicts"]) == 3
    federation.write_site("lyon", federation.rows["lyon"] * 1.5)
    (federation.run_folder / "sites" / "lyon" / "memory").unlink()
    result = invoke("audit", federation.study, "--run", federation.run_folder)
    assert result.exit_code == 4
    assert "some site has other data than when the run was made (its sum of squares was" in result.stderr


def test_many_sites_are_shown_in_part(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_sums, "_SHOWN", 2)
    federation.write_study(SECURE)
    assert "the 2 sites that the sums tell most of; 1 more in the report" in invoke("audit", federation.study).stdout


def test_colluders_are_for_secure_sums_without_noise(federation: Federation) -> None:
    result = invoke("audit", federation.study, "--colluding", "lyon")
    assert result.exit_code == 3
    assert "--colluding is about secure sums" in result.stderr
    noised = PRIVATE.format(trust="distributed", more="honest = 2")
    federation.write_study(noised, solver="covariance")
    result = invoke("audit", federation.study, "--colluding", "lyon", "--folder", federation.folder / "out")
    assert result.exit_code == 3
    assert "the guarantee counts on 2 sites' noise (honest)" in " ".join(result.stderr.split())


def test_shares_of_noise_are_audited_with_one_of_three_sites_colluding(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    true = audit_module.empirical_epsilon

    def noting(terms: object, *given: object, **settings: object) -> object:
        seen.append((terms.honest, settings))  # type: ignore[attr-defined]
        return true(terms, *given, **settings)

    monkeypatch.setattr(audit_module, "empirical_epsilon", noting)
    federation.write_study(PRIVATE.format(trust="distributed", more="honest = 2"), solver="covariance")
    result = invoke("audit", federation.study, "--runs", 60)
    assert result.exit_code == 0
    assert seen == [(2, {"seed": None, "colluding": 1})]
    assert "the run is not shown without masks" in " ".join(result.stderr.split())
    assert "within what is certified" in " ".join(result.stdout.split())
    kept = json.loads((federation.run_folder / "audit.json").read_text())
    assert kept["without_masks"] == {}
    assert kept["sites"]["berlin"]["plain"] is None
    assert "but for the noise" in kept["whole"]["verdict"]
    assert np.isfinite(kept["sites"]["berlin"]["guess"])


def test_a_trusted_coordinator_sees_plain_sums(federation: Federation) -> None:
    federation.write_study(SECURE + PRIVATE.format(trust="central", more="adaptive_clip = false"), solver="covariance")
    result = invoke("audit", federation.study, "--runs", 0, "--colluding", "lyon,turin", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert list(found["sites"]) == ["berlin"]
    assert found["rest"]["learnt_numbers"] == 21
