"""embeddings -> index: one FAISS shard a contiguous share of the rows, built in parallel."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ragray import parquet_files
from ragray.config import IndexConfig
from ragray.console import Progress
from ragray.distributed.embedding import vectors_of
from ragray.distributed.pieces import Piece, PieceWorker, run_pieces
from ragray.index_shard import build_shard, shard_folder
from ragray.precision import set_threads
from ragray.records import PASSAGE_SCHEMA, InputError
from ragray.storage import write_whole

_COLUMNS = [*PASSAGE_SCHEMA.names, "vector"]


class _ShardBuilder(PieceWorker):
    def __init__(self, factory: str) -> None:
        set_threads(1)
        self.factory = factory

    def process(self, task: dict[str, Any], output: Path) -> None:
        parts = [parquet_files.read(columns=_COLUMNS, **part) for part in task["parts"]]
        table = pa.concat_tables(parts).combine_chunks()
        vectors_ND = vectors_of(table).astype(np.float32)
        with write_whole(output) as temporary:
            build_shard(temporary, vectors_ND, table.drop_columns(["vector"]), self.factory)


def build_index(
    embeddings: Path, folder: Path, config: IndexConfig, num_workers: int, progress: Progress
) -> dict[str, Any]:
    """Build ``config.num_shards`` shards under ``folder``; finished shards of an interrupted run are kept.

    Raises:
        InputError: if there are fewer passages than shards, or the factory can't be built.
    """
    files = [(str(file), parquet_files.num_rows(file)) for file in sorted(embeddings.glob("embeddings-*.parquet"))]
    total = sum(rows for _, rows in files)
    if total < config.num_shards:
        raise InputError(f"index.num_shards is {config.num_shards}, but there are only {total} passages")
    bounds = [number * total // config.num_shards for number in range(config.num_shards + 1)]
    pieces = [
        Piece(str(shard_folder(folder, number)), {"parts": _parts(files, start, stop)}, stop - start)
        for number, (start, stop) in enumerate(pairwise(bounds))
    ]
    run_pieces(pieces, _ShardBuilder, {"factory": config.factory}, num_workers, progress=progress)
    return {"num_passages": total, "num_shards": config.num_shards, "rows_per_shard": [piece.units for piece in pieces]}


def _parts(files: list[tuple[str, int]], start: int, stop: int) -> list[dict[str, Any]]:
    """The slices of files that make up the rows ``start <= row < stop`` of all files in order."""
    parts, first = [], 0
    for path, rows in files:
        low, high = max(start, first), min(stop, first + rows)
        if low < high:
            parts.append({"path": path, "start": low - first, "rows": high - low})
        first += rows
    return parts
