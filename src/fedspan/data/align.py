"""Which columns a study uses, given what each site has."""

from __future__ import annotations

from fedspan.errors import DataError, few

Described = dict[str, tuple[list[str] | None, int]]
"""For each site, its column names (None: it has none) and their number."""


def align_columns(described: Described, mode: str) -> list[str] | None:
    """Return the study's columns in order, or None where no site names its columns.

    >>> align_columns({"a": (["x", "y"], 2), "b": (["y", "z"], 2)}, "intersect")
    ['y']
    """
    first = next(iter(described))
    unnamed = [site for site, (names, _) in described.items() if names is None]
    if len(unnamed) == len(described):
        for site, (_, count) in described.items():
            if count != described[first][1]:
                raise DataError(
                    f"site {site!r} has {count} columns, site {first!r} has {described[first][1]}; without "
                    f"column names they cannot be aligned: name the columns or make them equal"
                )
        return None
    if unnamed:
        named = sorted(set(described) - set(unnamed))
        raise DataError(f"site {unnamed[0]!r} has no column names but {named[0]!r} does; name them at every site")
    lists = {site: names or [] for site, (names, _) in described.items()}
    if mode == "union-zero":
        return list(dict.fromkeys(name for names in lists.values() for name in names))
    if mode == "intersect":
        shared = set.intersection(*(set(names) for names in lists.values()))
        if not shared:
            raise DataError(f"the sites share no column: {_sketch(lists)}")
        return [name for name in lists[first] if name in shared]
    for site, names in lists.items():
        lacks, extra = set(lists[first]) - set(names), set(names) - set(lists[first])
        if lacks or extra:
            raise DataError(
                f"site {site!r} has other columns than site {first!r}: lacks {few(sorted(lacks))}, adds "
                f'{few(sorted(extra))}; set columns = "intersect" (or "union-zero"), or mend the names'
            )
    return lists[first]


def _sketch(lists: dict[str, list[str]]) -> str:
    return "; ".join(f"{site}: {few(sorted(set(names)))}" for site, names in list(lists.items())[:3])
