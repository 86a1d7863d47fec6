"""Parts of the library that need an optional package."""

from __future__ import annotations

import importlib
from typing import Any

from fedspan.errors import ConfigurationError


def parquet_module() -> Any:
    """Return `fedspan.data.parquet`, the only module that imports pyarrow."""
    try:
        return importlib.import_module("fedspan.data.parquet")
    except ImportError as cause:
        raise ConfigurationError(
            f'Parquet files need pyarrow ({cause}); install it with: pip install "fedspan[parquet]"'
        ) from cause
