"""Representations that all sites share, with a head of each site's own. One file per method, both halves in it."""

from __future__ import annotations

from fedspan.learners.fedrep import FedRep
from fedspan.learners.task import Learned, Learner, Task

__all__ = ["FedRep", "Learned", "Learner", "Task"]
