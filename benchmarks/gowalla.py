"""Gowalla (sparse 29858 x 40981), 50 sites, k = 64: truncated SVD within 1.5 GB, values equal to ARPACK's."""

from __future__ import annotations

import time

import numpy as np
import scipy.sparse.linalg

from benchmarks.report import figure, finish, need, peak_memory_gb
from fedspan import FederatedTruncatedSVD
from fedspan.data import partition

K, SITES = 64, 50


def main() -> None:
    """Fit first (peak memory is of the whole process), then compare with svds."""
    X = need("gowalla").X.tocsr()
    sites = partition.split(X, partition.even(X.shape[0], SITES))
    started = time.perf_counter()
    svd = FederatedTruncatedSVD(K).fit(sites)
    seconds = time.perf_counter() - started
    figure("peak memory of the process", peak_memory_gb(), 1.5, "GB")
    started = time.perf_counter()
    exact = np.sort(scipy.sparse.linalg.svds(X, k=K, return_singular_vectors=False))[::-1]
    figure(
        "singular values against svds: largest relative error",
        float(np.abs(svd.singular_values_ / exact - 1).max()),
        1e-6,
    )
    figure("rounds", svd.n_rounds_)
    figure("seconds, 50 sites in one process", seconds)
    figure("seconds, svds on the pooled matrix", time.perf_counter() - started)
    finish()


if __name__ == "__main__":
    main()
