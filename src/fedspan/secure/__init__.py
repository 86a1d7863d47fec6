"""Secure sums: what a coordinator may learn is the sum of the sites' replies, and nothing else of them."""

from fedspan.secure.keys import Identity, Roster
from fedspan.secure.party import Party
from fedspan.secure.rules import SecureSums
from fedspan.secure.terms import SumTerms

__all__ = ["Identity", "Party", "Roster", "SecureSums", "SumTerms"]
