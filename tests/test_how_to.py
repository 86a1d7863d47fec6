"""What how-to pages show runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedspan.learning_file import parse_learning

DOCS = Path(__file__).parents[1] / "docs" / "how-to"


def blocks(page: str, language: str) -> list[str]:
    """Return the code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def ran(tmp_path, monkeypatch, capsys):
    """Run the Python of the page on representations, from top to bottom, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    known: dict[str, object] = {}
    for code in blocks("representations", "python"):
        exec(compile(code, "representations.md", "exec"), known)
    return known, capsys.readouterr().out, tmp_path


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
