"""A small federation on disk, and the command line to run on it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fedspan
from fedspan.cli import app

COLUMNS = ["age", "mass", "height", "pulse", "iron", "zinc"]
SIZES = {"berlin": 40, "lyon": 25, "turin": 60}


def invoke(*arguments: object) -> Any:
    """Run the command line in this process; what fedspan does not expect comes up as it is."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def python(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run this Python in another process that finds the same fedspan."""
    source = str(Path(fedspan.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=cwd, env=env, capture_output=True, text=True, timeout=120
    )


@dataclass
class Federation:
    """Three sites as CSV files, and a study of them."""

    folder: Path
    rows: dict[str, np.ndarray]

    @property
    def study(self) -> Path:
        return self.folder / "study.toml"

    @property
    def run_folder(self) -> Path:
        return self.folder / "runs" / "hospitals"

    def file(self, site: str) -> Path:
        return self.folder / f"{site}.csv"

    def write_site(self, site: str, rows: np.ndarray, columns: list[str] = COLUMNS) -> None:
        lines = [",".join("" if np.isnan(v) else repr(float(v)) for v in row) for row in rows]
        self.file(site).write_text("\n".join([",".join(columns), *lines, ""]))

    def write_study(self, more: str = "", *, k: object = 2, solver: str = "krylov") -> Path:
        sites = "\n".join(f'{site} = "{site}.csv"' for site in self.rows)
        solve = f'[solve]\nn_components = {k}\nsolver = "{solver}"\n'
        self.study.write_text(f'name = "hospitals"\n[sites]\n{sites}\n{solve}{more}')
        return self.study


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    rng = np.random.default_rng(7)
    mix = rng.standard_normal((len(COLUMNS), len(COLUMNS))) * np.arange(1, 7)
    made = Federation(tmp_path, {site: rng.standard_normal((n, 6)) @ mix + 5 for site, n in SIZES.items()})
    for site, rows in made.rows.items():
        made.write_site(site, rows)
    made.write_study()
    return made


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work inside the temporary folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
