"""Opening sites: name order, durable memories, preparations that come back."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedspan.data import open_source
from fedspan.data.prepared import Prepared
from fedspan.encoding import decode, encode
from fedspan.errors import FileError
from fedspan.rounds import STEPS, Memory, Reply, Round, answer
from fedspan.sites import DurableMemory, open_site, open_sites, rows_digest

ROWS = np.random.default_rng(0).standard_normal((7, 4)) + 3.0


def question(number, message, parent=None, step="gram.multiply", name="a"):
    return Round(STEPS[step], message, number=number, parents={} if parent is None else {name: parent})


def test_sites_are_opened_in_name_order():
    sites = open_sites({"b": open_source(ROWS), "a": open_source(ROWS)}, seed=4)
    assert [site.id for site in sites] == ["a", "b"]
    assert {site.seed for site in sites} == {4}
    assert all(type(site.memory) is Memory for site in sites)


def test_with_a_folder_memories_are_durable_and_apart(tmp_path):
    sites = open_sites({"b": open_source(ROWS), "a": open_source(ROWS)}, seed=4, folder=tmp_path)
    assert all(isinstance(site.memory, DurableMemory) for site in sites)
    answer(sites[0], question(0, np.eye(4)))
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_reopened_site_sees_its_rows_prepared(tmp_path):
    site = open_site("a", open_source(ROWS), seed=0, folder=tmp_path)
    preparation = {"columns": None, "weight_column": None, "mean": ROWS.mean(axis=0)}
    answer(site, question(0, preparation, step="data.prepare"))
    expected = answer(site, question(1, np.eye(4), parent=0)).value
    again = open_site("a", open_source(ROWS), seed=0, folder=tmp_path)
    assert isinstance(again.data, Prepared)
    np.testing.assert_array_equal(again.data.gram_times(np.eye(4)), expected)
    centred = ROWS - ROWS.mean(axis=0)
    np.testing.assert_allclose(expected, centred.T @ centred, atol=1e-10)


def test_the_preparation_stays_through_many_rounds(tmp_path):
    site = open_site("a", open_source(ROWS), seed=0, folder=tmp_path)
    answer(site, question(0, {"mean": ROWS.mean(axis=0)}, step="data.prepare"))
    for number in range(1, 6):
        answer(site, question(number, np.eye(4) * number, parent=number - 1))
    again = open_site("a", open_source(ROWS), seed=0, folder=tmp_path)
    assert isinstance(again.data, Prepared)
    assert len(again.memory.versions) == 2


def test_a_stored_reply_comes_back_to_the_bit_with_its_weight(tmp_path):
    memory = DurableMemory(tmp_path / "a")
    value = {"z": np.random.default_rng(0).standard_normal((3, 2)), "n": 0.1, "text": "é"}
    asked = question(3, {"k": 2})
    memory.commit(asked, None, Reply(value, 2.5), {"s": 1})
    for kept in (memory, DurableMemory(tmp_path / "a")):
        reply = kept.recall(asked)
        assert encode(reply.value) == encode(value)
        assert reply.weight == 2.5
        assert kept.version(3) == {"s": 1}


def test_a_new_round_is_not_recalled(tmp_path):
    memory = DurableMemory(tmp_path / "a")
    assert memory.recall(question(0, 1)) is None
    memory.commit(question(0, 1), None, Reply(1), {})
    assert memory.recall(question(1, 1)) is None


def test_a_memory_holds_one_reply_and_two_versions(tmp_path):
    site = open_site("a", open_source(ROWS), seed=0, folder=tmp_path)
    sizes = []
    for number in range(8):
        answer(site, question(number, np.eye(4), parent=number - 1 if number else None))
        sizes.append((tmp_path / "a" / "memory").stat().st_size)
    assert max(sizes[1:]) - min(sizes[1:]) < 10
    kept = decode((tmp_path / "a" / "memory").read_bytes())
    assert kept["last"]["round"] == 7
    assert [number for number, _ in kept["versions"]] == [7, 6]


def test_what_does_not_encode_is_not_half_committed(tmp_path):
    memory = DurableMemory(tmp_path / "a")
    memory.commit(question(0, 1), None, Reply(1.0), {})
    with pytest.raises(TypeError, match="only plain data"):
        memory.commit(question(1, 1), 0, Reply(object()), {})
    again = DurableMemory(tmp_path / "a")
    assert again.recall(question(0, 1)).value == 1.0
    assert again.recall(question(1, 1)) is None


def test_a_damaged_memory_is_an_error(tmp_path):
    memory = DurableMemory(tmp_path / "a")
    memory.commit(question(0, 1), None, Reply(np.eye(3)), {})
    path = tmp_path / "a" / "memory"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(FileError):
        DurableMemory(tmp_path / "a")


def test_the_digest_of_rows_is_of_their_weights_and_names_too():
    rows, names = np.random.default_rng(0).standard_normal((7, 4)), ("x", "y", "z", "w")
    sources = [
        open_source(rows),
        open_source(rows + 1e-12),
        open_source(rows[::-1].copy()),
        open_source(rows, weights=np.full(7, 0.5)),
        open_source(rows, site_weight=2.0),
        open_source(pd.DataFrame(rows, columns=names)),
    ]
    assert len({rows_digest("a", source) for source in sources}) == len(sources)
