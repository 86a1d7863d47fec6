"""``fedspan plan`` on private studies: the promise in words, and what each release costs."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from fedspan.study_file import load_study
from tests.cli.conftest import Federation, invoke

PRIVACY = "[privacy]\nepsilon = 1.0\ndelta = 1e-6\n"


def planned(federation: Federation, more: str = "row_norm = 10.0", solver: str = "covariance") -> Any:
    federation.write_study(PRIVACY + more, solver=solver)
    return json.loads(invoke("plan", federation.study, "--json").stdout)["privacy"]


@pytest.mark.parametrize("trust", ["local", "distributed", "central"])
def test_the_promise_and_each_release_are_printed(federation: Federation, trust: str) -> None:
    federation.write_study(f'{PRIVACY}row_norm = 10.0\ntrust = "{trust}"', solver="covariance")
    result = invoke("plan", federation.study)
    assert result.exit_code == 0
    assert "(1, 1e-06)-differential privacy for data sets of which one has one row more." in result.stdout
    assert {"local": "Nobody is trusted", "distributed": "a share of the noise", "central": "The coordinator is"}[
        trust
    ] in result.stdout
    assert "rows of norm at most 10" in result.stdout
    assert "noise on the sum" in result.stdout
    shares = [float(s) for s in re.findall(r"(\d+\.\d)%", result.stdout)]
    assert sum(shares) == pytest.approx(100.0)
    for release in ("sums", "weight", "total", "gram"):
        assert re.search(rf"^{release} ", result.stdout, re.MULTILINE)


@pytest.mark.parametrize("trust", ["local", "distributed", "central"])
@pytest.mark.parametrize("solver", ["auto", "private-power", "power", "mod-sulq"])
def test_shares_sum_to_all_of_the_budget(federation: Federation, solver: str, trust: str) -> None:
    if solver == "mod-sulq" and trust != "local":
        pytest.skip("adds its noise at the sites")
    told = planned(federation, f'row_norm = 10.0\ntrust = "{trust}"', solver)
    assert sum(r["share"] for r in told["releases"]) == pytest.approx(1.0)
    assert told["spent_epsilon"] == pytest.approx(1.0)
    assert all(r["sigma"] > 0 for r in told["releases"])


def test_the_noise_is_that_of_the_sum(federation: Federation) -> None:
    local, central = (
        {r["release"]: r["sigma"] for r in planned(federation, f'row_norm = 10.0\ntrust = "{trust}"')["releases"]}
        for trust in ("local", "central")
    )
    for release, sigma in central.items():
        assert local[release] == pytest.approx(3**0.5 * sigma, rel=1e-3)  # three sites add theirs


def test_a_public_number_of_rows_is_not_released(federation: Federation) -> None:
    told = planned(federation, "row_norm = 10.0\nn_public = true")
    assert told["neighbours"] == "row-replace"
    assert [r["release"] for r in told["releases"]] == ["sums", "total", "gram"]
    assert "the number of rows is public" in told["words"]


def test_published_noise_says_what_it_proves(federation: Federation) -> None:
    more = 'n_public = true\nneighbours = "entry"\ncalibration = "published"\n[data]\ncenter = false'
    told = planned(federation, more, "fedpower")
    assert told["label"] == "as published"
    assert told["words"].startswith("No guarantee is established")
    assert told["spent_epsilon"] is None


def test_one_of_a_thing_is_not_called_many(federation: Federation) -> None:
    federation.write_study(f"{PRIVACY}row_norm = 10.0", solver="covariance", k=1)
    heading = invoke("plan", federation.study).stdout.splitlines()[0]
    assert "1 component of 6 features by covariance; 125 rows at 3 sites. At most 1 round and 4 to set up:" in heading


def test_the_plan_is_of_the_file_and_touches_nothing(federation: Federation) -> None:
    before = sorted(p.name for p in federation.folder.iterdir())
    told = planned(federation)
    assert (told["epsilon"], told["delta"], told["trust"]) == (1.0, 1e-6, "local")
    assert load_study(federation.study).privacy is not None
    assert sorted(p.name for p in federation.folder.iterdir()) == before


def test_a_study_without_privacy_has_none(federation: Federation) -> None:
    assert json.loads(invoke("plan", federation.study, "--json").stdout)["privacy"] is None


@pytest.mark.parametrize(
    ("more", "solver", "text"),
    [
        ("", "covariance", "row_norm is missing"),
        ("row_norm = -1.0", "covariance", "row_norm is a positive finite number"),
        ("row_norm = 1.0\nneighbours = 'site'", "covariance", "site_norm is missing"),
        ("row_norm = 1.0", "uda", "uda declares no sensitivity"),
        ("row_norm = 1.0\ntrust = 'central'", "mod-sulq", "set trust = 'local'"),
        ("row_norm = 1.0\nshares = { count = 0.0 }", "covariance", "its share is 0"),
        ("row_norm = 1.0\n[data]\nscale = true", "covariance", "scale = true needs the columns' ranges"),
        ("row_norm = 1.0\ncalibration = 'published'", "fedpower", "set n_public = true"),
        ("row_norm = 1.0\ntrust = 'distributed'\n[participation]\nfraction = 0.5", "fedpower", "ask all sites"),
    ],
)
def test_what_no_noise_can_cover_is_refused(federation: Federation, more: str, solver: str, text: str) -> None:
    federation.write_study(PRIVACY + more, solver=solver)
    result = invoke("plan", federation.study)
    assert result.exit_code == 3
    assert text in result.stderr
    assert result.stderr.count("\n") == 1
