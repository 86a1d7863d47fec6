"""The audit: what the attacks find, what they may see, and what the verdicts say."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from fedspan import Cohort
from fedspan.data import Preparation
from fedspan.errors import ConfigurationError
from fedspan.privacy.audit import ATTACKS, audit
from fedspan.privacy.audit.attacks import INFORMED, NYSTROEM, PUBLISHED, SYMMETRIC, Attacks
from fedspan.privacy.transcript import Seen, Transcript
from fedspan.solvers import FAPS, UDA, WDA, BlockKrylov, Covariance, FedPower, Power, RandomizedSVD
from tests.privacy.runs import basis, faps, grams, power_blocks, products, recorded, true_grams

D = 12


def errors(transcript, truth, site="a"):
    return {attack: curve.errors for attack, curve in audit(transcript, truth).sites[site].curves.items()}


# ---- the curious coordinator (Prop. 2, FedPower's Example 1) ------------------------------------------------------


def test_products_of_a_whole_basis_reconstruct_the_gram_matrix():
    truth = grams(decay=1.0)
    found = audit(products(truth, [basis(D, 4, seed) for seed in range(3)]), truth)
    for site in found.sites.values():
        assert max(curve.last for curve in site.curves.values()) < 1e-8
        assert site.curves[PUBLISHED].errors[1] > 0.1
        assert site.learnt_numbers == site.numbers == D * (D + 1) // 2
        assert "all 78 numbers are learnt" in site.verdict


def test_a_power_run_is_reconstructed(tmp_path):
    rng = np.random.default_rng(0)
    sites = {name: rng.standard_normal((60, D)) for name in "abc"}
    transcript, _ = recorded(tmp_path, sites, n_components=4, solver=Power(rounds=9, tol=0))
    truth = true_grams(transcript, sites)
    found = audit(transcript, truth).sites["a"]
    assert max(curve.least for curve in found.curves.values()) < 1e-8
    assert found.curves[SYMMETRIC].least_round == 5  # 3 set-up rounds, then 3 of rank 4


def test_of_what_was_never_asked_nothing_is_known():
    """The errors are the norms of exactly the blocks that no product touched."""
    truth = grams(decay=1.0)
    g, q = truth["a"], np.linalg.qr(np.hstack([basis(D, 3, 1), basis(D, 3, 2)]))[0]
    found = errors(products(truth, [basis(D, 3, 1), basis(D, 3, 2)]), truth)
    away, size = np.eye(D) - q @ q.T, np.linalg.norm(g)
    hidden, cross, seen = away @ g @ away, away @ g @ q, q.T @ g @ q
    least = cross @ np.linalg.inv(seen) @ cross.T
    assert found[PUBLISHED][-1] == pytest.approx(np.linalg.norm(g @ away) / size)
    assert found[SYMMETRIC][-1] == pytest.approx(np.linalg.norm(hidden) / size)
    assert found[NYSTROEM][-1] == pytest.approx(np.linalg.norm(hidden - least) / size)
    assert 1 > found[PUBLISHED][-1] > found[SYMMETRIC][-1] > found[NYSTROEM][-1] > 0.1
    assert audit(products(truth, [basis(D, 3, 1), basis(D, 3, 2)])).sites["a"].learnt_numbers == 6 * (2 * D - 5) // 2


def test_a_site_with_fewer_rows_than_the_block_is_wide_is_known_after_one_round():
    truth = grams(rows=3)
    found = errors(products(truth, [basis(D, 4)]), truth)
    assert found[NYSTROEM][0] < 1e-12
    assert found[SYMMETRIC][0] > 0.1


def test_a_nearly_converged_run_does_not_blow_up():
    """The blocks of a converging power iteration are dependent to the last bit; their inverse would be noise."""
    truth = grams(d=20, decay=0.6)
    blocks = list(power_blocks(truth, basis(20, 3), 150))
    assert np.linalg.cond(np.hstack(blocks)) > 1e12
    for curve in errors(products(truth, blocks), truth).values():
        assert all(after < 1.15 * before + 1e-9 for before, after in pairwise(curve))
        assert curve[-1] < 0.02


def test_a_later_and_better_look_at_a_direction_counts():
    """Z, then Z with a little of a new direction in it, then that direction by itself."""
    truth = grams(decay=1.0)
    z, new = basis(D, 2), basis(D, 2, seed=5)
    new -= z @ (z.T @ new)
    blocks = [z, z + 1e-15 * new, z + 1e-6 * new, new]
    after = errors(products(truth, blocks), truth)[PUBLISHED]
    whole = errors(products(truth, [np.linalg.qr(np.hstack([z, new]))[0]]), truth)[PUBLISHED][0]
    assert after[1] == pytest.approx(after[0])
    assert after[2:] == pytest.approx([whole, whole], rel=1e-6)


# ---- what the attacks may see ------------------------------------------------------------------------------------


def test_attacks_see_the_releases_and_nothing_else():
    truth = grams()
    transcript = products(truth, [basis(D, 3, 1), basis(D, 3, 2)])
    before = [guess.form() for guess in Attacks(transcript, "a").guesses()]
    altered = dict(transcript.rounds[1].replies)
    altered["a"] = altered["a"] + 1e-3
    other = Transcript((transcript.rounds[0], replace(transcript.rounds[1], replies=altered)))
    after = [guess.form() for guess in Attacks(other, "a").guesses()]
    assert all(np.array_equal(x, y) for x, y in zip(before[:4], after[:4], strict=True))
    assert not any(np.allclose(x, y) for x, y in zip(before[4:], after[4:], strict=True))
    same = [guess.form() for guess in Attacks(other, "b").guesses()]
    assert all(np.array_equal(x, y.form()) for x, y in zip(same, Attacks(transcript, "b").guesses(), strict=True))


def test_the_truth_serves_only_to_score():
    truth = grams()
    transcript = products(truth, [basis(D, 3)])
    guesses = {guess.attack: guess.form() for guess in Attacks(transcript, "a").guesses()}
    assert set(guesses) == set(ATTACKS) - {"simulation"}  # these products are linear: nothing is left to simulate
    for attack, guess in guesses.items():
        scored = audit(transcript, {**truth, "a": guess}).sites["a"].curves
        assert scored[attack].last < 1e-14
        size = np.linalg.norm(truth["a"])
        assert audit(transcript, truth).sites["a"].curves[attack].last == pytest.approx(
            np.linalg.norm(guess - truth["a"]) / size
        )


def test_without_truth_the_audit_says_what_follows():
    found = audit(products(grams(), [basis(D, 3)]), result=basis(D, 2))
    site = found.sites["a"]
    assert (site.curves, site.strongest, found.external, found.table()) == ({}, None, None, [])
    told = "at least 33 of 78 numbers of A_i'A_i follow exactly from A_i'A_i Z for 3 directions Z"
    assert site.verdict == f"a: {told}; guesses of the rest were not scored"


# ---- FAPS: the informed attacker ---------------------------------------------------------------------------------


def test_the_first_round_of_faps_gives_the_penalty_and_a_block_away():
    truth = grams(d=30)
    z = basis(30, 4)
    transcript, betas = faps(truth, z, 1, last=False)
    for name, g in truth.items():
        attacks = Attacks(transcript, name)
        list(attacks.guesses())
        cross, inner = attacks.others
        assert cross.exact
        assert cross.beta == pytest.approx(betas[name], rel=1e-12)
        np.testing.assert_allclose(cross.value, g @ z - z @ (z.T @ g @ z), atol=1e-12 * np.linalg.norm(g))
        assert float(inner.value) == pytest.approx(np.trace(z.T @ g @ z), rel=1e-12)
        assert attacks.count_learnt() == 4 * 26 + 1
        guess = [made.form() for made in attacks.guesses() if made.attack == INFORMED][-1]
        np.testing.assert_allclose(guess @ z - z @ (z.T @ guess @ z), cross.value, atol=1e-8 * np.linalg.norm(g))
        assert np.trace(z.T @ guess @ z) == pytest.approx(float(inner.value), rel=1e-8)


def test_of_faps_the_naive_attack_learns_nothing_and_the_informed_one_much():
    truth = grams(d=30, rows=100, decay=0.85)
    transcript, betas = faps(truth, basis(30, 4), 25)
    found = audit(transcript, truth)
    for name, site in found.sites.items():
        naive = [error for attack in (PUBLISHED, SYMMETRIC, NYSTROEM) for error in site.curves[attack].errors]
        assert min(naive) > 0.4
        assert site.curves[INFORMED].least < 0.25
        assert site.strongest[0] == INFORMED
        assert site.verdict.endswith("FAPS is not private: it needs noise or masks")
        assert "(I - ZZ')A_i'A_i Z for 1 of the bases Z" in site.verdict
        assert len(site.penalties) == 25
        assert site.penalties[0].beta == pytest.approx(betas[name])
        assert site.penalties[-1].beta == pytest.approx(betas[name], rel=0.01)
        assert site.penalties[0].deviation < 1e-12 < site.penalties[-1].deviation < 1e-2
        # one basis but for its core, one whole, a number for each round
        assert site.learnt_numbers > 4 * 26 + 4 * (60 - 3) // 2
        assert site.learnt_numbers < site.numbers


def test_faps_is_never_called_private_even_when_nothing_was_scored():
    transcript, _ = faps(grams(), basis(D, 2), 3)
    assert all("FAPS is not private" in line for line in audit(transcript).verdicts)


# ---- every solver, as recorded -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sites():
    rng = np.random.default_rng(3)
    mix = rng.standard_normal((D, D)) * 0.8 ** np.arange(D)[:, None]
    return {
        name: rng.standard_normal((n, D)) @ mix + rng.standard_normal(D)
        for name, n in zip("abc", (30, 50, 45), strict=True)
    }


@pytest.mark.parametrize(
    ("solver", "most", "learnt"),
    [
        (BlockKrylov(oversampling=2), 1e-9, 78),
        (Covariance(), 1e-14, 78),
        (FedPower(rounds=6, local_steps=1, tol=0), 1e-5, 78),
        (FedPower(rounds=9, local_steps=4, tol=0), 0.15, 34),
        (FedPower(rounds=5, local_steps=3, tol=0, reference="baseline"), 0.15, 50),
        (UDA(), 0.2, 58),
        (WDA(), 0.2, 58),
        (RandomizedSVD(), 0.1, 69),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, float | int) else "",
)
def test_every_solver_is_read(tmp_path, sites, solver, most, learnt):
    transcript, result = recorded(tmp_path, sites, n_components=3, solver=solver)
    truth = true_grams(transcript, sites)
    found = audit(transcript, truth, result.estimate.basis)
    for site in found.sites.values():
        assert site.unread == []
        assert site.strongest[1].least <= most
        assert site.curves[INFORMED].least <= 1.3 * min(curve.least for curve in site.curves.values()) + 1e-6
        assert site.learnt_numbers >= learnt
        assert site.curves[INFORMED].rounds[0] == 2  # from set-up alone
        assert "FAPS" not in site.verdict
    assert 0 < found.external.error < 1


def test_sampled_by_size_the_products_are_per_row(tmp_path, sites):
    cohort = Cohort(fraction=0.7, sample="by-size-with-replacement")
    solver = FedPower(rounds=8, local_steps=1, tol=0)
    transcript, _ = recorded(tmp_path, sites, n_components=3, solver=solver, cohort=cohort)
    truth = true_grams(transcript, sites)
    found = audit(transcript, truth)
    assert min(min(curve.least for curve in site.curves.values()) for site in found.sites.values()) < 1e-5


def test_local_steps_give_a_sites_own_subspace_away(tmp_path, sites):
    """The polar factor of one release is nearly Z_i, and so the release nearly a product: no second round is needed."""
    transcript, _ = recorded(tmp_path, sites, n_components=3, solver=FedPower(rounds=6, local_steps=4, tol=0))
    truth = true_grams(transcript, sites)
    for name, site in audit(transcript, truth).sites.items():
        setup_only, first = site.curves[INFORMED].errors[:2]
        assert first < 0.4 < 0.6 < setup_only
        assert site.curves[INFORMED].least < 0.6 * min(site.curves[attack].least for attack in ATTACKS[:3])
        attacks = Attacks(transcript, name)
        for guess in attacks.guesses():
            if guess.round == 3 and guess.attack == INFORMED:
                near = attacks.products
                wrong = np.linalg.norm(truth[name] @ near.basis - near.images, axis=0) / near.norm
                assert near.basis.shape[1] == 3
                assert np.all(wrong < 3 * near.errors)
                assert np.all(near.errors < 0.03)
        assert site.besides[0] == "its own leading subspace, nearly, from each of 5 releases"
        assert site.learnt_numbers == 34  # the Ritz round and the trace; what is only near does not count


def test_what_set_up_tells_helps(tmp_path, sites):
    """Scaling makes every site release its diagonal; with it, with means and trace, fewer rounds reveal more."""
    study = {"n_components": 2, "solver": Power(rounds=2, tol=0), "preparation": Preparation(scale=True)}
    transcript, _ = recorded(tmp_path, sites, **study)
    truth = true_grams(transcript, sites)
    site = audit(transcript, truth).sites["a"]
    assert site.curves[INFORMED].last < 0.9 * site.curves[NYSTROEM].last
    guess = [guess.form() for guess in Attacks(transcript, "a").guesses() if guess.attack == INFORMED][-1]
    np.testing.assert_allclose(np.diag(guess), np.diag(truth["a"]), rtol=1e-6)
    assert "the diagonal" in site.learnt
    assert site.learnt_numbers == 4 * (2 * D - 3) // 2 + D


def test_a_small_site_is_known_to_be_known(tmp_path):
    """The trace tells the coordinator that nothing is left: no truth is needed to be sure."""
    rng = np.random.default_rng(0)
    sites = {"big": rng.standard_normal((50, D)), "small": rng.standard_normal((3, D))}
    transcript, _ = recorded(tmp_path, sites, n_components=4, solver=Power(rounds=1, tol=0))
    found = audit(transcript)
    assert found.sites["small"].learnt_numbers == 78
    assert "nothing left over" in found.sites["small"].verdict
    assert found.sites["big"].learnt_numbers == 4 * (2 * D - 3) // 2 + 1
    assert audit(transcript, true_grams(transcript, sites)).sites["small"].curves[INFORMED].last < 1e-10


@pytest.mark.parametrize("solver", [FAPS(rounds=8, tol=0), Power(rounds=3, tol=0), UDA(), FedPower(rounds=4, tol=0)])
def test_constant_sites_and_sites_of_one_row_are_known(tmp_path, solver):
    rng = np.random.default_rng(0)
    flat = {name: rng.standard_normal((40, 8)) for name in "ab"}
    flat["constant"] = np.zeros((5, 8))
    flat["one"] = rng.standard_normal((1, 8))
    study = {"n_components": 2, "solver": solver, "preparation": Preparation(center=False)}
    transcript, _ = recorded(tmp_path, flat, **study)
    found = audit(transcript, true_grams(transcript, flat))
    assert found.sites["constant"].curves[INFORMED].last == 0
    assert found.sites["constant"].learnt_numbers == 36
    assert found.sites["one"].curves[INFORMED].rounds[0] == found.sites["one"].curves[INFORMED].least_round  # its sums
    assert found.sites["one"].learnt_numbers == 36


def test_attacks_can_be_made_twice():
    transcript, _ = faps(grams(), basis(D, 2), 3)
    attacks = Attacks(transcript, "a")
    first, second = ([guess.form() for guess in attacks.guesses()] for _ in range(2))
    assert all(np.array_equal(x, y) for x, y in zip(first, second, strict=True))
    assert len(attacks.others) == 6


def test_float32_sites_lose_precision_not_privacy(tmp_path, sites):
    single = {name: x.astype(np.float32) for name, x in sites.items()}
    transcript, _ = recorded(tmp_path, single, n_components=3, solver=BlockKrylov(oversampling=2))
    site = audit(transcript, true_grams(transcript, single)).sites["a"]
    assert 1e-9 < site.curves[SYMMETRIC].least < 1e-5


# ---- what comes out, and what is refused -------------------------------------------------------------------------


def test_an_audit_is_plain_data():
    truth = grams()
    transcript, _ = faps(truth, basis(D, 3), 4)
    found = audit(transcript, truth, basis(D, 2), known=5, seed=3)
    data = json.loads(json.dumps(found.to_dict()))
    assert data["features"] == D
    assert data["external"]["known"] == 5
    assert data["sites"]["a"]["verdict"] == found.sites["a"].verdict
    assert data["sites"]["a"]["curves"][INFORMED]["rounds"] == [0, 1, 2, 3, 4]
    assert data["sites"]["a"]["penalties"][0].keys() == {"round", "beta", "deviation"}
    table = found.table()
    assert [(row["site"], row["attack"]) for row in table] == [(s, a) for s in "abc" for a in ATTACKS[:4]]
    assert all(row["least"] <= row["last"] for row in table)
    assert len(found.verdicts) == 4


def test_a_step_nobody_knows_is_said_so():
    transcript = products(grams(), [basis(D, 2)])
    odd = Seen(1, "odd.step", False, None, "sum", dict.fromkeys("abc", 1.0))
    site = audit(Transcript((*transcript.rounds, odd))).sites["a"]
    assert site.unread == ["odd.step"]
    assert site.verdict.endswith("NOT audited: releases of odd.step")


def test_a_site_is_named_once_its_turn_comes():
    names = []
    audit(products(grams(), [basis(D, 2)]), on_site=names.append)
    assert names == ["a", "b", "c"]


def test_long_runs_of_faps_are_attacked_at_ever_wider_steps():
    transcript, _ = faps(grams(), basis(D, 2), 60)
    rounds = audit(transcript, grams()).sites["a"].curves[INFORMED].rounds
    assert rounds[:9] == list(range(9))
    assert rounds[-1] == 60
    assert len(rounds) < 25


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda t: {k: v for k, v in t.items() if k != "b"}, "no Gram matrix for site 'b'"),
        (lambda t: {**t, "paris": t["a"]}, "names site 'paris', which released nothing"),
        (lambda t: {**t, "a": np.eye(3)}, "site 'a': its Gram matrix is 12 x 12"),
    ],
)
def test_truth_that_does_not_fit_is_refused(change, text):
    truth = grams()
    with pytest.raises(ConfigurationError, match=text):
        audit(products(truth, [basis(D, 2)]), change(truth))


def test_a_result_that_does_not_fit_is_refused():
    truth = grams()
    with pytest.raises(ConfigurationError, match="12 rows by k columns"):
        audit(products(truth, [basis(D, 2)]), truth, basis(D, 2).T)


def test_a_transcript_without_releases_is_refused():
    with pytest.raises(ConfigurationError, match="no release that an attack could use"):
        audit(Transcript(()))


def test_too_many_features_are_refused():
    z = np.ones((9000, 1))
    with pytest.raises(ConfigurationError, match="goes up to 8,192 features"):
        audit(Transcript((Seen(0, "gram.multiply", False, z, "sum", {"a": z}),)))
