"""Averages over a graph: each node starts with a value and, hearing nothing but its neighbours, ends with the mean.

One step of plain averaging replaces every node's value by a weighted mean of its own and its neighbours', X <- W X with
Metropolis weights: W_ij = 1 / (1 + max(d_i, d_j)) on links, the rest at home. W is symmetric and its rows sum to 1, so
the mean stays; what nodes differ by shrinks by sigma, the largest modulus of W's other eigenvalues, in each step.

Chebyshev's semi-iteration (Golub and Varga, 1961) makes of the same exchanges the best polynomial of W there is for
eigenvalues in [-sigma, sigma]: X_k+1 = X_k-1 + omega (W X_k - X_k-1), with omega from the recurrence below. It needs a
step's values before and no other memory. Each step is an affine combination with doubly stochastic W, so the mean
stays, whatever links are silent; differences shrink to 1 / T_k(1 / sigma), about exp(-k sqrt(2 (1 - sigma))) where
plain averaging has exp(-k (1 - sigma)).

Silent links make W another matrix in each step, and momentum that is right for one matrix can make differences grow:
on a ring of 64 nodes with one link in five silent, 374 steps made them 3e5 times as large. `settle` looks after every
run of steps whether neighbours came closer; where they did not, it goes back and doubles 1 - sigma^2. That ends in
plain averaging (sigma = 0 has no momentum), which no loss makes grow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from fedspan.encoding import Array
from fedspan.errors import CohortError
from fedspan.topology.graphs import Graph

_DENSE = 600
"""Up to so many nodes all eigenvalues are computed, which takes a fraction of a second."""
PATIENCE = 50
"""Where links are silent, so many times the planned steps are taken at most."""


class Weights:
    """The Metropolis weights of a graph: how each node mixes its own value with its neighbours'."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._ends = np.array(graph.links, dtype=int).reshape(-1, 2)
        self._shares = 1.0 / (1 + graph.degrees[self._ends].max(axis=1)) if len(self._ends) else np.empty(0)
        self.matrix = self.of_links(np.ones(len(self._ends), dtype=bool))
        """W, sparse: symmetric, its rows sum to 1."""
        self.sigma = _second_modulus(self.matrix)
        """The second eigenvalue: the largest modulus of all but the 1 that belongs to the mean."""

    @property
    def gap(self) -> float:
        """The spectral gap, 1 - sigma."""
        return 1.0 - self.sigma

    def of_links(self, heard: Array) -> Any:
        """Return the weights of a step in which only some links are heard; the others' stay at both their ends."""
        ends, shares, size = self._ends[heard], self._shares[heard], len(self.graph.names)
        home = 1.0 - np.bincount(ends.ravel(), np.repeat(shares, 2), minlength=size)
        rows = np.concatenate([ends[:, 0], ends[:, 1], np.arange(size)])
        columns = np.concatenate([ends[:, 1], ends[:, 0], np.arange(size)])
        return scipy.sparse.csr_array((np.concatenate([shares, shares, home]), (rows, columns)), shape=(size, size))

    def with_loss(self, rng: np.random.Generator, chance: float) -> Any:
        """Return the weights of a step in which each link is silent with this chance."""
        return self.matrix if chance == 0 else self.of_links(rng.random(len(self._ends)) >= chance)


def steps_needed(sigma: float, accuracy: float, *, accelerated: bool = True) -> int:
    """Return after how many steps what nodes differ by, all together, is ``accuracy`` of what it was.

    >>> steps_needed(0.9, 1e-10), steps_needed(0.9, 1e-10, accelerated=False), steps_needed(0.0, 1e-10)
    (51, 219, 1)
    """
    if accuracy >= 1:
        return 0
    if sigma <= 1e-15:  # complete graphs: W itself is the mean
        return 1
    if not accelerated:
        return math.ceil(math.log(accuracy) / math.log(sigma))
    return math.ceil(math.acosh(1 / accuracy) / math.acosh(1 / sigma))


def mix(
    values: Array,
    sigma: float,
    steps: int,
    weights: Callable[[], Any],
    *,
    accelerated: bool = True,
) -> Array:
    """Return the nodes' values (n x m, a row each) after so many steps; ``weights`` gives each step's W."""
    before, now, omega = values, values, 1.0
    for step in range(steps):
        mixed = weights() @ now
        if step == 1:
            omega = 1.0 / (1.0 - sigma**2 / 2)
        elif step > 1:
            omega = 1.0 / (1.0 - sigma**2 * omega / 4)
        if accelerated and step > 0:
            mixed -= before
            mixed *= omega
            mixed += before
        before, now = now, mixed
    return now


class Settled(NamedTuple):
    """The nodes' means, and what it took to have them."""

    values: Array
    steps: int
    """Exchanges between neighbours."""
    looks: int
    """How often the nodes looked whether they agree."""


def planned_steps(weights: Weights, accuracy: float) -> int:
    """Return how many steps bring all nodes' means as near to one another as `settle` asks, if no link is silent.

    Row i of the differences is at most the norm of all, which began as at most sqrt(n) of the largest value; a link's
    two ends differ by twice a row, and as many links as the diameter lie between any two nodes.
    """
    graph = weights.graph
    if len(graph.names) == 1:
        return 0
    return steps_needed(weights.sigma, accuracy / (2 * max(graph.diameter, 1) * math.sqrt(len(graph.names))))


def settle(
    values: Array,
    parts: Sequence[slice],
    weights: Weights,
    accuracy: float,
    *,
    silent: float = 0.0,
    rng: np.random.Generator | None = None,
) -> Settled:
    """Average until no two nodes differ by more than ``accuracy`` of the largest node's value, in each of the parts.

    What nodes look at they can tell among themselves: how far a link's two ends are apart, times the diameter, bounds
    how far any two nodes are; the largest such figure is passed on from neighbour to neighbour.
    """
    planned, sigma = planned_steps(weights, accuracy), weights.sigma
    rng = np.random.default_rng(0) if rng is None else rng
    if planned == 0 or not np.isfinite(values).all():  # numbers that are none reach everybody, and nothing settles
        return Settled(values if planned == 0 else np.broadcast_to(values.mean(axis=0), values.shape), planned, 0)
    sizes = _binary_sizes(values, parts)
    values = np.ldexp(values, -sizes)  # exact; else the squares in a norm leave the range of floats before numbers do
    largest = [np.linalg.norm(values[:, part], axis=1).max() for part in parts]
    apart, taken, looks = _apart(values, parts, largest, weights), 0, 0
    while True:
        with np.errstate(over="ignore", invalid="ignore"):
            after = mix(values, sigma, planned, lambda: weights.with_loss(rng, silent))
            found = _apart(after, parts, largest, weights)
        taken, looks = taken + planned, looks + 1
        if found <= accuracy:
            return Settled(np.ldexp(after, sizes), taken, looks)
        if taken >= PATIENCE * planned:
            raise CohortError(
                f"after {taken} steps nodes still differ by {min(found, apart):.1e} of the largest value, more than "
                f"accuracy = {accuracy:g}; too many links are silent: give a graph with more of them, or a larger "
                f"accuracy"
            )
        if found < apart:
            values, apart = after, found
        else:
            sigma = math.sqrt(max(0.0, 2 * sigma**2 - 1))


def _binary_sizes(values: Array, parts: Sequence[slice]) -> Array:
    """Return for each column the power of two that no number of its part exceeds."""
    sizes = np.zeros(values.shape[1], dtype=np.intc)
    for part in parts:
        sizes[part] = np.frexp(np.abs(values[:, part]).max(initial=0.0))[1]
    return sizes


def _apart(values: Array, parts: Sequence[slice], largest: Sequence[float], weights: Weights) -> float:
    """Return how far two nodes may be apart, in the part where that is most for its size."""
    ends = np.array(weights.graph.links, dtype=int)
    across = [
        np.linalg.norm(values[ends[:, 0], part] - values[ends[:, 1], part], axis=1).max() / size
        for part, size in zip(parts, largest, strict=True)
        if size > 0
    ]
    return weights.graph.diameter * float(np.max(across, initial=0.0))


def _second_modulus(weights: Any) -> float:
    size = weights.shape[0]
    if size < 2:
        return 0.0
    if size <= _DENSE:
        values = np.linalg.eigvalsh(weights.toarray())[:-1]
        return float(min(np.abs(values).max(), 1.0))

    def beside_the_mean(x: Array) -> Array:
        x = np.ravel(x)
        return np.asarray(weights @ x - x.mean())

    operator = scipy.sparse.linalg.LinearOperator((size, size), matvec=beside_the_mean, dtype=float)
    start = np.random.default_rng(0).standard_normal(size)
    found = scipy.sparse.linalg.eigsh(operator, k=1, which="LM", v0=start, return_eigenvectors=False, tol=1e-10)
    return float(min(np.abs(found).max(), 1.0))
