"""What is wrong with a site's columns, in words: by name, the first few, with the way out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedspan.data.aligned import Aligned
from fedspan.data.columns import any_in_columns, lowest_entry
from fedspan.data.source import Source
from fedspan.encoding import Array
from fedspan.errors import DataError

if TYPE_CHECKING:
    from fedspan.data.preprocess import Preparation


NEGATIVE = 'negative entries, which normalise = "degree" cannot take the root of'


def check_present(present: Array, weight: float, columns: list[str] | None) -> None:
    """Refuse columns that no site has a value in: they have no mean to fill them with."""
    empty = present <= 1e-12 * weight  # with weights, what is left of their sum less the gaps' is rounding
    if empty.any():
        raise DataError(
            f"every site misses all values in column {_listed(empty, columns)}, so there is no mean to fill them with; "
            "leave these columns out with drop"
        )


def check_rows(source: Source, preparation: Preparation) -> None:
    """Refuse rows that a private study could not use, at the site and before its first round.

    Within the run an error would tell the coordinator something that no noise covers; there such entries count as
    nothing.
    """
    aligned = Aligned(source, None, None, preparation.weight_column)  # refuses bad weights as it reads them
    with_gaps = preparation.missing == "mean"
    bad = np.zeros(aligned.width, dtype=bool)
    for block, _ in aligned.rows():
        bad |= any_in_columns(block, "isinf")
        bad |= any_in_columns(block, "isnan") & (not with_gaps)
    if bad.any():
        names = None if source.columns is None else list(source.columns)
        raise DataError(f"it has {unusable(aligned, bad, names, with_gaps)}")
    if preparation.normalise == "degree" and any(lowest_entry(block) < 0 for block, _ in aligned.rows()):
        raise DataError(f"it has {NEGATIVE}")


def unusable(aligned: Aligned, bad: Array, columns: list[str] | None, with_gaps: bool) -> str:
    """Return what is wrong with columns whose sums are not finite, and the way out: one more look at the rows."""
    infinite, missing = np.zeros(len(bad), dtype=bool), np.zeros(len(bad), dtype=bool)
    for block, _ in aligned.rows():
        infinite |= any_in_columns(block, "isinf")
        missing |= any_in_columns(block, "isnan")
    missing &= not with_gaps
    large = bad & ~infinite & ~missing
    found = []
    if infinite.any():
        found.append(f"infinite values in column {_listed(infinite, columns)}; remove or replace them")
    if missing.any():
        cure = 'set missing = "mean", or drop these columns or rows'
        found.append(f"NaN (missing values) in column {_listed(missing, columns)}; {cure}")
    if large.any():
        found.append(f"values so large that their sum overflows in column {_listed(large, columns)}; rescale them")
    return ". It has ".join(found)


def _listed(which: Array, columns: list[str] | None) -> str:
    """Return the first few of some columns, by name or number."""
    at = np.flatnonzero(which)
    some = ", ".join(repr(str(i) if columns is None else columns[i]) for i in at[:5])
    return some + (f" and {len(at) - 5} more" if len(at) > 5 else "")
