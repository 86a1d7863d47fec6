"""Secure sums on the command line: what plan and fit say of drop-outs, and of sums that tell sites apart."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Federation, invoke

SECURE = "[run]\nsecure = true\n"
DEADLINE = SECURE + "[participation]\ndeadline = 60.0\n"
TOLD = "the secure sums of different rounds are over different sites"


def plain(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture
def wide(federation: Federation) -> Federation:
    """Five sites, of which one may be missing where the cohort lets it."""
    for site in ("metz", "nantes"):
        federation.rows[site] = federation.rows["lyon"]
        federation.write_site(site, federation.rows[site])
    return federation


@pytest.mark.parametrize(
    ("more", "words", "fewest", "gone"),
    [
        (SECURE, "sums only, each of all 5 sites that a round waits for (none may drop out).", 5, 0),
        (DEADLINE, "sums only, of at least 4 of 5 sites (1 may drop out of a round).", 4, 1),
    ],
)
def test_a_plan_says_who_may_drop_out(wide: Federation, more: str, words: str, fewest: int, gone: int) -> None:
    study = wide.write_study(more, solver="power")
    assert words in plain(invoke("plan", study).stdout)
    masks = json.loads(invoke("plan", study, "--json").stdout)["masks"]
    assert (masks["sites"], masks["fewest"], masks["may_drop_out"]) == (5, fewest, gone)


def test_plan_and_fit_warn_of_sums_over_changing_sites(wide: Federation) -> None:
    study = wide.write_study(DEADLINE, solver="power")
    assert plain(invoke("plan", study).stdout).count(f"Warning: with deadline = 60.0 {TOLD}") == 1
    assert TOLD in json.loads(invoke("plan", study, "--json").stdout)["masks"]["warning"]
    fitted = invoke("fit", study, "--json")
    assert f"Warning: with deadline = 60.0 {TOLD}" in plain(fitted.stderr)
    assert TOLD in json.loads(fitted.stdout)["secure"]["warning"]
    assert TOLD in json.loads((wide.run_folder / "summary.json").read_text())["secure"]["warning"]


def test_and_not_of_sums_over_all(wide: Federation) -> None:
    study = wide.write_study(SECURE, solver="power")
    assert "Warning" not in invoke("plan", study).stdout
    assert json.loads(invoke("plan", study, "--json").stdout)["masks"]["warning"] is None
    fitted = invoke("fit", study, "--json")
    assert "Warning" not in fitted.stderr
    assert json.loads(fitted.stdout)["secure"]["warning"] is None


def test_a_plan_without_secure_sums_has_no_masks(federation: Federation) -> None:
    assert json.loads(invoke("plan", federation.study, "--json").stdout)["masks"] is None
