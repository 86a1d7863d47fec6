"""FAPS (Wang, Liu, Zhang 2022): consensus on subspaces by an ADMM-like method, Algorithm 1.

====================  ====================================================================
paper                 here
====================  ====================================================================
A_i A_i'              G_i = A_i'A_i (rows are samples here), only by ``site.data.gram_times``
n, p, d               d features, r = k + ``oversampling``, the number of sites
X_i, W_i, Lambda_i    `fedspan.solvers.faps_local.Local`: stay at the site
beta_i                ``penalty`` times ||A_i||_2^2 at first; then by ``adapt``
theta, mu (25)        ``growth``, ``slack``; (25) itself is ``adapt="growth"``
c_1, c_1', (13)       ``decrease``, ``curvature``
delta_i (14)          ``reduction``
epsilon_x (26)        ``change``; None takes inner steps until (13) and (14) hold
====================  ====================================================================

A round costs 8 d r bytes to each site, with 88 of settings (96 with ``change``) and the names of two, and 8 d r + 8
back: Y_i, and the scalar of rule (27). A last Ritz round, 8 d r each way, gives the values and checks the answer: where
(27) was met too early, its product serves as a power step, and the run goes on.

Beyond the paper: ``adapt="gap"``. A site that holds more outside the common subspace than inside (a small or unusual
one) makes the iteration unstable unless its own beta_i is large, which rule (25) finds out slowly; here the site
measures it, and all penalties grow when the captured variance of (27) falls. Left out: nothing. FAPS is not private by
itself: its first round already releases beta_i and (I - ZZ')G_i Z, see ``fedspan audit``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from fedspan.encoding import Array, Plain
from fedspan.errors import ConfigurationError, ConvergenceError, nearest
from fedspan.linalg import orth, ritz
from fedspan.rounds import Reply, Round, Site, Solve, Sum, site_step
from fedspan.solvers.faps_local import INNER, Local
from fedspan.solvers.problem import Problem, Solution, gram_round
from fedspan.solvers.settings import Iterative, finite, settle, whole

_WAY_OUT = "take a larger penalty, adapt='gap' with a larger margin, or another solver (krylov)"


@site_step("faps.consensus", lost="restart")
def consensus(site: Site, message: dict[str, Plain]) -> Reply:
    """Alg. 1, lines 5-7, and the site's term of (27)."""
    z, kept = message["z"], site.state.get("faps")

    def times(block: Array) -> Array:
        return site.data.gram_times(block) / message["unit"]  # type: ignore[no-any-return]

    if message["k"] == 0 or kept is None:
        local = Local.begin(times, z, message["penalty"])  # line 2
    else:
        local = Local(**kept)
        local.adapt(message, z)
    objective = local.advance(times, z, message)  # lines 5, 6
    product = local.masked_product(z)  # line 7
    return Reply(site.noised(product=product, objective=np.array(objective)), state={"faps": local.kept()})


@dataclass(frozen=True, kw_only=True)
class FAPS(Iterative):
    """FAPS. Stops when the captured variance changes by at most ``tol``, relatively (27), or after ``rounds``.

    >>> FAPS.published().change
    0.01
    """

    rounds: int = 200
    tol: float = 1e-10
    oversampling: int = 0
    penalty: float = 0.15
    adapt: str = "gap"
    margin: float = 2.2
    growth: float = 0.1
    slack: float = 0.01
    inner: str = "krylov"
    inner_steps: int = 20
    decrease: float = 1e-4
    curvature: float = 1.0
    reduction: float = 0.1
    change: float | None = None

    @classmethod
    def published(cls, **settings: Any) -> FAPS:
        """The paper's own choices (section 5.2): rules (25) and (26), 3000 rounds. It sets no limit on inner steps."""
        choices: dict[str, Any] = {
            "rounds": 3000, "adapt": "growth", "inner": "subspace", "inner_steps": 1000, "change": 1e-2,
        }  # fmt: skip
        return cls(**choices | settings)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds < 2:
            raise ConfigurationError(f"faps needs at least 2 rounds, the last for the values; got {self.rounds}")
        for name in ("penalty", "margin", "growth", "slack", "decrease", "curvature", "reduction"):
            settle(self, **{name: finite(name, getattr(self, name))})
        if self.penalty <= 0:
            raise ConfigurationError(
                f"penalty is what beta_i is to ||A_i||^2, more than 0 (the paper's 0.15); got {self.penalty}"
            )
        if self.margin <= 2:
            raise ConfigurationError(f"margin is more than 2, or small sites make FAPS unstable; got {self.margin}")
        if min(self.growth, self.slack, self.decrease, self.curvature) < 0 or not 0 < self.reduction < 1:
            raise ConfigurationError(
                f"growth, slack, decrease and curvature are not negative and reduction lies in (0, 1); "
                f"got {self.growth}, {self.slack}, {self.decrease}, {self.curvature} and {self.reduction}"
            )
        for name, known in (("adapt", ("gap", "growth")), ("inner", tuple(INNER))):
            if getattr(self, name) not in known:
                given = getattr(self, name)
                raise ConfigurationError(f"{name} is {given!r}; {nearest(str(given), known)}")
        settle(self, inner_steps=whole("inner_steps", self.inner_steps))
        if self.inner_steps < 1:
            raise ConfigurationError(f"inner_steps is at least 1, got {self.inner_steps}")
        if self.change is not None:
            settle(self, change=finite("change", self.change))
            if self.change <= 0 or self.inner != "subspace":
                raise ConfigurationError(
                    f"change is rule (26) for inner='subspace', more than 0; got {self.change} with {self.inner!r}"
                )

    @property
    def partial(self) -> bool:
        """Each site's multiplier answers to all the others."""
        return False

    @property
    def releases(self) -> int | None:
        """X_i answers to all the site's rows in no bounded way: there is no sensitivity to declare."""
        return None

    def attainable(self, problem: Problem) -> float:
        """Return the tolerance, raised to what can be met: in the sum of (27), rounding partly averages out."""
        return max(self.tol, problem.precision / 8) if self.tol > 0 else 0.0

    def solve(self, problem: Problem) -> Solve[Solution]:
        """Alg. 1. Where (27) is met, a Ritz round looks whether Z is an answer; if not, its product is a power step."""
        rule = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("rounds", "tol", "oversampling")}
        unit = 2.0 ** np.frexp(problem.total)[1]  # sites divide G by about its trace, so that squares exist
        z, left, fell, tol = problem.start, self.rounds, False, self.attainable(problem)
        seen: list[float] = []
        while left > 1:
            message = {"z": z, "k": len(seen), "fell": fell, "unit": unit, **rule}
            answers = yield Round(consensus, message, Sum(), problem.cohort, estimate=z)
            seen.append(float(answers["objective"]))
            check_finite(answers["product"], seen)
            z, left = orth(answers["product"]), left - 1  # line 9
            fell = len(seen) > 1 and seen[-1] < (1 - 16 * problem.precision) * seen[-2]  # beyond rounding
            if len(seen) > 1 and tol > 0 and abs(seen[-1] - seen[-2]) <= tol * abs(seen[-1]):  # (27)
                product, left = (yield from gram_round(z, problem)), left - 1
                settled = worst_residual(z, product / unit, problem) <= 100 * np.sqrt(tol)
                if settled or left == 0:
                    check_captured(z, product / unit, seen)
                    return Solution(ritz(z, product), bool(settled))
                z = orth(product)
        product = yield from gram_round(z, problem)
        check_captured(z, product / unit, seen)
        return Solution(ritz(z, product), False if tol > 0 else None)


def check_finite(product: Array, seen: list[float]) -> None:
    """Refuse to go on from numbers that are none."""
    if not (np.isfinite(product).all() and np.isfinite(seen[-1])):
        raise ConvergenceError(f"faps diverged: round {len(seen)} holds numbers that are not finite; {_WAY_OUT}")


def check_captured(z: Array, product: Array, seen: list[float]) -> None:
    """Refuse a basis that fell far behind one seen before."""
    now, most = float(np.sum(z * product)), max(seen)
    if now < most - 0.1 * abs(most):
        raise ConvergenceError(
            f"faps diverged: its basis captures {now / most:.0%} of what it did in round {1 + int(np.argmax(seen))}; "
            + _WAY_OUT
        )


def worst_residual(z: Array, product: Array, problem: Problem) -> float:
    """Return the largest residual of the k leading Ritz vectors, each against its own value.

    (27) looks at the captured variance alone: it also holds where sites stand still (penalties too large), and where
    one direction dwarfs all that is left to find (rows that were not centred).
    """
    values, turn = np.linalg.eigh(z.T @ product)
    values, turn = values[::-1][: problem.k], turn[:, ::-1][:, : problem.k]
    residuals = np.linalg.norm((product - z @ (z.T @ product)) @ turn, axis=0)
    least = 4096 * problem.precision * values[0]  # below it a value is rounding, and its vector anything
    return float(np.max(residuals / np.maximum(values, least))) if values[0] > 0 else 0.0
