"""A stream of rows at one place: blocks of one size cut from it, folded to a `Summary`, its rank and its drift.

The answer does not depend on how the rows come: they are held back until a block is full, and what is asked for in
between counts the rows held back as one more, short block. All of a stream is plain data, so it is saved and goes on to
the bit.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from fedspan.encoding import Array, Plain
from fedspan.errors import ConfigurationError, FileError
from fedspan.linalg import Summary, fold, merge_summaries, top_eigenvectors

FIRST_RANK = 10
"""Where an adaptive rank starts."""


@dataclass(frozen=True, kw_only=True)
class StreamSettings:
    """How a stream is folded.

    ``n_components`` is a number, a fraction of the variance, or ``"auto"``: the energy band (15). Internally
    ``oversampling`` more are kept (None: as many as there are components, and 10 more).
    """

    n_components: int | float | str = 10
    block_size: int = 500
    oversampling: int | None = None
    forgetting: float = 1.0
    energy: tuple[float, float] = (0.01, 0.1)
    center: bool = True
    window: int = 10
    seed: int = 0

    def kept(self, rank: int, d: int) -> int:
        """Return the rank that is kept for so many components of d columns."""
        return min(rank + (rank + 10 if self.oversampling is None else self.oversampling), d)


class Stream:
    """Rows of d columns, each seen once, in O(d (r + block)) numbers.

    >>> stream = Stream(2, StreamSettings(n_components=1, block_size=4))
    >>> stream.push(np.array([[1.0, 0.0], [3.0, 0.0], [5.0, 0.0]]))
    >>> stream.blocks, stream.now().rows, stream.now().mean
    (0, 3, array([3., 0.]))
    """

    def __init__(self, d: int, settings: StreamSettings) -> None:
        self.d, self.settings = d, settings
        self.folded = Summary.empty(d)
        """The full blocks."""
        self.blocks = 0
        self.rank = min(settings.n_components if isinstance(settings.n_components, int) else FIRST_RANK, d)
        self.drift: float | None = None
        """The sine of the largest angle between the subspaces of the last two windows' own rows."""
        self.drift_loss: float | None = None
        """The share of the last window's variance that the subspace of the one before would have lost.

        Both are None where there are not two windows, one after the other, with rows that vary.
        """
        self._held = _Held()
        self._offset: Array | None = None
        self._window: Array | None = None  # the subspace of the last full window's own rows
        self._mark, self._marked = self.folded, 0  # at the end of that window, and how many blocks that was
        self._now: tuple[Summary, int] | None = None

    def push(self, rows: Any, weights: Array | None = None, offset: Array | None = None) -> None:
        """Take rows (n x d, dense or CSR), with a weight for each and, where they are not centred, an offset of all."""
        self._now, self._offset = None, offset
        if self._held.kind_of(rows) is False:  # sparse after dense, or the other way round: neither is made the other
            self.flush()
        for block in self._held.cut(rows, weights, self.settings.block_size):
            self._fold(block)

    def flush(self) -> None:
        """Fold the rows held back as a block of their own; what `now` says of them already stays so."""
        if self._held.rows:
            self._fold(self._held.take())

    def start_from(self, summary: Summary) -> None:
        """Take a summary for all rows so far."""
        self._now, self.folded = None, summary
        self._set_mark(None)
        self.rank = self._rank_for(summary)

    def copy(self) -> Stream:
        """Return a stream that goes on by itself."""
        other = copy.copy(self)
        other._held = self._held.copy()
        return other

    def merge(self, other: Stream) -> None:
        """Take another stream's rows, as far as its summary holds them."""
        kept = max(self.settings.kept(self.rank, self.d), other.settings.kept(other.rank, other.d))
        self.folded = merge_summaries(self.folded, other.now(), kept)
        self._now = None  # after the other was asked, for that may be this one
        self.blocks += other.blocks
        self.rank = self._rank_for(self.folded)
        self._set_mark(None)  # what came by merging is no window's own

    def now(self) -> Summary:
        """Return the summary of all rows, those held back too."""
        return self._with_held()[0]

    @property
    def asked(self) -> bool:
        """Whether `now` was asked for since the last rows came."""
        return self._now is not None

    def rank_now(self) -> int:
        """Return the number of components of `now`."""
        return self._with_held()[1]

    def _with_held(self) -> tuple[Summary, int]:
        if self._now is None:
            summary = self._added(self._held.block()) if self._held.rows else self.folded
            self._now = summary, self._rank_for(summary)
        return self._now

    def _fold(self, block: Block) -> None:
        self.folded = self._added(block)
        self.blocks += 1
        self.rank = self._rank_for(self.folded)
        if self.blocks % self.settings.window == 0:
            self._end_window()

    def _added(self, block: Block) -> Summary:
        s, kept = self.settings, self.settings.kept(self.rank, self.d)
        while True:
            summary = fold(
                self.folded, block.rows, kept, weights=block.weights, center=s.center, offset=self._offset,
                forgetting=s.forgetting, rng=np.random.default_rng([s.seed, self.blocks]),
            )  # fmt: skip
            if kept == self.d or len(summary.values) < kept or not self._falls_short(summary):
                return summary
            kept = min(2 * kept, self.d)  # what is cut off now is lost: no later block could bring it back

    def _falls_short(self, summary: Summary) -> bool:
        """Whether a fraction of the variance is wanted that the pairs kept do not hold."""
        wanted = self.settings.n_components
        return isinstance(wanted, float) and float(np.sum(summary.values**2)) < wanted * summary.total

    def _rank_for(self, summary: Summary) -> int:
        wanted = self.settings.n_components
        if isinstance(wanted, int):
            return self.rank
        if isinstance(wanted, float):
            return rank_for_fraction(summary, wanted)
        return rank_in_band(summary.values, self.rank, self.settings.energy)

    def _end_window(self) -> None:
        """Compare this window's own subspace with the last one's: what came in since the mark, in the span kept now."""
        faded = self._mark.faded(self.settings.forgetting ** (self.blocks - self._marked))
        basis, before = self.folded.basis, self.folded.basis.T @ faded.basis * faded.values
        own = np.diag(self.folded.values**2) - before @ before.T
        turn, values = top_eigenvectors(own, min(self.rank, len(own)))
        real = values > 1e-12 * self.folded.values.max(initial=0.0) ** 2  # the rest is what rounding left of the mark
        window, values = basis @ turn[:, real], values[real]
        self.drift = self.drift_loss = None
        if self._window is not None and self._window.shape[1] and len(values):
            self.drift = largest_sine(window, self._window)
            old = basis.T @ self._window
            captured = float(np.einsum("ij,ij->", old, own @ old))
            self.drift_loss = min(max(1.0 - captured / float(values.sum()), 0.0), 1.0)
        self._set_mark(window)

    def _set_mark(self, window: Array | None) -> None:
        self._mark, self._marked, self._window = self.folded, self.blocks, window

    def as_plain(self) -> dict[str, Plain]:
        """Return all of the stream as plain data."""
        settings = {**asdict(self.settings), "energy": list(self.settings.energy)}
        return {
            "d": self.d, "settings": settings, "folded": self.folded.as_plain(), "blocks": self.blocks,
            "rank": self.rank, "drift": [self.drift, self.drift_loss], "held": self._held.as_plain(),
            "window": self._window, "mark": self._mark.as_plain(), "marked": self._marked, "offset": self._offset,
        }  # fmt: skip

    @classmethod
    def from_plain(cls, plain: Any) -> Stream:
        """Return the stream that `as_plain` described."""
        try:
            given = plain["settings"]
            stream = cls(plain["d"], StreamSettings(**{**given, "energy": tuple(given["energy"])}))
            stream.folded, stream._mark = Summary.from_plain(plain["folded"]), Summary.from_plain(plain["mark"])
            stream.blocks, stream.rank = plain["blocks"], plain["rank"]
            stream.drift, stream.drift_loss = plain["drift"]
            stream._offset, stream._marked = plain["offset"], plain["marked"]
            stream._window, stream._held = plain["window"], _Held.from_plain(plain["held"])
        except (LookupError, TypeError, ValueError, AttributeError) as cause:
            raise FileError(f"this is no stream's state, or a damaged one ({cause}); start the stream anew") from cause
        return stream


def rank_in_band(values: Array, rank: int, energy: tuple[float, float]) -> int:
    """Return the rank, moved until sigma_r / (sigma_1 + .. + sigma_r) lies in the band [alpha, beta] (FPCA (15)).

    The ratio falls as r grows, so there is one way to go. Inside the band the rank stays.

    >>> rank_in_band(np.array([5.0, 4.0, 0.5, 0.001]), 4, (0.01, 0.1))
    3
    """
    alpha, beta = energy
    ratios = values / np.maximum(np.cumsum(values), 1e-300)
    rank = max(1, min(rank, len(values)))
    while rank < len(values) and ratios[rank - 1] > beta:
        rank += 1
    while rank > 1 and ratios[rank - 1] < alpha:
        rank -= 1
    return rank


def rank_for_fraction(summary: Summary, fraction: float) -> int:
    """Return the least rank that holds a fraction of the total variance, as far as the pairs kept tell."""
    held = np.cumsum(summary.values**2) >= fraction * summary.total
    return int(np.argmax(held)) + 1 if held.any() else max(len(held), 1)


def largest_sine(u: Array, v: Array) -> float:
    """Return the sine of the largest angle between a subspace and another one, of the smaller dimension of both.

    >>> largest_sine(np.eye(3)[:, :2], np.eye(3)[:, :1])
    0.0
    """
    small, large = (u, v) if u.shape[1] <= v.shape[1] else (v, u)
    rest = small - large @ (large.T @ small)
    return min(float(np.linalg.norm(rest, 2)), 1.0)


def check_settings(settings: StreamSettings) -> None:
    """Refuse settings that no stream could have."""
    s, (alpha, beta) = settings, settings.energy
    wanted = s.n_components
    if isinstance(wanted, str) and wanted != "auto":
        raise ConfigurationError(f"n_components is a number, a fraction in (0, 1) or 'auto', got {wanted!r}")
    if isinstance(wanted, float) and not 0 < wanted < 1:
        raise ConfigurationError(f"a fractional n_components lies in (0, 1), got {wanted}")
    if isinstance(wanted, int) and wanted < 1:
        raise ConfigurationError(f"n_components = {wanted}: expected at least 1")
    if s.block_size < 1 or s.window < 1:
        raise ConfigurationError(f"block_size = {s.block_size} and window = {s.window} are at least 1")
    if s.oversampling is not None and s.oversampling < 0:
        raise ConfigurationError(f"oversampling = {s.oversampling} is not negative")
    if not 0 < s.forgetting <= 1:
        raise ConfigurationError(f"forgetting lies in (0, 1], 1 forgets nothing; got {s.forgetting}")
    if not 0 <= alpha < beta <= 1:
        raise ConfigurationError(f"energy is a band (alpha, beta) with 0 <= alpha < beta <= 1, got {s.energy}")


# ---- rows that wait for their block to be full -----------------------------------------------------------------


class Block(NamedTuple):
    """Rows with their weights."""

    rows: Any
    weights: Array | None


class _Held:
    """Rows held back, all dense or all CSR."""

    def __init__(self) -> None:
        self._parts: list[Block] = []
        self.rows = 0

    def copy(self) -> _Held:
        held = _Held()
        held._parts, held.rows = [*self._parts], self.rows
        return held

    def kind_of(self, rows: Any) -> bool | None:
        """Whether rows are stored as those held back are (None: none are)."""
        if not self._parts:
            return None
        return bool(scipy.sparse.issparse(rows) == scipy.sparse.issparse(self._parts[0].rows))

    def cut(self, rows: Any, weights: Array | None, size: int) -> Iterator[Block]:
        """Yield full blocks, hold back the rest: a copy, for the caller may write over its rows."""
        start, n = 0, rows.shape[0]
        while n - start >= size - self.rows:
            stop = start + size - self.rows
            part = Block(_in_rows(rows[start:stop]), None if weights is None else weights[start:stop])
            yield self._joined(part)
            start = stop
        if start < n:
            self._parts.append(Block(rows[start:].copy(), None if weights is None else weights[start:].copy()))
            self.rows += n - start

    def _joined(self, part: Block) -> Block:
        if not self._parts:
            return part
        self._parts.append(part)
        return self.take()

    def take(self) -> Block:
        """Return what is held back as one block, and hold it no more."""
        block = self.block()
        self._parts, self.rows = [], 0
        return block

    def block(self) -> Block:
        """Return what is held back as one block."""
        parts = [part.rows for part in self._parts]
        rows = parts[0] if len(parts) == 1 else _stacked(parts)
        if all(part.weights is None for part in self._parts):
            return Block(rows, None)
        weights = [np.ones(p.rows.shape[0]) if p.weights is None else p.weights for p in self._parts]
        return Block(rows, np.concatenate(weights))

    def as_plain(self) -> dict[str, Plain] | None:
        if not self.rows:
            return None
        rows, weights = self.block()
        if not scipy.sparse.issparse(rows):
            return {"rows": rows, "weights": weights}
        return {
            "data": rows.data, "indices": rows.indices, "indptr": rows.indptr, "shape": list(rows.shape),
            "weights": weights,
        }  # fmt: skip

    @classmethod
    def from_plain(cls, plain: Any) -> _Held:
        held = cls()
        if plain is not None:
            if "rows" in plain:
                rows = plain["rows"]
            else:
                parts = (plain["data"], plain["indices"], plain["indptr"])
                rows = scipy.sparse.csr_array(parts, shape=tuple(plain["shape"]))
            held._parts, held.rows = [Block(rows, plain["weights"])], rows.shape[0]
        return held


def _in_rows(rows: Any) -> Any:
    """Return rows as they lie in memory once they were held back: products of another layout round otherwise."""
    return rows if scipy.sparse.issparse(rows) else np.ascontiguousarray(rows)


def _stacked(parts: list[Any]) -> Any:
    if scipy.sparse.issparse(parts[0]):
        return scipy.sparse.vstack(parts, format="csr")
    return np.concatenate(parts)
