"""Growing inputs, read once: files to which lines are added, folders of Parquet files, standard input."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from fedspan.data.csv import check_marks
from fedspan.data.csv_lines import CsvLines
from fedspan.data.jsonl import JsonLines
from fedspan.data.lines import Reading
from fedspan.data.open import JSONLS, PARQUETS, TEXTS
from fedspan.data.tail.base import Tail
from fedspan.data.tail.file import FileTail
from fedspan.data.tail.parquet import ParquetTail
from fedspan.data.tail.pipe import PipeTail
from fedspan.encoding import Plain
from fedspan.errors import ConfigurationError

__all__ = ["Tail", "follow"]


def follow(
    path: str | Path,
    *,
    position: dict[str, Plain] | None = None,
    drop: Iterable[str] = (),
    strict_drop: bool = True,
    delimiter: str | None = None,
    decimal: str = ".",
    header: bool | None = None,
    columns: Iterable[str] | None = None,
) -> Tail:
    """Follow a growing input.

    Parameters
    ----------
    path
        A text file to which lines are added (``.csv``, ``.tsv``, ``.txt``, ``.jsonl``, ``.ndjson``), a folder to
        which Parquet files are added, one Parquet file, or ``"-"``: CSV or JSON lines from standard input. A file or
        folder that is not there yet is waited for.
    position
        The `Tail.position` to go on behind.
    drop
        Names of columns to leave out.
    strict_drop
        Whether each of them must be a column; of JSON lines it need not be.
    delimiter, decimal, header
        How a text file is written; see `CsvSource`. Where the first row of CSV has two characters that may be the
        delimiter it must be said: a finished file tells by its rows, and this one has none yet.
    columns
        The names to take, in this order; the default takes all.

    Returns
    -------
    Tail
        Its `read` gives out what has come, and never waits.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "turin.csv")
    ...     _ = file.write_text("age,mass\\n41,70.5\\n38,")
    ...     tail = follow(file)
    ...     first = list(tail.read())
    ...     with file.open("a") as end:
    ...         _ = end.write("64\\n")
    ...     then = list(follow(file, position=tail.position).read())
    >>> tail.columns, first, then
    (('age', 'mass'), [array([[41. , 70.5]])], [array([[38., 64.]])])
    """
    check_marks(delimiter, decimal)
    if header not in (None, True, False):
        raise ConfigurationError(f"header is True, False or None (look at the first row), got {header!r}")
    reading = Reading(
        drop=(drop,) if isinstance(drop, str) else tuple(drop), strict_drop=strict_drop, delimiter=delimiter,
        decimal=decimal, header=header, columns=None if columns is None else tuple(columns),
    )  # fmt: skip
    if str(path) == "-":
        return PipeTail(reading, position)
    path = Path(path)
    kind = path.suffix.lower()
    if path.is_dir() or (not kind and not path.exists()):
        return ParquetTail(path, reading, position, single=False)
    if kind in PARQUETS:
        return ParquetTail(path, reading, position, single=True)
    if kind in JSONLS:
        return FileTail(path, JsonLines, "jsonl", reading, position)
    if kind in TEXTS:
        if kind == ".tsv" and delimiter is None:
            reading = replace(reading, delimiter="\t")
        return FileTail(path, CsvLines, "csv", reading, position)
    raise ConfigurationError(
        f"{path} cannot be followed: what grows is a file of lines ({', '.join((*TEXTS, *JSONLS))}), a folder to which "
        'Parquet files are added, or standard input ("-")'
    )
