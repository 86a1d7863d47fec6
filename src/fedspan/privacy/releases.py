"""Releases: priced, charged and noised, by the same rules at a site and at a coordinator that is trusted with them.

Every release is charged before its noise is drawn, from the terms that were accepted: set-up releases their shares of
mu^2, the solver's what is left in equal parts. The coordinator proposes how many those are; the ledger keeps the sum
within the terms whatever it asks.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedspan.data.clip import RowBounds
from fedspan.encoding import Array, Plain
from fedspan.errors import PolicyError
from fedspan.privacy.gaussian import GaussianPrivacy
from fedspan.privacy.ledger import Ledger
from fedspan.privacy.mechanisms import Scale, add_noise, tight_scale
from fedspan.privacy.noise import Stream
from fedspan.privacy.published_noise import PublishedNoise
from fedspan.privacy.secret import Secret
from fedspan.rounds import Round
from fedspan.sensitivity import Neighbours

SETUP = {
    ("data.moments", "weight"): "count", ("data.moments", "sums"): "mean", ("data.moments", "present"): "mean",
    ("data.moments", "degrees"): "degree", ("data.spread", "squares"): "scale", ("data.prepare", "total"): "variance",
}  # fmt: skip
"""The share of the budget that each part of a set-up release is charged to."""
SMALLEST = 1e-150


class Releases:
    """Charges releases to a ledger and adds their noise."""

    def __init__(
        self,
        privacy: GaussianPrivacy,
        *,
        run: str,
        who: str,
        sites: int,
        ledger: Ledger | None = None,
        secret: Secret | None = None,
    ) -> None:
        self.privacy, self.run, self.who = privacy, run, who
        self._ledger, self.secret = ledger, Secret() if secret is None else secret
        self.sites = (privacy.honest or sites) if privacy.trust == "distributed" else 1
        self.heard = privacy.heard(sites)
        """How many times the variance that is counted on is in a sum of all sites' replies."""
        self.bounds: RowBounds | None = None
        """What the prepared rows are clipped to: set when they are installed, and by nothing else."""
        self.given = 0.0
        """The terms' own bound, where that was tightened."""
        self.raw = RowBounds()
        """What raw rows are clipped to in the set-up releases."""
        self.features = 1
        self.steps: dict[str, float] = {}
        """The grid that each part of the last release lies on; 1 where it is nothing but zeros."""
        self.shares: dict[str, float] = {}
        """The deviation of the own noise in each part of the last release; of a part without noise there is none."""
        self.pairwise = False
        """Whether noise that neighbours cancel hides single replies (`fedspan.secure.gopa`), as no coordinator does."""
        self._parties = sites
        self.planned: int | None = None
        """How many releases the solver will make."""
        self.context: Plain = None
        """What else a release depends on: the preparation and, where they were read through, the rows."""
        self.published = PublishedNoise(privacy) if privacy.calibration == "published" else None
        self._charged: set[int] = set()
        """Rounds that this process charged."""

    @property
    def ledger(self) -> Ledger:
        """Where releases are charged; in memory unless a file was named."""
        if self._ledger is None:
            self._ledger = Ledger()
        return self._ledger

    @property
    def limit(self) -> float:
        """The study's budget, mu^2: below the promise by more than adding up can lose."""
        return self.privacy.mu**2 * (1 - 1e-9)

    def set_bounds(self, width: int, preparation: dict[str, Any], *, install: bool) -> RowBounds:
        """Return the bounds for rows of so many columns, and note them: for the prepared rows, or for raw sums only."""
        bounds = self.privacy.bounds_under(preparation, width)
        if install:
            self.bounds = bounds
            self.given = self.privacy.bounds_under(preparation, width, tightened=False).norm or 0.0
        else:
            self.raw = bounds
        return bounds

    def accept(self, terms: Any) -> None:
        """Take the study's terms: how many releases the solver will make and, for published formulas, public sizes.

        Whatever they say, the ledger keeps the sum of all releases within the budget.
        """
        planned = terms.get("releases") if isinstance(terms, dict) else None
        self.planned = None
        if isinstance(planned, int) and not isinstance(planned, bool):
            self.planned = max(planned, 1)
        if self.published is not None and isinstance(terms, dict):
            self.published.accept(terms)

    @property
    def neighbours(self) -> Neighbours:
        """The relation with the bound that prepared rows are clipped to."""
        if self.bounds is None:
            raise PolicyError("this comes before the study's preparation, so no bound on rows holds yet")
        return self.privacy.neighbours_of(self.bounds)

    def cost(self, question: Round, share: str) -> float:
        """Return what a release costs: its share of mu^2, or an equal part of what set-up left."""
        if share == "variance":
            return self.privacy.total_share * self.limit
        if share in self.privacy.shares:
            return self.privacy.shares[share] * self.limit
        if self.planned is None:
            raise PolicyError(f"step {question.step.name} came before the study's terms; start with its preparation")
        return self.cost_of_solver() / self.planned

    def cost_of_solver(self) -> float:
        """Return what the set-up releases left of the budget."""
        spent = math.fsum(c.cost for c in self.ledger.charges(self.run) if c.step.startswith("data."))
        return self.limit - spent

    def release(
        self,
        question: Round,
        parts: dict[str, Array],
        about: Array | None = None,
        rows: float = 1.0,
        *,
        again: bool = True,
    ) -> dict[str, Array]:
        """Charge a release and return it with its noise. ``again``: whether a charged one may be made once more."""
        shapes = {name: np.shape(part) for name, part in parts.items()}
        scales, tag = self.charge(question, shapes, about, rows, values=parts, again=again)
        released = {}
        for name, part in parts.items():
            part = np.nan_to_num(np.asarray(part, dtype=np.float64))  # an error here would tell where they are
            if name not in scales:  # said to depend on no row, as 0 Z and what was not asked for: then it is nothing
                released[name] = np.zeros_like(part)
                continue
            scale, shape = scales[name]
            released[name] = add_noise(self.stream(question, name, tag), part, scale, shape).reshape(np.shape(part))
        return released

    def charge(
        self,
        question: Round,
        shapes: dict[str, tuple[int, ...]],
        about: Array | None = None,
        rows: float = 1.0,
        *,
        values: Plain = None,
        again: bool = True,
        block: tuple[str, int] | None = None,
    ) -> tuple[dict[str, tuple[Scale, Array | float]], bytes]:
        """Charge a release, then return the noise of each part that has any, and the tag that keys it.

        The same release again (of the same values, by the same noise) is not charged twice; any other one is. One that
        is about a ``block`` of the rows is charged beside those about the others (`fedspan.privacy.ledger.composed`).
        """
        if block is not None and self.privacy.relation != "row-replace":
            raise PolicyError(
                f"blocks of rows are released side by side only where a row is replaced, not with neighbours = "
                f"{self.privacy.relation!r}; state n_public = true"
            )
        if not again and question.number in self._charged:  # whatever was asked: a refusal must not tell values apart
            raise PolicyError(f"round {question.number} ({question.step.name}) was released before, and is not again")
        scales, charges = self._price(question, shapes, about, rows)
        tag = self.secret.tag(
            self.run, self.who, question.number, question.digest, self.context, values,
            [[name, scale.sigma, scale.share] for name, (scale, _) in sorted(scales.items())],
        )  # fmt: skip
        for names, cost, detail in charges:
            if block is not None:
                detail = {**detail, "disjoint": [block[0], str(block[1])]}
            self.ledger.charge(
                run=self.run, round=question.number, question=f"{question.digest[:32]}:{tag.hex()[:32]}",
                step=question.step.name, release="+".join(names), cost=cost, detail=detail, limit=self.limit,
            )  # fmt: skip
        self._charged.add(question.number)
        return scales, tag

    def _price(
        self, question: Round, shapes: dict[str, tuple[int, ...]], about: Array | None, rows: float
    ) -> tuple[dict[str, tuple[Scale, Array | float]], list[tuple[list[str], float, dict[str, Any]]]]:
        """Return the noise of each part, and what to charge: for each share its parts, cost and detail."""
        sensitivities = self._sensitivities(question, shapes)
        groups: dict[str, list[str]] = {}
        for name, sensitivity in sorted(sensitivities.items()):  # a wire may bring them in another order
            if sensitivity > 0:
                groups.setdefault(SETUP.get((question.step.name, name), "solver"), []).append(name)
        scales: dict[str, tuple[Scale, Array | float]] = {}
        self.steps, self.shares = dict.fromkeys(shapes, 1.0), {}
        charges = []
        for share, names in groups.items():
            cost = self.cost(question, share)
            if cost <= 0:
                raise PolicyError(f"no share of the budget was set aside for the {share}; it stays at the site")
            for name in names:
                size = math.prod(shapes[name])
                if share == "solver" and self.published is not None:
                    scales[name] = self.published.scale(question, self, name, shapes[name], about, rows)
                else:
                    scale = tight_scale(
                        sensitivities[name], math.sqrt(cost), len(names), size, self.sites, self.privacy.arithmetic,
                        self.privacy.rows_per_person, self._parties,
                    )  # fmt: skip
                    scales[name] = scale, 1.0
                self.steps[name] = scales[name][0].step
                self.shares[name] = scales[name][0].share * float(np.max(scales[name][1]))
            noise = {name: {"sensitivity": sensitivities[name], "sigma": scales[name][0].sigma} for name in names}
            said = {"neighbours": self.privacy.relation, "trust": self.privacy.trust}
            charges.append((names, cost, {**noise, **said}))
        return scales, charges

    def _sensitivities(self, question: Round, shapes: dict[str, tuple[int, ...]]) -> dict[str, float]:
        if question.step.sensitivity is None:
            raise PolicyError(f"step {question.step.name} declares no sensitivity, so no noise can cover it")
        if self.published is not None and not question.step.setup:
            return dict.fromkeys(shapes, 1.0)  # the paper has its own; what it proves is said in the guarantee
        of_raw_rows = question.step.name in ("data.moments", "data.spread")
        neighbours = self.privacy.neighbours_of(self.raw) if of_raw_rows else self.neighbours
        declared = question.step.sensitivity(question.message, neighbours, shapes)
        undeclared = set(shapes) - set(declared)
        if undeclared:
            raise PolicyError(f"step {question.step.name} declares no sensitivity for {sorted(undeclared)}")
        for name, value in declared.items():  # 0 is of what depends on no row, never of what is merely very small
            if value != 0 and not SMALLEST < value < 1 / SMALLEST:
                raise PolicyError(f"step {question.step.name}: the sensitivity of {name} is {value!r}")
        return {name: declared[name] for name in shapes}

    def stream(self, question: Round, part: str, tag: bytes) -> Stream:
        """Return the source of a release's noise: nobody else's to predict, and the same if it is made again."""
        seed = self.privacy.testing_seed
        if seed is not None:
            return Stream.for_testing(seed, self.who, question.number, part)
        return Stream.of_release(self.secret.tag(tag.hex(), part))
