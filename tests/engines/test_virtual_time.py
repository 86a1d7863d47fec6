"""Virtual time: who arrives when, what a round waits for, what is late, and a clock that survives a kill."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest

from fedspan import FederatedPCA
from fedspan.data import open_source
from fedspan.encoding import payload_bytes
from fedspan.engines import DynamicSpeeds, FixedSpeeds, GivenSpeeds, InProcess, VirtualTime, get_engine
from fedspan.errors import CohortError, ConfigurationError, DataError
from fedspan.privacy.transcript import Transcript
from fedspan.rounds import STEPS, Cohort, Late, Outcome, Reply, Round, Site, Sum, drive, numbered, site_step
from tests.conformance.faults import dies_in
from tests.wire import CoordinatorDown

NAMES = ["a", "b", "c", "d"]
TIMES = {"a": 4.0, "b": 1.0, "c": 3.0, "d": 2.0}
MULTIPLY = STEPS["gram.multiply"]
Z = np.eye(3)[:, :2]


@site_step("tests.ticket")
def ticket(site, message):
    """Reply who, and how often: the state counts the rounds this site's replies were used."""
    used = site.state.get("used", 0)
    return Reply({"one": 1.0, "used": float(used)}, state={"used": used + 1})


@site_step("tests.who")
def who(site, message):
    """Reply a one in this site's place."""
    return Reply(np.eye(len(NAMES))[NAMES.index(site.id)])


@site_step("tests.other")
def other(site, message):
    """Another step with the same reply."""
    return Reply(np.eye(len(NAMES))[NAMES.index(site.id)])


@site_step("tests.broken")
def broken(site, message):
    """Refuse."""
    raise DataError("too few rows")


def sites(names=NAMES):
    rng = np.random.default_rng(0)
    return [Site(name, open_source(rng.standard_normal((5 + i, 3))), seed=1) for i, name in enumerate(names)]


def engine(times=TIMES, seed=0, here=None, **law):
    return VirtualTime(speeds=GivenSpeeds(times=times), **law)(sites() if here is None else here, seed)


def played(questions, execute) -> list[Outcome]:
    """Ask these questions one after another; return each outcome."""
    outcomes = []

    def solve():
        for number in range(len(questions)):
            yield questions[number]

    def noting(question):
        outcomes.append(execute(question))
        return outcomes[-1]

    drive(numbered(solve()), noting)
    return outcomes


def clocks(outcomes):
    return [outcome.clock for outcome in outcomes]


# ---- a round's time ------------------------------------------------------------------------------------------------


def test_a_round_ends_with_its_slowest_site():
    outcomes = played([Round(MULTIPLY, Z)] * 3, engine())
    assert clocks(outcomes) == [4.0, 8.0, 12.0]
    assert outcomes[0].sites == NAMES


def test_communication_is_paid_once_a_round():
    assert clocks(played([Round(MULTIPLY, Z)] * 2, engine(communication=0.5))) == [4.5, 9.0]


def test_bytes_cost_time_both_ways():
    """48 bytes down and as many up at 12 bytes a second: 4 seconds each way."""
    outcome = engine(bandwidth=12.0)(Round(MULTIPLY, Z, number=0))
    assert outcome.clock == 4.0 + 4.0 + 4.0
    assert (outcome.bytes_up, outcome.bytes_down) == (4 * Z.nbytes, 4 * Z.nbytes)


def test_a_short_reply_overtakes_on_a_thin_link():
    """Only whoever has answered counts: a replies with nothing, b with bytes that take a while."""

    @dataclass(frozen=True)
    class Speeds:
        def seconds(self, names, seed, number):
            return np.array([1.0, 0.5, 9.0, 9.0])

    run = VirtualTime(speeds=Speeds(), bandwidth=1.0)(sites(), 0)
    step = replace(who, run=lambda site, message: Reply(None if site.id == "a" else np.ones(1)))
    outcome = run(Round(step, number=0, cohort=Cohort(first=1)))
    assert (outcome.sites, outcome.clock) == (["a"], 1.0)
    assert [late.site for late in outcome.dropped] == ["b"]  # was made at 0.5, would be here at 8.5
    assert outcome.bytes_up == 8


def test_all_at_once_is_in_name_order():
    run = engine({})
    assert run(Round(who, number=0, cohort=Cohort(first=2))).sites == ["a", "b"]
    assert run(Round(who, number=1, cohort=Cohort(first=3), clock=1.0)).sites == ["a", "b", "c"]


def test_times_of_zero_are_allowed():
    assert engine(dict.fromkeys(NAMES, 0.0))(Round(who, number=0)).clock == 0.0


# ---- whom a round waits for ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "names", "over"), [(1, "b", 1.0), (2, "bd", 2.0), (3, "bcd", 3.0), (9, "abcd", 4.0)])
def test_the_first_replies_are_those_of_the_fastest(first, names, over):
    outcome = engine()(Round(who, number=0, cohort=Cohort(first=first)))
    assert (outcome.sites, outcome.clock) == (list(names), over)
    assert outcome.value.tolist() == [float(name in names) for name in NAMES]
    assert (outcome.dropped, outcome.carried) == ((), ())  # what would be late is not computed
    assert outcome.bytes_up == len(names) * 32


def test_a_share_of_the_rows_ends_a_round():
    """Rows are 5, 6, 7, 8 at a, b, c, d; arrivals b, d, c, a."""
    for share, names, over in [(0.2, "b", 1.0), (0.5, "bd", 2.0), (14 / 26, "bd", 2.0), (0.55, "bcd", 3.0)]:
        outcome = engine()(Round(who, number=0, cohort=Cohort(share=share)))
        assert (outcome.sites, outcome.clock) == (list(names), over), share


def test_a_deadline_ends_a_round_at_that_time_and_a_reply_on_the_stroke_counts():
    outcome = engine()(Round(who, number=0, cohort=Cohort(deadline=3.0), clock=10.0))
    assert (outcome.sites, outcome.clock) == (["b", "c", "d"], 13.0)
    outcome = engine()(Round(who, number=0, cohort=Cohort(deadline=2.5), clock=10.0))
    assert (outcome.sites, outcome.clock) == (["b", "d"], 12.5)


def test_a_round_that_all_answer_ends_before_its_deadline():
    assert engine()(Round(who, number=0, cohort=Cohort(deadline=100.0))).clock == 4.0


def test_first_and_deadline_whichever_is_sooner():
    for deadline, names, over in [(1.5, "b", 1.5), (50.0, "bd", 2.0)]:
        outcome = engine()(Round(who, number=0, cohort=Cohort(first=2, deadline=deadline)))
        assert (outcome.sites, outcome.clock) == (list(names), over)


def test_a_round_nobody_answers_in_time_is_an_error():
    with pytest.raises(
        CohortError, match=r"round 0 \(tests.who\): none of 4 sites answered in time; .* longer deadline"
    ):
        engine()(Round(who, number=0, cohort=Cohort(deadline=0.5)))


def test_a_site_that_never_answers_is_named_with_the_way_out():
    never = TIMES | {"c": math.inf}
    with pytest.raises(CohortError, match=r"round 0 \(tests.who\): of 'c' there will be no reply.*first"):
        engine(never)(Round(who, number=0))
    setup = replace(who, setup=True)
    with pytest.raises(
        CohortError, match="of 'c' there will be no reply; set-up needs every site once: leave them out"
    ):
        engine(never)(Round(setup, number=0))
    assert engine(never)(Round(who, number=0, cohort=Cohort(first=3))).sites == ["a", "b", "d"]
    outcome = engine(never)(Round(who, number=0, cohort=Cohort(deadline=6.0, late="carry")))
    assert (outcome.sites, outcome.clock, outcome.carried) == (["a", "b", "d"], 6.0, ())


def test_draws_are_those_of_the_in_process_engine():
    for cohort in (Cohort(fraction=0.5), Cohort(sample="by-size-with-replacement"), Cohort(only=("d", "b"))):
        for number in range(8):
            question = Round(who, number=number, cohort=cohort)
            one, two = engine(seed=5)(question), InProcess(sites(), 5)(question)
            assert one.sites == two.sites
            assert one.value.tobytes() == two.value.tobytes()
            assert one.clock == max(TIMES[name] for name in one.sites)


def test_a_site_drawn_twice_computes_once_and_counts_twice():
    totals = [
        engine(seed=5)(Round(who, number=number, cohort=Cohort(sample="by-size-with-replacement")))
        for number in range(10)
    ]
    assert {float(outcome.value.sum()) for outcome in totals} == {4.0}
    assert max(outcome.value.max() for outcome in totals) >= 2.0


def test_held_sites_are_asked_again_whoever_is_fast_then():
    questions = [Round(who, cohort=Cohort(first=2, hold="x"))] * 3 + [Round(who, cohort=Cohort(first=2, hold="y"))]
    run = VirtualTime(speeds=DynamicSpeeds())(sites(), 8)
    outcomes = played(questions, run)
    assert outcomes[0].sites == outcomes[1].sites == outcomes[2].sites
    free = played([Round(who, cohort=Cohort(first=2))] * 3, run)
    assert len({tuple(outcome.sites) for outcome in free}) > 1


# ---- late replies -------------------------------------------------------------------------------------------------


def carrying(rounds, times=TIMES, **cohort):
    return played([Round(who, None, Sum(), Cohort(late="carry", **cohort))] * rounds, engine(times))


def test_a_late_reply_joins_the_round_in_which_it_arrives():
    """Two a round: b at 1 and d at 2, again 3 and 4; c is there at 3, and a at 4."""
    outcomes = carrying(3, first=2)
    assert clocks(outcomes[:2]) == [2.0, 4.0]
    assert [(late.site, late.due) for late in outcomes[0].carried] == [("c", 3.0), ("a", 4.0)]
    assert outcomes[1].sites == ["b", "d"]
    assert outcomes[1].value.tolist() == [1.0, 1.0, 1.0, 1.0]  # c and a of the first round, b and d of the second
    assert [(late.site, late.due) for late in outcomes[1].carried] == [("c", 6.0), ("a", 8.0)]  # busy until 3 and 4


def test_a_reply_may_be_late_by_several_rounds():
    outcomes = carrying(5, {"a": 4.5, "b": 1.0, "c": 1.0, "d": 1.0}, first=3)
    assert clocks(outcomes) == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert [float(outcome.value[0]) for outcome in outcomes] == [0, 0, 0, 0, 1]
    assert all(outcome.carried[0].due == 4.5 for outcome in outcomes[:4])


def test_a_busy_site_begins_when_it_is_done():
    """Site a owes a reply for 4.5: in the round that asks it at 1 it cannot answer before 9."""
    outcomes = carrying(2, {"a": 4.5, "b": 1.0, "c": 1.0, "d": 1.0}, first=3)
    assert [late.due for late in outcomes[1].carried] == [4.5, 9.0]


def test_a_site_is_busy_whatever_the_step():
    slow = {"a": 5.0, "b": 1.0, "c": 1.0, "d": 1.0}
    outcomes = played([Round(who, cohort=Cohort(first=3, late="carry")), Round(other), Round(who)], engine(slow))
    assert clocks(outcomes) == [1.0, 10.0, 15.0]
    assert [float(outcome.value[0]) for outcome in outcomes] == [0.0, 1.0, 2.0]  # its own, and the one carried over


def test_a_site_whose_late_reply_is_dropped_is_free_at_once():
    assert clocks(played([Round(who, cohort=Cohort(first=3)), Round(who)], engine())) == [3.0, 7.0]


def test_with_a_deadline_a_round_of_nothing_but_a_carried_reply_counts():
    outcomes = carrying(2, {"a": 1.5, "b": 9.0, "c": 9.0, "d": 1.0}, deadline=1.0)
    assert outcomes[0].sites == ["d"]
    assert clocks(outcomes) == [1.0, 2.0]
    assert outcomes[1].value.tolist() == [1.0, 0.0, 0.0, 1.0]
    lone = played(
        [Round(who, cohort=Cohort(deadline=1.0, late="carry")), Round(who, cohort=Cohort(only=("b",), deadline=0.8))],
        engine({"a": 1.5, "b": 9.0, "c": 9.0, "d": 1.0}),
    )
    assert lone[1].sites == []
    assert lone[1].value.tolist() == [1.0, 0.0, 0.0, 0.0]


def test_states_stay_right_when_replies_are_late():
    """A site's state goes on from its last reply that was used, as on the in-process engine."""
    outcomes = played([Round(ticket, cohort=Cohort(first=3, late="carry"))] * 12, engine())
    used = sum(float(outcome.value["one"]) for outcome in outcomes)
    assert used == 12 * 3 + 12 - len(outcomes[-1].carried)


def test_a_reply_that_waits_is_not_sent_twice():
    outcomes = carrying(6, {"a": 4.5, "b": 1.0, "c": 1.0, "d": 1.0}, first=3)
    sent = sum(outcome.bytes_up for outcome in outcomes)
    assert sent == 32 * 4 * 6


# ---- as everywhere -------------------------------------------------------------------------------------------------


def test_the_answer_is_that_of_the_in_process_engine_to_the_bit():
    for cohort in (Cohort(), Cohort(first=9), Cohort(deadline=50.0)):
        question = Round(MULTIPLY, Z, number=0, cohort=cohort)
        one, two = engine(seed=3)(question), InProcess(sites(), 3)(question)
        assert one.value.tobytes() == two.value.tobytes()
        assert one[1:6] == two[1:6]


def test_failures_name_the_site():
    with pytest.raises(DataError, match="site 'b': too few rows"):  # the fastest
        engine()(Round(broken, number=0))
    with pytest.raises(ConfigurationError, match="two sites have the same name"):
        VirtualTime()([*sites(), *sites()], 0)


@pytest.mark.parametrize(
    ("law", "message"),
    [
        ({"speeds": FixedSpeeds}, r"speeds is a speed model such as FixedSpeeds\(mean=1.0\)"),
        ({"speeds": "fixed"}, "speeds is a speed model"),
        ({"communication": -1.0}, "communication is a number, 0 or more, of seconds; got -1.0"),
        ({"communication": math.inf}, "communication is"),
        ({"communication": "1"}, "communication is"),
        ({"bandwidth": 0.0}, "bandwidth is a positive number of bytes a second"),
        ({"bandwidth": True}, "bandwidth is a positive number"),
    ],
)
def test_what_is_wrong_is_refused(law, message):
    with pytest.raises(ConfigurationError, match=message):
        VirtualTime(**law)


@pytest.mark.parametrize("wrong", [[1.0], [1.0, -1.0, 1.0, 1.0], [1.0, math.nan, 1.0, 1.0]])
def test_a_speed_model_of_ones_own_is_checked(wrong):
    class Speeds:
        def seconds(self, names, seed, number):
            return wrong

    with pytest.raises(ConfigurationError, match="a speed model gives a time, 0 or more, for each of 4 sites"):
        VirtualTime(speeds=Speeds())(sites(), 0)(Round(who, number=0))


def test_by_name():
    assert get_engine("virtual-time") == VirtualTime()
    with pytest.raises(ConfigurationError, match=r"the class VirtualTime, not an engine: write VirtualTime\(\)"):
        get_engine(VirtualTime)


def test_busy_is_until_the_last_reply_a_site_owes():
    asked = []

    def execute(question):
        asked.append(question)
        late = (Late("a", 1.0, 1.0, 1, 5.0), Late("a", 1.0, 1.0, 1, 7.0), Late("b", 1.0, 1.0, 1, 2.0))
        return Outcome(1.0, ["c"], 0, 0, late if question.number == 0 else (), (), 3.0)

    drive(numbered(iter_rounds(3)), execute)
    assert [question.busy for question in asked] == [{}, {"a": 7.0}, {}]
    assert [question.clock for question in asked] == [0.0, 3.0, 3.0]


def iter_rounds(count):
    for _ in range(count):
        yield Round(who)


# ---- estimators ----------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
DATA = {name: RNG.standard_normal((20 + i, 6)) * [5, 4, 3, 2, 1, 1] for i, name in enumerate(NAMES)}
LATE = Cohort(first=2, late="carry")


def fitted(**settings):
    given = {"solver": "power", "random_state": 3, "engine": "virtual-time"} | settings
    return FederatedPCA(2, **given).fit(DATA)


def test_an_estimator_keeps_the_clock_in_its_history():
    seen = []
    pca = fitted(on_round=lambda record, estimate: seen.append(record.clock))
    times = [record.clock for record in pca.history_]
    assert all(one < two for one, two in pairwise(times))
    assert seen == times[pca.n_setup_rounds_ :]
    assert {round(two - one, 9) for one, two in pairwise(times)} == {round(times[0], 9)}  # fixed, and all answer
    assert {record.clock for record in fitted(engine=None).history_} == {0.0}
    np.testing.assert_array_equal(pca.components_, fitted(engine=None).components_)


def test_the_speeds_have_a_seed_of_their_own():
    one, two = (fitted(engine=VirtualTime(seed=seed)) for seed in (1, 2))
    assert one.history_[-1].clock != two.history_[-1].clock
    np.testing.assert_array_equal(one.components_, two.components_)
    again = fitted(engine=VirtualTime(seed=1), random_state=4)
    assert again.history_[0].clock == one.history_[0].clock


def test_saved_history_has_the_clock(tmp_path):
    pca = fitted()
    pca.save(tmp_path / "model")
    assert FederatedPCA.load(tmp_path / "model").history_ == pca.history_


@pytest.mark.parametrize("law", [VirtualTime(), VirtualTime(speeds=DynamicSpeeds(), communication=0.1, bandwidth=5e3)])
@pytest.mark.parametrize("cohort", [None, LATE, Cohort(deadline=6.0, late="carry"), Cohort(share=0.6)], ids=str)
def test_a_resumed_run_has_the_clock_and_the_late_replies_of_an_uninterrupted_one(law, cohort, tmp_path):
    settings = {"participation": cohort, "solver": "fedpower" if cohort else "power", "engine": law}

    def trace(pca):
        return [(r.round, r.clock, r.sites, r.bytes_up, r.bytes_down) for r in pca.history_]

    expected = fitted(**settings)
    for number in (0, 3, 4, 6, 9):
        folder = tmp_path / str(number)
        with pytest.raises(CoordinatorDown):
            fitted(**settings | {"engine": dies_in(number, law)}, run_folder=folder)
        resumed = fitted(**settings, run_folder=folder, resume=True)
        assert trace(resumed) == trace(expected)
        np.testing.assert_array_equal(resumed.components_, expected.components_)


def test_a_transcript_has_each_release_once_in_the_round_that_asked_for_it(tmp_path):
    with pytest.warns(UserWarning, match="transcript"):
        pca = fitted(participation=LATE, solver="fedpower", run_folder=tmp_path / "run", record="transcript")
    rounds = Transcript.read(tmp_path / "run").rounds
    kept = sum(payload_bytes(reply) for seen in rounds for reply in seen.replies.values())
    assert kept == sum(record.bytes_up for record in pca.history_)
    assert all(len(seen.replies) == len(DATA) for seen in rounds)
