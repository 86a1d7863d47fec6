"""Assemble and run a study: data preparation, solver, layers, engine. The order of layers is fixed here.

solver, set-up -> numbered -> observe -> merging -> follow -> record -> account -> secure sums -> transcript -> engine

`merging` sees to `Merge` rounds only. `record` is there with a run folder, `transcript` only where it is asked for too,
`follow` and `account` in a private study, `secure_sums` where the coordinator is to learn sums only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedspan.data import Facts, Source
from fedspan.engines import Engine, Gossip, get_engine
from fedspan.errors import BudgetExhausted, ConfigurationError, DataError, FileError, PolicyError
from fedspan.gossip_run import Federation, Nodes, check_gossip
from fedspan.layers import (
    Journal,
    OnRound,
    RoundRecord,
    account,
    follow,
    merging,
    noting_sums,
    observe,
    record,
    secure_sums,
    transcript,
)
from fedspan.linalg import Estimate
from fedspan.privacy.guarantee import Guarantee, guarantee
from fedspan.privacy.ledger import Ledger
from fedspan.privacy.policy import SitePolicy
from fedspan.privacy.releases import Releases
from fedspan.privacy.secret import KEY, Secret
from fedspan.privacy.terms import check_terms
from fedspan.privacy.transcript import TranscriptWriter
from fedspan.rounds import Site, Solve, drive, numbered
from fedspan.run_folder import check_record, contents, discard, open_journal, run_name
from fedspan.secure import SumTerms
from fedspan.sites import LEDGER, open_sites
from fedspan.solvers import Solver, Streaming
from fedspan.study import Progress, Study, answer_of, check_sums, solve_study
from fedspan.topology import fan_out_of

__all__ = ["Result", "Study", "assemble", "run"]


@dataclass(frozen=True)
class Result:
    """What a run found, and what it took."""

    estimate: Estimate
    """k columns, signs canonical, and the eigenvalues of the prepared rows' Gram matrix."""
    facts: Facts
    solver: Solver
    converged: bool | None
    history: list[RoundRecord]
    privacy: Guarantee | None = None
    """What was promised and spent."""
    stopped: str | None = None
    """Why the run ended before its solver did, or what is missing in its answer."""
    nodes: Nodes | None = None
    """What came of each node, where there was no coordinator; ``estimate`` is then the first one's."""

    @property
    def rounds(self) -> int:
        """The solver's rounds."""
        return sum(not r.setup for r in self.history)

    @property
    def setup_rounds(self) -> int:
        """Rounds that prepared the data."""
        return sum(r.setup for r in self.history)

    @property
    def clock(self) -> float | None:
        """How long the run took by the engine's own time, set-up included; None where it keeps none."""
        return (self.history[-1].clock or None) if self.history else None

    @property
    def bytes_up(self) -> int:
        """Bytes from the sites, all rounds."""
        return sum(r.bytes_up for r in self.history)

    @property
    def bytes_down(self) -> int:
        """Bytes to the sites, all rounds."""
        return sum(r.bytes_down for r in self.history)


def run(
    study: Study,
    sources: Mapping[str, Source],
    *,
    engine: str | Engine | None = None,
    folder: Path | None = None,
    resume: bool = False,
    record: str = "rounds",
    watchers: Sequence[OnRound] = (),
) -> Result:
    """Run a study on sites. With a folder, every round is recorded there and a stopped run can be resumed.

    ``record="transcript"`` keeps each site's releases in the folder too, which must then be protected like them:
    `fedspan.privacy.transcript`.
    """
    if not sources:
        raise ConfigurationError("a study needs at least one site, got none")
    check_record(record)
    chosen = get_engine(engine)
    if isinstance(chosen, Gossip):
        check_gossip(chosen, study, sources, resume=resume, record=record)
    if record == "transcript" and folder is None:
        raise ConfigurationError(
            'record="transcript" keeps what each site released in the run folder, and none was given; name one'
        )
    before = None if folder is None else contents(folder)
    _check(study, len(sources), chosen)
    journal = None if folder is None else open_journal(folder, study.fingerprint(sources), record, resume=resume)
    writer = TranscriptWriter(folder) if folder is not None and record == "transcript" else None
    try:
        return _run(study, sources, journal, writer, folder, chosen, watchers)
    except (ConfigurationError, DataError, FileError):
        if folder is not None and not resume:  # nothing was learnt: leave nothing half-written behind
            discard(folder, before)
        raise


def _check(study: Study, sites: int, engine: Engine) -> None:
    """Refuse what cannot be done with so many sites, before anything is written."""
    if isinstance(study.solver, Streaming):
        fan_out_of(sites, study.solver.fan_out, study.solver.depth)  # refuses a tree without room
    check_sums(study, study.solver)
    if not isinstance(engine, Gossip):
        study.masks(sites)  # refuses what secure sums cannot serve
    if study.privacy is not None:
        check_terms(study.privacy, study.preparation, study.cohort, sites)


def _run(
    study: Study,
    sources: Mapping[str, Source],
    journal: Journal | None,
    writer: TranscriptWriter | None,
    folder: Path | None,
    engine: Engine,
    watchers: Sequence[OnRound],
) -> Result:
    run_id = run_name(folder)
    releases = _releases(study, len(sources), folder, run_id, engine)
    masks = None if isinstance(engine, Gossip) else study.masks(len(sources), run_id)
    sites = open_sites(
        sources, seed=study.seed, folder=None if folder is None else folder / "sites", privacy=study.privacy,
        run=run_id, preparation=study.preparation, masks=masks,
    )  # fmt: skip
    history, progress, stopped = list[RoundRecord](), Progress(), None
    federation = Federation(engine, study, sites, run_id) if isinstance(engine, Gossip) else None
    replica = solve_study(study, progress) if federation is None else federation.replica(progress)
    solve = assemble(replica, journal, releases, writer, [lambda r, _: history.append(r), *watchers], masks)
    try:
        if federation is None:
            progress.solution = drive(solve, engine(sites, study.seed))
        else:
            federation.drive(solve, progress)
    except BudgetExhausted as error:
        stopped = str(error)
        if not progress.salvage():
            destroy_secrets(releases, sites)
            raise
    except (ConfigurationError, DataError, PolicyError):  # it would fail again; a resumed run would pay again
        destroy_secrets(releases, sites)
        raise
    facts, solver, solution = progress.outcome()
    promised = None if releases is None else guarantee(releases)
    destroy_secrets(releases, sites)
    return Result(
        answer_of(progress), facts, solver, solution.converged, history, promised, stopped or solution.note,
        None if federation is None else federation.nodes(),
    )  # fmt: skip


def _releases(study: Study, sites: int, folder: Path | None, run_id: str, engine: Engine) -> Releases | None:
    """Return the coordinator's account of a private study."""
    if study.privacy is None:
        return None
    ledger = None if folder is None else Ledger(folder / LEDGER)
    secret = Secret(None if folder is None else folder / KEY)
    releases = Releases(study.privacy, run=run_id, who="", sites=sites, ledger=ledger, secret=secret)
    releases.pairwise = isinstance(engine, Gossip) and study.privacy.trust == "distributed"
    return releases


def destroy_secrets(releases: Releases | None, sites: Sequence[Site]) -> None:
    """Forget what noise was keyed by: the run is over, and nothing is released again."""
    if releases is not None:
        releases.secret.destroy()
    for site in sites:
        if isinstance(site.policy, SitePolicy):
            site.policy.releases.secret.destroy()


def assemble(
    solve: Solve[Any],
    journal: Journal | None,
    releases: Releases | None,
    writer: TranscriptWriter | None,
    watchers: Sequence[OnRound],
    masks: SumTerms | None = None,
) -> Solve[Any]:
    """Put the layers around a solver, in their order."""
    solve = merging(observe(numbered(solve), *watchers))
    if releases is not None:
        solve = follow(solve, releases)
    if journal is not None:
        solve = record(solve, journal)
    if releases is not None:
        solve = account(solve, releases)
    if masks is not None:
        solve = secure_sums(solve if writer is None else noting_sums(solve, writer), masks)
    return solve if writer is None else transcript(solve, writer)
