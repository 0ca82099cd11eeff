"""Reading tables: DPR's passages, Parquet, and Arrow as Hugging Face's datasets saves it."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ragray.corpus.fields import KNOWN_FIELDS, check_fields, checked_document, document
from ragray.corpus.files import Bad, Span, byte_spans, lines, read_lines
from ragray.records import Document, InputError
from ragray.storage import location

DPR_FIELDS = ["id", "text", "title"]
STATE_FILE, SPLITS_FILE = "state.json", "dataset_dict.json"

_ROWS_AT_ONCE = 1024
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_FILE_FORMAT = b"ARROW1"


def dpr_spans(file: Path, span_bytes: int) -> list[Span]:
    """Spans of about so many bytes of a file like DPR's ``psgs_w100.tsv``; one for a compressed file.

    Raises:
        InputError: if its first line isn't ``id<TAB>text<TAB>title``, or its compression is not as its name says.
    """
    spans = byte_spans(file, "dpr_tsv", span_bytes)
    first = next((line for _, line in lines(replace(spans[0], stop=None))), b"")
    if first.decode("utf-8-sig", errors="replace").rstrip("\r\n").split("\t") != DPR_FIELDS:
        raise InputError(f"{file} begins with {first[:80]!r}; DPR's passages begin with the line id<TAB>text<TAB>title")
    return spans


def read_dpr(span: Span) -> Iterator[Document | Bad]:
    """The passages of a span's lines.  A field with a tab or a quote stands in quotes, and its quotes are doubled.

    Raises:
        InputError: if the file is damaged.
    """
    return read_lines(span, _dpr_document)


def parquet_spans(file: Path, span_bytes: int) -> list[Span]:
    """Spans of whole row groups, of about so many uncompressed bytes if the row groups aren't larger.

    Raises:
        InputError: if it is no Parquet file, is damaged, or hasn't the columns of a document.
    """
    with _table_file(str(file), "Parquet") as handle:
        metadata = pq.ParquetFile(handle).metadata
        _check_columns(str(file), metadata.schema.to_arrow_schema())
        sizes = [metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups)]
    spans, start, size = [], 0, 0
    for group, group_bytes in enumerate(sizes, start=1):
        size += group_bytes
        if size >= span_bytes or group == len(sizes):
            spans.append(Span(str(file), "parquet", start, group, size))
            start, size = group, 0
    return spans


def read_parquet(span: Span) -> Iterator[Document | Bad]:
    """The documents of a span's row groups; a row group is read in batches.

    Raises:
        InputError: if the file is damaged.
    """
    with _table_file(span.path, "Parquet") as handle:
        file = pq.ParquetFile(handle, buffer_size=1 << 20, pre_buffer=False)
        stop = file.num_row_groups if span.stop is None else span.stop
        before = sum(file.metadata.row_group(group).num_rows for group in range(span.start))
        columns = _check_columns(span.path, file.schema_arrow)
        batches = file.iter_batches(_ROWS_AT_ONCE, row_groups=list(range(span.start, stop)), columns=columns)
        yield from _read_batches(span, batches, columns, before)


def arrow_spans(file: Path, span_bytes: int) -> list[Span]:
    """One span for an Arrow file; for the ``state.json`` of a folder that datasets wrote with ``save_to_disk``, one for
    each of its data files.

    Raises:
        InputError: if a file is missing, cut, or hasn't the columns of a document.
    """
    names = saved_files(file) if file.name == STATE_FILE else None
    files = [file] if names is None else [file.parent / name for name in names]
    for data in files:
        with _table_file(str(data), "Arrow") as handle:
            _check_columns(str(data), _arrow_reader(handle).schema)
    return [Span(str(data), "arrow", size_bytes=data.stat().st_size) for data in files]


def read_arrow(span: Span) -> Iterator[Document | Bad]:
    """The documents of an Arrow file, in the stream or the file format.

    Raises:
        InputError: if the file is damaged.
    """
    with _table_file(span.path, "Arrow") as handle:
        reader = _arrow_reader(handle)
        columns = _check_columns(span.path, reader.schema)
        if isinstance(reader, pa.RecordBatchStreamReader):
            batches = iter(reader)
        else:
            batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
        yield from _read_batches(span, batches, columns, 0)


def saved_files(state: Path) -> list[str] | None:
    """The data files that the ``state.json`` of a saved dataset names; None if it is something else.

    Raises:
        InputError: if the dataset's rows are reordered by an index beside the data.
    """
    content = _json_object(state)
    if not isinstance(content.get("_data_files"), list):
        return None
    if content.get("_indices_data_files"):
        raise InputError(f"{state.parent} selects its rows by an index: call flatten_indices() before save_to_disk()")
    return [entry["filename"] for entry in content["_data_files"]]


def saved_splits(splits: Path) -> list[str]:
    """The splits that the ``dataset_dict.json`` of a saved dataset names; none if it is something else."""
    names = _json_object(splits).get("splits")
    return names if isinstance(names, list) else []


def _json_object(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as handle:
            content = json.load(handle)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _dpr_document(line: bytes, first: bool) -> Document | None:
    if first or not line.strip():
        return None
    try:
        row = next(csv.reader([line.decode()], delimiter="\t", strict=True))
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 ({error.reason} at byte {error.start + 1} of the line): {line[:80]!r}") from None
    except csv.Error as error:
        reason = str(error).replace("\t", "\\t")
        raise InputError(f'not quoted like "a ""quoted"" word" ({reason}): {line[:80]!r}') from None
    if len(row) != len(DPR_FIELDS):
        raise InputError(f"three fields are wanted, id, text and title, got {len(row)}: {line[:80]!r}")
    name, text, title = row
    return checked_document(name, title, text)


@contextmanager
def _table_file(path: str, kind: str) -> Iterator[Any]:
    try:
        with location(path).open("rb") as handle:
            yield handle
    except FileNotFoundError:
        raise InputError(f"no file {path}") from None
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None):  # the disk or the network failed, not the data
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path} is no {kind} file or is damaged ({reason}): fetch or make it again") from None


def _arrow_reader(handle: Any) -> Any:
    begin = handle.read(len(_FILE_FORMAT))
    if begin == _FILE_FORMAT:
        return pa.ipc.open_file(handle)
    end = handle.seek(0, 2)
    handle.seek(max(0, end - len(_END_OF_STREAM)))
    if handle.read() != _END_OF_STREAM:
        raise pa.ArrowInvalid("the end of the stream is missing")
    handle.seek(0)
    return pa.ipc.open_stream(handle)


def _check_columns(path: str, schema: pa.Schema) -> list[str]:
    """Those of the columns that make a document."""
    try:
        check_fields(schema.names)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return [name for name in KNOWN_FIELDS if name in schema.names]


def _read_batches(
    span: Span, batches: Iterator[pa.RecordBatch], columns: list[str], before: int
) -> Iterator[Document | Bad]:
    number = before
    for whole in batches:
        selected = whole.select(columns)
        for offset in range(0, selected.num_rows, _ROWS_AT_ONCE):
            for record in _records(selected.slice(offset, _ROWS_AT_ONCE)):
                number += 1
                yield _document_or_bad(record, f"{span.path}, row {number}")


def _document_or_bad(record: dict[str, Any] | UnicodeDecodeError, position: str) -> Document | Bad:
    if isinstance(record, UnicodeDecodeError):
        return Bad(position, f"not UTF-8 ({record.reason})")
    try:
        return document(record)
    except InputError as error:
        return Bad(position, str(error))


def _records(batch: pa.RecordBatch) -> list[dict[str, Any] | UnicodeDecodeError]:
    try:
        return batch.to_pylist()
    except UnicodeDecodeError as error:
        if batch.num_rows == 1:
            return [error]
        return [record for row in range(batch.num_rows) for record in _records(batch.slice(row, 1))]
