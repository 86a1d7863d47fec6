"""What a stream of rows accepts: sources, their blocks, weights; what could not be folded later is refused now."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse

from fedspan.data import Source, open_source
from fedspan.data.source import to_host
from fedspan.encoding import Array
from fedspan.errors import DataError


def checked_source(data: Any, model: Any) -> Source:
    """Open a source of rows; its columns must be those of the ``model`` that streams already (None: there is none)."""
    source = open_source(data)
    if source.symmetric:
        raise DataError("a share of a symmetric matrix has no rows to stream; give the rows, or take FederatedPCA")
    if model is None:
        return source
    if source.shape[1] != model.n_features_in_:
        raise DataError(f"the data has {source.shape[1]} columns, and the stream {model.n_features_in_}")
    known, names = getattr(model, "feature_names_in_", None), source.columns
    if known is not None and names is not None and list(known) != list(names):
        raise DataError(
            f"the data's columns are {list(names)[:5]}, and the stream's {list(known)[:5]}; put them in order"
        )
    return source


def blocks_of(source: Source) -> Iterator[tuple[Any, Array | None]]:
    """Yield the blocks of a source with their weights."""
    weights, start = source.weights, 0
    for block in source.blocks():
        block = block if scipy.sparse.issparse(block) else to_host(block)
        stop = start + block.shape[0]
        part = None if weights is None else np.asarray(weights[start:stop], dtype=float)
        if source.site_weight != 1:
            part = np.full(stop - start, source.site_weight) if part is None else source.site_weight * part
        yield block, part
        start = stop


def checked_weights(given: Any, rows: int) -> Array | None:
    """Return a weight for each row, None where none is given; refuse what is no weight."""
    if given is None:
        return None
    weights = np.asarray(given, dtype=float)
    if weights.ndim == 0:
        weights = np.full(rows, weights)
    if weights.shape != (rows,) or not np.all(np.isfinite(weights)) or weights.min(initial=0.0) < 0:
        raise DataError(f"sample_weight has a finite number, 0 or more, for each of {rows} rows; got {given!r:.80}")
    return weights


def check_size(X: Any, weights: Array | None) -> None:
    """Refuse numbers whose squares overflow before any of the rows waits for its block: that could not be folded."""
    entries = X.data if scipy.sparse.issparse(X) else X
    if entries.size == 0:
        return
    largest = max(float(np.max(entries)), -float(np.min(entries)))
    if np.isnan(largest):
        largest = float(np.max(np.abs(entries), initial=0.0, where=~np.isnan(entries)))
    heaviest = 1.0 if weights is None else float(weights.max(initial=1.0))
    if max(largest, 1.0) * math.sqrt(heaviest) > 1e140:
        raise DataError(
            f"the rows have values as large as {largest:.3g} and weights up to {heaviest:.3g}, whose squares overflow; "
            f"rescale the columns or the weights"
        )
