"""``fedspan reproduce faps``: Tables 1-4 and Figures 1-4 of Wang, Liu, Zhang (2022), the paper's figures beside ours.

Wang, Liu, Zhang: Seeking Consensus on Subspaces in Federated Principal Component Analysis. SSI, LocalPower, FAPS with
fedspan's settings and with the paper's, and block Krylov; all but Table 4 at reduced sizes, which the output states.
Nothing is downloaded: a set that is neither in ``FEDSPAN_DATA`` nor in the cache is listed as not available.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedspan.cli.reproduce_faps_data import FULL, QUICK, Images, Scale, Setting
from fedspan.cli.reproduce_faps_figures import draw_figures, measure_leak
from fedspan.cli.reproduce_faps_runs import METHODS, Task, follow
from fedspan.cli.reproduce_faps_tables import Runs, checks, text
from fedspan.cli.reproduce_shared import Report, curve_writer
from fedspan.encoding import write_atomically
from fedspan.errors import DataError

__all__ = ["reproduce", "text"]


def reproduce(
    folder: Path,
    *,
    tables: bool = True,
    figures: bool = True,
    quick: bool = False,
    report: Report = lambda _: None,
) -> dict[str, Any]:
    """Compute the tables and figures and write them to a folder.

    The folder gets ``faps.json`` (what is returned: plain data), ``tables.md`` (its `text`) and ``figure1a.png``,
    ``figure1b.png`` and ``figure2.png`` to ``figure4.png``. ``quick`` takes tiny problems: a look, not a comparison.
    """
    scale, started = QUICK if quick else FULL, time.perf_counter()
    write = curve_writer() if figures else None
    result: dict[str, Any] = {
        "paper": "Wang, Liu, Zhang: Seeking Consensus on Subspaces in Federated Principal Component Analysis",
        "settings": {"starts": scale.starts, "quick": quick, "leak": asdict(scale.leak)},
    }
    bench = _Bench(scale, report)
    with threadpool_limits(limits=1):  # the products are small: a second BLAS thread costs more than it brings
        result["groups"], result["images"] = bench.groups(), bench.images()
        if tables:
            result["uneven"] = bench.setting(scale.uneven, scale.uneven_starts)
        if figures:
            result["arithmetic"] = [bench.arithmetic(setting) for setting in scale.arithmetic]
            result["leak"] = measure_leak(scale.leak, report)
    result["checks"] = checks(result)
    if write is not None:
        result["figures"] = draw_figures(folder, result, write)
    result["seconds"] = round(time.perf_counter() - started, 1)
    write_atomically(folder / "faps.json", json.dumps(result, indent=1).encode())
    if tables:
        write_atomically(folder / "tables.md", text(result).encode())
    return result


@dataclass
class _Bench:
    """Runs every method on every problem, each problem once."""

    scale: Scale
    report: Report
    known: dict[Setting, dict[str, Any]] = field(default_factory=dict)

    def groups(self) -> list[dict[str, Any]]:
        """Figure 2 and Tables 1 and 2."""
        return [
            {"varies": group.varies, "reduced": group.reduced, "at": group.at,
             "settings": [self.setting(setting, self.scale.starts) for setting in group.settings]}
            for group in self.scale.groups
        ]  # fmt: skip

    def setting(self, setting: Setting, starts: int, *, curves: bool = False) -> dict[str, Any]:
        """A synthetic problem."""
        if setting not in self.known:
            label = f"n = {setting.n}, m = {setting.m}, p = {setting.p}"
            runs = self._race(label, setting.task(), starts, curves=curves)
            self.known[setting] = {**asdict(setting), "m": setting.m, "runs": runs}
        return self.known[setting]

    def arithmetic(self, setting: Setting) -> dict[str, Any]:
        """A panel of Figure 4."""
        label = f"kappa = {setting.kappa}, n = {setting.n}, {len(setting.rows)} sites of {setting.rows[0]} rows"
        return {"label": label, **self.setting(setting, 1, curves=True)}

    def images(self) -> list[dict[str, Any]]:
        """Figure 3 and Table 3."""
        return [self._image(images) for images in self.scale.images]

    def _image(self, images: Images) -> dict[str, Any]:
        try:
            task = images.task()
        except DataError as why:
            self.report(f"{images.label}: not available here")
            return {"label": images.label, "absent": str(why)}
        return {"label": images.label, "runs": self._race(images.label, task, self.scale.starts, curves=True)}

    def _race(self, label: str, task: Task, starts: int, *, curves: bool) -> Runs:
        """Run every method from every start; the first start's curves are kept where they are drawn."""
        runs: Runs = {name: [] for name in METHODS}
        for seed in range(starts):
            for name, solver in METHODS.items():
                found = follow(solver, task, task.start(seed))
                kept = {**asdict(found), "kkt": found.kkt, "near": found.near}
                if seed > 0 or not curves:
                    del kept["curve"]
                runs[name].append(kept)
            counts = ", ".join(f"{name} {made[-1]['iterations']}" for name, made in runs.items())
            self.report(f"{label}: start {seed + 1} of {starts}: {counts}")
        return runs
