"""Each file of a corpus is read by the reader that its name asks for."""

from __future__ import annotations

import bz2
import gzip
import json
import sys
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ragray.corpus.files import Bad, Span
from ragray.corpus.readers import corpus_spans, read_documents
from ragray.records import Document, InputError
from ragray.storage import location

ROW = {"id": "a", "title": "A", "text": "x"}
LINE = json.dumps(ROW).encode() + b"\n"
DOCUMENT = Document("a", "A", "x")
DUMP = b"""\
<mediawiki><page><title>Mill</title><ns>0</ns><id>7</id><revision><id>1</id>
<text xml:space="preserve">A '''mill''' [[grinding|grinds]].</text></revision></page></mediawiki>
"""


def records(corpus, reader=None, span_bytes=10):
    return [record for span in corpus_spans(corpus, span_bytes, reader) for record in read_documents(span)]


def save_dataset(folder):
    folder.mkdir(parents=True)
    table = pa.Table.from_pylist([ROW])
    data = str(folder / "data-00000-of-00001.arrow")
    with pa.OSFile(data, "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    (folder / "state.json").write_text('{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}')
    (folder / "dataset_info.json").write_text("{\n}")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("c.jsonl", LINE, DOCUMENT),
        ("c.JSON", LINE, DOCUMENT),
        ("c.ndjson.gz", gzip.compress(LINE), DOCUMENT),
        ("c.tsv.bz2", bz2.compress(b"id\ttext\ttitle\na\tx\tA\n"), DOCUMENT),
        ("c.txt", b"x", Document("c.txt", "c", "x")),
        ("c.md", b"# A\n", Document("c.md", "A", "A")),
        ("c.html", b"<p>x", Document("c.html", "c", "x")),
        ("c.xml", DUMP, Document("7", "Mill", "A mill grinds.")),
        ("dump.xml-p1p41242.bz2", bz2.compress(DUMP), Document("7", "Mill", "A mill grinds.")),
    ],
)
def test_the_name_of_a_file_chooses_the_reader(tmp_path, name, content, expected):
    if ".xml" in name:
        pytest.importorskip("mwparserfromhell")
    (tmp_path / name).write_bytes(content)
    assert records(tmp_path / name) == records(tmp_path) == [expected]


def test_a_folder_is_read_at_any_depth_sorted_and_without_what_is_hidden_or_unknown(tmp_path):
    for name in ("b.txt", "a/z.txt", "a.txt", ".hidden.txt", ".git/c.txt", "a/.cache/c.txt", "a/run.log", "LICENSE"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"words of {name}")
    (tmp_path / "folder.txt").mkdir()
    found = records(tmp_path)
    assert [document.id for document in found] == ["a.txt", "a/z.txt", "b.txt"]
    assert [document.text for document in found] == ["words of a.txt", "words of a/z.txt", "words of b.txt"]


def test_a_folder_may_hold_files_of_several_kinds(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(LINE + b"{}\n")
    pq.write_table(pa.Table.from_pylist([ROW]), tmp_path / "b.parquet")
    save_dataset(tmp_path / "deep" / "saved")
    first, bad, second, third = records(tmp_path)
    assert first == second == third == DOCUMENT
    assert isinstance(bad, Bad)
    assert all(span.size_bytes > 0 for span in corpus_spans(tmp_path, 10))


def test_a_saved_dataset_is_read_as_its_state_says(tmp_path):
    save_dataset(tmp_path / "saved")
    (tmp_path / "saved" / "cache-1.arrow").write_bytes(b"left over")
    assert records(tmp_path / "saved") == records(tmp_path / "saved", "arrow") == [DOCUMENT]


def test_a_state_json_of_something_else_is_json_lines(tmp_path):
    (tmp_path / "state.json").write_bytes(LINE)
    assert records(tmp_path) == [DOCUMENT]


def test_a_saved_dataset_of_several_splits_is_refused(tmp_path):
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    save_dataset(tmp_path / "train")
    with pytest.raises(InputError, match="is a dataset of the splits train, test: name the folder of one"):
        records(tmp_path)
    assert records(tmp_path / "train") == [DOCUMENT]


def test_a_reader_can_be_named(tmp_path):
    (tmp_path / "part-00000").write_bytes(LINE)
    assert records(tmp_path / "part-00000", "jsonl") == records(tmp_path, "jsonl") == [DOCUMENT]
    (tmp_path / "notes.txt").write_text("some notes")
    assert len(records(tmp_path, "text")) == 1
    (tmp_path / "c.jsonl").write_bytes(LINE)
    assert records(tmp_path, "jsonl") == [DOCUMENT]
    assert records(tmp_path / "c.jsonl", "text") == [Document("c.jsonl", "c", LINE.decode().strip())]


def test_what_no_reader_knows_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no corpus at .*nowhere"):
        corpus_spans(tmp_path / "nowhere", 10)
    with pytest.raises(InputError, match=r"no file of a known kind at .*; there are jsonl: \*.jsonl .*; text: \*.txt"):
        corpus_spans(tmp_path, 10)
    (tmp_path / "c.docx").write_bytes(b"x")
    with pytest.raises(InputError, match=r"no file of a known kind at .*c.docx"):
        corpus_spans(tmp_path / "c.docx", 10)
    with pytest.raises(InputError, match="no reader 'csv'; there are jsonl, dpr_tsv, parquet, arrow, mediawiki, text"):
        corpus_spans(tmp_path, 10, "csv")


def test_importing_and_listing_needs_no_library_of_a_single_kind(tmp_path, monkeypatch):
    for library in ("mwparserfromhell", "pypdf", "markdown_it"):
        monkeypatch.setitem(sys.modules, library, None)
    (tmp_path / "c.jsonl").write_bytes(LINE)
    (tmp_path / "c.pdf").write_bytes(b"")
    assert [span.reader for span in corpus_spans(tmp_path, 1000)] == ["jsonl", "text"]


def test_an_object_store_is_read_as_a_folder():
    pytest.importorskip("upath")
    corpus = location(f"memory://{uuid.uuid4().hex}/corpus")
    for name, content in {
        "a.jsonl": LINE * 3,
        "b.jsonl.gz": gzip.compress(LINE),
        "deep/c.txt": b"words",
        "deep/d.tsv": b"id\ttext\ttitle\na\tx\tA\n",
        ".hidden/e.txt": b"words",
    }.items():
        (corpus / name).parent.mkdir(parents=True, exist_ok=True)
        (corpus / name).write_bytes(content)
    with (corpus / "deep" / "f.parquet").open("wb") as sink:
        pq.write_table(pa.Table.from_pylist([ROW]), sink)
    assert records(corpus) == [*[DOCUMENT] * 4, Document("deep/c.txt", "c", "words"), *[DOCUMENT] * 2]
    assert records(corpus / "deep") == [Document("c.txt", "c", "words"), *[DOCUMENT] * 2]
    assert records(corpus / "a.jsonl") == [DOCUMENT] * 3


def test_a_span_says_how_much_there_is_to_read(tmp_path):
    (tmp_path / "c.jsonl").write_bytes(LINE * 3)
    size = len(LINE) * 3
    spans = corpus_spans(tmp_path, size - 1)
    assert spans == [
        Span(f"{tmp_path}/c.jsonl", "jsonl", 0, size - 1, size - 1, str(tmp_path)),
        Span(f"{tmp_path}/c.jsonl", "jsonl", size - 1, size, 1, str(tmp_path)),
    ]
