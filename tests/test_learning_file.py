"""The file of a study of labelled rows: what it may say, and what is refused with a way out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedspan.engines import TwoSpeeds, VirtualTime
from fedspan.errors import ConfigurationError, DataError
from fedspan.learners import FLANP, HFMAML, FedAvg, FedRep, LGFedAvg
from fedspan.learning import Learning
from fedspan.learning_file import LearningFile, is_learning, load_learning, split
from fedspan.rounds import Cohort
from fedspan.solvers import Doubling

SITES = '[sites]\noslo = "oslo.csv"\nturin = "turin.csv"\n'
LABEL = '[data]\nlabel = "outcome"\n'
SOLVE = '[solve]\nestimator = "representation"\n'
FULL = """
name = "wards"
[sites]
oslo = { path = "oslo.csv", drop = ["note"], test = "oslo-test.csv", delimiter = ";" }
turin = "turin.csv"
[data]
label = "outcome"
task = "classes"
test_fraction = 0.25
drop = ["id"]
decimal = ","
[solve]
estimator = "representation"
solver = "doubling"
tune = 2
evaluate_every = 5
[solve.settings]
stage = "lg-fedavg"
stage_settings = { rounds = 30, batch = 20, stall = "none" }
n0 = 1
rounds = "stall"
[solve.model]
kind = "mlp"
hidden = [16, 4]
[participation]
fraction = 0.5
[run]
engine = "virtual-time"
speeds = { model = "two", stragglers = 0.5, communication = 1.5 }
seed = 3
folder = "out"
"""


def loaded(folder: Path, text: str) -> LearningFile:
    (folder / "study.toml").write_text(text)
    return load_learning(folder / "study.toml")


def write_site(path: Path, rows: int, columns: str = "a,b,outcome") -> None:
    rng = np.random.default_rng(rows)
    body = [",".join(f"{rng.standard_normal():.3f}" if c != "outcome" else str(i % 2) for c in columns.split(","))
            for i in range(rows)]  # fmt: skip
    path.write_text("\n".join([columns, *body]) + "\n")


def test_every_key_is_read(tmp_path: Path) -> None:
    study = loaded(tmp_path, FULL)
    assert (study.name, study.label, study.task, study.test_fraction) == ("wards", "outcome", "classes", 0.25)
    assert (study.drop, study.folder, study.seed) == (("id",), tmp_path / "out", 3)
    oslo, turin = study.sites["oslo"], study.sites["turin"]
    assert (oslo.path, oslo.test, oslo.drop) == (tmp_path / "oslo.csv", tmp_path / "oslo-test.csv", ("note",))
    assert (oslo.delimiter, oslo.decimal, turin.delimiter, turin.decimal, turin.test) == (";", ",", None, ",", None)
    assert study.study() == Learning(
        learner=Doubling(stage=LGFedAvg(rounds=30, batch=20), n0=1, rounds="stall"), tune=2, evaluate_every=5, seed=3,
        model={"kind": "mlp", "hidden": [16, 4]}, cohort=Cohort(fraction=0.5),
    )  # fmt: skip
    assert isinstance(study.execution, VirtualTime)
    assert isinstance(study.execution.speeds, TwoSpeeds)
    assert study.execution.communication == 1.5


def test_defaults_are_those_of_the_estimator(tmp_path: Path) -> None:
    study = loaded(tmp_path, SITES + LABEL + SOLVE)
    assert study.study() == Learning()
    assert (study.solver, study.execution, study.test_fraction, study.task) == ("fedrep", "in-process", 0.0, None)


@pytest.mark.parametrize(
    ("name", "settings", "learner"),
    [
        ("fedrep", "rounds = 5\nfresh = 10\nheads = true", FedRep(rounds=5, fresh=10, heads=True)),
        ("fedavg", "by_rows = false\nrate = 1", FedAvg(by_rows=False, rate=1.0)),
        ("hf-maml", "inner = 0.05", HFMAML(inner=0.05)),
        ("flanp", "n0 = 2\nstage_rounds = 9\nstall = 0.1\nrate = 2", FLANP(n0=2, stage_rounds=9, stall=0.1, rate=2)),
        ("doubling", "", Doubling(stage=FedRep())),
        ("doubling", "n0 = 2\ncontraction = 0.3\nrounds = 'formula'",
         Doubling(stage=FedRep(), n0=2, contraction=0.3, rounds="formula")),
    ],
)  # fmt: skip
def test_learners_take_their_settings(tmp_path: Path, name: str, settings: str, learner: object) -> None:
    study = loaded(tmp_path, SITES + LABEL + SOLVE + f'solver = "{name}"\n[solve.settings]\n{settings}\n')
    assert study.learner == learner


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SITES + SOLVE, r"\[data\] label is missing: name the column to predict"),
        (SITES + LABEL, r'estimator is not "representation"'),
        (LABEL + SOLVE, r"\[sites\] is missing"),
        (SITES + '[data]\nlabl = "y"\n' + SOLVE, "has no key 'labl'; did you mean 'label'"),
        (SITES + "[data]\nlabel = 1.5\n" + SOLVE, r"label = 1.5: expected the name of a column, or its number"),
        (SITES + LABEL + "task = 'class'\n" + SOLVE, r"\[data\] task = \"class\": did you mean 'classes'"),
        (SITES + LABEL + "test_fraction = 1\n" + SOLVE, r"test_fraction = 1.0: expected a number in \[0, 1\)"),
        (SITES + LABEL + "center = true\n" + SOLVE, r"'center'; it belongs to \[data\] of studies with .* \"pca\""),
        (SITES + LABEL + "triples = true\n" + SOLVE, r"'triples'; it belongs to \[data\] of studies with"),
        (SITES + LABEL + SOLVE + "[run]\nsecure = false\n", r"'secure'; it belongs to \[run\] of studies with"),
        (SITES + LABEL + "seed = 3\n" + SOLVE, r"has no key 'seed'; it belongs to \[run\]"),
        ('[sites]\na = { path = "a.csv", weight = 2 }\n' + LABEL + SOLVE, r"\[sites.a\] has no key 'weight'"),
        (SITES + LABEL + SOLVE + 'solver = "krylov"\n', "there is no learner 'krylov'"),
        (SITES + LABEL + SOLVE + 'solver = "fedrp"\n', "no learner 'fedrp'; did you mean 'fedrep'"),
        (SITES + LABEL + SOLVE + "[solve.settings]\nround = 3\n", "no setting 'round'; did you mean 'rounds'"),
        (SITES + LABEL + SOLVE + "[solve.settings]\nown = 'body'\n", "fedrep has no setting 'own'"),
        (SITES + LABEL + SOLVE + "[solve.settings]\nrounds = 2.5\n", r"rounds = 2.5: expected a whole number"),
        (SITES + LABEL + SOLVE + "[solve.settings]\nrounds = 0\n", r"\[solve.settings\] rounds and epochs"),
        (SITES + LABEL + SOLVE + "solver = 'doubling'\n[solve.settings]\nstage = 'power'\n", "there is no learner"),
        (SITES + LABEL + SOLVE + "solver = 'doubling'\n[solve.settings]\nstage_settings = {rate = 'x'}\n",
         r"stage_settings rate = \"x\": expected a number"),
        (SITES + LABEL + SOLVE + "solver = 'doubling'\n[solve.settings]\nn0 = 0\n", "n0 sites .* at least 1"),
        (SITES + LABEL + SOLVE + "[solve.model]\nkind = 'mpl'\n", r"\[solve.model\] there is no model of kind 'mpl'"),
        (SITES + LABEL + SOLVE + "[solve.model]\nhidden = [3]\n", r"a linear model has no setting 'hidden'"),
        (SITES + LABEL + SOLVE + "n_components = 3\n[solve.model]\nkind = 'mlp'\n", "is for a linear model"),
        (SITES + LABEL + SOLVE + "n_components = 0.9\n", "n_components = 0.9: expected a whole number"),
        (SITES + LABEL + SOLVE + "start = 'moment'\n", r"\[solve\] start is 'moment'; did you mean 'moments'"),
        (SITES + LABEL + SOLVE + "start = 'moments'\nsolver = 'fedavg'\n", "heads are the sites' own"),
        (SITES + LABEL + SOLVE + "tune = -1\n", r"\[solve\] tune is a number of epochs"),
        (SITES + LABEL + SOLVE + "evaluate_every = 0\n", r"\[solve\] evaluate_every is at least 1"),
        (SITES + LABEL + SOLVE + "[privacy]\nepsilon = 1\ndelta = 1e-6\nrow_norm = 1\nn_public = true\n",
         r"\[privacy\] privacy covers the method-of-moments start only .*: set start = \"moments\""),
        (SITES + LABEL + SOLVE + "[participation]\nonly = ['osla']\n", "no site 'osla'; did you mean 'oslo'"),
        (SITES + LABEL + SOLVE + "[participation]\nsample = 'by-size-with-replacement'\n", "FedPower's scheme 1"),
        (SITES + LABEL + SOLVE + "[run]\nspeeds = { mean = 2 }\n", r"\[run.speeds\] is for engine = \"virtual-time\""),
        (SITES + LABEL + SOLVE + "[run\n", "not valid TOML"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_a_way_out(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as error:
        loaded(tmp_path, text)
    assert str(tmp_path / "study.toml") in str(error.value)


def test_a_private_start_is_taken(tmp_path: Path) -> None:
    privacy = "[privacy]\nepsilon = 1\ndelta = 1e-6\nrow_norm = 1\nn_public = true\n"
    assert loaded(tmp_path, SITES + LABEL + SOLVE + 'start = "moments"\n' + privacy).privacy.epsilon == 1.0


def test_test_rows_are_set_aside_by_seed_and_name(tmp_path: Path) -> None:
    for name, rows in (("oslo", 20), ("turin", 30)):
        write_site(tmp_path / f"{name}.csv", rows)
    text = SITES + LABEL + "test_fraction = 0.2\n" + SOLVE
    sources, again = (loaded(tmp_path, text).open_sources() for _ in range(2))
    assert {name: (len(s.y), len(s.test.y)) for name, s in sources.items()} == {"oslo": (16, 4), "turin": (24, 6)}
    everything = loaded(tmp_path, SITES + LABEL + SOLVE).open_sources()
    for name, source in sources.items():
        assert source.X.tobytes() == again[name].X.tobytes()
        together = np.vstack([source.X, source.test.X])
        assert sorted(map(tuple, together)) == sorted(map(tuple, everything[name].X))
        assert source.columns == ("a", "b")
    other = loaded(tmp_path, text + "[run]\nseed = 1\n").open_sources()
    assert other["oslo"].test.X.tobytes() != sources["oslo"].test.X.tobytes()
    assert everything["oslo"].test is None


def test_a_split_leaves_something_on_both_sides() -> None:
    for rows, fraction in ((2, 0.01), (2, 0.99), (100, 0.999)):
        learnt, aside = split(rows, fraction, 0, "a")
        assert len(learnt) >= 1
        assert len(aside) >= 1
        assert sorted([*learnt, *aside]) == list(range(rows))
    with pytest.raises(DataError, match="leaves none to learn from"):
        split(1, 0.5, 0, "a")


def test_a_site_may_have_a_file_of_test_rows(tmp_path: Path) -> None:
    write_site(tmp_path / "oslo.csv", 20)
    write_site(tmp_path / "turin.csv", 10)
    write_site(tmp_path / "late.csv", 7, "b,a,outcome")
    text = '[sites]\noslo = { path = "oslo.csv", test = "late.csv" }\nturin = "turin.csv"\n'
    sources = loaded(tmp_path, text + LABEL + "test_fraction = 0.3\n" + SOLVE).open_sources()
    assert (len(sources["oslo"].y), len(sources["oslo"].test.y), len(sources["turin"].test.y)) == (20, 7, 3)


def test_columns_are_brought_into_one_order(tmp_path: Path) -> None:
    write_site(tmp_path / "oslo.csv", 5, "a,b,outcome")
    write_site(tmp_path / "turin.csv", 5, "outcome,b,a")
    sources = loaded(tmp_path, SITES + LABEL + SOLVE).open_sources()
    assert sources["turin"].columns == ("a", "b")
    (tmp_path / "turin.csv").read_text()
    first = (tmp_path / "turin.csv").read_text().splitlines()[1].split(",")
    assert sources["turin"].X[0].tolist() == [float(first[2]), float(first[1])]


def test_errors_in_files_name_the_site(tmp_path: Path) -> None:
    write_site(tmp_path / "oslo.csv", 5)
    write_site(tmp_path / "turin.csv", 5, "a,b,result")
    with pytest.raises(DataError, match=r"site 'turin': .* has no column 'outcome' to predict; known: a, b, result"):
        loaded(tmp_path, SITES + LABEL + SOLVE).open_sources()


def test_changes_are_those_that_change_an_answer(tmp_path: Path) -> None:
    one = loaded(tmp_path, SITES + LABEL + SOLVE)
    assert one.changes(loaded(tmp_path, 'name = "x"\n' + SITES + LABEL + SOLVE + '[run]\nfolder = "f"\n')) == []
    other = loaded(tmp_path, SITES + LABEL + SOLVE + "tune = 1\n[run]\nseed = 4\n")
    assert other.changes(one) == ["tune", "seed"]


def test_what_asks_for_a_representation_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(SITES + SOLVE)
    (tmp_path / "b.toml").write_text(SITES)
    (tmp_path / "c.toml").write_text("solve = 3\n")
    assert [is_learning(tmp_path / f"{name}.toml") for name in "abcd"] == [True, False, False, False]
