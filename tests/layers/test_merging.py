"""The layer beneath `Merge` rounds: what it remembers, and what the layers and engines under it see."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
import pytest

from fedspan.errors import ConfigurationError
from fedspan.layers import merging
from fedspan.rounds import STEPS, Gather, Merge, Outcome, Round, Sum, drive


@dataclass
class Total:
    """Sums what sites counted up to, and notes what it was given."""

    calls: list[list[int]] = field(default_factory=list)

    def __call__(self, values):
        self.calls.append([value["count"] for value in values])
        return {"seq": 0, "count": sum(value["count"] for value in values)}


def counted(site, seq):
    return {"seq": seq, "count": {"a": 1, "b": 10, "c": 100, "d": 1000}[site] * seq}


def run_rounds(arrivals, reduce):
    """Ask once for each arrival (sites with their sequence numbers) and return what the solver was given."""

    def solve():
        given = []
        for _ in arrivals:
            outcome = yield Round(STEPS["streaming.advance"], None, reduce)
            given.append(outcome.value["count"])
        return given

    answers = iter(arrivals)

    def execute(question):
        assert isinstance(question.reduce, Gather)
        values = {site: counted(site, seq) for site, seq in next(answers)}
        return Outcome(values, sorted(values), 7, 9)

    return drive(merging(solve()), execute)


def test_every_site_counts_with_its_newest_whichever_round_that_came_in():
    arrivals = [[("a", 1)], [("b", 1), ("c", 1)], [("a", 2)], [("b", 1)], [("c", 3), ("d", 1)], [("a", 1)]]
    assert run_rounds(arrivals, Merge(Total())) == [1, 111, 112, 112, 1312, 1312]


@pytest.mark.parametrize("fan_out", [None, 2, 3])
def test_permutations_repeats_and_losses_end_in_the_same(fan_out):
    letters = [("a", 1), ("a", 2), ("b", 1), ("c", 1), ("c", 2)]
    for order in itertools.permutations(letters):
        arrivals = [[letter] for letter in [*order, order[0]]]
        assert run_rounds(arrivals, Merge(Total(), fan_out))[-1] == 212
    assert run_rounds([[("a", 2)], [("c", 2), ("b", 1)]], Merge(Total(), fan_out))[-1] == 212


def test_nodes_above_sites_without_news_are_as_they_were():
    combine = Total()
    everyone = [(site, 1) for site in "abcd"]
    run_rounds([everyone, everyone, [("d", 2)]], Merge(combine, fan_out=2))
    assert combine.calls == [[1, 10], [100, 1000], [11, 1100], [100, 2000], [11, 2100]]


def test_the_solver_gets_the_root_with_all_else_that_came_of_the_round():
    outcomes = []

    def solve():
        outcomes.append((yield Round(STEPS["streaming.advance"], "message", Merge(Total()))))

    given = Outcome({"a": counted("a", 3)}, ["a"], 7, 9)
    seen = []
    drive(merging(solve()), lambda question: seen.append(question) or given)
    assert outcomes == [given._replace(value={"seq": 0, "count": 3})]
    assert (seen[0].message, seen[0].reduce) == ("message", Gather())


def test_other_rounds_pass_as_they_are_and_each_step_has_a_tree_of_its_own():
    seen = []

    def solve():
        plain = yield Round(STEPS["gram.multiply"], np.eye(2), Sum())
        first = yield Round(STEPS["streaming.advance"], None, Merge(Total()))
        other = yield Round(STEPS["mod_sulq.block"], None, Merge(Total()))
        again = yield Round(STEPS["streaming.advance"], None, Merge(Total()))
        return [plain.value, first.value["count"], other.value["count"], again.value["count"]]

    replies = iter([5.0, {"a": counted("a", 1)}, {"b": counted("b", 1)}, {"c": counted("c", 1)}])

    def execute(question):
        seen.append(type(question.reduce))
        return Outcome(next(replies), ["a"], 0, 0)

    assert drive(merging(solve()), execute) == [5.0, 1, 10, 101]
    assert seen == [Sum, Gather, Gather, Gather]


def test_a_tree_without_room_is_refused():
    with pytest.raises(ConfigurationError, match="has room for 2 sites, and there are 3"):
        run_rounds([[("a", 1), ("b", 1)], [("c", 1)]], Merge(Total(), fan_out=2, depth=1))


def test_what_a_round_came_to_is_said_by_the_solver_that_returns():
    def solve():
        yield Round(STEPS["streaming.advance"], None, Merge(Total()))
        return "done"

    assert drive(merging(solve()), lambda _: Outcome({"a": counted("a", 1)}, ["a"], 0, 0)) == "done"
