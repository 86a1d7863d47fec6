"""Blocks of rows that are released side by side: what a coordinator gets out of a site, and what it is charged.

Each of these was a fault once, or is an attack that the claim of parallel composition has to stand.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedspan.cli.audit import audit
from fedspan.data import Preparation, open_source
from fedspan.data.arrays import ArraySource
from fedspan.privacy.accountant import epsilon_of
from fedspan.privacy.terms import solver_noise
from fedspan.run import Study, run
from fedspan.sites import Terms, open_site
from fedspan.solvers import Covariance, ModSulq, StreamingModSulq
from fedspan.solvers.mod_sulq import factor
from fedspan.solvers.mod_sulq_stream import fold_block
from tests.privacy.test_policy import D, ask, charges, preparation, private, rows

BLOCK = {"slice": 4, "rank": 4, "merge": "tight", "blocks": 2, "block": 0}


def weighted(first, privacy, n=10):
    """A site whose rows have weights next to nothing, but for the first row's."""
    data = np.ones((n, D + 1)) / 2
    data[:, -1] = 1e-9
    data[0, -1] = first
    source = ArraySource(data, (*"abcd", "weight"))
    agreed = Preparation(center=False, weight_column="weight")
    site = open_site("a", source, seed=0, terms=Terms(privacy, "run", 1, agreed))
    terms = {"releases": 1, "formula": "streaming-mod-sulq", "sizes": [n]}
    ask(site, 0, "data.prepare", preparation(weight_column="weight", columns=list("abcd"), privacy=terms))
    return site


@pytest.mark.parametrize(("step", "message"), [(fold_block, BLOCK), (factor, {"slice": 4, "rank": 4})])
def test_published_noise_does_not_follow_the_weights(step, message):
    privacy = private(calibration="published", n_public=True, adaptive_clip=False)
    deviations = []
    for first in (1e-9, 1.0):
        site = weighted(first, privacy)
        ask(site, 1, step, message, parent=0)
        deviations.append(charges(site)[-1].detail["gram"]["sigma"])
    assert deviations[0] == deviations[1] > 1.0  # it was 5e-7 and 45: the deviation told, and hid nothing


@pytest.mark.parametrize(
    "solver", [ModSulq(), StreamingModSulq(blocks=3), Covariance()], ids=lambda s: type(s).__name__
)
def test_published_noise_hides_all_rows_of_a_person(solver):
    formula = "mod-sulq" if isinstance(solver, Covariance) else None
    terms = {"calibration": "published", "formula": formula, "n_public": True, "rows_per_person": 200}
    privacy = private(**terms)
    study = Study(n_components=1, preparation=Preparation(center=False), solver=solver, privacy=privacy)
    result = run(study, {"a": open_source(rows())})
    noise = next(r.sigma for r in result.privacy.releases if r.release == "gram")
    change = 200 * np.sqrt(2)  # of 200 rows, replaced by others of norm 1
    assert epsilon_of(change / noise, privacy.delta) <= privacy.epsilon  # 47, 47 and 277 instead of 2


SOLVERS = [
    ModSulq(), ModSulq(merge="published"), StreamingModSulq(blocks=6), StreamingModSulq(blocks=6, merge="published"),
]  # fmt: skip


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: f"{type(s).__name__}-{s.merge}")
def test_noise_alone_is_not_taken_for_components(solver):
    privacy = private(n_public=True, arithmetic="float")
    study = Study(n_components="auto", preparation=Preparation(center=False), solver=solver, privacy=privacy)
    result = run(study, {f"s{i}": open_source(np.zeros((30, 60))) for i in range(4)})
    assert len(result.estimate.values) == 1  # sixteen were found where blocks, or sites, add up U sqrt(S)
    assert 0.5 < result.estimate.values[0] / solver_noise(privacy, result.facts, solver, 4) < 1.05


def test_an_audit_of_private_blocks_tries_the_release_that_a_block_is(tmp_path, capsys):
    np.savetxt(tmp_path / "a.csv", rows(), delimiter=",", header="w,x,y,z", comments="")
    study = """
        sites = { a = "a.csv" }
        solve = { solver = "streaming-mod-sulq", n_components = 1, settings = { blocks = 2, slice_width = 3 } }
        privacy = { epsilon = 2.0, delta = 1e-6, row_norm = 1.0, n_public = true }
    """
    (tmp_path / "study.toml").write_text(study)
    audit(tmp_path / "study.toml", runs=50, json=True)  # it spent the budget, and then refused
    told = json.loads(capsys.readouterr().out)
    assert 0 < told["empirical"]["certified"] <= 8.01
