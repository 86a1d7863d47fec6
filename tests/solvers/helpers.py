"""Driving a solver on bare arrays, without set-up rounds, and the paper's own quantities."""

from __future__ import annotations

import numpy as np

from fedspan.data import open_source
from fedspan.engines import InProcess
from fedspan.rounds import Cohort, Site, drive, numbered
from fedspan.solvers import Problem

ROWS = {"a": 14, "b": 31, "c": 22, "d": 17}
D, K = 9, 3


def arrays(seed=0, d=D, rows=ROWS, spread=0.7):
    """Rows of one distribution with falling variances."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.standard_normal((d, d)))[0]
    return {name: rng.standard_normal((n, d)) * spread ** np.arange(d) @ turn for name, n in rows.items()}


def start(seed=1, d=D, r=K):
    """A random orthonormal Z_0."""
    q, upper = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, r)))
    return q * np.sign(np.diag(upper))


def pooled(data, k=K):
    """Leading eigenpairs of the Gram matrix of all rows."""
    x = np.vstack(list(data.values()))
    values, vectors = np.linalg.eigh(x.T @ x)
    return vectors[:, ::-1][:, :k], values[::-1][:k]


def sites_of(data, seed=0):
    """A site for each array."""
    return [Site(name, open_source(x), seed=seed) for name, x in data.items()]


def solve(solver, data, *, k=K, z0=None, cohort=None, seed=0, watch=None, precision=None):
    """Run a solver on arrays as they are; returns its solution and the questions it asked."""
    sites, questions = sites_of(data, seed), []
    execute = InProcess(sites, seed)

    def ask(question):
        questions.append(question)
        outcome = execute(question)
        if watch is not None:
            watch(question, outcome)
        return outcome

    d = next(iter(data.values())).shape[1]
    x = np.vstack([np.asarray(part, dtype=float) for part in data.values()])
    problem = Problem(
        start(d=d, r=solver.rank(k, d)) if z0 is None else z0,
        k,
        total=float(np.sum(x**2)),
        weight=float(len(x)),
        precision=np.finfo(float).eps if precision is None else precision,
        cohort=Cohort() if cohort is None else cohort,
    )
    return drive(numbered(solver.solve(problem)), ask), questions
