"""The papers' own noise, in fedspan's units: sums over rows (G = A'A), not averages.

A solver's release is charged an equal part of its budget; what the paper's formula really proves is in its docstring
(`fedspan.privacy.published`) and in the run's guarantee, which is labelled "as published".
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fedspan.encoding import Array, Plain
from fedspan.errors import ConfigurationError, PolicyError
from fedspan.privacy import published
from fedspan.privacy.accountant import epsilon_of
from fedspan.privacy.gaussian import GaussianPrivacy
from fedspan.privacy.mechanisms import Scale, fixed_scale
from fedspan.rounds import Round

if TYPE_CHECKING:
    from fedspan.privacy.releases import Releases

COVERS = {
    "ppm": ("gram.",), "hardt-price": ("gram.",), "fedpower": ("gram.", "fedpower."), "analyze-gauss": ("covariance.",),
    "mod-sulq": ("covariance.",), "streaming-mod-sulq": ("mod_sulq.",),
}  # fmt: skip


class PublishedNoise:
    """Deviations by a paper's formula."""

    def __init__(self, privacy: GaussianPrivacy) -> None:
        self._privacy = privacy
        self.chosen = ""
        """The formula that the study's solver goes with."""
        self.sizes: tuple[int, ...] = ()
        """Rows of each site, which FedPower and MOD-SuLQ take as public."""
        self.drawn: tuple[int, int] | None = None
        """FedPower's Alg. 3: how many take part in a round, and the scheme."""

    def accept(self, terms: dict[str, Plain]) -> None:
        """Take the formula and the public sizes from the study's terms; refuse a formula other than this site's own."""
        chosen = str(terms.get("formula"))
        if self._privacy.formula not in (None, chosen):
            raise PolicyError(f"this site agreed to the formula {self._privacy.formula!r}, not to {chosen!r}")
        self.chosen = chosen
        self.sizes = tuple(max(int(rows), 1) for rows in terms.get("sizes", ()))
        drawn = terms.get("drawn")
        self.drawn = None if drawn is None else (int(drawn[0]), int(drawn[1]))

    def formula(self, step: str) -> str:
        """Return the formula for a step's release; refuse one that is not of its kind."""
        if not step.startswith(COVERS.get(self.chosen, "?")):
            raise PolicyError(f"the published formula {self.chosen!r} does not cover step {step}; take another solver")
        return self.chosen

    def scale(
        self, question: Round, releases: Releases, part: str, shape: tuple[int, ...], about: Array | None, rows: float
    ) -> tuple[Scale, Array | float]:
        """Return a part's deviation, and a pattern to multiply it with."""
        chosen = self.formula(question.step.name)
        epsilon, delta = self._budget(releases), self._privacy.delta
        planned, d = releases.planned or 1, shape[0] if shape else 1
        if part == "rows":
            if not self._privacy.rows_known:
                raise PolicyError("published formulas take the numbers of rows as public; state n_public = true")
            return fixed_scale(0.0), 1.0
        match chosen:
            case "ppm" | "hardt-price":
                z = _matrix(question.message)
                change = releases.neighbours.product(z) if chosen == "ppm" else self._old(z)
                return fixed_scale(change * published.ppm_sigma(epsilon, delta, planned), releases.sites), 1.0
            case "fedpower":
                z = _matrix(question.message) if about is None else about
                weight = 1.0 if _is_per_row(question.message) else rows  # of the paper's p_i Y_i, times n
                sigma = self._fedpower(epsilon, planned, own=rows)[0]
                return fixed_scale(weight * float(np.abs(z).max()) * sigma), 1.0
            case "analyze-gauss":
                side = published.analyze_gauss_sigma(epsilon, delta, releases.neighbours.gram())
                return fixed_scale(side, releases.sites), _off_diagonal(shape[0])
            case "mod-sulq":
                d, n = _triangle_side(shape[0]), self._n()
                beta = n * published.mod_sulq_beta(epsilon, delta, d, n) * self._change(releases)
                return fixed_scale(beta, releases.sites), _off_diagonal(shape[0])
        omega = published.streaming_mod_sulq_omega(epsilon, delta, d, 1)  # of sums: n omega(n), the same for every n
        return fixed_scale(omega * self._change(releases)), 1.0

    def _change(self, releases: Releases) -> float:
        """Return what to multiply MOD-SuLQ's formulas with: they are for one row, and that of norm 1."""
        return self._privacy.rows_per_person * releases.neighbours.bound**2

    def at_coordinator(self, question: Round, releases: Releases) -> float:
        """Return the deviation of the coordinator's own noise on a sum (FedPower, Alg. 2 line 7, Alg. 3 line 10).

        It scales by ||Z||_max of the Z that was sent: the sites' own Z^(i) do not leave them (the same for p = 1).
        """
        if self.formula(question.step.name) != "fedpower":
            return 0.0
        z = _matrix(question.message)
        server = self._fedpower(self._budget(releases), releases.planned or 1)[1]
        if self.drawn is None:
            weight = float(sum(self.sizes))
        else:
            count, scheme = self.drawn
            weight = float(count) if scheme == 1 else sum(self.sizes) * count / len(self.sizes)
        return weight * float(np.abs(z).max()) * server

    def _fedpower(self, epsilon: float, communications: int, own: float = math.inf) -> tuple[float, float]:
        """Return sigma and sigma' (sigma''). A site counts itself among the sizes it is told, so it adds enough."""
        if not self.sizes:
            raise ConfigurationError("FedPower's formula takes the sites' sizes as public; set n_public=True")
        if self.drawn is None and own < min(self.sizes):
            return published.fedpower_sigma(epsilon, self._privacy.delta, communications, max(round(own), 1)), 0.0
        smallest, share, delta = min(self.sizes), max(self.sizes) / sum(self.sizes), self._privacy.delta
        if self._privacy.split is not None:
            if self.drawn is not None:  # as sigma' and sigma'' of Alg. 3 are to sigma' of Alg. 2
                share = (1.0 if self.drawn[1] == 1 else share) / self.drawn[0]
            return published.fedpower_split(*self._privacy.split, delta, smallest, share)
        if self.drawn is not None:
            count, scheme = self.drawn
            return published.fedpower_sigma_partial(epsilon, delta, communications, self.sizes, count, scheme)
        site = published.fedpower_sigma(epsilon, delta, communications, smallest)
        return site, published.fedpower_sigma_server(epsilon, delta, communications, smallest, share)

    def _budget(self, releases: Releases) -> float:
        """Return the epsilon that set-up releases left."""
        left = releases.cost_of_solver()
        return (
            self._privacy.epsilon
            if math.isclose(left, releases.limit)
            else epsilon_of(math.sqrt(left), self._privacy.delta)
        )

    def _old(self, z: Array) -> float:
        return self._privacy.entry_change * published.delta_max(z)

    def _n(self) -> int:
        if not self.sizes:
            raise ConfigurationError("MOD-SuLQ's formula takes the number of rows as public; set n_public=True")
        return sum(self.sizes)


def _matrix(message: Any) -> Array:
    z: Array = message["z"] if isinstance(message, dict) else message
    return z


def _is_per_row(message: Any) -> bool:
    return isinstance(message, dict) and bool(message.get("per_row"))


def _triangle_side(size: int) -> int:
    return (math.isqrt(8 * size + 1) - 1) // 2


def _off_diagonal(size: int) -> Array:
    """Equal noise on all entries of a matrix, in the coordinates (diagonal, sqrt(2) x upper triangle)."""
    i, j = np.triu_indices(_triangle_side(size))
    return np.where(i == j, 1.0, math.sqrt(2.0))
