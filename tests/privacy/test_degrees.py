"""Columns' degrees under privacy: a release of clipped raw rows, its floor, and the rows it is then divided into."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse

from fedspan import FederatedTruncatedSVD
from fedspan.data import Preparation, open_source
from fedspan.data.arrays import ArraySource
from fedspan.engines import InProcess
from fedspan.errors import ConfigurationError, DataError
from fedspan.metrics import projection_distance
from fedspan.privacy.ledger import Ledger
from fedspan.privacy.mechanisms import FLOAT_SLACK
from fedspan.privacy.terms import solver_noise
from fedspan.rounds import Round, Step, Sum, answer
from fedspan.run import Study, run
from fedspan.sites import LEDGER, Terms, open_site
from fedspan.solvers.problem import multiply
from tests.privacy.test_mechanisms import variance_agrees
from tests.privacy.test_policy import MOMENTS, ask, charges, preparation, private
from tests.wire import Wire

D, RAW, C = 6, 3.0, 0.2
TRUSTS = ["local", "distributed", "central"]
BY_DEGREE = Preparation(center=False, normalise="degree")


def terms(**settings):
    return private(**{"row_norm": C, "raw_norm": RAW, **settings})


def counts(n=400, d=D, seed=0):
    """Users who see items in two groups; the first items of each are seen the most."""
    rng = np.random.default_rng(seed)
    odd = np.arange(d) % 2 == rng.integers(0, 2, (n, 1))
    return (rng.random((n, d)) < np.where(odd, 0.6, 0.1) * np.linspace(1.0, 0.3, d)).astype(float)


def federation(x, sites=3):
    return {f"s{i}": part for i, part in enumerate(np.array_split(x, sites))}


def opened(x, privacy=None, sites=1):
    return open_site("a", open_source(x), seed=0, terms=Terms(privacy or terms(), "run", sites, BY_DEGREE))


def degrees(site):
    count = not site.policy.privacy.rows_known
    return ask(site, 0, "data.moments", {**MOMENTS, "degree": True, "count": count})


def fitted(x, privacy, **settings):
    svd = FederatedTruncatedSVD(2, solver="covariance", normalise="degree", privacy=privacy, **settings)
    return svd.fit(x if isinstance(x, dict) else federation(x))


# ---- the release -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "moved"), [({}, 1.0), ({"n_public": True}, math.sqrt(2)), ({"rows_per_person": 4}, 4.0)]
)
def test_degrees_have_the_noise_of_their_share_and_bound(settings, moved):
    got = [degrees(opened(np.zeros((3, 40)), terms(testing_seed=s, **settings))) for s in range(40)]
    sigma = RAW * moved / (terms().mu * math.sqrt(0.1))
    assert variance_agrees(np.stack([g["degrees"] for g in got]), sigma, room=1 + 2 * FLOAT_SLACK)
    assert set(got[0]) == ({"degrees"} if "n_public" in settings else {"degrees", "weight"})


@pytest.mark.parametrize("sites", [3, 5])
@pytest.mark.parametrize("trust", TRUSTS)
def test_the_sum_of_all_sites_has_the_noise_of_its_trust(trust, sites):
    scales = []
    for seed in range(12):  # rows as many as lie far above the floor, alike in all columns
        x = np.ones((4000, D))
        got = fitted(federation(x, sites), terms(trust=trust, testing_seed=seed, raw_norm=math.sqrt(D)))
        scales.append(got.scale_**2 - len(x))
    sigma = math.sqrt(D) / (terms().mu * math.sqrt(0.1)) * math.sqrt(sites if trust == "local" else 1)
    assert variance_agrees(scales, sigma, room=1 + 2 * FLOAT_SLACK)


@pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("relation", ["row", "row-replace"])
def test_the_worst_neighbours_move_the_degrees_by_the_whole_bound_and_no_more(relation, kind):
    """To a trusted coordinator the sums leave as they are: what the site's clip makes of any row is seen."""
    privacy = terms(trust="central", n_public=relation == "row-replace")
    base = counts(50)
    for size in (1.0, 1e3, 1e300):
        long, other = (np.vstack([base, size * RAW * e]) for e in np.eye(D)[:2])
        before, after = (long, other) if relation == "row-replace" else (base, long)
        seen = [degrees(opened(kind(x), privacy))["degrees"] for x in (before, after)]
        bound = privacy.neighbours_of(privacy.bounds_under({"degree": True}, D)).degrees()
        assert np.linalg.norm(seen[1] - seen[0]) == pytest.approx(bound, rel=1e-9)


def test_no_row_whatever_is_in_it_moves_degrees_or_products_by_more_than_their_bounds():
    rng, privacy = np.random.default_rng(0), terms(trust="central")
    base, worst = counts(30), [0.0, 0.0]
    scale = np.full(D, math.sqrt(privacy.least_degree()))
    for row in [*rng.pareto(0.3, (40, D)), *rng.normal(0, 1e3, (20, D)), np.full(D, 1e300), np.full(D, -1.0)]:
        seen = []
        for x in (base, np.vstack([base, row])):
            site = open_site("a", ArraySource(x), seed=0, terms=Terms(privacy, "run", 1))
            told = degrees(site)["degrees"]
            ask(site, 1, "data.prepare", preparation(D, degree=True, scale=scale), parent=0)
            seen.append((told, answer(site, Round(multiply, np.eye(D), number=2, parents={"a": 1})).value))
        worst = [max(w, np.linalg.norm(b - a)) for w, a, b in zip(worst, *seen, strict=True)]
    assert RAW * 0.99 < worst[0] <= RAW * (1 + 1e-9)
    assert C**2 * 0.9 < worst[1] <= C**2 * (1 + 1e-9)


@pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_array], ids=["dense", "sparse"])
def test_rows_that_turn_round_do_not_move_the_degrees_by_more_than_counts_can(kind):
    privacy = terms(trust="central", n_public=True)
    sites = []
    for row in (RAW * np.ones(D) / math.sqrt(D), -RAW * np.ones(D)):
        x = open_source(kind(np.vstack([counts(50), row])))
        sites.append(open_site("a", x, seed=0, terms=Terms(privacy, "run", 1)))  # what it agreed to is not known here
    one, other = (degrees(site)["degrees"] for site in sites)
    assert np.linalg.norm(one - other) == pytest.approx(RAW)


def test_degrees_are_charged_to_their_share_once_and_nothing_else_is_told():
    site = opened(counts(), terms(shares={"degree": 0.3}))
    degrees(site)
    (share,) = (c for c in charges(site) if c.release == "degrees")
    assert share.cost == pytest.approx(0.3 * terms().mu ** 2)
    assert sorted(c.release for c in charges(site)) == ["degrees", "weight"]


def test_the_solver_gets_what_the_degrees_left():
    study = Study(n_components=2, solver="covariance", preparation=BY_DEGREE, privacy=terms(shares={"degree": 0.7}))
    result = run(study, {name: open_source(x) for name, x in federation(counts()).items()})
    (gram,) = (r.sigma for r in result.privacy.releases if r.release == "gram")
    noise = solver_noise(study.privacy, result.facts, result.solver, sites=3)
    assert noise == pytest.approx(gram * math.sqrt(2 * D), rel=4e-3)


# ---- the floor -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trust", TRUSTS)
def test_rare_columns_are_divided_by_a_public_figure_and_every_degree_has_a_root(trust):
    x = np.hstack([np.ones((3000, 2)), np.zeros((3000, 60))])  # sixty items that nobody has
    privacy = terms(trust=trust, testing_seed=3)
    model = fitted(x, privacy, engine=Wire)
    floor = privacy.least_degree(3)
    assert np.all(np.isfinite(model.scale_))
    assert model.scale_.min() == pytest.approx(math.sqrt(floor), rel=1e-12)
    assert np.mean(model.scale_[2:] ** 2 <= floor * (1 + 1e-12)) > 0.8
    assert model.scale_[2:].max() < 3 * math.sqrt(floor)


def test_the_floor_is_made_of_the_terms_and_not_of_the_rows():
    floors = {fitted(counts(400 + n, seed=n), terms(epsilon=0.1, testing_seed=n)).scale_.min() for n in range(6)}
    assert min(floors) == math.sqrt(terms(epsilon=0.1).least_degree(3))


# ---- studies ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_public", [False, True])
@pytest.mark.parametrize("trust", TRUSTS)
def test_a_study_says_what_it_rests_on_and_spends_no_more_than_it_promised(trust, n_public, tmp_path):
    privacy = terms(trust=trust, testing_seed=None, n_public=n_public)
    told = fitted(counts(), privacy, run_folder=tmp_path / "run").privacy_spent_
    shares = {r["release"]: r["share"] for r in told["releases"]}
    count = {} if n_public else {"weight": 0.02}
    assert shares == pytest.approx({"degrees": 0.1, "total": 0.02, "gram": 0.88 - sum(count.values()), **count})
    assert told["spent_epsilon"] == pytest.approx(2.0, rel=1e-6)
    assert "rows of norm at most 0.2 as they enter the Gram matrix" in told["bound"]
    assert "raw rows to 3 where their sums are released" in told["bound"]
    with Ledger(tmp_path / "run" / LEDGER) as ledger:
        assert ledger.spent() == pytest.approx(privacy.mu**2, rel=1e-6)


@pytest.mark.parametrize("solver", ["covariance", "private-power", "krylov", "fedpower", "mod-sulq"])
def test_every_solver_takes_rows_by_degree(solver):
    model = fitted(counts(), terms()).set_params(solver=solver).fit(federation(counts()))
    assert np.all(np.isfinite(model.components_))
    assert model.explained_variance_ is None  # needs the mean of rows over their roots, which is not released


@pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_array], ids=["dense", "sparse"])
def test_with_next_to_no_noise_it_is_the_study_without_privacy(kind):
    x = counts(2000)
    sites = {name: kind(part) for name, part in federation(x).items()}
    wide = private(row_norm=1.0, raw_norm=10.0, epsilon=1e7)
    exact, near = FederatedTruncatedSVD(2, normalise="degree").fit(sites), fitted(sites, wide)
    assert projection_distance(near.components_.T, exact.components_.T) < 1e-2
    np.testing.assert_allclose(near.scale_, exact.scale_, rtol=1e-2)
    np.testing.assert_allclose(near.transform(x), exact.transform(x), atol=1e-2)


def test_no_row_enters_longer_than_its_bound():
    class Kept(InProcess):
        sites: list[object]

        def __init__(self, sites, seed):
            Kept.sites = sites
            super().__init__(sites, seed)

    fitted(counts(), terms(row_norm=0.01), engine=Kept)
    for site in Kept.sites:
        rows = np.vstack([np.asarray(block) for block in site.data.blocks()])
        assert 0.005 < np.linalg.norm(rows, axis=1).max() <= 0.01


def test_sums_of_squares_tighten_the_clip_by_degree_too():
    study = Study(
        n_components=2, solver="covariance", preparation=BY_DEGREE,
        privacy=terms(row_norm=5.0, adaptive_clip=True, epsilon=1.0),
    )  # fmt: skip
    result = run(study, {name: open_source(x) for name, x in federation(counts()).items()})
    assert result.setup_rounds == 4
    assert result.facts.preparation["norm"] == pytest.approx(5.0 * 2 / 3)
    assert result.facts.preparation["degree"] is True


def test_a_site_that_lost_its_state_goes_on_by_degree():
    scale = np.full(D, 40.0)
    site = opened(counts())
    wanted = preparation(D, degree=True, scale=scale)
    step = Step("test.restarting", multiply.run, lost="restart", sensitivity=multiply.sensitivity)
    question = Round(step, np.eye(D), Sum(), number=5, parents={"a": 3}, terms={"preparation": wanted})
    assert np.all(np.isfinite(answer(site, question).value))
    assert site.data.bounds.norm == C


def test_counts_below_zero_are_refused_at_the_site_before_the_first_round():
    with pytest.raises(DataError, match=r"site 'a': it has negative entries, which normalise"):
        opened(np.vstack([counts(), -np.ones(D)]))


def test_a_study_by_degree_cannot_be_calibrated_on_twins_that_hold_no_counts():
    from fedspan.calibrate import calibrate

    study = Study(n_components=2, solver="covariance", preparation=BY_DEGREE, privacy=terms())
    with pytest.raises(ConfigurationError, match="a twin has none"):
        calibrate(study, {"a": 100}, D)
