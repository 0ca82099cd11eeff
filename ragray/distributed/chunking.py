"""documents -> passages: a Parquet file for every share of the corpus, then without what is in it twice.

A file appears whole, with what was dropped on the way to it in its metadata; so a killed run goes on after the files
that are there.  Records that can't be used are listed beside it, ``skipped-*.jsonl``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ragray import parquet_files
from ragray.config import ChunkConfig
from ragray.console import Progress
from ragray.corpus.files import Bad, Span
from ragray.corpus.passages import MAX_PASSAGE_CHARS, Splitter, content_hash
from ragray.corpus.readers import corpus_spans, read_documents
from ragray.distributed.pieces import Piece, PieceWorker, run_pieces
from ragray.records import PASSAGE_SCHEMA, Document, InputError
from ragray.storage import location, write_whole

_ROWS_AT_ONCE = 4096


class _Chunker(PieceWorker):
    def __init__(self, config: ChunkConfig, tokenizer: str | None) -> None:
        self.fails = config.on_bad_input == "fail"
        self.splitter = Splitter(config, _load_tokenizer(tokenizer) if tokenizer else None)

    def process(self, task: dict[str, Any], output: Path) -> None:
        counts: Counter[str] = Counter()
        skipped: list[Bad] = []
        with write_whole(output) as temporary:
            parquet_files.write(temporary, self._tables(task["spans"], counts, skipped), PASSAGE_SCHEMA, counts)
            if skipped:
                with write_whole(location(task["skipped"])) as listing:
                    lines = [json.dumps({"at": bad.position, "reason": bad.reason}) + "\n" for bad in skipped]
                    listing.write_text("".join(lines), encoding="utf-8")

    def _tables(self, spans: Sequence[Span], counts: Counter[str], skipped: list[Bad]) -> Iterator[pa.Table]:
        rows: list[dict[str, Any]] = []
        for document in self._documents(spans, skipped):
            counts["documents"] += 1
            rows += self._passages(document, counts, skipped)
            if len(rows) >= _ROWS_AT_ONCE:
                yield pa.Table.from_pylist(rows, PASSAGE_SCHEMA)
                rows.clear()
        counts["skipped"] = len(skipped)
        yield pa.Table.from_pylist(rows, PASSAGE_SCHEMA)

    def _documents(self, spans: Sequence[Span], skipped: list[Bad]) -> Iterator[Document]:
        for span in spans:
            for record in read_documents(span):
                if isinstance(record, Document):
                    yield record
                else:
                    self._bad(record, skipped)

    def _passages(self, document: Document, counts: Counter[str], skipped: list[Bad]) -> Iterator[dict[str, Any]]:
        for passage in self.splitter.split(document):
            if len(passage.text) > MAX_PASSAGE_CHARS:
                reason = f"a passage of {len(passage.text):,} characters, over the limit of {MAX_PASSAGE_CHARS:,}"
                self._bad(Bad(f"document {document.id!r}, passage {passage.id!r}", reason), skipped)
            elif not any(map(str.isalnum, passage.text)):
                counts["without_words"] += 1
            else:
                yield {**passage.as_dict(), "hash": content_hash(passage)}

    def _bad(self, bad: Bad, skipped: list[Bad]) -> None:
        if self.fails:
            raise InputError(f"{bad.position}: {bad.reason} (chunk.on_bad_input=skip leaves such records out)")
        skipped.append(bad)


def chunk_corpus(
    corpus: Path,
    folder: Path,
    config: ChunkConfig,
    num_workers: int,
    progress: Progress,
    *,
    tokenizer: str | None = None,
    span_bytes: int = 16 << 20,
) -> dict[str, Any]:
    """Split a corpus into ``passages-*.parquet`` under ``folder``; of passages of one content, the lowest id stays.

    The workers' memory doesn't grow with the corpus; here, 8 bytes are held for every passage.

    Raises:
        InputError: the corpus is missing, damaged, without words, or names a document twice; or a record of it can't be
            used, unless ``config.on_bad_input`` is skip.
    """
    pieces = [
        Piece(
            str(folder / f"passages-{number:05d}.parquet"),
            {"spans": spans, "skipped": str(folder / f"skipped-{number:05d}.jsonl")},
        )
        for number, spans in enumerate(_shares(corpus_spans(corpus, span_bytes, config.reader), span_bytes))
    ]
    run_pieces(pieces, _Chunker, {"config": config, "tokenizer": tokenizer}, num_workers, progress=progress)
    files = [location(piece.output) for piece in pieces]
    _check_ids(corpus, files)
    _drop_duplicates(files)
    counts: Counter[str] = Counter()
    for file in files:
        counts.update(parquet_files.counts(file))
    num_passages = sum(parquet_files.num_rows(file) for file in files)
    if not num_passages:
        raise InputError(f"{corpus} holds no words: there is nothing to retrieve from")
    return {
        "num_passages": num_passages,
        "num_files": len(files),
        "num_documents": counts["documents"],
        "skipped_records": counts["skipped"],
        "dropped_passages": {reason: counts[reason] for reason in ("without_words", "duplicate")},
    }


def _shares(spans: Sequence[Span], most_bytes: int) -> Iterator[list[Span]]:
    """Spans in groups of about so many bytes, in order: many small files make one piece of work."""
    share: list[Span] = []
    for span in spans:
        if share and sum(part.size_bytes for part in share) + span.size_bytes > most_bytes:
            yield share
            share = []
        share.append(span)
    if share:
        yield share


def _load_tokenizer(folder: str) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise InputError(f"no tokenizer at {folder}: {error}") from error
    if not tokenizer.is_fast:
        raise InputError(f"the tokenizer at {folder} doesn't tell where its tokens stand; name a fast one")
    return tokenizer


@dataclass(frozen=True, slots=True)
class _Row:
    """Where a passage stands, and its name."""

    id: str
    file: int
    row: int


def _check_ids(corpus: Path, files: Sequence[Path]) -> None:
    twice = next(_repeated(files, "id"), None)
    if twice is not None:
        document = twice[0].id.rpartition("-")[0] or twice[0].id
        raise InputError(f"{corpus}: the document id {document!r} is used more than once; ids must be unique")


def _drop_duplicates(files: Sequence[Path]) -> None:
    """Rewrite the files that hold a passage of which another one of lower id exists.

    A run that is killed in between finds the rest again: what stays of a content is the same each time.
    """
    drop: dict[int, list[int]] = {}
    for same in _repeated(files, "hash"):
        for passage in sorted(same, key=lambda row: row.id)[1:]:
            drop.setdefault(passage.file, []).append(passage.row)
    for number, rows in drop.items():
        table, counts = parquet_files.read(files[number], PASSAGE_SCHEMA.names), parquet_files.counts(files[number])
        counts["duplicate"] += len(rows)
        kept = table.take(np.setdiff1d(np.arange(len(table)), rows))
        with write_whole(files[number]) as temporary:
            parquet_files.write(temporary, [kept], PASSAGE_SCHEMA, counts)


def _repeated(files: Sequence[Path], column: str) -> Iterator[list[_Row]]:
    """The passages that share a value of a column, group by group."""
    keys = [np.fromiter(map(hash, _column(file, column)), np.int64) for file in files]
    values, uses = np.unique(np.concatenate(keys), return_counts=True)
    suspects = values[uses > 1]
    groups: dict[Any, list[_Row]] = {}
    if not len(suspects):
        return
    for number, (file, keys_N) in enumerate(zip(files, keys, strict=True)):
        rows = np.flatnonzero(np.isin(keys_N, suspects)).tolist()
        if rows:
            ids, contents = _column(file, "id"), _column(file, column)
            for row in rows:
                groups.setdefault(contents[row], []).append(_Row(ids[row], number, row))
    yield from (group for group in groups.values() if len(group) > 1)


def _column(file: Path, name: str) -> list[Any]:
    return list(parquet_files.read(file, [name]).column(name).to_pylist())
