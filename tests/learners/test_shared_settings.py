"""What learners share: settings, the registry, batches, classes as numbers, when the loss stalls."""

from __future__ import annotations

import numpy as np
import pytest

from fedspan.errors import ConfigurationError
from fedspan.learners import HFMAML, LEARNERS, FedAvg, FedRep, LGFedAvg, make_learner
from fedspan.learners.model import class_numbers
from fedspan.learners.rows import Rows, batches
from fedspan.learners.task import stalled

every = pytest.mark.parametrize("kind", LEARNERS.values(), ids=LEARNERS)


@every
@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"rounds": 0}, "rounds and epochs are at least 1, batch is 0 .all rows. or more; got 0, "),
        ({"epochs": 0}, "rounds and epochs are at least 1"),
        ({"batch": -1}, "batch is 0 .all rows. or more"),
        ({"rounds": 2.5}, "rounds is an integer, got 2.5"),
        ({"batch": True}, "batch is an integer, got True"),
        ({"rate": 0}, "rate is positive and momentum lies in"),
        ({"rate": float("nan")}, "rate is a finite number"),
        ({"rate": "fast"}, "rate is a finite number, got 'fast'"),
        ({"momentum": 1.0}, "rate is positive and momentum lies in"),
        ({"momentum": -0.1}, "rate is positive and momentum lies in"),
        ({"stall": 0.0}, r"stall is a part of the loss in \(0, 1\), or None; got 0.0"),
        ({"stall": 1}, r"stall is a part of the loss in \(0, 1\), or None; got 1.0"),
        ({"stall": "yes"}, "stall is a finite number, got 'yes'"),
        ({"by_rows": 1}, "by_rows is true or false, got 1"),
    ],
)
def test_settings_that_no_learner_takes_are_refused(kind, settings, text):
    with pytest.raises(ConfigurationError, match=text):
        kind(**settings)


@every
def test_numpys_numbers_are_as_good_as_pythons(kind):
    learner = kind(rounds=np.int64(3), rate=np.float32(0.5), batch=np.int32(0))
    assert (learner.rounds, learner.rate, learner.batch) == (3, 0.5, 0)
    assert {type(learner.rounds), type(learner.rate)} == {int, float}


@every
def test_whose_part_is_whose_is_the_methods_to_say(kind):
    with pytest.raises(TypeError):
        kind(own="body")
    wanted = {FedRep: ("head", 1), LGFedAvg: ("body", 2), FedAvg: ("none", 1), HFMAML: ("none", 1)}
    assert (kind().own, kind().head_layers) == wanted[kind]
    assert kind().partial


def test_the_papers_settings_are_the_defaults():
    """Appendix C: rate 0.1, momentum 0.5, batch 10; HF-MAML has no momentum."""
    for kind in (FedRep, LGFedAvg, FedAvg):
        assert kind().descent == (0.1, 0.5, 10, 1)
    assert HFMAML().descent == (0.1, 0.0, 10, 1)
    assert FedRep().head_epochs == 5
    assert (FedAvg().by_rows, FedRep().by_rows, LGFedAvg().by_rows, HFMAML().by_rows) == (True, False, False, False)


def test_the_registry_makes_learners_and_names_what_is_near():
    assert make_learner("lg-fedavg", rounds=3) == LGFedAvg(rounds=3)
    with pytest.raises(ConfigurationError, match="there is no learner 'fedrap'; did you mean 'fedrep'"):
        make_learner("fedrap")
    with pytest.raises(ConfigurationError, match="'fedrep' has no setting 'head_epoch'; did you mean 'head_epochs'"):
        make_learner("fedrep", head_epoch=3)
    with pytest.raises(ConfigurationError, match="'fedrep' has no setting 'own'"):
        make_learner("fedrep", own="body")


def test_tuning_is_the_descent_but_for_maml_its_own_step():
    assert FedRep(rate=0.3).tuning == FedRep(rate=0.3).descent
    assert HFMAML(inner=0.05, momentum=0.4).tuning == (0.05, 0.0, 10, 1)


@pytest.mark.parametrize(("rows", "size", "lengths"), [(10, 3, [3, 3, 3, 1]), (6, 3, [3, 3]), (2, 5, [2]), (4, 0, [4])])
def test_batches_have_every_row_once(rows, size, lengths):
    whole = Rows(np.arange(rows)[:, None], np.arange(rows))
    some = list(batches(whole, size, np.random.default_rng(0)))
    assert [len(part.y) for part in some] == lengths
    assert sorted(np.concatenate([part.y for part in some]).tolist()) == list(range(rows))
    for part in some:
        np.testing.assert_array_equal(part.X[:, 0], part.y)


def test_batches_come_in_an_order_that_is_drawn_and_a_single_one_as_it_is():
    whole = Rows(np.arange(50)[:, None], np.arange(50))
    rng = np.random.default_rng(0)
    first, second = (np.concatenate([part.y for part in batches(whole, 7, rng)]) for _ in range(2))
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, np.arange(50))
    assert next(batches(whole, 0, rng)) is whole


def test_labels_are_numbered_by_the_order_of_classes_and_strangers_are_minus_one():
    np.testing.assert_array_equal(class_numbers(np.array([9, 3, 10, 2, 3]), [3, 9]), [1, 0, -1, -1, 0])
    np.testing.assert_array_equal(class_numbers(np.array(["b", "aa", "z"]), ["a", "b"]), [1, -1, -1])
    np.testing.assert_array_equal(class_numbers(np.array([True, False]), [False, True]), [1, 0])


@pytest.mark.parametrize(
    ("losses", "stall", "expected"),
    [
        ([2, 2, 2, 1, 1, 1], 0.4, False),  # 1 is half of 2
        ([2, 2, 2, 1, 1, 1], 0.6, True),
        ([9, 9, 1, 1, 1, 1, 1, 1], 0.01, True),  # only the last six count
        ([1, 1, 1, 1, 1], 0.5, False),  # too few
        ([1, 1, 1, 2, 2, 2], 0.1, True),  # it rises
        ([1, 1, 1, 1, 1, 1], None, False),
    ],
)
def test_the_loss_stalls_where_three_rounds_gain_too_little_on_the_three_before(losses, stall, expected):
    assert stalled(losses, stall) is expected
