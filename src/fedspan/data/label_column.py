"""Reading rows with their labels from one file: a column of it says what is to be predicted."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fedspan.data.csv import CsvTable
from fedspan.data.open import JSONLS, PARQUETS, TEXTS, open_source
from fedspan.data.optional import parquet_module
from fedspan.data.source import Source, to_host
from fedspan.data.text import texts
from fedspan.encoding import Array
from fedspan.errors import ConfigurationError, DataError, FileError, nearest

TASKS = ("classes", "numbers", "texts")
"""What labels are: classes (whole numbers or texts), numbers to come near to, or classes as they are written."""
_EXACT = 2**53
"""Beyond it a number read from a file may stand for its neighbours too."""


def read_labelled(
    path: Path, label: str | int, *, drop: Iterable[str] = (), task: str | None = None, **layout: Any
) -> tuple[Array, Array, tuple[str, ...] | None]:
    """Return rows, what is to be predicted of each, and the columns' names.

    ``label`` names a column (in ``.npz`` files an array), or is the number of one, from 0 or from the end, where
    columns have no names. Labels that are all whole numbers, or texts, are classes, others numbers; ``task`` says
    otherwise: with ``"texts"`` they are classes as they are written, so that codes such as 250 and E11, or 7 and 007,
    are told apart at every site alike.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "ward.csv")
    ...     _ = file.write_text("age,mass,outcome\\n41,70.5,ill\\n38,61.0,well\\n")
    ...     rows, labels, columns = read_labelled(file, "outcome")
    >>> rows.shape, labels.tolist(), columns
    ((2, 2), ['ill', 'well'], ('age', 'mass'))
    """
    dropped = tuple(drop)
    if isinstance(label, int):
        rows, names = _all_rows(open_source(path, drop=dropped, strict_drop=False, **layout))
        if not -rows.shape[1] <= label < rows.shape[1]:
            raise DataError(f"{path} has {rows.shape[1]} columns, so none of number {label}")
        values: list[Any] = rows[:, label].tolist()
        kept = None if names is None else tuple(np.delete(np.array(names, dtype=object), label))
        return np.delete(rows, label, axis=1), as_task(values, task, str(path)), kept
    values = _values(path, label, written=task == "texts", **layout)
    within = path.suffix.lower() != ".npz"
    source = open_source(path, drop=(*dropped, *([label] if within else [])), strict_drop=False, **layout)
    rows, names = _all_rows(source)
    if len(values) != len(rows):
        raise DataError(f"{path} has {len(rows)} rows and {len(values)} labels in {label!r}")
    return rows, as_task(values, task, str(path)), names


def as_task(values: list[Any], task: str | None, where: str) -> Array:
    """Return labels as an array: whole numbers or texts (classes), or floating point (numbers).

    >>> as_task([1.0, 2.0], None, "here"), as_task([1, 2], "numbers", "here")
    (array([1, 2]), array([1., 2.]))
    """
    gaps = [row for row, value in enumerate(values) if _is_gap(value)]
    if gaps:
        raise DataError(f"{where}: row {gaps[0] + 1} has no label ({len(gaps)} rows have none); leave such rows out")
    if task == "texts":
        _check_exact(values, where)
        return np.array([_text(value) for value in values])
    numbers = all(isinstance(value, int | float) for value in values)
    if task == "numbers" and not numbers:
        odd = next(value for value in values if not isinstance(value, int | float))
        raise DataError(f'{where}: label {odd!r} is no number; take task = "classes", or mend the column')
    if not numbers:
        return np.array([str(value) for value in values])
    whole = all(float(value).is_integer() for value in values)
    if task == "numbers" or (task is None and not whole):
        return np.array(values, dtype=float)
    if whole:
        _check_exact(values, where)
    return np.array([int(value) for value in values]) if whole else np.array([str(value) for value in values])


def _check_exact(values: list[Any], where: str) -> None:
    large = [value for value in values if isinstance(value, float) and abs(value) >= _EXACT]
    if large:
        raise DataError(
            f"{where}: label {large[0]:.17g} is too large to be told from the next as a number read from a file; take "
            f'task = "numbers" if it is one to come near to, or name the column and take task = "texts", by which '
            f"labels are classes as they are written"
        )


def _text(value: Any) -> str:
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def _is_gap(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _all_rows(source: Source) -> tuple[Array, tuple[str, ...] | None]:
    blocks = [to_host(block) for block in source.blocks()]
    rows = np.vstack(blocks) if blocks else np.zeros(source.shape)
    return rows, source.columns


def _values(path: Path, label: str, *, written: bool, **layout: Any) -> list[Any]:
    """Return the labels of a file as numbers and texts; those of a text file only as texts where ``written``."""
    kind = path.suffix.lower()
    if not path.is_file():
        open_source(path)  # says what is there instead
    if kind in TEXTS:
        return _csv_values(path, label, kind, layout, written=written)
    if kind in PARQUETS:
        return _parquet_values(path, label)
    if kind in JSONLS:
        return _jsonl_values(path, label)
    if kind == ".npz":
        return _npz_values(path, label)
    raise ConfigurationError(
        f"{path}: its columns have no names, so the label's is given by its number, as in label = -1 for the last"
    )


def _csv_values(path: Path, label: str, kind: str, layout: dict[str, Any], *, written: bool) -> list[Any]:
    if kind == ".tsv" and layout.get("delimiter") is None:
        layout = {**layout, "delimiter": "\t"}
    given = {"delimiter": None, "decimal": ".", "header": None, **layout}
    table = CsvTable(path, **given)
    if table.names is None:
        raise DataError(f"{path} has no header, so the label's column is given by its number, as in label = -1")
    at = _position(path, label, table.names)
    fields = [
        record[at].strip() for line, text in table.texts() for _, record in table.records(text, line) if len(record)
    ]
    numbers = [table.number(field) for field in fields]
    return fields if written or any(number is None for number in numbers) else numbers


def _parquet_values(path: Path, label: str) -> list[Any]:
    try:
        names = parquet_module().pq.read_schema(path).names
        _position(path, label, names)
        table = parquet_module().pq.read_table(path, columns=[label])
    except OSError as cause:
        raise FileError(f"{path}: not a readable Parquet file ({cause})") from cause
    return [value if isinstance(value, int | float | None) else str(value) for value in table.column(0).to_pylist()]


def _jsonl_values(path: Path, label: str) -> list[Any]:
    values = []
    for line, text in texts(path):
        for number, entry in enumerate(text.split("\n"), start=line):
            if entry.strip():
                try:
                    row = json.loads(entry)
                    values.append(row[label])
                except (ValueError, LookupError, TypeError) as cause:
                    raise DataError(f"{path}, line {number}: it has no label {label!r} ({cause!r})") from cause
    return values


def _npz_values(path: Path, label: str) -> list[Any]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as parts:
            known = list(parts.files)
            values = parts[label] if label in known else None
    except Exception as cause:  # a damaged archive raises whatever its reader stumbles over
        raise FileError(f"{path}: not a readable .npz file ({cause}); was it cut short?") from cause
    if values is None:
        raise DataError(f"{path} has no array {label!r} of labels; {nearest(label, known)}")
    if values.ndim != 1:
        raise DataError(f"{path}: labels are one for each row; array {label!r} has shape {values.shape}")
    return values.tolist()  # type: ignore[no-any-return]


def _position(path: Path, label: str, names: list[str]) -> int:
    if label not in names:
        raise DataError(f"{path} has no column {label!r} to predict; {nearest(label, names)}")
    return names.index(label)
