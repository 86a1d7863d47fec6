"""Every solver the library registers, with small settings: a new one is listed here and gets every check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from fedspan.data import Preparation, open_source
from fedspan.privacy import GaussianPrivacy
from fedspan.privacy.gaussian import TRUSTS
from fedspan.rounds import Cohort
from fedspan.run import Result, Study, run
from fedspan.secure import SecureSums
from fedspan.solvers import (
    FAPS,
    NAMES,
    UDA,
    WDA,
    BlockKrylov,
    Covariance,
    Doubling,
    FedPower,
    ModSulq,
    Power,
    PrivatePower,
    RandomizedSVD,
    Solver,
    Streaming,
    StreamingModSulq,
)

D, K = 12, 3
ROWS = {"berlin": 30, "accra": 45, "delhi": 20, "cairo": 55}
SETUP_ROUNDS = 3  # describe, moments, prepare
SCHEME_1 = Cohort(fraction=0.75, sample="by-size-with-replacement")
SCHEME_2 = Cohort(fraction=0.75)
FIRST = Cohort(first=3)
FULL = Cohort()


@dataclass(frozen=True)
class Case:
    """A solver with settings and a cohort, and what it claims."""

    id: str
    solver: Solver
    cohort: Cohort = FULL
    exact: bool = False
    """Equals the pooled SVD."""
    privacy: GaussianPrivacy | None = None
    cuts: bool = False
    """Rows are cut into blocks or slices, and what is kept is cut off: where they are cut shows."""
    forgets: bool = False
    """Earlier rows count for less."""

    @property
    def doubles(self) -> bool:
        """Whether early rounds are over with some of the replies, whatever the cohort says."""
        return isinstance(self.solver, Doubling)

    @property
    def holds(self) -> bool:
        """Whether some rounds wait for sites that were first before."""
        return isinstance(self.solver, Doubling) and (self.solver.resample == "stage" or not self.solver.partial)

    @property
    def center(self) -> bool:
        """Whether rows are centred: not where the promise is about entries."""
        return self.privacy is None or self.privacy.relation.startswith("row")

    @property
    def name(self) -> str:
        """The name it is registered under."""
        return NAMES[type(self.solver)]

    def __str__(self) -> str:
        return self.id


def fedpower(**settings: Any) -> FedPower:
    """FedPower in a few rounds."""
    return FedPower(**{"rounds": 6, "local_steps": 2, "tol": 0.0} | settings)


CASES = [
    Case("power", Power(rounds=400, tol=1e-13), exact=True),
    Case("power-oversampled", Power(rounds=300, tol=1e-13, oversampling=2), exact=True),
    Case("power-budget", Power(rounds=7, tol=0.0)),
    Case("power-scheme-2", Power(rounds=6, tol=0.0), SCHEME_2),
    Case("power-first", Power(rounds=6, tol=0.0), FIRST),
    Case("krylov", BlockKrylov(tol=1e-12, oversampling=2), exact=True),
    Case("krylov-restarted", BlockKrylov(tol=1e-12, oversampling=0, max_basis=3), exact=True),
    Case("krylov-wide", BlockKrylov(tol=1e-12, oversampling=30), exact=True),
    Case("faps", FAPS(rounds=240, tol=0.0), exact=True),
    Case("faps-subspace", FAPS(rounds=60, tol=0.0, inner="subspace")),
    Case("faps-oversampled", FAPS(rounds=60, tol=0.0, oversampling=2)),
    Case("faps-stops", FAPS(tol=1e-13)),
    Case("faps-published", FAPS.published(rounds=120, tol=0.0, penalty=1.0)),
    Case("covariance", Covariance(), exact=True),
    Case("mod-sulq", ModSulq(slice_width=5)),
    Case("mod-sulq-one-slice", ModSulq(slice_width=12, oversampling=0)),
    Case("mod-sulq-blocks", StreamingModSulq(slice_width=5, blocks=3), cuts=True),
    Case("uda", UDA()),
    Case("uda-first", UDA(), FIRST),
    Case("wda", WDA()),
    Case("wda-scheme-2", WDA(), SCHEME_2),
    Case("dr-svd", RandomizedSVD()),
    Case("dr-svd-full-rank", RandomizedSVD(iteration_rank=D), exact=True),
    Case("streaming", Streaming(slices=4, block_size=8)),
    Case("streaming-low-rank", Streaming(slices=3, block_size=20, oversampling=1), cuts=True),
    Case("streaming-full-rank", Streaming(slices=3, block_size=8, oversampling=D), exact=True),
    Case("streaming-tree", Streaming(slices=3, block_size=8, fan_out=2)),
    Case("streaming-deep", Streaming(slices=2, depth=2, oversampling=D), exact=True),
    Case("streaming-forgetful", Streaming(slices=3, block_size=10, forgetting=0.9), cuts=True, forgets=True),
    Case("streaming-first", Streaming(slices=4, block_size=8), FIRST, cuts=True),
    Case("streaming-scheme-2", Streaming(slices=4), SCHEME_2, cuts=True),
    *(
        Case(f"fedpower-{align}-{reference}", fedpower(align=align, reference=reference))
        for align in ("procrustes", "sign", None)
        for reference in ("global", "baseline")
    ),
    Case("doubling", Doubling(stage=Power(rounds=300, tol=1e-13, oversampling=2), n0=1), exact=True),
    Case("doubling-krylov", Doubling(stage=BlockKrylov(tol=1e-12, oversampling=2)), exact=True),
    Case("doubling-faps", Doubling(stage=FAPS(rounds=240, tol=0.0), rounds=5), exact=True),
    Case("doubling-samples", Doubling(stage=Power(rounds=300, tol=1e-13), n0=1, growth="samples"), exact=True),
    Case("doubling-formula", Doubling(stage=Power(rounds=6, tol=0.0), rounds="formula", contraction=0.5)),
    Case("doubling-stall", Doubling(stage=Power(rounds=6), rounds="stall", stall=1e-2, resample="stage")),
    Case("doubling-fedpower", Doubling(stage=fedpower())),
    Case("doubling-scheme-2", Doubling(stage=Power(rounds=6, tol=0.0), n0=1), SCHEME_2),
    Case("doubling-first", Doubling(stage=fedpower(), n0=1), FIRST),
    Case("fedpower-one-step", FedPower(local_steps=1, rounds=200, tol=1e-10), exact=True),
    Case("fedpower-decay", fedpower(local_steps=3, sync="decay")),
    Case("fedpower-halve", fedpower(local_steps=4, sync="halve")),
    Case("fedpower-list", fedpower(sync=[1, 4, 6])),
    Case("fedpower-between", fedpower(local_steps=3, iterations=7)),
    Case("fedpower-between-baseline", fedpower(local_steps=3, iterations=7, reference="baseline")),
    Case("fedpower-stops", FedPower(local_steps=2, rounds=100, tol=1e-4)),
    Case("fedpower-scheme-1", fedpower(), SCHEME_1),
    Case("fedpower-scheme-1-baseline", fedpower(reference="baseline"), SCHEME_1),
    Case("fedpower-scheme-1-between", fedpower(local_steps=3, iterations=7), SCHEME_1),
    Case("fedpower-scheme-2", fedpower(), SCHEME_2),
    Case("fedpower-first", fedpower(), FIRST),
    Case("fedpower-first-baseline", fedpower(reference="baseline"), FIRST),
]


def promise(trust: str, **settings: Any) -> GaussianPrivacy:
    """Little noise, from a testing seed: runs can be compared."""
    return GaussianPrivacy(
        **{"epsilon": 3e5, "delta": 1e-3, "row_norm": 30.0, "trust": trust, "testing_seed": 7} | settings
    )


PRIVATE = [
    *(Case(f"private-power-{trust}", PrivatePower(rounds=5), privacy=promise(trust)) for trust in TRUSTS),
    *(Case(f"covariance-{trust}", Covariance(), privacy=promise(trust)) for trust in TRUSTS),
    *(Case(f"krylov-{trust}", BlockKrylov(rounds=4, oversampling=2), privacy=promise(trust)) for trust in TRUSTS),
    *(Case(f"fedpower-{trust}", fedpower(local_steps=1), privacy=promise(trust)) for trust in TRUSTS),
    Case("fedpower-clipped", fedpower(), privacy=promise("local", site_norm=2500.0, epsilon=3e7)),
    Case(
        "fedpower-published",
        fedpower(),
        privacy=promise("local", calibration="published", neighbours="entry", row_norm=None, n_public=True),
    ),
    Case("power-replace", Power(rounds=5), privacy=promise("central", n_public=True)),
    Case("power-float", Power(rounds=5), privacy=promise("distributed", arithmetic="float")),
    Case("power-first", Power(rounds=5), FIRST, privacy=promise("local")),
    Case("mod-sulq-local", ModSulq(slice_width=5), privacy=promise("local")),
    Case("mod-sulq-blocks", StreamingModSulq(slice_width=5, blocks=3), privacy=promise("local", n_public=True)),
]
"""Every solver that noise can cover, under every trust it takes."""

BY_ID = {case.id: case for case in CASES}
EXACT = [case for case in CASES if case.exact]
WHOLE = [case for case in CASES if case.cohort.is_full]


def rows_of(seed: int = 0, sizes: dict[str, int] | None = None, d: int = D) -> dict[str, Any]:
    """Sites that draw from one distribution with falling variances and a mean, named out of order."""
    rng = np.random.default_rng([seed, d])
    turn = np.linalg.qr(rng.standard_normal((d, d)))[0]
    spread = 4.0 * 0.6 ** np.arange(d)
    sizes = ROWS if sizes is None else sizes
    return {name: rng.standard_normal((n, d)) * spread @ turn + rng.standard_normal(d) / 8 for name, n in sizes.items()}


def sparse_rows_of(seed: int = 0) -> dict[str, Any]:
    """The same with two entries in three left out, as CSR."""
    rng = np.random.default_rng(seed)
    return {
        name: scipy.sparse.csr_matrix(np.where(rng.random(x.shape) < 1 / 3, x, 0.0))
        for name, x in rows_of(seed).items()
    }


def integer_weights(sites: dict[str, Any], seed: int = 0) -> dict[str, Any]:
    """A weight of 1, 2 or 3 for each row."""
    rng = np.random.default_rng(seed)
    return {name: rng.integers(1, 4, size=x.shape[0]).astype(float) for name, x in sites.items()}


def solve(
    case: Case,
    sites: dict[str, Any] | None = None,
    *,
    engine: Any = None,
    seed: int = 0,
    weights: dict[str, Any] | None = None,
    center: bool | None = None,
    k: int = K,
    init: Any = None,
    secure: SecureSums | None = None,
    **settings: Any,
) -> Result:
    """Run a case on sites: by default dense, centred, in one process, its replies seen one by one."""
    sites = rows_of() if sites is None else sites
    study = Study(
        n_components=k,
        solver=case.solver,
        preparation=Preparation(center=case.center if center is None else center),
        cohort=case.cohort,
        seed=seed,
        init=init,
        privacy=case.privacy,
        secure=secure,
    )
    sources = {name: open_source(x, weights=None if weights is None else weights[name]) for name, x in sites.items()}
    return run(study, sources, engine=engine, **settings)


def pooled(sites: dict[str, Any], *, center: bool = True, k: int = K) -> tuple[Any, Any]:
    """The k leading right singular vectors and squared singular values of all rows together."""
    x = np.vstack([s.toarray() if scipy.sparse.issparse(s) else s for s in sites.values()]).astype(float)
    _, s, vt = np.linalg.svd(x - x.mean(axis=0) if center else x, full_matrices=False)
    return vt[:k].T, s[:k] ** 2


def bits(result: Result) -> bytes:
    """The estimate, to the bit."""
    return result.estimate.basis.tobytes() + result.estimate.values.tobytes()


def traffic(result: Result) -> list[tuple[Any, ...]]:
    """What a history says, but for the seconds."""
    return [(r.round, r.step, r.bytes_up, r.bytes_down, r.sites, r.change) for r in result.history]
