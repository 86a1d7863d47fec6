"""A site's policy: what it answers at all, what it adds to each release, and what it never says.

How releases are priced, charged and noised is in `fedspan.privacy.releases`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedspan.data import Preparation
from fedspan.data.clip import RowBounds
from fedspan.encoding import Array, Plain, digest
from fedspan.errors import DataError, FedspanError, PolicyError, SiteError
from fedspan.privacy.mechanisms import in_pieces
from fedspan.privacy.questions import check_preparation, check_question
from fedspan.privacy.releases import Releases
from fedspan.rounds import Round, Site


class SitePolicy:
    """A site's policy under the terms it accepted."""

    def __init__(
        self,
        releases: Releases,
        log_file: Path | None = None,
        *,
        agreed: Preparation | None = None,
        rows: str = "",
    ) -> None:
        self.releases = releases
        self.privacy = releases.privacy
        self._agreed, self._rows_digest = agreed, rows
        self.log: list[str] = []
        """What happened here, for this site's own eyes; with a run folder it is in a file there too."""
        plain = releases.published is not None or self.privacy.arithmetic == "float"
        self.exact = self.privacy.trust == "distributed" and not plain
        self._log_file = log_file

    def admit(self, site: Site, question: Round) -> None:
        """Refuse steps that no noise can cover, before they touch a row."""
        if question.step.public:
            return
        if question.step.sensitivity is None:
            raise PolicyError(
                f"site {site.id!r} has a privacy policy, and step {question.step.name} declares no sensitivity; take a "
                f"solver that does: covariance, private-power, power, krylov, fedpower, mod-sulq, streaming-mod-sulq"
            )
        newest = max((number for number, _ in site.memory.versions), default=-2)
        if not site.memory.durable and question.number <= newest:
            raise PolicyError(
                f"round {question.number} ({question.step.name}) comes after round {newest}, and this site keeps no "
                f"replies to give again; ask rounds in their order, or give the study a run folder"
            )
        terms = (question.message if question.step.name == "data.prepare" else site.state.get("preparation")) or {}
        check_question(question, self.privacy, site.source, self._agreed)
        self.releases.accept(terms.get("privacy"))
        self.releases.context = [self._rows_digest, digest(site.state.get("preparation"))]

    def noised(self, site: Site, parts: dict[str, Array], about: Array | None = None) -> dict[str, Array]:
        """Return the parts as they may leave: noised and charged here, or as they are to a trusted coordinator."""
        if site.asked is None:
            raise PolicyError("a release without a question has no bound")
        if self.privacy.trust == "central":
            return parts
        self.releases.bounds = getattr(site.data, "bounds", None)  # what the rows ARE clipped to, whatever was said
        return self.releases.release(site.asked, parts, about, self._rows(site), again=site.memory.durable)

    def noising(
        self, site: Site, name: str, shape: tuple[int, ...], data: Any, block: tuple[str, int] | None
    ) -> Callable[[Array], Array]:
        """Charge a release made in pieces, and return what noises a piece."""
        if site.asked is None or self.privacy.trust != "local":  # what is made of the pieces is no sum of shares
            raise PolicyError(f"{name} is released piece by piece, with noise at the site; set trust to local")
        self.releases.bounds = getattr(data, "bounds", None)
        scales, tag = self.releases.charge(site.asked, {name: shape}, again=site.memory.durable, block=block)
        return in_pieces(self.releases.stream(site.asked, name, tag), scales[name][0])

    def steps(self) -> Mapping[str, float] | None:
        """Return the grid of each part of the last release; None where the coordinator adds the noise."""
        return None if self.privacy.trust == "central" else self.releases.steps

    def _rows(self, site: Site) -> float:
        """This site's rows, for the published formulas that take them as public."""
        return float(site.data.mass) if self.releases.published is not None else 1.0

    def clipped(self, site: Site, release: Array) -> Array:
        """Return a release within the policy's bound on the whole of it."""
        if self.privacy.calibration == "published" or self.privacy.site_norm is None:
            return release
        length = float(np.linalg.norm(release))
        return release * min(1.0, self.privacy.site_norm / max(length, 1e-300))

    def withholds(self, figure: str) -> bool:
        """The share of gaps stays here always, the number of rows unless it is public."""
        return figure != "rows" or not self.privacy.rows_known

    def check_preparation(self, site: Site, preparation: dict[str, Plain]) -> None:
        """Refuse a preparation that was not agreed to: by a question, or by terms to restart from."""
        check_preparation(preparation, self.privacy, site.source, self._agreed)

    def row_bounds(self, width: int, preparation: dict[str, Any], *, install: bool) -> RowBounds | None:
        """Return what rows are clipped to under this preparation."""
        return self.releases.set_bounds(width, preparation, install=install)

    def note(self, text: str) -> None:
        """Keep a line in this site's log: it does not leave."""
        self.log.append(text)
        if self._log_file is not None:
            self._log_file.parent.mkdir(parents=True, exist_ok=True)
            with self._log_file.open("a") as file:
                file.write(text + "\n")

    def refusal(self, site: Site, question: Round, error: Exception) -> FedspanError:
        """Say outside what kind of thing went wrong; what it was is in this site's log."""
        if isinstance(error, PolicyError):
            return error
        self.note(f"round {question.number} ({question.step.name}): {error}")
        kind = "data" if isinstance(error, DataError) else type(error).__name__
        where = f"round {question.number} ({question.step.name})"
        text = f"site {site.id!r} cannot answer {where}: code {kind}; the site's own log says more"
        return DataError(text) if isinstance(error, DataError) else SiteError(text)
