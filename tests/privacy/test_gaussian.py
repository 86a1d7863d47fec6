"""`GaussianPrivacy` and `Bounds`: what they refuse, and what sites are told to clip to."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import scipy.sparse

from fedspan.data.clip import clamp
from fedspan.errors import ConfigurationError
from fedspan.privacy import GaussianPrivacy
from fedspan.privacy.accountant import delta_of
from fedspan.privacy.gaussian import FORMULAS, SHARES, Bounds


def private(**settings):
    return GaussianPrivacy(**{"epsilon": 1.0, "delta": 1e-6, "row_norm": 1.0, **settings})


# ---- refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0, -1.0, math.nan, math.inf, True, "1", None])
def test_an_epsilon_that_is_no_positive_number_is_refused(epsilon):
    with pytest.raises(ConfigurationError, match="epsilon"):
        private(epsilon=epsilon)


@pytest.mark.parametrize("delta", [0, 1, -1e-6, 1.5, math.nan, True, "1e-6", None])
def test_a_delta_outside_zero_to_one_is_refused(delta):
    with pytest.raises(ConfigurationError, match="delta"):
        private(delta=delta)


@pytest.mark.parametrize("settings", [{}, {"neighbours": "row-replace"}, {"n_public": True}])
def test_a_guarantee_for_rows_without_their_bound_is_refused(settings):
    with pytest.raises(ConfigurationError, match=r"row_norm is missing.*never taken from the data"):
        private(row_norm=None, **settings)


@pytest.mark.parametrize("norm", [0, -1.0, math.inf, math.nan, True, "big", "Unit", [1.0], np.ones(3)])
def test_a_row_norm_that_is_no_bound_is_refused(norm):
    with pytest.raises(ConfigurationError, match="row_norm"):
        private(row_norm=norm)


def test_a_guarantee_for_sites_without_their_bound_is_refused():
    with pytest.raises(ConfigurationError, match="site_norm is missing"):
        private(row_norm=None, neighbours="site")


@pytest.mark.parametrize("name", ["site_norm", "raw_norm", "entry_change"])
@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan, True, "1"])
def test_other_bounds_are_positive_and_finite(name, value):
    with pytest.raises(ConfigurationError, match=f"{name} is a positive finite number"):
        private(**{name: value})


@pytest.mark.parametrize("name", ["rows_per_person", "honest"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2", math.inf])
def test_counts_are_whole_and_at_least_one(name, value):
    with pytest.raises(ConfigurationError, match=f"{name} is a whole number"):
        private(**{name: value})


def test_rows_per_person_is_not_optional():
    with pytest.raises(ConfigurationError, match="rows_per_person"):
        private(rows_per_person=None)


@pytest.mark.parametrize(
    ("name", "wrong", "hint"),
    [
        ("neighbours", "rows", "'row'"),
        ("neighbours", "row_replace", "'row-replace'"),
        ("neighbours", "ppm12", "'ppm-12'"),
        ("trust", "locale", "'local'"),
        ("trust", "centre", "'central'"),
        ("calibration", "publish", "'published'"),
        ("arithmetic", "grids", "'grid'"),
        ("formula", "hard-price", "'hardt-price'"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name, wrong, hint):
    with pytest.raises(ConfigurationError, match=f"{name} is {wrong!r}; did you mean {hint}"):
        private(**{"calibration": "published", name: wrong})


@pytest.mark.parametrize("name", ["neighbours", "trust", "calibration", "arithmetic", "formula"])
def test_a_name_that_is_nothing_like_a_known_one_is_refused_with_all(name):
    with pytest.raises(ConfigurationError, match="known: "):
        private(**{name: "zzz"})


def test_an_unknown_share_is_refused_with_the_nearest():
    with pytest.raises(ConfigurationError, match="no share 'means'; did you mean 'mean'"):
        private(shares={"means": 0.1})


@pytest.mark.parametrize("share", [-0.1, 1, 1.5, math.nan, True, "0.1", None])
def test_a_share_that_is_no_part_of_the_budget_is_refused(share):
    with pytest.raises(ConfigurationError, match=r"share of mean is a number in \[0, 1\)"):
        private(shares={"mean": share})


def test_shares_that_leave_nothing_for_the_solver_are_refused():
    with pytest.raises(ConfigurationError, match=r"nothing of the budget .*; let them sum to at most 0\.99"):
        private(shares={"mean": 0.6, "count": 0.2, "variance": 0.2, "scale": 0.1})
    for share in ("mean", "degree"):
        with pytest.raises(ConfigurationError, match="nothing of the budget for the solver"):
            private(shares={share: 0.96})  # with the others' defaults


# Was a fault once: these sum to 0.9999999999999999, below 1, and the solver got 1e-16 of the budget.
def test_shares_that_leave_a_rounding_for_the_solver_are_refused():
    with pytest.raises(ConfigurationError, match="sum to 1 and leave next to nothing"):
        private(shares={"mean": 0.7, "count": 0.1, "variance": 0.1, "scale": 0.1})
    assert private(shares={"mean": 0.69, "count": 0.1, "variance": 0.1, "scale": 0.1}).shares["mean"] == 0.69


@pytest.mark.parametrize("shares", [[0.1], 0.1, "mean", None, [("mean", 0.1)]])
def test_shares_without_names_are_refused(shares):
    with pytest.raises(ConfigurationError, match="shares is a dict of parts of the budget by name"):
        private(shares=shares)


# Was a fault once: a text is true to Python, so n_public="false" told each site's number of rows.
@pytest.mark.parametrize("name", ["n_public", "adaptive_clip"])
@pytest.mark.parametrize("value", ["false", "no", "", 0, 1, None, [False]])
def test_a_flag_that_is_no_flag_is_refused(name, value):
    with pytest.raises(ConfigurationError, match=f"{name} is True or False, got"):
        private(**{name: value})


@pytest.mark.parametrize("seed", ["7", 1.5, True, False, [7], 7.0, math.nan])
def test_a_testing_seed_that_is_no_whole_number_is_refused(seed):
    with pytest.raises(ConfigurationError, match="testing_seed is a whole number, or None"):
        private(testing_seed=seed)


def test_numpys_flags_and_whole_numbers_are_taken_as_plain_ones():
    privacy = private(n_public=np.True_, adaptive_clip=np.False_, testing_seed=np.int64(7), rows_per_person=np.int8(2),
                      honest=np.int32(3))  # fmt: skip
    assert (privacy.relation, privacy.may_tighten) == ("row-replace", False)
    plain = json.loads(json.dumps(privacy.as_plain()))  # numpy's own would be refused
    assert (plain["n_public"], plain["adaptive_clip"], plain["testing_seed"]) == (True, False, 7)
    assert (plain["rows_per_person"], plain["honest"]) == (2, 3)


@pytest.mark.parametrize("settings", [{"formula": "ppm"}, {"split": (1.0, 1.0)}])
def test_a_papers_own_terms_without_its_calibration_are_refused(settings):
    with pytest.raises(ConfigurationError, match="calibration"):
        private(**settings)


@pytest.mark.parametrize("split", [(1.0,), (1.0, 0.0), (1.0, -1), "ab", (1.0, True), (1.0, 1.0, 1.0), 1.0])
def test_a_split_that_is_no_pair_of_positive_numbers_is_refused(split):
    with pytest.raises(ConfigurationError, match="split is"):
        private(calibration="published", split=split)


@pytest.mark.parametrize(
    ("low", "high"), [(0, 0), (1, 0), ([0, 1], [1, 1]), (math.nan, 1), (0, math.inf), (np.zeros((2, 2)), 1)]
)
def test_bounds_that_are_no_box_are_refused(low, high):
    with pytest.raises(ConfigurationError, match="Bounds"):
        Bounds(low, high)


# Was a fault once: numpy's own error came up, as a traceback.
@pytest.mark.parametrize("low", ["a", "0", ["0", 1], None, [None, 0], [[0], [0, 1]], [], {}, 1j, False])
def test_a_side_of_a_box_that_is_no_list_of_numbers_is_refused(low):
    with pytest.raises(ConfigurationError, match="Bounds low is a finite number, or a list of one for each column"):
        Bounds(low, 1)


# Was a fault once: "operands could not be broadcast together", as a traceback.
@pytest.mark.parametrize(("low", "high"), [([18, 80, 40, 40], [100, 220, 130]), ([0, 0], [1, 1, 1])])
def test_sides_of_a_box_for_different_columns_are_refused(low, high):
    with pytest.raises(ConfigurationError, match=rf"low names {len(low)} columns and high {len(high)}; give as many"):
        Bounds(low, high)


def test_bounds_for_other_columns_than_the_studys_are_refused():
    with pytest.raises(ConfigurationError, match="2 columns, and the study has 3"):
        Bounds([0, 0], [1, 1]).half_width(3)
    with pytest.raises(ConfigurationError, match="2 columns, and the study has 3"):
        Bounds([0, 0], 1).reach(3)


# ---- what they mean --------------------------------------------------------------------------------------------


def test_mu_is_the_largest_that_keeps_epsilon_and_delta():
    mu = private(epsilon=0.7, delta=1e-5).mu
    assert delta_of(mu, 0.7) <= 1e-5 < delta_of(mu * (1 + 1e-6), 0.7)


@pytest.mark.parametrize(
    ("settings", "relation", "known"),
    [
        ({}, "row", False),
        ({"n_public": True}, "row-replace", True),
        ({"neighbours": "row-replace"}, "row-replace", True),
        ({"neighbours": "entry", "row_norm": None}, "entry", True),
        ({"neighbours": "ppm-12", "n_public": True, "row_norm": None}, "ppm-12", True),
        ({"neighbours": "site", "site_norm": 1.0, "n_public": True, "row_norm": None}, "site", True),
    ],
)
def test_a_public_number_of_rows_means_that_rows_are_replaced(settings, relation, known):
    assert private(**settings).relation == relation
    assert private(**settings).rows_known is known


# Was a fault once: with neighbours="site" a site's number of rows is told in the clear although nobody said it is
# public, and it is a function of the very rows that the guarantee hides.
def test_the_number_of_a_hidden_sites_rows_is_not_known_unless_it_is_public():
    assert private(neighbours="site", site_norm=1.0, row_norm=None).rows_known is False


def test_shares_not_named_keep_their_defaults():
    assert private(shares={"mean": 0}).shares == {**SHARES, "mean": 0.0}


def test_the_box_gives_its_half_diagonal_and_its_farthest_corner():
    box = Bounds([0, -3], [2, 1])
    assert box.half_width(2) == pytest.approx(math.hypot(1, 2))
    assert box.reach(2) == pytest.approx(math.hypot(2, 3))
    assert Bounds(-1, 1).half_width(9) == 3.0


@pytest.mark.parametrize(
    ("low", "high"), [([0, -3], 1), (-3, [1, 2]), ([-3], [1, 2]), ([-3, -1], [2]), ([-3, -3], [1, 2])]
)
def test_one_number_for_all_columns_mixes_with_one_for_each(low, high):
    mixed, full = Bounds(low, high), Bounds(np.broadcast_to(low, 2), np.broadcast_to(high, 2))
    assert mixed.half_width(2) == full.half_width(2)
    assert mixed.reach(2) == full.reach(2)
    near, same = (private(row_norm=box).row_bounds(2, centred=True, scaled=False) for box in (mixed, full))
    np.testing.assert_array_equal(near.middle(2), same.middle(2))
    rows = np.random.default_rng(0).uniform(-9, 9, (20, 2))
    np.testing.assert_array_equal(clamp(rows, near), clamp(rows, same))
    around = scipy.sparse.csr_array(rows)
    if np.all(full.low <= 0):  # sparse rows have zeros
        np.testing.assert_array_equal(clamp(around, near).toarray(), clamp(around, same).toarray())
    with pytest.raises(ConfigurationError, match="2 columns, and the study has 3"):
        mixed.half_width(3)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize(("norm", "bound"), [(3.0, 3.0), ("unit", 1.0), (2, 2.0)])
def test_a_number_bounds_the_row_that_enters_and_the_raw_row_unless_scaled(norm, bound, centred, scaled):
    got = private(row_norm=norm).row_bounds(4, centred=centred, scaled=scaled)
    assert (got.norm, got.raw_norm) == (bound, None if scaled else bound)
    assert got.low is got.high is got.site_total is None


@pytest.mark.parametrize(
    ("centred", "scaled", "norm"), [(True, False, 1.0), (False, False, 22.0), (True, True, 2.0), (False, True, 2.0)]
)
def test_a_box_bounds_rows_by_its_half_diagonal_its_corner_or_their_number_of_columns(centred, scaled, norm):
    got = private(row_norm=Bounds(10, 11)).row_bounds(4, centred=centred, scaled=scaled)
    assert (got.norm, got.raw_norm) == (pytest.approx(norm), pytest.approx(1.0))
    assert (got.low, got.high) == (10, 11)
    np.testing.assert_array_equal(got.middle(4), np.full(4, 10.5))


@pytest.mark.parametrize(("raw", "box"), [(None, 1.0), (0.25, 0.25), (40.0, 1.0)])
def test_a_bound_on_raw_rows_of_its_own_is_for_their_sums(raw, box):
    for centred in (False, True):
        got = private(row_norm=2.0, raw_norm=raw).row_bounds(4, centred=centred, scaled=False)
        assert (got.norm, got.raw_norm) == (2.0, raw or 2.0)
        got = private(row_norm=Bounds(10, 11), raw_norm=raw).row_bounds(4, centred=centred, scaled=False)
        assert (got.norm, got.raw_norm) == (pytest.approx(1.0 if centred else 22.0), pytest.approx(box))


@pytest.mark.parametrize("tighter", [None, 0.5, 9.0])
def test_counts_have_a_bound_for_each_of_their_two_forms(tighter):
    privacy = private(row_norm=2.0, raw_norm=7.0)
    got = privacy.row_bounds(4, centred=False, scaled=True, by_degree=True, tighter=tighter)
    assert (got.norm, got.raw_norm) == (min(2.0, tighter or 2.0), 7.0)
    np.testing.assert_array_equal(got.middle(4), np.zeros(4))
    np.testing.assert_array_equal(clamp(np.array([[-3.0, 0.0, 5.0, np.nan]]), got), [[0.0, 0.0, 5.0, 0.0]])
    plain = {"degree": True, "scale": np.ones(4), "norm": tighter}
    assert privacy.bounds_under(plain, 4).norm == got.norm
    assert privacy.bounds_under(plain, 4, tightened=False).norm == 2.0


@pytest.mark.parametrize(
    ("settings", "sites", "times"),
    [
        ({}, None, 1.0), ({}, 1, 1.0), ({}, 9, 3.0), ({"trust": "central"}, 9, 1.0), ({"trust": "distributed"}, 9, 1.0),
        ({"trust": "distributed", "honest": 4}, 9, 1.5), ({"trust": "distributed", "honest": 4}, None, 1.0),
        ({"n_public": True}, 1, math.sqrt(2)), ({"rows_per_person": 5}, 1, 5.0), ({"raw_norm": 70.0}, 1, 10.0),
        ({"shares": {"degree": 0.4}}, 1, 0.5),
    ],
)  # fmt: skip
def test_the_least_degree_is_some_deviations_of_the_noise_on_degrees(settings, sites, times):
    privacy = private(**{"raw_norm": 7.0, **settings})
    sigma = 7.0 / (privacy.mu * math.sqrt(0.1))
    assert privacy.least_degree(sites) == pytest.approx(2.0 * sigma * times, rel=1e-12)


def test_with_next_to_no_noise_a_degree_is_at_least_one():
    assert private(epsilon=1e5, raw_norm=1.0).least_degree() == 1.0


@pytest.mark.parametrize("shares", [{"degree": 0.9}, {"degree": 0.95, "mean": 0.5, "scale": 0.4}])
def test_the_share_of_degrees_is_beside_those_of_mean_and_scale(shares):
    assert private(shares=shares).shares["degree"] == shares["degree"]


@pytest.mark.parametrize("relation", ["entry", "ppm-12", "site"])
def test_relations_that_are_not_about_rows_clip_no_row(relation):
    privacy = private(neighbours=relation, row_norm=None, site_norm=5.0, entry_change=0.25)
    got = privacy.row_bounds(4, centred=False, scaled=False)
    assert got.norm is got.raw_norm is None
    assert got.site_total == (5.0 if relation == "site" else None)
    assert privacy.neighbours_of(got).bound == (5.0 if relation == "site" else 0.25)


@pytest.mark.parametrize("trust", ["local", "central", "distributed"])
def test_neighbours_know_all_bounds(trust):
    privacy = private(row_norm=Bounds(-1, 3), trust=trust, rows_per_person=3, site_norm=7.0)
    near = privacy.neighbours_of(privacy.row_bounds(4, centred=False, scaled=False))
    assert (near.relation, near.bound, near.raw) == ("row", 6.0, 4.0)
    assert (near.rows_per_person, near.whole) == (3, 7.0)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"row_norm": "unit", "rows_per_person": 2, "n_public": True, "trust": "distributed", "honest": 3},
        {"row_norm": Bounds([0, 1], [2, 3]), "arithmetic": "float", "testing_seed": 3, "shares": {"mean": 0.3}},
        {"row_norm": None, "neighbours": "site", "site_norm": 2.0},
        {"raw_norm": 3.0},
        {"row_norm": None, "neighbours": "entry", "entry_change": 0.5},
        {"calibration": "published", "formula": "fedpower", "split": (math.inf, 1.0), "n_public": True},
        *({"calibration": "published", "formula": name, "n_public": True} for name in FORMULAS),
    ],
    ids=str,
)
def test_settings_come_back_from_plain_data(settings):
    privacy = private(**settings)
    plain = privacy.as_plain()
    back = GaussianPrivacy.from_plain(json.loads(json.dumps(plain)))
    assert back.as_plain() == plain
    assert back.mu == privacy.mu
    for name in ("relation", "trust", "shares", "split", "honest", "formula", "rows_per_person", "raw_norm"):
        assert getattr(back, name) == getattr(privacy, name)
    bounds = [p.row_bounds(2, centred=True, scaled=False) for p in (back, privacy)]
    for name in ("norm", "raw_norm", "low", "high", "site_total"):
        np.testing.assert_array_equal(*(getattr(b, name) for b in bounds))


def test_equal_boxes_are_equal():
    # Was a fault once: Bounds compares by identity, so a study file read twice "changed" (StudyFile.changes)
    assert private(row_norm=Bounds(0, [1, 2])) == private(row_norm=Bounds(0, [1, 2]))


@pytest.mark.parametrize("row_norm", [1.0, Bounds(0, 1)])
def test_a_tighter_clip_is_never_a_looser_one(row_norm):
    privacy = GaussianPrivacy(1.0, 1e-6, row_norm=row_norm)
    given = privacy.row_bounds(3, centred=True, scaled=False)
    assert privacy.row_bounds(3, centred=True, scaled=False, tighter=2 * given.norm) == given
    assert privacy.row_bounds(3, centred=True, scaled=False, tighter=given.norm / 2).norm == given.norm / 2


def test_a_total_that_is_asked_for_twice_costs_its_share_once():
    assert GaussianPrivacy(1.0, 1e-6, row_norm=1.0).total_share == 0.01
    assert GaussianPrivacy(1.0, 1e-6, row_norm=1.0, adaptive_clip=False).total_share == 0.02
    assert GaussianPrivacy(1.0, 1e-6, neighbours="entry").total_share == 0.02
