"""``fedspan stream``: sites read rows as they come, publish summaries, and merge whatever has arrived."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from threading import Event
from typing import Annotated, Any

import typer

from fedspan.cli.output import (
    EXIT_CODES,
    INTERRUPTED,
    Json,
    counted,
    labelled,
    note,
    print_json,
    program,
    say_exactly,
)
from fedspan.cli.runs import folder_name
from fedspan.cli.stream_merge import Merging
from fedspan.cli.stream_rows import Columns
from fedspan.cli.stream_site import STDIN, SiteStream
from fedspan.cli.stream_view import View, figures_of, stopping, watching_sites
from fedspan.errors import ConfigurationError, DataError, FileError, ResumeError, nearest
from fedspan.stream_file import StreamFile, load_stream

POLL = 0.2
"""How many seconds pass before an input is looked at again in which nothing was new."""


def stream(
    study: Annotated[
        Path, typer.Argument(help='The study file (TOML) with estimator = "streaming".', show_default=False)
    ],
    site: Annotated[
        list[str] | None,
        typer.Option(
            help="A site to follow here; may be repeated (default: those whose input is here).", show_default=False
        ),
    ] = None,
    every: Annotated[float, typer.Option(help="Publish every so many seconds.", min=0.0)] = 10.0,
    rows: Annotated[
        int | None, typer.Option(help="Publish also when a site has read so many rows more.", min=1, show_default=False)
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Read what is there to its end, publish, and stop.")] = False,
    merge: Annotated[
        bool, typer.Option("--merge/--no-merge", help="Merge all summaries that are in the folder into a model.")
    ] = True,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the stream that was stopped or killed.")] = False,
    folder: Annotated[
        Path | None,
        typer.Option(help="Where states, summaries and the model are (default: the study's name, where it says)."),
    ] = None,
    json: Json = False,
) -> None:
    """Follow growing inputs: fold each row once, publish summaries, and merge those of all sites into a model."""
    described = load_stream(study)
    chosen = described.folder / folder_name(described.name) if folder is None else folder
    names = _sites_here(described, site, merge=merge)
    if not resume:
        _check_new(chosen, names)
    with watching_sites() as view, stopping() as asked:
        run = _Run(described, names, chosen, view, resume=resume, merge=merge, every=every, rows=rows)
        run.follow(asked, once=once)
    again = "" if folder is None else f" --folder {shlex.quote(str(folder))}"
    options = "".join(f" --site {shlex.quote(name)}" for name in site or ())
    summary = run.summary()
    if json:
        print_json(summary)
    else:
        _show(summary)
    if asked.is_set():
        note(f"fedspan: stopped; go on with: {program()} stream {shlex.quote(str(study))} --resume{options}{again}")
        raise typer.Exit(INTERRUPTED)
    if any(figures["problem"] for figures in summary["sites"].values()):
        raise typer.Exit(EXIT_CODES[DataError])


def _sites_here(described: StreamFile, wanted: list[str] | None, *, merge: bool) -> list[str]:
    """Return the sites to follow."""
    for name in wanted or ():
        if name not in described.sites:
            raise ConfigurationError(f"--site {name}: there is no such site; {nearest(name, described.sites)}")
    paths = {name: described.sites[name].path for name in (wanted or described.sites)}
    names = [name for name, path in paths.items() if wanted or path == STDIN or path.exists()]
    piped = [name for name in names if paths[name] == STDIN]
    if len(piped) > 1:
        raise ConfigurationError(
            f'sites {", ".join(piped)} all have the path "-": one standard input is one site\'s; choose it with --site'
        )
    if not names and not merge:
        raise ConfigurationError(f"no site's input is here ({paths}); name one with --site to wait for it")
    if not names:
        note("No site's input is here, so summaries are only merged; name a site with --site to wait for its input.")
    return names


def _check_new(folder: Path, names: list[str]) -> None:
    """Refuse to begin a stream over another one."""
    for name in names:
        if (folder / "sites" / f"{name}.state").exists():
            raise ResumeError(
                f"{folder} holds a stream of site {name!r} already; go on with --resume, or name another --folder to "
                "begin with its first row"
            )


class _Run:
    """The sites of one process, and when they publish."""

    def __init__(
        self, described: StreamFile, names: list[str], folder: Path, view: View, *, resume: bool, merge: bool,
        every: float, rows: int | None,
    ) -> None:  # fmt: skip
        self._described, self._folder, self._view = described, folder, view
        self._every, self._rows = every, rows
        self._started = self._looked = time.monotonic()
        self._merging = Merging(described, folder, note) if merge else None
        self._sites: list[SiteStream] = []
        self._lost: dict[str, FileError] = {}  # sites whose state is damaged
        columns = Columns(described.columns)
        for name in names:
            try:
                self._sites.append(SiteStream(name, described, columns, folder, note, resume=resume))
            except FileError as error:
                self._lost[name] = error
                note(f"site {name!r}: {error}. The others go on without it.")
        if self._lost and not self._sites:
            raise next(iter(self._lost.values()))
        view.begin(self._sites)
        self._since = {site.name: (self._started, site.read) for site in self._sites}

    def follow(self, asked: Event, *, once: bool) -> None:
        """Read until it is stopped; with ``once``, or where nothing can follow, to the end of what is there."""
        following = list(self._sites)
        while not asked.is_set() and (following or not (once or self._sites)):
            new = {site.name: site.step() for site in following}
            following = [site for site in following if new[site.name] or not _is_over(site, once)]
            published = [site for site in self._sites if self._publish_if_due(site)]
            if published or time.monotonic() - self._looked >= self._every:
                self._merge()
            self._view.tick(self._sites, self._merging)
            if not any(new.values()) and following:
                asked.wait(POLL)
        for site in self._sites:
            self._publish(site)
        self._merge()

    def _publish_if_due(self, site: SiteStream) -> bool:
        since, read = self._since[site.name]
        by_rows = self._rows is not None and site.read - read >= self._rows
        return (by_rows or time.monotonic() - since >= self._every) and self._publish(site)

    def _publish(self, site: SiteStream) -> bool:
        """Publish what a site has come to, if that is more than it published; say whether it was."""
        self._since[site.name] = time.monotonic(), site.read
        if not site.unsaved:
            return False
        site.publish()
        self._view.published(site)
        return True

    def _merge(self) -> None:
        self._looked = time.monotonic()
        if self._merging is not None and self._merging.look():
            self._view.merged(self._merging)

    def summary(self) -> dict[str, Any]:
        """Return what came of it, for machines."""
        sites: dict[str, Any] = {name: {"problem": str(error)} for name, error in self._lost.items()}
        for site in self._sites:
            more = {"published": site.seq, "waiting": site.tail.waiting, "problem": site.problem}
            sites[site.name] = {**figures_of(site), **more}
        merging = self._merging
        return {
            "name": self._described.name, "folder": str(self._folder),
            "seconds": time.monotonic() - self._started, "sites": dict(sorted(sites.items())),
            "merged": None if merging is None else merging.summary(),
        }  # fmt: skip


def _is_over(site: SiteStream, once: bool) -> bool:
    """Whether nothing more is read of a site that has nothing new."""
    return site.ended or site.tail.exhausted or (once and site.done)


# ---- for people ------------------------------------------------------------------------------------


def _show(summary: dict[str, Any]) -> None:
    lines = [("study", f"{summary['name']}, {summary['seconds']:.1f} s"), ("kept in", summary["folder"])]
    lines += [(name, _site_words(figures)) for name, figures in summary["sites"].items()]
    merged = summary["merged"]
    if merged is not None:
        lines.append(("merged", _merged_words(merged)))
        if merged["left_out"]:
            lines.append(("left out", ", ".join(merged["left_out"])))
        if merged["model"]:
            lines.append(("model", merged["model"]))
    say_exactly(*labelled(lines))


def _site_words(figures: dict[str, Any]) -> str:
    if "rows" not in figures:
        return str(figures["problem"])
    words = [counted(figures["rows"], "row")]
    if figures["rank"] is not None:
        words.append(f"rank {figures['rank']}")
    if figures["captured"] is not None:
        words.append(f"{figures['captured']:.1%} of the variance")
    if figures["drift"] is not None:
        words.append(f"drift {figures['drift']:.3f}")
    for key, text in (("refused", "refused row"), ("skipped", "skipped row"), ("left_out", "bad line")):
        if figures[key]:
            words.append(counted(figures[key], text))
    more = "; ".join(text for text in (figures["waiting"], figures["problem"]) if text)
    return ", ".join(words) + (f"; {more}" if more else "")


def _merged_words(merged: dict[str, Any]) -> str:
    sites = f"{counted(merged['rows'], 'row')} of {counted(len(merged['sites']), 'site')}"
    if merged["problem"]:
        return f"{sites}; no model: {merged['problem']}"
    if merged["n_components"] is None:
        return "nothing: no site has published a summary yet"
    share = sum(merged["explained_variance_ratio"])
    return f"{sites}: {counted(merged['n_components'], 'component')} with {share:.1%} of the variance"
