"""The audit of secure sums: the sums tell of the whole, masked replies tell nothing, and what colluders change."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from fedspan import Cohort
from fedspan.data import open_source
from fedspan.errors import ConfigurationError
from fedspan.linalg import orth
from fedspan.privacy.audit import audit
from fedspan.privacy.audit.equations import Setup
from fedspan.privacy.audit.joint import Joint, SumOfProducts, sums_of_products
from fedspan.privacy.audit.sums import audit_sums
from fedspan.privacy.audit.views import masked_as_numbers, replayed, sum_of, without
from fedspan.privacy.gaussian import GaussianPrivacy
from fedspan.privacy.transcript import Transcript
from fedspan.secure import SecureSums
from fedspan.sites import open_sites
from fedspan.solvers import FAPS, BlockKrylov, Covariance, FedPower, Power
from fedspan.solvers.covariance import from_triangle
from tests.privacy.runs import basis, grams, recorded, true_grams

D = 9  # beyond what simulations are tried for
NAMES = ("a", "b", "c", "d")


def rows(names=NAMES, n=30, d=D):
    """Sites that share their leading directions, of about one size."""
    rng = np.random.default_rng(3)
    turn = orth(rng.standard_normal((d, d)))
    return {name: rng.standard_normal((n, d)) * 0.7 ** np.arange(d) @ turn for name in names}


def masked_run(folder, solver, *, sites=None, **study):
    """A run of secure sums: its transcript, the truth, and the same rounds without masks."""
    sites = rows() if sites is None else sites
    transcript, result = recorded(folder, sites, n_components=2, solver=solver, secure=SecureSums(), **study)
    sources = {name: open_source(x) for name, x in sites.items()}
    return transcript, true_grams(transcript, sites), replayed(transcript, open_sites(sources, seed=0)), result


# ---- the views -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", [Covariance(), Power(rounds=6, tol=0), FedPower(rounds=3), FAPS(rounds=4)], ids=str)
def test_the_same_rounds_without_masks_add_up_to_the_sums(solver, tmp_path):
    transcript, _, plain, _ = masked_run(tmp_path, solver)
    assert len(transcript.sums) == len(transcript.rounds) - 1  # all but data.describe
    for seen, other in zip(transcript.rounds, plain.rounds, strict=True):
        if seen.summed is None:
            assert other.replies["a"]["rows"] == 30  # which masks withheld
            continue
        assert seen.replies == {}
        assert sorted(other.replies) == seen.summed == list(NAMES)
        for part, value in as_parts(seen.total).items():
            together = sum(as_parts(reply)[part] for reply in other.replies.values())
            np.testing.assert_allclose(value, together, rtol=1e-9, atol=1e-12 * max(1.0, float(np.max(abs(together)))))


def only(transcript, names):
    """The replies of these sites."""
    return Transcript(
        tuple(replace(s, replies={n: r for n, r in s.replies.items() if n in names}) for s in transcript.rounds)
    )


def as_parts(value):
    return value if isinstance(value, dict) else {"": value}


def test_taking_known_replies_off_leaves_the_sum_of_the_others(tmp_path):
    transcript, truth, plain, _ = masked_run(tmp_path, Covariance())
    left = without(transcript, only(plain, "ac"))
    assert [seen.summed for seen in left.sums] == [["b", "d"]] * len(left.sums)
    (seen,) = [s for s in sum_of(left, ["b", "d"]).rounds if s.step == "covariance.gram"]
    pooled = truth["b"] + truth["d"]
    np.testing.assert_allclose(from_triangle(seen.replies["sum"], D), pooled, atol=1e-9 * np.linalg.norm(pooled))


def test_masked_replies_as_numbers_are_as_large_as_the_scale_allows_and_new_each_time(tmp_path):
    transcript, truth, _, _ = masked_run(tmp_path, Power(rounds=3, tol=0))
    view = masked_as_numbers(transcript, "a")
    assert [seen.step for seen in view.rounds] == ["gram.multiply"] * 3
    size = max(float(np.max(abs(seen.replies["a"]))) for seen in view.rounds)
    assert size > 0.5 * np.trace(sum(truth.values()))
    other = masked_as_numbers(transcript, "a", np.random.default_rng(0))
    assert [s.replies["a"].shape for s in other.rounds] == [s.replies["a"].shape for s in view.rounds]
    assert not np.allclose(other.rounds[0].replies["a"], view.rounds[0].replies["a"])


def test_noised_sums_are_exactly_the_sums_of_the_sites_noised_replies(tmp_path):
    """So what holds for sums of replies, as the empirical epsilon is measured on, holds for secure ones."""
    privacy = GaussianPrivacy(1.0, 1e-6, row_norm=1.0, trust="distributed", honest=3, testing_seed=5)
    sites = {name: x / 10 for name, x in rows().items()}
    transcript, _ = recorded(tmp_path, sites, n_components=2, solver="covariance", privacy=privacy)
    sources = {name: open_source(x) for name, x in sites.items()}
    plain = replayed(transcript, open_sites(sources, seed=0, privacy=privacy, run="again"))
    for seen, other in zip(transcript.rounds[1:], plain.rounds[1:], strict=True):
        for part, value in as_parts(seen.total).items():
            np.testing.assert_array_equal(value, sum(as_parts(reply)[part] for reply in other.replies.values()))
    left = without(transcript, only(plain, "d")).sums[-1].total
    np.testing.assert_array_equal(left, sum(plain.rounds[-1].replies[name] for name in "abc"))


# ---- the attacks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "solver", [Covariance(), BlockKrylov(), Power(rounds=12, tol=0), FedPower(rounds=6), FAPS(rounds=8)], ids=str
)
def test_masks_hide_each_site_and_the_whole_is_found_as_without_them(solver, tmp_path):
    transcript, truth, plain, result = masked_run(tmp_path, solver)
    found = audit_sums(transcript, truth, result.estimate.basis, unmasked=plain)
    unmasked = audit(plain, truth)
    for name, site in found.sites.items():
        assert site.plain.to_dict() == unmasked.sites[name].to_dict()
        assert site.masked > 0.8
        assert abs(site.masked - site.random) < 0.2
        assert site.guess > 0.65 * site.others  # a little better: a quarter of the sum is this site's
        assert site.guess > 0.05
    assert found.whole.matrix == "A'A"
    if not isinstance(solver, FedPower | FAPS):
        assert found.whole.strongest[1].least < 1e-6
        assert all(site.plain.strongest[1].least < 1e-6 for site in found.sites.values())
        assert "all 4 together: A'A reconstructed to" in found.verdicts[0]
    assert found.verdicts[1].startswith("single sites: guesses from masked replies are off by")
    assert found.external is not None
    assert json.loads(json.dumps(found.to_dict()))["sites"]["a"]["masked"] == found.sites["a"].masked


def test_the_sum_of_releases_after_local_steps_is_not_taken_for_one_sites(tmp_path):
    """Polar factors and simulations are about the code of one site."""
    transcript, truth, plain, _ = masked_run(tmp_path, FedPower(rounds=4, local_steps=4), sites=rows(d=5))
    whole = audit_sums(transcript, truth).whole
    assert "subspace" not in " ".join(whole.besides)
    assert "simulation" not in whole.curves
    assert whole.untried == ""
    last = audit_sums(transcript, truth, unmasked=plain, colluding=["a", "b", "c"]).rest
    assert "its own leading subspace" in " ".join(last.besides)
    assert "simulation" in last.curves


def test_colluders_leave_the_sum_of_the_honest_and_all_but_one_of_them_show_the_last(tmp_path):
    transcript, truth, plain, _ = masked_run(tmp_path, Covariance())
    two = audit_sums(transcript, truth, unmasked=plain, colluding=["d", "a"])
    assert two.colluding == ["a", "d"]
    assert sorted(two.sites) == ["b", "c"]
    assert two.rest.site == "the 2 honest together"
    assert two.rest.strongest[1].least < 1e-9
    assert min(site.guess for site in two.sites.values()) > 0.05
    three = audit_sums(transcript, truth, unmasked=plain, colluding=["a", "b", "d"])
    assert three.rest.site == "c"
    assert three.sites["c"].guess < 1e-9
    assert three.sites["c"].others is None
    assert three.verdicts[2].count("SEEN, for all others collude") == 1
    assert "SEEN" not in " ".join(two.verdicts)


def test_a_colluder_is_taken_off_as_often_as_it_counts(tmp_path):
    study = {"cohort": Cohort(fraction=1.0, sample="by-size-with-replacement")}
    sites = rows(n=40) | {"e": rows()["a"][:25], "f": rows()["b"][:30]}
    transcript, _, plain, _ = masked_run(tmp_path, FedPower(rounds=6), sites=sites, **study)
    last = transcript.sums[-1].summed[0]  # whoever the draw of the last round had in it
    known = only(plain, [name for name in sites if name != last])
    times = {s.round: s.message["times"] for s in transcript.exchanges if s.step == "secure.masked"}
    assert any(count > 1 for counts in times.values() for count in counts.values())
    checked = set()
    for seen, other in zip(without(transcript, known).rounds, plain.rounds, strict=True):
        for part, value in as_parts(seen.total).items() if seen.summed == [last] else ():
            expected = times[seen.round].get(last, 1) * as_parts(other.replies[last])[part]
            np.testing.assert_allclose(value, expected, atol=1e-9 * float(np.max(abs(expected))))
            checked.add((seen.step, part))
    assert {("fedpower.local_steps", ""), ("gram.multiply_counted", "product")} <= checked


# ---- sums over different sites ---------------------------------------------------------------------------------


def test_a_sum_without_one_site_shows_it_where_the_whole_is_known(tmp_path):
    truth = grams(d=6, sites=NAMES, decay=0.9)
    blocks = [np.eye(6), basis(6, 6, 2)]
    everyone, fewer = dict.fromkeys(NAMES, 1), dict.fromkeys("abc", 1)
    pooled, less = sum(truth.values()), sum(truth[n] for n in "abc")
    same = Joint([SumOfProducts(z, pooled @ z, everyone) for z in blocks])
    assert not same.tells_apart
    same.solve()
    np.testing.assert_allclose(same.guess("a"), pooled / 4, atol=1e-9 * np.linalg.norm(pooled))
    joint = Joint([SumOfProducts(blocks[0], pooled, everyone), SumOfProducts(blocks[1], less @ blocks[1], fewer)])
    assert joint.tells_apart
    joint.solve()
    np.testing.assert_allclose(joint.guess("d"), truth["d"], atol=1e-9 * np.linalg.norm(pooled))
    np.testing.assert_allclose(joint.guess("a"), less / 3, atol=1e-9 * np.linalg.norm(pooled))


def test_changing_cohorts_without_noise_give_sites_away_and_the_audit_says_how_far(tmp_path):
    sites = rows(names="abcdef", d=6)
    study = {"sites": sites, "cohort": Cohort(first=5)}
    transcript, truth, plain, _ = masked_run(tmp_path, Power(rounds=60, tol=0), **study)
    found = audit_sums(transcript, truth, unmasked=plain)
    assert len(found.members) == 5
    same = [seen for seen in transcript.sums if seen.summed == found.members]
    kept = [seen.round for seen in sum_of(transcript, found.members).rounds]
    assert kept == [0, *(seen.round for seen in same)]
    assert len(same) < len(transcript.sums)
    assert sorted(found.sites) == list("abcdef")
    assert max(site.guess for site in found.sites.values()) < 0.5 * min(site.others for site in found.sites.values())
    assert min(site.masked for site in found.sites.values()) > 0.8


def test_a_sum_counts_for_what_its_step_says_of_products(tmp_path):
    transcript, _, _, _ = masked_run(tmp_path, FAPS(rounds=3))
    sums = sums_of_products(transcript, Setup(D))
    assert len(sums) == 1  # the Ritz round; consensus blocks are no products
    assert dict(sums[0].counts) == dict.fromkeys(NAMES, 1)


# ---- what it refuses, and does without -------------------------------------------------------------------------


def test_without_truth_or_a_rerun_it_says_what_follows(tmp_path):
    transcript, truth, _, _ = masked_run(tmp_path, Covariance())
    found = audit_sums(transcript)
    assert found.verdicts == [
        "all 4 together: all 45 numbers of A'A follow exactly from A'A Z for 9 directions Z, that the trace has "
        "nothing left over, and so all the rest, the trace; and besides their rows and column means; guesses of the "
        "rest were not scored"
    ]
    assert {site.masked for site in found.sites.values()} == {None}
    scored = audit_sums(transcript, truth)
    assert scored.sites["a"].plain is None
    assert "without masks" not in scored.verdicts[1]


def test_a_transcript_goes_to_the_audit_that_reads_it(tmp_path):
    transcript, _, plain, _ = masked_run(tmp_path, Covariance())
    with pytest.raises(ConfigurationError, match="audit it with audit_sums"):
        audit(transcript)
    with pytest.raises(ConfigurationError, match="no secure sum in this transcript; audit it with audit"):
        audit_sums(plain)


def test_colluders_are_sites_of_the_sums_and_not_all_of_them(tmp_path):
    transcript, _, plain, _ = masked_run(tmp_path, Covariance())
    with pytest.raises(ConfigurationError, match="no site 'z' in the sums to collude; "):
        audit_sums(transcript, unmasked=plain, colluding=["z"])
    with pytest.raises(ConfigurationError, match="all sites collude"):
        audit_sums(transcript, unmasked=plain, colluding=list(NAMES))
    with pytest.raises(ConfigurationError, match=r"give them with unmasked=replayed\(transcript, sites\)"):
        audit_sums(transcript, colluding=["a"])
