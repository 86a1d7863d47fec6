"""Merging what sites published: the newest summary of each in a folder, whoever put it there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fedspan.cli.output import counted
from fedspan.cli.runs import MODEL
from fedspan.errors import DataError, FileError
from fedspan.estimators import StreamingPCA
from fedspan.linalg import Summary
from fedspan.published import Newest, Published
from fedspan.stream_file import StreamFile


class Merging:
    """The summaries in a folder, and the model that they come to."""

    def __init__(self, study: StreamFile, folder: Path, say: Callable[[str], None]) -> None:
        self._study, self._say = study, say
        self._summaries, self.file = folder / "summaries", folder / MODEL
        self._stamps: dict[Path, tuple[int, int, int]] = {}
        self._read: dict[Path, Published] = {}
        self.left_out: dict[str, str] = {}
        """Files that are not merged as they are, and why."""
        self.rows: dict[str, int] = {}
        """The rows of each site that is merged."""
        self.problem: str | None = None
        """Why there is no model of all that is merged."""
        self.model: StreamingPCA | None = None

    def look(self) -> bool:
        """Merge what is new in the folder, and replace the model file; say whether there is a new model."""
        changed = [file for file in sorted(self._summaries.glob("*.summary")) if self._has_changed(file)]
        for file in changed:
            self._take(file)
        return self._merge() if changed else False

    def summary(self) -> dict[str, Any]:
        """Return what was merged, for machines."""
        model = self.model if self.problem is None else None
        return {
            "sites": dict(sorted(self.rows.items())), "rows": sum(self.rows.values()), "problem": self.problem,
            "left_out": dict(sorted(self.left_out.items())), "model": None if model is None else str(self.file),
            "n_components": None if model is None else model.n_components_,
            "explained_variance_ratio": None if model is None else model.explained_variance_ratio_,
        }  # fmt: skip

    def _has_changed(self, file: Path) -> bool:
        try:
            found = file.stat()
        except OSError:  # it is being replaced
            return False
        stamp = found.st_mtime_ns, found.st_size, found.st_ino
        before, self._stamps[file] = self._stamps.get(file), stamp
        return stamp != before

    def _take(self, file: Path) -> None:
        """Read a file; where that cannot be, what was read of it before stays."""
        try:
            published, before = Published.read(file), self._read.get(file)
        except FileError as error:
            self._leave_out(file, str(error))
            return
        if before is not None and before.site == published.site and published.seq < before.seq:
            self._leave_out(file, f"{file}: number {published.seq} of its site is older than {before.seq}, which stays")
            return
        self._read[file] = published
        self.left_out.pop(file.name, None)

    def _leave_out(self, file: Path, why: str) -> None:
        if self.left_out.get(file.name) != why:
            self._say(f"Left out: {why}")
        self.left_out[file.name] = why

    def _merge(self) -> bool:
        listed = self._study.columns
        rank = max((len(published.summary.values) for published in self._read.values()), default=0)
        node = Newest(self._study.fingerprint, rank=rank, columns=None if listed is None else list(listed))
        self.rows = {}
        for file, published in sorted(self._read.items()):
            try:
                if node.take(_ordered(published, node.columns)):
                    self.rows[published.site] = published.summary.rows
            except DataError as error:
                self._leave_out(file, f"{file}: {error}")
        self.problem = None
        if self.rows:
            self._keep(node.merged(), node.columns)
        return self.model is not None and self.problem is None

    def _keep(self, summary: Summary, columns: list[str] | None) -> None:
        settings = asdict(self._study.settings)
        wanted = settings["n_components"]
        if summary.rows < (wanted if isinstance(wanted, int) else 1):
            self.problem = (
                f"n_components = {wanted} is more than the {counted(summary.rows, 'row')} of all sites so far"
            )
            return
        missing = (
            "mean" if self._study.missing == "mean" and settings["center"] else "error"
        )  # without means no filling
        seed = settings.pop("seed")
        self.model = StreamingPCA.from_summary(summary, columns, random_state=seed, missing=missing, **settings)
        self.model.dropped_ = sorted({*self._study.drop, *(n for s in self._study.sites.values() for n in s.drop)})
        self.model.save(self.file)


def _ordered(published: Published, columns: list[str] | None) -> Published:
    """Return a summary with its columns in another order, where that is all that differs."""
    have = published.columns
    if have is None or columns is None or have == columns or sorted(have) != sorted(columns):
        return published
    where = {name: i for i, name in enumerate(have)}
    places = [where[name] for name in columns]
    summary = published.summary
    turned = replace(summary, basis=summary.basis[places], mean=summary.mean[places])
    return replace(published, columns=columns, summary=turned)
