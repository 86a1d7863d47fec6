"""The file of a study of streams: what it may say, and what is refused with a way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedspan.errors import ConfigurationError
from fedspan.stream import StreamSettings
from fedspan.stream_file import StreamFile, load_stream

SITES = '[sites]\nturin = "turin.csv"\n'
SOLVE = '[solve]\nestimator = "streaming"\n'
FULL = """
name = "sensors"
[sites]
turin = { path = "turin.jsonl", missing = "skip", drop = ["note"], weight = 2 }
lyon = { path = "-", delimiter = ";" }
[data]
columns = ["b", "a"]
center = false
missing = "mean"
drop = ["id"]
decimal = ","
[solve]
estimator = "streaming"
n_components = "auto"
[solve.settings]
block_size = 200
oversampling = "none"
forgetting = 0.9
energy = [0.02, 0.1]
window = 5
[run]
seed = 3
folder = "out"
"""


def loaded(folder: Path, text: str) -> StreamFile:
    (folder / "study.toml").write_text(text)
    return load_stream(folder / "study.toml")


def test_every_key_is_read(tmp_path: Path) -> None:
    study = loaded(tmp_path, FULL)
    assert (study.name, study.drop, study.columns, study.missing) == ("sensors", ("id",), ("b", "a"), "mean")
    assert study.folder == tmp_path / "out"
    lyon, turin = study.sites["lyon"], study.sites["turin"]
    assert (lyon.path, lyon.missing, lyon.delimiter, lyon.decimal) == (Path("-"), None, ";", ",")
    assert (turin.path, turin.missing, turin.drop, turin.weight) == (tmp_path / "turin.jsonl", "skip", ("note",), 2.0)
    assert study.settings == StreamSettings(
        n_components="auto", block_size=200, forgetting=0.9, energy=(0.02, 0.1), center=False, window=5, seed=3
    )


def test_defaults_are_those_of_streaming_pca(tmp_path: Path) -> None:
    study = loaded(tmp_path, SITES + SOLVE)
    assert study.settings == StreamSettings()
    assert (study.columns, study.missing, study.folder) == (None, "error", tmp_path / "runs")


def test_the_fingerprint_is_the_study_and_not_the_machine(tmp_path: Path) -> None:
    one = loaded(tmp_path, 'name = "s"\n' + SITES + SOLVE)
    elsewhere = '[sites]\nlyon = "/data/lyon.csv"\n[data]\nmissing = "skip"\ndrop = ["x"]\n[run]\nseed = 7\n'
    assert loaded(tmp_path, 'name = "s"\n' + elsewhere + SOLVE).fingerprint == one.fingerprint
    for other in (
        'name = "t"\n' + SITES + SOLVE,
        'name = "s"\n' + SITES + SOLVE + "n_components = 3\n",
        'name = "s"\n' + SITES + SOLVE + "[solve.settings]\nforgetting = 0.9\n",
        'name = "s"\n' + SITES + SOLVE + "[data]\ncenter = false\n",
        'name = "s"\n' + SITES + SOLVE + '[data]\ncolumns = ["a"]\n',
    ):
        assert loaded(tmp_path, other).fingerprint != one.fingerprint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SITES, 'estimator = "pca" works in rounds: run this study with fedspan fit'),
        (SITES + '[solve]\nestimator = "svd"\n', 'estimator = "svd" works in rounds'),
        (SOLVE, r"\[sites\] is missing"),
        (SITES + SOLVE + "[privacy]\nepsilon = 1\n", 'without noise.*solver = "streaming-mod-sulq".*fedspan fit'),
        (SITES + SOLVE + "[participation]\nfirst = 2\n", "whatever has arrived is merged"),
        (SITES + SOLVE + 'solver = "krylov"\n', r'\[solve\] solver is not for estimator = "streaming", which takes'),
        (SITES + SOLVE + "[data]\nscale = true\n", r"\[data\] scale is not for estimator"),
        (SITES + SOLVE + '[data]\ntriples = true\n', r"\[data\] triples is not for estimator"),
        (SITES + SOLVE + '[run]\nrecord = "transcript"\n', r"\[run\] record is not for estimator"),
        (SITES + SOLVE + '[data]\ncolumns = "intersect"\n', r'columns = "intersect": expected "strict", or the list'),
        (SITES + SOLVE + '[data]\nmissing = "drop"\n', r'\[data\] missing = "drop": expected one of "error", "mean"'),
        (SITES + SOLVE + '[data]\nmising = "mean"\n', "did you mean 'missing'"),
        ('[sites]\na = { path = "a.csv", missing = 1 }\n' + SOLVE, "missing = 1: expected a text in quotes"),
        ('[sites]\na = { path = "a.csv", missing = "x" }\n' + SOLVE, r'\[sites\.a\] missing = "x": expected one of'),
        ('[sites]\na = { path = "a.csv", triples = true }\n' + SOLVE, r"\[sites\.a\] has no key 'triples'"),
        (SITES + SOLVE + "[solve.settings]\nforget = 0.9\n", "no setting 'forget'; did you mean 'forgetting'"),
        (SITES + SOLVE + "[solve.settings]\nforgetting = 2\n", r"forgetting lies in \(0, 1\]"),
        (SITES + SOLVE + "[solve.settings]\nforgetting = true\n", "expected a number, got true or false"),
        (SITES + SOLVE + "[solve.settings]\nenergy = [0.1]\n", r"energy = \[0.1\]: expected two numbers"),
        (SITES + SOLVE + "[solve.settings]\nenergy = [0.2, 0.1]\n", "energy is a band"),
        (SITES + SOLVE + "[solve.settings]\nblock_size = 0\n", "block_size = 0"),
        (SITES + SOLVE + "n_components = 0\n", "n_components = 0: expected"),
        (SITES + SOLVE + "[run]\nseed = -1\n", "seed = -1"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_a_way_out(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as error:
        loaded(tmp_path, text)
    assert str(tmp_path / "study.toml") in str(error.value)


def test_a_study_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no study file"):
        load_stream(tmp_path / "none.toml")
