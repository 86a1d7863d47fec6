"""What a growing input must be able to do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from fedspan.encoding import Array, Plain
from fedspan.errors import FileError, ResumeError


class Tail(ABC):
    """A growing input, read once: every complete row is given out one time, in order.

    `read` raises `DataError` for what it leaves out (a malformed line, a file with other columns), once and after
    the rows before it; the next call goes on behind it. It raises `FileError` where the input cannot be used until
    somebody mends it; nothing is lost meanwhile.
    """

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...] | None:
        """The columns' names; None before they are known, or where there are none."""

    @property
    @abstractmethod
    def position(self) -> dict[str, Plain]:
        """Which rows were given out, as plain data: `follow` goes on behind them."""

    @property
    def exhausted(self) -> bool:
        """Whether nothing can follow: the other end of standard input is closed, a single Parquet file was read."""
        return False

    @property
    @abstractmethod
    def waiting(self) -> str | None:
        """What is there, or should be, and cannot be read yet: a half line, a file that is being written."""

    @abstractmethod
    def read(self) -> Iterator[Array]:
        """Yield what has come since the last call: blocks of rows, float64 with NaN for gaps, at most 4 MB each."""


def check_position(position: Plain, kind: str, where: str, keys: Mapping[str, Any]) -> None:
    """Refuse a position of another kind of input, or a damaged one: ``keys`` says the types of its parts."""
    if not isinstance(position, dict) or "kind" not in position:
        raise FileError(f"{where}: the position to go on from is damaged; start anew, without it")
    if position["kind"] != kind:
        raise ResumeError(
            f"{where} is read as {kind}, and the position to go on from is one of {position['kind']}; take the same "
            "kind of input as before, or start anew"
        )
    if any(not isinstance(position.get(key), kinds) for key, kinds in keys.items()):
        raise FileError(f"{where}: the position to go on from is damaged; start anew, without it")
