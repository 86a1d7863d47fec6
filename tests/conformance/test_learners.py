"""What every registered learner must do, whatever it learns."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from fedspan.encoding import decode
from fedspan.engines import FixedSpeeds, GivenSpeeds, InProcess, VirtualTime
from fedspan.errors import CohortError
from fedspan.learners import HFMAML, FedAvg, FedRep, LGFedAvg
from fedspan.learners.choices import NAMES
from fedspan.rounds import Cohort, Memory
from tests.conformance.faults import dies_in, silent_in_turn
from tests.conformance.learners import (
    BY_ID,
    CASES,
    FIRST,
    LINEAR,
    SETUP_ROUNDS,
    SITES,
    bits,
    distance,
    own_rounds,
    solve,
    sources_of,
    traffic,
)
from tests.wire import CoordinatorDown, Log, Wire

every = pytest.mark.parametrize("case", CASES, ids=str)
DRAWN = [case for case in CASES if case.cohort.first is not None or case.doubles]
"""Where who is first is drawn, and in other ways by other engines."""
WHOLE = [case for case in CASES if case not in DRAWN and case.cohort.is_full]
SMALL = [case for case in WHOLE if "-linear" in case.id or "-mlp" in case.id]
"""The four learners, each with both models, without doubling."""


def test_every_learner_is_listed():
    assert set(NAMES) <= {name for case in CASES for name in NAMES if case.id.startswith(name)}


# ---- engines and order -----------------------------------------------------------------------------------------


@every
def test_in_process_equals_the_wire(case):
    here, there = solve(case), solve(case, engine=Wire)
    assert there.shared.dtype == here.shared.dtype
    assert distance(here, there) < case.tolerance
    assert [r.sites for r in here.history] == [r.sites for r in there.history]
    assert here.bytes_down == there.bytes_down
    if case not in DRAWN:
        assert here.bytes_up == there.bytes_up


@every
def test_virtual_time_equals_in_process_to_the_bit_where_the_sites_are_the_same(case):
    there = solve(case, engine=VirtualTime(communication=0.5))
    clocks = [record.clock for record in there.history]
    assert clocks == sorted(clocks)
    assert clocks[-1] > 0.5 * len(own_rounds(there))
    assert [r.clock for r in there.history[:SETUP_ROUNDS]] == [0, 0]
    if case not in DRAWN:
        here = solve(case)
        assert bits(here) == bits(there)
        assert traffic(here) == traffic(there)
    assert all(np.isfinite(part).all() for part in (there.shared, *there.heads.values()))


@every
def test_the_order_of_arrival_does_not_change_a_bit(case):
    runs = [solve(case, engine=partial(Wire, shuffle=s)) for s in (None, 1, 2)]
    assert bits(runs[0]) == bits(runs[1]) == bits(runs[2])
    assert traffic(runs[0]) == traffic(runs[1]) == traffic(runs[2])


@every
def test_the_order_of_sites_does_not_change_a_bit(case):
    backwards = dict(reversed(sources_of(case).items()))
    assert bits(solve(case)) == bits(solve(case, backwards))


@every
def test_the_seed_determines_the_run(case):
    one, again, other = (solve(case, seed=seed) for seed in (5, 5, 6))
    assert bits(one) == bits(again)
    assert traffic(one) == traffic(again)
    assert bits(one) != bits(other)
    assert one.scores == again.scores


@every
def test_it_learns(case):
    """The mean loss, where it starts and after more rounds of the same."""
    more = replace(case.part, rounds=40)
    longer = replace(case, learner=replace(case.learner, stage=more) if case.doubles else more)
    assert solve(longer).learned.loss < 0.9 * solve(replace(case, learner=replace(case.part, rounds=1))).learned.loss


@every
def test_one_site_is_a_federation(case):
    learner = replace(case.learner, n0=1) if case.doubles else case.learner
    case = replace(case, learner=learner, cohort=Cohort())
    result = solve(case, {"only": sources_of(case)["accra"]})
    assert np.isfinite(result.shared).all()
    assert list(result.heads) == ["only"]


# ---- stopping and coming back ----------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("wired", [False, True], ids=["in-process", "wire"])
def test_a_resumed_run_equals_an_uninterrupted_one(case, wired, tmp_path):
    engine = Wire if wired else InProcess
    whole_run = solve(case, engine=engine, evaluate_every=3)
    total = len(whole_run.history)
    for number in sorted({0, 2, total // 2, total - 1}):
        folder = tmp_path / str(number)
        with pytest.raises(CoordinatorDown):
            solve(case, engine=dies_in(number, engine), evaluate_every=3, folder=folder)
        resumed = solve(case, engine=engine, evaluate_every=3, folder=folder, resume=True)
        assert bits(resumed) == bits(whole_run), number
        assert traffic(resumed) == traffic(whole_run), number
        assert [scores for _, scores in resumed.curve] == [scores for _, scores in whole_run.curve]


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_a_run_with_late_replies_carried_over_resumes_as_it_was(case, tmp_path):
    engine = VirtualTime(speeds=GivenSpeeds(times={"berlin": 1.5, "cairo": 2, "delhi": 3.5}))
    case = replace(case, cohort=Cohort(first=2, late="carry"))
    whole_run = solve(case, engine=engine)
    for number in (3, 4, 5):
        folder = tmp_path / str(number)
        with pytest.raises(CoordinatorDown):
            solve(case, engine=dies_in(number, engine), folder=folder)
        assert bits(solve(case, engine=engine, folder=folder, resume=True)) == bits(whole_run), number


# ---- silent and slow sites -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [case for case in CASES if not case.holds], ids=str)
@pytest.mark.parametrize("fate", ["question", "reply"])
def test_dropped_replies_are_survived_where_the_cohort_allows(case, fate):
    case = replace(case, cohort=FIRST)
    end = SETUP_ROUNDS + len(own_rounds(solve(case)))  # then all are measured, whatever the cohort
    silent = silent_in_turn(fate, SITES, SETUP_ROUNDS, end if case.part.stall is None else SETUP_ROUNDS + 4)
    result = solve(case, engine=partial(Wire, drop=silent))
    assert {record.sites for record in own_rounds(result)} <= ({1, 2, 3} if case.doubles else {3})
    assert all(np.isfinite(part).all() for part in (result.shared, *result.heads.values()))


@every
def test_a_silent_site_is_an_error_where_all_are_needed(case):
    silent = silent_in_turn("question", SITES, SETUP_ROUNDS)
    with pytest.raises(CohortError, match=r"[0-3] of [1-4] sites answered"):
        solve(replace(case, cohort=Cohort()), engine=partial(Wire, drop=silent))


@pytest.mark.parametrize("case", SMALL, ids=str)
@pytest.mark.parametrize("late", ["drop", "carry"])
def test_a_slow_site_misses_a_deadline_or_joins_a_later_round(case, late):
    speeds = GivenSpeeds(times={"delhi": 2.5})
    result = solve(replace(case, cohort=Cohort(deadline=2, late=late)), engine=VirtualTime(speeds=speeds))
    fast = {name: source for name, source in sources_of(case).items() if name != "delhi"}
    without = solve(replace(case, cohort=Cohort(deadline=2)), fast, engine=VirtualTime(speeds=GivenSpeeds()))
    assert {record.sites for record in own_rounds(result)} == {3}
    if late == "drop":
        assert result.shared.tobytes() == without.shared.tobytes()
    else:  # from the second round on
        assert np.abs(result.shared - without.shared).max() > 1e-6
    assert np.isfinite(result.shared).all()


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_where_no_site_answers_in_time_the_run_stops_and_says_so(case):
    cohort = Cohort(deadline=0.5)
    with pytest.raises(CohortError, match=r"round 2 .*none of 4 sites answered in time; give the cohort a longer"):
        solve(replace(case, cohort=cohort), engine=VirtualTime(speeds=GivenSpeeds()))
    never = VirtualTime(speeds=GivenSpeeds(default=float("inf")))
    with pytest.raises(CohortError, match=r"round 2 .*of 'accra', 'berlin', 'cairo', 'delhi' there will be no reply"):
        solve(case, engine=never)


@pytest.mark.parametrize("case", [case for case in CASES if case.doubles], ids=str)
def test_stages_wait_for_more_and_more_sites(case):
    result = solve(case, engine=VirtualTime(speeds=FixedSpeeds()))
    waited = [record.sites for record in own_rounds(result)]
    assert waited == sorted(waited)
    assert waited[0] < waited[-1]


# ---- what leaves a site ----------------------------------------------------------------------------------------


def keeping(kept, engine):
    """An engine that notes what of each site's own stays at it, after each round."""

    def make_engine(sites, seed):
        execute = engine(sites, seed)

        def run_round(question):
            outcome = execute(question)
            for site in sites:
                state = site.memory.versions[0][1] if site.memory.versions else {}
                if "own" in state:
                    kept.setdefault(site.id, []).append(np.array(state["own"]))
            return outcome

        return run_round

    return make_engine


@pytest.mark.parametrize("case", [case for case in CASES if case.part.own != "none"], ids=str)
def test_what_is_a_sites_own_never_leaves_it(case):
    """On the bytes of every letter, either way: no four neighbouring numbers of any head (or body) that ever was."""
    log, kept = Log(), {}
    solve(case, engine=keeping(kept, partial(Wire, log=log)), evaluate_every=2)
    letters = [letter for replies in log.left.values() for letter in replies]
    sent = [array.tobytes() for _, _, _, message in log.asked for array in arrays_of(message)]
    assert set(kept) == set(SITES)
    for own in (own for owns in kept.values() for own in owns):
        runs = [own[at : at + 4] for at in range(0, max(1, own.size - 3))]
        for run in (run for run in runs if np.all(run != 0)):
            for telling in (run, -run):
                piece = telling.tobytes()
                assert not any(piece in letter for letter in letters)
                assert not any(piece in message for message in sent)


def arrays_of(message):
    parts = message.values() if isinstance(message, dict) else [message]
    return [part for part in parts if isinstance(part, np.ndarray)]


@every
def test_a_reply_is_shared_parameters_and_three_numbers(case):
    log = Log()
    result = solve(case, engine=partial(Wire, log=log))
    updates = {number for number, step, _, _ in log.asked if step.endswith(".update")}
    letters = [letter for (_, number), some in log.left.items() if number in updates for letter in some]
    wanted = {"shared", "weight", "loss", "diverged"} | ({"heads"} if getattr(case.part, "heads", False) else set())
    assert len(letters) >= len(updates) == len(own_rounds(result))
    for reply in (decode(letter)["value"] for letter in letters):
        assert set(reply) == wanted
        assert reply["shared"].shape == result.shared.shape
        assert reply["shared"].dtype == result.shared.dtype


# ---- what it costs ---------------------------------------------------------------------------------------------

ROUNDS = {"doubling-": 2 + 2 + 4, "flanp-": 2 + 3, "lg-flanp-": 2 + 3, "": 4}
"""Of the cases with the four learners: n0 = 1 or 2 of four sites, two rounds a stage, then the learner's own."""
SETTINGS = {FedRep: 8 * (4 + 4 + 1 + 1), LGFedAvg: 8 * 5, FedAvg: 8 * 5, HFMAML: 8 * 7}
"""Bytes of a question beside the parameters: descents of four numbers, and switches."""


@pytest.mark.parametrize("case", [case for case in CASES if case.id.endswith(("-linear", "-mlp"))], ids=str)
def test_rounds_and_bytes_are_those_of_the_docstrings(case):
    """The shared parameters to and from each site that answers, and three numbers up."""
    result = solve(case, engine=VirtualTime(speeds=GivenSpeeds(times=dict(zip(SITES, (1, 2, 3, 4), strict=True)))))
    assert len(own_rounds(result)) == next(count for prefix, count in ROUNDS.items() if case.id.startswith(prefix))
    for record in own_rounds(result):
        assert record.bytes_up == record.sites * (result.shared.nbytes + 24)
        asked = record.bytes_down / (result.shared.nbytes + SETTINGS[type(case.part)])
        assert asked in ({4, record.sites} if case.holds else {4})


def test_second_moments_of_heads_cost_k_by_k_more():
    result = solve(BY_ID["fedrep-heads"])
    assert {record.bytes_up for record in own_rounds(result)} == {4 * (result.shared.nbytes + 24 + 8 * 2 * 2)}


# ---- a site that lost its state ----------------------------------------------------------------------------------


def forgets(name, number, engine):
    """An engine under which a site forgets all that it kept before round ``number``."""

    def make_engine(sites, seed):
        execute = engine(sites, seed)

        def run_round(question):
            if question.number == number:
                next(site for site in sites if site.id == name).memory = Memory()
            return execute(question)

        return run_round

    return make_engine


@pytest.mark.parametrize("case", SMALL, ids=str)
@pytest.mark.parametrize("engine", [InProcess, Wire, VirtualTime()], ids=["in-process", "wire", "virtual-time"])
@pytest.mark.parametrize("number", [3, 5, 6], ids=["second-round", "last-round", "measuring"])
def test_a_site_that_lost_its_state_begins_anew_from_the_terms(case, engine, number):
    result, whole_run = solve(case, engine=forgets("cairo", number, engine)), solve(case, engine=engine)
    total = len(whole_run.history)
    assert total == 7
    assert len(result.history) == total
    if case.part.own == "none" or (case.part.own == "head" and case.model is LINEAR):  # nothing rests on what it kept
        assert result.shared.tobytes() == whole_run.shared.tobytes()
        if number < 6:
            assert bits(result) == bits(whole_run)
    elif number < 6:
        assert bits(result) != bits(whole_run)
    assert np.isfinite(result.shared).all()
    first = solve(replace(case, learner=replace(case.learner, rounds=1)), engine=forgets("cairo", 3, engine))
    if number == 6:  # measured with the head that all begin with, which is the one it has again
        np.testing.assert_array_equal(result.heads["cairo"], first.heads["cairo"])
