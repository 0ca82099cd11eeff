"""Reading JSON lines, plain or compressed: one object a line, one document an object."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ragray.corpus.fields import document
from ragray.corpus.files import Bad, Span, byte_spans, lines, lines_before, read_lines
from ragray.records import Document, InputError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def spans(file: Path, span_bytes: int) -> list[Span]:
    """Spans of about so many bytes; one for a compressed file.

    Raises:
        InputError: if the file is compressed otherwise than its name says.
    """
    return byte_spans(file, "jsonl", span_bytes)


def read(span: Span) -> Iterator[Document | Bad]:
    """The documents of a span's lines, whose fields are told in ``ragray.corpus.fields``; blank lines are left out.

    Raises:
        InputError: if the file is damaged.
    """
    return read_lines(span, _document)


def read_objects(span: Span) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number in the file, object) of every line of a span that isn't blank.

    Raises:
        InputError: naming file and line, if a line is no object or the file is damaged.
    """
    before = lines_before(span)
    for number, line in lines(span):
        try:
            record = _object(line, number == 1 and span.start == 0)
        except InputError as error:
            raise InputError(f"{span.path}, line {before + number}: {error}") from None
        if record is not None:
            yield before + number, record


def _document(line: bytes, first: bool) -> Document | None:
    record = _object(line, first)
    return None if record is None else document(record)


def _object(line: bytes, first: bool) -> dict[str, Any] | None:
    line = (line.removeprefix(_BYTE_ORDER_MARK) if first else line).strip()
    if not line:
        return None
    try:
        record = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 ({error.reason} at byte {error.start + 1} of the line): {line[:80]!r}") from None
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON ({error.msg} at character {error.pos + 1}): {line[:80]!r}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; thousands of brackets
        raise InputError(f"not JSON ({error}): {line[:80]!r}") from None
    if not isinstance(record, dict):
        raise InputError(f"an object is wanted, got {type(record).__name__}")
    return record
