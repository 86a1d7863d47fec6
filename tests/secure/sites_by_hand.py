"""A secure sum of real sites, step by step: what the coordinator sends is within reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedspan.data import Preparation, open_source
from fedspan.privacy import GaussianPrivacy
from fedspan.reduce import MaskedSum
from fedspan.rounds import STEPS, Round, Site, answer
from fedspan.secure import SecureSums, SumTerms, fixed_point, steps
from fedspan.secure.aggregation import Aggregation, new_nonce
from fedspan.secure.roll import Subject
from fedspan.sites import open_sites

D = 4
NAMES = ["ash", "elm", "oak", "yew"]
Z = np.eye(D)[:, :2]
TERMS = SumTerms(SecureSums(), "a run", len(NAMES))


def rows_of(names: list[str] | None = None) -> dict[str, np.ndarray]:
    """Rows of each site."""
    return {name: np.random.default_rng(i).standard_normal((9 + i, D)) for i, name in enumerate(names or NAMES)}


def sites_of(
    rows: dict[str, Any] | None = None, *, terms: SumTerms = TERMS, privacy: GaussianPrivacy | None = None,
    folder: Path | None = None,
) -> dict[str, Site]:  # fmt: skip
    """Sites that answer in masked rounds only."""
    sources = {name: open_source(x) for name, x in (rows or rows_of()).items()}
    return {s.id: s for s in open_sites(sources, seed=0, folder=folder, privacy=privacy, run="a run", masks=terms)}


PREPARE = {"columns": None, "weight_column": None, "features": D, "total": False, "privacy": {"releases": 3}}
"""The preparation of all sites: rows as they are."""
STATE = {"preparation": PREPARE}


def prepared(sites: dict[str, Site], terms: SumTerms = TERMS) -> dict[str, Site]:
    """Have sites install the preparation, in round 0."""
    for site in sites.values():
        if site.policy is not None:
            site.policy._agreed = Preparation(center=False)
    Exchange(sites, Round(STEPS["data.prepare"], PREPARE, number=0), terms=terms).run()
    return sites


class Exchange:
    """One attempt at a masked sum over sites."""

    def __init__(
        self, sites: dict[str, Site], question: Round, *, kind: str = "value", terms: SumTerms = TERMS
    ) -> None:
        self.sites, self.question = sites, question
        subject = Subject(terms.run, question.number, kind, question.digest, new_nonce(), terms.rules, terms.expected)
        self.made = Aggregation(subject, terms.least)
        self.refused: dict[str, str] = {}

    def ask(self, step: str, message: Any, letters: dict[str, Any] | None = None, names: Any = None) -> dict[str, Any]:
        """Ask sites, in name order; a refusal is a reply."""
        asked = list(self.sites if names is None else names)
        return {name: self.told(step, name, message, letters) for name in asked}

    def told(self, step: str, name: str, message: Any, letters: dict[str, Any] | None = None) -> Any:
        """Ask one site."""
        asked = Round(
            STEPS[f"secure.{step}"], message, number=self.question.number, parents=self.question.parents,
            terms=self.question.terms, letters=letters or {},
        )  # fmt: skip
        return answer(self.sites[name], asked).value

    def to_masked(self) -> dict[str, Any]:
        """Come to the masked phase; return its message but for how the numbers are read."""
        self.made.take_keys(self.ask("keys", self.made.keys()))
        self.made.take_shares(self.ask("shares", self.made.shares(), self.made.share_letters(), self.made.asked))
        step, message = self.question.step.name, self.question.message
        return {"session": self.made.session, "step": step, "message": message}

    def message(self, exponents: Any = None, times: Any = None, mean: Any = False) -> dict[str, Any]:
        """The message of the masked phase."""
        given = {"value": 40} if exponents is None else exponents
        return {**self.to_masked(), "exponents": given, "times": times or {}, "mean": mean}

    def masked(self, name: str, message: Any) -> Any:
        """Ask one site for its masked reply."""
        return self.told("masked", name, message, self.made.mask_letters())

    def finish(self, messages: dict[str, Any]) -> dict[str, np.ndarray]:
        """Ask each site its own masked question, and unmask what comes of it."""
        collector = MaskedSum().collector(False)
        for name, message in messages.items():
            collector.add(name, self.masked(name, message), 1.0, 1)
        found = collector.result()
        self.made.take_masked(found["sites"], found["refused"])
        self.made.take_consents(self.ask("consent", self.made.consent(), None, self.made.alive))
        self.made.take_released(self.ask("release", self.made.release(), None, self.made.signers))
        vector, used = steps.flat(found["total"]), found["exponents"]
        self.made.unmask(vector, found["about"])
        total = steps.shaped(vector, found["total"])
        return {name: fixed_point.decode(part, used[name]) for name, part in total.items()}

    def run(self, **settings: Any) -> dict[str, np.ndarray]:
        """Ask all sites alike; return the sum."""
        return self.finish(dict.fromkeys(self.sites, self.message(**settings)))
