"""The coordinator's share in privacy: its ledger, and the noise that a study trusts it with.

Sites hold disjoint rows, so what each of them is charged under local trust composes in parallel: the coordinator's
ledger takes the maximum, one charge for a release of all (every site has the same terms). Under central trust the sites
send plain sums, and the noise is added here, once, before anyone else sees them; FedPower as published adds some of its
own too. This layer lies below the recorder: what is recorded is what the solver received.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from fedspan.encoding import Plain
from fedspan.errors import PolicyError
from fedspan.privacy.mechanisms import add_noise, fixed_scale
from fedspan.privacy.releases import Releases
from fedspan.rounds import Gather, Outcome, Round, Solve

T = TypeVar("T")
_ONLY_PARTS = {
    "data.spread": "squares", "data.prepare": "total", "covariance.gram": "gram", "mod_sulq.factor": "gram",
    "mod_sulq.block": "gram",
}  # fmt: skip
"""What a release of one part is called, where it is not a product."""


def follow(solve: Solve[T], releases: Releases) -> Solve[T]:
    """Note the study's bounds and terms as its rounds go by; above the recorder, as replayed rounds tell them too."""
    outcome: Outcome | None = None
    while True:
        try:
            question: Round = solve.send(outcome)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        _install(releases, question)
        outcome = yield question
        if question.step.public:
            releases.features = next(iter(outcome.value.values()))["features"]


def account(solve: Solve[T], releases: Releases) -> Solve[T]:
    """Charge every release to the coordinator's ledger; noise the sums that it is trusted with."""
    outcome: Outcome | None = None
    while True:
        try:
            question: Round = solve.send(outcome)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        _check_seen(releases, question)
        outcome = yield question
        if question.step.public:
            continue
        if isinstance(question.reduce, Gather):
            releases.charge(question, _gathered_shapes(question, outcome.value), block=_block(question))
        else:
            outcome = outcome._replace(value=_summed(releases, question, outcome.value))


def _check_seen(releases: Releases, question: Round) -> None:
    trust = releases.privacy.trust
    if isinstance(question.reduce, Gather) and trust != "local" and not question.step.public:
        raise PolicyError(
            f"step {question.step.name} shows the coordinator each reply, which trust = {trust!r} leaves without "
            f"enough noise; take a solver that needs sums only, or trust = 'local'"
        )


def _install(releases: Releases, question: Round) -> None:
    """Note the bounds that the sites clip to, and the terms they are told."""
    message = question.message
    if question.step.name == "data.moments":
        width = releases.features if message["columns"] is None else len(message["columns"])
        releases.set_bounds(width, {"degree": message["degree"]}, install=False)
    elif question.step.name == "data.spread":
        releases.set_bounds(message["features"], message, install=False)
    elif question.step.name == "data.prepare":
        releases.set_bounds(message["features"], message, install=True)
        releases.accept(message["privacy"])


def _gathered_shapes(question: Round, replies: dict[str, Plain]) -> dict[str, tuple[int, ...]]:
    """Return the shape of what was noised at each site: mod-sulq folds the d x d that it noised into d x r."""
    reply = next(iter(replies.values()))
    d = len(reply["factor"] if isinstance(reply, dict) else reply)
    return {_ONLY_PARTS.get(question.step.name, "product"): (d, d)}


def _block(question: Round) -> tuple[str, int] | None:
    """Return the part of the rows that a release is about, where that is not all."""
    if question.step.name != "mod_sulq.block":
        return None
    return f"blocks of {question.message['blocks']}", question.message["block"]


def _summed(releases: Releases, question: Round, value: Plain) -> Plain:
    """Charge a sum, with the coordinator's noise where it has any to add."""
    parts = value if isinstance(value, dict) else {_ONLY_PARTS.get(question.step.name, "product"): value}
    if releases.privacy.trust == "central":
        parts = releases.release(question, parts)
    else:
        shapes = {name: np.shape(part) for name, part in parts.items()}
        releases.charge(question, shapes, rows=_typical_rows(releases))
        parts = _second_noise(releases, question, parts)
    return parts if isinstance(value, dict) else next(iter(parts.values()))


def _typical_rows(releases: Releases) -> float:
    """Return the sites' root mean square size, by which FedPower's noise as published grows; 1 where not known."""
    sizes = releases.published.sizes if releases.published is not None else ()
    return float(np.sqrt(np.mean(np.square(sizes)))) if sizes else 1.0


def _second_noise(releases: Releases, question: Round, parts: dict[str, Any]) -> dict[str, Any]:
    """Add what FedPower as published adds at the server (Alg. 2 line 7, Alg. 3 line 10)."""
    if releases.published is None or question.step.setup:
        return parts
    sigma = releases.published.at_coordinator(question, releases)
    stream = releases.stream(question, "coordinator", releases.secret.tag("second", question.number, parts))
    return {
        name: add_noise(stream, part, fixed_scale(sigma)) if np.ndim(part) else part for name, part in parts.items()
    }
