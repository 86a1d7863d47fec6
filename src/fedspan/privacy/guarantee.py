"""What a run promised and spent, in words and figures: for `privacy_spent_`, the summary and the report."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from fedspan.privacy.accountant import epsilon_of
from fedspan.privacy.gaussian import Bounds, GaussianPrivacy
from fedspan.privacy.policy import Releases

CERTIFIED, REAL, PUBLISHED = "certified", "certified in real arithmetic", "as published"
TESTING = "not private: noise from a testing seed"

_NEIGHBOURS = {
    "row": "data sets of which one has {people} more",
    "row-replace": "data sets that differ in {people}; the number of rows is public",
    "entry": "Gram matrices that differ by at most {bound:g} in one entry and its mirror; numbers of rows are public",
    "ppm-12": (
        "Gram matrices whose difference E has sqrt(sum_i ||E_i||_1^2) <= {bound:g} (PPM, (12)); numbers of rows are "
        "public"
    ),
    "site": "data sets that differ in all rows of one site; each site's number of rows is public",
}
_TRUSTS = {
    "local": "nobody is trusted: each site adds the whole noise before anything leaves it",
    "distributed": (
        "each site adds a share of the noise, enough while {sites} of them are honest; the channel is trusted to show "
        "the coordinator only sums (replies are not masked in this version)"
    ),
    "central": "the coordinator is trusted: sites send it plain sums and it adds the noise",
}
_REASONS = {
    "ppm": "zCDP as in PPM Theorem 3.2, with its condition corrected to delta <= exp(-0.427 epsilon)",
    "hardt-price": "PPM's composition with the older sensitivity sqrt(p) ||X||_max",
    "fedpower": (
        "FedPower's Theorem 4 promises (2 epsilon, 2 delta); its sensitivity is one column's, and with more than one "
        "local step its proof does not cover the release: no guarantee is established"
    ),
    "analyze-gauss": "Analyze Gauss with the classical Gaussian mechanism, proven for epsilon <= 1",
    "mod-sulq": "MOD-SuLQ: holds, with far more noise than its guarantee needs",
    "streaming-mod-sulq": "FPCA's Lemma 4: holds, with far more noise than its guarantee needs",
}


@dataclass(frozen=True)
class Release:
    """One kind of release: how often, its part of the budget, and its noise."""

    step: str
    release: str
    times: int
    share: float
    """Of mu^2."""
    sigma: float
    """The deviation of the noise on each number of the sum, of the largest part."""


@dataclass(frozen=True)
class Guarantee:
    """A guarantee as it is shown: what was promised, to whom, on what bound, and how far it is proven."""

    epsilon: float
    delta: float
    spent_epsilon: float
    """By the exact composition of what was charged, at the same delta."""
    neighbours: str
    trust: str
    bound: str
    label: str
    reason: str
    testing: bool
    releases: tuple[Release, ...]
    words: str

    def as_plain(self) -> dict[str, Any]:
        """Return the guarantee as plain data."""
        return asdict(self) | {"releases": [asdict(r) for r in self.releases]}


def guarantee(releases: Releases, features: int) -> Guarantee:
    """Return what a run promised and spent, from its ledger."""
    privacy = releases.privacy
    charges = releases.ledger.charges(releases.run)
    spent = math.fsum(c.cost for c in charges)
    kinds: dict[tuple[str, str], list[Any]] = {}
    heard = math.sqrt(releases.heard)
    for charge in charges:
        kinds.setdefault((charge.step, charge.release), []).append(charge)
    table = tuple(
        Release(
            step, name, len(made), math.fsum(c.cost for c in made) / releases.limit,
            heard * max((v["sigma"] for v in made[-1].detail.values() if isinstance(v, dict)), default=0.0),
        )
        for (step, name), made in kinds.items()
    )  # fmt: skip
    label, reason = label_of(releases, [c.step for c in charges])
    spent_epsilon = epsilon_of(math.sqrt(spent), privacy.delta) if spent > 0 else 0.0
    who = _TRUSTS[privacy.trust].format(sites=releases.sites)
    people = "one row" if privacy.rows_per_person == 1 else f"up to {privacy.rows_per_person} rows of one person"
    near = _NEIGHBOURS[privacy.relation].format(people=people, bound=privacy.entry_change)
    bound = bound_words(privacy, releases, features)
    words = (
        f"({privacy.epsilon:g}, {privacy.delta:g})-differential privacy for {near}. {who[0].upper()}{who[1:]}. "
        f"It rests on: {bound}. {label[0].upper()}{label[1:]}: {reason}. It is about this run alone: others on the "
        f"same rows add to it."
    )
    return Guarantee(
        privacy.epsilon, privacy.delta, spent_epsilon, privacy.relation, privacy.trust, bound, label, reason,
        privacy.testing_seed is not None, table, words,
    )  # fmt: skip


def label_of(releases: Releases, steps: list[str]) -> tuple[str, str]:
    """Return how far a guarantee is proven, and why not further."""
    privacy = releases.privacy
    if privacy.testing_seed is not None:
        return TESTING, f"the noise was drawn from testing_seed = {privacy.testing_seed}, which anyone can repeat"
    if releases.published is not None:
        solver = next((s for s in reversed(steps) if not s.startswith("data.")), "gram.multiply")
        return PUBLISHED, _REASONS[releases.published.formula(solver)]
    if privacy.arithmetic == "float":
        return REAL, "sensitivity and composition are proven; the noise is in floating point"
    return CERTIFIED, "sensitivity and composition are proven, and the noise is exact on the grid that is released"


def bound_words(privacy: GaussianPrivacy, releases: Releases, features: int) -> str:
    """Return the bound in words."""
    if privacy.relation in ("entry", "ppm-12"):
        return f"changes of at most {privacy.entry_change:g} in the Gram matrix"
    if privacy.relation == "site":
        return f"the squares of a site's rows summing to at most {privacy.site_norm:g}, which sites scale down to"
    norm = releases.neighbours.bound
    box = ", columns clamped to public ranges" if isinstance(privacy.row_norm, Bounds) else ""
    given = releases.given
    tighter = f" (tighter than the {given:.4g} of the terms, as the noised total said)" if norm < given else ""
    return f"rows of norm at most {norm:.4g} as they enter the Gram matrix, clipped at the site{box}{tighter}"
