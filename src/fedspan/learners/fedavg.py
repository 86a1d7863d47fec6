"""FedAvg (McMahan et al. 2017, algorithm 1): one model for all sites, the mean of what each one made of it.

=============  ===============================================================================================
paper          here
=============  ===============================================================================================
w_t            ``shared``: the whole model in one flat vector; nothing is a site's ``own``
E, B, eta      ``epochs``, ``batch`` (0: all rows at once), ``rate``; ``momentum`` begins anew in each round
n_k / n        ``by_rows`` (False: every site counts as one)
C              the cohort's ``fraction``
=============  ===============================================================================================

A round costs the model to and from each site that answers (and three numbers up: weight, loss, whether it diverged).
Fine-tuning is no other training: `fedspan.learning.Learning.tune` epochs at each site before it is measured. Inside
`fedspan.solvers.Doubling` it is Remark 4.10's method of Tziotis et al. (2023). Left out: nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fedspan.learners.rows import Descent
from fedspan.learners.settings import Descending
from fedspan.learners.site import averaging, contribution, learning_step, model_at, own_at, rows_at
from fedspan.learners.task import Learned, Task
from fedspan.rounds import Reply, Site, Solve


@learning_step("fedavg.update")
def update(site: Site, message: dict[str, Any]) -> Reply:
    """Descend in the whole model, from where all sites are (ClientUpdate)."""
    rows = rows_at(site)
    how = Descent(*message["descent"])
    fitted = model_at(site).fit(message["shared"], own_at(site), rows, how, site.rng, "both")
    return contribution(site, fitted, message["shared"], weight=len(rows.y) if message["by_rows"] else 1.0)


@dataclass(frozen=True, kw_only=True)
class FedAvg(Descending):
    """FedAvg: one shared model. Stops where the loss ``stall``s, or after ``rounds``.

    >>> FedAvg(rounds=20).own, FedAvg().by_rows
    ('none', True)
    """

    by_rows: bool = True
    own: str = field(default="none", init=False)
    head_layers: int = field(default=1, init=False)

    def solve(self, task: Task) -> Solve[Learned]:
        """Alternate the sites' local updates with the mean of their models."""
        return (yield from averaging(update, {"descent": list(self.descent), "by_rows": self.by_rows}, task, self))
