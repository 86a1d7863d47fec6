"""Run folders: where a run is kept, what is in it, and which one is next.

A run folder holds ``study.toml`` (a copy), ``terms.json``, ``rounds.jsonl``, ``rounds/`` and ``sites/`` (what
resuming needs), ``transcript/`` where the study asks for it, and when the run is done ``model.fedspan`` and, written
last, ``summary.json``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

from fedspan import __version__
from fedspan.data import Source
from fedspan.encoding import write_atomically
from fedspan.errors import ResumeError
from fedspan.estimators import FederatedPCA, FederatedTruncatedSVD
from fedspan.run import Result, Study
from fedspan.solvers import NAMES

MODEL, SUMMARY, COPY = "model.fedspan", "summary.json", "study.toml"

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


def folder_to_start(base: Path) -> Path:
    """Return the folder for a new run; a run that was left unfinished must be resumed or removed first."""
    for folder in existing_folders(base):
        if is_unfinished(folder):
            raise ResumeError(
                f"{folder} holds a run that did not finish; go on with --resume, or delete it or name another "
                f"--folder to start anew"
            )
    return fresh_folder(base)


def folder_to_resume(base: Path) -> Path:
    """Return the newest unfinished run folder."""
    folders = existing_folders(base)
    unfinished = [folder for folder in folders if is_unfinished(folder)]
    if unfinished:
        return unfinished[-1]
    state = f"{folders[-1]} holds no unfinished run" if folders else f"there is no run folder {base}"
    raise ResumeError(f"nothing to resume: {state}; start the study without --resume")


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
        "settings": asdict(result.solver),  # type: ignore[call-overload]
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
        "missing": facts.missing,
        "privacy": None if result.privacy is None else result.privacy.as_plain(),
        "stopped": result.stopped,
        "n_sites": facts.sites,
        "fedspan": __version__,
    }


def _listed(values: Any) -> list[float] | None:
    """Return an array as a list; None where it was not released."""
    return None if values is None else values.tolist()


def finish(folder: Path, model: Model, summary: dict[str, Any]) -> None:
    """Write the model, then the summary: a folder with a summary is a finished run."""
    model.save(folder / MODEL)
    write_atomically(folder / SUMMARY, (json.dumps(summary, indent=2) + "\n").encode())
