"""Reading TOML tables with care: only known keys, each of its type, and errors that say the way out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

from fedspan.errors import ConfigurationError, nearest


class Kind(NamedTuple):
    """A type of value: in words, and as a test."""

    words: str
    fits: Callable[[Any], bool]


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number; Python counts true and false as such, TOML does not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value is a number, whole or not."""
    return is_whole(value) or isinstance(value, float)


TEXT = Kind("a text in quotes", lambda v: isinstance(v, str))
FLAG = Kind("true or false", lambda v: isinstance(v, bool))
WHOLE = Kind("a whole number", is_whole)
NUMBER = Kind("a number", is_number)
TEXTS = Kind("a list of texts", lambda v: isinstance(v, list) and all(isinstance(item, str) for item in v))
TABLE = Kind("a table", lambda v: isinstance(v, dict))


class Table:
    """One table of a file, its keys known and its values of their types.

    ``where`` is what errors call it; ``elsewhere`` maps the keys of other tables to their table, for a key
    that was written into the wrong one.

    >>> Table({"seed": 3}, "[run]", ["seed", "folder"]).get("seed", WHOLE)
    3
    >>> Table({"sed": 3}, "[run]", ["seed", "folder"])
    Traceback (most recent call last):
    fedspan.errors.ConfigurationError: [run] has no key 'sed'; did you mean 'seed'?
    """

    def __init__(self, raw: Any, where: str, known: Iterable[str], elsewhere: Mapping[str, str] | None = None) -> None:
        self.where = where
        self._raw: dict[str, Any] = fitting(where, raw, TABLE)
        known = list(known)
        for key in self._raw:
            if key not in known:
                home = (elsewhere or {}).get(key)
                way_out = nearest(key, known) if home is None else f"it belongs to {home}"
                raise ConfigurationError(f"{where} has no key {key!r}; {way_out}")

    def get(self, key: str, kind: Kind, default: Any = None) -> Any:
        """Return a value, checked, or the default where the key is absent."""
        return fitting(f"{self.where} {key}", self._raw[key], kind) if key in self._raw else default

    def given(self, kinds: Mapping[str, Kind]) -> dict[str, Any]:
        """Return those of the keys that are there, checked."""
        return {key: self.get(key, kind) for key, kind in kinds.items() if key in self._raw}


def fitting(label: str, value: Any, kind: Kind) -> Any:
    """Return a value that is of a kind; refuse another."""
    if not kind.fits(value):
        raise ConfigurationError(f"{label} = {shown(value)}: expected {kind.words}, got {_type_of(value)}")
    return value


def as_hinted(label: str, value: Any, hint: Any) -> Any:
    """Return a value of the type a settings class declares; the text "none" is None where that is allowed.

    >>> as_hinted("align", "none", str | None) is None
    True
    >>> as_hinted("rounds", "many", int)
    Traceback (most recent call last):
    fedspan.errors.ConfigurationError: rounds = "many": expected a whole number, got a text in quotes
    """
    if value == "none" and NoneType in get_args(hint):
        return None
    return fitting(label, value, Kind(_words(hint), lambda v: _matches(v, hint)))


def shown(value: Any) -> str:
    """Return a value as TOML writes it, near enough, and not too long."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _matches(value: Any, hint: Any) -> bool:
    if get_origin(hint) in (Union, UnionType):
        return any(_matches(value, choice) for choice in get_args(hint))
    if get_origin(hint) is not None:
        return isinstance(value, list) and all(_matches(item, get_args(hint)[0]) for item in value)
    tests: dict[Any, Callable[[Any], bool]] = {int: is_whole, float: is_number}
    return tests[hint](value) if hint in tests else isinstance(value, hint)


def _words(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(map(_words, get_args(hint)))
    if get_origin(hint) is not None:
        return f"a list, each {_words(get_args(hint)[0])}"
    plain = {int: WHOLE.words, float: NUMBER.words, str: TEXT.words, bool: FLAG.words, NoneType: '"none"'}
    return plain[hint]


def _type_of(value: Any) -> str:
    for kind in (TEXT, FLAG, WHOLE, NUMBER, TABLE):
        if kind.fits(value):
            return kind.words
    return "a list" if isinstance(value, list) else f"a {type(value).__name__}"
