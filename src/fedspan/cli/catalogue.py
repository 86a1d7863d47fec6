"""``fedspan datasets``: the sets that come with fedspan or that it can fetch."""

from __future__ import annotations

from typing import Any

from fedspan.cli.output import Json, plain_table, print_json, say
from fedspan.datasets.entry import Entry
from fedspan.datasets.registry import ENTRIES


def datasets(json: Json = False) -> None:
    """List the data sets that `fedspan.datasets.load` knows."""
    known = [_described(ENTRIES[name]) for name in sorted(ENTRIES)]
    if json:
        print_json(known)
        return
    table = plain_table("name", "how", "source", "rows", "columns", left=2)
    for one in known:
        rows, columns = one["shape"] or ("", "")
        table.add_row(one["name"], one["how"], one["source"], str(rows), str(columns))
    say(table)


def _described(entry: Entry) -> dict[str, Any]:
    how = "bundled" if entry.bundled else "fetched" if entry.files else "by hand"
    return {
        "name": entry.name, "shape": entry.shape, "how": how, "source": entry.source, "licence": entry.licence,
        "notes": entry.notes or entry.by_hand,
    }  # fmt: skip
