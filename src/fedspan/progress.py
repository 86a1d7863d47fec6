"""Progress for people: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from typing import IO

from fedspan.encoding import Array
from fedspan.layers import OnRound, RoundRecord


def human_bytes(count: float) -> str:
    """Return a number of bytes as people read it.

    >>> human_bytes(62720)
    '62.7 kB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def round_line(record: RoundRecord) -> str:
    """Return one round as one line."""
    change = "" if record.change is None else f"  change {record.change:.1e}"
    traffic = f"up {human_bytes(record.bytes_up)}, down {human_bytes(record.bytes_down)}"
    clock = f"  clock {record.clock:.4g} s" if record.clock else ""
    begun = f"round {record.round:3d}  {record.step:22s} {record.sites} sites  {traffic}"
    return f"{begun}  {record.seconds:.3f} s{clock}{change}"


def round_printer(stream: IO[str] | None = None) -> OnRound:
    """Return a watcher that writes one line a round."""

    def show(record: RoundRecord, estimate: Array | None) -> None:
        print(round_line(record), file=stream or sys.stderr, flush=True)

    return show
