"""FedRep (Collins et al. 2021), the alternating scheme of Tziotis et al. (2023): Alg. 1's lines 8-14, Alg. 2's 8-15.

================  ==============================================================================================
paper             here
================  ==============================================================================================
phi, B            ``shared``: a network's body in one flat vector; linear: a d x k basis
h_i, w_i          ``own``: the head, in site i's memory
tau_h, tau_phi    ``head_epochs`` over the rows, then ``epochs`` (linear: the exact head, then, with ``batch`` 0, one
                  gradient step: Alg. 2)
eta, momentum     ``rate``, ``momentum``
batch, m          ``batch`` rows a step (0: all); ``fresh`` rows a round, None: all rows in every round
sigma_min(W)      ``heads``: also ask for the heads' second moments (k x k), which tell the contraction
================  ==============================================================================================

Without ``fresh`` the rows are reused in every round, which Theorem 4.7 does not cover; with it, each row is read once
until a site has too few left, then from the first again. A round costs the shared parameters to and from each site that
answers (and three numbers up: weight, loss, whether it diverged). Left out: nothing. A site's weight is 1, as in the
paper, or its rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedspan.encoding import Array
from fedspan.errors import ConfigurationError
from fedspan.learners.rows import Descent
from fedspan.learners.settings import Descending
from fedspan.learners.site import average, contribution, learning_step, model_at, own_at, rows_at
from fedspan.learners.task import Learned, Task, stalled
from fedspan.rounds import Reply, Site, Solve
from fedspan.solvers.settings import settle, whole


@learning_step("fedrep.update")
def update(site: Site, message: dict[str, Any]) -> Reply:
    """Fit the head to the representation as received, then the representation to the head. The head stays."""
    model, rows = model_at(site), rows_at(site, message["fresh"])
    shared, own = message["shared"], own_at(site)
    head = model.fit(shared, own, rows, Descent(*message["head"]), site.rng, "own")  # Alg. 1, line 8; Alg. 2, line 10
    body = model.fit(shared, head.own, rows, Descent(*message["body"]), site.rng, "shared")  # lines 9; 11
    more = {"heads": second_moment(head.own, shared.shape[1])} if message["heads"] else {}
    return contribution(site, body, message["shared"], weight=len(rows.y) if message["by_rows"] else 1.0, **more)


def second_moment(own: Array, components: int) -> Array:
    """Return W W' of a linear head W (k x outputs)."""
    head = own.reshape(components, -1)
    return head @ head.T


@dataclass(frozen=True, kw_only=True)
class FedRep(Descending):
    """FedRep: a shared body, a head of each site's own. Stops where the loss ``stall``s, or after ``rounds``.

    >>> FedRep(rounds=20).own
    'head'
    """

    head_epochs: int = 5
    fresh: int | None = None
    heads: bool = False
    own: str = field(default="head", init=False)
    head_layers: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        settle(self, head_epochs=whole("head_epochs", self.head_epochs))
        if self.fresh is not None:
            settle(self, fresh=whole("fresh", self.fresh, "a number of rows for each round, or None for all"))
        if self.head_epochs < 1 or (self.fresh is not None and self.fresh < 1):
            raise ConfigurationError(
                f"head_epochs and fresh rows are at least 1, got {self.head_epochs} and {self.fresh}"
            )
        if not isinstance(self.heads, bool):
            raise ConfigurationError(f"heads is true or false, got {self.heads!r}")

    def solve(self, task: Task) -> Solve[Learned]:
        """Alg. 1 with one stage (lines 5-15)."""
        if self.heads and task.start.ndim != 2:
            raise ConfigurationError(
                "heads=True asks for the second moments of linear heads, which tell the contraction; a network's head "
                "has none: leave heads out"
            )
        shared, losses, diverged, contraction = task.start, [], 0, None
        message = {
            "head": list(self.descent._replace(epochs=self.head_epochs)), "body": list(self.descent),
            "fresh": self.fresh, "heads": self.heads, "by_rows": self.by_rows,
        }  # fmt: skip
        for _ in range(self.rounds):
            means = yield from average(update, {**message, "shared": shared}, task)  # line 14
            shared = means["shared"]
            losses.append(float(means["loss"]))
            diverged += means["diverged"]
            if self.heads:
                contraction = 1 - self.rate * float(np.linalg.eigvalsh(means["heads"])[0])
            if stalled(losses, self.stall):
                break
        converged = None if self.stall is None else stalled(losses, self.stall)
        return Learned(shared, losses[-1], converged, diverged, contraction)
