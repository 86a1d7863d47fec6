"""Each release has noise of its own and a charge of its own; the same one again has the same, and none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedspan.data.preprocess import moments, prepare
from fedspan.engines import InProcess
from fedspan.errors import BudgetExhausted, FedspanError, PolicyError
from fedspan.privacy.gaussian import Bounds
from fedspan.privacy.mechanisms import FLOAT_SLACK, tight_scale
from fedspan.privacy.releases import Releases
from fedspan.privacy.secret import Secret
from fedspan.rounds import Reply, Round, Step, Sum, drive
from fedspan.solvers.problem import multiply, multiply_counted
from tests.privacy.test_mechanisms import variance_agrees
from tests.privacy.test_policy import (
    MOMENTS,
    D,
    accounted,
    ask,
    ask_prepared,
    bounded,
    charges,
    opened,
    preparation,
    private,
    released,
    sigma,
)


def test_the_rounding_of_each_of_a_persons_rows_is_counted():
    site = opened(privacy=private(rows_per_person=8))
    ask_prepared(site, multiply, np.eye(D))
    mu = math.sqrt(site.policy.releases.limit)
    assert sigma(site) == tight_scale(8.0, mu, 1, D * D, 1, "grid", people=8).sigma


@pytest.mark.parametrize("seed", [None, 1])
def test_sites_rounds_and_parts_have_noise_of_their_own(seed):
    words = []
    for who in ("a", "b"):
        releases = Releases(private(testing_seed=seed), run="run", who=who, sites=2)
        releases.set_bounds(D, preparation(), install=True)
        releases.accept({"releases": 9})
        for number in (1, 2):
            question, zeros = Round(multiply_counted, np.eye(D), number=number), np.zeros(())
            tag = releases.charge(question, {"product": (), "rows": ()}, values={"product": zeros, "rows": zeros})[1]
            words += [releases.stream(question, part, tag).bits(1)[0] for part in ("product", "rows")]
    assert len(set(words)) == 8


def test_slices_have_noise_of_their_own():
    def slices(site, message):
        noised = site.noising("gram", (2, 40))
        return Reply(np.stack([noised(np.zeros(40)) for _ in range(2)]))

    step = Step("test.slices", slices, sensitivity=lambda message, near, shapes: {"gram": 1.0})
    one, other = ask_prepared(opened(privacy=private(testing_seed=None)), step, None)
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.9


@pytest.mark.parametrize("way", ["whole", "in slices"])
def test_a_round_that_failed_after_its_charge_is_not_asked_again(way):
    """Were it answered, whether it costs again would tell whether its values are as before."""

    def failing(site, message):
        site.noised(a=np.zeros(2)) if way == "whole" else site.noising("a", (2,))
        raise ValueError("the disk is gone")

    site = opened()
    ask(site, 0, "data.prepare", preparation(privacy={"releases": 9}))
    step = Step("test.failing", failing, sensitivity=lambda message, near, shapes: {"a": 1.0})
    with pytest.raises(FedspanError, match="code ValueError"):
        ask(site, 1, step, None, parent=0)
    with pytest.raises(PolicyError, match="released before"):
        ask(site, 1, step, None, parent=0)
    assert len(charges(site)) == 1


CHANGED = {
    "other rows": (np.zeros((7, D)), {}),
    "another preparation": (np.zeros((3, D)), {"mean": np.zeros(D)}),
}


@pytest.mark.parametrize("step", ["gram.multiply", "mod_sulq.factor"])
@pytest.mark.parametrize("change", CHANGED)
def test_a_site_that_lost_its_memory_pays_again_for_what_is_not_the_same_release(tmp_path, step, change):
    """Of zeros, so that the values are the same: only the rows or what they are seen through differ."""
    message = np.eye(D) if step == "gram.multiply" else {"slice": 2, "rank": D}
    privacy = private(testing_seed=None)
    ask_prepared(opened(np.zeros((3, D)), privacy, folder=tmp_path), step, message)
    (tmp_path / "a" / "memory").unlink()
    same = opened(np.zeros((3, D)), privacy, folder=tmp_path)
    ask_prepared(same, step, message)
    assert len(charges(same)) == 1
    (tmp_path / "a" / "memory").unlink()
    data, other = CHANGED[change]
    with pytest.raises(BudgetExhausted):  # the first took the whole
        ask_prepared(opened(data, privacy, folder=tmp_path), step, message, **other)


def trusted(**terms):
    """A trusted coordinator's releases, prepared for two products."""
    releases = Releases(private(trust="central", testing_seed=None, **terms), run="run", who="", sites=1)
    releases.set_bounds(D, preparation(), install=True)
    releases.accept({"releases": 2})
    return releases


def released_by(releases, value, number=1, z=1.0):
    question = Round(multiply, z * np.eye(D), number=number)
    return releases.release(question, {"product": np.full((D, D), value)})["product"]


def test_a_trusted_coordinator_gives_the_same_sum_the_same_noise_and_charges_once():
    releases = trusted()
    assert released_by(releases, 0.0).tobytes() == released_by(releases, 0.0).tobytes()
    assert len(releases.ledger.charges()) == 1


@pytest.mark.parametrize("other", [{"value": 1.0}, {"value": 0.0, "number": 2}, {"value": 0.0, "z": -1.0}])
def test_a_trusted_coordinator_gives_another_sum_other_noise_and_charges_again(other):
    releases = trusted()
    first, second = released_by(releases, 0.0), released_by(releases, **other)
    assert len(releases.ledger.charges()) == 2
    assert not np.any(np.isclose(second - other["value"], first))


def test_noise_of_another_deviation_is_no_multiple_of_what_was_given():
    """Where a value left with one noise and a multiple of it, it could be solved for."""
    releases = trusted(row_norm=Bounds(0, 1))
    first, before = released_by(releases, 0.0), releases.neighbours.bound
    releases.set_bounds(D, preparation(mean=np.full(D, 0.5)), install=True)
    second, after = released_by(releases, 0.0), releases.neighbours.bound
    assert after < before
    assert np.mean(np.isclose(second * (before / after) ** 2, first, rtol=1e-3)) < 0.5  # one may be near by chance
    assert len(releases.ledger.charges()) == 2


@pytest.mark.parametrize("arithmetic", ["grid", "float"])
def test_no_entry_of_a_release_is_anything_but_a_number(arithmetic):
    step = bounded({"a": 1.0}, a=np.array([np.nan, np.inf, 1.0]))
    got = ask_prepared(opened(privacy=private(arithmetic=arithmetic)), step, None)
    assert np.all(np.isfinite(got))


def test_sites_and_runs_that_shared_a_secret_would_have_noise_of_their_own():
    secret, tags = Secret(), []
    for run, who in (("one", "a"), ("one", "b"), ("two", "a")):
        releases = Releases(private(testing_seed=None), run=run, who=who, sites=2, secret=secret)
        releases.set_bounds(D, preparation(), install=True)
        releases.accept({"releases": 1})
        tags.append(releases.charge(Round(multiply, np.eye(D), number=1), {"product": (D, D)})[1])
    assert len(set(tags)) == 3


@pytest.mark.parametrize("trust", ["local", "distributed", "central"])
def test_set_up_sums_have_the_noise_of_their_trust(trust):
    privacy, room = private(trust=trust, row_norm=2.0), 1 + 2 * FLOAT_SLACK
    got = [released(privacy, MOMENTS, moments, sites=4, d=200, seed=s) for s in range(60)]
    root = 2.0 if trust == "local" else 1.0
    assert variance_agrees(np.stack([g["sums"] for g in got]), 2 * root / (privacy.mu * math.sqrt(0.1)), room)
    assert variance_agrees([g["weight"] - 12 for g in got], root / (privacy.mu * math.sqrt(0.02)), room)
    totals = [released(privacy, preparation(2, total=True), prepare, sites=4, d=2, seed=s) for s in range(60)]
    assert variance_agrees(totals, 4 * root / (privacy.mu * math.sqrt(0.02)), room)


FEDPOWER = {
    "calibration": "published", "formula": "fedpower", "n_public": True, "neighbours": "entry", "row_norm": None,
    "split": (math.inf, 0.5), "testing_seed": None,
}  # fmt: skip


def as_published(data, releases):
    """Two rounds with FedPower's noise at the coordinator, and none at the site."""
    site = opened(data, releases.privacy)

    def study():
        terms = {"releases": 2, "formula": "fedpower", "sizes": [3]}
        yield Round(prepare, preparation(privacy=terms), Sum())
        return [(yield Round(multiply, np.eye(D), Sum())), (yield Round(multiply, np.eye(D), Sum()))]

    return drive(accounted(study(), releases), InProcess([site]))


def test_the_coordinators_second_noise_is_another_in_every_round_and_for_every_sum():
    releases = Releases(private(**FEDPOWER), run="run", who="", sites=1)
    one, other = as_published(np.zeros((3, D)), releases)
    assert not np.any(one == other)
    third, _ = as_published(np.eye(3, D), releases)
    assert not np.any(np.isclose(third - one, np.eye(3, D).T @ np.eye(3, D)))
