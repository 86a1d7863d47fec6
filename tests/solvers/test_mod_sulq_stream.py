"""Streaming MOD-SuLQ: blocks of rows, each a release of its own with the noise that its own rows need."""

from __future__ import annotations

import itertools
import math
from functools import partial

import numpy as np
import pytest
import scipy.sparse

from fedspan.data import Preparation, SymmetricSource, open_source
from fedspan.data.prepared import Prepared
from fedspan.errors import ConfigurationError, DataError, PolicyError
from fedspan.metrics import projection_distance
from fedspan.privacy.ledger import Ledger
from fedspan.privacy.mechanisms import FLOAT_SLACK
from fedspan.privacy.published import streaming_mod_sulq_omega
from fedspan.rounds import STEPS, Cohort, Site
from fedspan.run import Study, run
from fedspan.sites import LEDGER
from fedspan.solvers import StreamingModSulq
from tests.conformance.solvers import pooled, rows_of
from tests.privacy.test_mechanisms import variance_agrees
from tests.privacy.test_policy import ask, charges, opened, preparation, private
from tests.wire import CoordinatorDown, Wire

BLOCK = STEPS["mod_sulq.block"].run


def message(t, blocks=3, width=5, rank=12, merge="tight"):
    return {"slice": width, "rank": rank, "merge": merge, "blocks": blocks, "block": t}


def site_of(x):
    site = Site("a", open_source(x))
    site.data = Prepared(site.source, {})
    return site


def folded(site, count, **settings):
    """Ask for all blocks in turn, and return each reply's factor."""
    found = []
    for t in range(count):
        reply = BLOCK(site, message(t, count, **settings))
        assert reply.value["seq"] == t
        site.state = {**site.state, **reply.state}
        found.append(reply.value["factor"])
    return found


def public(**settings):
    return private(n_public=True, **settings)


# ---- what is folded --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 5, 12, 100])
@pytest.mark.parametrize("blocks", [1, 3, 7])
def test_without_noise_the_tight_factor_squares_to_the_gram_of_the_blocks_so_far(width, blocks):
    x = rows_of()["accra"]
    site = site_of(x)
    for t, factor in enumerate(folded(site, blocks, width=width)):
        seen = x[: len(x) * (t + 1) // blocks]
        np.testing.assert_allclose(factor @ factor.T, seen.T @ seen, atol=1e-9 * np.sum(x**2))


@pytest.mark.parametrize("blocks", [1, 3, 7])
def test_as_published_it_squares_to_the_sum_of_the_blocks_squares(blocks):
    x = rows_of()["accra"]
    edges = [len(x) * t // blocks for t in range(blocks + 1)]
    grams = [x[a:b].T @ x[a:b] for a, b in itertools.pairwise(edges)]
    for t, factor in enumerate(folded(site_of(x), blocks, merge="published")):
        squares = sum(gram @ gram for gram in grams[: t + 1])
        np.testing.assert_allclose(factor @ factor.T, squares, atol=1e-9 * np.linalg.norm(squares))


def test_how_many_directions_the_rows_have_does_not_show_in_the_shape():
    for x in (np.zeros((9, 12)), np.eye(12)[:2], rows_of()["accra"]):
        shapes = [factor.shape for factor in folded(site_of(x), 3, rank=6)]
        assert shapes == [(12, 6)] * 3


def test_sites_are_merged_by_the_sum_of_their_grams():
    sites = rows_of()
    solver = StreamingModSulq(blocks=4, oversampling=9, slice_width=5)
    found = run(
        Study(n_components=3, solver=solver, preparation=Preparation()), {n: open_source(x) for n, x in sites.items()}
    ).estimate
    basis, values = pooled(sites)
    np.testing.assert_allclose(found.values, values, rtol=1e-8)
    assert projection_distance(found.basis, basis) < 1e-8


def test_sparse_rows_are_taken_in_parts_too():
    x = np.where(np.random.default_rng(0).random((45, 12)) < 0.3, rows_of()["accra"], 0.0)
    for one, other in zip(folded(site_of(scipy.sparse.csr_array(x)), 3), folded(site_of(x), 3), strict=True):
        np.testing.assert_allclose(one @ one.T, other @ other.T, atol=1e-9 * np.sum(x**2))


def test_more_blocks_than_rows_leave_some_empty():
    x = rows_of()["accra"][:2]
    factor = folded(site_of(x), 5)[-1]
    np.testing.assert_allclose(factor @ factor.T, x.T @ x, atol=1e-10)


def test_shares_of_a_symmetric_matrix_have_no_blocks():
    with pytest.raises(DataError, match="site 'a': a share of a symmetric matrix has no rows"):
        run(
            Study(n_components=1, solver=StreamingModSulq(blocks=3), preparation=Preparation(center=False)),
            {"a": SymmetricSource(np.diag([3.0, 2.0, 1.0]))},
        )


# ---- how much noise --------------------------------------------------------------------------------------------


def noise_of(privacy, blocks=3, d=40):
    """U S of the noise of each block, at a site whose rows are all zero: its squares sum to the noise's own."""
    site = opened(np.zeros((9, d)), privacy)
    ask(site, 0, "data.prepare", preparation(d))
    replies = []
    for t in range(blocks):
        settings = message(t, blocks, width=7, rank=d, merge="published")
        replies.append(ask(site, t + 1, "mod_sulq.block", settings, parent=t)["factor"])
    return site, replies


@pytest.mark.parametrize("people", [1, 3])
def test_each_blocks_noise_is_what_its_sensitivity_asks_for(people):
    """d x d entries a block, of deviation sqrt(2) m C^2 / mu each; folded they keep their sum of squares."""
    d, room = 40, 1 + 2 * FLOAT_SLACK
    for seed in range(3):
        privacy = public(row_norm=1.5, testing_seed=seed, rows_per_person=people)
        expected = math.sqrt(2) * people * 2.25 / privacy.mu
        _, replies = noise_of(privacy, d=d)
        before = 0.0
        for factor in replies:
            total = float(np.sum(factor**2))
            own = math.sqrt((total - before) / d**2) * np.ones((d, d))  # as many numbers of that deviation
            assert variance_agrees(own, expected, room)
            assert not variance_agrees(own / 2, expected, room)  # half the noise would be told
            before = total


def test_blocks_have_noise_of_their_own():
    """Equal noise in each block would cancel in their differences."""
    d = 40
    _, (first, second, _) = noise_of(public(testing_seed=None), d=d)
    one, both = first @ first.T, second @ second.T
    other = both - one  # the second block's noise times its transpose
    assert np.linalg.norm(other - one) > 0.2 * np.linalg.norm(one)


@pytest.mark.parametrize("weight", [None, 0.01])
@pytest.mark.parametrize("blocks", [1, 3, 20])
def test_published_noise_is_that_of_the_blocks_own_rows(blocks, weight):
    """n omega (17) on the sum over n rows, which is one figure for any n: light rows, or few, have no less of it."""
    privacy = public(calibration="published", row_norm=1.5)
    site = opened(np.zeros((9, 6)), privacy, weights=None if weight is None else np.full(9, weight))
    terms = {"releases": 1, "formula": "streaming-mod-sulq", "sizes": [9]}
    ask(site, 0, "data.prepare", preparation(6, privacy=terms))
    expected = 2.25 * 7 * streaming_mod_sulq_omega(privacy.epsilon, privacy.delta, 6, 7)
    for t in range(blocks):
        settings = message(t, blocks, width=4, rank=6, merge="published")
        factor = ask(site, t + 1, "mod_sulq.block", settings, parent=t)["factor"]
        assert charges(site)[-1].detail["gram"]["sigma"] == pytest.approx(expected)
    assert np.sum(factor**2) == pytest.approx(blocks * 36 * expected**2, rel=0.6)
    assert spent(site) == pytest.approx(1.0)


# ---- what is charged -------------------------------------------------------------------------------------------


def spent(site):
    return site.policy.releases.ledger.spent() / site.policy.releases.limit


def prepared(**settings):
    site = opened(privacy=public(**settings))
    ask(site, 0, "data.prepare", preparation())
    return site


def block(site, number, t, count, **more):
    return ask(site, number, "mod_sulq.block", {**message(t, count, width=2, rank=2), **more}, parent=number - 1)


def test_blocks_are_charged_each_and_cost_together_what_the_dearest_costs():
    site = prepared()
    for t in range(4):
        block(site, t + 1, t, 4)
    assert len(charges(site)) == 4
    assert [c.detail["disjoint"] for c in charges(site)] == [["blocks of 4", str(t)] for t in range(4)]
    assert len({c.cost for c in charges(site)}) == 1
    assert spent(site) == pytest.approx(1.0)


def budgeted(releases):
    """A site that was told there will be so many releases: each block costs that part of the budget."""
    site = opened(privacy=public())
    ask(site, 0, "data.prepare", preparation(privacy={"releases": releases}))
    return site


def test_the_same_block_asked_otherwise_costs_again_and_other_partitions_too():
    site = budgeted(5)
    block(site, 1, 0, 4)
    block(site, 2, 1, 4)
    assert spent(site) == pytest.approx(0.2)
    block(site, 3, 1, 4)  # another round: another release of the same rows
    assert spent(site) == pytest.approx(0.4)
    block(site, 4, 1, 4, slice=3)
    assert spent(site) == pytest.approx(0.6)
    block(site, 5, 0, 3)  # thirds overlap with quarters
    assert spent(site) == pytest.approx(0.8)
    block(site, 6, 2, 3)
    block(site, 7, 2, 4)
    assert spent(site) == pytest.approx(0.8)
    ask(site, 8, "mod_sulq.factor", {"slice": 2, "rank": 2}, parent=7)  # all rows
    assert spent(site) == pytest.approx(1.0)
    with pytest.raises(PolicyError, match="of the run's limit"):
        block(site, 9, 1, 4)
    with pytest.raises(PolicyError, match="of the run's limit"):
        ask(site, 10, "mod_sulq.block", message(0, 5, width=2, rank=2), parent=8)
    ask(
        site, 11, "mod_sulq.block", message(3, 4, width=2, rank=2), parent=8
    )  # a quarter that was not asked for yet costs nothing more
    assert spent(site) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("t", "count"),
    [
        (-1, 4),
        (4, 4),
        (0, 0),
        (True, 4),
        (False, 4),
        (1.0, 4),
        (0.5, 4),
        ("1", 4),
        (None, 4),
        (0, True),
        (0, 1.0),
        (0, "4"),
    ],
)
def test_what_is_no_block_is_refused_and_costs_nothing(t, count):
    """``True`` is block 1 by another name, and half a block overlaps with two: beside those it would go unpaid."""
    site = prepared()
    block(site, 1, 1, 4)
    before = charges(site)
    with pytest.raises(PolicyError, match=r"block .* of .* is none; blocks are numbered from 0"):
        block(site, 2, t, count)
    assert charges(site) == before


@pytest.mark.parametrize("neighbours", [{}, {"neighbours": "site", "site_norm": 5.0}])
def test_a_site_refuses_blocks_where_a_row_more_would_move_all_that_come_after_it(neighbours):
    """Whatever the coordinator says: they would be charged as disjoint, and are not."""
    site = opened(privacy=private(**neighbours))
    ask(site, 0, "data.prepare", preparation())
    before = charges(site)
    with pytest.raises(PolicyError, match=r"side by side only where a row is replaced.*state n_public = true"):
        block(site, 1, 0, 4)
    assert charges(site) == before


def test_a_run_charges_sites_and_coordinator_once_for_all_blocks(tmp_path):
    solver = StreamingModSulq(blocks=5, slice_width=2)
    sources = {name: open_source(x) for name, x in rows_of(d=4).items()}
    study = Study(n_components=2, solver=solver, privacy=public(), preparation=Preparation(center=False))
    result = run(study, sources, folder=tmp_path / "run")
    (release,) = [r for r in result.privacy.releases if r.step == "mod_sulq.block"]
    assert release.times == 5
    assert sum(r.share for r in result.privacy.releases) == pytest.approx(1.0)
    assert result.privacy.spent_epsilon == pytest.approx(2.0, rel=1e-6)
    ledgers = [tmp_path / "run" / LEDGER, *(tmp_path / "run" / "sites" / name / LEDGER for name in sources)]
    for path in ledgers:
        with Ledger(path) as ledger:
            assert len([c for c in ledger.charges() if c.step == "mod_sulq.block"]) == 5
            assert ledger.spent() == pytest.approx(public().mu ** 2, rel=1e-6)


@pytest.mark.parametrize("stop", [3, 5])
def test_a_resumed_run_is_charged_once(stop, tmp_path):
    solver = StreamingModSulq(blocks=4, slice_width=2)
    sources = {name: open_source(x) for name, x in rows_of(d=4).items()}
    study = Study(n_components=2, solver=solver, privacy=public(), preparation=Preparation(center=False))

    def down(event, number, site):
        if event == "replied" and number == stop and site == "cairo":
            raise CoordinatorDown(event)

    folder = tmp_path / "run"
    with pytest.raises(CoordinatorDown):
        run(study, sources, folder=folder, engine=partial(Wire, on_event=down))
    before = {name: Ledger(folder / "sites" / name / LEDGER).charges() for name in sources}
    resumed = run(study, sources, folder=folder, resume=True)
    whole = run(study, sources, folder=tmp_path / "whole")
    np.testing.assert_array_equal(resumed.estimate.basis, whole.estimate.basis)
    for name in sources:
        with Ledger(folder / "sites" / name / LEDGER) as ledger:
            kept = ledger.charges()
            assert kept[: len(before[name])] == before[name]
            assert [c.detail.get("disjoint") for c in kept if c.step == "mod_sulq.block"] == [
                ["blocks of 4", str(t)] for t in range(4)
            ]
            assert ledger.spent() == pytest.approx(public().mu ** 2, rel=1e-6)


@pytest.mark.parametrize("trust", ["distributed", "central"])
def test_it_needs_local_trust(trust):
    study = Study(n_components=2, solver=StreamingModSulq(), privacy=public(trust=trust))
    with pytest.raises(ConfigurationError, match="local"):
        run(study, {name: open_source(rows) for name, rows in rows_of().items()})


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"blocks": 0}, "blocks is at least 1, got 0"),
        ({"blocks": 2.5}, "blocks is an integer"),
        ({"blocks": True}, "blocks is an integer"),
        ({"merge": "both"}, "merge is 'tight' or 'published'"),
        ({"slice_width": 0}, "slice_width at least 1"),
        ({"oversampling": -1}, "oversampling is not negative"),
    ],
)
def test_wrong_settings_are_refused(settings, text):
    with pytest.raises(ConfigurationError, match=text):
        StreamingModSulq(**settings)


def test_every_site_takes_part_in_every_block():
    study = Study(n_components=2, solver=StreamingModSulq(), cohort=Cohort(fraction=0.5))
    with pytest.raises(ConfigurationError, match="streaming-mod-sulq needs every site in every round"):
        run(study, {name: open_source(x) for name, x in rows_of().items()})
