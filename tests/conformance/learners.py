"""Every learner the library registers, with small settings and models: a new one is listed here, and checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedspan.data.labelled import Labelled
from fedspan.learners import FLANP, HFMAML, LEARNERS, LGFLANP, FedAvg, FedRep, LGFedAvg
from fedspan.learners.agreement import part_of
from fedspan.learning import LearnedModel, Learning, learn
from fedspan.rounds import Cohort
from fedspan.solvers import Doubling
from tests.conformance.solvers import FIRST, FULL, SCHEME_2
from tests.learners.labelled import clouds, planted

MLP = {"kind": "mlp", "hidden": [5, 4]}
LINEAR = {"kind": "linear", "components": 2}
SETUP_ROUNDS = 2  # describe, agree
SITES = ("accra", "berlin", "cairo", "delhi")
QUIET: dict[str, Any] = {"batch": 0, "rate": 0.1}


@dataclass(frozen=True)
class Case:
    """A learner with settings, a model and a cohort."""

    id: str
    learner: Any
    model: Any
    cohort: Cohort = FULL

    @property
    def part(self) -> Any:
        """The learner in the stages, or the learner itself."""
        return part_of(self.learner)

    @property
    def doubles(self) -> bool:
        """Whether early rounds are over with some of the replies, whatever the cohort says."""
        return isinstance(self.learner, Doubling)

    @property
    def holds(self) -> bool:
        """Whether some rounds wait for sites that were first before."""
        return self.doubles and self.learner.resample == "stage"

    @property
    def tolerance(self) -> float:
        """How far sums in another order may be apart: networks compute in float32."""
        return 1e-9 if self.model is LINEAR else 1e-4

    def __str__(self) -> str:
        return self.id


def _cases() -> list[Case]:
    plain = {
        "fedrep": FedRep(rounds=4, **QUIET), "lg-fedavg": LGFedAvg(rounds=4, **QUIET),
        "fedavg": FedAvg(rounds=4, **QUIET), "hf-maml": HFMAML(rounds=4, **QUIET),
    }  # fmt: skip
    assert set(plain) == set(LEARNERS)
    cases = []
    for kind, model in (("linear", LINEAR), ("mlp", MLP)):
        for name, learner in plain.items():
            cases.append(Case(f"{name}-{kind}", learner, model))
            cases.append(Case(f"doubling-{name}-{kind}", Doubling(stage=learner, n0=1, rounds=2), model))
        cases += [
            Case(f"flanp-{kind}", FLANP(n0=2, rounds=3, stage_rounds=2, **QUIET), model),
            Case(f"lg-flanp-{kind}", LGFLANP(n0=2, rounds=3, stage_rounds=2, **QUIET), model),
        ]
    return [
        *cases,
        Case("fedrep-batches", FedRep(rounds=3, batch=7, epochs=2, head_epochs=2), MLP),
        Case("fedrep-fresh", FedRep(rounds=5, fresh=6, **QUIET), LINEAR),
        Case("fedrep-heads", FedRep(rounds=3, heads=True, by_rows=True, **QUIET), LINEAR),
        Case("fedrep-stall", FedRep(rounds=40, stall=0.3, **QUIET), MLP),
        Case("fedrep-scheme-2", FedRep(rounds=4, **QUIET), MLP, SCHEME_2),
        Case("fedrep-first", FedRep(rounds=4, **QUIET), LINEAR, FIRST),
        Case("lg-fedavg-first", LGFedAvg(rounds=4, by_rows=True, batch=7), MLP, FIRST),
        Case("hf-maml-batches", HFMAML(rounds=3, batch=7), MLP),
        Case("doubling-samples", Doubling(stage=FedRep(rounds=2, **QUIET), n0=1, growth="samples"), MLP),
        Case("doubling-formula", Doubling(stage=FedRep(rounds=2), rounds="formula", contraction=0.6), LINEAR),
        Case("doubling-stall", Doubling(stage=FedAvg(rounds=2), n0=2, rounds="stall", stall=0.3, most=8), MLP),
        Case("doubling-scheme-2", Doubling(stage=LGFedAvg(rounds=2, **QUIET), n0=1, rounds=1), MLP, SCHEME_2),
    ]


CASES = _cases()
BY_ID = {case.id: case for case in CASES}


def sources_of(case: Case, seed: int = 0) -> dict[str, Labelled]:
    """Sites for a case's model, named out of order: clouds of classes, or numbers with a planted basis."""
    made = planted(sites=4, rows=20, d=6, noise=0.2, seed=seed)[0] if case.model is LINEAR else clouds(seed=seed)
    return dict(zip(["delhi", "berlin", "accra", "cairo"], made.values(), strict=True))


def solve(
    case: Case, sources: dict[str, Labelled] | None = None, *, engine: Any = None, seed: int = 0,
    evaluate_every: int | None = None, **settings: Any,
) -> LearnedModel:  # fmt: skip
    """Run a case on sites: by default all of them, in one process."""
    sources = sources_of(case) if sources is None else sources
    study = Learning(
        learner=case.learner, model=dict(case.model), cohort=case.cohort, seed=seed, evaluate_every=evaluate_every
    )
    return learn(study, sources, engine=engine, **settings)


def bits(result: LearnedModel) -> bytes:
    """All that was learnt, to the bit."""
    return result.shared.tobytes() + b"".join(result.heads[name].tobytes() for name in sorted(result.heads))


def own_rounds(result: LearnedModel) -> list[Any]:
    """The records of the learner's rounds."""
    return [record for record in result.history if not record.setup]


def traffic(result: LearnedModel) -> list[tuple[Any, ...]]:
    """What a history says, but for the seconds."""
    return [(r.round, r.step, r.bytes_up, r.bytes_down, r.sites, r.change) for r in result.history]


def distance(one: LearnedModel, other: LearnedModel) -> float:
    """How far two results are apart, at most in any parameter."""
    parts = [(one.shared, other.shared), *((one.heads[name], other.heads[name]) for name in one.heads)]
    return max((float(np.abs(a - b).max()) for a, b in parts if a.size), default=0.0)
