"""Table 3 and Figures 7-10 of FedPower: on a stand-in everywhere, on one of the paper's sets where it is."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedspan.cli import reproduce_fedpower_data, reproduce_fedpower_noise
from fedspan.cli.reproduce_fedpower_data import PAPER as TABLE_2
from fedspan.cli.reproduce_fedpower_data import ROWS, deal, matrix, truth
from fedspan.cli.reproduce_fedpower_figures import Curve, distances
from fedspan.cli.reproduce_fedpower_noise import TITLES, reproduce, text
from fedspan.cli.reproduce_fedpower_noise_runs import (
    DELTA,
    EPSILONS,
    NO_GUARANTEE,
    NOISY_QUICK,
    PAPER,
    NoisyScale,
    certified,
    claimed,
    communications,
    noisy_distances,
    published,
)
from fedspan.cohort import Cohort
from fedspan.data import Preparation
from fedspan.engines import InProcess
from fedspan.errors import DataError
from fedspan.privacy.gaussian import GaussianPrivacy
from fedspan.privacy.published import fedpower_split
from fedspan.run import Study, run
from fedspan.solvers import FedPower
from tests.cli.conftest import invoke

REAL_DATA = os.environ.get("FEDSPAN_DATA", "")
FEATURES = 12


def stand_in(name, *, download=True):
    """One set of decaying variance; every other one is missing. Never from a network."""
    assert download is False
    if name != "a9a":
        raise DataError(f"{name} is not here")
    rng = np.random.default_rng(3)
    X = rng.standard_normal((4000, FEATURES)) * 0.7 ** np.arange(FEATURES)
    return SimpleNamespace(X=np.clip(X, -1, 1))


@pytest.fixture
def data(monkeypatch):
    monkeypatch.setattr(reproduce_fedpower_data, "load", stand_in)
    X = matrix(ROWS[2])
    return deal(X, 10, 0), truth(X)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One run of everything on the stand-in: its result, its folder, what it reported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduce_fedpower_data, "load", stand_in)
        patch.setattr(reproduce_fedpower_noise, "SITES", 10)
        scale = replace(
            NOISY_QUICK, epsilons=EPSILONS, iterations=12,
            figures=replace(NOISY_QUICK.figures, communications=4, panels=((ROWS[2], 8), (ROWS[0], 100))),
        )  # fmt: skip
        patch.setattr(reproduce_fedpower_noise, "NOISY_QUICK", scale)
        folder, lines = tmp_path_factory.mktemp("noisy"), []
        return reproduce(folder, quick=True, report=lines.append), folder, lines


def test_the_papers_table_and_settings_are_whole():
    assert set(PAPER) == set(TABLE_2)
    assert all(len(means) == len(stds) == len(EPSILONS) for means, stds in PAPER.values())
    scale = NoisyScale()
    assert (scale.epsilons, scale.iterations) == ((math.inf, 100.0, 10.0, 1.0, 0.1), 40)
    assert {row.paper for row in scale.rows} == set(PAPER)
    assert [(row.data, m) for row, m in scale.figures.panels] == [("mnist", 200), ("a9a", 20), ("acoustic", 100)]


def test_iterations_that_end_between_two_communications():
    assert [communications(t) for t in (3, 4, 6, 7, 9, 10, 40)] == [0, 1, 1, 2, 3, 4, 34]


def test_everything_says_that_nothing_is_established(made):
    result, folder, _ = made
    assert result["guarantee"] == NO_GUARANTEE
    assert all(NO_GUARANTEE in figure["title"] for figure in result["figures"].values())
    assert (folder / "tables.md").read_text().count(NO_GUARANTEE) == 3


def test_files(made):
    result, folder, lines = made
    assert json.loads((folder / "fedpower-noisy.json").read_text()) == result
    assert (folder / "tables.md").read_text() == text(result)
    assert all((folder / f"figure{number}.png").stat().st_size > 10_000 for number in TITLES)
    assert "Housing: not available here" in lines


def test_cells_hold_ours_the_papers_and_the_certified(made):
    found = made[0]["table3"][0]
    assert list(found["cells"]) == ["inf", "100", "10", "1", "0.1"]
    for at, (name, cell) in enumerate(found["cells"].items()):
        assert (cell["paper_mean"], cell["paper_std"]) == tuple(side[at] for side in PAPER["A9a"])
        assert len(cell["runs"]) == 2
        assert cell["mean"] == pytest.approx(np.mean(cell["runs"]))
        assert cell["std"] == pytest.approx(np.std(cell["runs"], ddof=1))
        if name != "inf":
            assert cell["claimed"] == list(claimed(float(name), communications(12)))
            assert cell["certified_mean"] < cell["mean"]
    errors = [cell["mean"] for cell in found["cells"].values()]
    assert errors[0] < errors[2] < errors[3] < errors[4]
    assert "certified_mean" not in found["cells"]["inf"]


def test_a_missing_set_is_listed_with_the_papers_figures(made):
    result, folder, _ = made
    absent = result["table3"][1]
    assert absent["absent"] == "housing_scale is not here"
    assert absent["cells"]["1"] == {"paper_mean": 0.5027, "paper_std": 0.0528}
    written = (folder / "tables.md").read_text()
    assert "Not available here, nothing is downloaded: Housing." in written
    assert result["figures"]["9"]["absent"] == {"Acoustic": "acoustic is not here"}
    assert "5.03e-01 (5e-02)" in written


def test_infinity_is_without_any_noise(made, data):
    """With the server's noise kept, eps_1 = inf would be no better than eps_1 = 100; the paper's is."""
    found = made[0]["table3"][0]
    assert found["cells"]["inf"]["mean"] < found["server_only"] / 10
    sources, leading = data
    nothing = published(sources, leading, None, 6, 0)
    assert published(sources, leading, (math.inf, math.inf), 6, 0) == pytest.approx(nothing)


def test_the_sites_noise_is_the_papers(data):
    """The first sum of s_i (M_i Z + noise_i), less the same without noise: the deviation of Section 5.3."""
    sources, _ = data
    sums, starts = [], []

    def listening(sites, seed):
        execute = InProcess(sites, seed)

        def ask(question):
            outcome = execute(question)
            if question.step.name == "fedpower.local_steps":
                sums.append(outcome.value)
                starts.append(question.message["z"])
            return outcome

        return ask

    private = GaussianPrivacy(
        5.0, DELTA, neighbours="entry", n_public=True, calibration="published", formula="fedpower", split=(1.0, 0.1),
        shares={"variance": 0.0}, testing_seed=4,
    )  # fmt: skip
    for privacy in (None, private):
        solver = FedPower(rounds=2, tol=0, local_steps=1, align=None)
        study = Study(n_components=10, solver=solver, privacy=privacy, preparation=Preparation(center=False))
        run(study, sources, engine=listening)
    assert np.array_equal(*starts)
    site, _ = fedpower_split(1.0, 0.1, DELTA, 400, 0.1)
    noise = (sums[1] - sums[0]) / (400 * np.abs(starts[0]).max() * site * math.sqrt(10))
    assert noise.shape == (FEATURES, 10)
    assert np.std(noise) == pytest.approx(1, abs=0.25)  # of 120 draws: four deviations


def test_as_many_draws_as_the_cohort_says(data):
    sources, leading = data
    for sample in ("uniform", "by-size-with-replacement"):
        curve = Curve("", 0, 10, cohort=Cohort(fraction=0.5, sample=sample))
        found = noisy_distances(curve, sources, 4, leading)
        assert len(found) == 5
        assert found[-1] > distances(curve, sources, 4, leading)[-1] / 2
        assert found == noisy_distances(curve, sources, 4, leading)


def test_the_certified_run_gets_better_with_epsilon(data):
    sources, leading = data
    assert certified(sources, leading, 100.0, 0) < certified(sources, leading, 1.0, 0)


def test_command(monkeypatch, tmp_path):
    monkeypatch.setattr(reproduce_fedpower_data, "load", stand_in)
    scale = replace(NOISY_QUICK, rows=ROWS[:1], figures=replace(NOISY_QUICK.figures, panels=()))
    monkeypatch.setattr(reproduce_fedpower_noise, "NOISY_QUICK", scale)
    done = invoke("reproduce", "fedpower", "--noisy", "--quick", "--folder", tmp_path)
    assert "## Table 3" in done.stdout
    assert (tmp_path / "fedpower-noisy.json").exists()
    refused = invoke("reproduce", "faps", "--noisy")
    assert refused.exit_code != 0
    assert "--noisy is for fedpower" in " ".join(refused.stderr.split())


def test_one_of_the_papers_sets(monkeypatch, tmp_path):
    if not REAL_DATA or not Path(REAL_DATA, "a9a.npz").is_file():
        pytest.skip("a9a.npz is not at hand; set FEDSPAN_DATA to a folder that has it")
    monkeypatch.setenv("FEDSPAN_DATA", REAL_DATA)
    scale = replace(NOISY_QUICK, rows=ROWS[2:3], epsilons=(10.0,), iterations=40)
    monkeypatch.setattr(reproduce_fedpower_noise, "NOISY_QUICK", scale)
    cell = reproduce(tmp_path, quick=True, figures=False)["table3"][0]["cells"]["10"]
    assert 1 / 1.5 < cell["ratio"] < 1.5
    assert cell["certified_mean"] < cell["mean"] / 5
