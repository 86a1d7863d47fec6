"""The attacker who runs the site's own code: for which Gram matrix would a site have released just this?

Behind local steps or masks a release is no longer linear in G = A_i'A_i, but it is still a known function of it. So the
attacker guesses a G, runs the solver's step on it round after round, compares with what was released, and mends the
guess by Gauss-Newton steps (`scipy.optimize.least_squares`). It costs d (d + 1) / 2 simulated runs for each step, so it
is tried up to `FEATURES` features; what stops it beyond is patience, not the method.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import least_squares

from fedspan.encoding import Array, Plain
from fedspan.privacy.transcript import Seen
from fedspan.rounds import STEPS, Site

FEATURES = 8
"""Up to so many features the attack is tried."""
SIMULATED = ("faps.consensus", "fedpower.local_steps", "gram.multiply", "gram.multiply_counted")
_ROUNDS = (2, 3, 4, 6, 8, 12)  # so many rounds are fitted first: few are quick and lead near, more make it sharp
_STEPS = 25


class _Guessed:
    """A site's data as far as a step asks for it: a guess of its Gram matrix, and its mass."""

    def __init__(self, gram: Array, mass: float) -> None:
        self._gram, self.mass = gram, mass

    def gram_times(self, z: Array) -> Array:
        return np.asarray(self._gram @ z)


def fit_by_simulation(releases: Sequence[tuple[Seen, Plain]], mass: float, start: Array) -> Array:
    """Return the G, found from ``start``, whose simulated releases come nearest to these."""
    known = [(seen, reply) for seen, reply in releases if seen.step in SIMULATED]
    masked = [release for release in known if not release[0].step.startswith("gram.")]
    plain = [release for release in known if release[0].step.startswith("gram.")]
    unit = float(np.trace(start)) or 1.0
    guess = start / unit
    for rounds in _ROUNDS:
        guess = _fit([*masked[:rounds], *plain], mass, guess, unit)
    return np.asarray(unit * guess)


def _fit(releases: Sequence[tuple[Seen, Plain]], mass: float, start: Array, unit: float) -> Array:
    upper = np.triu_indices(len(start))
    released = np.concatenate([_flat(reply) / _size(seen, unit) for seen, reply in releases])

    def misses(entries: Array) -> Array:
        return np.asarray(_released(releases, mass, unit * _symmetric(entries, upper), unit) - released)

    try:
        found = least_squares(misses, start[upper], max_nfev=_STEPS, xtol=1e-14, ftol=1e-14, gtol=None)
    except (ValueError, np.linalg.LinAlgError):  # a guess so wild that the site's code fails on it
        return start
    return _symmetric(found.x, upper)


def _released(releases: Sequence[tuple[Seen, Plain]], mass: float, gram: Array, unit: float) -> Array:
    """Run the site's steps on a guess; return what it would have released."""
    site = Site("guess", None)
    site.data = _Guessed(gram, mass)
    parts = []
    for seen, _ in releases:
        reply = STEPS[seen.step].run(site, seen.message)
        site.state = {**site.state, **(reply.state or {})}
        parts.append(_flat(reply.value) / _size(seen, unit))
    return np.concatenate(parts)


def _size(seen: Seen, unit: float) -> float:
    """Return what a release is divided by, so that all weigh alike: FAPS sends numbers in units of its own."""
    return unit / float(seen.message["unit"]) if seen.step == "faps.consensus" else unit


def _flat(value: Plain) -> Array:
    if isinstance(value, dict):
        return np.concatenate([_flat(value[name]) for name in sorted(value)])
    return np.ravel(np.asarray(value, dtype=float))


def _symmetric(entries: Array, upper: tuple[Array, Array]) -> Array:
    d = int(upper[0].max()) + 1
    full = np.zeros((d, d))
    full[upper] = entries
    return np.asarray(full + np.triu(full, 1).T)
