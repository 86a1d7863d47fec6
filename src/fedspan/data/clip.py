"""Rows brought within a bound before they count: what a privacy guarantee rests on.

A row is clipped by a factor of its own, min(1, C / ||row||), where the row is taken as it ENTERS the Gram matrix: after
imputation, centring, scaling and its root weight. A factor is a weight, so sparse rows stay sparse. Norms are rounded
up, never down, so no clipped row is longer than C.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from fedspan.data.columns import column_sums, gap_weights
from fedspan.data.source import Block, to_host
from fedspan.encoding import Array
from fedspan.errors import DataError, PolicyError

LARGEST_ENTRY = 1e60
"""Raw entries beyond are cut under a policy: their squares, scaled and multiplied, must stay numbers."""
_SLACK = 1e-12  # of a squared norm: more than summing up to a million float64 squares loses


@dataclass(frozen=True)
class RowBounds:
    """What a site clips its rows to."""

    norm: float | None = None
    """C: of the row that enters the Gram matrix. None: not clipped (guarantees about entries of it)."""
    raw_norm: float | None = None
    """R: of the row before it is centred, about the middle of the box where there is one."""
    low: Array | None = None
    high: Array | None = None
    """The box that raw entries are clamped to, column by column (or one number for all)."""
    about_zero: bool = False
    """Whether sums of raw rows are taken about zero, wherever the middle of the box is: those of counts."""
    site_total: float | None = None
    """S: of the sum of squares of all prepared rows together; a site beyond it is scaled down as a whole."""

    def least_scale(self, width: int) -> Array:
        """Return the least that each column may be divided by: a thousandth of half its public range.

        By less, the rounding of rows near the mean would grow to what one row changes.
        """
        if self.low is None or self.high is None:
            return np.zeros(width)
        return np.broadcast_to(1e-3 * (self.high - self.low) / 2, (width,)).astype(float)

    def middle(self, width: int) -> Array:
        """Return the public point that sums of raw rows are taken about."""
        if self.about_zero or self.low is None or self.high is None:
            return np.zeros(width)
        return np.broadcast_to((self.low + self.high) / 2, (width,)).astype(float)


def clamp(block: Block, bounds: RowBounds | None, *, keep_gaps: bool = False) -> Block:
    """Return a raw block as float64, its entries within the box, and none so large that arithmetic could fail on it.

    Under a policy an error that depends on rows would be a release: what is missing or infinite counts as nothing
    (``keep_gaps`` leaves gaps to be filled).
    """
    if bounds is None:
        return block
    if not scipy.sparse.issparse(block):
        return _tame(to_host(block).astype(np.float64, copy=False), bounds.low, bounds.high, keep_gaps)
    rows = block.astype(np.float64).copy()
    low = high = None
    if bounds.low is not None and bounds.high is not None:
        low, high = (np.broadcast_to(side, (rows.shape[1],)) for side in (bounds.low, bounds.high))
        if np.any(low > 0) or np.any(high < 0):
            raise DataError("sparse rows have zeros that the bounds shut out; give bounds with low <= 0 <= high")
        low, high = low[rows.indices], high[rows.indices]
    rows.data = _tame(rows.data, low, high, keep_gaps)
    return rows


def _tame(entries: Array, low: Array | None, high: Array | None, keep_gaps: bool) -> Array:
    usable = ~np.isinf(entries) if keep_gaps else np.isfinite(entries)
    entries = entries if usable.all() else np.where(usable, entries, 0.0)
    within: Array = np.clip(entries, -LARGEST_ENTRY if low is None else low, LARGEST_ENTRY if high is None else high)
    return within  # NaN stays NaN


@dataclass
class Clipping:
    """How much of a site's rows its bounds changed: for the site's own eyes, it does not leave."""

    norm: float | None = None
    rows: int = 0
    shortened: int = 0
    clamped: int = 0
    lightened: int = 0
    whole: float = 1.0
    """What all rows' squares were multiplied by, to keep their sum within the site's bound."""

    def note(self, raw: Block, block: Block, weights: Array | None) -> None:
        """Count the rows of one block: as they were and as they are clamped, and their weights as given."""
        self.rows += block.shape[0]
        self.lightened += 0 if weights is None else int(np.sum(~(weights <= 1.0) | (weights < 0.0)))
        self.clamped += int(np.sum(_rows_that_differ(raw, block)))

    @property
    def words(self) -> str:
        """A line for the site's log."""
        if not self.rows:
            return "no bound on rows: none was clipped"
        shares = [f"{self.clamped / self.rows:.2%} had entries beyond their range"]
        shares.append(f"{self.lightened / self.rows:.2%} had a weight beyond 1")
        if self.norm is not None:
            shares.insert(0, f"{self.shortened / self.rows:.2%} of the rows were clipped to norm {self.norm:.6g}")
        if self.whole < 1.0:
            shares.append(f"the squares of all were scaled by {self.whole:.6g}, to the bound on their sum")
        return ", ".join(shares)


def _rows_that_differ(raw: Block, block: Block) -> Array:
    if not scipy.sparse.issparse(block):
        return np.asarray(np.any(to_host(raw) != block, axis=1))
    return _by_row(block, (raw.data != block.data).astype(float)) > 0


def bounded_weights(weights: Array) -> Array:
    """Return row weights from 0 to 1."""
    within: Array = np.clip(np.nan_to_num(weights, nan=0.0), 0.0, 1.0)
    return within


def row_squares(block: Block, mean: Array | None, scale: Array | None) -> Array:
    """Return the squared norm of each row of (block - mean) / scale, rounded up."""
    inverse = np.ones(block.shape[1]) if scale is None else 1.0 / scale
    if not scipy.sparse.issparse(block):
        rows = np.nan_to_num(block) if mean is None else np.nan_to_num(block - mean)  # a gap counts as the mean
        if scale is not None:
            rows = rows * inverse
        squares: Array = np.einsum("ij,ij->i", rows, rows)
        return squares * (1 + _SLACK)
    entries = np.nan_to_num(block.data)
    at = block.indices
    own, shift = (entries * inverse[at]) ** 2, 0.0
    if mean is not None:
        own, about = ((entries - mean[at]) * inverse[at]) ** 2, (mean * inverse) ** 2
        shift = float(about.sum())
        lost = _by_row(block, about[at])  # the mean's part in the columns this row has entries in
    else:
        lost = np.zeros(block.shape[0])
    sums = _by_row(block, own)
    # the difference shift - lost cancels: its rounding is of the size of shift, so that is what the slack is of
    return np.maximum(sums + (shift - lost), 0.0) + _SLACK * (sums + shift)


def clip_factors(squares: Array, weights: Array | None, norm: float) -> Array:
    """Return each row's factor min(1, C / ||sqrt(w) row||), squared: the weight that clips it."""
    entering = squares if weights is None else squares * weights
    longer = entering > norm**2
    return np.divide(norm**2, entering, out=np.ones(len(entering)), where=longer)


def bounded_sums(block: Any, weights: Array | None, with_gaps: bool, bounds: RowBounds) -> Array:
    """Return each column's weighted sum about the middle of the box, each row clipped to its raw bound."""
    with_gaps, block = True, clamp(block, bounds, keep_gaps=True)  # where none were expected they count as nothing too
    middle = bounds.middle(block.shape[1])
    about = middle if middle.any() else None
    if bounds.raw_norm is None:
        raise PolicyError("column sums rest on a bound on the raw rows, and none was given; give a raw_norm")
    clip = np.sqrt(clip_factors(row_squares(block, about, None), None, bounds.raw_norm))
    weights = clip if weights is None else clip * weights
    if not scipy.sparse.issparse(block):  # entry by entry: a box far from zero would lose digits in the sums
        return column_sums(block - middle, weights, with_gaps)
    held = float(weights.sum()) - gap_weights(block, weights, with_gaps)
    return column_sums(block, weights, with_gaps) - held * middle


def _by_row(block: Any, entries: Array) -> Array:
    rows = np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))
    return np.bincount(rows, entries, block.shape[0])
