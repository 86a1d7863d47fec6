"""What is shown of a stream while it runs: a live line for each site on a terminal, plain lines elsewhere."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event
from typing import Any

import numpy as np
from rich.live import Live
from rich.table import Table

from fedspan.cli.output import console, counted, note, plain_table
from fedspan.cli.stream_merge import Merging
from fedspan.cli.stream_site import SiteStream

_REFRESH = 0.25  # seconds


def figures_of(site: SiteStream, *, with_held: bool = True) -> dict[str, Any]:
    """Return what a site has come to; without the rows that wait for their block to be full it costs nothing."""
    stream = site.stream
    found: dict[str, Any] = {
        "rows": 0, "rank": None, "captured": None, "drift": None, "drift_loss": None, "read": site.read,
        "left_out": site.left_out, "refused": site.refused, "skipped": site.skipped,
    }  # fmt: skip
    if stream is not None:
        summary, rank = (stream.now(), stream.rank_now()) if with_held else (stream.folded, stream.rank)
        squares = float(np.sum(summary.values[:rank] ** 2))
        found |= {
            "rows": summary.rows, "rank": rank, "captured": squares / summary.total if summary.total > 0 else None,
            "drift": stream.drift, "drift_loss": stream.drift_loss,
        }  # fmt: skip
    return found


class View:
    """Shows the sites; ``live`` is None where there is no terminal."""

    def __init__(self, live: Live | None) -> None:
        self._live = live
        self._shown = time.monotonic()
        self._rates: dict[str, tuple[float, int, float]] = {}  # when, how many rows there were, the rate until then

    def begin(self, sites: Sequence[SiteStream]) -> None:
        """Count the rows of these sites from now on."""
        self._rates = {site.name: (time.monotonic(), site.read, 0.0) for site in sites}

    def tick(self, sites: Sequence[SiteStream], merging: Merging | None) -> None:
        """Show the sites as they are, on a terminal and not too often."""
        if self._live is not None and time.monotonic() - self._shown >= _REFRESH:
            self._shown = time.monotonic()
            self._live.update(self.table(sites, merging), refresh=True)

    def table(self, sites: Sequence[SiteStream], merging: Merging | None) -> Table:
        """Return a line for each site, and one for what they come to."""
        table = plain_table("site", "rows/s", "rows", "rank", "captured", "drift", "left out")
        for site in sites:
            figures = figures_of(site, with_held=False)
            out = figures["left_out"] + figures["refused"] + figures["skipped"]
            table.add_row(
                site.name, f"{self._rate(site):,.0f}", f"{site.read:,}", *_shown(figures), f"{out:,}" if out else ""
            )
        if merging is not None and merging.model is not None:
            figures = merging.summary()
            rank, share = str(merging.model.n_components_), f"{sum(figures['explained_variance_ratio']):.1%}"
            table.add_row("merged", "", f"{figures['rows']:,}", rank, share, "", "")
        return table

    def published(self, site: SiteStream) -> None:
        """Say what a site published, where there is no live line."""
        if self._live is None:
            rank, captured, drift = _shown(figures_of(site))
            note(
                f"{site.name}: {site.read:,} rows, {self._rate(site):,.0f} rows/s, rank {rank}, captured {captured}, "
                f"drift {drift}"
            )

    def merged(self, merging: Merging) -> None:
        """Say what the sites come to, where there is no live line."""
        figures = merging.summary()
        if self._live is None and figures["model"] is not None:
            note(
                f"merged: {figures['rows']:,} rows of {counted(len(figures['sites']), 'site')}, rank "
                f"{figures['n_components']}, captured {sum(figures['explained_variance_ratio']):.1%}"
            )

    def _rate(self, site: SiteStream) -> float:
        """Return the rows a second of the last second or more."""
        now = time.monotonic()
        since, rows, rate = self._rates[site.name]
        if now - since >= 1 or not rate:
            rate = (site.read - rows) / max(now - since, 1e-9)
            self._rates[site.name] = now, site.read, rate
        return rate


def _shown(figures: dict[str, Any]) -> tuple[str, str, str]:
    return (
        "-" if figures["rank"] is None else str(figures["rank"]),
        "-" if figures["captured"] is None else f"{figures['captured']:.1%}",
        "-" if figures["drift"] is None else f"{figures['drift']:.3f}",
    )


@contextmanager
def watching_sites() -> Iterator[View]:
    """Show sites as they stream."""
    err = console(stderr=True)
    if not err.is_terminal:
        yield View(None)
        return
    with Live(console=err, auto_refresh=False, transient=True) as live:
        yield View(live)


@contextmanager
def stopping() -> Iterator[Event]:
    """Yield an event that Ctrl-C sets, so that no step is cut in two; a second Ctrl-C interrupts as usual."""
    asked = Event()

    def ask(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        asked.set()

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
