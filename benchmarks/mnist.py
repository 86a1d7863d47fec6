"""MNIST, 60 sites, k = 10, centred: rounds to the pooled answer, and time against scikit-learn on pooled data."""

from __future__ import annotations

import time

import numpy as np
from sklearn.decomposition import PCA

from benchmarks.report import figure, finish, need
from fedspan import FederatedPCA
from fedspan.data import partition
from fedspan.metrics import projection_distance
from fedspan.solvers import Power

K, SITES, REPEATS = 10, 60, 7


def main() -> None:
    """Measure rounds in float64, then time and error in float32."""
    X = need("mnist").X / 255.0
    parts = partition.even(len(X), SITES)
    exact = PCA(K, svd_solver="covariance_eigh").fit(X).components_.T
    krylov = FederatedPCA(K, solver="krylov").fit(partition.split(X, parts))
    figure("krylov, float64: rounds", krylov.n_rounds_, 12)
    figure(
        "krylov, float64: projection distance to pooled",
        projection_distance(krylov.components_.T, exact),
        1e-6,
    )
    power = FederatedPCA(K, solver=Power(rounds=400, tol=krylov.solver_.tol)).fit(partition.split(X, parts))
    figure("power, same tolerance: rounds", power.n_rounds_)
    figure("power: projection distance to pooled", projection_distance(power.components_.T, exact))
    timings(X.astype(np.float32), parts, exact)
    finish()


def timings(X: np.ndarray, parts: list[np.ndarray], exact: np.ndarray) -> None:
    """Time both in turn, in one process; the median of the ratios stands against the machine's noise."""
    sites = {name: np.ascontiguousarray(rows) for name, rows in partition.split(X, parts).items()}
    ours, theirs = FederatedPCA(K), PCA(K, svd_solver="covariance_eigh")
    ours.fit(sites)
    theirs.fit(X)
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        theirs.fit(X)
        between = time.perf_counter()
        ours.fit(sites)
        seconds.append((time.perf_counter() - between, between - started))
    figure("whole fit, float32: seconds", float(np.median([a for a, _ in seconds])))
    figure("scikit-learn covariance_eigh, pooled float32: seconds", float(np.median([b for _, b in seconds])))
    figure("whole fit against scikit-learn: median ratio", float(np.median([a / b for a, b in seconds])), 2.0)
    error, reference = (projection_distance(m.components_.T.astype(float), exact) for m in (ours, theirs))
    figure("float32 error (projection distance): scikit-learn", reference)
    figure("float32 error (projection distance): fedspan", error, reference)


if __name__ == "__main__":
    main()
