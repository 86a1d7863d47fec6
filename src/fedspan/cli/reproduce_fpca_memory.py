"""Table 1 of Federated-PCA: what each method allocates on the motes, by `tracemalloc`.

The paper had MATLAB's profiler and does not say over what it averages. Here: for each update with 50 rows, the most
that was allocated at once while it ran, on top of what was there before the method was made; the caller's rows do not
count. `tracemalloc` sees Python's and numpy's arrays, not the work space inside LAPACK.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from functools import partial
from statistics import mean, median
from typing import Any

import numpy as np

from fedspan.cli.reproduce_fpca_data import BLOCK, RANK, TABLE_1, Stream
from fedspan.cli.reproduce_fpca_runs import ALONE, FD, GROUSE, PM, Fpca, Tracker, rival
from fedspan.cli.reproduce_shared import Report
from fedspan.data import open_source
from fedspan.encoding import Array
from fedspan.errors import DataError
from fedspan.rivals import Spirit
from fedspan.solvers.mod_sulq import fold_slices


class MaskedFpca:
    """FPCA with perturbation masks: slices of each block's Gram matrix, noised one by one, are what is folded."""

    def __init__(self, rank: int, slice_width: int = RANK, deviation: float = 1.0) -> None:
        self._rank, self._width = rank, slice_width
        self._deviation, self._rng = deviation, np.random.default_rng(0)
        self._kept: Array | None = None

    @property
    def basis(self) -> Array:
        """d x r, and empty before the first block."""
        return np.zeros((0, 0)) if self._kept is None else self._kept / np.linalg.norm(self._kept, axis=0)

    def update(self, rows: Array) -> None:
        for start in range(0, len(rows), BLOCK):
            block = open_source(rows[start : start + BLOCK])
            self._kept = fold_slices(block, self._noised, self._width, self._rank, self._kept)

    def _noised(self, slice_: Array) -> Array:
        return slice_ + self._rng.normal(scale=self._deviation, size=slice_.shape)


def measure_memory(rows_limit: int | None, report: Report) -> dict[str, Any]:
    """Return the average and median of every method on each of the paper's four sets, or why there is none."""
    found: dict[str, Any] = {}
    for name in TABLE_1:
        rank = 20 if name == "motes_temperature" else RANK  # D.2.1
        try:
            rows = Stream(name, name, rank, rows=rows_limit).load()
        except DataError as why:
            found[name] = {"absent": str(why)}
            report(f"table 1, {name}: not available here")
            continue
        found[name] = {method: _kilobytes(make, rows) for method, make in methods(rows.shape[1], rank).items()}
        report(f"table 1: {name}")
    return found


def methods(d: int, rank: int) -> dict[str, Callable[[], Tracker]]:
    """Return what makes each method of the table."""
    made: dict[str, Callable[[], Tracker]] = {name: partial(rival, name, d, rank) for name in (PM, GROUSE, FD)}
    return {
        **made, "FPCA (with mask)": partial(MaskedFpca, rank), "FPCA (no mask)": partial(Fpca, rank),
        ALONE: partial(Fpca, rank, oversampling=0), "SP": partial(Spirit, d, rank),
    }  # fmt: skip


def allocations(make: Callable[[], Tracker], rows: Array) -> list[int]:
    """Return, for each update, the most bytes held at once on top of those before the method was made."""
    make().update(rows[: 2 * BLOCK])  # what is imported or cached once is nobody's
    gc.collect()
    gc.freeze()  # what is there already need not be looked through with each update
    ours = not tracemalloc.is_tracing()
    if ours:
        tracemalloc.start()
    before, peaks = tracemalloc.get_traced_memory()[0], []
    tracker = make()
    for start in range(0, len(rows), BLOCK):
        gc.collect()  # gives back the freed tuples that Python keeps for reuse: 0.5 kB more with each update
        tracemalloc.reset_peak()
        tracker.update(rows[start : start + BLOCK])
        peaks.append(tracemalloc.get_traced_memory()[1] - before)
    if ours:
        tracemalloc.stop()
    gc.unfreeze()
    return peaks


def _kilobytes(make: Callable[[], Tracker], rows: Array) -> tuple[float, float]:
    peaks = allocations(make, rows)
    return mean(peaks) / 1024, median(peaks) / 1024
