"""What ``reproduce fpca`` compares with and runs on: Table 1's printed figures, its problems, and how much is run.

From appendix D: blocks of 50 rows, GROUSE's step 2, FD's sketch 2 r, PM's blocks of d rows, rank 10 at the start. The
paper gives no band for its adaptive rank but alpha / beta <= 0.2, and no scale of its rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedspan.datasets import load
from fedspan.encoding import Array

BLOCK, RANK, ENERGY = 50, 10, (0.01, 0.05)

METHODS_OF_TABLE_1 = ("FPCA (with mask)", "FPCA (no mask)", "PM", "GROUSE", "FD", "SP")
TABLE_1: dict[str, dict[str, tuple[float, float]]] = {  # average and median, Kb, in the order of METHODS_OF_TABLE_1
    name: dict(zip(METHODS_OF_TABLE_1, printed, strict=True))
    for name, printed in {
        "motes_humidity": (
            (166.57, 81.23), (138.11, 58.99), (905.45, 666.11), (2896.61, 2896.62), (162.70, 117.92), (476.68, 405.01),
        ),
        "motes_light": (
            (172.00, 99.17), (104.00, 76.03), (685.48, 685.44), (2896.84, 2896.62), (170.48, 127.91), (1009.03, 508.11),
        ),
        "motes_voltage": (
            (289.02, 143.79), (204.58, 23.47), (649.12, 644.35), (2772.86, 2772.62), (114.46, 112.66), (348.84, 351.98),
        ),
        "motes_temperature": (
            (257.00, 195.30), (187.74, 113.28), (657.57, 668.27), (3379.62, 3376.62), (196.11, 118.59),
            (541.56, 437.61),
        ),
    }.items()
}  # fmt: skip


@dataclass(frozen=True)
class Stream:
    """A set of Figure 9: its name in the paper, the name it is loaded by, and what is done to it."""

    paper: str
    data: str
    rank: int = RANK
    """Of the methods whose rank is fixed."""
    scale: float = 1.0
    """What entries are multiplied by."""
    rows: int | None = None
    unforgetting: bool = True
    """Whether SPIRIT runs with lambda = 1, too: on MNIST its rank then grows into the hundreds."""

    @property
    def label(self) -> str:
        """The set and what is taken of it."""
        return f"{self.paper}{f', first {self.rows:,} rows' if self.rows else ''}"

    def load(self) -> Array:
        """Load it without a network."""
        return np.asarray(load(self.data, download=False).X[: self.rows], dtype=np.float64) * self.scale


# ---- how much --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Merges:
    """Figure 5."""

    d: int
    rows: tuple[int, ...]
    rank: int
    repeats: int
    """Of each merge; the fastest counts."""


@dataclass(frozen=True)
class Spectra:
    """Figures 6-8: Synth(alpha)."""

    rows: int
    d: int
    alphas: tuple[float, ...]


@dataclass(frozen=True)
class Workers:
    """Figure 12. The paper does not say what the workers held: Synth(1) here."""

    rows: int
    d: int
    rank: int
    counts: tuple[int, ...]
    repeats: int


@dataclass(frozen=True)
class Permutations:
    """Figure 13. The paper does not say what Y is: Synth(1) here."""

    rows: int
    d: int
    ranks: tuple[int, ...]
    count: int
    spirit_count: int
    """Fewer for SPIRIT, which moves its columns one after the other for each row."""


@dataclass(frozen=True)
class Scale:
    """How much is run."""

    merges: Merges
    spectra: Spectra
    streams: tuple[Stream, ...]
    workers: Workers
    permutations: Permutations
    points: int
    """Where a curve is measured, evenly over the rows."""
    draws: int
    """Of the noise, in Figures 10 and 11."""
    private_rows: int | None = None
    """The most of a set, there."""
    memory_rows: int | None = None
    """Of the motes, in Table 1."""


_MNIST = "mnist"
_UNAVAILABLE = tuple(Stream(f"motes, {kind}", f"motes_{kind}") for kind in ("humidity", "temperature", "voltage"))

FULL = Scale(
    merges=Merges(800, (800, 1600, 2400, 3200, 4000), 100, repeats=15),
    spectra=Spectra(4000, 400, (0.001, 0.1, 0.5, 1.0, 2.0, 3.0)),
    streams=(
        Stream("motes, light", "motes_light"),
        *_UNAVAILABLE,
        Stream("MNIST", _MNIST, scale=1 / 255, unforgetting=False),
        Stream("wine (red)", "wine_red", rank=5),
    ),
    workers=Workers(32_000, 400, RANK, (1, 2, 4, 8, 16, 32), repeats=3),
    permutations=Permutations(10_000, 100, (5, 20, 40, 60, 80), count=20, spirit_count=2),
    points=40,
    draws=3,
)

QUICK = Scale(
    merges=Merges(120, (120, 240), 20, repeats=2),
    spectra=Spectra(600, 40, (0.1, 2.0)),
    streams=(
        Stream("motes, light", "motes_light", rows=600),
        *_UNAVAILABLE,
        Stream("MNIST", _MNIST, scale=1 / 255, rows=1600, unforgetting=False),
        Stream("wine (red)", "wine_red", rank=5, rows=600),
    ),
    workers=Workers(2000, 60, RANK, (1, 2, 4), repeats=1),
    permutations=Permutations(400, 30, (5, 20), count=3, spirit_count=1),
    points=12,
    draws=1,
    private_rows=4000,
    memory_rows=1000,
)
