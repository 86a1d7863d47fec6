"""A run folder: opened anew or to resume, named, and cleared of what a failed run left behind."""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedspan.encoding import write_atomically
from fedspan.errors import ConfigurationError, FileError, ResumeError, nearest
from fedspan.layers import Journal
from fedspan.privacy.ledger import Ledger
from fedspan.privacy.transcript import has_transcript
from fedspan.sites import LEDGER

RECORDS = ("rounds", "transcript")
"""What a run folder may keep: the aggregates, or every site's releases too."""


def check_record(wanted: str) -> None:
    """Refuse what no run folder can keep."""
    if wanted not in RECORDS:
        raise ConfigurationError(f"record is 'rounds' or 'transcript', got {wanted!r}; {nearest(str(wanted), RECORDS)}")


def open_journal(folder: Path, fingerprint: dict[str, Any], kept: str, *, resume: bool) -> Journal:
    """Open a run folder: a new one, or with ``resume`` one whose study is the same and that keeps the same."""
    terms = folder / "terms.json"
    if not resume:
        if (folder / "rounds.jsonl").exists() or has_transcript(folder):
            raise ResumeError(f"{folder} holds a run already; resume it, or name another folder")
        agreed = {**fingerprint, "record": kept, "run": secrets.token_hex(8)}
        write_atomically(terms, json.dumps(agreed, indent=1, sort_keys=True).encode())
        return Journal(folder)
    if not terms.exists():
        raise ResumeError(f"{folder} holds no run to resume; start the study without resume")
    try:
        recorded = json.loads(terms.read_text())
    except ValueError as cause:
        raise FileError(f"{terms} is damaged ({cause}); the run cannot resume") from cause
    changed = [key for key in fingerprint if _plain(fingerprint[key]) != recorded.get(key)]
    if changed:
        key = changed[0]
        raise ResumeError(
            f"{folder}: the study changed since this run began: {', '.join(changed)} "
            f"({key} was {recorded.get(key)}, is {_plain(fingerprint[key])}); restore it, or use another folder"
        )
    before = recorded.get("record", "rounds")
    if before != kept:
        raise ResumeError(
            f'{folder}: this run began with record = "{before}" and cannot go on with "{kept}": its transcript would '
            f'have a hole; resume it with "{before}", or use another folder'
        )
    return Journal(folder)


def run_name(folder: Path | None) -> str:
    """Return the name that releases are charged to: that of a run folder stays when it is resumed."""
    if folder is None:
        return secrets.token_hex(8)
    return str(json.loads((folder / "terms.json").read_text())["run"])


def contents(folder: Path) -> set[Path] | None:
    """Return all that lies in a folder before a run, None where there is no such folder."""
    return set(folder.rglob("*")) if folder.is_dir() else None


def discard(folder: Path, before: set[Path] | None) -> None:
    """Remove what a failed run left, and nothing that was there ``before`` it: that is the user's.

    A folder stays if its run, or one inside it, charged a ledger: something was released, and that is not forgotten.
    What other runs charged to a ledger that was linked in does not count.
    """
    new = set(folder.rglob("terms.json")) - (before or set())  # without terms no run began
    runs = [run_name(terms.parent) for terms in new]
    if any(is_charged(ledger, run) for run in runs for ledger in folder.rglob(LEDGER)):
        return
    for part in sorted((contents(folder) or set()) - (before or set()), reverse=True):  # what lies within comes first
        with suppress(OSError):  # the error that ended the run is the one to tell
            if part.is_dir() and not part.is_symlink():
                part.rmdir()
            else:
                part.unlink(missing_ok=True)
    if before is None:
        with suppress(OSError):
            folder.rmdir()


def is_charged(ledger: Path, run: str) -> bool:
    """Whether a ledger's file holds a charge of a run; one that cannot be read may."""
    try:
        with Ledger(ledger) as book:
            return bool(book.charges(run))
    except FileError:
        return True


def _plain(value: Any) -> Any:
    """Return a value as JSON would give it back."""
    return json.loads(json.dumps(value))
