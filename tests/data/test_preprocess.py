"""The federated preparation against numpy on the pooled matrix, and the errors that name the site at fault."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from fedspan.data import ArraySource, CsvSource, Preparation, SparseSource, SymmetricSource, open_source
from fedspan.data.preprocess import SetUp, set_up
from fedspan.encoding import decode, encode
from fedspan.errors import ConfigurationError, DataError, FileError
from fedspan.rounds import Outcome, Site, answer, drive, numbered

NAMES = ("a", "b", "c", "d")


def prepare(sources, asked=None, **settings):
    """Run the set-up rounds over sites in this process; messages and replies travel as bytes."""
    sites = {name: Site(name, open_source(data)) for name, data in sorted(sources.items())}

    def execute(question):
        message = decode(encode(question.message))
        collector = question.reduce.collector(False)
        for name, site in sites.items():
            reply = answer(site, replace(question, message=message))
            collector.add(name, decode(encode(reply.value)), reply.weight, 1)
        return Outcome(collector.result(), list(sites), 0, 0)

    return drive(numbered(set_up(Preparation(**settings), asked)), execute), sites


def pooled_gram(sites):
    width = next(iter(sites.values())).data.shape[1]
    return sum(site.data.gram_times(np.eye(width)) for site in sites.values())


def split(x, cuts=(13, 30), kind=ArraySource, names=NAMES):
    parts = np.split(x, cuts)
    return {f"s{i}": kind(part, names) for i, part in enumerate(parts)}


def sparse(x, names):
    return SparseSource(scipy.sparse.csr_array(x), names)


RNG = np.random.default_rng(0)
X = RNG.standard_normal((50, 4)) * [1, 2, 3, 4] + [0, 10, -5, 1]
X[RNG.random(X.shape) < 0.4] = 0


@pytest.mark.parametrize("kind", [ArraySource, sparse])
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("scale", [False, True])
def test_centre_and_scale(kind, center, scale):
    facts, sites = prepare(split(X, kind=kind), center=center, scale=scale)
    expected = X - X.mean(axis=0) if center else X
    if scale:
        expected = expected / X.std(axis=0, ddof=1)
        np.testing.assert_allclose(facts.scale, X.std(axis=0, ddof=1), rtol=1e-12)
    else:
        assert facts.scale is None
    if center:
        np.testing.assert_allclose(facts.mean, X.mean(axis=0), rtol=1e-12)
    else:
        assert facts.mean is None
    np.testing.assert_allclose(pooled_gram(sites), expected.T @ expected, rtol=1e-10, atol=1e-10)
    assert facts.total == pytest.approx((expected**2).sum(), rel=1e-12)
    assert facts.weight == facts.n_rows == 50
    assert facts.rows == {"s0": 13, "s1": 17, "s2": 20}
    assert (facts.features, facts.columns, facts.symmetric, facts.missing) == (4, list(NAMES), False, {})


def test_weights_of_rows_and_sites():
    weights = RNG.random(50)
    factors = {"s0": 1.0, "s1": 2.0, "s2": 0.5}
    sources = {
        name: open_source(source, weights=part, site_weight=factors[name])
        for (name, source), part in zip(split(X).items(), np.split(weights, (13, 30)), strict=True)
    }
    facts, sites = prepare(sources, center=True)
    heavy = weights * np.repeat([1.0, 2.0, 0.5], [13, 17, 20])
    mean = np.average(X, axis=0, weights=heavy)
    expected = np.sqrt(heavy)[:, None] * (X - mean)
    assert facts.weight == pytest.approx(heavy.sum())
    np.testing.assert_allclose(facts.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(pooled_gram(sites), expected.T @ expected, rtol=1e-10, atol=1e-10)
    assert facts.total == pytest.approx((expected**2).sum())


@pytest.mark.parametrize("kind", [ArraySource, sparse])
def test_whole_weights_are_repeated_rows(kind):
    counts = RNG.integers(0, 4, 50)
    weighted = {
        name: open_source(source, weights=part)
        for (name, source), part in zip(split(X, kind=kind).items(), np.split(counts, (13, 30)), strict=True)
    }
    facts, sites = prepare(weighted, scale=True)
    repeated = np.repeat(X, counts, axis=0)
    once, others = prepare({"all": kind(repeated, NAMES)}, scale=True)
    np.testing.assert_allclose(facts.mean, once.mean, atol=1e-12)
    np.testing.assert_allclose(facts.scale, once.scale, rtol=1e-12)
    np.testing.assert_allclose(pooled_gram(sites), pooled_gram(others), atol=1e-9)


@pytest.mark.parametrize("kind", [ArraySource, sparse])
def test_a_column_of_weights(kind):
    table = np.abs(X)
    facts, sites = prepare(split(table, kind=kind), weight_column="b")
    rows, heavy = table[:, [0, 2, 3]], table[:, 1]
    mean = np.average(rows, axis=0, weights=heavy)
    expected = np.sqrt(heavy)[:, None] * (rows - mean)
    assert facts.columns == ["a", "c", "d"]
    assert facts.weight == pytest.approx(heavy.sum())
    np.testing.assert_allclose(pooled_gram(sites), expected.T @ expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", [ArraySource, sparse])
@pytest.mark.parametrize("settings", [{}, {"center": False}, {"scale": True}])
def test_missing_values_get_the_federated_mean(kind, settings):
    holes = X.copy()
    holes[RNG.random(X.shape) < 0.2] = np.nan
    facts, sites = prepare(split(holes, kind=kind), missing="mean", **settings)
    mean = np.nanmean(holes, axis=0)
    filled = np.where(np.isnan(holes), mean, holes)
    expected = filled - mean if settings.get("center", True) else filled
    if settings.get("scale"):
        expected = expected / filled.std(axis=0, ddof=1)
    np.testing.assert_allclose(pooled_gram(sites), expected.T @ expected, rtol=1e-10, atol=1e-10)
    assert facts.total == pytest.approx((expected**2).sum())
    shares = [np.isnan(part).mean() for part in np.split(holes, (13, 30))]
    assert facts.missing == pytest.approx({f"s{i}": share for i, share in enumerate(shares)})


@pytest.mark.parametrize("kind", [ArraySource, sparse])
@pytest.mark.parametrize("value", [0.1, 1e6, -3.3e-7])
def test_a_constant_column_is_not_scaled_to_noise(kind, value):
    table = X.copy()
    table[:, 1] = value
    facts, sites = prepare(split(table, kind=kind), scale=True)
    assert facts.scale[1] == 1
    assert abs(pooled_gram(sites)[1, 1]) < 1e-8 * max(1, value**2)


def test_columns_strict_in_any_order():
    order = [2, 0, 3, 1]
    sources = split(X)
    sources["s1"] = ArraySource(X[13:30][:, order], tuple(NAMES[i] for i in order))
    facts, sites = prepare(sources)
    expected = X - X.mean(axis=0)
    assert facts.columns == list(NAMES)
    np.testing.assert_allclose(pooled_gram(sites), expected.T @ expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", [ArraySource, sparse])
def test_columns_shared_or_of_any_site(kind):
    sources = {"one": kind(X[:20, :3], ("a", "b", "c")), "two": kind(X[20:, [3, 1, 0]], ("d", "b", "a"))}
    facts, sites = prepare(sources, columns="intersect")
    shared = X[:, :2] - X[:, :2].mean(axis=0)
    assert facts.columns == ["a", "b"]
    np.testing.assert_allclose(pooled_gram(sites), shared.T @ shared, rtol=1e-10, atol=1e-10)
    facts, sites = prepare(sources, columns="union-zero")
    union = X.copy()
    union[:20, 3] = union[20:, 2] = 0
    union = union - union.mean(axis=0)
    assert facts.columns == ["a", "b", "c", "d"]
    np.testing.assert_allclose(pooled_gram(sites), union.T @ union, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", [ArraySource, sparse])
def test_degrees_of_users_and_items(kind):
    counts = RNG.poisson(0.7, (50, 4)).astype(float)
    counts[5] = 0  # a user without items
    counts[:, 3] = 0  # an item without users
    facts, sites = prepare(split(counts, kind=kind), center=False, normalise="degree")
    users, items = counts.sum(axis=1), counts.sum(axis=0)
    inverse_users = np.divide(1, np.sqrt(users), out=np.zeros(50), where=users > 0)
    inverse_items = np.divide(1, np.sqrt(items), out=np.zeros(4), where=items > 0)
    expected = inverse_users[:, None] * counts * inverse_items
    np.testing.assert_allclose(pooled_gram(sites), expected.T @ expected, atol=1e-12)
    assert facts.total == pytest.approx((expected**2).sum())
    np.testing.assert_allclose(np.linalg.eigvalsh(pooled_gram(sites))[-1], 1)  # as every normalised bipartite graph


def test_degrees_are_raised_to_the_least_that_a_study_names():
    counts = np.zeros((50, 4))
    counts[:30, 0] = counts[:9, 1] = counts[:1, 2] = 1.0
    sources = split(counts)
    asked = []

    def least(sites):
        asked.append(sites)
        return 4.0

    facts, _ = prepare(sources, SetUp(least_degree=least), center=False, normalise="degree")
    np.testing.assert_allclose(facts.scale**2, [30.0, 9.0, 4.0, 4.0])
    assert asked == [len(sources)]


def test_symmetric_shares():
    halves = [RNG.standard_normal((3, 3)) for _ in range(2)]
    shares = [half + half.T for half in halves]
    sources = {
        "one": SymmetricSource(shares[0], ("a", "b", "c")),
        "two": SymmetricSource(shares[1][np.ix_([2, 0, 1], [2, 0, 1])], ("c", "a", "b")),
    }
    facts, sites = prepare(sources, center=False)
    assert facts.symmetric
    np.testing.assert_allclose(pooled_gram(sites), sum(shares), rtol=1e-12)
    assert facts.total == pytest.approx(np.trace(sum(shares)))
    for settings in ({}, {"center": False, "scale": True}, {"center": False, "missing": "mean"}):
        with pytest.raises(ConfigurationError, match="shares of a symmetric matrix have no rows"):
            prepare(sources, **settings)
    with pytest.raises(DataError, match=r"sites \['one'\] hold shares of a symmetric matrix"):
        prepare({"one": sources["one"], "rows": ArraySource(X[:, :3], ("a", "b", "c"))}, center=False)


def test_precision_is_the_coarsest_site_s():
    facts, _ = prepare({"a": X, "b": X.astype(np.float32)})
    assert facts.precision == np.finfo(np.float32).eps


@given(
    st.integers(0, 2**32), st.booleans(), st.booleans(), st.sampled_from(["error", "mean"]), st.integers(1, 4),
    st.booleans(),
)  # fmt: skip
def test_however_the_rows_are_dealt(seed, center, scale, missing, count, is_sparse):
    """The same rows at one site or at several are the same study."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((20, 3)) * (rng.random((20, 3)) < 0.7) + rng.integers(0, 2) * 5
    if missing == "mean":
        x[rng.random(x.shape) < 0.1] = np.nan
    kind = sparse if is_sparse else ArraySource
    cuts = np.sort(rng.choice(np.arange(1, 20), count, replace=False))
    settings = {"center": center, "scale": scale, "missing": missing}
    one, whole = prepare({"all": kind(x, ("a", "b", "c"))}, **settings)
    many, parts = prepare(split(x, cuts, kind, ("a", "b", "c")), **settings)
    assert many.total == pytest.approx(one.total, rel=1e-10, abs=1e-10)
    np.testing.assert_allclose(pooled_gram(parts), pooled_gram(whole), atol=1e-9)


# ---- errors name the site ----------------------------------------------------------------------------------


def spoilt(value, at=(3, 1)):
    table = X.copy()
    table[at] = value
    return table


@pytest.mark.parametrize(
    ("data", "settings", "text"),
    [
        (ArraySource(X[:0], NAMES), {}, "site 'oslo' has no rows"),
        (ArraySource(X[:3], NAMES), {"min_rows": 5}, "site 'oslo' has 3 rows, fewer than min_rows = 5"),
        (ArraySource(X[:, :0], ()), {}, "site 'oslo' has no columns"),
        (ArraySource(X, ("a", "b", "a", "d")), {}, r"site 'oslo' has duplicate columns \['a'\]"),
        (ArraySource(X, ("a", "b", "c", "e")), {}, "site 'oslo' has other columns than site 'good': lacks d, adds e"),
        (ArraySource(X), {}, "site 'oslo' has no column names"),
        (ArraySource(spoilt(np.nan), NAMES), {}, r"site 'oslo' has NaN \(missing values\) in column 'b'; set missing"),
        (sparse(spoilt(np.nan), NAMES), {}, r"site 'oslo' has NaN \(missing values\) in column 'b'"),
        (ArraySource(spoilt(np.inf), NAMES), {}, "site 'oslo' has infinite values in column 'b'; remove"),
        (ArraySource(spoilt(1e308, np.s_[:, 1]), NAMES), {}, "so large that their sum overflows in column 'b'"),
        (ArraySource(spoilt(np.inf), NAMES), {"missing": "mean"}, "has infinite values in column 'b'; remove"),
        (sparse(spoilt(-np.inf), NAMES), {"missing": "mean"}, "site 'oslo' has infinite values in column 'b'"),
        (ArraySource(spoilt(np.nan, np.s_[:, :2]), NAMES), {"missing": "mean", "max_missing_fraction": 0.2},
         r"site 'oslo' misses 50\.0% of its entries, more than max_missing_fraction = 0\.2"),
    ],
)  # fmt: skip
def test_bad_data_names_the_site(data, settings, text):
    with pytest.raises(DataError, match=text):
        prepare({"good": ArraySource(X, NAMES), "oslo": data}, **settings)


def test_inf_minus_inf_is_reported_and_not_warned_about():
    table = spoilt(np.inf)
    table[9, 1] = -np.inf
    with pytest.raises(DataError, match="site 'oslo' has infinite values in column 'b'; remove"):
        prepare({"good": ArraySource(X, NAMES), "oslo": ArraySource(table, NAMES)})


@pytest.mark.parametrize("kind", [ArraySource, sparse])
def test_gaps_and_infinite_values_are_told_apart(kind):
    table = spoilt(np.inf)
    table[9, 2] = np.nan
    with pytest.raises(
        DataError, match=r"infinite values in column 'b'; remove.* It has NaN .* in column 'c'; set missing"
    ):
        prepare({"oslo": kind(table, NAMES)})
    with pytest.raises(DataError, match=r"infinite values in column 'b'; remove or replace them$"):
        prepare({"oslo": kind(table, NAMES)}, missing="mean")


@pytest.mark.parametrize("kind", [ArraySource, sparse])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_column_that_every_site_misses_is_refused(kind, weighted):
    sites = split(spoilt(np.nan, np.s_[:, 1]), kind=kind)
    if weighted:
        for site in sites.values():
            site.weights = np.random.default_rng(1).random(site.shape[0]) * 0.1
    with pytest.raises(DataError, match=r"every site misses all values in column 'b', so .* drop"):
        prepare(sites, missing="mean")
    sites["s1"] = kind(X[13:30], NAMES)
    facts, _ = prepare(sites, missing="mean")
    assert facts.mean[1] == pytest.approx(X[13:30, 1].mean())


def test_columns_without_names_are_called_by_their_number():
    with pytest.raises(DataError, match=r"site 'oslo' has NaN \(missing values\) in column '1'"):
        prepare({"oslo": spoilt(np.nan)})
    with pytest.raises(DataError, match="every site misses all values in column '1'"):
        prepare({"oslo": spoilt(np.nan, np.s_[:, 1])}, missing="mean")
    with pytest.raises(DataError, match="site 'oslo' has 3 columns, site 'good' has 4"):
        prepare({"good": X, "oslo": X[:, :3]})


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_bad_weights_in_a_column_name_the_site(bad):
    sources = {"good": ArraySource(abs(X), NAMES), "oslo": ArraySource(spoilt(bad), NAMES)}
    with pytest.raises(DataError, match="site 'oslo': row weights must be finite and not negative"):
        prepare(sources, weight_column="b")


def test_a_weight_column_that_one_site_lacks():
    sources = {"good": ArraySource(abs(X), NAMES), "oslo": ArraySource(X[:, :3], NAMES[:3])}
    with pytest.raises(DataError, match="site 'oslo': there is no column 'd' to take row weights from"):
        prepare(sources, columns="intersect", weight_column="d")


def test_negative_entries_have_no_degree():
    with pytest.raises(DataError, match="site 'oslo' has negative entries"):
        prepare({"good": abs(X), "oslo": X}, center=False, normalise="degree")


def test_a_file_that_goes_bad_between_rounds_names_the_site(tmp_path, monkeypatch):
    monkeypatch.setattr("fedspan.data.text.CACHE_BYTES", 0)
    path = tmp_path / "oslo.csv"
    path.write_text("a,b\n1,2\n3,4\n")
    source = CsvSource(path)
    path.write_text("a,b\n1,2\n3,4\n5,6\n")
    with pytest.raises(FileError, match=r"site 'oslo': .*oslo\.csv: the file changed"):
        prepare({"oslo": source})


@pytest.mark.parametrize(
    "settings",
    [
        {"columns": "same"},
        {"missing": "median"},
        {"normalise": "rows"},
        {"max_missing_fraction": 1.5},
        {"min_rows": 0},
        {"normalise": "degree"},
        {"normalise": "degree", "center": False, "missing": "mean"},
    ],
)
def test_settings_are_checked(settings):
    with pytest.raises(ConfigurationError):
        Preparation(**settings)
