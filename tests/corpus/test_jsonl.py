"""JSON lines: every line once whatever the spans, and errors that name file and line."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragray.corpus.jsonl import Span, corpus_spans, read_documents, read_objects
from ragray.records import Document, InputError

LINE = b'{"id": "a", "title": "A", "text": "x"}\n'


def numbers(path, span_bytes):
    """(line number, n) of every object of a file, read span by span."""
    return [(line, row["n"]) for span in corpus_spans(path, span_bytes) for line, row in read_objects(span)]


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
    lines = [
        json.dumps({"n": n, "fill": "ü" * length}, ensure_ascii=False).encode() for n, length in enumerate(lengths)
    ]
    content = b"".join(line + end + blank for line in lines)
    file.write_bytes(content if last else content.rstrip(b" \r\n"))
    expected = [(1 + n * (1 + blank.count(b"\n")), n) for n in range(len(lines))]
    assert numbers(file, span_bytes) == expected


@pytest.mark.parametrize("span_bytes", [7, 40, 1000])
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"id": "b", "title"', "not JSON"),
        (b'{"id": "b", "title": "B", "text": "\xff"}', "not JSON"),
        (b"[1, 2]", "an object is wanted, got list"),
        (b'{"id": "b", "text": "x"}', r"needs strings id, title and text, but no 'title' among \['id', 'text'\]"),
        (b'{"id": 7, "title": "B", "text": "x"}', "but 'id' is int"),
    ],
    ids=["cut", "not-utf-8", "list", "no-title", "number"],
)
def test_a_broken_line_is_named(tmp_path, line, message, span_bytes):
    file = tmp_path / "corpus.jsonl"
    file.write_bytes(LINE * 2 + b"\n" + line + b"\n" + LINE)
    with pytest.raises(InputError, match=rf"corpus.jsonl, line 4: .*{message}"):
        [document for span in corpus_spans(file, span_bytes) for document in read_documents(span)]


def test_a_folder_is_read_file_by_file(tmp_path):
    (tmp_path / "b.jsonl").write_bytes(LINE.replace(b'"a"', b'"b"'))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(LINE))
    (tmp_path / "notes.txt").write_text("no corpus")
    found = [document for span in corpus_spans(tmp_path, 10) for document in read_documents(span)]
    assert found == [Document("a", "A", "x"), Document("b", "A", "x")]


def test_a_missing_path_and_an_empty_folder_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"no corpus at .*nowhere: give a file of JSON lines"):
        corpus_spans(tmp_path / "nowhere", 10)
    with pytest.raises(InputError, match=r"no \*.jsonl or \*.jsonl.gz file in "):
        corpus_spans(tmp_path, 10)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [("c.jsonl", gzip.compress(LINE), "is gzipped"), ("c.jsonl.gz", LINE, "is not gzipped")],
)
def test_a_file_of_another_format_than_its_name_says_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=f"{name} {message}, against what its name says: rename it"):
        corpus_spans(tmp_path / name, 10)


@pytest.mark.parametrize("kept", [-1, -9, 30], ids=["last-byte-gone", "checksum-gone", "cut-in-the-middle"])
def test_a_cut_gzip_file_is_refused(tmp_path, kept):
    file = tmp_path / "c.jsonl.gz"
    file.write_bytes(gzip.compress(LINE * 50)[:kept])
    with pytest.raises(InputError, match=r"c.jsonl.gz is a damaged or cut gzip file .*: fetch or make it again"):
        [document for span in corpus_spans(file, 10) for document in read_documents(span)]


def test_a_damaged_gzip_file_is_refused(tmp_path):
    file = tmp_path / "c.jsonl.gz"
    content = bytearray(gzip.compress(LINE * 50))
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"c.jsonl.gz is a damaged or cut gzip file"):
        list(read_documents(Span(str(file))))


def test_an_empty_file_holds_nothing(tmp_path):
    file = tmp_path / "c.jsonl"
    file.write_bytes(b"")
    assert numbers(file, 10) == []
