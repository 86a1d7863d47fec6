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
from fedspan.secure.party import Party
from fedspan.secure.roll import reading
from fedspan.secure.session import Session

SLACK = 1 + 2.0**-20
"""Bounds are worked out in floating point, at two places."""
_SMALLEST = 2.0**-500
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
    return Reply(session.once("masked", message, lambda: _hidden(site, party, session, message)))


def _hidden(site: Site, party: Party, session: Session, message: dict[str, Plain]) -> Plain:
    """Work the reply out and mask it."""
    asked = site.asked
    assert asked is not None
    step = STEPS.get(messages.text(message["step"], "a step"))
    if step is None or step.protocol or step.public:
        raise ProtocolError(f"there is no step {messages.shown(message['step'])} to be masked")
    if asked.terms is not None and set(asked.terms) - {"preparation"}:
        raise ProtocolError(f"a site begins again from its preparation, not from {messages.shown(sorted(asked.terms))}")
    inner = Round(step, message["message"], number=asked.number, parents=asked.parents, terms=asked.terms)
    if inner.digest != session.subject.question:
        raise ProtocolError("the question is not the one that the keys were made for")
    times, mean = party.times(session, message["times"]), messages.flag(message["mean"], "whether it is a mean")
    bound = session.subject.kind == "bound"
    if bound:
        _refuse_bounds(site)
    before = site.memory.version(asked.parents.get(site.id)) or {}
    parts = _parts(party.kept(inner.digest, lambda: answer(site, inner, masked=True)), mean, times)
    state = _state(site, inner)
    exponents = dict.fromkeys(parts, 0) if bound else _exponents(site, state, parts, message["exponents"])
    about = reading(exponents, message["times"], mean, {} if step.setup else state, before.get("lineage", ""))
    party.agree(session, about)
    try:
        limits = _limits(site, inner, parts, times, mean, len(session.roll.names), exponents)
        values = _bounds(limits) if bound else _encoded(site, inner, parts, exponents, limits)
    except DataError as error:
        party.end()
        raise _complaint(site, inner, error) from error
    hidden = flat(values)
    session.hide(hidden, about)
    return {"masked": shaped(hidden, values), "exponents": exponents}


def _state(site: Site, inner: Round) -> dict[str, Plain]:
    """Return the state that a reply left behind: with the preparation, and the grid of its noise."""
    state = site.memory.version(inner.number)
    if state is None:
        raise ProtocolError(f"round {inner.number} is over: this site has gone on")
    return state


def _bounds(limits: dict[str, float]) -> dict[str, Array]:
    return {name: fixed_point.to_wide(limit) for name, limit in limits.items()}


def _encoded(
    site: Site, inner: Round, parts: dict[str, Array], exponents: dict[str, int], limits: dict[str, float]
) -> dict[str, Array]:
    """Return the parts in fixed point, dithered where no noise was added: whose grid is not rounded to."""
    rng = None if _is_noised(site) else _party(site).rng("dither", inner.digest)
    return {name: fixed_point.encode(parts[name], exponents[name], limits[name], rng) for name in sorted(parts)}


def _is_noised(site: Site) -> bool:
    return site.policy is not None and site.policy.steps() is not None


def _complaint(site: Site, inner: Round, error: DataError) -> Exception:
    """Return what is said outside where a reply does not fit the scale: not how large it is."""
    if site.policy is not None:
        return site.policy.refusal(site, inner, error)
    return DataError(
        f"site {site.id!r}: a number of its reply in round {inner.number} ({inner.step.name}) is beyond the limit that "
        f"was agreed for a secure sum, or too small for one, or none; look for extreme values, or rescale the columns"
    )


def _parts(reply: Reply, mean: Plain, times: int) -> dict[str, Array]:
    """Return what is summed: the reply's numbers, as often as they count; for a mean times the weight, and that."""
    value = reply.value if isinstance(reply.value, dict) else {"value": reply.value}
    factor = times * (reply.weight if mean else 1.0)
    try:
        parts = {name: np.asarray(part, dtype=np.float64) for name, part in value.items()}
    except (TypeError, ValueError) as cause:
        raise ProtocolError("the reply is not of numbers alone, and cannot be added up") from cause
    if factor != 1:
        parts = {name: factor * part for name, part in parts.items()}
    if mean:
        parts["weight of the mean"] = np.array(float(factor))
    return parts


def _refuse_bounds(site: Site) -> None:
    if _is_noised(site):
        raise ProtocolError("under a privacy policy the scale follows from the noise; no bound of the rows is told")


def _own_bound(part: Array, party: Party, question: str, name: str) -> float:
    """Return a bound of a part's numbers: the largest, times a factor below 2 that only this site knows.

    A sum of bounds that were rounded to something would tell which ones were put in; this tells their sum, about.
    """
    largest = float(np.max(np.abs(part), initial=0.0))
    if largest != 0 and not _SMALLEST < largest < 1 / _SMALLEST:
        raise DataError("a reply holds numbers that are too large or too small for a secure sum, or none")
    return largest * (1.0 + float(party.rng("bound", question, name).random()))


def _exponents(site: Site, state: dict[str, Plain], parts: dict[str, Array], given: Plain) -> dict[str, int]:
    """Return the scale of each part: that of the noise's own grid where there is any, else what was asked for."""
    steps = state.get("grid")
    if site.policy is not None and steps:
        grid = {name: -round(math.log2(step)) for name, step in steps.items()}
        exponents = grid if set(grid) == set(parts) else {name: next(iter(grid.values())) for name in parts}
        if site.policy.exact and not all(fixed_point.is_on_grid(parts[n], e) for n, e in exponents.items()):
            raise ProtocolError("a release is not on the grid of its noise, and rounding it would not be covered")
        return exponents
    if not isinstance(given, dict) or set(given) != set(parts):
        raise ProtocolError(f"exponents are given for {sorted(parts)}, got {messages.shown(given)}")
    for exponent in given.values():
        if not isinstance(exponent, int) or isinstance(exponent, bool) or abs(exponent) > MOST_EXPONENT:
            raise ProtocolError(f"an exponent is within {MOST_EXPONENT} of 0, got {messages.shown(exponent)}")
    return given


def _limits(
    site: Site, inner: Round, parts: dict[str, Array], times: int, mean: bool, sites: int, exponents: dict[str, int]
) -> dict[str, float]:
    """Return what no number of a part may exceed: this site's part of the bound that the scale was chosen by.

    A mean's is of what was summed up first: no step declares how large a reply is times its weight. Nor how large one
    is about a share of a symmetric matrix, whose trace bounds nothing. What has noise was cut before it was added
    (`fedspan.privacy.mechanisms`); noise in floats was not, and must leave room for the others.
    """
    if _is_noised(site):
        return {name: math.ldexp(1.0, 62 - exponent) / sites for name, exponent in exponents.items()}
    bound = None
    if inner.step.bound is not None and not mean and not site.data.symmetric:
        bound = inner.step.bound(inner.message, site.data.total(), site.data.mass)
    if bound is None:
        return {name: _own_bound(part, _party(site), inner.digest, name) for name, part in parts.items()}
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
