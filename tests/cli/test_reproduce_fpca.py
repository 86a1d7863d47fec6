"""Figures 5-13 and Table 1 of Federated-PCA: tiny and on stand-ins everywhere, whole under `make soak`."""

from __future__ import annotations

import json
import os
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedspan.cli import plots, reproduce_fpca, reproduce_fpca_data, reproduce_fpca_merges, reproduce_fpca_private
from fedspan.cli.papers import PAPERS
from fedspan.cli.reproduce_fpca import reproduce, text
from fedspan.cli.reproduce_fpca_data import FULL, METHODS_OF_TABLE_1, QUICK, TABLE_1, Merges, Workers
from fedspan.cli.reproduce_fpca_memory import MaskedFpca, allocations, methods
from fedspan.cli.reproduce_fpca_merges import MERGES, measure_merges, measure_workers
from fedspan.cli.reproduce_fpca_order import ORDERED, SPIRIT
from fedspan.cli.reproduce_fpca_runs import (
    ADAPTIVE,
    ALONE,
    CARRIED,
    FD,
    GROUSE,
    HIGH,
    LOW,
    PM,
    UNFORGETTING,
    Fpca,
    FpcaOnTheFly,
    brackets,
    race,
    rank_range,
    rival,
    subspace_error,
)
from fedspan.datasets.synthetic import power_law
from fedspan.errors import ConfigurationError, DataError
from fedspan.linalg import Estimate, merge, procrustes
from fedspan.rivals import Grouse, MemoryLimitedPower

REAL_DATA = os.environ.get("FEDSPAN_DATA", "")
SIZES = {"mnist": (300, 20), "wine_red": (200, 11), "motes_light": (300, 12)}
TINY = replace(  # as little as shows that all parts are there
    QUICK,
    spectra=replace(QUICK.spectra, rows=60, d=12, alphas=(1.0,)),
    permutations=replace(QUICK.permutations, rows=60, d=12, ranks=(3,), count=1),
    workers=replace(QUICK.workers, rows=100, counts=(1, 2)),
    merges=replace(QUICK.merges, rows=(60,), d=30, rank=5),
    points=2,
)


def stand_in(name, *, download=True):
    """Three small sets; every other one is missing. Never from a network."""
    assert download is False
    if name not in SIZES:
        raise DataError(f"{name} is not here")
    rng = np.random.default_rng(0)
    n, d = SIZES[name]
    return SimpleNamespace(X=rng.standard_normal((n, d)) * 0.8 ** np.arange(d) + 0.3, y=rng.integers(0, 10, n))


def load_stand_ins(patch):
    for module in (reproduce_fpca_data, reproduce_fpca_private):
        patch.setattr(module, "load", stand_in)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One quick run of everything: its result, its folder, what it reported, and what was to be drawn."""
    drawn = {}

    def keep(path, title, panels, **options):
        drawn[path.name] = (title, panels, options)

    with pytest.MonkeyPatch.context() as patch:
        load_stand_ins(patch)
        patch.setattr(plots, "write_curves", keep)
        patch.setattr(plots, "write_points", keep)
        folder, lines = tmp_path_factory.mktemp("fpca"), []
        result = reproduce(folder, quick=True, report=lines.append)
        return SimpleNamespace(result=result, folder=folder, lines=lines, drawn=drawn)


# ---- the paper ---------------------------------------------------------------------------------------------------


def test_the_papers_settings():
    assert PAPERS["fpca"] == "fedspan.cli.reproduce_fpca"
    assert (FULL.spectra.rows, FULL.spectra.d, FULL.spectra.alphas) == (4000, 400, (0.001, 0.1, 0.5, 1.0, 2.0, 3.0))
    assert (FULL.merges.d, FULL.merges.rank, FULL.merges.rows) == (800, 100, (800, 1600, 2400, 3200, 4000))
    order = FULL.permutations
    assert (order.rows, order.d, order.ranks, order.count) == (10_000, 100, (5, 20, 40, 60, 80), 20)
    assert (reproduce_fpca_private.EPSILONS, reproduce_fpca_private.DELTA, reproduce_fpca_private.RANK) == (
        (0.6, 1.0), 0.1, 6,
    )  # fmt: skip


def test_the_rivals_have_the_papers_settings():
    """GROUSE's step 2, FD's sketch of 2 r rows, PM's blocks of d."""
    rng, d, r = np.random.default_rng(0), 7, 2
    for rows in (rng.standard_normal((4, d)), rng.standard_normal((13, d))):
        for name, own in ((GROUSE, Grouse(d, r, step=2.0)), (PM, MemoryLimitedPower(d, r, block_size=d))):
            tracker = rival(name, d, r)
            for one in (tracker, own):
                one.update(rows)
            np.testing.assert_array_equal(tracker.basis, own.basis)
        sketcher = rival(FD, d, r)
        sketcher.update(rows[:4])
        np.testing.assert_array_equal(sketcher.sketch, rows[:4])  # nothing is cut before it is full


def test_a_projection_has_moved_as_far_as_the_best_rotation_leaves_it():
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((80, 8)) * 0.8 ** np.arange(8)
    projected = reproduce_fpca_private._Projected(rows, None)
    turned = projected.offline[:, [1, 0, 2, 3, 4, 5]] * [-1.0, 1, 1, 1, 1, 1]
    assert projected.moved(turned) < 1e-6
    assert projected.captured(turned) == pytest.approx(1.0)
    other = np.linalg.qr(rng.standard_normal((8, 6)))[0]
    points, best = rows @ other[:, :2], rows @ projected.offline[:, :2]
    rotation = procrustes(points, best)
    expected = np.linalg.norm(points @ rotation - best) / np.linalg.norm(best)
    assert projected.moved(other) == pytest.approx(expected, rel=1e-9)
    assert projected.captured(other) == pytest.approx(
        np.sum((rows @ other) ** 2) / np.sum((rows @ projected.offline) ** 2)
    )


def test_table_1_is_whole():
    assert set(TABLE_1) == {"motes_humidity", "motes_light", "motes_voltage", "motes_temperature"}
    assert all(set(printed) == set(METHODS_OF_TABLE_1) for printed in TABLE_1.values())
    assert TABLE_1["motes_light"]["SP"] == (1009.03, 508.11)


# ---- one stream --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def raced():
    rows = power_law(500, 24, alpha=0.3, seed=1)
    return rows, race(rows, 10, 5)


def test_errors_are_those_of_the_projections(raced):
    rows, found = raced
    tracker = Fpca("auto")
    for at, error in zip(found["at"], found["runs"][ADAPTIVE]["errors"], strict=True):
        tracker.update(rows[at - 100 : at])
        seen, basis = rows[:at], tracker.basis
        assert error == pytest.approx(np.sum((seen - seen @ basis @ basis.T) ** 2) / at)
    offline = np.linalg.svd(rows, full_matrices=False)[2].T
    assert found["runs"][ADAPTIVE]["subspace"] == pytest.approx(subspace_error(tracker.basis, offline), abs=1e-6)


def test_the_adaptive_run_lies_within_16(raced):
    """Its rank rises on a flat spectrum, so that both sides of (16) say something."""
    rows, found = raced
    assert (found["low"], found["high"]) == rank_range(rows)
    assert found["low"] == 10 < found["high"]
    low, high = (found["runs"][name] for name in (LOW, HIGH))
    assert set(low["ranks"]) == {found["low"]}
    assert set(high["ranks"]) == {found["high"]}
    error = np.array(found["runs"][ADAPTIVE]["errors"])
    assert np.all(error <= low["errors"])
    assert np.all(error >= np.array(high["errors"]) * (1 - 1e-3))
    sides = brackets(found)
    assert sides["above_floor"]["held"] == sides["below_low"]["held"] == sides["below_ceiling"]["held"] == 5


def test_where_16_fails_it_is_said_by_how_much(raced):
    _, found = raced
    errors = found["runs"][ADAPTIVE]["errors"]
    worse = {**found, "residual_low": [0.5 * error for error in errors]}
    assert brackets(worse)["below_ceiling"] == {"held": 0, "of": 5, "most": pytest.approx(0.5)}


def test_residuals_are_the_offline_ones(raced):
    rows, found = raced
    for at, low in zip(found["at"], found["residual_low"], strict=True):
        tail = np.linalg.svd(rows[:at], compute_uv=False)[found["low"] :]
        assert low == pytest.approx(np.sum(tail**2) / at)


def test_errors_on_the_fly_are_those_of_the_scores_as_given():
    """While the subspace still turns they are larger; on rows of the rank there is none."""
    rows = power_law(300, 12, alpha=0.5, seed=2)
    tracker = FpcaOnTheFly(3)
    for piece in np.array_split(rows, 6):
        tracker.update(piece)
    scores, basis = tracker._scores[0], tracker.model.components_
    assert tracker.error(rows) == pytest.approx(np.sum((rows - scores @ basis) ** 2) / 300)
    assert tracker.error(rows) > 1.001 * np.sum((rows - rows @ basis.T @ basis) ** 2) / 300
    flat = rows[:, :3] @ basis
    exact = FpcaOnTheFly(3)
    for piece in np.array_split(flat, 6):
        exact.update(piece)
    assert exact.error(flat) < 1e-12


def test_spirit_without_forgetting_may_be_left_out():
    found = race(power_law(100, 6, alpha=1.0), 3, 2, unforgetting=False)
    assert UNFORGETTING not in found["runs"]


# ---- memory ------------------------------------------------------------------------------------------------------


def test_allocations_are_flat_and_grow_with_the_rank():
    rows = power_law(1000, 40, alpha=1.0)
    small, large = (allocations(lambda rank=rank: Fpca(rank, oversampling=0), rows) for rank in (2, 20))
    assert len(small) == 20
    assert max(small[2:]) < 1.5 * min(small[2:])
    assert np.mean(large) > 1.3 * np.mean(small)
    assert not tracemalloc.is_tracing()


def test_allocations_leave_a_trace_of_the_callers_running():
    tracemalloc.start()
    try:
        allocations(lambda: Fpca(2), power_law(100, 5, alpha=1.0))
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()


def test_masks_are_folded_slice_by_slice():
    """With no noise the slices of one block give the eigenvectors of its Gram matrix."""
    rows = power_law(50, 10, alpha=3.0)
    offline = np.linalg.svd(rows)[2].T
    clear, masked = MaskedFpca(3, slice_width=4, deviation=0.0), MaskedFpca(3, slice_width=4, deviation=1e6)
    for tracker in (clear, masked):
        tracker.update(rows)
    assert subspace_error(clear.basis, offline) < 1e-2
    assert subspace_error(masked.basis, offline) > 0.3
    assert set(methods(10, 3)) == {*METHODS_OF_TABLE_1, ALONE}


# ---- what comes out ----------------------------------------------------------------------------------------------


def test_json_is_what_is_returned(made):
    assert json.loads((made.folder / "fpca.json").read_text()) == json.loads(json.dumps(made.result))
    assert (made.folder / "tables.md").read_text() == text(made.result)


def test_merges_agree_and_come_near_the_offline_values(made):
    for measured in made.result["merges"]:
        found = measured["merges"]
        assert set(found) == set(MERGES)
        for one in found.values():
            assert one["apart"] < 1e-12
            assert one["subspace"] == pytest.approx(found["Alg. 5"]["subspace"], rel=1e-9)
            assert 0 < one["values"] < 0.05
            assert one["seconds"] > 0


def test_values_that_are_apart_are_told(monkeypatch):
    def blurred(*pairs):
        basis, values = merge(*pairs)
        return Estimate(basis, values * (1 + 1e-6 * np.arange(len(values))))

    monkeypatch.setitem(reproduce_fpca_merges.MERGES, "Alg. 6", blurred)
    (measured,) = measure_merges(Merges(30, (60,), 4, repeats=1), lambda _: None)
    assert measured["merges"]["Alg. 6"]["apart"] == pytest.approx(3e-6, rel=1e-6)
    assert measured["merges"]["Alg. 5"]["apart"] < 1e-12


def test_times_are_those_of_the_slowest_worker_and_the_slowest_merge_of_each_level(monkeypatch):
    """Five workers: merges of 2 and 1, then one of two and one left over, then the last."""
    took = iter([3.0, 9.0, 4.0, 1.0, 2.0, 0.5, 0.75, 0.25, 0.125])
    monkeypatch.setattr(reproduce_fpca_merges, "timed", lambda call: (call(), next(took)))
    (measured,) = measure_workers(Workers(200, 6, 2, (5,), repeats=1), lambda _: None)
    assert (measured["pca"], measured["merge"], measured["total"]) == (9.0, 0.75 + 0.25 + 0.125, 10.125)
    assert next(took, None) is None


def test_16_holds_in_what_is_written(made):
    for found in [*made.result["spectra"], *(s for s in made.result["streams"] if "absent" not in s)]:
        sides = found["brackets"]
        assert sides["above_floor"]["held"] == len(found["at"]) == sides["above_floor"]["of"]
        assert sides["below_low"]["most"] < 1e-2
        assert sides["above_high"]["most"] < 1e-2
        carried, projected = (found["runs"][name]["errors"] for name in (CARRIED, ADAPTIVE))
        assert np.all(np.array(carried) >= np.array(projected) * (1 - 1e-6))


def test_fpca_is_nearer_to_offline_than_rivals_of_its_rank(made):
    steep = made.result["spectra"][-1]["runs"]
    rivals = [run for name, run in steep.items() if not name.startswith("FPCA")]
    assert len(rivals) == 6
    assert all(steep[ADAPTIVE]["subspace"] < run["subspace"] for run in rivals)


def test_tight_noise_moves_projections_less_than_published(made):
    for found in made.result["private"].values():
        runs = {(run["mechanism"], run["epsilon"]): run for run in found["runs"]}
        for name in ("streaming MOD-SuLQ", "MOD-SuLQ"):
            for epsilon in (0.6, 1.0):
                tight, published = (runs[f"{name}, {kind}", epsilon] for kind in ("tight", "published"))
                assert tight["moved"] < published["moved"]
                assert published["captured"] < tight["captured"] <= 1 + 1e-9


def test_workers_lose_next_to_nothing(made):
    measured = made.result["workers"]
    assert [m["workers"] for m in measured] == [1, 2, 4]
    assert measured[0]["merge"] == 0 < measured[-1]["merge"]
    for m in measured:
        assert m["total"] == pytest.approx(m["pca"] + m["merge"])
        assert 0.999 < m["captured"] <= 1 + 1e-9


def test_the_order_matters_to_no_exact_rank(made):
    for measured in made.result["order"]:
        assert set(measured["methods"]) == set(ORDERED)
        assert measured["exact"] < 1e-10
        fpca = measured["methods"]["FPCA"]
        assert all(fpca["own"] < other["own"] for name, other in measured["methods"].items() if name != "FPCA")
        assert measured["methods"][SPIRIT]["permutations"] == QUICK.permutations.spirit_count


def test_the_text_has_the_papers_figures_beside_ours(made):
    written = text(made.result)
    for title in ("Figure 5: ", "Figures 6 and 7: ", "Figure 8: ", "Figure 9: ", "Figure 10: ", "Figure 11: ",
                  "Figure 12: ", "Figure 13: ", "Table 1: "):  # fmt: skip
        assert f"## {title}" in written
    light = made.result["memory"]["motes_light"]["PM"]
    assert f"{light[0]:.2f} / {light[1]:.2f} | not available" not in written
    for words in ("685.48 / 685.44", f"{light[0]:.2f} / {light[1]:.2f}", "(The paper: picture only.)", "Tiny problems"):
        assert words in written
    tables = [block.splitlines() for block in written.split("\n\n") if block.startswith("|")]
    assert len(tables) == 12
    for table in tables:
        assert len({line.count("|") for line in table}) == 1


def test_missing_sets_are_listed(made):
    assert "figure 9, motes, voltage: not available here" in made.lines
    assert made.result["memory"]["motes_humidity"] == {"absent": "motes_humidity is not here"}
    written = text(made.result)
    assert "nothing is downloaded: motes, humidity; motes, temperature; motes, voltage." in written
    assert "| not available |" in written


def test_without_any_set(monkeypatch, tmp_path):
    monkeypatch.setattr(reproduce_fpca, "QUICK", TINY)
    monkeypatch.setattr(plots, "write_curves", lambda *_, **__: None)
    load_stand_ins(monkeypatch)
    for name in SIZES.copy():
        monkeypatch.delitem(SIZES, name)
    result = reproduce(tmp_path, quick=True)
    assert set(result["figures"]) == {"5", "6", "6-ranks", "7", "7-ranks", "8", "12", "13"}
    assert "Not available here, nothing is downloaded." in text(result)


def test_every_figure_has_its_curves(made):
    names = ("5", "6", "6-ranks", "7", "7-ranks", "8", "9", "10", "11", "12", "13")
    assert made.result["figures"] == {name: f"figure{name}.png" for name in (*names[:7], *names[9:], *names[7:9])}
    for _, panels, _ in made.drawn.values():
        for curve in (curve for panel in panels for curve in panel.get("curves", ())):
            assert len(curve["values"]) == len(curve["at"]) > 0
            assert np.all(np.isfinite(curve["values"]))
    for name in ("10", "11"):
        panels = made.drawn[f"figure{name}.png"][1]
        assert len(panels) == 9
        assert all(panel["points"].shape == (len(panel["of"]), 2) for panel in panels)


def test_projections_are_turned_to_lie_as_the_offline_ones(made):
    offline, *private = made.drawn["figure11.png"][1]
    tight = next(panel for panel in private if panel["title"] == "MOD-SuLQ, tight, epsilon 1")
    near = np.linalg.norm(tight["points"] - offline["points"]) / np.linalg.norm(offline["points"])
    assert near < 0.2


def test_figures_are_pictures(made, tmp_path):
    from matplotlib.image import imread

    for name, write in (("figure9.png", plots.write_curves), ("figure10.png", plots.write_points)):
        title, panels, options = made.drawn[name]
        write(tmp_path / name, title, panels, **options)
        assert min(imread(tmp_path / name).shape[:2]) > 400


def test_without_matplotlib_only_the_tables(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "fedspan.cli.plots", None)
    load_stand_ins(monkeypatch)
    with pytest.raises(ConfigurationError, match=r"install fedspan\[plots\]"):
        reproduce(tmp_path, quick=True)
    monkeypatch.setattr(reproduce_fpca, "QUICK", TINY)
    result = reproduce(tmp_path, quick=True, figures=False)
    assert "figures" not in result
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fpca.json", "tables.md"]


def test_figures_alone_have_no_table(monkeypatch, tmp_path):
    load_stand_ins(monkeypatch)
    monkeypatch.setattr(reproduce_fpca, "QUICK", TINY)
    monkeypatch.setattr(reproduce_fpca, "draw_figures", lambda *_: {})
    result = reproduce(tmp_path, quick=True, tables=False)
    assert "memory" not in result
    assert [path.name for path in tmp_path.iterdir()] == ["fpca.json"]


@pytest.mark.soak
def test_all_of_it(monkeypatch, tmp_path):
    """About six minutes."""
    if not REAL_DATA or not Path(REAL_DATA).is_dir():
        pytest.skip("the papers' sets are not at hand; set FEDSPAN_DATA to a folder of them")
    monkeypatch.setenv("FEDSPAN_DATA", REAL_DATA)
    result = reproduce(tmp_path)
    for found in [*result["spectra"], *(s for s in result["streams"] if "absent" not in s)]:
        assert found["brackets"]["above_floor"]["held"] == len(found["at"])
        assert found["brackets"]["below_low"]["most"] < 1e-2
    assert all(m["merges"]["Alg. 6"]["apart"] < 1e-12 for m in result["merges"])
    assert all(m["exact"] < 1e-10 for m in result["order"])
    assert all(m["captured"] > 0.9999 for m in result["workers"])
    wine = {(run["mechanism"], run["epsilon"]): run["moved"] for run in result["private"]["11"]["runs"]}
    assert wine["MOD-SuLQ, published", 1.0] < wine["streaming MOD-SuLQ, published", 1.0]  # as the paper says
