"""What each release says of a site's Gram matrix G = A_i'A_i, read from the transcript and nothing else.

Every solver's release comes down to a few kinds of linear equations in the symmetric matrix G:

===========  =================================  ==========================================================
kind         equation                           from
===========  =================================  ==========================================================
``product``  G z = value                        power, Krylov, a Ritz round, FedPower without local steps;
                                                covariance, with z = I
``claimed``  G z = value, but only at a glance  FedPower with local steps, FAPS: what Prop. 2 would take it for
``near``     G z = value, nearly                FedPower with local steps, z the polar factor of the release; a
                                                stream's last summary (``product`` where nothing was cut off)
``cross``    (I - zz') G z = value              FAPS once X_i is near Z (Prop. 5); UDA's eigenvectors, with value 0
``core``     z'G z = value (nan: not known)     DR-SVD's triangular factor; UDA's eigenvectors
``inner``    tr(z'G z) = value                  the objective that FAPS sends along
===========  =================================  ==========================================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedspan.encoding import Array, Plain
from fedspan.errors import ConfigurationError
from fedspan.privacy.transcript import Seen, Transcript
from fedspan.solvers.covariance import from_triangle

EXACT = 1e-9
"""A cross equation whose relative deviation is below this one holds to rounding."""
_DOUBLE = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Equation:
    """One matrix equation in G; see the table above."""

    round: int
    kind: str
    z: Array
    value: Array
    deviation: float = 0.0
    """FAPS: how far Z'Y_i is from a multiple of the identity, zero where X_i = Z. ``near``: its error, over ||G||."""
    beta: float | None = None
    """FAPS: the penalty that Z'Y_i = beta_i I tells."""
    norm: float | None = None
    """FAPS: ||A_i||_2^2, the largest eigenvalue of G, of which the first beta_i is a known share."""

    @property
    def exact(self) -> bool:
        """Whether it holds to rounding."""
        return self.kind not in ("claimed", "near") and self.deviation <= EXACT


@dataclass(frozen=True)
class Setup:
    """What the set-up rounds told of one site, as far as they were recorded."""

    features: int
    rounding: float = _DOUBLE
    """The rounding unit of the site's products."""
    positive: bool = True
    """Whether G is a Gram matrix of rows, so positive semi-definite, and not a share of a symmetric matrix."""
    mass: float | None = None
    """The sum of its row weights: the number of rows where there are none."""
    sums: Array | None = None
    """The column sums of the prepared rows."""
    trace: float | None = None
    diagonal: Array | None = None
    noised: bool = False
    """Whether the site adds noise to what it releases."""

    @property
    def mean_part(self) -> Array:
        """Return a factor m, d x 1 or d x 0, of what the mean row alone contributes: G - m m' is positive too."""
        if self.sums is None or not self.mass or not self.positive:
            return np.zeros((self.features, 0))
        return np.asarray(self.sums[:, None] / np.sqrt(self.mass))


def read_setup(transcript: Transcript, site: str) -> Setup:
    """Return what the set-up rounds told of a site."""
    told = {seen.step: (seen.message, _bare(reply)) for seen, reply in transcript.releases(site) if seen.setup}
    facts: dict[str, Any] = {"features": count_features(transcript)}
    if "data.describe" in told:
        described = told["data.describe"][1]
        facts |= {"rounding": float(np.finfo(described["dtype"]).eps), "positive": not described["symmetric"]}
    if "data.prepare" in told:
        prepared, total = told["data.prepare"]
        if prepared.get("total", True):  # a round that only tightens the clip tells none
            facts["trace"] = float(total)
        facts["noised"] = prepared.get("privacy", {}).get("trust", "central") != "central"
        if "data.moments" in told and facts.get("positive", True):
            moments = told["data.moments"][1]
            whole = _is_whole(set(moments))  # a private study may not ask for all
            if whole:
                facts |= {"mass": float(moments["weight"]), "sums": _prepared_sums(prepared, moments)}
            if whole and "data.spread" in told:
                facts["diagonal"] = _diagonal(prepared, told["data.spread"], facts["mass"], moments)
    return Setup(**facts)


def _is_whole(parts: set[str]) -> bool:
    return {"weight", "sums", "present"} <= parts or {"weight", "normal"} <= parts


def _prepared_sums(prepared: dict[str, Plain], moments: dict[str, Plain]) -> Array:
    """Return the column sums of the rows as prepared: gaps filled, centred, scaled, or over the roots of degrees."""
    if prepared.get("degree"):
        sums = moments["normal"]
    else:
        sums = _filled(prepared, moments) - moments["weight"] * prepared.get("mean", 0.0)
    return np.asarray(sums / prepared.get("scale", 1.0))


def _filled(prepared: dict[str, Plain], moments: dict[str, Plain]) -> Any:
    return moments["sums"] + (moments["weight"] - moments["present"]) * prepared.get("fill", 0.0)


def _diagonal(prepared: dict[str, Plain], spread: tuple[Plain, Plain], mass: float, moments: dict[str, Plain]) -> Array:
    """Return the diagonal of G: the squares about the mean, moved to about zero where rows were not centred."""
    about, squares = spread
    if "mean" not in prepared:
        squares = squares + about["mean"] * (2 * _filled(prepared, moments) - mass * about["mean"])
    return np.asarray(squares / prepared["scale"] ** 2)


def read_equations(seen: Seen, reply: Plain, setup: Setup) -> list[Equation] | None:
    """Return what a release says of G; None where the audit does not know the step."""
    reader = READERS.get(seen.step)
    return None if reader is None else reader(seen, _bare(reply), setup)


def count_features(transcript: Transcript) -> int:
    """Return d, as the first release that shows it does."""
    for seen in transcript.rounds:
        for reply in map(_bare, seen.replies.values()):
            if seen.step == "data.moments" and ("sums" in reply or "degrees" in reply):
                return len(reply["sums" if "sums" in reply else "degrees"])
            if seen.step == "covariance.gram":
                return int(np.sqrt(2 * len(reply)))
            if seen.step in READERS:
                z = seen.message["z"] if isinstance(seen.message, dict) and "z" in seen.message else seen.message
                if isinstance(z, np.ndarray):
                    return len(z)
                return len(reply["basis" if "basis" in reply else "factor"] if isinstance(reply, dict) else reply)
    raise ConfigurationError("the transcript holds no release that an attack could use; audit a run with rounds in it")


def _bare(reply: Plain) -> Plain:
    """Return a release without the weight that came with it."""
    return reply["value"] if isinstance(reply, dict) and set(reply) == {"value", "weight"} else reply


# ---- one reader for each step ------------------------------------------------------------------------------------


def _product(seen: Seen, reply: Plain, setup: Setup) -> list[Equation]:
    return [Equation(seen.round, "product", seen.message, reply["product"] if isinstance(reply, dict) else reply)]


def _local_steps(seen: Seen, reply: Plain, setup: Setup) -> list[Equation]:
    message = seen.message
    z, y = (reply["z"], reply["y"]) if message["gather"] else (message["z"], reply)
    if message["per_row"]:  # scheme 1: divided by a mass that the set-up rounds told
        mass = float(reply["rows"]) if message["gather"] else setup.mass
        if mass is None:
            return []
        y = y * mass
    if message["average"]:  # the iterate itself, times the mass
        return [Equation(seen.round, "claimed", z, y)]
    if message["steps"] == 1 or message["gather"]:
        return [Equation(seen.round, "product", z, y)]
    return [Equation(seen.round, "claimed", z, y), _settled(seen.round, z, y, message["steps"])]


def _settled(number: int, z: Array, y: Array, steps: int) -> Equation:
    """Return what local steps give away: Y = G Z_i D with an orthogonal D, and Z_i soon spans an invariant subspace.

    If it does, Y is Z_i D times a symmetric positive matrix, so that Z_i D is the polar factor of Y. The error is a
    rule of thumb (on digits 2e-2 for four steps from a random start, 2e-3 for four from where sites agree): it falls
    with every local step, and with the square of the angle that the steps turned Z by.
    """
    u, _, vt = np.linalg.svd(y, full_matrices=False)
    own = u @ vt
    turned = np.linalg.norm(own - z @ (z.T @ own), 2)
    return Equation(number, "near", own, y, max(0.4**steps * float(turned) ** 2, EXACT))


def _consensus(seen: Seen, reply: Plain, setup: Setup) -> list[Equation]:
    """FAPS, Prop. 5: with X_i = Z the release is beta_i Z + (I - ZZ')G Z; how near it is shows in Z'Y_i."""
    message = seen.message
    z, y = message["z"], message["unit"] * reply["product"]
    inside = z.T @ y
    r = len(inside)
    beta = float(np.trace(inside)) / r
    deviation = float(np.linalg.norm(inside - beta * np.eye(r))) / max(abs(beta) * np.sqrt(r), 1e-300)
    norm = None
    if message["k"] == 0:  # here X_i = Z, by definition
        norm = beta / message["penalty"]
    elif r == 1:  # any 1 x 1 matrix is a multiple of the identity: nothing says how near X_i is
        deviation = np.inf
    else:  # where W_i vanishes it is of second order in the angle, and the block's error of first: never to rounding
        deviation = max(deviation, 100 * EXACT)
    return [
        Equation(seen.round, "claimed", z, y),
        Equation(seen.round, "cross", z, y - z @ inside, deviation, beta, norm),
        Equation(seen.round, "inner", z, np.asarray(message["unit"] * reply["objective"])),
    ]


def _whole(seen: Seen, reply: Plain, setup: Setup) -> list[Equation]:
    d = setup.features
    return [Equation(seen.round, "product", np.eye(d), from_triangle(reply, d))]


def _local_basis(seen: Seen, reply: Plain, setup: Setup) -> list[Equation]:
    """Eigenvectors V of G: (I - VV')G V = 0 and V'G V is diagonal; with values (WDA) G V itself."""
    if isinstance(reply, dict) and setup.mass is not None:
        return [Equation(seen.round, "product", reply["basis"], reply["basis"] * (reply["values"] * setup.mass))]
    basis = reply["basis"] if isinstance(reply, dict) else reply
    equations = []
    if basis.shape[1] > 0:  # none where the site is constant
        equations.append(Equation(seen.round, "cross", basis, np.zeros_like(basis)))
    if basis.shape[1] > 1:
        off_diagonal = np.where(np.eye(basis.shape[1]) > 0, np.nan, 0.0)
        equations.append(Equation(seen.round, "core", basis, off_diagonal))
    return equations


def _r_factor(seen: Seen, reply: Plain, setup: Setup) -> list[Equation]:
    """DR-SVD: R'R = w'G w."""
    return [Equation(seen.round, "core", seen.message, reply.T @ reply)]


def _summary(seen: Seen, reply: Plain, setup: Setup) -> list[Equation]:
    """A stream's last summary: U S with G U = U S^2, but for what was cut off, which is below the last value kept."""
    message, factor = seen.message, reply["factor"]
    if message["slice"] < message["slices"] - 1 or message["forgetting"] != 1 or not factor.size:
        return []  # of some rows only, or of rows that count for less
    squares = np.sum(factor**2, axis=0)
    basis, lost = factor / np.sqrt(squares), max(float(reply["total"]) - float(squares.sum()), 0.0)
    if lost <= EXACT * float(reply["total"]):
        return [Equation(seen.round, "product", basis, factor * np.sqrt(squares))]
    deviation = max(min(float(squares[-1]), lost) / float(squares[0]), EXACT)
    return [Equation(seen.round, "near", basis, factor * np.sqrt(squares), deviation)]


READERS: dict[str, Callable[[Seen, Plain, Setup], list[Equation]]] = {
    "gram.multiply": _product,
    "gram.multiply_counted": _product,
    "fedpower.local_steps": _local_steps,
    "faps.consensus": _consensus,
    "covariance.gram": _whole,
    "one_shot.local_basis": _local_basis,
    "one_shot.r_factor": _r_factor,
    "streaming.advance": _summary,
}
"""How the release of each step is read."""
