"""The table ``[run.gossip]`` of a study file: who talks with whom where there is no coordinator.

Its keys are the settings of `Gossip`; ``graph`` is a name, or a list of links such as ``["berlin", "cairo"]``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedspan.engines.gossip import Gossip
from fedspan.errors import ConfigurationError
from fedspan.toml_tables import FLAG, NUMBER, TABLE, TEXT, TEXTS, WHOLE, Kind, Table, fitting

_WHERE = "[run.gossip]"
_LINKS = Kind(
    "a graph's name, or a list of links between sites",
    lambda v: TEXT.fits(v) or (isinstance(v, list) and all(map(TEXTS.fits, v))),
)
_KINDS = {
    "graph": _LINKS, "degree": WHOLE, "accuracy": NUMBER, "link_loss": NUMBER, "crashes": TABLE, "agree": FLAG,
    "seed": WHOLE,
}  # fmt: skip


def gossip_of(raw: Any, sites: Iterable[str], seed: int) -> Gossip:
    """Return the engine that the table describes; ``sites`` are the study's, ``seed`` its own.

    >>> gossip_of({"graph": "ring", "accuracy": 1e-8}, ["a", "b", "c"], 0).graph
    'ring'
    """
    given = Table(raw, _WHERE, _KINDS).given(_KINDS)
    for name, when in given.get("crashes", {}).items():
        fitting(f"{_WHERE} crashes.{name}", when, NUMBER)
    try:
        law = Gossip(**given)
        law.over(sites, seed)  # refuses a graph that these sites do not make
    except ConfigurationError as error:
        raise ConfigurationError(f"{_WHERE} {error}") from None
    return law
