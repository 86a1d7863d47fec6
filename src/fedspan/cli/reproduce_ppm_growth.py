"""Table 2 of Nicolas et al. (2024): how the cost of secure sums grows with the sites, measured beside its orders.

The paper writes n^2 for the numbers in a message; here that is ``size`` (a round of private power sends n p). Orders
have no constants, so these are fitted: each cost is a sum of its order's two terms with non-negative factors, as near
as can be in relative terms. Where a cost grows as its order does, the fit is close at every point; where it grows
otherwise, no factors help.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import nnls

from fedspan.cli.reproduce_shared import Report
from fedspan.encoding import Array
from fedspan.errors import ConfigurationError

MeasureCost = Callable[[int, int], Mapping[str, float]]
"""From a number of sites and the numbers in a message to what one secure sum costs: `ORDERS` says which figures."""


@dataclass(frozen=True)
class Order:
    """One cell of Table 2."""

    who: str
    what: str
    words: str
    """With m for the paper's n^2."""
    terms: Callable[[float, float], tuple[float, float]]
    """The two terms, from s and m."""


ORDERS = {
    "client_bytes": Order("client", "bytes", "log s + m", lambda s, m: (math.log(s), m)),
    "client_seconds": Order("client", "seconds", "log^2 s + m log s", lambda s, m: (_square(s), m * math.log(s))),
    "server_bytes": Order("server", "bytes", "s log s + s m", lambda s, m: (s * math.log(s), s * m)),
    "server_seconds": Order(
        "server", "seconds", "s log^2 s + s m log s", lambda s, m: (s * _square(s), s * m * math.log(s))
    ),
}  # fmt: skip
"""The cells of Table 2 by the figure they are about."""


def _square(s: float) -> float:
    return math.log(s) ** 2


def measure_growth(
    measure: MeasureCost, sites: Sequence[int], sizes: Sequence[int], report: Report = lambda _: None
) -> dict[str, Any]:
    """Measure every number of sites with every size, and fit Table 2's orders; return plain data.

    >>> costs = {name: lambda s, m, of=order.terms: sum(of(s, m)) for name, order in ORDERS.items()}
    >>> found = measure_growth(lambda s, m: {name: cost(s, m) for name, cost in costs.items()}, [10, 100], [1000])
    >>> round(found["fits"]["server_seconds"]["misfit"], 6), round(found["fits"]["server_bytes"]["growth"]["measured"])
    (0.0, 10)
    """
    if len(set(sites)) < 2 or min(sites) < 2 or not sizes or min(sizes) < 1:
        raise ConfigurationError(
            f"growth is seen over two numbers of sites or more, each at least 2, with messages of a number or more; "
            f"got {list(sites)} sites and sizes {list(sizes)}"
        )
    points = []
    for size in sorted(set(sizes)):
        for count in sorted(set(sites)):
            cost = measure(count, size)
            missing = sorted(set(ORDERS) - set(cost))
            if missing:
                raise ConfigurationError(f"a measurement of {count} sites says nothing of {', '.join(missing)}")
            points.append({"sites": count, "size": size, **{name: float(cost[name]) for name in ORDERS}})
            report(f"a secure sum of {count} sites, {size:,} numbers each")
    return {"points": points, "fits": {name: _fit(name, order, points) for name, order in ORDERS.items()}}


def _fit(name: str, order: Order, points: list[dict[str, float]]) -> dict[str, Any]:
    """Return the factors of an order's terms, how far they are from what was measured, and the growth of both."""
    terms = np.array([order.terms(p["sites"], p["size"]) for p in points])
    measured = np.array([p[name] for p in points])
    if not np.all(measured > 0):
        raise ConfigurationError(f"{name} is a positive figure at every point, got {measured.min():g}")
    factors, _ = nnls(terms / measured[:, None], np.ones(len(points)))
    fitted = terms @ factors
    return {
        "order": order.words,
        "factors": factors.tolist(),
        "fitted": fitted.tolist(),
        "misfit": float(np.abs(fitted / measured - 1).max()),
        "growth": _growth(points, {"measured": measured, "fitted": fitted}),
    }


def _growth(points: list[dict[str, float]], figures: dict[str, Array]) -> dict[str, float]:
    """Return how many times as much the most sites cost as the fewest, with the largest messages."""
    largest = max(p["size"] for p in points)
    at = [i for i, p in enumerate(points) if p["size"] == largest]
    ends = min(at, key=lambda i: points[i]["sites"]), max(at, key=lambda i: points[i]["sites"])
    fewest, most = ends
    return {
        "from": points[fewest]["sites"], "to": points[most]["sites"], "size": largest,
        **{name: float(values[most] / values[fewest]) for name, values in figures.items()},
    }  # fmt: skip
