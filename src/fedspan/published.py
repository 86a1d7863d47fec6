"""Summaries as sites publish them: one small file or message each, the newest replacing the last.

A summary is cumulative, so whoever merges needs the newest of each site and nothing else; how they travel (a shared
folder, a mailbox, a web server) does not matter, nor in which order, nor how often.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedspan.encoding import decode, encode, write_atomically
from fedspan.errors import DataError, FedspanError, FileError
from fedspan.linalg import Summary, merge_summaries
from fedspan.topology import Tree

FORMAT, VERSION = "fedspan-summary", 1


@dataclass(frozen=True)
class Published:
    """What a site has seen so far, and where it belongs.

    >>> one = Published("berlin", 3, "a1", ["x", "y"], Summary.empty(2))
    >>> Published.from_bytes(one.as_bytes()).seq
    3
    """

    site: str
    seq: int
    """Counts what the site published."""
    study: str
    """Of which study: a fingerprint that all its sites share."""
    columns: list[str] | None
    summary: Summary

    def as_bytes(self) -> bytes:
        """Return the summary with a checksum."""
        body = encode({
            "site": self.site, "seq": self.seq, "study": self.study, "columns": self.columns,
            "summary": self.summary.as_plain(),
        })  # fmt: skip
        digest = hashlib.sha256(body).hexdigest()
        return encode(
            {"format": FORMAT, "version": VERSION, "digest": digest, "body": np.frombuffer(body, dtype=np.uint8)}
        )

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "the summary") -> Self:
        """Return what `as_bytes` gave; refuse other formats, newer versions and damaged ones, by ``name``."""
        try:
            outer: Any = decode(data)
            found = outer["format"], outer["version"]
        except (FileError, TypeError, LookupError) as cause:
            raise FileError(f"{name} is not a fedspan summary, or was cut short ({cause}); publish it again") from cause
        if not isinstance(found[0], str) or found[0] != FORMAT or type(found[1]) is not int or found[1] > VERSION:
            raise FileError(
                f"{name} has format {found[0]!r:.40} version {found[1]!r:.40}; this fedspan reads {FORMAT!r} up to "
                f"version {VERSION}: update fedspan, or publish it with this version"
            )
        try:
            body = outer["body"].tobytes()
            if hashlib.sha256(body).hexdigest() != outer["digest"]:
                raise ValueError("its bytes are not those that were written")
            inner: Any = decode(body)
            summary = Summary.from_plain(inner["summary"])
            site, seq, study, columns = (inner[key] for key in ("site", "seq", "study", "columns"))
            if not isinstance(site, str) or not isinstance(seq, int) or not isinstance(study, str):
                raise ValueError("it does not say whose it is")
            named = isinstance(columns, list) and all(isinstance(name, str) for name in columns)
            if columns is not None and not (named and len(columns) == len(summary.mean)):
                raise ValueError("its columns are not those of its numbers")
        except (FedspanError, TypeError, LookupError, ValueError, AttributeError) as cause:
            raise FileError(f"{name} is damaged ({cause}); publish it again") from cause
        return cls(site, seq, study, columns, summary)

    def write(self, path: Path) -> None:
        """Write the file whole, or not at all."""
        write_atomically(path, self.as_bytes())

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file that `write` wrote."""
        try:
            data = path.read_bytes()
        except OSError as cause:
            raise FileError(f"{path} cannot be read ({cause.strerror})") from cause
        return cls.from_bytes(data, str(path))


class Newest:
    """A node that keeps the newest summary of each site, and merges them when it is asked.

    The first summary says what the columns are, unless they were given; others are refused, by name, and what was kept
    stays.

    >>> node = Newest("a1", rank=2)
    >>> node.take(Published("berlin", 1, "a1", None, Summary.empty(2)))
    True
    >>> node.take(Published("berlin", 1, "a1", None, Summary.empty(2)))
    False
    """

    def __init__(self, study: str, *, rank: int, columns: list[str] | None = None, fan_out: int | None = None) -> None:
        self.study, self.columns = study, columns
        self._width: int | None = None if columns is None else len(columns)
        self._tree = Tree(partial(_merged, rank), fan_out)
        self.seen: dict[str, int] = {}
        """The newest of each site."""

    def take(self, published: Published) -> bool:
        """Keep a summary if it is newer than the site's last; say whether it was."""
        site, width = published.site, len(published.summary.mean)
        if published.study != self.study:
            raise DataError(
                f"the summary of site {site!r} belongs to another study ({published.study[:12]}, this one is "
                f"{self.study[:12]}); publish it with this study's file"
            )
        if self._width not in (None, width) or (
            self.columns is not None and published.columns is not None and published.columns != self.columns
        ):
            mine, theirs = self.columns or f"{self._width} columns", published.columns or f"{width} columns"
            raise DataError(f"the summary of site {site!r} has {theirs!s:.80}, and this study {mine!s:.80}")
        self._width = width
        self.columns = self.columns or published.columns
        new = self._tree.put(site, {"seq": published.seq, "summary": published.summary})
        if new:
            self.seen[site] = published.seq
        return new

    def merged(self) -> Summary:
        """Return the summary of all sites' rows."""
        if not self.seen:
            raise DataError("no site has published a summary yet, so there is nothing to merge")
        summary: Summary = self._tree.root()["summary"]
        return summary


def _merged(rank: int, values: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge two by two, so that no summary is cut more often than it must."""
    level: list[Summary] = [value["summary"] for value in values]
    while len(level) > 1:
        pairs = [level[start : start + 2] for start in range(0, len(level), 2)]
        level = [merge_summaries(pair[0], pair[1], rank) if len(pair) == 2 else pair[0] for pair in pairs]
    return {"seq": 0, "summary": level[0]}
