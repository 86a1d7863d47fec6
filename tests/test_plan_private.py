"""A private study's plan lists the rounds, bytes, shares and noise that its run then has, without touching the data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import fedspan.plan
from fedspan.data import Preparation, Source, open_source
from fedspan.errors import ConfigurationError
from fedspan.plan import make_plan
from fedspan.privacy import GaussianPrivacy
from fedspan.privacy.gaussian import Bounds
from fedspan.rounds import Cohort
from fedspan.run import Study, run
from fedspan.solvers import Covariance, FedPower, PrivatePower, StreamingModSulq
from tests.test_plan import Untouchable, costs

SOLVERS = ["auto", "covariance", "private-power", "power", "krylov", "fedpower", "mod-sulq"]
TRUSTS = ["local", "distributed", "central"]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"n_public": True},
    {"shares": {"variance": 0}},
    {"rows_per_person": 3},
    {"arithmetic": "float"},
    {"row_norm": Bounds(-2, 2)},
]


def private(**settings: Any) -> GaussianPrivacy:
    """A clip that adapts to the noised total may take one more round, which no plan can know: it is off here."""
    plain = {"epsilon": 1.0, "delta": 1e-6, "row_norm": 1.0, "testing_seed": 1, "adaptive_clip": False}
    return GaussianPrivacy(**{**plain, **settings})


def federation(features: int = 8, *rows: int) -> dict[str, Source]:
    rng = np.random.default_rng(features)
    sizes = rows or (300, 400, 500)
    return {f"s{i}": open_source(0.4 * rng.standard_normal((n, features))) for i, n in enumerate(sizes)}


def agree(study: Study, sources: dict[str, Source]) -> None:
    """Rounds, bytes, releases, shares, noise and words are the same in the plan and in the run."""
    plan, result = make_plan(study, sources), run(study, sources)
    assert costs(plan.rounds) == costs(result.history)
    assert plan.privacy is not None
    assert result.privacy is not None
    assert plan.privacy.words == result.privacy.words
    planned, made = plan.privacy.releases, result.privacy.releases
    assert [(r.step, r.release, r.times) for r in planned] == [(r.step, r.release, r.times) for r in made]
    np.testing.assert_allclose([r.share for r in planned], [r.share for r in made], rtol=1e-9)
    np.testing.assert_allclose([r.sigma for r in planned], [r.sigma for r in made], rtol=1e-6)
    assert math.fsum(r.share for r in planned) == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_plan_is_what_a_private_run_takes(solver: str, trust: str) -> None:
    study = Study(n_components=2, solver=solver, privacy=private(trust=trust))
    if solver == "mod-sulq" and trust != "local":
        with pytest.raises(ConfigurationError, match="set trust = 'local'"):
            make_plan(study, federation())
        return
    agree(study, federation())


@pytest.mark.parametrize("trust", TRUSTS)
def test_and_where_columns_degrees_are_released(trust: str) -> None:
    counts = np.random.default_rng(0).poisson(0.5, (900, 8)).astype(float)
    sources = {f"s{i}": open_source(part) for i, part in enumerate(np.split(counts, 3))}
    privacy = private(trust=trust, raw_norm=3.0, row_norm=0.1)
    study = Study(
        n_components=2, solver="covariance", privacy=privacy, preparation=Preparation(center=False, normalise="degree")
    )
    agree(study, sources)
    (price,) = (r for r in make_plan(study, sources).privacy.releases if r.release == "degrees")  # type: ignore[union-attr]
    assert price.share == pytest.approx(0.1)
    sites = 3 if trust == "local" else 1
    assert price.sigma == pytest.approx(3.0 * math.sqrt(sites / 0.1) / privacy.mu, rel=2e-3)


def test_and_where_blocks_of_rows_are_charged_side_by_side() -> None:
    study = Study(n_components=2, solver=StreamingModSulq(blocks=4), privacy=private(n_public=True))
    agree(study, federation())
    releases = make_plan(study, federation()).privacy.releases  # type: ignore[union-attr]
    assert [r.times for r in releases if r.step == "mod_sulq.block"] == [4]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("solver", ["covariance", "private-power"])
def test_and_under_every_setting(solver: str, settings: dict[str, Any]) -> None:
    for preparation in (Preparation(), Preparation(missing="mean"), Preparation(center=False)):
        agree(Study(n_components=2, solver=solver, privacy=private(**settings), preparation=preparation), federation())


def test_and_where_columns_are_scaled() -> None:
    privacy = private(row_norm=Bounds(-2, 2))
    study = Study(n_components=2, solver="covariance", privacy=privacy, preparation=Preparation(scale=True))
    agree(study, federation())
    releases = make_plan(study, federation()).privacy.releases  # type: ignore[union-attr]
    assert "squares" in [r.release for r in releases]


@pytest.mark.parametrize("formula", ["ppm", "hardt-price", "analyze-gauss"])
def test_and_with_published_noise(formula: str) -> None:
    solver = "covariance" if formula == "analyze-gauss" else PrivatePower(rounds=3)
    about = {"neighbours": "entry"} if formula == "hardt-price" else {"n_public": True}
    privacy = private(calibration="published", formula=formula, **about)
    preparation = Preparation(center=formula != "hardt-price")
    study = Study(n_components=2, solver=solver, privacy=privacy, preparation=preparation)
    plan, result = make_plan(study, federation()), run(study, federation())
    assert costs(plan.rounds) == costs(result.history)
    assert plan.privacy is not None
    assert math.fsum(r.share for r in plan.privacy.releases) == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("cohort", [Cohort(fraction=0.5), Cohort(first=2), Cohort(only=("s0", "s2"))])
def test_and_with_some_of_the_sites(cohort: Cohort) -> None:
    agree(
        Study(n_components=2, solver=FedPower(rounds=4, local_steps=1), cohort=cohort, privacy=private()), federation()
    )


@pytest.mark.parametrize("wanted", [0.9, "auto"])
def test_a_rank_still_to_be_found_takes_one_solve(wanted: float | str) -> None:
    study = Study(n_components=wanted, solver="covariance", privacy=private())
    plan = make_plan(study, federation())
    assert not plan.first_rank_only
    assert costs(plan.rounds) == costs(run(study, federation()).history)


@pytest.mark.parametrize("solver", ["covariance", "private-power", "krylov"])
def test_a_narrow_stand_in_gives_the_same_rounds_and_nearly_the_same_noise(
    solver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = federation(300, 400, 500)
    study = Study(n_components=5, solver=solver, privacy=private())
    exact = make_plan(study, sources)
    monkeypatch.setattr(fedspan.plan, "STAND_IN", 64)
    narrow = make_plan(study, sources)
    assert narrow.rounds == exact.rounds
    assert exact.privacy is not None
    assert narrow.privacy is not None
    for a, b in zip(exact.privacy.releases, narrow.privacy.releases, strict=True):
        assert (a.step, a.release, a.times, a.share) == (b.step, b.release, b.times, b.share)
        assert b.sigma == pytest.approx(a.sigma, rel=1e-3)


def test_a_plan_reads_nothing_and_chooses_by_size() -> None:
    narrow: dict[str, Source] = {"a": Untouchable(10**7, 50), "b": Untouchable(10**7, 50)}
    wide: dict[str, Source] = {"a": Untouchable(10**7, 10**5), "b": Untouchable(10**7, 10**5)}
    study = Study(n_components=5, solver="auto", privacy=private())
    assert isinstance(make_plan(study, narrow).solver, Covariance)
    assert isinstance(make_plan(study, wide).solver, PrivatePower)


def test_noise_is_what_the_formula_says() -> None:
    privacy = private(n_public=True, shares={"variance": 0}, arithmetic="float")
    study = Study(n_components=2, solver="covariance", privacy=privacy, preparation=Preparation(center=False))
    plan = make_plan(study, federation())
    assert plan.privacy is not None
    (only,) = plan.privacy.releases
    assert only.share == pytest.approx(1.0)
    each = math.sqrt(2) * (1 + 2.0**-10) / privacy.mu
    assert only.sigma == pytest.approx(each * math.sqrt(3))  # on the sum of three sites
