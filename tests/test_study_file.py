"""The study file: what it may say, and what is refused with a way out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedspan.data import Preparation
from fedspan.errors import ConfigurationError, DataError, FileError
from fedspan.rounds import Cohort
from fedspan.run import run
from fedspan.secure import SecureSums
from fedspan.solvers import BlockKrylov, FedPower
from fedspan.study_file import StudyFile, load_study

FULL = """
name = "three-hospitals"
[sites]
berlin = "berlin.csv"
lyon = { path = "data/lyon.csv", weight = 2, delimiter = ";", decimal = ",", drop = ["note"] }
[data]
columns = "intersect"
drop = ["patient_id"]
missing = "mean"
max_missing_fraction = 0.2
min_rows = 5
center = true
scale = true
weight_column = "weight"
delimiter = "|"
[solve]
estimator = "pca"
n_components = 3
solver = "fedpower"
[solve.settings]
rounds = 20
tol = 0
sync = [1, 3, 7]
align = "none"
[participation]
only = ["berlin"]
fraction = 0.5
late = "carry"
[run]
secure = false
engine = "in-process"
seed = 4
folder = "out"
record = "transcript"
"""
SITES = '[sites]\nberlin = "berlin.csv"\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "study.toml"
    path.write_text(text)
    return path


def loaded(folder: Path, text: str) -> StudyFile:
    return load_study(written(folder, text))


def test_every_key_is_read(tmp_path: Path) -> None:
    study = loaded(tmp_path, FULL)
    assert study.name == "three-hospitals"
    assert study.preparation == Preparation(
        columns="intersect", missing="mean", max_missing_fraction=0.2, min_rows=5, scale=True, weight_column="weight"
    )
    assert study.solver == FedPower(rounds=20, tol=0, sync=(1, 3, 7), align=None)
    assert study.cohort == Cohort(only=("berlin",), fraction=0.5, late="carry")
    assert (study.n_components, study.seed, study.estimator, study.drop) == (3, 4, "pca", ("patient_id",))
    assert study.record == "transcript"
    berlin, lyon = study.sites["berlin"], study.sites["lyon"]
    assert (berlin.delimiter, berlin.decimal, berlin.weight) == ("|", ".", 1.0)
    assert (lyon.delimiter, lyon.decimal, lyon.weight, lyon.drop) == (";", ",", 2.0, ("note",))


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path.parent)
    study = load_study(written(tmp_path, FULL).relative_to(tmp_path.parent))
    assert study.sites["lyon"].path.resolve() == tmp_path / "data" / "lyon.csv"
    assert study.folder.resolve() == tmp_path / "out"


def test_what_is_not_said_has_a_default(tmp_path: Path) -> None:
    study = loaded(tmp_path, SITES)
    assert study.name == "study"
    assert study.folder == tmp_path / "runs"
    assert study.record == "rounds"
    assert study.study().solver == BlockKrylov()
    assert study.study().preparation == Preparation()
    assert study.study().n_components == 10


def test_a_truncated_svd_does_not_centre(tmp_path: Path) -> None:
    study = loaded(tmp_path, SITES + '[solve]\nestimator = "svd"\n[data]\nnormalise = "degree"\n')
    assert study.preparation == Preparation(center=False, normalise="degree")


@pytest.mark.parametrize("wanted", ["7", "0.95", '"auto"'])
def test_n_components_is_a_number_a_share_or_auto(tmp_path: Path, wanted: str) -> None:
    assert str(loaded(tmp_path, f"{SITES}[solve]\nn_components = {wanted}\n").n_components) == wanted.strip('"')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"\[sites\] is missing"),
        ("[sites]\n", r"\[sites\] is missing"),
        ("nmae = 'x'\n" + SITES, r"the top of the file has no key 'nmae'; did you mean 'name'\?"),
        ("n_components = 3\n" + SITES, r"'n_components'; it belongs to \[solve\]"),
        ("[sitse]\na = 'a.csv'\n", r"has no key 'sitse'; did you mean 'sites'\?"),
        ("[sites]\na = 3\n", r"\[sites\] a = 3: expected a path in quotes, or a table with a path, got a whole"),
        ("[sites]\na = { file = 'a.csv' }\n", r"\[sites.a\] has no key 'file'"),
        ("[sites]\na = { weight = 2 }\n", r"\[sites.a\] has no path"),
        ("[sites]\na = { path = 'a.csv', weight = 0 }\n", r"\[sites.a\] weight = 0.0: .* positive"),
        ("[sites]\n'../a' = 'a.csv'\n", "no slash"),
        ("[sites]\na = { path = 'a.csv', header = 1 }\n", r"\[sites.a\] header = 1: expected true or false"),
        ("[sites]\na = { path = 'a.csv', triples = 1 }\n", r"triples = 1: expected true, false or a table of options"),
        ("[sites]\na = { path = 'a.csv', triples = { users = 'u' } }\n", r"\[sites.a\] triples has no key 'users'"),
        ("[sites]\na = { path = 'a.csv', triples = { unknown = 'x' } }\n", 'unknown is "error" or "drop", got "x"'),
        ("[sites]\na = { path = 'a.csv', triples = true, header = false }\n", "found by the names of their columns"),
        (SITES + "[data]\ntriples = { item = 3 }\n", r"\[data\] triples item = 3: expected a text"),
        (SITES + "[data]\ncentre = true\n", r"\[data\] has no key 'centre'; did you mean 'center'\?"),
        (SITES + "[data]\nseed = 1\n", r"\[data\] has no key 'seed'; it belongs to \[run\]"),
        (SITES + "[data]\ncenter = 'yes'\n", r'center = "yes": expected true or false, got a text'),
        (SITES + "[data]\ndrop = 'a'\n", r'drop = "a": expected a list of texts'),
        (SITES + "[data]\ncolumns = 'same'\n", r"\[data\] columns is one of 'strict', 'intersect', 'union-zero'"),
        (SITES + "[data]\nmissing = 'median'\n", "missing is one of 'error', 'mean'"),
        (SITES + "[data]\nmin_rows = 2.5\n", r"\[data\] min_rows = 2.5: expected a whole number, got a number"),
        (SITES + "[data]\nnormalise = 'degree'\n", 'normalise is for estimator = "svd"'),
        (SITES + "[data]\nscale = true\n[solve]\nestimator = 'svd'\n", r'scale = true is for estimator = "pca"'),
        (SITES + "[solve]\nestimator = 'pac'\n", r"no estimator 'pac'; did you mean 'pca'\?"),
        (SITES + "[solve]\nestimator = 'streaming'\n", r"run this study with fedspan stream STUDY --once"),
        (SITES + "[data]\nlabel = 'y'\n", 'it belongs to .data. of studies with estimator = "representation"'),
        (SITES + "[solve]\nestimator = 'representation'\n", "learns from labelled rows"),
        (SITES + "[solve]\nn_components = 0\n", "n_components = 0: expected a whole number, a fraction"),
        (SITES + "[solve]\nn_components = 1.5\n", "n_components = 1.5: expected"),
        (SITES + "[solve]\nn_components = 'all'\n", 'n_components = "all": expected'),
        (SITES + "[solve]\nn_components = true\n", "n_components = true: expected"),
        (SITES + "[solve]\nsolver = 'krilov'\n", r"\[solve\] there is no solver 'krilov'; did you mean 'krylov'\?"),
        (SITES + "[solve.settings]\nround = 3\n", r"\[solve.settings\] .* no setting 'round'; did you mean 'rounds'"),
        (SITES + "[solve.settings]\nrounds = 'many'\n", r'rounds = "many": expected a whole number, got a text'),
        (SITES + "[solve.settings]\nrounds = 0\n", "rounds is the budget"),
        (SITES + "[solve]\nsolver = 'auto'\n[solve.settings]\nrounds = 3\n", "names none"),
        (SITES + "[privacy]\nepsilon = 1.0\n", r"\[privacy\] delta is missing"),
        (SITES + "[privacy]\n", r"\[privacy\] epsilon is missing"),
        (SITES + "[privacy]\nepsilon = 1.0\ndelta = 1e-6\n", r"\[privacy\] row_norm is missing"),
        (SITES + "[privacy]\nepsilon = 0\ndelta = 1e-6\nrow_norm = 1\n", r"\[privacy\] epsilon"),
        (SITES + "[privacy]\nepsilon = 1\ndelta = 1e-6\nrow_nrom = 1\n", r"no key 'row_nrom'; did you mean 'row_norm'"),
        (SITES + "[privacy]\nepsilon = 1\ndelta = 1e-6\nrow_norm = {low = 0}\n", r"\[privacy\] row_norm .*high"),
        (SITES + "[participation]\nfraction = 2\n", r"\[participation\] a cohort's fraction"),
        (SITES + "[participation]\nonly = ['berlni']\n", r"no site 'berlni'; did you mean 'berlin'\?"),
        (SITES + "[run]\nsecure = 'yes'\n", r'secure = "yes": expected true or false'),
        (SITES + "[run]\nsecure = false\n[secure]\nthreshold = 0.7\n", r"leave out one of the two"),
        (SITES + "[secure]\nthreshold = 0.4\n", r"\[secure\] threshold is between 1/2 and 1"),
        (SITES + "[secure]\ntreshold = 0.7\n", r"no key 'treshold'; did you mean 'threshold'"),
        (SITES + "[secure]\nsecurity = 80.5\n", r"toml: \[secure\] security = 80.5: expected a whole number"),
        (SITES + "[secure]\nminimum = 2.5\n", r"minimum = 2.5: expected a whole number"),
        (SITES + "[run]\nengine = 'ray'\n", r"\[run\] there is no engine 'ray'"),
        (SITES + "[run]\nrecord = 'transcripts'\n", r"\[run\] record is .*; did you mean 'transcript'\?"),
        (SITES + "[run]\nrecord = true\n", r"\[run\] record = true: expected a text"),
        (SITES + "[run]\nseed = -1\n", "seed = -1: expected a whole number, 0 or more"),
        (SITES + "[run\n", "not valid TOML: .*line 3"),
        (SITES + SITES, "not valid TOML"),
        ("name = 3\n" + SITES, r"name = 3: expected a text in quotes"),
        ("sites = 3\n", r"\[sites\] = 3: expected a table"),
        ("data = 3\n" + SITES, r"\[data\] = 3: expected a table"),
    ],
)
def test_what_is_wrong_is_refused_with_a_way_out(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as error:
        loaded(tmp_path, text)
    assert str(error.value).startswith(str(tmp_path / "study.toml"))


def test_a_missing_study_names_the_nearest(tmp_path: Path) -> None:
    written(tmp_path, SITES)
    with pytest.raises(ConfigurationError, match=r"no study file .*studdy.toml; did you mean 'study.toml'\?"):
        load_study(tmp_path / "studdy.toml")
    with pytest.raises(ConfigurationError, match="no study file"):
        load_study(tmp_path / "nowhere" / "study.toml")
    with pytest.raises(ConfigurationError, match="no study file"):
        load_study(tmp_path)


def test_a_study_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_bytes(b"name = '\xff'\n")
    with pytest.raises(ConfigurationError, match="not valid TOML"):
        load_study(tmp_path / "study.toml")


def test_a_mark_in_front_is_no_part_of_the_study(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_bytes(b"\xef\xbb\xbf" + SITES.encode())
    assert load_study(tmp_path / "study.toml").sites.keys() == {"berlin"}


# ---- opening the sites -----------------------------------------------------------------------------


def two_sites(folder: Path, data: str = "", *, lyon: str = '"lyon.csv"') -> StudyFile:
    (folder / "berlin.csv").write_text("patient_id,age,mass\nb1,40,70\nb2,41,71\n")
    (folder / "lyon.csv").write_text("age;mass;note\n40;70,5;ill\n41;71;well\n")
    return loaded(folder, f'[sites]\nberlin = "berlin.csv"\nlyon = {lyon}\n[data]\n{data}')


def test_sources_are_opened_as_each_site_asks(tmp_path: Path) -> None:
    lyon = '{ path = "lyon.csv", delimiter = ";", decimal = ",", drop = ["note"], weight = 3.0 }'
    sources = two_sites(tmp_path, 'drop = ["patient_id"]\n', lyon=lyon).open_sources()
    assert [source.columns for source in sources.values()] == [("age", "mass"), ("age", "mass")]
    assert sources["lyon"].site_weight == 3.0
    np.testing.assert_array_equal(next(sources["lyon"].blocks()), [[40, 70.5], [41, 71]])


def test_a_column_to_drop_must_be_somewhere(tmp_path: Path) -> None:
    lyon = '{ path = "lyon.csv", decimal = "," }'
    assert two_sites(tmp_path, 'drop = ["patient_id", "note"]\n', lyon=lyon).open_sources().keys() == {"berlin", "lyon"}
    with pytest.raises(DataError, match=r"no site has a column 'notes'; did you mean 'note'\?"):
        two_sites(tmp_path, 'drop = ["patient_id", "notes"]\n').open_sources()
    with pytest.raises(DataError, match="site 'lyon': there is no column 'patient_id' to drop"):
        two_sites(tmp_path, lyon='{ path = "lyon.csv", drop = ["patient_id"] }').open_sources()


def test_a_header_of_numbers_is_said_for_all_or_for_one(tmp_path: Path) -> None:
    for name in ("berlin", "lyon"):
        (tmp_path / f"{name}.csv").write_text("0,1\n5,6\n7,8\n")
    sites = '[sites]\nberlin = "berlin.csv"\nlyon = { path = "lyon.csv", header = false }\n'
    with pytest.raises(DataError, match=r"site 'berlin': .*header = true .*header = false"):
        loaded(tmp_path, sites).open_sources()
    sources = loaded(tmp_path, sites + '[data]\nheader = true\ndrop = ["1"]\n').sites
    assert (sources["berlin"].header, sources["lyon"].header) == (True, False)
    both = loaded(tmp_path, sites.replace("header = false", "weight = 2") + '[data]\nheader = true\ndrop = ["1"]\n')
    assert [(s.columns, s.shape) for s in both.open_sources().values()] == [(("0",), (2, 1))] * 2


def test_a_column_without_a_name_can_be_dropped(tmp_path: Path) -> None:
    (tmp_path / "berlin.csv").write_text(",age,mass\n0,40,70\n1,41,71\n")
    with pytest.raises(DataError, match=r"site 'berlin': .*column 1 of 3 has no name"):
        loaded(tmp_path, SITES).open_sources()
    assert loaded(tmp_path, SITES + '[data]\ndrop = [""]\n').open_sources()["berlin"].columns == ("age", "mass")


def test_triples_are_named_in_a_study(tmp_path: Path) -> None:
    (tmp_path / "north.csv").write_text("user,item,value\nann,tea,1\nbob,rye,2\nann,rye,3\n")
    (tmp_path / "south.csv").write_text("who,what\ncid,rye\ncid,oat\ndan,oat\n")
    text = (
        '[sites]\nnorth = "north.csv"\n'
        'south = { path = "south.csv", triples = { user = "who", item = "what", value = "none" } }\n'
        '[data]\ntriples = true\ncolumns = "union-zero"\n[solve]\nestimator = "svd"\nn_components = 2\n'
    )
    study = loaded(tmp_path, text)
    sources = study.open_sources()
    assert (sources["north"].columns, sources["south"].columns) == (("rye", "tea"), ("oat", "rye"))
    result = run(study.study(), sources)
    pooled = np.array([[0, 3, 1], [0, 2, 0], [1, 1, 0], [1, 0, 0]])  # oat, rye, tea
    np.testing.assert_allclose(result.estimate.values, np.linalg.svd(pooled, compute_uv=False)[:2] ** 2)
    assert loaded(tmp_path, text).changes(study) == []
    assert loaded(tmp_path, text.replace('"what"', '"who"')).changes(study) == ["sites"]
    plain = loaded(
        tmp_path, text.replace('triples = { user = "who", item = "what", value = "none" }', "triples = false")
    )
    assert (plain.sites["north"].triples, plain.sites["south"].triples) == ({}, None)


def test_what_goes_wrong_at_a_site_names_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"site 'berlin': .*patient_id.* not numeric"):
        two_sites(tmp_path).open_sources()
    with pytest.raises(FileError, match=r"site 'lyon': .*no such file"):
        two_sites(tmp_path, 'drop = ["patient_id"]\n', lyon='"lion.csv"').open_sources()
    (tmp_path / "lyon.parquet").write_bytes(b"PAR1 no parquet")
    with pytest.raises(FileError, match=r"site 'lyon': .*lyon.parquet"):
        two_sites(tmp_path, 'drop = ["patient_id"]\n', lyon='"lyon.parquet"').open_sources()


def test_changes_are_those_that_matter(tmp_path: Path) -> None:
    before = loaded(tmp_path, FULL)
    assert loaded(tmp_path, FULL.replace("out", "elsewhere").replace("three-", "four-")).changes(before) == []
    assert loaded(tmp_path, FULL.replace('record = "transcript"\n', "")).changes(before) == []  # `run` minds this
    assert loaded(tmp_path, FULL.replace("seed = 4", "seed = 5")).changes(before) == ["seed"]
    assert loaded(tmp_path, FULL.replace('["patient_id"]', "[]")).changes(before) == ["drop"]
    assert loaded(tmp_path, FULL.replace("weight = 2", "weight = 3")).changes(before) == ["sites"]


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("", None),
        ("[run]\nsecure = true\n", SecureSums()),
        ("[secure]\n", SecureSums()),
        ("[run]\nsecure = true\n[secure]\nminimum = 5\ncolluding = 0.2\n", SecureSums(minimum=5, colluding=0.2)),
    ],
)
def test_secure_sums_are_asked_for_by_a_flag_or_a_table(tmp_path: Path, text: str, rules: SecureSums | None) -> None:
    study = loaded(tmp_path, SITES + text)
    assert study.secure == study.study().secure == rules
