"""Private power in its three placements, side by side: one party (Alg. 1), secure sums (Alg. 2), no coordinator.

Nicolas et al. (2024), Section 6. The paper claims that Alg. 2 is as accurate as Alg. 1 (Theorem 6.2) and gives what
secure sums cost in orders of magnitude (Table 2, `fedspan.cli.reproduce_ppm_growth`), but runs neither. Here both are
run on a normalised item-item matrix G = B'B, B = D_U^-1/2 R D_I^-1/2, whose rows (users) are dealt to sites: the sites'
shares B_i'B_i sum to G. Neighbours are the paper's (12), a change of G; the degrees in B are not part of that, and
nothing is charged for them (`normalise="degree"` with neighbours of rows does).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from fedspan.cli.reproduce_ppm_cost import measure as measure_cost
from fedspan.cli.reproduce_ppm_data import interaction_changes, leading_vectors, normalised
from fedspan.cli.reproduce_ppm_growth import MeasureCost, measure_growth
from fedspan.cli.reproduce_ppm_secure_tables import text
from fedspan.cli.reproduce_shared import Report
from fedspan.data import Preparation, open_source
from fedspan.data.partition import even
from fedspan.datasets import load
from fedspan.encoding import Array, write_atomically
from fedspan.engines import Engine, Gossip
from fedspan.errors import DataError
from fedspan.metrics import captured_variance, projection_distance
from fedspan.privacy.gaussian import GaussianPrivacy
from fedspan.run import Result, Study, run
from fedspan.solvers import Power, PrivatePower

__all__ = ["GOWALLA", "Placement", "Setting", "measure", "measure_set", "placements", "recall", "reproduce", "text"]

GROWTH = (10, 30, 100, 300), (10_000, 100_000)
"""Sites, and numbers in a message, over which Table 2's growth is measured."""
GOSSIP = Gossip()
"""The placement without a coordinator: a random graph in which everyone has four neighbours."""
CALIBRATIONS = ("published", "tight")
_REMOVED = 1000  # interactions, one at a time
_CHUNK = 500  # users scored at a time


@dataclass(frozen=True)
class Setting:
    """What is run, in the paper's symbols; it gives none of these figures."""

    k: int = 16
    p: int = 32
    rounds: int = 3
    """L; the paper: usually 1 to 5."""
    epsilon: float = 1.0
    delta: float = 1e-6
    change: float = 1.0
    """How large a change of G is hidden: 1 in (12)."""
    sites: int = 10
    seed: int = 0
    top: int = 20
    users: int = 2000
    """On how many of the users, drawn at random, recall is measured."""


GOWALLA = (
    Setting(), Setting(change=0.1), Setting(epsilon=10.0, change=0.1), Setting(epsilon=10.0, change=0.01)
)  # fmt: skip
"""The paper's neighbours; about those without one interaction; then with less and less noise."""
QUICK = (Setting(change=0.1, sites=5, users=500), Setting(epsilon=10.0, change=0.01, sites=5, users=500))


@dataclass(frozen=True)
class Placement:
    """Where the rows lie, who adds the noise, and what executes the rounds."""

    name: str
    trust: str
    sites: int
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of `fedspan.run.run`, such as an engine."""


def placements(setting: Setting, gossip: Engine | None = None) -> list[Placement]:
    """Return Alg. 1, Alg. 2 and, given an engine for it, the same without a coordinator."""
    found = [
        Placement("one party (Alg. 1)", "central", 1),
        Placement("secure sums (Alg. 2)", "distributed", setting.sites),
    ]
    if gossip is not None:
        found.append(Placement("gossip", "distributed", setting.sites, {"engine": gossip}))
    return found


def reproduce(
    folder: Path,
    *,
    tables: bool = True,
    figures: bool = True,
    quick: bool = False,
    report: Report = lambda _: None,
    gossip: Engine | None = GOSSIP,
    cost: MeasureCost = measure_cost,
) -> dict[str, Any]:
    """Measure private power on Gowalla in every placement, and Table 2's growth (``tables``); write both.

    The folder gets ``ppm-secure.json`` (what is returned: plain data) and ``secure.md`` (its `text`). There are no
    ``figures``.
    """
    settings = QUICK if quick else GOWALLA
    try:
        found = measure_set("gowalla", settings, report, gossip=gossip)
    except DataError as why:
        report("gowalla: not available here")
        found = {"set": "gowalla", "absent": str(why)}
    result: dict[str, Any] = {"sets": {"gowalla": found}}
    if tables:
        sites, sizes = GROWTH
        result["growth"] = measure_growth(cost, sites[:2] if quick else sites, sizes[:1] if quick else sizes, report)
    write_atomically(folder / "ppm-secure.json", json.dumps(result, indent=1).encode())
    write_atomically(folder / "secure.md", text(result).encode())
    return result


def measure_set(
    name: str, settings: Sequence[Setting], report: Report, *, gossip: Engine | None = None
) -> dict[str, Any]:
    """Load a set without a network and measure every placement under every setting, as plain data."""
    found = load(name, download=False)
    train, test = (None if x is None else scipy.sparse.csr_array(x, dtype=float) for x in (found.X, found.X_test))
    return {"set": name, **measure(train, test, settings, report, gossip=gossip)}


def measure(
    train: Any, test: Any, settings: Sequence[Setting], report: Report, *, gossip: Engine | None = None
) -> dict[str, Any]:
    """Measure every placement under every setting on interactions, users x items; ``test`` may be None.

    Without noise the same method is measured once for each (k, p, L) as well: what noise cannot be blamed for.
    """
    matrix = normalised(train)
    best = leading_vectors(train, max(s.k for s in settings))
    runs: list[dict[str, Any]] = []
    for setting in settings:
        scorer = _Scorer(train, test, matrix, best[:, : setting.k], setting)
        plain = {"method": "no privacy", "calibration": "none", **_size(setting)}
        if not any(run.items() >= plain.items() for run in runs):
            runs.append({**plain, **scorer.measured(_plain(matrix, setting))})
            report(f"no noise, {setting.rounds} rounds")
        for placement, calibration in ((p, c) for p in placements(setting, gossip) for c in CALIBRATIONS):
            said = {"method": placement.name, "calibration": calibration, **asdict(setting)}
            runs.append({**said, **scorer.measured(_private(matrix, setting, placement, calibration))})
            report(f"{placement.name}, {calibration}, epsilon {setting.epsilon:g}, change {setting.change:g}")
    exact = {str(k): recall(train, test, matrix, best[:, :k], s) for k, s in {s.k: s for s in settings}.items()}
    users, items = train.shape
    changes = interaction_changes(train, _REMOVED)
    return {
        "users": users, "items": items, "interactions": int(train.nnz), "exact_recall": exact, "runs": runs,
        "interaction_changes": {
            "count": len(changes), "median": float(np.median(changes)), "most": float(changes.max())
        },
    }  # fmt: skip


def _size(setting: Setting) -> dict[str, Any]:
    return {name: getattr(setting, name) for name in ("k", "p", "rounds", "seed", "top")}


# ---- one run ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Ran:
    result: Result
    seconds: float


def _private(matrix: Any, setting: Setting, placement: Placement, calibration: str) -> _Ran:
    """Run Alg. 1 or 2: the whole budget is the solver's, as in the paper."""
    privacy = GaussianPrivacy(
        setting.epsilon, setting.delta, neighbours="ppm-12", entry_change=setting.change, trust=placement.trust,
        calibration=calibration, shares={"variance": 0.0},
    )  # fmt: skip
    solver = PrivatePower(rounds=setting.rounds, oversampling=setting.p - setting.k)
    study = replace(_study(setting, solver), privacy=privacy)
    return _run(study, matrix, placement)


def _plain(matrix: Any, setting: Setting) -> _Ran:
    solver = Power(rounds=setting.rounds, oversampling=setting.p - setting.k, tol=0.0)
    return _run(_study(setting, solver), matrix, Placement("no privacy", "", 1))


def _study(setting: Setting, solver: Power) -> Study:
    return Study(n_components=setting.k, solver=solver, preparation=Preparation(center=False), seed=setting.seed)


def _run(study: Study, matrix: Any, placement: Placement) -> _Ran:
    parts = even(matrix.shape[0], placement.sites, seed=study.seed)
    sources = {f"site{i}": open_source(matrix[rows]) for i, rows in enumerate(parts)}
    started = time.perf_counter()
    result = run(study, sources, **placement.options)
    return _Ran(result, time.perf_counter() - started)


# ---- accuracy --------------------------------------------------------------------------------------------------


class _Scorer:
    """Measures answers against the leading eigenvectors and, where there are test interactions, by recall."""

    def __init__(self, train: Any, test: Any, matrix: Any, best: Array, setting: Setting) -> None:
        self._train, self._test, self._matrix, self._best, self._setting = train, test, matrix, best, setting
        self._captured = captured_variance(best, X=matrix)

    def measured(self, ran: _Ran) -> dict[str, Any]:
        """Return a run's accuracy and cost; bytes are of all rounds and all sites, set-up included."""
        basis, result = ran.result.estimate.basis, ran.result
        noise = [r.sigma for r in result.privacy.releases if not r.step.startswith("data.")] if result.privacy else []
        return {
            "captured": captured_variance(basis, X=self._matrix) / self._captured,
            "distance": projection_distance(basis, self._best),
            "recall": recall(self._train, self._test, self._matrix, basis, self._setting),
            "noise": max(noise, default=0.0),
            "sites": result.facts.sites,
            "asked": result.rounds,
            "bytes_up": result.bytes_up,
            "bytes_down": result.bytes_down,
            "seconds": round(ran.seconds, 2),
        }


def recall(train: Any, test: Any, matrix: Any, basis: Array, setting: Setting) -> float | None:
    """Return recall@top of scores x D^-1/2 V V' D^1/2 (Shen et al. 2021) on a sample of users; None without a test.

    Of a user's test interactions the share that is among the ``top`` items without a training interaction, averaged
    over users who have any. D are the items' true degrees.
    """
    if test is None:
        return None
    root = np.sqrt(np.asarray(train.sum(axis=0)).ravel())
    found = [_hits(train[u], test[u], matrix[u] @ basis @ (basis.T * root), setting) for u in _sample(test, setting)]
    return float(np.concatenate(found).mean())


def _sample(test: Any, setting: Setting) -> Iterator[Array]:
    some = np.flatnonzero(np.diff(scipy.sparse.csr_array(test).indptr))
    drawn = np.random.default_rng(setting.seed).permutation(some)[: setting.users]
    yield from (drawn[at : at + _CHUNK] for at in range(0, len(drawn), _CHUNK))


def _hits(train: Any, test: Any, scores: Array, setting: Setting) -> Array:
    scores[train.nonzero()] = -np.inf
    top = min(setting.top, scores.shape[1])
    first = np.argpartition(-scores, top - 1, axis=1)[:, :top]
    later = test.toarray() > 0
    return np.asarray(np.take_along_axis(later, first, axis=1).sum(axis=1) / later.sum(axis=1))
