"""Opening sites: their data, and a memory that survives the process."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from fedspan.data import Preparation, Source
from fedspan.data.complaints import check_rows
from fedspan.data.preprocess import install
from fedspan.data.source import to_host
from fedspan.encoding import Plain, decode, encode, write_atomically
from fedspan.errors import ConfigurationError, DataError, FileError, ResumeError, RoundConflict
from fedspan.privacy.gaussian import GaussianPrivacy
from fedspan.privacy.ledger import Ledger
from fedspan.privacy.policy import SitePolicy
from fedspan.privacy.releases import Releases
from fedspan.privacy.secret import KEY, Secret
from fedspan.rounds import Memory, Reply, Round, Site
from fedspan.secure import SumTerms

LEDGER = "ledger.sqlite"
"""A privacy ledger's file, in a site's folder and in the coordinator's."""


class DurableMemory(Memory):
    """A memory kept in one file, replaced whole before each reply leaves.

    A round asked again with the same question gets the same bytes again, so no noise is ever drawn twice for one
    round; asked again with another question, or after the site went on, it is refused and the refusal is logged.
    A digest of the site's ``rows`` is kept too, at the site: a run must not go on with another data set.
    """

    durable = True

    def __init__(self, folder: Path, rows: str = "") -> None:
        super().__init__()
        self._rows = rows
        self._file, self._log = folder / "memory", folder / "refused.jsonl"
        self._last: dict[str, Plain] | None = None
        if self._file.exists():
            try:
                kept = decode(self._file.read_bytes())
            except FileError as error:
                raise FileError(f"{self._file}: the site's memory is damaged ({error})") from error
            if kept["rows"] != rows:
                raise ResumeError(
                    f"site {folder.name!r} has other rows, columns, weights or labels than when this run began; "
                    f"restore them, or start the study anew in another folder"
                )
            self._last = kept["last"]
            self.versions = tuple((number, state) for number, state in kept["versions"])

    def recall(self, question: Round) -> Reply | None:
        """Return the stored reply to this very question; refuse another question for an answered round."""
        if self._last is None or question.number > self._last["round"]:
            return None
        if question.number == self._last["round"] and question.digest == self._last["question"]:
            return Reply(self._last["value"], self._last["weight"])
        line = {"round": question.number, "step": question.step.name, "question": question.digest}
        with self._log.open("a") as log:
            log.write(json.dumps(line) + "\n")
        raise RoundConflict(
            f"round {question.number} ({question.step.name}) was asked again with another question, or after round "
            f"{self._last['round']} was answered; a site answers each round once"
        )

    def commit(self, question: Round, parent: int | None, reply: Reply, state: dict[str, Plain]) -> None:
        """Write the reply, the new state and the one before, all or nothing, before the reply leaves."""
        super().commit(question, parent, reply, state)
        self._last = {
            "round": question.number, "question": question.digest, "value": reply.value, "weight": reply.weight,
        }  # fmt: skip
        kept = {
            "last": self._last,
            "versions": [[number, state] for number, state in self.versions],
            "rows": self._rows,
        }
        write_atomically(self._file, encode(kept))


def open_sites(
    sources: Mapping[str, Source],
    *,
    seed: int,
    folder: Path | None = None,
    privacy: GaussianPrivacy | None = None,
    run: str = "",
    preparation: Preparation | None = None,
    masks: SumTerms | None = None,
) -> list[Site]:
    """Open sites in name order; with a folder, each with a durable memory and ledger in its own sub-folder.

    With ``masks`` they answer in secure sums only.
    """
    terms = None if privacy is None else Terms(privacy, run, len(sources), preparation)
    sites = [open_site(name, sources[name], seed=seed, folder=folder, terms=terms) for name in sorted(sources)]
    if masks is not None:
        parties = masks.parties(sorted(sources), folder)
        for site in sites:
            site.masks = parties[site.id]
    return sites


class Terms(NamedTuple):
    """What a study proposes to a site: its privacy, the run it is charged to, and how many sites take part."""

    privacy: GaussianPrivacy
    run: str
    sites: int
    preparation: Preparation | None = None

    def policy(self, name: str, source: Source, folder: Path | None, rows: str) -> SitePolicy:
        """Return the policy of a site that accepts them; with a folder its ledger, secret and log lie there."""
        if self.preparation is not None:
            with _at_site(name):
                check_rows(source, self.preparation)
        if folder is None:
            releases = Releases(self.privacy, run=self.run, who=name, sites=self.sites)
            return SitePolicy(releases, agreed=self.preparation)
        ledger = None if self.privacy.trust == "central" else Ledger(folder / name / LEDGER)
        secret = Secret(folder / name / KEY)
        releases = Releases(self.privacy, run=self.run, who=name, sites=self.sites, ledger=ledger, secret=secret)
        return SitePolicy(releases, folder / name / "site.log", agreed=self.preparation, rows=rows)


def open_site(name: str, source: Any, *, seed: int, folder: Path | None = None, terms: Terms | None = None) -> Site:
    """Open one site and, where its memory holds a preparation, see its data through it again."""
    if folder is not None and not is_folder_name(name):
        raise ConfigurationError(
            f"site {name!r} cannot keep its memory in a folder of that name; with a run folder a site's name has no "
            f"slash, no dot in front, and at most 200 bytes"
        )
    rows = "" if folder is None else rows_digest(name, source)
    if folder is not None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # for the sites' own eyes
    memory = Memory() if folder is None else DurableMemory(folder / name, rows)
    if folder is not None and memory.versions and terms is not None and terms.privacy.trust != "central":
        _check_kept(folder / name / LEDGER)
    policy = None if terms is None else terms.policy(name, source, folder, rows)
    site = Site(name, source, policy=policy, memory=memory, seed=seed, reopen=reopen)
    if memory.versions:
        reopen(site, memory.versions[0][1])
    return site


def is_folder_name(name: str) -> bool:
    """Whether a site's name can be a folder's inside the run folder, and nowhere else.

    >>> is_folder_name("north 2"), is_folder_name("../x"), is_folder_name("")
    (True, False, False)
    """
    return re.fullmatch(r"[^./\\\0][^/\\\0]*", name) is not None and len(name.encode()) <= 200


def _check_kept(ledger: Path) -> None:
    if not ledger.exists():
        raise FileError(
            f"{ledger} is gone, and this site answered rounds that were charged there; restore it from a copy, or "
            f"start the study anew in another folder"
        )


@contextmanager
def _at_site(name: str) -> Iterator[None]:
    try:
        yield
    except (DataError, FileError) as error:
        raise type(error)(f"site {name!r}: {error}") from error


def rows_digest(name: str, source: Source) -> str:
    """Return a digest of a site's columns, weights, labels and rows, read once."""
    names = None if source.columns is None else list(source.columns)
    total, attached = hashlib.sha256(encode([names, source.weights, float(source.site_weight)])), source.attached()
    if attached is not None:
        total.update(encode(attached))
    with _at_site(name):
        for block in source.blocks():
            parts = (block.data, block.indices, block.indptr) if scipy.sparse.issparse(block) else (to_host(block),)
            for part in parts:
                total.update(np.ascontiguousarray(part).tobytes())
    return total.hexdigest()


def reopen(site: Site, state: dict[str, Plain]) -> None:
    """See a site's data as a state says it is prepared: a later preparation may have come to nothing."""
    wanted = state.get("preparation")
    if wanted is site.prepared:
        return
    if wanted is None:
        site.data, site.prepared = site.source, None
    else:
        install(site, wanted)
