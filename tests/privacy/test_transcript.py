"""A transcript on disk: what is written is what is read, and damage is named."""

from __future__ import annotations

import json
import os
import stat

import numpy as np
import pytest

from fedspan.encoding import encode
from fedspan.errors import FileError
from fedspan.privacy.transcript import Seen, Transcript, TranscriptWriter, has_transcript

ROUNDS = [
    Seen(0, "data.describe", True, None, "gather", {"b": {"rows": 3, "columns": None}, "a": {"rows": 4}}),
    Seen(1, "gram.multiply", False, np.eye(3, 2), "sum", {"a": np.arange(6.0).reshape(3, 2), "b": np.zeros((3, 2))}),
    Seen(2, "gram.multiply", False, {"z": np.eye(2), "t": 0.1}, "mean", {"b": {"value": np.nan, "weight": 2.0}}),
    Seen(3, "gram.multiply", False, [1, "x"], "sum", {}),
]


@pytest.fixture
def run_folder(tmp_path):
    kept(tmp_path, *ROUNDS)
    return tmp_path


def kept(folder, *rounds):
    writer = TranscriptWriter(folder)
    for seen in rounds:
        writer.append(seen)


def index(folder):
    return folder / "transcript" / "index.jsonl"


def test_what_is_read_is_what_was_kept(run_folder):
    read = Transcript.read(run_folder)
    assert [encode(vars(seen)) for seen in read.rounds] == [encode(vars(seen)) for seen in ROUNDS]
    assert read.sites == ["a", "b"]
    assert [seen.round for seen, _ in read.releases("a")] == [0, 1]


def test_there_is_a_file_for_each_round_and_a_line_with_its_digest(run_folder):
    files = sorted(path.name for path in (run_folder / "transcript").iterdir())
    assert files == ["0000.plain", "0001.plain", "0002.plain", "0003.plain", "index.jsonl"]
    lines = [json.loads(line) for line in index(run_folder).read_text().splitlines()]
    assert [(line["round"], line["step"]) for line in lines] == [(seen.round, seen.step) for seen in ROUNDS]
    assert {len(line["digest"]) for line in lines} == {64}


def test_a_writer_that_writes_nothing_leaves_nothing(tmp_path):
    TranscriptWriter(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert not has_transcript(tmp_path / "run")


def test_a_round_kept_twice_is_there_once_as_it_was_last(run_folder):
    again = Seen(3, "gram.multiply", False, [1, "x"], "sum", {"a": 1.0})
    kept(run_folder, again)
    assert len(index(run_folder).read_text().splitlines()) == 5
    read = Transcript.read(run_folder)
    assert [seen.round for seen in read.rounds] == [0, 1, 2, 3]
    assert read.rounds[3] == again


# ---- after a kill ----------------------------------------------------------------------------------------------


def test_a_line_cut_short_is_an_error_until_its_round_is_kept_again(run_folder):
    whole = index(run_folder).read_bytes()
    last = whole.rstrip(b"\n").rindex(b"\n") + 1
    for cut in (last + 1, last + 20, len(whole) - 1):
        index(run_folder).write_bytes(whole[:cut])
        with pytest.raises(FileError, match=r"index\.jsonl: the last line is cut short; resume the run"):
            Transcript.read(run_folder)
        kept(run_folder, ROUNDS[3])
        assert index(run_folder).read_bytes() == whole
    assert len(Transcript.read(run_folder).rounds) == 4


def test_a_file_without_its_line_is_an_error_until_its_round_is_kept_again(run_folder):
    lines = index(run_folder).read_bytes().splitlines(keepends=True)
    index(run_folder).write_bytes(b"".join(lines[:-1]))
    with pytest.raises(FileError, match=r"0003\.plain: the index does not know this round; resume the run"):
        Transcript.read(run_folder)
    kept(run_folder, ROUNDS[3])
    assert len(Transcript.read(run_folder).rounds) == 4


def test_what_a_kill_leaves_of_a_file_is_not_read(run_folder):
    (run_folder / "transcript" / "0004.plain.7.part").write_bytes(b"half")
    assert len(Transcript.read(run_folder).rounds) == 4


def test_a_run_does_not_go_on_over_a_hole(run_folder):
    TranscriptWriter(run_folder).check_rounds_before(4)
    with pytest.raises(FileError, match="round 4 is not in the transcript, so it cannot be made whole; restore"):
        TranscriptWriter(run_folder).check_rounds_before(5)
    lines = index(run_folder).read_bytes().splitlines(keepends=True)
    index(run_folder).write_bytes(b"".join(lines[:1] + lines[2:]))
    with pytest.raises(FileError, match="round 1 is not in the transcript"):
        TranscriptWriter(run_folder).check_rounds_before(4)


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX")
def test_the_folder_is_its_owners_alone(run_folder):
    assert stat.S_IMODE((run_folder / "transcript").stat().st_mode) == 0o700


# ---- what the journal knows ------------------------------------------------------------------------------------


def journalled(folder, *lines):
    (folder / "rounds.jsonl").write_text("".join(lines))


def line(number, **more):
    return json.dumps({"round": number, "question": "", **more}) + "\n"


def test_an_answered_round_that_was_cut_off_is_an_error_that_names_it(run_folder):
    journalled(run_folder, *(line(i) + line(i, answer={}) for i in range(4)))
    assert len(Transcript.read(run_folder).rounds) == 4
    lines = index(run_folder).read_bytes().splitlines(keepends=True)
    index(run_folder).write_bytes(b"".join(lines[:-2]))
    for number in (2, 3):
        (run_folder / "transcript" / f"000{number}.plain").unlink()
    with pytest.raises(FileError, match=r"transcript: round 2 was answered and is not in the transcript; restore"):
        Transcript.read(run_folder)


def test_a_round_asked_or_half_noted_is_not_missed(run_folder):
    journalled(run_folder, line(3), line(3, answer={}), line(4), line(4, answer={})[:-1])
    assert len(Transcript.read(run_folder).rounds) == 4


@pytest.mark.parametrize("damage", ["{", "7", '{"answer": {}}'])
def test_a_damaged_journal_is_an_error_that_names_the_line(run_folder, damage):
    journalled(run_folder, line(0), damage + "\n")
    with pytest.raises(FileError, match=r"rounds\.jsonl: line 2 is damaged .*; restore"):
        Transcript.read(run_folder)


# ---- damage ----------------------------------------------------------------------------------------------------


def test_a_run_folder_without_a_transcript_says_how_to_get_one(tmp_path):
    with pytest.raises(FileError, match=r'keeps no transcript; run the study with \[run\] record = "transcript"'):
        Transcript.read(tmp_path)


def test_a_transcript_without_its_index_is_an_error(run_folder):
    index(run_folder).unlink()
    with pytest.raises(FileError, match=r"index\.jsonl: the transcript's index cannot be read \(No such file"):
        Transcript.read(run_folder)


@pytest.mark.parametrize("damage", [b"{", b"\xff\xfe", b"null", b"7", b"{}", b'{"round": "x", "digest": ""}'])
def test_a_damaged_line_is_an_error_that_names_it(run_folder, damage):
    lines = index(run_folder).read_bytes().splitlines()
    lines[1] = damage
    index(run_folder).write_bytes(b"\n".join(lines) + b"\n")
    for use in (Transcript.read, TranscriptWriter):
        with pytest.raises(FileError, match=r"index\.jsonl: line 2 is damaged .*; restore the transcript's folder"):
            use(run_folder)


def test_a_missing_line_is_an_error_that_names_the_round(run_folder):
    lines = index(run_folder).read_bytes().splitlines(keepends=True)
    index(run_folder).write_bytes(b"".join(lines[:1] + lines[2:]))
    with pytest.raises(FileError, match=r"index\.jsonl: there is no line for round 1"):
        Transcript.read(run_folder)


def test_a_damaged_or_missing_file_is_an_error_that_names_it(run_folder):
    path = run_folder / "transcript" / "0001.plain"
    data = path.read_bytes()
    for content in (data[:-8], b"", b"nonsense", data[:-1] + bytes([data[-1] ^ 1]), data + b"more"):
        path.write_bytes(content)
        with pytest.raises(FileError, match=r"0001\.plain: .*not those that were kept.*, or run the study again"):
            Transcript.read(run_folder)
    path.unlink()
    with pytest.raises(FileError, match=r"0001\.plain: a round of the transcript cannot be read \(.*No such file"):
        Transcript.read(run_folder)


@pytest.mark.parametrize("content", [b"nonsense", encode([1]), encode({"round": 1})])
def test_a_file_that_is_no_round_is_an_error_whatever_its_digest(run_folder, content, monkeypatch):
    monkeypatch.setattr("fedspan.privacy.transcript.encode", lambda value: content)
    kept(run_folder, ROUNDS[1])
    with pytest.raises(FileError, match=r"0001\.plain: a round of the transcript cannot be read"):
        Transcript.read(run_folder)


# ---- secure sums -----------------------------------------------------------------------------------------------


def exchange(number, step, **replies):
    return Seen(number, step, False, {"session": "x"}, "gather", replies)


@pytest.fixture
def masked_folder(tmp_path):
    writer = TranscriptWriter(tmp_path)
    writer.append(ROUNDS[0])
    for seen in (exchange(1, "secure.keys", a=1), exchange(1, "secure.masked", a=2, c=3)):
        writer.append_exchange(seen)
    writer.append(Seen(1, "gram.multiply", False, np.eye(3), "sum", total=np.ones((3, 3)), summed=["a", "c"]))
    return tmp_path


def test_a_secure_sum_is_its_exchanges_and_what_it_came_to(masked_folder):
    read = Transcript.read(masked_folder)
    assert [(seen.round, seen.exchange, seen.step) for seen in read.exchanges] == [
        (1, 0, "secure.keys"), (1, 1, "secure.masked"),
    ]  # fmt: skip
    assert [seen.round for seen in read.rounds] == [0, 1]
    assert read.sums == read.rounds[1:]
    assert (read.sums[0].summed, read.sums[0].total.tolist()) == (["a", "c"], np.ones((3, 3)).tolist())
    assert read.sites == ["a", "b", "c"]
    assert list(read.releases("c")) == []  # no reply of its own was seen
    files = sorted(path.name for path in (masked_folder / "transcript").iterdir())
    assert files == ["0000.plain", "0001-0000.plain", "0001-0001.plain", "0001.plain", "index.jsonl"]


def test_what_was_seen_before_a_kill_is_kept_beside_what_came_after(tmp_path):
    writer = TranscriptWriter(tmp_path)
    writer.append_exchange(exchange(0, "secure.keys", a=1))
    assert [seen.exchange for seen in Transcript.read(tmp_path).exchanges] == [0]  # the run is no further yet
    again = TranscriptWriter(tmp_path)
    again.append_exchange(exchange(0, "secure.keys", a=2))
    again.append(Seen(0, "s", False, None, "sum", total=1.0, summed=["a"]))
    read = Transcript.read(tmp_path)
    assert [(seen.exchange, seen.replies["a"]) for seen in read.exchanges] == [(0, 1), (1, 2)]


def test_a_missing_exchange_or_round_below_one_is_named(masked_folder):
    lines = index(masked_folder).read_bytes().splitlines(keepends=True)
    for left, missing in ((1, "exchange 0 of round 1"), (0, "round 0")):
        index(masked_folder).write_bytes(b"".join(lines[:left] + lines[left + 1 :]))
        with pytest.raises(FileError, match=f"there is no line for {missing}; restore"):
            Transcript.read(masked_folder)
    kept(masked_folder)
    with pytest.raises(FileError, match="round 0 is not in the transcript"):
        TranscriptWriter(masked_folder).check_rounds_before(1)
    index(masked_folder).write_bytes(b"".join(lines[:2]))  # a sum's file without its line
    with pytest.raises(FileError, match=r"0001-0001\.plain: the index does not know this round; resume"):
        Transcript.read(masked_folder)


def test_an_exchange_is_no_round(tmp_path):
    writer = TranscriptWriter(tmp_path)
    writer.append_exchange(exchange(0, "secure.keys", a=1))
    with pytest.raises(FileError, match="round 0 is not in the transcript"):
        writer.check_rounds_before(1)
    kept(tmp_path, ROUNDS[0])
    writer.append_exchange(exchange(2, "secure.keys", a=1))
    with pytest.raises(FileError, match="there is no line for round 1"):
        Transcript.read(tmp_path)


def test_a_sum_that_was_answered_and_not_kept_is_missed(masked_folder):
    journalled(masked_folder, line(0, answer={}), line(1, answer={}))
    assert len(Transcript.read(masked_folder).rounds) == 2
    lines = index(masked_folder).read_bytes().splitlines(keepends=True)
    index(masked_folder).write_bytes(b"".join(lines[:-1]))
    (masked_folder / "transcript" / "0001.plain").unlink()
    with pytest.raises(FileError, match="round 1 was answered and is not in the transcript"):
        Transcript.read(masked_folder)
