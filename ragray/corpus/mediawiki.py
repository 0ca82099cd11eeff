"""MediaWiki's XML dumps as documents: the articles of ``pages-articles*.xml``, plain or compressed, multistream or not.

Redirects, disambiguation pages, pages of other namespaces and empty ones are no documents.  Everything is streamed:
what is held in memory is one block of the file and one page.
"""

from __future__ import annotations

import bz2
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ragray.corpus.files import Bad, Span, byte_spans, compression, open_file
from ragray.corpus.wikitext import plain_text
from ragray.records import Document, InputError
from ragray.storage import location

MAX_PAGE_BYTES = 64 << 20

_BLOCK_BYTES = 1 << 20
_STREAM_START = re.compile(rb"BZh[1-9]1AY&SY")
_STREAM_START_BYTES = 10
_PAGE_EDGE = re.compile(rb"<page[\s>]|</page>")
_PAGE_EDGE_BYTES = 7
_TITLE = re.compile(rb"<title>([^<]{0,300})</title>")
_ID = re.compile(rb"<id>(\d{1,20})</id>")
_NAMESPACE = re.compile(rb"<ns>\s*(-?\d+)\s*</ns>")
_REDIRECT = re.compile(
    r"\s*#(?:redirect|weiterleitung|redirection|redirección|redirecionamento|перенаправление)\b", re.I
)
_DISAMBIGUATION = re.compile(
    r"\{\{\s*(?:[^{}|<>\n]{0,40}\bdisambig(?:uation)?(?: page| cleanup|-cleanup|-plants|-ship|-astrodist)?"
    r"|disamb|disam|dab|hndis(?:-cleanup)?|hn-?disambig|geodis|geo-dis|roaddis|shipdis|numberdis|mathdab|schooldis|hospitaldis"
    r"|callsigndis|letter-numbercombdisambig|mil-unit-dis|begriffsklärung|homonymie|desambiguación|desambiguação|disambigua"
    r"|неоднозначность|doorverwijspagina|ujednoznacznienie)\s*(?:\||\}\})|__DISAMBIG__",
    re.I,
)

_Block = tuple[bytes, bool]  # bytes of XML, and whether they belong to the span
_Piece = _Block | Bad


def spans(file: Path, span_bytes: int) -> list[Span]:
    """Spans of about so many bytes; of a bz2 file, of its compressed bytes, since the streams in it can be entered.

    Raises:
        InputError: if the file isn't a MediaWiki dump, or is compressed in another way than its name says.
    """
    if compression(file) == ".bz2":
        size = file.stat().st_size
        found = [
            Span(str(file), "mediawiki", start, min(start + span_bytes, size)) for start in range(0, size, span_bytes)
        ]
    else:
        found = byte_spans(file, "mediawiki", span_bytes)
    _check_is_dump(str(file))
    return found


def read(span: Span) -> Iterator[Document | Bad]:
    """The articles whose ``<page>`` starts in the span, and what can't be read: broken pages, cut or damaged files.

    In a bz2 file those of the streams that start in the span; a page that goes on in the next is read to its end.
    """
    for page in _pages(_pieces(span), span.path):
        if isinstance(page, Bad):
            yield page
        elif (document := _document(page, span.path)) is not None:
            yield document


def _check_is_dump(path: str) -> None:
    try:
        with open_file(path) as file:
            start = file.read(4096)
    except InputError:  # a damaged start is reported when it's read
        return
    if b"<mediawiki" not in start:
        raise InputError(f"{path} is not a MediaWiki dump: no <mediawiki> among its first {len(start)} bytes")


def _pieces(span: Span) -> Iterator[_Piece]:
    if location(span.path).suffix == ".bz2":
        yield from _stream_pieces(span)
        return
    position = span.start
    try:
        with open_file(span.path) as file:
            if position:
                file.seek(position)
            while True:
                left = _BLOCK_BYTES if span.stop is None else span.stop - position
                block = file.read(_BLOCK_BYTES if left <= 0 else min(left, _BLOCK_BYTES))
                if not block:
                    return
                yield block, left > 0
                position += len(block)
    except InputError as error:
        if position == span.start and not location(span.path).exists():
            raise
        yield Bad(span.path, str(error))


def _stream_pieces(span: Span) -> Iterator[_Piece]:
    """The decompressed streams that start in the span, then those after it, for a page that isn't finished.

    After a damaged stream reading goes on at the next one.
    """
    file = location(span.path)
    if not file.exists():
        raise InputError(f"no file {span.path}")
    stop = span.stop if span.stop is not None else file.stat().st_size
    with file.open("rb") as raw:
        streams = _Streams(raw, span.start)
        while (start := streams.find(stop)) is not None:
            try:
                for text in streams.read():
                    yield text, start < stop
            except _DamagedError as error:
                if start < stop:
                    yield Bad(f"{span.path}, byte {start}", f"{error}: fetch the file again")
                streams = _Streams(raw, start + _STREAM_START_BYTES)


class _DamagedError(Exception):
    """A bz2 stream that can't be decompressed to its end."""


class _Streams:
    """The bz2 streams of a file from an offset on, one after the other."""

    def __init__(self, file: BinaryIO, offset: int) -> None:
        file.seek(offset)
        self.file = file
        self.offset = offset  # in the file, of the compressed bytes at hand
        self.data = b""

    def find(self, stop: int) -> int | None:
        """The offset of the next stream; None at the file's end, or if none follows on and the offset is past stop."""
        blocks = 0  # one is read even past stop: the next stream starts in it, if any does
        while not (match := _STREAM_START.search(self.data)):
            kept = self.data[1 - _STREAM_START_BYTES :]
            self.offset += len(self.data) - len(kept)
            block = self.file.read(_BLOCK_BYTES) if self.offset < stop or blocks == 0 else b""
            if not block:
                return None
            blocks += 1
            self.data = kept + block
        self.data = self.data[match.start() :]
        self.offset += match.start()
        return self.offset

    def read(self) -> Iterator[bytes]:
        """The bytes of the stream that was found.

        Raises:
            _DamagedError: if it is damaged or cut.
        """
        decompressor = bz2.BZ2Decompressor()
        given, piece = len(self.data), self.data
        while not decompressor.eof:
            try:
                text = decompressor.decompress(piece, _BLOCK_BYTES)
            except OSError as error:
                raise _DamagedError(f"a damaged bz2 stream ({error})") from None
            if text:
                yield text
            piece = b""
            if decompressor.needs_input and not decompressor.eof:
                piece = self.file.read(_BLOCK_BYTES)
                given += len(piece)
                if not piece:
                    raise _DamagedError("the file ends inside of a bz2 stream")
        self.data = decompressor.unused_data
        self.offset += given - len(self.data)


def _pages(pieces: Iterator[_Piece], path: str) -> Iterator[bytes | Bad]:
    """The XML of every page whose start belongs to the span."""
    data = bytearray()
    owned = 0  # how many of the bytes at hand belong to the span
    searched = 0
    is_open = False  # then the page starts at 0
    for piece in pieces:
        if isinstance(piece, Bad):
            if is_open:
                yield _broken(data, path, "the page is cut by the fault that follows")
            data.clear()
            owned, searched, is_open = 0, 0, False
            yield piece
            continue
        block, belongs = piece
        if not (belongs or is_open or (owned and _may_start_page(data))):
            return
        data += block
        owned += len(block) if belongs else 0
        while edge := _PAGE_EDGE.search(data, searched):
            ends = edge[0] == b"</page>"
            if is_open:
                yield bytes(data[: edge.end()]) if ends else _broken(data[: edge.start()], path, "the page has no end")
            cut = edge.end() if ends else edge.start()
            del data[:cut]
            owned = max(0, owned - cut)
            is_open = not ends and owned > 0
            searched = _PAGE_EDGE_BYTES - 1 if is_open else 0
            if not (is_open or owned or belongs):
                return
        searched = max(searched, len(data) - _PAGE_EDGE_BYTES + 1)
        if not is_open:  # nothing but the start of a tag can be of use
            cut = max(0, len(data) - _PAGE_EDGE_BYTES + 1)
            del data[:cut]
            owned, searched = max(0, owned - cut), 0
        elif len(data) > MAX_PAGE_BYTES:
            yield _broken(data, path, f"the page is longer than {MAX_PAGE_BYTES >> 20} MiB")
            data, searched, is_open = bytearray(), 0, False
            owned = 0
    if is_open:
        yield _broken(data, path, "the dump ends inside of the page: fetch it again")


def _may_start_page(data: bytearray) -> bool:
    """Whether data end in the first bytes of a page's tag."""
    return any(data.endswith(b"<page"[:length]) for length in range(1, 6))


def _broken(page: bytes | bytearray, path: str, reason: str) -> Bad:
    title, number = _TITLE.search(page), _ID.search(page)
    name = f"page {title[1].decode('utf-8', 'replace')!r}" if title else "a page without a title"
    return Bad(f"{path}, {name}" + (f" (id {number[1].decode()})" if number else ""), reason)


def _document(page: bytes, path: str) -> Document | Bad | None:
    """A page's document, or None if the page isn't an article."""
    namespace = _NAMESPACE.search(page, 0, 2000)
    if (namespace and namespace[1] != b"0") or page.find(b"<redirect", 0, 4000) >= 0:
        return None
    try:
        root = ET.fromstring(page)
    except (ET.ParseError, ValueError) as error:
        return _broken(page, path, f"broken XML ({error})")
    number, title = (root.findtext(key, "").strip() for key in ("id", "title"))
    if not number or not title:
        return _broken(page, path, "the page has no id or no title")
    revisions = root.findall("revision")
    wikitext = revisions[-1].findtext("text") if revisions else None
    if not wikitext or revisions[-1].findtext("model", "wikitext") != "wikitext":
        return None
    if title.lower().endswith("(disambiguation)") or _REDIRECT.match(wikitext) or _DISAMBIGUATION.search(wikitext):
        return None
    text = plain_text(wikitext, title)
    return Document(number, title, text) if text else None
