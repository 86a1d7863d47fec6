"""Split noise under masks: whoever colludes, the honest sites' sum has the noise that the guarantee rests on."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2, kstest

import fedspan.privacy.releases
from fedspan.data import Preparation, open_source
from fedspan.encoding import decode, digest
from fedspan.errors import CohortError, ConfigurationError
from fedspan.privacy import GaussianPrivacy
from fedspan.privacy.ledger import Ledger
from fedspan.privacy.mechanisms import Scale
from fedspan.rounds import Cohort
from fedspan.run import Study, run
from fedspan.secure import SecureSums
from fedspan.sites import LEDGER
from fedspan.solvers import Covariance, Power
from fedspan.solvers.covariance import to_triangle
from tests.secure.silence import Silence
from tests.wire import Wire

D, SITES, HONEST = 40, 8, 6
RULES = SecureSums(colluding=0.2)  # of eight sites two


def rows() -> dict[str, np.ndarray]:
    return {f"s{i}": np.random.default_rng(i).standard_normal((30, D)) / D for i in range(SITES)}


def privacy(**settings: Any) -> GaussianPrivacy:
    return GaussianPrivacy(
        **{
            "epsilon": 1.0, "delta": 1e-6, "row_norm": 1.0, "n_public": True, "trust": "distributed",
            "honest": HONEST, "testing_seed": 5, "adaptive_clip": False, "shares": {"variance": 0.0},
        }
        | settings
    )  # fmt: skip


class Keeping:
    """The wire; every site's own release is kept beside it: what the colluding ones would hand over."""

    def __init__(self) -> None:
        self.own: dict[str, np.ndarray] = {}
        self.sites: Any = None

    def __call__(self, sites: Any, seed: int) -> Any:
        self.sites = {site.id: site for site in sites}
        return Wire(sites, seed)


def run_once(**settings: Any) -> tuple[Keeping, Any]:
    engine = Keeping()
    study = Study(
        n_components=2, solver=Covariance(), preparation=Preparation(center=False), secure=RULES,
        privacy=privacy(**settings),
    )  # fmt: skip
    result = run(study, {name: open_source(x) for name, x in rows().items()}, engine=engine)
    for name, site in engine.sites.items():
        engine.own[name] = np.asarray(site.masks._reply[1].value)
    return engine, result


def residual(engine: Keeping, colluding: list[str]) -> tuple[np.ndarray, float]:
    """The noise left in the sum of the others, and the variance that was charged for."""
    exact = {name: to_triangle(x.T @ x) for name, x in rows().items()}
    honest = [name for name in engine.own if name not in colluding]
    noise = sum(engine.own[name] - exact[name] for name in honest)
    (charge,) = [c for c in engine.sites["s0"].policy.releases.ledger.charges() if c.step == "covariance.gram"]
    return noise, charge.detail["gram"]["sigma"] ** 2


def enough(noise: np.ndarray, variance: float) -> bool:
    """Whether a sample is of at least this variance, but for a chance of one in a million."""
    return float(noise @ noise) / variance >= chi2.ppf(1e-6, noise.size)


@pytest.mark.parametrize("colluding", [[], ["s0"], ["s3", "s7"]])
def test_without_those_who_collude_the_noise_is_what_was_charged_for(colluding):
    engine, _ = run_once()
    noise, variance = residual(engine, colluding)
    assert noise.size == D * (D + 1) // 2
    assert enough(noise, variance)
    expected = variance * (SITES - len(colluding)) / HONEST
    assert kstest(noise / np.sqrt(expected), "norm").pvalue > 1e-3
    assert not enough(noise / np.sqrt(2), variance * (SITES - len(colluding)) / HONEST)  # the test can fail


def test_half_the_noise_at_the_sites_is_seen(monkeypatch):
    true = fedspan.privacy.releases.tight_scale

    def half(*given: Any) -> Scale:
        scale = true(*given)
        return replace(scale, share=scale.share / np.sqrt(2))

    monkeypatch.setattr(fedspan.privacy.releases, "tight_scale", half)
    engine, _ = run_once()
    assert not enough(*residual(engine, ["s3", "s7"]))


def test_more_who_collude_than_counted_on_leave_less_noise():
    engine, _ = run_once()
    assert not enough(*residual(engine, ["s1", "s2", "s3", "s4", "s5"]))


def test_no_two_sites_have_the_same_noise():
    engine, _ = run_once()
    noises = []
    for name, own in engine.own.items():
        x = rows()[name]
        noises.append(own - to_triangle(x.T @ x))
    correlations = np.corrcoef(noises) - np.eye(SITES)
    assert np.abs(correlations).max() < 0.2


# ---- how many must be in a sum ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("honest", "colluding", "least"), [(None, 0.2, 8), (6, 0.2, 8), (5, 0.2, 7), (4, 0.2, 6), (4, 0.0, 6), (7, 0.1, 8)]
)
def test_a_sum_is_of_the_honest_ones_counted_on_and_all_who_may_collude(honest, colluding, least):
    rules = SecureSums(colluding=colluding)
    terms = Study(privacy=privacy(honest=honest), secure=rules).masks(SITES)
    assert terms.fewest == least
    assert terms.fewest >= rules.quorum(SITES)
    for party in terms.parties(sorted(rows())).values():
        assert party.least == least


def test_a_cohort_that_may_leave_fewer_is_refused():
    cohort = Cohort(first=7)
    with pytest.raises(ConfigurationError, match="the cohort waits for 7 sites, and a secure sum takes at least 8"):
        Study(privacy=privacy(), secure=RULES, cohort=cohort).masks(SITES)
    assert Study(privacy=privacy(honest=5), secure=RULES, cohort=cohort).masks(SITES).fewest == 7


@pytest.mark.parametrize(("first", "honest", "good"), [(7, 5, True), (8, 6, False)])
def test_fewer_than_that_are_not_unmasked(first, honest, good):
    """With honest = 5 and two who may collude, seven of eight must be there; with 6, all."""
    study = Study(
        n_components=2, solver=Power(rounds=2), preparation=Preparation(center=False), secure=RULES,
        privacy=privacy(honest=honest), cohort=Cohort(first=first),
    )  # fmt: skip
    sources = {name: open_source(x) for name, x in rows().items()}
    for lost in ({"s4"}, {"s4", "s6"}):
        engine = Silence(lambda number, phase, _, lost=lost: lost if (number, phase) == (2, "masked") else ())
        if good and len(lost) == 1:
            result = run(study, sources, engine=engine)
            assert {record.sites for record in result.history if not record.setup} == {7}
            continue
        with pytest.raises(
            CohortError, match=f"{8 - len(lost)} sites sent their masked replies, and it takes {first} of"
        ):
            run(study, sources, engine=engine)
        assert engine.asked[2, "masked"] == 3
        assert engine.asked[2, "consent"] == 0


def test_noise_is_drawn_once_for_a_round_however_often_it_is_tried(tmp_path):
    """Real noise; the masked replies of one attempt come to nothing, and those of the next are of the same numbers."""
    study = Study(
        n_components=2, solver=Power(rounds=2), preparation=Preparation(center=False), secure=RULES,
        privacy=privacy(testing_seed=None), cohort=Cohort(),
    )  # fmt: skip
    sources = {name: open_source(x) for name, x in rows().items()}

    kept: list[dict[str, Any]] = []

    def silent(number, phase, attempt):
        if (number, phase) == (2, "consent") or (number, phase, attempt > 1) == (2, "shares", True):
            kept.append(decode((tmp_path / "run" / "sites" / "s1" / "memory").read_bytes())["last"])
        return {"s4"} if (number, phase) == (2, "masked") and attempt < 3 else ()

    result = run(study, sources, engine=Silence(silent), folder=tmp_path / "run")
    assert result.history[2].masked.attempts == 3
    assert [last["round"] for last in kept] == [2, 2, 2]
    assert len({digest(last["value"]) for last in kept}) == 1
    for name in rows():
        with Ledger(tmp_path / "run" / "sites" / name / LEDGER) as ledger:
            assert set(Counter(charge.round for charge in ledger.charges()).values()) == {1}
