"""The attacks on one site: they read its releases in order and, after each, guess its Gram matrix.

Nothing here sees data, or the truth: `fedspan.privacy.audit.scoring` alone compares guesses with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from fedspan.encoding import Array
from fedspan.privacy.audit.counting import count_learnt, lacks_nothing
from fedspan.privacy.audit.equations import Equation, read_equations, read_setup
from fedspan.privacy.audit.informed import informed_guess
from fedspan.privacy.audit.products import Products
from fedspan.privacy.audit.simulate import FEATURES, fit_by_simulation
from fedspan.privacy.transcript import Transcript

PUBLISHED = "least squares, as published"
SYMMETRIC = "least squares, symmetric"
NYSTROEM = "least squares, Nyström"
INFORMED = "informed"
SIMULATION = "simulation"
ATTACKS = (PUBLISHED, SYMMETRIC, NYSTROEM, INFORMED, SIMULATION)
"""A curious coordinator takes every release for G Z (Prop. 2); an informed one knows what the solver says it is; a
simulating one runs the site's own code on its guess (small matrices only, and only where releases are masked)."""

OWN, WHOLE = "A_i'A_i", "A'A"
"""How a site's matrix is written, and the sum of several."""
_ROUNDING = 8.0  # what a product loses, in rounding units of the site's numbers
_LEARNT = 1e-6  # an image known to this share of G counts as learnt
_ALL_ROUNDS, _WIDER = 8, 1.25  # so many rounds of FAPS are attacked one by one, later ones at ever wider steps
_NEAR = 1e-3  # below this deviation, FAPS showed its blocks to 1 % (median) and 4 % (at most) on digits


class Guess(NamedTuple):
    """A guess of G after a round; ``form`` computes it, where anyone wants it."""

    round: int
    attack: str
    form: Callable[[], Array]


class Attacks:
    """Everything a coordinator can make of one site's releases.

    ``summed``: they are sums of several sites' replies, which say of the sum of their matrices what a reply says of
    one, but for what is no linear function of it: no site's own code made them.
    """

    def __init__(self, transcript: Transcript, site: str, *, summed: bool = False) -> None:
        self._summed = summed
        self.matrix = WHOLE if summed else OWN
        """How the attacked matrix is written."""
        self._releases = [(seen, reply) for seen, reply in transcript.releases(site) if not seen.setup]
        self._set_up = max((seen.round for seen, _ in transcript.releases(site) if seen.setup), default=-1)
        self.setup = read_setup(transcript, site)
        self._forget()

    def _forget(self) -> None:
        self.claimed = Products.none(self.setup.features, _ROUNDING * self.setup.rounding)
        """What every release says when it is taken for G Z."""
        self.products = self.claimed
        """What those say that are G Z, or nearly."""
        self.near = 0
        """How many of them are only nearly so."""
        self.others: list[Equation] = []
        self.unread: list[str] = []
        """Steps whose releases no attack here knows how to read."""

    def guesses(self) -> Iterator[Guess]:
        """Read the releases in order; after set-up and after each, yield what every attack makes of all so far."""
        self._forget()
        last, due = len(self._releases) - 1, 0.0
        if self.setup.trace is not None:
            yield Guess(self._set_up, INFORMED, partial(informed_guess, self.setup, self.products, []))
        for at, (seen, reply) in enumerate(self._releases):
            equations = read_equations(seen, reply, self.setup)
            if equations is None:
                self.unread.append(seen.step)
                continue
            for equation in equations:
                self._take(equation)
            claimed, products = self.claimed.clear(), self.products.clear()
            yield Guess(seen.round, PUBLISHED, claimed.published)
            yield Guess(seen.round, SYMMETRIC, claimed.symmetric)
            yield Guess(seen.round, NYSTROEM, claimed.told_anew().nystroem)
            if self.others and at < due and at < last:  # a look at many equations takes a while
                continue
            due = at + 1 if at < _ALL_ROUNDS else _WIDER * at
            others = [e for e in self.others if e.deviation < 1]
            yield Guess(seen.round, INFORMED, partial(informed_guess, self.setup, products, others))
        if self.simulates and self.setup.features <= FEATURES:
            yield Guess(self._releases[-1][0].round, SIMULATION, self._simulate)

    @property
    def masked(self) -> bool:
        """Whether some release was a function of G that is not linear, so that only a simulation uses all of it."""
        return self.claimed is not self.products

    @property
    def simulates(self) -> bool:
        """Whether a simulation would use more than the other attacks do."""
        return self.masked and not self._summed

    def _simulate(self) -> Array:
        others = [e for e in self.others if e.deviation < 1]
        start = informed_guess(self.setup, self.products.clear(), others)
        return fit_by_simulation(self._releases, self.setup.mass or 1.0, start)

    def _take(self, equation: Equation) -> None:
        match equation.kind:
            case "product":
                same = self.claimed is self.products
                self.claimed = self.claimed.fold(equation.z, equation.value)
                self.products = self.claimed if same else self.products.fold(equation.z, equation.value)
            case "claimed":
                self.claimed = self.claimed.fold(equation.z, equation.value)
            case "near" if self._summed:
                pass  # one site's subspace; a sum of such releases has none
            case "near":
                self.products = self.products.fold(equation.z, equation.value, equation.deviation)
                self.near += 1
            case _:
                self.others.append(equation)

    # ---- what was learnt to rounding, after the last guess -----------------------------------------------------

    def count_learnt(self) -> int:
        """Return how many numbers of G are learnt exactly: `fedspan.privacy.audit.counting`."""
        return count_learnt(self.setup, self._exact_products(), self.others)

    def _exact_products(self) -> Products:
        return self.products.exact(max(_LEARNT, 30 * self.products.rounding))

    @property
    def norm(self) -> float | None:
        """FAPS: ||A_i||_2^2 as the first beta_i tells it."""
        return next((e.norm for e in self.others if e.norm is not None and e.exact), None)

    def learnt(self) -> list[str]:
        """Return in words what is learnt exactly."""
        products, setup = self._exact_products(), self.setup
        crosses = [e for e in self.others if e.kind == "cross"]
        eigenvectors = sum(e.z.shape[1] for e in crosses if e.beta is None)
        cores = sum(e.kind == "core" and not np.isnan(e.value).any() for e in self.others)
        inner = sum(e.kind == "inner" for e in self.others)
        said = [
            (products.basis.shape[1], "A_i'A_i Z for {} directions Z"),
            (lacks_nothing(setup, products), "that the trace has nothing left over, and so all the rest"),
            (setup.diagonal is not None, "the diagonal"),
            (setup.trace is not None and setup.diagonal is None, "the trace"),
            (eigenvectors, "that {} vectors are its leading eigenvectors"),
            (cores, "w'A_i'A_i w for {} blocks w"),
            (sum(e.exact for e in crosses if e.beta is not None), "(I - ZZ')A_i'A_i Z for {} of the bases Z"),
            (inner, "tr(Z'A_i'A_i Z) for {} bases Z"),
        ]
        return [words.format(f"{int(count):,}").replace(OWN, self.matrix) for count, words in said if count]

    def besides(self) -> list[str]:
        """Return in words what is learnt besides numbers of G, or only nearly."""
        blocks = [e for e in self.others if e.kind == "cross" and e.beta is not None and not e.exact]
        near = sum(e.deviation < _NEAR for e in blocks)
        penalty = "the sum of all beta_i, and from the first one that of all ||A_i||^2"
        said = [
            (self.near, f"its own leading subspace, nearly, from each of {self.near:,} releases"),
            (near, f"(I - ZZ')A_i'A_i Z, nearly, for {near:,} more"),
            (self.norm is not None, penalty if self._summed else "beta_i, and from the first one ||A_i||^2"),
            (
                self.setup.sums is not None,
                "their rows and column means" if self._summed else "its rows and column means",
            ),
        ]
        return [words.replace(OWN, self.matrix) for count, words in said if count]
