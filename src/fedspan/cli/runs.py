"""Run folders: where a run is kept, what is in it, and which one is next.

A run folder holds ``study.toml`` (a copy), ``terms.json``, ``rounds.jsonl``, ``rounds/`` and ``sites/`` (what
resuming needs), ``transcript/`` where the study asks for it, and when the run is done ``model.fedspan`` and, written
last, ``summary.json``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from fedspan import __version__
from fedspan.cli.output import Stopped, as_json, note
from fedspan.data import Source
from fedspan.encoding import write_atomically
from fedspan.errors import (
    BudgetExhausted,
    CohortError,
    ConfigurationError,
    FedspanError,
    PolicyError,
    ResumeError,
    SiteError,
)
from fedspan.estimators import FederatedPCA, FederatedRepresentation, FederatedTruncatedSVD
from fedspan.privacy import GaussianPrivacy
from fedspan.privacy.accountant import epsilon_of
from fedspan.privacy.guarantee import TESTING
from fedspan.run import Result, Study
from fedspan.run_folder import contents, discard
from fedspan.sites import LEDGER
from fedspan.solvers import NAMES, settings_of

MODEL, SUMMARY, COPY = "model.fedspan", "summary.json", "study.toml"
_OF_A_RUN = ("terms.json", "rounds.jsonl", "rounds", "transcript", MODEL, SUMMARY)

Model = FederatedPCA | FederatedTruncatedSVD


def folder_name(name: str) -> str:
    """Return a study's name as a folder's.

    >>> folder_name("Three hospitals, 2024")
    'Three-hospitals-2024'
    """
    return re.sub(r"[^\w.]+", "-", name).strip("-.") or "study"


def is_unfinished(folder: Path) -> bool:
    """Whether a run began here and did not end."""
    return (folder / "terms.json").exists() and not (folder / SUMMARY).exists()


def holds_run(folder: Path) -> bool:
    """Whether anything in a folder is a run's, finished or not; a study, sites' ledgers and other files are not."""
    return any((folder / name).exists() for name in _OF_A_RUN)


def existing_folders(base: Path) -> list[Path]:
    """Return those of ``base``, ``base-2``, ``base-3`` ... that exist, in this order."""
    found = [(1, base)] if base.exists() else []
    for folder in base.parent.glob("*"):
        number = folder.name.removeprefix(f"{base.name}-")
        if number != folder.name and number.isdecimal():
            found.append((int(number), folder))
    return [folder for _, folder in sorted(found)]


def fresh_folder(base: Path) -> Path:
    """Return the first of ``base``, ``base-2`` ... that is not there, or is an empty folder."""
    for number in count(1):
        folder = base if number == 1 else base.with_name(f"{base.name}-{number}")
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            return folder
    raise AssertionError


def folder_to_start(base: Path, named: Path | None = None) -> Path:
    """Return the folder for a new run: as it was named, else the first free number of the default.

    A run that was left unfinished must be resumed or removed first. Nor is a folder passed over that was made ready
    with ledgers: a run beside it would not be charged there.
    """
    for folder in existing_folders(base) if named is None else [named]:
        if is_unfinished(folder):
            raise ResumeError(
                f"{folder} holds a run that did not finish; go on with --resume, or delete it or name another "
                f"--folder to start anew"
            )
        if named is None and not holds_run(folder) and any(folder.glob(f"**/{LEDGER}")):
            raise ConfigurationError(
                f"{folder} holds ledgers and no run yet: to have the run charged to them, name it with --folder "
                f"{folder}; else move them away"
            )
    return fresh_folder(base) if named is None else _as_named(named)


def _as_named(folder: Path) -> Path:
    """Return a folder that was named, unless a run cannot begin in it."""
    if folder.exists() and not folder.is_dir():
        raise ConfigurationError(f"--folder {folder} is a file; name a folder, a new one or one that holds no run")
    if holds_run(folder):
        raise ResumeError(f"{folder} holds a run already; name another --folder, or delete what that run left there")
    return folder


def folder_to_resume(base: Path, named: Path | None = None) -> Path:
    """Return the folder that was named, else the newest of the default's, where a run began that did not finish."""
    folders = existing_folders(base) if named is None else [named] if named.exists() else []
    base = base if named is None else named
    unfinished = [folder for folder in folders if is_unfinished(folder)]
    if unfinished:
        return unfinished[-1]
    state = f"{folders[-1]} holds no unfinished run" if folders else f"there is no run folder {base}"
    raise ResumeError(f"nothing to resume: {state}; start the study without --resume")


@contextmanager
def keeping(folder: Path, study: Path, *, resume: bool, again: str) -> Iterator[None]:
    """Keep a copy of the study with its run, and of a run that fails what can be gone on with (``again`` does that)."""
    before = contents(folder)
    if not resume:
        _check_copy(folder / COPY, study)
    try:
        if not resume:
            write_atomically(folder / COPY, study.read_bytes())
        yield
    except KeyboardInterrupt:
        raise Stopped(f"stopped; the rounds so far are kept. Go on with: {again}") from None
    except (SiteError, CohortError) as error:
        if isinstance(error, PolicyError) and not isinstance(error, BudgetExhausted):
            note(f"What was released until then stays charged in {folder}. Mend the study and start it in another one.")
            raise
        note(f"The rounds so far are kept in {folder}. When the cause is mended, go on with: {again}")
        raise
    except FedspanError:
        if not resume:
            discard(folder, before)
        raise


def _check_copy(copy: Path, study: Path) -> None:
    """Refuse to write the study's copy over another study, which is the user's."""
    if copy.exists() and copy.read_bytes() != study.read_bytes():
        raise ConfigurationError(
            f"{copy} is another study than {study}, and its copy would overwrite it; name another --folder"
        )


# ---- what a run found ------------------------------------------------------------------------------


def model_of(
    kind: str, study: Study, sources: Mapping[str, Source], result: Result, *, dropped: tuple[str, ...] = ()
) -> Model:
    """Return a fitted estimator, as if it had made the run itself.

    ``dropped`` and the weight column are kept with it, so that ``fedspan transform`` reads a site's file as the
    study did.
    """
    p = study.preparation
    shared: dict[str, Any] = {
        "n_components": study.n_components, "solver": study.solver, "random_state": study.seed,
        "columns": p.columns, "privacy": study.privacy, "participation": None if study.cohort.is_full else study.cohort,
        "secure": study.secure or False,
    }  # fmt: skip
    model: Model
    if kind == "pca":
        model = FederatedPCA(**shared, center=p.center, scale=p.scale, missing=p.missing)
    else:
        model = FederatedTruncatedSVD(**shared, normalise=p.normalise)
    model._learn(result, next(iter(sources.values())).dtype)
    model.dropped_ = list(dropped)
    model.weight_column_ = p.weight_column
    return model


def summarise(name: str, model: Model, result: Result, *, seconds: float, auto: bool = False) -> dict[str, Any]:
    """Return what a run found and took, as plain data."""
    facts = result.facts
    return {
        "name": name,
        "estimator": type(model).__name__,
        "solver": NAMES[type(result.solver)],
        "solver_chosen_by": "auto" if auto else "study",
        "settings": settings_of(result.solver),
        "converged": result.converged,
        "n_components": int(model.n_components_),
        "n_features": facts.features,
        "n_rows": facts.n_rows,
        "rows": facts.rows,
        "singular_values": model.singular_values_.tolist(),
        "explained_variance": _listed(model.explained_variance_),
        "explained_variance_ratio": _listed(model.explained_variance_ratio_),
        "rounds": result.rounds,
        "setup_rounds": result.setup_rounds,
        "bytes_up": result.bytes_up,
        "bytes_down": result.bytes_down,
        "seconds": round(seconds, 4),
        "clock": result.clock,
        "missing": facts.missing,
        "privacy": None if result.privacy is None else result.privacy.as_plain(),
        "secure": secure_summary(result),
        "stopped": result.stopped,
        "nodes": None if result.nodes is None else result.nodes.as_plain(),
        "n_sites": facts.sites,
        "fedspan": __version__,
    }


def secure_summary(result: Result) -> dict[str, Any] | None:
    """Return how a run's sums were made, where the coordinator saw nothing else: the least and most of its rounds."""
    made = [r.masked for r in result.history if r.masked is not None]
    if not made:
        return None
    return {
        "sums": len(made),
        "neighbours": max(m.neighbours for m in made),
        "dropped": sum(len(m.dropped) for m in made),
        "asked_again": sum(m.attempts - 1 for m in made),
        "refused": {site: why for m in made for site, why in m.refused.items()},
        "rounding": max(m.rounding for m in made),
    }


def _listed(values: Any) -> list[float] | None:
    """Return an array as a list; None where it was not released."""
    return None if values is None else values.tolist()


def privacy_warnings(privacy: GaussianPrivacy | None, runs: int, *, kept: bool) -> list[str]:
    """Return what a verb says that makes new runs of a private study; ``kept``: whether in a folder with ledgers."""
    if privacy is None:
        return []
    if privacy.testing_seed is not None:
        return [f"{TESTING}: testing_seed = {privacy.testing_seed} can be repeated by anyone"]
    if not runs:
        return []
    promise = f"epsilon {privacy.epsilon:g} (delta {privacy.delta:g})"
    if runs == 1:
        told = f"this makes a new run, which spends a full budget of its own on the same rows: {promise}"
    else:
        together = epsilon_of(math.sqrt(runs) * privacy.mu, privacy.delta)
        told = (
            f"this makes {runs} new runs, each of which spends a full budget of its own on the same rows: {promise}, "
            f"all together epsilon {together:.3g}"
        )
    return [f"{told}; what other runs spent adds to it" + ("" if kept else ", and no ledger keeps it")]


def finish(folder: Path, model: Model | FederatedRepresentation, summary: dict[str, Any]) -> None:
    """Write the model, then the summary: a folder with a summary is a finished run."""
    model.save(folder / MODEL)
    write_atomically(folder / SUMMARY, (as_json(summary) + "\n").encode())
