"""Private studies from end to end: every trust and solver fits, says what it promised, and spends no more than that."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
from sklearn.exceptions import ConvergenceWarning

from fedspan import FederatedPCA, FederatedTruncatedSVD
from fedspan.data import Preparation, open_source
from fedspan.data.source import SymmetricSource
from fedspan.engines import InProcess
from fedspan.errors import BudgetExhausted, ConfigurationError, DataError, PolicyError, SiteError
from fedspan.metrics import projection_distance
from fedspan.privacy import GaussianPrivacy, published
from fedspan.privacy.gaussian import Bounds
from fedspan.privacy.ledger import Ledger
from fedspan.privacy.secret import KEY
from fedspan.privacy.terms import check_terms
from fedspan.rounds import Cohort
from fedspan.run import Study, run
from fedspan.sites import LEDGER
from fedspan.solvers import Covariance, FedPower, ModSulq, Power, PrivatePower
from fedspan.study_file import load_study
from tests.wire import Wire

D, SITES, N = 8, 3, 200
TRUSTS = ["local", "distributed", "central"]
SOLVERS = ["auto", "covariance", "private-power", "power", "krylov", "fedpower", "mod-sulq"]
FIELDS = {
    "epsilon", "delta", "spent_epsilon", "neighbours", "trust", "bound", "label", "reason", "testing", "releases",
    "words",
}  # fmt: skip


def private(**settings):
    return GaussianPrivacy(**{"epsilon": 2.0, "delta": 1e-6, "row_norm": 2.0, "testing_seed": 1, **settings})


def data(n=N, sites=SITES, d=D, seed=0, shift=0.0):
    """Rows of norm about 1 with a few strong directions."""
    rng = np.random.default_rng(seed)
    spread = 0.6 ** np.arange(d)
    return {f"s{i}": rng.standard_normal((n, d)) * spread + shift for i in range(sites)}


def sources(arrays=None):
    return {name: open_source(x) for name, x in (data() if arrays is None else arrays).items()}


class Kept:
    """An engine that keeps the sites it was given, and can die in a round after all sites answered it."""

    def __init__(self, die_at=None):
        self.sites, self._die_at = [], die_at

    def __call__(self, sites, seed):
        self.sites = sites
        inner = InProcess(sites, seed)

        def execute(question):
            outcome = inner(question)
            if question.number == self._die_at:
                raise KeyboardInterrupt
            return outcome

        return execute


def spent(site):
    return site.policy.releases.ledger.spent()


# ---- every trust and solver ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FederatedPCA, FederatedTruncatedSVD])
@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver_fits_under_every_trust_and_spends_no_more_than_it_promised(solver, trust, kind):
    if solver == "mod-sulq" and trust != "local":
        pytest.skip("adds noise at the sites")
    engine = Kept()
    privacy = private(trust=trust, testing_seed=None)
    model = kind(2, solver=solver, privacy=privacy, engine=engine).fit(data())
    assert model.components_.shape == (2, D)
    np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(2), atol=1e-8)
    assert np.all(np.isfinite(model.singular_values_))
    told = model.privacy_spent_
    assert set(told) >= FIELDS
    assert (told["epsilon"], told["delta"], told["trust"], told["neighbours"]) == (2.0, 1e-6, trust, "row")
    assert 0 < told["spent_epsilon"] <= 2.0 * (1 + 1e-9)
    assert told["label"] == "certified"
    assert not told["testing"]
    assert "of norm at most" in told["bound"]
    for word in ("(2, 1e-06)-differential privacy", "one row", told["bound"], told["reason"]):
        assert word in told["words"]
    assert math.fsum(r["share"] for r in told["releases"]) == pytest.approx(1.0, rel=2e-9)
    for site in engine.sites:
        total = 0.0 if trust == "central" else privacy.mu**2
        assert spent(site) == pytest.approx(total, rel=2e-9)
    assert sum(r["times"] for r in told["releases"] if not r["step"].startswith("data.")) == model.n_rounds_


def test_a_large_budget_finds_the_subspace_and_a_small_one_does_not():
    arrays = data(n=2000)
    exact = FederatedPCA(2).fit(arrays)
    for solver in ("auto", "private-power", "krylov", "fedpower", "mod-sulq"):
        near = FederatedPCA(2, solver=solver, privacy=private(epsilon=200.0, row_norm=5.0)).fit(arrays)
        assert projection_distance(near.components_.T, exact.components_.T) < 0.1
    far = FederatedPCA(2, solver="auto", privacy=private(epsilon=1e-3)).fit(arrays)
    assert projection_distance(far.components_.T, exact.components_.T) > 0.3


@pytest.mark.parametrize(
    ("settings", "label"),
    [
        ({"testing_seed": None}, "certified"),
        ({"testing_seed": None, "arithmetic": "float"}, "certified in real arithmetic"),
        ({"testing_seed": None, "calibration": "published"}, "as published"),
        ({}, "not private: noise from a testing seed"),
        ({"calibration": "published"}, "not private: noise from a testing seed"),
    ],
)
def test_a_guarantee_says_how_far_it_is_proven(settings, label):
    told = FederatedPCA(2, solver="covariance", privacy=private(epsilon=1.0, **settings)).fit(data()).privacy_spent_
    assert told["label"] == label
    assert label[1:] in told["words"]
    assert told["testing"] is ("testing_seed" not in settings)


@pytest.mark.parametrize("solver", ["faps", "uda", "wda", "dr-svd"])
def test_a_solver_whose_releases_no_noise_covers_is_refused_with_the_names_of_others(solver):
    with pytest.raises(ConfigurationError, match=r"covariance.*or auto") as error:
        FederatedPCA(2, solver=solver, privacy=private()).fit(data())
    for name in ("power", "fedpower", "krylov", "private-power", "mod-sulq"):
        assert name in str(error.value)


def test_private_power_without_a_policy_is_refused():
    for solver in ("private-power", PrivatePower(rounds=3)):
        with pytest.raises(ConfigurationError, match="needs a privacy policy"):
            FederatedPCA(2, solver=solver).fit(data())


def test_a_privacy_that_is_no_policy_is_refused():
    with pytest.raises(ConfigurationError, match="GaussianPrivacy or None"):
        FederatedPCA(2, privacy=1.0).fit(data())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n_public": True}, "the number of rows is public"),
        ({"rows_per_person": 3}, "up to 3 rows of one person"),
        ({"row_norm": Bounds(-3, 3)}, "columns clamped to public ranges"),
        ({"trust": "central"}, "coordinator is trusted"),
        ({"trust": "distributed"}, f"enough while {SITES} of those in a sum are honest"),
        ({"neighbours": "site", "site_norm": 9.0, "row_norm": None, "n_public": True}, "all rows of one site"),
        ({"neighbours": "entry", "entry_change": 0.5, "row_norm": None}, "at most 0.5 in one entry and its mirror"),
        ({"neighbours": "ppm-12", "entry_change": 0.5, "row_norm": None}, "(PPM, (12))"),
    ],
)
def test_a_guarantee_names_neighbours_trust_and_bound(settings, words):
    model = FederatedTruncatedSVD(2, solver="covariance", privacy=private(**settings)).fit(data())
    assert words in model.privacy_spent_["words"]
    assert 0 < model.privacy_spent_["spent_epsilon"] <= 2.0 * (1 + 1e-9)


# ---- preparation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trust", TRUSTS)
def test_scaling_and_imputation_are_charged_and_bounded(trust):
    arrays, engine = data(), Kept()
    for x in arrays.values():
        x[::7, 2] = np.nan
    privacy = private(row_norm=Bounds(-4, 4), trust=trust, epsilon=20.0, adaptive_clip=False)
    model = FederatedPCA(2, solver="auto", scale=True, missing="mean", privacy=privacy, engine=engine).fit(arrays)
    shares = {r["release"]: r["share"] for r in model.privacy_spent_["releases"]}
    assert {n: pytest.approx(s) for n, s in shares.items()} == {
        "weight": 0.02, "present+sums" if "present+sums" in shares else "sums+present": 0.1, "squares": 0.1,
        "total": 0.02, "gram": 0.76,
    }  # fmt: skip
    assert np.all(np.abs(model.mean_) <= 4)
    assert np.all(model.scale_ > 0)
    for site in engine.sites:
        longest = max(np.linalg.norm(np.asarray(block), axis=1).max() for block in site.data.blocks())
        assert longest <= math.sqrt(D)


@pytest.mark.parametrize("trust", TRUSTS)
def test_rows_beyond_the_bound_are_clipped_as_they_enter(trust):
    engine = Kept()
    FederatedPCA(2, solver="auto", privacy=private(row_norm=0.5, trust=trust), engine=engine).fit(data(shift=3.0))
    for site in engine.sites:
        lengths = np.concatenate([np.linalg.norm(np.asarray(b), axis=1) for b in site.data.blocks()])
        assert lengths.max() <= 0.5
        assert site.data.clipping.shortened > 0.9 * site.data.clipping.rows


def test_sparse_rows_fit_privately_and_centred_without_being_dense():
    rng = np.random.default_rng(0)
    arrays = {n: scipy.sparse.random_array((300, D), density=0.3, rng=rng).tocsr() for n in "ab"}
    model = FederatedPCA(2, solver="auto", privacy=private(epsilon=100.0)).fit(arrays)
    pooled = FederatedPCA(2).fit({n: x.toarray() for n, x in arrays.items()})
    assert projection_distance(model.components_.T, pooled.components_.T) < 0.5


def test_the_number_of_rows_is_noised_unless_it_is_public():
    seen = [FederatedPCA(2, privacy=private(testing_seed=s), solver="auto").fit(data()).n_samples_seen_ for s in (1, 2)]
    assert seen[0] != seen[1]
    assert N * SITES not in seen
    for value in seen:
        assert abs(value - N * SITES) < 10 * math.sqrt(SITES) / (private().mu * math.sqrt(0.02))
    model = FederatedPCA(2, privacy=private(n_public=True), solver="auto").fit(data())
    assert model.n_samples_seen_ == N * SITES
    assert model.privacy_spent_["neighbours"] == "row-replace"
    assert "weight" not in {r["release"] for r in model.privacy_spent_["releases"]}


def test_the_rows_of_single_sites_are_nowhere():
    result = run(Study(n_components=2, solver="auto", privacy=private()), sources())
    assert result.facts.rows == {}
    assert result.facts.missing == {}


def test_attributes_that_would_need_an_uncharged_release_are_none():
    model = FederatedPCA(2, solver="private-power", privacy=private(shares={"variance": 0})).fit(data())
    assert model.explained_variance_ratio_ is None
    assert model.noise_variance_ is None
    assert model.explained_variance_.shape == (2,)
    assert "total" not in {r["release"] for r in model.privacy_spent_["releases"]}
    whole = FederatedPCA(2, solver="auto", privacy=private(shares={"variance": 0})).fit(data())
    assert 0 < whole.explained_variance_ratio_.sum() <= 1  # the noised Gram matrix has a trace
    svd = FederatedTruncatedSVD(2, solver="auto", privacy=private()).fit(data())
    assert svd.explained_variance_ is svd.explained_variance_ratio_ is None
    assert "sums" not in {r["release"] for r in svd.privacy_spent_["releases"]}


@pytest.mark.parametrize("solver", ["auto", "private-power"])
def test_a_rank_is_cut_from_what_was_released(solver):
    arrays = data(n=3000)
    automatic = FederatedPCA("auto", solver=solver, privacy=private(epsilon=50.0, row_norm=5.0)).fit(arrays)
    assert 1 <= automatic.n_components_ <= D
    part = FederatedPCA(0.9, solver=solver, privacy=private(epsilon=50.0, row_norm=5.0)).fit(arrays)
    assert part.n_components_ == pytest.approx(FederatedPCA(0.9).fit(arrays).n_components_, abs=2)
    for model in (automatic, part):
        assert model.privacy_spent_["spent_epsilon"] <= 50.0 * (1 + 1e-9)


# Was a fault once: the fraction is taken of a total that was withheld (NaN); all d components come back, unsaid
def test_a_fraction_of_a_withheld_variance_is_refused():
    with pytest.raises((ConfigurationError, DataError)):
        FederatedPCA(0.5, solver="auto", privacy=private(epsilon=50.0, shares={"variance": 0})).fit(data(n=3000))


def test_a_site_finds_its_gaps_before_the_first_round():
    arrays, rounds = data(), []
    arrays["s1"][5, 3] = np.nan
    with pytest.raises(DataError, match=r"site 's1': it has NaN \(missing values\) in column '3'; set missing"):
        FederatedPCA(2, solver="auto", privacy=private(), engine=lambda *a: rounds.append(a)).fit(arrays)
    assert not rounds


def test_a_model_file_keeps_what_was_promised_and_spent(tmp_path):
    model = FederatedPCA(2, solver="private-power", privacy=private(row_norm=Bounds(-4, 4))).fit(data())
    model.save(tmp_path / "model.fedspan")
    loaded = FederatedPCA.load(tmp_path / "model.fedspan")
    assert loaded.privacy_spent_ == model.privacy_spent_
    assert loaded.solver_ == model.solver_


# ---- kills and refusals in the middle --------------------------------------------------------------------------


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize(("die_at", "seed"), [(1, 1), (4, 1), (3, None)], ids=["early", "late", "real noise"])
def test_a_run_that_was_killed_ends_as_if_it_had_not_been_and_is_charged_once(tmp_path, trust, die_at, seed):
    study = Study(n_components=2, solver=Power(rounds=3), privacy=private(trust=trust, testing_seed=seed))
    with pytest.raises(KeyboardInterrupt):
        run(study, sources(), folder=tmp_path / "run", engine=Kept(die_at))
    engine = Kept()
    resumed = run(study, sources(), folder=tmp_path / "run", engine=engine, resume=True)
    if seed is not None:
        whole = run(study, sources())
        assert resumed.estimate.basis.tobytes() == whole.estimate.basis.tobytes()
        assert resumed.privacy == whole.privacy
    assert resumed.privacy.spent_epsilon <= 2.0 * (1 + 1e-9)
    places = [tmp_path / "run" / LEDGER]
    places += [] if trust == "central" else [tmp_path / "run" / "sites" / n / LEDGER for n in data()]
    for place in places:
        with Ledger(place) as ledger:
            assert ledger.spent() == pytest.approx(private().mu ** 2, rel=2e-9)
            assert [c.step for c in ledger.charges()].count("gram.multiply") == 3


@pytest.mark.parametrize("trust", ["local", "central"])
def test_a_coordinator_killed_between_its_charge_and_its_journal_is_not_charged_twice(tmp_path, trust, monkeypatch):
    study = Study(n_components=2, solver=Power(rounds=3), privacy=private(trust=trust, testing_seed=None))
    from fedspan.layers.record import Journal

    plain = Journal.answered

    def die(self, question, *rest):
        if question.number == 4:
            raise KeyboardInterrupt
        plain(self, question, *rest)

    monkeypatch.setattr(Journal, "answered", die)
    with pytest.raises(KeyboardInterrupt):
        run(study, sources(), folder=tmp_path / "run")
    monkeypatch.setattr(Journal, "answered", plain)
    run(study, sources(), folder=tmp_path / "run", resume=True)
    with Ledger(tmp_path / "run" / LEDGER) as ledger:
        assert ledger.spent() == pytest.approx(private().mu ** 2, rel=2e-9)


def test_a_finished_run_asked_again_charges_nothing_and_gives_the_same(tmp_path):
    study = Study(n_components=2, solver=Power(rounds=2), privacy=private(testing_seed=None))
    first = run(study, sources(), folder=tmp_path / "run")
    again = run(study, sources(), folder=tmp_path / "run", resume=True)
    assert first.estimate.basis.tobytes() == again.estimate.basis.tobytes()
    assert first.privacy == again.privacy


def test_a_run_does_not_resume_under_other_terms(tmp_path):
    study = Study(n_components=2, solver=Power(rounds=2), privacy=private())
    run(study, sources(), folder=tmp_path / "run")
    other = Study(n_components=2, solver=Power(rounds=2), privacy=private(epsilon=3.0))
    with pytest.raises(Exception, match="the study changed since this run began: privacy"):
        run(other, sources(), folder=tmp_path / "run", resume=True)


@pytest.mark.parametrize("trust", TRUSTS)
def test_a_budget_that_ends_in_the_middle_stops_at_the_last_estimate_and_says_so(tmp_path, trust):
    privacy = private(trust=trust)
    where = tmp_path / "run" / LEDGER if trust == "central" else tmp_path / "run" / "sites" / "s1" / LEDGER
    with Ledger(where, budget=0.6 * privacy.mu**2) as ledger:
        ledger.charge(run="before", round=0, question="0", step="x", release="x", cost=0.02 * privacy.mu**2)
    model = FederatedPCA(2, solver=Power(rounds=4), privacy=privacy, run_folder=tmp_path / "run")
    with pytest.warns(UserWarning, match=r"stopped at its last estimate.*the budget of"):
        model.fit(data())
    assert model.components_.shape == (2, D)
    with Ledger(where) as ledger:
        assert ledger.spent() <= 0.6 * privacy.mu**2 * (1 + 1e-9)
    assert model.privacy_spent_["spent_epsilon"] < 2.0
    assert 1 <= model.n_rounds_ < 4
    assert model.converged_ is False


def test_a_budget_that_ends_before_the_first_estimate_is_an_error(tmp_path):
    with Ledger(tmp_path / "run" / "sites" / "s1" / LEDGER, budget=0.13 * private().mu ** 2):
        pass
    with pytest.raises(BudgetExhausted, match="s1"):
        FederatedPCA(2, solver=Power(rounds=4), privacy=private(), run_folder=tmp_path / "run").fit(data())


# Was a fault once: with a partial cohort an aggregate is a dict of product and rows, which `under` does not note
def test_a_budget_that_ends_in_the_middle_of_partial_rounds_stops_at_the_last_estimate_too(tmp_path):
    privacy = private()
    with Ledger(tmp_path / "run" / "sites" / "s1" / LEDGER, budget=0.6 * privacy.mu**2):
        pass
    model = FederatedPCA(
        2, solver=Power(rounds=4), privacy=privacy, participation=Cohort(only=("s0", "s1")), run_folder=tmp_path / "run"
    )
    with pytest.warns(UserWarning, match="stopped at its last estimate"):
        model.fit(data())


# ---- engines and cohorts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("solver", ["covariance", "private-power", "fedpower"])
def test_the_wire_gives_what_one_process_gives(trust, solver):
    study = Study(n_components=2, solver=solver, privacy=private(trust=trust))
    here, there = run(study, sources()), run(study, sources(), engine=Wire)
    np.testing.assert_allclose(here.estimate.basis, there.estimate.basis, atol=1e-8)
    np.testing.assert_allclose(here.estimate.values, there.estimate.values, rtol=1e-8)
    assert here.privacy == there.privacy


@pytest.mark.parametrize("trust", TRUSTS)
def test_partial_cohorts_release_their_rows_with_noise(trust):
    shared = trust == "distributed"
    arrays, part = (data(sites=6), 5 / 6) if shared else (data(), 2 / 3)  # a masked sum is of most sites
    privacy = private(trust=trust, honest=4 if shared else None)
    model = FederatedPCA(2, solver=Power(rounds=3), privacy=privacy, participation=Cohort(fraction=part)).fit(arrays)
    names = {r["release"] for r in model.privacy_spent_["releases"]}
    assert {"product", "rows"} == {part for name in names for part in name.split("+")} - {"weight", "sums", "total"}
    assert model.privacy_spent_["spent_epsilon"] <= 2.0 * (1 + 1e-9)


@pytest.mark.parametrize(("sites", "part"), [(6, 5 / 6), (20, 0.8)])
def test_split_noise_with_too_few_answers_is_refused(sites, part):
    with pytest.raises(ConfigurationError, match=f"a secure sum takes at least {sites} of {sites}"):
        FederatedPCA(2, solver="power", privacy=private(trust="distributed"), participation=part).fit(data(sites=sites))
    with pytest.raises(ConfigurationError, match="may leave fewer"):
        check_terms(private(trust="distributed"), Preparation(), Cohort(fraction=part), sites)


def carried(trust, arrays):
    """Run a study in which late replies join the next sum."""
    study = Study(
        n_components=2, solver=Power(rounds=6), preparation=Preparation(center=False),
        cohort=Cohort(first=2, late="carry"), privacy=private(trust=trust, honest=2),
    )  # fmt: skip
    return run(study, sources(arrays))


# Was a fault once: a late reply joins the next sum, where its site's row is counted a second time; the noise of one
# sum under central and distributed trust is for a row that counts once, so the run must be refused (or cost more).
@pytest.mark.parametrize("trust", ["central", "distributed"])
def test_late_replies_are_not_carried_into_sums_whose_noise_is_for_one_of_each(trust):
    with pytest.raises((ConfigurationError, PolicyError)):
        carried(trust, data())


# ---- as published ----------------------------------------------------------------------------------------------


def sigmas(model):
    """The deviation of the first site's noise, by step, from its own ledger (the coordinator's under central)."""
    charged = model.engine.sites[0].policy.releases.ledger.charges()
    if not charged:
        return {r["step"]: r["sigma"] for r in model.privacy_spent_["releases"]}
    parts = {c.step: [v["sigma"] for v in c.detail.values() if isinstance(v, dict)] for c in charged}
    return {step: max(found) for step, found in parts.items()}


def as_published(formula, solver, kind=FederatedTruncatedSVD, sites=None, **settings):
    given = {key: settings.pop(key) for key in ("participation",) if key in settings}
    privacy = private(**{"calibration": "published", "formula": formula, "testing_seed": None, "n_public": True,
                         "row_norm": 1.0, "epsilon": 1.0, "shares": {"variance": 0}, **settings})  # fmt: skip
    if formula == "fedpower":
        privacy = replace(privacy, neighbours="entry", row_norm=None)
    model = kind(2, solver=solver, privacy=privacy, engine=Kept(), **given).fit(data() if sites is None else sites)
    assert model.privacy_spent_["label"] == "as published"
    assert model.components_.shape == (2, D)
    assert math.fsum(r["share"] for r in model.privacy_spent_["releases"]) == pytest.approx(1.0)
    return model


@pytest.mark.parametrize("trust", TRUSTS)
def test_ppm_as_published(trust):
    model = as_published("ppm", Power(rounds=3, oversampling=1), trust=trust)
    want = math.sqrt(2) * published.ppm_sigma(1.0, 1e-6, 3)
    assert sigmas(model)["gram.multiply"] == pytest.approx(want)  # of orthonormal Z
    assert "Theorem 3.2" in model.privacy_spent_["reason"]


@pytest.mark.parametrize("relation", ["entry", "ppm-12"])
def test_hardt_price_as_published(relation):
    model = as_published("hardt-price", Power(rounds=3), neighbours=relation, row_norm=None, entry_change=0.01)
    unit = published.ppm_sigma(1.0, 1e-6, 3)
    assert 0 < sigmas(model)["gram.multiply"] <= 0.01 * math.sqrt(2) * unit * (1 + 1e-9)
    tight = as_published("ppm", Power(rounds=3), neighbours=relation, row_norm=None, entry_change=0.01)
    assert sigmas(tight)["gram.multiply"] <= 0.01 * math.sqrt(2) * unit * (1 + 1e-9)


def test_hardt_price_is_about_entries():
    with pytest.raises((ConfigurationError, SiteError), match=r"entries|code ConfigurationError"):
        as_published("hardt-price", Power(rounds=3))


@pytest.mark.parametrize("steps", [1, 4])
def test_fedpower_as_published(steps):
    solver = FedPower(rounds=4, local_steps=steps)
    model = as_published("fedpower", solver)
    unit = published.fedpower_sigma(1.0, 1e-6, 4, N) * N  # of |Z|_max, in sums over N rows
    assert unit / D < sigmas(model)["fedpower.local_steps"] <= unit
    assert "no guarantee is established" in model.privacy_spent_["reason"]


# Was a fault once: the coordinator charges without the sites' rows, so `privacy_spent_` shows N times less noise
def test_the_deviation_shown_is_that_of_the_noise_added():
    model = as_published("fedpower", FedPower(rounds=3, local_steps=1))
    shown = {r["step"]: r["sigma"] for r in model.privacy_spent_["releases"]}
    assert shown["fedpower.local_steps"] >= sigmas(model)["fedpower.local_steps"] * 0.99


def test_fedpower_as_published_with_its_split():
    model = as_published("fedpower", FedPower(rounds=4), split=(0.5, 0.7))
    unit = published.fedpower_split(0.5, 0.7, 1e-6, N, 1 / SITES)[0] * N
    assert unit / D < sigmas(model)["fedpower.local_steps"] <= unit
    quiet = as_published("fedpower", FedPower(rounds=4), split=(math.inf, math.inf))
    exact = FederatedTruncatedSVD(2, solver=FedPower(rounds=4, tol=0.0)).fit(data())
    assert projection_distance(quiet.components_.T, exact.components_.T) < 1e-6


@pytest.mark.parametrize("terms", [{"row_norm": 1.0}, {"neighbours": "entry", "entry_change": 2.0}])
def test_fedpower_as_published_promises_nothing_about_rows(terms):
    privacy = private(**{"calibration": "published", "n_public": True, "row_norm": None, **terms})
    with pytest.raises(ConfigurationError, match="hides no row"):
        FederatedTruncatedSVD(2, solver=FedPower(rounds=4), privacy=privacy).fit(data())


@pytest.mark.parametrize("scheme", [1, 2])
def test_fedpower_as_published_with_partial_cohorts(scheme):
    sample = "by-size-with-replacement" if scheme == 1 else "uniform"
    cohort = Cohort(fraction=2 / 3, sample=sample)
    model = as_published("fedpower", FedPower(rounds=4), participation=cohort)
    site, _ = published.fedpower_sigma_partial(1.0, 1e-6, 4, (N,) * SITES, 2, scheme)
    unit = site * (1 if scheme == 1 else N)
    assert unit / D < sigmas(model)["fedpower.local_steps"] <= unit


def test_fedpower_as_published_adds_noise_at_the_coordinator_too():
    arrays = {n: np.zeros((N, D)) for n in ("s0", "s1")}
    seen = []
    privacy = private(
        calibration="published", formula="fedpower", n_public=True, epsilon=1.0, split=(math.inf, 0.5),
        neighbours="entry", row_norm=None,
    )  # fmt: skip
    model = FederatedTruncatedSVD(
        2, solver=FedPower(rounds=3, local_steps=1), privacy=privacy, on_round=lambda r, z: seen.append(z)
    ).fit(arrays)
    assert not np.allclose(model.singular_values_, 0)  # the sites' rows and noise are zero: this is the server's


def test_analyze_gauss_as_published():
    model = as_published("analyze-gauss", Covariance(), n_public=False)
    own = [r for r in model.privacy_spent_["releases"] if r["step"] == "covariance.gram"]
    assert own[0]["sigma"] > 1.0 / private(epsilon=1.0).mu  # more than the exact mechanism needs
    assert "Analyze Gauss" in model.privacy_spent_["reason"]


def test_mod_sulq_as_published():
    model = as_published("mod-sulq", Covariance())
    n = N * SITES
    assert sigmas(model)["covariance.gram"] == pytest.approx(n * published.mod_sulq_beta(1.0, 1e-6, D, n))


def test_streaming_mod_sulq_as_published():
    model = as_published("streaming-mod-sulq", ModSulq(merge="published"))
    assert sigmas(model)["mod_sulq.factor"] == pytest.approx(N * published.streaming_mod_sulq_omega(1.0, 1e-6, D, N))


@pytest.mark.parametrize(
    ("solver", "formula"), [(Power(rounds=2), "ppm"), (Covariance(), "analyze-gauss"), (ModSulq(), "streaming")]
)
def test_a_published_calibration_without_a_formula_takes_the_solvers_own(solver, formula):
    as_published(None, solver)


# Was a fault once: the published formulas of power leave the "rows" part of a partial round without noise, although
# only a statement (n_public) makes the number of rows public
def test_the_rows_behind_a_published_product_are_noised_unless_they_are_public():
    rows, plain = [], None
    privacy = private(calibration="published", formula="ppm", epsilon=1.0, testing_seed=None)

    def engine(sites, seed):
        inner = InProcess(sites, seed)

        def execute(question):
            outcome = inner(question)
            if question.step.name == "gram.multiply_counted":
                rows.append(float(outcome.value["rows"]))
            return outcome

        return execute

    study = Study(n_components=2, solver=Power(rounds=2), preparation=Preparation(center=False),
                  cohort=Cohort(only=("s0", "s1")), privacy=privacy)  # fmt: skip
    try:
        run(study, sources(), engine=engine)
    except (ConfigurationError, PolicyError):
        return  # refused: fine
    plain = [value for value in rows if value == 2 * N]
    assert rows
    assert not plain


# ---- shares of a symmetric matrix ------------------------------------------------------------------------------


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("relation", ["entry", "ppm-12"])
@pytest.mark.parametrize("solver", ["auto", "private-power", Power(rounds=2)])
def test_shares_of_a_symmetric_matrix_fit_privately(trust, relation, solver):
    shares = {n: SymmetricSource(x.T @ x) for n, x in data(n=2000).items()}
    privacy = private(neighbours=relation, entry_change=1.0, row_norm=None, trust=trust, epsilon=20.0)
    model = FederatedTruncatedSVD(2, solver=solver, privacy=privacy).fit(shares)
    assert model.privacy_spent_["neighbours"] == relation
    assert model.privacy_spent_["spent_epsilon"] <= 20.0 * (1 + 1e-9)
    exact = FederatedTruncatedSVD(2).fit(shares)
    assert projection_distance(model.components_.T, exact.components_.T) < 0.2


# Was a fault once: nothing clips a share of a symmetric matrix, yet the run is "certified" for rows or sites
@pytest.mark.parametrize("terms", [{}, {"neighbours": "site", "site_norm": 1.0, "row_norm": None}])
def test_shares_of_a_symmetric_matrix_have_no_rows_to_promise_anything_about(terms):
    shares = {n: SymmetricSource(x.T @ x) for n, x in data().items()}
    with pytest.raises((ConfigurationError, DataError, PolicyError)):
        FederatedTruncatedSVD(2, solver="auto", privacy=private(**terms)).fit(shares)


# ---- the study file --------------------------------------------------------------------------------------------

STUDY = """
[sites]
a = "a.csv"
b = "b.csv"
[solve]
n_components = 2
solver = "auto"
[privacy]
epsilon = 2.0
delta = 1e-6
{more}
"""


def study_file(tmp_path, more):
    rng = np.random.default_rng(0)
    for name in "ab":
        np.savetxt(tmp_path / f"{name}.csv", rng.random((40, 3)), delimiter=",", header="x,y,z", comments="")
    path = tmp_path / "study.toml"
    path.write_text(STUDY.format(more=more))
    return load_study(path)


def test_a_study_file_says_what_is_promised(tmp_path):
    more = 'row_norm = {low = 0, high = [1, 1, 2]}\nraw_norm = 0.5\ntrust = "central"\ntesting_seed = 1\n'
    more += "shares = {mean = 0.2}"
    study = study_file(tmp_path, more)
    assert (study.privacy.epsilon, study.privacy.delta, study.privacy.trust) == (2.0, 1e-6, "central")
    assert study.privacy.shares["mean"] == 0.2
    assert study.privacy.raw_norm == 0.5
    assert study.privacy.row_norm.half_width(3) == pytest.approx(math.sqrt(0.25 + 0.25 + 1))
    result = run(study.study(), study.open_sources())
    assert result.privacy.trust == "central"
    assert result.privacy.spent_epsilon <= 2.0 * (1 + 1e-9)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ("row_norms = 1", "row_norm"),
        ("", r"\[privacy\] row_norm is missing"),
        ('row_norm = "tall"', r"\[privacy\] row_norm is a number"),
        ('row_norm = 1\ntrust = "centre"', "did you mean 'central'"),
        ("row_norm = {low = 0, heigh = 1}", "high"),
        ("row_norm = 1\nepsilon_total = 3", "epsilon"),
        ("row_norm = 1\nrows_per_person = 0", "rows_per_person"),
        ('row_norm = 1\nn_public = "yes"', "n_public"),
        ("row_norm = 1\nshares = {means = 0.1}", "did you mean 'mean'"),
    ],
)
def test_a_study_file_that_promises_nothing_sound_is_refused(tmp_path, more, text):
    with pytest.raises(ConfigurationError, match=text):
        study_file(tmp_path, more)


@pytest.mark.parametrize("key", ["epsilon", "delta"])
def test_a_study_file_without_epsilon_or_delta_is_refused(tmp_path, key):
    study_file(tmp_path, "row_norm = 1")
    path = tmp_path / "study.toml"
    path.write_text("\n".join(line for line in path.read_text().splitlines() if not line.startswith(key)))
    with pytest.raises(ConfigurationError, match=f"{key} is missing"):
        load_study(path)


# BUG (left failing) for the box: `Bounds` are compared by identity, so the same file read twice is another study
@pytest.mark.parametrize("bound", ["1.0", '"unit"', "{low = 0, high = 1}"])
def test_a_study_file_read_twice_is_the_same_study(tmp_path, bound):
    one = study_file(tmp_path, f"row_norm = {bound}")
    assert load_study(tmp_path / "study.toml").changes(one) == []


# ---- warnings --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["power", "krylov", "fedpower"])
def test_no_convergence_is_tested_or_missed(solver):
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        model = FederatedPCA(2, solver=solver, privacy=private()).fit(data())
    assert model.converged_ is None


# ---- refused before anything is released --------------------------------------------------------------------------


REFUSED = {
    "no sensitivity": ({}, {"solver": "faps"}),
    "mod-sulq and a trusted coordinator": ({"trust": "central"}, {"solver": "mod-sulq"}),
    "several local steps, nothing to clip to": ({}, {"solver": FedPower(local_steps=4)}),
    "steps between": ({}, {"solver": FedPower(local_steps=1, iterations=2)}),
    "each site's own Z": ({}, {"solver": FedPower(local_steps=1, reference="baseline")}),
    "a cohort that the solver cannot honour": ({}, {"solver": "krylov", "participation": Cohort(fraction=0.5)}),
    "scheme 1 and power": (
        {}, {"solver": "power", "participation": Cohort(fraction=0.5, sample="by-size-with-replacement")}
    ),
    "another paper's formula": ({"calibration": "published", "formula": "ppm"}, {"solver": "covariance"}),
    "a formula for entries": ({"calibration": "published", "formula": "hardt-price"}, {"solver": "power"}),
    "sizes that are not public": ({"calibration": "published", "formula": "mod-sulq"}, {"solver": "covariance"}),
    "beyond what PPM proves": (
        {"calibration": "published", "formula": "ppm", "epsilon": 50.0}, {"solver": "private-power"}
    ),
    "beyond what Analyze Gauss proves": ({"calibration": "published"}, {"solver": "covariance"}),
    "more components than features": ({}, {"n_components": D + 1}),
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSED)
def test_a_study_that_cannot_be_covered_is_refused_before_anything_is_released(why, tmp_path):
    terms, settings = REFUSED[why]
    pca = FederatedPCA(**{"n_components": 2, "privacy": private(**terms), "run_folder": tmp_path / "run", **settings})
    with pytest.raises((ConfigurationError, DataError)):
        pca.fit(data())
    assert not (tmp_path / "run").exists()  # where something was charged it stays


def test_a_run_that_failed_keeps_its_charges_and_no_key(tmp_path):
    """A site's data changes while the run goes on: it stops at the site, with a charge in the ledger."""

    class Spoilt(InProcess):
        def __call__(self, question):
            if question.number == 2:
                raise DataError("the disk is gone")
            return super().__call__(question)

    with pytest.raises(DataError, match="disk"):
        FederatedPCA(2, privacy=private(), run_folder=tmp_path / "run", engine=Spoilt).fit(data())
    assert len(Ledger(tmp_path / "run" / "sites" / "s0" / LEDGER).charges()) == 2
    assert not list((tmp_path / "run").rglob(KEY))


def test_a_solver_by_name_asks_once_where_its_block_is_the_whole_space():
    model = FederatedPCA(D - 1, solver="private-power", privacy=private()).fit(data())
    assert model.n_rounds_ == 1


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("folder", [False, True])
def test_a_run_that_is_over_keeps_no_key(tmp_path, trust, folder):
    engine, seen = Kept(), []
    study = Study(n_components=2, solver=Power(rounds=2), privacy=private(trust=trust, testing_seed=None))
    run(
        study, sources(), folder=tmp_path / "run" if folder else None, engine=engine,
        watchers=[lambda record, estimate: seen.append(len(list(tmp_path.rglob(KEY))))],
    )  # fmt: skip
    assert max(seen) == (0 if not folder else 1 if trust == "central" else len(engine.sites) + 1)
    assert not list(tmp_path.rglob(KEY))
    assert all(site.policy.releases.secret._bytes is None for site in engine.sites)


def test_a_run_whose_budget_ends_before_the_first_estimate_keeps_no_key(tmp_path):
    with Ledger(tmp_path / "run" / "sites" / "s1" / LEDGER, budget=0.13 * private().mu ** 2):
        pass
    with pytest.raises(BudgetExhausted, match="s1"):
        FederatedPCA(2, solver=Power(rounds=4), privacy=private(), run_folder=tmp_path / "run").fit(data())
    assert not list((tmp_path / "run").rglob(KEY))


@pytest.mark.parametrize("trust", TRUSTS)
def test_what_a_study_spent_is_all_that_it_was_charged_set_up_included(trust):
    told = FederatedPCA(2, solver="covariance", privacy=private(trust=trust)).fit(data()).privacy_spent_
    assert told["spent_epsilon"] == pytest.approx(2.0, rel=1e-6)
    assert any(r["step"].startswith("data.") for r in told["releases"])


def test_the_deviation_shown_is_that_of_the_sum_of_all_sites_replies():
    shown = {}
    for trust in TRUSTS:
        privacy = private(trust=trust, adaptive_clip=False)
        told = FederatedPCA(2, solver="covariance", privacy=privacy).fit(data()).privacy_spent_
        shown[trust] = {r["step"]: r["sigma"] for r in told["releases"]}
    for step, sigma in shown["central"].items():
        assert shown["distributed"][step] == pytest.approx(sigma, rel=1e-5)
        assert shown["local"][step] == pytest.approx(sigma * SITES**0.5, rel=1e-5)


@pytest.mark.parametrize("trust", TRUSTS)
def test_the_sites_clip_to_what_the_coordinator_noises_for(trust):
    for settings in ({}, {"center": False}, {"scale": True}):
        engine = Kept()
        study = Study(
            n_components=2, solver="covariance", preparation=Preparation(**settings),
            privacy=private(trust=trust, row_norm=Bounds(-40, 60)),
        )  # fmt: skip
        told = run(study, sources(), engine=engine).privacy
        for site in engine.sites:
            assert f"norm at most {site.data.bounds.norm:.4g} " in told.bound
