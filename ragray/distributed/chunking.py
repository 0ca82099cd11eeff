"""documents -> passages, one Parquet file a span of the corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ragray.artifacts import write_whole
from ragray.config import ChunkConfig
from ragray.console import Progress
from ragray.corpus.jsonl import Span, corpus_spans, read_documents
from ragray.corpus.passages import split_document
from ragray.distributed.pieces import Piece, PieceWorker, run_pieces
from ragray.records import PASSAGE_SCHEMA, InputError

_ROWS_AT_ONCE = 4096


class _Chunker(PieceWorker):
    def __init__(self, words: int) -> None:
        self.words = words

    def process(self, task: dict[str, Any], output: Path) -> None:
        rows: list[dict[str, str]] = []
        with write_whole(output) as temporary, pq.ParquetWriter(temporary, PASSAGE_SCHEMA) as writer:
            for document in read_documents(Span(task["path"], task["start"], task["stop"])):
                rows.extend(passage.as_dict() for passage in split_document(document, self.words))
                if len(rows) >= _ROWS_AT_ONCE:
                    writer.write_table(pa.Table.from_pylist(rows, PASSAGE_SCHEMA))
                    rows.clear()
            writer.write_table(pa.Table.from_pylist(rows, PASSAGE_SCHEMA))


def chunk_corpus(
    corpus: Path,
    folder: Path,
    config: ChunkConfig,
    num_workers: int,
    progress: Progress,
    span_bytes: int = 16 << 20,
) -> dict[str, int]:
    """Split a corpus into ``passages-*.parquet`` under ``folder``; memory doesn't grow with the corpus.

    Raises:
        InputError: the corpus is missing, damaged, empty, or names a document twice.
    """
    pieces = [
        Piece(
            str(folder / f"passages-{number:05d}.parquet"),
            {"path": span.path, "start": span.start, "stop": span.stop},
        )
        for number, span in enumerate(corpus_spans(corpus, span_bytes))
    ]
    run_pieces(pieces, _Chunker, {"words": config.words}, num_workers, progress=progress)
    ids = pa.chunked_array(
        [chunk for piece in pieces for chunk in pq.read_table(piece.output, columns=["id"]).column("id").chunks],
        type=pa.string(),
    )
    if not len(ids):
        raise InputError(f"{corpus} holds no words: there is nothing to retrieve from")
    counts = pc.value_counts(ids)
    twice = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(twice):
        document = twice.field("values")[0].as_py().rpartition("-")[0]
        raise InputError(f"{corpus}: the document id {document!r} is used more than once; ids must be unique")
    return {"num_passages": len(ids), "num_files": len(pieces)}
