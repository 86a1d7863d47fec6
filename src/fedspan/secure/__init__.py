"""Secure sums: what a coordinator may learn is the sum of the sites' replies, and nothing else of them."""

from fedspan.secure.keys import Identity, Roster
from fedspan.secure.party import Party
from fedspan.secure.rules import FEWEST, SecureSums
from fedspan.secure.terms import SumTerms

__all__ = ["FEWEST", "Identity", "Party", "Roster", "SecureSums", "SumTerms"]
