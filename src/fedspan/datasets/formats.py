"""Readers of the formats in which the papers' sets are published.

Each takes the downloaded files, in the order the registry lists them, and returns plain arrays under the
names of our ``.npz`` layout: ``X``, ``y``, ``X_test``, ``y_test``, or for sparse sets the CSR parts ``data``,
``indices``, ``indptr`` and ``shape``, those of the test part with the prefix ``test_``. Nothing is unpickled
and no archive is unpacked to disk: members are read by name.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import math
import re
import sys
import tarfile
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from sklearn.datasets import load_svmlight_file

from fedspan.errors import FileError

Parts = dict[str, NDArray[Any]]


def libsvm(paths: Sequence[Path], *, n_features: int, dense: bool = False) -> Parts:
    """LIBSVM text, training part and perhaps test part, plain or compressed."""
    parts: Parts = {}
    for path, prefix, suffix in zip(paths, ("", "test_"), ("", "_test"), strict=False):
        with open_plain(path) as stream:
            rows, labels = load_svmlight_file(stream, n_features=n_features, zero_based=False)
        if dense:
            parts[f"X{suffix}"] = rows.toarray()
        else:
            parts |= csr_parts(rows, prefix)
        parts[f"y{suffix}"] = labels.astype(np.int32) if (labels == np.round(labels)).all() else labels
    return parts


def idx_images(paths: Sequence[Path]) -> Parts:
    """Four idx files: training images and labels, test images and labels (MNIST, Fashion-MNIST)."""
    keys = ("X", "y", "X_test", "y_test")
    return {key: _flat(read_idx(path.read_bytes(), path.name)) for key, path in zip(keys, paths, strict=True)}


def emnist(paths: Sequence[Path], *, split: str = "balanced") -> Parts:
    """EMNIST's archive of gzipped idx files; images are stored column by column and turned upright here."""
    parts: Parts = {}
    with zipfile.ZipFile(paths[0]) as archive:
        for part, suffix in (("train", ""), ("test", "_test")):
            stem = f"emnist-{split}-{part}"
            images = read_idx(_zip_member(archive, f"{stem}-images-idx3-ubyte.gz"), stem)
            parts[f"X{suffix}"] = _flat(images.swapaxes(1, 2))
            parts[f"y{suffix}"] = read_idx(_zip_member(archive, f"{stem}-labels-idx1-ubyte.gz"), stem)
    return parts


def cifar(
    paths: Sequence[Path], *, train: Sequence[str], test: str, label_bytes: int, n_test: int | None = None
) -> Parts:
    """CIFAR's binary archive: records of label bytes and a 3 x 32 x 32 image, rewritten as 32 x 32 x 3."""
    with tarfile.open(paths[0]) as archive:
        members = {Path(member.name).name: member for member in archive.getmembers() if member.isfile()}
        read = [_tar_member(archive, members, name) for name in (*train, test)]
    records = [_cifar_records(raw, label_bytes, paths[0].name) for raw in read]
    fitted, held = np.concatenate(records[:-1]), records[-1][:n_test]
    parts: Parts = {}
    for block, suffix in ((fitted, ""), (held, "_test")):
        images = block[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        parts[f"X{suffix}"] = images.reshape(len(block), -1)
        parts[f"y{suffix}"] = block[:, label_bytes - 1].copy()
        if label_bytes == 2:  # CIFAR-100 writes the coarse label before the fine one
            parts[f"coarse{suffix}"] = block[:, 0].copy()
    return parts


def adjacency_lists(paths: Sequence[Path], *, shape: tuple[int, int]) -> Parts:
    """LightGCN's text: each line a user and the items; a training and a test file."""
    parts: Parts = {}
    for path, prefix in zip(paths, ("", "test_"), strict=True):
        with open_plain(path) as stream:
            lines = [np.array(line.split(), dtype=np.int64) for line in stream if line.strip()]
        users = np.concatenate([np.full(len(line) - 1, line[0]) for line in lines])
        items = np.concatenate([line[1:] for line in lines])
        rows = scipy.sparse.csr_array((np.ones(len(users)), (users, items)), shape=shape)
        rows.sum_duplicates()
        rows.data[:] = 1
        parts |= csr_parts(rows, prefix)
    return parts


def covtype(paths: Sequence[Path]) -> Parts:
    """UCI's forest cover table, with its two groups of 0/1 columns kept as codes (a tenth of the size)."""
    with open_plain(paths[0]) as stream:
        table = np.loadtxt(stream, delimiter=",", dtype=np.int16)
    return {
        "num": table[:, :10],
        "wilderness": table[:, 10:14].argmax(axis=1).astype(np.uint8),
        "soil": table[:, 14:54].argmax(axis=1).astype(np.uint8),
        "y": table[:, 54].astype(np.uint8),
    }


def wine_csv(paths: Sequence[Path]) -> Parts:
    """UCI's wine quality: semicolons, one header line, the score in the last column."""
    with open_plain(paths[0]) as stream:
        table = np.loadtxt(stream, delimiter=";", skiprows=1)
    return {"X": table[:, :-1], "y": table[:, -1].astype(np.int32)}


def leaf_images(paths: Sequence[Sequence[Path]]) -> Parts:
    """LEAF's JSON, files of a training and perhaps a test part: images in [0, 1] by writer, kept as bytes."""
    parts: Parts = {}
    for files, suffix in zip(paths, ("", "_test"), strict=True):
        images, labels, writers = list[Any](), list[int](), list[str]()
        for path in files:
            told = json.loads(path.read_text())
            for writer in told["users"]:
                own = told["user_data"][writer]
                if len(own["x"]) != len(own["y"]):
                    raise FileError(f"{path}: {writer} has {len(own['x'])} images and {len(own['y'])} labels")
                images.append(np.round(255 * np.asarray(own["x"])).astype(np.uint8))
                labels += own["y"]
                writers += [writer] * len(own["y"])
        if files:
            parts[f"X{suffix}"] = np.concatenate(images)
            parts[f"y{suffix}"] = np.array(labels)
            parts[f"site{suffix}"] = np.array(writers)
    return parts


TWEET_WORDS, VOCABULARY = 25, 10_000
"""How many words of a tweet are kept, and how many numbers there are for words."""


def tweets(paths: Sequence[Path]) -> Parts:
    """Sentiment140's archive of two CSV files: polarity (0 or 4; 2 is neutral, left out), id, date, query, user, text.

    Words are numbered by how often they occur in the training part: 0 fills a tweet up, 1 is any word without a
    number.
    """
    with zipfile.ZipFile(paths[0]) as archive:
        read = [_tweets(_zip_member(archive, f"{name}.csv")) for name in _TWEET_FILES]
    counts = Counter(word for _, _, words in read[0] for word in words)
    known = [word for word, _ in counts.most_common(VOCABULARY - 2)]
    numbers = {word: number for number, word in enumerate(known, start=2)}
    parts: Parts = {"words": np.array(known)}
    for rows, suffix in zip(read, ("", "_test"), strict=True):
        parts[f"X{suffix}"] = np.zeros((len(rows), TWEET_WORDS), np.uint16)
        for row, (_, _, words) in zip(parts[f"X{suffix}"], rows, strict=True):
            row[: len(words)] = [numbers.get(word, 1) for word in words]
        parts[f"y{suffix}"] = np.array([positive for positive, _, _ in rows], np.uint8)
        parts[f"site{suffix}"] = np.array([user for _, user, _ in rows])
    return parts


_TWEET_FILES = ("training.1600000.processed.noemoticon", "testdata.manual.2009.06.14")
_NO_WORD, _WORD = re.compile(r"@\w+|https?://\S+"), re.compile(r"[a-z']+|[0-9]+|[!?]")


def _tweets(content: bytes) -> list[tuple[bool, str, list[str]]]:
    """Whether it is positive, the user, and the first words, in lower case, names of users and addresses left out."""
    found = []
    for polarity, _, _, _, user, said in csv.reader(io.StringIO(content.decode("latin-1"))):
        if polarity in ("0", "4"):
            words = _WORD.findall(_NO_WORD.sub(" ", said.lower()))[:TWEET_WORDS]
            found.append((polarity == "4", user, [sys.intern(word) for word in words]))  # millions, but few of a kind
    return found


def table_in_zip(paths: Sequence[Path], *, member: str) -> Parts:
    """One whitespace-separated table of a zip archive (the motes)."""
    with zipfile.ZipFile(paths[0]) as archive:
        return {"X": np.loadtxt(io.BytesIO(_zip_member(archive, member)), ndmin=2)}


# ----------------------------------------------------------------------------------------- pieces


def csr_parts(rows: Any, prefix: str = "") -> Parts:
    """Parts of a CSR matrix, in the smallest of the types we store."""
    matrix = scipy.sparse.csr_array(rows)
    whole = matrix.data.size == 0 or (matrix.data.min() >= 0 and matrix.data.max() <= 255)
    small = whole and bool((matrix.data == np.round(matrix.data)).all())
    return {
        f"{prefix}data": matrix.data.astype(np.uint8 if small else np.float64),
        f"{prefix}indices": matrix.indices.astype(np.int32),
        f"{prefix}indptr": matrix.indptr.astype(np.int64),
        f"{prefix}shape": np.array(matrix.shape, dtype=np.int64),
    }


def read_idx(raw: bytes, name: str) -> NDArray[np.uint8]:
    """One idx array of unsigned bytes, gzipped or not."""
    content = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise FileError(f"{name} is not an idx file of unsigned bytes (it begins {content[:4]!r})")
    head = 4 + 4 * content[3]
    shape = tuple(int.from_bytes(content[i : i + 4], "big") for i in range(4, head, 4))
    values = np.frombuffer(content[head:], dtype=np.uint8)
    if len(content) < head or values.size != math.prod(shape):
        raise FileError(f"{name} is truncated: it announces {shape} and holds {values.size} bytes")
    return values.reshape(shape)


def open_plain(path: Path) -> IO[bytes]:
    """Open a file for reading, through the decompressor its ending names."""
    openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    opened: IO[bytes] = openers.get(path.suffix, open)(path, "rb")
    return opened


def _flat(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return images if images.ndim == 1 else images.reshape(len(images), -1)


def _cifar_records(raw: bytes, label_bytes: int, name: str) -> NDArray[np.uint8]:
    width = label_bytes + 3072
    if len(raw) % width:
        raise FileError(f"a member of {name} has {len(raw)} bytes, no multiple of the record's {width}")
    return np.frombuffer(raw, dtype=np.uint8).reshape(-1, width)


def _tar_member(archive: tarfile.TarFile, members: dict[str, tarfile.TarInfo], name: str) -> bytes:
    stream = archive.extractfile(members[name]) if name in members else None
    if stream is None:
        raise FileError(f"the archive has no member {name}; it holds {sorted(members)}")
    return stream.read()


def _zip_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Content of the member with this file name, in whatever folder of the archive it lies."""
    found = [entry for entry in archive.namelist() if entry.rsplit("/", 1)[-1] == name]
    if not found:
        raise FileError(f"the archive has no member {name}; it holds {archive.namelist()[:20]}")
    return archive.read(found[0])
