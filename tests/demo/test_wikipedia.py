"""The excerpt of Wikipedia: its questions are sound, and their answers stand in the articles as they are read."""

from __future__ import annotations

import pytest

from ragray.corpus.readers import corpus_spans, read_documents
from ragray.demo import packages, wikipedia
from ragray.questions import read_questions
from ragray.storage import cache_folder


@pytest.fixture
def demo(tmp_path):
    """The demo of a package whose dump is a few bytes."""
    (tmp_path / "package" / wikipedia.DUMP).parent.mkdir(parents=True)
    (tmp_path / "package" / wikipedia.DUMP).write_bytes(b"a dump")
    (tmp_path / "demo").mkdir()
    rows = wikipedia.write_demo(tmp_path / "package", tmp_path / "demo")
    return tmp_path / "demo", rows


def test_dump_and_questions_are_written(demo):
    folder, rows = demo
    assert (folder / "documents.xml.bz2").read_bytes() == b"a dump"
    questions = {name: read_questions(folder / name) for name in rows}
    assert {name: len(found) for name, found in questions.items()} == rows
    assert rows == {"questions/train.jsonl": 685, "questions/dev.jsonl": 232}


def test_no_question_is_asked_in_both_sets(demo):
    folder, rows = demo
    train, dev = ({question.question for question in read_questions(folder / name)} for name in rows)
    assert train.isdisjoint(dev)
    assert {question.relation for question in read_questions(folder / "questions/dev.jsonl")} == {"plain", "indirect"}


def test_every_answer_stands_in_its_article(demo):
    dump = cache_folder() / packages.GENSIM.folder / wikipedia.DUMP
    if not dump.exists():
        pytest.skip(f"{packages.GENSIM.requirement} is not in the cache {cache_folder()}")
    documents = [document for span in corpus_spans(dump, 1 << 20, "mediawiki") for document in read_documents(span)]
    articles = {document.title: " ".join(document.text.split()).lower() for document in documents}
    assert len(articles) == len(documents) == 98
    folder, rows = demo
    questions = [question for name in rows for question in read_questions(folder / name)]
    missing = [q.id for q in questions if not any(answer.lower() in articles[q.title] for answer in q.answers)]
    assert missing == []
