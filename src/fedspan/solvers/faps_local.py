"""FAPS at one site: what it keeps between rounds, and the local problem (11), solved inexactly.

(11) asks for the leading eigenspace of H = G + Lambda + beta P_Z, where G = A_i'A_i and Lambda = X W' + W X' (15).
H is never formed: a product with it is one product with G and a few thin ones. An **inner solver** is a generator
that yields one better `Iterate` for each product with G; when to stop is not its business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedspan.encoding import Array, Plain
from fedspan.linalg import orth, orth_against, spectral_norm


class Iterate(NamedTuple):
    """An orthonormal x with its products: G x and H x."""

    x: Array
    gx: Array
    hx: Array

    @property
    def value(self) -> float:
        """The objective h(x) of (11), to be made small."""
        return -0.5 * float(np.sum(self.x * self.hx))

    @property
    def violation(self) -> float:
        """How far x is from stationary: ||P_x^perp H x||_F."""
        return float(np.linalg.norm(outside(self.x, self.hx)))


def outside(x: Array, block: Array) -> Array:
    """P_x^perp times a block."""
    return block - x @ (x.T @ block)  # type: ignore[no-any-return]


# ---- inner solvers ---------------------------------------------------------------------------------------------

Times = Callable[[Array], Array]
"""The product with G."""
Multiply = Callable[[Array], Iterate]
"""The products with G and H."""
Inner = Callable[[Multiply, Iterate], Iterator[Iterate]]


def subspace_steps(multiply: Multiply, at: Iterate) -> Iterator[Iterate]:
    """Subspace iteration on H, the paper's choice (section 5.2)."""
    while True:
        at = multiply(orth(at.hx))
        yield at


def krylov_steps(multiply: Multiply, at: Iterate) -> Iterator[Iterate]:
    """Block Krylov on H: Ritz vectors over all blocks of this round. Ends where nothing can be added."""
    rank, space = at.x.shape[1], at
    while True:
        block, _ = orth_against(at.hx, space.x)
        if block.shape[1] == 0:
            return
        space = Iterate(*(np.hstack(pair) for pair in zip(space, multiply(block), strict=True)))
        projected = space.x.T @ space.hx
        vectors = np.linalg.eigh((projected + projected.T) / 2)[1][:, : -rank - 1 : -1]
        at = Iterate(*(part @ vectors for part in space))
        yield at


INNER: dict[str, Inner] = {"subspace": subspace_steps, "krylov": krylov_steps}
"""Ways to solve (11), by the name that travels."""


# ---- problem (11) ----------------------------------------------------------------------------------------------


class Subproblem:
    """(11) in one round, by products only. What else needs a product with G rides along in the same pass."""

    def __init__(self, times: Times, local: Local, z: Array) -> None:
        self.times, self.z = times, z
        self.x, self.penalty, self.guard, self.beyond = local.x, local.penalty, local.guard, local.beyond
        inside = self.x @ local.curvature  # Lambda X = W: the warm start's products cost nothing
        self.first = Iterate(self.x, inside - local.w, inside + self.penalty * (z @ (z.T @ self.x)))
        self.factors = np.hstack([self.x, local.w, z])
        self.objective: float | None = None
        """tr(Z'G Z), for rule (27)."""

    def shift(self, block: Array) -> Array:
        """Return (H - G) times a block: X W' + W X' (15) + beta Z Z' (12), in two thin products."""
        by_x, by_w, by_z = np.split(self.factors.T @ block, 3)
        shifted: Array = self.factors @ np.vstack([by_w, by_x, self.penalty * by_z])
        return shifted

    def multiply(self, block: Array) -> Iterate:
        """Return G and H times an orthonormal block."""
        r = block.shape[1]
        if self.objective is None:
            products = self._with_objective(block)
        else:
            products = self.times(np.hstack([block, self.guard]))
        self._follow(products[:, r : r + 1])
        gx = products[:, :r]
        return Iterate(block, gx, gx + self.shift(block))

    def _with_objective(self, block: Array) -> Array:
        """Return G [block, guard], and find tr(Z'G Z) with Z = X (X'Z) + block C + rest.

        For the first block of Krylov steps there is no rest, so that Z takes no product of its own.
        """
        r, inside = block.shape[1], self.x.T @ self.z
        rest = self.z - self.x @ inside
        across = block.T @ rest
        rest -= block @ across
        rides = float(np.linalg.norm(rest)) > 1e-12
        products = self.times(np.hstack([block, self.guard, rest] if rides else [block, self.guard]))
        gz = self.first.gx @ inside + products[:, :r] @ across
        if rides:
            gz += products[:, r + 1 :]
        self.objective = float(np.sum(self.z * gz))
        return products

    def _follow(self, g_guard: Array) -> None:
        """One power step of the guard outside Z."""
        self.beyond = float(np.sum(self.guard * g_guard))
        ahead = outside(self.z, g_guard)
        size = float(np.linalg.norm(ahead))
        if size > 0:
            self.guard = ahead / size


class Sufficient:
    """Conditions (13), a sufficient decrease, and (14), a sufficient reduction of the violation, for one round."""

    def __init__(self, rule: dict[str, Plain], first: Iterate, norm: float, penalty: float) -> None:
        violation = first.violation
        rounding = 8 * float(np.finfo(np.float64).eps) * np.sqrt(first.x.size) * (norm + penalty)
        self.settled = violation <= rounding
        """Whether there is nothing to reduce: in the first round X_i = Z, and the violation is zero."""
        decrease = 0.0 if self.settled else rule["decrease"] / (rule["curvature"] * norm + penalty) * violation**2
        self.value = first.value - decrease
        self.violation = rule["reduction"] * violation + rounding

    def hold(self, at: Iterate) -> bool:
        """Whether both hold at an iterate."""
        return self.settled or (at.value <= self.value and at.violation <= self.violation)


def solve_inexactly(problem: Subproblem, rule: dict[str, Plain], norm: float) -> tuple[Iterate, int, bool]:
    """Alg. 1, line 5: take inner steps until (13) and (14) hold, or with ``change`` until (26).

    Return the iterate, the steps taken, and whether the rule was met within ``inner_steps``.
    """
    inner = INNER[rule["inner"]](problem.multiply, problem.first)
    sufficient = Sufficient(rule, problem.first, norm, problem.penalty)
    at = problem.first
    for taken in range(rule["inner_steps"]):
        if rule["change"] is None and sufficient.hold(at):
            return at, taken, True
        before, at = at, next(inner, at)
        if at is before:  # Krylov has nothing to add: the space is invariant, and at exact in it
            return at, taken, True
        if rule["change"] is not None and np.linalg.norm(at.x - before.x) <= rule["change"] * np.linalg.norm(at.x):
            return at, taken + 1, True
    return at, rule["inner_steps"], rule["change"] is None and sufficient.hold(at)


# ---- a site's state --------------------------------------------------------------------------------------------


@dataclass
class Local:
    """What a site keeps between rounds. It never leaves the site."""

    x: Array
    """X_i."""
    w: Array
    """W_i = -P_X^perp G X (16)."""
    curvature: Array
    """X'G X, r x r: with it G X = X (X'G X) - W takes no product."""
    guard: Array
    """A unit vector that follows the leading one of P_Z^perp G P_Z^perp."""
    beyond: float
    """Its Rayleigh quotient: about the most that G holds outside Z."""
    norm: float
    """||A_i||_2^2."""
    penalty: float
    """beta_i."""
    base: float
    """beta_i by rule (25)."""
    distance: float = 0.0
    """d_i (21), the projection distance of X_i to Z, when rule (25) last looked."""
    steps: int = 0
    """Inner steps so far."""
    unmet: int = 0
    """Rounds in which the inner steps ran out before their rule was met."""

    @classmethod
    def begin(cls, times: Times, z: Array, penalty: float) -> Local:
        """Alg. 1, line 2: X_i = Z. Also for a site that lost its state."""
        gz = times(z)
        rest = outside(z, gz)
        guard, leading = (np.linalg.svd(block, full_matrices=False)[0][:, :1] for block in (rest, gz))
        norm = spectral_norm(times, leading)
        return cls(z, -rest, z.T @ gz, guard, 0.0, norm, penalty * norm, penalty * norm)

    def kept(self) -> dict[str, Plain]:
        """Return the state as plain data; ``Local(**kept)`` takes it up again."""
        return dict(vars(self))

    def adapt(self, rule: dict[str, Plain], z: Array) -> None:
        """Set beta_i before a round: by rule (25), or with ``adapt="gap"`` to what the site's own gap asks for.

        Near consensus, a direction in which the site holds s more outside Z than inside is multiplied by
        s / (beta - s) each round: it grows unless beta > 2 s. The guard knows the largest such s. Sites that differ
        can be unstable together all the same; then the variance that (27) adds up falls, which a sound run does
        hardly ever, and all of them grow.
        """
        grows = rule["fell"]
        if rule["adapt"] == "growth":
            grows = rule["k"] > 0 and rule["k"] % 5 == 0 and self._stays_apart(z, rule["slack"])
        if grows:
            self.base *= 1 + rule["growth"]
        gap = self.beyond - float(np.linalg.eigvalsh(self.curvature)[0])
        self.penalty = max(self.base, rule["margin"] * gap) if rule["adapt"] == "gap" else self.base

    def _stays_apart(self, z: Array, slack: float) -> bool:
        """Rule (25): the distance to Z (21) has not become smaller since it was last looked at."""
        before, self.distance = self.distance, float(np.sqrt(2.0) * np.linalg.norm(outside(self.x, z)))
        return before <= (1 + slack) * self.distance

    def advance(self, times: Times, z: Array, rule: dict[str, Plain]) -> float:
        """Alg. 1, lines 5 and 6: move X_i and W_i. Return tr(Z'G Z)."""
        problem = Subproblem(times, self, z)
        at, taken, met = solve_inexactly(problem, rule, self.norm)
        if problem.objective is None and np.linalg.norm(outside(self.x, z)) > 1e-8:
            # No step was due although X is not Z: a direction of Z is orthogonal to all of X, and (11) stationary
            # there. That happens where the pooled rows have fewer directions than Z; begin again from Z.
            gz = times(z)
            at, problem.objective = Iterate(z, gz, gz), float(np.sum(z * gz))
        self.x, self.w, self.curvature = at.x, -outside(at.x, at.gx), at.x.T @ at.gx  # (16)
        self.norm = max(self.norm, float(np.linalg.eigvalsh(self.curvature)[-1]))
        self.guard, self.beyond = problem.guard, problem.beyond
        self.steps, self.unmet = self.steps + taken, self.unmet + (not met)
        # no product was made only where X spans what Z spans
        return float(np.trace(self.curvature)) if problem.objective is None else problem.objective

    def masked_product(self, z: Array) -> Array:
        """Return Q_i Z (19), with Q_i = beta_i P_X - Lambda (18)."""
        across = self.x.T @ z
        product: Array = self.penalty * (self.x @ across) - self.x @ (self.w.T @ z) - self.w @ across
        return product
