"""Comparing guesses with the truth: the one place that sees it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedspan.encoding import Array
from fedspan.privacy.audit.attacks import Guess

ALL = 1e-6
"""With a relative error up to this, all numbers are learnt."""


@dataclass(frozen=True)
class Curve:
    """An attack's relative error ||Phi - G||_F / ||G||_F, round by round."""

    rounds: list[int] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)

    @property
    def last(self) -> float:
        """The error after the last round."""
        return self.errors[-1]

    @property
    def least(self) -> float:
        """The least error of all rounds."""
        return min(self.errors)

    @property
    def least_round(self) -> int:
        """The first round whose error is within a tenth of the least, or learns all: by then the attack is done."""
        enough = ALL if self.least <= ALL else 1.1 * self.least
        return next(number for number, error in zip(self.rounds, self.errors, strict=True) if error <= enough)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"rounds": self.rounds, "errors": self.errors}


def score(guesses: Iterable[Guess], gram: Array) -> dict[str, Curve]:
    """Return each attack's error curve against the true Gram matrix."""
    size = float(np.linalg.norm(gram)) or 1.0
    curves: dict[str, Curve] = {}
    for guess in guesses:
        curve = curves.setdefault(guess.attack, Curve())
        curve.rounds.append(guess.round)
        curve.errors.append(float(np.linalg.norm(guess.form() - gram)) / size)
    return curves
