"""The run of a study of labelled rows: agreement, starts, resuming to the bit, and what is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fedspan.data import open_source
from fedspan.data.labelled import Labelled
from fedspan.engines import VirtualTime
from fedspan.errors import (
    CohortError,
    ConfigurationError,
    ConvergenceError,
    DataError,
    ResumeError,
)
from fedspan.learners import FLANP, HFMAML, FedAvg, FedRep, LGFedAvg
from fedspan.learning import START, LearnedModel, Learning, learn
from fedspan.metrics import projection_distance
from fedspan.privacy import GaussianPrivacy
from fedspan.privacy.ledger import Ledger
from fedspan.rounds import Cohort
from fedspan.sites import LEDGER
from fedspan.solvers import Doubling
from tests.labelled import NAMES, D, basis, classes, numbers, sources
from tests.wire import CoordinatorDown, Wire

LINEAR = FedRep(rounds=4, rate=0.2, batch=0)
MLP = {"kind": "mlp", "hidden": [6, 3]}
SMALL = {"batch": 8, "rounds": 3}
LEARNERS = {
    "fedrep": FedRep(**SMALL), "lg": LGFedAvg(**SMALL), "fedavg": FedAvg(**SMALL), "maml": HFMAML(**SMALL),
    "doubling": Doubling(stage=FedRep(**SMALL), n0=1), "flanp": FLANP(n0=2, stage_rounds=2, **SMALL),
}  # fmt: skip
STUDIES = {
    "linear": (Learning(learner=LINEAR, evaluate_every=2), numbers),
    "moments": (Learning(learner=LINEAR, start="moments"), numbers),
    "linear classes": (Learning(learner=LINEAR), classes),
    **{name: (Learning(learner=one, model=MLP, evaluate_every=2, tune=1), classes) for name, one in LEARNERS.items()},
}
PRIVACY = GaussianPrivacy(5.0, 1e-6, row_norm=8.0, n_public=True)


def bits(model: LearnedModel) -> dict[str, bytes]:
    """All that was learnt, and how well it predicts."""
    learnt = {"": model.shared.tobytes(), **{name: own.tobytes() for name, own in model.heads.items()}}
    return {**learnt, "scores": json.dumps([model.scores, [told for _, told in model.curve]], sort_keys=True).encode()}


def aggregates(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted((folder / "rounds").iterdir()) if p.suffix != ".part"}


# ---- what is learnt ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["random", "moments"])
def test_the_representation_is_found(start):
    found = learn(Learning(learner=replace(LINEAR, rounds=400, rate=0.4), start=start), sources(numbers(noise=0.0)))
    assert projection_distance(found.shared, basis()) < 1e-3
    for name, (X, y) in numbers(noise=0.0).items():
        assert found.scores[name]["squares"] / len(y) < 1e-4 * y.var(), name
        np.testing.assert_allclose(X @ found.shared @ found.heads[name], y, atol=0.05)


def test_moments_begin_where_alg_2_says():
    """Lines 2-3: the leading eigenvectors of the sum of y^2 x x'."""
    seen = []
    learn(
        Learning(learner=LINEAR, start="moments"), sources(numbers()),
        watchers=[lambda record, estimate: seen.append((record.step, estimate))],
    )  # fmt: skip
    first = next(estimate for step, estimate in seen if step == "fedrep.update")
    total = sum((X * y[:, None]).T @ (X * y[:, None]) for X, y in numbers().values())
    expected = np.linalg.eigh(total)[1][:, -2:]
    assert projection_distance(first, expected) < 1e-8


def test_a_given_start_is_where_the_first_round_begins():
    start, seen = np.linalg.qr(np.random.default_rng(5).standard_normal((D, 2)))[0], []
    learn(
        Learning(learner=LINEAR, start=start), sources(numbers()),
        watchers=[lambda record, estimate: seen.append(estimate)],
    )  # fmt: skip
    assert next(z for z in seen if z is not None).tobytes() == start.tobytes()


def test_rounds_bytes_and_clock_count_the_start_too():
    found = learn(STUDIES["moments"][0], sources(numbers()), engine="virtual-time")
    assert found.rounds == 4
    assert found.setup_rounds == 3 + len(found.start.history)  # describe, agree, evaluate
    assert found.bytes_up == found.start.bytes_up + sum(r.bytes_up for r in found.history)
    assert found.bytes_down == found.start.bytes_down + sum(r.bytes_down for r in found.history)
    assert found.clock == found.start.clock + found.history[-1].clock > found.start.clock > 0


@pytest.mark.parametrize("name", STUDIES)
def test_virtual_time_and_a_wire_change_nothing(name):
    study, make = STUDIES[name]
    if name in ("doubling", "flanp"):  # who is first is another site there
        study = replace(study, learner=study.learner.stage)
    plain, wired = learn(study, sources(make())), learn(study, sources(make()), engine=Wire)
    assert bits(plain) == bits(learn(study, sources(make()), engine="virtual-time"))
    assert wired.shared.dtype == plain.shared.dtype
    np.testing.assert_allclose(
        wired.shared, plain.shared, rtol=0, atol=1e-4 if "float32" in str(plain.shared.dtype) else 1e-9
    )
    assert wired.bytes_up == plain.bytes_up
    assert wired.bytes_down == plain.bytes_down


def test_the_curve_is_measured_before_every_so_many_rounds_and_changes_nothing():
    study = Learning(learner=replace(LINEAR, rounds=5), evaluate_every=2)
    found = learn(study, sources(numbers()))
    rounds_before = [sum(not r.setup for r in found.history if r.round < record.round) for record, _ in found.curve]
    assert rounds_before == [0, 2, 4, 5]
    silent = learn(replace(study, evaluate_every=None), sources(numbers()))
    assert len(silent.curve) == 1
    assert found.shared.tobytes() == silent.shared.tobytes()  # a linear FedRep on all rows draws nothing
    assert found.rounds == silent.rounds == 5
    assert found.curve[-1][1] == silent.curve[-1][1] == found.scores


@pytest.mark.parametrize("name", ["fedrep", "lg", "fedavg", "maml"])
def test_tuning_is_kept_at_the_sites_and_not_in_what_is_shared(name):
    study, make = STUDIES[name]
    tuned, plain = (learn(replace(study, tune=n, evaluate_every=None), sources(make())) for n in (2, 0))
    assert tuned.shared.tobytes() == plain.shared.tobytes()
    for site in NAMES:
        assert tuned.heads[site].tobytes() != plain.heads[site].tobytes()
    if name in ("fedavg", "maml"):
        assert all(own.size == 0 for own in plain.heads.values())
        assert all(own.shape == plain.shared.shape for own in tuned.heads.values())


# ---- going on after a kill ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STUDIES)
def test_a_finished_run_resumed_is_the_same_and_asks_nobody(tmp_path, name):
    study, make = STUDIES[name]
    whole = learn(study, sources(make()), folder=tmp_path / "run")
    before = aggregates(tmp_path / "run")
    again = learn(study, sources(make()), folder=tmp_path / "run", resume=True)
    assert bits(again) == bits(whole) == bits(learn(study, sources(make())))
    assert aggregates(tmp_path / "run") == before


@pytest.mark.parametrize("event", ["delivered", "replied", "collected"])
@pytest.mark.parametrize("name", ["moments", "fedrep", "doubling"])
def test_a_killed_run_goes_on_to_the_same_bits(tmp_path, name, event):
    """Coordinator and sites end at one boundary of a round, and come back from what is on disk."""
    study, make = STUDIES[name]
    whole = learn(study, sources(make()), folder=tmp_path / "whole", engine=Wire)
    for number in (1, 4, len(whole.history) - 1):
        folder = tmp_path / f"killed-{number}"

        def kill(at, question, site, number=number):
            if (at, question) == (event, number) and site in ("elm", ""):
                raise CoordinatorDown(at)

        with pytest.raises(CoordinatorDown):
            learn(study, sources(make()), folder=folder, engine=partial(Wire, on_event=kill))
        resumed = learn(study, sources(make()), folder=folder, engine=Wire, resume=True)
        assert bits(resumed) == bits(whole), number
        assert aggregates(folder) == aggregates(tmp_path / "whole"), number


@pytest.mark.parametrize("name", ["moments", "doubling"])
def test_a_resumed_run_goes_on_at_its_own_clock(tmp_path, name):
    study, make = STUDIES[name]
    whole = learn(study, sources(make()), engine="virtual-time")

    def stop(record, estimate):
        if record.step == "fedrep.update" and record.round >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn(study, sources(make()), engine="virtual-time", folder=tmp_path, watchers=[stop])
    resumed = learn(study, sources(make()), engine="virtual-time", folder=tmp_path, resume=True)
    assert bits(resumed) == bits(whole)
    assert [r.clock for r in resumed.history] == [r.clock for r in whole.history]
    assert resumed.clock == whole.clock > 0


def test_a_site_that_lost_its_state_goes_on_with_a_new_head(tmp_path):
    study, make = STUDIES["fedrep"]

    def kill(at, question, site):
        if (at, question) == ("sending", 4):
            raise CoordinatorDown(at)

    with pytest.raises(CoordinatorDown):
        learn(study, sources(make()), folder=tmp_path / "run", engine=partial(Wire, on_event=kill))
    shutil.rmtree(tmp_path / "run" / "sites" / "elm")
    resumed = learn(study, sources(make()), folder=tmp_path / "run", engine=Wire, resume=True)
    whole = learn(study, sources(make()), engine=Wire)
    assert resumed.rounds == whole.rounds
    assert resumed.heads["elm"].shape == whole.heads["elm"].shape
    assert resumed.heads["elm"].tobytes() != whole.heads["elm"].tobytes()


def test_another_study_or_other_labels_are_not_resumed(tmp_path):
    study, make = STUDIES["fedrep"]
    learn(study, sources(make()), folder=tmp_path)
    others = {
        "seed": replace(study, seed=1), "tune": replace(study, tune=0), "learner": replace(study, learner=FedRep()),
        "model": replace(study, model={"kind": "mlp", "hidden": [6, 2]}),
        "cohort": replace(study, cohort=Cohort(first=2)),
        "evaluate_every": replace(study, evaluate_every=None),
    }  # fmt: skip
    for key, other in others.items():
        with pytest.raises(ResumeError, match=f"the study changed since this run began: {key} "):
            learn(other, sources(make()), folder=tmp_path, resume=True)
    relabelled = sources(make())
    relabelled["oak"].y[:2] = relabelled["oak"].y[:2][::-1]
    with pytest.raises(ResumeError, match="site 'oak' has other rows, columns, weights or labels"):
        learn(study, relabelled, folder=tmp_path, resume=True)
    retested = sources(make())
    retested["oak"].test.X[0, 0] += 1
    with pytest.raises(ResumeError, match="site 'oak' has other rows"):
        learn(study, retested, folder=tmp_path, resume=True)
    with pytest.raises(ResumeError, match="holds a run already"):
        learn(study, sources(make()), folder=tmp_path)


def test_a_start_is_another_study_too(tmp_path):
    study, start = Learning(learner=LINEAR, start=basis()), basis()
    start[0, 0] += 1e-12
    learn(study, sources(numbers()), folder=tmp_path)
    with pytest.raises(ResumeError, match="changed since this run began: start"):
        learn(replace(study, start=start), sources(numbers()), folder=tmp_path, resume=True)


# ---- privacy of the start ----------------------------------------------------------------------------------------


def test_a_private_start_is_noised_and_charged_once(tmp_path):
    study = Learning(learner=LINEAR, start="moments")
    found = learn(study, sources(numbers()), folder=tmp_path, privacy=PRIVACY)
    assert found.start.privacy.as_plain()["spent_epsilon"] <= 5.0
    plain = learn(study, sources(numbers()))
    assert found.start.estimate.basis.tobytes() != plain.start.estimate.basis.tobytes()
    with Ledger(tmp_path / START / LEDGER) as book:
        charged = len(book.charges())
    assert charged > 0
    again = learn(study, sources(numbers()), folder=tmp_path, privacy=PRIVACY, resume=True)
    assert bits(again) == bits(found)
    with Ledger(tmp_path / START / LEDGER) as book:
        assert len(book.charges()) == charged


def test_a_run_is_not_resumed_with_another_privacy(tmp_path):
    study = Learning(learner=LINEAR, start="moments")
    learn(study, sources(numbers()), folder=tmp_path / "plain")
    with pytest.raises(ResumeError, match=r"plain: the study changed since this run began: privacy "):
        learn(study, sources(numbers()), folder=tmp_path / "plain", privacy=PRIVACY, resume=True)
    learn(study, sources(numbers()), folder=tmp_path / "private", privacy=PRIVACY)
    with pytest.raises(ResumeError, match=r"private: the study changed since this run began: privacy "):
        learn(study, sources(numbers()), folder=tmp_path / "private", resume=True)


def test_a_private_start_survives_a_kill_of_the_run_behind_it(tmp_path):
    study = Learning(learner=LINEAR, start="moments")

    def stop(record, estimate):
        if record.step == "fedrep.update":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn(study, sources(numbers()), folder=tmp_path, privacy=PRIVACY, watchers=[stop])
    begun = aggregates(tmp_path / START)
    resumed = learn(study, sources(numbers()), folder=tmp_path, privacy=PRIVACY, resume=True)
    assert aggregates(tmp_path / START) == begun
    assert resumed.rounds == 4


def test_what_a_private_start_released_is_not_forgotten_when_the_run_fails(tmp_path):
    learner = Doubling(stage=LINEAR, n0=len(NAMES) + 1)
    with pytest.raises(ConfigurationError, match="n0 = 5 sites, but a round waits for 4"):
        learn(Learning(learner=learner, start="moments"), sources(numbers()), folder=tmp_path / "run", privacy=PRIVACY)
    assert (tmp_path / "run" / START / LEDGER).exists()
    with pytest.raises(ConfigurationError, match="n0 = 5 sites"):
        learn(Learning(learner=learner, start="moments"), sources(numbers()), folder=tmp_path / "plain")
    assert not (tmp_path / "plain").exists()


def test_what_an_earlier_run_charged_does_not_keep_what_a_failed_one_left(tmp_path):
    learn(Learning(learner=LINEAR, start="moments"), sources(numbers()), folder=tmp_path / "earlier", privacy=PRIVACY)
    kept = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigurationError, match="n0 = 5 sites"):
        learn(Learning(learner=Doubling(stage=LINEAR, n0=5)), sources(numbers()), folder=tmp_path)
    assert sorted(tmp_path.rglob("*")) == kept


def test_privacy_is_refused_where_it_would_cover_nothing():
    for study in (Learning(learner=LINEAR), Learning(learner=LINEAR, start=basis())):
        with pytest.raises(ConfigurationError, match=r"privacy covers the method-of-moments start only"):
            learn(study, sources(numbers()), privacy=PRIVACY)


# ---- what is refused ---------------------------------------------------------------------------------------------


def two(first: Labelled, second: Labelled) -> dict[str, Labelled]:
    return {"north": first, "south": second}


X = np.random.default_rng(1).standard_normal((9, 4))
INTS, FLOATS, TEXTS = np.arange(9) % 3, np.linspace(0, 1, 9), np.array(["a", "b", "c"] * 3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            two(Labelled(X, INTS), Labelled(X[:, :3], INTS)),
            "site 'north' has 4 columns, others 3|'south' has 3 columns",
        ),
        (two(Labelled(X, INTS), Labelled(X, FLOATS)), "'south' has numbers to predict, site 'north' whole numbers"),
        (two(Labelled(X, TEXTS), Labelled(X, INTS)), r"'south' has whole numbers \(classes\) to predict, .* texts"),
        (two(Labelled(X, INTS > 1), Labelled(X, INTS)), "whole numbers .* true and false"),
        (two(Labelled(X, INTS, columns=tuple("abcd")), Labelled(X, INTS)), "site 'south' has no column names"),
        (
            two(Labelled(X, INTS, columns=tuple("abcd")), Labelled(X, INTS, columns=tuple("abcx"))),
            "'south' has other columns than site 'north': lacks d, adds x",
        ),
        (
            two(Labelled(X, INTS, columns=tuple("abcd")), Labelled(X, INTS, columns=tuple("abdc"))),
            "'south' has its columns in another order than site 'north': column 3 is 'd' there, 'c' here",
        ),
    ],
)
def test_sites_that_do_not_fit_each_other_are_named(tmp_path, given, message):
    with pytest.raises(DataError, match=message):
        learn(Learning(learner=LINEAR), given, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_odd_one_out_of_many_is_the_one_that_is_named():
    given = {f"s{i}": Labelled(X[:, : 3 + (i != 5)], INTS) for i in range(8)}
    with pytest.raises(DataError, match="site 's5' has 3 columns, others 4"):
        learn(Learning(learner=LINEAR), given)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"start": "moment"}, "start is 'moment'; did you mean 'moments'"),
        ({"start": "moments", "model": MLP}, 'start = "moments" finds the basis of a linear model'),
        ({"start": "moments", "learner": FedAvg()}, "whose heads are the sites' own"),
        ({"tune": -1}, "tune is a number of epochs, 0 or more; got -1"),
        ({"tune": 1.5}, "tune is a number of epochs"),
        ({"evaluate_every": 0}, "evaluate_every is at least 1"),
        ({"model": {"kind": "lenet"}}, "did you mean 'lenet5'"),
        ({"model": {"kind": "linear", "hidden": [3]}}, "a linear model has no setting 'hidden'"),
        ({"model": {"kind": "mlp", "classes": 3}}, "classes is said by the data"),
        ({"cohort": Cohort(sample="by-size-with-replacement")}, "FedPower's scheme 1"),
    ],
)
def test_settings_that_cannot_be_are_refused_at_once(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        Learning(**settings)


@pytest.mark.parametrize(
    ("study", "make", "error", "message"),
    [
        (Learning(start="moments"), classes, ConfigurationError, "needs y to be numbers; site 'ash' has classes"),
        (Learning(model=MLP), numbers, DataError, "a network of kind 'mlp' predicts classes, and y is numbers"),
        (Learning(model={**MLP, "hiden": [3]}), classes, ConfigurationError, "'hiden'; did you mean 'hidden'"),
        (Learning(start=np.eye(3)), numbers, ConfigurationError, r"shape \(3, 3\), and .* shared part \(7, 2\)"),
        (Learning(model={"kind": "linear", "components": 8}), numbers, ConfigurationError, "1 and the 7 features"),
        (
            Learning(learner=Doubling(stage=LINEAR, n0=9)), numbers, ConfigurationError,
            "n0 = 9 sites, but a round waits for 4",
        ),
        (Learning(cohort=Cohort(only=("asch",))), numbers, ConfigurationError, r"the cohort names \['asch'\]"),
    ],
)  # fmt: skip
def test_studies_that_do_not_fit_the_sites_leave_nothing_behind(tmp_path, study, make, error, message):
    with pytest.raises(error, match=message):
        learn(study, sources(make()), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_no_sites_and_unlabelled_rows_are_refused():
    with pytest.raises(ConfigurationError, match="at least one site"):
        learn(Learning(), {})
    with pytest.raises(DataError, match="site 'a' has rows, but nothing to predict"):
        learn(Learning(), {"a": open_source(X)})


def test_a_learner_that_diverges_everywhere_stops_with_a_way_out():
    study = Learning(learner=FedRep(rounds=60, rate=1e30, batch=0, momentum=0.0), model=MLP)
    with pytest.raises(ConvergenceError, match=r"every site that answered, 4: .* give it a smaller rate"):
        learn(study, sources(classes()))


def test_one_site_that_diverges_is_left_out_and_counted():
    wild = numbers()
    wild["oak"] = wild["oak"][0] * 1e4, wild["oak"][1]
    with np.errstate(all="ignore"):
        found = learn(Learning(learner=FedAvg(rounds=4, rate=0.1, batch=0, epochs=40)), sources(wild))
    assert found.diverged == {"oak": 4}
    assert found.learned.diverged == 4
    assert np.isfinite(found.shared).all()


def test_a_round_in_which_all_are_silent_stops_the_run_and_can_be_gone_on_with(tmp_path):
    study, make = STUDIES["linear"]
    lossy = partial(Wire, drop=lambda number, site: "question" if number == 4 else None)
    deadline = replace(study, cohort=Cohort(deadline=1e6))
    with pytest.raises(CohortError, match=r"round 4 \(fedrep.update\)"):
        learn(deadline, sources(make()), folder=tmp_path, engine=lossy)
    assert learn(deadline, sources(make()), folder=tmp_path, engine=Wire, resume=True).rounds == 4


def test_stragglers_are_waited_for_by_none_but_their_own_rounds():
    """Doubling: one site only in the first rounds, all of them in the last; who is slow is measured too."""
    study, make = STUDIES["doubling"]
    found = learn(study, sources(make()), engine=VirtualTime())
    asked = [r.sites for r in found.history if not r.setup]
    assert asked == [1, 1, 2, 2, 4, 4, 4]
    assert sorted(found.scores) == sorted(NAMES)


def test_where_all_diverge_the_sites_are_named():
    X, y = numbers()["oak"]
    wild = {**numbers(), "oak": (1e300 * X, 1e300 * y)}
    study = Learning(learner=LINEAR, cohort=Cohort(only=("oak",)))
    with pytest.raises(ConvergenceError, match=r"every site that answered, 1: .* It diverged at oak$"):
        learn(study, sources(wild))


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        (GaussianPrivacy(5.0, 1e-6, row_norm=8.0), "sites tell their numbers of rows .* n_public = true"),
        (5, "privacy is a GaussianPrivacy or None, got 5"),
    ],
)  # fmt: skip
def test_a_privacy_that_could_not_be_kept_is_refused_before_anything_is_told(tmp_path, terms, message):
    with pytest.raises(ConfigurationError, match=message):
        learn(Learning(learner=LINEAR, start="moments"), sources(numbers()), folder=tmp_path / "run", privacy=terms)
    assert not (tmp_path / "run").exists()


def test_the_start_sums_only_those_who_are_to_be_asked():
    some = {name: numbers()[name] for name in sorted(numbers())[:2]}
    asked = Learning(learner=LINEAR, start="moments", cohort=Cohort(only=tuple(some)))
    start = learn(asked, sources(numbers())).start
    alone = learn(Learning(learner=LINEAR, start="moments"), sources(some)).start
    np.testing.assert_array_equal(start.estimate.basis, alone.estimate.basis)
