"""Table 1 and Figures 1-2 of PPM: on a stand-in everywhere, whole under `make soak`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse

from fedspan.cli import reproduce_ppm, reproduce_ppm_data
from fedspan.cli.papers import PAPERS
from fedspan.cli.reproduce_ppm import reproduce, text
from fedspan.cli.reproduce_ppm_data import (
    FULL,
    QUICK,
    TABLE_1,
    Printed,
    leading_vectors,
    normalised,
    sampled_vectors,
)
from fedspan.errors import ConfigurationError, DataError
from fedspan.metrics import coherence_max, sensitivity_ratio

REAL_DATA = os.environ.get("FEDSPAN_DATA", "")


def interactions(seed, users=90, items=60, share=0.15):
    drawn = np.random.default_rng(seed).random((users, items)) < share
    drawn[np.arange(items), np.arange(items)] = True  # every item has a user
    return scipy.sparse.csr_array(drawn.astype(float))


def stand_in(name, *, download=True):
    """One small set; every other one is missing. Never from a network."""
    assert download is False
    if name != "gowalla":
        raise DataError(f"{name} is not here")
    train = interactions(0)
    test = interactions(1, share=0.05).toarray() * (train.toarray() == 0)
    return SimpleNamespace(X=train, X_test=scipy.sparse.csr_array(test))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One quick run of everything: its result, its folder, what it reported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduce_ppm_data, "load", stand_in)
        folder, lines = tmp_path_factory.mktemp("ppm"), []
        return reproduce(folder, quick=True, report=lines.append), folder, lines


# ---- the paper ---------------------------------------------------------------------------------------------------


def test_the_papers_settings():
    assert PAPERS["ppm"] == "fedspan.cli.reproduce_ppm"
    assert FULL.rows == (8000, 12000)
    assert FULL.runs == 5
    assert (FULL.ks[0], FULL.ks[1] - FULL.ks[0], FULL.ks[-1]) == (64, 64, 3968)
    assert TABLE_1["gowalla"] == Printed(29858, 40981, 1027370, 0.36, 82.48, 1.08)


# ---- measures ----------------------------------------------------------------------------------------------------


def test_degrees_are_taken_out():
    ratings = interactions(2)
    dense = ratings.toarray()
    expected = dense / np.sqrt(np.outer(dense.sum(axis=1).clip(1), dense.sum(axis=0)))
    np.testing.assert_allclose(normalised(ratings).toarray(), expected)
    assert np.linalg.norm(expected, 2) == pytest.approx(1.0)


def test_leading_vectors_are_those_of_the_item_item_matrix():
    ratings = interactions(3)
    matrix = normalised(ratings).toarray()
    found = leading_vectors(ratings, 5)
    _, vectors = np.linalg.eigh(matrix.T @ matrix)
    np.testing.assert_allclose(np.abs(np.sum(found * vectors[:, :-6:-1], axis=0)), 1.0, rtol=1e-8)


def test_all_vectors_of_a_sample_and_its_null_space():
    vectors, null = sampled_vectors(interactions(4), 20)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(20), atol=1e-12)
    assert null == 0
    wide = interactions(5, users=70, items=60)[:30]
    assert sampled_vectors(wide, 60)[1] >= 30


# ---- what comes out ----------------------------------------------------------------------------------------------


def test_json_is_what_is_returned(made):
    result, folder, _ = made
    assert json.loads((folder / "ppm.json").read_text()) == json.loads(json.dumps(result))
    assert (folder / "tables.md").read_text() == text(result)


def test_statistics_and_coherences(made):
    found = made[0]["sets"]["gowalla"]
    both = stand_in("gowalla", download=False)
    assert (found["users"], found["items"]) == (90, 60)
    assert found["interactions"] == both.X.nnz + both.X_test.nnz > found["train"] == both.X.nnz
    leading = leading_vectors(both.X, QUICK.leading[-1])
    assert found["coherence"][1]["mu_0"] == pytest.approx(coherence_max(leading))
    for measured in found["sensitivity"]:
        assert measured["new"] <= min(1.0, measured["old"]) + 1e-12
    assert all(c["mu_1"] >= 1 for c in found["coherence"] if "null" in c)


def test_ratios_are_above_the_approximation(made):
    for found, n in zip(made[0]["ratios"], QUICK.rows, strict=True):
        assert found["n"] == n
        assert found["approximation"][0] == sensitivity_ratio(QUICK.ks[0], n)
        assert np.all(np.array(found["measured"]) > found["approximation"])
        assert 0 < found["largest"] <= 1


def test_the_text_has_the_papers_figures_and_what_each_of_ours_is(made):
    written = text(made[0])
    for title in ("## Table 1: ", "### gowalla", "## Figure 1: r(k, n), n = 800", "## Figure 2: r(k, n), n = 1200"):
        assert title in written
    for words in ("0.36", "82.48", "1.08 sqrt(p) before and 1 now", "4 leading vectors, training interactions",
                  "all vectors, 60 of 60 items at random", "comes to 1.17 sqrt(p)", "at 25 of 25 k"):  # fmt: skip
        assert words in written
    blocks = [block.splitlines() for block in written.split("\n\n") if block.startswith("|")]
    assert len(blocks) == 5
    for block in blocks:
        assert len({line.count("|") for line in block}) == 1


def test_a_missing_set_is_listed(made):
    result, _, lines = made
    assert result["sets"]["yelp2018"] == {"absent": "yelp2018 is not here"}
    assert "yelp2018: not available here" in lines
    assert "Not available here, nothing is downloaded: yelp2018; amazon-book." in text(result)


def test_a_lower_bound_above_the_paper_is_said():
    coherence = [{"label": "few", "mu_0": 0.5, "mu_1": 2.0}, {"label": "sample", "mu_0": 1.0, "mu_1": 9.0, "null": 0}]
    counts = {"users": 1, "items": 1, "train": 1, "interactions": 1}
    found = {**counts, "coherence": coherence, "sensitivity": [{"label": "x", "p": 4, "old": 1.0, "new": 0.5}]}
    assert "Above the paper's mu_0 of 0.36 already: few. So" in text({"sets": {"gowalla": found}})
    coherence[0]["mu_0"] = 0.3
    assert "No lower bound here is above" in text({"sets": {"gowalla": found}})


def test_figures_are_pictures(made):
    from matplotlib.image import imread

    result, folder, _ = made
    assert result["figures"] == {"1": "figure1.png", "2": "figure2.png"}
    for file in result["figures"].values():
        assert min(imread(folder / file).shape[:2]) > 400


def test_without_matplotlib_only_the_tables(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "fedspan.cli.plots", None)
    monkeypatch.setattr(reproduce_ppm_data, "load", stand_in)
    with pytest.raises(ConfigurationError, match=r"install fedspan\[plots\]"):
        reproduce(tmp_path, quick=True)
    result = reproduce(tmp_path, quick=True, figures=False)
    assert not {"figures", "ratios"} & set(result)
    assert "## Figure 1" not in (tmp_path / "tables.md").read_text()


def test_figures_alone_load_nothing(monkeypatch, tmp_path):
    monkeypatch.delattr(reproduce_ppm_data, "load")
    result = reproduce(tmp_path, quick=True, tables=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure1.png", "figure2.png", "ppm.json"]
    assert reproduce_ppm.text(result).startswith("## Figure 1")


@pytest.mark.soak
def test_all_of_it(monkeypatch, tmp_path):
    """About five minutes."""
    if not REAL_DATA or not Path(REAL_DATA).is_dir():
        pytest.skip("the papers' sets are not at hand; set FEDSPAN_DATA to a folder of them")
    monkeypatch.setenv("FEDSPAN_DATA", REAL_DATA)
    result = reproduce(tmp_path)
    gowalla, printed = result["sets"]["gowalla"], TABLE_1["gowalla"]
    for key in ("users", "items", "interactions"):
        assert gowalla[key] == getattr(printed, key)
    leading = {c["label"]: c for c in gowalla["coherence"]}["256 leading vectors, training interactions"]
    assert leading["mu_0"] == pytest.approx(0.42, abs=0.01)
    for found in result["ratios"]:
        assert np.all(np.array(found["measured"]) > found["approximation"])
