"""HF-MAML: Per-FedAvg (Fallah, Mokhtari, Ozdaglar 2020, algorithm 1), its Hessian-free variant: a model to start from.

=====================  ====================================================================================
paper                  here
=====================  ====================================================================================
w_k                    ``shared``: the whole model in one flat vector; nothing is a site's ``own``
alpha                  ``inner``: the rate of the one step by which a site will make the model its own
beta                   ``rate``
delta                  ``delta``: half the width of the difference that stands for the Hessian
tau                    as many steps as ``epochs`` over the rows have batches
D, D', D''             three batches of ``batch`` rows, from three orders drawn independently (0: all rows in each)
r, n_k                 the cohort's ``fraction``; a mean of the sites, or with ``by_rows`` of their rows
=====================  ====================================================================================

What is minimised is the mean of f_i(w - alpha grad f_i(w)). Its gradient holds (I - alpha H) g; H g is the difference
of two gradients, so a step costs four gradients and no Hessian. A round costs the model to and from each site that
answers (and three numbers up). Measure with `fedspan.learning.Learning.tune` = 1 at least: without a step of its own a
site gets the model as it starts from. ``momentum`` is 0 as in the paper. Left out: the first-order variant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedspan.encoding import Array
from fedspan.errors import ConfigurationError
from fedspan.learners.rows import Descent, Fitted, Rows, batches
from fedspan.learners.settings import Descending
from fedspan.learners.site import averaging, contribution, learning_step, model_at, own_at, rows_at
from fedspan.learners.task import Learned, Task
from fedspan.rounds import Reply, Site, Solve
from fedspan.solvers.settings import finite, settle


@learning_step("hf-maml.update")
def update(site: Site, message: dict[str, Any]) -> Reply:
    """Descend in what the model is after one step at this site, from where all sites are."""
    model, rows, own = model_at(site), rows_at(site), own_at(site)
    how, alpha, delta = Descent(*message["descent"]), message["inner"], message["delta"]

    def slope(w: Array, some: Rows) -> tuple[Array, float]:
        gradient, _, loss = model.gradient(w, own, some)
        return gradient, loss

    w, losses = message["shared"], list[float]()
    speed = np.zeros_like(w)
    for _ in range(how.epochs):
        losses = []
        for one, two, three in _triples(rows, how.batch, site.rng):
            g, loss = slope(w - alpha * slope(w, one)[0], two)  # f(w~; D'), w~ = w - alpha grad f(w; D)
            d = (slope(w + delta * g, three)[0] - slope(w - delta * g, three)[0]) / (2 * delta)  # H g, on D''
            speed = how.momentum * speed + (g - alpha * d)
            w = w - how.rate * speed
            losses.append(loss)
    fitted = Fitted(w, own, float(np.mean(losses)))
    return contribution(site, fitted, message["shared"], weight=len(rows.y) if message["by_rows"] else 1.0)


def _triples(rows: Rows, batch: int, rng: np.random.Generator) -> Iterator[tuple[Rows, Rows, Rows]]:
    return zip(batches(rows, batch, rng), batches(rows, batch, rng), batches(rows, batch, rng), strict=True)


@dataclass(frozen=True, kw_only=True)
class HFMAML(Descending):
    """HF-MAML: a shared model that is good after one step at each site. Stops as the others do.

    >>> HFMAML(rounds=20, inner=0.05).tuning.rate
    0.05
    """

    momentum: float = 0.0
    inner: float = 0.1
    delta: float = 1e-3
    own: str = field(default="none", init=False)
    head_layers: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        settle(self, inner=finite("inner", self.inner), delta=finite("delta", self.delta))
        if self.inner < 0 or not self.delta > 0:
            raise ConfigurationError(f"inner is not negative, delta is positive; got {self.inner} and {self.delta}")

    @property
    def tuning(self) -> Descent:
        """The step by which a site makes the model its own: the one that was trained for."""
        return self.descent._replace(rate=self.inner, momentum=0.0)

    def solve(self, task: Task) -> Solve[Learned]:
        """Alternate the sites' local meta-steps with the mean of their models."""
        more = {"inner": self.inner, "delta": self.delta, "by_rows": self.by_rows}
        return (yield from averaging(update, {"descent": list(self.descent), **more}, task, self))
