"""One way to print a figure beside its target."""

from __future__ import annotations

import resource
import sys
from typing import Any

from fedspan.datasets import Dataset, load
from fedspan.errors import FedspanError

_missed: list[str] = []


def figure(name: str, value: float, target: float | None = None, unit: str = "") -> None:
    """Print a measured figure and, where there is one, its target: at most so much."""
    line = f"{name:<78} {value:>10.4g} {unit}"
    if target is not None:
        met = value <= target
        line += f"  (target <= {target:g}: {'met' if met else 'MISSED'})"
        if not met:
            _missed.append(name)
    sys.stdout.write(line.rstrip() + "\n")
    sys.stdout.flush()


def finish() -> None:
    """Exit with 1 if a target was missed."""
    sys.exit(1 if _missed else 0)


def need(name: str, **options: Any) -> Dataset:
    """Load a data set, or say that it is absent and leave."""
    try:
        return load(name, download=False, **options)
    except FedspanError as error:
        sys.stdout.write(f"skipped: {error}\n")
        sys.exit(0)


def peak_memory_gb() -> float:
    """Return the most memory this process ever held, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
