"""What coordinator and sites agree on about a run's secure sums before it starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedspan.secure.keys import Identity, Roster
from fedspan.secure.party import Party
from fedspan.secure.rules import SecureSums

IDENTITY, ROSTER = "identity.key", "roster.json"
"""A site's files: its own key, and the keys it knows the others by."""


@dataclass(frozen=True)
class SumTerms:
    """The rules, and what a study makes of them."""

    rules: SecureSums
    run: str
    expected: int
    """Sites that a round asks at least: the quorum is of so many, or of those who gave keys where these are more."""
    least: int = 0
    """The fewest sites in a sum, beyond what the rules say: the noise is sized for them."""
    most_times: int = 1
    """How often a reply may count: a study that draws sites with replacement has some count more than once."""
    noised: bool = False
    """Whether noise is added at the sites, on a grid that says how fine the sum is."""
    exact: bool = False
    """Whether replies lie on that grid, and are not rounded any more."""

    @property
    def fewest(self) -> int:
        """The fewest sites in a sum that is unmasked."""
        return max(self.least, self.rules.fewest(self.expected))

    def parties(self, names: list[str], folder: Path | None = None) -> dict[str, Party]:
        """Return the halves of sites that are all here; with a folder, identities and rosters are kept there."""
        identities = {name: _identity(None if folder is None else folder / name) for name in names}
        roster = Roster({name: identity.public for name, identity in identities.items()})
        return {
            name: self.party(name, identities[name], roster, None if folder is None else folder / name)
            for name in names
        }

    def party(self, name: str, identity: Identity, roster: Roster, folder: Path | None) -> Party:
        """Return one site's half; with a folder, its roster is pinned there."""
        if folder is not None:
            roster = Roster.pin(folder / ROSTER, roster)
        return Party(
            name, identity, roster, self.rules, run=self.run, expected=self.expected, least=self.least,
            most_times=self.most_times, folder=folder,
        )  # fmt: skip


def _identity(folder: Path | None) -> Identity:
    if folder is None:
        return Identity.generate()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Identity.load_or_make(folder / IDENTITY)
