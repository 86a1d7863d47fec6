"""Streaming over Merge rounds: what sites publish is cumulative, and what the root has is weighted PCA of it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

import fedspan.solvers.streaming as module
from fedspan import FederatedPCA
from fedspan.data import Preparation, SymmetricSource, open_source
from fedspan.data.prepared import Prepared
from fedspan.data.source import Source
from fedspan.engines import InProcess
from fedspan.errors import ConfigurationError, DataError, PolicyError
from fedspan.linalg import orth
from fedspan.metrics import projection_distance
from fedspan.rounds import STEPS, Cohort, Site
from fedspan.run import Study, run
from fedspan.sites import open_site
from fedspan.solvers import Streaming
from fedspan.solvers.streaming import combine, merged, split
from tests.conformance.solvers import FIRST, Case, bits, rows_of, solve, traffic
from tests.privacy.test_policy import ask, opened, preparation
from tests.streams import is_orthonormal
from tests.wire import CoordinatorDown, Log, Wire

seeds = st.integers(0, 2**32 - 1)
ADVANCE = STEPS["streaming.advance"].run


def message(t, slices=4, rank=6, block_size=8, forgetting=1.0):
    return {"slice": t, "slices": slices, "rank": rank, "block_size": block_size, "forgetting": forgetting}


def site_of(x, **options):
    site = Site("a", open_source(x, **options))
    site.data = Prepared(site.source, {})
    return site


def advanced(site, *slices, **settings):
    """Ask for these time slices in turn, and return the last reply."""
    for t in slices:
        reply = ADVANCE(site, message(t, **settings))
        site.state = {**site.state, **reply.state}
    return reply.value


def study(solver, **more):
    return Study(n_components=2, solver=solver, preparation=Preparation(center=False), **more)


# ---- the sites' half -------------------------------------------------------------------------------------------


def test_each_slice_replies_what_all_rows_so_far_come_to():
    x = np.random.default_rng(0).standard_normal((50, 6))
    site = site_of(x)
    for t, stop in enumerate([12, 25, 37, 50]):
        value = advanced(site, t)
        factor = value["factor"]
        np.testing.assert_allclose(factor @ factor.T, x[:stop].T @ x[:stop], atol=1e-10)
        assert value["seq"] == t
        assert value["total"] == pytest.approx(np.sum(x[:stop] ** 2))
        assert value["rows"] == stop


@given(st.lists(st.integers(0, 3), max_size=3).map(sorted))
def test_slices_that_were_missed_are_made_up_for(before):
    """Lost questions, or a cohort that left the site out: the next slice catches up, to the bit."""
    x = np.random.default_rng(1).standard_normal((50, 6))
    some, all_ = advanced(site_of(x), *before, 3), advanced(site_of(x), 0, 1, 2, 3)
    for name, value in all_.items():
        np.testing.assert_array_equal(some[name], value)


def test_a_slice_asked_again_is_answered_again():
    x = np.random.default_rng(2).standard_normal((50, 6))
    site = site_of(x)
    once, again = advanced(site, 0, 1), advanced(site, 1)
    for name, value in once.items():
        np.testing.assert_array_equal(again[name], value)


class Counted(Source):
    """A source that counts the rows it gives out."""

    def __init__(self, rows):
        self._rows, self.shape, self.columns, self.dtype, self.given = rows, rows.shape, None, rows.dtype, 0

    def blocks(self):
        for block in np.array_split(self._rows, 10):
            self.given += len(block)
            yield block


def test_every_row_is_read_once():
    """A slice goes on where the last one ended: a stream that began again would give the same, many passes later."""
    source = Counted(np.random.default_rng(7).standard_normal((50, 6)))
    site, given_out = Site("a", source), []
    site.data = Prepared(source, {})
    for t in range(4):
        advanced(site, t, block_size=20)
        given_out.append(source.given)
    assert given_out[0] <= 20
    assert given_out[-1] <= 50 + 5  # the first block is looked at beforehand


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("forgetting", [1.0, 0.9])
def test_rows_are_folded_as_the_study_prepared_them(kind, weighted, forgetting):
    """Centred, scaled and weighted, block by block; sparse rows stay sparse."""
    rng = np.random.default_rng(3)
    x = np.where(rng.random((48, 6)) < 0.5, rng.standard_normal((48, 6)), 0.0)
    weights = rng.random(48) if weighted else None
    sources = {"a": open_source(scipy.sparse.csr_array(x) if kind == "sparse" else x, weights=weights)}
    heavy = np.ones(48) if weights is None else weights
    centred = x - heavy @ x / heavy.sum()
    centred /= np.sqrt(heavy @ centred**2 / (heavy.sum() - 1))
    age = np.repeat(forgetting ** (2.0 * np.arange(5, -1, -1)), 8)
    expected = np.linalg.svd(np.sqrt(heavy * age)[:, None] * centred)
    solver = Streaming(slices=3, block_size=8, oversampling=10, forgetting=forgetting)
    found = run(Study(n_components=3, solver=solver, preparation=Preparation(scale=True)), sources).estimate
    np.testing.assert_allclose(found.values, expected[1][:3] ** 2, rtol=1e-9)
    assert projection_distance(found.basis, expected[2][:3].T) < 1e-9


def test_rows_come_in_blocks_of_their_size_however_slices_cut_them():
    x = np.random.default_rng(4).standard_normal((60, 30)) * 0.9 ** np.arange(30)
    few = [advanced(site_of(x), *range(n), slices=n, rank=4, block_size=16) for n in (1, 3, 7)]
    for other in few[1:]:
        np.testing.assert_array_equal(other["factor"], few[0]["factor"])


def test_fewer_rows_than_slices_are_answered_with_nothing_first():
    value = advanced(site_of(np.eye(6)[:2]), 0, slices=5)
    assert (value["factor"].shape, value["rows"], value["total"]) == ((6, 0), 0, 0)
    sites = {"a": np.eye(4)[:1] * 3, "b": np.eye(4)[1:3] * 2}
    found = run(study(Streaming(slices=9)), {name: open_source(x) for name, x in sites.items()}).estimate
    np.testing.assert_allclose(found.values, [9, 4])
    is_orthonormal(found.basis)


def test_shares_of_a_symmetric_matrix_have_no_rows():
    with pytest.raises(DataError, match=r"site 'a' holds a share of a symmetric matrix, which has no rows to stream"):
        run(study(Streaming()), {"a": SymmetricSource(np.eye(3))})


def test_a_policy_refuses_it_and_names_what_it_takes():
    site = opened()
    ask(site, 0, "data.prepare", preparation())
    with pytest.raises(PolicyError, match=r"streaming\.advance declares no sensitivity; take .* streaming-mod-sulq"):
        ask(site, 1, "streaming.advance", message(0), parent=0)


def test_a_site_that_lost_its_state_reads_from_the_start(tmp_path):
    x = rows_of()
    case = Case("streaming", Streaming(slices=4, block_size=8, oversampling=10))
    folder = tmp_path / "run"

    def engine(sites, seed):
        wire = Wire(sites, seed, reopen=lambda name: open_site(name, open_source(x[name]), seed=0))

        def execute(question):
            if question.number == 5:
                wire.restart("cairo")  # with an empty memory
            return wire(question)

        return execute

    lost, whole = solve(case, x, engine=engine, folder=folder), solve(case, x)
    assert projection_distance(lost.estimate.basis, whole.estimate.basis) < 1e-9
    np.testing.assert_allclose(lost.estimate.values, whole.estimate.values, rtol=1e-9)


# ---- merging ---------------------------------------------------------------------------------------------------


def value_of(rng, d, r, seq=0, rows=1.0):
    return {"seq": seq, "factor": orth(rng.standard_normal((d, r))) * rng.uniform(0.1, 3, r), "rows": np.array(rows)}


@given(seeds, st.integers(1, 9), st.integers(0, 4))
def test_factors_combine_to_the_svd_of_all_and_figures_to_their_sums(seed, count, width):
    rng = np.random.default_rng(seed)
    values = [value_of(rng, 7, int(rng.integers(0, width + 1)), seq=i % 3, rows=10.0 + i) for i in range(count)]
    root = combine(7, values)
    everything = np.hstack([value["factor"] for value in values])
    np.testing.assert_allclose(root["factor"] @ root["factor"].T, everything @ everything.T, atol=1e-11 * (1 + count))
    assert root["seq"] == min(count - 1, 2)
    assert root["rows"] == sum(10.0 + i for i in range(count))
    low = combine(2, values)["factor"]
    assert low.shape[1] <= 2 or count == 1


def test_factors_are_merged_two_by_two():
    """A chain of eight would cut the first of them seven times; here each goes through three merges."""
    depth = {}

    def merge(first, second, rank):
        made = np.zeros((3, 0)) + 0
        depth[id(made)] = 1 + max(depth.get(id(first), 0), depth.get(id(second), 0))
        alive.append(made)
        return made

    alive = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "merged", merge)
        root = combine(2, [{"seq": 0, "factor": np.eye(3)[:, :1]} for _ in range(9)])
    assert (len(alive), depth[id(root["factor"])]) == (8, 4)


def test_a_factor_splits_into_its_basis_and_values():
    rng = np.random.default_rng(5)
    basis, values = orth(rng.standard_normal((6, 3))), np.array([3.0, 2.0, 1.0])
    found = split(np.insert(basis * values, 1, 0.0, axis=1))
    np.testing.assert_allclose(found.basis, basis, atol=1e-15)
    np.testing.assert_allclose(found.values, values)
    np.testing.assert_allclose(
        np.linalg.svd(merged(basis * values, basis * values, 3), compute_uv=False), np.sqrt(2) * values
    )


@pytest.mark.parametrize("shape", [{}, {"fan_out": 2}, {"depth": 2}, {"fan_out": 3, "depth": 2}])
def test_every_tree_is_exact_where_the_rank_fits(shape):
    rng = np.random.default_rng(6)
    low = rng.standard_normal((3, 8))
    sites = {f"s{i}": rng.standard_normal((11 + i, 3)) @ low for i in range(7)}
    found = run(
        Study(n_components=3, solver=Streaming(slices=3, block_size=4, oversampling=0, **shape),
              preparation=Preparation(center=False)),
        {name: open_source(x) for name, x in sites.items()},
    ).estimate  # fmt: skip
    _, values, vt = np.linalg.svd(np.vstack(list(sites.values())), full_matrices=False)
    np.testing.assert_allclose(found.values, values[:3] ** 2, rtol=1e-9)
    assert projection_distance(found.basis, vt[:3].T) < 1e-9


def test_a_tree_without_room_is_refused():
    sources = {f"s{i}": open_source(np.eye(3)) for i in range(5)}
    with pytest.raises(ConfigurationError, match="has room for 4 sites, and there are 5"):
        run(study(Streaming(fan_out=2, depth=2)), sources)


# ---- the coordinator's half ------------------------------------------------------------------------------------


def test_every_round_is_a_slice_and_its_estimate_that_of_the_rows_so_far():
    sites = rows_of()
    seen = []
    solver = Streaming(slices=3, block_size=8, oversampling=10)
    run(
        study(solver), {name: open_source(x) for name, x in sites.items()},
        watchers=[lambda record, estimate: None if record.setup else seen.append((record.step, estimate))],
    )  # fmt: skip
    assert [step for step, _ in seen] == ["streaming.advance"] * 3
    for (_, estimate), t in zip(seen[1:], (0, 1), strict=True):  # asked with what came of the slice before
        now = np.vstack([x[: len(x) * (t + 1) // 3] for x in sites.values()])
        assert projection_distance(estimate[:, :2], np.linalg.svd(now)[2][:2].T) < 1e-9


@pytest.mark.parametrize("shape", [{}, {"fan_out": 2}])
def test_sites_that_answered_once_stay_in_with_what_they_said(shape):
    """Each answers one slice only: at the end the root has what each had seen by then."""
    sites = rows_of()
    turns = dict(enumerate(sorted(sites)))
    drop = lambda number, site: None if number < 3 or turns[number - 3] == site else "question"  # noqa: E731
    solver = Streaming(slices=4, block_size=8, oversampling=10, **shape)
    found = run(
        study(solver, cohort=Cohort(deadline=60.0)), {name: open_source(x) for name, x in sites.items()},
        engine=partial(Wire, drop=drop),
    ).estimate  # fmt: skip
    seen = np.vstack([sites[name][: len(sites[name]) * (t + 1) // 4] for t, name in turns.items()])
    _, values, vt = np.linalg.svd(seen, full_matrices=False)
    np.testing.assert_allclose(found.values, values[:2] ** 2, rtol=1e-9)
    assert projection_distance(found.basis, vt[:2].T) < 1e-9


@pytest.mark.parametrize("wired", [False, True])
def test_a_resumed_run_up_a_tree_with_some_sites_remembers_as_an_uninterrupted_one(wired, tmp_path):
    engine = Wire if wired else InProcess
    case = Case("streaming", Streaming(slices=5, block_size=8, fan_out=2), FIRST)
    whole = solve(case, engine=engine)
    for stop in range(3, 8):

        def dies(sites, seed, stop=stop):
            execute = engine(sites, seed)

            def ask(question):
                if question.number == stop:
                    raise CoordinatorDown
                return execute(question)

            return ask

        folder = tmp_path / str(stop)
        with pytest.raises(CoordinatorDown):
            solve(case, engine=dies, folder=folder)
        resumed = solve(case, engine=engine, folder=folder, resume=True)
        assert bits(resumed) == bits(whole), stop
        assert traffic(resumed) == traffic(whole), stop


def test_late_replies_that_are_carried_over_count_in_the_next_slice():
    case = Case("streaming", Streaming(slices=4, block_size=8, oversampling=10), Cohort(first=2, late="carry"))
    result = solve(case)
    is_orthonormal(result.estimate.basis)
    assert projection_distance(result.estimate.basis, solve(replace(case, cohort=Cohort())).estimate.basis) < 0.35


def test_bytes_are_those_of_the_docstring():
    log = Log()
    result = solve(Case("streaming", Streaming(slices=3, block_size=8, oversampling=1)), engine=partial(Wire, log=log))
    d, r, own = 12, 4, [r for r in result.history if not r.setup]
    assert sum(r.bytes_up for r in own) == 3 * 4 * 8 * (d * r + 3)
    assert sum(r.bytes_down for r in own) <= 3 * 4 * 50


def test_more_pairs_are_kept_than_there_are_components():
    assert Streaming().rank(3, 100) == 16
    assert Streaming().rank(3, 10) == 10
    assert Streaming(oversampling=2).rank(3, 100) == 5
    assert Streaming(oversampling=0).rank(3, 100) == 3


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"slices": 0}, "slices is at least 1, got 0"),
        ({"slices": 2.5}, "slices is an integer"),
        ({"block_size": 0}, "block_size is at least 1"),
        ({"oversampling": -1}, "oversampling is at least 0"),
        ({"fan_out": 1}, "fan_out is at least 2"),
        ({"fan_out": "2"}, "fan_out is an integer"),
        ({"depth": 0}, "depth is at least 1"),
        ({"forgetting": 0.0}, r"forgetting lies in \(0, 1\]"),
        ({"forgetting": 1.1}, r"forgetting lies in \(0, 1\]"),
        ({"forgetting": None}, "forgetting is a finite number"),
    ],
)
def test_wrong_settings_are_refused(settings, text):
    with pytest.raises(ConfigurationError, match=text):
        Streaming(**settings)


def test_settings_at_their_limits_are_fine():
    solver = Streaming(slices=np.int64(1), block_size=1, oversampling=0, fan_out=2, depth=1, forgetting=1)
    assert type(solver.slices) is int
    assert type(solver.forgetting) is float


def test_rows_that_no_slice_brought_are_told():
    sites = {name: open_source(rows) for name, rows in rows_of().items()}
    every = run(Study(n_components=2, solver=Streaming(slices=2)), sites)
    assert every.stopped is None
    some = run(Study(n_components=2, solver=Streaming(slices=1), cohort=Cohort(first=2)), sites)
    with pytest.warns(UserWarning, match=r"sites had not sent \d+ of 150 rows when the last slice was over"):
        FederatedPCA(2, solver=Streaming(slices=1), participation=Cohort(first=2)).fit(rows_of())
    assert "ask all sites, or give it more slices" in some.stopped


def test_a_tree_without_room_is_refused_before_the_first_round():
    with pytest.raises(ConfigurationError, match="room for 2 sites, and there are 4"):
        run(
            Study(n_components=2, solver=Streaming(fan_out=2, depth=1)),
            {n: open_source(x) for n, x in rows_of().items()},
            watchers=[lambda record, estimate: pytest.fail("a round was asked")],
        )
