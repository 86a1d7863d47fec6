"""Which columns a study uses, and which site is at fault where they do not fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspan.data.align import align_columns
from fedspan.errors import DataError

names = st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True)
federations = st.dictionaries(st.sampled_from(["s1", "s2", "s3", "s4"]), names, min_size=1)


def described(lists):
    return {site: (columns, len(columns)) for site, columns in lists.items()}


@given(names, st.data())
def test_strict_takes_any_order_and_keeps_the_first(columns, data):
    lists = {"a": columns, "b": data.draw(st.permutations(columns)), "c": data.draw(st.permutations(columns))}
    assert align_columns(described(lists), "strict") == columns


@given(federations)
def test_union_holds_every_column_once(lists):
    union = align_columns(described(lists), "union-zero")
    assert len(union) == len(set(union))
    assert set(union) == set().union(*lists.values())
    first = next(iter(lists.values()))
    assert union[: len(first)] == first


@given(federations)
def test_intersection_holds_what_all_have(lists):
    shared = set.intersection(*map(set, lists.values()))
    if not shared:
        with pytest.raises(DataError, match="the sites share no column"):
            align_columns(described(lists), "intersect")
        return
    found = align_columns(described(lists), "intersect")
    assert set(found) == shared
    first = next(iter(lists.values()))
    assert found == [name for name in first if name in shared]


def test_strict_names_the_site_and_the_columns():
    lists = {"berlin": ["age", "mass"], "lyon": ["age", "mass"], "turin": ["age", "height"]}
    with pytest.raises(DataError, match=r"site 'turin' has other columns than site 'berlin': lacks mass, adds height"):
        align_columns(described(lists), "strict")
    many = {"berlin": ["a"], "lyon": ["a", *(f"c{i}" for i in range(9))]}
    with pytest.raises(DataError, match=r"lacks none, adds c0, c1, c2, c3, c4 and 4 more; set columns = \"intersect\""):
        align_columns(described(many), "strict")


@pytest.mark.parametrize("mode", ["strict", "intersect", "union-zero"])
def test_columns_without_names(mode):
    assert align_columns({"a": (None, 3), "b": (None, 3)}, mode) is None
    with pytest.raises(DataError, match=r"site 'b' has 4 columns, site 'a' has 3; without column names"):
        align_columns({"a": (None, 3), "b": (None, 4)}, mode)
    with pytest.raises(DataError, match=r"site 'b' has no column names but 'a' does"):
        align_columns({"a": (["x"], 1), "b": (None, 1)}, mode)
