"""A site's policy and the coordinator's accounting: what leaves is charged first and noised enough; no more leaves.

Sites are asked here as a coordinator would ask them, an honest one and a hostile one.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest

from fedspan.data import open_source
from fedspan.data.arrays import ArraySource
from fedspan.data.preprocess import moments, prepare
from fedspan.data.source import SymmetricSource
from fedspan.encoding import encode
from fedspan.engines import InProcess
from fedspan.errors import BudgetExhausted, ConfigurationError, FedspanError, PolicyError, RoundConflict
from fedspan.layers import account, follow
from fedspan.privacy import GaussianPrivacy
from fedspan.privacy.gaussian import Bounds
from fedspan.privacy.ledger import Ledger
from fedspan.privacy.mechanisms import FLOAT_SLACK
from fedspan.privacy.noise import Stream
from fedspan.privacy.releases import Releases
from fedspan.rounds import STEPS, Gather, Reply, Round, Step, Sum, answer, drive, numbered
from fedspan.sites import Terms, open_site, open_sites
from fedspan.solvers import SOLVERS, Covariance, ModSulq
from fedspan.solvers.covariance import gram, to_triangle
from fedspan.solvers.mod_sulq import factor
from fedspan.solvers.problem import multiply, multiply_counted
from tests.privacy.test_mechanisms import variance_agrees

D = 4
DESCRIBE = {"min_rows": 1, "missing": "error", "max_missing_fraction": 1.0}
MOMENTS = {"columns": None, "missing": "error", "weight_column": None, "degree": False, "count": True, "sums": True}


def private(**settings):
    return GaussianPrivacy(
        **{"epsilon": 2.0, "delta": 1e-6, "row_norm": 1.0, "testing_seed": 1, "adaptive_clip": False, **settings}
    )


def rows(n=60, d=D, seed=0, size=1.0):
    return np.random.default_rng(seed).standard_normal((n, d)) * size


def opened(data=None, privacy=None, *, sites=1, folder=None, **options):
    """One site under a policy."""
    source = data if hasattr(data, "gram_times") else open_source(rows() if data is None else data, **options)
    return open_site("a", source, seed=0, folder=folder, terms=Terms(privacy or private(), "run", sites))


def preparation(d=D, **changes):
    """What a coordinator has sites install."""
    agreed = {"columns": None, "weight_column": None, "features": d, "total": False, "privacy": {"releases": 1}}
    return {**agreed, **changes}


def ask(site, number, step, message, parent=None):
    step = STEPS[step] if isinstance(step, str) else step
    parents = {} if parent is None else {site.id: parent}
    return answer(site, Round(step, message, number=number, parents=parents)).value


def accounted(study, releases):
    """A study with the coordinator's layers of privacy, in their order."""
    return account(follow(numbered(study), releases), releases)


def charges(site):
    return site.policy.releases.ledger.charges()


def sigma(site, part="product"):
    """The deviation of this site's last release, of all sites together."""
    return charges(site)[-1].detail[part]["sigma"]


# ---- how much noise --------------------------------------------------------------------------------------------


def released(privacy, message, step, *, sites, d, seed, parts=False):
    """What a coordinator learns of sites without a single row that is not zero: the noise."""
    privacy = GaussianPrivacy.from_plain({**privacy.as_plain(), "testing_seed": seed})
    sources = {f"site{i}": open_source(np.zeros((3, d))) for i in range(sites)}

    def study():
        yield Round(prepare, preparation(d), Sum())
        return (yield Round(step, message, Sum()))

    releases = Releases(privacy, run="run", who="", sites=sites)
    return drive(accounted(study(), releases), InProcess(open_sites(sources, seed=0, privacy=privacy, run="run")))


@pytest.mark.parametrize("arithmetic", ["grid", "float"])
@pytest.mark.parametrize("sites", [1, 5])
@pytest.mark.parametrize("trust", ["local", "distributed", "central"])
def test_a_sum_has_the_noise_of_its_trust(trust, sites, arithmetic):
    privacy, z = private(trust=trust, row_norm=1.5, arithmetic=arithmetic), rows(50, 40, seed=3)
    noise = [released(privacy, z, multiply, sites=sites, d=50, seed=s) for s in range(2)]
    expected = 1.5**2 * np.linalg.norm(z, 2) / privacy.mu * math.sqrt(sites if trust == "local" else 1)
    assert variance_agrees(np.stack(noise), expected, room=1 + 2 * FLOAT_SLACK)


@pytest.mark.parametrize("trust", ["local", "distributed", "central"])
def test_a_sum_of_two_parts_has_the_noise_of_both_together(trust):
    privacy, z = private(trust=trust, row_norm=1.5), rows(50, 40, seed=3)
    got = [released(privacy, z, multiply_counted, sites=4, d=50, seed=s) for s in range(60)]
    root = math.sqrt(2 * (4 if trust == "local" else 1)) / privacy.mu
    room = 1 + 2 * FLOAT_SLACK
    assert variance_agrees(np.stack([g["product"] for g in got]), 2.25 * np.linalg.norm(z, 2) * root, room)
    assert variance_agrees(np.array([g["rows"] - 12 for g in got]), root, room)


def test_every_entry_of_a_gram_matrix_has_the_same_noise_as_it_travels():
    privacy = private(row_norm=1.5)
    noise = released(privacy, None, gram, sites=1, d=80, seed=0)
    assert variance_agrees(noise, 2.25 / privacy.mu, room=1 + 2 * FLOAT_SLACK)


def test_the_noise_of_a_gram_matrix_made_in_slices_covers_all_of_them():
    privacy = private(row_norm=1.5)
    pairs = [
        ask_prepared(opened(np.zeros((3, 40)), private(row_norm=1.5, testing_seed=s)), factor, {"slice": 7, "rank": 40})
        for s in range(2)
    ]
    for pair in pairs:  # U S of the d x d noise: its sum of squares is the noise's own
        assert np.sum(pair**2) == pytest.approx(1600 * (2.25 / privacy.mu) ** 2, rel=0.2)


def ask_prepared(site, step, message, **changes):
    """Prepare, then ask one question of the solver."""
    ask(site, 0, "data.prepare", preparation(site.source.shape[1], **changes))
    return ask(site, 1, step, message, parent=0)


def test_set_up_releases_have_the_noise_of_their_shares():
    privacy = private(row_norm=2.0, rows_per_person=3)
    got = [ask(opened(np.zeros((3, 30)), private(row_norm=2.0, rows_per_person=3, testing_seed=s)), 0,
               "data.moments", MOMENTS) for s in range(60)]  # fmt: skip
    room = 1 + 2 * FLOAT_SLACK
    assert variance_agrees([g["weight"] - 3 for g in got], 3 / (privacy.mu * math.sqrt(0.02)), room)
    assert variance_agrees(np.stack([g["sums"] for g in got]), 6 / (privacy.mu * math.sqrt(0.1)), room)


def test_sums_and_values_present_share_what_is_set_aside_for_the_mean():
    privacy, message = private(row_norm=2.0), {**MOMENTS, "missing": "mean"}
    got = [
        ask(opened(np.zeros((3, 30)), private(row_norm=2.0, testing_seed=s)), 0, "data.moments", message)
        for s in range(60)
    ]
    mu, room = privacy.mu * math.sqrt(0.1), 1 + 2 * FLOAT_SLACK
    assert variance_agrees(np.stack([g["sums"] for g in got]), 2 * math.sqrt(2) / mu, room)
    assert variance_agrees(np.stack([g["present"] - 3 for g in got]), math.sqrt(30) * math.sqrt(2) / mu, room)


def test_the_total_variance_has_the_noise_of_its_share():
    privacy = private(row_norm=2.0)
    message = preparation(2, total=True)
    sites = (opened(np.zeros((3, 2)), private(row_norm=2.0, testing_seed=s)) for s in range(150))
    got = [ask(site, 0, "data.prepare", message) for site in sites]
    assert variance_agrees(got, 4 / (privacy.mu * math.sqrt(0.02)), room=1 + 2 * FLOAT_SLACK)


def test_more_planned_releases_get_more_noise_each():
    deviations = []
    for planned in (1, 4, 100):
        site = opened()
        ask_prepared(site, multiply, np.eye(D), privacy={"releases": planned})
        deviations.append(sigma(site))
    assert deviations[1] == pytest.approx(2 * deviations[0], rel=1e-5)
    assert deviations[2] == pytest.approx(10 * deviations[0], rel=1e-5)


def test_a_distributed_site_adds_its_share_of_the_honest_ones():
    site = opened(np.zeros((3, 50)), private(trust="distributed", honest=4), sites=25)
    noise = ask_prepared(site, multiply, rows(50, 40, seed=3))
    assert variance_agrees(noise, sigma(site) / 2)


@pytest.mark.parametrize("trust", ["local", "distributed", "central"])
def test_only_a_testing_seed_lets_anyone_draw_the_same_noise_again(trust):
    """Noise from any fixed seed protects nothing, and every report of a run without one would be untrue."""

    def twice(seed):
        privacy = private(trust=trust, testing_seed=seed)
        return [released(privacy, np.eye(D), multiply, sites=2, d=D, seed=seed).tobytes() for _ in range(2)]

    assert len(set(twice(1))) == 1
    assert len(set(twice(None))) == 2
    for who in ("a", ""):
        releases = Releases(private(trust=trust, testing_seed=None), run="run", who=who, sites=1)
        assert not releases.stream(Round(multiply, number=1), "product", bytes(32)).testing


# ---- charging --------------------------------------------------------------------------------------------------


class Refusing(Ledger):
    """A ledger with nothing left."""

    def charge(self, **details):
        raise BudgetExhausted("nothing is left")


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("gram.multiply", np.eye(D)),
        ("gram.multiply_counted", np.eye(D)),
        ("covariance.gram", None),
        ("mod_sulq.factor", {"slice": 2, "rank": 2}),
        ("data.moments", MOMENTS),
        ("data.prepare", preparation(total=True)),
    ],
)
def test_what_cannot_be_charged_is_not_released_and_no_noise_is_drawn_for_it(step, message, draws):
    site = opened(privacy=private(testing_seed=None))
    ask(site, 0, "data.prepare", preparation())
    site.policy.releases._ledger = Refusing()
    drawn = len(draws)
    with pytest.raises(BudgetExhausted):
        ask(site, 1, step, message, parent=0)
    assert len(draws) == drawn


def test_a_trusted_coordinator_charges_before_it_draws_noise(draws):
    privacy = private(trust="central", testing_seed=None)
    releases = Releases(privacy, run="run", who="", sites=1, ledger=Refusing())

    def study():
        yield Round(prepare, preparation(), Sum())
        yield Round(multiply, np.eye(D), Sum())

    with pytest.raises(BudgetExhausted):
        drive(accounted(study(), releases), InProcess([opened(privacy=privacy)]))
    assert not draws


def test_the_charge_is_in_the_ledger_before_noise_is_drawn(monkeypatch):
    site, seen = opened(privacy=private(testing_seed=None)), []
    ask(site, 0, "data.prepare", preparation())
    plain = Stream.bits

    def bits(self, *args):
        seen.append(len(charges(site)))
        return plain(self, *args)

    monkeypatch.setattr(Stream, "bits", bits)
    ask(site, 1, multiply, np.eye(D), parent=0)
    assert seen
    assert set(seen) == {1}


def test_a_release_is_charged_with_its_sensitivity_noise_and_terms():
    site = opened(privacy=private(row_norm=2.0))
    ask_prepared(site, multiply, 3 * np.eye(D))
    (charge,) = charges(site)
    assert (charge.run, charge.round, charge.step, charge.release) == ("run", 1, "gram.multiply", "product")
    assert charge.detail["product"]["sensitivity"] == pytest.approx(12.0)
    assert charge.detail["product"]["sigma"] >= 12.0 / site.policy.privacy.mu
    assert (charge.detail["neighbours"], charge.detail["trust"]) == ("row", "local")


@pytest.mark.parametrize("trust", ["local", "distributed"])
@pytest.mark.parametrize("planned", [1, 3])
def test_a_study_spends_its_whole_budget_and_not_a_bit_more(trust, planned):
    site = opened(privacy=private(row_norm=Bounds(-1, 1), trust=trust))
    ask(site, 0, "data.describe", DESCRIBE)
    ask(site, 1, "data.moments", MOMENTS, parent=0)
    mean = np.zeros(D)
    ask(site, 2, "data.spread", preparation(mean=mean), parent=1)
    ask(site, 3, "data.prepare", preparation(mean=mean, scale=np.ones(D), total=True, privacy={"releases": planned}), 2)
    for number in range(planned):
        ask(site, 4 + number, multiply, np.eye(D), parent=3 + number)
    costs = {c.release: c.cost / site.policy.privacy.mu**2 for c in charges(site)}
    assert costs == {
        "weight": pytest.approx(0.02), "sums": pytest.approx(0.1), "squares": pytest.approx(0.1),
        "total": pytest.approx(0.02), "product": pytest.approx(0.76 / planned),
    }  # fmt: skip
    ledger = site.policy.releases.ledger
    assert ledger.spent() == pytest.approx(site.policy.privacy.mu**2, rel=2e-9)
    for step, message in [("gram.multiply", 2 * np.eye(D)), ("data.moments", MOMENTS), ("covariance.gram", None)]:
        with pytest.raises(BudgetExhausted):
            ask(site, 50, step, message, parent=3 + planned)
    assert ledger.spent() <= site.policy.privacy.mu**2


def test_a_figure_with_no_share_stays_at_the_site():
    site = opened(privacy=private(shares={"variance": 0, "mean": 0}))
    with pytest.raises(PolicyError, match="no share of the budget was set aside for the mean"):
        ask(site, 0, "data.moments", MOMENTS)
    with pytest.raises(PolicyError, match="no share of the budget was set aside for the variance"):
        ask(site, 1, "data.prepare", preparation(total=True))


# ---- asked twice -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["gram.multiply", "covariance.gram"])
def test_a_site_without_a_folder_does_not_answer_a_round_twice(step):
    site = opened()
    message = np.eye(D) if step == "gram.multiply" else None
    ask_prepared(site, step, message)
    with pytest.raises(PolicyError, match="keeps no replies to give again"):
        ask(site, 1, step, message, parent=0)
    assert len(charges(site)) == 1


def test_a_site_without_a_folder_does_not_noise_its_slices_twice():
    site, message = opened(), {"slice": 2, "rank": 2}
    ask_prepared(site, factor, message)
    with pytest.raises(PolicyError, match="keeps no replies to give again"):
        ask(site, 1, factor, message, parent=0)


def test_a_site_without_a_folder_does_not_say_its_mean_twice():
    site = opened()
    ask(site, 0, "data.moments", MOMENTS)
    with pytest.raises(PolicyError, match="keeps no replies to give again"):
        ask(site, 0, "data.moments", MOMENTS)


@pytest.mark.parametrize("reopened", [False, True])
def test_a_site_with_a_folder_gives_the_same_bytes_again_and_charges_once(tmp_path, reopened):
    privacy = private(testing_seed=None)  # noise that could not be drawn alike again
    data = rows()
    site = opened(data, privacy, folder=tmp_path)
    first = encode(ask_prepared(site, multiply, np.eye(D)))
    if reopened:
        site = opened(data, privacy, folder=tmp_path)
    assert encode(ask(site, 1, multiply, np.eye(D), parent=0)) == first
    assert len(charges(site)) == 1
    with pytest.raises(RoundConflict):
        ask(site, 1, multiply, 2 * np.eye(D), parent=0)
    with pytest.raises(RoundConflict):
        ask(site, 0, multiply, np.eye(D))
    assert len(charges(site)) == 1


def test_a_kill_between_charge_and_reply_costs_one_release_and_lets_none_out_twice(tmp_path, monkeypatch):
    privacy = private(testing_seed=None)
    site = opened(rows(), privacy, folder=tmp_path)
    ask(site, 0, "data.prepare", preparation())
    monkeypatch.setattr(site.memory, "commit", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        ask(site, 1, multiply, np.eye(D), parent=0)
    site = opened(rows(), privacy, folder=tmp_path)
    first = encode(ask(site, 1, multiply, np.eye(D), parent=0))
    assert encode(ask(site, 1, multiply, np.eye(D), parent=0)) == first
    assert len(charges(site)) == 1


# Was a fault once: a site that lost its memory but not its ledger draws fresh noise for a set-up release that was
# charged before, for free: two such replies average.
def test_a_site_that_lost_its_memory_does_not_release_again_what_its_ledger_knows(tmp_path):
    privacy = private(testing_seed=None)
    site = opened(rows(), privacy, folder=tmp_path)
    ask(site, 0, "data.describe", DESCRIBE)
    first = encode(ask(site, 1, "data.moments", MOMENTS, parent=0))
    (tmp_path / "a" / "memory").unlink()
    site = opened(rows(), privacy, folder=tmp_path)
    try:
        again = encode(ask(site, 1, "data.moments", MOMENTS, parent=0))
    except FedspanError:
        return  # refused: fine
    assert again == first or len(charges(site)) == 4  # or charged once more


# ---- admission -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(STEPS) - {"data.describe"}))
def test_a_step_without_a_bound_is_refused_before_it_touches_a_row(name):
    step = STEPS[name]
    if step.sensitivity is not None:
        pytest.skip("has a bound")
    ran = []
    watched = Step(name, lambda site, message: ran.append(1) or Reply(0.0), step.lost, step.setup)
    with pytest.raises(PolicyError, match=r"declares no sensitivity.*covariance, private-power, power"):
        ask(opened(), 0, watched, None)
    assert not ran


def test_the_solvers_a_refusal_names_are_those_that_can():
    with pytest.raises(PolicyError) as refused:
        ask(opened(), 0, Step("test.unbounded", lambda site, message: Reply(0.0)), None)
    named = str(refused.value).split("that does: ")[1].split(", ")
    assert set(named) == {name for name, kind in SOLVERS.items() if kind().releases is not None}


def bounded(bounds, **parts):
    """A step that releases these parts and declares these bounds."""
    return Step("test.step", lambda s, m: Reply(s.noised(**parts)), sensitivity=lambda m, n, s: bounds)


@pytest.mark.parametrize("trust", ["local", "distributed"])
def test_a_part_without_a_bound_is_not_released(trust):
    site = opened(privacy=private(trust=trust))
    with pytest.raises(PolicyError, match=r"no sensitivity for \['b'\]"):
        ask_prepared(site, bounded({"a": 1.0}, a=np.ones(2), b=np.ones(2)), None)
    assert not charges(site)


@pytest.mark.parametrize("bound", [math.nan, math.inf, -1.0])
def test_a_bound_that_is_none_is_refused(bound):
    with pytest.raises(PolicyError, match="sensitivity of a"):
        ask_prepared(opened(), bounded({"a": bound}, a=np.ones(2)), None)


def test_a_part_that_depends_on_no_row_costs_nothing_and_the_others_are_noised():
    site = opened()
    got = ask_prepared(site, bounded({"a": 0.0, "b": 1.0}, a=np.ones(2), b=np.ones(2)), None)
    np.testing.assert_array_equal(got["a"], [0, 0])  # and so it leaves as nothing
    assert not np.any(got["b"] == 1)
    assert [c.release for c in charges(site)] == ["b"]


def test_a_weight_is_a_figure_that_no_noise_covers():
    step = Step("test.weighed", lambda s, m: Reply(np.ones(2), weight=60.0), sensitivity=lambda m, n, s: {})
    with pytest.raises(PolicyError, match="weight"):
        ask_prepared(opened(), step, None)


def test_a_solvers_question_before_the_preparation_is_refused():
    with pytest.raises(PolicyError):
        ask(opened(), 0, multiply, np.eye(D))
    with pytest.raises(PolicyError):
        ask_prepared(opened(), multiply, np.eye(D), privacy={})


# ---- what else leaves ------------------------------------------------------------------------------------------


def test_a_description_keeps_rows_and_gaps_to_the_site():
    gaps = rows()
    gaps[3, 1] = np.nan
    message = {**DESCRIBE, "missing": "mean", "max_missing_fraction": 0.0, "min_rows": 1000}
    said = ask(opened(gaps), 0, "data.describe", message)
    assert said["rows"] is None
    assert said["missing"] == 0.0
    assert said["features"] == D
    public = ask(opened(gaps, private(n_public=True)), 0, "data.describe", {**message, "min_rows": 1})
    assert public["rows"] == 60
    assert public["missing"] == 0.0


# Was a fault once: neighbours = "site" hides all rows of a site, but not how many they are
def test_a_hidden_site_keeps_its_number_of_rows_to_itself():
    privacy = private(neighbours="site", site_norm=1.0, row_norm=None)
    assert ask(opened(privacy=privacy), 0, "data.describe", DESCRIBE)["rows"] is None


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("trust", ["local", "central"])
def test_what_is_missing_or_infinite_is_no_error_in_a_round_and_counts_as_nothing(bad, trust):
    """An error would tell that it is there; sites look for it before the first round, by themselves."""
    data = rows()
    data[7, 2] = bad
    site = opened(ArraySource(data, ("age", "sex", "income", "zip")), private(trust=trust))
    got = ask(site, 0, "data.moments", {**MOMENTS, "columns": ["age", "sex", "income", "zip"]})
    assert np.all(np.isfinite(got["sums"]))


# Was a fault once: only fedspan's own errors are turned into a code; the text of any other travels as it is
# (`InProcess._ask`, and any engine's): "site 'a' failed in step data.moments: row 17 is 'Alice'".
def test_any_other_error_says_no_more_than_a_code_either():
    class Failing(ArraySource):
        def blocks(self):
            raise ValueError("row 17 is 'Alice'")
            yield

    source = Failing(rows())
    source.pass_cost = 2.0
    with pytest.raises(Exception) as error:  # noqa: PT011
        InProcess([opened(source)])(Round(moments, MOMENTS, number=0))
    assert "Alice" not in str(error.value)


def test_a_policys_own_refusal_is_said_as_it_is():
    with pytest.raises(PolicyError, match="the study says 9 features, where the columns it names are 4"):
        ask(opened(), 0, "data.prepare", preparation(features=9))


def test_a_trusted_coordinator_gets_plain_sums_of_clipped_rows():
    data = rows(size=10.0)
    site = opened(data, private(trust="central"))
    got = ask_prepared(site, multiply, np.eye(D))
    clipped = data / np.linalg.norm(data, axis=1, keepdims=True)
    np.testing.assert_allclose(got, clipped.T @ clipped, rtol=1e-9)
    said = ask(opened(data, private(trust="central")), 0, "data.moments", MOMENTS)
    assert said["weight"] == 60
    np.testing.assert_allclose(said["sums"], clipped.sum(axis=0), rtol=1e-9)
    assert not charges(site)


def test_degrees_are_not_asked_of_a_site_whose_raw_rows_have_no_bound():
    for trust in ("local", "central"):
        with pytest.raises(PolicyError, match="a bound on the raw rows, and none was given"):
            ask(opened(abs(rows()), private(trust=trust)), 0, "data.moments", {**MOMENTS, "degree": True})


def test_only_what_was_asked_for_leaves_with_the_moments():
    for message, names in [
        ({"count": False}, {"sums"}), ({"sums": False}, {"weight"}),
        ({"missing": "mean"}, {"weight", "sums", "present"}),
    ]:  # fmt: skip
        assert set(ask(opened(abs(rows())), 0, "data.moments", {**MOMENTS, **message})) == names


@pytest.mark.parametrize("trust", ["central", "distributed"])
def test_single_replies_are_shown_to_nobody_where_they_have_too_little_noise(trust):
    privacy = private(trust=trust)

    def study():
        yield Round(prepare, preparation(), Sum())
        yield Round(factor, {"slice": 2, "rank": 2}, Gather())

    releases = Releases(privacy, run="run", who="", sites=1)
    with pytest.raises(PolicyError, match="shows the coordinator each reply"):
        drive(accounted(study(), releases), InProcess([opened(privacy=privacy)]))


def test_slices_are_not_noised_at_the_site_of_a_trusted_coordinator():
    with pytest.raises(PolicyError, match="set trust to local"):
        ask_prepared(opened(privacy=private(trust="central")), factor, {"slice": 2, "rank": 2})


def test_one_charge_of_the_coordinator_stands_for_sites_that_hold_disjoint_rows():
    privacy = private()
    sites = open_sites({n: open_source(rows()) for n in "abc"}, seed=0, privacy=privacy, run="run")

    def study():
        yield Round(prepare, preparation(total=True), Sum())
        yield Round(factor, {"slice": 2, "rank": 2}, Gather())

    releases = Releases(privacy, run="run", who="", sites=3)
    drive(accounted(study(), releases), InProcess(sites))
    own = [(c.step, c.release, pytest.approx(c.cost)) for c in releases.ledger.charges()]
    for site in sites:
        assert [(c.step, c.release, c.cost) for c in charges(site)] == own


# ---- a hostile coordinator -------------------------------------------------------------------------------------


def test_a_question_a_thousand_times_as_large_gets_a_thousand_times_the_noise():
    deviations, zeros = [], np.zeros((3, 50))
    for size in (1.0, 1000.0):
        site = opened(zeros)
        noise = ask_prepared(site, multiply, size * rows(50, 40, seed=3))
        assert variance_agrees(noise, sigma(site))
        deviations.append(sigma(site))
    assert deviations[1] == pytest.approx(1000 * deviations[0], rel=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("step", ["gram.multiply", "gram.multiply_counted"])
def test_a_question_that_is_not_finite_is_refused_and_not_charged(bad, step):
    z, site = np.eye(D), opened()
    z[1, 1] = bad
    with np.errstate(all="ignore"), pytest.raises(PolicyError, match="finite"):
        ask_prepared(site, step, z)
    assert not charges(site)


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_a_question_too_small_or_large_to_noise_is_refused(size):
    with np.errstate(all="ignore"), pytest.raises(PolicyError):
        ask_prepared(opened(), multiply, size * np.eye(D))


@pytest.mark.parametrize("features", [3, 5, 1000])
def test_a_preparation_for_another_number_of_columns_is_refused(features):
    site = opened(privacy=private(row_norm=Bounds(-1, 1)))
    with pytest.raises(PolicyError, match="features"):
        ask(site, 0, "data.prepare", preparation(features=features))


@pytest.mark.parametrize("planned", [0, -5, 1])
def test_fewer_planned_releases_than_one_cost_the_whole_budget(planned):
    site = opened()
    ask_prepared(site, multiply, np.eye(D), privacy={"releases": planned})
    assert charges(site)[0].cost == pytest.approx(site.policy.privacy.mu**2)
    with pytest.raises(BudgetExhausted):
        ask(site, 2, multiply, np.eye(D), parent=1)


def test_more_planned_releases_than_anyone_makes_only_add_noise():
    site = opened()
    ask_prepared(site, multiply, np.eye(D), privacy={"releases": 10**12})
    assert sigma(site) > 1e6
    assert charges(site)[0].cost == pytest.approx(site.policy.privacy.mu**2 / 1e12)


@pytest.mark.parametrize("planned", ["many", None, [], math.nan, math.inf, {}, 1.9, True])
def test_planned_releases_that_are_no_number_get_no_answer(planned):
    site = opened()
    with pytest.raises((FedspanError, ValueError, TypeError, OverflowError)):
        ask_prepared(site, multiply, np.eye(D), privacy={"releases": planned})
    assert not charges(site)


def asked_until_refused(site, questions):
    """Ask one question after another; return how many were answered before the budget ran out."""
    for number, (step, message) in enumerate(questions):
        try:
            ask(site, number, step, message, parent=number - 1 if number else None)
        except BudgetExhausted:
            return number
    raise AssertionError("the budget never ran out")


def test_changing_the_plan_in_the_middle_never_spends_more_than_the_budget():
    site, plans = opened(), (1000, 10, 3, 1, 1, 1)
    pairs = [[(prepare, preparation(privacy={"releases": p})), (multiply, np.eye(D))] for p in plans]
    assert asked_until_refused(site, [question for pair in pairs for question in pair]) > 2
    assert site.policy.releases.ledger.spent() <= site.policy.privacy.mu**2 * (1 + 1e-9)


def test_asking_for_the_total_again_and_again_is_charged_each_time_until_nothing_is_left():
    site = opened()
    assert asked_until_refused(site, [(prepare, preparation(total=True))] * 100) == 50  # at a share of 0.02
    assert site.policy.releases.ledger.spent() <= site.policy.privacy.mu**2 * (1 + 1e-9)


FAR = {"row_norm": Bounds(100.0, 101.0)}  # rows of norm 101 sqrt(d) from zero, sqrt(d)/2 from the middle
SMALL = {"row_norm": Bounds(-0.1, 0.1)}  # rows of norm sqrt(d)/10; scaled, up to sqrt(d)
CENTRED, SCALED = {"mean": np.full(D, 100.5)}, {"scale": np.full(D, 1e-3)}
SPREAD = partial(preparation, mean=np.full(D, 100.5))


@pytest.mark.parametrize(
    ("terms", "first", "then"),
    [
        (FAR, {}, [("data.spread", SPREAD())]),
        (FAR, {}, [("data.moments", MOMENTS)]),
        (SMALL, SCALED, [("data.moments", MOMENTS)]),
        (SMALL, SCALED, [("data.spread", preparation(mean=np.zeros(D)))]),
        (FAR, {}, [("data.prepare", preparation(**CENTRED))]),
        (FAR, CENTRED, [("data.prepare", preparation())]),
        (SMALL, SCALED, [("data.prepare", preparation())]),
        (FAR, {}, [("data.prepare", preparation(mean=np.full(D + 1, 100.5)))]),  # fails after its bounds were noted?
        (FAR, {}, [("data.prepare", preparation(mean=np.full(D, 100.5), weight_column="nobody"))]),
        (FAR, {}, [("data.prepare", preparation(mean=np.full(D, 100.5), features=D + 1))]),
        (SMALL, SCALED, [("data.prepare", preparation(fill=np.zeros(D + 1)))]),
        ({}, {}, [("data.prepare", preparation(mean=np.full(D, 1e9)))]),
        ({}, {}, [("data.prepare", preparation(scale=np.full(D, 1e-9)))]),
        ({}, {}, [("data.prepare", preparation(scale=np.full(D, 1e-9), mean=np.full(D, -1e9), degree=False))]),
    ],
)
def test_whatever_is_prepared_again_the_noise_covers_the_rows_that_are_there(terms, first, then):
    """A coordinator may send another preparation, or a failing one, between the solver's rounds."""
    low, high = (terms["row_norm"].low, terms["row_norm"].high) if terms else (-5, 5)
    site = opened(np.random.default_rng(0).uniform(low, high, (60, D)), private(**terms))
    ask(site, 0, "data.prepare", preparation(**first, privacy={"releases": 3}))
    parent = 0
    for number, (step, message) in enumerate(then, start=1):
        message = {**message, "privacy": {"releases": 3}} if step == "data.prepare" else message
        try:
            ask(site, number, step, message, parent=parent)
            parent = number
        except (FedspanError, ValueError, IndexError):
            continue  # refused; the site goes on as it was
    z = np.eye(D)[:, :2]
    try:
        ask(site, 9, multiply, z, parent=parent)
    except FedspanError:
        return  # nothing left the site
    longest = max(np.linalg.norm(np.asarray(block), axis=1).max() for block in site.data.blocks())
    assert charges(site)[-1].detail["product"]["sensitivity"] >= longest**2 * np.linalg.norm(z, 2) * (1 - 1e-12)


# Was a fault once: steps = 0 takes the bound of what is clipped, but is not clipped (`steps > 1` is)
@pytest.mark.parametrize("steps", [0, -1])
def test_fedpowers_release_is_clipped_wherever_its_bound_is_the_clip(steps):
    site = opened(rows(size=5.0), private(epsilon=50.0, row_norm=10.0, site_norm=1e-3))
    message = {"z": np.eye(D), "steps": steps, "average": False, "align": None, "gather": False, "per_row": False}
    try:
        got = ask_prepared(site, "fedpower.local_steps", message)
    except FedspanError:
        return  # refused: fine
    assert np.linalg.norm(got) <= 1e-3 + 20 * sigma(site)


@pytest.mark.parametrize("change", [{"steps": 3}, {"average": True}, {"steps": 2, "align": "procrustes"}])
def test_fedpowers_release_after_local_steps_is_clipped(change):
    site = opened(rows(size=5.0), private(trust="central", row_norm=10.0, site_norm=0.5))
    message = {"z": np.eye(D)[:, :2], "steps": 1, "average": False, "align": None, "gather": False, "per_row": False}
    got = ask_prepared(site, "fedpower.local_steps", {**message, **change})
    assert np.linalg.norm(got) == pytest.approx(0.5)
    site = opened(rows(size=5.0), private(row_norm=10.0, site_norm=0.5))
    ask_prepared(site, "fedpower.local_steps", {**message, **change})
    assert charges(site)[-1].detail["product"]["sensitivity"] == 1.0


@pytest.mark.parametrize("change", [{"gather": True}, {"per_row": True}])
def test_fedpowers_own_z_and_private_sizes_do_not_leave(change):
    site = opened(privacy=private(site_norm=1.0))
    message = {"z": np.eye(D)[:, :2], "steps": 1, "average": False, "align": None, "gather": False, "per_row": False}
    with pytest.raises(PolicyError, match=r"no sensitivity for|keeps its own Z"):
        ask_prepared(site, "fedpower.local_steps", {**message, **change})


# Was a fault once: where rows are replaced the NUMBER of rows is public, but not the sum of their weights, which is
# what leaves: replacing a row of weight 1 by one of weight 0 moves it by 1, uncharged and without noise.
@pytest.mark.parametrize("step", ["gram.multiply_counted", "data.moments"])
def test_the_sum_of_weights_is_noised_even_where_the_number_of_rows_is_public(step):
    weights = np.random.default_rng(0).random(60)
    site = opened(rows(), private(n_public=True), weights=weights)
    message = np.eye(D) if step != "data.moments" else {**MOMENTS, "sums": False}
    try:
        got = ask_prepared(site, step, message)
    except FedspanError:
        return  # refused: fine
    assert abs(float(got["rows" if "rows" in got else "weight"]) - weights.sum()) > 1e-6


# Was a fault once: shares of a symmetric matrix have no rows to clip, so a bound on rows or on a site's rows holds
# for nothing; the run says "certified".
@pytest.mark.parametrize("terms", [{}, {"n_public": True}, {"neighbours": "site", "site_norm": 1.0, "row_norm": None}])
def test_a_share_of_a_symmetric_matrix_is_not_released_on_a_bound_that_nothing_keeps(terms):
    share = 1000 * (rows().T @ rows())
    site = opened(SymmetricSource(share), private(**terms))
    try:
        got = ask_prepared(site, gram, None)
    except FedspanError:
        return  # refused: fine
    bound = charges(site)[-1].detail["gram"]["sensitivity"]
    assert np.linalg.norm(got) <= bound + 20 * sigma(site, "gram") * math.sqrt(len(got))


@pytest.mark.parametrize("relation", ["entry", "ppm-12"])
def test_a_share_of_a_symmetric_matrix_is_released_with_the_noise_of_an_entry(relation):
    share = rows().T @ rows()
    site = opened(SymmetricSource(share), private(neighbours=relation, entry_change=0.01, row_norm=None))
    got = ask_prepared(site, gram, None)
    np.testing.assert_allclose(got, to_triangle(share), atol=8 * sigma(site, "gram"))
    assert charges(site)[-1].detail["gram"]["sensitivity"] == pytest.approx(
        0.01 * (math.sqrt(2) if relation == "entry" else 1)
    )


# Was a fault once: a gap is a value that no noise covers. A release of sensitivity 0 leaves as it is (a question of
# zeros; the squares for "features" = 0, whose bound is 0), and in floats NaN plus noise is NaN: which columns have gaps
# is then read off, in the first two cases uncharged.
@pytest.mark.parametrize(
    ("arithmetic", "step", "message"),
    [
        ("grid", "data.spread", preparation(features=0, mean=np.zeros(D))),
        ("grid", "gram.multiply", np.zeros((D, 2))),
        ("float", "covariance.gram", None),
        ("float", "data.spread", preparation(mean=np.zeros(D))),
    ],
)
def test_gaps_are_not_read_off_a_release(arithmetic, step, message):
    data = np.random.default_rng(0).random((60, D))
    data[5, 1] = np.nan
    site = opened(data, private(row_norm=Bounds(0, 1), arithmetic=arithmetic))
    with np.errstate(all="ignore"):
        try:
            got = ask_prepared(site, step, message)
        except FedspanError:
            return  # refused: fine
    assert np.all(np.isfinite(got))


def test_settings_of_solvers_say_how_often_they_release():
    assert Covariance().releases == ModSulq().releases == 1
    with pytest.raises(ConfigurationError):
        ModSulq(slice_width=0)
