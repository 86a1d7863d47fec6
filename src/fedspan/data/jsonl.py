"""JSON lines: an object or an array of numbers on each line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedspan.data.arrays import nearest_column, not_numeric
from fedspan.data.lines import LineParser, Reading, check_text
from fedspan.data.text import TextSource, texts
from fedspan.encoding import Array
from fedspan.errors import DataError, FileError

_NUMBERS = frozenset({int, float})


class JsonlSource(TextSource):
    """A file of JSON lines in UTF-8: one object, or one array of numbers, on each line.

    The first object names the columns. In the others a key may be missing, or its value null: a gap (NaN). A key
    that the first does not have is refused, and so is a value that is no number, unless they are in ``drop``.
    Arrays are all as long as the first, and their columns have no names.

    Parameters
    ----------
    path
        The file.
    drop
        Names of columns to leave out.
    strict_drop
        Whether each name in ``drop`` must be a key of some object.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "site.jsonl")
    ...     _ = path.write_text('{"id": "ann", "age": 41, "mass": 70.5}\\n{"id": "bob", "age": 38}\\n')
    ...     source = JsonlSource(path, drop=["id"])
    >>> source.columns
    ('age', 'mass')
    >>> next(source.blocks())
    array([[41. , 70.5],
           [38. ,  nan]])
    """

    def __init__(self, path: str | Path, *, drop: Iterable[str] = (), strict_drop: bool = True) -> None:
        self.path = Path(path)
        self._reading = Reading(drop=(drop,) if isinstance(drop, str) else tuple(drop))
        rows = self.read_through()
        form = self._form
        if strict_drop:
            for name in self._reading.drop:
                if name not in form.seen:
                    raise DataError(f"{path}: there is no column {name!r} to drop; {nearest_column(name, form.seen)}")
        self.columns = form.columns
        self.shape = (rows, form.taken)

    def parsed(self) -> Iterator[Array]:
        """Yield the rows in blocks, from the file."""
        parser = LineParser(str(self.path), JsonLines, self._reading)
        for line, text in texts(self.path):
            try:
                items = parser.items(text.split("\n"), line)
            except FileError as error:  # of a growing file the head is its state, of a finished one it is data
                raise DataError(str(error)) from None
            for item in items:
                if isinstance(item.what, DataError):
                    raise item.what
                if item.what is not None:
                    yield item.what
        if not isinstance(parser.form, JsonLines):
            raise FileError(f"{self.path}: the file is empty; expected one JSON object, or one array, on each line")
        self._form = parser.form


class JsonLines:
    """JSON as a format of lines (`fedspan.data.lines.Lines`)."""

    skip = 0

    def __init__(self, where: str, head: str, reading: Reading) -> None:
        first = _parsed(head)
        if not isinstance(first, dict | list) or not first:
            raise DataError(f"expected an object or an array with something in it, got {_shown(first)}")
        self._where = where
        self._names = list(first) if isinstance(first, dict) else None
        self._length = len(first)
        self._drop = frozenset(reading.drop)
        self.seen = set(self._names or ())
        """The keys that were met."""
        try:
            picks = replace(reading, strict_drop=False).picked(self._names, self._length)  # a key to drop may come late
        except DataError as error:
            raise FileError(f"{where}: {error}") from None
        self._keys = [] if self._names is None else [self._names[i] for i in picks]
        self.columns = None if self._names is None else tuple(self._keys)
        self.taken = len(picks)

    @staticmethod
    def head(lines: list[str], reading: Reading, *, last: bool) -> int | None:
        """Return how many lines there are to the end of the first that is not blank."""
        return next((i + 1 for i, entry in enumerate(lines) if entry.strip()), None)

    def quick(self, lines: list[str]) -> Array | None:
        """Return None: each line is looked at."""
        return None

    def split(self, lines: list[str], *, last: bool) -> Iterator[tuple[int, int, str]]:
        """Yield the lines, each with its place and the next."""
        return ((i, i + 1, entry) for i, entry in enumerate(lines))

    def row(self, record: str) -> list[float | None] | None:
        """Return the numbers of a line."""
        if not record.strip():
            return None
        values = self._values(record)
        if _NUMBERS.issuperset(map(type, values)):  # most lines
            try:
                return list(map(float, values))
            except OverflowError:
                pass
        return [_number(value) for value in values]

    def refused(self, wrong: dict[int, tuple[int, str]], *, whole: bool) -> DataError:
        """Return the error for values that are no numbers."""
        places = sorted(wrong)
        values = [self._values(wrong[i][1])[i] for i in places]
        if whole:
            examples = [value if isinstance(value, str) else _shown(value) for value in values]
            return not_numeric([self._keys[i] for i in places], f"{self._where}: ", examples)
        name = repr(self._keys[places[0]]) if self._keys else places[0] + 1
        line = wrong[places[0]][0]
        return DataError(f"{self._where}, line {line}: column {name} has {_shown(values[0])}, which is not a number")

    def _values(self, record: str) -> list[Any]:
        value = _parsed(record)
        if self._names is None:
            if not isinstance(value, list):
                raise DataError(f"expected an array, as on the first line, got {_shown(value)}")
            if len(value) != self._length:
                raise DataError(
                    f"an array of {len(value)} values where the first one has {self._length}; mend the line"
                )
            return value
        if not isinstance(value, dict):
            raise DataError(f"expected an object, as on the first line, got {_shown(value)}")
        if not value.keys() <= self.seen:
            self._meet(value)
        return [value.get(key) for key in self._keys]

    def _meet(self, value: dict[str, Any]) -> None:
        """Look at keys that are new: only those to drop may come after the first object."""
        for key in value:
            if key not in self.seen and key not in self._drop:
                raise DataError(
                    f"the key {key!r} is not in the first object ({nearest_column(key, self.seen)}); name it there, or "
                    f'leave it out with drop = ["{key}"]'
                )
        self.seen.update(value)


def _parsed(text: str) -> Any:
    check_text(text)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise DataError(f"this is not JSON ({cause}): {text.strip()[:40]!r}") from None


def _number(value: Any) -> float | None:
    """Return a value's number: NaN for null, None for what is no number."""
    if value is None:
        return float("nan")
    if not isinstance(value, bool | int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
