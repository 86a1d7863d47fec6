"""The sites of a study and the keys they are known by: pinned at first use, and never another afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedspan.encoding import digest, write_once
from fedspan.errors import ConfigurationError, FileError, ProtocolError, few

_FORMAT = "fedspan-roster-1"


class Roster(Mapping[str, bytes]):
    """Public keys by the names of their sites."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        owners: dict[bytes, str] = {}
        for name, key in sorted(keys.items()):
            if not _is_entry(name, key):
                raise ConfigurationError(
                    f"a roster has names and public keys of 32 bytes; got {name!r:.80}: {key!r:.80}"
                )
            if key in owners:  # else it could sign twice
                raise ConfigurationError(f"sites {owners[key]!r} and {name!r} have the same key; each makes its own")
            owners[key] = name
        self._keys = {name: key for key, name in owners.items()}

    def __getitem__(self, name: str) -> bytes:
        return self._keys[name]

    def __contains__(self, name: object) -> bool:  # whatever was received as a name
        return isinstance(name, str) and name in self._keys

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def key(self, name: str) -> bytes:
        """Return a site's public key; nobody else speaks in a secure round."""
        try:
            return self._keys[name]
        except (KeyError, TypeError):
            raise ProtocolError(f"{name!r:.80} is not on the roster; known: {few(self.names)}") from None

    @property
    def names(self) -> list[str]:
        """The sites' names, sorted."""
        return list(self._keys)

    @property
    def digest(self) -> str:
        """The SHA-256 of names and keys, as hexadecimal."""
        return digest(self._as_plain())

    @classmethod
    def load(cls, path: Path) -> Roster:
        """Return the roster in a file."""
        try:
            found: Any = json.loads(Path(path).read_bytes())
            if found["format"] != _FORMAT:
                raise ValueError(f"format {found['format']!r:.80}, expected {_FORMAT!r}")
            return cls({name: bytes.fromhex(key) for name, key in found["keys"].items()})
        except (AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError) as cause:
            raise FileError(f"{path} is no roster of sites and their keys ({cause})") from cause

    @classmethod
    def pin(cls, path: Path, roster: Roster) -> Roster:
        """Keep the first roster that is given, and refuse every other one."""
        path = Path(path)
        if not path.exists():
            content = {"format": _FORMAT, "keys": roster._as_plain()}
            write_once(path, (json.dumps(content, indent=1, sort_keys=True) + "\n").encode())
        pinned = cls.load(path)
        if pinned == roster:
            return pinned
        changed = [name for name in pinned.names if name in roster and roster[name] != pinned[name]]
        came, went = sorted(set(roster) - set(pinned)), sorted(set(pinned) - set(roster))
        said = [("another key for", changed), ("new", came), ("missing", went)]
        raise ProtocolError(
            f"this is not the roster pinned in {path}: {'; '.join(f'{what} {few(who)}' for what, who in said if who)}. "
            f"If its owner says that is right, remove that file"
        )

    def _as_plain(self) -> dict[str, str]:
        return {name: key.hex() for name, key in self._keys.items()}


def _is_entry(name: Any, key: Any) -> bool:
    return isinstance(name, str) and name != "" and isinstance(key, bytes) and len(key) == 32
