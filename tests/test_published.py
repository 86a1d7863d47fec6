"""Summaries as sites publish them: what is damaged, foreign or old is refused by name, and the newest are merged."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedspan.published as module
from fedspan.encoding import decode, encode
from fedspan.errors import DataError, FileError
from fedspan.linalg import Summary
from fedspan.published import FORMAT, VERSION, Newest, Published
from tests.streams import folded, is_pooled, rows_of

STUDY = "a1" * 32


def summary_of(x, rank=3):
    return folded([x], rank)


def published(site="berlin", seq=1, x=None, **changes):
    x = rows_of(np.random.default_rng(0), 20, 4, 3) if x is None else x
    given = {"site": site, "seq": seq, "study": STUDY, "columns": None, "summary": summary_of(x)}
    return Published(**{**given, **changes})


def same(one, other):
    assert (one.site, one.seq, one.study, one.columns) == (other.site, other.seq, other.study, other.columns)
    for name, value in one.summary.as_plain().items():
        np.testing.assert_array_equal(getattr(other.summary, name), value)


# ---- as bytes and files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [None, ["w", "x", "y", "z é"]])
def test_what_is_published_is_read_back_to_the_bit(columns, tmp_path):
    one = published(seq=2**40, columns=columns, site="Zürich/2")
    same(one, Published.from_bytes(one.as_bytes()))
    path = tmp_path / "deep" / "berlin.summary"
    one.write(path)
    one.write(path)
    same(one, Published.read(path))
    assert [file.name for file in path.parent.iterdir()] == ["berlin.summary"]
    nothing = published(summary=Summary.empty(4))
    same(nothing, Published.from_bytes(nothing.as_bytes()))


def test_every_byte_that_is_damaged_and_every_cut_is_told():
    data, rng = published(columns=list("wxyz")).as_bytes(), np.random.default_rng(1)
    for place in rng.permutation(len(data))[:400]:
        damaged = bytearray(data)
        damaged[place] ^= 1 << int(rng.integers(8))
        with pytest.raises(FileError, match=r"^the file "):
            Published.from_bytes(bytes(damaged), "the file")
    for stop in (0, 3, 11, 12, 40, len(data) // 2, len(data) - 1):
        with pytest.raises(FileError, match=r"^the file .*cut short"):
            Published.from_bytes(data[:stop], "the file")
    with pytest.raises(FileError, match=r"^the file "):
        Published.from_bytes(data + b"x", "the file")


@given(st.binary(max_size=60))
def test_any_other_bytes_are_told(data):
    with pytest.raises(FileError, match="the summary is not a fedspan summary"):
        Published.from_bytes(data)


def wrapped(body, /, **changes):
    """A file with this body and a checksum that fits."""
    body = body if isinstance(body, bytes) else encode(body)
    outer = {
        "format": FORMAT, "version": VERSION, "digest": hashlib.sha256(body).hexdigest(),
        "body": np.frombuffer(body, dtype=np.uint8),
    }  # fmt: skip
    return encode({**outer, **changes})


def inner(**changes):
    one = published()
    plain = {
        "site": one.site, "seq": 1, "study": STUDY, "columns": list("wxyz"), "summary": one.summary.as_plain(),
    }  # fmt: skip
    return {**plain, **changes}


OTHERS = {
    "a number": encode(3),
    "a text": encode("summary"),
    "a list": encode([1, 2]),
    "an array": encode(np.zeros(3)),
    "nothing": encode(None),
    "an empty record": encode({}),
    "an exponent too large": encode({"a": 1.5}).replace(b"0x1.8000000000000p+0", b"0x1.8000000000p+9999"),
    "no version": encode({"format": FORMAT}),
}


@pytest.mark.parametrize("data", OTHERS.values(), ids=OTHERS)
def test_other_plain_data_is_no_summary(data):
    with pytest.raises(FileError, match=r"^mail 7 is not a fedspan summary, or was cut short .*; publish it again"):
        Published.from_bytes(data, "mail 7")


FORMATS = [{"format": "fedspan-model"}, {"version": VERSION + 1}, {"version": "1"}, {"version": None}, {"version": 1.0},
           {"format": np.zeros(2)}, {"format": None}, {"version": np.zeros(2)}]  # fmt: skip


@pytest.mark.parametrize("changes", FORMATS, ids=str)
def test_other_formats_and_newer_versions_are_refused(changes):
    with pytest.raises(
        FileError,
        match=r"^mail 7 has format .* version .*; this fedspan reads 'fedspan-summary' up to version 1: update",
    ):
        Published.from_bytes(wrapped(inner(), **changes), "mail 7")


BODIES = {
    "another digest": {"digest": "0" * 64},
    "a digest that is no text": {"digest": np.zeros(3)},
    "no body": {"body": None},
    "a body that is text": {"body": "text"},
}
INNERS = {
    "no site": {key: value for key, value in inner().items() if key != "site"},
    "a site that is a number": inner(site=3),
    "a study that is none": inner(study=None),
    "a number that is a fraction": inner(seq=1.5),
    "a number that is a text": inner(seq="1"),
    "too few columns": inner(columns=["w"]),
    "columns that are one text": inner(columns="wxyz"),
    "columns that are numbers": inner(columns=[1, 2, 3, 4]),
    "columns that are an array": inner(columns=np.zeros(4)),
    "no summary": inner(summary=None),
    "a summary that is an array": inner(summary=np.zeros(4)),
    "a summary with a damaged basis": inner(summary={**published().summary.as_plain(), "basis": np.ones((4, 3))}),
    "a summary that is not a number": inner(summary={**published().summary.as_plain(), "mean": np.full(4, np.nan)}),
    "an array for all": np.zeros(4),
    "a list for all": [1],
    "a number for all": 7,
    "bytes of another kind": b"not plain data",
}


@pytest.mark.parametrize(
    "data",
    [*(wrapped(inner(), **changes) for changes in BODIES.values()), *(wrapped(body) for body in INNERS.values())],
    ids=[*BODIES, *INNERS],
)
def test_what_does_not_fit_inside_is_damage(data):
    """Even where the checksum fits: whoever sent it may not be a friend."""
    with pytest.raises(FileError, match=r"^mail 7 is damaged \(.*\); publish it again"):
        Published.from_bytes(data, "mail 7")


def test_the_wrapping_of_these_tests_is_that_of_the_file():
    assert decode(wrapped(inner())).keys() == decode(published().as_bytes()).keys()
    assert Published.from_bytes(wrapped(inner())).columns == list("wxyz")


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(FileError, match=r"nowhere\.summary cannot be read \(No such file"):
        Published.read(tmp_path / "nowhere.summary")
    with pytest.raises(FileError, match=r"cannot be read \(Is a directory"):
        Published.read(tmp_path)
    (tmp_path / "broken.summary").write_bytes(b"FSP1")
    with pytest.raises(FileError, match=r"broken\.summary is not a fedspan summary"):
        Published.read(tmp_path / "broken.summary")


# ---- the newest of each site -----------------------------------------------------------------------------------


def test_the_newest_of_each_site_is_kept_and_merged():
    rng = np.random.default_rng(2)
    x = rows_of(rng, 90, 6, 3)
    parts = {"a": x[:20], "b": x[20:50], "c": x[50:]}
    node = Newest(STUDY, rank=3)
    assert node.take(published("a", 1, x[:7]))
    assert node.take(published("c", 4, parts["c"]))
    assert node.take(published("a", 3, parts["a"]))
    assert not node.take(published("a", 2, x[:12]))
    assert not node.take(published("c", 4, parts["c"]))
    assert node.take(published("b", 0, parts["b"]))
    assert node.seen == {"a": 3, "b": 0, "c": 4}
    is_pooled(node.merged(), x)
    assert node.merged().rows == 90


@pytest.mark.parametrize("fan_out", [None, 2, 3])
def test_the_order_of_arrival_does_not_change_a_bit(fan_out):
    rng = np.random.default_rng(3)
    summaries = [published(f"s{i}", 1, rng.standard_normal((9, 5))) for i in range(7)]
    merged = []
    for _ in range(4):
        node = Newest(STUDY, rank=3, fan_out=fan_out)
        for i in rng.permutation(7):
            node.take(summaries[i])
            node.merged()
        merged.append(encode(node.merged().as_plain()))
    assert len(set(merged)) == 1


def test_what_is_new_is_merged_in_and_nothing_else_again(monkeypatch):
    calls = []
    plain = module.merge_summaries
    monkeypatch.setattr(module, "merge_summaries", lambda *args: calls.append(1) or plain(*args))
    rng = np.random.default_rng(4)
    node = Newest(STUDY, rank=3, fan_out=2)
    for i in range(8):
        node.take(published(f"s{i}", 1, rng.standard_normal((9, 5))))
    node.merged()
    assert len(calls) == 7
    node.merged()
    assert len(calls) == 7
    node.take(published("s3", 2, rng.standard_normal((9, 5))))
    node.merged()
    assert len(calls) == 7 + 3


def test_no_summary_is_cut_more_often_than_it_must():
    """Sites are merged two by two: a chain would cut the first of eight seven times."""
    rng = np.random.default_rng(5)
    depths = []

    def merge(one, other, rank):
        depth = 1 + max(getattr(one, "depth", 0), getattr(other, "depth", 0))
        depths.append(depth)
        result = Summary.empty(5)
        object.__setattr__(result, "depth", depth)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "merge_summaries", merge)
        node = Newest(STUDY, rank=3)
        for i in range(9):
            node.take(published(f"s{i}", 1, rng.standard_normal((9, 5))))
        node.merged()
    assert (len(depths), max(depths)) == (8, 4)


def refused(node, other, *words):
    before = encode([node.merged().as_plain(), dict(node.seen), node.columns])
    with pytest.raises(DataError) as raised:
        node.take(other)
    for word in words:
        assert word in str(raised.value)
    assert encode([node.merged().as_plain(), dict(node.seen), node.columns]) == before


def test_another_study_or_other_columns_are_refused_by_site_and_what_was_kept_stays():
    node = Newest(STUDY, rank=3)
    node.take(published("a", 1, columns=list("wxyz")))
    refused(node, published("evil", 1, study="b2" * 32), "site 'evil'", "another study (b2b2b2b2b2b2", "a1a1a1a1a1a1")
    refused(
        node, published("late", 1, columns=list("wxyq")), "site 'late'", "['w', 'x', 'y', 'q']", "['w', 'x', 'y', 'z']"
    )
    refused(node, published("b", 1, columns=list("xwyz")), "site 'b'")
    wide = rows_of(np.random.default_rng(6), 20, 5)
    refused(node, published("wide", 1, wide), "site 'wide' has 5 columns")
    refused(node, published("a", 9, wide, columns=list("vwxyz")), "site 'a'")
    assert node.take(published("nameless", 1))  # as many columns, and no names to compare
    assert node.seen == {"a": 1, "nameless": 1}
    assert node.take(published("a", 2, columns=list("wxyz")))


def test_columns_are_those_that_were_given_or_of_the_first_that_names_them():
    node = Newest(STUDY, rank=3, columns=list("wxyz"))
    node.take(published("first", 1))
    refused(node, published("b", 1, columns=list("abcd")), "site 'b'")
    with pytest.raises(DataError, match="site 'c' has 5 columns"):
        Newest(STUDY, rank=3, columns=list("wxyz")).take(published("c", 1, np.ones((3, 5))))
    node = Newest(STUDY, rank=3)
    node.take(published("nameless", 1))
    node.take(published("names", 1, columns=list("abcd")))
    assert node.columns == list("abcd")
    refused(node, published("b", 1, columns=list("wxyz")), "site 'b'")


def test_before_any_summary_there_is_nothing_to_merge():
    with pytest.raises(DataError, match="no site has published a summary yet"):
        Newest(STUDY, rank=3).merged()


def test_the_rank_bounds_what_is_kept():
    rng = np.random.default_rng(7)
    node = Newest(STUDY, rank=2)
    for i in range(3):
        node.take(
            published(f"s{i}", 1, rng.standard_normal((20, 6)), summary=folded([rng.standard_normal((20, 6))], 6))
        )
    assert node.merged().basis.shape == (6, 2)
    assert node.merged().rows == 60
