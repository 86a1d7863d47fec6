"""Representations that all sites share, with a head of each site's own. One file per method, both halves in it."""

from __future__ import annotations

from typing import Any

from fedspan.errors import ConfigurationError, nearest
from fedspan.learners.fedavg import FedAvg
from fedspan.learners.fedrep import FedRep
from fedspan.learners.flanp import FLANP, LGFLANP
from fedspan.learners.lg_fedavg import LGFedAvg
from fedspan.learners.maml import HFMAML
from fedspan.learners.task import Learned, Learner, Task

LEARNERS: dict[str, type[Learner]] = {"fedrep": FedRep, "lg-fedavg": LGFedAvg, "fedavg": FedAvg, "hf-maml": HFMAML}
"""Every learner by the name that studies and estimators use."""

__all__ = [
    "FLANP", "HFMAML", "LEARNERS", "LGFLANP", "FedAvg", "FedRep", "LGFedAvg", "Learned", "Learner", "Task",
    "make_learner",
]  # fmt: skip


def make_learner(name: str, **settings: Any) -> Learner:
    """Return the learner of that name with these settings.

    >>> make_learner("fedavg", rounds=5).rounds
    5
    """
    if name not in LEARNERS:
        raise ConfigurationError(f"there is no learner {name!r}; {nearest(name, LEARNERS)}")
    fields = LEARNERS[name].__dataclass_fields__  # type: ignore[attr-defined]
    known = [key for key, one in fields.items() if one.init]
    for key in settings:
        if key not in known:
            raise ConfigurationError(f"learner {name!r} has no setting {key!r}; {nearest(key, known)}")
    return LEARNERS[name](**settings)
