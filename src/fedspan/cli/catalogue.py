"""``fedspan datasets``: the sets that come with fedspan or that it can fetch."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.table import Table

from fedspan.cli.output import Json, print_json, say
from fedspan.datasets.entry import Entry
from fedspan.datasets.registry import ENTRIES


def datasets(json: Json = False) -> None:
    """List the data sets that `fedspan.datasets.load` knows."""
    known = [_described(ENTRIES[name]) for name in sorted(ENTRIES)]
    if json:
        print_json(known)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("name", "rows", "columns", "how", "source"):
        table.add_column(column, justify="right" if column in ("rows", "columns") else "left")
    for one in known:
        rows, columns = one["shape"] or ("", "")
        table.add_row(one["name"], str(rows), str(columns), one["how"], one["source"])
    say(table)


def _described(entry: Entry) -> dict[str, Any]:
    how = "bundled" if entry.bundled else "fetched" if entry.files else "by hand"
    return {
        "name": entry.name, "shape": entry.shape, "how": how, "source": entry.source, "licence": entry.licence,
        "notes": entry.notes or entry.by_hand,
    }  # fmt: skip
