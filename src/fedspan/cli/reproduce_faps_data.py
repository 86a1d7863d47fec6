"""What ``reproduce faps`` compares with and runs on: the paper's printed figures, its problems, and their sizes here.

Sizes are reduced so that difficulty is not. With singular values xi^(1-i) all but the leading few hundred are next to
nothing, so n may fall; how alike the sites are depends on the rows of each, which stay the paper's; the number of sites
falls from 128 to 8. With the arithmetic singular values of Figure 4 every direction counts, so there the rows of a site
fall with n. Table 4 is at full size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fedspan.cli.reproduce_faps_runs import Task
from fedspan.data.partition import even, split
from fedspan.datasets import load
from fedspan.datasets.synthetic import geometric_spectrum
from fedspan.encoding import Array

Printed = Mapping[str, float]
"""A figure that the paper prints for each of its methods."""


def _three(ssi: float, local_power: float, faps: float) -> Printed:
    return {"SSI": ssi, "LocalPower": local_power, "FAPS": faps}


TABLE_1: dict[str, Printed] = {  # FAPS's number of iterations is not in the text of the paper that we have
    "iterations": {"SSI": 207}, "error": {"SSI": 1.09e-7, "FAPS": 8.04e-8},
}  # fmt: skip
TABLE_2: dict[str, dict[str, Printed]] = {
    "n": {"kkt": _three(1.94e-6, 1.89e-6, 1.87e-6), "error": _three(1.06e-7, 9.56e-8, 8.69e-8)},
    "m": {"kkt": _three(1.95e-6, 1.92e-6, 1.90e-6), "error": _three(1.07e-7, 1.02e-7, 9.97e-8)},
    "p": {"kkt": _three(1.95e-6, 1.91e-6, 1.92e-6), "error": _three(8.30e-8, 9.18e-8, 1.15e-7)},
    "xi": {"kkt": _three(4.09e-6, 3.94e-6, 3.87e-6), "error": _three(3.15e-7, 3.08e-7, 2.99e-7)},
}
TABLE_3: dict[str, Printed] = {  # averages over four sets
    "kkt": _three(4.34e-6, 4.59e-6, 4.42e-6), "error": _three(5.80e-8, 6.27e-8, 5.06e-8),
}  # fmt: skip
TABLE_4: dict[str, Printed] = {
    "iterations": _three(337, 164, 55), "seconds": _three(32.73, 16.52, 14.93),
    "kkt": _three(1.94e-6, 1.96e-6, 1.80e-6), "error": _three(1.06e-7, 1.08e-7, 7.67e-8),
}  # fmt: skip


# ---- synthetic problems ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """Singular values xi^(1-i) (24), or arithmetic ones where ``kappa`` is given (section 5.6)."""

    n: int
    rows: tuple[int, ...]
    """Of each site."""
    p: int
    xi: float = 1.01
    kappa: float | None = None

    @property
    def m(self) -> int:
        """All rows."""
        return sum(self.rows)

    def task(self) -> Task:
        """Draw the matrix (seed 0) and deal it to the sites in order."""
        if self.kappa is None:
            matrix = geometric_spectrum(self.m, self.n, xi=self.xi, seed=0)
        else:
            matrix = arithmetic_spectrum(self.m, self.n, self.kappa)
        ends = np.cumsum((0, *self.rows))
        return Task.of(split(matrix, [np.arange(a, b) for a, b in pairwise(ends)]), self.p)


def arithmetic_spectrum(m: int, n: int, kappa: float) -> Array:
    """Draw a matrix like (23), samples in rows, with singular values from 1 down to 1 / kappa in equal steps.

    >>> np.linalg.svd(arithmetic_spectrum(9, 3, 2.0), compute_uv=False).round(6)
    array([1.  , 0.75, 0.5 ])
    """
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.uniform(-1, 1, (size, n)))[0] for size in (n, m))
    return np.asarray((right * np.linspace(1, 1 / kappa, n)) @ left.T)


@dataclass(frozen=True)
class Group:
    """A panel of Figure 2, a row of Table 2: settings that differ in one parameter."""

    varies: str
    at: tuple[float, ...]
    """Where the settings lie on the panel's axis."""
    settings: tuple[Setting, ...]
    reduced: str
    """What the paper took, and what is taken here."""


@dataclass(frozen=True)
class Leak:
    """Figure 1: what is reconstructed from a run."""

    n: int
    against: tuple[int, ...]
    """The n of part (b)."""
    m: int
    p: int
    sites: int
    rounds: int
    """How many are audited."""

    def rows(self, kind: str, n: int) -> Array:
        """Draw the matrix: "Gaussian", or (23)."""
        if kind == "Gaussian":
            return np.random.default_rng(0).standard_normal((self.m, n))
        return geometric_spectrum(self.m, n, xi=1.01, seed=0)


# ---- images ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Images:
    """A set of section 5.5: the paper's name, the name it is loaded by, whether centred, and how many rows."""

    paper: str
    data: str
    center: bool = True
    rows: int | None = None

    @property
    def label(self) -> str:
        """The set and what was done to it."""
        taken = f", first {self.rows:,}" if self.rows else ""
        return f"{self.paper}{taken}, {'centred' if self.center else 'not centred'}"

    def task(self) -> Task:
        """Load the set without a network and deal its rows at random to 16 sites, for p = 5."""
        rows = np.asarray(load(self.data, download=False).X[: self.rows], dtype=float)
        if self.center:
            rows = rows - rows.mean(axis=0)
        return Task.of(split(rows, even(len(rows), 16, seed=0)), 5)


# ---- how much --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """How much is run."""

    groups: tuple[Group, ...]
    images: tuple[Images, ...]
    uneven: Setting
    arithmetic: tuple[Setting, ...]
    """Figure 4."""
    leak: Leak
    starts: int = 3
    uneven_starts: int = 5


def _geometric(n: int, rows: int, p: int, xi: float = 1.01) -> Setting:
    return Setting(n, (rows,) * 8, p, xi)


_J = (1, 2, 3, 4)
_XI = tuple(1 + 10 ** (-(1 + j) / 2) for j in _J)

FULL = Scale(
    groups=(
        Group("n", (200, 300, 400, 500), tuple(_geometric(n, 1000, 20) for n in (200, 300, 400, 500)),
              "n = 2000 to 5000, m = 128000, 128 sites; here n / 10, 8 sites of 1000 rows as in the paper"),
        Group("m", (10000, 12000, 14000, 16000), tuple(_geometric(200, rows, 10) for rows in (1250, 1500, 1750, 2000)),
              "n = 2000, m = 160000 to 256000, 128 sites; here n / 10, 8 sites of m / 128 rows as in the paper"),
        Group("p", (10, 20, 30, 40), tuple(_geometric(200, 1000, p) for p in (10, 20, 30, 40)),
              "n = 1000, m = 128000, 128 sites; here n / 5, 8 sites of 1000 rows as in the paper"),
        Group("xi", tuple((1 + j) / 2 for j in _J), tuple(_geometric(200, 2000, 10, xi) for xi in _XI),
              "n = 1000, m = 256000, 128 sites; here n / 5, 8 sites of 2000 rows as in the paper"),
    ),
    images=(
        Images("MNIST", "mnist"), Images("Fashion-MNIST", "fashion-mnist"), Images("CIFAR-10", "cifar10_subset"),
        Images("CIFAR-100", "cifar100", rows=10_000), Images("MNIST", "mnist", center=False),
    ),
    uneven=Setting(1000, tuple(1000 * i for i in range(1, 9)), 10),
    arithmetic=(
        *(Setting(200, (250,) * 8, 10, kappa=kappa) for kappa in (10, 100, 1000)),
        Setting(200, (1250,) * 8, 10, kappa=100),
    ),
    leak=Leak(n=200, against=(100, 150, 200, 250, 300), m=2000, p=20, sites=4, rounds=60),
)  # fmt: skip

QUICK = Scale(
    groups=(
        Group("n", (60, 90), (Setting(60, (400,) * 4, 5, 1.05), Setting(90, (400,) * 4, 5, 1.05)),
              "as small as it goes, xi = 1.05: a look, not a comparison"),
        Group("p", (3, 6), (Setting(60, (400,) * 4, 3, 1.05), Setting(60, (400,) * 4, 6, 1.05)),
              "as small as it goes, xi = 1.05: a look, not a comparison"),
    ),
    images=(Images("MNIST", "mnist", rows=4000), Images("Fashion-MNIST", "fashion-mnist", rows=4000)),
    uneven=Setting(100, tuple(100 * i for i in range(1, 9)), 5, 1.03),
    arithmetic=(Setting(60, (75,) * 4, 5, kappa=100),),
    leak=Leak(n=40, against=(40, 60), m=400, p=8, sites=4, rounds=20),
    starts=1, uneven_starts=2,
)  # fmt: skip
