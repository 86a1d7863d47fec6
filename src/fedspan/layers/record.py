"""The coordinator's journal: every question before it is asked, every aggregate before it is used.

A run folder holds ``rounds.jsonl``, a line when a round is asked and one when it is answered, and the aggregates in
``rounds/NNNN.npy`` (``.plain`` where an aggregate is more than one array; ``.late`` for replies carried over). The
coordinator's half of a study is deterministic given its seed, so a resumed run replays: answered rounds are taken from
the journal, checked against the question's digest, and the first open one is asked again, under the same number, of
sites that answer once.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedspan.encoding import Array, Plain, decode, encode, write_atomically
from fedspan.errors import FileError, ResumeError
from fedspan.rounds import Late, Masked, Outcome, Round, Solve

T = TypeVar("T")


class Journal:
    """The rounds of one run, on disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "rounds.jsonl"
        self._answered = {line["round"]: line for line in self._read() if "answer" in line}

    def replay(self, question: Round) -> Outcome | None:
        """Return the recorded outcome of this round, if it has one."""
        line = self._answered.get(question.number)
        if line is None:
            return None
        if line["question"] != question.digest:
            raise ResumeError(
                f"{self._folder}: round {question.number} ({question.step.name}) is not the question that was "
                f"recorded; the study, its data or fedspan changed. Start it anew in another folder"
            )
        value = self._load(line["answer"])
        late = self._load(line["carried"]) if "carried" in line else []
        carried = tuple(Late(*reply) for reply in late)
        clock, masked = line.get("clock", 0.0), line.get("masked")
        return Outcome(
            value, line["sites"], line["bytes_up"], line["bytes_down"], carried, clock=clock,
            masked=None if masked is None else Masked(**{**masked, "dropped": tuple(masked["dropped"])}),
        )  # fmt: skip

    def asked(self, question: Round) -> None:
        """Note a question before it is asked."""
        self._append({"round": question.number, "step": question.step.name, "question": question.digest})

    def answered(self, question: Round, outcome: Outcome, seconds: float) -> None:
        """Keep an aggregate, then note that it is there."""
        line: dict[str, Any] = {
            "round": question.number, "step": question.step.name, "question": question.digest,
            "answer": self._store(question.number, outcome.value), "sites": outcome.sites,
            "bytes_up": outcome.bytes_up, "bytes_down": outcome.bytes_down, "seconds": round(seconds, 6),
        }  # fmt: skip
        if outcome.clock:
            line["clock"] = outcome.clock
        if outcome.masked is not None:
            line["masked"] = outcome.masked._asdict()
        if outcome.carried:
            line["carried"] = self._store(question.number, [list(late) for late in outcome.carried], ".late")
        self._append(line)

    def _store(self, number: int, value: Plain, suffix: str = ".plain") -> dict[str, Any]:
        if isinstance(value, np.ndarray):
            name = f"rounds/{number:04d}.npy"
            data = _npy(value)
            write_atomically(self._folder / name, data)
            shape = {"shape": list(value.shape), "dtype": value.dtype.name}
            return {"file": name, **shape, "digest": hashlib.sha256(data).hexdigest()}
        name = f"rounds/{number:04d}{suffix}"
        data = encode(value)
        write_atomically(self._folder / name, data)
        return {"file": name, "digest": hashlib.sha256(data).hexdigest()}

    def _load(self, answer: dict[str, Any]) -> Plain:
        path = self._folder / answer["file"]
        try:
            data = path.read_bytes()
            if hashlib.sha256(data).hexdigest() != answer["digest"]:
                raise ValueError("its bytes are not those that were recorded")
            return np.load(io.BytesIO(data), allow_pickle=False) if path.suffix == ".npy" else decode(data)
        except (OSError, ValueError, EOFError) as cause:
            raise FileError(f"{path}: a recorded aggregate is unreadable ({cause}); the run cannot resume") from cause

    def _read(self) -> list[dict[str, Any]]:
        """Read the lines; a last line cut short by a kill is dropped, from the file too."""
        if not self._file.exists():
            return []
        lines, whole = [], 0
        for raw in self._file.read_bytes().splitlines(keepends=True):
            if not raw.endswith(b"\n"):
                break
            try:
                line = json.loads(raw)
                if not isinstance(line, dict) or not {"round", "question"} <= set(line):
                    raise ValueError("it is not a round")
                lines.append(line)
            except ValueError as cause:
                raise FileError(f"{self._file}: line {len(lines) + 1} is damaged ({cause})") from cause
            whole += len(raw)
        if whole < self._file.stat().st_size:
            with self._file.open("r+b") as file:
                file.truncate(whole)
        return lines

    def _append(self, line: dict[str, Any]) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")


def record(solve: Solve[T], journal: Journal) -> Solve[T]:
    """Journal every round, and answer from the journal what it already holds."""
    outcome: Outcome | None = None
    while True:
        try:
            question: Round = solve.send(outcome)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        outcome = journal.replay(question)
        if outcome is None:
            journal.asked(question)
            started = time.perf_counter()
            outcome = yield question
            journal.answered(question, outcome, time.perf_counter() - started)


def _npy(value: Array) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, value, allow_pickle=False)
    return buffer.getvalue()
