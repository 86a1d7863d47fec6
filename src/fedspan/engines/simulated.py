"""What engines that hold all sites in this process share: whom to ask, asking, and whose reply still counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fedspan.encoding import payload_bytes
from fedspan.errors import CohortError, ConfigurationError, FedspanError, SiteError
from fedspan.rounds import Reply, Round, Site, answer


class Simulated:
    """Sites in name order, and the run's seed."""

    def __init__(self, sites: Sequence[Site], seed: int = 0) -> None:
        self._sites = {site.id: site for site in sorted(sites, key=lambda s: s.id)}
        if len(self._sites) < len(sites):
            raise ConfigurationError("two sites have the same name; names tell sites apart")
        self._seed = seed

    def draw(self, question: Round) -> dict[str, int]:
        """Return the sites to ask, and how often each one's reply counts."""
        if question.cohort.is_full:
            return dict.fromkeys(self._sites, 1)
        rng = np.random.default_rng([self._seed, question.number])
        return question.cohort.draw(list(self._sites), rng, self._sizes)

    def sent(self, question: Round, asked: Mapping[str, int]) -> int:
        """Count the bytes to the sites asked: the message to each, and each one's own letter."""
        letters = sum(payload_bytes(question.letters[name]) for name in asked if name in question.letters)
        return payload_bytes(question.message) * len(asked) + letters

    def ask(self, name: str, question: Round) -> Reply:
        """Let a site answer; what goes wrong names the site."""
        try:
            return answer(self._sites[name], question)
        except FedspanError as error:
            if repr(name) in str(error):
                raise
            raise type(error)(f"site {name!r}: {error}") from error.__cause__
        except Exception as cause:
            raise SiteError(f"site {name!r} failed in step {question.step.name}: {cause}") from cause

    def shares(self, question: Round, asked: Mapping[str, int]) -> dict[str, float]:
        """Return the part of the rows of all asked that each one stands for, where the cohort counts rows."""
        if question.cohort.share is None:
            return dict.fromkeys(asked, 0.0)
        sizes = self._sizes()
        total = sum(sizes[name] for name in asked)
        return {name: sizes[name] / total for name in asked}

    def punctual(self, question: Round, asked: Mapping[str, int], arrivals: Iterable[str]) -> list[str]:
        """Return the sites that the cohort waits for, of those that arrive in this order."""
        shares, rows = self.shares(question, asked), 0.0
        counted: list[str] = []
        for name in arrivals:
            if counted and question.cohort.satisfied(len(counted), len(asked), rows):
                break
            counted.append(name)
            rows += shares[name]
        return counted

    def _sizes(self) -> dict[str, float]:
        return {name: site.data.mass for name, site in self._sites.items()}


def repeated(asked: Mapping[str, int]) -> dict[str, int]:
    """Return how often a reply counts, where that is not once."""
    return {name: times for name, times in asked.items() if times != 1}


def enough(question: Round, answered: int, asked: Mapping[str, int]) -> None:
    """Refuse a round without a single reply: it has no aggregate."""
    if not answered:
        raise CohortError(
            f"round {question.number} ({question.step.name}): none of {len(asked)} sites answered in time; "
            f"give the cohort a longer deadline"
        )
