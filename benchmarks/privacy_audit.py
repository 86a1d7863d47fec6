"""Certified epsilon beside what worst-case neighbours prove, for every mechanism and placement; then planted faults.

``python -m benchmarks.privacy_audit [--runs N] [--only TEXT] [--fault NAME]``: fewer runs, cases whose line has TEXT,
or only one planted fault.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import numpy as np

import fedspan.data.clip
import fedspan.data.prepared
import fedspan.privacy.releases
from fedspan.privacy.audit.epsilon import EmpiricalEpsilon, audit_case
from fedspan.privacy.audit.epsilon_cases import Case, worst_case
from fedspan.privacy.gaussian import Bounds, GaussianPrivacy
from fedspan.privacy.releases import Releases
from fedspan.rounds import Memory, Solve
from fedspan.run import assemble
from fedspan.sensitivity import RELATIONS, Neighbours
from fedspan.solvers import BlockKrylov, Covariance, FedPower, ModSulq, PrivatePower

EPSILON, DELTA = 8.0, 1e-2
"""mu = 2.45: where a few thousand runs tell most. Noise and sensitivities are the same code at every epsilon."""
TRUSTS = ("local", "distributed", "central")
BOTH = ("grid", "float")
_SETUP = {"mean": 0.4, "count": 0.2, "variance": 0.2, "scale": 0.1}
SHARES = {"mean, count, variance": _SETUP, "scale": _SETUP, "degrees": {"degree": 0.7}}
"""Of the budget, where the set-up is what is audited."""

MECHANISMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "covariance": (Covariance(), {}),
    "private-power, 3 rounds": (PrivatePower(rounds=3), {}),
    "krylov, 2 rounds": (BlockKrylov(rounds=2, tol=0.0), {}),
    "fedpower, 1 local step": (FedPower(rounds=3, local_steps=1, tol=0.0), {}),
    "fedpower, 3 local steps": (FedPower(rounds=2, local_steps=3, tol=0.0), {}),
    "mod-sulq": (ModSulq(), {"features": 2}),
    "mean, count, variance": (Covariance(), {"setup_only": True}),
    "with gaps filled": (Covariance(), {"missing": "mean"}),
    "scale": (Covariance(), {"scale": True}),
    "degrees": (Covariance(), {"normalise": "degree"}),
}
"""Solver and settings of the worst case. The set-up releases are in every case; ``setup_only`` ends with them."""


@dataclass(frozen=True)
class Setting:
    """One line of the table."""

    mechanism: str
    trust: str = "local"
    arithmetic: str = "grid"
    neighbours: str = "row"
    more: dict[str, Any] = field(default_factory=dict)

    def case(self) -> Case:
        """Return its worst case."""
        of_rows = self.neighbours in ("row", "row-replace")
        bounded = "local steps" in self.mechanism or self.neighbours == "site"
        norm: Any = Bounds(-1.0, 1.0) if self.mechanism == "scale" else 2.0
        privacy = GaussianPrivacy(
            EPSILON, DELTA, row_norm=norm if of_rows else None, site_norm=2.0 if bounded else None,
            neighbours=self.neighbours, n_public=self.neighbours in ("row-replace", "site"), trust=self.trust,
            arithmetic=self.arithmetic, raw_norm=3.0 if self.mechanism == "degrees" else None,
            **({"shares": SHARES[self.mechanism]} if self.mechanism in SHARES else {}),
        )  # fmt: skip
        solver, settings = MECHANISMS[self.mechanism]
        return worst_case(privacy, solver, **{**settings, **self.more})

    def __str__(self) -> str:
        return f"{self.mechanism} | {self.trust} | {self.arithmetic} | {self.neighbours}"


def settings(full: bool = False) -> Iterator[Setting]:
    """Yield every mechanism with every placement, arithmetic and relation that it allows (not all at once)."""
    for mechanism, trust, arithmetic, relation in itertools.product(MECHANISMS, TRUSTS, BOTH, RELATIONS):
        if mechanism == "mod-sulq" and trust != "local":
            continue
        if relation not in ("row", "row-replace") and mechanism in list(MECHANISMS)[-4:]:
            continue
        plain = arithmetic == "grid" and (trust == "local" or mechanism in ("covariance", "private-power, 3 rounds"))
        if full or relation == "row" or plain:
            yield Setting(mechanism, trust, arithmetic, relation)


def layers(solve: Solve[Any], releases: Releases) -> Solve[Any]:
    """Put a study's own layers around the questions: a trusted coordinator's noise is added there."""
    return assemble(solve, None, releases, None, [])


# ---- planted faults --------------------------------------------------------------------------------------------


def _scales(change: Callable[[Any, int], Any]) -> AbstractContextManager[Any]:
    true = fedspan.privacy.releases.tight_scale

    def wrong(sensitivity: float, mu: float, parts: int, size: int, sites: int, *others: Any) -> Any:
        return change(true(sensitivity, mu, parts, size, sites, *others), sites)

    return patch.object(fedspan.privacy.releases, "tight_scale", wrong)


def _scalars_as_they_are() -> AbstractContextManager[Any]:
    true = fedspan.privacy.releases.add_noise

    def wrong(stream: Any, value: Any, scale: Any, shape: Any = 1.0) -> Any:
        return value if np.ndim(value) == 0 else true(stream, value, scale, shape)

    return patch.object(fedspan.privacy.releases, "add_noise", wrong)


def _clip_before_centring() -> AbstractContextManager[Any]:
    true = fedspan.data.prepared.row_squares
    return patch.object(fedspan.data.prepared, "row_squares", lambda block, mean, scale: true(block, None, scale))


@contextmanager
def _answer_again() -> Iterator[None]:
    """The refusal to answer a round twice is gone, and noise is drawn anew."""
    true, draws = Releases.stream, itertools.count()

    def fresh(self: Releases, question: Any, part: str, tag: bytes) -> Any:
        return true(self, question, f"{part} {next(draws)}", tag)

    with ExitStack() as stack:
        stack.enter_context(patch.object(Memory, "durable", True))
        stack.enter_context(patch.object(Releases, "stream", fresh))
        yield


FAULTS: dict[str, tuple[Callable[[], AbstractContextManager[Any]], Setting]] = {
    "half the noise": (
        lambda: _scales(lambda scale, sites: replace(scale, share=scale.share / 2)),
        Setting("private-power, 3 rounds"),
    ),
    "a share too small: sigma / m for sigma / sqrt(m)": (
        lambda: _scales(lambda scale, sites: replace(scale, share=scale.sigma / sites)),
        Setting("covariance", "distributed", neighbours="entry"),
    ),
    "a hundredth of a part's sensitivity": (
        lambda: patch.object(Neighbours, "total", lambda self, d: self.bound**2 / 100),
        Setting("covariance"),
    ),
    "count and total released without noise": (_scalars_as_they_are, Setting("covariance", "central")),
    "C for C^2 in the sensitivity": (
        lambda: patch.object(Neighbours, "gram", lambda self: self.bound),
        Setting("covariance", arithmetic="float"),
    ),
    "rows clipped before centring, not after": (_clip_before_centring, Setting("private-power, 3 rounds", "central")),
    "degrees of rows that are not clipped": (
        lambda: patch.object(fedspan.data.clip, "clip_factors", lambda squares, weights, norm: np.ones(len(squares))),
        Setting("degrees"),
    ),
    "half the noise on the degrees": (
        lambda: patch.object(Neighbours, "degrees", lambda self: self.raw / 2),
        Setting("degrees", "central"),
    ),
    "a round answered twice, with fresh noise": (_answer_again, Setting("covariance", neighbours="entry")),
}
"""Each fault, planted in the real code, and the case that must show it."""


def with_fault(name: str, runs: int) -> EmpiricalEpsilon:
    """Audit a fault's case while it is planted."""
    plant, setting = FAULTS[name]
    with plant():
        return audit_case(setting.case(), runs, layer=layers)


# ---- tables ----------------------------------------------------------------------------------------------------


def line(*cells: Any) -> None:
    """Print a row of a markdown table."""
    sys.stdout.write("| " + " | ".join(f"{c:.2f}" if isinstance(c, float) else str(c) for c in cells) + " |\n")
    sys.stdout.flush()


def table(chosen: list[Setting], runs: int) -> bool:
    """Print the mechanisms; return whether no bound is above what was certified."""
    line("mechanism", "placement", "arithmetic", "neighbours", "runs", "certified", "lower bound", "ok")
    line(*["---"] * 8)
    good = True
    for setting in chosen:
        found = audit_case(setting.case(), runs, layer=layers)
        line(
            setting.mechanism, setting.trust, setting.arithmetic, setting.neighbours, 2 * runs, found.certified,
            found.lower_bound, "yes" if found.ok else "NO",
        )  # fmt: skip
        good &= found.ok
    return good


def faults(chosen: list[str], runs: int) -> bool:
    """Print the planted faults; return whether all were found."""
    line("planted fault", "case", "runs", "certified", "lower bound", "found")
    line(*["---"] * 6)
    good = True
    for name in chosen:
        found = with_fault(name, runs)
        case = str(FAULTS[name][1]).replace(" | ", ", ")
        line(name, case, 2 * runs, found.certified, found.lower_bound, "NO" if found.ok else "yes")
        good &= not found.ok
    return good


def main() -> int:
    """Print both tables; return 1 where a certified figure is refuted or a fault goes unnoticed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=2000, help="of each data set")
    parser.add_argument("--only", default="", help="cases whose line has this text")
    parser.add_argument("--fault", choices=list(FAULTS), help="only this planted fault")
    parser.add_argument("--full", action="store_true", help="every combination: an hour")
    given = parser.parse_args()
    started, good = time.perf_counter(), True
    sys.stdout.write(f"epsilon at delta = {DELTA:g}, bounds with confidence 1 - 1e-4\n\n")
    if given.fault is None:
        good = table([s for s in settings(given.full) if given.only in str(s)], given.runs)
        sys.stdout.write("\n")
    if given.fault or not given.only:
        good &= faults([given.fault] if given.fault else list(FAULTS), given.runs)
    sys.stdout.write(f"\n{time.perf_counter() - started:.0f} s\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
