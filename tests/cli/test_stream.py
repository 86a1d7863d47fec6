"""`fedspan stream`: what it reads, publishes, merges and refuses; a stream that was killed goes on as if it was not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import fedspan
from fedspan import StreamingPCA
from fedspan.cli import stream_site
from fedspan.cli.stream_merge import Merging
from fedspan.cli.stream_rows import Columns
from fedspan.cli.stream_site import SiteStream
from fedspan.cli.stream_view import figures_of
from fedspan.encoding import decode, encode
from fedspan.errors import FileError
from fedspan.linalg import Summary
from fedspan.published import Published
from fedspan.stream_file import load_stream
from tests.cli.conftest import invoke

COLUMNS = ["age", "mass", "height", "pulse"]
ROWS = np.random.default_rng(5).standard_normal((700, 4)) @ np.diag([6.0, 4.0, 1.0, 0.5]) + 3


def as_csv(rows: np.ndarray, columns: list[str] | None = None) -> str:
    head = [",".join(columns)] if columns else []
    return "\n".join([*head, *(",".join("" if np.isnan(v) else repr(float(v)) for v in row) for row in rows), ""])


class Study:
    """A study of streams in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "study.toml"
        self.out = folder / "runs" / "sensors"

    def write(self, sites: str, more: str = "", *, k: object = 2, block: int = 50) -> None:
        solve = f'[solve]\nestimator = "streaming"\nn_components = {k}\n[solve.settings]\nblock_size = {block}\n'
        self.file.write_text(f'name = "sensors"\n[sites]\n{sites}\n{solve}{more}')

    def run(self, *options: object, code: int = 0) -> dict[str, Any]:
        result = invoke("stream", self.file, "--json", *options)
        assert result.exit_code == code, result.stderr
        found: dict[str, Any] = json.loads(result.stdout)
        self.errors = result.stderr
        return found

    def published(self, site: str) -> Published:
        return Published.read(self.out / "summaries" / f"{site}.summary")

    def model(self) -> StreamingPCA:
        return StreamingPCA.load(self.out / "model.fedspan")


@pytest.fixture
def study(tmp_path: Path) -> Study:
    made = Study(tmp_path)
    made.write('turin = "turin.csv"')
    (tmp_path / "turin.csv").write_text(as_csv(ROWS[:300], COLUMNS))
    return made


def same(one: Summary, other: Summary) -> bool:
    """Whether two summaries are equal to the bit."""
    return encode(one.as_plain()) == encode(other.as_plain())


def folded(rows: np.ndarray, study: Study, weight: float = 1.0) -> Summary:
    """Return what rows come to in one stream, given at once."""
    settings = load_stream(study.file).settings
    stream = stream_site.Stream(rows.shape[1], settings)
    stream.push(np.ascontiguousarray(rows), None if weight == 1 else np.full(len(rows), weight))
    return stream.now()


# ---- what it does --------------------------------------------------------------------------------


def test_sites_of_every_kind_are_read_published_and_merged(tmp_path: Path, study: Study) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    lines = [json.dumps({name: float(v) for name, v in zip(COLUMNS, row, strict=True)}) for row in ROWS[300:500]]
    (tmp_path / "lyon.jsonl").write_text("\n".join([*lines, ""]))
    (tmp_path / "berlin").mkdir()
    for i, part in enumerate((ROWS[500:600], ROWS[600:])):
        table = {COLUMNS[c]: part[:, c] for c in (3, 1, 0, 2)}  # in another order
        pq.write_table(pa.table(table), tmp_path / "berlin" / f"{i}.parquet")
    study.write('turin = "turin.csv"\nlyon = "lyon.jsonl"\nberlin = "berlin"\noslo = "oslo.csv"')
    found = study.run("--once")
    assert {name: figures["rows"] for name, figures in found["sites"].items()} == {
        "berlin": 200,
        "lyon": 200,
        "turin": 300,
    }
    assert found["merged"]["rows"] == 700
    assert found["merged"]["left_out"] == {}
    places = [3, 1, 0, 2]
    assert study.published("turin").columns == [COLUMNS[i] for i in places]  # those of the first site
    assert same(study.published("turin").summary, folded(ROWS[:300, places], study))
    model = study.model()
    assert list(model.feature_names_in_) == [COLUMNS[i] for i in places]
    assert model.n_samples_seen_ == 700
    centred = ROWS[:, places] - ROWS[:, places].mean(axis=0)
    truth = scipy.linalg.svd(centred)[2][:2]  # with two times k and ten pairs of four inside, nothing is cut
    np.testing.assert_allclose(np.abs(model.components_ @ truth.T), np.eye(2), atol=1e-9)
    np.testing.assert_allclose(model.mean_, ROWS[:, places].mean(axis=0))
    result = invoke("transform", study.out / "model.fedspan", tmp_path / "turin.csv", "--out", tmp_path / "scores.npy")
    assert result.exit_code == 0, result.stderr
    np.testing.assert_allclose(
        np.abs(np.load(tmp_path / "scores.npy")),
        np.abs((ROWS[:300] - ROWS.mean(axis=0))[:, places] @ truth.T),
        atol=1e-8,
    )


def test_the_model_is_one_like_any_other(tmp_path: Path, study: Study) -> None:
    study.run("--once")
    model = study.out / "model.fedspan"
    result = invoke("export", model, "--csv", "--out", tmp_path / "tables")
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "tables" / "components.csv").read_text().startswith("feature,component1,component2\nage,")
    (tmp_path / "gaps.csv").write_text("age,mass,height,pulse\n1,,3,4\n")
    assert invoke("transform", model, tmp_path / "gaps.csv").exit_code == 4
    study.write('turin = "turin.csv"', '[data]\nmissing = "mean"\n')
    study.run("--once", "--folder", tmp_path / "filling")
    scores = tmp_path / "scores.npy"
    result = invoke("transform", tmp_path / "filling" / "model.fedspan", tmp_path / "gaps.csv", "--out", scores)
    assert result.exit_code == 0, result.stderr
    filled = StreamingPCA.load(model)
    row = np.array([[1, filled.mean_[1], 3, 4]])
    np.testing.assert_allclose(np.load(scores), (row - filled.mean_) @ filled.components_.T, rtol=1e-6)
    for columns, text in (([*COLUMNS[:3], "puls"], "lacks pulse"), ([*COLUMNS, "iron"], "does not know: iron")):
        (tmp_path / "other.csv").write_text(as_csv(np.ones((3, len(columns))), columns))
        result = invoke("transform", model, tmp_path / "other.csv")
        assert (result.exit_code, text in result.stderr) == (4, True), result.stderr


def test_a_summary_for_people(tmp_path: Path, study: Study) -> None:
    with (tmp_path / "turin.csv").open("a") as file:
        file.write("1,2,oops,3\n1,2,,3\n1,2")
    result = invoke("stream", study.file, "--once")
    assert result.exit_code == 0
    text = result.stdout
    assert f"kept in   {study.out}" in text
    assert "300 rows, rank 2, " in text
    assert "% of the variance, 1 refused row, 1 bad line; " in text
    assert "line 304 is not complete: 3 bytes wait" in text
    assert "merged    300 rows of 1 site: 2 components with" in text
    assert "turin: 301 rows, " in result.stderr


def test_weights_and_columns_that_are_listed(tmp_path: Path, study: Study) -> None:
    (tmp_path / "lyon.csv").write_text(as_csv(ROWS[300:, :3], COLUMNS[:3]))
    sites = 'turin = { path = "turin.csv", weight = 3 }\nlyon = "lyon.csv"'
    study.write(sites, '[data]\ncolumns = ["mass", "age"]\n', k=1)
    found = study.run("--once")
    assert study.published("turin").columns == ["mass", "age"]
    assert same(study.published("turin").summary, folded(ROWS[:300, [1, 0]], study, 3.0))
    assert same(study.published("lyon").summary, folded(ROWS[300:, [1, 0]], study))
    np.testing.assert_allclose(study.model().mass_, 3 * 300 + 400)
    assert found["merged"]["n_components"] == 1


def test_sites_are_chosen_and_may_be_waited_for(tmp_path: Path, study: Study) -> None:
    study.write('turin = "turin.csv"\nlyon = "lyon.csv"')
    found = study.run("--once", "--site", "lyon")
    assert found["sites"]["lyon"]["waiting"].endswith("lyon.csv is not there yet")
    assert found["merged"]["model"] is None
    (tmp_path / "lyon.csv").write_text(as_csv(ROWS[300:], COLUMNS))
    found = study.run("--once", "--site", "lyon", "--no-merge")
    assert list(found["sites"]) == ["lyon"]
    assert found["merged"] is None
    assert not (study.out / "model.fedspan").exists()
    assert study.run("--once", "--site", "turin")["merged"]["rows"] == 700  # lyon's summary is in the folder


def test_it_publishes_every_so_many_rows_and_merges_what_others_put_there(
    tmp_path: Path, study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedspan.data.tail.file.CHUNK_BYTES", 4000)  # some 50 rows
    seen: list[int] = []
    write = Published.write
    monkeypatch.setattr(Published, "write", lambda self, path: (seen.append(self.summary.rows), write(self, path)))
    found = study.run("--once", "--every", 3600, "--rows", 100)
    assert len(seen) >= 2
    assert all(stop - start >= 100 for start, stop in zip([0, *seen], seen[:-1], strict=False))
    assert seen[-1] == 300
    assert found["sites"]["turin"]["published"] == len(seen)
    study.run("--once", "--resume", "--every", 0)
    assert seen[-1] == 300


def test_adaptive_ranks_and_fractions(study: Study) -> None:
    for k, least in (('"auto"', 1), ("0.9", 2)):
        study.write('turin = "turin.csv"', k=k)
        found = study.run("--once", "--folder", study.folder / f"out-{least}")
        assert found["sites"]["turin"]["rank"] == found["merged"]["n_components"] >= least


def test_standard_input_is_read_to_its_end(study: Study) -> None:
    study.write('turin = "-"')
    text = as_csv(ROWS[:300], COLUMNS)
    done = subprocess.run(
        command(study, "--once"), input=text, capture_output=True, text=True, env=environment(), timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert same(study.published("turin").summary, folded(ROWS[:300], study))
    more = text + as_csv(ROWS[300:])  # the same lines again, and more: without --once it ends with them too
    done = subprocess.run(
        command(study, "--resume"), input=more, capture_output=True, text=True, env=environment(), timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert same(study.published("turin").summary, folded(ROWS, study))


def test_a_place_that_only_merges(tmp_path: Path, study: Study) -> None:
    study.run("--once", "--no-merge")
    (tmp_path / "turin.csv").unlink()
    found = study.run("--once")
    assert "No site's input is here, so summaries are only merged" in study.errors
    assert (found["sites"], found["merged"]["sites"]) == ({}, {"turin": 300})
    result = invoke("stream", study.file, "--once", "--no-merge")
    assert result.exit_code == 3
    assert "no site's input is here" in result.stderr


# ---- bad rows ------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_bad_lines_are_named_and_counted_and_the_stream_goes_on(tmp_path: Path, study: Study, suffix: str) -> None:
    good = as_csv(ROWS[:40], COLUMNS).splitlines()
    bad = ["1,2,3", "1,x,3,4"]
    if suffix == "jsonl":
        good = [json.dumps(dict(zip(COLUMNS, row, strict=True))) for row in ROWS[:40].tolist()]
        bad = ['{"age": 1', '{"wage": 2}']
    (tmp_path / f"lyon.{suffix}").write_text("\n".join([*good[:20], *bad * 30, *good[20:], ""]))
    study.write(f'lyon = "lyon.{suffix}"')
    found = study.run("--once")
    assert (found["sites"]["lyon"]["rows"], found["sites"]["lyon"]["left_out"]) == (40, 60)
    assert f"site 'lyon': {tmp_path}/lyon.{suffix}, line 21: " in study.errors
    assert study.errors.count("site 'lyon'") == stream_site.NAMED + 1  # and then no more
    assert "what else is left out is counted, and not named" in study.errors
    assert same(study.published("lyon").summary, folded(ROWS[:40], study))


def test_each_site_has_its_policy_for_gaps(tmp_path: Path, study: Study) -> None:
    rows = ROWS[:100].copy()
    rows[[7, 50], 1] = np.nan
    rows[60, 2] = np.inf
    sites = []
    for name, policy in (("strict", None), ("filled", "mean"), ("whole", "skip")):
        (tmp_path / f"{name}.csv").write_text(as_csv(rows, COLUMNS))
        sites.append(f'{name} = {{ path = "{name}.csv"' + (f', missing = "{policy}" }}' if policy else " }"))
    study.write("\n".join(sites))
    found = study.run("--once")["sites"]
    counts = {name: (f["rows"], f["refused"], f["skipped"]) for name, f in found.items()}
    assert counts == {"strict": (97, 3, 0), "filled": (99, 1, 0), "whole": (97, 1, 2)}
    assert "strict.csv: row 8 and 1 after it have missing values, in column 'mass'; left out; mend them" in study.errors
    assert (
        "filled.csv: row 61 has infinite values, or ones whose squares are, in column 'height'; left out"
        in study.errors
    )
    finite = np.delete(rows, [7, 50, 60], axis=0)
    assert same(study.published("strict").summary, folded(finite, study))
    assert same(study.published("whole").summary, study.published("strict").summary)
    filled = rows.copy()
    filled[7, 1], filled[50, 1] = (np.add.accumulate(np.nan_to_num(rows[:, 1]))[[7, 50]] / [7, 49]).tolist()
    assert same(study.published("filled").summary, folded(np.delete(filled, 60, axis=0), study))


def test_a_site_with_other_columns_is_named_and_the_others_go_on(tmp_path: Path, study: Study) -> None:
    (tmp_path / "turino.csv").write_text(as_csv(ROWS[:50], [*COLUMNS[:3], "puls"]))
    study.write('turin = "turin.csv"\nturino = "turino.csv"')
    found = study.run("--once", code=4)
    assert "lacks ['pulse'], adds ['puls']; did you mean 'puls'?" in found["sites"]["turino"]["problem"]
    assert "site 'turino': its columns are not the study's" in study.errors
    assert found["merged"]["sites"] == {"turin": 300}


def test_more_components_than_columns_or_rows(tmp_path: Path, study: Study) -> None:
    study.write('turin = "turin.csv"', k=5)
    assert "n_components = 5 is more than its 4 columns" in study.run("--once", code=4)["sites"]["turin"]["problem"]
    study.write('turin = "turin.csv"', k=3)
    (tmp_path / "turin.csv").write_text(as_csv(ROWS[:2], COLUMNS))
    found = study.run("--once")
    assert found["merged"]["problem"] == "n_components = 3 is more than the 2 rows of all sites so far"
    assert not (study.out / "model.fedspan").exists()
    assert "no model: n_components = 3" in invoke("stream", study.file, "--once", "--resume").stdout
    with (tmp_path / "turin.csv").open("a") as file:
        file.write(as_csv(ROWS[2:9]))
    assert study.run("--once", "--resume")["merged"]["n_components"] == 3


def test_inputs_that_cannot_be_read_do_not_hold_up_others(tmp_path: Path, study: Study) -> None:
    (tmp_path / "lyon.csv").write_text(as_csv(ROWS[300:], COLUMNS))
    study.write('turin = "turin.csv"\nlyon = "lyon.csv"')
    study.run("--once")
    (tmp_path / "lyon.csv").write_text("age\n")
    with (tmp_path / "turin.csv").open("a") as file:
        file.write(as_csv(ROWS[300:310]))
    found = study.run("--once", "--resume", code=4)
    assert "lyon.csv shrank" in found["sites"]["lyon"]["problem"]
    assert found["merged"]["sites"] == {"lyon": 400, "turin": 310}


# ---- summaries of others -------------------------------------------------------------------------


def test_summaries_that_are_not_this_studys_are_named_once_and_left_out(study: Study) -> None:
    study.run("--once")
    mine = study.published("turin")
    folder = study.out / "summaries"
    Published("oslo", 1, "f" * 64, mine.columns, mine.summary).write(folder / "oslo.summary")
    Published("rome", 1, mine.study, ["a", "b", "c", "d"], mine.summary).write(folder / "rome.summary")
    order = [2, 0, 3, 1]
    turned = Summary(
        **{**mine.summary.as_plain(), "basis": mine.summary.basis[order], "mean": mine.summary.mean[order]}
    )
    Published("lyon", 1, mine.study, [COLUMNS[i] for i in order], turned).write(folder / "lyon.summary")
    content = (folder / "turin.summary").read_bytes()
    (folder / "half.summary").write_bytes(content[:100])
    newer = {**decode(content), "version": 2}
    (folder / "newer.summary").write_bytes(encode(newer))
    found = study.run("--once", "--resume", "--every", 0)["merged"]
    assert found["sites"] == {"lyon": 300, "turin": 300}
    texts = {
        "oslo.summary": "belongs to another study", "rome.summary": "has ['a', 'b', 'c', 'd'], and this study",
        "half.summary": "not a fedspan summary, or was cut short", "newer.summary": "version 2; this fedspan reads",
    }  # fmt: skip
    assert found["left_out"].keys() == texts.keys()
    for name, text in texts.items():
        assert text in found["left_out"][name]
        assert study.errors.count(f"Left out: {folder / name}") == 1
    assert study.model().n_samples_seen_ == 600
    np.testing.assert_allclose(np.sort(study.model().mean_), np.sort(mine.summary.mean))
    assert "left out" in invoke("stream", study.file, "--once", "--resume").stdout


def test_what_is_left_out_is_said_once(study: Study) -> None:
    study.run("--once", "--no-merge")
    said: list[str] = []
    merging = Merging(load_stream(study.file), study.out, said.append)
    mine = study.published("turin")
    Published("oslo", 1, "f" * 64, mine.columns, mine.summary).write(study.out / "summaries" / "oslo.summary")
    for seq in (5, 6, 7):
        assert merging.look()
        Published("turin", seq, mine.study, mine.columns, mine.summary).write(study.out / "summaries" / "turin.summary")
    assert len(said) == 1
    Published("oslo", 2, mine.study, mine.columns, mine.summary).write(study.out / "summaries" / "oslo.summary")
    assert merging.look()
    assert (merging.rows, merging.left_out) == ({"oslo": 300, "turin": 300}, {})


def test_a_problem_is_said_once_and_goes_away_when_it_is_mended(tmp_path: Path, study: Study) -> None:
    said: list[str] = []
    site = SiteStream("turin", load_stream(study.file), Columns(), study.out, said.append, resume=False)
    assert site.step()
    content = (tmp_path / "turin.csv").read_text()
    (tmp_path / "turin.csv").write_text("age\n")
    assert [site.step(), site.step()] == [False, False]
    assert len(said) == 1
    assert site.problem is not None
    (tmp_path / "turin.csv").write_text(content + as_csv(ROWS[300:310]))
    assert site.step()
    assert site.problem is None
    assert figures_of(site)["rows"] == 310


def test_a_summary_that_was_not_written_with_its_state_is_written_when_it_goes_on(study: Study) -> None:
    study.run("--once")
    (study.out / "summaries" / "turin.summary").unlink()
    study.run("--once", "--resume")
    assert study.published("turin").summary.rows == 300


def test_an_older_summary_does_not_replace_a_newer_one(study: Study) -> None:
    study.run("--once", "--no-merge")
    said: list[str] = []
    merging = Merging(load_stream(study.file), study.out, said.append)
    file = study.out / "summaries" / "lyon.summary"
    mine = study.published("turin")
    for seq, rows in ((5, 100), (4, 90), (5, 100), (6, 120)):
        summary = Summary(**{**mine.summary.as_plain(), "rows": rows})
        Published("lyon", seq, mine.study, mine.columns, summary).write(file)
        assert merging.look()
        assert merging.rows["lyon"] == max(rows, 100)
    assert not merging.look()
    assert said == [f"Left out: {file}: number 4 of its site is older than 5, which stays"]
    assert merging.left_out == {}
    file.write_bytes(b"half")
    assert merging.look()
    assert merging.rows["lyon"] == 120  # what was read before stays


@pytest.mark.parametrize("copy", [True, False])
def test_a_state_that_was_restored_or_deleted_publishes_newer_summaries(
    tmp_path: Path, study: Study, copy: bool
) -> None:
    """Whoever merged the summaries before would have left them out as older, until there were as many again."""
    text = (tmp_path / "turin.csv").read_text()
    study.run("--once")
    state = study.out / "sites" / "turin.state"
    old = state.read_bytes()
    for stop in (310, 320):
        (tmp_path / "turin.csv").write_text(text + as_csv(ROWS[300:stop]))
        study.run("--once", "--resume")
    elsewhere = Merging(load_stream(study.file), study.out, lambda text: pytest.fail(text))
    assert elsewhere.look()
    assert study.published("turin").seq == 3
    if copy:
        state.write_bytes(old)
    else:
        state.unlink()
        (tmp_path / "turin.csv").write_text(text)
    study.run("--once", "--resume")
    assert study.published("turin").seq == 4
    assert elsewhere.look()
    assert elsewhere.rows == {"turin": 320 if copy else 300}


# ---- stopped, killed, resumed --------------------------------------------------------------------


def test_a_stream_is_begun_once(study: Study) -> None:
    study.run("--once", "--resume")  # nothing to go on from is a beginning
    result = invoke("stream", study.file, "--once")
    assert result.exit_code == 6
    assert "holds a stream of site 'turin' already; go on with --resume" in result.stderr
    study.run("--once", "--folder", study.folder / "other")


@pytest.mark.parametrize(
    "more",
    ["[data]\ncenter = false\n", '[data]\nmissing = "skip"\n', '[data]\ndrop = ["x"]\n', "[data]\nheader = true\n"],
)
def test_a_study_that_changed_is_not_gone_on_with(study: Study, more: str) -> None:
    study.run("--once")
    study.write('turin = "turin.csv"', more)
    result = invoke("stream", study.file, "--once", "--resume")
    assert result.exit_code == 6
    assert "site 'turin': the study changed since this stream began" in result.stderr


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-3], lambda b: b[:-9] + b"x" * 9, lambda b: b"", lambda b: encode({"a": 1})]
)
def test_a_damaged_state_is_named_and_the_others_go_on(tmp_path: Path, study: Study, damage: Any) -> None:
    (tmp_path / "lyon.csv").write_text(as_csv(ROWS[300:], COLUMNS))
    study.write('turin = "turin.csv"\nlyon = "lyon.csv"')
    study.run("--once")
    state = study.out / "sites" / "lyon.state"
    state.write_bytes(damage(state.read_bytes()))
    with (tmp_path / "turin.csv").open("a") as file:
        file.write(as_csv(ROWS[300:310]))
    found = study.run("--once", "--resume", code=4)
    assert f"{state} is damaged or of another version" in found["sites"]["lyon"]["problem"]
    assert "restore it from a copy, or delete it" in study.errors
    assert found["merged"]["sites"] == {"lyon": 400, "turin": 310}
    result = invoke("stream", study.file, "--once", "--resume", "--site", "lyon")
    assert result.exit_code == 4


def test_every_bit_of_a_state_that_is_damaged_is_told(study: Study) -> None:
    """A digit of a mean, or of the place in the input, reads as well as any other."""
    study.run("--once")
    state = study.out / "sites" / "turin.state"
    content, rng, said = state.read_bytes(), np.random.default_rng(0), list[str]()
    for place in rng.permutation(len(content))[:300]:
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(rng.integers(8))
        state.write_bytes(bytes(damaged))
        with pytest.raises(
            FileError, match=r"turin\.state is damaged or of another version .* restore it from a copy, or delete it"
        ):
            SiteStream("turin", load_stream(study.file), Columns(), study.out, said.append, resume=True)
    state.write_bytes(content)
    site = SiteStream("turin", load_stream(study.file), Columns(), study.out, said.append, resume=True)
    assert (figures_of(site)["rows"], said) == (300, [])


def test_a_state_of_another_version_is_refused(study: Study) -> None:
    study.run("--once")
    state = study.out / "sites" / "turin.state"
    state.write_bytes(encode({**decode(state.read_bytes()), "version": 2}))
    found = invoke("stream", study.file, "--once", "--resume")
    assert found.exit_code == 4
    assert (
        "turin.state is damaged or of another version (it has format 'fedspan-stream-state' version 2); this fe"
        in found.stderr
    )
    assert "version 1: take the one that wrote it, or restore it from a copy" in found.stderr


class Killed(BaseException):
    """What ends a process at once."""


@pytest.mark.parametrize("policy", ["error", "mean", "skip"])
@pytest.mark.parametrize("at", range(1, 12))
def test_killed_at_any_write_and_resumed_is_as_if_nothing_had_been(
    tmp_path: Path, study: Study, monkeypatch: pytest.MonkeyPatch, policy: str, at: int
) -> None:
    rows = ROWS[:60].copy()
    rows[np.random.default_rng(at).random(rows.shape) < 0.05] = np.nan
    rows[:2] = ROWS[:2]
    text = as_csv(rows, COLUMNS).replace("\n", "\nbad\n", 30)
    (tmp_path / "turin.csv").write_text(text)
    study.write('turin = "turin.csv"', f'[data]\nmissing = "{policy}"\n', block=7)
    whole = study.run("--once", "--folder", tmp_path / "whole")
    monkeypatch.setattr("fedspan.data.tail.file.CHUNK_BYTES", 500 + 97 * at)
    left = [at]

    def dying(real: Any) -> Any:
        def write(path: Path, data: bytes) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            real(path, data)
            if left[0] == -7:  # after a write too
                raise Killed

        return write

    with monkeypatch.context() as patch:
        for module in ("cli.stream_site", "published", "model_file"):
            real = sys.modules[f"fedspan.{module}"].write_atomically
            patch.setattr(f"fedspan.{module}.write_atomically", dying(real))
        with pytest.raises(Killed):
            invoke("stream", study.file, "--once", "--every", 0)
        left[0] = -1 if at % 2 else at + 1
        with pytest.raises(Killed):
            invoke("stream", study.file, "--once", "--every", 0, "--resume")
    found = study.run("--once", "--resume")
    for key in ("rows", "read", "left_out", "refused", "skipped"):
        assert found["sites"]["turin"][key] == whole["sites"]["turin"][key], key
    other = Published.read(tmp_path / "whole" / "summaries" / "turin.summary")
    assert same(study.published("turin").summary, other.summary)
    assert (study.out / "model.fedspan").exists()


def environment() -> dict[str, str]:
    source = str(Path(fedspan.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}


def command(study: Study, *options: object) -> list[str]:
    return [sys.executable, "-m", "fedspan", "stream", str(study.file), *map(str, options)]


@contextmanager
def following(study: Study, *options: object) -> Iterator[subprocess.Popen[str]]:
    """A process that follows; what it says is on its stderr."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment()}
    with subprocess.Popen(command(study, "--every", 0, *options), **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def wait_for(process: subprocess.Popen[str], text: str) -> None:
    """Read what a process says until it says this."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith(text):
            return
    raise AssertionError(f"it ended without {text!r}: {said}")


def test_kill_and_resume(tmp_path: Path, study: Study) -> None:
    file = tmp_path / "turin.csv"
    with following(study) as process:
        wait_for(process, "merged: 300 rows of 1 site, rank 2")
        mine = study.published("turin")
        Published("oslo", 1, mine.study, mine.columns, mine.summary).write(study.out / "summaries" / "oslo.summary")
        wait_for(process, "merged: 600 rows of 2 sites, rank 2")  # whoever put it there
        with file.open("a") as grows:
            grows.write(as_csv(ROWS[300:333]) + "1,2")  # half a line
        wait_for(process, "turin: 333 rows")
        os.kill(process.pid, signal.SIGKILL)
    with file.open("a") as grows:
        grows.write(",3,4\n" + as_csv(ROWS[333:]))
    found = study.run("--once", "--resume")
    assert found["sites"]["turin"]["rows"] == 701
    rows = np.vstack([ROWS[:333], [[1, 2, 3, 4]], ROWS[333:]])
    assert same(study.published("turin").summary, folded(rows, study))


def test_ctrl_c_keeps_the_state_and_says_how_to_go_on(tmp_path: Path, study: Study) -> None:
    with following(study, "--site", "turin") as process:
        wait_for(process, "turin: 300 rows")
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "300 rows, rank 2" in out
    assert f"stopped; go on with: fedspan stream {study.file} --resume --site turin" in errors.replace(
        sys.argv[0], "fedspan"
    )
    assert study.run("--once", "--resume")["sites"]["turin"]["rows"] == 300


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_kills_at_any_time(tmp_path: Path, study: Study, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((40_000, 4)) * [5, 3, 1, 1]
    (tmp_path / "turin.csv").write_text(as_csv(rows, COLUMNS))
    for _ in range(5):
        with following(study, "--resume", "--rows", 1) as process:
            wait_for(process, "turin: ")  # it says so once at least: what it goes on from is published again
            for _ in range(int(rng.integers(0, 1_000_000))):
                pass  # for as long as nobody knows
            os.kill(process.pid, signal.SIGKILL)
    study.run("--once", "--resume")
    assert same(study.published("turin").summary, folded(rows, study))


# ---- what is refused at once ---------------------------------------------------------------------


def test_options_are_checked(study: Study) -> None:
    study.write('turin = "-"\nlyon = "-"')
    for options, code, text in (
        (["--site", "turn"], 3, "there is no such site; did you mean 'turin'?"),
        ([], 3, 'sites lyon, turin all have the path "-"'),
        (["--every", -1], 2, "every"),
        (["--rows", 0], 2, "rows"),
    ):
        result = invoke("stream", study.file, "--once", *options)
        assert (result.exit_code, text in result.stderr) == (code, True), result.stderr


def test_other_verbs_name_this_one(study: Study) -> None:
    for verb in ("fit", "plan", "compare", "calibrate", "audit"):
        result = invoke(verb, study.file)
        assert result.exit_code == 3
        assert "run this study with fedspan stream STUDY --once" in result.stderr
