"""Charges a ledger in a process that is killed with signal 9, at a random moment or before or after a system call.

Imports are slow and kills are many, so one parent imports once and forks a child for every line of JSON it reads. The
child charges and "releases" keys in turn: it writes one whole line a key to standard output, after the charge returned.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from fedspan.errors import BudgetExhausted
from fedspan.privacy.ledger import Ledger

TRACEME, TO_NEXT_CALL = 0, 24  # of Linux's ptrace
LIMIT = 1000


def cost(key: int) -> float:
    """The mu² of a key: eighths, so that sums are exact."""
    return (1 + key % 3) / 8


def charge(ledger: Ledger, key: int) -> bool:
    return ledger.charge(
        run=f"run {key % 2}", round=key, question="5f", step="gram.multiply", release="product", cost=cost(key)
    )


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())  # less than a pipe takes at once: a line is written whole or not at all


def work(job: dict[str, Any]) -> None:
    with Ledger(Path(job["path"]), budget=job["budget"]) as ledger:
        for key in range(LIMIT):
            try:
                new = charge(ledger, key)
            except BudgetExhausted:
                say("exhausted")
                return
            say(f"{'new' if new else 'again'} {key}")


def step_through(child: int, calls: int) -> None:
    """Let the child enter or leave so many system calls; it stands still after the last one."""
    libc = ctypes.CDLL(None)
    for _ in range(calls):
        libc.ptrace(TO_NEXT_CALL, child, None, None)
        if not os.WIFSTOPPED(os.waitpid(child, 0)[1]):
            return


def serve(job: dict[str, Any]) -> None:
    child = os.fork()
    if child == 0:
        if "calls" in job:
            ctypes.CDLL(None).ptrace(TRACEME, 0, None, None)
            os.kill(os.getpid(), signal.SIGSTOP)
        work(job)
        os._exit(0)
    if "calls" in job:
        os.waitpid(child, 0)
        step_through(child, job["calls"])
    elif "seconds" in job:
        time.sleep(job["seconds"])
    try:
        if "calls" in job or "seconds" in job:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        say(f"end {os.waitstatus_to_exitcode(status)}")
    except (ProcessLookupError, ChildProcessError):  # it came to its end while it was traced
        say("end 0")


if __name__ == "__main__":
    for line in sys.stdin:
        serve(json.loads(line))
