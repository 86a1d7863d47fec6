"""The methods of Tziotis et al. (2023), section 5, and one training run of one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedspan.data.labelled import Labelled
from fedspan.encoding import Plain
from fedspan.engines import VirtualTime
from fedspan.engines.speeds import Speeds
from fedspan.learners import FLANP, HFMAML, LGFLANP, FedAvg, FedRep, Learned, LGFedAvg, Task
from fedspan.learning import Learning, learn
from fedspan.rounds import Cohort, Solve
from fedspan.solvers import Doubling

FEDREP, LG, FEDAVG, FEDAVG_FT, MAML = "FedRep", "LG-FedAvg", "FedAvg", "FedAvg + FT", "HF-MAML"
FEDREP_S, LG_S, FEDAVG_S = "FedRep-SRPFL", "LG-SRPFL", "FedAvg-SRPFL + FT"
FLANP_FT, LG_FLANP = "FLANP + FT", "LG-FLANP"
TUNED = "FedRep-SRPFL, heads tuned"
BY_SAMPLES, LG_BY_SAMPLES = "FedRep-SRPFL, by samples", "LG-SRPFL, by samples"
PAIRS = {FEDREP_S: FEDREP, LG_S: LG, FEDAVG_S: FEDAVG_FT, BY_SAMPLES: FEDREP, LG_BY_SAMPLES: LG}
"""Methods with doubling, and what each of them is without."""


@dataclass(frozen=True)
class Training:
    """How long and how a method trains. ``tune``: epochs at a site before it is measured, for the methods with FT.

    HF-MAML takes one local epoch: with five it diverges at the paper's rate.
    """

    rounds: int
    n0: int
    every: int = 1
    """Measured before each so-many-th round; where sites are tuned for it, half as often: that costs as much."""
    epochs: int = 1
    head_epochs: int = 5
    tune: int = 1

    @property
    def early(self) -> int:
        """Rounds of each of doubling's stages but the last: a fifth of all."""
        return max(1, self.rounds // 5)

    @property
    def local(self) -> dict[str, Any]:
        """Settings of every learner."""
        return {"rounds": self.rounds, "epochs": self.epochs}

    def doubled(self, stage: Any, growth: str = "sites") -> Doubling:
        """Put a learner into doubling."""
        return Doubling(stage=stage, n0=self.n0, rounds=self.early, growth=growth)

    def flanp(self) -> dict[str, Any]:
        """Settings of FLANP: a stage ends where its loss stalls, and leaves rounds to the others."""
        return {"n0": self.n0, "stage_rounds": 2 * self.early, **self.local}


def _fedrep(training: Training) -> FedRep:
    return FedRep(head_epochs=training.head_epochs, **training.local)


METHODS: dict[str, Callable[[Training], Any]] = {
    FEDREP: _fedrep,
    FEDREP_S: lambda t: t.doubled(_fedrep(t)),
    TUNED: lambda t: t.doubled(_fedrep(t)),
    BY_SAMPLES: lambda t: t.doubled(_fedrep(t), "samples"),
    LG: lambda t: LGFedAvg(**t.local),
    LG_S: lambda t: t.doubled(LGFedAvg(**t.local)),
    LG_BY_SAMPLES: lambda t: t.doubled(LGFedAvg(**t.local), "samples"),
    LG_FLANP: lambda t: LGFLANP(**t.flanp()),
    FEDAVG: lambda t: FedAvg(**t.local),
    FEDAVG_FT: lambda t: FedAvg(**t.local),
    FEDAVG_S: lambda t: t.doubled(FedAvg(**t.local)),
    FLANP_FT: lambda t: FLANP(**t.flanp()),
    MAML: lambda t: HFMAML(rounds=t.rounds),
}
FINE_TUNED = frozenset({TUNED, FEDAVG_FT, FEDAVG_S, FLANP_FT, MAML})


@dataclass
class Noted:
    """A learner that notes whom each of its rounds waits for, and is over after ``most`` rounds."""

    stage: Any
    most: int
    cohorts: list[Cohort] = field(default_factory=list)

    def solve(self, task: Task) -> Solve[Learned]:
        """Pass the learner's rounds on."""
        solve, value = self.stage.solve(task), None
        while True:
            try:
                question = solve.send(value)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            if len(self.cohorts) == self.most:
                return Learned(question.message["shared"])
            self.cohorts.append(question.cohort)
            value = yield question


@dataclass(frozen=True)
class Trained:
    """What a run was measured at: after so many rounds, the mean accuracy over the sites."""

    at: list[int]
    accuracy: list[float]
    cohorts: tuple[Cohort, ...]
    """Whom each round asked and waited for."""


def train(
    method: str, training: Training, model: dict[str, Plain], sites: Mapping[str, Labelled], *, fraction: float,
    speeds: Speeds, seed: int,
) -> Trained:  # fmt: skip
    """Run a method. Of ``speeds`` only the order counts: who is first."""
    learner = Noted(METHODS[method](training), training.rounds)
    tuned = method in FINE_TUNED
    every = training.every * (2 if tuned else 1)
    study = Learning(
        learner=learner, model=model, seed=seed, cohort=Cohort(fraction=fraction), evaluate_every=every,
        tune=training.tune if tuned else 0,
    )  # fmt: skip
    curve = learn(study, sites, engine=VirtualTime(speeds=speeds)).curve
    at = [min(i * every, len(learner.cohorts)) for i in range(len(curve))]
    accuracy = [float(np.mean([site["right"] / site["rows"] for site in scores.values()])) for _, scores in curve]
    return Trained(at, accuracy, tuple(learner.cohorts))
