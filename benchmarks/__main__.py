"""Run benchmarks by name, or all: ``python -m benchmarks [NAME ...]``, the names being those below.

Each runs in a process of its own, so that peak memory and limits are its own. Set FEDSPAN_DATA to a folder of data
sets (see ``fedspan datasets``); a benchmark whose data is absent says so and is skipped.
"""

from __future__ import annotations

import subprocess
import sys

NAMES = (
    "mnist",
    "gowalla",
    "parquet",
    "many-sites",
    "faps",
    "audit",
    "privacy",
    "privacy-rivals",
    "privacy-audit",
    "secure",
    "streaming",
    "representation-linear",
    "representation-pca",
    "representation-mnist",
    "learner-round",
    "gossip",
)


def main(wanted: list[str]) -> int:
    """Run the wanted benchmarks one after another; return 1 if a target was missed."""
    unknown = set(wanted) - set(NAMES)
    if unknown:
        sys.stderr.write(f"no benchmark {sorted(unknown)}; known: {', '.join(NAMES)}\n")
        return 2
    worst = 0
    for name in wanted or NAMES:
        sys.stdout.write(f"\n== {name}\n")
        sys.stdout.flush()
        module = f"benchmarks.{name.replace('-', '_')}"
        worst = max(worst, subprocess.run([sys.executable, "-m", module], check=False).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
