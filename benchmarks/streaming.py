"""Streaming: MNIST against IncrementalPCA, memory over ten million rows, order, a tree of 1000 sites, merges, drift."""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.decomposition import IncrementalPCA

from benchmarks.report import figure, finish, need
from fedspan import FederatedPCA, StreamingPCA
from fedspan.datasets.synthetic import power_law
from fedspan.linalg import basic_merge, faster_merge, left_svd, merge
from fedspan.metrics import merge_error, projection_distance
from fedspan.privacy import GaussianPrivacy
from fedspan.solvers import Streaming, StreamingModSulq

K, BLOCK, SITES, REPEATS = 10, 500, 1000, 3


def main(parts: list[str]) -> None:
    """Run all parts, or those named."""
    known = {f.__name__: f for f in (mnist, memory, order, tree, merges, drift, private)}
    for name in parts or known:
        sys.stdout.write(f"-- {name}\n")
        known[name]()
    finish()


def mnist() -> None:
    """Ten components of MNIST, block 500, in turn with scikit-learn; the pooled answer from the whole Gram matrix."""
    X = need("mnist").X.reshape(60_000, -1).astype(float)
    exact = pooled(X)[0]
    ratios = []
    for repeat in range(REPEATS):
        seconds, ours = timed(lambda: blocks_of(StreamingPCA(K, block_size=BLOCK), X, BLOCK))
        slow, theirs = timed(lambda: blocks_of(IncrementalPCA(K), X, BLOCK))
        ratios.append(seconds / slow)
        figure(f"run {repeat + 1}: StreamingPCA", seconds, unit="s")
        figure(f"run {repeat + 1}: IncrementalPCA, block {BLOCK}", slow, unit="s")
    figure("StreamingPCA's time over IncrementalPCA's, median", float(np.median(ratios)), 0.2)
    figure("StreamingPCA: projection distance to the pooled components", distance(ours, exact), 0.01)
    figure("IncrementalPCA: the same", distance(theirs, exact))
    for size in (50, 100, 2000):
        seconds, ours = timed(lambda: blocks_of(StreamingPCA(K, block_size=size), X, size))  # noqa: B023
        figure(f"StreamingPCA, block {size}: seconds", seconds)
        figure(f"StreamingPCA, block {size}: projection distance", distance(ours, exact))


def memory(rows: int = 10_000_000, d: int = 200) -> None:
    """The most that is ever allocated, as the rows go by; the rows themselves are made and dropped block by block."""
    rng = np.random.default_rng(0)
    chunk = rng.standard_normal((BLOCK, d)) * np.linspace(3, 1, d)
    pca = StreamingPCA(K, block_size=BLOCK)
    unit = 8 * d * (30 + BLOCK)
    tracemalloc.start()
    started, peaks = time.perf_counter(), []
    for done in range(BLOCK, rows + 1, BLOCK):
        pca.partial_fit(np.roll(chunk, done // BLOCK, axis=0) * rng.choice([-1.0, 1.0], (BLOCK, 1)))
        if done % (100 * BLOCK) == 0:
            gc.collect()  # Python keeps freed tuples until then, 0.4 MB of them in the end
        if done in (rows // 100, rows // 10, rows // 2, rows):
            peaks.append(tracemalloc.get_traced_memory()[1])
            figure(
                f"after {done:,} rows: peak, in units of d (r + block) numbers ({unit / 1e3:.0f} kB)", peaks[-1] / unit
            )
            tracemalloc.reset_peak()
    tracemalloc.stop()
    figure("the last peak over the first", peaks[-1] / peaks[0], 1.1)
    figure("the last peak, in units of d (r + block)", peaks[-1] / unit, 8.0)
    figure("rows a second, with tracemalloc on", rows / (time.perf_counter() - started))


def order() -> None:
    """Figure 13: 20 permutations of the rows; the largest sine between each run's subspace and the unpermuted one's."""
    rng = np.random.default_rng(0)
    low = rng.standard_normal((10_000, 20)) @ rng.standard_normal((20, 100))
    full = power_law(10_000, 100, alpha=1.0)
    cases: list[tuple[str, Any, int, float | None]] = [("rank 20 exactly, 20 components", low, 20, 1e-10)]
    cases += [(f"full rank, {k} components", full, k, None) for k in (5, 20, 40, 60, 80)]
    for name, X, k, target in cases:
        make = lambda: StreamingPCA(k, block_size=50, center=False)  # noqa: B023, E731
        first = make().fit(X)
        errors = [distance(make().fit(X[rng.permutation(len(X))]), first.components_.T) for _ in range(20)]
        figure(f"{name}: largest error over 20 permutations", max(errors), target)
        figure(f"{name}: mean error", float(np.mean(errors)))


def tree() -> None:
    """1000 sites of 60 rows, fan-out 10, depth 3: rows split at random, and sorted by label."""
    data = need("mnist")
    X = data.X.reshape(60_000, -1).astype(float)
    exact, gram = pooled(X)
    best = captured(exact, gram)
    by_label = np.argsort(data.y, kind="stable")
    shuffled = np.random.default_rng(0).permutation(len(X))
    for name, at in (("random", shuffled), ("by label", by_label)):
        sites = [X[rows] for rows in np.array_split(at, SITES)]
        for words, over in (("rank 10 kept", 0), ("rank 30 kept (default)", None)):
            solver = Streaming(slices=1, fan_out=10, depth=3, oversampling=over)
            seconds, pca = timed(lambda: FederatedPCA(K, solver=solver).fit(sites))  # noqa: B023
            basis, values = pca.components_.T, pca.singular_values_
            error = merge_error(basis, values, gram=gram, depth=3)
            figure(f"{name}, {words}: error over Theorem 3's bound", error.error / error.theorem_3.error, 1.0)
            figure(
                f"{name}, {words}: captured variance lost, % of pooled", 100 * (1 - captured(basis, gram) / best), 5.0
            )
            low = 1 - float(np.sum(values**2)) / best
            figure(f"{name}, {words}: squares of the singular values, % low", 100 * low)
            figure(f"{name}, {words}: projection distance", projection_distance(basis, exact))
            figure(f"{name}, {words}: seconds, all sites in turn", seconds)


def merges(d: int = 800, r: int = 100) -> None:
    """Figure 5: merging two halves of Synth(1), Alg. 4 (plain SVD), 5 and 6, in turn."""
    X = power_law(4000, d, alpha=1.0)
    halves = [left_svd(half.T) for half in (X[:2000], X[2000:])]
    pairs = [part for u, s in halves for part in (u[:, :r], s[:r])]
    methods: dict[str, Callable[..., Any]] = {"Alg. 4": basic_merge, "Alg. 5": faster_merge, "Alg. 6": merge}
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    found = {}
    for _ in range(15):
        for name, method in methods.items():
            took, found[name] = timed(lambda: method(*pairs, r))  # noqa: B023
            seconds[name].append(took)
    plain = np.array(seconds["Alg. 4"])
    for name in ("Alg. 5", "Alg. 6"):
        ratio = float(np.median(np.array(seconds[name]) / plain))
        figure(
            f"{name}: time over a plain SVD of the concatenation, median", ratio, 1 / 1.3 if name == "Alg. 6" else None
        )
        values = np.abs(found[name].values - found["Alg. 4"].values).max() / found["Alg. 4"].values[0]
        figure(f"{name}: largest difference of a singular value, relative", float(values), 1e-12)
        figure(f"{name}: projection distance", projection_distance(found[name].basis, found["Alg. 4"].basis), 1e-12)


def drift(d: int = 100, k: int = 5, block: int = 100) -> None:
    """After 100 blocks of one subspace, another: blocks until within 5 % of what the new one's best would capture."""
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.standard_normal((d, 2 * k)))[0]
    spread = np.linspace(5, 3, k)

    def rows(which: int) -> Any:
        signal = (rng.standard_normal((block, k)) * spread) @ axes[:, which * k : which * k + k].T
        return signal + 0.3 * rng.standard_normal((block, d))

    new = axes[:, k:] * spread**2 @ axes[:, k:].T + 0.09 * np.eye(d)
    best = float(np.sort(np.linalg.eigvalsh(new))[-k:].sum())
    for forgetting in (0.9, 1.0):
        pca = StreamingPCA(k, block_size=block, forgetting=forgetting)
        for _ in range(100):
            pca.partial_fit(rows(0))
        needed = 400
        for done in range(1, 400):
            pca.partial_fit(rows(1))
            if np.trace(pca.components_ @ new @ pca.components_.T) >= 0.95 * best:
                needed = done
                break
        figure(f"forgetting {forgetting}: blocks to recover", needed, 20 if forgetting < 1 else None)


def private() -> None:
    """MNIST's rows of norm 1 at one site, epsilon 1, delta 1e-6, k = 5: in so many blocks, tight and as published."""
    X = need("mnist").X.reshape(60_000, -1).astype(float)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    gram = X.T @ X
    best = float(np.linalg.eigvalsh(gram)[-5:].sum())
    for calibration in ("tight", "published"):
        for blocks in (1, 10, 60):
            terms = GaussianPrivacy(1.0, 1e-6, row_norm=1.0, n_public=True, calibration=calibration)
            solver = StreamingModSulq(blocks=blocks, merge=calibration)
            seconds, pca = timed(
                lambda: FederatedPCA(5, center=False, solver=solver, privacy=terms).fit({"all": X})  # noqa: B023
            )
            words = f"{calibration}, {blocks} blocks"
            figure(f"{words}: captured, of the best five", captured(pca.components_.T, gram) / best)
            figure(f"{words}: epsilon spent", pca.privacy_spent_["spent_epsilon"], 1.0)
            figure(f"{words}: seconds", seconds)


def pooled(X: Any) -> tuple[Any, Any]:
    """The leading components of all rows, and their centred Gram matrix."""
    centred = X - X.mean(axis=0)
    gram = centred.T @ centred
    return np.linalg.eigh(gram)[1][:, ::-1][:, :K], gram


def captured(basis: Any, gram: Any) -> float:
    """The variance in the span of a basis."""
    return float(np.trace(basis.T @ gram @ basis))


def blocks_of(model: Any, X: Any, size: int) -> Any:
    """Feed a model block by block."""
    for start in range(0, len(X), size):
        model.partial_fit(X[start : start + size])
    return model


def distance(model: Any, exact: Any) -> float:
    """The projection distance of a model's components."""
    return projection_distance(model.components_.T, exact)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and what came of it."""
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


if __name__ == "__main__":
    main(sys.argv[1:])
