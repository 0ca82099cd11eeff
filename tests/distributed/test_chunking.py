"""Chunking on the cluster is the plain split, whatever the corpus is cut into; what is left out is told."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

from ragray.config import ChunkConfig
from ragray.corpus.passages import Splitter, content_hash
from ragray.corpus.readers import corpus_spans, read_documents
from ragray.distributed import chunking
from ragray.records import PASSAGE_SCHEMA, InputError
from ragray.storage import write_whole

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

ROWS = [{"id": f"d{n}", "title": f"Ünit {n}", "text": f"wörd{n} " * (7 * n + 1)} for n in range(8)]
BAD = [
    (b'{"id": "x1", "title": "X"\n', "line 2: not JSON"),
    (b'{"id": "x2", "title": "X", "text": "\xff"}\n', "line 2: not UTF-8"),
    (b'{"id": "x3", "title": "X", "text": "a\\u0000b"}\n', "line 2: the text holds a NUL"),
    (b'{"id": "x4", "title": "X", "text": " "}\n', "line 2: the text is empty"),
    (
        b'{"id": "x5", "title": "X", "text": "' + b"y" * 2_000_000 + b'"}\n',
        "document 'x5', .* over the limit of 20,000",
    ),
]


def write(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def corpus(tmp_path):
    return write(tmp_path / "corpus.jsonl", ROWS)


@pytest.fixture
def chunk(tmp_path):
    def run(corpus, folder="passages", span_bytes=400, **settings):
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        config = ChunkConfig(**{"size": 10, **settings})
        return chunking.chunk_corpus(corpus, place, config, 2, lambda done, total: None, span_bytes=span_bytes)

    return run


def passages(folder):
    files = sorted(folder.glob("passages-*.parquet"))
    return [row for file in files for row in pq.read_table(file, schema=PASSAGE_SCHEMA).to_pylist()]


def test_the_passages_are_those_of_the_plain_split(corpus, chunk, tmp_path):
    summary = chunk(corpus)
    splitter = Splitter(ChunkConfig(size=10))
    documents = [document for span in corpus_spans(corpus, 10**6) for document in read_documents(span)]
    expected = [passage for document in documents for passage in splitter.split(document)]
    found = passages(tmp_path / "passages")
    assert len({row["id"] for row in found}) == len(found)
    kept = {row["hash"] for row in found}
    assert kept == {content_hash(passage) for passage in expected}
    names = [row["id"] for row in found]
    assert names == [passage.id for passage in expected if passage.id in set(names)]
    assert summary["num_documents"] == 8
    assert summary["num_passages"] == len(found)
    assert summary["num_passages"] + summary["dropped_passages"]["duplicate"] == len(expected)
    assert summary["num_files"] > 3


def test_of_equal_passages_the_one_of_lowest_id_stays_whatever_the_files(chunk, tmp_path):
    rows = [{"id": name, "title": "T", "text": text} for name, text in (("c", "same"), ("a", "same"), ("b", "other"))]
    one, two = tmp_path / "one", tmp_path / "two"
    for folder, order in ((one, rows), (two, rows[::-1])):
        folder.mkdir()
        for number, row in enumerate(order):
            write(folder / f"{number}.jsonl", [row])
    first, second = chunk(one, "p1", span_bytes=1), chunk(two, "p2", span_bytes=1)
    assert {row["id"] for row in passages(tmp_path / "p1")} == {"a-0", "b-0"}
    assert sorted(passages(tmp_path / "p1"), key=str) == sorted(passages(tmp_path / "p2"), key=str)
    assert first["dropped_passages"] == second["dropped_passages"] == {"without_words": 0, "duplicate": 1}


def test_a_run_killed_while_duplicates_were_dropped_ends_the_same(corpus, chunk, tmp_path, monkeypatch):
    for number in range(4):
        write(tmp_path / f"more{number}.jsonl", [{**row, "id": f"{row['id']}{number}"} for row in ROWS])
    (folder := tmp_path / "many").mkdir()
    for file in tmp_path.glob("*.jsonl"):
        file.rename(folder / file.name)
    expected = chunk(folder, "whole")

    def killed_at_third(output, calls=[]):  # noqa: B006  # counts its calls
        calls.append(output)
        if len(calls) == 3:
            raise RuntimeError("killed")
        return write_whole(output)

    with monkeypatch.context() as patched:
        patched.setattr(chunking, "write_whole", killed_at_third)  # of this process: the dropping, not the workers
        with pytest.raises(RuntimeError, match="killed"):
            chunk(folder, "broken")
    assert chunk(folder, "broken") == expected
    assert passages(tmp_path / "broken") == passages(tmp_path / "whole")


def test_a_document_id_used_twice_is_refused_wherever_the_two_are(corpus, chunk):
    with corpus.open("a") as file:
        file.write('{"id": "d3", "title": "again", "text": "and again"}\n')
    with pytest.raises(InputError, match="the document id 'd3' is used more than once"):
        chunk(corpus)


def test_passages_without_a_letter_or_digit_are_dropped_and_counted(chunk, tmp_path):
    rows = [{"id": "a", "title": "T", "text": "one two * * * | - three"}]
    summary = chunk(write(tmp_path / "c.jsonl", rows), size=2)
    assert [row["text"] for row in passages(tmp_path / "passages")] == ["one two", "- three"]
    assert summary["dropped_passages"]["without_words"] == 2


@pytest.mark.parametrize(("line", "message"), BAD, ids=["cut", "not-utf-8", "nul", "empty", "megabyte-word"])
def test_a_bad_record_stops_the_job_by_default(tmp_path, chunk, line, message):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_bytes(json.dumps(ROWS[1]).encode() + b"\n" + line)
    with pytest.raises(InputError, match=rf"{message}.*\(chunk.on_bad_input=skip leaves such records out\)"):
        chunk(corpus)


def test_bad_records_are_skipped_on_demand_and_listed_with_their_places(tmp_path, chunk):
    corpus = tmp_path / "corpus.jsonl"
    good = [json.dumps(row).encode() + b"\n" for row in ROWS[:2]]
    corpus.write_bytes(good[0] + b"".join(line for line, _ in BAD) + good[1])
    summary = chunk(corpus, on_bad_input="skip", span_bytes=10**7)
    assert summary["skipped_records"] == 5
    assert {row["id"].partition("-")[0] for row in passages(tmp_path / "passages")} == {"d0", "d1"}
    listed = [json.loads(line) for line in (tmp_path / "passages" / "skipped-00000.jsonl").read_text().splitlines()]
    places = ["line 2", "line 3", "line 4", "line 5", "document 'x5', passage 'x5-0'"]
    assert [entry["at"].partition(", ")[2] or entry["at"] for entry in listed][:4] == places[:4]
    assert listed[4]["at"] == places[4]


def test_many_small_files_share_a_piece(tmp_path, chunk):
    (folder := tmp_path / "texts").mkdir()
    for number in range(30):
        (folder / f"{number:02d}.txt").write_text(f"The text of file number {number}.")
    summary = chunk(folder, span_bytes=300)
    assert summary["num_documents"] == 30
    assert summary["num_files"] == 3
    assert passages(tmp_path / "passages")[3]["id"] == "03.txt-0"


def test_documents_that_are_passages_already_keep_their_ids(tmp_path, chunk):
    tsv = tmp_path / "psgs_w100.tsv"
    tsv.write_text('id\ttext\ttitle\n1\t"a ""quoted"" passage"\tOne\n2\tanother\tTwo\n')
    chunk(tsv, unit="document")
    assert [(row["id"], row["title"], row["text"]) for row in passages(tmp_path / "passages")] == [
        ("1", "One", 'a "quoted" passage'),
        ("2", "Two", "another"),
    ]
