"""`load`: a set by name, from the data folder, the cache or its source, in that order."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import sklearn.datasets
from numpy.typing import DTypeLike, NDArray

from fedspan.datasets.download import build, files_put_by_hand
from fedspan.datasets.entry import Entry
from fedspan.datasets.registry import ENTRIES, find
from fedspan.errors import ConfigurationError, DataError, FileError


@dataclass(frozen=True, eq=False)
class Dataset:
    """One set, ready to use: samples in rows, floats, labels beside them."""

    name: str
    X: Any  # ndarray, or scipy.sparse.csr_array for sparse sets
    y: NDArray[Any] | None = None
    X_test: Any = None
    y_test: NDArray[Any] | None = None
    columns: tuple[str, ...] | None = None
    extras: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # whatever else the set has, by name
    source: str = ""  # the publisher's page
    origin: str = ""  # where this copy was read from
    licence: str = ""
    notes: str = ""

    def __repr__(self) -> str:
        kind = "sparse" if scipy.sparse.issparse(self.X) else "dense"
        return f"Dataset({self.name!r}, {self.X.shape[0]} x {self.X.shape[1]}, {kind}, from {self.origin})"


def names() -> tuple[str, ...]:
    """Names that `load` knows, in alphabetical order.

    >>> "iris" in names()
    True
    """
    return tuple(sorted(ENTRIES))


def load(name: str, *, dtype: DTypeLike = np.float64, download: bool = True) -> Dataset:
    """Load one of the papers' sets, or one that scikit-learn ships.

    It is looked up in the folder that the environment variable ``FEDSPAN_DATA`` names, then in the cache
    (``FEDSPAN_CACHE``, else ``$XDG_CACHE_HOME/fedspan``, else ``~/.cache/fedspan``), and fetched from its
    source into the cache where neither has it. scikit-learn's own sets need none of these.

    Parameters
    ----------
    name : str
        One of `names`; hyphens and underscores are the same.
    dtype : floating dtype
        Of ``X`` and ``X_test``. float32 halves the memory of the image sets, without loss.
    download : bool
        False: never use the network.

    Returns
    -------
    Dataset

    Raises
    ------
    ConfigurationError
        The name is unknown, or FEDSPAN_DATA is no folder.
    DataError
        The set is neither here nor to be had; the text says where to put it.
    FileError
        A file is damaged, or a download does not have its checksum.

    Examples
    --------
    >>> load("wine").columns[:2]
    ('alcohol', 'malic_acid')
    >>> load("cifar_10")
    Traceback (most recent call last):
    fedspan.errors.ConfigurationError: there is no dataset named 'cifar_10'; did you mean 'cifar10'?
    """
    entry = find(name)
    if not np.issubdtype(np.dtype(dtype), np.floating):
        raise ConfigurationError(f"dtype is {np.dtype(dtype)}; expected a floating type, such as numpy.float32")
    if entry.bundled is not None:
        return _from_sklearn(entry, entry.bundled, dtype)
    folder, cache = _data_folder(), _cache_folder()
    path = _stored(entry, folder, cache)
    if path is None:
        if not download and not files_put_by_hand(entry, folder):
            raise DataError(
                f"{entry.name} is neither in FEDSPAN_DATA ({folder or 'not set'}) nor in the cache {cache}. "
                + (entry.by_hand or f"Leave out download=False, or put {entry.name}.npz into one of them")
            )
        path = build(entry, cache, folder)
    return _assemble(entry, _read(path), path, dtype)


# ---------------------------------------------------------------------------------------- folders


def _data_folder() -> Path | None:
    setting = os.environ.get("FEDSPAN_DATA")
    if not setting:
        return None
    folder = Path(setting).expanduser()
    if not folder.is_dir():
        raise ConfigurationError(f"FEDSPAN_DATA is {setting!r}, which is no folder; correct it or unset it")
    return folder


def _cache_folder() -> Path:
    if setting := os.environ.get("FEDSPAN_CACHE"):
        return Path(setting).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedspan"


def _stored(entry: Entry, *folders: Path | None) -> Path | None:
    spellings = dict.fromkeys((entry.name, entry.name.replace("-", "_"), entry.name.replace("_", "-")))
    paths = (folder / f"{spelling}.npz" for folder in folders if folder is not None for spelling in spellings)
    return next((path for path in paths if path.is_file()), None)


def _read(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            return {key: stored[key] for key in stored.files}
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as reason:
        raise FileError(
            f"{path} cannot be read ({type(reason).__name__}: {reason}): it is truncated or no .npz of plain "
            "arrays; delete it, and load again to fetch it anew"
        ) from reason


# ---------------------------------------------------------------------------------------- layouts


def _assemble(entry: Entry, parts: dict[str, NDArray[Any]], path: Path, dtype: DTypeLike) -> Dataset:
    """Turn stored arrays into a Dataset; what the layout does not name goes to ``extras``."""
    columns = entry.columns
    if "G" in parts:
        X, X_test = _dosages(parts.pop("G"), dtype), None
        columns = tuple(snp.decode() for snp in parts.pop("snp"))
    elif "num" in parts:
        X, X_test = _cover_types(parts, dtype), None
    elif "indptr" in parts:
        X = _csr(parts, "", None, dtype)
        X_test = _csr(parts, "test_", X.shape, dtype) if "test_indptr" in parts else None
    elif "X" in parts:
        X = parts.pop("X").astype(dtype)
        X_test = parts.pop("X_test").astype(dtype) if "X_test" in parts else None
    else:
        raise FileError(
            f"{path} holds the arrays {sorted(parts)}; expected X (dense), or data, indices, indptr and shape (CSR)"
        )
    y, y_test = (_labels(parts.pop(key, None)) for key in ("y", "y_test"))
    extras = {key: np.char.decode(value) if value.dtype.kind == "S" else value for key, value in parts.items()}
    return Dataset(
        entry.name, X, y, X_test, y_test, columns, extras, entry.source, str(path), entry.licence, entry.notes
    )


def _csr(parts: dict[str, NDArray[Any]], prefix: str, shape: tuple[int, int] | None, dtype: DTypeLike) -> Any:
    data, indices, indptr = (parts.pop(f"{prefix}{key}") for key in ("data", "indices", "indptr"))
    stated = parts.pop(f"{prefix}shape", None)
    size = shape if stated is None else tuple(int(n) for n in stated)
    # scipy needs signed indices; the files store the smallest type that holds them.
    arrays = (data.astype(dtype), indices.astype(np.int32), indptr.astype(np.int32))
    return scipy.sparse.csr_array(arrays, shape=size)


def _dosages(calls: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    dosages = calls.astype(dtype)
    dosages[calls < 0] = np.nan
    return dosages


def _cover_types(parts: dict[str, NDArray[Any]], dtype: DTypeLike) -> NDArray[Any]:
    """The ten measurements and the two codes, spread to 0/1 columns again."""
    codes = np.eye(4, dtype=dtype)[parts.pop("wilderness")], np.eye(40, dtype=dtype)[parts.pop("soil")]
    return np.hstack([parts.pop("num").astype(dtype), *codes])


def _labels(stored: NDArray[Any] | None) -> NDArray[Any] | None:
    if stored is None or stored.dtype.kind in "SU":
        return stored
    return stored.astype(np.float64 if stored.dtype.kind == "f" else np.int64)


def _from_sklearn(entry: Entry, loader: str, dtype: DTypeLike) -> Dataset:
    bunch = getattr(sklearn.datasets, loader)()
    return Dataset(
        entry.name,
        X=bunch.data.astype(dtype),
        y=_labels(bunch.target),
        columns=tuple(str(column) for column in bunch.feature_names),
        source=entry.source,
        origin="scikit-learn",
        licence=entry.licence,
        notes=entry.notes,
    )
