"""JSON lines: every line once whatever the spans, and bad lines are named by file and line."""

from __future__ import annotations

import bz2
import gzip
import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragray.corpus.files import Bad, Span
from ragray.corpus.jsonl import read, read_objects, spans
from ragray.records import Document, InputError

LINE = b'{"id": "a", "title": "A", "text": "x"}\n'


def records(path, span_bytes=1 << 20):
    return [record for span in spans(path, span_bytes) for record in read(span)]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("corpus") / "corpus.jsonl"


@given(
    lengths=st.lists(st.integers(0, 30), max_size=20),
    blank=st.sampled_from([b"", b"\n", b"  \n\n"]),
    end=st.sampled_from([b"\n", b"\r\n"]),
    last=st.booleans(),
    span_bytes=st.integers(1, 200),
)
def test_spans_give_every_line_once_in_order_and_with_its_number(file, lengths, blank, end, last, span_bytes):
    rows = [
        json.dumps({"id": n, "title": "", "text": "ü" * length}, ensure_ascii=False).encode()
        for n, length in enumerate(lengths)
    ]
    content = b"".join(row + end + blank for row in rows)
    file.write_bytes(content if last else content.rstrip(b" \r\n"))
    numbers = [1 + n * (1 + blank.count(b"\n")) for n in range(len(rows))]
    assert records(file, span_bytes) == [
        Document(str(n), "", "ü" * length) if length else Bad(f"{file}, line {number}", "the text is empty")
        for n, (number, length) in enumerate(zip(numbers, lengths, strict=True))
    ]
    objects = [(number, row["id"]) for span in spans(file, span_bytes) for number, row in read_objects(span)]
    assert objects == list(zip(numbers, range(len(rows)), strict=True))


@pytest.mark.parametrize("span_bytes", [7, 40, 1000])
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"id": "b", "title"', "not JSON (Expecting ':' delimiter at character 20): b'{"),
        (b"1" * 5_000, "not JSON (Exceeds the limit"),
        (b"[" * 5_000, "not JSON (maximum recursion depth exceeded"),
        (b'{"id": "b", "title": "B", "text": "\xff"}', "not UTF-8 (invalid start byte at byte 36 of the line): b'{"),
        (b"\xef\xbb\xbf" + LINE.strip(), "not JSON (Unexpected UTF-8 BOM"),
        (b'"\0"', "not JSON (Invalid control character"),
        (b'{"id": "b", "title": "B", "text": "a\\u0000"}', "the text holds a NUL"),
        (b"[1, 2]", "an object is wanted, got list"),
        (b'{"id": "b", "text": "x"}', "no 'title' among ['id', 'text']; a document has the fields id, title, text"),
    ],
    ids=["cut", "digits", "deep", "not-utf-8", "byte-order-mark", "control", "nul", "list", "no-title"],
)
def test_a_bad_line_is_named_and_the_others_are_read(tmp_path, line, reason, span_bytes):
    file = tmp_path / "corpus.jsonl"
    file.write_bytes(LINE * 2 + b"\n" + line + b"\n" + LINE)
    first, second, bad, last = records(file, span_bytes)
    assert first == second == last == Document("a", "A", "x")
    assert bad.position == f"{file}, line 4"
    assert bad.reason.startswith(reason)


def test_objects_of_a_bad_line_are_an_error(tmp_path):
    file = tmp_path / "corpus.jsonl"
    file.write_bytes(LINE + b"{\n")
    with pytest.raises(InputError, match=r"corpus.jsonl, line 2: not JSON \(.*\): b'{"):
        list(read_objects(Span(str(file))))


def test_a_byte_order_mark_at_the_beginning_is_no_error(tmp_path):
    file = tmp_path / "corpus.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + LINE * 2)
    assert records(file, 5) == [Document("a", "A", "x")] * 2


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [
        (".gz", gzip.compress),
        (".bz2", bz2.compress),
        (".zst", lambda content: pa.compress(content, codec="zstd", asbytes=True)),
    ],
)
def test_a_compressed_file_is_read_as_a_plain_one(tmp_path, suffix, compress):
    content = LINE + b"\n{}\n" + LINE
    (tmp_path / "c.jsonl").write_bytes(content)
    (tmp_path / f"c.jsonl{suffix}").write_bytes(compress(content))
    plain, packed = records(tmp_path / "c.jsonl", 9), records(tmp_path / f"c.jsonl{suffix}", 9)
    assert [type(record) for record in packed] == [Document, Bad, Document]
    assert [record for record in plain if record != plain[1]] == [packed[0], packed[2]]
    assert packed[1] == Bad(f"{tmp_path}/c.jsonl{suffix}, line 3", plain[1].reason)


def test_a_cut_gzip_file_is_refused(tmp_path):
    file = tmp_path / "c.jsonl.gz"
    file.write_bytes(gzip.compress(LINE * 50)[:-9])
    with pytest.raises(InputError, match=r"c.jsonl.gz is a damaged or cut .gz file .*: fetch or make it again"):
        records(file)


def test_an_empty_file_holds_nothing(tmp_path):
    file = tmp_path / "c.jsonl"
    file.write_bytes(b"")
    assert records(file) == []
