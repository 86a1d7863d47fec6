"""``fedspan calibrate``: tables, verdicts and errors; and no row of the data is read."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedspan.calibrate import SAID
from tests.cli.conftest import COLUMNS, Federation, invoke

PRIVACY = "[privacy]\nepsilon = 1.0\ndelta = 1e-6\nrow_norm = 1.0\n"
QUICK = ("--seeds", "2", "--epsilons", "0.3,3")


@pytest.fixture
def private(federation: Federation) -> Federation:
    """A private study whose files hold a header and rows that nobody can read."""
    for site in federation.rows:
        federation.file(site).write_text(",".join(COLUMNS) + "\n" + ",".join(["?"] * len(COLUMNS)) + "\n")
    federation.write_study(PRIVACY, solver="auto")
    return federation


def data(*arguments: object) -> Any:
    result = invoke("calibrate", *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def refused(*arguments: object, code: int = 3) -> str:
    result = invoke("calibrate", *arguments)
    assert result.exit_code == code
    assert result.stderr.count("\n") == 1
    return str(result.stderr)


# ---- what it prints ----------------------------------------------------------------------------------------------


def test_a_table_and_a_verdict_are_printed(private: Federation) -> None:
    result = invoke("calibrate", private.study, "--rows", 600, "--target", 0.95, *QUICK, "--trusts", "local,central")
    assert result.exit_code == 0
    assert SAID in result.stdout
    assert "2 components of 6 features; 600 rows of norm at most 1 at 3 sites; delta = 1e-06" in result.stdout
    assert "covariance, local" in result.stdout
    assert "covariance, central" in result.stdout
    assert result.stdout.count("95.0% is reached at epsilon = ") == 2
    assert "interpolated on log scales between 0.3 and 3" in result.stdout
    assert "With the study's epsilon = 1 it takes about" in result.stdout
    assert "2 twins, ± standard error" in result.stdout
    assert "hospitals: twin 1 of 2, covariance, trust local" in result.stderr
    assert "stands for" not in result.stdout


def test_a_scaled_twin_is_said(private: Federation) -> None:
    result = invoke("calibrate", private.study, "--rows", 4_000_000, "--seeds", 1, "--epsilons", "0.01")
    assert "and a mu 200 times as large, which stands for 4,000,000" in result.stdout
    assert "one twin:" in result.stdout
    assert "±" not in result.stdout


def test_a_target_out_of_reach_says_what_would_help(private: Federation) -> None:
    asked = ("--rows", 300, "--target", 0.99, "--seeds", 2, "--epsilons", "0.01,0.1")
    text = invoke("calibrate", private.study, *asked).stdout
    assert "no epsilon up to 0.1 reaches 99.0% (the best is" in text
    for way in ("more rows", 'trust = "distributed", with 1.7 times less noise', "tighter row_norm", "fewer features"):
        assert way in text
    assert '"distributed"' not in invoke("calibrate", private.study, *asked, "--trusts", "central").stdout


def test_a_target_reached_at_once_is_said(private: Federation) -> None:
    text = invoke("calibrate", private.study, "--rows", 10**8, "--target", 0.5, *QUICK).stdout
    assert "50.0% is reached at the smallest epsilon tried, 0.3" in text


def test_json_holds_it_all(private: Federation) -> None:
    found = data(private.study, "--rows", 600, "--target", 0.95, *QUICK, "--solvers", "covariance,private-power")
    assert found["note"] == SAID
    assert (found["rows"], found["twin_rows"], found["n_features"], found["n_components"]) == (600, 600, 6, 2)
    assert [c["solver"] for c in found["curves"]] == ["covariance", "private-power"]
    for curve in found["curves"]:
        assert [p["epsilon"] for p in curve["points"]] == [0.3, 3.0]
        assert all(len(p["values"]) == 2 and p["error"] >= 0 for p in curve["points"])
    reached = found["curves"][0]["reached"]
    assert 0.3 < reached["epsilon"] < 3
    assert reached["between"] == [0.3, 3.0]
    assert reached["rows_at_own_epsilon"] > 0
    assert found["plot"] is None
    assert data(private.study, "--rows", 600, *QUICK)["curves"][0]["reached"] is None


def test_a_spectrum_decides(private: Federation) -> None:
    steep, flat = (
        data(private.study, "--rows", 1000, *QUICK, "--spectrum", s)["curves"][0]["points"][0]["mean"]
        for s in ("geometric:0.3", "flat")
    )
    assert abs(steep - flat) > 0.02


def test_curves_are_drawn(private: Federation) -> None:
    pytest.importorskip("matplotlib")
    target = private.folder / "curves.png"
    found = data(private.study, "--rows", 1000, *QUICK, "--plot", target)
    assert found["plot"] == str(target)
    assert target.read_bytes().startswith(b"\x89PNG")


def test_nothing_else_is_written(private: Federation) -> None:
    before = sorted(p.name for p in private.folder.iterdir())
    data(private.study, "--rows", 1000, *QUICK)
    assert sorted(p.name for p in private.folder.iterdir()) == before


# ---- what is public ----------------------------------------------------------------------------------------------


def test_no_file_is_needed_where_rows_and_features_are_stated(private: Federation) -> None:
    for site in private.rows:
        private.file(site).unlink()
    assert data(private.study, "--rows", 1000, "--features", 9, *QUICK)["n_features"] == 9
    assert "site 'berlin'" in refused(private.study, "--rows", 1000, code=4)


def test_columns_come_from_the_headers_as_the_study_prepares_them(private: Federation) -> None:
    private.file("lyon").write_text(",".join([*COLUMNS, "extra", "id"]) + "\n")
    more = '[data]\ncolumns = "union-zero"\ndrop = ["id"]\nweight_column = "age"\n'
    private.write_study(PRIVACY + more, solver="auto")
    assert data(private.study, "--rows", 1000, *QUICK)["n_features"] == 6  # age weighs, extra is new
    private.write_study(PRIVACY, solver="auto")
    assert 'columns = "intersect"' in refused(private.study, "--rows", 1000, code=4)


def test_rows_come_from_headers_only_where_they_are_public(private: Federation) -> None:
    sizes = {"berlin": 700, "lyon": 200, "turin": 100}
    for site, n in sizes.items():
        np.save(private.folder / f"{site}.npy", np.full((n, 5), np.nan))
    text = private.write_study(PRIVACY, solver="auto").read_text().replace(".csv", ".npy")
    private.study.write_text(text)
    assert "state about how many" in refused(private.study)
    private.study.write_text(text + "n_public = true\n")
    found = data(private.study, *QUICK)
    assert (found["rows"], found["n_features"]) == (1000, 5)
    assert data(private.study, "--rows", 50, *QUICK)["rows"] == 50


def test_a_header_without_rows_asks_for_them(private: Federation) -> None:
    private.write_study(PRIVACY + "n_public = true", solver="auto")
    assert "does not say how many rows" in refused(private.study)


def test_files_without_a_header_ask_for_features(private: Federation) -> None:
    private.write_study(PRIVACY + "[data]\ntriples = true\ncenter = false\n", solver="auto")
    assert "--features" in refused(private.study, "--rows", 1000)
    assert data(private.study, "--rows", 1000, "--features", 7, *QUICK)["n_features"] == 7


# ---- errors ------------------------------------------------------------------------------------------------------


def test_a_study_without_privacy_gets_an_example(federation: Federation) -> None:
    text = refused(federation.study, "--rows", 100)
    assert "no [privacy] table" in text
    assert "epsilon = 1.0 / delta = 1e-6 / row_norm = 1.0" in text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--target", "1.5"), "--target is a share of the variance between 0 and 1"),
        (("--seeds", "0"), "--seeds is how many twins"),
        (("--epsilons", "1,x"), "'x' is not a positive number"),
        (("--epsilons", "-1"), "'-1' is not a positive number"),
        (("--epsilons", ","), "--epsilons names none"),
        (("--solvers", "covarianc"), "did you mean 'covariance'"),
        (("--solvers", ","), "--solvers names none"),
        (("--solvers", "uda"), "uda declares no sensitivity"),
        (("--trusts", "locl"), "did you mean 'local'"),
        (("--rows", "2"), "at least one at each"),
        (("--features", "0"), "--features is a positive number"),
        (("--spectrum", "powr"), "did you mean 'power'"),
        (("--plot", "curves.pdf"), "name a .png file"),
        (("--plot", "no/such/folder/curves.png"), "name a .png file"),
    ],
)
def test_bad_values_are_refused_with_the_way_out(private: Federation, arguments: tuple[str, str], text: str) -> None:
    assert text in refused(private.study, "--rows", 1000, *arguments)


def test_a_picture_without_matplotlib_is_refused_first(private: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "fedspan.cli.plots", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    text = refused(private.study, "--rows", 1000, "--plot", private.folder / "curves.png")
    assert "install fedspan[plots]" in text


def test_a_study_that_chooses_its_rank_says_what_was_tried(private: Federation) -> None:
    private.write_study(PRIVACY, k='"auto"', solver="auto")
    text = invoke("calibrate", private.study, "--rows", 1000, *QUICK).stdout
    assert "The study chooses its number of components; 6 was tried." in text


def test_ranges_of_columns_are_told(private: Federation) -> None:
    ranges = PRIVACY.replace("row_norm = 1.0", "row_norm = { low = 0.0, high = 9.0 }")
    private.write_study(ranges, solver="auto")
    asked = ("--rows", 300, "--target", 0.999, "--seeds", 1, "--epsilons", "0.01")
    text = invoke("calibrate", private.study, *asked).stdout
    assert "rows in their ranges" in text
    assert "narrower ranges" in text


def test_a_missing_study_is_one_line(tmp_path: Path) -> None:
    assert "there is no study file" in refused(tmp_path / "none.toml")
