"""Who is asked in a round, and how many answers are waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from fedspan.errors import ConfigurationError


@dataclass(frozen=True)
class Cohort:
    """Who is asked in a round, how many answers are waited for, and what becomes of the rest.

    ``only`` names the sites (default: all); ``fraction`` of them is drawn by ``sample``: ``"uniform"`` without
    replacement (FedPower scheme 2) or ``"by-size-with-replacement"`` (scheme 1: a site drawn twice counts twice).
    The round ends with the ``first`` so many replies (default: all that were asked), or as soon as the replies stand
    for the ``share`` of the rows of all that were asked, and no reply later than ``deadline`` seconds counts. A late
    reply is dropped, or with ``late="carry"`` joins the next round of its step.

    ``hold`` is a label: the sites that answered the first round with it are asked, and waited for, in every other
    round with it. So a method that needs the same sites throughout can run on whichever are fastest.
    """

    only: tuple[str, ...] | None = None
    fraction: float = 1.0
    sample: str = "uniform"
    first: int | None = None
    deadline: float | None = None
    late: str = "drop"
    share: float | None = None
    hold: str | None = None

    def __post_init__(self) -> None:
        if not _is_number(self.fraction) or not 0 < self.fraction <= 1:
            raise ConfigurationError(f"a cohort's fraction is a number in (0, 1], got {self.fraction!r}")
        object.__setattr__(self, "fraction", float(self.fraction))
        if self.only is not None:
            object.__setattr__(self, "only", _names(self.only))
        if self.sample not in ("uniform", "by-size-with-replacement"):
            raise ConfigurationError(f"sample is 'uniform' or 'by-size-with-replacement', got {self.sample!r}")
        if self.first is not None:
            if not _is_number(self.first, Integral):
                raise ConfigurationError(f"first is how many replies are waited for, an integer; got {self.first!r}")
            if self.first < 1:
                raise ConfigurationError(f"a round waits for at least 1 reply, got first={self.first}")
            object.__setattr__(self, "first", int(self.first))
        if self.deadline is not None:
            if not _is_number(self.deadline) or not 0 < self.deadline < float("inf"):
                raise ConfigurationError(
                    f"a deadline is a positive number of seconds, or None to wait for all; got {self.deadline!r}"
                )
            object.__setattr__(self, "deadline", float(self.deadline))
        if self.share is not None:
            if not _is_number(self.share) or not 0 < self.share <= 1:
                raise ConfigurationError(f"a cohort's share of the rows is a number in (0, 1], got {self.share!r}")
            object.__setattr__(self, "share", float(self.share))
        if self.hold is not None and not isinstance(self.hold, str):
            raise ConfigurationError(f"hold is a label, a text, or None; got {self.hold!r}")
        if self.late not in ("drop", "carry"):
            raise ConfigurationError(f"late replies are 'drop'ped or 'carry'-ed over, got {self.late!r}")

    @property
    def is_full(self) -> bool:
        """Whether every site is asked and waited for."""
        drawn = self.only is not None or self.fraction != 1 or self.sample != "uniform"
        return not drawn and self.first is None and self.share is None and self.deadline is None

    def waits_for_all(self, asked: int) -> bool:
        """Whether every one of so many sites is waited for, but for a deadline."""
        return self.share is None and (self.first is None or self.first >= asked)

    def satisfied(self, replies: int, asked: int, rows: float) -> bool:
        """Whether a round may end: so many replies are here of so many asked, and stand for this part of their rows.

        >>> Cohort(first=2).satisfied(2, 5, 0.1), Cohort(share=0.5).satisfied(2, 5, 0.1)
        (True, False)
        """
        if self.waits_for_all(asked):
            return replies >= asked
        few = self.first is not None and replies >= self.first
        return few or (self.share is not None and rows >= self.share * (1 - 1e-12))

    def draw(
        self, names: Sequence[str], rng: np.random.Generator, sizes: Callable[[], Mapping[str, float]]
    ) -> dict[str, int]:
        """Return the sites to ask and how often each one's reply counts.

        >>> Cohort(fraction=0.5).draw(["a", "b", "c", "d"], np.random.default_rng(0), dict)
        {'c': 1, 'd': 1}
        """
        pool = list(names) if self.only is None else sorted(self.only)
        strangers = set(pool) - set(names)
        if strangers:
            raise ConfigurationError(f"the cohort names {sorted(strangers)}, but the sites are {sorted(names)}")
        if self.fraction == 1 and self.sample == "uniform":
            return dict.fromkeys(pool, 1)
        count = max(1, round(self.fraction * len(pool)))
        if self.sample == "uniform":
            return dict.fromkeys(sorted(rng.choice(pool, size=count, replace=False).tolist()), 1)
        rows = sizes()
        share = np.array([rows[name] for name in pool], dtype=float)
        times = rng.multinomial(count, share / share.sum())
        return {name: int(t) for name, t in zip(pool, times, strict=True) if t}


def _is_number(value: Any, kind: type = Real) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _names(only: Any) -> tuple[str, ...]:
    """Return the names of a cohort's sites as a tuple of texts; refuse what is none."""
    expected = "only is a list of names of sites, or None for all"
    if isinstance(only, str) or not isinstance(only, Iterable):
        raise ConfigurationError(f"{expected}; got {only!r}")
    names = tuple(only)
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigurationError(f"{expected}; got {only!r}")
    return tuple(str(name) for name in names)
