"""What a coordinator may not ask of a site with a policy, field by field."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedspan.data import Preparation
from fedspan.data.arrays import ArraySource
from fedspan.errors import FedspanError, PolicyError
from fedspan.privacy.gaussian import Bounds
from fedspan.rounds import Round, Step, answer
from fedspan.sites import Terms, open_site
from fedspan.solvers.mod_sulq import factor
from fedspan.solvers.problem import multiply
from tests.privacy.test_policy import (
    MOMENTS,
    D,
    ask,
    ask_prepared,
    charges,
    opened,
    preparation,
    private,
    rows,
)


@pytest.mark.parametrize(("step", "message"), [(multiply, np.eye(D)), (factor, {"slice": 2, "rank": 2})])
def test_a_site_that_goes_back_to_its_raw_rows_has_no_bound(step, message):
    site = opened()
    ask(site, 0, "data.prepare", preparation())
    with pytest.raises(PolicyError, match="before the study's preparation"):
        ask(site, 1, step, message)  # of a coordinator that says there was no round before
    assert not charges(site)


@pytest.mark.parametrize("trust", ["local", "central"])
@pytest.mark.parametrize(
    "z", [1e61 * np.eye(D), 1e-61 * np.eye(D), np.full((D, 1), np.nan), np.eye(D, dtype=np.float32)],
    ids=["large", "small", "nan", "narrow"],
)  # fmt: skip
def test_a_matrix_out_of_range_is_refused_before_it_meets_a_row(trust, z):
    with pytest.raises(PolicyError, match="a matrix to multiply with"):
        ask_prepared(opened(privacy=private(trust=trust)), multiply, z)


def test_a_trusted_coordinator_is_not_given_a_sites_own_z_either():
    site = opened(privacy=private(trust="central", site_norm=1.0))
    message = {"z": np.eye(D), "steps": 1, "average": False, "align": None, "gather": True, "per_row": False}
    with pytest.raises(PolicyError, match="keeps its own Z"):
        ask_prepared(site, "fedpower.local_steps", message)


def test_rounds_before_the_first_are_refused(tmp_path):
    with pytest.raises(PolicyError, match="numbered from 0"):
        ask(opened(folder=tmp_path), -2, "data.prepare", preparation())


@pytest.mark.parametrize("columns", [["x", "y", "z", "x"], []])
@pytest.mark.parametrize("step", ["data.moments", "data.spread", "data.prepare"])
def test_columns_are_named_once_in_every_set_up_step(step, columns):
    site = opened(ArraySource(rows(), ("x", "y", "z", "w")), private(row_norm=Bounds(-1, 1)))
    message = {**MOMENTS, "columns": columns} if step == "data.moments" else preparation(columns=columns)
    with pytest.raises(PolicyError, match="names each of its columns once"):
        ask(site, 0, step, message)
    assert not charges(site)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"mean": np.full(D, 1e9)}, "beyond the bound"), ({"fill": np.full(D, 1e9)}, "beyond the bound"),
        ({"mean": np.zeros(D + 1)}, "finite numbers"), ({"fill": np.full(D, np.nan)}, "finite numbers"),
        ({"features": D + 1}, "features"), ({"degree": True}, "no mean"), ({"power": 3.0}, "has no"),
        ({"degree": 1}, "degree is True or False"),
        ({"scale": np.full(D, 1e-9)}, "scales lie between"), ({"norm": 1.5}, "do not let the study tighten"),
        ({"mean": np.zeros(D, dtype=int)}, "finite numbers"), ({"mean": np.zeros(D, dtype=complex)}, "finite numbers"),
        ({"scale": np.full(D, 1e31)}, "scales lie between"), ({"columns": ["x", "y", "z", "w"]}, "have no names"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("step", ["data.spread", "data.prepare"])
def test_what_a_preparation_may_not_say_no_set_up_step_says(step, change, text):
    site = opened(privacy=private(row_norm=Bounds(-1, 1)))
    with pytest.raises(PolicyError, match=text):
        ask(site, 0, step, {**preparation(mean=np.zeros(D)), **change})
    assert not charges(site)


@pytest.mark.parametrize("norm", [2.1, 0.9, True, 1])
def test_the_clip_is_tightened_within_its_limits_only(norm):
    site = opened(privacy=private(row_norm=2.0, adaptive_clip=True))
    with pytest.raises(PolicyError, match="the clip may be tightened to between 1 and 2"):
        ask(site, 0, "data.prepare", preparation(norm=norm))
    ask(site, 0, "data.prepare", preparation(norm=1.5))
    assert site.data.bounds.norm == 1.5


@pytest.mark.parametrize("relation", ["entry", "ppm-12", "site"])
def test_a_clip_of_rows_is_not_tightened_where_nothing_rests_on_it(relation):
    terms = {"neighbours": relation, "row_norm": None, "site_norm": 1.0, "n_public": True, "adaptive_clip": True}
    with pytest.raises(PolicyError, match="do not let the study tighten"):
        ask(opened(privacy=private(**terms)), 0, "data.prepare", preparation(norm=0.0))


LEAST = math.sqrt(private(raw_norm=4.0).least_degree())


def roots(**changes):
    """A preparation by degree."""
    return preparation(**{"degree": True, "scale": np.full(D, LEAST), **changes})


@pytest.mark.parametrize(
    ("change", "terms", "text"),
    [
        ({"scale": None}, {}, "sends the roots"), ({"scale": np.full(D, 0.99 * LEAST)}, {}, "roots of degrees lie"),
        ({"scale": np.array([LEAST] * (D - 1) + [1e31])}, {}, "roots of degrees lie"),
        ({"scale": np.full(D + 1, LEAST)}, {}, "finite numbers"), ({"scale": np.full(D, np.nan)}, {}, "finite numbers"),
        ({"mean": np.zeros(D)}, {}, "by degree has no mean"), ({"fill": np.zeros(D)}, {}, "by degree has no fill"),
        ({}, {"raw_norm": None}, "a raw_norm"), ({}, {"shares": {"degree": 0}}, "no share of the budget"),
        ({}, {"row_norm": Bounds(0, 1)}, "one number"), ({"norm": 1.5}, {"adaptive_clip": True}, "the clip may be"),
        ({}, {"neighbours": "entry", "row_norm": None}, "allow no degree"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("trust", ["local", "central"])
@pytest.mark.parametrize("step", ["data.spread", "data.prepare"])
def test_what_a_preparation_by_degree_may_not_say(step, trust, change, terms, text):
    site = opened(abs(rows()), private(**{"raw_norm": 4.0, "trust": trust, **terms}))
    with pytest.raises(PolicyError, match=text):
        ask(site, 0, step, roots(**change))
    assert not charges(site)


def test_a_site_that_agreed_to_degrees_sees_its_rows_through_them_only():
    agreed = Terms(private(raw_norm=4.0), "run", 1, Preparation(center=False, normalise="degree"))
    for step, message in (
        ("data.moments", {**MOMENTS, "degree": False}), ("data.prepare", preparation()),
        ("data.spread", preparation()), ("data.prepare", preparation(degree=False)),
    ):  # fmt: skip
        site = open_site("a", ArraySource(abs(rows())), seed=0, terms=agreed)
        with pytest.raises(PolicyError, match="not what was agreed on"):
            ask(site, 0, step, message)
        assert not charges(site)
    ask(open_site("a", ArraySource(abs(rows())), seed=0, terms=agreed), 0, "data.prepare", roots())


@pytest.mark.parametrize("change", [{"missing": "mean"}, {"weight_column": "x"}, {"degree": True}])
def test_rows_are_read_as_was_agreed_on_in_the_first_question_too(change, tmp_path):
    for folder in (None, tmp_path):
        terms = Terms(private(), "run", 1, Preparation())
        site = open_site("a", ArraySource(rows(), ("x", "y", "z", "w")), seed=0, folder=folder, terms=terms)
        with pytest.raises(PolicyError, match="not what was agreed on"):
            ask(site, 0, "data.moments", {**MOMENTS, **change})
        assert not charges(site)


# Was a fault once: a site that lost its state sees its data again before `_run` guards what errors say
def test_an_error_on_seeing_the_rows_anew_says_no_more_than_a_code():
    class Failing(ArraySource):
        broken = False

        def blocks(self):
            if self.broken:
                raise ValueError("row 17, column 'income': 'Alice' is no number")
            yield from super().blocks()

    source = Failing(rows())
    source.pass_cost = 2.0
    site = opened(source)
    step = Step("test.restarting", multiply.run, lost="restart", sensitivity=multiply.sensitivity)
    source.broken = True
    question = Round(step, np.eye(D), number=3, parents={"a": 2}, terms={"preparation": preparation()})
    with pytest.raises(FedspanError, match="code ValueError") as error:
        answer(site, question)
    assert "Alice" not in str(error.value)


def test_weights_beyond_one_count_as_one_and_what_is_none_as_nothing_in_the_first_sums():
    data, weights = 0.1 * rows(4, 3), [100.0, np.nan, -5.0, 0.5]
    source = ArraySource(np.column_stack([data, weights]), ("x", "y", "z", "w"))
    site = opened(source, private(trust="central"))
    said = ask(site, 0, "data.moments", {**MOMENTS, "columns": ["x", "y", "z"], "weight_column": "w"})
    assert said["weight"] == 1.5
    np.testing.assert_allclose(said["sums"], data[0] + data[3] / 2)


@pytest.mark.parametrize(
    ("box", "change"),
    [
        ((100, 101), {"mean": None}), ((-0.1, 0.1), {"scale": np.full(D, 1.0)}),
        ((-1, 1), {"mean": np.full(D, -1.0), "scale": np.full(D, 1e6)}),
    ],
)  # fmt: skip
def test_no_row_moves_the_columns_squares_by_more_than_their_bound_however_they_are_asked_for(box, change):
    privacy = private(trust="central", row_norm=Bounds(*box))
    data = np.random.default_rng(0).uniform(*box, (60, D))
    message = {**preparation(mean=np.full(D, sum(box) / 2)), **change}
    got = []
    for some in (data, np.vstack([data, np.full((1, D), box[1])])):
        site = opened(some, privacy)
        got.append(ask(site, 0, "data.spread", message))  # plain, to a trusted coordinator
    bound = privacy.neighbours_of(site.policy.releases.raw).squares()
    assert np.linalg.norm(got[1] - got[0]) <= bound * (1 + 1e-9)
