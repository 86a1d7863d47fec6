"""Rival packages, each run in an environment of its own, and the preparation of the data that both sides share.

Nothing here imports fedspan, for the rivals' environments import this package too: numpy and scipy only.
"""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import sparse

# (lowest, highest) that a red wine's column may have: from the domain (what wine can be, and the round numbers above
# it), not from the file. The file's ranges lie inside, so that no value is clipped.
WINE_BOUNDS = (
    (0.0, 20.0),  # fixed acidity, g/l tartaric
    (0.0, 2.0),  # volatile acidity, g/l acetic
    (0.0, 2.0),  # citric acid, g/l
    (0.0, 20.0),  # residual sugar, g/l
    (0.0, 1.0),  # chlorides, g/l
    (0.0, 100.0),  # free sulphur dioxide, mg/l
    (0.0, 300.0),  # total sulphur dioxide, mg/l
    (0.98, 1.01),  # density, g/ml
    (2.5, 4.5),  # pH
    (0.0, 2.5),  # sulphates, g/l
    (7.0, 16.0),  # alcohol, % by volume
)
ENTRY_BOUNDS = {"mnist": (0.0, 1.0), "a9a": (0.0, 1.0), "wine_red": (-1.0, 1.0)}  # of each entry once prepared: public

_HERE = Path(__file__).parent
_REQUIREMENTS = _HERE / "diffprivlib.txt"


class RivalError(RuntimeError):
    """A rival's environment could not be built, or the rival did not answer."""


def prepared(name: str, data_folder: str | Path) -> tuple[np.ndarray, float]:
    """Return the rows both sides are given, and the bound on their norm that both sides are told.

    No step looks at more than one row, so none costs privacy. ``mnist``: rows / 255, then norm 1. ``a9a``: norm 1.
    ``wine_red``: columns from :data:`WINE_BOUNDS` to [-1, 1], clipped there, so the norm is at most sqrt(11).
    """
    with np.load(Path(data_folder) / f"{name}.npz", allow_pickle=False) as stored:
        if name == "mnist":
            return _unit_rows(stored["X"].astype(float) / 255.0), 1.0
        if name == "a9a":
            parts = stored["data"].astype(float), stored["indices"].astype(np.int32), stored["indptr"].astype(np.int32)
            return _unit_rows(sparse.csr_matrix(parts, shape=tuple(stored["shape"])).toarray()), 1.0
        if name == "wine_red":
            low, high = np.array(WINE_BOUNDS).T
            scaled = 2.0 * (stored["X"].astype(float) - low) / (high - low) - 1.0
            return np.clip(scaled, -1.0, 1.0), math.sqrt(len(WINE_BOUNDS))
    raise ValueError(f"no preparation for {name!r}: one of {sorted(ENTRY_BOUNDS)}")


def diffprivlib_components(
    name: str,
    epsilon: float,
    k: int,
    centred: bool,
    seeds: Sequence[int],
    data_folder: str | Path,
    environment: str | Path,
    *,
    sampler: str = "shipped",
    limit: float | None = None,
) -> list[np.ndarray]:
    """Return diffprivlib's k x d components, one array per seed.

    ``environment`` is a folder: the pinned environment is built there where it is absent, and answers are kept there.
    ``sampler="shipped"`` is diffprivlib untouched; it raises or does not end on most of these data (give ``limit``,
    in seconds for the whole call). ``sampler="mended"`` replaces the one wrong line: see ``diffprivlib_pca``.
    """
    folder = Path(environment)
    script = _HERE / "diffprivlib_pca.py"
    version = hashlib.sha256(b"".join(p.read_bytes() for p in (_REQUIREMENTS, script, Path(__file__)))).hexdigest()[:12]
    listed = ",".join(str(seed) for seed in seeds)
    kind = "centred" if centred else "uncentred"
    kept = folder / f"diffprivlib-{version}-{name}-{epsilon:g}-{k}-{kind}-{sampler}-{listed}.npz"
    if not kept.exists():
        command = [str(_environment(folder)), "-m", "benchmarks.rivals.diffprivlib_pca", name, str(epsilon), str(k)]
        command += ["--data", str(Path(data_folder).resolve()), "--out", str(kept.resolve()), "--seeds", listed]
        command += ["--sampler", sampler, *(["--centred"] if centred else [])]
        _call(command, limit, f"diffprivlib on {name}, epsilon {epsilon:g}, {kind}, {sampler} sampler")
    with np.load(kept, allow_pickle=False) as answer:
        return list(answer["components"])


def _unit_rows(rows: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms > 0.0, norms, 1.0)


def _environment(folder: Path) -> Path:
    """Return the Python of the pinned environment, built first if the folder has none or one from other pins."""
    home, pins = folder.resolve() / "venv", _REQUIREMENTS.read_text()
    python = home / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    built = home / "built-from.txt"  # written last: an interrupted build is built anew
    if not (built.exists() and built.read_text() == pins):
        folder.mkdir(parents=True, exist_ok=True)
        venv.create(home, clear=True, with_pip=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--only-binary=:all:", "-r", str(_REQUIREMENTS)]
        _call(install, None, f"building diffprivlib's environment in {home} with pip")
        built.write_text(pins)
    return python


def _call(command: list[str], limit: float | None, what: str) -> None:
    settings = {**os.environ, "PYTHONPATH": str(_HERE.parent.parent)}
    try:
        done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        raise RivalError(f"{what}: no answer within {limit:g} s") from None
    if done.returncode:
        raise RivalError(f"{what} failed:\n{done.stderr.strip()[-2000:]}")
