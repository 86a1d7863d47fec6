"""A stream's rows before they are folded: what becomes of one does not depend on how rows are cut into blocks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspan.cli.stream_rows import Columns, Gaps
from fedspan.encoding import decode, encode
from fedspan.errors import DataError

values = st.sampled_from([1.0, 2.0, -3.5, 1e8, 0.1, np.nan, np.nan, np.inf, -1e200])


@given(
    rows=st.lists(st.tuples(values, values, values), min_size=1, max_size=12),
    cuts=st.sets(st.integers(0, 12)),
    policy=st.sampled_from(["error", "mean", "skip"]),
)
def test_blocks_do_not_matter(rows: list[tuple[float, ...]], cuts: set[int], policy: str) -> None:
    table = np.array(rows)
    whole, faults = Gaps(3, policy).met(table)
    gaps, parts, refused = Gaps(3, policy), [], []
    edges = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    for start, stop in pairwise(edges):
        part, found = gaps.met(table[start:stop])
        parts.append(part)
        refused += [start + row for fault in found for row in fault.rows]
        gaps = Gaps.from_plain(decode(encode(gaps.as_plain())))
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert sorted(refused) == sorted(row for fault in faults for row in fault.rows)
    assert np.isfinite(whole).all()
    assert len(whole) + len(refused) + gaps.skipped == len(rows)


def test_each_policy_by_hand() -> None:
    nan = np.nan
    table = np.array([[nan, 1], [2, nan], [4, 3], [nan, nan], [np.inf, 7]])
    rows, faults = Gaps(2, "mean").met(table)
    np.testing.assert_array_equal(rows, [[2, 1], [4, 3], [3, 2]])
    assert [(fault.rows.tolist(), fault.columns.tolist(), fault.why) for fault in faults] == [
        ([4], [0], "infinite values, or ones whose squares are"),
        ([0], [0], "missing values before any value came"),
    ]
    skip = Gaps(2, "skip")
    rows, faults = skip.met(table)
    assert (rows.tolist(), skip.skipped, len(faults)) == ([[4, 3]], 3, 1)
    rows, faults = Gaps(2, "error").met(table)
    assert (rows.tolist(), faults[1].rows.tolist(), faults[1].columns.tolist()) == ([[4, 3]], [0, 1, 3], [0, 1])


def test_values_too_large_to_be_squared() -> None:
    table = np.array([[1e140, -1e139], [-2e140, 1], [1, np.nan]])
    for policy in ("error", "mean"):
        rows, faults = Gaps(2, policy).met(table)
        assert rows[0].tolist() == [1e140, -1e139]
        assert faults[0].rows.tolist() == [1]
    rows, faults = Gaps(2, "skip", weight=100.0).met(table / 10)
    assert (len(rows), faults[0].rows.tolist()) == (1, [1])


def test_columns_are_those_of_the_first_site_or_those_listed() -> None:
    columns = Columns()
    assert columns.places(("a", "b", "c"), 3) is None
    assert columns.places(("c", "a", "b"), 3) == [1, 2, 0]
    for names, text in [
        (("a", "b", "d"), r"lacks \['c'\], adds \['d'\]; known: d"),
        (("a", "b"), r"lacks \['c'\], adds \[\]"),
        (None, "its columns have no names, unlike the study's"),
        (("a", "b", "c", "a"), r"columns \['a'\] are there more than once"),
    ]:
        with pytest.raises(DataError, match=text):
            columns.places(names, 3)
    assert Columns(("b", "a")).places(("a", "b"), 2) == [1, 0]


def test_columns_without_names_are_as_many() -> None:
    columns = Columns()
    assert columns.places(None, 3) is None
    assert columns.places(None, 3) is None
    with pytest.raises(DataError, match="it has 2 columns, the study 3"):
        columns.places(None, 2)
    with pytest.raises(DataError, match="its columns have names, unlike"):
        columns.places(("a", "b", "c"), 3)
