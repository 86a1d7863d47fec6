"""Secure sums: their cost at a thousand sites, what they do to a study, and what an audit finds of single sites.

Seconds are the processor's. Limits are those the project set itself.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

import fedspan.secure.party
import fedspan.secure.session
from benchmarks.report import figure, finish, need
from fedspan.cli.reproduce_ppm_cost import measure, secure_sum
from fedspan.cli.reproduce_ppm_growth import measure_growth
from fedspan.data import Preparation, open_source, partition
from fedspan.metrics import projection_distance
from fedspan.privacy import GaussianPrivacy
from fedspan.run import Result, Study, run
from fedspan.secure import SecureSums
from fedspan.secure.keys import KeyPair

SITES, SIZE, DROPPED = 1000, 100_000, 0.05
PROFILED = 300
MNIST_SITES, SEEDS, DELTA = 60, 10, 1e-6
GROWTH = (10, 30, 50, 100, 300, 1000), (10_000,)


def main() -> None:
    """The four parts, each under its heading."""
    a_thousand_sites()
    growth()
    mnist()
    finish()


def heading(text: str) -> None:
    sys.stdout.write(f"\n{text}\n")
    sys.stdout.flush()


# ---- one large sum -----------------------------------------------------------------------------------------------


def a_thousand_sites() -> None:
    """5 % of the sites fall silent when their masked vectors are due, the costliest moment."""
    heading(f"{SITES} sites, {SIZE:,} numbers each, {DROPPED:.0%} silent in the masking phase")
    found = secure_sum(SITES, SIZE, int(DROPPED * SITES))
    figure("neighbours k", found.neighbours)
    figure("holders needed t", found.holders_needed)
    figure("sums that are not exact", not found.exact, 0)
    figure("coordinator: seconds", found.server_seconds, 10)
    figure("a site: seconds, median", found.site_seconds)
    figure("the stream cipher's own, k masks: seconds", found.cipher_seconds)
    figure("a site: seconds beyond those, median", found.site_seconds - found.cipher_seconds, 0.1)
    figure("a site: seconds beyond those, slowest", found.slowest_seconds - found.cipher_seconds)
    figure("a site: bytes up, over plain float64", found.up / (8 * SIZE), 1.1)
    figure("a site: bytes down, over plain float64", found.down / (8 * SIZE))
    said = ", ".join(f"{name} {seconds / sum(found.phases.values()):.0%}" for name, seconds in found.phases.items())
    sys.stdout.write(f"a site's time by phase: {said}\n")
    profile()


@contextmanager
def timed_primitives() -> Iterator[dict[str, float]]:
    """Time what sites spend their time on, summed over all of them."""
    spent: dict[str, float] = defaultdict(float)

    def timing(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any, **more: Any) -> Any:
            started = time.process_time()
            try:
                return call(*given, **more)
            finally:
                spent[name] += time.process_time() - started

        return timed

    primitives = {
        (fedspan.secure.party, "verify"): "checking signatures", (fedspan.secure.party, "split"): "sharing secrets",
        (fedspan.secure.session, "add_mask"): "masks", (fedspan.secure.session, "digest"): "digests of messages",
        (fedspan.secure.session, "seal"): "boxes", (fedspan.secure.session, "open_sealed"): "boxes",
    }  # fmt: skip
    with ExitStack() as stack:
        for (module, name), words in primitives.items():
            stack.enter_context(patch.object(module, name, timing(words, getattr(module, name))))
        stack.enter_context(patch.object(KeyPair, "shared", timing("agreeing on keys", KeyPair.shared)))
        yield spent


def profile() -> None:
    """Print where a site's time goes, of a sum by itself: the clock takes time too."""
    with timed_primitives() as spent:
        found = secure_sum(PROFILED, SIZE)
    whole = sum(found.phases.values())
    parts = {name: seconds / found.alive for name, seconds in sorted(spent.items(), key=lambda item: -item[1])}
    parts["the rest"] = whole - sum(parts.values())
    said = ", ".join(f"{name} {seconds / whole:.0%}" for name, seconds in parts.items())
    sys.stdout.write(f"of {PROFILED} sites, k = {found.neighbours}, a site's {whole:.3f} s: {said}\n")


# ---- growth --------------------------------------------------------------------------------------------------------


def growth() -> None:
    """Table 2 of Nicolas et al. (2024): orders, fitted to what is measured."""
    heading("growth with the sites (m numbers each), beside the orders of Table 2")
    columns = "{:>6} {:>7} {:>5} {:>12} {:>12} {:>14} {:>12}"
    titles = ("sites", "m", "k", "site, bytes", "site, s", "coord., bytes", "coord., s")
    sys.stdout.write(columns.format(*titles) + "\n")

    def measured(sites: int, size: int) -> dict[str, float]:
        found = measure(sites, size)
        k = SecureSums().neighbours(sites)
        figures = [found[name] for name in ("client_bytes", "client_seconds", "server_bytes", "server_seconds")]
        sys.stdout.write(columns.format(sites, size, k, *(f"{value:.4g}" for value in figures)) + "\n")
        sys.stdout.flush()
        return found

    found = measure_growth(measured, *GROWTH)
    for name, fit in found["fits"].items():
        grown = fit["growth"]
        sys.stdout.write(
            f"{name}: from {grown['from']} to {grown['to']} sites {grown['measured']:.3g} times; {fit['order']} with "
            f"the best factors {grown['fitted']:.3g} times, off by at most {fit['misfit']:.0%}\n"
        )


# ---- studies -------------------------------------------------------------------------------------------------------


def mnist() -> None:
    """Krylov with and without masks, and private power in three trusts."""
    rows = need("mnist").X / 255.0
    sources = sources_of(rows)
    heading(f"MNIST, {MNIST_SITES} sites, krylov, k = 10, centred")
    plain, masked = (timed_run(Study(n_components=10, secure=secure), sources) for secure in (False, True))
    apart = projection_distance(plain[0].estimate.basis, masked[0].estimate.basis)
    figure("projection distance between the plain run and the one under secure sums", apart, 1e-8)
    values = [result.estimate.values for result, _ in (plain, masked)]
    figure("values: largest relative difference", float(np.max(abs(values[1] / values[0] - 1))), 1e-8)
    figure("rounds more than the plain run's", masked[0].rounds - plain[0].rounds, 0)
    for name, (result, seconds) in (("plain", plain), ("secure", masked)):
        figure(f"{name}: rounds", result.rounds)
        figure(f"{name}: seconds, all sites in one process", seconds)
        figure(f"{name}: bytes up, a site and round", result.bytes_up / len(result.history) / MNIST_SITES)
        figure(f"{name}: bytes down, a site and round", result.bytes_down / len(result.history) / MNIST_SITES)
    rounding = max(record.masked.rounding for record in masked[0].history if record.masked is not None)
    figure("fixed point: the most that rounding moved a number", rounding)
    private_power(rows)


def sources_of(rows: np.ndarray) -> dict[str, Any]:
    """Deal rows to the sites."""
    parts = partition.split(rows, partition.even(len(rows), MNIST_SITES))
    return {name: open_source(x) for name, x in parts.items()}


def timed_run(study: Study, sources: dict[str, Any]) -> tuple[Result, float]:
    """Run a study; return what came of it and what it took."""
    started = time.process_time()
    return run(study, sources), time.process_time() - started


def private_power(rows: np.ndarray) -> None:
    """The noise of the central mechanism, split between the sites and added up under masks; beside it local trust."""
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    sources = sources_of(rows)
    gram = rows.T @ rows
    best = float(np.linalg.eigvalsh(gram)[-5:].sum())
    heading(f"variance captured: rows of norm 1, {MNIST_SITES} sites, private power, k = 5, {SEEDS} seeds")
    for epsilon in (1.0, 0.3):
        means = {}
        for trust in ("central", "distributed", "local"):
            held = []
            for seed in range(SEEDS):
                terms = GaussianPrivacy(epsilon, DELTA, row_norm=1.0, trust=trust)
                study = Study(
                    n_components=5, solver="private-power", preparation=Preparation(center=False), seed=seed,
                    privacy=terms,
                )  # fmt: skip
                basis = run(study, sources).estimate.basis
                held.append(float(np.sum(basis * (gram @ basis))) / best)
            means[trust] = float(np.mean(held))
            figure(f"epsilon {epsilon:g}, {trust}: mean (sd {np.std(held, ddof=1):.1g})", means[trust])
        apart = abs(1 - means["distributed"] / means["central"])
        figure(f"epsilon {epsilon:g}: under secure sums, apart from central", apart, 0.02)


if __name__ == "__main__":
    main()
