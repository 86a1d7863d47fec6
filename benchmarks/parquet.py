"""A Parquet site larger than the memory it may use is fitted within that limit; loading it whole is not possible."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.report import figure, finish

ROWS, FEATURES, LIMIT_MB = 1_600_000, 100, 640

CHILD = """
import json, resource, sys
from pathlib import Path
from fedspan import FederatedPCA
import pyarrow.parquet as pq
path, limit, how = sys.argv[1], int(sys.argv[2]) << 20, sys.argv[3]
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
if how == "whole":
    try:
        pq.read_table(path).to_pandas().to_numpy()
        print(json.dumps({"loaded": True}))
    except MemoryError as error:
        print(json.dumps({"loaded": False, "error": str(error)[:80]}))
else:
    model = FederatedPCA(5).fit({"only": path})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(json.dumps({"components": model.components_.tolist(), "peak_mb": peak, "rounds": model.n_rounds_}))
"""


def main() -> None:
    """Write the file in pieces, then try both ways under one limit."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "site.parquet"
        gram = write(path)
        whole, fitted = (in_child(path, how) for how in ("whole", "fit"))
    figure("decoded size of the site's file", ROWS * FEATURES * 8 / 1e6, unit="MB")
    figure("memory limit (RLIMIT_DATA)", LIMIT_MB * 1.048576, unit="MB")
    figure("loading it whole under the limit: succeeded (1) or not (0)", float(whole["loaded"]), 0)
    figure("fitted under the limit: peak resident memory", fitted["peak_mb"], LIMIT_MB * 1.048576, "MB")
    figure("rounds", fitted["rounds"])
    exact = np.linalg.eigh(gram)[1][:, -5:]
    ours = np.array(fitted["components"]).T
    figure(
        "distance to the answer from the rows as written",
        float(np.linalg.norm(ours - exact @ (exact.T @ ours), 2)),
        1e-6,
    )
    finish()


def write(path: Path) -> np.ndarray:
    """Write random rows with a decaying spectrum, one row group in memory at a time; return their centred Gram."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    names = [f"x{i}" for i in range(FEATURES)]
    spectrum = 0.9 ** np.arange(FEATURES)
    gram, total = np.zeros((FEATURES, FEATURES)), np.zeros(FEATURES)
    with pq.ParquetWriter(path, pa.schema([(n, pa.float64()) for n in names])) as writer:
        for _ in range(16):
            rows = rng.standard_normal((ROWS // 16, FEATURES)) * spectrum + 1.0
            gram += rows.T @ rows
            total += rows.sum(axis=0)
            writer.write_table(pa.table({n: rows[:, i] for i, n in enumerate(names)}))
    return gram - np.outer(total, total) / ROWS


def in_child(path: Path, how: str) -> dict:
    """Run one attempt in a process that has the limit."""
    command = [sys.executable, "-c", CHILD, str(path), str(LIMIT_MB), how]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"the {how} attempt failed: {done.stderr[-500:]}")
    return dict(json.loads(done.stdout))


if __name__ == "__main__":
    main()
