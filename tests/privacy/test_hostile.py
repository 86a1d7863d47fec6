"""A coordinator that asks what no honest one would: refused, or answered within the bounds, whatever the rows are.

Each of these was a fault once, found by an attack on the code as it was.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from fedspan.data import Preparation, open_source
from fedspan.data.arrays import ArraySource, SparseSource
from fedspan.data.clip import RowBounds, bounded_sums
from fedspan.data.prepared import Prepared
from fedspan.data.source import SymmetricSource
from fedspan.errors import BudgetExhausted, FedspanError, FileError, PolicyError
from fedspan.privacy.gaussian import Bounds
from fedspan.rounds import STEPS, Round, Step, answer
from fedspan.sites import LEDGER, Terms, open_site
from fedspan.solvers.mod_sulq import factor
from fedspan.solvers.mod_sulq_stream import fold_block
from fedspan.solvers.problem import multiply
from tests.privacy.test_policy import DESCRIBE, D, ask, charges, opened, preparation, private, rows

NAMES = ("x", "y", "flag")


def named(data, **terms):
    source = ArraySource(data, NAMES[: data.shape[1]])
    privacy = private(**terms)
    return open_site("a", source, seed=0, terms=Terms(privacy, "run", 1, Preparation(center=False)))


def ask_with_terms(site, number, step, message, parent, preparation):
    """As a coordinator would ask a site that it says has lost its state."""
    question = Round(
        step, message, number=number, parents={"a": parent}, terms={"preparation": preparation}
    )  # fmt: skip
    return answer(site, question).value


# ---- numbers that slip through ---------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", ["entry", "ppm-12", "row"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_matrix_in_narrower_numbers_is_refused(relation, dtype):
    site = opened(privacy=private(neighbours=relation, row_norm=1.0 if relation == "row" else None))
    ask(site, 0, "data.prepare", preparation())
    with pytest.raises(PolicyError, match="float64"):
        ask(site, 1, multiply, (1e-7 * np.eye(D)).astype(dtype), parent=0)
    assert not charges(site)


def test_a_tiny_matrix_is_charged_and_noised():
    site = opened(privacy=private(neighbours="entry", row_norm=None))
    ask(site, 0, "data.prepare", preparation())
    got = ask(site, 1, multiply, 1e-40 * np.eye(D), parent=0) * 1e40
    assert np.abs(got - rows().T @ rows()).max() > 0.1  # a bound that underflowed to 0 let it out as it is
    assert len(charges(site)) == 1


@pytest.mark.parametrize("relation", ["entry", "ppm-12", "site"])
@pytest.mark.parametrize("field", ["scale", "mean", "fill"])
def test_a_preparation_that_a_relation_bounds_nothing_of_is_refused(relation, field):
    terms = {"neighbours": relation, "row_norm": None, "site_norm": 1.0, "n_public": True}
    site = opened(privacy=private(**terms))
    with pytest.raises(PolicyError, match=f"allow no {field}"):
        ask(site, 0, "data.prepare", preparation(**{field: np.full(D, 1e-5)}))


@pytest.mark.parametrize("scale", [1e-15, 9e-4, np.inf])
def test_scales_stay_within_the_columns_ranges(scale):
    site = opened(privacy=private(row_norm=Bounds(-1, 1)))
    with pytest.raises(PolicyError, match="scale"):
        ask(site, 0, "data.prepare", preparation(scale=np.full(D, scale)))
    ask(site, 1, "data.prepare", preparation(scale=np.full(D, 1e-3)))
    with pytest.raises(PolicyError, match="columns' ranges"):
        ask(opened(), 0, "data.prepare", preparation(scale=np.ones(D)))


def test_a_preparation_with_other_fields_is_refused():
    with pytest.raises(PolicyError, match="has no"):
        ask(opened(), 0, "data.prepare", preparation(power=3.0))


# ---- refusals that would tell ----------------------------------------------------------------------------------


@pytest.mark.parametrize("flagged", [False, True])
def test_an_answered_round_is_refused_alike_whatever_the_values_are(flagged):
    """Asked again through another preparation: whether the product is the same told whether anyone has a flag."""
    data = np.random.default_rng(0).standard_normal((50, 3))
    data[:, 2] = 0.0
    data[7, 2] = float(flagged)
    site = named(data)
    ask(site, 0, "data.prepare", preparation(3, columns=list(NAMES)))
    ask(site, 5, multiply, np.eye(3), parent=0)
    ask(site, 6, "data.prepare", preparation(3, columns=["x", "y", "nobody has this"]), parent=0)
    with pytest.raises(PolicyError, match=r"round 5 .* comes after round 6"):
        ask(site, 5, multiply, np.eye(3), parent=0)


def test_a_round_that_came_to_nothing_is_not_asked_for_anything_else():
    site = opened()
    ask(site, 0, "data.prepare", preparation())
    releases = site.policy.releases
    question = Round(multiply, np.eye(D), number=1, parents={"a": 0})
    answer(site, question)
    with pytest.raises(PolicyError, match="released before"):
        releases.charge(question, {"product": (D, D)}, values={"product": np.ones((D, D))}, again=False)


RESTARTING = Step("test.restarting", multiply.run, lost="restart", sensitivity=multiply.sensitivity)


@pytest.mark.parametrize("step", [STEPS["data.describe"], RESTARTING], ids=lambda step: step.name)
@pytest.mark.parametrize(
    "evil", [{"degree": True}, {"mean": np.full(2, 1e9)}, {"columns": ["x", "x"]}, {"scale": np.full(2, 1e-300)},
             {"norm": 1e-6}, {"weight_column": "y"}, {"features": 7}],
)  # fmt: skip
@pytest.mark.parametrize("folder", [False, True])
def test_terms_to_restart_from_are_checked_as_a_preparation_is(step, evil, folder, tmp_path):
    data = np.abs(rows(d=2))
    source, terms = ArraySource(data, ("x", "y")), Terms(private(adaptive_clip=True), "run", 1, Preparation())
    site = open_site("a", source, seed=0, folder=tmp_path if folder else None, terms=terms)
    wanted = {"columns": ["x", "y"], "weight_column": None, "features": 2, "privacy": {"releases": 9}, **evil}
    if step.setup:  # set-up starts from the rows as they are
        ask_with_terms(site, 0, step, DESCRIBE, 77, wanted)
        assert site.data is site.source
        assert "preparation" not in site.memory.versions[0][1]
    else:
        with pytest.raises(PolicyError):
            ask_with_terms(site, 0, step, np.eye(2), 77, wanted)
    assert not charges(site)


def test_a_site_goes_on_from_the_preparation_that_its_state_says():
    """Whatever was installed in between: a later one whose release was refused, or another branch of rounds."""
    site = opened(privacy=private(epsilon=1e4))
    ask(site, 0, "data.prepare", preparation(mean=np.zeros(D)))
    ask(site, 1, "data.prepare", preparation(mean=np.full(D, 0.4)), parent=0)
    got = ask(site, 2, "gram.multiply", np.eye(D), parent=0)
    assert site.prepared is site.memory.versions[1][1]["preparation"]
    lengths = np.linalg.norm(rows(), axis=1, keepdims=True)
    clipped = rows() * np.minimum(1.0, 1.0 / lengths)
    np.testing.assert_allclose(got, clipped.T @ clipped, atol=1.0)


def test_a_release_before_any_preparation_that_held_has_no_bound():
    site = opened(privacy=private(shares={"variance": 0.02}))
    with pytest.raises(FedspanError):  # installs, and then has no share for what is asked
        ask(site, 0, "data.prepare", preparation(total=True, features=D + 1))
    with pytest.raises(PolicyError, match="before the study's preparation"):
        ask(site, 1, multiply, np.eye(D))


@pytest.mark.parametrize("size", [1.0, 1e30, 1e200])
def test_entries_too_large_for_the_noises_grid_are_answered_all_the_same(size):
    site = opened(SymmetricSource(size * np.eye(2)), private(neighbours="entry", row_norm=None, entry_change=1e-3))
    ask(site, 0, "data.prepare", preparation(2))
    assert np.all(np.isfinite(ask(site, 1, "covariance.gram", None, parent=0)))


# ---- sums that cancel ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("low", [1e9, 1e12, 1e15])
@pytest.mark.parametrize("weighted", [False, True])
def test_one_row_moves_the_column_sums_by_no_more_than_declared_however_far_the_box_is_from_zero(low, weighted):
    privacy = private(row_norm=Bounds(low, low + 1))
    bounds = privacy.row_bounds(3, centred=False, scaled=False)
    rng = np.random.default_rng(0)
    data = low + rng.integers(0, 2, (100_001, 3))
    weights = rng.random(len(data)) if weighted else None

    def sums(n):
        return bounded_sums(data[:n], None if weights is None else weights[:n], False, bounds)

    moved = np.linalg.norm(sums(len(data)) - sums(len(data) - 1))
    assert moved <= privacy.neighbours_of(bounds).row_sum() * (1 + 2**-10)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("outliers", [0, 5000])
def test_one_row_near_the_mean_moves_the_products_by_no_more_than_declared(kind, outliers):
    privacy = private(row_norm=Bounds(0, 2))
    rng = np.random.default_rng(1)
    n, mean = 20_000, np.full(3, 1.1)
    data = mean + 1e-6 * rng.standard_normal((n + 1, 3))
    data[:outliers] = rng.choice([0.0, 2.0], (outliers, 3))
    z = rng.standard_normal((3, 2))
    z -= mean[:, None] * (mean @ z) / (mean @ mean)
    seen = []
    for part in (data[:-1], data):
        source = ArraySource(part) if kind == "dense" else SparseSource(scipy.sparse.csr_array(part))
        site = open_site("a", source, seed=0, terms=Terms(privacy, "run", 1))
        ask(site, 0, "data.prepare", preparation(3, mean=mean, scale=np.full(3, 1e-3)))
        seen.append((site.data.gram_times(z), site.data.gram()))
    near = privacy.neighbours_of(site.data.bounds)
    slack = 1 + 2**-10
    row = (data[-1] - mean) / 1e-3
    assert np.linalg.norm(seen[1][0] - seen[0][0]) <= slack * near.product(z)
    np.testing.assert_allclose(seen[1][0] - seen[0][0], np.outer(row, row @ z), atol=2**-10 * near.product(z))
    np.testing.assert_allclose(seen[1][1] - seen[0][1], np.outer(row, row), atol=2**-10 * near.gram())


# ---- shares of noise, and what is kept ---------------------------------------------------------------------------


def test_slices_that_are_folded_at_the_site_need_the_whole_noise_there():
    site = opened(privacy=private(trust="distributed"), sites=50)
    ask(site, 0, "data.prepare", preparation())
    with pytest.raises(PolicyError, match="set trust to local"):
        ask(site, 1, factor, {"slice": 2, "rank": 2}, parent=0)
    assert not charges(site)


def test_a_site_whose_ledger_is_gone_does_not_go_on(tmp_path):
    site = opened(folder=tmp_path)
    ask(site, 0, "data.prepare", preparation())
    ask(site, 1, multiply, np.eye(D), parent=0)
    (tmp_path / "a" / LEDGER).unlink()
    with pytest.raises(FileError, match="is gone"):
        opened(folder=tmp_path)


def test_other_people_cannot_look_into_the_sites_folder(tmp_path):
    opened(folder=tmp_path / "sites")
    assert (tmp_path / "sites").stat().st_mode & 0o077 == 0


def test_the_log_counts_what_the_bounds_changed():
    data = np.array([[0.5, 0.5], [3.0, 0.0], [0.0, -7.0], [1.0, 1.0]])
    source = open_source(data, weights=np.array([1.0, 2.5, 0.5, 1.0]))
    site = open_site("a", source, seed=0, terms=Terms(private(row_norm=Bounds(-2, 2)), "run", 1))
    ask(site, 0, "data.prepare", preparation(2))
    assert site.policy.log[-1] == (
        "0.00% of the rows were clipped to norm 2.82843, 50.00% had entries beyond their range, "
        "25.00% had a weight beyond 1"
    )


def test_a_box_has_a_least_scale():
    np.testing.assert_allclose(
        RowBounds(low=np.array([-1.0, 0.0]), high=np.array([1.0, 10.0])).least_scale(2), [1e-3, 5e-3]
    )
    assert not RowBounds(norm=1.0).least_scale(3).any()


# ---- blocks of rows --------------------------------------------------------------------------------------------


def blocks_site(**terms):
    site = opened(privacy=private(**{"n_public": True, **terms}))
    ask(site, 0, "data.prepare", preparation())
    return site


def block_of(t, count, **more):
    return {"slice": 2, "rank": 2, "merge": "tight", "block": t, "blocks": count, **more}


BLOCKS = [True, False, 1.5, 1.0, -1, 4, 10**9, None, "1", [1], np.float64(1.0), np.int64(1), np.zeros(1), 4 + 10**30]


@pytest.mark.parametrize("t", BLOCKS, ids=repr)
def test_a_block_that_is_none_is_refused_before_a_row_is_touched_or_noise_drawn(t, monkeypatch, draws):
    site = blocks_site()
    monkeypatch.setattr(Prepared, "rows", None)
    monkeypatch.setattr(Prepared, "part", None)
    before = len(draws)
    with pytest.raises(PolicyError, match=r"block .* of 4 is none; blocks are numbered from 0"):
        ask(site, 1, fold_block, block_of(t, 4), parent=0)
    assert (len(draws), charges(site)) == (before, [])
    assert len(site.memory.versions) == 1


@pytest.mark.parametrize("count", [0, -4, True, 4.0, None, "4", np.int64(4)], ids=repr)
def test_a_number_of_blocks_that_is_none_is_refused(count, monkeypatch, draws):
    site = blocks_site()
    monkeypatch.setattr(Prepared, "part", None)
    with pytest.raises(PolicyError, match="is none"):
        ask(site, 1, fold_block, block_of(0, count), parent=0)
    assert (len(draws), charges(site)) == (0, [])


@pytest.mark.parametrize("count", [3, 10**18, 2**63, 10**31])
def test_a_block_is_charged_again_whatever_its_number_looks_like(count):
    """SQLite reads integers beyond its own as fractions: such a block was charged twice within one budget once."""
    site = blocks_site()
    row = count // 3 + 1
    ask(site, 1, fold_block, block_of(row, count), parent=0)
    with pytest.raises(BudgetExhausted, match="but 0 of the run's limit"):
        ask(site, 2, fold_block, block_of(row, count), parent=1)
    ledger = site.policy.releases.ledger
    assert (len(charges(site)), ledger.spent()) == (1, pytest.approx(site.policy.releases.limit))
    ask(site, 3, fold_block, block_of(0, count), parent=1)  # other rows
    assert ledger.spent() == pytest.approx(site.policy.releases.limit)


NEIGHBOURS = {
    "row": {"n_public": False},
    "entry": {"neighbours": "entry", "row_norm": None},
    "ppm-12": {"neighbours": "ppm-12", "row_norm": None},
    "site": {"neighbours": "site", "row_norm": None, "site_norm": 1.0},
}


@pytest.mark.parametrize("relation", NEIGHBOURS)
def test_blocks_side_by_side_are_for_neighbours_that_replace_a_row(relation, draws):
    """A row more or less moves all blocks after it; a change of entries or of a site may be in all of them."""
    site = opened(privacy=private(**NEIGHBOURS[relation]))
    ask(site, 0, "data.prepare", preparation())
    before = len(draws)
    with pytest.raises(PolicyError, match=rf"not with neighbours = '{relation}'; state n_public = true"):
        ask(site, 1, fold_block, block_of(0, 4), parent=0)
    assert (len(draws), charges(site)) == (before, [])


@pytest.mark.parametrize("trust", ["distributed", "central"])
def test_blocks_need_the_whole_noise_at_the_site(trust):
    site = blocks_site(trust=trust)
    with pytest.raises(PolicyError, match="set trust to local"):
        ask(site, 1, fold_block, block_of(0, 4), parent=0)


def test_one_row_moves_the_slices_of_one_block_by_no_more_than_declared(monkeypatch):
    """Before noise: all slices of all blocks, of two data sets that differ in one row."""
    seen, data = [], rows(40)
    for change in (0.0, -30.0):
        data[13] += change
        site, slices = opened(data.copy(), private(n_public=True)), []
        noising = lambda *_, kept=slices: lambda piece: kept.append(piece.copy()) or piece  # noqa: E731
        monkeypatch.setattr(type(site.policy), "noising", noising)
        ask(site, 0, "data.prepare", preparation())
        for t in range(4):
            ask(site, t + 1, fold_block, block_of(t, 4), parent=t)
        seen.append(slices)
    moved = [np.linalg.norm(one - other) for one, other in zip(*seen, strict=True)]
    site.policy.releases.bounds = site.data.bounds
    assert [size > 0 for size in moved] == [False, False, True, True, False, False, False, False]
    assert np.linalg.norm(moved) <= site.policy.releases.neighbours.gram() * (1 + 2**-10)


def test_another_preparation_in_between_costs_again():
    """The same block through other columns is another release of the same rows."""
    site = named(rows(d=3), n_public=True)
    ask(site, 0, "data.prepare", preparation(3, columns=list(NAMES), privacy={"releases": 2}))
    ask(site, 1, fold_block, block_of(1, 4), parent=0)
    ask(site, 2, "data.prepare", preparation(2, columns=list(NAMES[:2]), privacy={"releases": 2}), parent=0)
    ask(site, 3, fold_block, block_of(1, 4), parent=2)
    assert site.policy.releases.ledger.spent() == pytest.approx(site.policy.releases.limit)
    with pytest.raises(BudgetExhausted):
        ask(site, 4, fold_block, block_of(1, 4), parent=3)
