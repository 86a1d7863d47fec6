"""``fedspan transform``: a site's scores and left factors, equal to the estimator's, block by block."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

import fedspan.data.csv
import fedspan.data.source
from fedspan import FederatedPCA, FederatedTruncatedSVD
from tests.cli.conftest import COLUMNS, Federation, invoke


def fitted(federation: Federation, more: str = "", k: object = 2) -> Path:
    federation.write_study(more, k=k)
    result = invoke("fit", federation.study)
    assert result.exit_code == 0, result.stderr
    return federation.run_folder / "model.fedspan"


def direct_scores(model: Path, rows: np.ndarray) -> np.ndarray:
    pca = FederatedPCA.load(model)
    del pca.feature_names_in_  # arrays have no names, and scikit-learn would warn
    return pca.transform(rows)


@pytest.mark.parametrize("suffix", [".npy", ".csv", ".parquet"])
@pytest.mark.parametrize("data", ["", "[data]\nscale = true\n", "[data]\ncenter = false\n"])
def test_scores_are_the_estimators(federation: Federation, suffix: str, data: str) -> None:
    model, out = fitted(federation, data), federation.folder / f"out{suffix}"
    result = invoke("transform", model, federation.file("lyon"), "-o", out)
    assert result.exit_code == 0
    assert "scores of 25 rows in 2 columns" in result.stdout
    if suffix == ".npy":
        scores = np.load(out)
    elif suffix == ".csv":
        assert out.read_text().splitlines()[0] == "score1,score2"
        scores = np.loadtxt(out, delimiter=",", skiprows=1)
    else:
        scores = pytest.importorskip("pandas").read_parquet(out).to_numpy()
    np.testing.assert_allclose(scores, direct_scores(model, federation.rows["lyon"]), rtol=1e-12, atol=1e-12)


def test_the_default_file_is_named_after_the_data(federation: Federation, in_folder: Path) -> None:
    result = json.loads(invoke("transform", fitted(federation), federation.file("lyon"), "--json").stdout)
    assert result == {"out": "lyon-scores.npy", "rows": 25, "columns": ["score1", "score2"]}
    assert np.load(federation.folder / "lyon-scores.npy").shape == (25, 2)


def test_rows_are_read_and_written_in_blocks(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    model = fitted(federation)
    np.save(federation.folder / "many.npy", np.tile(federation.rows["lyon"], (40, 1)))
    monkeypatch.setattr(fedspan.data.source, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(fedspan.data.source.row_slices, "__defaults__", (4096,))
    out = federation.folder / "out.csv"
    assert invoke("transform", model, federation.folder / "many.npy", "-o", out).exit_code == 0
    expected = np.tile(direct_scores(model, federation.rows["lyon"]), (40, 1))
    np.testing.assert_allclose(np.loadtxt(out, delimiter=",", skiprows=1), expected, atol=1e-12)


def left_factors(federation: Federation, model: Path, *more: object) -> list[np.ndarray]:
    parts = []
    for site in federation.rows:
        out = federation.folder / f"{site}-u.npy"
        result = invoke("transform", model, federation.file(site), "--left", "-o", out, *more)
        assert result.exit_code == 0, result.stderr
        parts.append(np.load(out))
    return parts


@pytest.mark.parametrize("data", ["", "[data]\nscale = true\n"])
def test_left_factors_are_orthonormal_over_all_sites(federation: Federation, data: str) -> None:
    u = np.vstack(left_factors(federation, fitted(federation, data, k=6)))
    np.testing.assert_allclose(u.T @ u, np.eye(6), atol=1e-10)


def test_left_factors_times_values_rebuild_the_rows(federation: Federation) -> None:
    path = fitted(federation, k=6)
    pca = FederatedPCA.load(path)
    for u, rows in zip(left_factors(federation, path), federation.rows.values(), strict=True):
        np.testing.assert_allclose(u * pca.singular_values_ @ pca.components_ + pca.mean_, rows, atol=1e-9)


def test_row_weights_enter_the_left_factors(federation: Federation) -> None:
    for site, rows in federation.rows.items():
        weights = np.arange(1, len(rows) + 1)[:, None]
        federation.write_site(site, np.hstack([rows, weights]), [*COLUMNS, "weight"])
    model = fitted(federation, '[data]\nweight_column = "weight"\n', k=6)
    u = np.vstack(left_factors(federation, model))
    np.testing.assert_allclose(u.T @ u, np.eye(6), atol=1e-10)
    out = federation.folder / "out.npy"
    invoke("transform", model, federation.file("lyon"), "-o", out)
    np.testing.assert_allclose(np.load(out), direct_scores(model, federation.rows["lyon"]), atol=1e-10)
    federation.write_site("lyon", federation.rows["lyon"])
    assert invoke("transform", model, federation.file("lyon"), "-o", out).exit_code == 0  # scores need no weights
    result = invoke("transform", model, federation.file("lyon"), "-o", out, "--left")
    assert result.exit_code == 4
    assert "no column 'weight'" in result.stderr


def test_a_sites_weight_enters_its_left_factors(federation: Federation) -> None:
    text = federation.write_study(k=6).read_text()
    federation.study.write_text(text.replace('"lyon.csv"', '{ path = "lyon.csv", weight = 4.0 }'))
    invoke("fit", federation.study)
    model = federation.run_folder / "model.fedspan"
    plain = left_factors(federation, model)
    weighted = left_factors(federation, model, "--site-weight", "4")
    u = np.vstack([weighted[i] if site == "lyon" else plain[i] for i, site in enumerate(federation.rows)])
    np.testing.assert_allclose(u.T @ u, np.eye(6), atol=1e-10)


def test_gaps_are_filled_as_the_study_filled_them(federation: Federation) -> None:
    rows = federation.rows["lyon"].copy()
    rows[1, 2] = np.nan
    federation.write_site("lyon", rows)
    for center in ("true", "false"):
        federation.write_study(f'[data]\nmissing = "mean"\ncenter = {center}\n')
        run = Path(json.loads(invoke("fit", federation.study, "--json").stdout)["folder"])
        out = federation.folder / "out.npy"
        assert invoke("transform", run / "model.fedspan", federation.file("lyon"), "-o", out).exit_code == 0
        np.testing.assert_allclose(np.load(out), direct_scores(run / "model.fedspan", rows), atol=1e-10)
        present = np.vstack([*(r for s, r in federation.rows.items() if s != "lyon"), np.delete(rows, 1, axis=0)])
        filled = np.where(np.isnan(rows), present[:, 2].mean(), rows)
        np.testing.assert_allclose(np.load(out), direct_scores(run / "model.fedspan", filled), atol=1e-10)


def test_whitened_scores_are_the_estimators(federation: Federation) -> None:
    pca = FederatedPCA(2, whiten=True).fit(list(federation.rows.values()))
    pca.save(federation.folder / "model.fedspan")
    np.save(federation.folder / "lyon.npy", federation.rows["lyon"])
    out = federation.folder / "out.npy"
    invoke("transform", federation.folder / "model.fedspan", federation.folder / "lyon.npy", "-o", out)
    np.testing.assert_allclose(np.load(out), pca.transform(federation.rows["lyon"]), atol=1e-12)


def test_sparse_rows_of_a_truncated_svd(federation: Federation) -> None:
    rows = scipy.sparse.random_array((60, 12), density=0.3, rng=np.random.default_rng(0), format="csr")
    svd = FederatedTruncatedSVD(3, normalise="degree").fit([rows[:25], rows[25:]])
    svd.save(federation.folder / "model.fedspan")
    parts = []
    for i, part in enumerate((rows[:25], rows[25:])):
        scipy.sparse.save_npz(federation.folder / "rows.npz", part)
        arguments = (
            federation.folder / "model.fedspan",
            federation.folder / "rows.npz",
            "-o",
            federation.folder / "o.npy",
        )
        assert invoke("transform", *arguments).exit_code == 0
        np.testing.assert_allclose(np.load(federation.folder / "o.npy"), svd.transform(part), atol=1e-12)
        assert invoke("transform", *arguments, "--left").exit_code == 0
        parts.append(np.load(federation.folder / "o.npy"))
        assert len(parts[i]) == part.shape[0]
    u = np.vstack(parts)
    np.testing.assert_allclose(u.T @ u, np.eye(3), atol=1e-8)


# ---- columns -----------------------------------------------------------------------------------------------------


def test_columns_are_found_by_name(federation: Federation) -> None:
    model, out = fitted(federation), federation.folder / "out.npy"
    order = [3, 0, 5, 1, 4, 2]
    federation.write_site("other", federation.rows["lyon"][:, order], [COLUMNS[i] for i in order])
    assert invoke("transform", model, federation.file("other"), "-o", out).exit_code == 0
    np.testing.assert_allclose(np.load(out), direct_scores(model, federation.rows["lyon"]), atol=1e-12)


def test_a_missing_an_extra_or_a_double_column_is_refused(federation: Federation) -> None:
    model, out, rows = fitted(federation), federation.folder / "out.npy", federation.rows["lyon"]
    federation.write_site("other", rows[:, :5], COLUMNS[:5])
    result = invoke("transform", model, federation.file("other"), "-o", out)
    assert (result.exit_code, "lacks zinc" in result.stderr) == (4, True)
    federation.write_site("other", np.hstack([rows, rows[:, :1]]), [*COLUMNS, "gold"])
    result = invoke("transform", model, federation.file("other"), "-o", out)
    assert (result.exit_code, "--drop gold" in result.stderr) == (4, True)
    assert not out.exists()
    assert invoke("transform", model, federation.file("other"), "-o", out, "--drop", "gold").exit_code == 0
    federation.write_site("other", rows, [*COLUMNS[:5], "iron"])
    assert "duplicate columns ['iron']" in invoke("transform", model, federation.file("other"), "-o", out).stderr
    np.save(federation.folder / "narrow.npy", rows[:, :5])
    result = invoke("transform", model, federation.folder / "narrow.npy", "-o", out)
    assert (result.exit_code, "has 5 columns, the model 6" in result.stderr) == (4, True)


def test_the_studys_rule_for_columns_holds_for_files_too(federation: Federation) -> None:
    rows, out = federation.rows["lyon"], federation.folder / "out.npy"
    federation.write_site("lyon", np.hstack([rows, rows[:, :1]]), [*COLUMNS, "gold"])
    model = fitted(federation, '[data]\ncolumns = "intersect"\n')
    result = invoke("transform", model, federation.file("lyon"), "-o", out)
    assert result.exit_code == 0
    assert "gold" in result.stderr
    np.testing.assert_allclose(np.load(out), direct_scores(model, rows), atol=1e-12)
    federation.write_study('[data]\ncolumns = "union-zero"\n')
    run = json.loads(invoke("fit", federation.study, "--json").stdout)
    result = invoke("transform", run["model"], federation.file("berlin"), "-o", out)
    assert result.exit_code == 0
    assert "gold are not in the file and count as zero" in result.stderr


def test_what_the_study_dropped_is_dropped_again(federation: Federation) -> None:
    for site in federation.rows:
        lines = federation.file(site).read_text().splitlines()
        lines = [f"{'id' if i == 0 else f'p{i}'},{line}" for i, line in enumerate(lines)]
        federation.file(site).write_text("\n".join(lines))
    model, out = fitted(federation, '[data]\ndrop = ["id"]\n'), federation.folder / "out.npy"
    assert invoke("transform", model, federation.file("lyon"), "-o", out).exit_code == 0
    np.testing.assert_allclose(np.load(out), direct_scores(model, federation.rows["lyon"]), atol=1e-12)


# ---- what is refused ---------------------------------------------------------------------------------------------


def test_a_header_of_numbers_is_said(federation: Federation) -> None:
    model, data = fitted(federation), federation.folder / "bare.csv"
    rows = federation.rows["lyon"].copy()
    rows[0] = np.arange(rows.shape[1])
    np.savetxt(data, rows, fmt=["%d"] * rows.shape[1], delimiter=",")
    out = federation.folder / "out.npy"
    result = invoke("transform", model, data, "-o", out)
    assert result.exit_code == 4
    assert "header = false" in result.stderr
    assert invoke("transform", model, data, "-o", out, "--no-header").exit_code == 0
    assert np.load(out).shape == (25, 2)


def test_a_gap_without_a_choice_is_refused_and_nothing_is_written(federation: Federation) -> None:
    model, rows = fitted(federation), federation.rows["lyon"].copy()
    rows[7, 2] = np.nan
    federation.write_site("lyon", rows)
    for suffix in (".npy", ".csv", ".parquet"):
        result = invoke("transform", model, federation.file("lyon"), "-o", federation.folder / f"out{suffix}")
        assert result.exit_code == 4
        assert "row 8 has a missing or infinite value" in result.stderr
    assert not list(federation.folder.glob("out*"))


def test_wrong_files_are_refused(federation: Federation) -> None:
    model, data = fitted(federation), federation.file("lyon")
    before = data.read_bytes()
    for arguments, code, text in [
        ((model, data, "-o", "out.xlsx"), 3, ".npy, .csv, .parquet"),
        ((model, data, "-o", data), 3, "is the data itself"),
        ((federation.folder / "none.fedspan", data), 4, "no model file"),
        ((data, data), 4, "not a fedspan model file"),
        ((model, federation.folder / "lion.csv"), 4, "no such file"),
    ]:
        result = invoke("transform", *arguments)
        assert result.exit_code == code
        assert text in result.stderr
    assert data.read_bytes() == before
    federation.write_site("lyon", np.empty((0, 6)))
    assert "has no rows" in invoke("transform", model, data, "-o", federation.folder / "o.npy").stderr
