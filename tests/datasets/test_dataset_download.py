"""Fetching, checking and caching, on files made here and served from here."""

from __future__ import annotations

import gzip
import hashlib
import json
import warnings

import numpy as np
import pytest

from fedspan.datasets import UnpinnedDownload, load, registry
from fedspan.datasets.formats import libsvm, open_plain
from fedspan.errors import DataError, FileError

TABLE = b"1.5 2.0\n3.0 4.0\n5.0 6.0\n"


def read_table(paths):
    with open_plain(paths[0]) as stream:
        return {"X": np.loadtxt(stream)}


def md5(content):
    return "md5:" + hashlib.md5(content, usedforsecurity=False).hexdigest()


def left_over(cache):
    return sorted(path.name for path in cache.iterdir())


def test_a_pinned_download_is_parsed_stored_and_not_asked_for_again(server, register, cache):
    server.shelf["/t.txt"] = TABLE
    register(f"{server.address}/t.txt", read_table, checksum=md5(TABLE), shape=(3, 2))
    first = load("toy")
    np.testing.assert_array_equal(first.X, [[1.5, 2], [3, 4], [5, 6]])
    assert left_over(cache) == ["toy.npz"]
    assert first.origin == str(cache / "toy.npz")
    server.shelf.clear()
    np.testing.assert_array_equal(load("toy").X, first.X)
    assert server.asked == ["/t.txt"]


def test_a_file_address_works_too(tmp_path, register):
    path = tmp_path / "t.txt.gz"
    path.write_bytes(gzip.compress(TABLE))
    register(path.as_uri(), read_table, checksum=md5(path.read_bytes()))
    assert load("toy").X.shape == (3, 2)


def test_a_wrong_checksum_stores_nothing(server, register, cache):
    server.shelf["/t.txt"] = TABLE + b"7 8\n"
    register(f"{server.address}/t.txt", read_table, checksum=md5(TABLE))
    with pytest.raises(FileError, match=r"has checksum md5:\w+, expected md5:.*Nothing was stored"):
        load("toy")
    assert left_over(cache) == []


def test_the_first_unpinned_download_is_recorded_and_said_not_to_be_verified(server, register, cache):
    server.shelf["/t.txt"] = TABLE
    entry = register(f"{server.address}/t.txt", read_table)
    with pytest.warns(UnpinnedDownload, match="was not verified; its sha256:.* is recorded") as caught:
        load("toy")
    assert caught[0].filename == __file__
    recorded = json.loads((cache / "checksums.json").read_text())
    assert recorded == {entry.files[0].url: "sha256:" + hashlib.sha256(TABLE).hexdigest()}
    (cache / "toy.npz").unlink()
    with pytest.warns(UnpinnedDownload, match="not verified; it equals the first download"):
        load("toy")


def test_an_unpinned_file_that_changes_is_refused(server, register, cache):
    server.shelf["/t.txt"] = TABLE
    register(f"{server.address}/t.txt", read_table)
    with pytest.warns(UnpinnedDownload):
        load("toy")
    (cache / "toy.npz").unlink()
    server.shelf["/t.txt"] = TABLE + b"7 8\n"
    with pytest.raises(FileError, match=r"source has changed.*checksums\.json"):
        load("toy")
    assert left_over(cache) == ["checksums.json"]


def test_what_cannot_be_parsed_is_neither_stored_nor_recorded(server, register, cache):
    server.shelf["/t.txt"] = b"<html>please log in</html>"
    register(f"{server.address}/t.txt", read_table)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(FileError, match="may now hold something else"):
            load("toy")
    assert left_over(cache) == []


def test_a_set_of_another_shape_is_refused(server, register, cache):
    server.shelf["/t.txt"] = TABLE
    register(f"{server.address}/t.txt", read_table, shape=(4, 2))
    with pytest.raises(FileError, match=r"shape \(3, 2\), expected \(4, 2\)"):
        load("toy")
    assert left_over(cache) == []


def test_a_truncated_archive_is_an_error_that_leaves_nothing(server, register, cache):
    server.shelf["/t.txt.gz"] = gzip.compress(TABLE * 50)[:-12]
    register(f"{server.address}/t.txt.gz", read_table)
    with pytest.raises(FileError, match="cannot be read"):
        load("toy")
    assert left_over(cache) == []


def test_a_connection_that_breaks_off_is_noticed_and_the_mirror_tried(server, register, cache):
    server.shelf["/broken.txt"] = (TABLE[:8], len(TABLE))
    server.shelf["/mirror.txt"] = TABLE
    address = f"{server.address}/broken.txt"
    register(address, read_table, checksum=md5(TABLE))
    with pytest.raises(DataError, match="broke off after 8 of 24 bytes"):
        load("toy")
    assert left_over(cache) == []
    register(address, read_table, checksum=md5(TABLE), mirrors=(f"{server.address}/mirror.txt",))
    assert load("toy").X.shape == (3, 2)


def test_without_a_network_the_error_says_where_to_put_the_file(server, register):
    register(f"{server.address}/missing.txt", read_table)
    with pytest.raises(DataError) as caught:
        load("toy")
    assert f"{server.address}/missing.txt" in str(caught.value)
    assert "$FEDSPAN_DATA/toy/missing.txt" in str(caught.value)


def test_a_raw_file_put_by_hand_is_used_and_checked(register, data_folder, cache):
    register("https://example.invalid/t.txt", read_table, checksum=md5(TABLE))
    (data_folder / "toy").mkdir()
    by_hand = data_folder / "toy" / "t.txt"
    by_hand.write_bytes(TABLE)
    assert load("toy").X.shape == (3, 2)
    (cache / "toy.npz").unlink()
    by_hand.write_bytes(TABLE[:-4])
    with pytest.raises(FileError, match="checksum"):
        load("toy")
    assert by_hand.exists()  # the user's own file is not ours to remove


def test_a_cache_that_cannot_be_written_is_said(register, monkeypatch, tmp_path):
    blocked = tmp_path / "blocked"
    blocked.write_text("a file, not a folder")
    monkeypatch.setenv("FEDSPAN_CACHE", str(blocked / "cache"))
    register("https://example.invalid/t.txt", read_table)
    with pytest.raises(DataError, match="FEDSPAN_CACHE"):
        load("toy")


def test_a_damaged_record_of_checksums_is_said(server, register, cache):
    cache.mkdir()
    (cache / "checksums.json").write_text("{")
    server.shelf["/t.txt"] = TABLE
    register(f"{server.address}/t.txt", read_table)
    with pytest.raises(FileError, match=r"checksums\.json is not valid JSON"):
        load("toy")


def test_sparse_sets_survive_the_cache(server, register):
    text = b"1 1:1 3:1\n-1 2:1\n1\n"
    server.shelf["/s"] = text
    register(f"{server.address}/s", lambda paths: libsvm(paths, n_features=4), checksum=md5(text), shape=(3, 4))
    found = load("toy")
    np.testing.assert_array_equal(found.X.toarray(), [[1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]])
    np.testing.assert_array_equal(found.y, [1, -1, 1])


@pytest.mark.parametrize("name", sorted(registry.ENTRIES))
def test_every_entry_is_complete(name):
    entry = registry.ENTRIES[name]
    ways = [entry.bundled is not None, bool(entry.files), bool(entry.by_hand)]
    assert ways.count(True) == 1
    assert bool(entry.files or entry.local) == (entry.parse is not None)
    assert entry.source.startswith("http")
    assert entry.licence
    for file in entry.files:
        assert file.url.startswith("http")
        assert file.filename
        if file.checksum is not None:
            algorithm, value = file.checksum.split(":")
            assert len(bytes.fromhex(value)) == hashlib.new(algorithm).digest_size
    if entry.columns is not None:
        assert len(entry.columns) == entry.shape[1]
    assert len({file.filename for file in entry.files}) == len(entry.files)
