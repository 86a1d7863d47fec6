"""Prepared rows against the explicit matrix: every combination of what a preparation can hold."""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from fedspan.data import prepared as module
from fedspan.data import source as source_module
from fedspan.data.aligned import Aligned
from fedspan.data.arrays import ArraySource, SparseSource
from fedspan.data.clip import RowBounds
from fedspan.data.prepared import Prepared
from fedspan.data.source import Source, SymmetricSource
from fedspan.errors import DataError

NAMES = ("a", "b", "c", "d", "e")


@dataclass
class Case:
    """A source, a preparation, and the matrix that they mean."""

    source: Source
    preparation: dict[str, Any]
    explicit: np.ndarray
    scores: np.ndarray
    mass: float


@st.composite
def cases(draw, sparse=None, dtype=np.float64):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = draw(st.integers(1, 40))
    raw = rng.standard_normal((rows, 5)) + draw(st.sampled_from([0, 5])) * rng.standard_normal(5)
    is_sparse = draw(st.booleans()) if sparse is None else sparse
    if is_sparse:
        raw *= rng.random(raw.shape) < 0.3
    degree = draw(st.booleans())
    if degree:
        raw = abs(raw)
    gaps = draw(st.booleans())
    if gaps:
        raw[(rng.random(raw.shape) < 0.2) & (raw != 0)] = np.nan
    raw = raw.astype(dtype)
    source = SparseSource(scipy.sparse.csr_array(raw), NAMES) if is_sparse else ArraySource(raw, NAMES)
    return _meant(draw, rng, source, raw.astype(float), degree, gaps)


def _meant(draw, rng, source, raw, degree, gaps):
    """Draw a preparation and form its matrix, step by step as the words say it."""
    preparation: dict[str, Any] = {"columns": None, "weight_column": None}
    weights = np.ones(len(raw))
    names = list(NAMES)
    if draw(st.booleans()):
        source.weights = rng.random(len(raw)) * (rng.random(len(raw)) < 0.8)
        weights = weights * source.weights
    elif draw(st.booleans()):
        preparation["weight_column"] = "b"
        names.remove("b")
        heavy = np.nan_to_num(abs(raw[:, 1]))
        raw[:, 1] = heavy
        source = type(source)(scipy.sparse.csr_array(raw) if isinstance(source, SparseSource) else raw, NAMES)
        weights = heavy
    source.site_weight = draw(st.sampled_from([1.0, 2.5]))
    weights = source.site_weight * weights
    if names != list(NAMES) or draw(st.booleans()):
        names = draw(st.permutations(names))[: draw(st.integers(1, len(names)))]
        names += draw(st.sampled_from([[], ["z"]]))  # union-zero: a column this site does not have
        preparation["columns"] = names
    table = np.column_stack([raw[:, NAMES.index(n)] if n in NAMES else np.zeros(len(raw)) for n in names])
    if gaps or draw(st.booleans()):
        preparation["fill"] = rng.standard_normal(len(names)) if not degree else rng.random(len(names))
        table = np.where(np.isnan(table), preparation["fill"], table)
    mass = weights.sum()
    if degree:
        preparation["degree"] = True
        sums = table.sum(axis=1)
        own = np.divide(1, sums, out=np.zeros_like(sums), where=sums != 0)  # the row's, not only its weight in sums
        weights = weights * own
    if draw(st.booleans()):
        preparation["mean"] = rng.standard_normal(len(names))
        table = table - preparation["mean"]
    if draw(st.booleans()):
        preparation["scale"] = 0.5 + rng.random(len(names))
        table = table / preparation["scale"]
    scores = np.sqrt(own)[:, None] * table if degree else table
    return Case(source, preparation, np.sqrt(weights)[:, None] * table, scores, mass)


def close(actual, expected, tolerance=1e-10):
    size = max(float(np.abs(expected).max(initial=0)), 1e-6)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * size)


def directions(case, rank=3):
    return np.random.default_rng(1).standard_normal((case.explicit.shape[1], rank))


@given(cases(), st.sampled_from([64, 200, 4 << 20]))
def test_everything_equals_the_explicit_matrix(case, block_bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedspan.data.arrays.BLOCK_BYTES", block_bytes)
        patch.setattr(source_module.row_slices, "__defaults__", (block_bytes,))
        if isinstance(case.source, ArraySource):  # cut anew into small blocks
            weights, factor = case.source.weights, case.source.site_weight
            case.source = ArraySource(case.source._array, NAMES)
            case.source.weights, case.source.site_weight = weights, factor
            assert len(list(case.source.blocks())) >= case.source.shape[0] * 40 // max(block_bytes, 40)
        for small in (0, 1 << 20):
            patch.setattr(module, "_SMALL_BYTES", small)
            check(case)


def check(case):
    data = Prepared(case.source, case.preparation)
    assert data.shape == case.explicit.shape
    z = directions(case)
    gram = case.explicit.T @ case.explicit
    close(data.gram_times(z), gram @ z)
    close(data.times(z), case.scores @ z)
    close(data.times(z, weighted=True), case.explicit @ z)
    close(data.total(), np.trace(gram))
    close(data.gram(), gram)
    close(Prepared(case.source, case.preparation, lambda: 1000).gram_times(z), gram @ z)  # by the Gram, where it pays
    assert data.mass == pytest.approx(case.mass)
    blocks = [b.toarray() if scipy.sparse.issparse(b) else b for b in data.blocks()]
    close(np.concatenate(blocks), case.explicit)
    unscaled = case.explicit * case.preparation.get("scale", 1.0)
    close(data.column_squares(), (unscaled**2).sum(axis=0))


@given(cases(sparse=True))
def test_sparse_rows_are_never_made_dense(case):
    """Only a column of weights may be dense, and the d x d Gram matrix where it is asked for by name."""
    width = case.explicit.shape[1]

    def refused(matrix, *args, **kwargs):
        assert matrix.shape == (width, width) or matrix.shape[1] == 1, "rows were made dense"
        return real(matrix, *args, **kwargs)

    kind = scipy.sparse.csr_array
    real = kind.toarray
    with pytest.MonkeyPatch.context() as patch:
        for name in ("toarray", "todense"):
            for each in (scipy.sparse.csr_array, scipy.sparse.csr_matrix, scipy.sparse.csc_array):
                patch.setattr(each, name, refused)
        if case.source.shape[0] == width:
            return
        data = Prepared(case.source, case.preparation)
        z = directions(case)
        data.gram_times(z)
        data.times(z, weighted=True)
        data.total()
        data.column_squares()
        data.gram()


def test_float32_stays_float32_and_loses_no_more_than_its_rounding():
    rng = np.random.default_rng(0)
    raw = (rng.standard_normal((3000, 40)) * np.linspace(1, 3, 40)).astype(np.float32)
    z = np.linalg.qr(rng.standard_normal((40, 5)))[0]
    for offset in (0.0, 1000.0):  # a mean of a thousand deviations: the implicit form would lose three digits more
        rows = raw + np.float32(offset)
        mean = rows.mean(axis=0, dtype=np.float64)
        explicit = rows.astype(np.float64) - mean
        data = Prepared(ArraySource(rows), {"mean": mean})
        assert all(block.dtype == np.float32 for block, _ in data.rows())
        assert all(block.dtype == np.float32 for block in data.blocks())
        close(data.gram_times(z), explicit.T @ (explicit @ z), 2e-6)
        close(data.times(z), explicit @ z, 2e-6)
        close(data.total(), (explicit**2).sum(), 1e-6)
        close(data.gram(), explicit.T @ explicit, 2e-6)


def test_a_million_float32_rows_are_not_lost_count_of():
    rows = np.full((1 << 20, 1), 3, dtype=np.float32)
    assert Prepared(ArraySource(rows), {}).total() == 9 * (1 << 20)


def test_sparse_float32_stays_float32():
    csr = scipy.sparse.random_array((500, 30), density=0.1, format="csr", rng=0, dtype=np.float32)
    data = Prepared(
        SparseSource(csr, None), {"fill": np.zeros(30), "mean": np.full(30, 0.1), "scale": np.full(30, 2.0)}
    )
    assert all(block.dtype == np.float32 for block, _ in data.rows())
    explicit = (csr.toarray().astype(float) - 0.1) / 2
    z = np.random.default_rng(0).standard_normal((30, 4))
    close(data.gram_times(z), explicit.T @ explicit @ z, 2e-6)


def test_a_constant_sparse_column_has_no_spread():
    """Squared sums would cancel to 1e-16 of the mean's square, and its root would pass for a deviation."""
    csr = scipy.sparse.csr_array(np.full((1000, 1), 0.1))
    mean = csr.sum(axis=0) / 1000
    assert Prepared(SparseSource(csr), {"mean": mean}).column_squares()[0] < 1e-25


# ---- the cost model ----------------------------------------------------------------------------------------


class Counting(ArraySource):
    """Counts passes over the rows."""

    passes = 0

    def blocks(self):
        self.passes += 1
        return super().blocks()


def round_of_the_gram(source, preparation, z):
    """Ask for a product in each round until the Gram is bought; return the round's number, and the data."""
    number = 0
    data = Prepared(source, preparation, lambda: number)
    first = data.gram_times(z)
    assert data._gram is None
    for number in range(1, 200):
        close(data.gram_times(z), first)
        if data._gram is not None:
            return number, data
    raise AssertionError("the Gram was never bought")


def test_the_gram_is_bought_after_enough_rounds_and_gives_the_same_products():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((5000, 20))
    source = Counting(rows)
    z = rng.standard_normal((20, 4))
    number, data = round_of_the_gram(source, {"mean": rows.mean(axis=0)}, z)
    assert number > 1
    passes = source.passes
    explicit = rows - rows.mean(axis=0)
    for _ in range(5):
        close(data.gram_times(z), explicit.T @ explicit @ z)
    assert source.passes == passes


def test_a_site_restarted_in_between_chooses_as_one_that_was_not():
    source = ArraySource(np.random.default_rng(0).standard_normal((5000, 20)))
    z = np.random.default_rng(1).standard_normal((20, 4))
    number, _ = round_of_the_gram(source, {}, z)
    for late in (number - 1, number):
        restarted = Prepared(source, {}, lambda late=late: late)
        restarted.gram_times(z)
        assert (restarted._gram is not None) == (late == number)


def test_the_dearer_a_pass_the_sooner_the_gram_is_bought():
    z = np.random.default_rng(1).standard_normal((100, 3))
    rounds = []
    for pass_cost in (500.0, 1.0):
        source = ArraySource(np.random.default_rng(0).standard_normal((2000, 100)))
        source.pass_cost = pass_cost
        rounds.append(round_of_the_gram(source, {}, z)[0])
    assert rounds[0] < rounds[1]


@pytest.mark.parametrize(
    "source",
    [
        SparseSource(scipy.sparse.random_array((900, 30), density=0.2, format="csr", rng=0)),
        ArraySource(np.random.default_rng(0).standard_normal((100, 400))),
        ArraySource(np.random.default_rng(0).standard_normal((300, 300))),
    ],
    ids=["sparse", "wide", "square"],
)
@pytest.mark.parametrize("pass_cost", [1.0, 500.0])
def test_sparse_and_wide_data_never_form_the_gram(source, pass_cost):
    if pass_cost > 1 and (isinstance(source, SparseSource) or source.shape == (300, 300)):
        pytest.skip("a file's rows are dense, and a dear pass makes a square Gram worth it")
    source.pass_cost = pass_cost
    data = Prepared(source, {}, lambda: 1000)
    z = np.random.default_rng(1).standard_normal((source.shape[1], 3))
    data.gram_times(z)
    assert data._gram is None


def test_a_gram_too_large_to_keep_is_not_formed(monkeypatch):
    monkeypatch.setattr(module, "_GRAM_BYTES", 1000)
    data = Prepared(ArraySource(np.ones((5000, 20))), {}, lambda: 1000)
    data.gram_times(np.ones((20, 2)))
    assert data._gram is None


# ---- the rest ----------------------------------------------------------------------------------------------


def test_no_rows():
    data = Prepared(ArraySource(np.empty((0, 3))), {"mean": np.ones(3)})
    assert data.times(np.eye(3)).shape == (0, 3)
    np.testing.assert_array_equal(data.gram_times(np.eye(3)), np.zeros((3, 3)))
    assert (data.total(), data.mass) == (0, 0)


def test_preparing_changes_no_data():
    rows = np.array([[1.0, np.nan], [3.0, 4.0]])
    kept = rows.copy()
    for source in (ArraySource(rows, ("a", "b")), SparseSource(scipy.sparse.csr_array(rows), ("a", "b"))):
        preparation = {"columns": ["b", "a"], "fill": np.ones(2), "mean": np.ones(2), "scale": np.full(2, 2.0)}
        data = Prepared(source, preparation)
        data.gram_times(np.eye(2))
        data.gram()
        raw = next(source.blocks())
        np.testing.assert_array_equal(raw.toarray() if scipy.sparse.issparse(raw) else raw, kept)


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_bad_weights_in_a_column(bad):
    source = ArraySource(np.array([[1.0, 2.0], [3.0, bad]]), ("x", "w"))
    with pytest.raises(DataError, match="row weights must be finite and not negative"):
        list(Aligned(source, ["x"], None, "w").rows())


def test_a_weight_column_must_be_there_once():
    source = ArraySource(np.ones((2, 2)), ("x", "weight"))
    with pytest.raises(DataError, match="no column 'wieght' to take row weights from; did you mean 'weight'"):
        Aligned(source, ["x"], None, "wieght")
    with pytest.raises(DataError, match="the columns have no names"):
        Aligned(ArraySource(np.ones((2, 2))), None, None, "weight")
    source.weights = np.ones(2)
    with pytest.raises(DataError, match="row weights were given twice"):
        Aligned(source, ["x"], None, "weight")


@pytest.mark.parametrize("sparse", [False, True])
def test_symmetric_shares_are_aligned_on_both_sides(sparse):
    half = np.random.default_rng(0).standard_normal((3, 3))
    share = half + half.T
    source = SymmetricSource(scipy.sparse.csr_array(share) if sparse else share, ("a", "b", "c"))
    names = ["c", "z", "a"]
    expected = np.zeros((3, 3))
    expected[np.ix_([0, 2], [0, 2])] = share[np.ix_([2, 0], [2, 0])]
    data = Prepared(source, {"columns": names})
    z = np.random.default_rng(1).standard_normal((3, 2))
    close(data.gram_times(z), expected @ z)
    close(data.gram(), expected)
    assert data.total() == pytest.approx(np.trace(expected))
    source.site_weight = 3.0
    close(Prepared(source, {}).gram_times(z), 3 * share @ z)
    close(Prepared(source, {"columns": names}).gram_times(z), 3 * expected @ z)


@pytest.mark.parametrize("preparation", [
    {}, {"fill": np.ones(3)}, {"columns": ["c", "z", "a"]}, {"columns": ["c", "a"], "weight_column": "b"},
    {"degree": True, "scale": np.full(3, 2.0)}, {"mean": np.ones(3), "scale": np.full(3, 2.0)},
])  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["array_api_strict", "torch"])
def test_arrays_of_other_libraries_are_prepared_where_they_are(kind, dtype, preparation):
    xp = pytest.importorskip(kind)
    host = np.random.default_rng(0).random((50, 3)).astype(dtype)
    if "fill" in preparation:
        host[3, 1] = np.nan
    z = np.random.default_rng(1).standard_normal((len(preparation.get("columns", "abc")), 2))
    ours = Prepared(ArraySource(xp.asarray(host), ("a", "b", "c")), preparation)
    numpys = Prepared(ArraySource(host, ("a", "b", "c")), preparation)
    assert all(isinstance(block, type(xp.asarray(host))) for block, _ in ours.rows())
    tolerance = 2e-6 if dtype == "float32" else 1e-12
    close(ours.gram_times(z), numpys.gram_times(z), tolerance)
    close(ours.times(z), numpys.times(z), tolerance)
    close(ours.gram(), numpys.gram(), tolerance)
    close(ours.total(), numpys.total(), tolerance)


# ---- some of the rows ------------------------------------------------------------------------------------------


def dense(block):
    return block.toarray() if scipy.sparse.issparse(block) else block


@given(cases(), st.lists(st.integers(0, 40), max_size=4), st.sampled_from([64, 4 << 20]))
def test_a_cursor_reads_the_prepared_rows_but_for_what_it_says_is_to_be_subtracted(case, places, block_bytes):
    n, data = len(case.explicit), Prepared(case.source, case.preparation)
    edges = sorted({0, n, *(place for place in places if place < n)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_module.row_slices, "__defaults__", (block_bytes,))
        rows = []
        for start, stop in itertools.pairwise(edges):
            for block, weights in data.cursor.read(start, stop):
                assert scipy.sparse.issparse(block) == isinstance(case.source, SparseSource)
                offset = 0.0 if data.cursor.offset is None else data.cursor.offset
                root = 1.0 if weights is None else np.sqrt(weights)[:, None]
                rows.append(root * (dense(block) - offset))
    close(np.concatenate(rows), case.explicit)
    assert (data.cursor.offset is None) == ("mean" not in case.preparation)


@given(cases(), st.integers(1, 6), st.booleans())
def test_parts_are_the_rows_between_and_add_up_to_all(case, count, small):
    n, z = len(case.explicit), directions(case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SMALL_BYTES", 1 << 20 if small else 0)
        data = Prepared(case.source, case.preparation, lambda: 1000)
        data.gram_times(z)  # whatever it keeps of all rows must not be taken for a part's
        edges = [n * t // count for t in range(count + 1)]
        for start, stop in itertools.pairwise(edges):
            part, rows = data.part(start, stop), case.explicit[start:stop]
            assert part.shape == rows.shape
            for _ in range(2):  # its rows are kept
                close(part.gram_times(z), rows.T @ (rows @ z))
            close(part.gram(), rows.T @ rows)
            close(part.times(z, weighted=True), rows @ z)
            close(part.total(), np.sum(rows**2))
            assert part.mass == pytest.approx(case.mass * (stop - start) / n)
        close(data.gram_times(z), case.explicit.T @ (case.explicit @ z))


def test_parts_in_their_order_are_read_once():
    class Read(ArraySource):
        times = 0

        def blocks(self):
            Read.times += 1
            return super().blocks()

    rng = np.random.default_rng(0)
    data = Prepared(Read(rng.standard_normal((5000, 4))), {"mean": np.zeros(4)})
    before = Read.times
    for start in range(0, 5000, 1000):
        part = data.part(start, start + 1000)
        part.gram_times(np.eye(4))
        part.gram_times(np.eye(4))
    assert Read.times == before + 1


@pytest.mark.parametrize("weighted", [False, True])
def test_rows_of_a_part_are_clipped_as_among_all(weighted):
    rng, bounds = np.random.default_rng(1), RowBounds(norm=1.0)
    source = ArraySource(3 * rng.standard_normal((40, 4)))
    source.weights = rng.random(40) if weighted else None
    data = Prepared(source, {"mean": np.full(4, 0.3)}, bounds=bounds)
    whole = np.concatenate([dense(block) for block in data.blocks()])
    assert np.linalg.norm(whole, axis=1).max() <= 1.0
    for start, stop in [(0, 7), (7, 20), (20, 40)]:
        part = data.part(start, stop)
        close(part.gram(), whole[start:stop].T @ whole[start:stop])
        close(np.concatenate([dense(block) for block in part.blocks()]), whole[start:stop])
        assert part.bounds is bounds


def test_a_part_may_be_empty_and_of_no_rows():
    data = Prepared(ArraySource(np.ones((5, 3))), {"mean": np.zeros(3)})
    for part in (data.part(2, 2), Prepared(ArraySource(np.ones((0, 3))), {}).part(0, 0)):
        assert part.shape == (0, 3)
        np.testing.assert_array_equal(part.gram_times(np.eye(3)), np.zeros((3, 3)))
        assert part.mass == 0.0


def test_shares_of_a_symmetric_matrix_have_no_parts():
    with pytest.raises(DataError, match="no rows to take some of; take a solver of whole shares"):
        Prepared(SymmetricSource(np.eye(3)), {}).part(0, 2)
