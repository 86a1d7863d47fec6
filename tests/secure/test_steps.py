"""The phases as a site's steps: refusals are replies, a question is answered as asked, an error tells no value."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from fedspan.encoding import digest
from fedspan.errors import DataError, PolicyError
from fedspan.rounds import STEPS, Reply, Round, Site, answer, site_step
from fedspan.secure import SecureSums, SumTerms, fixed_point, steps
from tests.conformance.solvers import promise
from tests.secure.sites_by_hand import NAMES, PREPARE, STATE, TERMS, D, Exchange, Z, prepared, rows_of, sites_of

GRAM = STEPS["gram.multiply"]


@site_step("tests.weighted")
def weighted(site: Site, message):
    """A reply with a weight: the site's rows."""
    return Reply({"a": np.arange(3.0) + len(site.id), "b": np.array(1.5)}, weight=float(site.source.shape[0]))


@site_step("tests.boundless")
def boundless(site: Site, message):
    """A reply of a size that is not known before."""
    return Reply(site.data.gram_times(message))


def question(number=1, message=Z, step=GRAM):
    return Round(step, message, number=number, parents=dict.fromkeys(NAMES, number - 1))


def total(rows=None):
    return sum(x.T @ x @ Z for x in (rows or rows_of()).values())


@pytest.fixture
def exchange():
    return Exchange(prepared(sites_of()), question())


# ---- answers ---------------------------------------------------------------------------------------------------


def test_a_sum_by_hand_is_the_plain_one_to_the_rounding(exchange):
    found = exchange.run(state=STATE)["value"]
    np.testing.assert_allclose(found, total(), atol=fixed_point.rounding_error(40, 4))


def test_a_mean_is_the_sum_of_weighted_replies_and_of_weights():
    rows = rows_of()
    found = Exchange(prepared(sites_of()), question(step=weighted)).run(
        exponents={"a": 30, "b": 30, "weight of the mean": 30}, mean=True, state=STATE
    )
    weight = {name: x.shape[0] for name, x in rows.items()}
    np.testing.assert_allclose(found["a"], sum(w * (np.arange(3) + len(n)) for n, w in weight.items()))
    np.testing.assert_allclose(found["b"], 1.5 * sum(weight.values()))
    np.testing.assert_allclose(found["weight of the mean"], sum(weight.values()))


def test_a_reply_counts_as_often_as_its_site_was_drawn():
    terms = SumTerms(SecureSums(), "", 3, most_times=6)
    exchange = Exchange(prepared(sites_of(terms=terms), terms), question(), terms=terms)
    times = {"elm": 3}
    expected = sum(times.get(n, 1) * x.T @ x @ Z for n, x in rows_of().items())
    np.testing.assert_allclose(exchange.run(times=times, state=STATE)["value"], expected, atol=1e-9)


@pytest.mark.parametrize("again", [False, True])
def test_masks_of_set_up_hang_on_no_preparation(again):
    """Its rounds begin with the rows as they are, whatever a site had installed: so the coordinator takes masks off."""
    sites = prepared(sites_of()) if again else sites_of()
    asked = Round(STEPS["data.prepare"], {**PREPARE, "total": True}, number=3, parents=dict.fromkeys(NAMES, 0))
    exchange = Exchange(sites, asked if again else replace(asked, parents={}))
    message = exchange.message()
    found = exchange.finish(dict.fromkeys(NAMES[:3], message))["value"]  # the fourth dropped out
    np.testing.assert_allclose(found, sum(float((rows_of()[name] ** 2).sum()) for name in NAMES[:3]))


def test_a_sum_of_bounds_tells_about_that_sum_and_not_what_was_put_in(monkeypatch):
    """Each is the largest number times a factor that its site keeps: a sum of powers of two would tell which ones."""
    found = []
    monkeypatch.setattr("tests.secure.sites_by_hand.fixed_point.decode", lambda part, _: found.append(part))
    Exchange(prepared(sites_of()), question(step=boundless), kind="bound").run(state=STATE)
    largest = [np.abs(x.T @ x @ Z).max() for x in rows_of().values()]
    assert found[-1].shape == (fixed_point.WIDE,)
    told = fixed_point.from_wide(found[-1])
    assert sum(largest) < told < 2 * sum(largest)
    Exchange(prepared(sites_of()), question(step=boundless), kind="bound").run(state=STATE)
    assert fixed_point.from_wide(found[-1]) != told  # other sites, other factors


def test_a_bound_and_its_value_are_one_reply():
    """What is worked out once is told in both sums, whatever the step would draw a second time."""
    calls = []

    @site_step("tests.drawn")
    def drawn(site, message):
        calls.append(site.id)
        return Reply(np.random.default_rng().standard_normal(3))

    try:
        sites, asked = prepared(sites_of()), question(step=drawn)
        bound = Exchange(sites, asked, kind="bound")
        message = bound.message()
        for name in NAMES:
            bound.masked(name, message)
        Exchange(sites, asked).run(state=STATE)
        Exchange(sites, asked).run(state=STATE)
        assert sorted(calls) == NAMES
    finally:
        del STEPS["tests.drawn"]


def test_a_masked_reply_given_again_is_the_same(exchange):
    message = exchange.message()
    first, again = exchange.masked("ash", message), exchange.masked("ash", message)
    assert np.array_equal(first["masked"]["value"], again["masked"]["value"])


# ---- refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["keys", "shares", "masked", "consent", "release"])
@pytest.mark.parametrize("message", [None, {}, [], "x", np.zeros(2)], ids=repr)
def test_a_refusal_is_a_reply(step, message):
    exchange = Exchange(sites_of(), question())
    reply = exchange.told(step, "ash", message)
    assert list(reply) == ["refused"]
    assert isinstance(reply["refused"], str)


def test_a_site_without_keys_refuses():
    site = Site("ash", None)
    for step in ("keys", "shares", "masked", "consent", "release"):
        reply = answer(site, Round(STEPS[f"secure.{step}"], {}, number=0)).value
        assert reply == {
            "refused": "site 'ash' has no keys for secure sums; open it with secure sums agreed on"
        }  # fmt: skip


@pytest.mark.parametrize("step", [GRAM, STEPS["data.moments"], STEPS["data.prepare"]])
def test_an_unmasked_round_is_refused_where_masks_are_demanded(step):
    site = sites_of()["ash"]
    words = re.escape(f"site 'ash' answers {step.name} in masked rounds only; it was asked without masks")
    with pytest.raises(PolicyError, match=words):
        answer(site, question(step=step))


def test_what_tells_nothing_of_the_rows_is_answered_without_masks():
    site = sites_of()["ash"]
    asked = {"min_rows": 1, "missing": "error", "max_missing_fraction": 1.0}
    reply = answer(site, question(message=asked, step=STEPS["data.describe"])).value
    assert (reply["rows"], reply["features"], reply["missing"]) == (None, D, 0.0)


def test_a_description_is_of_no_gaps_where_rows_are_mquestion():
    rows = rows_of()
    rows["ash"][0, 0] = np.nan
    asked = {"min_rows": 1, "missing": "mean", "max_missing_fraction": 1.0}
    reply = answer(sites_of(rows)["ash"], question(message=asked, step=STEPS["data.describe"])).value
    assert (reply["rows"], reply["missing"]) == (None, 0.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"step": "data.describe"}, "there is no step 'data.describe' to be masked"),
        ({"step": "secure.keys"}, "there is no step 'secure.keys' to be masked"),
        ({"step": "no.such"}, "there is no step 'no.such' to be masked"),
        ({"step": 7}, "a step is a text, got int"),
        ({"step": "covariance.gram"}, "the question is not the one that the keys were made for"),
        ({"message": 2 * Z}, "the question is not the one that the keys were made for"),
        ({"message": {"": 1}}, "a message is plain data (TypeError)"),
        ({"mean": 1}, "whether it is a mean is True or False, got 1"),
        ({"mean": np.zeros(2)}, "whether it is a mean is True or False"),
        ({"times": {"elm": 0}}, "a reply would not count at all, and the sum would be of the others"),
        ({"times": {"elm": 2}}, "replies would count 5 times in all; this site's policy is 1"),
        ({"times": 1}, "how often replies count is a dict by site"),
        ({"exponents": None}, "exponents are given for ['value'], got None"),
        ({"exponents": {}}, "exponents are given for ['value'], got {}"),
        ({"exponents": {"value": 40, "more": 1}}, "exponents are given for ['value']"),
        ({"exponents": {"value": 40.0}}, "an exponent is within 1000 of 0, got 40.0"),
        ({"exponents": {"value": True}}, "an exponent is within 1000 of 0, got True"),
        ({"exponents": {"value": 1001}}, "an exponent is within 1000 of 0, got 1001"),
        ({"exponents": {"value": np.zeros(2)}}, "an exponent is within 1000 of 0"),
        ({"session": "00" * 32}, "this belongs to another secure sum"),
        ({"more": 1}, "a masked question has the fields"),
    ],
)
def test_a_masked_question_is_asked_in_one_way(exchange, change, words):
    reply = exchange.masked("ash", {**exchange.message(), **change})
    assert words in reply["refused"]


@pytest.mark.parametrize("value", [{"a": "text"}, [1.0, [2.0]], {"a": {"b": 1.0}}])
def test_a_reply_that_is_not_of_numbers_cannot_be_added_up(value):
    @site_step("tests.wordy")
    def wordy(site, message):
        return Reply(value)

    try:
        exchange = Exchange(prepared(sites_of()), question(step=wordy))
        assert "not of numbers alone" in exchange.masked("ash", exchange.message())["refused"]
    finally:
        del STEPS["tests.wordy"]


def test_how_numbers_are_read_is_said_once(exchange):
    exchange.masked("ash", exchange.message())
    for change in ({"exponents": {"value": 41}}, {"mean": True, "exponents": {"value": 40, "weight of the mean": 40}}):
        again = Exchange(exchange.sites, question())
        reply = again.masked("ash", {**again.message(), **change})
        assert "this site was told before to read the numbers in another way" in reply["refused"]
    good = Exchange(exchange.sites, question())
    assert set(good.masked("ash", good.message())) == {"masked", "exponents"}


def test_a_round_that_a_site_has_left_behind_is_over(exchange):
    exchange.masked("ash", exchange.message())
    for number in (2, 3):
        later = Exchange(exchange.sites, question(number))
        later.masked("ash", later.message())
    again = Exchange(exchange.sites, question(1))
    again.sites["ash"].masks._reply = (question(1).digest, Reply(Z))
    assert "round 1 is over: this site has gone on" in again.masked("ash", again.message())["refused"]


# ---- errors ----------------------------------------------------------------------------------------------------

BEYOND = r"site 'ash': a number of its reply in round 1 \(gram.multiply\) is beyond the limit that was agreed"


def test_a_number_beyond_the_scale_is_an_error_at_the_site_that_tells_no_value(exchange):
    message = exchange.message(exponents={"value": 60})
    with pytest.raises(DataError, match=BEYOND) as error:
        exchange.masked("ash", message)
    largest = np.abs(rows_of()["ash"].T @ rows_of()["ash"] @ Z).max()
    assert f"{largest:.3g}"[:3] not in str(error.value)


def test_one_error_ends_the_run_at_its_site(exchange):
    with pytest.raises(DataError):
        exchange.masked("ash", exchange.message(exponents={"value": 60}))
    for number in (1, 2):
        again = Exchange(exchange.sites, replace(question(), number=number))
        again.message()
        assert "site 'ash' ended this run with an error, and says no more in it" in again.made.refused["ash"]


def test_a_site_answers_within_its_part_of_the_bound():
    """A step's own bound, for this site's rows: what is beyond was not worked out from them."""

    @site_step("tests.overstated", bound=lambda message, total, weight: {"value": total / 100})
    def overstated(site, message):
        return Reply(site.data.gram_times(message))

    try:
        exchange = Exchange(prepared(sites_of()), question(step=overstated))
        with pytest.raises(DataError, match="is beyond the limit"):
            exchange.masked("ash", exchange.message())
    finally:
        del STEPS["tests.overstated"]


@pytest.mark.parametrize("kind", ["bound", "value"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_an_error_at_the_site(kind, value):
    @site_step("tests.endless")
    def endless(site, message):
        return Reply(np.array([1.0, value]))

    try:
        exchange = Exchange(prepared(sites_of()), question(step=endless), kind=kind)
        with pytest.raises(DataError, match=r"site 'ash': a number of its reply .* or none"):
            exchange.masked("ash", exchange.message())
    finally:
        del STEPS["tests.endless"]


# ---- under a policy --------------------------------------------------------------------------------------------

PROMISE = promise("distributed", testing_seed=None)
SHARED = SumTerms(SecureSums(), "a run", 4, least=4, noised=True)


def private_sites(folder=None):
    """Sites with their share of noise, prepared."""
    return prepared(sites_of(terms=SHARED, privacy=PROMISE, folder=folder), SHARED)


def test_under_a_policy_no_bound_is_told():
    exchange = Exchange(private_sites(), question(), kind="bound", terms=SHARED)
    reply = exchange.masked("ash", exchange.message())
    assert "under a privacy policy the scale follows from the noise; no bound of the rows is told" in reply["refused"]


def test_under_a_policy_the_scale_is_the_grid_of_the_noise():
    exchange = Exchange(private_sites(), question(), terms=SHARED)
    reply = exchange.masked("ash", exchange.message(exponents={"value": 3}))
    step = exchange.sites["ash"].policy.steps()["product"]
    assert reply["exponents"] == {"value": -round(np.log2(step))}


@pytest.mark.parametrize("restarted", [False, True])
def test_a_noised_reply_is_read_as_it_was_when_it_is_given_again(tmp_path, restarted):
    """A site that was killed after it answered has its reply on disk, and must know on which grid it lies."""
    sites = private_sites(tmp_path)
    first = Exchange(sites, question(), terms=SHARED)
    scale = first.masked("ash", first.message())["exponents"]
    if restarted:
        sites = sites_of(terms=SHARED, privacy=PROMISE, folder=tmp_path)
    kept = digest(sites["ash"].memory._last["value"])
    again = Exchange(sites, question(), terms=SHARED)
    assert again.masked("ash", again.message())["exponents"] == scale
    assert digest(sites["ash"].memory._last["value"]) == kept


def test_under_a_policy_an_error_is_a_code(monkeypatch):
    exchange = Exchange(private_sites(), question(), terms=SHARED)
    message = exchange.message()

    def wrap(values, exponent, limit, rng):
        raise DataError(f"a value of size {np.abs(values).max()}")

    monkeypatch.setattr(fixed_point, "encode", wrap)
    with pytest.raises(DataError) as error:
        exchange.masked("ash", message)
    assert str(error.value) == (
        "site 'ash' cannot answer round 1 (gram.multiply): code data; the site's own log says more"
    )


def test_a_release_that_is_on_no_grid_is_refused(monkeypatch):
    exchange = Exchange(private_sites(), question(), terms=SHARED)
    message = exchange.message()
    monkeypatch.setattr(fixed_point, "is_on_grid", lambda values, exponent: False)
    assert "a release is not on the grid of its noise" in exchange.masked("ash", message)["refused"]


def test_no_step_of_the_protocol_takes_a_site_time():
    assert {name for name, step in STEPS.items() if step.protocol} == {
        f"secure.{phase}" for phase in ("keys", "shares", "masked", "consent", "release")
    }
    assert {name for name, step in STEPS.items() if step.quick} == {
        f"secure.{phase}" for phase in ("keys", "shares", "consent", "release")
    }
    assert not steps.masked.quick
    assert TERMS.fewest == 3
