"""The privacy ledger: every release's cost, charged before the release leaves; one per site, one at the coordinator.

A cost is mu² of Gaussian differential privacy, so costs add up, but for disjoint
rows (`composed`). `Ledger.charge` returns only when the charge is on
disk; a process killed between charge and release has paid for nothing, which is the safe side. What was charged once
is recognised when it is asked again, and not charged twice.

The file is SQLite with a rollback journal (``journal_mode = DELETE``) and ``synchronous = EXTRA``. Not WAL: there a
charge may live in a second file for long, and a copy of the first alone would forget it. Not FULL: with a rollback
journal a power cut just after the commit may bring the deleted journal back, and it would undo the charge; EXTRA is
FULL and a sync of the folder after the journal is deleted.
"""

from __future__ import annotations

import json
import math
import operator
import os
import sqlite3
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from numbers import Real
from pathlib import Path
from typing import Any, Self

from fedspan.encoding import write_atomically
from fedspan.errors import BudgetExhausted, ConfigurationError, FileError

FORMAT = "fedspan-ledger"
VERSION = 1
_APPLICATION = 0x4653504C  # "FSPL" in SQLite's own header: tells a ledger from other databases
_SLACK = 1e-9  # relative: a cost or a budget worked out anew may differ in its last digits
_ULPS = 1e-12  # relative: what adding equal parts of a bound may be above it
_PATIENCE = 60.0  # seconds to wait for another process's charge; one takes milliseconds
_RESTORE = "restore it from a copy, or name another file"

_KEY = "run, round, question, step, release"
_ONLY_ADDED = "BEGIN SELECT RAISE(ABORT, 'a ledger is only ever added to'); END"
_SCHEMA = f"""
BEGIN;
CREATE TABLE charges (
    seq INTEGER PRIMARY KEY,
    run TEXT NOT NULL, round INTEGER NOT NULL, question TEXT NOT NULL, step TEXT NOT NULL, release TEXT NOT NULL,
    cost REAL NOT NULL CHECK (cost > 0 AND cost < 9e999), detail TEXT NOT NULL, at TEXT NOT NULL, UNIQUE ({_KEY})
);
CREATE TABLE budgets (seq INTEGER PRIMARY KEY, budget REAL NOT NULL, reason TEXT NOT NULL, at TEXT NOT NULL);
CREATE TRIGGER charges_update BEFORE UPDATE ON charges {_ONLY_ADDED};
CREATE TRIGGER charges_delete BEFORE DELETE ON charges {_ONLY_ADDED};
CREATE TRIGGER charges_replace BEFORE INSERT ON charges WHEN EXISTS (
    SELECT 1 FROM charges WHERE seq = NEW.seq OR ({_KEY}) = (NEW.run, NEW.round, NEW.question, NEW.step, NEW.release)
) {_ONLY_ADDED};
CREATE TRIGGER budgets_update BEFORE UPDATE ON budgets {_ONLY_ADDED};
CREATE TRIGGER budgets_delete BEFORE DELETE ON budgets {_ONLY_ADDED};
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {VERSION};
COMMIT;
"""


@dataclass(frozen=True)
class Charge:
    """One release, paid for."""

    run: str
    round: int
    question: str
    """Digest of the question the release answers."""
    step: str
    release: str
    cost: float
    """mu²."""
    detail: dict[str, Any]
    """What the cost was worked out from: sensitivity, noise, neighbours, trust."""
    at: str
    """When, in UTC, as ISO text."""


class Ledger:
    """What the releases of all runs have cost, in a file that only grows; without a path, in memory.

    ``budget`` is the most mu² over all runs. The file keeps it: a smaller one is taken, a larger one refused.

    >>> ledger = Ledger(budget=1.0)
    >>> ledger.charge(run="a", round=1, question="5f", step="gram.multiply", release="product", cost=0.25)
    True
    >>> ledger.charge(run="a", round=1, question="5f", step="gram.multiply", release="product", cost=0.25)
    False
    >>> ledger.spent()
    0.25
    """

    def __init__(self, path: Path | None = None, *, budget: float | None = None) -> None:
        if budget is not None:
            budget = _amount(budget, "a ledger's budget")
        self.path = path
        self._name = "the ledger in memory" if path is None else f"ledger {path}"
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._connection = _open(path)
        self._finish = weakref.finalize(self, self._connection.close)
        try:
            if budget is not None:
                self._agree(budget)
        except BaseException:
            self.close()
            raise

    def charge(
        self,
        *,
        run: str,
        round: int,
        question: str,
        step: str,
        release: str,
        cost: float,
        detail: dict[str, Any] | None = None,
        limit: float | None = None,
    ) -> bool:
        """Charge one release, durably, before it leaves; return False where this very release was charged before.

        The same round, step and release for another question is another release, and costs again. ``limit`` is the
        most mu² for this run. Past it, or past the ledger's budget: `BudgetExhausted`, and nothing is changed.
        """
        key = (_text(run), operator.index(round), _text(question), _text(step), _text(release))
        cost = _amount(cost, f"the cost of {step} {release}", least=math.ulp(0.0))
        note, part = _json({} if detail is None else detail), _disjoint({} if detail is None else detail)
        with self._transaction() as connection:
            asked = f"{step} {release} of round {round} in run {run}"
            known = connection.execute(f"SELECT cost FROM charges WHERE ({_KEY}) = (?, ?, ?, ?, ?)", key).fetchone()
            if known:
                if abs(cost - known[0]) > _SLACK * known[0]:  # other noise than was paid for
                    raise ConfigurationError(
                        f"{asked} was charged {known[0]:.6g}, and now costs {cost:.6g}; start anew"
                    )
                return False
            more = (key[0], cost, *part)
            if limit is not None:
                limit = _amount(limit, f"the limit of run {run}")
                way = "stop the run here, or have the study's terms allow it more"
                before, after = _spent(connection, run), _spent(connection, run, more)
                _check(asked, cost, before, after, limit, "the run's limit", way)
            budget = _budget(connection)
            if budget is not None:
                way = "stop the run here, or allow more on purpose with raise_budget"
                before, after = _spent(connection), _spent(connection, None, more)
                _check(asked, cost, before, after, budget, f"the budget of {self._name}", way)
            row = (*key, cost, note, _now())
            connection.execute(f"INSERT INTO charges ({_KEY}, cost, detail, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        return True

    def raise_budget(self, new: float, reason: str) -> None:
        """Allow more from now on; the ledger keeps the reason."""
        new, reason = _amount(new, "a ledger's budget"), _text(reason)
        with self._transaction() as connection:
            old = _budget(connection)
            if old is None or new <= old:
                have = "no budget" if old is None else f"a budget of {old:.6g}"
                raise ConfigurationError(f"{self._name} has {have}, and {new:.6g} is no more; open it with budget=")
            _set_budget(connection, new, reason)

    def spent(self, run: str | None = None) -> float:
        """Return the mu² spent, by one run or by all."""
        with self._transaction("DEFERRED") as connection:
            return _spent(connection, run)

    @property
    def budget(self) -> float | None:
        """The most mu² over all runs, as the file has it now."""
        with self._transaction("DEFERRED") as connection:
            return _budget(connection)

    def charges(self, run: str | None = None) -> list[Charge]:
        """Return the charges in order, of one run or of all."""
        with self._transaction("DEFERRED") as connection:
            return _charges(connection, run)

    def export(self) -> dict[str, Any]:
        """Return the whole ledger as plain JSON, as it stood at one moment."""
        with self._transaction("DEFERRED") as connection:
            charges = _charges(connection)
            budgets = [dict(row) for row in connection.execute("SELECT budget, reason, at FROM budgets ORDER BY seq")]
        runs = dict.fromkeys(charge.run for charge in charges)
        return {
            "format": FORMAT,
            "version": VERSION,
            "unit": "mu^2",
            "budget": budgets[-1]["budget"] if budgets else None,
            "budgets": budgets,
            "spent": composed(charges),
            "runs": {run: composed(charge for charge in charges if charge.run == run) for run in runs},
            "charges": [asdict(charge) for charge in charges],
        }

    def export_json(self, path: Path) -> None:
        """Write `export` to a file, whole or not at all."""
        write_atomically(path, json.dumps(self.export(), indent=2, allow_nan=False).encode() + b"\n")

    def close(self) -> None:
        """Let go of the file; closing twice is fine."""
        with self._lock:
            self._finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _agree(self, budget: float) -> None:
        with self._transaction() as connection:
            stored = _budget(connection)
            if stored is None or budget < stored:
                _set_budget(connection, budget, "given on opening")
            elif budget > stored * (1 + _SLACK):
                raise ConfigurationError(
                    f"{self._name} has a budget of {stored:.6g} and was opened with {budget:.6g}; "
                    "open it without, and allow more on purpose with raise_budget"
                )

    @contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """All or nothing. IMMEDIATE takes the file's write lock first, so that what is read still holds at the end."""
        if os.getpid() != self._process:  # SQLite's locks do not survive a fork, and a copy in memory is another ledger
            raise ConfigurationError(f"{self._name} was opened by another process; open it in this one")
        with self._lock, _file_errors(self._name):
            try:
                self._connection.execute(f"BEGIN {kind}")
                yield self._connection
                self._connection.execute("COMMIT")
            finally:
                if self._finish.alive and self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")


def _connect(place: str) -> sqlite3.Connection:
    # the ledger's own lock stands in for check_same_thread
    connection = sqlite3.connect(place, uri=True, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    return connection


def _open(path: Path | None) -> sqlite3.Connection:
    """Open a ledger's file, made if there is none; refuse any other file without changing it."""
    if path is None:
        connection = _connect(":memory:")
        connection.executescript(_SCHEMA)
        return connection
    target = path.resolve()
    with _file_errors(f"ledger {path}"):
        if not target.exists():
            _create(target)
        if not target.is_file() or target.stat().st_size == 0:  # SQLite would take an empty file for a new database
            raise FileError(f"ledger {path} is not a ledger, or was cut short; {_RESTORE}")
        connection = _connect(f"{target.as_uri()}?mode=rw")  # rw: never creates
        try:
            _inspect(connection, target, path)
            for setting in ("journal_mode = DELETE", "synchronous = EXTRA", "fullfsync = ON"):
                connection.execute(f"PRAGMA {setting}")
        except BaseException:
            connection.close()
            raise
    return connection


def _create(target: Path) -> None:
    """Make a new ledger beside its place and link it there whole, so that one cut short is never taken for new."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f"{target.name}.", suffix=".part", dir=target.parent)
    os.close(handle)
    try:
        with closing(sqlite3.connect(name)) as connection:
            connection.executescript(_SCHEMA)
        os.link(name, target)
    except FileExistsError:
        pass  # another process was faster, and its ledger is as good
    finally:
        os.unlink(name)


def _inspect(connection: sqlite3.Connection, target: Path, path: Path) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != _APPLICATION:
        raise FileError(f"{path} is a database but not a ledger; name another file")
    if version > VERSION:
        raise FileError(f"ledger {path} has format version {version}, this fedspan reads {VERSION}; update fedspan")
    connection.execute("BEGIN")  # nobody writes between the page count and the size
    (verdict,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    (pages,), (size,) = (connection.execute(f"PRAGMA page_{what}").fetchone() for what in ("count", "size"))
    if verdict != "ok" or target.stat().st_size < pages * size:  # SQLite reads a page cut short as one with zeros
        raise FileError(f"ledger {path} is damaged or was cut short ({verdict}); {_RESTORE}")
    connection.execute("COMMIT")


@contextmanager
def _file_errors(name: str) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as cause:
        raise FileError(f"{name} cannot be used ({cause}); release nothing that it did not charge") from cause


def composed(charges: Iterable[Charge]) -> float:
    """Return what charges cost together.

    They add up, but for those whose detail says ``"disjoint": [partition, part]``, two texts: releases about different
    parts of one partition of the rows. A change of rows that moves several parts moves them by no more together than
    one, so of a partition only the part that costs most counts.
    """
    return _compose((c.run, c.cost, *_disjoint(c.detail)) for c in charges)


_Cost = tuple[str, float, str | None, str | None]
"""Of a charge: its run, its cost and, where it is about a part of the rows, the partition and the part."""


def _compose(costs: Iterable[_Cost]) -> float:
    alone: list[float] = []
    parts: dict[tuple[str, str], dict[str | None, list[float]]] = {}
    for run, cost, partition, part in costs:
        if partition is None:
            alone.append(cost)
        else:
            parts.setdefault((run, partition), {}).setdefault(part, []).append(cost)
    largest = [max(math.fsum(costs) for costs in each.values()) for each in parts.values()]
    return math.fsum([*alone, *largest])


def _disjoint(detail: dict[str, Any]) -> tuple[str | None, str | None]:
    """Return the partition and the part: texts, for SQLite prints large numbers its own way, and one part were two."""
    given = detail.get("disjoint")
    if given is None:
        return None, None
    if not isinstance(given, list) or len(given) != 2 or not all(isinstance(name, str) for name in given):
        raise ConfigurationError(f'a charge\'s "disjoint" is a partition and a part, two texts; got {given!r:.80}')
    return given[0], given[1]


def _check(asked: str, cost: float, spent: float, after: float, bound: float, what: str, way: str) -> None:
    if after > bound * (1 + _ULPS):
        left = max(0.0, bound - spent)
        raise BudgetExhausted(f"{asked} costs mu^2 = {cost:.6g}, but {left:.6g} of {what}, {bound:.6g}, is left; {way}")


def _spent(connection: sqlite3.Connection, run: str | None = None, *more: _Cost) -> float:
    where, values = ("", ()) if run is None else (" WHERE run = ?", (run,))
    part = "json_extract(detail, '$.disjoint[{}]')".format
    rows = connection.execute(f"SELECT run, cost, {part(0)}, {part(1)} FROM charges{where}", values)
    return _compose([*map(tuple, rows), *more])


def _charges(connection: sqlite3.Connection, run: str | None = None) -> list[Charge]:
    where, values = ("", ()) if run is None else (" WHERE run = ?", (run,))
    what = f"SELECT {_KEY}, cost, detail, at FROM charges{where} ORDER BY seq"
    rows = map(dict, connection.execute(what, values))
    return [Charge(**{**row, "detail": json.loads(row["detail"])}) for row in rows]


def _budget(connection: sqlite3.Connection) -> float | None:
    row = connection.execute("SELECT budget FROM budgets ORDER BY seq DESC LIMIT 1").fetchone()
    return None if row is None else float(row[0])


def _set_budget(connection: sqlite3.Connection, budget: float, reason: str) -> None:
    connection.execute("INSERT INTO budgets (budget, reason, at) VALUES (?, ?, ?)", (budget, reason, _now()))


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _json(detail: dict[str, Any]) -> str:
    try:
        return json.dumps(detail, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as cause:
        raise ConfigurationError(f"a charge's detail is plain JSON of finite numbers; {cause}") from cause


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"run, question, step, release and reason are texts, not empty; got {value!r}")
    return value


def _amount(value: object, name: str, *, least: float = 0.0) -> float:
    number = float(value) if isinstance(value, Real) else math.nan
    if not least <= number < math.inf:  # so written, it refuses NaN too
        raise ConfigurationError(f"{name} is mu^2, a finite number {'above' if least else 'from'} 0; got {value!r}")
    return number
