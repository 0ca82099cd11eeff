"""The demo of tests and dry runs: small, whole, and the same every time."""

from __future__ import annotations

from ragray.artifacts import content_fingerprint
from ragray.config import EncoderConfig, GeneratorConfig
from ragray.corpus.readers import corpus_spans, read_documents
from ragray.demo import tiny
from ragray.encoders import Encoder
from ragray.generators.loading import load_generator
from ragray.questions import read_questions
from ragray.records import Document


def test_files_are_read_by_our_readers_and_count_as_told(tmp_path):
    rows = tiny.write_demo(tmp_path)
    [span] = corpus_spans(tmp_path / "documents.jsonl", 1 << 20)
    documents = list(read_documents(span))
    assert all(isinstance(document, Document) for document in documents)
    assert len(documents) == rows["documents.jsonl"] == 12
    for split in ("train", "dev", "dev_wording"):
        assert len(read_questions(tmp_path / "questions" / f"{split}.jsonl")) == rows[f"questions/{split}.jsonl"]


def test_every_answer_stands_in_its_document():
    texts = {document["title"]: document["text"] for document in tiny.documents()}
    for split in ("train", "dev", "dev_wording"):
        for question in tiny.questions(split):
            assert question["answers"][0] in texts[question["title"]]


def test_dev_asks_for_unseen_countries_and_dev_wording_in_unseen_words():
    titles = {split: {row["title"] for row in tiny.questions(split)} for split in ("train", "dev", "dev_wording")}
    assert titles["dev"] == titles["dev_wording"]
    assert not titles["dev"] & titles["train"]
    wordings = {
        split: {row["question"].replace(row["title"], "{}") for row in tiny.questions(split)} for split in titles
    }
    assert wordings["dev"] <= wordings["train"]
    assert not wordings["dev_wording"] & wordings["train"]


def test_models_are_the_same_every_time_and_load_as_real_ones(tmp_path):
    for name, make in {"encoder": tiny.encoder, "generator": tiny.generator}.items():
        folders = [make(tmp_path / cache) for cache in _caches(tmp_path, name)]
        assert content_fingerprint(folders[0]) == content_fingerprint(folders[1])
        assert make(folders[0].parent) == folders[0]
        assert [path.name for path in folders[0].parent.iterdir()] == [folders[0].name]
        if name == "encoder":
            assert Encoder.load(folders[0], EncoderConfig(model="tiny")).dimension == 32
        else:
            assert load_generator(folders[0], GeneratorConfig(model="tiny")).stop_ids


def _caches(folder, name):
    caches = [f"{name}-cache-1", f"{name}-cache-2"]
    for cache in caches:
        (folder / cache).mkdir()
    return caches
