"""Coordinator and sites killed, apart and together, at every boundary of every round; then opened anew and finished.

The finished run must equal an uninterrupted one to the byte, aggregate by aggregate, and no site may ever give two
answers to one round. A kill is an exception out of the innermost call, after which nothing of the process is used
but its folder; two tests at the end use real processes and signal 9.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedspan.run_folder
import fedspan.sites
from fedspan.data import open_source
from fedspan.encoding import decode, write_atomically
from fedspan.errors import FileError, ResumeError, RoundConflict, StateLost
from fedspan.layers import Journal
from fedspan.rounds import STEPS, Cohort, Round, answer
from fedspan.run import Study, run
from fedspan.sites import open_site
from fedspan.solvers import Solver, make
from tests.conformance.walk import Walk, register
from tests.wire import CoordinatorDown, Log, SiteDown, Wire

SITES = {name: np.random.default_rng(i).standard_normal((6 + i, 5)) for i, name in enumerate(["ash", "elm", "oak"])}
VICTIM = "elm"  # neither the first to be asked nor the last

COORDINATOR = (
    "before the question is journalled",
    "question journalled",
    "sending",  # to the victim: another site has replied, another has not been asked
    "arrived",  # the victim's reply
    "collected",
    "aggregate half written",
    "aggregate written, not journalled",
    "answer journalled",
)
SITE = (
    "delivered",
    "step run, not committed",
    "reply half written",
    "replied",  # committed, before the reply arrives
)
UNCOMMITTED = ("step run, not committed", "reply half written")
"""Where the site's process ends, what it computed ends with it: the step runs again, and nothing had left."""


@dataclass
class Federation:
    """A study with a folder, and a saboteur with one target."""

    folder: Path
    monkeypatch: Any
    solver: Solver = field(default_factory=Walk)
    cohort: Cohort = field(default_factory=Cohort)
    seed: int = 11
    log: Log = field(default_factory=Log)
    target: tuple[str, int] | None = None
    victim: str = "coordinator"
    fired: bool = False
    round: int = -1
    wire: Wire | None = None

    def __post_init__(self) -> None:
        at = self.at

        class Tapped(Journal):
            def asked(self, question):
                at("before the question is journalled", question.number)
                super().asked(question)
                at("question journalled", question.number)

            def answered(self, question, outcome, seconds):
                super().answered(question, outcome, seconds)
                at("answer journalled", question.number)

        def write_aggregate(path, data):
            half_write(path, data, "aggregate half written", path.stem)
            write_atomically(path, data)
            at("aggregate written, not journalled", int(path.stem))

        def write_memory(path, data):
            at("step run, not committed", self.round, path.parent.name)
            half_write(path, data, "reply half written", self.round, path.parent.name)
            write_atomically(path, data)

        def half_write(path, data, event, number, site=VICTIM):
            if self.target == (event, int(number)) and not self.fired and site == VICTIM:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.with_name(f"{path.name}xyz.part").write_bytes(data[: len(data) // 2])
            at(event, int(number), site)

        self.monkeypatch.setattr(fedspan.run_folder, "Journal", Tapped)
        recorder = importlib.import_module("fedspan.layers.record")  # the package has a function of that name
        self.monkeypatch.setattr(recorder, "write_atomically", write_aggregate)
        self.monkeypatch.setattr(fedspan.sites, "write_atomically", write_memory)

    def at(self, event: str, number: int, site: str = VICTIM) -> None:
        """Kill, where this is the target."""
        if event == "delivered":
            self.round = number
        if self.fired or self.target != (event, number) or site not in (VICTIM, ""):
            return
        self.fired = True
        if self.victim != "coordinator" and event not in SITE:
            self.wire.restart(VICTIM)
        if self.victim != "site":
            raise CoordinatorDown(event)
        if event in SITE:
            raise SiteDown(event)

    def reopen(self, name: str):
        """A site from what it left on disk."""
        return open_site(name, open_source(SITES[name]), seed=self.seed, folder=self.folder / "sites")

    def run(self, *, resume: bool = False, survivors: Any = None, **hooks: Any):
        """Run the study over the wire; ``survivors`` are sites whose processes outlived the coordinator."""

        def engine(sites, seed):
            self.wire = Wire(survivors or sites, seed, on_event=self.at, reopen=self.reopen, log=self.log, **hooks)
            return self.wire

        study = Study(n_components=2, solver=self.solver, cohort=self.cohort, seed=self.seed)
        sources = {name: open_source(rows) for name, rows in SITES.items()}
        return run(study, sources, engine=engine, folder=self.folder, resume=resume)

    def aggregates(self) -> dict[str, bytes]:
        """Every recorded aggregate, to the byte."""
        return {p.name: p.read_bytes() for p in sorted((self.folder / "rounds").iterdir()) if p.suffix != ".part"}

    def answers(self) -> list[dict[str, Any]]:
        """The journal's answers, but for the time they took."""
        lines = [json.loads(line) for line in (self.folder / "rounds.jsonl").read_text().splitlines()]
        return [{k: v for k, v in line.items() if k != "seconds"} for line in lines if "answer" in line]


@pytest.fixture
def federation(tmp_path, monkeypatch):
    """A maker of federations, each in its own folder."""
    register(monkeypatch)
    return lambda name="run", **settings: Federation(tmp_path / name, monkeypatch, **settings)


def finish(killed: Federation):
    """Run until the kill, open everything that died from disk, and finish."""
    try:
        return killed.run()
    except CoordinatorDown:
        survivors = killed.wire.sites if killed.victim == "coordinator" else None
        return killed.run(resume=True, survivors=survivors)


def check(killed: Federation, result, whole: Federation, expected) -> None:
    """Byte for byte the uninterrupted run; one answer of each site to each round."""
    at = f"{killed.target} {killed.victim}"
    assert killed.fired, at
    assert result.estimate.basis.tobytes() == expected.estimate.basis.tobytes(), at
    assert result.estimate.values.tobytes() == expected.estimate.values.tobytes(), at
    assert killed.aggregates() == whole.aggregates(), at
    assert killed.answers() == whole.answers(), at
    assert set(killed.log.left) == set(whole.log.left), at
    for asked, replies in killed.log.left.items():
        assert set(replies) == set(whole.log.left[asked]), (at, asked)
    allowed = {(VICTIM, killed.target[1]): 2} if killed.target[0] in UNCOMMITTED else {}
    assert dict(killed.log.executed) == dict(whole.log.executed) | allowed, at
    assert not list((killed.folder / "sites").glob("*/refused.jsonl")), at


SOLVERS = {
    "walk": (Walk(), Cohort()),
    "walk-first": (Walk(), Cohort(first=2)),
    "krylov": (make("krylov", rounds=3, oversampling=0, tol=0.0), Cohort()),
    "faps": (make("faps", rounds=5, tol=0.0), Cohort()),
    "fedpower-scheme-2": (make("fedpower", rounds=4, local_steps=2, tol=0.0), Cohort(fraction=0.7)),
    "fedpower-baseline": (make("fedpower", rounds=3, local_steps=2, tol=0.0, reference="baseline"), Cohort()),
    "dr-svd": (make("dr-svd"), Cohort()),
    "uda": (make("uda"), Cohort()),
}


def kill_everywhere(name, boundary, federation, rounds_of):
    """Kill at a boundary of each of these rounds, each victim in turn."""
    solver, cohort = SOLVERS[name]
    settings = {"solver": solver, "cohort": cohort}
    whole = federation("whole", **settings)
    expected = whole.run()
    asked = {number for site, number in whole.log.executed if site == VICTIM}
    rounds = range(len(whole.answers()))
    assert len(rounds) >= 5
    reached = 0
    for number in rounds_of(rounds):
        if boundary in ("sending", "arrived", *SITE) and number not in asked:
            continue  # the victim was not drawn
        for victim in ("coordinator", "site", "both"):
            if boundary in UNCOMMITTED and victim == "coordinator":
                continue  # the coordinator's end does not stop a site that is at work
            killed = federation(f"{number}-{victim}", **settings, target=(boundary, number), victim=victim)
            check(killed, finish(killed), whole, expected)
            reached += 1
    assert reached >= 2


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("boundary", [*COORDINATOR, *SITE])
def test_a_run_killed_anywhere_ends_as_if_it_had_not_been(name, boundary, federation):
    """The walk in every round; the others in their own first and last, as set-up is the same for all."""
    kill_everywhere(name, boundary, federation, list if name.startswith("walk") else lambda rounds: [3, rounds[-1]])


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in SOLVERS if not name.startswith("walk")])
@pytest.mark.parametrize("boundary", [*COORDINATOR, *SITE])
def test_every_solver_survives_a_kill_in_every_round(name, boundary, federation):
    kill_everywhere(name, boundary, federation, list)


def test_a_finished_run_is_replayed_without_asking_any_site(federation):
    done = federation()
    expected = done.run()
    before = dict(done.log.executed), len(done.log.asked)
    again = done.run(resume=True)
    assert (dict(done.log.executed), len(done.log.asked)) == before
    assert again.estimate.basis.tobytes() == expected.estimate.basis.tobytes()
    assert [(r.round, r.bytes_up) for r in again.history] == [(r.round, r.bytes_up) for r in expected.history]


def test_a_run_survives_a_kill_in_every_round(federation):
    """One life after another, each as long as a single round."""
    whole = federation("whole")
    expected = whole.run()
    killed = federation("killed", victim="both")
    rounds = len(whole.answers())
    for number in range(rounds):
        killed.target, killed.fired = ("arrived", number), False
        with pytest.raises(CoordinatorDown):
            killed.run(resume=number > 0)
    result = killed.run(resume=True)
    assert killed.aggregates() == whole.aggregates()
    assert result.estimate.basis.tobytes() == expected.estimate.basis.tobytes()
    assert set(killed.log.executed.values()) == {1}


@pytest.mark.parametrize("victim", ["site", "both"])
def test_what_is_sent_again_is_what_was_stored(federation, victim):
    """Noise from the operating system cannot be drawn twice, so equal bytes come from the site's memory."""
    killed = federation(solver=Walk(step="tests.walk_entropy"), target=("replied", 5), victim=victim)
    finish(killed)
    first, second = killed.log.left[VICTIM, 5]
    assert first == second
    assert killed.log.executed[VICTIM, 5] == 1
    recorded = np.load(killed.folder / "rounds" / "0005.npy")
    total = sum(decode(killed.log.left[name, 5][0])["value"] for name in SITES)
    np.testing.assert_allclose(recorded, total, rtol=1e-12)
    other = federation("other", solver=Walk(step="tests.walk_entropy"))
    other.run()
    assert other.log.left[VICTIM, 5][0] != first


def test_noise_that_had_not_left_may_be_drawn_anew(federation):
    killed = federation(solver=Walk(step="tests.walk_entropy"), target=("step run, not committed", 5), victim="site")
    finish(killed)
    assert killed.log.executed[VICTIM, 5] == 2
    assert len(killed.log.left[VICTIM, 5]) == 1


# ---- a site's refusals -----------------------------------------------------------------------------------------


def one_site(folder, name=VICTIM):
    return open_site(name, open_source(SITES[name]), seed=1, folder=folder)


def ask(site, number, message, parent=None, step="tests.walk_entropy", terms=None):
    parents = {} if parent is None else {site.id: parent}
    return answer(site, Round(STEPS[step], message, number=number, parents=parents, terms=terms))


@pytest.mark.parametrize("restarted", [False, True])
def test_another_question_for_an_answered_round_is_refused_and_logged(tmp_path, restarted):
    site, z = one_site(tmp_path), np.eye(5)[:, :2]
    first = ask(site, 0, z)
    if restarted:
        site = one_site(tmp_path)
    for other in (2 * z, z.astype(np.float32), {"z": z}):
        with pytest.raises(RoundConflict, match=r"round 0 \(tests.walk_entropy\) was asked again"):
            ask(site, 0, other)
    with pytest.raises(RoundConflict, match="a site answers each round once"):
        ask(site, 0, z, step="tests.walk")
    lines = [json.loads(line) for line in (tmp_path / VICTIM / "refused.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 0, 0, 0]
    assert len({line["question"] for line in lines}) == 4
    assert lines[-1]["step"] == "tests.walk"
    np.testing.assert_array_equal(ask(site, 0, z).value, first.value)  # and the first question is answered as before


def test_a_round_before_the_last_is_refused(tmp_path):
    site, z = one_site(tmp_path), np.eye(5)[:, :2]
    ask(site, 0, z)
    ask(site, 1, z, parent=0)
    with pytest.raises(RoundConflict, match="after round 1 was answered"):
        ask(site, 0, z)


def test_a_failed_step_leaves_nothing_behind(tmp_path):
    site, z = one_site(tmp_path), np.eye(5)[:, :2]
    ask(site, 0, z)
    before = (tmp_path / VICTIM / "memory").read_bytes()
    with pytest.raises(ValueError, match="broadcast"):
        ask(site, 1, np.ones((4, 2)), parent=0)
    assert (tmp_path / VICTIM / "memory").read_bytes() == before
    assert ask(site, 1, z, parent=0).value.shape == z.shape


# ---- lost state ------------------------------------------------------------------------------------------------


def lose_state(killed):
    with pytest.raises(CoordinatorDown):
        killed.run()
    shutil.rmtree(killed.folder / "sites" / VICTIM)


def test_a_site_that_lost_its_folder_says_so(federation):
    killed = federation(target=("question journalled", 5), victim="both")
    lose_state(killed)
    with pytest.raises(StateLost, match=r"site 'elm' lost its state: round 5 .* goes on from round 4"):
        killed.run(resume=True)
    assert killed.log.executed[VICTIM, 5] == 0


def test_a_restored_folder_mends_it(federation, tmp_path):
    whole = federation("whole")
    expected = whole.run()
    killed = federation("killed", target=("question journalled", 5), victim="both")
    with pytest.raises(CoordinatorDown):
        killed.run()
    shutil.move(killed.folder / "sites" / VICTIM, tmp_path / "backup")
    with pytest.raises(StateLost):
        killed.run(resume=True)
    shutil.move(tmp_path / "backup", killed.folder / "sites" / VICTIM)
    assert killed.run(resume=True).estimate.basis.tobytes() == expected.estimate.basis.tobytes()
    assert killed.aggregates() == whole.aggregates()


def test_a_restarting_step_goes_on_from_its_message(tmp_path):
    site, z = one_site(tmp_path), np.eye(5)[:, :2]
    for number in range(3):
        ask(site, number, z, parent=number - 1 if number else None, step="tests.walk_restart")
    assert site.memory.versions[0][1]["steps"] == 3
    shutil.rmtree(tmp_path / VICTIM)
    site = one_site(tmp_path)
    with pytest.raises(StateLost, match="goes on from round 2"):
        ask(site, 3, z, parent=2, step="tests.walk")
    with pytest.raises(StateLost, match="goes on from round 2"):  # it cannot know how its rows were prepared
        ask(site, 3, z, parent=2, step="tests.walk_restart")
    ask(site, 3, z, parent=2, step="tests.walk_restart", terms={})
    assert site.memory.versions[0][1]["steps"] == 1


def test_a_restarting_step_finishes_the_study(federation):
    killed = federation(solver=Walk(step="tests.walk_restart"), target=("question journalled", 5), victim="both")
    lose_state(killed)
    result = killed.run(resume=True)
    assert len(result.history) == 7
    assert killed.log.executed[VICTIM, 5] == 1


def test_a_restarted_site_still_sees_its_rows_prepared(federation):
    whole = federation("whole", solver=Walk(step="tests.walk_restart", rounds=1))
    whole.run()
    killed = federation(
        "killed", solver=Walk(step="tests.walk_restart", rounds=1), target=("question journalled", 3), victim="both"
    )
    lose_state(killed)
    killed.run(resume=True)
    # The first round of a walk needs no state but the preparation, so it must not differ.
    assert killed.log.left[VICTIM, 3] == whole.log.left[VICTIM, 3]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("durable", [False, True])
def test_the_state_of_a_dropped_reply_is_not_used(tmp_path, durable, restarted):
    """The coordinator names the round to go on from; what the site did since is forgotten."""
    z, values = np.eye(5)[:, :2], {}
    for dropped in ([], [2], [2, 3]):
        folder = tmp_path / str(dropped) if durable else None
        site = one_site(folder)
        ask(site, 0, z, step="tests.walk")
        ask(site, 1, z, parent=0, step="tests.walk")
        for number in dropped:
            ask(site, number, 2 * z, parent=1, step="tests.walk")
        if restarted and durable:
            site = one_site(folder)
        values[str(dropped)] = ask(site, 4, z, parent=1, step="tests.walk").value.tobytes()
        assert site.memory.versions[0][1]["steps"] == 3
        assert [number for number, _ in site.memory.versions] == [4, 1]
    assert len(set(values.values())) == 1


def test_a_lost_reply_is_as_if_the_site_had_not_been_asked(federation):
    """Whether the question or the reply was lost, the coordinator cannot tell and the run must not either."""
    runs, lost = {}, {(4, VICTIM), (5, VICTIM)}
    for fate in ("question", "reply"):
        lossy = federation(fate, cohort=Cohort(first=2))
        result = lossy.run(drop=lambda number, site, fate=fate: fate if (number, site) in lost else None)
        assert lossy.log.executed[VICTIM, 4] == (fate == "reply")
        runs[fate] = result.estimate.basis.tobytes(), lossy.aggregates()
    assert runs["question"] == runs["reply"]


# ---- the journal -----------------------------------------------------------------------------------------------


def test_a_torn_last_line_is_dropped_wherever_it_was_cut(federation):
    whole = federation("whole")
    expected = whole.run()
    journal = (whole.folder / "rounds.jsonl").read_bytes()
    last = journal.rstrip(b"\n").rindex(b"\n") + 1
    for cut in sorted({*range(last, len(journal), 17), len(journal) - 2, len(journal) - 1}):
        torn = federation(f"torn-{cut}")
        shutil.copytree(whole.folder, torn.folder)
        (torn.folder / "rounds.jsonl").write_bytes(journal[:cut])
        result = torn.run(resume=True)
        assert result.estimate.basis.tobytes() == expected.estimate.basis.tobytes()
        assert torn.aggregates() == whole.aggregates()
        assert torn.answers() == whole.answers()
        assert sum(torn.log.executed.values()) == 0  # every site had its reply in memory


def test_a_torn_first_line_starts_the_run_again(federation):
    torn = federation(target=("question journalled", 0), victim="both")
    with pytest.raises(CoordinatorDown):
        torn.run()
    (torn.folder / "rounds.jsonl").write_bytes(b'{"round": 0, "st')
    assert len(torn.run(resume=True).history) == 7


@pytest.mark.parametrize("damage", [b"{", b"\x00\x00\x00", b'{"round": 3, "step"', b"\xff\xfe", b"null", b"7", b"{}"])
def test_a_damaged_line_is_an_error_that_names_it(federation, damage):
    done = federation()
    done.run()
    path = done.folder / "rounds.jsonl"
    lines = path.read_bytes().splitlines()
    lines[5] = damage
    path.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(FileError, match=r"rounds\.jsonl: line 6 is damaged"):
        done.run(resume=True)


def test_a_missing_or_damaged_aggregate_is_an_error_that_names_it(federation):
    done = federation()
    done.run()
    path = done.folder / "rounds" / "0004.npy"
    for content in (path.read_bytes()[:-8], b"", b"nonsense", path.read_bytes()[:20]):
        path.write_bytes(content)
        with pytest.raises(FileError, match=r"0004\.npy: a recorded aggregate is unreadable"):
            done.run(resume=True)
    path.unlink()
    with pytest.raises(FileError, match="the run cannot resume"):
        done.run(resume=True)
    plain = done.folder / "rounds" / "0001.plain"
    plain.write_bytes(plain.read_bytes()[:-3])
    with pytest.raises(FileError, match=r"0001\.plain"):
        done.run(resume=True)


def test_another_aggregate_in_the_journal_is_another_study(federation):
    """A changed aggregate is not what was recorded; with its digest changed too, it leads to another question."""
    killed = federation(target=("answer journalled", 6), victim="coordinator")
    with pytest.raises(CoordinatorDown):
        killed.run()
    path = killed.folder / "rounds" / "0004.npy"
    recorded = hashlib.sha256(path.read_bytes()).hexdigest()
    np.save(path, np.load(path) + 1.0)
    with pytest.raises(FileError, match="not those that were recorded"):
        killed.run(resume=True)
    journal = killed.folder / "rounds.jsonl"
    text = journal.read_text()
    assert text.count(recorded) == 1
    journal.write_text(text.replace(recorded, hashlib.sha256(path.read_bytes()).hexdigest()))
    with pytest.raises(ResumeError, match=r"round 5 \(tests.walk\) is not the question that was recorded"):
        killed.run(resume=True)


def test_a_changed_study_is_refused(federation):
    done = federation()
    done.run()
    done.seed = 12
    with pytest.raises(ResumeError, match=r"the study changed since this run began: seed \(seed was 11, is 12\)"):
        done.run(resume=True)
    done.seed, done.solver = 11, Walk(rounds=5)
    with pytest.raises(ResumeError, match="solver"):
        done.run(resume=True)
    done.solver, done.cohort = Walk(), Cohort(first=2)
    with pytest.raises(ResumeError, match="cohort"):
        done.run(resume=True)


def test_a_folder_that_holds_a_run_is_not_overwritten(federation):
    done = federation()
    done.run()
    with pytest.raises(ResumeError, match="holds a run already"):
        done.run()


def test_there_must_be_something_to_resume(federation):
    with pytest.raises(ResumeError, match="holds no run to resume"):
        federation().run(resume=True)


# ---- real processes --------------------------------------------------------------------------------------------

CHILD = """
import sys, time
from functools import partial
from pathlib import Path
import numpy as np
from fedspan.data import open_source
from fedspan.run import Study, run
from fedspan.solvers import make
from tests.wire import Wire

folder, event, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
sites = dict(np.load(folder.parent / "sites.npz"))

def pause(at, round, site):
    if (at, round) == (event, number):
        (folder.parent / "ready").touch()
        time.sleep(60)

study = Study(n_components=2, solver=make("krylov", rounds=4, oversampling=0, tol=0.0), seed=11)
run(study, {n: open_source(x) for n, x in sites.items()}, engine=partial(Wire, on_event=pause), folder=folder)
"""


@pytest.mark.parametrize(("event", "number"), [("replied", 4), ("collected", 5)])
def test_a_real_kill_is_survived(tmp_path, event, number):
    np.savez(tmp_path / "sites.npz", **SITES)
    folder = tmp_path / "run"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["", *sys.path])}
    command = [sys.executable, "-c", CHILD, str(folder), event, str(number)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as child:
        waited_until = time.monotonic() + 50
        while not (tmp_path / "ready").exists():
            assert child.poll() is None, child.stderr.read().decode()
            assert time.monotonic() < waited_until, "the child did not come so far"
            time.sleep(0.02)
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    study = Study(n_components=2, solver=make("krylov", rounds=4, oversampling=0, tol=0.0), seed=11)
    sources = {name: open_source(rows) for name, rows in SITES.items()}
    log = Log()
    resumed = run(study, sources, engine=partial(Wire, log=log), folder=folder, resume=True)
    expected = run(study, sources, engine=Wire, folder=tmp_path / "whole")
    assert resumed.estimate.basis.tobytes() == expected.estimate.basis.tobytes()
    ours, theirs = (
        {p.name: p.read_bytes() for p in (f / "rounds").iterdir() if p.suffix != ".part"}
        for f in (folder, tmp_path / "whole")
    )
    assert ours == theirs
    answered_before_the_kill = ["ash"] if event == "replied" else sorted(SITES)
    assert sorted(set(SITES) - {site for site, n in log.executed if n == number}) == answered_before_the_kill
    assert min(n for _, n in log.executed) == number if event == "replied" else number + 1
