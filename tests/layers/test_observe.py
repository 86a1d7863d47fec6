"""What a watcher is told."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from fedspan.layers import RoundRecord, observe
from fedspan.linalg import orth
from fedspan.metrics import projection_distance
from fedspan.rounds import STEPS, Gather, Mean, Outcome, Round, Sum, drive, numbered


def watched(estimates, reduces=None, outcome=None):
    """Run a solver that asks with these estimates, and return what a watcher saw."""
    seen = []

    def solve():
        for i, estimate in enumerate(estimates):
            step = STEPS["data.describe" if estimate is None else "gram.multiply"]
            yield Round(step, np.eye(2), Sum() if reduces is None else reduces[i], estimate=estimate)
        return "done"

    given = outcome or (lambda question: Outcome(question.number, ["a", "b"], 10, 20))
    layer = observe(numbered(solve()), lambda record, estimate: seen.append((record, estimate)))
    assert drive(layer, given) == "done"
    return seen


def test_a_record_a_round():
    basis = np.eye(4)[:, :2]
    seen = watched([None, basis, basis])
    records = [record for record, _ in seen]
    assert all(isinstance(record, RoundRecord) for record in records)
    assert [r.round for r in records] == [0, 1, 2]
    assert [r.step for r in records] == ["data.describe", "gram.multiply", "gram.multiply"]
    assert [r.setup for r in records] == [True, False, False]
    assert [(r.sites, r.bytes_up, r.bytes_down) for r in records] == [(2, 10, 20)] * 3
    assert all(r.seconds >= 0 for r in records)
    assert [estimate is basis for _, estimate in seen] == [False, True, True]


def test_what_was_aggregated_is_said():
    basis = np.eye(4)[:, :2]
    seen = watched([basis] * 3, [Sum(), Mean(), Gather()])
    assert [record.aggregate for record, _ in seen] == ["sum", "mean", "gather"]


def test_change_is_the_largest_angle_to_the_estimate_before():
    rng = np.random.default_rng(0)
    bases = [orth(rng.standard_normal((6, 2))) for _ in range(4)]
    changes = [record.change for record, _ in watched([bases[0], None, *bases[1:]])]
    assert changes[:2] == [None, None]
    expected = [projection_distance(a, b) for a, b in pairwise(bases)]
    np.testing.assert_allclose(changes[2:], expected, atol=1e-12)


def test_no_change_is_zero_and_no_columns_are_no_error():
    basis = np.eye(5)[:, :2]
    changes = [record.change for record, _ in watched([basis, basis, basis[:, :0], basis])]
    assert changes[1] == 0
    assert changes[2] == 0


def test_every_watcher_is_told():
    counts = [0, 0]

    def solve():
        yield Round(STEPS["gram.multiply"])

    def counter(i):
        def watch(record, estimate):
            counts[i] += 1

        return watch

    drive(observe(numbered(solve()), counter(0), counter(1)), lambda q: Outcome(None, [], 0, 0))
    assert counts == [1, 1]


def test_a_watcher_that_fails_stops_the_run():
    def watch(record, estimate):
        raise KeyboardInterrupt

    def solve():
        yield Round(STEPS["gram.multiply"])

    with pytest.raises(KeyboardInterrupt):
        drive(observe(numbered(solve()), watch), lambda q: Outcome(None, [], 0, 0))
