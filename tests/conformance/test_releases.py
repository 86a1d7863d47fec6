"""Whatever leaves a site passes through its policy: nothing else is in a reply, and the policy has the last word."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from fedspan.data import open_source
from fedspan.data.preprocess import install
from fedspan.encoding import decode
from fedspan.rounds import STEPS, Site
from tests.conformance.solvers import CASES, D, rows_of, solve
from tests.wire import Log, Wire

FOLDS = ("mod_sulq.factor", "mod_sulq.block")  # noise slices as they make them, and send what they fold to
DESCRIBES = "data.describe"  # names, shapes and types: a site's own statement, listed here as the one exception


class Open:
    """A policy that asks for nothing."""

    def admit(self, site, question):
        pass

    def noising(self, site, name, shape, data, block):
        return lambda piece: self.noised(site, {name: piece})[name]

    def clipped(self, site, release):
        return release

    def withholds(self, figure):
        return False

    def check_preparation(self, site, preparation):
        pass

    def row_bounds(self, width, preparation, *, install):
        return None

    def note(self, text):
        pass

    def refusal(self, site, question, error):
        return error


class Recording(Open):
    """A policy that keeps a copy of every part it was shown, and lets it pass."""

    def __init__(self):
        self.shown = {}

    def noised(self, site, parts, about=None):
        copies = {name: np.array(part) for name, part in parts.items()}
        assert all(isinstance(part, np.ndarray) for part in parts.values())
        self.shown.setdefault((site.id, site.round), []).append(copies)
        return parts


class Replacing(Open):
    """A policy that lets nothing pass but a constant."""

    def __init__(self, constant):
        self.constant = constant

    def noised(self, site, parts, about=None):
        return {name: np.full_like(part, self.constant) for name, part in parts.items()}


def guarded(policy, log):
    """The wire, with this policy at every site."""

    def engine(sites, seed):
        for site in sites:
            site.policy = policy
        return Wire(sites, seed, log=log)

    return engine


def leaves(value):
    """The numbers in plain data, one array for each."""
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in leaves(value[key])]
    if isinstance(value, list):
        return [leaf for item in value for leaf in leaves(item)]
    return [np.asarray(value)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_reply_holds_what_the_policy_was_shown_and_nothing_else(case):
    policy, log = Recording(), Log()
    solve(case, engine=guarded(policy, log))
    steps = {(site, number): step for number, step, site, _ in log.asked}
    messages = {(site, number): message for number, _, site, message in log.asked}
    assert len(log.left) > len(rows_of())
    for at, replies in log.left.items():
        if steps[at] == DESCRIBES:
            assert at not in policy.shown
            continue
        if steps[at] in FOLDS:
            slices = np.hstack([parts["gram"] for parts in policy.shown[at]])
            assert slices.shape == (D, D)
            continue
        (shown,), (reply,) = policy.shown[at], replies
        decoded = decode(reply)
        assert decoded["weight"] == 1.0  # a weight would be a release beside the policy
        if (
            isinstance(decoded["value"], dict) and "seq" in decoded["value"]
        ):  # a place in the stream: the question's own
            assert decoded["value"].pop("seq") == messages[at]["slice"]
        released, recorded = leaves(decoded["value"]), leaves(shown)
        assert len(released) == len(recorded)
        for one, other in zip(released, recorded, strict=True):
            np.testing.assert_array_equal(one, other)


def questions():
    """One question of every kind that any solver asks: its step, its message and a site to ask it of."""
    asked = {}
    for case in CASES:
        log = Log()
        solve(case, engine=partial(Wire, log=log))
        for number, step, site, message in log.asked:
            flags = {k: v for k, v in message.items() if isinstance(v, bool | str)} if isinstance(message, dict) else {}
            asked.setdefault((step, str(sorted(flags.items()))), (number, site, message))
    return asked


@pytest.fixture(scope="module")
def asked():
    return questions()


def test_the_questions_cover_every_step_of_the_library(asked):
    learning = {name for name, step in STEPS.items() if step.run.__module__.startswith("fedspan.learners")}
    assert all(STEPS[name].sensitivity is None for name in learning)  # so that a site under a policy refuses them
    masked = {name for name, step in STEPS.items() if step.protocol}  # `tests/conformance/test_secure.py`
    ours = {name for name in STEPS if not name.startswith("tests.")} - learning - masked
    assert {step for step, _ in asked} | {"data.spread"} == ours
    assert len([step for step, _ in asked if step == "fedpower.local_steps"]) >= 8


def test_a_policy_replaces_every_number_of_every_release(asked):
    sites = rows_of()
    for (step, flags), (number, name, message) in asked.items():
        if step in (DESCRIBES, *FOLDS):
            continue
        replies = []
        for constant in (None, 0.0, 7.0):
            site = Site(name, open_source(sites[name]), policy=None if constant is None else Replacing(constant))
            if not step.startswith("data."):
                install(site, {"mean": sites[name].mean(axis=0)})
            site.round = number
            value = STEPS[step].run(site, message).value
            if isinstance(value, dict) and "seq" in value:  # the question's own number
                assert value.pop("seq") == message["slice"]
            replies.append(leaves(value))
        for free, zeros, sevens in zip(*replies, strict=True):
            assert free.any(), (step, flags)
            np.testing.assert_array_equal(zeros, np.zeros_like(free), err_msg=f"{step} {flags}")
            np.testing.assert_array_equal(sevens, np.full_like(free, 7.0), err_msg=f"{step} {flags}")


def test_what_is_folded_is_what_the_policy_let_pass():
    """A reply that is made of noised slices must be made of nothing else."""
    rows = rows_of()["accra"]
    for constant in (0.0, 7.0):
        site = Site("a", open_source(rows), policy=Replacing(constant))
        install(site, {"mean": rows.mean(axis=0)})
        folded = STEPS["mod_sulq.factor"].run(site, {"slice": 5, "rank": 12}).value
        np.testing.assert_allclose(folded @ folded.T, np.full((D, D), constant**2 * D), atol=1e-9)
        message = {"slice": 5, "rank": 12, "merge": "tight", "block": 0, "blocks": 2}
        block = STEPS["mod_sulq.block"].run(site, message).value
        assert set(block) == {"seq", "factor"}
        np.testing.assert_allclose(block["factor"] @ block["factor"].T, np.full((D, D), constant), atol=1e-9)


def test_a_scaling_study_releases_its_squares_through_the_policy():
    policy = Recording()
    site = Site("a", open_source(rows_of()["accra"]), policy=policy)
    site.round = 2
    reply = STEPS["data.spread"].run(site, {"mean": np.zeros(12)})
    (shown,) = policy.shown["a", 2]
    assert reply.value is not None
    np.testing.assert_array_equal(shown["squares"], reply.value)


def test_a_description_holds_no_rows():
    """The one reply that no policy sees is about the data, not of it."""
    log = Log()
    solve(CASES[0], engine=partial(Wire, log=log))
    (number,) = {n for n, step, _, _ in log.asked if step == DESCRIBES}
    for name, rows in rows_of().items():
        value = decode(log.left[name, number][0])["value"]
        assert {"rows", "features", "columns", "dtype", "symmetric", "missing"} == set(value)
        assert (value["rows"], value["features"]) == rows.shape
        assert not any(isinstance(v, np.ndarray) for v in value.values())
