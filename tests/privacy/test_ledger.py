"""The privacy ledger: it charges before a release leaves, once, never past a bound, and loses nothing to a kill."""

from __future__ import annotations

import json
import math
import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fedspan.errors import BudgetExhausted, ConfigurationError, FileError
from fedspan.privacy.ledger import Charge, Ledger, composed
from tests.privacy import ledger_worker as worker

KEY: dict[str, Any] = {"run": "a", "round": 1, "question": "5f", "step": "gram.multiply", "release": "product"}
OTHER = {"run": "b", "round": 2, "question": "60", "step": "rows.count", "release": "rows"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "site.ledger"


@pytest.fixture(params=["file", "memory"])
def ledger(request: pytest.FixtureRequest, path: Path) -> Iterator[Ledger]:
    with Ledger(path if request.param == "file" else None, budget=1.0) as opened:
        yield opened


def rounds(ledger: Ledger) -> list[int]:
    return [charge.round for charge in ledger.charges()]


# ------------------------------------------------------------------------------------------ charging


def test_a_charge_is_kept_with_all_that_was_said_about_it(ledger: Ledger) -> None:
    assert ledger.charge(**KEY, cost=0.25, detail={"noise": 2.0, "neighbours": "rows"}) is True
    (kept,) = ledger.charges()
    assert kept == Charge(**KEY, cost=0.25, detail={"noise": 2.0, "neighbours": "rows"}, at=kept.at)
    assert datetime.fromisoformat(kept.at).utcoffset() == timedelta(0)


def test_a_replay_costs_nothing_even_when_nothing_is_left(ledger: Ledger) -> None:
    ledger.charge(**KEY, cost=1.0)
    before = ledger.export()
    assert ledger.charge(**KEY, cost=1.0, detail={"another": "detail"}, limit=0.0) is False
    assert ledger.export() == before


@pytest.mark.parametrize("cost", [0.5, 2.0])
def test_a_replay_with_other_noise_is_refused(ledger: Ledger, cost: float) -> None:
    ledger.charge(**KEY, cost=1.0)
    with pytest.raises(ConfigurationError, match="was charged 1, and now costs"):
        ledger.charge(**KEY, cost=cost)


@pytest.mark.parametrize("part", list(OTHER))
def test_a_release_that_differs_in_any_part_is_another_one(ledger: Ledger, part: str) -> None:
    assert ledger.charge(**KEY, cost=0.25)
    assert ledger.charge(**{**KEY, part: OTHER[part]}, cost=0.25)
    assert ledger.spent() == 0.5


def test_spent_and_charges_are_of_one_run_or_of_all_in_order(ledger: Ledger) -> None:
    for i, run in enumerate("abab"):
        ledger.charge(**{**KEY, "run": run, "round": 9 - i}, cost=0.1)
    assert ledger.spent() == math.fsum([0.1] * 4)
    assert ledger.spent("a") == math.fsum([0.1] * 2)
    assert ledger.spent("nobody") == 0.0
    assert rounds(ledger) == [9, 8, 7, 6]
    assert [charge.round for charge in ledger.charges("b")] == [8, 6]


@pytest.mark.parametrize("cost", [0, 0.0, -1.0, math.nan, math.inf, -math.inf, "1", None, 1j])
def test_a_cost_is_finite_and_above_nothing(ledger: Ledger, cost: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"cost of gram\.multiply product"):
        ledger.charge(**KEY, cost=cost)
    assert ledger.charges() == []


def test_numbers_may_be_numpys(ledger: Ledger) -> None:
    ledger.charge(**{**KEY, "round": np.int64(3)}, cost=np.float32(0.5), limit=np.float64(1))
    assert (rounds(ledger), ledger.spent()) == ([3], 0.5)


@pytest.mark.parametrize("wrong", [{"run": ""}, {"question": None}, {"detail": {"noise": math.inf}}, {"detail": {1j}}])
def test_a_charge_that_cannot_be_kept_is_refused(ledger: Ledger, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        ledger.charge(**{**KEY, "cost": 0.1, **wrong})
    assert ledger.charges() == []


# ------------------------------------------------------------------------------- parts of a partition


def part(name: str, of: str = "blocks of 3") -> dict[str, Any]:
    return {"disjoint": [of, name]}


def test_releases_about_disjoint_rows_cost_what_the_dearest_part_costs(ledger: Ledger) -> None:
    for i, (name, cost) in enumerate([("0", 0.25), ("1", 0.5), ("2", 0.125), ("0", 0.125)]):
        assert ledger.charge(**{**KEY, "round": i}, cost=cost, detail=part(name), limit=1.0)
    assert ledger.spent() == ledger.spent("a") == 0.5
    ledger.charge(**{**KEY, "round": 4}, cost=0.25, detail=part("0"))  # 0.25 + 0.125 + 0.25 is the dearest now
    assert ledger.spent() == 0.625
    assert len(ledger.charges()) == 5
    assert ledger.export()["spent"] == composed(ledger.charges()) == 0.625


def test_all_rows_other_partitions_and_other_runs_add_up(ledger: Ledger) -> None:
    charges = [("a", 0.25, part("0")), ("a", 0.125, part("1")), ("a", 0.125, part("0", "blocks of 2")),
               ("a", 0.0625, None), ("b", 0.25, part("0")), ("b", 0.25, part("2"))]  # fmt: skip
    for i, (run, cost, detail) in enumerate(charges):
        ledger.charge(**{**KEY, "run": run, "round": i}, cost=cost, detail=detail)
    assert ledger.spent("a") == 0.25 + 0.125 + 0.0625
    assert ledger.spent("b") == 0.25
    assert ledger.spent() == 0.6875  # two runs see the same rows: their parts are not disjoint of each other
    assert ledger.export()["runs"] == {"a": 0.4375, "b": 0.25}


def test_a_part_is_charged_up_to_the_bound_however_much_the_others_cost(ledger: Ledger) -> None:
    for i, name in enumerate("012"):
        ledger.charge(**{**KEY, "round": i}, cost=0.75, detail=part(name), limit=0.75)
    for bound, text in [(0.75, "but 0 of the run's limit"), (None, "but 0.25 of the budget")]:
        with pytest.raises(BudgetExhausted, match=text):
            ledger.charge(**{**KEY, "round": 3}, cost=0.5, detail=part("1"), limit=bound)
    with pytest.raises(BudgetExhausted, match=r"but 0\.25 of the budget"):
        ledger.charge(**{**KEY, "round": 3}, cost=0.5, detail=part("0", "blocks of 2"))
    with pytest.raises(BudgetExhausted, match=r"but 0\.25 of the budget"):
        ledger.charge(**{**KEY, "round": 3}, cost=0.5)
    assert ledger.spent() == 0.75
    assert ledger.charge(**{**KEY, "round": 3}, cost=1.0, detail=part("9"))  # within the budget: a part of its own
    assert ledger.spent() == 1.0


@pytest.mark.parametrize(
    "given", [[], ["p"], ["p", 1], ["p", True], ["p", None], [1, "0"], ["p", "0", "1"], "p0", {"p": "0"}, 3]
)
def test_a_part_is_two_texts(ledger: Ledger, given: Any) -> None:
    """What Python and SQLite would print alike, or a part could be charged twice as two."""
    with pytest.raises(ConfigurationError, match='"disjoint" is a partition and a part, two texts; got'):
        ledger.charge(**KEY, cost=0.1, detail={"disjoint": given})
    assert ledger.charges() == []


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(1, 8), st.sampled_from("pq-"), st.sampled_from(["0", "1", 'é"x'])),
        max_size=12,
    )
)
def test_the_file_says_what_the_charges_say(charges: list[tuple[str, int, str, str]]) -> None:
    """By hand: of each run and partition the largest part, and all that is about no part."""
    with Ledger() as ledger:
        expected = dict.fromkeys("ab", 0.0)
        parts: dict[tuple[str, str, str], float] = {}
        for i, (run, eighths, partition, name) in enumerate(charges):
            detail = None if partition == "-" else part(name, partition)
            ledger.charge(**{**KEY, "run": run, "round": i}, cost=eighths / 8, detail=detail)
            if partition == "-":
                expected[run] += eighths / 8
            else:
                parts[run, partition, name] = parts.get((run, partition, name), 0.0) + eighths / 8
        for run in "ab":
            for partition in "pq":
                expected[run] += max((v for (r, p, _), v in parts.items() if (r, p) == (run, partition)), default=0.0)
            assert ledger.spent(run) == expected[run]
        assert ledger.spent() == composed(ledger.charges()) == sum(expected.values())


# -------------------------------------------------------------------------------- limits and budgets


def test_past_the_budget_is_refused_and_changes_nothing(ledger: Ledger) -> None:
    ledger.charge(**KEY, cost=0.75)
    before = ledger.export()
    with pytest.raises(
        BudgetExhausted, match=r"round 2 in run b costs mu\^2 = 0.5, but 0.25 of .* left; .*raise_budget"
    ):
        ledger.charge(**OTHER, cost=0.5)
    assert ledger.export() == before
    assert ledger.charge(**OTHER, cost=0.25)


def test_past_a_runs_limit_is_refused_for_that_run_only(ledger: Ledger) -> None:
    ledger.charge(**KEY, cost=0.25, limit=0.25)
    with pytest.raises(BudgetExhausted, match=r"but 0 of the run's limit, 0.25, is left; .*study's terms"):
        ledger.charge(**{**KEY, "round": 2}, cost=0.01, limit=0.25)
    assert ledger.charge(**OTHER, cost=0.25, limit=0.25)
    assert ledger.spent() == 0.5


def test_rounding_is_forgiven_and_no_more_than_rounding(ledger: Ledger) -> None:
    with pytest.raises(BudgetExhausted):
        ledger.charge(**KEY, cost=1 + 3e-12)
    assert ledger.charge(**KEY, cost=1 + 5e-13)
    with pytest.raises(BudgetExhausted):  # what is forgiven does not add up
        ledger.charge(**OTHER, cost=6e-13)


@pytest.mark.parametrize("bound", [-1.0, math.nan, math.inf, "1"])
def test_a_bound_is_a_finite_number(bound: Any) -> None:
    with pytest.raises(ConfigurationError, match="budget is mu"):
        Ledger(budget=bound)
    with Ledger() as ledger, pytest.raises(ConfigurationError, match="limit of run a"):
        ledger.charge(**KEY, cost=0.1, limit=bound)


def test_the_file_keeps_the_budget_takes_a_smaller_and_refuses_a_larger(path: Path) -> None:
    with Ledger(path) as ledger:
        assert ledger.budget is None
        ledger.charge(**KEY, cost=5.0)
    for asked, kept in [(2.0, 2.0), (None, 2.0), (2.0 * (1 + 1e-12), 2.0), (1.0, 1.0)]:
        with Ledger(path, budget=asked) as ledger:
            assert ledger.budget == kept
    with pytest.raises(ConfigurationError, match="raise_budget"):
        Ledger(path, budget=2.0)
    with Ledger(path) as ledger:
        assert ledger.budget == 1.0
        with pytest.raises(BudgetExhausted, match="but 0 of"):
            ledger.charge(**OTHER, cost=0.1)


def test_raising_the_budget_is_an_act_with_a_reason(ledger: Ledger) -> None:
    for new, reason in [(1.0, "no more"), (0.5, "less"), (2.0, ""), (math.inf, "no end")]:
        with pytest.raises(ConfigurationError):
            ledger.raise_budget(new, reason)
    ledger.raise_budget(2.0, "the board's vote of May")
    assert ledger.budget == 2.0
    assert ledger.charge(**KEY, cost=2.0)
    assert [(b["budget"], b["reason"]) for b in ledger.export()["budgets"]] == [
        (1.0, "given on opening"),
        (2.0, "the board's vote of May"),
    ]


def test_without_a_budget_there_is_none_to_raise() -> None:
    with Ledger() as ledger, pytest.raises(ConfigurationError, match="no budget"):
        ledger.raise_budget(1.0, "why not")


# ------------------------------------------------------------------------------------------- export


def test_the_export_is_plain_json(ledger: Ledger, tmp_path: Path) -> None:
    ledger.charge(**KEY, cost=0.25, detail={"sensitivity": 1.5})
    ledger.charge(**OTHER, cost=0.5)
    ledger.export_json(tmp_path / "out" / "ledger.json")
    read = json.loads((tmp_path / "out" / "ledger.json").read_bytes())
    assert read == ledger.export()
    assert (read["format"], read["version"], read["unit"]) == ("fedspan-ledger", 1, "mu^2")
    assert (read["budget"], read["spent"], read["runs"]) == (1.0, 0.75, {"a": 0.25, "b": 0.5})
    assert [Charge(**charge) for charge in read["charges"]] == ledger.charges()
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["ledger.json"]


# --------------------------------------------------------------------------------------- the file


def test_a_ledger_goes_on_where_it_was_closed_and_leaves_one_file(tmp_path: Path) -> None:
    path = tmp_path / "made" / "a site's ß?#%20.ledger"
    with Ledger(path, budget=1.0) as ledger:
        ledger.charge(**KEY, cost=0.25)
    ledger.close()
    with Ledger(path) as ledger:
        assert not ledger.charge(**KEY, cost=0.25)
        assert (ledger.spent(), ledger.budget) == (0.25, 1.0)
    assert list(path.parent.iterdir()) == [path]


def test_a_closed_ledger_charges_nothing(ledger: Ledger) -> None:
    ledger.close()
    with pytest.raises(FileError, match="closed"):
        ledger.charge(**KEY, cost=0.1)


def test_a_commit_waits_for_the_disk(path: Path) -> None:
    with Ledger(path) as ledger:  # no kill can show this, only a power cut; so the settings themselves are asked
        names = ("journal_mode", "synchronous", "fullfsync")
        settings = [ledger._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]
    assert settings == ["delete", 3, 1]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE charges SET cost = 0.01",
        "DELETE FROM charges",
        "INSERT OR REPLACE INTO charges SELECT seq, run, round, question, step, release, 0.01, detail, at FROM charges",
        "INSERT OR REPLACE INTO charges SELECT 9, run, round, question, step, release, 0.01, detail, at FROM charges",
        "UPDATE budgets SET budget = 100",
        "DELETE FROM budgets",
    ],
)
def test_the_file_itself_refuses_to_be_rewritten(path: Path, change: str) -> None:
    with Ledger(path, budget=1.0) as ledger:
        ledger.charge(**KEY, cost=0.25)
        before = ledger.export()
        with closing(sqlite3.connect(path)) as raw, pytest.raises(sqlite3.IntegrityError, match="only ever added"):
            raw.execute(change)
        assert ledger.export() == before


def small(path: Path) -> None:
    path.write_bytes(b"site,cost\nash,0.25\n")


def empty(path: Path) -> None:
    path.touch()


def another_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("CREATE TABLE charges (cost)")


def newer(path: Path) -> None:
    filled(path)
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA user_version = 2")


def filled(path: Path) -> None:
    with Ledger(path, budget=100.0) as ledger:
        for i in range(40):
            ledger.charge(**{**KEY, "round": i}, cost=0.25, detail={"note": "x" * 200})


def cut(size: Callable[[int], int]) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        filled(path)
        os.truncate(path, size(path.stat().st_size))

    return make


def scrambled(path: Path) -> None:
    filled(path)
    data = bytearray(path.read_bytes())
    data[4096:] = random.Random(1).randbytes(len(data) - 4096)
    path.write_bytes(data)


CUTS = [lambda n: 0, lambda n: 50, lambda n: 4096, lambda n: n // 2, lambda n: n - 4096, lambda n: n - 1]


@pytest.mark.parametrize("make", [small, empty, another_database, newer, scrambled, *map(cut, CUTS)])
def test_any_other_file_is_refused_by_name_and_left_as_it_is(path: Path, make: Callable[[Path], None]) -> None:
    make(path)
    before = path.read_bytes()
    with pytest.raises(FileError, match=r"site\.ledger"):
        Ledger(path, budget=200.0)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_or_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "file" / "site.ledger"):
        with pytest.raises(FileError, match=place.name):
            Ledger(place)


@pytest.mark.skipif(os.name == "nt", reason="an open file cannot be removed there")
def test_a_file_taken_away_while_open_takes_no_charge(path: Path) -> None:
    with Ledger(path) as ledger:
        path.unlink()
        with pytest.raises(FileError, match=r"site\.ledger"):
            ledger.charge(**KEY, cost=0.25)


# ------------------------------------------------------------------------------------- all at once


def test_a_charge_decides_on_what_holds_when_it_is_written(path: Path) -> None:
    with Ledger(path, budget=1.0) as ledger, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(ledger.charge, **KEY, cost=0.75)
            time.sleep(0.1)  # it would have read by now that all is left, if it did not wait
            other.execute("INSERT INTO charges VALUES (NULL, 'b', 2, '60', 's', 'r', 0.5, '{}', '')")
            other.execute("COMMIT")
            with pytest.raises(BudgetExhausted, match=r"0\.5 of"):
                waiting.result()
        assert ledger.spent() == 0.5


@pytest.mark.parametrize("shared", [True, False])
def test_threads_share_a_budget_through_one_ledger_or_several(path: Path, shared: bool) -> None:
    def work(mine: Ledger) -> list[int]:
        start.wait()
        new = []
        for i in range(30):
            try:
                new += [i] if mine.charge(**{**KEY, "round": i}, cost=0.125) else []
            except BudgetExhausted:
                break
        return new

    start = threading.Barrier(4)
    with Ledger(path, budget=2.0) as one, ThreadPoolExecutor(4) as pool:
        ledgers = [one] * 4 if shared else [Ledger(path) for _ in range(4)]
        charged = [i for new in pool.map(work, ledgers) for i in new]
        for opened in ledgers:
            opened.close()
    with Ledger(path) as ledger:
        assert sorted(charged) == sorted(rounds(ledger)) == list(range(16))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_ledger_does_not_follow_into_a_forked_process(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(ConfigurationError, match="another process"):
        ledger.charge(**KEY, cost=0.1)


class Workers:
    """One process that forks a child for every job, and says what the child released."""

    def __init__(self) -> None:
        script = [sys.executable, worker.__file__]
        self.process = subprocess.Popen(
            script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )

    def send(self, **job: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()

    def receive(self) -> tuple[list[tuple[str, int]], int]:
        """What was released, each as "new" or "again" and its key, and the child's exit code."""
        assert self.process.stdout is not None
        said = []
        for line in self.process.stdout:
            word, _, number = line.partition(" ")
            if word == "end":
                return said, int(number)
            said += [(word, int(number))] if number else []
        raise AssertionError("the workers' parent ended")


@contextmanager
def workers(count: int) -> Iterator[list[Workers]]:
    started = [Workers() for _ in range(count)]
    try:
        yield started
    finally:
        for one in started:
            one.process.communicate()  # the end of its input is the end of it


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="the workers fork")


@forks
def test_processes_share_a_budget_from_the_first_moment(path: Path) -> None:
    with workers(2) as pair:
        for attempt in range(2):
            place = path.with_name(f"{attempt}.ledger")
            for one in pair:
                one.send(path=str(place), budget=5.0)
            ends = [one.receive() for one in pair]
            new = [key for said, _ in ends for word, key in said if word == "new"]
            with Ledger(place) as ledger:
                assert [code for _, code in ends] == [0, 0]
                assert sorted(new) == sorted(rounds(ledger))  # each was new to one of the two only
                assert 5.0 - 3 / 8 < ledger.spent() <= 5.0


# ------------------------------------------------------------------------------------------- kills


def kill_often(folder: Path, kills: int, seed: int) -> dict[str, int]:
    """Kill so many workers at work and check the ledger after each; return what was counted."""
    chance = random.Random(seed)
    count = {"moments": 0, "calls": 0, "files": 0, "charged": 0, "unreleased": 0, "undone": 0}
    turn, full = 0, True
    with workers(1) as (one,):
        while count["moments"] + count["calls"] < kills:
            if full or turn % 5 == 0:  # a new file: the kills meet its making, its growth and its end
                path, budget, lost = folder / f"{turn}.ledger", chance.choice([2.0, 8.0, 32.0]), 0
                released, first_time, charged = set[int](), list[int](), 0
                count["files"] += 1
            kind = "calls" if turn % 2 and sys.platform == "linux" else "moments"
            if kind == "calls":
                how: dict[str, Any] = {"calls": chance.choice([chance.randrange(150), chance.randrange(4000)])}
            else:
                how = {"seconds": chance.choice([chance.random() * 0.004, chance.random() * 0.06])}
            one.send(path=str(path), budget=budget, **how)
            said, code = one.receive()
            assert code in (0, -9)
            turn, full = turn + 1, code == 0  # 0: it came to the end of the budget first
            count[kind] += not full
            count["undone"] += path.with_name(f"{path.name}-journal").exists()
            released.update(key for _, key in said)
            first_time += [key for word, key in said if word == "new"]
            lost += not full  # each kill may leave one that was charged and not released
            now = check_after_kill(path, budget, released, first_time, lost)
            count["charged"] += now - charged
            count["unreleased"] += now - len(released)
            charged = now
    return count


def check_after_kill(path: Path, budget: float, released: set[int], first_time: list[int], lost: int) -> int:
    assert len(first_time) == len(set(first_time))  # nothing was ever new twice
    if not path.exists():
        assert not released
        return 0
    with Ledger(path) as ledger:
        charged = rounds(ledger)
        assert len(charged) == len(set(charged))
        assert released <= set(charged)
        assert len(charged) <= len(released) + lost
        assert charged == list(range(len(charged)))
        assert ledger.spent() == math.fsum(map(worker.cost, charged)) <= budget
        assert not any(worker.charge(ledger, key) for key in charged)
        assert rounds(ledger) == charged
    return len(charged)


@forks
def test_kills_lose_no_charge_and_charge_nothing_twice(tmp_path: Path) -> None:
    assert kill_often(tmp_path, 8, seed=7)["charged"] > 0


@forks
@pytest.mark.soak
def test_two_hundred_kills(tmp_path: Path) -> None:
    start = time.perf_counter()
    count = kill_often(tmp_path, 200, seed=int(os.environ.get("KILL_SEED", "2026")))
    print(f"200 kills in {time.perf_counter() - start:.1f} s: {count}")
    assert min(count["charged"], count["unreleased"], count["undone"]) > 0  # the kills met all there is to meet


# ----------------------------------------------------------------------------------- against a model


class AgainstModel(RuleBasedStateMachine):
    """A ledger in a file against a dict. Costs and bounds are eighths, so that sums are exact."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.path = Path(self.folder.name) / "site.ledger"
        self.ledger = Ledger(self.path)
        self.budget = math.inf
        self.model: dict[tuple[str, int, str], float] = {}

    def spent(self, run: str | None = None) -> float:
        return sum(cost for key, cost in self.model.items() if run in (None, key[0]))

    eighths = st.integers(1, 24).map(lambda n: n / 8)

    @rule(
        run=st.sampled_from("ab"),
        round=st.integers(1, 3),
        question=st.sampled_from("pq"),
        cost=eighths,
        limit=st.none() | eighths,
    )
    def charge(self, run: str, round: int, question: str, cost: float, limit: float | None) -> None:
        def act() -> bool:
            return self.ledger.charge(
                **{**KEY, "run": run, "round": round, "question": question}, cost=cost, limit=limit
            )

        over = self.spent() + cost > self.budget or (limit is not None and self.spent(run) + cost > limit)
        known = self.model.get((run, round, question))
        if known is not None and cost != known:
            with pytest.raises(ConfigurationError, match="now costs"):
                act()
        elif known is not None:
            assert act() is False
        elif over:
            with pytest.raises(BudgetExhausted):
                act()
        else:
            assert act() is True
            self.model[run, round, question] = cost

    @rule(budget=st.none() | eighths)
    def reopen(self, budget: float | None) -> None:
        self.ledger.close()
        if budget is not None and budget > self.budget:
            with pytest.raises(ConfigurationError):
                Ledger(self.path, budget=budget)
            budget = None
        self.ledger = Ledger(self.path, budget=budget)
        self.budget = self.budget if budget is None else budget

    @precondition(lambda self: self.budget < math.inf)
    @rule(more=eighths)
    def allow_more(self, more: float) -> None:
        self.budget += more
        self.ledger.raise_budget(self.budget, "asked for")

    @invariant()
    def agrees(self) -> None:
        kept = {(c.run, c.round, c.question): c.cost for c in self.ledger.charges()}
        assert list(kept.items()) == list(self.model.items())
        assert len(kept) == len(self.ledger.charges())
        assert (self.ledger.budget or math.inf) == self.budget
        assert (self.ledger.spent(), self.ledger.spent("a")) == (self.spent(), self.spent("a"))

    def teardown(self) -> None:
        self.ledger.close()
        self.folder.cleanup()


TestAgainstModel = AgainstModel.TestCase
TestAgainstModel.settings = settings(max_examples=30, stateful_step_count=25)


@pytest.mark.parametrize("cost", [1.0 + 1e-6, 1.0 - 1e-6])
def test_a_replay_with_nearly_the_same_noise_is_refused_too(tmp_path, cost):
    with Ledger(tmp_path / "x") as ledger:
        ledger.charge(**KEY, cost=1.0)
        with pytest.raises(ConfigurationError, match="start anew"):
            ledger.charge(**KEY, cost=cost)
