"""Files of a corpus: opened and decompressed by their names, and cut into spans that can be read apart."""

from __future__ import annotations

import bz2
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow as pa

from ragray.records import Document, InputError
from ragray.storage import is_local, location

MAX_LINE_BYTES = 128 << 20  # a text of the greatest length, with each character escaped as \uXXXX\uXXXX

_SIGNATURE_BYTES = 10
_SIGNATURES = {
    ".gz": re.compile(rb"\x1f\x8b"),
    ".bz2": re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),  # three letters alone might begin a text
    ".zst": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),  # a frame, or one to be skipped
}


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a corpus file that is read by itself: the records that start at ``start <= position < stop``.

    What a position counts is the reader's affair: bytes, or row groups.  ``stop`` None means the end.  ``size_bytes``
    is about how much there is to read, as it lies in the file.  ``root`` is the folder of the corpus, from which a file
    that is one document has its id.
    """

    path: str
    reader: str = "jsonl"
    start: int = 0
    stop: int | None = None
    size_bytes: int = 0
    root: str | None = None


@dataclass(frozen=True, slots=True)
class Bad:
    """A record of a corpus that can't be used: where it is, and why it can't."""

    position: str
    reason: str


def compression(file: Path) -> str | None:
    """The compression that a file's name speaks of: ``.gz``, ``.bz2``, ``.zst`` or None.

    Raises:
        InputError: if its first bytes say otherwise.
    """
    named = _named_compression(file)
    with file.open("rb") as handle:
        first = handle.read(_SIGNATURE_BYTES)
    found = next((suffix for suffix, signature in _SIGNATURES.items() if signature.match(first)), None)
    if found == named:
        return named
    if found is None:
        raise InputError(f"{file} is not compressed, against what its name says: rename it")
    raise InputError(f"{file} is compressed as {found}, against what its name says: rename it")


def byte_spans(file: Path, reader: str, span_bytes: int) -> list[Span]:
    """Spans of about so many bytes; one for a compressed file, which can't be entered in the middle."""
    size = file.stat().st_size
    if compression(file):
        return [Span(str(file), reader, size_bytes=size)]
    bounds = [(start, min(start + span_bytes, size)) for start in range(0, max(size, 1), span_bytes)]
    return [Span(str(file), reader, start, stop, stop - start) for start, stop in bounds]


@contextmanager
def open_file(path: str) -> Iterator[BinaryIO]:
    """A file's bytes, decompressed.

    Raises:
        InputError: while it is read, if its compressed data are damaged or cut.
    """
    file = location(path)
    suffix = _named_compression(file)
    try:
        with file.open("rb") as raw:
            if suffix == ".gz":
                with gzip.open(raw) as unpacked_gzip:
                    yield cast(BinaryIO, unpacked_gzip)
            elif suffix == ".bz2":
                with bz2.open(raw) as unpacked_bzip2:
                    yield cast(BinaryIO, unpacked_bzip2)
            elif suffix == ".zst":
                with io.BufferedReader(_Zstandard(raw), 1 << 20) as unpacked_zstandard:
                    yield cast(BinaryIO, unpacked_zstandard)
            elif is_local(file):
                yield cast(BinaryIO, raw)
            else:  # fsspec's files read no line in part
                with io.BufferedReader(cast(io.RawIOBase, raw), 1 << 20) as buffered:
                    yield cast(BinaryIO, buffered)
    except FileNotFoundError:
        raise InputError(f"no file {path}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile, OSError, pa.ArrowInvalid) as error:
        if suffix is None or getattr(error, "errno", None):  # the disk or the network failed, not the data
            raise
        raise InputError(f"{path} is a damaged or cut {suffix} file ({error}): fetch or make it again") from None


def lines(span: Span) -> Iterator[tuple[int, bytes]]:
    """(number from 1 in the span, line with its end) of the lines that start in a byte span.

    A line of more than ``MAX_LINE_BYTES`` bytes is cut to one byte more than that, so memory is bounded.
    """
    number = 0
    with open_file(span.path) as file:
        position = span.start
        if span.start:
            file.seek(span.start - 1)
            position += _skip_line(file) - 1
        while (span.stop is None or position < span.stop) and (line := file.readline(MAX_LINE_BYTES + 1)):
            position += len(line)
            if len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
                position += _skip_line(file)
            number += 1
            yield number, line


def lines_before(span: Span) -> int:
    """How many lines of the file start before a byte span; all that is before it is read."""
    offset, count, ended = span.start, 0, True
    if offset == 0:
        return 0
    with open_file(span.path) as file:
        while offset > 0 and (block := file.read(min(offset, 1 << 20))):
            count += block.count(b"\n")
            offset -= len(block)
            ended = block.endswith(b"\n")
    return count if ended else count + 1


def read_lines(span: Span, parse: Callable[[bytes, bool], Document | None]) -> Iterator[Document | Bad]:
    """What ``parse(line, is the file's first)`` makes of the lines of a byte span; a line for which it gives None is
    left out, and one for which it raises InputError is Bad.
    """
    before = None
    for number, line in lines(span):
        try:
            if len(line) > MAX_LINE_BYTES:
                raise InputError(f"the line is longer than {MAX_LINE_BYTES:,} bytes; one record a line is wanted")
            document = parse(line, number == 1 and span.start == 0)
        except InputError as error:
            before = lines_before(span) if before is None else before
            yield Bad(f"{span.path}, line {before + number}", str(error))
        else:
            if document is not None:
                yield document


class _Zstandard(io.RawIOBase):
    """Arrow's decompressor as a raw stream of Python."""

    def __init__(self, raw: BinaryIO) -> None:
        self._stream = pa.CompressedInputStream(pa.PythonFile(raw, "rb"), "zstd")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        block = self._stream.read(len(buffer))
        buffer[: len(block)] = block
        return len(block)


def _named_compression(file: Path) -> str | None:
    suffix = file.suffix.lower()
    return suffix if suffix in _SIGNATURES else None


def _skip_line(file: BinaryIO) -> int:
    """Read to the end of the line; how many bytes that were."""
    count = 0
    while block := file.readline(1 << 20):
        count += len(block)
        if block.endswith(b"\n"):
            break
    return count
