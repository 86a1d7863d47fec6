"""Each published format, on the smallest file that has its features."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import struct
import tarfile
import zipfile

import numpy as np
import pytest

from fedspan.datasets import formats
from fedspan.errors import FileError

IDENTITY = lambda content: content  # noqa: E731


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(np.uint8).tobytes()


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("ending", "pack"),
    [("", IDENTITY), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)],
)
def test_libsvm_text_in_any_compression(tmp_path, ending, pack):
    train = write(tmp_path, f"train{ending}", pack(b"+1 1:0.5 3:2 # note\n-1 2:-1\n"))
    test = write(tmp_path, f"test{ending}", pack(b"-1 1:4\n"))
    parts = formats.libsvm([train, test], n_features=3, dense=True)
    np.testing.assert_array_equal(parts["X"], [[0.5, 0, 2], [0, -1, 0]])
    np.testing.assert_array_equal(parts["y"], [1, -1])
    np.testing.assert_array_equal(parts["X_test"], [[4, 0, 0]])
    np.testing.assert_array_equal(parts["y_test"], [-1])


def test_libsvm_keeps_sparse_sets_sparse_and_real_targets_real(tmp_path):
    parts = formats.libsvm([write(tmp_path, "a", b"24.5 1:1\n21 4:1\n")], n_features=4)
    assert parts["data"].dtype == np.uint8
    assert parts["shape"].tolist() == [2, 4]
    assert parts["indices"].tolist() == [0, 3]
    assert parts["y"].tolist() == [24.5, 21]


def test_values_that_are_no_small_integers_are_stored_as_floats(tmp_path):
    parts = formats.libsvm([write(tmp_path, "a", b"1 1:-1 2:0.25\n")], n_features=2)
    assert parts["data"].tolist() == [-1, 0.25]


def test_idx_images_with_labels(tmp_path):
    images = np.arange(2 * 2 * 3).reshape(2, 2, 3)
    files = [images, np.array([7, 9]), images[:1] + 1, np.array([3])]
    paths = [write(tmp_path, f"{i}.gz", gzip.compress(idx(array))) for i, array in enumerate(files)]
    parts = formats.idx_images(paths)
    np.testing.assert_array_equal(parts["X"], images.reshape(2, 6))
    np.testing.assert_array_equal(parts["y"], [7, 9])
    np.testing.assert_array_equal(parts["X_test"], images[:1].reshape(1, 6) + 1)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\x00\x00\x08\x01\x00\x00\x00\x05abc", "truncated"),
        (b"\x00\x00\x08\x03\x00\x00", "truncated"),
        (b"\x00\x00\x0d\x01" + b"\x00" * 8, "unsigned bytes"),
        (b"", "unsigned bytes"),
    ],
)
def test_what_is_not_a_whole_idx_file_is_refused(raw, text):
    with pytest.raises(FileError, match=text):
        formats.read_idx(raw, "some-file")


def test_emnist_is_turned_upright(tmp_path):
    upright = np.arange(28 * 28).reshape(1, 28, 28) % 251
    with zipfile.ZipFile(tmp_path / "gzip.zip", "w") as archive:
        for part in ("train", "test"):
            stem = f"gzip/emnist-balanced-{part}"
            archive.writestr(f"{stem}-images-idx3-ubyte.gz", gzip.compress(idx(upright.swapaxes(1, 2))))
            archive.writestr(f"{stem}-labels-idx1-ubyte.gz", gzip.compress(idx(np.array([46]))))
    parts = formats.emnist([tmp_path / "gzip.zip"])
    np.testing.assert_array_equal(parts["X"], upright.reshape(1, -1))
    assert parts["y_test"].tolist() == [46]
    with pytest.raises(FileError, match="no member emnist-letters"):
        formats.emnist([tmp_path / "gzip.zip"], split="letters")


def cifar_archive(path, members):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(f"folder/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def record(labels, image):
    return bytes(labels) + image.transpose(2, 0, 1).astype(np.uint8).tobytes()


def test_cifar_10_records_become_rows_with_colours_last(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (4, 32, 32, 3))
    members = {
        "one.bin": record([6], images[0]) + record([9], images[1]),
        "two.bin": record([4], images[2]),
        "test.bin": record([3], images[3]) * 3,
    }
    path = cifar_archive(tmp_path / "c.tar.gz", members)
    settings = {"train": ("one.bin", "two.bin"), "test": "test.bin", "label_bytes": 1}
    parts = formats.cifar([path], **settings)
    np.testing.assert_array_equal(parts["X"], images[:3].reshape(3, -1))
    np.testing.assert_array_equal(parts["y"], [6, 9, 4])
    np.testing.assert_array_equal(parts["X_test"], np.repeat(images[3:], 3, axis=0).reshape(3, -1))
    assert len(formats.cifar([path], **settings, n_test=2)["X_test"]) == 2


def test_cifar_100_has_fine_and_coarse_labels(tmp_path):
    image = np.zeros((32, 32, 3))
    members = {"train.bin": record([11, 77], image), "test.bin": record([2, 5], image)}
    path = cifar_archive(tmp_path / "c.tar.gz", members)
    parts = formats.cifar([path], train=("train.bin",), test="test.bin", label_bytes=2)
    assert (parts["y"].tolist(), parts["coarse"].tolist()) == ([77], [11])
    assert (parts["y_test"].tolist(), parts["coarse_test"].tolist()) == ([5], [2])


def test_a_cifar_archive_that_lacks_a_member_or_bytes_is_refused(tmp_path):
    path = cifar_archive(tmp_path / "c.tar.gz", {"train.bin": b"123", "test.bin": b""})
    with pytest.raises(FileError, match="no multiple"):
        formats.cifar([path], train=("train.bin",), test="test.bin", label_bytes=1)
    with pytest.raises(FileError, match=r"no member other\.bin"):
        formats.cifar([path], train=("other.bin",), test="test.bin", label_bytes=1)


def leaf(path, **writers):
    path.parent.mkdir(exist_ok=True)
    user_data = {name: {"x": np.asarray(images).tolist(), "y": labels} for name, (images, labels) in writers.items()}
    path.write_text(json.dumps({"users": list(writers), "num_samples": [], "user_data": user_data}))
    return path


def test_leaf_images_keep_their_writers(tmp_path):
    one = leaf(tmp_path / "a.json", f0=(np.array([[0, 1], [0.5, 0.25]]), [3, 61]), f1=(np.array([[1, 1]]), [0]))
    two = leaf(tmp_path / "b.json", f2=(np.array([[0, 0]]), [7]))
    parts = formats.leaf_images([[one, two], []])
    assert parts["X"].tolist() == [[0, 255], [128, 64], [255, 255], [0, 0]]
    assert parts["X"].dtype == np.uint8
    assert parts["y"].tolist() == [3, 61, 0, 7]
    assert parts["site"].tolist() == ["f0", "f0", "f1", "f2"]
    assert "X_test" not in parts
    assert formats.leaf_images([[one], [two]])["site_test"].tolist() == ["f2"]


def test_leaf_images_without_a_label_each_are_refused(tmp_path):
    with pytest.raises(FileError, match="f0 has 2 images and 1 labels"):
        formats.leaf_images([[leaf(tmp_path / "a.json", f0=(np.eye(2), [3]))], []])


def tweet_archive(path, train, test):
    with zipfile.ZipFile(path, "w") as archive:
        for name, lines in (("training.1600000.processed.noemoticon", train), ("testdata.manual.2009.06.14", test)):
            rows = "".join(f'"{p}","1","Mon","NO_QUERY","{user}","{said}"\n' for p, user, said in lines)
            archive.writestr(f"{name}.csv", rows.encode("latin-1"))
    return path


def test_tweets_become_numbers_of_words(tmp_path):
    train = [("0", "ann", "No, NO @bob it's caf\xe9 http://x.y/z?a"), ("4", "bob", "no good day! good"), ("4", "c", "")]
    test = [("2", "d", "neutral"), ("4", "e", "good unheard")]
    parts = formats.tweets([tweet_archive(tmp_path / "t.zip", train, test)])
    assert parts["words"][:2].tolist() == ["no", "good"]  # as often as they occur
    assert set(parts["words"].tolist()) == {"no", "good", "it's", "caf", "day", "!"}
    number = {word: at for at, word in enumerate(parts["words"].tolist(), start=2)}
    first = [number[word] for word in ("no", "no", "it's", "caf")]
    assert parts["X"].tolist()[0] == first + [0] * (formats.TWEET_WORDS - 4)
    assert parts["X"].tolist()[2] == [0] * formats.TWEET_WORDS
    assert (parts["y"].tolist(), parts["site"].tolist()) == ([0, 1, 1], ["ann", "bob", "c"])
    assert parts["X_test"].tolist() == [[number["good"], 1] + [0] * (formats.TWEET_WORDS - 2)]
    assert (parts["y_test"].tolist(), parts["site_test"].tolist()) == ([1], ["e"])


def test_tweets_keep_the_first_words_and_the_most_frequent_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "TWEET_WORDS", 3)
    monkeypatch.setattr(formats, "VOCABULARY", 4)
    train = [("0", "ann", "a a b c d"), ("4", "bob", "b b c")]
    parts = formats.tweets([tweet_archive(tmp_path / "t.zip", train, [])])
    assert parts["words"].tolist() == ["b", "a"]  # 10,000 numbers are two fewer words
    assert parts["X"].tolist() == [[3, 3, 2], [2, 2, 1]]
    assert parts["X_test"].shape == (0, 3)


def test_a_tweet_archive_without_its_files_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr("other.csv", "")
    with pytest.raises(FileError, match=r"no member training\.1600000"):
        formats.tweets([tmp_path / "t.zip"])


def test_adjacency_lists_with_empty_and_repeated_entries(tmp_path):
    train = write(tmp_path, "train.txt", b"0 1 2 2\n2 0\n3 \n")
    test = write(tmp_path, "test.txt", b"0 0\n\n1\n")
    parts = formats.adjacency_lists([train, test], shape=(4, 3))
    assert parts["indptr"].tolist() == [0, 2, 2, 3, 3]
    assert parts["indices"].tolist() == [1, 2, 0]
    assert parts["data"].tolist() == [1, 1, 1]
    assert parts["test_indptr"].tolist() == [0, 1, 1, 1, 1]


def test_covtype_codes(tmp_path):
    row = [
        2596,
        51,
        3,
        258,
        -6,
        510,
        221,
        232,
        148,
        6279,
        *np.eye(4, dtype=int)[2],
        *np.eye(40, dtype=int)[28],
        5,
    ]
    text = gzip.compress((",".join(map(str, row)) + "\n").encode() * 2)
    parts = formats.covtype([write(tmp_path, "covtype.data.gz", text)])
    assert parts["num"].tolist() == [row[:10]] * 2
    assert (parts["wilderness"].tolist(), parts["soil"].tolist(), parts["y"].tolist()) == (
        [2, 2],
        [28, 28],
        [5, 5],
    )


def test_wine_table(tmp_path):
    text = b'"fixed acidity";"pH";"quality"\n7.4;3.51;5\n7.8;3.2;6\n'
    parts = formats.wine_csv([write(tmp_path, "w.csv", text)])
    np.testing.assert_array_equal(parts["X"], [[7.4, 3.51], [7.8, 3.2]])
    assert parts["y"].tolist() == [5, 6]


def test_a_table_in_a_zip_wherever_it_lies(tmp_path):
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        archive.writestr("Motes/q8calibLight.dat", "1.0 2.0\n3.0 4.5\n")
    parts = formats.table_in_zip([tmp_path / "m.zip"], member="q8calibLight.dat")
    np.testing.assert_array_equal(parts["X"], [[1, 2], [3, 4.5]])
