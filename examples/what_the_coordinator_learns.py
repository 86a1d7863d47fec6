"""What could the coordinator learn? Record two runs as it saw them, and attack each with its own transcript."""

import tempfile
import warnings
from pathlib import Path

import numpy as np

from fedspan import FederatedPCA
from fedspan.privacy.audit import audit
from fedspan.privacy.transcript import Transcript

rng = np.random.default_rng(0)
mixing = rng.standard_normal((30, 30)) * 0.9 ** np.arange(30)[:, None]
sites = {name: rng.standard_normal((rows, 30)) @ mixing for name, rows in {"berlin": 200, "oslo": 80}.items()}
mean = np.vstack(list(sites.values())).mean(axis=0)
truth = {name: (rows - mean).T @ (rows - mean) for name, rows in sites.items()}  # only to score the guesses

errors = {}
for solver in ("power", "faps"):
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a transcript holds each site's releases: it is what we are here for
        FederatedPCA(3, solver=solver, run_folder=folder, record="transcript").fit(sites)
        found = audit(Transcript.read(Path(folder)), truth)
    print(f"\n{solver}")
    print(*found.verdicts, sep="\n")
    errors[solver] = found.sites["berlin"].strongest[1].least

assert errors["power"] < 0.01  # products give the matrix away
assert errors["faps"] < 0.5  # and masks alone do not keep it
