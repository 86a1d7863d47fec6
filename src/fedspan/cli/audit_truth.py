"""What an audit scores guesses against, and whether it is the run's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from fedspan.cli.output import note
from fedspan.cli.runs import COPY, MODEL, SUMMARY
from fedspan.data import Source
from fedspan.data.prepared import Prepared
from fedspan.encoding import Array
from fedspan.errors import ConfigurationError, DataError, ResumeError
from fedspan.model_file import read_model
from fedspan.privacy.transcript import Seen, Transcript
from fedspan.sites import DurableMemory, is_folder_name, rows_digest


def check_finished(run: Path) -> None:
    """Say where a run is not over, or may not be: one that `fedspan fit` did not make writes no summary."""
    if not (run / SUMMARY).exists():
        state = "the run did not finish" if (run / COPY).exists() else f"no {SUMMARY} tells whether the run finished"
        note(f"Note: {state}: verdicts are about the rounds so far.")


def check_rows(run: Path, sources: Mapping[str, Source]) -> None:
    """Refuse other rows than those whose digest a site's memory keeps; say where there is none."""
    unsure = []
    for name, source in sources.items():
        folder = run / "sites" / name
        if not is_folder_name(name) or not (folder / "memory").exists():
            unsure.append(name)
            continue
        try:
            DurableMemory(folder, rows_digest(name, source))
        except ResumeError as cause:
            raise DataError(
                f"site {name!r} has other data than when the run was made (other rows, columns or weights), so guesses "
                f"cannot be scored against it; restore it, or audit a new run"
            ) from cause
    if unsure:
        note(
            f"Note: {run} keeps no memory of {', '.join(unsure)}, so it cannot be verified that the data there is "
            f"the run's; only its sum of squares is compared."
        )


def published(folder: Path) -> Array | None:
    """Return the basis that a run published, where the folder holds its model."""
    if not (folder / MODEL).exists():
        note(f"{folder} holds no {MODEL}, so there is no attack from outside")
        return None
    return np.asarray(read_model(folder / MODEL)[1]["components_"], dtype=float).T


class TrueGrams(Mapping[str, Array]):
    """Each site's A_i'A_i as the run prepared its rows, computed when asked for. Only scoring uses it."""

    def __init__(self, sources: Mapping[str, Source], transcript: Transcript) -> None:
        self._sources, self._names = sources, transcript.sites
        for name in self._names:
            if name not in sources:
                raise ConfigurationError(f"the run has a site {name!r} and the study has none of that name")
        self._prepared = next((seen for seen in transcript.rounds if seen.step == "data.prepare"), None)
        if self._prepared is not None and self._prepared.summed is not None:
            self._check_sum(self._prepared)

    def __getitem__(self, site: str) -> Array:
        """Return a site's Gram matrix; refuse data that is not what the run saw."""
        if self._prepared is None:
            raise ConfigurationError("the transcript has no data.prepare round: it stopped before the first release")
        gram = Prepared(self._sources[site], self._prepared.message).gram()
        if "privacy" in self._prepared.message or self._prepared.summed is not None:
            return gram  # clipped and noised: nothing to compare with; or compared as a sum
        _compare(f"site {site!r}", float(self._prepared.replies[site]), float(np.trace(gram)))
        return gram

    def _check_sum(self, prepared: Seen) -> None:
        if "privacy" not in prepared.message:
            traces = [Prepared(self._sources[name], prepared.message).total() for name in prepared.summed or ()]
            _compare("some site", float(prepared.total), float(np.sum(traces)))

    def __iter__(self) -> Iterator[str]:
        """The sites that released anything."""
        return iter(self._names)

    def __len__(self) -> int:
        """How many they are."""
        return len(self._names)


def _compare(who: str, told: float, now: float) -> None:
    if abs(told - now) > 1e-4 * max(abs(told), abs(now)):
        raise DataError(
            f"{who} has other data than when the run was made (its sum of squares was {told:.6g} and is {now:.6g}), so "
            f"guesses cannot be scored against it; restore it, or audit a new run"
        )
