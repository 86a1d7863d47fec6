"""The methods of Federated-PCA's appendix D side by side on one stream: Figures 6-9 and 13.

Errors are (66) in the form that fits every method, ||Y_t - U U'Y_t||_F^2 / t with U the basis at time t and Y_t all
rows so far. For FPCA there is (66) to the letter beside it: Y_t against the scores that were given on the fly, and
carried along as the basis turned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from fedspan.cli.reproduce_fpca_data import BLOCK, ENERGY
from fedspan.encoding import Array
from fedspan.estimators import StreamingPCA
from fedspan.rivals import FrequentDirections, Grouse, MemoryLimitedPower, Spirit
from fedspan.stream import FIRST_RANK

ADAPTIVE, LOW, HIGH, CARRIED = "FPCA", "FPCA (low)", "FPCA (high)", "FPCA, on the fly"
FORGETTING, UNFORGETTING = "SPIRIT, lambda 0.9", "SPIRIT, lambda 1"
ALONE = "FPCA, r columns"
"""The fixed rank of the rivals, and no more columns kept inside: the paper's memory."""
GROUSE, GREEDY, FD, PM = "GROUSE", "GROUSE, greedy", "FD", "PM"


class Tracker(Protocol):
    """What follows a stream: each of `fedspan.rivals`, and `Fpca`."""

    @property
    def basis(self) -> Array:
        """d x r."""

    def update(self, rows: Array) -> None:
        """Take rows."""


class Fpca:
    """`StreamingPCA` with the paper's settings, as a `Tracker`."""

    def __init__(self, wanted: int | str, *, oversampling: int | None = None) -> None:
        self.model = StreamingPCA(wanted, center=False, block_size=BLOCK, energy=ENERGY, oversampling=oversampling)

    @property
    def basis(self) -> Array:
        """Narrower while fewer rows than the rank came."""
        return self.model.summary().basis[:, : self.model.n_components_]

    def update(self, rows: Array) -> None:
        self.model.partial_fit(rows)


class FpcaOnTheFly(Fpca):
    """FPCA that keeps the scores of all rows, brought along as its basis turns."""

    def __init__(self, wanted: int | str) -> None:
        super().__init__(wanted)
        self._scores: list[Array] = []

    def update(self, rows: Array) -> None:
        new = self.model.partial_fit_transform(rows)
        self._scores = [np.vstack([*(self.model.carry(scores) for scores in self._scores), new])]

    def error(self, rows: Array) -> float:
        """(66) on the rows so far."""
        scores, seen = self._scores[0], rows[: self.model.n_samples_seen_]
        held = 2 * np.sum(scores * self.model.transform(seen)) - np.sum(scores**2)
        return max(float(np.sum(seen**2) - held), 0.0) / len(seen)


def rival(name: str, d: int, r: int) -> Tracker:
    """Return GROUSE, FD or PM with the paper's settings, or GROUSE with the step that has no scale."""
    if name in (GROUSE, GREEDY):
        return Grouse(d, r, step=2.0 if name == GROUSE else "greedy")
    return FrequentDirections(d, r) if name == FD else MemoryLimitedPower(d, r)


def rank_range(rows: Array) -> tuple[int, int]:
    """Return the least and the largest rank of the adaptive run: at its start, and after any of its blocks."""
    tracker, ranks = Fpca("auto"), [min(FIRST_RANK, rows.shape[1])]
    for start in range(0, len(rows), BLOCK):
        tracker.update(rows[start : start + BLOCK])
        ranks.append(tracker.basis.shape[1])
    return min(ranks), max(ranks)


def subspace_error(basis: Array, offline: Array) -> float:
    """Return the root mean square sine of the angles between a basis and as many of the offline SVD's columns.

    >>> subspace_error(np.eye(4)[:, [0, 2]], np.eye(4))
    0.707...
    """
    leading = offline[:, : basis.shape[1]]
    outside = basis - leading @ (leading.T @ basis)
    return float(np.linalg.norm(outside) / np.sqrt(basis.shape[1]))


# ---- one stream ------------------------------------------------------------------------------------------------


def race(rows: Array, rank: int, points: int, *, unforgetting: bool = True) -> dict[str, Any]:
    """Run every method over the rows, measured at ``points`` times, and return its curves as plain data."""
    d, (low, high) = rows.shape[1], rank_range(rows)
    adaptive = FpcaOnTheFly("auto")
    methods: dict[str, Tracker] = {ADAPTIVE: adaptive, LOW: Fpca(low), HIGH: Fpca(high)}
    methods[ALONE] = Fpca(rank, oversampling=0)
    methods |= {name: rival(name, d, rank) for name in (GROUSE, GREEDY, FD, PM)}
    methods[FORGETTING] = Spirit(d, rank, forgetting=0.9)
    if unforgetting:
        methods[UNFORGETTING] = Spirit(d, rank)
    seen, curves, carried = _Seen(d, low, high), {name: _Curve() for name in methods}, _Curve()
    stops = [0, *_stops(len(rows), points)]
    for start, stop in pairwise(stops):
        piece = rows[start:stop]
        seen.add(piece)
        for name, tracker in methods.items():
            tracker.update(piece)
            curves[name].add(seen.error(tracker.basis), tracker.basis.shape[1])
        carried.add(adaptive.error(rows), curves[ADAPTIVE].ranks[-1])
    offline = np.linalg.eigh(seen.gram)[1][:, ::-1]
    found = {name: {**vars(curve), "subspace": subspace_error(methods[name].basis, offline)}
             for name, curve in curves.items()}  # fmt: skip
    found[CARRIED] = vars(carried)
    return {
        "n": len(rows), "d": d, "rank": rank, "low": low, "high": high, "at": stops[1:], "runs": found,
        "residual_low": seen.residual_low, "residual_high": seen.residual_high,
        "total": float(np.trace(seen.gram)) / len(rows),
    }  # fmt: skip


def _stops(n: int, points: int) -> list[int]:
    """Return where to measure, evenly and at the ends of blocks: between them FPCA's rank is that of half a block.

    >>> _stops(520, 3)
    [150, 350, 520]
    """
    ends = np.unique((np.linspace(0, n, points + 1)[1:-1] / BLOCK).round().astype(int) * BLOCK)
    return [*(int(end) for end in ends if 0 < end < n), n]


@dataclass
class _Curve:
    errors: list[float] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)

    def add(self, error: float, rank: int) -> None:
        self.errors.append(error)
        self.ranks.append(rank)


class _Seen:
    """The Gram matrix of the rows so far, and the offline residuals at the two ends of (16)."""

    def __init__(self, d: int, low: int, high: int) -> None:
        self.gram = np.zeros((d, d))
        self.residual_low: list[float] = []
        self.residual_high: list[float] = []
        self._rows, self._low, self._high = 0, low, high

    def add(self, piece: Array) -> None:
        self.gram += piece.T @ piece
        self._rows += len(piece)
        values = np.maximum(np.linalg.eigvalsh(self.gram)[::-1], 0.0)
        self.residual_low.append(float(values[self._low :].sum()) / self._rows)
        self.residual_high.append(float(values[self._high :].sum()) / self._rows)

    def error(self, basis: Array) -> float:
        left = np.trace(self.gram) - np.sum(basis * (self.gram @ basis))
        return max(float(left), 0.0) / self._rows


def brackets(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return at how many points each side of (16) holds, for the runs of fixed rank and for the offline residuals.

    And by how much it fails at the most, relative to the error. Where ranks are equal the sides are: rounding passes.
    """
    error, low, high = (np.array(found["runs"][name]["errors"]) for name in (ADAPTIVE, LOW, HIGH))
    sides = {
        "above_high": high - error, "below_low": error - low,
        "above_floor": np.array(found["residual_high"]) - error,
        "below_ceiling": error - np.array(found["residual_low"]),
    }  # fmt: skip
    return {
        side: {
            "held": int(np.sum(over <= 1e-12 * found["total"])), "of": len(over),
            "most": max(float(np.max(over / np.maximum(error, 1e-12 * found["total"]))), 0.0),
        }
        for side, over in sides.items()
    }  # fmt: skip
