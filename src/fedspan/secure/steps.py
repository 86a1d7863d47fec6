"""A secure sum's phases as steps: what travels is their names, like that of any other step.

A refusal is a reply, not an error: whoever refuses drops out of this sum, and the others may still be enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fedspan.encoding import Array, Plain
from fedspan.errors import DataError, ProtocolError
from fedspan.reduce import MOST_EXPONENT
from fedspan.rounds import STEPS, Reply, Round, Site, answer, site_step
from fedspan.secure import fixed_point, messages
from fedspan.secure.party import Party, Session
from fedspan.secure.roll import reading

SLACK = 1 + 2.0**-20
"""Bounds are worked out in floating point, at two places."""
_MASKED = ("session", "step", "message", "exponents", "times", "mean")


def _phase(name: str, run: Callable[[Party, int, Plain], Plain]) -> Any:
    def step(site: Site, message: Plain) -> Reply:
        try:
            assert site.asked is not None
            return Reply(run(_party(site), site.asked.number, message))
        except ProtocolError as error:
            return Reply({"refused": str(error)})

    return site_step(name, protocol=True, quick=True)(step)


def _party(site: Site) -> Party:
    if site.masks is None:
        raise ProtocolError(f"site {site.id!r} has no keys for secure sums; open it with secure sums agreed on")
    party: Party = site.masks
    return party


keys = _phase("secure.keys", Party.advertise)
shares = _phase("secure.shares", Party.share)
consent = _phase("secure.consent", Party.consent)
release = _phase("secure.release", Party.release)


@site_step("secure.masked", protocol=True)
def masked(site: Site, message: Plain) -> Reply:
    """Answer the question itself, and hide the answer."""
    try:
        return _masked(site, message)
    except ProtocolError as error:
        return Reply({"refused": str(error)})


def _masked(site: Site, message: Plain) -> Reply:
    party, asked = _party(site), site.asked
    assert asked is not None
    if not isinstance(message, dict) or set(message) != {*_MASKED, "letter"}:
        raise ProtocolError(f"a masked question has the fields {sorted({*_MASKED, 'letter'})}")
    session = party.admit(asked.number, {key: message[key] for key in ("session", "letter")})
    return Reply(party.once("masked", message, lambda: _hidden(site, party, session, message)))


def _hidden(site: Site, party: Party, session: Session, message: dict[str, Plain]) -> Plain:
    """Work the reply out and mask it."""
    asked = site.asked
    assert asked is not None
    step = STEPS.get(messages.text(message["step"], "a step"))
    if step is None or step.protocol or step.public:
        raise ProtocolError(f"there is no step {message['step']!r:.80} to be masked")
    inner = Round(step, message["message"], number=asked.number, parents=asked.parents, terms=asked.terms)
    if inner.digest != session.subject.question:
        raise ProtocolError("the question is not the one that the keys were made for")
    times = _times(message["times"], party)
    if session.subject.kind == "bound":
        _refuse_bounds(site)
    parts = _parts(party.kept(inner.digest, lambda: answer(site, inner, masked=True)), message["mean"], times)
    try:
        if session.subject.kind == "bound":
            values = {name: fixed_point.to_wide(_power_above(part)) for name, part in parts.items()}
            exponents = dict.fromkeys(values, 0)
        else:
            exponents = _exponents(site, parts, message["exponents"])
            limits = _limits(site, inner, parts, times)
            values = {name: fixed_point.encode(part, exponents[name], limits[name]) for name, part in parts.items()}
    except DataError as error:
        party.close(asked.number)
        if site.policy is None:
            raise DataError(f"site {site.id!r}: {error}") from error
        raise site.policy.refusal(site, inner, error) from error
    hidden = flat(values)
    party.mask(session, hidden, reading(exponents, message["times"], message["mean"]))
    return {"masked": shaped(hidden, values), "exponents": exponents}


def _times(times: Plain, party: Party) -> int:
    if not isinstance(times, dict):
        raise ProtocolError(f"how often replies count is a dict by site, got {times!r:.80}")
    counts = [messages.whole(count, "how often a reply counts") for count in times.values()]
    if max(counts, default=1) > party.most_times:
        raise ProtocolError(f"a reply would count {max(counts)} times; this site's policy is {party.most_times}")
    return int(times.get(party.name, 1))


def _parts(reply: Reply, mean: Plain, times: int) -> dict[str, Array]:
    """Return what is summed: the reply's numbers, as often as they count; for a mean times the weight, and that."""
    value = reply.value if isinstance(reply.value, dict) else {"value": reply.value}
    factor = times * (reply.weight if mean else 1.0)
    parts = {name: np.asarray(part, dtype=np.float64) for name, part in value.items()}
    if factor != 1:
        parts = {name: factor * part for name, part in parts.items()}
    if mean:
        parts["weight of the mean"] = np.array(float(factor))
    return parts


def _refuse_bounds(site: Site) -> None:
    if site.policy is not None and site.policy.steps() is not None:
        raise ProtocolError("under a privacy policy the scale follows from the noise; no bound of the rows is told")


def _power_above(part: Array) -> float:
    """Return the least power of two that no number of a part exceeds: a bound that tells no more than its size."""
    largest = float(np.max(np.abs(part), initial=0.0))
    if not math.isfinite(largest):
        raise DataError("a reply holds numbers that are not finite; look for extreme values in the data")
    return 0.0 if largest == 0 else 2.0 ** math.ceil(math.log2(largest))


def _exponents(site: Site, parts: dict[str, Array], given: Plain) -> dict[str, int]:
    """Return the scale of each part: that of the noise's own grid where there is any, else what was asked for."""
    steps = None if site.policy is None else site.policy.steps()
    if site.policy is not None and steps is not None:
        grid = {name: -round(math.log2(step)) for name, step in steps.items()}
        exponents = grid if set(grid) == set(parts) else {name: next(iter(grid.values())) for name in parts}
        if site.policy.exact and not all(fixed_point.is_on_grid(parts[n], e) for n, e in exponents.items()):
            raise ProtocolError("a release is not on the grid of its noise, and rounding it would not be covered")
        return exponents
    if not isinstance(given, dict) or set(given) != set(parts):
        raise ProtocolError(f"exponents are given for {sorted(parts)}, got {given!r:.80}")
    for exponent in given.values():
        if not isinstance(exponent, int) or isinstance(exponent, bool) or abs(exponent) > MOST_EXPONENT:
            raise ProtocolError(f"an exponent is within {MOST_EXPONENT} of 0, got {exponent!r:.80}")
    return given


def _limits(site: Site, inner: Round, parts: dict[str, Array], times: int) -> dict[str, float]:
    """Return what no number of a part may exceed: this site's part of the bound that the scale was chosen by."""
    if site.policy is not None and site.policy.steps() is not None:
        return dict.fromkeys(parts, math.inf)  # clipped before its noise: `fedspan.privacy.mechanisms`
    bound = None
    if inner.step.bound is not None:
        bound = inner.step.bound(inner.message, site.data.total(), site.data.mass)
    if bound is None:
        return {name: _power_above(part) for name, part in parts.items()}
    return {name: times * limit * SLACK for name, limit in bound.items()}


def flat(values: dict[str, Array]) -> Array:
    """Return all parts as one vector, in order of their names."""
    return np.concatenate([values[name].ravel() for name in sorted(values)])


def shaped(flat: Array, like: dict[str, Array]) -> dict[str, Array]:
    """Return the parts of a flat vector again."""
    parts, at = {}, 0
    for name in sorted(like):
        size = like[name].size
        parts[name], at = flat[at : at + size].reshape(like[name].shape), at + size
    return parts
