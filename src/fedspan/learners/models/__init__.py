"""Networks whose parameters are one flat vector: the only package that imports torch."""

from __future__ import annotations

from fedspan.learners.models.kinds import network
from fedspan.learners.models.network import Network

__all__ = ["Network", "network"]
