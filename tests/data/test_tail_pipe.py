"""Standard input as a growing input, through real pipes."""

import os
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest

from fedspan.data import follow
from fedspan.encoding import decode, encode
from fedspan.errors import DataError, FileError, ResumeError


class Pipe:
    """A pipe as this process's standard input."""

    def __init__(self, monkeypatch):
        read, self.write_end = os.pipe()
        self.stdin = os.fdopen(read)
        monkeypatch.setattr(sys, "stdin", self.stdin)

    def send(self, text):
        os.write(self.write_end, text.encode())

    def close(self):
        os.close(self.write_end)


@pytest.fixture
def pipes(monkeypatch):
    made = []

    def make(text=None):
        made.append(Pipe(monkeypatch))
        if text is not None:
            made[-1].send(text)
            made[-1].close()
        return made[-1]

    yield make
    for pipe in made:
        pipe.stdin.close()


def rows_of(tail, count=None):
    """Read until so many rows have come, or to the end."""
    blocks, complaints = [], []
    while sum(map(len, blocks)) < count if count is not None else not tail.exhausted:
        try:
            blocks.extend(tail.read())
        except DataError as error:
            complaints.append(str(error))
    return np.concatenate(blocks).tolist() if blocks else [], complaints


@pytest.mark.parametrize(
    "text",
    ["a,b\n1,2\n3,\n5,6", '{"a": 1, "b": 2}\r\n\n{"a": 3}\r\n{"b": 6, "a": 5}', "\ufeffa;b\n1;2\n3;NA\n5;6\n\n"],
)
def test_csv_or_json_lines_to_the_end(pipes, text):
    pipes(text)
    tail = follow("-")
    assert not tail.exhausted
    rows, complaints = rows_of(tail)
    np.testing.assert_array_equal(rows, [[1, 2], [3, np.nan], [5, 6]])
    assert (tail.columns, complaints) == (("a", "b"), [])
    assert list(tail.read()) == []


def test_reading_never_waits(pipes):
    pipe = pipes()
    tail = follow("-")
    assert list(tail.read()) == []
    pipe.send("a,b\n1,2\n3,")
    assert rows_of(tail, 1)[0] == [[1, 2]]
    assert list(tail.read()) == []
    assert not tail.exhausted
    assert tail.waiting == "standard input, line 3 is not complete: 2 bytes wait for the end of the line"
    pipe.send("4\n")
    assert rows_of(tail, 1)[0] == [[3, 4]]
    pipe.close()
    assert rows_of(tail)[0] == []
    assert tail.exhausted


@pytest.mark.parametrize("text", ["", "\n\n", "a,b\n"])
def test_nothing_but_an_end(pipes, text):
    pipes(text)
    assert rows_of(follow("-")) == ([], [])


def test_bad_lines_and_a_quote_open_at_the_end(pipes):
    pipes('a,b\n1,2\nx,y\n3,"4\n5,6')
    rows, complaints = rows_of(follow("-"))
    assert rows == [[1, 2], [5, 6]]
    assert ["line 3: column 'a' has 'x'" in complaints[0], "line 4: a quoted field begins" in complaints[1]] == [
        True
    ] * 2


def test_a_column_of_texts_is_refused_until_a_number_comes(pipes):
    pipe = pipes()
    pipe.send("a,b\nx,1\n")
    tail = follow("-")
    for _ in range(2):
        with pytest.raises(FileError, match=r'standard input: columns "a" are not numeric.*drop = \["a"\]'):
            rows_of(tail)
    pipe.send("2,3\n")
    pipe.close()
    while not tail.position["lines"]:  # until it has arrived
        with suppress(FileError), pytest.raises(DataError) as caught:
            list(tail.read())
    assert "line 2: column 'a' has 'x'" in str(caught.value)
    rows, complaints = rows_of(tail)
    assert (rows, complaints) == ([[2, 3]], [])


def test_more_than_the_queue_holds(pipes):
    code = "print('a,b'); [print(f'{i},{-i}') for i in range(300_000)]"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as writer:
        pipe = pipes()
        pipe.close()
        sys.stdin = writer.stdout
        rows, complaints = rows_of(follow("-"))
    np.testing.assert_array_equal(np.array(rows)[:, 0], np.arange(300_000))
    assert complaints == []


TEXT = "a,b\n" + "".join(f"{i},{i}\n" for i in range(1500))


@pytest.mark.parametrize("stop", [1, 2, 700, 1500])
@pytest.mark.parametrize("text", [TEXT, "".join(f"[{i}, {i}]\n" for i in range(1500))])
def test_the_same_lines_sent_again_go_on_behind_those_that_were_read(pipes, monkeypatch, text, stop):
    monkeypatch.setattr("fedspan.data.tail.pipe.CHUNK_BYTES", 64)  # some rows a block
    pipe = pipes()
    tail, before = follow("-"), 0
    pipe.send(text)
    reader = tail.read()
    while before < stop:
        before += next(iter(tail.read()), np.empty((0, 2))).shape[0]
    del reader
    position = decode(encode(tail.position))
    assert position["rows"] == before
    pipe.close()
    pipes(text)
    tail = follow("-", position=position)
    assert tail.position == position  # until all was passed over too
    assert rows_of(tail)[0] == [[i, i] for i in range(before, 1500)]
    assert tail.position["rows"] == 1500


def test_other_lines_than_those_that_were_read(pipes):
    pipes(TEXT)
    tail = follow("-")
    rows_of(tail)
    pipes("a,b\n7,7\n" + TEXT)
    other = follow("-", position=tail.position)
    with pytest.raises(FileError, match=r"does not begin with the 1,501 lines that were read before.*tee -a FILE"):
        rows_of(other)
    pipes(TEXT[: len(TEXT) // 2])
    with pytest.raises(FileError, match=r"standard input ended \d+ lines short of the 1,501"):
        rows_of(follow("-", position=tail.position))
    with pytest.raises(ResumeError, match=r"standard input is read as standard input, and the position .* of csv"):
        follow("-", position={"kind": "csv"})


def test_a_last_line_without_an_end_counts_as_one(pipes):
    pipes("a,b\n1,2\n3,4")
    tail = follow("-")
    rows_of(tail)
    assert (tail.position["lines"], tail.position["start"]) == (3, 11)
    for text, rows in [("a,b\n1,2\n3,4", []), ("a,b\n1,2\n3,4\n5,6\n", [[5, 6]])]:
        pipes(text)
        assert rows_of(follow("-", position=tail.position)) == (rows, [])
    pipe = pipes()
    pipe.send("a,b\n1,2\n3,4")
    again = follow("-", position=tail.position)
    while again._passed < 11:  # the end is not known yet
        assert list(again.read()) == []
    pipe.close()
    assert rows_of(again) == ([], [])


def test_without_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(FileError, match="standard input is closed"):
        list(follow("-").read())
