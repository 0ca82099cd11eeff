"""Parquet files, on disk or in an object store: read in part, and written with counts of what it took."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ragray.storage import location

_COUNTS = b"ragray.counts"


def write(file: Path, tables: Iterable[pa.Table], schema: pa.Schema, counts: Mapping[str, int]) -> None:
    """Write tables, one row group or more each; ``counts`` may be added to until the tables are through."""
    repeated = [name for name in ("title",) if name in schema.names]  # a dictionary of vectors or texts only costs
    with pq.ParquetWriter(file, schema, use_dictionary=repeated) as writer:
        for table in tables:
            writer.write_table(table)
        writer.add_key_value_metadata({_COUNTS: json.dumps(dict(counts)).encode()})


def read(path: str | Path, columns: Sequence[str], start: int = 0, rows: int | None = None) -> pa.Table:
    """Some columns of ``rows`` rows from ``start`` on; only the row groups that hold them are read."""
    with location(path).open("rb") as handle:
        file = pq.ParquetFile(handle)
        if rows is None:
            return file.read(columns=list(columns))
        groups, first, skipped = [], 0, 0
        for number in range(file.num_row_groups):
            last = first + file.metadata.row_group(number).num_rows
            if last <= start:
                skipped = last
            elif first < start + rows:
                groups.append(number)
            first = last
        return file.read_row_groups(groups, columns=list(columns)).slice(start - skipped, rows)


def num_rows(path: str | Path) -> int:
    with location(path).open("rb") as handle:
        return int(pq.read_metadata(handle).num_rows)


def schema(path: str | Path) -> pa.Schema:
    with location(path).open("rb") as handle:
        return pq.read_schema(handle)


def counts(path: str | Path) -> Counter[str]:
    """The counts that the file was written with."""
    with location(path).open("rb") as handle:
        return Counter(json.loads(pq.read_metadata(handle).metadata[_COUNTS]))
