"""What how-to pages show runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import pytest
from typer.testing import CliRunner

from fedspan.cli import app
from fedspan.learning_file import parse_learning
from fedspan.study_file import parse_study

DOCS = Path(__file__).parents[1] / "docs" / "how-to"


def blocks(page: str, language: str) -> list[str]:
    """Return the code blocks of a page in one language, those in tabs too."""
    text = (DOCS / f"{page}.md").read_text()
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", text, re.MULTILINE | re.DOTALL)
    return [dedent(code) for _, code in found]


@pytest.fixture
def ran(request, tmp_path, monkeypatch, capsys):
    """Run the Python of a page, from top to bottom, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    known: dict[str, object] = {}
    for code in blocks(request.param, "python"):
        exec(compile(code, f"{request.param}.md", "exec"), known)
    return known, capsys.readouterr().out, tmp_path


@pytest.mark.parametrize("ran", ["representations"], indirect=True)
def test_the_page_on_representations_runs_and_holds_what_it_says(ran):
    known, out, folder = ran
    model = known["model"]
    assert str(model.site_scores_).splitlines()[0] in out
    assert model.fairness_["median"] > 0.7
    assert model.score("athens", known["X_test"], known["y_test"]) > 0.6
    assert known["Z"].shape == (60, 6)
    assert "(2, 1e-06)-differential privacy" in out
    assert len(re.findall(r"^ +\d+\.\d s +\d+\.\d%$", out, re.MULTILINE)) == len(known["doubling"].curve_)
    assert b"oslo" in (folder / "wards.fedspan").read_bytes()
    assert b"oslo" not in (folder / "to-share.fedspan").read_bytes()


def test_the_study_on_the_page_is_one(tmp_path):
    (study,) = blocks("representations", "toml")
    read = parse_learning(study.encode(), tmp_path / "wards.toml")
    assert read.study().learner.stage.rounds == 20
    assert read.sites["oslo"].test == tmp_path / "oslo-test.csv"


# ---- secure sums -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ran", ["secure-sums"], indirect=True)
def test_the_page_on_secure_sums_runs_and_holds_what_it_says(ran):
    known, out, _ = ran
    lines = out.splitlines()
    assert float(lines[0].rsplit(" ", 1)[1]) < 1e-9
    assert lines[1] == "5 sites in the sum, each masked with 4 others"
    assert float(lines[2].rsplit(" ", 1)[1]) < 1e-9
    assert len(known["model"].history_[-1].masked.dropped) == 1
    assert "enough while 4 of those in a sum are honest" in out
    assert lines[-1] == "5 sites gave keys"


@pytest.mark.parametrize("ran", ["secure-sums"], indirect=True)
def test_the_study_on_the_page_on_secure_sums_is_one(ran):
    _, _, folder = ran
    study, rules, cohort = blocks("secure-sums", "toml")
    (folder / "wards.toml").write_text(study)
    planned = " ".join(CliRunner().invoke(app, ["plan", "wards.toml"], env={"COLUMNS": "120"}).stdout.split())
    shown = next(code for code in blocks("secure-sums", "console") if "fedspan plan" in code)
    for line in shown.split("...\n")[0].splitlines()[1:]:
        assert " ".join(line.split()) in planned
    audited = CliRunner().invoke(app, ["audit", "wards.toml", "--colluding", "lima,oslo"])
    assert re.search(r"the 3 honest together: A.A reconstructed to \de-1\d", audited.stdout)
    asked = parse_study((study + rules + cohort).encode(), folder / "wards.toml")
    assert (asked.secure.minimum, asked.secure.colluding) == (4, 0.2)
    assert (asked.cohort.deadline, asked.cohort.late) == (30.0, "drop")
