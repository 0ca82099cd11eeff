"""Reading JSON lines, plain or gzipped, with errors that name file and line."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from ragray.records import Document, InputError


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes ``start <= offset < stop`` of a file; a line belongs to the span in which it starts.

    ``stop`` None means the end of the file: gzipped files can't be entered in the middle and are read whole.
    """

    path: str
    start: int = 0
    stop: int | None = None


def corpus_spans(path: Path, span_bytes: int) -> list[Span]:
    """Cut the corpus (a file, or a folder of ``*.jsonl`` and ``*.jsonl.gz``) into spans of about ``span_bytes``.

    Raises:
        InputError: if nothing is there, or a file has another format than its name says.
    """
    files = sorted(file for file in path.glob("*.jsonl*") if file.is_file()) if path.is_dir() else [path]
    if not path.exists():
        raise InputError(f"no corpus at {path}: give a file of JSON lines with id, title and text, or a folder of them")
    if not files:
        raise InputError(f"no *.jsonl or *.jsonl.gz file in {path}")
    return [span for file in files for span in _file_spans(file, span_bytes)]


def read_documents(span: Span) -> Iterator[Document]:
    """The documents of a span, one a line: an object with strings ``id``, ``title`` and ``text``.

    Raises:
        InputError: naming file and line, if a line is no such object or the file is damaged.
    """
    for number, record in read_objects(span):
        try:
            yield Document(*(_string(record, key) for key in ("id", "title", "text")))
        except InputError as error:
            raise InputError(f"{span.path}, line {number}: {error}") from None


def read_objects(span: Span) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number in the file, object) of every line of a span that isn't blank; same errors as above."""
    path = Path(span.path)
    number = _lines_before(path, span.start)
    for line in _lines(path, span):
        number += 1
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise InputError(f"{path}, line {number}: not JSON ({error}): {line[:80]!r}") from None
        if not isinstance(record, dict):
            raise InputError(f"{path}, line {number}: an object is wanted, got {type(record).__name__}")
        yield number, record


def _string(record: dict[str, Any], key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        found = f"{key!r} is {type(value).__name__}" if key in record else f"no {key!r} among {sorted(record)}"
        raise InputError(f"a document needs strings id, title and text, but {found}")
    return value


def _file_spans(file: Path, span_bytes: int) -> list[Span]:
    with file.open("rb") as handle:
        gzipped = handle.read(2) == b"\x1f\x8b"
    if gzipped != (file.suffix == ".gz"):
        raise InputError(f"{file} {'is' if gzipped else 'is not'} gzipped, against what its name says: rename it")
    if gzipped:
        return [Span(str(file))]
    size = file.stat().st_size
    return [Span(str(file), start, min(start + span_bytes, size)) for start in range(0, max(size, 1), span_bytes)]


def _lines(path: Path, span: Span) -> Iterator[bytes]:
    with _open(path) as file:
        try:
            if span.start:
                file.seek(span.start - 1)
                file.readline()
            while (span.stop is None or file.tell() < span.stop) and (line := file.readline()):
                yield line
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(f"{path} is a damaged or cut gzip file ({error}): fetch or make it again") from None


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _lines_before(path: Path, offset: int) -> int:
    """How many lines start before ``offset``."""
    if offset == 0:
        return 0
    lines = 0
    with path.open("rb") as file:
        while offset > 0 and (block := file.read(min(offset, 1 << 20))):
            lines += block.count(b"\n")
            offset -= len(block)
            ended = block.endswith(b"\n")
    return lines if ended else lines + 1
