"""LG-FedAvg (Liang et al. 2020): each site keeps the body, the first layers; the last ones are shared and averaged.

=======================  =======================================================================================
paper                    here
=======================  =======================================================================================
theta^l, local part      ``own``: the body, in site i's memory
theta^g, global part     ``shared``: the head, in one flat vector; ``head_layers`` 2 as in Tziotis et al., appendix C
local updates            ``epochs`` over the rows, in which both parts descend together (``rate``, ``momentum``)
n_k / n in the mean      ``by_rows``
=======================  =======================================================================================

A round costs the head to and from each site that answers (and three numbers up: weight, loss, whether it diverged).
Left out: the paper's unsupervised and adversarial local losses, and its test on sites that it has not seen by an
ensemble of all local models, which would send every body.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fedspan.learners.rows import Descent
from fedspan.learners.settings import Descending
from fedspan.learners.site import averaging, contribution, learning_step, model_at, own_at, rows_at
from fedspan.learners.task import Learned, Task
from fedspan.rounds import Reply, Site, Solve


@learning_step("lg-fedavg.update")
def update(site: Site, message: dict[str, Any]) -> Reply:
    """Descend in the head as received and in this site's own body, together. The body stays."""
    rows = rows_at(site)
    how = Descent(*message["descent"])
    fitted = model_at(site).fit(message["shared"], own_at(site), rows, how, site.rng, "both")
    return contribution(site, fitted, message["shared"], weight=len(rows.y) if message["by_rows"] else 1.0)


@dataclass(frozen=True, kw_only=True)
class LGFedAvg(Descending):
    """LG-FedAvg: a body of each site's own, a shared head. Stops where the loss ``stall``s, or after ``rounds``.

    >>> LGFedAvg(rounds=20).own, LGFedAvg().head_layers
    ('body', 2)
    """

    own: str = field(default="body", init=False)
    head_layers: int = field(default=2, init=False)

    def solve(self, task: Task) -> Solve[Learned]:
        """Alternate the sites' local updates with the mean of their heads."""
        return (yield from averaging(update, {"descent": list(self.descent), "by_rows": self.by_rows}, task, self))
