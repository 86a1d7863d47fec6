"""What a study makes of secure sums: whom they are over, who must be in them, and which solvers can do with them."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedspan.cohort import Cohort
from fedspan.errors import ConfigurationError
from fedspan.privacy.gaussian import GaussianPrivacy
from fedspan.secure import FEWEST, SecureSums, SumTerms
from fedspan.solvers import NAMES, SOLVERS, Solver, make


def secure_of(given: Any) -> SecureSums | None:
    """Return the rules that a parameter ``secure`` means."""
    if isinstance(given, SecureSums) or given is None:
        return given
    if isinstance(given, bool | np.bool_):
        return SecureSums() if given else None
    raise ConfigurationError(f"secure is True, False or SecureSums(threshold=...), got {given!r}")


def check_masks(terms: SumTerms, cohort: Cohort, drawn: int) -> None:
    """Refuse a cohort that secure sums cannot serve."""
    terms.rules.check(drawn)
    if cohort.late == "carry":
        raise ConfigurationError(
            "late = 'carry' lets a reply count in another round than its own, and secure sums hide it in one; set "
            "late = 'drop'"
        )
    if cohort.sample != "uniform" and drawn < 2 * FEWEST:
        raise ConfigurationError(
            f"sample = {cohort.sample!r} may draw a site more than once: of {drawn} draws, hardly {FEWEST} are of "
            f"different sites, which a secure sum takes; let at least {2 * FEWEST} be drawn (fraction), or set "
            f"sample = 'uniform'"
        )
    waited = min(cohort.first or drawn, drawn)
    if waited < terms.fewest:
        raise ConfigurationError(
            f"the cohort waits for {waited} sites, and a secure sum takes at least {terms.fewest} of "
            f"{terms.expected}: the rest count as dropped out; wait for more (first), or ask fewer"
        )


def agreed_sums(
    secure: SecureSums | None, privacy: GaussianPrivacy | None, cohort: Cohort, sites: int, run: str
) -> SumTerms | None:
    """Return what sites and coordinator agree on about secure sums; None where replies are seen one by one.

    Shares of noise protect nobody whose reply is seen alone: ``trust="distributed"`` implies secure sums.
    """
    shared = privacy is not None and privacy.trust == "distributed"
    if secure is None and not shared:
        return None
    rules = SecureSums() if secure is None else secure
    pool, drawn = sites if cohort.only is None else len(cohort.only), drawn_of(cohort, sites)
    # Of those in a sum that noise was split for, so many are honest if all who collude are in it.
    least = 0 if privacy is None or not shared else min(sites, (privacy.honest or sites) + rules.colluders(sites))
    # A sum that noise was split for must be the only one of its round: its quorum is of all sites.
    # Drawn with replacement, nobody knows how many different ones a round asks.
    asked = drawn if cohort.sample == "uniform" else min(FEWEST, drawn)
    noised = privacy is not None and privacy.trust != "central"
    times = 1 if cohort.sample == "uniform" else drawn
    exact = noised and privacy is not None and privacy.arithmetic == "grid" and privacy.calibration == "tight"
    terms = SumTerms(rules, run, pool if shared else asked, least, times, noised, exact)
    check_masks(terms, cohort, drawn)
    return terms


def fewest_in_sum(terms: SumTerms, cohort: Cohort, drawn: int) -> int:
    """Return the fewest sites in a sum that such a round ends with, where all it draws are different.

    A round that has no deadline and waits for no share is over when all that it waits for are in its sum.
    """
    fewest = max(terms.fewest, terms.rules.fewest(drawn))
    if cohort.deadline is not None or cohort.share is not None:
        return fewest
    return max(fewest, min(cohort.first or drawn, drawn))


def telling_sums(terms: SumTerms | None, cohort: Cohort, sites: int) -> str | None:
    """Return a warning where sums without noise are over other sites from round to round; None where they are not."""
    if terms is None or terms.noised:
        return None
    drawn = drawn_of(cohort, sites)
    pool = sites if cohort.only is None else len(cohort.only)
    changing = {
        "fraction": drawn < pool,
        "sample": cohort.sample != "uniform",
        "first": cohort.first is not None and cohort.first < drawn,
        "share": cohort.share is not None and cohort.share < 1,
        "deadline": cohort.deadline is not None,
    }
    why = [f"{name} = {getattr(cohort, name)!r}" for name, changes in changing.items() if changes]
    if not why:
        return None
    return (
        f"with {', '.join(why)} the secure sums of different rounds are over different sites, and without noise such "
        f"sums tell single sites apart when put together; have all sites in every round, or add noise "
        f"(trust = 'distributed')"
    )


def drawn_of(cohort: Cohort, sites: int) -> int:
    """Return how many sites a round asks."""
    pool = sites if cohort.only is None else len(cohort.only)
    return pool if cohort.fraction == 1 else max(1, round(cohort.fraction * pool))


def check_sums_only(solver: str | Solver) -> None:
    """Refuse a solver that must see single replies where only sums are seen."""
    if solver == "auto":
        return
    chosen: Any = make(solver) if isinstance(solver, str) else solver
    if not getattr(chosen, "sums_only", True):
        able = [name for name, kind in SOLVERS.items() if getattr(kind(), "sums_only", True)]
        raise ConfigurationError(
            f"{NAMES.get(type(chosen), type(chosen).__name__)} shows the coordinator single replies, or waits for few "
            f"of them, and secure sums show it sums of most; take one of {', '.join(able)}"
        )
