"""FedPower (Guo, Li, Chang, Wang, Zhang 2021): Alg. 2 (full participation) and Alg. 3 (partial participation).

==================  ======================================================================
paper               here
==================  ======================================================================
p, I_T              ``local_steps``, ``sync`` (`schedule`): steps between synchronisations
D_t^(i) (3.2)       ``align``: "procrustes" (F = O_r), "sign" (3.16) or None (F = {I})
Z^(1), baseline     ``reference``: "global" aligns to the last broadcast Z at the site (sums only);
                    "baseline" as printed, to the site with most rows (a Gather of Z and Y)
S_t, schemes 1, 2   ``problem.cohort``: by-size-with-replacement, uniform
T                   ``iterations``; by default what the budget of ``rounds`` reaches
==================  ======================================================================

A round costs 8 d r bytes to each site, with 32 of settings and the name of the alignment, and 8 d r back (16 d r + 8
with ``reference="baseline"``); a last Ritz round gives the values (8 bytes more back where only some answer).
Sites send A_i'A_i Z, that is s_i times the paper's M_i Z, so the plain sum weighs by p_i as
lines 7 and (scheme 2) 10 do; in scheme 1 each drawn site counts once and divides by its own s_i. The noise of
lines 6 and 8 is the site's policy (`Site.noised`); that of lines 7 and 10 is the coordinator's. Left out: Alg. 3
line 15 averages over the last cohort again; here the last average draws a cohort of its own, by the same scheme.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from numbers import Integral
from typing import Any

import numpy as np

from fedspan.encoding import Array, Plain
from fedspan.errors import ConfigurationError
from fedspan.linalg import orth, procrustes, sign_fix
from fedspan.metrics import projection_distance
from fedspan.rounds import Gather, Reply, Round, Site, Solve, Sum, site_step
from fedspan.solvers.problem import Problem, Solution, ritz_round
from fedspan.solvers.settings import Iterative, settle, whole

ALIGN = {"procrustes": procrustes, "sign": sign_fix}


def local_sensitivity(message: Any, neighbours: Any, shapes: dict[str, tuple[int, ...]]) -> dict[str, float]:
    """After one step, that of G_i Z. After more, what leaves is any function of the rows: the bound it is clipped to.

    Where a product is divided by the site's private size, or its own Z and size leave too, nothing bounds it.
    """
    if message["gather"] or message["per_row"]:
        return {}
    one_step = neighbours.product(message["z"])  # refuses what is no matrix, whichever bound serves
    return {"product": one_step if not is_clipped(message) else neighbours.clipped()}


def is_clipped(message: dict[str, Plain]) -> bool:
    """Whether what leaves is more than one product with the Z that was sent, and so clipped under a policy."""
    return bool(message["steps"] != 1 or message["average"])


def local_bound(message: Any, total: float, weight: float) -> dict[str, float] | None:
    """Y is A_i'A_i times an orthonormal Z, or (one step) times the Z that was sent, turned."""
    if message["per_row"]:
        return None  # divided by the site's own rows, it does not add up
    if message["average"]:
        return {"value": weight}
    return {"value": total * (max(1.0, float(np.linalg.norm(message["z"]))))}


@site_step("fedpower.local_steps", sensitivity=local_sensitivity, bound=local_bound)
def local_steps(site: Site, message: dict[str, Plain]) -> Reply:
    """Alg. 2 lines 4-6, for the steps since the last synchronisation (Alg. 3 lines 4-8)."""
    z, steps = message["z"], whole("steps", message["steps"])
    if steps < 1:
        raise ConfigurationError(f"there is at least 1 local step, got {steps}")
    for _ in range(steps - 1):
        z = orth(site.data.gram_times(z))  # lines 4 and 10
    if message["average"]:  # line 12, T not in I_T: the last iterate itself, by its weight
        z = orth(site.data.gram_times(z))
        y = z * site.data.mass
    else:
        y = site.data.gram_times(z)  # line 4, t in I_T
    if message["per_row"]:
        y = y / site.data.mass  # scheme 1: the draw weighs by size already
    if message["gather"]:
        return Reply(site.noised(z, z=z, y=y, rows=np.array(float(site.data.mass))))
    if message["align"] is not None:
        y = y @ ALIGN[message["align"]](z, message["z"])  # line 6
    if is_clipped(message):
        y = site.clipped(y)
    return Reply(site.noised(z, product=y))


def to_baseline(answers: dict[str, Plain], align: str | None) -> Array:
    """Line 6 as printed: align every site to the one with most rows (among those that answered), then line 7."""
    baseline = max(answers.values(), key=lambda a: a["rows"])["z"]
    aligned = [a["y"] if align is None else a["y"] @ ALIGN[align](a["z"], baseline) for a in answers.values()]
    return np.asarray(sum(aligned))


def _sync(sync: Any) -> int | str | tuple[int, ...] | None:
    """Return a synchronisation set as integers, numpy's as Python's own; refuse what is none."""
    if sync is None or (isinstance(sync, str) and sync in ("decay", "halve")):
        return sync
    if isinstance(sync, Integral):
        return whole("sync", sync)
    if isinstance(sync, str) or not (isinstance(sync, Sequence) or (isinstance(sync, np.ndarray) and sync.ndim)):
        raise ConfigurationError(f"sync is a number, 'decay', 'halve' or a list of steps, got {sync!r}")
    steps = tuple(whole("a step of sync", step) for step in sync)
    if not steps or list(steps) != sorted(set(steps)) or steps[0] < 1:
        raise ConfigurationError(f"a list of synchronisation steps rises from at least 1, got {steps}")
    return steps


@dataclass(frozen=True, kw_only=True)
class FedPower(Iterative):
    """FedPower with local steps. Stops when the subspace changes by at most ``tol``, or after ``rounds``."""

    rounds: int = 100
    tol: float = 1e-6
    oversampling: int = 0
    local_steps: int = 4
    sync: int | str | Sequence[int] | None = None
    align: str | None = "procrustes"
    reference: str = "global"
    iterations: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds < 2:
            raise ConfigurationError(f"fedpower needs at least 2 rounds, the last for the values; got {self.rounds}")
        if self.align not in (None, *ALIGN):
            raise ConfigurationError(f"align is 'procrustes', 'sign' or None, got {self.align!r}")
        if self.reference not in ("global", "baseline"):
            raise ConfigurationError(f"reference is 'global' or 'baseline', got {self.reference!r}")
        settle(self, local_steps=whole("local_steps", self.local_steps), sync=_sync(self.sync))
        steps = self.sync if isinstance(self.sync, int) else self.local_steps
        if steps < 1:
            raise ConfigurationError(f"there is at least 1 local step between synchronisations, got {steps}")
        if self.iterations is not None:
            settle(self, iterations=whole("iterations", self.iterations, "an integer or None"))
            if self.iterations < 1:
                raise ConfigurationError(
                    f"iterations is at least 1, or None for what the rounds reach; got {self.iterations}"
                )

    def schedule(self) -> Iterator[int]:
        """Yield the local steps before each synchronisation: I_T as differences.

        >>> from itertools import islice
        >>> list(islice(FedPower(local_steps=3, sync="decay").schedule(), 5))
        [3, 2, 1, 1, 1]
        """
        p = self.local_steps
        if isinstance(self.sync, tuple):
            yield from (b - a for a, b in zip((0, *self.sync), self.sync, strict=False))
        for i in count() if not isinstance(self.sync, tuple) else ():
            if self.sync == "decay":
                yield max(p - i, 1)  # (3.15)
            elif self.sync == "halve":
                yield max(p >> i, 1)  # LocalPower (Li et al. 2020)
            else:
                yield self.sync if isinstance(self.sync, int) else p  # (3.1)

    @property
    def sums_only(self) -> bool:
        """Whether the coordinator needs no more than sums of the sites' replies."""
        return self.reference == "global" or self.align is None

    @property
    def takes_local_steps(self) -> bool:
        """Whether any release is of more than one step from the Z that was sent."""
        steps = islice(self.schedule(), self.rounds - 1)
        return self.iterations is not None or any(s != 1 for s in steps)

    def solve(self, problem: Problem) -> Solve[Solution]:
        """Alg. 2; Alg. 3 where the cohort is partial."""
        z, t, left = problem.start, 0, self.rounds - 1
        converged = False
        for steps in self.schedule():
            if left == 0 or converged or (self.iterations is not None and t + steps > self.iterations):
                break
            y = yield from self._synchronise(z, steps, problem, average=False)
            z, last, t, left = orth(y), z, t + steps, left - 1  # lines 8-10
            converged = self.tol > 0 and projection_distance(last, z) <= self.attainable(problem)
        if self.iterations is not None and t < self.iterations and left and not converged:
            z = orth((yield from self._synchronise(z, self.iterations - t, problem, average=True)))  # line 12
        return Solution((yield from ritz_round(z, problem)), converged if self.tol > 0 else None)

    def _synchronise(self, z: Array, steps: int, problem: Problem, *, average: bool) -> Solve[Array]:
        gather = self.reference == "baseline" and self.align is not None
        message: dict[str, Any] = {
            "z": z, "steps": steps, "average": average, "align": self.align, "gather": gather,
            "per_row": problem.cohort.sample == "by-size-with-replacement",
        }  # fmt: skip
        reduce = Gather() if gather else Sum()
        answers = yield Round(local_steps, message, reduce, problem.cohort, estimate=z)
        return to_baseline(answers, self.align) if gather else answers
