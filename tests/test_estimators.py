"""The estimators: scikit-learn's manners, scikit-learn's numbers, and the contract of DESIGN.md, section 4."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedspan import Cohort, FederatedPCA, FederatedTruncatedSVD, StreamingPCA
from fedspan.data import SymmetricSource, open_source
from fedspan.errors import ConfigurationError, DataError, ResumeError
from fedspan.metrics import projection_distance
from fedspan.privacy.transcript import Transcript
from fedspan.rounds import Outcome
from fedspan.secure import SecureSums
from fedspan.solvers import FAPS, NAMES, BlockKrylov, Covariance, FedPower, Power
from tests.conformance.solvers import EXACT
from tests.wire import Wire

BOTH = [FederatedPCA, FederatedTruncatedSVD]
EXACT_SOLVERS = {case.id: case.solver for case in EXACT if case.cohort.is_full}


def three_sites(seed=0, d=8, shift=1.5):
    rng = np.random.default_rng(seed)
    scale = 3.0 * 0.6 ** np.arange(d)
    return {name: rng.standard_normal((n, d)) * scale + shift for name, n in [("b", 40), ("c", 25), ("a", 60)]}


def sparse_sites(seed=0):
    rng = np.random.default_rng(seed)
    return {
        name: scipy.sparse.csr_matrix(np.where(rng.random(x.shape) < 0.4, x, 0.0)) for name, x in three_sites().items()
    }


def pool(sites):
    parts = list(sites.values())
    return scipy.sparse.vstack(parts).tocsr() if scipy.sparse.issparse(parts[0]) else np.vstack(parts)


def same_rows(ours, theirs, tolerance=1e-8):
    """Components agree, up to the sign that scikit-learn chooses by its own rule."""
    signs = np.sign(np.sum(ours * theirs, axis=1))
    np.testing.assert_allclose(ours, theirs * signs[:, None], atol=tolerance)


@parametrize_with_checks(
    [
        FederatedPCA(n_components=1),
        FederatedTruncatedSVD(n_components=1),
        FederatedPCA(n_components=1, missing="mean"),
        FederatedPCA(n_components=1, scale=True, whiten=True, solver="covariance"),
        StreamingPCA(n_components=1),
        StreamingPCA(n_components=1, missing="mean", whiten=True),
        StreamingPCA(n_components=1, missing="skip", block_size=3),
        StreamingPCA("auto", block_size=7, center=False),
    ]
)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


def test_a_budget_spent_in_vain_is_a_warning():
    with pytest.warns(ConvergenceWarning, match="power used its budget, 2 rounds, and missed its tolerance"):
        assert FederatedPCA(2, solver=Power(rounds=2)).fit(three_sites()).converged_ is False
    assert FederatedPCA(2, solver=Power(rounds=2, tol=0)).fit(three_sites()).converged_ is None


# ---- scikit-learn's numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", EXACT_SOLVERS.values(), ids=EXACT_SOLVERS)
@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("whiten", [False, True])
def test_pca_is_scikit_learns_on_the_pooled_rows(solver, kind, whiten):
    sites = three_sites() if kind == "dense" else sparse_sites()
    x = pool(sites)
    theirs = PCA(
        n_components=3, whiten=whiten, svd_solver="arpack" if kind == "sparse" else "full", random_state=0
    ).fit(x)
    ours = FederatedPCA(n_components=3, whiten=whiten, solver=solver).fit(sites)
    same_rows(ours.components_, theirs.components_)
    for name in (
        "explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_", "noise_variance_",
    ):  # fmt: skip
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-8, atol=1e-10, err_msg=name)
    assert ours.n_components_ == theirs.n_components_
    assert ours.n_features_in_ == theirs.n_features_in_
    assert ours.n_samples_seen_ == x.shape[0]
    dense = x.toarray() if kind == "sparse" else x
    np.testing.assert_allclose(np.abs(ours.transform(x)), np.abs(theirs.transform(dense)), atol=1e-6)
    np.testing.assert_allclose(
        ours.inverse_transform(ours.transform(x)), theirs.inverse_transform(theirs.transform(dense)), atol=1e-6
    )


@pytest.mark.parametrize("solver", EXACT_SOLVERS.values(), ids=EXACT_SOLVERS)
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_truncated_svd_is_scikit_learns_on_the_pooled_rows(solver, kind):
    sites = three_sites() if kind == "dense" else sparse_sites()
    x = pool(sites)
    theirs = TruncatedSVD(n_components=3, algorithm="arpack", random_state=0).fit(x)
    ours = FederatedTruncatedSVD(n_components=3, solver=solver).fit(sites)
    same_rows(ours.components_, theirs.components_)
    np.testing.assert_allclose(ours.singular_values_, theirs.singular_values_, rtol=1e-8)
    np.testing.assert_allclose(ours.explained_variance_, theirs.explained_variance_, rtol=1e-7)
    np.testing.assert_allclose(ours.explained_variance_ratio_, theirs.explained_variance_ratio_, rtol=1e-7)
    np.testing.assert_allclose(np.abs(ours.transform(x)), np.abs(theirs.transform(x)), atol=1e-6)
    assert not hasattr(ours, "mean_")


def test_scaled_columns_are_those_of_a_standard_scaler():
    sites = three_sites()
    x = pool(sites)
    scaled = (x - x.mean(axis=0)) / x.std(axis=0, ddof=1)
    ours = FederatedPCA(n_components=3, scale=True).fit(sites)
    theirs = PCA(n_components=3).fit(scaled)
    same_rows(ours.components_, theirs.components_)
    np.testing.assert_allclose(ours.explained_variance_, theirs.explained_variance_, rtol=1e-8)
    np.testing.assert_allclose(ours.scale_, x.std(axis=0, ddof=1), rtol=1e-10)
    np.testing.assert_allclose(np.abs(ours.transform(x)), np.abs(theirs.transform(scaled)), atol=1e-6)
    np.testing.assert_allclose(FederatedPCA(8, scale=True).fit(sites).inverse_transform(
        FederatedPCA(8, scale=True).fit(sites).transform(x)), x, atol=1e-8)  # fmt: skip


def test_uncentred_pca_is_about_the_origin():
    sites = three_sites()
    ours = FederatedPCA(n_components=2, center=False).fit(sites)
    np.testing.assert_array_equal(ours.mean_, np.zeros(8))
    same_rows(ours.components_, np.linalg.svd(pool(sites))[2][:2])


@pytest.mark.parametrize("fraction", [0.5, 0.9, 0.99])
def test_a_fraction_is_scikit_learns(fraction):
    sites = three_sites()
    ours = FederatedPCA(n_components=fraction).fit(sites)
    theirs = PCA(n_components=fraction, svd_solver="full").fit(pool(sites))
    assert ours.n_components_ == theirs.n_components_
    np.testing.assert_allclose(ours.explained_variance_ratio_, theirs.explained_variance_ratio_, rtol=1e-8)


def test_auto_finds_a_signal():
    rng = np.random.default_rng(0)
    x = 5 * rng.standard_normal((300, 2)) @ np.linalg.qr(rng.standard_normal((30, 2)))[0].T
    x += rng.standard_normal((300, 30))
    assert FederatedPCA(n_components="auto").fit([x[:100], x[100:]]).n_components_ == 2


def test_all_components_leave_no_noise():
    ours = FederatedPCA(n_components=8).fit(three_sites())
    assert ours.noise_variance_ == 0
    np.testing.assert_allclose(ours.explained_variance_ratio_.sum(), 1, rtol=1e-10)


def test_scores_are_white_where_asked():
    sites = three_sites()
    scores = FederatedPCA(n_components=3, whiten=True).fit(sites).transform(pool(sites))
    np.testing.assert_allclose(np.cov(scores.T), np.eye(3), atol=1e-8)


def test_signs_are_canonical():
    components = FederatedPCA(n_components=4).fit(three_sites()).components_
    assert np.all(np.take_along_axis(components, np.abs(components).argmax(axis=1)[:, None], axis=1) > 0)


@pytest.mark.parametrize("estimator", BOTH)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_precision_is_kept(estimator, dtype):
    sites = {name: x.astype(dtype) for name, x in three_sites().items()}
    model = estimator(n_components=2).fit(sites)
    assert model.components_.dtype == dtype
    assert model.transform(sites["a"]).dtype == dtype
    assert model.converged_


@pytest.mark.parametrize("order", [1, -1])
def test_mixed_precision_is_the_finer_whatever_the_order(order):
    sites = three_sites()
    mixed = dict([("a", sites["a"].astype(np.float32)), ("b", sites["b"])][::order])
    assert FederatedPCA(n_components=2).fit(mixed).components_.dtype == np.float64


# ---- what fit takes --------------------------------------------------------------------------------------------


def reference():
    return FederatedPCA(n_components=3).fit(three_sites())


def as_files(sites, folder):
    for name, x in sites.items():
        np.save(folder / f"{name}.npy", x)
    return {name: folder / f"{name}.npy" for name in sites}


@pytest.mark.parametrize(
    "give",
    [
        lambda s, folder: s,
        lambda s, folder: dict(reversed(s.items())),
        lambda s, folder: list(s.values()),
        lambda s, folder: tuple(s.values()),
        lambda s, folder: {name: open_source(x) for name, x in s.items()},
        lambda s, folder: as_files(s, folder),
        lambda s, folder: [str(p) for p in as_files(s, folder).values()],
        lambda s, folder: [scipy.sparse.csr_array(x) for x in s.values()],
        lambda s, folder: [pd.DataFrame(x, columns=[f"c{i}" for i in range(8)]) for x in s.values()],
        lambda s, folder: np.vstack(list(s.values())),
        lambda s, folder: np.vstack(list(s.values())).tolist(),
        lambda s, folder: [np.vstack(list(s.values()))],
        lambda s, folder: {1: s["a"], 2: s["b"], 3: s["c"]},
    ],
    ids=[
        "dict", "dict-reversed", "list", "tuple", "sources", "paths", "path-texts", "sparse", "frames", "one-array",
        "nested-lists", "list-of-one", "integer-names",
    ],
)  # fmt: skip
def test_sites_come_in_many_forms(give, tmp_path):
    model = FederatedPCA(n_components=3).fit(give(three_sites(), tmp_path))
    expected = reference()
    assert projection_distance(model.components_.T, expected.components_.T) < 1e-9
    np.testing.assert_allclose(model.explained_variance_, expected.explained_variance_, rtol=1e-9)
    assert model.n_samples_seen_ == 125


def test_a_dict_of_keys_matrix_is_one_site_not_a_dict_of_sites():
    x = scipy.sparse.dok_matrix(three_sites()["a"])
    model = FederatedPCA(n_components=2).fit(x)
    same_rows(model.components_, PCA(2).fit(three_sites()["a"]).components_)


def test_names_of_sites_may_come_in_any_order():
    sites = three_sites()
    forth, back = (FederatedPCA(n_components=3).fit(s) for s in (sites, dict(reversed(sites.items()))))
    assert forth.components_.tobytes() == back.components_.tobytes()


def test_shares_of_a_symmetric_matrix_are_sites_too():
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((6, 4)) for _ in range(2)]
    shares = [SymmetricSource(p @ p.T) for p in parts]
    model = FederatedTruncatedSVD(n_components=2).fit(shares)
    values = np.linalg.eigvalsh(sum(p @ p.T for p in parts))[::-1][:2]
    np.testing.assert_allclose(model.singular_values_, values, rtol=1e-8)


@pytest.mark.parametrize("estimator", BOTH)
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_weight_is_a_repeated_row(estimator, kind):
    sites = three_sites() if kind == "dense" else sparse_sites()
    weights = {name: np.arange(x.shape[0]) % 3 for name, x in sites.items()}  # zero: a row that is not there
    repeated = {name: x[np.repeat(np.arange(x.shape[0]), weights[name])] for name, x in sites.items()}
    weighted = estimator(n_components=3).fit(sites, sample_weight=weights)
    expected = estimator(n_components=3).fit(repeated)
    same_rows(weighted.components_, expected.components_, 1e-7)
    np.testing.assert_allclose(weighted.singular_values_, expected.singular_values_, rtol=1e-9)
    np.testing.assert_allclose(weighted.explained_variance_, expected.explained_variance_, rtol=1e-8)
    np.testing.assert_allclose(weighted.explained_variance_ratio_, expected.explained_variance_ratio_, rtol=1e-8)


def test_weights_come_by_name_or_in_order():
    sites = three_sites()
    by_name = {name: np.linspace(0.5, 2, len(x)) for name, x in sites.items()}
    one = FederatedPCA(2).fit(sites, sample_weight=by_name)
    other = FederatedPCA(2).fit(sites, sample_weight=list(by_name.values()))
    assert one.components_.tobytes() == other.components_.tobytes()
    single = FederatedPCA(2).fit(pool(sites), sample_weight=np.concatenate(list(by_name.values())))
    np.testing.assert_allclose(single.explained_variance_, one.explained_variance_, rtol=1e-9)


def test_a_site_weight_is_a_weight_on_each_of_its_rows():
    sites = three_sites()
    one = FederatedPCA(2).fit(sites, site_weight={"a": 3.0})
    other = FederatedPCA(2).fit(sites, sample_weight={"a": np.full(60, 3.0)})
    three = FederatedPCA(2).fit({**sites, "a": np.vstack([sites["a"]] * 3)})
    np.testing.assert_allclose(one.components_, other.components_, atol=1e-9)
    same_rows(one.components_, three.components_)
    np.testing.assert_allclose(one.explained_variance_, three.explained_variance_, rtol=1e-9)
    listed = FederatedPCA(2).fit(sites, site_weight=[1.0, 1.0, 3.0])  # in the order of the dict
    np.testing.assert_allclose(listed.components_, one.components_, atol=1e-12)


@pytest.mark.parametrize("weights", [{"x": np.ones(40)}, [np.ones(40)], 3.0, "abc d"])
def test_weights_that_fit_no_site_are_refused(weights):
    with pytest.raises(ConfigurationError, match="weights"):
        FederatedPCA(2).fit(three_sites(), sample_weight=weights)


def test_gaps_are_filled_with_the_federated_mean():
    sites = three_sites()
    rng = np.random.default_rng(0)
    gappy = {name: np.where(rng.random(x.shape) < 0.1, np.nan, x) for name, x in sites.items()}
    x = pool(gappy)
    filled = np.where(np.isnan(x), np.nanmean(x, axis=0), x)
    for given in (gappy, x):
        model = FederatedPCA(n_components=3, missing="mean").fit(given)
        same_rows(model.components_, PCA(3).fit(filled).components_)
        np.testing.assert_allclose(model.transform(x), model.transform(filled), atol=1e-8)
    with pytest.raises(ValueError, match="NaN"):
        FederatedPCA(n_components=3).fit(gappy)
    with pytest.raises(ValueError, match="NaN"):
        FederatedPCA(n_components=3).fit(sites).transform(x)


@pytest.mark.parametrize(
    ("sites", "error"),
    [
        ([], ValueError),
        ({}, ConfigurationError),
        ({"a": np.ones((3, 2)), "b": np.ones((3, 3))}, DataError),
        ({"a": np.ones(3)}, DataError),
        ({"a": [[1.0, 2.0]]}, DataError),
        ({"a": np.array([["x"]])}, DataError),
        ({"a": np.zeros((0, 3)), "b": np.ones((3, 3))}, DataError),
        ({"a": np.array([[np.inf, 1.0], [2.0, 3.0]])}, DataError),
    ],
    ids=["none", "no-names", "widths", "one-dimension", "lists", "texts", "empty", "infinite"],
)
def test_what_cannot_be_used_is_refused(sites, error):
    with pytest.raises(error):
        FederatedPCA(n_components=1).fit(sites)


# ---- scikit-learn's manners ------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", BOTH)
def test_parameters_survive_cloning(estimator):
    settings = {
        "n_components": 4,
        "solver": FedPower(local_steps=2),
        "participation": Cohort(first=2),
        "random_state": 3,
    }
    model = estimator(**settings)
    assert {k: v for k, v in model.get_params().items() if k in settings} == settings
    copy = clone(model.fit(three_sites()))
    assert {k: v for k, v in copy.get_params().items() if k in settings} == settings
    assert not hasattr(copy, "components_")
    assert copy.set_params(n_components=2).n_components == 2


@pytest.mark.parametrize("estimator", BOTH)
def test_nothing_before_the_fit(estimator, tmp_path):
    for use in (
        lambda m: m.transform(np.eye(3)),
        lambda m: m.inverse_transform(np.eye(3)),
        lambda m: m.save(tmp_path / "m"),
        lambda m: m.to_sklearn(),
        lambda m: m.get_feature_names_out(),
    ):
        with pytest.raises(NotFittedError):
            use(estimator())
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("estimator", "prefix"), [(FederatedPCA, "federatedpca"), (FederatedTruncatedSVD, "federatedtruncatedsvd")]
)
def test_outputs_have_names(estimator, prefix):
    model = estimator(n_components=2).fit(three_sites())
    assert list(model.get_feature_names_out()) == [f"{prefix}0", f"{prefix}1"]
    frame = model.set_output(transform="pandas").transform(three_sites()["a"])
    assert list(frame.columns) == [f"{prefix}0", f"{prefix}1"]
    assert frame.shape == (60, 2)


def frames(columns):
    return {name: pd.DataFrame(x[:, : len(columns)], columns=columns) for name, x in three_sites().items()}


def test_names_of_features_are_learnt_and_checked():
    model = FederatedPCA(n_components=2).fit(frames(["p", "q", "r"]))
    assert list(model.feature_names_in_) == ["p", "q", "r"]
    frame = frames(["p", "q", "r"])["a"]
    assert model.transform(frame).shape == (60, 2)
    with pytest.raises(ValueError, match="feature names"):
        model.transform(frame.rename(columns={"p": "z"}))
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.transform(frame.to_numpy())


def test_a_second_fit_forgets_the_first():
    model = FederatedPCA(n_components=2).fit(frames(["p", "q", "r"]))
    model.fit(frames(["x", "y", "z", "w"]))
    assert list(model.feature_names_in_) == ["x", "y", "z", "w"]
    model.fit(three_sites())
    assert not hasattr(model, "feature_names_in_")
    assert model.n_features_in_ == 8
    assert model.transform(three_sites()["a"]).shape == (60, 2)


def test_frames_without_names_have_none():
    """A frame's default columns 0, 1, 2 are positions, to scikit-learn and to us."""
    sites = {name: pd.DataFrame(x) for name, x in three_sites().items()}
    model = FederatedPCA(n_components=2).fit(sites)
    assert model.transform(sites["a"]).shape == (60, 2)


def test_it_works_in_a_pipeline():
    x = pool(three_sites())
    pipe = make_pipeline(StandardScaler(), FederatedPCA(n_components=2))
    expected = make_pipeline(StandardScaler(), PCA(n_components=2))
    np.testing.assert_allclose(np.abs(pipe.fit_transform(x)), np.abs(expected.fit_transform(x)), atol=1e-7)


@pytest.mark.parametrize("estimator", BOTH)
def test_fit_transform_is_fit_then_transform(estimator):
    x = pool(three_sites())
    np.testing.assert_array_equal(estimator(2).fit_transform(x), estimator(2).fit(x).transform(x))


def test_scores_of_another_width_are_refused():
    model = reference()
    for wrong in (np.ones((2, 4)), np.ones(3)):
        with pytest.raises(ValueError, match="scores have 3 columns"):
            model.inverse_transform(wrong)


def test_a_source_or_a_file_is_transformed_as_its_rows_are(tmp_path):
    model, x = reference(), three_sites()["a"]
    np.save(tmp_path / "x.npy", x)
    for given in (open_source(x), tmp_path / "x.npy", str(tmp_path / "x.npy")):
        np.testing.assert_allclose(model.transform(given), model.transform(x), atol=1e-12)
    with pytest.raises(ValueError, match="columns"):
        model.transform(open_source(x[:, :5]))


def test_sparse_rows_are_transformed_as_dense_ones_are():
    model = FederatedPCA(n_components=3, whiten=True).fit(sparse_sites())
    x = sparse_sites()["a"]
    np.testing.assert_allclose(model.transform(x), model.transform(x.toarray()), atol=1e-12)


# ---- ours ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", BOTH)
def test_fitted_attributes_of_the_contract(estimator):
    model = estimator(n_components=3).fit(three_sites())
    shapes = {
        "components_": (3, 8), "explained_variance_": (3,), "explained_variance_ratio_": (3,), "singular_values_": (3,),
    }  # fmt: skip
    for name, shape in shapes.items():
        assert getattr(model, name).shape == shape
    assert (model.n_components_, model.n_features_in_, model.n_samples_seen_) == (3, 8, 125)
    assert model.n_setup_rounds_ == 3
    assert model.n_rounds_ + model.n_setup_rounds_ == len(model.history_)
    assert model.bytes_up_ == sum(r.bytes_up for r in model.history_)
    assert model.bytes_down_ == sum(r.bytes_down for r in model.history_)
    assert model.converged_ is True
    assert isinstance(model.solver_, BlockKrylov)
    assert model.privacy_spent_ is None
    for i, record in enumerate(model.history_):
        assert record.round == i
        assert record.sites == 3
        assert record.seconds >= 0
        assert {"bytes_up", "bytes_down", "change"} <= set(vars(record))
    assert len(model.releases_) == len(model.history_)
    if estimator is FederatedPCA:
        assert model.mean_.shape == (8,)
        assert isinstance(model.noise_variance_, float)


def test_every_round_is_shown():
    seen = []
    model = FederatedPCA(3, on_round=lambda record, estimate: seen.append((record, estimate))).fit(three_sites())
    assert [record for record, _ in seen] == [record for record in model.history_ if not record.setup]
    assert len(seen) == model.n_rounds_
    for _, estimate in seen:
        np.testing.assert_allclose(estimate.T @ estimate, np.eye(estimate.shape[1]), atol=1e-10)


def test_verbose_writes_a_line_each_round(capsys):
    model = FederatedPCA(3, verbose=1).fit(three_sites())
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(model.history_)
    assert "data.describe" in lines[0]
    assert "3 sites" in lines[-1]


@pytest.mark.parametrize("name", [*(n for n in NAMES.values() if n != "private-power"), "auto"])
def test_every_solver_by_name(name):
    model = FederatedPCA(n_components=2, solver=name).fit(three_sites())
    assert NAMES[type(model.solver_)] == name or (name == "auto" and isinstance(model.solver_, Covariance))
    assert projection_distance(model.components_.T, PCA(2).fit(pool(three_sites())).components_.T) < 0.2


def test_participation_is_a_fraction_or_a_cohort():
    half = FederatedPCA(2, solver="power", participation=2 / 3).fit(three_sites())
    assert {r.sites for r in half.history_ if not r.setup} == {2}
    first = FederatedPCA(2, solver="fedpower", participation=Cohort(first=1)).fit(three_sites())
    assert {r.sites for r in first.history_ if not r.setup} == {1}
    with pytest.raises(ConfigurationError, match="krylov needs every site"):
        FederatedPCA(2, participation=0.5).fit(three_sites())


def test_the_seed_determines_the_model():
    def fit(seed):
        return FederatedPCA(2, solver=Power(rounds=2, tol=0.0), random_state=seed).fit(three_sites()).components_

    assert fit(1).tobytes() == fit(1).tobytes()
    assert fit(1).tobytes() != fit(2).tobytes()
    for wrong in (None, "a", 1.5):
        with pytest.raises(ConfigurationError, match="random_state is an integer"):
            fit(wrong)


def test_init_is_a_warm_start():
    cold = FederatedPCA(3, solver=Power(rounds=500)).fit(three_sites())
    warm = FederatedPCA(3, solver=Power(rounds=500), init=cold.components_.T).fit(three_sites())
    assert warm.n_rounds_ <= 2 < cold.n_rounds_
    with pytest.raises(ConfigurationError, match="init is a basis of 8 rows"):
        FederatedPCA(3, init=cold.components_).fit(three_sites())


def test_engines_by_name_and_by_callable():
    made = []

    def engine(sites, seed):
        made.append((len(sites), seed))
        return Wire(sites, seed)

    model = FederatedPCA(3, engine=engine, random_state=7).fit(three_sites())
    assert made == [(3, 7)]
    np.testing.assert_allclose(model.components_, FederatedPCA(3, engine="in-process", random_state=7).fit(
        three_sites()).components_, atol=1e-9)  # fmt: skip
    with pytest.raises(ConfigurationError, match="there is no engine"):
        FederatedPCA(3, engine="cluster").fit(three_sites())


def test_a_run_folder_can_be_resumed(tmp_path):
    folder = tmp_path / "run"
    settings = {"n_components": 3, "solver": Power(rounds=6, tol=0.0)}
    whole = FederatedPCA(**settings).fit(three_sites())
    rounds = []

    def dying(sites, seed):
        wire = Wire(sites, seed)

        def execute(question) -> Outcome:
            if question.number == 4:
                raise KeyboardInterrupt
            rounds.append(question.number)
            return wire(question)

        return execute

    with pytest.raises(KeyboardInterrupt):
        FederatedPCA(**settings, run_folder=folder, engine=dying).fit(three_sites())
    with pytest.raises(ResumeError, match="holds a run already"):
        FederatedPCA(**settings, run_folder=folder).fit(three_sites())
    resumed = FederatedPCA(**settings, run_folder=folder, resume=True).fit(three_sites())
    assert rounds == [0, 1, 2, 3]
    assert resumed.n_rounds_ == whole.n_rounds_
    np.testing.assert_allclose(resumed.components_, whole.components_, atol=1e-10)


@pytest.mark.parametrize("estimator", BOTH)
def test_a_transcript_is_kept_where_it_is_asked_for_and_warned_about(estimator, tmp_path):
    model = estimator(2, run_folder=tmp_path / "run", record="transcript")
    with pytest.warns(UserWarning, match="the transcript keeps each site's releases by name") as caught:
        model.fit(three_sites())
    assert [warning.filename for warning in caught] == [__file__]
    assert len(Transcript.read(tmp_path / "run").rounds) == len(model.history_)
    model.save(tmp_path / "model")
    assert estimator.load(tmp_path / "model").record == "rounds"  # the run's, not the model's
    estimator(2, run_folder=tmp_path / "other").fit(three_sites())
    assert not (tmp_path / "other" / "transcript").exists()
    with pytest.raises(ConfigurationError, match="in the run folder, and none was given"):
        estimator(2, record="transcript").fit(three_sites())


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [("privacy", True, "privacy is a GaussianPrivacy or None, got True"),
     ("secure", "yes", "secure is True, False or SecureSums.*got 'yes'")],
)  # fmt: skip
@pytest.mark.parametrize("estimator", BOTH)
def test_what_is_no_setting_is_refused_not_ignored(estimator, name, given, expected):
    with pytest.raises(ConfigurationError, match=expected):
        estimator(n_components=1, **{name: given}).fit(three_sites())


@pytest.mark.parametrize("secure", [True, SecureSums(threshold=0.6)], ids=["True", "settings"])
@pytest.mark.parametrize("estimator", BOTH)
def test_secure_sums_give_the_same_answer(estimator, secure):
    plain, masked = (estimator(2, secure=given).fit(three_sites()) for given in (False, secure))
    np.testing.assert_allclose(masked.components_, plain.components_, atol=1e-9)
    assert masked.n_samples_seen_ == plain.n_samples_seen_
    assert masked.n_rounds_ == plain.n_rounds_
    assert all(r.masked is not None for r in masked.history_ if r.step != "data.describe")
    assert all(r.masked is None for r in plain.history_)


@pytest.mark.parametrize("estimator", BOTH)
def test_two_sites_have_no_secure_sum(estimator):
    with pytest.raises(ConfigurationError, match="at least 3 sites"):
        estimator(2, secure=True).fit(dict(list(three_sites().items())[:2]))


@pytest.mark.parametrize(
    "settings",
    [{"n_components": 0}, {"n_components": 9}, {"n_components": 1.5}, {"n_components": "mle"}, {"solver": "svd"},
     {"columns": "all"}, {"missing": "drop"}, {"participation": 0.0}, {"record": "all"}],
    ids=str,
)  # fmt: skip
def test_wrong_parameters_are_refused_at_the_fit(settings):
    model = FederatedPCA(**{"n_components": 2, **settings})
    with pytest.raises(ValueError, match=r"."):
        model.fit(three_sites())
    assert not hasattr(model, "components_")


# ---- to scikit-learn -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings", [{}, {"whiten": True}, {"scale": True}, {"scale": True, "whiten": True}, {"center": False}]
)
def test_a_pca_can_be_handed_to_scikit_learn(settings):
    ours = FederatedPCA(n_components=3, **settings).fit(three_sites())
    theirs = ours.to_sklearn()
    x = pool(three_sites())
    np.testing.assert_allclose(theirs.transform(x), ours.transform(x), atol=1e-9)
    scores = ours.transform(x)
    np.testing.assert_allclose(theirs.inverse_transform(scores), ours.inverse_transform(scores), atol=1e-9)
    assert "fedspan" not in type(theirs).__module__
    if "scale" not in settings and "center" not in settings:
        assert theirs.score(x) == pytest.approx(PCA(3, **settings).fit(x).score(x))


def test_a_truncated_svd_can_be_handed_to_scikit_learn():
    ours = FederatedTruncatedSVD(n_components=3).fit(sparse_sites())
    theirs = ours.to_sklearn()
    x = pool(sparse_sites())
    np.testing.assert_allclose(theirs.transform(x), ours.transform(x), atol=1e-9)
    np.testing.assert_allclose(theirs.inverse_transform(ours.transform(x)), ours.inverse_transform(ours.transform(x)))
    counts = {name: abs(rows) for name, rows in sparse_sites().items()}
    with pytest.raises(ConfigurationError, match="no degree normalisation"):
        FederatedTruncatedSVD(2, normalise="degree").fit(counts).to_sklearn()


def test_feature_names_go_along():
    theirs = FederatedPCA(n_components=2).fit(frames(["p", "q", "r"])).to_sklearn()
    assert list(theirs.feature_names_in_) == ["p", "q", "r"]


# ---- what a review found ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", ".", "..", "a/b", "", "n" * 300])
def test_a_site_cannot_write_outside_its_run_folder(tmp_path, name):
    sites = {name: three_sites()["a"], "b": three_sites()["b"]}
    folder = tmp_path / "deep" / "run"
    with pytest.raises(ConfigurationError, match="cannot keep its memory in a folder of that name"):
        FederatedPCA(2, run_folder=folder).fit(sites)
    assert not folder.exists()
    assert list(tmp_path.rglob("memory")) == []
    FederatedPCA(2).fit(sites)  # without a folder a name is only a name


def test_two_names_that_are_equal_as_text_are_refused():
    with pytest.raises(ConfigurationError, match="same name once it is written as text"):
        FederatedPCA(2).fit({1: three_sites()["a"], "1": three_sites()["b"]})


def test_bad_input_leaves_no_run_folder_behind(tmp_path):
    with pytest.raises(DataError, match="n_components = 70"):
        FederatedPCA(70, run_folder=tmp_path / "run").fit(three_sites())
    assert not (tmp_path / "run").exists()
    FederatedPCA(2, run_folder=tmp_path / "run").fit(three_sites())


@pytest.mark.parametrize("change", ["rows", "weights", "site weight"])
def test_a_resumed_run_refuses_other_data(tmp_path, change):
    def stop(record, estimate):
        if record.round == 4:
            raise KeyboardInterrupt

    sites = three_sites()
    with pytest.raises(KeyboardInterrupt):
        FederatedPCA(2, solver=Power(tol=0), run_folder=tmp_path / "run", on_round=stop).fit(sites)
    again = FederatedPCA(2, solver=Power(tol=0), run_folder=tmp_path / "run", resume=True)
    options = {}
    if change == "rows":
        sites = {**sites, "b": sites["b"] + 1e-9}
    elif change == "weights":
        options = {"sample_weight": {"b": np.full(len(sites["b"]), 2.0)}}
    else:
        options = {"site_weight": {"b": 3.0}}
    with pytest.raises(ResumeError, match="site 'b' has other rows, columns, weights or labels"):
        again.fit(sites, **options)
    assert again.fit(three_sites()).n_rounds_ == 100


@pytest.mark.parametrize("magnitude", [1e-85, 1e-40, 1e60, 1e100])
@pytest.mark.parametrize("solver", ["krylov", "covariance", BlockKrylov(max_basis=3, oversampling=0)])
def test_the_answer_does_not_depend_on_the_unit(solver, magnitude):
    sites = three_sites()
    expected = FederatedPCA(2, solver=solver).fit(sites).components_
    ours = FederatedPCA(2, solver=solver).fit({name: x * magnitude for name, x in sites.items()})
    np.testing.assert_allclose(ours.components_, expected, atol=1e-8)
    assert ours.converged_


@pytest.mark.parametrize("magnitude", [1e-85, 1e60])
def test_the_answer_of_faps_does_not_depend_on_the_unit(magnitude):
    """Rule (27) looks at the captured variance, so the basis is good to the root of its tolerance."""
    sites = three_sites()
    expected, ours = (
        FederatedPCA(2, solver=FAPS(tol=1e-15)).fit({name: x * unit for name, x in sites.items()})
        for unit in (1.0, magnitude)
    )
    np.testing.assert_allclose(ours.components_, expected.components_, atol=1e-6)
    assert ours.converged_


def test_squares_that_overflow_are_refused_by_site():
    sites = {**three_sites(), "b": three_sites()["b"] * 1e160}
    with pytest.raises(DataError, match="site 'b' has values so large that their squares overflow"):
        FederatedTruncatedSVD(2, solver="covariance").fit(sites)  # centred, the mean would spread it to all


def test_degree_normalised_svd_is_scikit_learns_on_the_normalised_matrix():
    counts = {name: np.round(np.abs(x)) for name, x in three_sites(shift=2.0).items()}
    pooled = pool(counts)
    users, items = pooled.sum(axis=1), pooled.sum(axis=0)
    normal = pooled / np.sqrt(np.where(users > 0, users, 1.0))[:, None] / np.sqrt(items)
    ours = FederatedTruncatedSVD(3, normalise="degree").fit(counts)
    theirs = TruncatedSVD(3, algorithm="arpack", random_state=0).fit(normal)
    for name in ("singular_values_", "explained_variance_", "explained_variance_ratio_"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), atol=1e-10, err_msg=name)
    np.testing.assert_allclose(np.abs(ours.transform(pooled)), np.abs(theirs.transform(normal)), atol=1e-8)


def test_a_run_with_carried_replies_resumes_to_the_same_answer(tmp_path):
    def stop(record, estimate):
        if record.round == 6:
            raise KeyboardInterrupt

    settings = {"solver": Power(rounds=12, tol=0), "participation": Cohort(first=2, late="carry")}
    whole = FederatedPCA(2, **settings).fit(three_sites())
    with pytest.raises(KeyboardInterrupt):
        FederatedPCA(2, run_folder=tmp_path / "run", on_round=stop, **settings).fit(three_sites())
    again = FederatedPCA(2, run_folder=tmp_path / "run", resume=True, **settings).fit(three_sites())
    assert again.components_.tobytes() == whole.components_.tobytes()


def test_bad_input_takes_nothing_of_the_users_from_a_folder_that_was_there(tmp_path):
    for name in ("sites", "rounds"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.csv").write_text("precious")
    (tmp_path / "notes.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataError, match="n_components = 70"):
        FederatedPCA(70, run_folder=tmp_path).fit(three_sites())
    assert set(before) <= set(tmp_path.rglob("*"))
    assert not (tmp_path / "rounds.jsonl").exists()
    assert not (tmp_path / "terms.json").exists()
