"""What a run promised and spent, in words and figures: for `privacy_spent_`, the summary and the report."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from fedspan.privacy.accountant import epsilon_of
from fedspan.privacy.gaussian import Bounds, GaussianPrivacy
from fedspan.privacy.ledger import Charge, composed
from fedspan.privacy.releases import Releases
from fedspan.privacy.transcript import WARNING

CERTIFIED, REAL, PUBLISHED = "certified", "certified in real arithmetic", "as published"
TESTING = "not private: noise from a testing seed"
UNPROVEN = ("fedpower",)
"""Published formulas that come with no guarantee at all: nothing is promised, and no epsilon was spent."""

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
        "each site adds a share of the noise, enough while {sites} of those in a sum are honest; replies are masked, "
        "and the coordinator sees nothing but such sums"
    ),
    "central": "the coordinator is trusted: sites send it plain sums and it adds the noise",
    "gopa": (
        "there is no coordinator: each node adds a share of the noise, enough while {sites} of them are honest and "
        "have not crashed, and hides what it sends by noise that it shares with each neighbour and that cancels in the "
        "sum (GOPA); nodes follow the protocol, and any others may pool what they saw"
    ),
}
_REASONS = {
    "ppm": "zCDP as in PPM Theorem 3.2, with its condition corrected to delta <= exp(-0.427 epsilon)",
    "hardt-price": "PPM's composition with the older sensitivity sqrt(p) ||Z||_max, which is never below PPM's own",
    "fedpower": (
        "no guarantee is established: FedPower's Theorem 4 claims (2 epsilon, 2 delta) from the change of one column "
        "of what is released, and with more than one local step its proof does not cover the release"
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
    spent_epsilon: float | None
    """By the exact composition of what was charged, at the same delta. None where no guarantee is established."""
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


def guarantee(releases: Releases) -> Guarantee:
    """Return what a run promised and spent, from its ledger."""
    privacy, formula = releases.privacy, formula_of(releases)
    charges = releases.ledger.charges(releases.run)
    spent = composed(charges)
    spent_epsilon = None if formula in UNPROVEN else epsilon_of(math.sqrt(spent), privacy.delta) if spent > 0 else 0.0
    label, reason = label_of(releases)
    bound = bound_words(releases, charges)
    who = _capital(_TRUSTS["gopa" if releases.pairwise else privacy.trust].format(sites=releases.sites))
    testing, how_far = privacy.testing_seed is not None, f"{_capital(label)}: {reason}"
    if formula in UNPROVEN:  # leads with that, and promises nothing after it
        words = f"{_capital(_REASONS[formula])}. {who}. The noise is as published, for {bound}."
        words += f" {how_far}." if testing else ""
    else:
        words = (
            f"{_promise(privacy)}. {who}. It rests on: {bound}. {how_far}. It is about this run alone: others on the "
            f"same rows add to it."
        )
    return Guarantee(
        privacy.epsilon, privacy.delta, spent_epsilon, privacy.relation, privacy.trust, bound, label, reason,
        testing, _table(releases, charges), words,
    )  # fmt: skip


def _table(releases: Releases, charges: list[Charge]) -> tuple[Release, ...]:
    """Return each kind of release with its part of the budget and its noise on the sum."""
    kinds: dict[tuple[str, str], list[Charge]] = {}
    for charge in charges:
        kinds.setdefault((charge.step, charge.release), []).append(charge)
    heard = math.sqrt(releases.heard)
    return tuple(
        Release(
            step, name, len(made), composed(made) / releases.limit,
            heard * max((v["sigma"] for v in made[-1].detail.values() if isinstance(v, dict)), default=0.0),
        )
        for (step, name), made in kinds.items()
    )  # fmt: skip


def _promise(privacy: GaussianPrivacy) -> str:
    """Return what is promised, and for whom."""
    people = "one row" if privacy.rows_per_person == 1 else f"up to {privacy.rows_per_person} rows of one person"
    near = _NEIGHBOURS[privacy.relation].format(people=people, bound=privacy.entry_change)
    return f"({privacy.epsilon:g}, {privacy.delta:g})-differential privacy for {near}"


def formula_of(releases: Releases) -> str | None:
    """Return the paper's formula that the solver's noise follows; None with tight calibration."""
    if releases.published is None:
        return None
    return releases.published.chosen or releases.privacy.formula or ""


def label_of(releases: Releases) -> tuple[str, str]:
    """Return how far a guarantee is proven, and why not further."""
    privacy, formula = releases.privacy, formula_of(releases)
    if privacy.testing_seed is not None:
        return TESTING, f"the noise was drawn from testing_seed = {privacy.testing_seed}, which anyone can repeat"
    if formula is not None:
        return PUBLISHED, _REASONS.get(formula, "no formula was agreed on") + _not_covered(privacy, formula)
    proven, gaps = "sensitivity and composition are proven", []
    if privacy.arithmetic == "float":
        gaps.append("the noise is in floating point")
    if releases.pairwise:
        gaps.append("the noise that neighbours cancel is in floating point")
    if privacy.relation in ("entry", "ppm-12"):  # any rows may make up the change, and so any rounding
        gaps.append("the rounding of sums over rows is not bounded by an entry's change")
    if gaps:
        return REAL, f"{proven}; {', and '.join(gaps)}"
    return CERTIFIED, f"{proven}, and the noise is exact on the grid that is released"


def _not_covered(privacy: GaussianPrivacy, formula: str) -> str:
    """Return what a formula leaves unproven for the relation that was asked for.

    A changed entry and its mirror move two rows of the product: c sqrt(||Z_i||^2 + ||Z_j||^2), up to sqrt(2) times the
    older sensitivity.
    """
    if formula != "hardt-price" or privacy.relation != "entry":
        return ""
    c = privacy.entry_change
    return (
        f"; for an entry with its mirror it may be too small by a factor of sqrt(2), so that a change of {c:g} is not "
        f"proven to be hidden, only one of {c / math.sqrt(2):.4g}"
    )


def bound_words(releases: Releases, charges: list[Charge]) -> str:
    """Return the bound in words."""
    privacy = releases.privacy
    if formula_of(releases) in UNPROVEN:
        return "a change of 1 in one entry of A'A and one column of the release; row_norm and entry_change play no part"
    clipped = _clipped_words(releases, charges)
    if privacy.relation in ("entry", "ppm-12"):
        return f"changes of at most {privacy.entry_change:g} in the Gram matrix{clipped}"
    if privacy.relation == "site":
        return (
            f"the squares of a site's rows summing to at most {privacy.site_norm:g}, which sites scale down to{clipped}"
        )
    norm = releases.neighbours.bound
    box = ", columns clamped to public ranges" if isinstance(privacy.row_norm, Bounds) else ""
    raw = releases.raw.raw_norm
    if privacy.raw_norm is not None and any({"sums", "degrees"} & set(c.detail) for c in charges):
        box += f", raw rows to {raw:.4g} where their sums are released"
    given = releases.given
    tighter = f" (tighter than the {given:.4g} of the terms, as the noised total said)" if norm < given else ""
    return f"rows of norm at most {norm:.4g} as they enter the Gram matrix, clipped at the site{box}{tighter}{clipped}"


def _clipped_words(releases: Releases, charges: list[Charge]) -> str:
    """Name site_norm where releases were clipped to it as a whole: FedPower's, after several local steps.

    They are told by what they were charged for; after one step that is the product's sensitivity.
    """
    whole, local = releases.privacy.site_norm, [c for c in charges if c.step == "fedpower.local_steps"]
    if whole is None or not local:
        return ""
    price = releases.neighbours.clipped()
    if not any(math.isclose(c.detail.get("product", {}).get("sensitivity", 0.0), price) for c in local):
        return ""
    return f"; what leaves a site after several local steps clipped to norm {whole:g}"


def transcript_warning(privacy: GaussianPrivacy | None) -> str:
    """Return what whoever keeps a transcript is told; a trusted coordinator's holds what no noise was added to."""
    if privacy is None or privacy.trust != "central":
        return WARNING
    return f"{WARNING}; with trust = 'central' it keeps them WITHOUT noise, as the sites sent them"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
