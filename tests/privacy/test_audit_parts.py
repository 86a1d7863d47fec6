"""The parts of the audit against brute force: every matrix written out, every rank computed."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from fedspan.data import Preparation, open_source
from fedspan.data.prepared import Prepared
from fedspan.data.source import SymmetricSource
from fedspan.errors import ConfigurationError
from fedspan.privacy import GaussianPrivacy
from fedspan.privacy.audit import audit
from fedspan.privacy.audit.attacks import INFORMED, Attacks
from fedspan.privacy.audit.change import least_change
from fedspan.privacy.audit.counting import count_learnt
from fedspan.privacy.audit.equations import Equation, Setup, count_features, read_setup
from fedspan.privacy.audit.external import attack_from_outside, fit_values
from fedspan.privacy.audit.informed import informed_guess
from fedspan.privacy.audit.products import Products
from fedspan.privacy.transcript import Seen, Transcript
from fedspan.solvers import FAPS, Power
from tests.privacy.runs import basis, brute_rank, faps, grams, recorded, true_grams

D = 7


def cross(z, g):
    return Equation(0, "cross", z, g @ z - z @ (z.T @ g @ z))


def core(z, g, unknown=()):
    value = z.T @ g @ z
    for i in unknown:
        value[i, i] = np.nan
    return Equation(0, "core", z, value)


def inner(z, g):
    return Equation(0, "inner", z, np.array(np.trace(z.T @ g @ z)))


def functionals(equation):
    """Each number of an equation as a matrix F: it says <F, G>."""
    z = equation.z
    if equation.kind == "inner":
        yield z @ z.T
    elif equation.kind == "core":
        yield from (np.outer(z[:, i], z[:, j]) for i, j in np.argwhere(np.isfinite(equation.value)))
    else:
        left = np.eye(len(z)) if equation.kind == "product" else np.eye(len(z)) - z @ z.T
        yield from (np.outer(a, b) for a in left for b in z.T)


def known(z, g):
    """Products G z, as an audit keeps them."""
    start = Products.none(len(g), 1e-15)
    return start if z is None else start.fold(z, g @ z)


Z, Y, W = basis(D, 2, 1), basis(D, 2, 2), basis(D, 3, 3)
CASES = {
    "cross": (None, [("cross", Z)], {}),
    "two crosses": (None, [("cross", Z), ("cross", Y)], {}),
    "cross inside products": (np.hstack([Z, Y]), [("cross", np.linalg.qr(Z + Y)[0])], {}),
    "faps": (Y, [("cross", Z), ("inner", Z), ("inner", Y), ("inner", W)], {"trace": True}),
    "eigenvectors": (Y, [("cross", W), ("eigen", W)], {}),
    "core": (Y, [("core", W)], {}),
    "core inside products": (W, [("core", np.linalg.qr(W @ np.ones((3, 2)) + W[:, :2])[0])], {}),
    "trace and inner": (None, [("inner", Z), ("inner", Z @ basis(2, 2)), ("inner", W)], {"trace": True}),
    "diagonal": (Z, [("inner", W)], {"trace": True, "diagonal": True}),
    "diagonal and cross": (Z, [("cross", Y), ("inner", Y)], {"trace": True, "diagonal": True}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_count_is_the_rank_of_all_equations(case):
    block, told, facts = case
    g = grams(d=D)["a"]
    make = {"cross": cross, "core": core, "inner": inner, "eigen": lambda z, g: core(z, g, range(z.shape[1]))}
    others = [make[kind](z, g) for kind, z in told]
    setup = Setup(
        D, trace=np.trace(g) if "trace" in facts else None, diagonal=np.diag(g) if "diagonal" in facts else None
    )
    rows = [f for e in others for f in functionals(e)]
    rows += [] if block is None else list(functionals(Equation(0, "product", block, g @ block)))
    rows += [np.eye(D)] if setup.trace is not None else []
    rows += list(np.eye(D)[:, :, None] * np.eye(D)[:, None, :]) if setup.diagonal is not None else []
    assert count_learnt(setup, known(block, g), others) == brute_rank(D, rows)


def test_what_only_nearly_holds_does_not_count():
    g = grams(d=D)["a"]
    near = Equation(0, "cross", Z, cross(Z, g).value, deviation=1e-6, beta=1.0)
    assert count_learnt(Setup(D), known(None, g), [near]) == 0


@pytest.mark.parametrize("keep_trace", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda g: [cross(Z, g)],
        lambda g: [cross(Z, g), cross(Y, g), inner(Z, g), inner(W, g)],
        lambda g: [core(W, g), inner(Z, g)],
        lambda g: [cross(W, g), core(W, g, range(3))],
    ],
)
def test_the_least_change_is_the_least_of_all(make, keep_trace):
    """Against the minimum-norm solution of the equations written out, on matrices that vanish on a fixed block."""
    g, guess = grams(d=D)["a"], grams(d=D)["b"]
    fixed = basis(D, 2, 9)
    away = np.eye(D) - fixed @ fixed.T
    target = guess + away @ (g - guess) @ away
    target -= away * (np.trace(target - guess) / (D - 2)) if keep_trace else 0.0
    equations = make(target)
    change = least_change(guess, equations, fixed, keep_trace=keep_trace)
    rows = [f for e in equations for f in functionals(e)] + ([np.eye(D)] if keep_trace else [])
    rows = [away @ (f + f.T) @ away / 2 for f in rows]
    matrix = np.array([f.ravel() for f in rows])
    least = (np.linalg.pinv(matrix, rcond=1e-10) @ (matrix @ (target - guess).ravel())).reshape(D, D)
    np.testing.assert_allclose(change, least, atol=1e-6 * np.linalg.norm(g))


def test_the_symmetric_guess_uses_what_the_published_one_leaves_out():
    g = grams(d=D)["a"]
    made = known(Z, g)
    away = np.eye(D) - Z @ Z.T
    np.testing.assert_allclose(made.symmetric() - made.published(), Z @ (g @ Z).T @ away, atol=1e-12)
    np.testing.assert_allclose(made.symmetric() @ Z, g @ Z, atol=1e-12)
    np.testing.assert_allclose(made.nystroem() @ Z, g @ Z, atol=1e-12)
    assert np.linalg.eigvalsh(g - made.nystroem()).min() > -1e-12


def test_a_direction_known_worse_than_it_is_long_does_not_enter_nystroems_block():
    """Its image is noise, which the root of its tiny own number would blow up a million times."""
    g = np.diag([4.0, 1e-12, 2.0, 1.0])
    noise = np.array([0.0, 0.0, 1e-3, -1e-3])
    images = g[:, :2] + np.outer(noise, [0, 1])
    made = Products(np.eye(4)[:, :2], images, np.array([1e-15, 1e-3]), 1e-15, norm=4.0)
    assert made.remainder().shape[1] <= 1
    np.testing.assert_allclose(made.nystroem(), made.symmetric(), atol=1e-12)


@pytest.mark.parametrize("block", [None, Z])
def test_the_trace_that_is_left_over_is_spread_over_what_is_free(block):
    g = grams(d=D)["a"]
    made = known(block, g)
    guess = informed_guess(Setup(D, trace=float(np.trace(g))), made, [])
    assert np.trace(guess) == pytest.approx(np.trace(g))
    away = np.eye(D) - made.basis @ made.basis.T
    left = np.trace(g - made.nystroem()) / (D - made.basis.shape[1])
    assert left > 0.01 * np.trace(g) / D
    np.testing.assert_allclose(guess - made.nystroem(), left * away, atol=1e-10)


# ---- the adversary outside ---------------------------------------------------------------------------------------


def low_rank(d=20, k=3, seed=0):
    v = basis(d, k, seed)
    return v, (v * np.array([5.0, 3.0, 2.0])[:k]) @ v.T


def test_an_outsider_fills_in_a_matrix_of_low_rank_from_as_many_entries_as_components():
    v, m = low_rank()
    found = attack_from_outside(v, m, 3, seed=0)
    assert (found.components, found.known, found.entries) == (3, 3, 210)
    assert found.error < 1e-9
    assert attack_from_outside(v, m, 2, seed=0).error > 0.1
    assert attack_from_outside(v, m, 1, seed=0).error > 0.1
    assert attack_from_outside(v, m, None, seed=0).known == 12
    assert "3 published components and 3 known entries" in found.verdict


def test_an_outsider_sees_the_known_entries_only():
    v, m = low_rank()
    rows, columns = np.array([0, 1, 4]), np.array([2, 1, 9])
    np.testing.assert_allclose(fit_values(v, rows, columns, m[rows, columns]), [5, 3, 2], rtol=1e-9)
    assert fit_values(v, rows, columns, -m[rows, columns]).min() >= 0


@pytest.mark.parametrize("known_entries", [1, 4, 9])
def test_the_outsiders_error_is_that_of_the_matrix_less_the_entries_it_knows(known_entries):
    v, m = low_rank(d=4, k=1)
    m = m + np.diag([1.0, 2.0, 3.0, 4.0])
    drawn = np.random.default_rng([0, 4, known_entries]).choice(10, known_entries, replace=False)
    rows, columns = (index[drawn] for index in np.triu_indices(4))
    left = np.ones((4, 4), dtype=bool)
    left[rows, columns] = left[columns, rows] = False
    guess = fit_values(v, rows, columns, m[rows, columns]) * v @ v.T
    error = np.linalg.norm((guess - m)[left]) / np.linalg.norm(m[left])
    assert attack_from_outside(v, m, known_entries, seed=0).error == pytest.approx(error)


def test_entries_are_drawn_by_the_seed():
    v, m = low_rank()
    m = m + np.diag(np.arange(20.0))
    one, again, other = (attack_from_outside(v, m, 5, seed=seed).error for seed in (1, 1, 2))
    assert one == again != other


@pytest.mark.parametrize("known_entries", [0, -1, 210])
def test_too_few_or_too_many_known_entries_are_refused(known_entries):
    v, m = low_rank()
    with pytest.raises(ConfigurationError, match="between 1 and 209 for 20 features"):
        attack_from_outside(v, m, known_entries, seed=0)


# ---- what set-up tells ----------------------------------------------------------------------------------------------


def with_gaps(x, seed=0):
    x = x.copy()
    x[np.random.default_rng(seed).random(x.shape) < 0.2] = np.nan
    return x


RNG = np.random.default_rng(8)
ROWS = {name: RNG.standard_normal((n, 5)) * [1, 2, 3, 1, 2] + [0, 1, 2, 5, 0] for name, n in (("a", 9), ("b", 20))}
COUNTS = {name: scipy.sparse.csr_array(RNG.poisson(0.7, (n, 5)).astype(float)) for name, n in (("a", 9), ("b", 20))}
WEIGHED = {name: open_source(x, weights=np.arange(1.0, len(x) + 1), site_weight=0.5) for name, x in ROWS.items()}


@pytest.mark.parametrize(
    ("sites", "preparation"),
    [
        (ROWS, Preparation()),
        (ROWS, Preparation(center=False)),
        (ROWS, Preparation(scale=True)),
        (ROWS, Preparation(center=False, scale=True)),
        ({name: with_gaps(x) for name, x in ROWS.items()}, Preparation(missing="mean", scale=True)),
        ({name: with_gaps(x) for name, x in ROWS.items()}, Preparation(missing="mean", center=False, scale=True)),
        (WEIGHED, Preparation(scale=True)),
        (WEIGHED, Preparation(scale=True, center=False)),
        (COUNTS, Preparation(center=False, normalise="degree")),
    ],
)
def test_facts_of_the_gram_matrix_are_read_from_set_up(tmp_path, sites, preparation):
    study = {"n_components": 2, "solver": Power(rounds=1, tol=0), "preparation": preparation}
    transcript, _ = recorded(tmp_path, sites, **study)
    for name, gram in true_grams(transcript, sites).items():
        setup = read_setup(transcript, name)
        assert setup.trace == pytest.approx(np.trace(gram))
        if preparation.scale:
            np.testing.assert_allclose(setup.diagonal, np.diag(gram))
        else:
            assert setup.diagonal is None
        rest = np.linalg.eigvalsh(gram - setup.mean_part @ setup.mean_part.T)
        assert rest.min() > -1e-10 * np.trace(gram)  # the mean row's share is part of G ...
        assert np.linalg.norm(setup.mean_part) > 0
        if preparation.normalise is None:  # ... all of it: the mean direction's own number
            prepared = next(seen.message for seen in transcript.rounds if seen.step == "data.prepare")
            assert_sums(sites[name], prepared, setup)


def test_degrees_alone_show_how_many_columns_there_are(tmp_path):
    privacy = GaussianPrivacy(1.0, 1e-6, row_norm=1.0, raw_norm=3.0)
    preparation = Preparation(center=False, normalise="degree")
    transcript, _ = recorded(tmp_path, COUNTS, n_components=2, solver="covariance", preparation=preparation,
                             privacy=privacy)  # fmt: skip
    asked = [seen for seen in transcript.rounds if seen.step == "data.moments"]
    assert count_features(Transcript(tuple(asked))) == next(iter(COUNTS.values())).shape[1]
    for name in COUNTS:
        assert read_setup(transcript, name).sums is None


def assert_sums(site, prepared, setup):
    source = site if hasattr(site, "gram_times") else open_source(site)
    data = Prepared(source, prepared)
    weights = np.concatenate([np.ones(b.shape[0]) if w is None else w for b, w in data.rows()])
    rows = np.vstack(list(data.blocks()))  # times the roots of their weights
    np.testing.assert_allclose(setup.sums, np.sqrt(weights) @ rows, atol=1e-9)
    assert setup.mass == pytest.approx(weights.sum())


def test_shares_of_a_symmetric_matrix_are_not_taken_for_positive(tmp_path):
    rng = np.random.default_rng(0)
    shares = {}
    for name in "ab":
        half = rng.standard_normal((8, 8))
        shares[name] = SymmetricSource(half + half.T, None)
    study = {"n_components": 2, "solver": Power(rounds=4, tol=0), "preparation": Preparation(center=False)}
    transcript, _ = recorded(tmp_path, shares, **study)
    setup = read_setup(transcript, "a")
    assert not setup.positive
    assert setup.mean_part.shape == (8, 0)
    truth = true_grams(transcript, shares)
    assert audit(transcript, truth).sites["a"].curves["informed"].last < 1e-9


# ---- the solver itself ---------------------------------------------------------------------------------------------


def test_a_recorded_run_of_faps_is_read_in_the_sites_own_units(tmp_path):
    rng = np.random.default_rng(4)
    mix = rng.standard_normal((15, 15)) * 0.8 ** np.arange(15)[:, None]
    sites = {name: 30 * rng.standard_normal((40, 15)) @ mix for name in "abc"}
    transcript, _ = recorded(tmp_path, sites, n_components=3, solver=FAPS(rounds=20, tol=0))
    truth = true_grams(transcript, sites)
    first = next(seen for seen in transcript.rounds if seen.step == "faps.consensus")
    assert first.message["unit"] != 1
    z = first.message["z"]
    for name, g in truth.items():
        attacks = Attacks(transcript, name)
        list(attacks.guesses())
        block, objective = attacks.others[:2]
        assert block.exact
        np.testing.assert_allclose(block.value, g @ z - z @ (z.T @ g @ z), atol=1e-12 * np.linalg.norm(g))
        assert float(objective.value) == pytest.approx(np.trace(z.T @ g @ z))
        assert block.beta == pytest.approx(0.15 * np.linalg.eigvalsh(g)[-1], rel=1e-3)
    found = audit(transcript, truth)
    for site in found.sites.values():
        assert site.norm_error < 1e-3
        assert site.curves["informed"].least < 0.5 * min(
            curve.least for attack, curve in site.curves.items() if attack != "informed"
        )
        assert "FAPS is not private" in site.verdict


def test_a_site_made_to_begin_again_gives_its_block_away_each_round():
    """Whoever asks for X_i = Z in every round needs no luck: the block is exact each time."""
    truth = grams(d=16, rows=60)
    blocks = [faps(truth, basis(16, 3, seed), 1, last=False)[0].rounds[0] for seed in range(8)]
    asked = Transcript(tuple(Seen(i, s.step, False, s.message, "sum", s.replies) for i, s in enumerate(blocks)))
    site = audit(asked, truth).sites["a"]
    assert site.learnt_numbers == site.numbers == 136
    assert site.curves["informed"].last < 1e-3


def crosses(transcript, site="a"):
    attacks = Attacks(transcript, site)
    list(attacks.guesses())
    return [e for e in attacks.others if e.kind == "cross"], attacks


def test_with_one_component_only_the_first_block_is_known_to_be_near():
    """Z'Y_i is 1 x 1, so always a multiple of the identity: later rounds say nothing of how near X_i is."""
    (first, *later), attacks = crosses(faps(grams(), basis(12, 1), 6, last=False)[0])
    assert first.exact
    assert {e.deviation for e in later} == {np.inf}
    assert not any("percent" in words for words in attacks.besides())


@pytest.fixture
def alone(tmp_path):
    """A single site, where W_i vanishes: Z'Y_i comes to beta_i I long before the block is known."""
    rng = np.random.default_rng(0)
    sites = {"a": rng.standard_normal((60, 10)) @ (rng.standard_normal((10, 10)) * 0.8 ** np.arange(10)[:, None])}
    transcript, _ = recorded(tmp_path, sites, n_components=3, solver=FAPS())
    return transcript, true_grams(transcript, sites)


def test_a_later_block_of_faps_is_never_exact(alone):
    transcript, truth = alone
    (first, *later), _ = crosses(transcript)
    assert first.exact
    assert first.deviation < 1e-12
    last = later[-1]
    assert np.linalg.norm(last.value - cross(last.z, truth["a"]).value) > 1e-7 * last.beta
    assert not any(e.exact for e in later)
    site = audit(transcript).sites["a"]
    assert site.learnt_numbers < site.numbers
    assert "all 55 numbers" not in site.verdict
    assert "(I - ZZ')A_i'A_i Z for 1 of the bases Z" in site.learnt


def test_what_is_counted_of_faps_is_the_rank_of_what_is_exact(alone):
    """Of rounds that differ well, and the last: the objectives of late ones are dependent but for rounding."""
    rounds = alone[0].rounds
    attacks = crosses(Transcript((*rounds[:8], rounds[-1])))[1]
    exact = [Equation(0, "product", attacks.products.basis, attacks.products.images)]
    exact += [e for e in attacks.others if e.exact]
    rows = [f for e in exact for f in functionals(e)] + [np.eye(10)]
    assert attacks.count_learnt() == brute_rank(10, rows)


def test_late_blocks_of_a_single_site_do_not_make_the_guess_worse_than_none(alone):
    transcript, truth = alone
    guesses = [guess.form() for guess in Attacks(transcript, "a").guesses() if guess.attack == INFORMED]
    assert max(np.linalg.norm(guess - truth["a"]) for guess in guesses) < np.linalg.norm(truth["a"])
