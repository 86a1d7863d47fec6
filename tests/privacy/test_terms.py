"""A private study's terms: what is refused before anything is asked, which solver serves, and in how many rounds."""

from __future__ import annotations

import numpy as np
import pytest

from fedspan.data import Preparation, open_source
from fedspan.errors import ConfigurationError
from fedspan.privacy import GaussianPrivacy
from fedspan.privacy.gaussian import Bounds
from fedspan.privacy.terms import COVARIANCE_FEATURES, MOST_ROUNDS, check_published, check_terms, power_rounds
from fedspan.privacy.terms import private_solver as solver_for
from fedspan.rounds import Cohort
from fedspan.run import Study, run
from fedspan.solvers import SOLVERS, BlockKrylov, Covariance, FedPower, ModSulq, Power, PrivatePower

PLAIN = Preparation(center=False)


def private(**settings):
    return GaussianPrivacy(**{"epsilon": 1.0, "delta": 1e-6, "row_norm": 1.0, **settings})


def check(privacy, preparation=PLAIN, cohort=None, sites=10):
    check_terms(privacy, preparation, cohort or Cohort(), sites)


# ---- what no guarantee could cover -----------------------------------------------------------------------------


def test_a_plain_study_is_accepted():
    check(private())
    check(private(), Preparation())
    check(private(row_norm=Bounds(0, 1)), Preparation(scale=True, missing="mean"))


BY_DEGREE = Preparation(center=False, normalise="degree")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "raw_norm is missing"),
        ({"raw_norm": 4.0, "row_norm": Bounds(0, 1)}, "takes one number as row_norm"),
        ({"raw_norm": 4.0, "shares": {"degree": 0}}, "the degree is needed and its share is 0"),
        ({"raw_norm": 4.0, "neighbours": "entry"}, "bounds no column's degree"),
        ({"raw_norm": 4.0, "neighbours": "ppm-12"}, "bounds no column's degree"),
        ({"raw_norm": 4.0, "neighbours": "site", "site_norm": 1.0, "n_public": True}, "bounds no column's degree"),
    ],
)
def test_normalising_by_degree_is_refused_without_a_bound_and_a_share(settings, text):
    with pytest.raises(ConfigurationError, match=text):
        check(private(**settings), BY_DEGREE)


@pytest.mark.parametrize("settings", [{}, {"n_public": True}, {"row_norm": "unit"}, {"rows_per_person": 3}])
def test_normalising_by_degree_is_accepted_with_both(settings):
    for trust in ("local", "distributed", "central"):
        check(private(raw_norm=4.0, trust=trust, **settings), BY_DEGREE)


@pytest.mark.parametrize("relation", ["entry", "ppm-12", "site"])
@pytest.mark.parametrize("wish", [{"center": True}, {"scale": True}, {"missing": "mean"}])
def test_a_mean_is_refused_where_neighbours_are_not_about_rows(relation, wish):
    with pytest.raises(ConfigurationError, match="bounds no mean"):
        check(private(neighbours=relation, site_norm=1.0, n_public=True), Preparation(**{"center": False, **wish}))
    check(private(neighbours=relation, site_norm=1.0, n_public=True))


def test_hidden_sites_need_their_numbers_of_rows_to_be_public():
    with pytest.raises(ConfigurationError, match="state n_public = true"):
        check(private(neighbours="site", site_norm=1.0))


def test_scaling_without_the_columns_ranges_is_refused():
    with pytest.raises(ConfigurationError, match="Bounds"):
        check(private(), Preparation(scale=True))


def test_a_number_of_rows_that_is_needed_and_has_no_share_is_refused():
    with pytest.raises(ConfigurationError, match="number of rows is needed"):
        check(private(shares={"count": 0}))
    check(private(shares={"count": 0}, n_public=True))


@pytest.mark.parametrize(
    ("share", "preparation"),
    [("mean", Preparation()), ("mean", Preparation(center=False, missing="mean")), ("scale", Preparation(scale=True))],
)
def test_a_figure_that_is_needed_and_has_no_share_is_refused(share, preparation):
    privacy = private(row_norm=Bounds(0, 1), shares={share: 0})
    with pytest.raises(ConfigurationError, match=f"the {share} is needed and its share is 0"):
        check(privacy, preparation)


@pytest.mark.parametrize(
    "cohort",
    [
        Cohort(fraction=0.5), Cohort(first=5), Cohort(only=tuple("abcde")), Cohort(deadline=1.0),
        Cohort(sample="by-size-with-replacement"),
    ],
)  # fmt: skip
def test_split_noise_is_refused_where_fewer_may_answer_than_it_counts_on(cohort):
    with pytest.raises(ConfigurationError, match="may leave fewer"):
        check(private(trust="distributed"), cohort=cohort)
    with pytest.raises(ConfigurationError, match="may leave fewer"):
        check(private(trust="distributed", honest=6), cohort=cohort)
    check(private(), cohort=cohort)


@pytest.mark.parametrize("cohort", [Cohort(fraction=0.5), Cohort(first=5), Cohort(only=tuple("abcde"))])
def test_split_noise_is_accepted_where_enough_answer(cohort):
    check(private(trust="distributed", honest=5), cohort=cohort)
    check(private(trust="distributed", honest=1), cohort=cohort)


def test_more_honest_sites_than_there_are_is_refused():
    with pytest.raises(ConfigurationError, match="may leave fewer"):
        check(private(trust="distributed", honest=11))


# Was a fault once: of 5 named sites a half is drawn, 2, but the check takes a half of all 10
def test_a_fraction_of_named_sites_is_counted_of_those_named():
    cohort = Cohort(only=tuple("abcde"), fraction=0.5)
    drawn = cohort.draw(list("abcdefghij"), np.random.default_rng(0), dict)
    with pytest.raises(ConfigurationError, match="may leave fewer"):
        check(private(trust="distributed", honest=len(drawn) + 1), cohort=cohort)


# Was a fault once: a late reply that joins the next sum makes a row count twice in it, where the noise is for once
@pytest.mark.parametrize("trust", ["central", "distributed"])
def test_late_replies_that_join_the_next_sum_are_refused_where_its_noise_is_for_one_of_each(trust):
    with pytest.raises(ConfigurationError):
        check(private(trust=trust, honest=2), cohort=Cohort(first=5, late="carry"))


# ---- the solver ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["faps", "uda", "wda", "dr-svd"])
def test_a_solver_without_a_bound_is_refused_and_those_with_one_are_named(name):
    with pytest.raises(ConfigurationError, match=f"{name} declares no sensitivity") as error:
        solver_for(name, private(), 10, 2, 100)
    able = str(error.value).split("one that does: ")[1].split(", or auto")[0].split(", ")
    assert set(able) == {name for name, kind in SOLVERS.items() if kind().releases is not None}


def test_auto_takes_the_gram_matrix_where_it_is_a_message():
    assert isinstance(solver_for("auto", private(), COVARIANCE_FEATURES, 2, 100), Covariance)
    assert isinstance(solver_for("auto", private(), COVARIANCE_FEATURES + 1, 2, 1e5), PrivatePower)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("power", Power), ("private-power", PrivatePower), ("krylov", BlockKrylov), ("fedpower", FedPower)],
)
def test_a_solver_by_name_gets_few_rounds_and_no_tolerance(name, kind):
    solver = solver_for(name, private(), 50, 3, 10_000, 4)
    assert type(solver) is kind
    assert solver.tol == 0.0
    last = 1 if name == "fedpower" else 0
    assert 1 <= solver.rounds - last <= MOST_ROUNDS
    assert solver.rounds - last == power_rounds(private(), 50, 3, solver.rank(3, 50), 10_000, 4)
    assert solver.releases == solver.rounds


def test_a_solver_with_settings_keeps_its_rounds_but_not_its_tolerance():
    assert solver_for(Power(rounds=17, tol=1e-3), private(), 50, 3, 1000) == Power(rounds=17, tol=0.0)
    assert solver_for(PrivatePower(), private(), 50, 3, 1000).rounds is not None
    assert solver_for(PrivatePower(rounds=6), private(), 50, 3, 1000).rounds == 6
    assert solver_for(Covariance(), private(), 50, 3, 1000) == Covariance()


def test_fedpower_by_name_takes_one_local_step_unless_its_release_is_clipped():
    assert solver_for("fedpower", private(), 50, 3, 1000).local_steps == 1
    assert solver_for("fedpower", private(site_norm=2.0), 50, 3, 1000).local_steps == FedPower().local_steps
    published = private(calibration="published", n_public=True, neighbours="entry", row_norm=None)
    assert solver_for("fedpower", published, 50, 3, 1000).local_steps == FedPower().local_steps


def test_fedpower_that_sends_each_sites_own_z_is_refused():
    with pytest.raises(ConfigurationError, match="own Z"):
        solver_for(FedPower(reference="baseline"), private(), 50, 3, 1000)
    with pytest.raises(ConfigurationError, match="n_public"):
        solver_for(FedPower(), private(calibration="published"), 50, 3, 1000)


@pytest.mark.parametrize("trust", ["central", "distributed"])
def test_noise_by_slices_needs_local_trust(trust):
    with pytest.raises(ConfigurationError, match="trust = 'local'"):
        solver_for("mod-sulq", private(trust=trust), 50, 3, 1000)
    assert isinstance(solver_for("mod-sulq", private(), 50, 3, 1000), ModSulq)


@pytest.mark.parametrize(
    ("formula", "solver"),
    [
        ("ppm", Covariance()), ("hardt-price", FedPower()), ("fedpower", Power()), ("analyze-gauss", Power()),
        ("mod-sulq", ModSulq()), ("streaming-mod-sulq", Covariance()),
    ],
)  # fmt: skip
def test_a_papers_formula_for_another_papers_solver_is_refused(formula, solver):
    with pytest.raises(ConfigurationError, match=f"formula '{formula}' is not about"):
        check_published(private(calibration="published", formula=formula, n_public=True), solver)


def test_mod_sulq_needs_a_public_number_of_rows():
    with pytest.raises(ConfigurationError, match="n_public"):
        check_published(private(calibration="published", formula="mod-sulq"), Covariance())


# ---- rounds from public figures only ---------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("d", [3, 100, 5000])
@pytest.mark.parametrize("rows", [0.0, 100.0, 1e7])
def test_rounds_lie_between_one_and_eight(epsilon, d, rows):
    assert 1 <= power_rounds(private(epsilon=epsilon), d, min(2, d), min(4, d), rows) <= MOST_ROUNDS == 8


@pytest.mark.parametrize(
    "settings",
    [
        {"neighbours": "entry", "row_norm": None},
        {"neighbours": "ppm-12", "row_norm": None},
        {"neighbours": "site", "site_norm": 1e5, "row_norm": None},
        {"row_norm": Bounds(0, 1)},
        {"row_norm": "unit", "trust": "central"},
    ],
)
def test_rounds_are_found_for_every_relation(settings):
    assert 1 <= power_rounds(private(**settings), 20, 2, 7, 1000.0, 4) <= MOST_ROUNDS


def test_more_noise_means_no_more_rounds():
    rounds = [power_rounds(private(epsilon=e), 200, 3, 8, 1e5, 1) for e in (0.05, 1.0, 50.0)]
    assert rounds == sorted(rounds)
    assert rounds[0] < rounds[-1]


@pytest.mark.parametrize("name", ["private-power", "power", "fedpower"])
def test_other_data_of_the_same_size_changes_no_round(name):
    privacy = private(n_public=True, testing_seed=1, adaptive_clip=False)
    chosen = []
    for seed, size in [(0, 1.0), (1, 1e-3), (2, 1e3)]:
        rng = np.random.default_rng(seed)
        sources = {n: open_source(rng.standard_normal((300, 12)) * size) for n in "ab"}
        study = Study(n_components=2, solver=name, privacy=privacy)
        result = run(study, sources)
        chosen.append((result.solver, result.rounds, [r.step for r in result.history]))
    assert chosen[0] == chosen[1] == chosen[2]
