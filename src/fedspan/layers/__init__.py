"""Layers: generators that pass on the stream of rounds, and watch or rewrite it."""

from fedspan.layers.account import account, follow
from fedspan.layers.merging import merging
from fedspan.layers.observe import OnRound, RoundRecord, observe
from fedspan.layers.record import Journal, record
from fedspan.layers.secure_sums import declared_bounds, secure_sums
from fedspan.layers.transcript import noting_sums, transcript

__all__ = [
    "Journal", "OnRound", "RoundRecord", "account", "declared_bounds", "follow", "merging", "noting_sums", "observe",
    "record", "secure_sums", "transcript",
]  # fmt: skip
