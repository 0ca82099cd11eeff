"""Chunking on the cluster is the plain split, whatever the corpus is cut into."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

from ragray.config import ChunkConfig
from ragray.corpus.jsonl import Span, read_documents
from ragray.corpus.passages import split_document
from ragray.distributed.chunking import chunk_corpus
from ragray.records import InputError

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


@pytest.fixture
def corpus(tmp_path):
    file = tmp_path / "corpus.jsonl"
    rows = [{"id": f"d{n}", "title": f"Ünit {n}", "text": "wörd " * (7 * n)} for n in range(8)]
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return file


def test_the_passages_are_those_of_the_plain_split(corpus, tmp_path):
    folder = tmp_path / "passages"
    folder.mkdir()
    summary = chunk_corpus(corpus, folder, ChunkConfig(words=10), 2, lambda done, total: None, span_bytes=200)
    expected = [p.as_dict() for d in read_documents(Span(str(corpus))) for p in split_document(d, 10)]
    files = sorted(folder.glob("passages-*.parquet"))
    assert [row for file in files for row in pq.read_table(file).to_pylist()] == expected
    assert summary == {"num_passages": len(expected), "num_files": len(files)}
    assert len(files) > 3


def test_a_document_id_used_twice_is_refused_wherever_the_two_are(corpus, tmp_path):
    with corpus.open("a") as file:
        file.write('{"id": "d3", "title": "again", "text": "and again"}\n')
    with pytest.raises(InputError, match="the document id 'd3' is used more than once"):
        chunk_corpus(corpus, tmp_path, ChunkConfig(words=10), 2, lambda done, total: None, span_bytes=200)
