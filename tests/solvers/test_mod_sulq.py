"""Streaming MOD-SuLQ: slices of the Gram matrix, folded, merged."""

from __future__ import annotations

import numpy as np
import pytest

from fedspan.data import Preparation, open_source
from fedspan.errors import ConfigurationError
from fedspan.metrics import projection_distance
from fedspan.rounds import STEPS, Site
from fedspan.run import Study, run
from fedspan.solvers import ModSulq
from tests.conformance.solvers import K, pooled, rows_of


def factor_of(rows, width, rank):
    site = Site("a", open_source(rows))
    return STEPS["mod_sulq.factor"].run(site, {"slice": width, "rank": rank}).value


@pytest.mark.parametrize("width", [1, 5, 12, 100])
def test_without_noise_the_slices_fold_to_the_sites_own_gram(width):
    rows = rows_of()["accra"]
    folded = factor_of(rows, width, 12)
    gram = rows.T @ rows
    np.testing.assert_allclose(folded @ folded.T, gram @ gram, atol=1e-8 * np.linalg.norm(gram) ** 2)  # U S^2 U'


def test_only_rank_many_columns_leave():
    assert factor_of(rows_of()["accra"], 5, 4).shape == (12, 4)


def test_no_square_matrix_is_made():
    made = []

    class Watched(type(open_source(np.eye(2)))):
        def gram(self):
            raise AssertionError("a d x d matrix")

        def gram_times(self, z):
            made.append(z.shape)
            return super().gram_times(z)

    site = Site("a", Watched(rows_of()["accra"]))
    STEPS["mod_sulq.factor"].run(site, {"slice": 5, "rank": 4})
    assert made == [(12, 5), (12, 5), (12, 2)]


def test_the_tight_merge_adds_the_sites_matrices_and_the_published_one_their_squares():
    """Two sites whose directions differ: as printed, the one with the larger variance counts by its square."""
    e = np.eye(4)
    sites = {
        "a": np.outer(np.ones(40), 3 * e[0]),
        "b": np.outer(np.ones(40), 2 * e[1]),
        "c": np.outer(np.ones(40), 2 * e[1]),
    }
    found = {}
    for merge in ("tight", "published"):
        study = Study(n_components=1, solver=ModSulq(merge=merge), preparation=Preparation(center=False))
        found[merge] = run(study, {name: open_source(x) for name, x in sites.items()}).estimate
    np.testing.assert_allclose(np.abs(found["tight"].basis[:, 0]), e[0], atol=1e-9)  # 360 against 160 + 160
    assert found["tight"].values[0] == pytest.approx(360)
    sites["c"] = np.outer(np.ones(70), 2 * e[1])  # 360 against 160 + 280; squared 129600 against 25600 + 78400
    for merge, axis in (("tight", 1), ("published", 0)):
        study = Study(n_components=1, solver=ModSulq(merge=merge), preparation=Preparation(center=False))
        basis = run(study, {name: open_source(x) for name, x in sites.items()}).estimate.basis
        np.testing.assert_allclose(np.abs(basis[:, 0]), e[axis], atol=1e-9)


def test_one_site_is_exact():
    rows = {"a": np.vstack(list(rows_of().values()))}
    result = run(Study(n_components=K, solver=ModSulq()), {"a": open_source(rows["a"])})
    assert projection_distance(result.estimate.basis, pooled(rows)[0]) < 1e-9


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"oversampling": -1}, "oversampling is not negative"),
        ({"slice_width": 0}, "slice_width at least 1"),
        ({"slice_width": 2.5}, "slice_width is an integer"),
        ({"merge": "both"}, "merge is 'tight' or 'published'"),
    ],
)
def test_wrong_settings_are_refused(settings, text):
    with pytest.raises(ConfigurationError, match=text):
        ModSulq(**settings)
