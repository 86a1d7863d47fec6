"""What can be done where too few sites answered for a secure sum."""

from __future__ import annotations

from fedspan.secure.rules import FEWEST, SecureSums

_SILENT = "or leave the silent sites out of the study"


def way_out(rules: SecureSums, needed: int, of: int, *, waited: int = 0, noised_for: int = 0) -> str:
    """Return how a sum that takes ``needed`` sites can be had, or one that takes fewer.

    ``waited``: so many the round itself waits for; ``noised_for``: so many the noise is sized for.

    >>> way_out(SecureSums(), 3, 4)
    'give a longer deadline, wait for more sites (first, share), or leave the silent sites out of the study'
    """
    if needed == waited > rules.fewest(of):
        return (
            f"all that the round waits for must be in it: give a deadline, or wait for fewer (first, share), if "
            f"the solver can do without some; {_SILENT}"
        )
    lower = None
    if needed > FEWEST:
        known = {rules.minimum: "minimum", rules.quorum(of): "threshold", noised_for: "honest"}
        lower = known.get(needed)
    fewer = "" if lower is None else f"let a sum be of fewer (a lower {lower}), "
    return f"give a longer deadline, wait for more sites (first, share), {fewer}{_SILENT}"
