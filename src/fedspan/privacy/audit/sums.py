"""The audit of secure sums: what the sums tell of all sites together, and what is left to guess of a single one.

::

    exchanges  ->  masked replies, read as numbers  ->  as good a guess as random numbers are
    sums       ->  the attacks of any audit, on the sum of all matrices  ->  a share of it, as a guess of one
    sums over different sites, where there are some  ->  `fedspan.privacy.audit.joint`
    colluding sites' own replies, taken off each sum  ->  the same, of those who are left

Each figure stands beside the one it must be compared with: random numbers in place of the masked ones; the matrices of
the other sites alone, for whoever guesses from the sum; and the very same run without masks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fedspan.encoding import Array
from fedspan.errors import ConfigurationError, nearest
from fedspan.privacy.audit.attacks import Attacks, Guess
from fedspan.privacy.audit.equations import Setup, count_features, read_equations
from fedspan.privacy.audit.external import External, attack_from_outside
from fedspan.privacy.audit.joint import Joint, sums_of_products
from fedspan.privacy.audit.products import Products
from fedspan.privacy.audit.report import SiteAudit, audit_site, check
from fedspan.privacy.audit.scoring import ALL
from fedspan.privacy.audit.views import SUM, masked_as_numbers, members_of, sum_of, without
from fedspan.privacy.transcript import Transcript

_ROUNDING = 8 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class HiddenSite:
    """What can be guessed of one site whose replies were masked. Errors are None where there was no truth.

    An error here is that of the best multiple of a guess, as if the site's size were known: 1 is guessing nothing.
    """

    site: str
    masked: float | None
    """From its masked replies, read as numbers."""
    random: float | None
    """The same, with random numbers in their place."""
    guess: float | None
    """From the sums."""
    others: float | None
    """From the other sites' matrices, for whoever knows those and nothing of this one."""
    plain: SiteAudit | None
    """The same run without masks."""


@dataclass(frozen=True)
class SumsAudit:
    """What a run's secure sums reveal: of all sites together, and of single ones."""

    features: int
    members: list[str]
    """The sites that most sums are over."""
    whole: SiteAudit
    """What the sums tell of the sum of their matrices."""
    colluding: list[str]
    """Those that show the coordinator all they know."""
    rest: SiteAudit | None
    """The same of those who do not collude; None where nobody does."""
    sites: dict[str, HiddenSite]
    """Those who do not collude."""
    external: External | None

    @property
    def verdicts(self) -> list[str]:
        """One line for the sums, one for single sites, and one for the outside."""
        lines = [self.whole.verdict]
        if self.rest is not None:
            lines.append(self.rest.verdict)
        if any(site.masked is not None for site in self.sites.values()):
            lines.append(f"single sites: {self._singles()}")
        return lines if self.external is None else [*lines, self.external.verdict]

    def _singles(self) -> str:
        every = list(self.sites.values())
        masked, random = _range([s.masked for s in every]), _range([s.random for s in every])
        guess, others = [s.guess for s in every], [s.others for s in every if s.others is not None]
        said = f"guesses from masked replies are off by {masked}, from random numbers by {random}"
        said += f"; from the sums by {_range(guess)}"
        if others:
            said += f", from the other sites' matrices alone by {_range(others)}"
        if min(g for g in guess if g is not None) <= ALL:
            said += ": SEEN, " + ("for all others collude" if not others else "for sums differ by single sites")
        plain = [strongest[1].least for s in every if s.plain and (strongest := s.plain.strongest)]
        return f"{said}; without masks they would be off by {_range(plain)}" if plain else said

    def table(self) -> list[dict[str, Any]]:
        """Return a row for each site."""
        return [
            {
                "site": s.site, "masked": s.masked, "random": s.random, "guess": s.guess, "others": s.others,
                "plain": s.plain.strongest[1].least if s.plain and s.plain.strongest else None,
            }
            for s in self.sites.values()
        ]  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        external = None if self.external is None else {**asdict(self.external), "verdict": self.external.verdict}
        plain = {name: s.plain.to_dict() for name, s in self.sites.items() if s.plain is not None}
        return {
            "features": self.features, "secure": True, "members": self.members, "colluding": self.colluding,
            "whole": self.whole.to_dict(), "rest": None if self.rest is None else self.rest.to_dict(),
            "sites": {row.pop("site"): row for row in self.table()}, "without_masks": plain,
            "verdicts": self.verdicts, "external": external,
        }  # fmt: skip


def audit_sums(
    transcript: Transcript,
    truth: Mapping[str, Array] | None = None,
    result: Array | None = None,
    known: int | None = None,
    seed: int = 0,
    *,
    unmasked: Transcript | None = None,
    colluding: Sequence[str] = (),
    on_site: Callable[[str], None] | None = None,
) -> SumsAudit:
    """Attack a run of secure sums with what its coordinator saw, and colluding sites know.

    Parameters
    ----------
    transcript
        The run as the coordinator saw it.
    truth, result, known, seed
        As for `fedspan.privacy.audit.audit`.
    unmasked
        The same rounds answered without masks (`fedspan.privacy.audit.views.replayed`): attacked for comparison, and
        what colluding sites know their own replies from.
    colluding
        The sites that show the coordinator their replies.
    on_site
        Called with the name of what is attacked next.
    """
    members = members_of(transcript) if transcript.sums else []
    if not members:
        raise ConfigurationError("there is no secure sum in this transcript; audit it with audit")
    _check_colluding(colluding, members, unmasked)
    begin = on_site or (lambda name: None)
    features = count_features(sum_of(transcript, members))
    check(transcript.sites, features, truth, result)
    begin(f"all {len(members)} together")
    of_all = _Keeping(sum_of(transcript, members), SUM, summed=len(members) > 1)
    whole = audit_site(of_all, f"all {len(members)} together", _pooled(truth, members))
    seen, honest, of_rest, rest = transcript, members, of_all, None
    if colluding and unmasked is not None:
        seen = without(transcript, _only(unmasked, colluding))
        honest = [name for name in members if name not in colluding]
        label = f"the {len(honest)} honest together" if len(honest) > 1 else honest[0]
        begin(label)
        of_rest = _Keeping(sum_of(seen, honest), SUM, summed=len(honest) > 1)
        rest = audit_site(of_rest, label, _pooled(truth, honest))
    every = sorted({name for one in seen.sums for name in one.summed or ()})
    guesses = _Guesses(transcript, seen, of_rest, every, seed)
    sites = {}
    for name in every:
        begin(name)
        sites[name] = _hidden(name, guesses, truth, unmasked)
    external, pooled = None, _pooled(truth, members)
    if pooled is not None and result is not None:
        external = attack_from_outside(np.asarray(result, dtype=float), pooled, known, seed)
    return SumsAudit(features, members, whole, sorted(colluding), rest, sites, external)


def _check_colluding(colluding: Sequence[str], members: Sequence[str], unmasked: Transcript | None) -> None:
    for name in colluding:
        if name not in members:
            raise ConfigurationError(f"there is no site {name!r} in the sums to collude; {nearest(name, members)}")
    if len(set(colluding)) == len(members):
        raise ConfigurationError("all sites collude, so that nobody is left to attack; leave out one at least")
    if colluding and unmasked is None:
        raise ConfigurationError(
            "what colluding sites know are their own replies; give them with unmasked=replayed(transcript, sites)"
        )


def _only(unmasked: Transcript, names: Sequence[str]) -> Transcript:
    return Transcript(
        tuple(
            replace(seen, replies={name: reply for name, reply in seen.replies.items() if name in names})
            for seen in unmasked.rounds
        )
    )


def _pooled(truth: Mapping[str, Array] | None, names: Sequence[str]) -> Array | None:
    return None if truth is None else np.sum([np.asarray(truth[name], dtype=float) for name in names], axis=0)


class _Keeping(Attacks):
    """Attacks that keep each one's last guess."""

    def guesses(self) -> Iterator[Guess]:
        self.last: dict[str, Callable[[], Array]] = {}
        for guess in super().guesses():
            self.last[guess.attack] = guess.form
            yield guess


class _Guesses:
    """Guesses of single sites."""

    def __init__(
        self, transcript: Transcript, seen: Transcript, of_rest: _Keeping, sites: Sequence[str], seed: int
    ) -> None:
        self.transcript, self.sites = transcript, sites
        self._setup, self._seed = of_rest.setup, seed
        self._shares = [form() for form in of_rest.last.values()]
        self._joint = Joint(sums_of_products(seen, of_rest.setup))
        if self._joint.tells_apart:
            self._joint.solve()

    def from_sums(self, site: str) -> list[Array]:
        """Return each guess of the whole, as one of its parts, and what sums over different sites add."""
        return [*self._shares, self._joint.guess(site)] if self._joint.tells_apart else self._shares

    def from_masked(self, site: str, *, random: bool) -> list[Array]:
        """Return what is made of masked replies, taken for numbers; or of random numbers in their place."""
        rng = np.random.default_rng([self._seed, int.from_bytes(site.encode(), "little")]) if random else None
        products = Products.none(self._setup.features, _ROUNDING)
        for seen in masked_as_numbers(self.transcript, site, rng).rounds:
            for equation in read_equations(seen, seen.replies[site], Setup(self._setup.features)) or ():
                if equation.kind in ("product", "claimed"):
                    products = products.fold(equation.z, equation.value)
        return [products.clear().published(), products.clear().symmetric()]


def _hidden(name: str, guesses: _Guesses, truth: Mapping[str, Array] | None, unmasked: Transcript | None) -> HiddenSite:
    if truth is None:
        plain = None if unmasked is None else audit_site(Attacks(unmasked, name), name, None)
        return HiddenSite(name, None, None, None, None, plain)
    gram, others = np.asarray(truth[name], dtype=float), [other for other in guesses.sites if other != name]
    without_it = _pooled(truth, others) if others else None
    return HiddenSite(
        name,
        min(_at_best(guess, gram) for guess in guesses.from_masked(name, random=False)),
        min(_at_best(guess, gram) for guess in guesses.from_masked(name, random=True)),
        min(_at_best(guess, gram) for guess in guesses.from_sums(name)),
        None if without_it is None else _at_best(without_it, gram),
        None if unmasked is None else audit_site(Attacks(unmasked, name), name, gram),
    )


def _at_best(guess: Array, gram: Array) -> float:
    """Return the relative error of that multiple of a guess which is nearest to the truth."""
    size = float(np.vdot(guess, guess))
    times = float(np.vdot(guess, gram)) / size if size > 0 else 0.0
    return float(np.linalg.norm(times * guess - gram)) / (float(np.linalg.norm(gram)) or 1.0)


def _range(errors: Sequence[float | None]) -> str:
    found = [error for error in errors if error is not None]
    low, high = f"{min(found):.2g}", f"{max(found):.2g}"
    return low if low == high else f"{low} to {high}"
