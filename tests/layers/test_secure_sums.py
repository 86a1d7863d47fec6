"""Secure sums as a layer: the solver is given what a plain round would, and is told how it was made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedspan.data import Preparation, open_source
from fedspan.engines import InProcess, VirtualTime
from fedspan.engines.speeds import FixedSpeeds
from fedspan.errors import CohortError, ConfigurationError, DataError
from fedspan.layers import Journal, observe, record, secure_sums
from fedspan.linalg import Summary
from fedspan.privacy import GaussianPrivacy
from fedspan.reduce import Gather, Mean, Merge, Sum
from fedspan.rounds import STEPS, Cohort, Masked, Reply, Round, Site, drive, numbered, site_step
from fedspan.run import Study, run
from fedspan.secure import SecureSums, SumTerms, fixed_point, steps
from fedspan.solvers import FedPower, Power
from tests.secure.silence import Silence
from tests.wire import Wire

NAMES = ["ash", "elm", "fir", "oak", "yew"]
RULES = SecureSums()
PATIENT = Cohort(deadline=60.0)


def of(name: str, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([len(name), ord(name[0]), seed]).standard_normal((3, 2))


@site_step("tests.own")
def own(site: Site, message: Any) -> Reply:
    """Numbers whose size nobody knows before."""
    return Reply(float(message or 1) * of(site.id), weight=1.0 + ord(site.id[0]) % 4)


@site_step("tests.parts", bound=lambda message, total, weight: {"a": 10 * total, "b": 9 * weight})
def parts(site: Site, message: Any) -> Reply:
    """Parts of declared size."""
    return Reply({"a": of(site.id), "b": np.array(1.0 + len(site.id))}, weight=2.0)


class Rows:
    symmetric = False
    mass = 1.0

    def total(self) -> float:
        return 1.0


def sites_of(terms: SumTerms) -> list[Site]:
    parties = terms.parties(NAMES)
    sites = [Site(name, None) for name in NAMES]
    for site in sites:
        site.data, site.masks = Rows(), parties[site.id]
    return sites


def terms_of(**settings: Any) -> SumTerms:
    return SumTerms(**{"rules": RULES, "run": "a run", "expected": len(NAMES)} | settings)


def ask(*questions: Round, engine: Any = InProcess, terms: Any = None, wrap: Any = None) -> Any:
    """Ask sites; return what the solver is given, and the records of its rounds."""
    terms, records = terms or terms_of(), []

    def solver():
        values = []
        for question in questions:
            value = yield question
            values.append(value)
        return values

    layered = observe(numbered(solver()), lambda told, _: records.append(told))
    layered = layered if wrap is None else wrap(layered)
    return drive(secure_sums(layered, terms), engine(sites_of(terms), 0)), records


class Phases:
    """An engine that keeps each question and what it cost."""

    def __init__(self, inner: Any = InProcess) -> None:
        self._inner, self.asked, self.bytes = inner, [], []

    def __call__(self, sites: Any, seed: int) -> Any:
        execute = self._inner(sites, seed)

        def run(question):
            outcome = execute(question)
            self.asked.append(question)
            self.bytes.append((outcome.bytes_up, outcome.bytes_down))
            return outcome

        return run

    @property
    def kinds(self) -> list[str]:
        return [q.message["kind"] for q in self.asked if q.step.name == "secure.keys"]


# ---- values ----------------------------------------------------------------------------------------------------


def test_a_sum_is_that_of_the_replies_to_the_rounding_it_reports():
    ((value,), (told,)) = ask(Round(own, 1e3))
    exact = 1e3 * sum(of(name) for name in NAMES)
    assert value.shape == (3, 2)
    assert 0 < told.masked.rounding < 1e-11
    assert np.abs(value - exact).max() <= told.masked.rounding + np.spacing(np.abs(exact)).max()


@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 1e12, 1e100])
def test_the_scale_follows_the_size(size):
    ((value,), (told,)) = ask(Round(own, size))
    np.testing.assert_allclose(value, size * sum(of(name) for name in NAMES), rtol=1e-13)
    assert told.masked.rounding < size * 1e-15


def test_parts_come_back_by_name():
    ((value,), _) = ask(Round(parts, None, total=1.0, weight=5.0))
    np.testing.assert_allclose(value["a"], sum(of(name) for name in NAMES), atol=1e-15)
    assert value["b"] == 5 + 15
    assert value["b"].ndim == 0


def test_a_mean_is_weighted_and_its_weight_is_gone():
    ((one, two), _) = ask(Round(own, 1.0, Mean()), Round(parts, None, Mean(), total=1.0, weight=5.0))
    weights = {name: 1.0 + ord(name[0]) % 4 for name in NAMES}
    exact = sum(w * of(name) for name, w in weights.items()) / sum(weights.values())
    np.testing.assert_allclose(one, exact, rtol=1e-12)
    np.testing.assert_allclose(two["a"], sum(of(name) for name in NAMES) / 5, rtol=1e-12)
    assert set(two) == {"a", "b"}
    assert two["b"] == 4


def test_a_scalar_comes_back_as_a_scalar():
    @site_step("tests.scalar")
    def scalar(site, message):
        return Reply(np.array(0.5 * len(site.id)))

    try:
        ((value,), _) = ask(Round(scalar))
        assert value == 7.5
        assert np.ndim(value) == 0
    finally:
        del STEPS["tests.scalar"]


def test_nothing_but_zeros_is_a_sum():
    @site_step("tests.zeros")
    def zeros(site, message):
        return Reply(np.zeros(3))

    try:
        ((value,), _) = ask(Round(zeros))
        assert value.tolist() == [0.0, 0.0, 0.0]
    finally:
        del STEPS["tests.zeros"]


# ---- the scale -------------------------------------------------------------------------------------------------


def test_a_bound_is_summed_first_where_none_is_declared():
    engine = Phases()
    ask(Round(own, 2.0), engine=engine)
    assert engine.kinds == ["bound", "value"]


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ({}, ["value"]),
        ({"total": None}, ["bound", "value"]),
        ({"weight": None}, ["bound", "value"]),
        ({"reduce": Mean()}, ["bound", "value"]),
        ({"cohort": Cohort(first=4)}, ["value"]),
        ({"cohort": Cohort(sample="by-size-with-replacement")}, ["bound", "value"]),
    ],
    ids=str,
)
def test_a_declared_bound_spares_that(change, kinds):
    engine = Phases(lambda sites, seed: InProcess(sites, 2))
    terms = terms_of(expected=3, most_times=5)
    ask(replace(Round(parts, None, total=1.0, weight=5.0), **change), engine=engine, terms=terms)
    assert engine.kinds == kinds


def test_a_declared_bound_says_the_scale():
    engine = Phases()
    _, (told,) = ask(Round(parts, None, total=1.0, weight=5.0), engine=engine)
    (masked,) = [q for q in engine.asked if q.step is steps.masked]
    assert masked.message["exponents"] == {
        "a": fixed_point.exponent_for(10 * steps.SLACK), "b": fixed_point.exponent_for(45 * steps.SLACK),
    }  # fmt: skip
    assert told.masked.rounding == fixed_point.rounding_error(masked.message["exponents"]["b"], 5)


def test_a_number_beyond_its_bound_is_an_error_that_names_the_site():
    with pytest.raises(DataError, match=r"^site 'ash': a number of its reply in round 0 \(tests.parts\) is beyond the"):
        ask(Round(parts, None, total=0.01, weight=5.0), engine=shrunk)


def shrunk(sites: Any, seed: int) -> Any:
    for site in sites:
        site.data.total = lambda: 0.01
    return InProcess(sites, seed)


def test_under_a_policy_such_an_error_is_a_code(monkeypatch):
    privacy = GaussianPrivacy(1.0, 1e-6, row_norm=1.0, trust="local")
    rows = {name: np.random.default_rng(i).standard_normal((20, 4)) for i, name in enumerate(NAMES)}
    plain = fixed_point.encode

    def beyond(values, exponent, limit, rng):
        return plain(values, exponent, -1.0, rng)

    monkeypatch.setattr(fixed_point, "encode", beyond)
    with pytest.raises(DataError) as error:
        run(
            Study(n_components=2, solver="power", privacy=privacy, secure=RULES),
            {name: open_source(x) for name, x in rows.items()},
        )
    assert str(error.value) == (
        "site 'ash' cannot answer round 1 (data.moments): code data; the site's own log says more"
    )


# ---- who is in it ----------------------------------------------------------------------------------------------

ROWS = {f"s{i}": np.random.default_rng(i).standard_normal((10 + 3 * i, 5)) for i in range(9)}


def study(solver: Any, **settings: Any) -> Study:
    return Study(
        **{"n_components": 2, "solver": solver, "preparation": Preparation(center=False), "secure": RULES} | settings
    )


def result(of_study: Study, **settings: Any) -> Any:
    return run(of_study, {name: open_source(x) for name, x in ROWS.items()}, **settings)


@pytest.mark.parametrize("engine", [None, Wire, VirtualTime()], ids=["in-process", "wire", "virtual time"])
def test_drawn_with_replacement_a_reply_counts_as_often_as_it_was_drawn(engine):
    """FedPower's scheme 1: multiplicities ride in the message, and nobody sees them but the sites."""
    cohort = Cohort(fraction=0.9, sample="by-size-with-replacement")
    solver = FedPower(rounds=4, local_steps=2, tol=0.0)
    masked = result(study(solver, cohort=cohort, seed=4), engine=engine)
    plain = result(study(solver, cohort=cohort, seed=4, secure=None), engine=engine)
    np.testing.assert_allclose(masked.estimate.values, plain.estimate.values, rtol=1e-9)
    asked = {r.masked.asked for r in masked.history if not r.setup and r.step == "fedpower.local_steps"}
    assert min(asked) < 8  # some were drawn twice


def test_the_first_so_many_are_the_sum_and_the_rest_dropped_out():
    cohort = Cohort(first=7)
    masked = result(study(Power(rounds=4, tol=0.0), cohort=cohort))
    plain = result(study(Power(rounds=4, tol=0.0), cohort=cohort, secure=None))
    for told in masked.history:
        if not told.setup:
            assert (told.sites, len(told.masked.dropped), told.masked.asked) == (7, 2, 9)
    np.testing.assert_allclose(masked.estimate.values, plain.estimate.values, rtol=1e-9)


def test_a_cohort_of_fewer_than_a_sum_takes_is_refused():
    with pytest.raises(
        ConfigurationError, match="the cohort waits for 6 sites, and a secure sum takes at least 7 of 9"
    ):
        result(study("power", cohort=Cohort(first=6)))


def test_replies_after_the_deadline_are_not_in_the_sum():
    slow = {"s1": 100.0, "s7": 50.0}

    class Speeds:
        def seconds(self, names, seed, number):
            return [slow.get(name, 1.0) if number > 2 else 1.0 for name in names]

    engine = VirtualTime(speeds=Speeds(), communication=0.5)
    masked = result(study(Power(rounds=3, tol=0.0), cohort=Cohort(deadline=10.0)), engine=engine)
    plain = result(study(Power(rounds=3, tol=0.0), cohort=Cohort(deadline=10.0), secure=None), engine=engine)
    own_rounds = [told for told in masked.history if not told.setup and told.round > 2]
    assert own_rounds
    for told in own_rounds:
        assert (told.sites, told.masked.dropped) == (7, ("s1", "s7"))
    np.testing.assert_allclose(masked.estimate.values, plain.estimate.values, rtol=1e-9)


def test_virtual_time_is_that_of_one_round_of_work_and_of_all_exchanges():
    engine = VirtualTime(speeds=FixedSpeeds(mean=2.0), communication=0.5)
    masked, plain = (result(study(Power(rounds=1, tol=0.0), secure=rules), engine=engine) for rules in (RULES, None))
    slowest = plain.clock / len(plain.history) - 0.5
    exchanges = sum(5 if not told.setup or told.step == "data.prepare" else 1 for told in masked.history)
    assert masked.clock >= exchanges * 0.5 + slowest
    assert masked.clock < 2 * exchanges * 0.5 + 2 * len(masked.history) * slowest


def test_a_site_that_drops_out_of_set_up_is_waited_for():
    """Else it would answer later on rows that were never prepared, and nobody would see it."""
    of_study = study("krylov", preparation=Preparation())
    whole = result(of_study)
    for number, phase in ((1, "masked"), (2, "masked"), (2, "shares"), (3, "masked")):
        engine = Silence(lambda n, p, attempt, at=(number, phase): {"s4"} if (n, p) == at and attempt == 1 else ())
        again = result(of_study, engine=engine)
        np.testing.assert_allclose(again.estimate.basis, whole.estimate.basis, atol=1e-12)
        assert sum(told.masked.attempts > 1 for told in again.history if told.masked) == 1
    with pytest.raises(CohortError, match="8 sites sent their masked replies, and it takes 9 of 9"):
        result(of_study, engine=Silence(lambda n, p, attempt: {"s4"} if (n, p) == (2, "masked") else ()))


def test_in_set_up_masks_of_who_dropped_out_come_off_whatever_the_terms():
    @site_step("tests.begin", setup=True)
    def begin(site, message):
        return Reply(of(site.id), state={"preparation": {"mean": 1.0}})

    try:
        asked = Round(begin, cohort=PATIENT, terms={"preparation": {"mean": 2.0}})
        engine = Silence(lambda number, phase, attempt: {"elm"} if phase == "masked" else ())
        ((value,), _) = ask(asked, engine=engine)
        np.testing.assert_allclose(value, sum(of(name) for name in NAMES if name != "elm"), rtol=1e-12)
    finally:
        del STEPS["tests.begin"]


# ---- refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "question",
    [
        Round(own, 1.0, Gather()),
        Round(own, 1.0, Merge(Summary)),
        Round(own, 1.0, Sum(), Cohort(first=4, late="carry")),
        Round(own, 1.0, Mean(), Cohort(first=4, late="carry")),
    ],
    ids=["gather", "merge", "sum carried over", "mean carried over"],
)
def test_what_shows_single_replies_or_carries_them_over_is_refused(question):
    engine = Phases()
    with pytest.raises(ConfigurationError, match=r"secure sums add replies up, and step tests.own shows"):
        ask(question, engine=engine)
    assert engine.asked == []


def test_what_tells_nothing_of_the_rows_passes():
    found = result(study(Power(rounds=2)))
    assert found.history[0].step == "data.describe"
    assert found.history[0].masked is None
    assert found.history[0].aggregate == "gather"
    assert all(told.masked is not None for told in found.history[1:])


# ---- what is told of it ----------------------------------------------------------------------------------------


def test_a_record_says_how_the_sum_was_made():
    engine = Silence(lambda number, phase, attempt: {"elm"} if phase == "masked" else ())
    _, (told,) = ask(Round(own, 1.0, cohort=PATIENT), engine=engine)
    made = told.masked
    assert (made.asked, made.neighbours, made.quorum, made.dropped, made.attempts) == (5, 4, 4, ("elm",), 1)
    assert made.refused == {}
    assert told.aggregate == "sum"
    assert told.sites == 4


def test_a_site_that_refuses_is_told_with_its_reason():
    class Tampering(Phases):
        def __call__(self, sites, seed):
            execute = super().__call__(sites, seed)

            def run(question):
                if question.step is steps.consent:
                    for site in sites:
                        if site.id == "oak":
                            site.masks._session = None
                return execute(question)

            return run

    _, (told,) = ask(Round(own, 1.0, cohort=PATIENT), engine=Tampering())
    assert told.masked.refused == {"oak": "round 0: this site has no secure sum under way that has come so far"}
    assert told.sites == 5


def test_bytes_are_those_of_all_exchanges():
    engine = Phases()
    _, (told,) = ask(Round(own, 1.0), engine=engine)
    assert len(engine.asked) == 10
    assert told.bytes_up == sum(up for up, _ in engine.bytes)
    assert told.bytes_down == sum(down for _, down in engine.bytes)


def test_failed_attempts_are_paid_for_too():
    once, twice = Phases(), Phases()
    ask(Round(own, 1.0), engine=once)
    lossy = Silence(lambda number, phase, attempt: {"elm"} if phase == "shares" and attempt == 1 else (), inner=twice)
    _, (told,) = ask(Round(own, 1.0), engine=lossy)
    assert told.bytes_up > sum(up for up, _ in once.bytes)
    assert told.bytes_up == sum(up for up, _ in twice.bytes)


def test_noised_sums_are_exact_and_say_so():
    rows = {name: np.random.default_rng(i).standard_normal((20, 4)) for i, name in enumerate(NAMES)}
    privacy = GaussianPrivacy(1.0, 1e-6, row_norm=1.0, trust="distributed")
    found = run(Study(n_components=2, solver="power", privacy=privacy), {n: open_source(x) for n, x in rows.items()})
    assert {told.masked.rounding for told in found.history if told.masked} == {0.0}


def test_a_replayed_round_tells_the_same(tmp_path):
    silent = Silence(lambda number, phase, attempt: {"fir"} if phase == "masked" else ())

    def journalled(solve):
        return record(solve, Journal(tmp_path))

    first, told = ask(Round(own, 1.0, cohort=PATIENT), Round(own, 2.0, cohort=PATIENT), engine=silent, wrap=journalled)

    def never(sites, seed):
        def run(question):
            raise AssertionError("asked again")

        return run

    again, replayed = ask(
        Round(own, 1.0, cohort=PATIENT), Round(own, 2.0, cohort=PATIENT), engine=never, wrap=journalled
    )
    for one, other in zip(first, again, strict=True):
        assert one.tobytes() == other.tobytes()
    assert [r.masked for r in replayed] == [r.masked for r in told]
    assert all(isinstance(r.masked, Masked) and r.masked.dropped == ("fir",) for r in replayed)
    for one, other in zip(told, replayed, strict=True):
        assert (one.bytes_up, one.bytes_down, one.sites) == (other.bytes_up, other.bytes_down, other.sites)
