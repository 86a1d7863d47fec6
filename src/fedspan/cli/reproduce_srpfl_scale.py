"""Which panels Figures 3 to 8 have, and how much is run: three sizes of the same plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from fedspan.cli.reproduce_srpfl_data import (
    CIFAR10,
    CIFAR10_NARROW,
    CIFAR10_SUBSET,
    CIFAR100,
    EMNIST,
    EQUAL,
    FEMNIST,
    MNIST,
    NEAR,
    SENT140,
    SPREAD,
    Problem,
    Set,
)
from fedspan.cli.reproduce_srpfl_linear import Linear
from fedspan.cli.reproduce_srpfl_methods import (
    BY_SAMPLES,
    FEDAVG,
    FEDAVG_FT,
    FEDAVG_S,
    FEDREP,
    FEDREP_S,
    FLANP_FT,
    LG,
    LG_BY_SAMPLES,
    LG_FLANP,
    LG_S,
    METHODS,
    TUNED,
    Training,
)
from fedspan.engines.speeds import DynamicSpeeds, FixedSpeeds, Speeds, TwoSpeeds

COMMUNICATION = (0.0, 10.0, 100.0)
OWN = (FEDREP_S, FEDREP, LG_S, LG)
SAMPLES = (*OWN, BY_SAMPLES, LG_BY_SAMPLES)
RIVALS = tuple(name for name in METHODS if name not in (BY_SAMPLES, LG_BY_SAMPLES, TUNED))
SOME = (*OWN, FEDAVG, FEDAVG_FT, FEDAVG_S, FLANP_FT, LG_FLANP)
"""All but HF-MAML, which costs four times as much."""


@dataclass(frozen=True)
class Column:
    """Panels of a figure that differ in what communication costs."""

    problem: Problem
    methods: tuple[str, ...]
    fraction: float = 1.0
    """Of the sites that a round asks."""
    speeds: Speeds = field(default_factory=FixedSpeeds)
    order: Speeds | None = None
    """What the sites are put in order by while they train, where that is not ``speeds``."""
    note: str = ""

    @property
    def title(self) -> str:
        """What is said above its panels."""
        return ", ".join([self.problem.label, *([self.note] if self.note else [])])


@dataclass(frozen=True)
class Scale:
    """How much is run. A site's rows are a mean; None: all there are."""

    sites: int
    rows: int | None
    tests: int | None
    rounds: int
    image_sites: int
    image_rows: int | None
    """Of the sets that LeNet-5 learns."""
    image_rounds: int
    draws: int
    digits: tuple[Set, ...]
    """For Figures 3 to 8."""
    images: tuple[Set, ...]
    linear: Linear
    """For Theorem 4.9."""
    shards: tuple[int, ...] | None = None
    """Of the first of the digits, where that is not what the set says."""
    stragglers: tuple[float, ...] = (0.1, 0.3, 0.5)
    all_methods: bool = True
    of_images: tuple[str, ...] = (*OWN, FEDAVG_FT, FLANP_FT)
    local: int | None = None
    """Local epochs, where that is not what the paper has for the set."""

    def training(self, problem: Problem, fraction: float) -> Training:
        """How a method trains: doubling begins with a quarter of those asked; where these are some, rounds are more."""
        of, asked = problem.of, max(1, round(fraction * problem.sites))
        rounds, epochs = self.image_rounds if of.colours else self.rounds, self.local or of.epochs
        heads, some = self.local or of.head_epochs, fraction < 1
        return Training(
            rounds * 5 // 2 if some else rounds, max(1, asked // 4), every=2 if some else 1, epochs=epochs,
            head_epochs=heads, tune=epochs,
        )  # fmt: skip

    def problem(self, of: Set, shards: int | None, sizes: str = EQUAL, groups: int = 0) -> Problem:
        """A set, split as this scale has it."""
        if of.colours:
            return Problem(of, self.image_sites, self.image_rows, self.tests, shards, sizes, groups)
        return Problem(of, self.sites, self.rows, self.tests, shards, sizes, groups)


FULL = Scale(
    sites=40, rows=50, tests=40, rounds=15, image_sites=20, image_rows=100, image_rounds=25, draws=50,
    digits=(MNIST, EMNIST, FEMNIST), images=(CIFAR10_NARROW, CIFAR100), linear=Linear(sites=(64, 256), seeds=3),
)  # fmt: skip
QUICK = Scale(
    sites=8, rows=12, tests=8, rounds=4, image_sites=5, image_rows=24, image_rounds=3, draws=3,
    digits=(MNIST, EMNIST, FEMNIST), images=(CIFAR10_NARROW, CIFAR100), shards=(5,), stragglers=(0.5,),
    all_methods=False, of_images=OWN, local=1,
    linear=Linear(sites=(32,), seeds=1),
)  # fmt: skip
WHOLE = Scale(
    sites=100, rows=None, tests=None, rounds=50, image_sites=100, image_rows=None, image_rounds=100,
    draws=200, digits=(MNIST, EMNIST, FEMNIST), images=(CIFAR10_SUBSET, CIFAR10, CIFAR100), of_images=RIVALS,
    linear=Linear(sites=(64, 256, 1024), seeds=5),
)  # fmt: skip


def figures(scale: Scale) -> Iterator[tuple[str, str, list[Column]]]:
    """Yield each figure's number, its title, and its columns."""
    dynamic = DynamicSpeeds()
    some, partial = (RIVALS, 0.2) if scale.all_methods else (SOME, 0.5)
    first = [scale.problem(of, shards) for of in scale.digits for shards in _shards(of, scale)]
    later = [problem for problem in first if problem.shards == max(_shards(problem.of, scale))]
    pictures = [scale.problem(of, shards) for of in scale.images for shards in of.shards]
    fixed = [Column(p, (*some, TUNED) if p in later else SOME) for p in first]
    yield "3", "full participation, fixed speeds", fixed + [Column(p, scale.of_images) for p in pictures]
    yield "4", "a part of the sites, fixed speeds", [Column(p, some, partial) for p in later]
    yield "5", "full participation, dynamic speeds", [Column(p, some, speeds=dynamic) for p in later]
    yield "6", "a part of the sites, dynamic speeds", [Column(p, some, partial, dynamic) for p in later]
    homogeneous = [scale.problem(of, None) for of in (*_one(scale.digits), *scale.images[:1], SENT140)]
    yield "7", "homogeneous", [Column(p, OWN if p.of.colours else (*OWN, FEDAVG_FT, FEDAVG_S)) for p in homogeneous]
    yield "8", "imbalanced sizes", list(_imbalanced(scale))
    yield "8-stragglers", "two classes of speeds", list(_straggling(scale))
    yield "8-correlated", "groups of labels", list(_correlated(scale))


def _imbalanced(scale: Scale) -> Iterator[Column]:
    for of in _one(scale.digits):
        for sizes in (NEAR, SPREAD):
            yield Column(scale.problem(of, max(_shards(of, scale)), sizes), SAMPLES)
    yield Column(scale.problem(SENT140, None, SPREAD), SAMPLES)


def _straggling(scale: Scale) -> Iterator[Column]:
    """Who is slow is drawn at random, so that the order of the sites is as random as with one class of speeds."""
    for of in _one(scale.digits):
        problem = scale.problem(of, max(_shards(of, scale)))
        for share in scale.stragglers:
            yield Column(
                problem, OWN, speeds=TwoSpeeds(stragglers=share), order=FixedSpeeds(),
                note=f"{100 * share:.0f} % stragglers",
            )  # fmt: skip


def _correlated(scale: Scale) -> Iterator[Column]:
    for of in _one(scale.digits):
        grouped = scale.problem(of, None, groups=3)
        yield Column(grouped, OWN, speeds=grouped.in_order(), note="speeds by group")
        yield Column(grouped, OWN, note="speeds at random")


def _one(digits: tuple[Set, ...]) -> tuple[Set, ...]:
    return tuple(of for of in digits if of.name != FEMNIST.name)


def _shards(of: Set, scale: Scale) -> tuple[int, ...]:
    return scale.shards if scale.shards and of.name == MNIST.name else of.shards
