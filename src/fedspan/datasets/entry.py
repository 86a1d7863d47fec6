"""What the registry knows of a set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from numpy.typing import NDArray

UNSTATED = "not stated by the source; see its page"


@dataclass(frozen=True)
class RemoteFile:
    """One file to fetch: its address, its checksum where one is published, mirrors of the same bytes."""

    url: str
    checksum: str | None = None  # "md5:..." or "sha256:..."
    mirrors: tuple[str, ...] = ()

    @property
    def filename(self) -> str:
        return PurePosixPath(urlsplit(self.url).path).name


@dataclass(frozen=True)
class Entry:
    """One set: how to obtain it and what is known of it."""

    name: str
    source: str
    files: tuple[RemoteFile, ...] = ()
    parse: Callable[..., dict[str, NDArray[Any]]] | None = None
    shape: tuple[int, int] | None = None  # of the training part, checked after a download
    licence: str = UNSTATED
    notes: str = ""
    columns: tuple[str, ...] | None = None
    by_hand: str = ""  # for sets that cannot be fetched: what to do instead
    local: tuple[str, ...] = ()  # patterns of files put by hand under FEDSPAN_DATA: the reader gets a list for each
    bundled: str | None = None  # scikit-learn's loader, for sets that need no network
