"""Runs without a coordinator: every node drives its own replica of the study's solver, in lockstep by rounds.

`fedspan.run` hands over to `Federation` where the engine is `Gossip`. The first node's replica (in name order) has the
layers around it: it is what is watched and recorded. The others are bare, so that a run costs no more memory than the
solvers themselves. Where a node's solver is done while another's is not (stopping tests may differ in the last digits),
its site goes on answering what the nearest node that is not done asks: sums stay complete.

A node that crashes is missed in the next exchange: the others begin it again on what is left of the graph. What it
contributed to rounds that are over, the mean of the columns among them, stays as it is. A solver that mixes products of
all its rounds (Krylov) would mix two different sums then, so its study begins anew among the survivors, set-up
included, from the last estimate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedspan.data import Source
from fedspan.engines.gossip import Gossip, Network
from fedspan.errors import ConfigurationError, ConvergenceError, PolicyError, ResumeError
from fedspan.gossip_masks import PairMasks
from fedspan.linalg import Estimate
from fedspan.metrics import projection_distance
from fedspan.rounds import Outcome, Round, Site, Solve, numbered
from fedspan.solvers import NAMES, FedPower, Solution, make
from fedspan.study import Progress, Study, answer_of, solve_study
from fedspan.topology import Graph

_ASTRAY = 0.1
"""Answers farther apart than this are not those of one federation."""


@dataclass(frozen=True)
class Nodes:
    """What came of each node, where there was no coordinator."""

    estimates: dict[str, Estimate]
    """The answer of each node that is alive at the end."""
    disagreement: float
    """The sine of the largest angle between two of them: between the first one's and any other's."""
    steps: list[int]
    """Exchanges between neighbours in each round."""
    crashed: dict[str, float] = field(default_factory=dict)
    """When nodes crashed, as `Gossip.crashes` has it."""

    def as_plain(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return {
            "alive": len(self.estimates), "disagreement": self.disagreement, "steps": sum(self.steps),
            "crashed": self.crashed,
        }  # fmt: skip


class _Replica:
    """One node's solver: what it asks next, or its solution."""

    def __init__(self, solve: Solve[Any], progress: Progress) -> None:
        self._solve, self.progress = solve, progress
        self.question: Round | None = None
        self.go_on(None)

    def go_on(self, outcome: Outcome | None) -> None:
        """Hand the solver what came of its question."""
        try:
            self.question = self._solve.send(outcome)
        except StopIteration as stop:
            self.question, self.progress.solution = None, stop.value


class Federation:
    """The nodes of one run, and the replicas of its solver."""

    def __init__(self, law: Gossip, study: Study, sites: Sequence[Site], run: str) -> None:
        self._study = replace(study, precision=law.accuracy)
        self._masks = None if not is_shared(study) else PairMasks(sites, run)
        self._network = Network(law, sites, study.seed, self._masks)
        self._replicas: dict[str, _Replica] = {}

    def replica(self, progress: Progress) -> Solve[Solution]:
        """Return the study's solver; begun anew where a node is lost that it cannot go on without."""
        study = self._study
        while True:
            solve, value, alive = solve_study(study, progress), None, None
            while alive is None or alive == len(self._network.graph.names):
                try:
                    question = solve.send(value)
                except StopIteration as stop:
                    return stop.value  # type: ignore[no-any-return]
                if alive is None and not question.step.setup and progress.solver and not progress.solver.partial:
                    alive = len(self._network.graph.names)
                value = yield question
            study = replace(study, init=self._begin_from(question))

    def _begin_from(self, question: Round) -> Any:
        if self._study.privacy is not None:
            lost = ", ".join(sorted(self._network.crashed))
            raise PolicyError(
                f"{lost} crashed, and this solver needs the same sites throughout; to begin anew would release more "
                f"than was agreed: take private-power or covariance"
            )
        return question.estimate

    def drive(self, lead: Solve[Any], progress: Progress) -> None:
        """Have every replica ask, and give it what its node has of the replies, until all have their answer.

        ``lead`` is the first node's, with its layers; its node may crash, and the next in name order goes on with it.
        """
        network = self._network
        first, *others = network.graph.names
        self._replicas = {first: _Replica(lead, progress)}
        for name in others:
            own = Progress()
            self._replicas[name] = _Replica(numbered(self.replica(own)), own)
        number = 0
        while any(replica.question for replica in self._replicas.values()):
            network.lose_before(number)
            if self._masks is not None:
                self._masks.check(number, network.graph)
            self._bury()
            outcomes = network.exchange(self._questions())
            self._bury()
            for name, replica in self._replicas.items():
                if replica.question is not None:
                    replica.go_on(outcomes[name])
            number += 1

    def nodes(self) -> Nodes:
        """Return every node's answer; of one that was stopped, its last."""
        found = {}
        for name, replica in self._replicas.items():
            if replica.progress.solution is None:
                replica.progress.salvage()
            found[name] = answer_of(replica.progress)
        bases = [estimate.basis for estimate in found.values()]
        apart = max(_apart(bases[0], basis) for basis in bases)
        if apart > _ASTRAY:
            raise ConvergenceError(
                f"the nodes' answers are up to {apart:.2g} apart: their solvers went different ways; let them agree "
                f"(agree = True), or give a smaller accuracy"
            )
        return Nodes(found, apart, self._network.steps, self._network.crashed)

    def _bury(self) -> None:
        """Let go of the replicas of crashed nodes; the recorded one goes on as the next node's."""
        alive, lead = self._network.graph.names, next(iter(self._replicas))
        kept = {name: self._replicas[name] for name in alive}
        if lead not in kept:
            kept[alive[0]] = self._replicas[lead]
        self._replicas = kept

    def _questions(self) -> dict[str, Round]:
        """Return what each node's site is asked: by its own node, or by the nearest one that is not done."""
        asking = {name: replica.question for name, replica in self._replicas.items() if replica.question}
        questions = {name: asking[self._nearest(name, asking)] for name in self._replicas}
        steps = {question.step.name: name for name, question in questions.items()}
        if len(steps) > 1:
            raise ConvergenceError(
                f"the nodes' solvers went different ways: in the same round "
                f"{' and '.join(f'{name!r} asks {step}' for step, name in steps.items())}; let them agree (agree = "
                f"True), or give a smaller accuracy"
            )
        return questions

    def _nearest(self, name: str, asking: Mapping[str, Round]) -> str:
        """Return the node whose question a site answers: its own, or of those that still ask the nearest by links."""
        if name in asking:
            return name
        far = self._network.graph.distances(name)
        return min(asking, key=lambda other: (far[other], other))


def check_gossip(law: Gossip, study: Study, sources: Mapping[str, Source], *, resume: bool, record: str) -> None:
    """Refuse what needs a coordinator, before a site is asked anything."""
    if resume:
        raise ResumeError(
            "a gossip run does not resume: the folder keeps the first node's rounds, and every node's solver would "
            "need its own; start the study in another folder"
        )
    if record == "transcript":
        raise ConfigurationError(
            'record = "transcript" keeps what a coordinator sees of each site, and gossip has none; take "rounds"'
        )
    if study.secure is not None and (study.privacy is None or study.privacy.trust != "distributed"):
        raise ConfigurationError(
            "secure sums are relayed by a coordinator, and gossip has none; leave out secure: here "
            "trust = 'distributed' of a privacy policy hides single nodes"
        )
    if study.privacy is not None and study.privacy.trust == "central":
        raise ConfigurationError(
            "trust = 'central' has the coordinator add the noise, and gossip has none; take 'distributed' or 'local'"
        )
    if not study.cohort.is_full:
        raise ConfigurationError(
            f"gossip asks every node in every round, as there is no coordinator to choose or to wait for some: leave "
            f"out participation; got {study.cohort}"
        )
    graph = law.over(sources, study.seed)
    _check_solver(study)
    if study.privacy is not None and is_shared(study):
        _check_honest(study.privacy.honest or len(sources), graph)


def is_shared(study: Study) -> bool:
    """Whether each node adds a share of the noise, so that single replies must be hidden."""
    return study.privacy is not None and study.privacy.trust == "distributed"


def _check_honest(honest: int, graph: Graph) -> None:
    """Refuse a graph that the nodes not counted on could cut: the sum of either side would show."""
    lost = len(graph.names) - honest
    if lost >= graph.connectivity:
        raise ConfigurationError(
            f"trust = 'distributed' counts on {honest} of {len(graph.names)} nodes, so {lost} may collude or crash, "
            f"and {graph.connectivity} can cut this graph, which would show sums of either side; give it more links "
            f"(a higher degree), or count on more nodes (honest)"
        )


def _check_solver(study: Study) -> None:
    """Refuse a solver that needs more than sums of all sites."""
    if study.solver == "auto":  # takes covariance, krylov or private-power
        return
    chosen: Any = make(study.solver) if isinstance(study.solver, str) else study.solver
    if not getattr(chosen, "sums_only", True):
        raise ConfigurationError(
            f"{NAMES.get(type(chosen), type(chosen).__name__)} needs single replies, or waits for few of them, and "
            f"gossip makes sums of all; take one that needs no more: krylov, power, fedpower (reference = 'global'), "
            f"faps, covariance"
        )
    if study.privacy is not None and study.privacy.calibration == "published" and isinstance(chosen, FedPower):
        raise ConfigurationError(
            "FedPower's published noise is added at the sites and again at the coordinator, and gossip has none; set "
            "calibration = 'tight'"
        )


def _apart(one: Any, other: Any) -> float:
    """Return how far two answers are apart; all the way, where one has more components."""
    return projection_distance(one, other) if one.shape == other.shape else 1.0
