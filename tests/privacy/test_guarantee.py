"""The guarantee in words: what it promises, on what it says that rests, and how far it claims to be proven."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from fedspan import FederatedPCA
from fedspan.data import Preparation, open_source
from fedspan.plan import make_plan
from fedspan.privacy import GaussianPrivacy
from fedspan.privacy.guarantee import guarantee, label_of, transcript_warning
from fedspan.privacy.releases import Releases
from fedspan.run import Study
from fedspan.solvers import FedPower, Power


def private(**settings):
    return GaussianPrivacy(**{"epsilon": 1.0, "delta": 1e-6, "row_norm": 2.0, **settings})


def releases(formula=None, **settings):
    """What a run of four columns agreed on, before it released anything."""
    if formula is not None:
        settings = {"calibration": "published", "formula": formula, "n_public": True, **settings}
    made = Releases(private(**settings), run="r", who="", sites=3)
    made.accept({"releases": 1, "formula": formula, "sizes": [10, 10, 10]})
    made.set_bounds(4, {}, install=True)
    return made


def promised(formula=None, **settings):
    return guarantee(releases(formula, **settings))


def planned(solver, **settings):
    """The guarantee of a plan: charges are made as in a run."""
    study = Study(n_components=2, solver=solver, privacy=private(**settings), preparation=Preparation(center=False))
    return make_plan(study, {name: open_source(np.eye(30, 6)) for name in "ab"}).privacy


# ---- what it rests on ------------------------------------------------------------------------------------------


# Was a fault once: site_norm was named for neighbours = "site" only, though FedPower's releases rest on it too.
@pytest.mark.parametrize("settings", [{}, {"neighbours": "entry"}, {"neighbours": "site", "n_public": True}], ids=str)
def test_what_releases_are_clipped_to_as_a_whole_is_named(settings):
    clipped = "what leaves a site after several local steps clipped to norm 7"
    told = planned(FedPower(rounds=3, local_steps=4), site_norm=7.0, **settings)
    assert clipped in told.bound
    assert clipped in told.words


@pytest.mark.parametrize("solver", [FedPower(rounds=3, local_steps=1), Power(rounds=3)])
def test_a_bound_that_nothing_was_clipped_to_is_not_named(solver):
    assert "norm 7" not in planned(solver, site_norm=7.0).words
    assert "local steps" not in planned(solver).words


def test_split_noise_rests_on_honest_sites_and_on_masks():
    words = promised(trust="distributed").words
    assert "replies are masked, and the coordinator sees nothing but such sums" in words
    assert "enough while 3 of those in a sum are honest" in words
    assert "masked" not in promised().words


# ---- FedPower as published --------------------------------------------------------------------------------------


# Was a fault once: it promised (epsilon, delta) for rows that its noise knows nothing of, and took it back at the end.
@pytest.mark.parametrize("settings", [{}, {"neighbours": "entry", "row_norm": None}, {"entry_change": 0.1}], ids=str)
def test_fedpower_as_published_leads_with_that_nothing_is_promised(settings):
    told = promised("fedpower", **settings)
    assert told.words.startswith("No guarantee is established: ")
    for promise in ("differential privacy for", "data sets that differ", "It rests on"):
        assert promise not in told.words
    assert "a change of 1 in one entry of A'A and one column of the release" in told.words
    assert "row_norm and entry_change play no part" in told.bound
    assert told.label == "as published"
    assert told.spent_epsilon is None


def test_fedpower_as_published_is_plain_data_that_json_can_hold():
    told = planned(FedPower(rounds=3), calibration="published", neighbours="entry", n_public=True)
    plain = told.as_plain()
    assert plain["spent_epsilon"] is None
    assert json.loads(json.dumps(plain, allow_nan=False)) == {**plain, "releases": list(plain["releases"])}


@pytest.mark.parametrize("seed", [0, 7])
def test_a_testing_seed_is_named_beside_it(seed):
    words = promised("fedpower", testing_seed=seed).words
    assert words.startswith("No guarantee is established: ")
    assert f"Not private: noise from a testing seed: the noise was drawn from testing_seed = {seed}" in words


# ---- how far it is proven ----------------------------------------------------------------------------------------


# Was a fault once: for a change of an entry with its mirror the older sensitivity may be sqrt(2) too small.
def test_the_older_sensitivity_says_what_it_does_not_prove():
    told = promised("hardt-price", neighbours="entry", entry_change=3.0)
    assert "too small by a factor of sqrt(2)" in told.words
    assert f"a change of 3 is not proven to be hidden, only one of {3 / math.sqrt(2):.4g}" in told.reason
    proven = promised("hardt-price", neighbours="ppm-12", entry_change=3.0)
    assert "not proven" not in proven.words
    assert "never below PPM's own" in proven.reason


# Was a fault once: these were "certified", on the grid too.
@pytest.mark.parametrize("relation", ["entry", "ppm-12"])
def test_guarantees_for_entries_are_certified_in_real_arithmetic(relation):
    label, reason = label_of(releases(neighbours=relation))
    assert label == "certified in real arithmetic"
    assert reason.endswith("the rounding of sums over rows is not bounded by an entry's change")
    both = label_of(releases(neighbours=relation, arithmetic="float"))[1]
    assert "the noise is in floating point, and the rounding of sums" in both


@pytest.mark.parametrize("settings", [{}, {"n_public": True}, {"neighbours": "site", "site_norm": 1.0}], ids=str)
def test_guarantees_for_rows_are_certified_on_the_grid(settings):
    assert label_of(releases(**settings))[0] == "certified"
    label, reason = label_of(releases(arithmetic="float", **settings))
    assert (label, reason.split("; ")[1]) == ("certified in real arithmetic", "the noise is in floating point")


def test_a_published_run_without_a_formula_is_not_certified():
    made = Releases(private(calibration="published"), run="r", who="", sites=1)
    assert label_of(made)[0] == "as published"


# ---- transcripts -------------------------------------------------------------------------------------------------


def test_a_transcript_of_plain_sums_is_warned_about_as_such():
    assert "WITHOUT noise" in transcript_warning(private(trust="central"))
    for privacy in (None, private(), private(trust="distributed")):
        assert "WITHOUT" not in transcript_warning(privacy)
        assert transcript_warning(privacy).startswith("the transcript keeps each site's releases by name")


@pytest.mark.parametrize(("trust", "bare"), [("central", True), ("local", False)])
def test_an_estimator_warns_of_it_too(tmp_path, trust, bare):
    rows = {name: np.random.default_rng(i).standard_normal((40, 4)) for i, name in enumerate("ab")}
    model = FederatedPCA(
        2, solver="covariance", privacy=private(trust=trust), run_folder=tmp_path / "run", record="transcript"
    )
    with pytest.warns(UserWarning, match="the transcript keeps each site's releases by name") as caught:
        model.fit(rows)
    assert ("WITHOUT noise" in str(caught[0].message)) is bare
