"""A site's rows: sources of every kind, partitions into sites, and the federated preparation of data.

`open_source` opens whatever holds rows, `follow` what still grows; `Preparation` says how the sites' rows become one
matrix.
"""

from typing import TYPE_CHECKING, Any

from fedspan.data import partition
from fedspan.data.arrays import ArraySource, SparseSource
from fedspan.data.csv import CsvSource
from fedspan.data.jsonl import JsonlSource
from fedspan.data.labelled import Labelled
from fedspan.data.open import open_source
from fedspan.data.optional import parquet_module
from fedspan.data.preprocess import Facts, Preparation
from fedspan.data.source import Source, SymmetricSource
from fedspan.data.tail import Tail, follow
from fedspan.data.triples import from_triples, read_triples

if TYPE_CHECKING:
    from fedspan.data.parquet import ParquetSource

__all__ = [
    "ArraySource", "CsvSource", "Facts", "JsonlSource", "Labelled", "ParquetSource", "Preparation", "Source",
    "SparseSource", "SymmetricSource", "Tail", "follow", "from_triples", "open_source", "partition", "read_triples",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "ParquetSource":  # pyarrow is optional, and slow to import
        return parquet_module().ParquetSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
