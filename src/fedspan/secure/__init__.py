"""Secure sums: what a study asks of them (`SecureSums`), and the primitives that they are made of.

Keys, masks, shares, graphs and fixed point are pure functions and small classes here; they know no round and no
message. Every cipher, signature and key exchange is the ``cryptography`` package's.
"""

from fedspan.secure.rules import SecureSums

__all__ = ["SecureSums"]
