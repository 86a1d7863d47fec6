"""How do I watch a run, keep a record of it, and pick it up after a crash?"""

import tempfile
from pathlib import Path

import numpy as np

from fedspan import FederatedPCA

rng = np.random.default_rng(0)
sites = {f"site{i}": rng.standard_normal((100, 30)) * 0.9 ** np.arange(30) for i in range(5)}


def watch(record, estimate):
    """Called after each of the solver's rounds with its record and the d x r estimate it was asked with."""
    change = "" if record.change is None else f"change {record.change:.1e}"
    print(f"round {record.round}: {record.step:15s} {record.sites} sites, {record.bytes_up} bytes up  {change}")


with tempfile.TemporaryDirectory() as folder:
    run = Path(folder) / "run"
    pca = FederatedPCA(4, on_round=watch, run_folder=run).fit(sites)
    print(sorted(path.name for path in run.iterdir()))
