"""Every error fedspan raises on purpose.

::

    FedspanError
    ├── ConfigurationError   a setting, a study file or a combination of choices is wrong (a ValueError)
    ├── DataError            a site's data cannot be used as it is (a ValueError)
    ├── SiteError            a step failed at a site for another reason; names the site and the step
    │   ├── RoundConflict    the same round was asked twice with different questions
    │   ├── StateLost        a site was asked to go on from a state it no longer has
    │   └── PolicyError      a site's privacy policy refuses what was asked
    │       ├── BudgetExhausted  a release would cost more privacy than is left
    │       └── ProtocolError    a message of a secure round that no honest party sends
    ├── CohortError          too few sites answered a round
    ├── ConvergenceError     a solver diverged, and has no answer to return
    ├── ResumeError          a run cannot be resumed: the study changed, or there is nothing to resume
    └── FileError            a model, run or data file is unreadable, truncated or of another format (a ValueError)

A text says what was given, what was expected and the way out; where a site is at fault, it is named first.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class FedspanError(Exception):
    """The root of fedspan's own errors."""


class ConfigurationError(FedspanError, ValueError):
    """A setting, a study file or a combination of choices is wrong."""


class DataError(FedspanError, ValueError):
    """A site's data cannot be used as it is."""


class SiteError(FedspanError):
    """A step failed at a site."""


class RoundConflict(SiteError):
    """The same round was asked twice with different questions."""


class StateLost(SiteError):
    """A site was asked to go on from a state it no longer has."""


class PolicyError(SiteError):
    """A site's privacy policy refuses what was asked."""


class BudgetExhausted(PolicyError):
    """A release would cost more privacy than is left."""


class ProtocolError(PolicyError):
    """A message of a secure round that no honest party sends."""


class CohortError(FedspanError):
    """Too few sites answered a round."""


class ConvergenceError(FedspanError):
    """A solver diverged, and has no answer to return."""


class ResumeError(FedspanError):
    """A run cannot be resumed."""


class FileError(FedspanError, ValueError):
    """A model, run or data file is unreadable, truncated or of another format."""


def nearest(word: str, choices: Iterable[str]) -> str:
    """Return a hint naming the nearest of ``choices``, for error texts.

    >>> nearest("sover", ["solver", "seed"])
    "did you mean 'solver'?"
    >>> nearest("xyz", ["solver", "seed"])
    'known: seed, solver'
    """
    known = sorted(choices)
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(known)}"


def few(names: Sequence[str]) -> str:
    """Return the first few of names, for error texts.

    >>> few(["a", "b"]), few([])
    ('a, b', 'none')
    """
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more if names else "none"
