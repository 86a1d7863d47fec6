"""The attack that runs the site's own code: what local steps and masks hide, it finds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedspan.data import Preparation, open_source
from fedspan.privacy.audit import audit
from fedspan.privacy.audit.simulate import FEATURES, fit_by_simulation
from fedspan.privacy.transcript import Transcript
from fedspan.run import Study, run
from fedspan.solvers import FAPS, FedPower, Power


def federation(d=6, seed=0):
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.standard_normal((d, d)))[0]
    return {n: rng.standard_normal((m, d)) * 0.8 ** np.arange(d) @ turn for n, m in {"a": 50, "b": 40, "c": 60}.items()}


def transcript_of(solver, sites, folder, k=2):
    study = Study(n_components=k, solver=solver, preparation=Preparation(center=False))
    run(study, {name: open_source(x) for name, x in sites.items()}, folder=folder, record="transcript")
    return Transcript.read(folder)


def truth_of(sites):
    return {name: x.T @ x for name, x in sites.items()}


@pytest.mark.parametrize("solver", [FAPS(), FedPower(local_steps=3, rounds=10, tol=0.0)], ids=["faps", "fedpower"])
def test_a_small_matrix_is_recovered_whole_from_behind_masks_and_local_steps(solver, tmp_path):
    sites = federation()
    found = audit(transcript_of(solver, sites, tmp_path), truth_of(sites))
    for site in found.sites.values():
        assert min(curve.least for attack, curve in site.curves.items() if attack.startswith("least")) > 0.1
        assert site.curves["simulation"].least < 1e-8
        assert "all 21 numbers are learnt" in site.verdict


def test_it_fits_what_was_released_and_nothing_else(tmp_path):
    """One number of one release changed, and the answer is another: it comes from the releases."""
    sites = federation()
    seen = transcript_of(FAPS(rounds=6, tol=0.0), sites, tmp_path)
    truth, start = truth_of(sites)["a"], 5.0 * np.eye(6)
    releases = [(s, r) for s, r in seen.releases("a") if not s.setup]
    exact = fit_by_simulation(releases, 50.0, start)
    first, reply = releases[0]
    product = reply["product"].copy()
    product[0, 0] *= 1.5
    other = fit_by_simulation([(first, {**reply, "product": product}), *releases[1:]], 50.0, start)
    assert np.linalg.norm(other - truth) > 100 * np.linalg.norm(exact - truth)


def test_it_is_not_made_where_products_say_it_all(tmp_path):
    sites = federation()
    found = audit(transcript_of(Power(rounds=8, tol=0.0), sites, tmp_path), truth_of(sites))
    assert all("simulation" not in site.curves and not site.untried for site in found.sites.values())


def test_beyond_its_features_the_verdict_says_that_it_was_not_tried(tmp_path):
    sites = federation(d=FEATURES + 1)
    found = audit(transcript_of(FAPS(rounds=8, tol=0.0), sites, tmp_path), truth_of(sites)).sites["a"]
    assert "simulation" not in found.curves
    assert f"NOT tried beyond {FEATURES} features" in found.verdict
    assert "at least" in found.verdict
    assert found.to_dict()["untried"] == found.untried
    assert replace(found, untried="").verdict != found.verdict
