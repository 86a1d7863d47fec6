"""The transcript holds what left each site, all of it and once, whatever solver asked and whoever was killed."""

from __future__ import annotations

import json
import os
import shutil
from functools import partial

import numpy as np
import pytest

import fedspan.privacy.transcript
import fedspan.run
from fedspan.data import open_source
from fedspan.encoding import decode, encode
from fedspan.engines import InProcess
from fedspan.errors import CohortError, FileError
from fedspan.layers import transcript
from fedspan.privacy.transcript import Transcript, TranscriptWriter
from fedspan.rounds import Cohort, Gather, Late, Mean, Outcome, Reply, Round, Site, Sum, drive, numbered, site_step
from fedspan.run import Study, run
from fedspan.solvers import Doubling, Power
from tests.conformance.solvers import CASES, SCHEME_1, bits, rows_of, solve
from tests.conformance.walk import Walk, register
from tests.wire import CoordinatorDown, Log, Wire


@site_step("tests.transcript")
def tell(site, message):
    """Something of this site and this round, with a weight where the message asks for one."""
    value = np.array([len(site.id), site.round, message["i"]], dtype=float)
    return Reply(value, weight=len(site.id) if message["weighted"] else 1.0)


def sites():
    return [Site(name, open_source(np.ones((2, 2)) * i)) for i, name in enumerate(["a", "bb", "ccc", "dddd"])]


def driven(folder, reduce=None, *, rounds=6, cohort=None, engine=None, weighted=False):
    """Ask so many rounds with a transcript; returns the aggregates and what was kept."""

    def solver():
        aggregates = []
        for i in range(rounds):
            message = {"i": i, "weighted": weighted}
            aggregates.append((yield Round(tell, message, reduce or Sum(), cohort or Cohort())))
        return aggregates

    engine = engine or InProcess(sites(), seed=2)
    aggregates = drive(transcript(numbered(solver()), TranscriptWriter(folder)), engine)
    return aggregates, Transcript.read(folder).rounds


def same(one, other):
    return encode(one) == encode(other)


def near(one, other):
    """Sums of two runs agree but for what each site adds before it rounds."""
    if isinstance(one, dict):
        assert set(one) == set(other)
        for name, part in one.items():
            near(part, other[name])
    elif one is None or other is None:
        assert one is other
    else:
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-9)


def journal(folder):
    """What the journal says of each answered round."""
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return {line["round"]: line for line in lines if "answer" in line}


def aggregate(folder, line):
    path = folder / line["answer"]["file"]
    return np.load(path) if path.suffix == ".npy" else decode(path.read_bytes())


# ---- every solver ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_transcript_is_what_left_each_site(case, tmp_path):
    log = Log()
    result = solve(case, engine=partial(Wire, log=log), folder=tmp_path, record="transcript")
    rounds, answered = Transcript.read(tmp_path).rounds, journal(tmp_path)
    # merges happen in the coordinator's process: below, it sees each reply
    assert [(seen.round, seen.step, seen.setup, seen.aggregate) for seen in rounds] == [
        (r.round, r.step, r.setup, r.aggregate.replace("merge", "gather")) for r in result.history
    ]
    for number, step, site, message in log.asked:
        assert rounds[number].step == step
        assert same(rounds[number].message, message)
        if site not in answered[number]["sites"]:  # too late to count, but it left the site
            assert case.cohort.first is not None or isinstance(case.solver, Doubling)
            assert site in rounds[number].replies
    for seen in rounds:
        left = {site: decode(*replies) for (site, number), replies in log.left.items() if number == seen.round}
        assert {reply["weight"] for reply in left.values()} == {1.0}
        assert same(seen.replies, {site: reply["value"] for site, reply in left.items()})
    assert bits(result) == bits(solve(case, engine=Wire))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_replies_make_up_the_aggregate(case, tmp_path):
    solve(case, folder=tmp_path, record="transcript")
    lines = journal(tmp_path)
    for seen in Transcript.read(tmp_path).rounds:
        whole = aggregate(tmp_path, lines[seen.round])
        if seen.aggregate == "gather":
            assert same({name: value for name, value in whole.items() if not name.endswith(")")}, seen.replies)
        elif case.cohort != SCHEME_1 or seen.setup:  # there a reply counts as often as its site was drawn
            total = Sum().collector(False)
            for name in sorted(seen.replies):
                total.add(name, seen.replies[name], 1.0, 1)
            assert same(total.result(), whole)


@pytest.mark.parametrize("case", CASES[::5], ids=str)
def test_a_transcript_changes_nothing_else(case, tmp_path):
    plain = solve(case, folder=tmp_path / "plain")
    kept = solve(case, folder=tmp_path / "kept", record="transcript")
    assert bits(plain) == bits(kept)
    names = {path.relative_to(tmp_path / "plain") for path in (tmp_path / "plain").rglob("*")}
    assert not any("transcript" in str(name) for name in names)
    more = {path.relative_to(tmp_path / "kept") for path in (tmp_path / "kept").rglob("*")} - names
    assert {name.parts[0] for name in more} == {"transcript"}


# ---- what a reply is -------------------------------------------------------------------------------------------


def test_a_reply_is_kept_before_the_outcome_is_used(tmp_path):
    def solver():
        for i in range(3):
            yield Round(tell, {"i": i, "weighted": False})
            assert len(Transcript.read(tmp_path).rounds) == i + 1

    drive(transcript(numbered(solver()), TranscriptWriter(tmp_path)), InProcess(sites()))


@pytest.mark.parametrize("reduce", [Sum(), Mean(), Gather()], ids=lambda reduce: type(reduce).__name__)
@pytest.mark.parametrize("engine", [InProcess, Wire])
def test_a_weight_that_left_is_kept_with_its_value(tmp_path, reduce, engine):
    aggregates, rounds = driven(tmp_path, reduce, engine=engine(sites()), weighted=True)
    for number, seen in enumerate(rounds):
        values = {name: np.array([len(name), number, number], dtype=float) for name in ("a", "bb", "ccc", "dddd")}
        assert same(seen.replies.pop("a"), values.pop("a"))  # its weight is 1
        assert same(seen.replies, {n: {"value": v, "weight": float(len(n))} for n, v in values.items()})
    if reduce == Mean():
        np.testing.assert_allclose(aggregates[0][0], (1 + 4 + 9 + 16) / 10)


@pytest.mark.parametrize("reduce", [Sum(), Gather()], ids=lambda reduce: type(reduce).__name__)
def test_a_site_drawn_twice_released_once(tmp_path, reduce):
    cohort = Cohort(fraction=1.0, sample="by-size-with-replacement")
    aggregates, rounds = driven(tmp_path, reduce, cohort=cohort)
    assert any(len(seen.replies) < 4 for seen in rounds)
    for whole, seen in zip(aggregates, rounds, strict=True):
        for name, value in seen.replies.items():
            assert same(value, np.array([len(name), seen.round, seen.round], dtype=float))
        if reduce == Gather():
            assert len(whole) == 4
            assert {name.split(" ")[0] for name in whole} == set(seen.replies)


# ---- late replies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cohort", [Cohort(first=3, late="carry"), Cohort(fraction=0.5, first=1, late="carry")], ids=str
)
@pytest.mark.parametrize("reduce", [Sum(), Mean()], ids=lambda reduce: type(reduce).__name__)
def test_a_carried_reply_belongs_to_the_round_that_asked_for_it(tmp_path, reduce, cohort):
    outcomes, engine = [], InProcess(sites(), seed=2)

    def execute(question):
        outcomes.append(engine(question))
        return outcomes[-1]

    _, rounds = driven(tmp_path, reduce, rounds=20, cohort=cohort, engine=execute)
    for outcome, seen in zip(outcomes, rounds, strict=True):
        assert len(outcome.carried) == 1
        assert sorted(seen.replies) == sorted([*outcome.sites, outcome.carried[0].site])
        for name, value in seen.replies.items():
            assert same(value, np.array([len(name), seen.round, seen.round], dtype=float))


def test_a_carried_reply_is_told_from_an_equal_new_one(tmp_path):
    """Even where they are one object: in round 1 site a answers too, in round 3 it does not."""
    value = np.ones(1)

    def execute(question):
        collector, in_time = question.reduce.collector(False), ["b", "a", "b", "b"][question.number]
        for reply in question.carried:
            collector.add(reply.site, reply.value, reply.weight, reply.times)
        collector.add(in_time, value, 1.0, 1)
        late = (Late("a", value, 1.0, 1),) if question.number in (0, 2) else ()
        return Outcome(collector.result(), [in_time], 0, 0, late)

    aggregates, rounds = driven(tmp_path, rounds=4, engine=execute)
    assert aggregates == [1.0, 2.0, 1.0, 2.0]
    assert [sorted(seen.replies) for seen in rounds] == [["a", "b"], ["a"], ["a", "b"], ["b"]]


def test_a_reply_that_was_dropped_was_seen(tmp_path):
    """It came after the deadline, and counts nowhere; the coordinator has it all the same."""

    def execute(question):
        collector = question.reduce.collector(False)
        collector.add("a", np.ones(1), 1.0, 1)
        return Outcome(collector.result(), ["a"], 0, 0, dropped=(Late("b", np.full(1, 5.0), 1.0, 1),))

    aggregates, rounds = driven(tmp_path, rounds=2, engine=execute)
    assert aggregates == [1.0, 1.0]
    assert [seen.replies["b"].tolist() for seen in rounds] == [[5.0], [5.0]]


def test_a_site_that_was_never_asked_released_nothing(tmp_path):
    """In one process a reply that would not be among the first K is not even computed."""
    _, rounds = driven(tmp_path, cohort=Cohort(first=3, late="drop"))
    assert {len(seen.replies) for seen in rounds} == {3}


def test_a_run_with_carried_replies_resumes_to_the_same_transcript(tmp_path):
    study = Study(n_components=2, solver="power", cohort=Cohort(first=3, late="carry"))
    sources = {name: open_source(rows) for name, rows in rows_of().items()}

    def stop(record, estimate):
        if record.round == 6:
            raise KeyboardInterrupt

    run(study, sources, folder=tmp_path / "whole", record="transcript")
    with pytest.raises(KeyboardInterrupt):
        run(study, sources, folder=tmp_path / "stopped", record="transcript", watchers=[stop])
    run(study, sources, folder=tmp_path / "stopped", record="transcript", resume=True)
    assert files(tmp_path / "stopped") == files(tmp_path / "whole")
    late = [seen for seen in Transcript.read(tmp_path / "whole").rounds if not seen.setup]
    assert {len(seen.replies) for seen in late} == {4}


# ---- kills -----------------------------------------------------------------------------------------------------

BOUNDARIES = (
    "sending",
    "collected",
    "file half written",
    "file written, not in the index",
    "line cut short",
    "in the index, not journalled",
    "journalled",
)
SITES = {name: np.random.default_rng(i).standard_normal((6 + i, 5)) for i, name in enumerate(["ash", "elm", "oak"])}


def files(folder):
    """Every round as kept, to the byte."""
    return {path.name: path.read_bytes() for path in (folder / "transcript").glob("*.plain")}


class Killer:
    """Ends the coordinator's process once, at a boundary of a round."""

    def __init__(self, boundary, number):
        self.target, self.fired = (boundary, number), False

    def reaches(self, boundary, number):
        return not self.fired and self.target == (boundary, number)

    def at(self, boundary, number, site=""):
        if self.reaches(boundary, number):
            self.fired = True
            raise CoordinatorDown(boundary)

    def tap(self, monkeypatch):
        at, reaches, write = self.at, self.reaches, fedspan.privacy.transcript.write_atomically

        def write_round(path, data):
            number = int(path.stem)
            if reaches("file half written", number):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.with_name(f"{path.name}.1.part").write_bytes(data[: len(data) // 2])
            at("file half written", number)
            write(path, data)
            at("file written, not in the index", number)

        class Tapped(TranscriptWriter):
            def append(self, seen):
                super().append(seen)
                if reaches("line cut short", seen.round):
                    os.truncate(self._index, self._index.stat().st_size - 9)
                at("line cut short", seen.round)
                at("in the index, not journalled", seen.round)

        monkeypatch.setattr(fedspan.privacy.transcript, "write_atomically", write_round)
        monkeypatch.setattr(fedspan.run, "TranscriptWriter", Tapped)


def walked(folder, killer=None, *, resume=False, **hooks):
    """Run a study over the wire with a transcript."""
    at = (lambda *event: None) if killer is None else killer.at
    study = Study(n_components=2, solver=Walk(), cohort=Cohort(first=2), seed=11)
    sources = {name: open_source(rows) for name, rows in SITES.items()}
    watchers = [lambda record, estimate: at("journalled", record.round)]
    engine = partial(Wire, on_event=at, **hooks)
    return run(study, sources, engine=engine, folder=folder, record="transcript", watchers=watchers, resume=resume)


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_run_killed_anywhere_has_a_whole_transcript(boundary, tmp_path, monkeypatch):
    register(monkeypatch)
    expected = walked(tmp_path / "whole")
    rounds = len(expected.history)
    assert rounds == 7
    for number in range(rounds):
        folder, killer = tmp_path / str(number), Killer(boundary, number)
        with monkeypatch.context() as patched:
            killer.tap(patched)
            with pytest.raises(CoordinatorDown):
                walked(folder, killer)
        answered = journal(folder)
        assert set(answered) <= {int(name[:4]) for name in files(folder)}
        result = walked(folder, resume=True)
        assert bits(result) == bits(expected)
        assert files(folder) == files(tmp_path / "whole")
        assert [seen.round for seen in Transcript.read(folder).rounds] == list(range(rounds))


def test_a_finished_run_keeps_its_transcript_when_it_is_replayed(tmp_path, monkeypatch):
    register(monkeypatch)
    walked(tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / "transcript").iterdir()}
    walked(tmp_path, resume=True)
    assert {path: path.read_bytes() for path in (tmp_path / "transcript").iterdir()} == before


def test_a_run_whose_transcript_was_lost_asks_nothing_more(tmp_path, monkeypatch):
    register(monkeypatch)
    with pytest.raises(CoordinatorDown):
        walked(tmp_path, Killer("sending", 5))
    shutil.rmtree(tmp_path / "transcript")
    log = Log()
    with pytest.raises(FileError, match="round 0 is not in the transcript, so it cannot be made whole"):
        walked(tmp_path, resume=True, log=log)
    assert log.asked == []


def test_a_round_that_failed_is_kept_when_it_is_asked_again(tmp_path, monkeypatch):
    register(monkeypatch)
    with pytest.raises(CohortError, match="1 of 3 sites answered"):
        walked(tmp_path, drop=lambda number, site: "question" if number == 4 and site != "ash" else None)
    assert len(Transcript.read(tmp_path).rounds) == 4
    walked(tmp_path, resume=True)
    assert len(Transcript.read(tmp_path).rounds) == 7


# ---- secure sums -----------------------------------------------------------------------------------------------


def masked(folder, *, stop_at=None, resume=False, engine=None, **study):
    """Run a study of secure sums with its transcript, perhaps as far as an exchange of a round."""
    study = Study(n_components=2, solver=Power(rounds=3, tol=0.0), secure=True, **study)
    sources = {name: open_source(x) for name, x in SITES.items()}
    asked = iter(range(10**6))

    class Stopping(InProcess):
        def __call__(self, question):
            if next(asked) == stop_at:
                raise KeyboardInterrupt
            return super().__call__(question)

    return run(study, sources, folder=folder, record="transcript", resume=resume, engine=engine or Stopping)


def test_of_a_secure_sum_the_exchanges_are_kept_and_what_it_came_to(tmp_path):
    log = Log()
    result = masked(tmp_path, engine=partial(Wire, log=log))
    kept, answered = Transcript.read(tmp_path), journal(tmp_path)
    assert [(seen.round, seen.step, seen.aggregate) for seen in kept.rounds] == [
        (r.round, r.step, r.aggregate) for r in result.history
    ]
    assert len(kept.sums) == len(kept.rounds) - 1
    for seen in kept.sums:
        assert seen.replies == {}
        assert seen.summed == answered[seen.round]["sites"] == sorted(SITES)
        assert same(seen.total, aggregate(tmp_path, answered[seen.round]))
    phases = ["secure.keys", "secure.shares", "secure.masked", "secure.consent", "secure.release"]
    for number in range(1, len(kept.rounds)):
        some = [seen for seen in kept.exchanges if seen.round == number]
        sums = 2 if number <= 2 else 1  # bounds first, where the step declares none
        assert [seen.exchange for seen in some] == list(range(5 * sums))
        assert [seen.step for seen in some[:5]] == phases
    left = {}
    for (site, number), replies in log.left.items():
        left[site, number] = [decode(reply)["value"] for reply in replies]
    for site in SITES:
        for number in range(1, len(kept.rounds)):
            of_site = [seen.replies[site] for seen in kept.exchanges if seen.round == number]
            assert same(of_site, left[site, number])


@pytest.mark.parametrize("stop_at", [1, 3, 5, 6, 11, 20, 23])
def test_what_was_seen_before_a_kill_stays(tmp_path, stop_at):
    expected = masked(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        masked(tmp_path / "cut", stop_at=stop_at)
    before = files(tmp_path / "cut")
    Transcript.read(tmp_path / "cut")
    result = masked(tmp_path / "cut", resume=True)
    assert result.rounds == expected.rounds
    np.testing.assert_allclose(result.estimate.basis, expected.estimate.basis, atol=1e-12)
    after = files(tmp_path / "cut")
    assert {name: after[name] for name in before} == before
    whole, cut = Transcript.read(tmp_path / "whole"), Transcript.read(tmp_path / "cut")
    for one, other in zip(whole.rounds, cut.rounds, strict=True):
        near(one.total, other.total)
    assert len(cut.exchanges) >= len(whole.exchanges)


def test_exchanges_of_a_sum_that_failed_were_seen(tmp_path):
    class Silent(InProcess):
        def __call__(self, question):
            outcome = super().__call__(question)
            return outcome._replace(value={}, sites=[]) if question.step.name == "secure.consent" else outcome

    with pytest.raises(CohortError):
        masked(tmp_path, engine=Silent)
    read = Transcript.read(tmp_path)
    assert [seen.round for seen in read.rounds] == [0]
    assert [seen.step for seen in read.exchanges].count("secure.masked") == 3  # asked again, twice
