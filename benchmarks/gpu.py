"""Sites whose rows live on a GPU: the same answer as on the host, and the time of a whole fit beside numpy's.

Needs torch with CUDA; run it as ``python -m benchmarks.gpu``.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from benchmarks.report import figure, finish
from fedspan import FederatedPCA
from fedspan.metrics import projection_distance

ROWS, FEATURES, SITES, K = 2_000_000, 200, 8, 10


def main() -> None:
    """Fit the same rows from both places."""
    try:
        import torch
    except ImportError:
        sys.exit("skipped: torch is not installed")
    if not torch.cuda.is_available():
        sys.exit("skipped: torch finds no CUDA device")
    rng = np.random.default_rng(0)
    spectrum = (0.95 ** np.arange(FEATURES)).astype(np.float32)
    host = [rng.standard_normal((ROWS // SITES, FEATURES), dtype=np.float32) * spectrum + 1 for _ in range(SITES)]
    there = [torch.from_numpy(rows).cuda() for rows in host]
    sys.stdout.write(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    on_host, host_seconds = timed(host)
    on_gpu, gpu_seconds = timed(there)
    distance = projection_distance(on_gpu.components_.T, on_host.components_.T)
    figure("projection distance, GPU against host", distance, 1e-4)
    figure("rounds", on_gpu.n_rounds_)
    figure("whole fit on the host: seconds", host_seconds)
    figure("whole fit on the GPU: seconds", gpu_seconds)
    figure("GPU against host: ratio", gpu_seconds / host_seconds, 1.0)
    finish()


def timed(sites: list[Any]) -> tuple[FederatedPCA, float]:
    """Fit twice, the first time to warm up."""
    FederatedPCA(K).fit(sites)
    started = time.perf_counter()
    model = FederatedPCA(K).fit(sites)
    return model, time.perf_counter() - started


if __name__ == "__main__":
    main()
