"""A site's rows, read from its file as a study of labelled rows read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedspan.data import open_source
from fedspan.data.source import to_host
from fedspan.encoding import Array
from fedspan.errors import DataError, few
from fedspan.estimators import FederatedRepresentation
from fedspan.study_file import SiteEntry, column_names


def rows_for(
    model: FederatedRepresentation, path: Path, drop: list[str], *, delimiter: str | None, decimal: str,
    header: bool | None,
) -> Array:  # fmt: skip
    """Return the rows of a file as the model takes them; the label, and what the study dropped, may be among them."""
    layout: dict[str, Any] = {"delimiter": delimiter, "decimal": decimal, "header": header}
    wanted = getattr(model, "feature_names_in_", None)
    names = column_names(SiteEntry(path=path, **layout)) if wanted is not None else None
    label = getattr(model, "label_", None)
    dropped = [*getattr(model, "dropped_", []), *drop]
    if names is not None and wanted is not None:
        known = {*wanted, *dropped, label}
        extra, lacks = [name for name in names if name not in known], [name for name in wanted if name not in names]
        if lacks:
            raise DataError(f"{path} lacks {few(lacks)} of the model's {len(wanted)} columns; add them to the file")
        if extra:
            options = " ".join(f"--drop {name}" for name in extra[:3]) + (" ..." if len(extra) > 3 else "")
            raise DataError(f"{path} has columns the model does not know: {few(extra)}; leave them out with {options}")
    unused = [*dropped, *([label] if isinstance(label, str) else [])]
    source = open_source(path, drop=unused, strict_drop=False, **layout)
    blocks = [to_host(block) for block in source.blocks()]
    if not blocks or not source.shape[0]:
        raise DataError(f"{path} has no rows")
    rows = np.vstack(blocks)
    if wanted is not None and source.columns is not None:
        return rows[:, [source.columns.index(str(name)) for name in wanted]]
    if isinstance(label, int) and rows.shape[1] == model.n_features_in_ + 1:
        return np.delete(rows, label, axis=1)
    return rows
