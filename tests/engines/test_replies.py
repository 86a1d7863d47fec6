"""Replies as one vector of numbers: there and back, and what does not fit."""

from __future__ import annotations

import numpy as np
import pytest

from fedspan.engines.replies import Layout
from fedspan.errors import ConvergenceError
from fedspan.rounds import Reply

BLOCK = np.arange(6.0).reshape(3, 2)


@pytest.mark.parametrize(
    "value",
    [BLOCK, {"product": BLOCK, "rows": np.array(7.0)}, {"objective": 2.5}, 3.0, np.array(4.0)],
    ids=["array", "dict", "number in a dict", "number", "array of one"],
)
def test_a_sum_has_the_shape_of_what_it_is_a_sum_of(value):
    reply = Reply(value)
    layout = Layout.of(reply)
    packed = layout.pack("a", reply)
    assert packed.shape == (layout.size,)
    assert packed.dtype == np.float64
    back = layout.unpack(3 * packed)
    for name, part in (value if isinstance(value, dict) else {None: value}).items():
        found = back if name is None else back[name]
        np.testing.assert_array_equal(found, 3 * np.asarray(part))
        assert np.shape(found) == np.shape(part)
    assert set(back) == set(value) if isinstance(value, dict) else not isinstance(back, dict)


def test_parts_lie_one_after_another():
    layout = Layout.of(Reply({"product": BLOCK, "rows": np.array(7.0)}))
    assert layout.parts == [slice(0, 6), slice(6, 7)]
    assert (layout.names, layout.sizes, layout.size) == (["product", "rows"], [6, 1], 7)


def test_a_mean_is_a_sum_of_weighted_values_and_weights():
    replies = [Reply({"a": BLOCK}, weight=1.0), Reply({"a": 3 * BLOCK}, weight=4.0)]
    layout = Layout.of(replies[0], weighted=True)
    total = sum(layout.pack("s", reply) for reply in replies)
    assert total[-1] == 5
    np.testing.assert_allclose(layout.unpack(total)["a"], (1 + 12) / 5 * BLOCK)


@pytest.mark.parametrize("other", [BLOCK.T, {"product": BLOCK}, BLOCK[:, :1]])
def test_another_shape_names_the_site(other):
    with pytest.raises(
        ConvergenceError, match=r"site 'cairo' replies .* where others reply an array of shape \(3, 2\)"
    ):
        Layout.of(Reply(BLOCK)).pack("cairo", Reply(other))
