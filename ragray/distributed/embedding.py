"""passages -> embeddings: an actor pool of passage encoders, one Parquet file a slice of passages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ragray.artifacts import write_whole
from ragray.config import EmbedConfig, EncoderConfig
from ragray.console import Progress
from ragray.distributed.pieces import Piece, PieceWorker, run_pieces
from ragray.records import FloatArray, InputError, Passage, embedding_schema


class _PassageEmbedder(PieceWorker):
    def __init__(self, model: str, encoder: EncoderConfig, dtype: str, threads: int, tokens_per_batch: int) -> None:
        from ragray.encoders import Encoder  # torch only where it computes
        from ragray.precision import compute_device, resolve_dtype, set_threads

        set_threads(threads)
        self.encoder = Encoder.load(model, encoder, resolve_dtype(dtype)).to(compute_device())
        self.tokens_per_batch = tokens_per_batch

    def process(self, task: dict[str, Any], output: Path) -> None:
        table = pq.read_table(task["path"]).slice(task["start"], task["rows"])
        passages = [Passage(row["id"], row["title"], row["text"]) for row in table.to_pylist()]
        vectors_ND = self.encoder.embed_passages(passages, self.tokens_per_batch)
        bad = np.flatnonzero(~np.isfinite(vectors_ND).all(axis=1))
        if len(bad):
            raise InputError(f"the encoder gives NaN or infinity for passage {passages[bad[0]].id!r}: check the model")
        with write_whole(output) as temporary:
            pq.write_table(_embedding_table(table, vectors_ND), temporary)


def embed_passages(
    passages: Path,
    folder: Path,
    model: str,
    encoder: EncoderConfig,
    config: EmbedConfig,
    *,
    num_actors: int,
    threads: int,
    tokens_per_batch: int,
    gpus_per_actor: float,
    progress: Progress,
) -> dict[str, int]:
    """Embed every passage of the passages folder into ``embeddings-*.parquet`` under ``folder``, in the same order.

    Finished files of an earlier, interrupted run are kept.
    """
    pieces = [
        Piece(str(folder / f"embeddings-{number:05d}.parquet"), {"path": path, "start": start, "rows": rows}, rows)
        for number, (path, start, rows) in enumerate(_slices(passages, config.passages_per_file))
    ]
    arguments = {
        "model": model,
        "encoder": encoder,
        "dtype": config.dtype,
        "threads": threads,
        "tokens_per_batch": tokens_per_batch,
    }
    run_pieces(pieces, _PassageEmbedder, arguments, num_actors, threads, gpus_per_actor, progress)
    dimension = pq.read_schema(pieces[0].output).field("vector").type.list_size
    return {"num_passages": sum(piece.units for piece in pieces), "num_files": len(pieces), "dimension": dimension}


def _slices(passages: Path, rows_per_slice: int) -> list[tuple[str, int, int]]:
    """(file, first row, rows) of every slice; a slice doesn't reach over files."""
    slices = []
    for file in sorted(passages.glob("passages-*.parquet")):
        rows = pq.read_metadata(file).num_rows
        slices += [(str(file), start, min(rows_per_slice, rows - start)) for start in range(0, rows, rows_per_slice)]
    return slices


def _embedding_table(passages: pa.Table, vectors_ND: FloatArray) -> pa.Table:
    schema = embedding_schema(vectors_ND.shape[1])
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(vectors_ND.ravel()), vectors_ND.shape[1])
    return pa.Table.from_arrays([*(passages.column(name) for name in ("id", "title", "text")), vectors], schema=schema)
