"""10,000 simulated sites of 20 rows x 50 features: one in-process round against the bare loop of products."""

from __future__ import annotations

import time

import numpy as np

from benchmarks.report import figure, finish
from fedspan.data import Preparation, open_source
from fedspan.data.preprocess import set_up
from fedspan.engines import InProcess
from fedspan.rounds import Round, drive, numbered
from fedspan.sites import open_sites
from fedspan.solvers.problem import multiply

SITES, ROWS, FEATURES, RANK, REPEATS = 10_000, 20, 50, 10, 9


def main() -> None:
    """Prepare the sites as a study does (centred), then time rounds and bare loops in turn."""
    rng = np.random.default_rng(0)
    arrays = {f"site{i:05d}": rng.standard_normal((ROWS, FEATURES)) for i in range(SITES)}
    engine = InProcess(open_sites({name: open_source(a) for name, a in arrays.items()}, seed=0))
    started = time.perf_counter()
    drive(numbered(set_up(Preparation())), engine)
    figure("set-up rounds, all sites: seconds", time.perf_counter() - started)
    z = np.linalg.qr(rng.standard_normal((FEATURES, RANK)))[0]
    ratios, rounds = [], []
    for number in range(3, 3 + REPEATS):
        question = Round(multiply, z, number=number, parents=dict.fromkeys(arrays, number - 1))
        started = time.perf_counter()
        for a in arrays.values():
            a.T @ (a @ z)
        between = time.perf_counter()
        engine(question)
        rounds.append(time.perf_counter() - between)
        ratios.append(rounds[-1] / (between - started))
    figure("one round: seconds", float(np.median(rounds)))
    figure("one round against the bare loop: median ratio", float(np.median(ratios)), 5.0)
    finish()


if __name__ == "__main__":
    main()
