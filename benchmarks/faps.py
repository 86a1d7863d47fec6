"""FAPS: rounds against its rivals on images and on the paper's uneven problem, and the cost of a round at a site.

A solver's rounds are read from its trajectory: the first round that was asked with an estimate whose k leading Ritz
vectors have a scaled KKT violation (FAPS, section 5.2) of at most so much, mean over five starts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse

from benchmarks.report import figure, finish, need, peak_memory_gb
from fedspan.data import Preparation, Source, SymmetricSource, open_source, partition
from fedspan.datasets import geometric_spectrum
from fedspan.linalg import ritz
from fedspan.metrics import kkt_violation
from fedspan.rounds import Site
from fedspan.run import Study, run
from fedspan.solvers import FAPS, BlockKrylov, FedPower, Power
from fedspan.solvers.faps import consensus

STARTS = 5
BUDGET = 1000


class Reached(Exception):
    """The trajectory came near enough."""


def solvers(oversampling: int) -> dict[str, Any]:
    """The methods at one iteration rank."""
    shared = {"rounds": BUDGET, "tol": 0.0, "oversampling": oversampling}
    return {
        "power": Power(**shared),
        "LocalPower": FedPower(**shared, local_steps=8, sync="halve"),
        "FAPS": FAPS(**shared),
        "FAPS as published": FAPS.published(**shared),
        "krylov": BlockKrylov(**shared),
    }


def rounds_to(solver: Any, sources: Mapping[str, Source], gram: np.ndarray, k: int, kkt: float, seed: int) -> int:
    """Return the rounds until the KKT violation is met, and the whole budget where it never is."""
    asked = 0

    def watch(record: Any, estimate: np.ndarray | None) -> None:
        nonlocal asked
        if record.setup or estimate is None:
            return
        vectors = ritz(estimate, gram @ estimate, k).basis
        if kkt_violation(vectors, gram @ vectors, float(np.trace(gram))) <= kkt:
            raise Reached
        asked += 1

    study = Study(n_components=k, solver=solver, preparation=Preparation(center=False), seed=seed)
    try:
        run(study, sources, watchers=[watch])
    except Reached:
        return asked
    return BUDGET


def race(title: str, sites: Mapping[str, np.ndarray], k: int, kkt: float, *oversampling: int) -> dict[str, float]:
    """Print every method's mean rounds, and each start's; return those at the first oversampling."""
    sources = {name: source_of(rows) for name, rows in sites.items()}
    gram = sum(rows.T @ rows for rows in sites.values())
    means: dict[str, float] = {}
    for extra in oversampling:
        for name, solver in solvers(extra).items():
            found = [rounds_to(solver, sources, gram, k, kkt, seed) for seed in range(STARTS)]
            means.setdefault(name, float(np.mean(found)))
            sys.stdout.write(f"{title}, r = {k + extra:<5} {name:<20} mean {np.mean(found):>6.1f}   starts {found}\n")
            sys.stdout.flush()
    return means


def source_of(rows: np.ndarray) -> Source:
    """Return a site's rows, or their Gram matrix where that is smaller: the rounds are the same."""
    return SymmetricSource(rows.T @ rows) if len(rows) >= rows.shape[1] else open_source(rows)


def images(name: str) -> dict[str, np.ndarray]:
    """Sixteen even sites of an image set, centred."""
    X = need(name).X
    X = X.reshape(len(X), -1) / 255.0
    return partition.split(X - X.mean(axis=0), partition.even(len(X), 16))


def uneven() -> dict[str, np.ndarray]:
    """FAPS, section 5.7: m_i = 1000 i rows of one matrix with singular values 1.01^(1-j)."""
    rows = geometric_spectrum(36_000, 1000, xi=1.01)
    return dict(zip("12345678", np.split(rows, np.cumsum([1000 * i for i in range(1, 8)])), strict=True))


# ---- the cost of a round ---------------------------------------------------------------------------------------


def cost_of_a_round(title: str, rows: Any, k: int) -> None:
    """Time one site's rounds against one product with its own rows for each inner step."""
    site = Site("site", open_source(rows))
    solver = FAPS()
    rule = {name: value for name, value in vars(solver).items() if name not in ("rounds", "tol", "oversampling")}
    z = np.linalg.qr(np.random.default_rng(0).standard_normal((rows.shape[1], k)))[0]
    ratios, steps = [], 0
    for number in range(25):
        product_seconds = min(_seconds(lambda z=z: site.data.gram_times(z)) for _ in range(3))
        started = time.perf_counter()
        reply = consensus(site, {"z": z, "k": number, "fell": False, "unit": 1.0, **rule})
        seconds = time.perf_counter() - started
        site.state, before, steps = reply.state, steps, reply.state["faps"]["steps"]
        # other sites pull Z elsewhere: a little noise keeps this one from having nothing left to do
        noise = np.random.default_rng(number).standard_normal(z.shape) * np.abs(reply.value["product"]).mean() / 10
        z = np.linalg.qr(reply.value["product"] + noise)[0]
        if steps > before:
            ratios.append(seconds / (product_seconds * (steps - before)))
        elif number == 0:
            figure(f"{title}: first round, in products (finds ||A_i|| too)", seconds / product_seconds)
    figure(f"{title}: a round in products of the site, per inner step", float(np.median(ratios)), 3.0)


def _seconds(call: Any) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def main() -> None:
    """Race, then time."""
    mnist = images("mnist")
    found = race("MNIST, 16 sites, k = 5, KKT 1e-6", mnist, 5, 1e-6, 0, 5)
    figure("MNIST, r = 5: FAPS rounds / power rounds", found["FAPS"] / found["power"], 0.6)
    figure("MNIST, r = 5: FAPS rounds - LocalPower rounds", found["FAPS"] - found["LocalPower"], -0.1)
    figure("MNIST, r = 5: krylov rounds", found["krylov"], 10)
    race("CIFAR-10 (10,000 rows), 16 sites, k = 5, KKT 1e-6", images("cifar10_subset"), 5, 1e-6, 0, 5)
    found = race("section 5.7, uneven, k = 10, KKT 2e-6", uneven(), 10, 2e-6, 0)
    figure("section 5.7: FAPS rounds / power rounds", found["FAPS"] / found["power"], 0.6)
    rng = np.random.default_rng(0)
    cost_of_a_round("dense 3,750 x 784", mnist[min(mnist)], 5)
    cost_of_a_round("wide 500 x 20,000", rng.standard_normal((500, 20_000)), 5)
    sparse = scipy.sparse.random(20_000, 20_000, density=1e-3, random_state=rng, format="csr")
    cost_of_a_round("sparse 20,000 x 20,000, 20 entries a row", sparse, 5)
    figure("peak memory of all of this", peak_memory_gb(), unit="GB")
    finish()


if __name__ == "__main__":
    main()
