"""What learners' settings share."""

from __future__ import annotations

from dataclasses import dataclass

from fedspan.errors import ConfigurationError
from fedspan.learners.rows import Descent
from fedspan.solvers.settings import finite, settle, whole


@dataclass(frozen=True, kw_only=True)
class Descending:
    """A budget of rounds, and the descent at the sites: the paper's values by default (appendix C).

    ``stall``: stop where the mean loss of three rounds is less than this part below that of the three before (None:
    use the whole budget). ``by_rows``: a site counts in the mean by its number of rows, not as one.
    """

    rounds: int = 50
    rate: float = 0.1
    momentum: float = 0.5
    batch: int = 10
    epochs: int = 1
    stall: float | None = None
    by_rows: bool = False

    def __post_init__(self) -> None:
        for name in ("rounds", "batch", "epochs"):
            settle(self, **{name: whole(name, getattr(self, name))})
        for name in ("rate", "momentum"):
            settle(self, **{name: finite(name, getattr(self, name))})
        if self.rounds < 1 or self.epochs < 1 or self.batch < 0:
            raise ConfigurationError(
                f"rounds and epochs are at least 1, batch is 0 (all rows) or more; got {self.rounds}, {self.epochs}, "
                f"{self.batch}"
            )
        if not self.rate > 0 or not 0 <= self.momentum < 1:
            raise ConfigurationError(
                f"rate is positive and momentum lies in [0, 1); got {self.rate} and {self.momentum}"
            )
        if not isinstance(self.by_rows, bool):
            raise ConfigurationError(f"by_rows is true or false, got {self.by_rows!r}")
        if self.stall is not None:
            settle(self, stall=finite("stall", self.stall))
        if self.stall is not None and not 0 < self.stall < 1:
            raise ConfigurationError(f"stall is a part of the loss in (0, 1), or None; got {self.stall!r}")

    @property
    def descent(self) -> Descent:
        """How parameters descend at a site."""
        return Descent(self.rate, self.momentum, self.batch, self.epochs)

    @property
    def tuning(self) -> Descent:
        """How a site's parameters descend where they are tuned before they are measured, and where a site joins."""
        return self.descent

    @property
    def partial(self) -> bool:
        """Any sites may answer any round."""
        return True
