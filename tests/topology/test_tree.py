"""The tree of merges: the newest of each site, whatever came when, and no node combined twice for nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspan.errors import ConfigurationError
from fedspan.topology import Tree, fan_out_of


class Joined:
    """A way to combine that shows what was combined, in which order and how often."""

    def __init__(self):
        self.calls = []

    def __call__(self, values):
        self.calls.append([value["text"] for value in values])
        return {"seq": 0, "text": "+".join(value["text"] for value in values)}


def value(site, seq):
    return {"seq": seq, "text": f"{site}{seq}"}


def filled(combine, count, **shape):
    tree = Tree(combine, **shape)
    for i in range(count):
        tree.put(f"s{i:04d}", value(f"s{i:04d}.", 1))
    return tree


sites = st.sampled_from("abcdefg")
shapes = st.sampled_from([{}, {"fan_out": 2}, {"fan_out": 3}, {"depth": 1}, {"depth": 3}, {"fan_out": 2, "depth": 3}])


@given(st.lists(st.tuples(sites, st.integers(0, 5), st.booleans()), min_size=1, max_size=30), shapes)
def test_the_root_has_the_newest_of_each_site_in_their_order_whatever_came_when(arrivals, shape):
    """Repeats, losses, late ones, any permutation, and being asked in between: all end in the same root."""
    tree, newest = Tree(Joined(), **shape), {}
    for site, seq, ask in arrivals:
        assert tree.put(site, value(site, seq)) is (seq > newest.get(site, -1))
        newest[site] = max(seq, newest.get(site, -1))
        if ask:
            tree.root()
    assert tree.root()["text"] == "+".join(f"{site}{newest[site]}" for site in sorted(newest))
    in_order = Tree(Joined(), **shape)
    for site in sorted(newest):
        in_order.put(site, value(site, newest[site]))
    assert in_order.root() == tree.root()
    assert in_order.depth == tree.depth


def test_nodes_with_nothing_new_beneath_are_not_combined_again():
    combine = Joined()
    tree = filled(combine, 27, fan_out=3)
    tree.root()
    assert (len(combine.calls), tree.depth) == (9 + 3 + 1, 3)
    combine.calls.clear()
    tree.root()
    tree.put("s0004", value("late", 0))
    tree.put("s0004", value("again", 1))
    tree.root()
    assert combine.calls == []
    tree.put("s0004", value("new", 2))
    tree.root()
    assert [len(call) for call in combine.calls] == [3, 3, 3]  # its own node and those above
    assert combine.calls[0] == ["s0003.1", "new2", "s0005.1"]
    combine.calls.clear()
    tree.put("s0027", value("one more", 1))  # under a fourth node, and that under a fourth level
    assert tree.root()["text"].endswith("+one more1")
    assert ["one more1"] in combine.calls
    assert len(combine.calls) <= 1 + 1


def test_what_was_combined_before_the_last_time_is_forgotten():
    combine = Joined()
    tree = filled(combine, 4, fan_out=2)
    for seq in range(2, 30):
        tree.put("s0000", value("s0000.", seq))
        tree.root()
    assert len(tree._nodes) == 3


def test_one_site_is_combined_once_and_a_last_child_by_itself_is_handed_up():
    combine = Joined()
    tree = filled(combine, 1)
    assert tree.root() == {"seq": 0, "text": "s0000.1"}  # combined: the root always has what `combine` makes
    assert (combine.calls, tree.depth) == ([["s0000.1"]], 1)
    combine = Joined()
    tree = filled(combine, 5, fan_out=2)  # 2 2 1 - 2 1 - 1 1
    assert tree.root()["text"] == "s0000.1+s0001.1+s0002.1+s0003.1+s0004.1"
    assert [len(call) for call in combine.calls] == [2, 2, 1, 2, 2]
    assert tree.depth == 3


def test_a_wide_root_takes_all_at_once():
    combine = Joined()
    tree = filled(combine, 50)
    tree.root()
    assert [len(call) for call in combine.calls] == [50]
    assert tree.depth == 1


def test_a_thousand_sites_in_three_levels_of_ten():
    for shape in ({"fan_out": 10}, {"depth": 3}, {"fan_out": 10, "depth": 3}):
        combine = Joined()
        tree = filled(combine, 1000, **shape)
        tree.root()
        assert (len(combine.calls), tree.depth) == (111, 3)
        assert {len(call) for call in combine.calls} == {10}


@given(st.integers(1, 200), st.integers(1, 6))
def test_a_depth_asks_for_the_least_fan_out_that_holds_all(count, depth):
    fan_out = fan_out_of(count, None, depth)
    assert fan_out**depth >= count
    assert fan_out == 2 or (fan_out - 1) ** depth < count
    assert filled(Joined(), count, depth=depth).root()
    levels = filled(Joined(), count, depth=depth)
    levels.root()
    assert levels.depth <= depth


def test_a_fan_out_of_one_would_never_end():
    assert fan_out_of(5, 1, None) == 2
    assert fan_out_of(1, None, None) == 2
    assert fan_out_of(1, 1, 3) == 2


@pytest.mark.parametrize(("fan_out", "depth", "count"), [(2, 3, 9), (1, 4, 2), (10, 2, 101), (3, 0, 2)])
def test_a_tree_without_room_is_refused(fan_out, depth, count):
    room = fan_out**depth
    text = rf"depth {depth} with fan_out = {fan_out} has room for {room} sites, and there are {count}; give a larger"
    with pytest.raises(ConfigurationError, match=text):
        filled(Joined(), count, fan_out=fan_out, depth=depth).root()
    assert filled(Joined(), room, fan_out=fan_out, depth=depth).root()
