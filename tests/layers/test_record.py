"""The journal: lines, files and replays. What kills do to it is in conformance/test_kill_and_resume.py."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

from fedspan.encoding import encode
from fedspan.errors import FileError, ResumeError
from fedspan.layers import Journal, record
from fedspan.rounds import STEPS, Late, Outcome, Round, drive, numbered

MULTIPLY = STEPS["gram.multiply"]
VALUES = [
    np.random.default_rng(0).standard_normal((4, 2)),
    np.asfortranarray(np.random.default_rng(1).standard_normal((4, 2))),
    np.arange(3, dtype=np.int32),
    np.float64(0.1),
    np.array(2.5),
    {"a": np.eye(2), "b": {"c": [1, None, "x"]}},
    None,
    3.5,
]


def asked(count):
    told = []
    for i in range(count):
        aggregate = yield Round(MULTIPLY, {"i": i})
        told += [aggregate]
    return told


def outcome(question):
    return Outcome(VALUES[question.number], ["a", "b"], 10 + question.number, 20)


def journalled(folder, execute, count=8):
    return drive(record(numbered(asked(count)), Journal(folder)), execute)


def never(question):
    raise AssertionError("asked again")


def test_a_replay_gives_every_value_back_to_the_bit(tmp_path):
    first = journalled(tmp_path, outcome)
    again = journalled(tmp_path, never)
    assert len(first) == len(again) == len(VALUES) == 8
    for one, other in zip(first, again, strict=True):
        assert encode(one) == encode(other)
        if isinstance(one, np.ndarray):
            assert (other.dtype, other.flags.f_contiguous) == (one.dtype, one.flags.f_contiguous)


def test_a_replay_gives_sites_and_bytes_back(tmp_path):
    journalled(tmp_path, outcome)
    journal = Journal(tmp_path)
    question = Round(MULTIPLY, {"i": 2}, number=2)
    assert journal.replay(question)[1:] == Outcome(None, ["a", "b"], 12, 20)[1:]
    assert journal.replay(Round(MULTIPLY, {"i": 99}, number=99)) is None


def test_carried_replies_are_kept(tmp_path):
    late = Late("b", np.arange(3.0), 2.0, 1)
    drive(record(numbered(asked(1)), Journal(tmp_path)), lambda q: Outcome(1.0, ["a"], 1, 2, (late,)))
    (kept,) = Journal(tmp_path).replay(Round(MULTIPLY, {"i": 0}, number=0)).carried
    assert (kept.site, kept.value.tobytes(), kept.weight, kept.times) == ("b", late.value.tobytes(), 2.0, 1)


def test_there_is_a_line_before_the_question_and_one_after_the_answer(tmp_path):
    lines_at_ask = []

    def execute(question):
        lines_at_ask.append(len((tmp_path / "rounds.jsonl").read_text().splitlines()))
        return outcome(question)

    journalled(tmp_path, execute)
    assert lines_at_ask == [1, 3, 5, 7, 9, 11, 13, 15]
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [("answer" in line) for line in lines] == [False, True] * len(VALUES)
    assert [line["round"] for line in lines] == [i // 2 for i in range(16)]
    assert {line["step"] for line in lines} == {"gram.multiply"}
    assert len({line["question"] for line in lines}) == len(VALUES)


def test_arrays_lie_beside_the_journal_with_shape_and_type(tmp_path):
    journalled(tmp_path, outcome)
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    answer = lines[1]["answer"]
    digest = hashlib.sha256((tmp_path / "rounds/0000.npy").read_bytes()).hexdigest()
    assert answer == {"file": "rounds/0000.npy", "shape": [4, 2], "dtype": "float64", "digest": digest}
    np.testing.assert_array_equal(np.load(tmp_path / answer["file"]), VALUES[0])
    assert lines[11]["answer"]["file"] == "rounds/0005.plain"


def test_a_run_goes_on_where_the_journal_ends(tmp_path):
    journalled(tmp_path, outcome, count=3)
    numbers = []

    def execute(question):
        numbers.append(question.number)
        return outcome(question)

    assert len(journalled(tmp_path, execute)) == len(VALUES)
    assert numbers == list(range(3, len(VALUES)))


def test_parents_are_rebuilt_by_the_replay(tmp_path):
    journalled(tmp_path, outcome, count=3)
    seen = []

    def execute(question):
        seen.append(dict(question.parents))
        return outcome(question)

    journalled(tmp_path, execute)
    assert seen[0] == {"a": 2, "b": 2}


@pytest.mark.parametrize("other", [{"i": 1}, {"i": 0, "j": 0}, None])
def test_another_question_under_a_recorded_number_is_refused(tmp_path, other):
    journalled(tmp_path, outcome)
    with pytest.raises(ResumeError, match="is not the question that was recorded"):
        Journal(tmp_path).replay(Round(MULTIPLY, other, number=0))


def test_an_empty_folder_is_an_empty_journal(tmp_path):
    assert Journal(tmp_path / "none").replay(Round(MULTIPLY, number=0)) is None
    assert not (tmp_path / "none").exists()


def test_a_damaged_aggregate_is_never_replayed(tmp_path):
    """One flipped bit in the numbers leaves a readable file, so only its digest can tell."""
    journalled(tmp_path, outcome)
    path = next(tmp_path.glob("rounds/0002.*"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(FileError, match="not those that were recorded"):
        Journal(tmp_path).replay(Round(MULTIPLY, {"i": 2}, number=2))
