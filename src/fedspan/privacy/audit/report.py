"""An audit put together: error curves, what is learnt, a verdict in one line for each site and for the outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from fedspan.encoding import Array
from fedspan.errors import ConfigurationError, nearest
from fedspan.privacy.audit.attacks import ATTACKS, OWN, Attacks
from fedspan.privacy.audit.equations import count_features
from fedspan.privacy.audit.external import External, attack_from_outside
from fedspan.privacy.audit.scoring import ALL, Curve, score
from fedspan.privacy.audit.simulate import FEATURES
from fedspan.privacy.transcript import Transcript

_MOST_BYTES = 512 << 20


class Penalty(NamedTuple):
    """A penalty beta_i of FAPS as read from Z'Y_i, and how far that was from a multiple of the identity."""

    round: int
    beta: float
    deviation: float


@dataclass(frozen=True)
class SiteAudit:
    """What the releases of one site reveal."""

    site: str
    curves: dict[str, Curve]
    """Each attack's error, round by round; empty where there was no truth to score against."""
    numbers: int
    """The numbers in its Gram matrix: d (d + 1) / 2."""
    learnt_numbers: int
    """How many of them the exact equations fix (`fedspan.privacy.audit.counting`)."""
    learnt: list[str]
    """What is learnt exactly, in words."""
    besides: list[str]
    """What else is learnt, or only nearly."""
    penalties: list[Penalty]
    """FAPS: beta_i as read in each round."""
    norm: float | None
    """FAPS: ||A_i||_2^2, the largest eigenvalue of A_i'A_i, as read from the first beta_i."""
    norm_error: float | None
    """Its relative error, where the truth is at hand."""
    unread: list[str]
    """Steps whose releases the audit cannot read."""
    untried: str = ""
    """An attack that would use more of the releases, and was not made."""
    noised: bool = False
    """Whether the site added noise, so that no equation is exact."""
    matrix: str = OWN
    """How the matrix is written that was attacked: a site's, or that of several together."""

    @property
    def strongest(self) -> tuple[str, Curve] | None:
        """The attack with the least error, and its curve; of those that learn all, the first to be done."""
        return min(self.curves.items(), key=lambda c: (max(c[1].least, ALL), c[1].least_round), default=None)

    @property
    def verdict(self) -> str:
        """One line."""
        text = f"{self.site}: {self._reconstructed()}"
        if self.untried:
            text += f"; {self.untried}"
        if self.penalties and self.matrix == OWN:
            text += "; FAPS is not private: it needs noise or masks"
        if self.unread:
            text += f"; NOT audited: releases of {', '.join(sorted(set(self.unread)))}"
        return text

    def _reconstructed(self) -> str:
        share = f"at least {self.learnt_numbers:,} of {self.numbers:,} numbers"
        if self.learnt_numbers == self.numbers:
            share = f"all {self.numbers:,} numbers"
        if self.strongest is None:
            return f"{share} of {self.matrix} {self._follow} {self._what()}; guesses of the rest were not scored"
        attack, curve = self.strongest
        by = f"by round {curve.least_round} ({attack})"
        if curve.least <= ALL:
            return f"{self.matrix} reconstructed to {curve.least:.0e} {by}; all {self.numbers:,} numbers are learnt"
        done = f"{self.matrix} reconstructed with a relative error of {curve.least:.2g} {by}"
        return f"{done}; {share} {self._follow} {self._what()}"

    @property
    def _follow(self) -> str:
        return "would follow, but for the noise, from" if self.noised else "follow exactly from"

    def _what(self) -> str:
        exact = ", ".join(self.learnt) or "nothing it released"
        return f"{exact}; and besides {', '.join(self.besides)}" if self.besides else exact

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "verdict": self.verdict, "numbers": self.numbers, "learnt_numbers": self.learnt_numbers,
            "learnt": self.learnt, "besides": self.besides,
            "curves": {attack: curve.to_dict() for attack, curve in self.curves.items()},
            "penalties": [penalty._asdict() for penalty in self.penalties],
            "norm": self.norm, "norm_error": self.norm_error, "unread": self.unread, "untried": self.untried,
        }  # fmt: skip


@dataclass(frozen=True)
class Audit:
    """What a run's releases reveal, site by site, and to an outsider."""

    features: int
    sites: dict[str, SiteAudit]
    external: External | None
    """None where the result or the truth was not given."""

    @property
    def verdicts(self) -> list[str]:
        """One line for each site, and one for the outside."""
        lines = [site.verdict for site in self.sites.values()]
        return lines if self.external is None else [*lines, self.external.verdict]

    def table(self) -> list[dict[str, Any]]:
        """Return a row for each site and attack: its last error, its least, and the round that reached it."""
        return [
            {
                "site": site.site, "attack": attack, "last": curve.last, "least": curve.least,
                "round": curve.least_round,
            }
            for site in self.sites.values()
            for attack, curve in site.curves.items()
        ]  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        external = None if self.external is None else {**asdict(self.external), "verdict": self.external.verdict}
        return {
            "features": self.features,
            "sites": {name: site.to_dict() for name, site in self.sites.items()},
            "external": external,
        }


def audit(
    transcript: Transcript,
    truth: Mapping[str, Array] | None = None,
    result: Array | None = None,
    known: int | None = None,
    seed: int = 0,
    *,
    on_site: Callable[[str], None] | None = None,
) -> Audit:
    """Attack a run with what its coordinator saw, and say what is learnt.

    Parameters
    ----------
    transcript
        The run as the coordinator saw it: all that the attacks see.
    truth
        Each site's Gram matrix A_i'A_i of the prepared rows. Guesses are scored against it and nothing else is done
        with it; without it, the audit says which numbers follow from the releases.
    result
        The published basis, d x k, for the attack from outside (which needs the truth too).
    known
        How many entries of the pooled Gram matrix the outsider knows (default: 4 for each component).
    seed
        Draws those entries.
    on_site
        Called with each site's name as its turn comes.

    Examples
    --------
    >>> from fedspan.privacy.transcript import Seen
    >>> a = np.random.default_rng(0).standard_normal((9, 4))
    >>> z = np.eye(4)[:, :2]
    >>> seen = Seen(0, "gram.multiply", False, z, "sum", {"berlin": a.T @ a @ z})
    >>> found = audit(Transcript((seen,)))
    >>> found.sites["berlin"].learnt_numbers, found.sites["berlin"].numbers
    (7, 10)
    """
    if transcript.sums:
        raise ConfigurationError(
            "the coordinator saw secure sums of this run, and no site's own replies; audit it with audit_sums"
        )
    features = count_features(transcript)
    check(transcript.sites, features, truth, result)
    pooled = np.zeros((features, features)) if truth is not None and result is not None else None
    sites = {}
    for site in transcript.sites:
        if on_site is not None:
            on_site(site)
        gram = None if truth is None else np.asarray(truth[site], dtype=float)
        sites[site] = audit_site(Attacks(transcript, site), site, gram)
        if pooled is not None and gram is not None:
            pooled += gram
    external = None
    if pooled is not None and result is not None:
        external = attack_from_outside(np.asarray(result, dtype=float), pooled, known, seed)
    return Audit(features, sites, external)


def audit_site(attacks: Attacks, label: str, gram: Array | None) -> SiteAudit:
    """Make all attacks on one site's releases; score them where its matrix is given."""
    d = attacks.setup.features
    if gram is not None and gram.shape != (d, d):
        raise ConfigurationError(f"site {label!r}: its Gram matrix is {d} x {d}, but the truth given is {gram.shape}")
    curves = {}
    if gram is not None:
        scored = score(attacks.guesses(), gram)
        curves = {attack: scored[attack] for attack in ATTACKS if attack in scored}
    else:
        for _ in attacks.guesses():
            pass
    return SiteAudit(
        label, curves, d * (d + 1) // 2, attacks.count_learnt(), attacks.learnt(), attacks.besides(),
        [Penalty(e.round, e.beta, e.deviation) for e in attacks.others if e.beta is not None], attacks.norm,
        _norm_error(attacks.norm, gram) if attacks.matrix == OWN else None, attacks.unread, _untried(attacks),
        attacks.setup.noised, attacks.matrix,
    )  # fmt: skip


def _untried(attacks: Attacks) -> str:
    if not attacks.simulates or attacks.setup.features <= FEATURES:
        return ""
    return f"NOT tried beyond {FEATURES} features: running the site's own code, which gives small matrices away whole"


def _norm_error(read: float | None, gram: Array | None) -> float | None:
    if read is None or gram is None:
        return None
    norm = float(np.linalg.eigvalsh(gram)[-1])
    return abs(read - norm) / norm if norm > 0 else 0.0


def check(sites: Sequence[str], d: int, truth: Mapping[str, Array] | None, result: Array | None) -> None:
    """Refuse what an audit cannot do, and a truth or a result of another run."""
    if 8 * d * d > _MOST_BYTES:
        raise ConfigurationError(
            f"an audit forms {d:,} x {d:,} matrices, which for {d:,} features take {8 * d * d / 1e9:.1f} GB each; it "
            f"goes up to {int((_MOST_BYTES / 8) ** 0.5):,} features: audit the study on some of its columns"
        )
    if truth is not None:
        for site in sites:
            if site not in truth:
                raise ConfigurationError(f"the truth has no Gram matrix for site {site!r}; {nearest(site, truth)}")
        for site in truth:
            if site not in sites:
                hint = nearest(site, sites)
                raise ConfigurationError(f"the truth names site {site!r}, which released nothing; {hint}")
    if result is not None and (np.ndim(result) != 2 or len(result) != d):
        raise ConfigurationError(f"result is the published basis, {d} rows by k columns; got shape {np.shape(result)}")
