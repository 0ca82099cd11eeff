"""Files are opened by their names, cut into spans without loss, and damage is named."""

from __future__ import annotations

import bz2
import gzip
import io

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragray.corpus import files
from ragray.corpus.files import Bad, Span, byte_spans, compression, lines, lines_before, open_file, read_lines
from ragray.records import Document, InputError

COMPRESS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda content: pa.compress(content, codec="zstd", asbytes=True),
}
SKIPPED_FRAME = b"\x50\x2a\x4d\x18\x04\0\0\0left"


def content_of(path):
    with open_file(str(path)) as file:
        return file.read()


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return tmp_path_factory.mktemp("files") / "lines.txt"


@given(rows=st.lists(st.sampled_from([b"", b"a", b"bc\r", b"\xff" * 9]), max_size=12), last=st.booleans())
def test_spans_give_every_line_once_and_count_those_before(plain, rows, last):
    content = b"".join(row + b"\n" for row in rows) + (b"last" if last else b"")
    plain.write_bytes(content)
    for span_bytes in range(1, len(content) + 2):
        spans = byte_spans(plain, "text", span_bytes)
        found = [(lines_before(span) + number, line) for span in spans for number, line in lines(span)]
        assert found == list(enumerate(io.BytesIO(content).readlines(), start=1))
        assert sum(span.size_bytes for span in spans) == len(content)


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_files_are_one_span_and_read_as_plain_ones(tmp_path, suffix):
    file = tmp_path / f"C.JSONL{suffix.upper()}"
    file.write_bytes(COMPRESS[suffix](b"one\ntwo\n") + COMPRESS[suffix](b"three"))
    [span] = byte_spans(file, "jsonl", 2)
    assert span == Span(str(file), "jsonl", size_bytes=file.stat().st_size)
    assert list(lines(span)) == [(1, b"one\n"), (2, b"two\n"), (3, b"three")]


def test_a_zstandard_file_may_begin_with_a_frame_to_be_skipped(tmp_path):
    file = tmp_path / "a.zst"
    file.write_bytes(SKIPPED_FRAME + COMPRESS[".zst"](b"text"))
    assert (compression(file), content_of(file)) == (".zst", b"text")


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_compressed_file_cut_anywhere_is_refused(tmp_path, suffix):
    content = COMPRESS[suffix](b"some words\n" * 40)
    file = tmp_path / f"a{suffix}"
    for kept in range(1, len(content)):
        file.write_bytes(content[:kept])
        with pytest.raises(InputError, match=rf"a{suffix} is a damaged or cut {suffix} file \(.+\): fetch or make it"):
            content_of(file)


@pytest.mark.parametrize("suffix", [".gz", ".bz2"])
def test_a_damaged_compressed_file_is_refused(tmp_path, suffix):
    content = bytearray(COMPRESS[suffix](b"".join(b"%d words\n" % n for n in range(500))))
    content[len(content) // 2] ^= 0xFF
    file = tmp_path / f"a{suffix}"
    file.write_bytes(content)
    with pytest.raises(InputError, match=f"a{suffix} is a damaged or cut {suffix} file"):
        content_of(file)


def test_a_failing_disk_is_not_taken_for_a_damaged_file(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"text"))
    with pytest.raises(OSError, match="full") as caught, open_file(str(tmp_path / "a.gz")):
        raise OSError(28, "the disk is full")
    assert not isinstance(caught.value, InputError)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no file .*/nowhere.gz"):
        content_of(tmp_path / "nowhere.gz")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.jsonl", gzip.compress(b"x"), "is compressed as .gz"),
        ("c.jsonl.gz", b"plain", "is not compressed"),
        ("c.jsonl.gz", bz2.compress(b"x"), "is compressed as .bz2"),
        ("c.jsonl", COMPRESS[".zst"](b"x"), "is compressed as .zst"),
    ],
)
def test_a_file_of_another_compression_than_its_name_says_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=f"{name} {message}, against what its name says: rename it"):
        compression(tmp_path / name)


@pytest.mark.parametrize("content", [b"", b"BZh is a word", b"BZ"])
def test_a_text_is_not_taken_for_a_compressed_file(tmp_path, content):
    (tmp_path / "a.txt").write_bytes(content)
    assert compression(tmp_path / "a.txt") is None


def test_what_parse_makes_of_lines_and_what_it_refuses(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes(b"head\ngood\n\nbad\ngood\n")

    def parse(line, first):
        assert first == line.startswith(b"head")
        if b"bad" in line:
            raise InputError("a bad line")
        return Document("d", "", line.decode().strip()) if b"good" in line else None

    for span_bytes in (1, 6, 100):
        found = [record for span in byte_spans(file, "text", span_bytes) for record in read_lines(span, parse)]
        good = Document("d", "", "good")
        assert found == [good, Bad(f"{file}, line 4", "a bad line"), good]


def test_an_endless_line_is_bad_and_the_lines_after_it_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 10)
    file = tmp_path / "a.txt"
    file.write_bytes(b"0123456789\n" + b"x" * 50 + b"\n" + b"012345678\n")
    for span_bytes in (1, 7, 100):
        spans = byte_spans(file, "text", span_bytes)
        found = [record for span in spans for record in read_lines(span, lambda line, _: Document("d", "", repr(line)))]
        reason = "the line is longer than 10 bytes; one record a line is wanted"
        bad = [Bad(f"{file}, line {number}", reason) for number in (1, 2)]
        assert found == [*bad, Document("d", "", repr(b"012345678\n"))]
